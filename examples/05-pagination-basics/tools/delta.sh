#!/bin/sh
# mcp: {"description": "Say delta"}
echo delta
