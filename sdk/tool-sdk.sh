# shellcheck shell=bash
# tool-sdk.sh: the name tools written for mcp-bash use. All is in tool_sdk.sh; this also sets their shell options.
# shellcheck source=sdk/tool_sdk.sh
source "${BASH_SOURCE[0]%/*}/tool_sdk.sh"
set -euo pipefail
