#!/usr/bin/env bash
# mcp: {"description": "Work for a while, reporting progress"}
source "$MCP_SDK/tool_sdk.sh"

for i in 1 2 3 4 5 6; do
	mcp_progress $((i * 16)) "part $i"
	sleep 0.3
done
echo "done after several timeouts' worth of work"
