#!/usr/bin/env bash
source "$MCP_SDK/tool_sdk.sh"

mcp_args_require -v name '.name'
mcp_args_int -v times '.times' --default 1 --min 1 --max 5

for ((i = 0; i < times; i++)); do
	printf 'Hello, %s\n' "$name"
done
