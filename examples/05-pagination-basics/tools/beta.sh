#!/bin/sh
# mcp: {"description": "Say beta"}
echo beta
