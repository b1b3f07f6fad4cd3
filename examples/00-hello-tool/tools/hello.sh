#!/bin/sh
# mcp: {"description": "Say hello to the world"}
echo "Hello, World"
