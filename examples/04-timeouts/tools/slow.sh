#!/bin/sh
# mcp: {"description": "Sleep longer than allowed", "timeoutSecs": 0.5, "timeoutHint": "ask for less at once"}
sleep 60
echo "never printed"
