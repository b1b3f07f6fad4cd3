#!/usr/bin/env bash
# mcp: {"description": "Count up to a number, reporting progress", "arguments": {"type": "object", "properties": {"to": {"type": "integer"}, "pause": {"type": "number"}}}}
source "$MCP_SDK/tool_sdk.sh"

mcp_args_int -v to '.to' --default 3 --min 1 --max 1000
mcp_args_get -v pause '.pause // 0.01'
trap 'echo "stopped early" >&2; exit 143' TERM

for ((i = 1; i <= to; i++)); do
	mcp_progress "$i" "step $i of $to" "$to"
	sleep "$pause" &
	wait $!
done
echo "counted to $to"
