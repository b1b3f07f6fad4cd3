# shellcheck shell=bash
#
# tool_sdk.sh: helpers for tools written in Bash (3.2 or newer).
#
#     #!/usr/bin/env bash
#     source "$MCP_SDK/tool_sdk.sh"
#     mcp_args_require -v name '.name'
#     mcp_args_int -v count '.count' --default 1 --min 1
#     mcp_progress 50 "half way"
#     mcp_result_success "$(mcp_json_obj greeting "hello $name")"
#
# Sourcing this file starts no process, changes no shell option and leaves only names that begin with MCP_, mcp_ or
# _mcp_. (tool-sdk.sh, with a hyphen, is the same for tools written for mcp-bash; it also sets -euo pipefail.)
#
# A helper that yields text prints it: x=$(mcp_args_get .x) costs the fork that the caller wrote. With -v the argument
# readers assign instead, without any fork: mcp_args_get -v x .x
#
#   arguments   mcp_args_raw  mcp_args_get  mcp_args_require  mcp_args_int  mcp_args_bool  mcp_args_list
#               mcp_meta_raw  mcp_meta_get
#   results     mcp_emit_text  mcp_emit_json  mcp_result_success  mcp_result_error  mcp_error
#   failing     mcp_fail  mcp_fail_invalid_args          (these, and readers that refuse a value, exit 1)
#   live        mcp_progress  mcp_log  mcp_log_debug  mcp_log_info  mcp_log_warn  mcp_log_error  mcp_is_cancelled
#   JSON        mcp_json_escape  mcp_json_obj  mcp_json_arr  mcp_is_valid_json
#   places      mcp_roots_list  mcp_roots_count  mcp_roots_contains
#
# Filters. `.a`, `.a.b[0]`, `.["x y"]`, `.items[]`, a trailing `?`, `A // B` and `A | length` are answered here, from
# what the server has flattened. Other filters are handed to jq or gojq when the machine has one; filters that
# begin with $ are JSONPath and need python3 with the package jsonpath-ng.
#
# The flat form (MCP_ARGS_FLAT, or the file MCP_ARGS_FLAT_FILE when it is long): entries RS PATH US KIND VALUE, closed
# by an RS; RS, US and their escape character are 0x1e, 0x1f and 0x1d. KIND is s (text), n (number), b (boolean), z
# (null), o and a (object and array: number of members, US, JSON) or x (text with a NUL, as JSON). Parents come first.

# --- state ----------------------------------------------------------------------------------------------------------

_mcp_rs=$'\036' _mcp_us=$'\037'
_mcp_r=         # the answer of the last private function: a subshell would be a fork
_mcp_entries=() # the flat entries of the document being read
_mcp_loaded=    # which document that is: ARGS or META

_mcp_say() { printf '%s: %s\n' "${MCP_TOOL_NAME:-tool}" "$1" >&2; }

# --- the channel: one record is one write ---------------------------------------------------------------------------

# Args: KIND FIELD FIELD TEXT. Returns 1 when there is no server to write to.
_mcp_send() {
	[ -n "${MCP_CHANNEL_FD-}" ] || return 1
	# shellcheck disable=SC2261 # the second one is stdout
	printf '%s\t%s\t%s\t%s\0' "$1" "${2//[$'\t\n']/ }" "${3//[$'\t\n']/ }" "$4" 2>/dev/null >&"$MCP_CHANNEL_FD"
}

# Report progress. Args: DONE [MESSAGE [TOTAL]]. Without TOTAL, DONE is a percentage.
mcp_progress() {
	local done=${1-0} total=${3-}
	case $done in '' | *[!0-9.]*) done=0 ;; esac
	if [ -z "$total" ]; then
		total=100
		case $done in *.*) ;; *) [ "${#done}" -le 2 ] || done=100 ;; esac
	fi
	[ -z "${MCP_PROGRESS_TOKEN+set}" ] || _mcp_send progress "$done" "$total" "${2-}" || :
}

_mcp_levels='  debug  info  notice  warning  error  critical  alert  emergency  none  ' # two spaces: for neighbours

# Args: RECORD LEVEL LOGGER TEXT. Levels nobody listens to are not written at all.
_mcp_log_record() {
	case $_mcp_levels in
	*" $2 "*" ${MCP_LOG_LEVEL:-debug} "*) return 0 ;;
	esac
	_mcp_send "$1" "$2" "$3" "$4" || printf '%s: [%s] %s\n' "$3" "$2" "$4" >&2
}

# Send a log message. Args: LEVEL LOGGER JSON.
mcp_log() {
	local level=${1-}
	case $level in *[A-Z]*) level=$(printf '%s' "$level" | tr '[:upper:]' '[:lower:]') ;; esac
	[ "$level" != warn ] || level=warning
	case $_mcp_levels in
	*" $level "*) ;;
	*)
		_mcp_say "mcp_log: \"$level\" is not a log level; using info"
		level=info
		;;
	esac
	_mcp_log_record logjson "$level" "${2-}" "${3-}"
}

# Args: LOGGER TEXT, or TEXT alone.
mcp_log_debug() { _mcp_log_text debug ${1+"$@"}; }
mcp_log_info() { _mcp_log_text info ${1+"$@"}; }
mcp_log_warn() { _mcp_log_text warning ${1+"$@"}; }
mcp_log_error() { _mcp_log_text error ${1+"$@"}; }
_mcp_log_text() {
	if [ $# -lt 3 ]; then
		_mcp_log_record log "$1" "${MCP_TOOL_NAME:-tool}" "${2-}"
	else
		_mcp_log_record log "$1" "$2" "$3"
	fi
}

# Returns 0 when the client no longer wants the answer.
mcp_is_cancelled() { [ -n "${MCP_CANCEL_FILE-}" ] && [ -e "$MCP_CANCEL_FILE" ]; }

# --- writing JSON ---------------------------------------------------------------------------------------------------

# Put the JSON string for TEXT into _mcp_r.
_mcp_quote() {
	local LC_ALL=C code=1 char hex
	_mcp_r=$1
	case $_mcp_r in
	*[\"\\$'\001'-$'\037']*)
		_mcp_r=${_mcp_r//\\/\\\\}
		_mcp_r=${_mcp_r//\"/\\\"}
		_mcp_r=${_mcp_r//$'\n'/\\n}
		_mcp_r=${_mcp_r//$'\t'/\\t}
		_mcp_r=${_mcp_r//$'\r'/\\r}
		case $_mcp_r in
		*[$'\001'-$'\037']*)
			for ((code = 1; code < 32; code++)); do
				printf -v hex '%02x' "$code"
				printf -v char '%b' "\\x$hex"
				_mcp_r=${_mcp_r//"$char"/\\u00$hex}
			done
			;;
		esac
		;;
	esac
	_mcp_r="\"$_mcp_r\""
}

# Print TEXT as a JSON string.
mcp_json_escape() {
	_mcp_quote "${1-}"
	printf '%s' "$_mcp_r"
}

# Print an object of strings. Args: KEY VALUE ...
mcp_json_obj() {
	local text='' key
	if (($# % 2)); then
		_mcp_say "mcp_json_obj: expected pairs of key and value, got $# words"
		exit 1
	fi
	while (($#)); do
		_mcp_quote "$1"
		key=$_mcp_r
		_mcp_quote "$2"
		text="$text${text:+,}$key:$_mcp_r"
		shift 2
	done
	printf '{%s}' "$text"
}

# Print an array of strings. Args: VALUE ...
mcp_json_arr() {
	local text='' value
	for value in ${1+"$@"}; do
		_mcp_quote "$value"
		text="$text${text:+,}$_mcp_r"
	done
	printf '[%s]' "$text"
}

# Returns 0 when TEXT is one JSON value. Needs jq, gojq or python3.
mcp_is_valid_json() {
	if [ -n "${MCPBASH_JSON_TOOL_BIN-}" ]; then
		[ "$(printf '%s' "${1-}" | "$MCPBASH_JSON_TOOL_BIN" -s length 2>/dev/null)" = 1 ]
	else
		printf '%s' "${1-}" | python3 -c 'import json, sys; json.load(sys.stdin)' 2>/dev/null
	fi
}

# --- results --------------------------------------------------------------------------------------------------------

# Print TEXT as it is.
mcp_emit_text() { printf '%s' "${1-}"; }

# Print JSON as it is; the server makes text and structured content of it.
mcp_emit_json() { printf '%s' "${1-}"; }

# Print a successful result. Args: JSON [MAX]: above MAX bytes the text is only a summary of the structured content.
mcp_result_success() {
	local json=${1-} text
	if [ -z "$json" ]; then
		mcp_error internal_error 'Empty data passed to mcp_result_success'
		return 0
	fi
	text="{\"success\":true,\"result\":$json}"
	if ((${#text} > ${2:-${MCPBASH_MAX_TEXT_BYTES:-102400}})); then
		_mcp_quote "Success: ${#json} bytes of JSON in structuredContent"
	else
		_mcp_quote "$text"
	fi
	printf '{"content":[{"type":"text","text":%s}],"structuredContent":%s,"isError":false}\n' "$_mcp_r" "$text"
}

# Print an error result for the model. Args: JSON object with type and message. Does not exit.
mcp_result_error() {
	local message
	message=$(_mcp_filter "${1-}" '.message // "Unknown error"') || message='Unknown error'
	_mcp_error_result "$message" "${1-}"
}

# The same from words. Args: TYPE MESSAGE [--hint TEXT] [--data JSON]. Does not exit.
mcp_error() {
	local json message=${2-}
	_mcp_quote "${1-}"
	json="{\"type\":$_mcp_r"
	_mcp_quote "$message"
	json="$json,\"message\":$_mcp_r"
	shift $(($# < 2 ? $# : 2))
	while (($# >= 2)); do
		case $1 in
		--hint)
			_mcp_quote "$2"
			json="$json,\"hint\":$_mcp_r"
			;;
		--data) json="$json,\"data\":$2" ;;
		*) _mcp_say "mcp_error: \"$1\" is not an option; expected --hint or --data" ;;
		esac
		shift 2
	done
	_mcp_error_result "$message" "$json}"
}

_mcp_error_result() {
	_mcp_quote "$1"
	printf '{"content":[{"type":"text","text":%s}],' "$_mcp_r"
	printf '"structuredContent":{"success":false,"error":%s},"isError":true}\n' "$2"
}

# End the call with a JSON-RPC error. Args: CODE [MESSAGE [DATA-JSON]]. Works inside $(...) too: the server is told.
mcp_fail() {
	local code=${1-} message=${2:-Tool failed} data=${3-}
	case ${code#-} in '' | *[!0-9]*) code=-32603 ;; esac
	_mcp_quote "$message"
	_mcp_send fail "$code" "$data" "$message" ||
		printf '{"code":%s,"message":%s,"data":%s}\n' "$code" "$_mcp_r" "${data:-null}"
	_mcp_say "$message"
	exit 1
}

# End the call because of its arguments. Args: [MESSAGE [DATA-JSON]].
mcp_fail_invalid_args() { mcp_fail -32602 "${1:-Invalid params}" "${2-}"; }

# --- reading arguments ----------------------------------------------------------------------------------------------

# Print the arguments, or the request's metadata, as JSON.
mcp_args_raw() { _mcp_raw "${MCP_TOOL_ARGS_FILE-}" "${MCP_TOOL_ARGS_JSON:-{\}}"; }
mcp_meta_raw() { _mcp_raw "${MCP_TOOL_META_FILE-}" "${MCP_TOOL_META_JSON:-{\}}"; }
_mcp_raw() {
	local text=$2
	[ -z "$1" ] || IFS= read -r -d '' text <"$1" || :
	printf '%s' "$text"
}

# Answer FILTER from the arguments or the metadata. Args: [-v VAR] FILTER [--default TEXT]
mcp_args_get() { _mcp_get ARGS "$@"; }
mcp_meta_get() { _mcp_get META "$@"; }
_mcp_get() {
	local _mcp_doc=$1 _mcp_var=''
	shift
	if [ "${1-}" = -v ]; then
		_mcp_var=$2
		shift 2
	fi
	_mcp_answer "$_mcp_doc" "${1-}" || return 1
	if [ "${2-}" = --default ] && { [ -z "$_mcp_r" ] || [ "$_mcp_r" = null ]; }; then
		_mcp_r=${3-}
	fi
	_mcp_yield "$_mcp_var"
}

# Assign _mcp_r to VAR, or print it when VAR is empty.
_mcp_yield() {
	if [ -n "$1" ]; then printf -v "$1" '%s' "$_mcp_r"; else printf '%s' "$_mcp_r"; fi
}

# Yield a value that must be there. Args: [-v VAR] FILTER [MESSAGE]
mcp_args_require() {
	local _mcp_var=''
	if [ "${1-}" = -v ]; then
		_mcp_var=$2
		shift 2
	fi
	_mcp_answer ARGS "$1" || exit 1
	case $_mcp_r in '' | null) mcp_fail -32602 "${2:-$1 is required}" ;; esac
	_mcp_yield "$_mcp_var"
}

# Yield true or false. Args: [-v VAR] FILTER [--default VALUE]
mcp_args_bool() {
	local _mcp_var=''
	if [ "${1-}" = -v ]; then
		_mcp_var=$2
		shift 2
	fi
	_mcp_answer ARGS "$1" || exit 1
	case $_mcp_r in
	'' | null)
		[ "${2-}" = --default ] || mcp_fail -32602 "$1 is required"
		_mcp_r=${3-}
		;;
	esac
	case $_mcp_r in true | 1) _mcp_r=true ;; *) _mcp_r=false ;; esac
	_mcp_yield "$_mcp_var"
}

# Yield a whole number. Args: [-v VAR] FILTER [--default N] [--min N] [--max N]
mcp_args_int() {
	local _mcp_var='' _mcp_name _mcp_min='' _mcp_max='' _mcp_default=''
	if [ "${1-}" = -v ]; then
		_mcp_var=$2
		shift 2
	fi
	_mcp_name=$1
	shift
	while (($# >= 2)); do
		case $1 in
		--default) _mcp_default=$2 ;;
		--min) _mcp_min=$2 ;;
		--max) _mcp_max=$2 ;;
		esac
		shift 2
	done
	if [ -n "$_mcp_min" ] && [ -n "$_mcp_max" ] && ((_mcp_min > _mcp_max)); then
		mcp_fail -32602 'mcp_args_int: --min cannot exceed --max'
	fi
	_mcp_answer ARGS "$_mcp_name" || exit 1
	case $_mcp_r in '' | null) _mcp_r=$_mcp_default ;; esac
	[ -n "$_mcp_r" ] || mcp_fail -32602 "$_mcp_name is required"
	[[ $_mcp_r =~ ^-?[0-9]{1,18}(\.0+)?$ ]] || mcp_fail -32602 "$_mcp_name must be an integer"
	_mcp_r=${_mcp_r%%.*}
	[ -z "$_mcp_min" ] || ((_mcp_r >= _mcp_min)) || mcp_fail -32602 "$_mcp_name must be >= $_mcp_min"
	[ -z "$_mcp_max" ] || ((_mcp_r <= _mcp_max)) || mcp_fail -32602 "$_mcp_name must be <= $_mcp_max"
	_mcp_yield "$_mcp_var"
}

# Assign the members of an array to the Bash array VAR. Args: VAR FILTER
mcp_args_list() {
	local _mcp_i=0 _mcp_line
	eval "$1=()"
	if _mcp_load ARGS && _mcp_canonical "$2"; then
		_mcp_line=$_mcp_r
		while _mcp_find "${_mcp_line}[$_mcp_i]"; do
			eval "$1+=(\"\$_mcp_r\")"
			_mcp_i=$((_mcp_i + 1))
		done
		return 0
	fi
	_mcp_outside ARGS "$2[]" || return 1
	while IFS= read -r _mcp_line; do
		eval "$1+=(\"\$_mcp_line\")"
	done <<<"$_mcp_r"
}

# --- answering filters ----------------------------------------------------------------------------------------------

# Split the flat text of DOC (ARGS or META) into _mcp_entries, once. Returns 1 when there is none: the tool is run by
# hand, or its arguments are so long that the server did not flatten them.
_mcp_load() {
	local flat file glob=$-
	[ "$_mcp_loaded" != "$1" ] || return 0
	if [ "$1" = ARGS ]; then
		flat=${MCP_ARGS_FLAT-} file=${MCP_ARGS_FLAT_FILE-}
	else
		flat=${MCP_META_FLAT-} file=${MCP_META_FLAT_FILE-}
	fi
	[ -z "$file" ] || IFS= read -r -d '' flat <"$file" || :
	[ -n "$flat" ] || return 1
	local IFS=$_mcp_rs
	set -f
	# shellcheck disable=SC2206 # splitting is the point
	_mcp_entries=($flat)
	case $glob in *f*) ;; *) set +f ;; esac
	_mcp_loaded=$1
}

_mcp_python() {
	python3 "${MCP_SDK:-$(dirname "${BASH_SOURCE[0]}")}/tool_sdk.py" "$@"
}

# Put the value at the canonical PATH into _mcp_r and its kind into _mcp_kind. Returns 1 when there is none.
_mcp_find() {
	local entry
	_mcp_kind=
	for entry in ${_mcp_entries[@]+"${_mcp_entries[@]}"}; do
		case $entry in
		"$1$_mcp_us"*)
			entry=${entry:${#1}+1}
			_mcp_kind=${entry:0:1}
			_mcp_r=${entry:1}
			break
			;;
		esac
	done
	case $_mcp_kind in
	'') return 1 ;;
	z) _mcp_r=null ;;
	o | a)
		_mcp_count=${_mcp_r%%"$_mcp_us"*}
		_mcp_r=${_mcp_r:${#_mcp_count}+1}
		;;
	esac
	case $_mcp_r in
	*$'\035'*)
		_mcp_r=${_mcp_r//$'\035'e/$'\036'}
		_mcp_r=${_mcp_r//$'\035'f/$'\037'}
		_mcp_r=${_mcp_r//$'\035'd/$'\035'}
		;;
	esac
}

# Put the way PATH is written in the flat form into _mcp_r. Returns 1 when it is not a plain path.
_mcp_canonical() {
	local rest=${1%\?} path=''
	local name='^\.?([A-Za-z_][A-Za-z0-9_]*)(.*)$' quoted='^\.?\["([A-Za-z_][A-Za-z0-9_]*)"\](.*)$'
	local other='^\.?(\["[^"\\]*"\]|\[[0-9]+\])(.*)$'
	[ "${rest:0:1}" = . ] || return 1
	[ "$rest" != . ] || rest=
	while [ -n "$rest" ]; do
		if [[ $rest =~ $name ]] || [[ $rest =~ $quoted ]]; then
			path="$path.${BASH_REMATCH[1]}"
		elif [[ $rest =~ $other ]]; then
			path="${path:-.}${BASH_REMATCH[1]}"
		else
			return 1
		fi
		rest=${BASH_REMATCH[2]#\?}
	done
	_mcp_r=${path:-.}
}

# Put the answer of DOC to FILTER into _mcp_r. Returns 1, with a message, when it cannot be had.
_mcp_answer() {
	local filter=$2 left right
	if [ "${filter:0:1}" = '$' ] || ! _mcp_load "$1"; then
		_mcp_outside "$1" "$filter"
		return
	fi
	case $filter in
	*' // '*)
		left=${filter%%' // '*} right=${filter#*' // '}
		if _mcp_canonical "$left" && _mcp_find "$_mcp_r"; then
			case $_mcp_kind$_mcp_r in znull | bfalse) ;; *) return 0 ;; esac
		fi
		case $right in
		\"*\") [[ $right != *\\* ]] && _mcp_r=${right:1:${#right}-2} && return 0 ;;
		true | false | null | [0-9]* | -[0-9]*) _mcp_r=$right && return 0 ;;
		.*) _mcp_canonical "$right" && { _mcp_find "$_mcp_r" || _mcp_r=null; } && return 0 ;;
		esac
		;;
	*' | length')
		_mcp_canonical "${filter%' | length'}" && _mcp_length "$_mcp_r" && return 0
		;;
	*'[]')
		_mcp_canonical "${filter%'[]'}" && _mcp_members "$_mcp_r" && return 0
		;;
	*)
		_mcp_canonical "$filter" && { _mcp_find "$_mcp_r" || _mcp_r=null; } && return 0
		;;
	esac
	_mcp_outside "$1" "$filter"
}

_mcp_length() {
	_mcp_find "$1" || { _mcp_r=0 && return 0; }
	case $_mcp_kind in
	o | a) _mcp_r=$_mcp_count ;;
	z) _mcp_r=0 ;;
	s) _mcp_r=${#_mcp_r} ;;
	*) return 1 ;;
	esac
}

_mcp_members() {
	local i=0 text='' stem=$1
	_mcp_find "$stem" && [ "$_mcp_kind" = a ] || return 1
	while _mcp_find "${stem}[$i]"; do
		text="$text${text:+$'\n'}$_mcp_r"
		i=$((i + 1))
	done
	_mcp_r=$text
}

# Ask another program about DOC.
_mcp_outside() {
	local json
	if [ "$1" = ARGS ]; then json=$(mcp_args_raw); else json=$(mcp_meta_raw); fi
	_mcp_r=$(_mcp_filter "$json" "$2")
}

_mcp_filter() {
	if [ "${2:0:1}" = '$' ]; then
		printf '%s' "$1" | _mcp_python jsonpath "$2"
	elif [ -n "${MCPBASH_JSON_TOOL_BIN-}" ]; then
		printf '%s' "$1" | "$MCPBASH_JSON_TOOL_BIN" -rc "$2"
	elif command -v jq >/dev/null 2>&1; then
		printf '%s' "$1" | jq -rc "$2"
	elif _mcp_canonical "$2"; then
		printf '%s' "$1" | _mcp_python get "$2"
	else
		_mcp_say "the filter $2 needs jq or gojq, and this machine has neither; a plain path such as .name does not"
		return 1
	fi
}

# --- roots ----------------------------------------------------------------------------------------------------------

# Print the client's roots, one path a line.
mcp_roots_list() { [ -z "${MCP_ROOTS_PATHS-}" ] || printf '%s\n' "$MCP_ROOTS_PATHS"; }

# Print how many there are.
mcp_roots_count() { printf '%s\n' "${MCP_ROOTS_COUNT:-0}"; }

# Returns 0 when PATH lies inside a root, symbolic links resolved.
mcp_roots_contains() {
	local directory path root
	directory=$(cd -P -- "$(dirname -- "$1")" 2>/dev/null && pwd -P) || return 1
	path=${directory%/}/$(basename -- "$1")
	if [ -d "$1" ]; then path=$(cd -P -- "$1" && pwd -P) || return 1; fi
	[ ! -L "$path" ] || return 1 # a link to a file may lead anywhere
	while IFS= read -r root; do
		case $path/ in "${root%/}"/*) return 0 ;; esac
	done <<<"${MCP_ROOTS_PATHS-}"
	return 1
}
