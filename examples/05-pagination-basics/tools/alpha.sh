#!/bin/sh
# mcp: {"description": "Say alpha"}
echo alpha
