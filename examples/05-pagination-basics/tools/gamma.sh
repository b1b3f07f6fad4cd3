#!/bin/sh
# mcp: {"description": "Say gamma"}
echo gamma
