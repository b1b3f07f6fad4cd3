#!/bin/sh
# mcp: {"description": "Say epsilon"}
echo epsilon
