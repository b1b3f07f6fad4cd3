#!/usr/bin/env bash
# mcp: {"description": "Pretend to back up three files, with log messages on the way"}
source "$MCP_SDK/tool_sdk.sh"

mcp_log_debug backup "looking for files"
mcp_log_info backup "3 files to save"
mcp_log_warn backup 'one of them has an odd name: "a b".txt'
mcp_log info backup '{"saved": 3, "bytes": 1024}'
echo "low on disk" >&2
echo "saved 3 files"
