#!/usr/bin/env python3
"""mcp_bash: a directory of executable scripts becomes an MCP server on stdio.

    python3 mcp_bash.py                       serve the project this file lies in, or a getting-started one
    python3 mcp_bash.py --project-root DIR    serve DIR: every script under DIR/tools is a tool
    python3 mcp_bash.py --help                the command line

One file, no packages, Python 3.9 or newer. It reads top to bottom; a room uses only the rooms above it.

  1  Constants and errors  numbers of the protocol, exceptions that know their wire form
  2  JSON codec            strict bytes in, one safe line out
  3  Text and paths        pure functions on strings and file names
  4  Settings              one table: parsing, limits, help and documentation
  5  Log                   one line per record, redacted, to stderr and to clients
  7  Metadata              from a file to a record; a bad file is a problem, never an exception
  8  Registries            what the project offers, as snapshots that are swapped whole
  9  Pagination            opaque cursors over a snapshot
 10  Containment           nothing outlives anything: guardian, tags, state directory
 11  Process runner        start one child, watch it, end it
 12  Protocol tables       versions, methods, features; results for older versions
 13  Wire                  hold stdin and stdout, read lines, write lines
 14  Sessions and eras     who is asking, in which version, with which rights
 15  Handlers              one function per method
 16  Dispatcher            from a line to its answer: slots, in-flight table, cancellation
 17  Housekeeping          everything that happens by itself
 18  Supplies              which project, which SDK; both built in, for a file that travels alone
 19  Commands              what a person types
 20  Main                  become the server or run a command

MIT licence. https://modelcontextprotocol.io describes the protocol.
"""
from __future__ import annotations

import sys

if __name__ == "__main__" and sys.path:
    # The script's own directory comes first on sys.path; a project may well hold a queue.py or json.py.
    del sys.path[0]

import errno
import json
import os
import re
import select
import signal
import stat
import threading
import time
from collections import deque, namedtuple
from queue import SimpleQueue

try:
    import fcntl
    import resource
except ImportError:  # Windows: the server says so in room 20, the commands that only read files still work
    fcntl = resource = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any, Callable, NoReturn

    Steps = Generator[Any, Any, Any]  # a handler that waits: yields a Job or an Errand, gets its outcome

# ======================================================================================================================
# 1. CONSTANTS AND ERRORS — numbers of the protocol, exceptions that know their wire form.
# ======================================================================================================================

VERSION = "0.1.0"
THIS_FILE = os.path.realpath(__file__)  # asked for now: the interpreter forgets it when the main script has run
CONTRACT = "1.3.0"  # the mcp-bash release whose tool contract is kept; tools see it as MCPBASH_FRAMEWORK_VERSION

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
NOT_INITIALIZED, SHUTTING_DOWN, EXIT_TOO_EARLY = -32000, -32003, -32005  # handshake era only
MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32021, -32022  # stateless era only

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
EXIT_CORRUPT = 2  # three answers in a minute that could not be written as JSON
EXIT_BROKEN_PIPE = 3  # the client's end of stdout is gone or refuses bytes


class RpcError(Exception):
    """A failure that is answered with a JSON-RPC error object."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data

    def to_wire(self) -> dict:
        """Return the `error` member of the response."""
        error: dict = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


class InvalidParams(RpcError):
    """The request is well-formed JSON-RPC but asks for something that makes no sense."""

    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(INVALID_PARAMS, message, data)


class MethodNotFound(RpcError):
    """The method does not exist in this version, or its capability is not offered."""

    def __init__(self, method: str, why: str = "") -> None:
        super().__init__(METHOD_NOT_FOUND, why or "Method not found: " + clip(one_line(method), 100))


class InternalError(RpcError):
    """The server or the machine failed, not the caller."""

    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(INTERNAL_ERROR, message, data)


class Cancelled(Exception):
    """The client no longer wants the answer; nothing more is sent for this request."""


class UserError(Exception):
    """A command cannot go on; `str()` is the sentence for the terminal."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Problem(namedtuple("Problem", "path line message hint")):
    """Something wrong in a project file or setting: collected, reported, never raised."""

    __slots__ = ()

    def __str__(self) -> str:
        place = self.path + (":%d" % self.line if self.line else "")
        return "%s: %s%s" % (place, self.message, " " + self.hint if self.hint else "")


# Two helpers every message needs; the rest of the text functions are in room 3.

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    r"""Return `text` with control, line-separator and direction characters made visible.

    >>> one_line("a\nb\x1b[2J")
    'a\\nb\\x1b[2J'
    """
    return _CONTROL.sub(lambda found: repr(found.group())[1:-1], text)


def clip(text: str, limit: int) -> str:
    """Return `text` cut to `limit` characters, the last of them an ellipsis when something was cut.

    >>> clip("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


# ======================================================================================================================
# 2. JSON CODEC — strict bytes in, one safe line out.
# ======================================================================================================================

MAX_DEPTH = 128  # deeper messages are refused: no client nests like this, and Python's own limit varies by version
MAX_BRACKETS = 500_000  # a line of empty arrays costs 20 times its size in memory; this bounds it

# Pythons before the digit limit (3.9.14, 3.10.7) take quadratic time for long integers.
_LONG_INTEGER = None if hasattr(sys, "get_int_max_str_digits") else re.compile(rb"[0-9]{4301}")


class ParseError(RpcError):
    """The line is not a JSON document we are willing to read."""

    def __init__(self, why: str) -> None:
        super().__init__(PARSE_ERROR, "Parse error: " + why)
        self.why = why


def _refuse_constant(word: str) -> None:
    raise ValueError("%s is not JSON" % word)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number is out of range")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))
_CANONICAL = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True)


def decode(line: bytes) -> Any:
    """Return the JSON value in `line`; raise ParseError for everything that is not exactly one strict document.

    >>> decode(b'{"a": [1, 2.5, "x"]}')
    {'a': [1, 2.5, 'x']}
    """
    brackets = line.count(b"[") + line.count(b"{")
    if brackets > MAX_BRACKETS:
        raise ParseError("more than %d arrays and objects in one message" % MAX_BRACKETS)
    if _LONG_INTEGER and _LONG_INTEGER.search(line):
        raise ParseError("an integer has more than 4300 digits")
    try:
        value = _DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ParseError("the line is not valid UTF-8") from None
    except RecursionError:
        raise ParseError("nested deeper than %d levels" % MAX_DEPTH) from None
    except ValueError as error:
        why = str(error) if "digits" not in str(error) else "an integer has more than 4300 digits"
        raise ParseError(clip(one_line(why), 120)) from None
    if brackets > MAX_DEPTH and depth_of(value) > MAX_DEPTH:
        raise ParseError("nested deeper than %d levels" % MAX_DEPTH)
    return value


def depth_of(value: Any) -> int:
    """Return how deeply arrays and objects are nested, without recursion.

    >>> depth_of([[], {"a": [1]}])
    3
    """
    deepest, stack = 0, [(value, 1)]
    while stack:
        node, level = stack.pop()
        if isinstance(node, (dict, list)):
            deepest = max(deepest, level)
            members = node.values() if isinstance(node, dict) else node
            stack.extend((member, level + 1) for member in members if isinstance(member, (dict, list)))
    return deepest


def encode(value: Any) -> bytes:
    r"""Return `value` as compact one-line ASCII JSON; raise ValueError for NaN and infinities.

    >>> encode({"text": "a\u2028b"})
    b'{"text":"a\\u2028b"}'
    """
    return _ENCODER.encode(value).encode("ascii")


def canonical(value: Any) -> bytes:
    """Return the one byte string that stands for `value` when it is hashed: sorted keys, compact, ASCII.

    >>> canonical({"b": 1, "a": 2})
    b'{"a":2,"b":1}'
    """
    return _CANONICAL.encode(value).encode("ascii")


def document(text: str) -> tuple[bool, Any]:
    """Return (True, value) when `text` is exactly one JSON document within the limits, else (False, None).

    >>> document(' {"a": 1}\\n')
    (True, {'a': 1})
    >>> document("{} {}")
    (False, None)
    """
    head = text.lstrip()[:1]
    if not head or head not in '{["-0123456789tfn':
        return False, None
    try:
        return True, decode(text.strip().encode("utf-8"))
    except (ParseError, UnicodeEncodeError):
        return False, None


# ======================================================================================================================
# 3. TEXT AND PATHS — pure functions on strings and file names.
# ======================================================================================================================

# Characters that change what a reader sees without being seen: zero width, direction, tags, soft hyphen.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f]")
_ANSI = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\-_])")
_SECRET_NAME = re.compile(
    r"(?i)(pass(word|wd|phrase)|secret|token|cookie|api[-_]?key|credential|authorization|private[-_]?key)"
)
_SECRET_TEXT = re.compile(r"(?i)(bearer\s+|basic\s+)[a-z0-9+/=._~-]{8,}|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")


def clean_text(text: str) -> str:
    r"""Return `text` without terminal sequences and invisible characters; newlines and tabs stay.

    >>> clean_text("ok\x1b[31m red\u200b\x07")
    'ok red'
    """
    text = _INVISIBLE.sub("", _ANSI.sub("", text))
    return "".join(c for c in text if c in "\n\t" or not _CONTROL.match(c))


def split_list(text: str) -> list[str]:
    """Split a list that may use commas, spaces or both.

    >>> split_list("a, b  c,,d")
    ['a', 'b', 'c', 'd']
    """
    return [word for word in re.split(r"[,\s]+", text) if word]


def clip_utf8(data: bytes, limit: int) -> bytes:
    r"""Return at most `limit` bytes of `data` without cutting a UTF-8 character in two.

    >>> clip_utf8("aé".encode(), 2)
    b'a'
    """
    if len(data) <= limit:
        return data
    cut = limit
    while cut > 0 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return data[:cut]


def redact(value: Any) -> Any:
    """Return a copy of a JSON value in which members with telling names and token-like strings are masked.

    >>> redact({"apiKey": "x", "note": "Bearer abcdefghij"})
    {'apiKey': '[redacted]', 'note': '[redacted]'}
    """
    if isinstance(value, dict):
        return {key: "[redacted]" if _SECRET_NAME.search(key) else redact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redact(item) for item in value]
    if not isinstance(value, str):
        return value
    is_json, inner = document(value) if value.lstrip()[:1] in ("{", "[") else (False, None)
    return _ENCODER.encode(redact(inner)) if is_json else _SECRET_TEXT.sub("[redacted]", value)


def is_inside(root: str, path: str) -> bool:
    """Say whether absolute `path` is `root` or lies below it, comparing whole components.

    >>> is_inside("/d/safe", "/d/safe-evil/x"), is_inside("/d/safe", "/d/safe/x")
    (False, True)
    """
    return path == root or path.startswith(root.rstrip("/") + "/")


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    import hashlib  # 3 ms to import; only lists and cursors need it

    return hashlib.sha256(data).hexdigest()


def atomic_write(path: str, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by a file holding `data`: readers see the old or the new one, never half."""
    temporary = "%s.%d.%s.tmp" % (path, os.getpid(), os.urandom(4).hex())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_small(path: str, limit: int) -> bytes:
    """Return the content of the regular file `path`; raise OSError when it is not one or is over `limit` bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        data = read_up_to(descriptor, limit + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise OSError(errno.EFBIG, "larger than %d bytes" % limit, path)
    return data


def read_up_to(descriptor: int, limit: int) -> bytes:
    """Return up to `limit` bytes from `descriptor`, stopping at its end."""
    parts, size = [], 0
    while size < limit:
        part = os.read(descriptor, min(1 << 20, limit - size))
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def unsafe_reason(path: str, status: os.stat_result) -> str:
    """Say why a file must not be trusted as ours, or return an empty string.

    Ours means: owned by the user we run as, or by root, and writable by nobody else.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return "%s is owned by another user (uid %d)" % (path, status.st_uid)
    if status.st_mode & 0o022:
        return "%s is writable by others (mode %04o); run: chmod go-w '%s'" % (path, stat.S_IMODE(status.st_mode), path)
    return ""


def unsafe_project_file(root: str, path: str) -> str:
    """Say why the hook or registration file `path` of the project `root` must not be used, or return ''."""
    for place in (root, os.path.dirname(path), path):
        try:
            status = os.lstat(place)
        except OSError as error:
            return "%s cannot be examined (%s)" % (place, error.strerror)
        if stat.S_ISLNK(status.st_mode) and place != root:
            return "%s is a symbolic link; put the file itself there" % place
        reason = unsafe_reason(place, status)
        if reason:
            return reason
    return ""


_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SEPARATORS = re.compile("[\x1d\x1e\x1f]")
FLAT_DEPTH = 16  # containers below this level are handed over as JSON only
FLAT_LIMIT = 256 << 10  # bytes of JSON; what is larger is handed over as JSON only, no shell would read it anyway


def flatten(value: Any) -> str:
    """Return `value` as the flat text a Bash tool reads arguments from without starting a program.

    Entries `RS path US kind value` in document order and a closing RS; sdk/tool_sdk.sh describes the format.

    >>> flatten({"n": 5}).replace(chr(30), "|").replace(chr(31), "=")
    '|.=o1={"n":5}|.n=n5|'
    """
    entries: list[str] = []
    _flatten_into(entries, ".", value, 0)
    return "\x1e" + "\x1e".join(entries) + "\x1e"


def _flatten_into(entries: list[str], path: str, value: Any, depth: int) -> None:
    entries.append(_flat_text(path) + "\x1f" + _flat_value(value))
    if depth >= FLAT_DEPTH:
        return
    stem = "" if path == "." else path
    if isinstance(value, dict):
        for key, member in value.items():
            step = "." + key if _PLAIN_KEY.match(key) else "[%s]" % json.dumps(key, ensure_ascii=False)
            _flatten_into(entries, (stem or ("" if step[0] == "." else ".")) + step, member, depth + 1)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            _flatten_into(entries, "%s[%d]" % (stem or ".", index), member, depth + 1)


def _flat_value(value: Any) -> str:
    if isinstance(value, str):
        return "s" + _flat_text(value) if "\0" not in value else "x" + _ENCODER.encode(value)
    if isinstance(value, (dict, list)):
        kind = "o" if isinstance(value, dict) else "a"
        return "%s%d\x1f%s" % (kind, len(value), _ENCODER.encode(value))
    if value is None:
        return "z"
    return ("b" if isinstance(value, bool) else "n") + _ENCODER.encode(value)


def _flat_text(text: str) -> str:
    if not _SEPARATORS.search(text):
        return text
    return _SEPARATORS.sub(lambda found: "\x1d" + "def"[ord(found.group()) - 0x1D], text)


# ======================================================================================================================
# 4. SETTINGS — one table: parsing, limits, help and documentation.
# ======================================================================================================================

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
RANK = {name: rank for rank, name in enumerate(LEVELS)}

Setting = namedtuple("Setting", "name kind default help low high group")

# kind: int, float (seconds), bool, text, words (a list), path, level, or a tuple of allowed words.
# rows: name, kind, default, help, and for numbers the lowest and the highest value
_SETTINGS_BY_GROUP: dict[str, tuple] = {
    "paths": (
        ("MCPBASH_PROJECT_ROOT", "path", "",
         "the project; else a parent with server.d/server.meta.json, else the directory of mcp_bash.py"),
        ("MCPBASH_TOOLS_DIR", "path", "", "tools, default PROJECT/tools"),
        ("MCPBASH_SERVER_DIR", "path", "", "metadata and hooks, default PROJECT/server.d"),
        ("MCPBASH_REGISTRY_DIR", "path", "", "registry cache, default PROJECT/.registry"),
        ("MCPBASH_TMP_ROOT", "path", "", "where the state directory is made, default TMPDIR or /tmp"),
    ),
    "security": (
        ("MCPBASH_TOOL_ALLOWLIST", "words", "",
         "tools that may be called, by exact name; * or all alone means every tool"),
        ("MCPBASH_TOOL_ALLOW_DEFAULT", ("allow", "all", "deny"), "allow", "what an empty allow list means"),
        ("MCPBASH_TOOL_ENV_MODE", ("minimal", "allowlist", "inherit"), "minimal",
         "which variables of the server a tool sees"),
        ("MCPBASH_TOOL_ENV_ALLOWLIST", "words", "", "further variables for mode allowlist"),
        ("MCPBASH_TOOL_ENV_INHERIT_ALLOW", "bool", False, "second switch that mode inherit needs"),
        ("MCPBASH_ALLOW_PROJECT_HOOKS", "bool", False, "run server.d/register.sh and server.d/env.sh"),
        ("MCPBASH_REMOTE_TOKEN", "text", "", "shared secret every request must carry, at least 32 characters"),
        ("MCPBASH_REMOTE_TOKEN_KEY", "text", "mcpbash/remoteToken", "where in params._meta the secret is"),
        ("MCPBASH_REMOTE_TOKEN_FALLBACK_KEY", "text", "remoteToken", "second place to look for the secret"),
        ("MCPBASH_REMOTE_TOKEN_MAX_FAILURES_PER_MIN", "int", 10,
         "wrong secrets in a minute before answers say (throttled)", 1, 10000),
    ),
    "limits": (
        ("MCPBASH_MAX_CONCURRENT_REQUESTS", "int", 16, "tools running at the same time", 1, 256),
        ("MCPBASH_MAX_QUEUED_REQUESTS", "int", 1024, "calls waiting for a slot; more are refused at once", 0, 100000),
        ("MCPBASH_MAX_REQUEST_BYTES", "int", 10 << 20, "longest line read from the client", 1024, 1 << 30),
        ("MCPBASH_MAX_RESPONSE_BYTES", "int", 8 << 20,
         "longest line written; official clients give up at 10 MiB", 4096, 1 << 30),
        ("MCPBASH_MAX_TOOL_OUTPUT_SIZE", "int", 10 << 20, "bytes of stdout before a tool is stopped", 1, 1 << 30),
        ("MCPBASH_MAX_TOOL_STDERR_SIZE", "int", 10 << 20, "bytes of stderr before a tool is stopped", 1, 1 << 30),
        ("MCPBASH_TOOL_STDERR_CAPTURE", "bool", True, "put the end of stderr into _meta.stderr"),
        ("MCPBASH_TOOL_STDERR_TAIL_LIMIT", "int", 4096, "how many bytes of it", 0, 1 << 20),
        ("MCPBASH_ENV_PAYLOAD_THRESHOLD", "int", 65536, "arguments above this many bytes travel in a file", 0, 120000),
        ("MCPBASH_MAX_PROGRESS_PER_MIN", "int", 100,
         "progress notifications per call and minute, 0 for no limit", 0, 1000000),
        ("MCPBASH_MAX_LOGS_PER_MIN", "int", 100, "log notifications per call and minute, 0 for no limit", 0, 1000000),
        ("MCPBASH_PAGE_SIZE", "int", 50, "items on a page of a list", 1, 1000),
        ("MCPBASH_PAGE_SIZE_MAX", "int", 200, "largest page a client may ask for with limit", 1, 10000),
        ("MCPBASH_REGISTRY_MAX_BYTES", "int", 100 << 20, "largest registry file", 1024, 1 << 32),
        ("MCPBASH_MAX_MANUAL_REGISTRY_BYTES", "int", 1 << 20,
         "largest register.json or output of register.sh", 64, 1 << 28),
        ("MCPBASH_CORRUPTION_THRESHOLD", "int", 3, "unwritable answers within the window that end the server", 1, 1000),
        ("MCPBASH_CORRUPTION_WINDOW", "int", 60, "that window, seconds", 1, 86400),
        ("MCPBASH_ALLOW_CORRUPT_STDOUT", "bool", False, "keep serving even then"),
    ),
    "timing": (
        ("MCPBASH_DEFAULT_TOOL_TIMEOUT", "float", 30,
         "seconds a tool may run when its metadata does not say", 0.1, 86400),
        ("MCPBASH_MAX_TIMEOUT_SECS", "float", 600, "longest run of a tool whose timeout progress extends", 0.1, 604800),
        ("MCPBASH_PROGRESS_EXTENDS_TIMEOUT", "bool", False, "progress extends the timeout of every tool"),
        ("MCPBASH_KILL_GRACE", "float", 1, "seconds between asking a tool to stop (TERM) and ending it (KILL)", 0, 60),
        ("MCPBASH_SHUTDOWN_TIMEOUT", "float", 5, "seconds running calls may take to finish after stdin ends", 0.1, 600),
        ("MCPBASH_IDLE_TIMEOUT", "float", 3600,
         "seconds without input before the server exits, 0 for never", 0, 31536000),
        ("MCPBASH_IDLE_TIMEOUT_ENABLED", "bool", True, "switch for it"),
        ("MCPBASH_ORPHAN_CHECK_ENABLED", "bool", True, "exit when the process that started the server is gone"),
        ("MCPBASH_ORPHAN_CHECK_INTERVAL", "float", 30,
         "seconds between checks where the system cannot tell by itself", 0.1, 86400),
        ("MCP_TOOLS_TTL", "float", 5, "seconds a scan of tools/ is trusted", 0, 86400),
        ("MCPBASH_REGISTER_TTL", "float", 5, "seconds a result of register.sh is trusted", 0, 86400),
        ("MCPBASH_HOOK_TIMEOUT", "float", 10, "seconds register.sh, env.sh and policy.sh may take", 0.1, 600),
    ),
    "behaviour": (
        ("MCPBASH_FORCE_MINIMAL", "bool", False, "serve lifecycle, ping and logging only"),
        ("MCPBASH_COMPAT_BATCHES", "bool", False, "accept batches in every version, answered line by line"),
        ("MCPBASH_ENABLE_LIVE_PROGRESS", "bool", True,
         "false holds progress and logs back until just before the response"),
        ("MCPBASH_STATIC_REGISTRY", "bool", False, "serve .registry/*.json as it is, never scan"),
        ("MCPBASH_JSON_TOOL_BIN", "path", "", "the jq or gojq handed to tools, else the first found on PATH"),
    ),
    "diagnostics": (
        ("MCPBASH_LOG_LEVEL", "level", "info", "lowest level sent to clients; set explicitly it also rules stderr"),
        ("MCPBASH_LOG_LEVEL_DEFAULT", "level", "info", "the same, used when MCPBASH_LOG_LEVEL is not set"),
        ("MCPBASH_DEBUG_PAYLOADS", "bool", False,
         "write every message, redacted, to payload.debug.log in the state directory"),
        ("MCPBASH_PRESERVE_STATE", "bool", False, "keep the state directory at exit"),
    ),
}
SETTINGS: tuple[Any, ...] = tuple(
    Setting._make((*row, *(None,) * (6 - len(row)), group))
    for group, rows in _SETTINGS_BY_GROUP.items()
    for row in rows
)

STRICT_FALLBACK = {"MCPBASH_TOOL_ALLOW_DEFAULT": "deny"}  # a misspelt restriction must not become a permission

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


class Settings:
    """The settings in force, one attribute each: MCPBASH_PAGE_SIZE is `.page_size`.

    A bad value is reported in `.problems` and the default is used; nothing here raises.
    """

    def __init__(self, environ: dict) -> None:
        self.problems: list[Problem] = []
        self.given = {row.name for row in SETTINGS if row.name in environ}  # set by the operator, not by default
        for row in SETTINGS:
            setattr(self, attribute_of(row), self._value(row, environ.get(row.name)))
        if "MCPBASH_LOG_LEVEL" not in self.given:
            self.log_level = self.log_level_default

    def __getattr__(self, name: str) -> Any:  # only reached for names the table does not have
        raise AttributeError("no setting %r; the table SETTINGS lists them" % name)

    def _value(self, row: Setting, text: str | None) -> Any:
        if text is None:
            return split_list(row.default) if row.kind == "words" else row.default
        try:
            value = _PARSERS.get(row.kind, _parse_choice)(row, text.strip())
        except ValueError as error:
            fallback = STRICT_FALLBACK.get(row.name, row.default)
            self._complain(row, text, str(error), fallback)
            return fallback
        return self._clamped(row, text, value)

    def _clamped(self, row: Setting, text: str, value: Any) -> Any:
        if row.low is not None and value < row.low:
            self._complain(row, text, "the lowest value is %s" % row.low, row.low)
            return row.low
        if row.high is not None and value > row.high:
            self._complain(row, text, "the highest value is %s" % row.high, row.high)
            return row.high
        return value

    def _complain(self, row: Setting, text: str, why: str, used: Any = None) -> None:
        shown = "[redacted]" if _SECRET_NAME.search(row.name) else clip(one_line(text), 60)
        used = row.default if used is None else used
        self.problems.append(Problem(row.name, 0, 'is "%s"; %s.' % (shown, why), "Using %s." % show_value(used)))


def attribute_of(row: Setting) -> str:
    """Return the attribute name of a setting: MCP_TOOLS_TTL is tools_ttl."""
    return row.name.split("_", 1)[1].lower()


def _parse_number(row: Setting, text: str) -> float:
    try:
        value = int(text) if row.kind == "int" else float(text)
    except ValueError:
        raise ValueError("expected a %snumber" % ("whole " if row.kind == "int" else "")) from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("expected a finite number")
    return value


def _parse_bool(row: Setting, text: str) -> bool:
    if text.lower() in _TRUE or text.lower() in _FALSE:
        return text.lower() in _TRUE
    raise ValueError("expected true or false")


def _parse_level(row: Setting, text: str) -> str:
    aliases = {"true": "debug", "1": "debug", "false": "info", "0": "info", "warn": "warning"}
    word = aliases.get(text.lower(), text.lower())
    if word not in RANK:
        raise ValueError("expected one of " + ", ".join(LEVELS))
    return word


def _parse_choice(row: Setting, text: str) -> str:
    if text.lower() not in row.kind:
        raise ValueError("expected one of " + ", ".join(row.kind))
    return text.lower()


_PARSERS = {
    "int": _parse_number,
    "float": _parse_number,
    "bool": _parse_bool,
    "level": _parse_level,
    "words": lambda row, text: split_list(text),
    "text": lambda row, text: text,
    "path": lambda row, text: text,
}


def show_value(value: Any) -> str:
    """Return a setting's value the way it would be typed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return " ".join(value) if isinstance(value, list) else str(value)


def settings_markdown() -> str:
    """Return the table of all settings for the README."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    group = ""
    for row in SETTINGS:
        if row.group != group:
            group = row.group
            lines.append("| **%s** | | |" % group)
        choices = " (%s)" % ", ".join(row.kind) if isinstance(row.kind, tuple) else ""
        default = "`%s`" % show_value(row.default) if row.default != "" else "–"
        lines.append("| `%s` | %s | %s%s |" % (row.name, default, row.help, choices))
    return "\n".join(lines) + "\n"


# ======================================================================================================================
# 5. LOG — one line per record, redacted, to stderr and to clients.
# ======================================================================================================================


class RateLimit:
    """Lets `limit` events through in any window of `seconds`; 0 lets everything through."""

    def __init__(self, limit: int, seconds: float = 60.0) -> None:
        self.limit, self.seconds = limit, seconds
        self._times: deque = deque()  # monotonic times of the events let through, oldest first

    def allow(self) -> bool:
        """Count one event and say whether it may pass."""
        if not self.limit:
            return True
        now = time.monotonic()
        while self._times and now - self._times[0] >= self.seconds:
            self._times.popleft()
        if len(self._times) >= self.limit:
            return False
        self._times.append(now)
        return True

    def reached(self) -> bool:
        """Count one event and say whether it is the one that fills the window."""
        self.allow()
        return len(self._times) >= self.limit


class Log:
    """Where the server itself speaks: stderr for the operator, `forward` for connected clients."""

    def __init__(self, settings: Settings, stream_fd: int = 2) -> None:
        quiet = "MCPBASH_LOG_LEVEL" not in settings.given
        self.stderr_rank = RANK["warning"] if quiet else RANK[settings.log_level]
        self.forward: Callable[[str, str, str], None] | None = None  # filled in by the dispatcher
        self._fd = stream_fd
        self._limit = RateLimit(600)  # per minute; a flood of refusals must not become a flood of log lines

    def __call__(self, level: str, logger: str, text: str, to_clients: bool = True) -> None:
        """Report `text` at `level`; never raises, never writes more than one line of 1 KiB."""
        if not self._limit.allow():
            return
        text = clip(one_line(_SECRET_TEXT.sub("[redacted]", text)), 1000)
        if RANK[level] >= self.stderr_rank:
            self._write("mcp_bash: %s: %s" % (level, text))
        if self.forward and to_clients:
            self.forward(level, logger, text)

    def _write(self, line: str) -> None:
        try:
            os.write(self._fd, clip_utf8(line.encode("utf-8", "backslashreplace"), 1023) + b"\n")
        except OSError:
            pass  # nobody reads stderr any more; there is no better place to say so

    def problems(self, problems: list[Problem], logger: str) -> None:
        """Report every problem as a warning."""
        for problem in problems:
            self("warning", logger, str(problem))


# ======================================================================================================================
# 7. METADATA — from a file to a record; a bad file is a problem, never an exception.
# ======================================================================================================================
#
# A tool is a script and, beside it, metadata: NAME.meta.json wins, then NAME.meta.yaml, then one comment line
# `# mcp: {json}` among the first ten of the script, then defaults. NAME is the file name with or without its extension.

META_LIMIT = 1 << 20  # bytes of one metadata file
META_SUFFIXES = (".meta.json", ".meta.yaml", ".meta.yml")
NAME_RULE = re.compile(r"(?!\.+\Z)[A-Za-z0-9_.-]{1,128}\Z")  # what the protocol allows, and not only dots
_INLINE = re.compile(rb"^[ \t]*(?:#|//|--|;|\*)+[ \t]*mcp:[ \t]*(\{.*)$")
_DATA_FILES = tuple(".md .txt .json .yaml .yml .toml .html .css .png .svg .csv .log .lock".split())


class MetaError(Exception):
    """Metadata that cannot be read at all; carries the line the reader should look at."""

    def __init__(self, message: str, line: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.line, self.hint = line, hint


def parse_meta(name: str, data: bytes) -> dict:
    """Return the object in a metadata file; raise MetaError with the line where it goes wrong."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MetaError("is not valid UTF-8", data[: error.start].count(b"\n") + 1, "Save it as UTF-8.") from None
    if name.endswith(".json"):
        value = _parse_json_meta(text)
    else:
        value = _parse_yaml_meta(text)
    if not isinstance(value, dict):
        raise MetaError("holds %s; expected an object" % type_name(value), 1, "Start it with { or key: value.")
    return value


def _parse_json_meta(text: str) -> Any:
    try:
        return decode(text.encode("utf-8"))
    except ParseError as error:
        found = re.search(r"line (\d+) column", error.message)
        raise MetaError("is not JSON (%s)" % error.why, int(found.group(1)) if found else 1) from None


def _parse_yaml_meta(text: str) -> Any:
    try:
        return parse_yaml(text)
    except YamlError as error:
        raise MetaError("is outside the YAML that is read here (%s)" % error, error.line) from None


def type_name(value: Any) -> str:
    """Return what JSON calls the type of `value`, with its article.

    >>> type_name([]), type_name(True), type_name(None)
    ('an array', 'a boolean', 'null')
    """
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 604800


# The YAML reader. One rule is behind every refusal: what is accepted here, PyYAML's safe_load reads identically; where
# YAML 1.1 and 1.2 disagree the author is asked to quote. The patterns never retry a character: time stays linear.

_YAML_DEPTH, _YAML_KEY, _YAML_DIGITS = 64, 1024, 400  # levels; characters of a key (PyYAML's limit) and of a number
_YAML_ESCAPED = ('0abtnvfre "/\\N_LP\t', '\0\a\b\t\n\v\f\r\x1b "/\\\x85\xa0\u2028\u2029\t')
_YAML_PATTERNS = (  # compiled when the first YAML file is read: they cost a millisecond at every start otherwise
    ("forbidden", "[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"),
    ("marker", r"(?m)^(?:---|\.\.\.)(?=[ \t\n]|\Z)"),
    ("gap", r"(?:[ \n]+|(?<![^ \n])#[^\n]*)*"),
    ("blank", r"[ \n]*"),
    ("dash", r"-(?=[ \t\n]|\Z)"),
    ("start", r"""[^-?:,\[\]{}#&*!|>'"%@`\t\n ]|-(?![ \t\n,\[\]{}]|\Z)"""),  # of plain text; "end" is on the same line
    ("end_in_block", r":(?=[ \t\n]|\Z)| #|[\t\n]|\Z"),
    ("end_in_flow", r":(?=[ \t\n,\[\]{}]|\Z)| #|[\t\n,?\[\]{}]|\Z"),
    ("colon_in_block", r" *:(?=[ \t\n]|\Z)"),
    ("colon_in_flow", r" *:"),
    ("quotes", r"""(?s)'[^']*(?:''[^']*)*'(?!')|"[^"\\]*(?:\\.[^"\\]*)*["]"""),
    ("margin", r"\n( *)(?=[^ \n])"),
    ("spaces", r"[ \t\n]+"),
    ("escape", r"(?s)[ \t\n]+|\\(?:\n[ \t\n]*|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)"),
    ("header", r"([|>])([-+]?[1-9]?|[1-9][-+]) *(?:(?<= )#[^\n]*)?(?:\n|\Z)"),
    ("folded", r"(?m)^([^ \t\n].*)\n(\n*)(?=[^ \t\n])"),
    ("word", r"(?:(~|null|Null|NULL)|(true|True|TRUE)|(false|False|FALSE))\Z"),
    ("number", r"-?(?:0|[1-9][0-9]*)(\.[0-9]+(?:[eE][-+][0-9]+)?)?\Z"),
    ("ambiguous", r"(?i)(?:yes|no|on|off|=|<<|[-+]?\.(?:inf|nan)|[-+]?0(?:b[01_]+|o[0-7_]+|x[0-9a-f_]+)"
                  r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[t ].*)?"
                  r"|[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:e[-+]?[0-9]+)?)\Z"),
)
_YAML_REFUSED = (  # first characters of a value, what they announce in full YAML, what to write instead
    ("&*", "an anchor or alias", "repeat the value, or quote it if it is text"),
    ("!", "a tag", "leave the tag out, or quote the value if it is text"),
    ("?", "a complex key", "write key: value, or quote the text"),
    ("%", "a directive", "delete the line, or quote the text"),
    ("@`", "a reserved character", "quote the text"),
    ("|>", "a text block inside brackets", "use a quoted string"),
    ("-", "a list entry", "start the list on a line of its own, or quote the text"),
    ("#", "a comment without a space before it", "put a space before it, or quote the text"),
    (",:]}", "punctuation", "write the missing key or value (null for none), or quote the text"),
)


class YamlError(ValueError):
    """Text outside the YAML subset; `message` says what was found, what is expected and what to write."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.message, self.line, self.column = message, line, column


def parse_yaml(text: str) -> object:
    """Return the JSON value that `text` describes in a strict subset of YAML; raise YamlError for anything else.

    Accepted, and read exactly as PyYAML's safe_load reads it:
    - block mappings and lists, indented by spaces; a list may start in the column of its key; `- key: value`
    - flow lists and mappings on one or more lines, so that JSON can stand wherever a value can
    - plain, 'single' and "double" quoted text, also on several lines, which are folded as YAML folds them
    - literal | and folded > text blocks, with - or + and an indentation digit
    - null ~ true false (also Null, NULL ...); numbers as in JSON, but an exponent needs a point and a sign: 1.0e+5
    - comments, blank lines, one leading --- and one trailing ... on lines of their own, a byte order mark, CRLF

    Refused, with the place and the remedy:
    - unquoted text that YAML versions read differently: yes no on off, 012 0o12 0x1f 1_000 +1 .5 1e5, 12:30,
      2024-01-01, .inf .nan, = and <<
    - unquoted text that starts with one of ? : , ] } # & * ! % @ ` or has one of ? , [ ] { } inside brackets
    - anchors, aliases, tags, merge keys, `? ` keys, directives, a second document, a document without a value
    - keys that are repeated, not text, spread over lines or longer than 1024 characters; flow entries without a value
    - tabs outside quotes, text blocks and comments; control characters; lone carriage returns; surrogate escapes
    - nesting deeper than 64 levels, numbers of more than 400 characters or beyond the range of a float
    """
    return _YamlReader(text.removeprefix("\ufeff").replace("\r\n", "\n")).document()


def _fold_lines(blanks: str) -> str:
    """Join lines as YAML does: one break is a space, each further one a newline, blanks around them vanish."""
    breaks = blanks.count("\n")
    return blanks if not breaks else "\n" * (breaks - 1) or " "


class _YamlReader:
    """Recursive descent: a method takes the position of a value and returns the value and a position after it.

    That position is the next token's for methods on blocks, and the end of the value for those on flow values.
    """

    def __init__(self, text: str) -> None:
        self.text = text  # ends where the document ends
        self.depth = 0  # of open collections
        for name, pattern in _YAML_PATTERNS:
            setattr(self, name, re.compile(pattern))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the patterns

    def fail(self, pos: int, found: str, expected: str, remedy: str) -> NoReturn:
        raise YamlError(f"found {found}; expected {expected}; {remedy}", self.line(pos), self.column(pos) + 1)

    def show(self, pos: int) -> str:
        """Return the beginning of what stands at `pos`; repr() makes invisible characters visible."""
        return repr(self.text[pos : pos + 30].split("\n")[0]) if pos < len(self.text) else "the end of the text"

    def line(self, pos: int) -> int:
        return self.text.count("\n", 0, pos) + 1

    def column(self, pos: int) -> int:
        return pos - self.text.rfind("\n", 0, pos) - 1

    def skip(self, pos: int) -> int:
        """Return the position of the next token, after blanks, line ends and comments."""
        pos = self.gap.match(self.text, pos).end()
        if self.text.startswith("\t", pos):
            self.fail(pos, "a tab", "only spaces outside quotes", "replace it by spaces")
        return pos

    def end_line(self, pos: int) -> int:
        """Return the position of the next token, which must be on another line."""
        after = self.skip(pos)
        if after < len(self.text) and "\n" not in self.text[pos:after]:
            remedy = "quote the whole value, or start a nested mapping on the next line"
            self.fail(after, self.show(after), "the end of the line after a value", remedy)
        return after

    def enter(self, pos: int) -> None:
        self.depth += 1
        if self.depth > _YAML_DEPTH:
            self.fail(pos, f"level {self.depth} of nesting", f"at most {_YAML_DEPTH}", "write a flatter value")

    def document(self) -> Any:
        bad = self.forbidden.search(self.text)
        if bad:
            remedy = 'delete it, or write it as an escape in "double quotes"'
            self.fail(bad.start(), f"the character U+{ord(bad[0]):04X}", "printable text", remedy)
        pos = self.skip(0)
        if self.text.startswith("%", pos):
            self.check_start(pos)
        if self.text.startswith("---", pos) and self.marker.match(self.text, pos):
            pos = self.end_line(pos + 3)
        self.find_end(pos)
        if pos >= len(self.text):
            self.fail(pos, "no value", "one document", "write at least one key: value")
        value, pos = self.node(pos, -1)
        self.has_entry(pos, -1)
        return value

    def find_end(self, pos: int) -> None:
        """Cut the text at its "..." line. At the start of a line a marker is one in any context, even in quotes."""
        marker = self.marker.search(self.text, pos)
        if marker:
            if marker[0] == "---" or self.skip(marker.end()) < len(self.text):
                self.fail(marker.start(), f"{marker[0]} and more text", "one document", "write one file for each")
            self.text = self.text[: marker.start()]

    def has_entry(self, pos: int, column: int) -> bool:
        """Tell whether the block in `column` goes on at `pos`; what is further right belongs nowhere."""
        here = self.column(pos) if pos < len(self.text) else -1
        if here > column:
            self.fail(pos, self.show(pos), "the column of an open block", "align it with the lines it belongs to")
        return here == column

    def node(self, pos: int, parent: int) -> tuple[Any, int]:
        """Read any value; its own lines are further right than the column `parent`."""
        if self.dash.match(self.text, pos):
            return self.sequence(pos)
        return self.mapping(pos) if self.key(pos, False) else self.inline(pos, parent)

    def sequence(self, pos: int) -> tuple[list, int]:
        self.enter(pos)
        items, column = [], self.column(pos)
        while self.has_entry(pos, column) and self.dash.match(self.text, pos):
            item, pos = self.child(pos + 1, column, self.node)
            items.append(item)
        self.depth -= 1
        return items, pos

    def mapping(self, pos: int) -> tuple[dict, int]:
        self.enter(pos)
        entries: dict = {}
        column = self.column(pos)
        while self.has_entry(pos, column):
            key, pos = self.new_key(pos, False, entries)
            entries[key], pos = self.child(pos, column, self.inline)
        self.depth -= 1
        return entries, pos

    def child(self, pos: int, column: int, same_line: Any) -> tuple[Any, int]:
        """Read what follows a dash or a colon; `same_line` reads it when it starts on the same line."""
        after = self.skip(pos)
        if after == len(self.text):
            return None, after
        if "\n" not in self.text[pos:after]:
            return same_line(after, column)
        if self.column(after) > column:
            return self.node(after, column)
        if same_line == self.inline and self.column(after) == column and self.dash.match(self.text, after):
            return self.sequence(after)
        return None, after

    def new_key(self, pos: int, flow: bool, entries: dict) -> tuple[str, int]:
        found = self.key(pos, flow)
        if not found:
            self.check_start(pos)
            self.fail(pos, self.show(pos), "key: value", "write a key on one line, a colon and a space")
        if found[0] in entries:
            self.fail(pos, f"the key {found[0][:30]!r} again", "each key once in a mapping", "delete one of them")
        return found

    def key(self, pos: int, flow: bool) -> tuple[str, int] | None:
        """Return the key at `pos` and the position after its colon; None when there is no key."""
        key: Any = None
        if self.text[pos : pos + 1] in ("'", '"'):
            key, end = self.quoted(pos, -1)
        elif self.start.match(self.text, pos):
            end = (self.end_in_flow if flow else self.end_in_block).search(self.text, pos).start()
        else:
            return None
        colon = (self.colon_in_flow if flow else self.colon_in_block).match(self.text, end)
        if not colon or "\n" in self.text[pos:end]:
            return None
        if colon.end() - 1 - pos > _YAML_KEY:
            self.fail(pos, "a long key", f"at most {_YAML_KEY} characters", "write a shorter one")
        key = self.resolve(self.text[pos:end].rstrip(" "), pos) if key is None else key
        if not isinstance(key, str):
            self.fail(pos, self.show(pos), "text as the key", "quote the key")
        return key, colon.end()

    def inline(self, pos: int, parent: int) -> tuple[Any, int]:
        """Read a value that is not a block collection, and the rest of its last line."""
        if self.text[pos] in "|>":
            return self.text_block(pos, parent)
        value, end = self.flow(pos, parent)
        return value, self.end_line(end)

    def flow(self, pos: int, parent: int | None) -> tuple[Any, int]:
        """Read a bracketed, quoted or plain value; `parent` is None inside brackets, where columns do not matter."""
        first = self.text[pos : pos + 1]
        if first in ("[", "{"):
            return self.bracketed(pos, "]" if first == "[" else "}")
        if first in ("'", '"'):
            return self.quoted(pos, -1 if parent is None else parent)
        return self.plain(pos, parent)

    def bracketed(self, start: int, close: str) -> tuple[Any, int]:
        self.enter(start)
        items: list = []
        entries: dict = {}
        pos = self.skip(start + 1)
        while not self.text.startswith(close, pos):
            if close == "]":
                item, pos = self.flow(pos, None)
                items.append(item)
            else:
                key, pos = self.new_key(pos, True, entries)
                entries[key], pos = self.flow(self.skip(pos), None)
            pos = self.skip(pos)
            if self.text.startswith(",", pos):
                pos = self.skip(pos + 1)
            elif not self.text.startswith(close, pos):
                expected = f"a comma or the {close} for line {self.line(start)}"
                self.fail(pos, self.show(pos), expected, "add it, or quote the text")
        self.depth -= 1
        return (items if close == "]" else entries), pos + 1

    def check_start(self, pos: int) -> None:
        """Refuse what cannot start a plain value, by its name in full YAML."""
        if pos == len(self.text):
            self.fail(pos, self.show(pos), "a value", "write it, or the missing closing bracket")
        for characters, what, remedy in _YAML_REFUSED:
            if self.text[pos] in characters and not self.start.match(self.text, pos):
                self.fail(pos, f"{self.show(pos)}, {what}", "a plain or quoted value", remedy)

    def plain(self, pos: int, parent: int | None) -> tuple[Any, int]:
        """Read unquoted text; it goes on over lines that are further right than `parent`."""
        self.check_start(pos)
        start, parts, ending = pos, [], self.end_in_flow if parent is None else self.end_in_block
        while True:
            end = ending.search(self.text, pos).start()
            parts.append(self.text[pos:end].rstrip(" "))
            pos = self.blank.match(self.text, end).end()
            ended = not self.text.startswith("\n", end) or ending.match(self.text, pos) or self.text[pos] == "#"
            if ended or parent is not None and self.column(pos) <= parent:
                return self.resolve("".join(parts), start), end
            if self.dash.match(self.text, pos):
                self.check_start(pos)  # legal, but whoever writes a dash there means a list, not one long text
            parts.append(_fold_lines(self.text[end:pos]))

    def resolve(self, word: str, pos: int) -> Any:
        """Return the value of unquoted text: null, a boolean, a number or the text."""
        constant = self.word.match(word)
        if constant:
            return (None, True, False)[constant.lastindex - 1]
        number = self.number.match(word)
        if number and len(word) <= _YAML_DIGITS:
            value = float(word) if number[1] else int(word)
            if abs(value) != float("inf"):
                return value
        if number or self.ambiguous.match(word):
            remedy = "quote it if it is text, else write true, false or a number such as 10, 0.5, 1.0e+5"
            self.fail(pos, repr(word[:30]), "a word that all YAML readers read alike", remedy)
        return word

    def quoted(self, pos: int, parent: int) -> tuple[str, int]:
        """Read quoted text; its lines must be further right than `parent`, or a lost quote would eat the next key."""
        found = self.quotes.match(self.text, pos)
        if not found or any(len(line[1]) <= parent for line in self.margin.finditer(self.text, pos, found.end())):
            remedy = "close it, or indent the lines it goes on over"
            self.fail(pos, f"the quote {self.show(pos)}", "it to be closed before the next entry", remedy)
        body = found[0][1:-1]
        if found[0][0] == "'":
            return self.spaces.sub(lambda blanks: _fold_lines(blanks[0]), body).replace("''", "'"), found.end()
        return self.escape.sub(lambda escape: self.unescape(escape[0], pos + 1 + escape.start()), body), found.end()

    def unescape(self, escape: str, pos: int) -> str:
        """Return what a run of blanks or a backslash escape in double quotes stands for."""
        if escape[0] != "\\":
            return _fold_lines(escape)
        kind, digits = escape[1], escape[2:]
        if kind == "\n":
            return "\n" * digits.count("\n")
        code = int(digits or "d800", 16)
        if code < 0xD800 or 0xDFFF < code < 0x110000:
            return chr(code)
        if digits or kind not in _YAML_ESCAPED[0]:
            remedy = r"write the character itself, \\ for a backslash, or \UXXXXXXXX for one beyond FFFF"
            self.fail(pos, f"a backslash before {escape[1:]!r}", "an escape that stands for one character", remedy)
        return _YAML_ESCAPED[1][_YAML_ESCAPED[0].index(kind)]

    def text_block(self, pos: int, parent: int) -> tuple[str, int]:
        """Read a literal or folded text block whose lines are further right than `parent`."""
        header = self.header.match(self.text, pos)
        if not header:
            remedy = "start the text on the next line, or quote it if it begins with | or >"
            self.fail(pos, self.show(pos), "| or > with at most a sign and a digit", remedy)
        start, digit, sign = header.end(), header[2].strip("+-"), header[2].strip("123456789")
        indent = max(parent, 0) + int(digit or 1)
        if not digit:  # blank lines count as in PyYAML: text left of them is not in the block, and refused by has_entry
            leading = self.text[start : self.blank.match(self.text, start).end()]
            indent = max(indent, max(map(len, leading.split("\n"))))
        outside = re.compile(rf"^ {{0,{indent - 1}}}[^ \n]", re.M).search(self.text, start)
        end = outside.start() if outside else len(self.text)
        body = "\n".join(line[indent:] for line in self.text[start:end].split("\n"))
        kept = body.rstrip("\n")
        tail = body[len(kept) :] if sign == "+" else body[len(kept) :][:1] if kept and not sign else ""
        if header[1] == ">":
            kept = self.folded.sub(lambda lines: lines[1] + (lines[2] or " "), kept)
        return kept + tail, self.skip(end)


# field of the metadata -> (what is accepted, how a message calls it)
TOOL_FIELDS: dict[str, tuple[Any, str]] = {
    "name": (lambda v: isinstance(v, str), "a string"),
    "title": (lambda v: isinstance(v, str), "a string"),
    "description": (lambda v: isinstance(v, str), "a string"),
    "inputSchema": (lambda v: isinstance(v, dict), "a JSON Schema object"),
    "outputSchema": (lambda v: isinstance(v, dict), "a JSON Schema object"),
    "timeoutSecs": (_is_seconds, "a number of seconds above 0, at most 604800"),
    "timeoutHint": (lambda v: isinstance(v, str), "a string"),
    "progressExtendsTimeout": (lambda v: isinstance(v, bool), "true or false"),
    "maxTimeoutSecs": (_is_seconds, "a number of seconds above 0, at most 604800"),
    "concurrency": (lambda v: type(v) is int and v > 0, "a whole number above 0"),
    "detach": (lambda v: isinstance(v, bool), "true or false"),
    "annotations": (lambda v: isinstance(v, dict), "an object"),
    "icons": (lambda v: isinstance(v, list), "an array"),
    "execution": (lambda v: isinstance(v, dict), "an object"),
    "_meta": (lambda v: isinstance(v, dict), "an object"),
}


class Tool:
    """One tool as the registry knows it."""

    __slots__ = ("item", "name", "path", "file", "extra", "encoded")

    def __init__(self, item: dict, tools_dir: str, runner: tuple) -> None:
        self.item = item  # what .registry/tools.json holds: wire fields plus path, timeoutSecs and the like
        self.name: str = item["name"]
        self.path: str = item["path"]  # relative to the tools directory
        self.file = os.path.join(tools_dir, self.path)
        self.extra = runner  # words that go before the file on the command line: () or ("bash",)
        self.encoded = encode(item)

    def get(self, field: str, default: Any = None) -> Any:
        """Return a field of the metadata, or `default`."""
        return self.item.get(field, default)


def is_tool_file(name: str, mode: int, head: bytes) -> bool:
    """Say whether a file below tools/ is a tool: executable, or a script that names its interpreter.

    >>> is_tool_file("hello.sh", 0o100755, b""), is_tool_file("notes.md", 0o100755, b"")
    (True, False)
    >>> is_tool_file("a.py", 0o100644, b"#!"), is_tool_file("a.py", 0o100644, b"print()")
    (True, False)
    """
    if head.startswith(b"#!"):
        return True
    return bool(mode & 0o111) and not name.lower().endswith(_DATA_FILES)


def is_ignored(name: str) -> bool:
    """Say whether a file name below tools/ never is a tool: hidden, metadata, a smoke test, a completion script."""
    return name.startswith(".") or name.endswith(META_SUFFIXES) or name == "smoke.sh" or ".completion" in name


def default_name(path: str) -> str:
    """Return the name of a tool whose metadata gives none.

    >>> default_name("hello/tool.sh"), default_name("hello/greet.sh"), default_name("greet.py")
    ('hello', 'greet', 'greet')
    """
    directory, base = os.path.split(path)
    stem = os.path.splitext(base)[0]
    return os.path.basename(directory) if stem == "tool" and directory else stem


def runner_for(mode: int, head: bytes) -> tuple:
    """Return the words that must precede a script on the command line."""
    if mode & 0o111 and (head.startswith((b"#!", b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"))):
        return ()
    if head.startswith(b"#!"):  # as the kernel would: the interpreter and at most one word for it
        words = head.split(b"\n", 1)[0][2:].strip().split(None, 1)
        return tuple(word.decode("utf-8", "surrogateescape") for word in words) or ("bash",)
    return ("bash",)


def inline_meta(head: bytes) -> tuple[dict, int]:
    """Return the object of the `# mcp: {...}` line among the first ten lines, and its line number (0: none)."""
    for number, line in enumerate(head.split(b"\n")[:10], 1):
        found = _INLINE.match(line.rstrip(b"\r"))
        if found:
            try:
                value = decode(found.group(1))
            except ParseError as error:
                raise MetaError("the mcp: comment is not JSON (%s)" % error.why, number) from None
            if not isinstance(value, dict):
                raise MetaError("the mcp: comment holds %s; expected an object" % type_name(value), number)
            return value, number
    return {}, 0


# members inside some of these fields that strict clients choke on when they have another type
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_SCHEMA_MEMBERS = {
    "$schema": (lambda v: isinstance(v, str), "a string"),
    "properties": (
        lambda v: isinstance(v, dict) and all(isinstance(member, (dict, bool)) for member in v.values()),
        "an object of schemas",
    ),
    "required": (
        lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v),
        "an array of strings",
    ),
}
INNER_FIELDS: dict[str, dict] = {
    "inputSchema": {"type": (lambda v: v == "object", '"object"'), **_SCHEMA_MEMBERS},
    "outputSchema": _SCHEMA_MEMBERS,
    "annotations": {
        "title": (lambda v: isinstance(v, str), "a string"),
        **{hint: (lambda v: isinstance(v, bool), "true or false") for hint in _HINTS},
    },
    "execution": {
        "taskSupport": (lambda v: v in ("forbidden", "optional", "required"), "forbidden, optional or required"),
    },
}


class Source(namedtuple("Source", "name text directory problems")):
    """Where metadata came from: file name for messages, its text, its directory, and the problems found in it."""

    __slots__ = ()

    def complain(self, field: str, message: str, hint: str) -> None:
        """Note a problem with a field."""
        self.problems.append(Problem(self.name, line_of(self.text, field), message, hint))

    def accepted(self, value: dict, fields: dict, prefix: str = "") -> dict:
        """Return `value` without the members that `fields` does not accept, each of them reported."""
        result = dict(value)
        for field, (accepts, expected) in fields.items():
            if result.get(field) is not None and not accepts(result[field]):
                shown = clip(_ENCODER.encode(result.pop(field)), 40)
                message = '"%s%s" is %s; expected %s.' % (prefix, field, shown, expected)
                self.complain(field, message, "It is ignored.")
        return result


def tool_item(path: str, meta: dict, source: Source) -> dict:
    """Return the registry item of a tool; fields of the wrong type are reported and left out.

    Raises MetaError when the tool cannot be offered at all.
    """
    if "inputSchema" not in meta and isinstance(meta.get("arguments"), dict):
        meta = {**meta, "inputSchema": meta["arguments"]}
    usable = source.accepted(meta, TOOL_FIELDS)
    item: dict = {"name": default_name(path), "description": "", "path": path}
    item.update((field, usable[field]) for field in TOOL_FIELDS if usable.get(field) is not None)
    _check_name(item["name"], source)
    for field in ("title", "description"):
        _clean_field(item, field, source)
    for field, members in INNER_FIELDS.items():
        if field in item:
            item[field] = source.accepted(item[field], members, field + ".")
    schema = item.get("inputSchema", {"type": "object", "properties": {}})
    item["inputSchema"] = schema if "type" in schema else {"type": "object", **schema}
    if "icons" in item:
        item["icons"] = usable_icons(item["icons"], source)
    return item


ICON_LIMIT = 64 << 10  # bytes of an icon that is sent along
ICON_TYPES = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".ico": "image/x-icon",
}
ICON_FIELDS = {
    "src": (lambda v: isinstance(v, str), "a string"),
    "mimeType": (lambda v: isinstance(v, str), "a string"),
    "sizes": (lambda v: isinstance(v, list) and all(isinstance(size, str) for size in v), "an array of strings"),
    "theme": (lambda v: v in ("light", "dark"), "light or dark"),
}


def usable_icons(icons: Any, source: Source) -> list[dict]:
    """Return the icons a client can show: https, data, and files beside the metadata, which are sent along."""
    found = []
    for icon in icons if isinstance(icons, list) else []:
        icon = source.accepted(icon, ICON_FIELDS, "icons.") if isinstance(icon, dict) else {}
        address = icon.get("src", "")
        if address and not address.startswith(("https:", "data:")):
            icon = _icon_from_file(icon, source)
        if icon.get("src"):
            found.append(icon)
    return found


def _icon_from_file(icon: dict, source: Source) -> dict:
    """Return the icon with the content of its file as a data URI; nothing when there is no such file to send."""
    import base64

    kind = ICON_TYPES.get(os.path.splitext(icon["src"])[1].lower())
    path = os.path.realpath(os.path.join(source.directory, icon["src"]))
    try:
        if kind is None or not is_inside(os.path.realpath(source.directory), path):
            raise OSError(errno.EINVAL, "expected https:, data:, or an image beside the metadata")
        content = base64.b64encode(read_small(path, ICON_LIMIT)).decode("ascii")
    except OSError as error:
        shown = clip(one_line(icon["src"]), 80)
        source.complain("src", 'the icon "%s" cannot be sent (%s).' % (shown, error.strerror), "It is left out.")
        return {}
    return {"mimeType": kind, **icon, "src": "data:%s;base64,%s" % (icon.get("mimeType", kind), content)}


def _check_name(name: str, source: Source) -> None:
    if not NAME_RULE.match(name):
        message = 'the name "%s" is not usable; expected 1 to 128 of A-Z a-z 0-9 _ . -' % clip(one_line(name), 80)
        raise MetaError(message, line_of(source.text, "name"), "The tool is left out.")


def _clean_field(item: dict, field: str, source: Source) -> None:
    if field in item and item[field] != clean_text(item[field]):
        item[field] = clean_text(item[field])
        source.complain(field, '"%s" holds terminal sequences or invisible characters.' % field, "They are removed.")


def line_of(text: bytes, field: str) -> int:
    """Return the line of `text` on which `field` is first named as a key, or 0.

    >>> line_of(b'{' + bytes([10]) + b'"name": 1}', "name")
    2
    """
    found = re.search(rb'(^|["\s{,])' + re.escape(field.encode()) + rb'"?\s*:', text)
    return text[: found.end()].count(b"\n") + 1 if found else 0


class Project:
    """Where a project keeps its things, and what it says about itself."""

    def __init__(self, root: str, settings: Settings) -> None:
        self.root = os.path.realpath(root)
        self.tools_dir = os.path.realpath(settings.tools_dir or os.path.join(self.root, "tools"))
        self.server_dir = settings.server_dir or os.path.join(self.root, "server.d")
        self.registry_dir = settings.registry_dir or os.path.join(self.root, ".registry")

    def identity(self, log: Log, environ: dict) -> dict:
        """Return name, version, title and the optional fields of `serverInfo`, from server.meta.json or defaults."""
        meta = self._server_meta(log)
        base = os.path.basename(self.root) or "mcp-server"
        title = re.sub(r"[-_.\s]+", " ", base).strip().title() or base
        info = {"name": base, "version": self._version(), "title": title}
        for field in ("name", "version", "title", "description", "websiteUrl"):
            value = environ.get("MCPBASH_SERVER_" + _ENV_NAMES.get(field, field.upper())) or meta.get(field)
            if isinstance(value, str) and value:
                info[field] = clean_text(value)
        source = Source(os.path.join(self.server_dir, "server.meta.json"), b"", self.server_dir, [])
        icons = usable_icons(meta.get("icons"), source)
        log.problems(source.problems, "mcp.lifecycle")
        return {**info, "icons": icons} if icons else info

    def instructions(self, log: Log, environ: dict) -> str:
        """Return the text for `instructions`, or an empty string."""
        path = os.path.join(self.server_dir, "server.instructions.md")
        try:
            return read_small(path, META_LIMIT).decode("utf-8-sig").rstrip("\n")
        except UnicodeDecodeError:
            log("warning", "mcp.lifecycle", "%s: is not valid UTF-8. Save it as UTF-8; it is not sent." % path)
        except OSError:
            pass  # most projects have none
        return environ.get("MCPBASH_SERVER_INSTRUCTIONS", "")

    def _server_meta(self, log: Log) -> dict:
        path = os.path.join(self.server_dir, "server.meta.json")
        try:
            return parse_meta(path, read_small(path, META_LIMIT))
        except FileNotFoundError:
            return {}
        except (MetaError, OSError) as error:
            line = getattr(error, "line", 0)
            log("warning", "mcp.lifecycle", str(Problem(path, line, "%s." % error, "Defaults are used.")))
            return {}

    def _version(self) -> str:
        try:
            return read_small(os.path.join(self.root, "VERSION"), 256).decode("utf-8", "replace").strip() or "0.0.0"
        except OSError:
            pass  # no VERSION file: look further
        try:
            package = decode(read_small(os.path.join(self.root, "package.json"), META_LIMIT))
            return str(package["version"])
        except (OSError, ParseError, KeyError, TypeError):
            return "0.0.0"


_ENV_NAMES = {"websiteUrl": "WEBSITE_URL"}

# ======================================================================================================================
# 8. REGISTRIES — what the project offers, as snapshots that are swapped whole.
# ======================================================================================================================
#
# A Registry answers one question: what is there now? It walks its directory and compares the stat data of every file
# with what it saw last time, so that only new or changed files are read; a walk of 1,000 tools costs about 10 ms, a
# read of them three times that. The outcome is a Snapshot, which never changes: readers take the reference and use it
# as long as they like, a refresh builds a new one and swaps the reference. Nobody locks to read.
#
# A scan waits for the disk, so the serving thread never does one: it asks the clerk (room 16), and a request that needs
# the outcome goes on when it is there. initialize, discover and ping need none and never wait.
#
# Case "edited twice within the clock's tick": file times advance in steps of some milliseconds, so a second edit of
# the same length right after a scan would look unchanged. A file younger than RACY when it was examined is therefore
# read again next time.
#
# The snapshot's hash covers the items, not the times: touching a file changes nothing a client could see and must
# neither send list_changed nor make cursors stale.

RACY = 0.05  # seconds
INFINITY_AGO = 1e12
# errors that say something about the file; all others say something about the moment
_LASTING = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EINVAL, errno.ELOOP, errno.ENOTDIR)
MAX_WALK_DEPTH = 16
MAX_WALK_FILES = 50_000
MANY_ITEMS = 500  # above this a warning suggests manual registration

# What differs from kind to kind: names, and five functions of room 7. `ignores` judges a file by its name, `accepts` by
# mode and beginning too; `item` makes the registry item, `extra` what a record needs besides it, `record` the record.
Kind = namedtuple("Kind", "name directory notification capability ttl ignores accepts item extra record")

KINDS = {
    "tools": Kind(
        "tools",
        "tools_dir",
        "notifications/tools/list_changed",
        "toolsListChanged",
        "tools_ttl",
        is_ignored,
        is_tool_file,
        tool_item,
        runner_for,
        Tool,
    ),
}


class Snapshot:
    """Everything of one kind at one moment, sorted by name. Immutable but for two lazily filled caches."""

    def __init__(self, records: list) -> None:
        self.records = records
        self.by_name = {record.name: record for record in records}
        self.pages: dict[str, list[bytes]] = {}  # version -> encoded wire items, filled by the list handler
        self._hash = ""

    @property
    def hash(self) -> str:
        """SHA-256 over the canonical JSON of the items."""
        if not self._hash:
            self._hash = digest(canonical(self.items()))
        return self._hash

    def items(self) -> list[dict]:
        """Return the registry items in order."""
        return [record.item for record in self.records]


class Registry:
    """The tools (or another kind) of a project, kept up to date."""

    def __init__(self, kind: Kind, project: Project, settings: Settings, log: Log, manual: Registration) -> None:
        self.kind, self.project, self.settings, self.log, self.manual = kind, project, settings, log, manual
        self.directory: str = getattr(project, kind.directory)
        self.snapshot: Snapshot | None = None
        self.cost = 0.0  # seconds the last refresh took; housekeeping polls less often when this is high
        self.on_change: Callable[[Kind], None] = lambda kind: None  # clients may see something else than before
        self.on_unsaved: Callable[[], None] = lambda: None  # the cache file should be written some time
        self._ttl: float = getattr(settings, kind.ttl)
        self._checked = 0.0  # monotonic time of the last refresh
        self._known: dict[str, tuple] = {}  # path -> (signature, Tool or None, problems)
        self._lock = threading.Lock()  # the clerk refreshes and saves; a command without a clerk may do it itself
        self._reported: set[Problem] = set()  # problems already logged, so that each is said once
        self._had_trouble = False  # something could not be read during the last scan, for no reason of its own
        self._loaded = False  # the cache file has been looked at
        self._unsaved = False  # the snapshot differs from the cache file

    def is_fresh(self) -> bool:
        """Say whether the snapshot can be used without looking at the disk."""
        return self.snapshot is not None and time.monotonic() - self._checked < self._ttl

    def get(self) -> Snapshot:
        """Return a snapshot no older than the TTL."""
        if not self.is_fresh():
            self.refresh()
        return self.snapshot  # type: ignore[return-value]

    def refresh(self, force: bool = False) -> bool:
        """Look at the disk again; return True when what clients can see has changed."""
        with self._lock:
            if self.is_fresh() and not force:
                return False  # another thread has just done it
            started = time.monotonic()
            snapshot = Snapshot(self._within_limit(self._collect()))
            is_first = self.snapshot is None
            changed = is_first or snapshot.items() != self.snapshot.items()  # type: ignore[union-attr]
            if changed:
                self.snapshot, self._unsaved = snapshot, True
            self._checked = time.monotonic()
            self.cost = self._checked - started
            if self._had_trouble:
                self._checked = -INFINITY_AGO  # what could not be read may be readable next time: trust it for no time
        if changed:
            self.on_unsaved()
        if changed and not is_first:
            self.on_change(self.kind)
        return changed and not is_first

    def _within_limit(self, records: list) -> list:
        """Return the records; raise InternalError when they are more than a registry may hold."""
        size, limit = sum(len(record.encoded) for record in records), self.settings.registry_max_bytes
        if size > limit:
            shown = (self.kind.name, size, limit)
            raise InternalError("The registry of %s has %d bytes; MCPBASH_REGISTRY_MAX_BYTES allows %d" % shown)
        return records

    def _collect(self) -> list:
        manual = self.manual.items(self.kind.name)
        if manual is not None:
            return self._from_manual(manual)
        if not self._loaded:
            self._loaded = True
            static = self._load_cache()
            if static is not None:
                return static
        if self.settings.static_registry and self.snapshot is not None:
            return self.snapshot.records
        return self._scan()

    # -- scanning

    def _scan(self) -> list:
        known: dict[str, tuple] = {}
        problems: list[Problem] = []
        self._had_trouble = False
        for path, entry, metas in self._files(problems):
            try:
                known[path] = self._examine(path, entry, metas)
            except OSError as error:
                self._note_trouble(error)
                problems.append(Problem(path, 0, "cannot be examined (%s)." % error.strerror, ""))
        self._known = known
        records = []
        for _, record, found in known.values():
            problems.extend(found)
            if record:
                records.append(record)
        return self._finish(records, problems)

    def _note_trouble(self, error: OSError) -> None:
        self._had_trouble = self._had_trouble or error.errno not in _LASTING

    def _files(self, problems: list[Problem]) -> Iterator[tuple]:
        """Yield (relative path, directory entry, metadata entries) for every candidate, directories in name order."""
        stack, count = [("", 0)], 0
        while stack:
            directory, depth = stack.pop()
            listing = self._listing(directory, problems)
            for name in sorted(listing, reverse=True):
                if listing[name].is_dir(follow_symlinks=False):
                    if depth < MAX_WALK_DEPTH and not name.startswith("."):
                        stack.append((os.path.join(directory, name), depth + 1))
            for name in sorted(listing):
                if self.kind.ignores(name) or listing[name].is_dir(follow_symlinks=False):
                    continue
                count += 1
                if count > MAX_WALK_FILES:
                    hint = "Use server.d/register.json."
                    problems.append(Problem(self.directory, 0, "holds more than %d files." % MAX_WALK_FILES, hint))
                    return
                yield os.path.join(directory, name), listing[name], meta_entries(listing, name)

    def _listing(self, directory: str, problems: list[Problem]) -> dict[str, os.DirEntry]:
        try:
            with os.scandir(os.path.join(self.directory, directory)) as entries:
                return {entry.name: entry for entry in entries if self._is_nameable(directory, entry.name, problems)}
        except FileNotFoundError:
            return {}  # no such directory yet: nothing on offer
        except OSError as error:
            self._note_trouble(error)
            problems.append(Problem(directory or self.directory, 0, "cannot be read (%s)." % error.strerror, ""))
            return {}

    def _is_nameable(self, directory: str, name: str, problems: list[Problem]) -> bool:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            shown = os.path.join(directory, name).encode("utf-8", "backslashreplace").decode()
            problems.append(Problem(shown, 0, "the file name is not valid UTF-8.", "Rename it; it is left out."))
            return False
        return True

    def _examine(self, path: str, entry: os.DirEntry, metas: list[os.DirEntry]) -> tuple:
        states = [item.stat() for item in [entry, *metas]]
        signature = tuple((s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino, s.st_mode) for s in states)
        before = self._known.get(path)
        if before and before[0] == signature:
            return before
        problems: list[Problem] = []
        record = self._read(path, states[0], metas, problems)
        newest = max(max(s.st_mtime, s.st_ctime) for s in states)
        return (None if time.time() - newest < RACY else signature), record, problems

    def _read(self, path: str, status: os.stat_result, metas: list[os.DirEntry], problems: list[Problem]) -> Any:
        if not stat.S_ISREG(status.st_mode):
            return None
        head = read_head(os.path.join(self.directory, path))
        if not self.kind.accepts(path, status.st_mode, head):
            return None
        source = path
        try:
            if metas:
                source = os.path.join(os.path.dirname(path), metas[0].name)
                text = read_small(metas[0].path, META_LIMIT)
                meta = parse_meta(metas[0].name, text)
            else:
                text, (meta, _) = head, inline_meta(head)
            directory = os.path.join(self.directory, os.path.dirname(path))
            item = self.kind.item(path, meta, Source(source, text, directory, problems))
            return self.kind.record(item, self.directory, self.kind.extra(status.st_mode, head))
        except MetaError as error:
            problems.append(Problem(source, error.line, "%s." % error, error.hint or "The tool is left out."))
        except OSError as error:
            if error.errno not in _LASTING:
                raise
            problems.append(Problem(source, 0, "%s." % (error.strerror or error), "The tool is left out."))
        return None

    def _finish(self, records: list, problems: list[Problem]) -> list:
        unique: dict[str, Any] = {}
        for record in sorted(records, key=lambda record: (record.name, record.path)):
            first = unique.setdefault(record.name, record)
            if first is not record:
                message = 'the name "%s" is already taken by %s.' % (record.name, first.path)
                problems.append(Problem(record.path, 0, message, "The first one is served."))
        if len(unique) > MANY_ITEMS:
            message = "holds %d %s; lists get slow for clients." % (len(unique), self.kind.name)
            problems.append(Problem(self.directory, 0, message, "Consider server.d/register.json."))
        self.log.problems([problem for problem in problems if problem not in self._reported], "mcp." + self.kind.name)
        self._reported = set(problems)
        return list(unique.values())

    # -- manual registration

    def _from_manual(self, items: list[dict]) -> list:
        records: list = []
        problems: list[Problem] = []
        for item in items:
            try:
                records.append(self._manual_record(item, problems))
            except (MetaError, OSError, ValueError) as error:
                shown = clip(str(item.get("name") or item.get("path")), 80)
                problems.append(Problem(self.manual.source, 0, 'tool "%s" %s.' % (shown, error), "It is left out."))
        return self._finish(records, problems)

    def _manual_record(self, item: dict, problems: list[Problem]) -> Any:
        path = item.get("path")
        if not isinstance(path, str) or not path:
            raise MetaError('has no "path"; expected a file below the tools directory')
        file = os.path.realpath(os.path.join(self.directory, path))
        if not is_inside(self.directory, file):
            raise MetaError("has a path outside the tools directory")
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode):
            raise MetaError("has a path that is not a file")
        source = Source(self.manual.source, b"", os.path.dirname(file), problems)
        fields = self.kind.item(os.path.relpath(file, self.directory), item, source)
        return self.kind.record(fields, self.directory, self.kind.extra(status.st_mode, read_head(file)))

    # -- the cache file

    def cache_path(self) -> str:
        """Return the registry file of this kind."""
        return os.path.join(self.project.registry_dir, self.kind.name + ".json")

    def _load_cache(self) -> list | None:
        """Prime `_known` from the cache file; in static mode return its records."""
        try:
            status = os.lstat(self.cache_path())
            if not stat.S_ISREG(status.st_mode) or unsafe_reason(self.cache_path(), status):
                return None
            cache = decode(read_small(self.cache_path(), self.settings.registry_max_bytes))
            if cache.get("format_version") != 1:
                return None
            extras = {path: tuple(source[0]) for path, source in cache.get("sources", {}).items()}
            records = [self._cached_record(item, extras) for item in cache["items"]]
            if self.settings.static_registry:
                usable = [record for record in records if record]
                return self._finish(usable, []) if usable or not records else None
            for record in records:
                if record and record.path in extras:
                    signature = tuple(tuple(part) for part in cache["sources"][record.path][1])
                    self._known[record.path] = (signature, record, [])
        except (OSError, RpcError, AttributeError, KeyError, TypeError, ValueError, IndexError):
            self._known = {}  # no cache, or not one of ours: it is rebuilt
        return None

    def _cached_record(self, item: dict, extras: dict) -> Any:
        """Return the record a cached item stands for; None when it is not one this server would have written."""
        path = item["path"]
        file = os.path.normpath(os.path.join(self.directory, path))
        if os.path.isabs(path) or "\0" in path or not is_inside(self.directory, file):
            return None
        try:
            fields = self.kind.item(path, item, Source(self.cache_path(), b"", self.directory, []))
            extra = extras.get(path)
            if extra is None:
                extra = self.kind.extra(os.stat(file).st_mode, read_head(file))
        except (MetaError, OSError):
            return None
        return self.kind.record(fields, self.directory, extra)

    def save(self) -> None:
        """Write the cache file when the snapshot is newer than it; a read-only project simply has no cache."""
        with self._lock:
            if not self._unsaved or self.snapshot is None:
                return
            self._unsaved = False
            snapshot, known = self.snapshot, self._known
        sources = {
            path: [list(record.extra), [list(part) for part in signature]]
            for path, (signature, record, problems) in known.items()
            if record and signature and not problems
        }
        envelope = {
            "format_version": 1,
            "version": 1,
            "generatedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "items": snapshot.items(),
            "hash": snapshot.hash,
            "total": len(snapshot.records),
            "sources": sources,
        }
        data = encode(envelope)
        if len(data) > self.settings.registry_max_bytes:
            message = "%s would exceed MCPBASH_REGISTRY_MAX_BYTES; it is not written." % self.cache_path()
            return self.log("warning", "mcp.registry", message)
        try:
            os.makedirs(self.project.registry_dir, mode=0o700, exist_ok=True)
            atomic_write(self.cache_path(), data + b"\n")
        except OSError as error:
            self.log("debug", "mcp.registry", "%s: not written (%s)." % (self.cache_path(), error.strerror))


def meta_entries(listing: dict[str, os.DirEntry], name: str) -> list[os.DirEntry]:
    """Return the metadata file of `name` in its directory as a list of one, or an empty list."""
    stem = os.path.splitext(name)[0]
    for suffix in META_SUFFIXES:
        for base in (name, stem):
            if base + suffix in listing:
                return [listing[base + suffix]]
    return []


def read_head(path: str) -> bytes:
    """Return the beginning of a regular file, where a script names its interpreter and describes itself."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.read(descriptor, 32768) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


# server.d/register.json names what is on offer instead of a scan; register.sh computes it. Both are optional, decided
# per kind, and strict: one mistake in them is an error for every list, because a half-read registration would silently
# drop tools that its author believes to be there.

REGISTER_KEYS = ("tools", "resources", "resourceTemplates", "prompts", "completions")


class Registration:
    """What server.d/register.json or server.d/register.sh registers by hand."""

    def __init__(self, project: Project, settings: Settings, log: Log, run_script: Any) -> None:
        self.project, self.settings, self.log = project, settings, log
        self.source = ""  # the file the current registration came from
        self._run_script = run_script  # runs register.sh and returns the document it registered; None: hooks are off
        self._lock = threading.Lock()
        self._stamp: Any = None  # what the cached outcome was computed from
        self._expires = 0.0
        self._outcome: dict | RpcError = {}

    def items(self, kind: str) -> list[dict] | None:
        """Return the items registered for `kind`, None when it is discovered by scanning; raise InternalError."""
        with self._lock:
            stamp = self._current_stamp()
            if stamp != self._stamp or time.monotonic() >= self._expires:
                self._stamp, self._outcome = stamp, self._evaluate(stamp)
                self._expires = time.monotonic() + (self.settings.register_ttl if stamp else 1e9)
            if isinstance(self._outcome, RpcError):
                raise self._outcome
            return self._outcome.get(kind)

    def _current_stamp(self) -> Any:
        for name in ("register.json", "register.sh"):
            path = os.path.join(self.project.server_dir, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if name == "register.sh" and self._run_script is None:
                return None  # hooks are off: the file is not looked at
            return (path, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode)
        return None

    def _evaluate(self, stamp: Any) -> dict | RpcError:
        if stamp is None:
            return {}
        self.source = stamp[0]
        try:
            reason = unsafe_project_file(self.project.root, self.source)
            if reason:
                raise MetaError("is refused: " + reason)
            return self._checked(self._read())
        except (MetaError, OSError, RpcError) as error:
            hint = "Nothing is listed until it is fixed."
            problem = Problem(self.source, getattr(error, "line", 0), "%s." % error, hint)
            self.log("error", "mcp.registry", str(problem))
            relative = os.path.relpath(self.source, self.project.root)
            why = str(error.strerror if isinstance(error, OSError) else error)
            why = why.replace(self.project.root + "/", "").replace(self.project.root, "the project directory")
            return InternalError("Registration failed: %s %s" % (relative, clip(one_line(why), 200)))

    def _read(self) -> dict:
        if self.source.endswith(".sh"):
            return parse_meta("register.json", self._run_script(self.source) or b"{}")
        data = read_small(self.source, self.settings.max_manual_registry_bytes)
        if data.startswith(b"\xef\xbb\xbf"):
            raise MetaError("starts with a byte order mark; save it as UTF-8 without one", 1)
        return parse_meta("register.json", data)

    def _checked(self, document: dict) -> dict:
        version = document.get("version", 1 if self.source.endswith(".sh") else None)
        if type(version) is not int or version != 1:
            raise MetaError('needs "version": 1')
        if not isinstance(document.get("_meta") or {}, dict) or document.get("_meta") == []:
            raise MetaError('"_meta" is not an object')
        unknown = set(document) - set(REGISTER_KEYS) - {"version", "_meta"}
        if unknown:
            known = ", ".join(REGISTER_KEYS)
            raise MetaError('has the unknown key "%s"; known are %s' % (clip(min(unknown), 60), known))
        outcome = {}
        for key in REGISTER_KEYS:
            items = document.get(key)
            if items is None:
                continue
            if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                raise MetaError('"%s" is not an array of objects' % key)
            outcome[key] = items
        return outcome


# ======================================================================================================================
# 9. PAGINATION — opaque cursors over a snapshot.
# ======================================================================================================================

CURSOR_LIMIT = 4096  # characters; ours are under 250


def encode_cursor(collection: str, offset: int, snapshot_hash: str) -> str:
    """Return the cursor for the page that starts at `offset`."""
    import base64

    payload = {"ver": 1, "collection": collection, "offset": offset, "hash": snapshot_hash}
    payload["timestamp"] = int(time.time())
    return base64.urlsafe_b64encode(encode(payload)).rstrip(b"=").decode("ascii")


def decode_cursor(cursor: Any, collection: str, snapshot: Snapshot) -> int:
    """Return the offset in `cursor`; raise InvalidParams unless it was made for this very list."""
    import base64
    import binascii

    try:
        if not isinstance(cursor, str) or len(cursor) > CURSOR_LIMIT:
            raise ValueError
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        payload = decode(base64.b64decode(padded, b"-_", validate=True))
        offset, made_for = payload["offset"], payload["hash"]
        if payload["ver"] != 1 or payload["collection"] != collection or type(offset) is not int:
            raise ValueError
    except (ValueError, UnicodeEncodeError, binascii.Error, RpcError, KeyError, TypeError):
        raise InvalidParams("Invalid cursor: not made by this server for this list. Start again without one.") from None
    if made_for != snapshot.hash or not 0 < offset < len(snapshot.records):
        raise InvalidParams("Invalid cursor: the list has changed since. Start again without one.")
    return offset


# ======================================================================================================================
# 10. CONTAINMENT — nothing outlives anything: guardian, tags, state directory.
# ======================================================================================================================
#
# Three questions have to be answered exactly, at any moment and after any kind of death.
#
# Which processes belong to a call? Not the process group: `setsid` leaves it. Not the parent chain: a double fork cuts
# it. Not the environment: `env -i` empties it. What every descendant keeps, through fork, exec and setsid, is its
# resource limits. So each call gets a number, its tag, and starts with that number as its soft RLIMIT_RTTIME: a limit
# on real-time scheduling nobody sets, here some ten thousand years. `prlimit` and /proc/PID/limits read it back from
# any process. The limit is set on ourselves for the moment of the spawn, under a lock; Python holds the interpreter
# lock while spawning anyway. The first digits of all tags of a server are its own, the last eight count its calls.
#
# Has a finished tool left something behind? On Linux we are a child subreaper: what loses its parent becomes our child
# and shows up in /proc/self/task/PID/children, one short read per call. Nothing there: nothing left. Otherwise the
# processes with the tag of the finished call are killed, until none is found; a concurrent call has another tag.
#
# What happens when we are killed? Before the first child starts, the guardian does: a small shell in a session of its
# own that waits for a line on a pipe only we hold. A line means that we have cleaned up and leave. End of file means
# that we died; then it kills every process whose tag begins with our digits, wherever it is, and removes the state
# directory. That covers kill -9 of this process and of its process group. A guardian that was killed is replaced
# before the next child starts. (An earlier design forked: the parent stayed as the guardian, the child served. The copy
# of the interpreter's memory cost more than everything else between the start and the first answer.)
#
# Elsewhere than on Linux there is neither subreaper nor tag: a call is its process group, and the guardian finds the
# groups in files named *.group in the state directory. A daemon that leaves its group escapes there.

GUARDIAN = r"""
state=$1 digits=$2
trap '' TERM INT HUP QUIT PIPE
IFS= read -r goodbye <&3 && exit 0
quiet=0 rounds=0
while [ -n "$digits" ] && [ "$quiet" -lt 2 ] && [ "$rounds" -lt 500 ]; do
	quiet=$((quiet + 1)) rounds=$((rounds + 1))
	for file in $(grep -ls "^Max realtime timeout  *$digits" /proc/[0-9]*/limits); do
		IFS= read -r line <"${file%limits}stat" || continue
		case ${line##*) } in Z* | X*) continue ;; esac
		quiet=0
		kill -KILL "${line%% *}"
	done
done
for file in "$state"/*.group; do
	IFS= read -r group <"$file" && kill -KILL "-$group"
done
[ ! -d "$state" ] || [ -e "$state/preserve" ] || rm -rf -- "$state"
"""

CHANNEL_FD = 7  # where a tool finds its channel to the server
LOOK = 0.02  # seconds between two looks where nothing tells when something has changed
_PR_SET_CHILD_SUBREAPER, _PR_SET_DUMPABLE = 36, 4
_TAG_LIMIT: Any = getattr(resource, "RLIMIT_RTTIME", None)
_HAS_PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")


def call_libc(name: str, *numbers: int) -> int:
    """Call a function of the C library with whole numbers; return -1 where that is not possible.

    `_ctypes` is the C half of ctypes and takes half a millisecond to import, the whole takes five to ten.
    """
    try:
        import _ctypes

        return _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 0), name), numbers)  # type: ignore
    except (ImportError, OSError, AttributeError):
        return -1


def become_subreaper() -> bool:
    """Ask Linux to give us the orphans among our descendants; say whether it agreed."""
    return sys.platform == "linux" and call_libc("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def hide_from_tools() -> None:
    """Close our descriptors and environment in /proc to other processes of the same user."""
    if sys.platform == "linux":
        call_libc("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


class Containment:
    """Owns the state directory and every process the server starts."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self.settings, self.log = settings, log
        self.parent = os.getppid()  # the client, as far as we can see
        self._tmp = safe_tmp(settings, log)
        self.state_dir = self._new_name()
        self._goodbye = -1  # write end of the pipe the guardian waits at
        self._guardian = 0  # its process id
        self._lock = threading.Lock()  # guards everything below, and the moment of a spawn
        self._has_directory = False  # the state directory has been made,
        self._signed: tuple | None = None  # and bears our name: its device and inode
        self._has_subreaper: bool | None = None  # None: not asked yet
        self._live: dict[int, int] = {}  # process id of a running job's leader -> its tag
        self._ended = False  # after end_all() nothing may start
        self._owed: set[int] = set()  # tags of finished calls whose processes could not be ended yet
        self._own_limit: Any = resource.getrlimit(_TAG_LIMIT) if _TAG_LIMIT is not None else None
        self._digits = 10**9 + int.from_bytes(os.urandom(8), "big") % (8 * 10**9)  # ten of them, our own
        self._calls = 0
        if self._own_limit and self._own_limit[1] != resource.RLIM_INFINITY:
            self._own_limit = None  # somebody capped it; the tag would not fit

    @property
    def has_tags(self) -> bool:
        """Say whether descendants can be recognised wherever they went."""
        return self._own_limit is not None

    # -- the state directory

    def directory(self) -> str:
        """Return the private directory of this server, making it on first use, or anew if a tool has removed it."""
        with self._lock:
            if not self._is_ours():
                self._make_directory()
        return self.state_dir

    def _is_ours(self) -> bool:
        try:
            status = os.lstat(self.state_dir)
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and self._signed == (status.st_dev, status.st_ino)

    def _make_directory(self) -> None:
        """Make and sign the directory; a name that is taken is left to whoever took it."""
        if os.path.lexists(self.state_dir) and not self._has_directory:
            self.state_dir = self._new_name()
        elif os.path.lexists(self.state_dir) and self._signed:
            self._dismiss_guardian()  # it would remove what stands there now, and not the new one
            self._guardian = 0
            self.state_dir = self._new_name()
        self._need_guardian()
        if not os.path.lexists(self.state_dir):
            os.mkdir(self.state_dir, 0o700)
            self._has_directory = True
        atomic_write(os.path.join(self.state_dir, "owner"), b"%d %s\n" % (os.getpid(), start_time(os.getpid())))
        if self.settings.preserve_state:
            atomic_write(os.path.join(self.state_dir, "preserve"), b"")
        status = os.lstat(self.state_dir)
        self._signed = (status.st_dev, status.st_ino)

    def _new_name(self) -> str:
        words = (self.parent, os.getpid(), os.urandom(8).hex())
        return os.path.join(self._tmp, "mcpbash.state.%d.%d.%s" % words)

    def remove_state(self) -> None:
        """Remove the state directory, unless the operator wants to keep it."""
        if self._has_directory and not self.settings.preserve_state:
            import shutil

            shutil.rmtree(self.state_dir, ignore_errors=True)

    def sweep_stale(self) -> None:
        """Remove state directories whose owners died without a trace."""
        import shutil

        parent = os.path.dirname(self.state_dir)
        for name in os.listdir(parent):
            path = os.path.join(parent, name)
            if name.startswith("mcpbash.state.") and path != self.state_dir and is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)

    # -- the guardian

    def _need_guardian(self) -> None:
        """Start the guardian, or another one if it is gone; called with the lock held."""
        if self._guardian:
            if os.waitpid(self._guardian, os.WNOHANG)[0] == 0:
                return
            os.close(self._goodbye)
        digits = str(self._digits) if self.has_tags else ""
        argv = ["mcp_bash-guardian", "-c", GUARDIAN, "guardian", self.state_dir, digits]
        read, self._goodbye = os.pipe()
        actions: list = [(os.POSIX_SPAWN_DUP2, read, 3)]
        actions += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        self._guardian = 0
        try:
            env = {"PATH": "/usr/bin:/bin:" + os.environ.get("PATH", ""), "LC_ALL": "C"}
            self._guardian = os.posix_spawn("/bin/sh", argv, env, file_actions=actions, setsid=True)
        finally:
            os.close(read)
            if not self._guardian:
                os.close(self._goodbye)

    def _dismiss_guardian(self) -> None:
        if self._guardian:
            try:
                os.write(self._goodbye, b"goodbye\n")
                os.waitpid(self._guardian, 0)
            except OSError:
                pass  # it is gone already

    def leave(self, code: int) -> NoReturn:
        """End every process we started, and this one."""
        self.end_all()
        self.close()
        os._exit(code)

    def close(self) -> None:
        """Remove the state directory and let the guardian go."""
        self.remove_state()
        self._dismiss_guardian()

    # -- starting and recognising processes

    def spawn(self, argv: list, env: dict, outputs: list[int], detach: bool) -> tuple[int, int]:
        """Start `argv` in a session of its own; return its process id and the tag its descendants carry (0: none).

        `outputs` become its stdout, its stderr and, if there is a third, its channel.
        """
        actions: list = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in zip(outputs, (1, 2, CHANNEL_FD))]
        with self._lock:
            if self._ended:
                raise InternalError("the server is shutting down; nothing was started")
            self._need_guardian()
            if self._has_subreaper is None:
                self._has_subreaper = become_subreaper()
                hide_from_tools()
            tag = self._tag_ourselves() if self.has_tags and not detach else 0
            try:
                spawn = os.posix_spawnp if "/" not in argv[0] else os.posix_spawn
                pid = spawn(
                    argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_DEFAULT_SIGNALS
                )
            finally:
                if tag:
                    resource.setrlimit(_TAG_LIMIT, self._own_limit)
            self._live[pid] = tag
        if not self.has_tags:
            atomic_write(os.path.join(self.directory(), "%d.group" % pid), b"%d\n" % pid)
        return pid, tag

    def _tag_ourselves(self) -> int:
        self._calls = (self._calls + 1) % 10**8
        tag = self._digits * 10**8 + self._calls
        resource.setrlimit(_TAG_LIMIT, (tag, resource.RLIM_INFINITY))
        return tag

    def forget(self, pid: int) -> None:
        """Note that the leader `pid` has been reaped: its number may belong to a stranger from now on."""
        with self._lock:
            self._live.pop(pid, None)
        if not self.has_tags:
            try:
                os.unlink(os.path.join(self.state_dir, "%d.group" % pid))
            except OSError:
                pass  # written only after a spawn that worked, removed with the directory otherwise

    def end_orphans(self, tag: int) -> None:
        """Kill what a finished call left behind, and collect the orphans that ended by themselves."""
        orphans = self._orphans()
        if not orphans:
            return
        tags = self._owed | ({tag} if tag else set())
        if tags and (orphans is ... or any(self._tag_of(pid) in tags for pid in orphans)):
            self._owed = set() if self.end_tagged(*tags) else tags
        self._reap(orphans)

    def _orphans(self) -> Any:
        """Return the ids of processes that were given to us, or `...` when this system cannot tell."""
        if not self._has_subreaper:
            return ... if self.has_tags else []
        try:
            descriptor = os.open("/proc/self/task/%d/children" % os.getpid(), os.O_RDONLY | os.O_CLOEXEC)
            try:
                words = read_up_to(descriptor, 1 << 20).split()
            finally:
                os.close(descriptor)
        except OSError:
            return ...  # a kernel without this file, or no descriptor left: look at every process instead
        return [pid for pid in map(int, words) if pid not in self._live and pid != self._guardian]

    def _reap(self, orphans: Any) -> None:
        for pid in orphans if orphans is not ... else ():
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass  # another thread has collected it

    def _tag_of(self, pid: int) -> int:
        try:
            return resource.prlimit(pid, _TAG_LIMIT)[0]
        except (OSError, PermissionError):
            return 0  # gone, or not ours (a set-uid program): we could not signal it either

    def tagged(self, tags: set) -> list[int]:
        """Return every living process whose tag is one of `tags`."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and self._tag_of(int(name)) in tags and process_state(int(name)) not in "ZX":
                found.append(int(name))
        return found

    def end_tagged(self, *tags: int) -> bool:
        """Kill every process that carries one of `tags`, however it hides; return False when some would not die."""
        wanted, deadline, quiet = {tag for tag in tags if tag}, time.monotonic() + 1.0, 0
        while wanted and quiet < 2:
            try:
                found = self.tagged(wanted)
            except OSError as error:
                if time.monotonic() > deadline:
                    self.log("critical", "mcp.tools", "processes cannot be listed (%s)" % error.strerror)
                    return False
                time.sleep(LOOK)  # no descriptor or no memory just now: nothing would tell when there is
                continue
            quiet = 0 if found else quiet + 1
            for pid in found:
                self._kill(pid, wanted)
            self._reap(self._orphans())
            if found and time.monotonic() > deadline:
                self.log("critical", "mcp.tools", "%d processes would not die: %s" % (len(found), found[:8]))
                return False
        return True

    def _kill(self, pid: int, tags: set) -> None:
        """Kill `pid` unless its number has been taken over by a process with another tag in the meantime."""
        try:
            descriptor = exit_descriptor(pid)
            try:
                if self._tag_of(pid) in tags:
                    if descriptor >= 0:
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    else:
                        os.kill(pid, signal.SIGKILL)
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        except OSError:
            pass  # it ended by itself

    def end_group(self, pid: int, number: int) -> None:
        """Signal the process group of a leader that has not been reaped yet."""
        try:
            os.killpg(pid, number)
        except OSError:
            pass  # nobody is left in the group

    def end_all(self) -> None:
        """Kill everything that was started and refuse to start more."""
        with self._lock:
            self._ended = True
            for pid in self._live:
                self.end_group(pid, signal.SIGKILL)
            tags = set(self._live.values())
        if self.has_tags:
            self.end_tagged(*tags)


# All of them: Python ignores SIGPIPE and SIGXFSZ, a client may have made us ignore more, tools expect none of it.
_DEFAULT_SIGNALS = sorted(set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP})


def exit_descriptor(pid: int) -> int:
    """Return a descriptor that becomes readable when the child `pid` has exited, -1 where there is none."""
    try:
        return os.pidfd_open(pid) if _HAS_PIDFD else -1
    except OSError:
        return -1  # an old kernel, a sandbox without the call, or no descriptor left


def process_state(pid: int) -> str:
    """Return the state letter of a process as Linux reports it; X when it is gone, ? when that cannot be told."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rsplit(b") ", 1)[1][:1].decode("ascii")
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    except (OSError, IndexError):
        return "?"  # it cannot be asked just now; who wants it dead must not take that for an answer


def start_time(pid: int) -> bytes:
    """Return when a process was started, in a form that is compared only with itself; 0 when unknown."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rsplit(b") ", 1)[1].split()[19]
    except (OSError, IndexError):
        return b"0"


def is_abandoned(path: str) -> bool:
    """Say whether `path` is a state directory of ours whose owner no longer lives."""
    try:
        status = os.lstat(path)
    except OSError:
        return False  # somebody else has swept it
    try:
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        if os.path.exists(os.path.join(path, "preserve")):
            return False
        pid, started = read_small(os.path.join(path, "owner"), 100).split()
        os.kill(int(pid), 0)
        return start_time(int(pid)) != started
    except FileNotFoundError:
        return time.time() - status.st_mtime > 60  # no owner file: its maker died within the first moments
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False


def safe_tmp(settings: Settings, log: Log) -> str:
    """Return a directory in which nobody else can replace what we make."""
    for path in (settings.tmp_root, os.environ.get("TMPDIR"), "/tmp", "/var/tmp", os.path.expanduser("~")):
        if not path or not os.path.isdir(path):
            continue
        status = os.stat(path)
        if not status.st_mode & 0o022 or status.st_mode & stat.S_ISVTX:
            return os.path.realpath(path)
        message = "%s is writable by others and not sticky; run: chmod +t '%s'. Another place is used." % (path, path)
        log("warning", "mcp.lifecycle", message)
    raise UserError("no safe temporary directory: set MCPBASH_TMP_ROOT to a directory that only you can write to.")


# ======================================================================================================================
# 11. PROCESS RUNNER — start one child, watch it, end it.
# ======================================================================================================================
#
# One thread serves everything: a Loop waits with poll() for descriptors and for the next due time, and calls whoever
# asked. A Job is one child in that loop. It watches four descriptors: stdout, stderr, the channel and the child's exit
# (a pidfd; where there is none the job looks every LOOK seconds and whenever a pipe ends, which is nearly always when
# the child exits). Threads were tried first: with 16 tools on two busy cores a call took twice as long as a bare spawn,
# because every wake-up of a thread waits for the interpreter lock and for a core. With one thread there is nothing to
# wait for and nothing to lock: a process id is used by the thread that will reap it, and by no other.
#
# Exit and end of output are two events, in any order. A tool that closes stdout early is still running; a tool that
# leaves `sleep 300 &` behind has exited although its stdout is open. The rule: exit ends the call. What is readable
# then is read, for DRAIN seconds at most, because output on its way through `> >(tee log)` arrives a moment after the
# shell is gone. Then the group is killed, while the unreaped leader still reserves its number, and the leader reaped.
#
# Stopping is a ladder: TERM to the group, MCPBASH_KILL_GRACE seconds, then KILL to the group and to everything with the
# call's tag. The reason of the first stop wins: a call that times out and is cancelled afterwards has timed out.

DRAIN = 0.1  # seconds that output may still trickle in after the exit
GIVE_UP = 5.0  # seconds after KILL before a child stuck in the kernel is abandoned, loudly
RECORD_LIMIT = 65536  # bytes of one record on the channel
CHUNK = 65536
UNKNOWN_STATUS = 255 << 8  # the wait status of a child whose own could not be had: a failure
INFINITY = 1e12  # a monotonic time that never comes
LONGEST_WAIT = 3_600_000  # milliseconds of one poll()

Outcome = namedtuple("Outcome", "exit_code signal why stdout stderr stderr_size seconds")
# why: "exit", or what ended it: "cancelled", "shutdown", "fixed", "idle", "max_exceeded" (timeouts), "stdout", "stderr"
# (too much of it), "unreadable"


class Loop:
    """Waits for descriptors and times, and calls whoever asked. All of it happens in one thread, but for post()."""

    def __init__(self, on_error: Callable[[Exception], None] | None = None) -> None:
        self._on_error = on_error  # told of exceptions nobody caught; without it they end the loop
        self._poller = select.poll()
        self._watched: dict[int, Callable[[], None]] = {}
        self.jobs: set[Job] = set()  # running children
        self._soonest = INFINITY  # no job is due before this; it may be too early, never too late
        self._posted: deque = deque()  # functions handed over by other threads
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self.errands = 0  # functions somebody is going to post
        self._failures = 0  # of poll(), in a row
        self.watch(self._wake_read, self._swallow)

    def watch(self, fd: int, call: Callable[[], None], events: int = select.POLLIN) -> None:
        """Call `call` whenever `fd` is ready."""
        self._watched[fd] = call
        self._poller.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Forget `fd`; must come before it is closed."""
        if self._watched.pop(fd, None):
            self._poller.unregister(fd)

    def post(self, function: Callable[[], None]) -> None:
        """Run `function` in the loop's thread soon; safe from any thread."""
        self._posted.append(function)
        try:
            os.write(self._wake_write, b"!")
        except OSError:
            pass  # the pipe is full of wake-ups already; turn() looks from time to time in any case

    def _swallow(self) -> None:
        os.read(self._wake_read, 4096)

    def _run_posted(self) -> None:
        while self._posted:
            self._guarded(self._posted.popleft(), -1)

    def expect(self, due: float) -> None:
        """Note that a job has something to do at `due`."""
        self._soonest = min(self._soonest, due)

    def turn(self, due: float) -> None:
        """Wait until something is ready or `due` has come, and handle it."""
        wait = int((min(due, self._soonest) - time.monotonic()) * 1000) + 1 if due else 0
        if self.errands:
            wait = min(wait, 500)  # the wake-up of a finished errand may have been lost, see post()
        for fd, _ in self._ready(max(0, min(LONGEST_WAIT, wait))):
            call = self._watched.get(fd)
            if call:  # it may have been forgotten by the call before
                self._guarded(call, fd)
        self._run_posted()
        now = time.monotonic()
        if now >= self._soonest:
            for job in [job for job in self.jobs if job.due() <= now]:
                self._guarded(lambda job=job: job.tick(now), -1)  # type: ignore[misc]
            self._soonest = min((job.due() for job in self.jobs), default=INFINITY)

    def _ready(self, wait: int) -> list[tuple[int, int]]:
        try:
            ready = self._poller.poll(wait)
            self._failures = 0
        except OSError:  # no memory for the table of descriptors; if that lasts, nobody is served by going on
            self._failures += 1
            if self._failures > 100:
                raise
            time.sleep(LOOK)
            return []
        return ready

    def _guarded(self, call: Callable[[], None], fd: int) -> None:
        """Call; a descriptor whose handler fails is forgotten, or it would fail again at every turn."""
        try:
            call()
        except Exception as error:
            if self._on_error is None:
                raise
            self.unwatch(fd)
            self._on_error(error)

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._wake_read)
        os.close(self._wake_write)


class Clerk:
    """A thread that runs one function after the other."""

    def __init__(self) -> None:
        self._errands: SimpleQueue = SimpleQueue()

    def start(self) -> None:
        """Begin; the thread lives as long as the process."""
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, function: Callable[[], None]) -> None:
        """Run `function` after everything that was put before."""
        self._errands.put(function)

    def _run(self) -> None:
        while True:
            self._errands.get()()


class Errand:
    """Something for the clerk that a request waits for; yielded by handlers."""

    def __init__(self, clerk: Clerk, function: Callable[[], Any]) -> None:
        self._clerk, self._function = clerk, function

    def begin(self, loop: Loop, on_done: Callable[..., None]) -> None:
        """Have it done; `on_done(value, error)` is called in the loop's thread."""

        loop.errands += 1

        def report(value: Any, error: BaseException | None) -> None:
            loop.errands -= 1
            on_done(value, error)

        def perform() -> None:
            value = error = None
            try:
                value = self._function()
            except BaseException as caught:  # whatever it is, it belongs to the request that waits
                error = caught
            loop.post(lambda: report(value, error))

        self._clerk.put(perform)


class Clock:
    """When a job must end: a fixed time, or an idle time that progress renews under a hard cap."""

    def __init__(self, seconds: float, extends: bool = False, cap: float = 0.0) -> None:
        self.seconds, self.extends, self.cap = seconds, extends, cap
        self._started = self._renewed = time.monotonic()

    def renew(self) -> None:
        """Note that the child reported progress."""
        if self.extends:
            self._renewed = time.monotonic()

    def due(self) -> float:
        """Return the monotonic time at which the job must be stopped."""
        due = self._renewed + self.seconds
        return min(due, self._started + self.cap) if self.extends else due

    def why(self) -> str:
        """Return which limit it is that has been reached."""
        if not self.extends:
            return "fixed"
        return "max_exceeded" if time.monotonic() >= self._started + self.cap else "idle"

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._started


class Records:
    """Cuts the channel's bytes into records: raw text ended by NUL, or a JSON line as older tools write."""

    def __init__(self, limit: int = RECORD_LIMIT) -> None:
        self._limit = limit
        self._rest = b""
        self._end = b""  # what ends the record in `_rest`; empty before its first byte
        self._is_long = False  # that record is above the limit, its bytes are skipped
        self.dropped = 0  # how many were

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records completed by `data`."""
        records = []
        self._rest += data
        while self._rest:
            if not self._end:
                self._rest = self._rest.lstrip(b"\n")
                if not self._rest:
                    break
                self._end = b"\n" if self._rest[:1] == b"{" else b"\0"
            record, ended, rest = self._rest.partition(self._end)
            self._is_long = self._is_long or len(record) > self._limit
            if not ended:
                self._rest = b"" if self._is_long else record
                break
            if self._is_long:
                self.dropped += 1
            else:
                records.append(record)
            self._rest, self._end, self._is_long = rest, b"", False
        return records


class Job:
    """One child process from start to end, in a loop."""

    def __init__(
        self,
        containment: Containment,
        argv: list,
        env: dict,
        clock: Clock,
        stdout_limit: int,
        stderr_limit: int,
        on_record: Callable[[bytes], None] | None = None,
        detach: bool = False,
        record_limit: int = RECORD_LIMIT,
    ) -> None:
        self._containment, self._argv, self._env, self._detach = containment, argv, env, detach
        self._clock, self._on_record = clock, on_record
        self._limits = {"stdout": stdout_limit, "stderr": stderr_limit}
        self._tail: int = containment.settings.tool_stderr_tail_limit
        self._loop: Loop = None  # type: ignore[assignment]
        self._on_done: Callable[[Outcome], None] = None  # type: ignore[assignment]
        self._why = "exit"
        self._pid = self._tag = 0
        self._stdout: list[bytes] = []
        self._stderr = b""  # its last bytes only
        self._sizes = {"stdout": 0, "stderr": 0}
        self._records = Records(record_limit)
        self._pipes: dict[int, str] = {}  # read end -> stdout, stderr or channel
        self._exit_fd = -1
        self._exited = False
        self._status: int | None = None  # its wait status, once known
        self._drain_due = self._kill_due = self._give_up_due = INFINITY  # monotonic times
        self._look_due = 0.0  # when to look whether it has exited, where nothing tells

    # -- start

    def begin(self, loop: Loop, on_done: Callable[[Outcome], None]) -> None:
        """Start the child; `on_done` gets the outcome. Raises OSError when it cannot be started."""
        self._loop, self._on_done = loop, on_done
        ends: list[int] = []
        names = ("stdout", "stderr", "channel") if self._on_record else ("stdout", "stderr")
        try:
            for name in names:
                read, write = os.pipe()
                self._pipes[read] = name
                ends.append(write)
            self._pid, self._tag = self._containment.spawn(self._argv, self._env, ends, self._detach)
        except BaseException:
            for fd in self._pipes:
                os.close(fd)
            raise
        finally:
            for fd in ends:
                os.close(fd)
        self._watch()

    def _watch(self) -> None:
        for fd in self._pipes:
            self._loop.watch(fd, lambda fd=fd: self._read(fd))  # type: ignore[misc]
        self._exit_fd = exit_descriptor(self._pid)
        if self._exit_fd >= 0:
            self._loop.watch(self._exit_fd, self._note_exit)
        self._loop.jobs.add(self)
        self._loop.expect(self.due())

    # -- what happens meanwhile

    def stop(self, why: str) -> None:
        """End the child: ask it now, force it after the grace period."""
        if self._why != "exit" or self._exited:
            return
        self._why = why
        self._containment.end_group(self._pid, signal.SIGTERM)
        self._containment.end_group(self._pid, signal.SIGCONT)  # a stopped process cannot act on TERM
        grace = 0 if why in ("stdout", "stderr") else self._containment.settings.kill_grace
        self._kill_due = time.monotonic() + grace
        self._loop.expect(self._kill_due)

    def due(self) -> float:
        """Return the next monotonic time at which tick() has something to do."""
        if self._exited:
            return self._drain_due
        due = self._clock.due() if self._why == "exit" else min(self._kill_due, self._give_up_due)
        return due if self._exit_fd >= 0 else min(due, self._look_due)

    def tick(self, now: float) -> None:
        """Do what the clock asks for."""
        if self._exited:
            return self._finish() if now >= self._drain_due else None
        self._look_due = now + LOOK
        if self._exit_fd < 0 and self._has_exited():
            return self._note_exit()
        if self._why == "exit" and now >= self._clock.due():
            self.stop(self._clock.why())
        if now >= self._kill_due:
            self._kill_due, self._give_up_due = INFINITY, now + GIVE_UP
            self._containment.end_group(self._pid, signal.SIGKILL)
            self._containment.end_tagged(self._tag)
        if now >= self._give_up_due:
            self._containment.log("critical", "mcp.tools", "process %d does not react to KILL; abandoned" % self._pid)
            self._finish()

    def _has_exited(self) -> bool:
        status = exit_status(self._pid)
        if status is not None and status >= 0:
            self._status = status
        return status is not None

    def _note_exit(self) -> None:
        self._exited = True
        if self._exit_fd >= 0:
            self._loop.unwatch(self._exit_fd)
        if not self._pipes:
            return self._finish()
        self._drain_due = time.monotonic() + DRAIN
        self._loop.expect(self._drain_due)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK)
        except OSError:
            data = b""  # it has ended for us, and so has the tool: half an output is none
            self.stop("unreadable")
            self._why = "unreadable" if self._why == "exit" else self._why
        name = self._pipes[fd]
        if not data:
            self._loop.unwatch(fd)
            os.close(fd)
            del self._pipes[fd]
            if not self._pipes and (self._exited or (self._exit_fd < 0 and self._has_exited())):
                self._exited = True
                self._finish()
        elif name == "channel":
            self._relay(data)
        else:
            self._keep(name, data)

    def _relay(self, data: bytes) -> None:
        dropped = self._records.dropped
        for record in self._records.feed(data):
            self._on_record(record)  # type: ignore[misc]
            if record.startswith((b"progress", b"{")):
                self._clock.renew()
        if self._records.dropped > dropped:
            message = "%s wrote a record of more than %d bytes; it is dropped" % (self._argv[-1], RECORD_LIMIT)
            self._containment.log("warning", "mcp.tools", message)

    def _keep(self, name: str, data: bytes) -> None:
        self._sizes[name] += len(data)
        if self._sizes[name] > self._limits[name]:
            self.stop(name)
            if name == "stdout":
                return  # what came before the limit is kept, the rest is read and forgotten
        if name == "stdout":
            self._stdout.append(data)
        else:
            self._stderr = (self._stderr + data)[-self._tail :] if self._tail else b""

    # -- end

    def _finish(self) -> None:
        """Kill what is left of the group, reap the leader, close everything, report."""
        self._loop.jobs.discard(self)
        for fd in self._pipes:
            self._loop.unwatch(fd)
            os.close(fd)
        self._pipes.clear()
        try:
            status = self._reap()
        except Exception as error:  # whoever waits for the outcome must get one
            self._containment.log("critical", "mcp.tools", "the end of %s: %s" % (self._argv[-1], error))
            status = UNKNOWN_STATUS if self._status is None else self._status
        code, number = decode_status(status)
        if self._exit_fd >= 0:
            self._loop.unwatch(self._exit_fd)
            os.close(self._exit_fd)
        outcome = Outcome(
            code,
            number,
            self._why,
            b"".join(self._stdout),
            self._stderr,
            self._sizes["stderr"],
            self._clock.elapsed(),
        )
        on_done, self._on_done = self._on_done, _forget  # nor may a finished job keep megabytes alive in a cycle
        self._stdout.clear()
        on_done(outcome)

    def _reap(self) -> int:
        if not self._detach or self._why != "exit":
            self._containment.end_group(self._pid, signal.SIGKILL)
        for attempt in (1, 2, 3):
            try:
                if self._status is None:
                    _, self._status = os.waitpid(self._pid, 0 if self._exited else os.WNOHANG)
            except OSError:
                if attempt == 3:
                    raise
        self._containment.forget(self._pid)
        self._containment.end_orphans(self._tag)
        return self._status or 0


def _forget(outcome: Outcome) -> None:
    """Take the place of a callback that has been called."""


def run_to_end(job: Job) -> Outcome:
    """Run a job in a loop of its own and return its outcome."""
    loop, outcomes = Loop(), []  # type: ignore[var-annotated]
    try:
        job.begin(loop, outcomes.append)
        while not outcomes:
            loop.turn(INFINITY)
    finally:
        loop.close()
    return outcomes[0]


def exit_status(pid: int) -> int | None:
    """Return the wait status of the child `pid` if it has exited and can only be asked by reaping it, -1 if it has
    exited and still waits to be reaped, None if it runs. (macOS has waitid only since Python 3.13.)
    """
    if hasattr(os, "waitid"):
        return -1 if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) else None
    reaped, status = os.waitpid(pid, os.WNOHANG)
    return status if reaped else None


def decode_status(status: int) -> tuple[int, int]:
    """Return (exit code, signal number) of a wait status; a signal shows as the shell would show it, 128 + n."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), 0


# -- what a tool is given: environment and files

ENV_KEPT = ("PATH", "HOME", "TMPDIR", "LANG")
ENV_NEVER = ("MCPBASH_REMOTE_TOKEN",)  # secrets of the server, in no mode
ENV_PER_CALL = ("MCP_TOOL_", "MCP_ARGS_FLAT", "MCP_META_FLAT", "MCP_PROGRESS_TOKEN")  # ours, never inherited
ENV_OF_FIELDS = {
    "timeoutHint": "MCPBASH_TIMEOUT_HINT",
    "progressExtendsTimeout": "MCPBASH_PROGRESS_EXTENDS_TIMEOUT",
    "maxTimeoutSecs": "MCPBASH_MAX_TIMEOUT_SECS",
}
TRACE_KEYS = ("traceparent", "tracestate", "baggage")


class ToolEnvironment:
    """Builds the environment of tools from an allow list, never by taking things away."""

    def __init__(self, project: Project, settings: Settings, environ: dict, identity: dict, sdk: str) -> None:
        self._settings = settings
        self._base = self._kept(environ, settings, project.root)
        self._base.update(self._fixed(project, identity, sdk))
        self._base.update(json_tool(settings, self._base["PATH"]))

    def refused(self) -> str:
        """Say why no tool may run in the configured mode, or return an empty string."""
        if self._settings.tool_env_mode == "inherit" and not self._settings.tool_env_inherit_allow:
            return "MCPBASH_TOOL_ENV_MODE=inherit needs MCPBASH_TOOL_ENV_INHERIT_ALLOW=true as well"
        return ""

    def copy(self) -> dict:
        """Return a fresh environment for one call."""
        return dict(self._base)

    @staticmethod
    def _kept(environ: dict, settings: Settings, root: str) -> dict:
        wanted = set(ENV_KEPT) | set(settings.tool_env_allowlist if settings.tool_env_mode == "allowlist" else ())
        everything = settings.tool_env_mode == "inherit"
        kept = {
            name: value
            for name, value in environ.items()
            if (everything or name in wanted or name.startswith(("MCP_", "MCPBASH_")))
            and name not in ENV_NEVER
            and not name.startswith(ENV_PER_CALL)
        }
        utf8 = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
        defaults = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": root, "TMPDIR": "/tmp", "LANG": utf8}
        return {**defaults, **kept}

    @staticmethod
    def _fixed(project: Project, identity: dict, sdk: str) -> dict:
        name = os.path.basename(project.root)
        uri = "file://" + percent_encode(project.root)
        fixed = {
            "MCP_SDK": sdk,
            "MCPBASH_PROJECT_ROOT": project.root,
            "MCPBASH_MODE": "full",
            "MCPBASH_FRAMEWORK_VERSION": CONTRACT,
            "MCPBASH_TRANSPORT": "stdio",
            "MCP_ELICIT_SUPPORTED": "0",
            "MCP_ROOTS_JSON": _ENCODER.encode([{"uri": uri, "name": name, "path": project.root}]),
            "MCP_ROOTS_PATHS": project.root,
            "MCP_ROOTS_COUNT": "1",
            "MCP_CHANNEL_FD": str(CHANNEL_FD),
            "MCP_PROGRESS_STREAM": "/dev/fd/%d" % CHANNEL_FD,
            "MCP_LOG_STREAM": "/dev/fd/%d" % CHANNEL_FD,
        }
        for field, value in identity.items():
            text = value if isinstance(value, str) else _ENCODER.encode(value)
            if text and len(text) <= 16384:  # more does not fit into an environment
                fixed["MCPBASH_SERVER_" + _ENV_NAMES.get(field, field.upper())] = env_text(text)
        return fixed


def env_text(text: str) -> str:
    r"""Return `text` as a variable can hold it: without NUL, and without halves of surrogate pairs.

    >>> env_text("a\0b\ud800")
    'ab?'
    """
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def percent_encode(path: str) -> str:
    """Return `path` as it stands in a file URI.

    >>> percent_encode("/a b/é")
    '/a%20b/%C3%A9'
    """
    safe = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/"
    return "".join(chr(byte) if byte in safe else "%%%02X" % byte for byte in os.fsencode(path))


def json_tool(settings: Settings, path: str) -> dict:
    """Return the variables that tell tools where jq or gojq is; empty when the machine has neither."""
    candidates = [settings.json_tool_bin] if settings.json_tool_bin else []
    candidates += [os.path.join(place, name) for name in ("jq", "gojq") for place in path.split(":") if place]
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return {"MCPBASH_JSON_TOOL": os.path.basename(candidate), "MCPBASH_JSON_TOOL_BIN": candidate}
    return {}


class CallFiles:
    """The files of one call in the state directory; named by a number, never by anything a client sent.

    Making and removing files costs more than all the rest a call needs from us, and most tools touch none of theirs.
    So a set whose files are still empty after its call serves another one.
    """

    STANDING = ("error", "resources")  # exist from the start, for tools that test for them

    def __init__(self, directory: str, number: int) -> None:
        self._stem = "%s/%d." % (directory, number)
        self._extra: list[str] = []  # made for this call only
        self.paths = {suffix: self._stem + suffix for suffix in (*self.STANDING, "cancel")}
        for suffix in self.STANDING:
            self._make(self.paths[suffix], b"")

    def write(self, suffix: str, data: bytes) -> str:
        """Make a further file for this call and return its name."""
        path = self._stem + suffix
        self._extra.append(path)
        self._make(path, data)
        return path

    def note_cancelled(self) -> None:
        """Make the file by which a tool can tell that it has been cancelled."""
        try:
            self.write("cancel", b"")
        except OSError:
            pass  # the tool has put something in its place, or the disk is full: TERM reaches it anyway

    @staticmethod
    def _make(path: str, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)

    def content(self, suffix: str, limit: int) -> bytes:
        """Return what the tool wrote into a standing file, up to `limit` bytes; empty when there is nothing."""
        try:
            if not os.lstat(self.paths[suffix]).st_size:
                return b""
            return read_small(self.paths[suffix], limit)
        except OSError:
            return b""  # removed, replaced by something that is no file, or too large to be a message

    def is_clean(self) -> bool:
        """Remove what was made for the last call; say whether the standing files are as new."""
        for path in self._extra:
            remove_quietly(path)
        self._extra.clear()
        try:
            states = [os.lstat(self.paths[suffix]) for suffix in self.STANDING]
        except OSError:
            return False
        return all(stat.S_ISREG(status.st_mode) and not status.st_size for status in states)

    def remove(self) -> None:
        """Remove the files."""
        for path in (*self._extra, *self.paths.values()):
            remove_quietly(path)


def remove_quietly(path: str) -> None:
    """Remove a file of ours."""
    try:
        os.unlink(path)
    except OSError:
        pass  # it is not there, or a tool has put a directory in its place: it goes with the state directory


# -- hooks: bash scripts of the project that the server asks something

HOOK_PRELUDE = r"""
_mcp_log() { printf 'log\t%s\t%s\t%s\0' "$1" "${2-}" "${3-}" >&7; }
mcp_logging_debug() { _mcp_log debug "$@"; }
mcp_logging_info() { _mcp_log info "$@"; }
mcp_logging_warning() { _mcp_log warning "$@"; }
mcp_logging_error() { _mcp_log error "$@"; }
mcp_json_extract_optional() {
	[ -n "${MCPBASH_JSON_TOOL_BIN-}" ] || return 1
	printf '%s' "$1" | "$MCPBASH_JSON_TOOL_BIN" -r "$2 // empty"
}
"""

POLICY_HOOK = HOOK_PRELUDE + r"""
_MCP_TOOLS_ERROR_CODE= _MCP_TOOLS_ERROR_MESSAGE= _MCP_TOOLS_ERROR_DATA=
mcp_tools_error() { _MCP_TOOLS_ERROR_CODE=${1-} _MCP_TOOLS_ERROR_MESSAGE=${2-} _MCP_TOOLS_ERROR_DATA=${3-}; }
mcp_tools_policy_check_default() { return 0; }
"$BASH" -n "$3" || exit 97
IFS= read -r -d '' _mcp_item <"$2"
. "$3" >&2
[ "$?" = 0 ] || exit 98
_mcp_done=
_mcp_verdict() { # also reached when the policy's own `set -e` ends the script; only a check that returned may allow
	[ -n "$_mcp_done" ] || [ "$1" != 0 ] || set -- 99
	set -- "$1" "$_MCP_TOOLS_ERROR_CODE" "$_MCP_TOOLS_ERROR_DATA" "$_MCP_TOOLS_ERROR_MESSAGE"
	printf 'verdict\t%s\t%s\t%s\t%s\0' "$@" >&7
}
trap '_mcp_verdict "$?"' EXIT
declare -F mcp_tools_policy_check >/dev/null || mcp_tools_policy_check() { :; }
mcp_tools_policy_check "$1" "$_mcp_item" >&2
_mcp_done=$?
exit "$_mcp_done"
"""

REGISTER_HOOK = HOOK_PRELUDE + r"""
_mcp_item() { printf 'item\t%s\t%s\0' "$1" "$2" >&7; }
mcp_register_tool() { _mcp_item tools "$1"; }
mcp_register_resource() { _mcp_item resources "$1"; }
mcp_register_prompt() { _mcp_item prompts "$1"; }
mcp_tools_register_manual() { _mcp_item tools "$1"; }
mcp_resources_register_manual() { _mcp_item resources "$1"; }
mcp_prompts_register_manual() { _mcp_item prompts "$1"; }
mcp_completion_register_manual() { _mcp_item completions "$1"; }
mcp_resources_templates_register_manual() { _mcp_item resourceTemplates "$1"; }
mcp_completion_manual_begin() { :; }
mcp_completion_manual_finalize() { :; }
mcp_resources_templates_manual_begin() { :; }
mcp_resources_templates_manual_finalize() { :; }
. "$1"
"""

ENV_HOOK = r"""
"$BASH" -n "$1" || exit 97
set -a
. "$1" >&2
[ "$?" = 0 ] || exit 98
for _mcp_name in $(compgen -e); do printf '%s=%s\0' "$_mcp_name" "${!_mcp_name}" >&7; done
"""


class Hooks:
    """Runs the project's own bash scripts, each in a fresh bash with a deadline."""

    def __init__(self, containment: Containment, project: Project, settings: Settings, environ: dict, log: Log) -> None:
        self._containment, self._project, self._settings, self._environ, self._log = (
            containment,
            project,
            settings,
            environ,
            log,
        )

    def job(self, script: str, arguments: list[str], records: list[bytes]) -> Job:
        """Return a job that runs `script` with positional `arguments`; what it writes to fd 7 goes to `records`."""
        limit = self._settings.max_manual_registry_bytes
        env = {name: value for name, value in self._environ.items() if name not in ENV_NEVER}
        env.update(json_tool(self._settings, env.get("PATH", "")), MCPBASH_PROJECT_ROOT=self._project.root)
        argv = ["bash", "-c", script, "mcp_bash-hook", *arguments]
        clock = Clock(self._settings.hook_timeout)
        return Job(self._containment, argv, env, clock, limit, limit, records.append, record_limit=limit)

    def _run(self, script: str, path: str) -> tuple[Outcome, list[bytes]]:
        records: list[bytes] = []
        outcome = run_to_end(self.job(script, [path], records))
        if outcome.why != "exit" or outcome.exit_code:
            raise MetaError("failed (%s)" % describe_end(outcome))
        return outcome, records

    def register(self, path: str) -> bytes:
        """Run register.sh and return the JSON document it registered."""
        outcome, records = self._run(REGISTER_HOOK, path)
        collected: dict = {}
        for record in records:
            word, _, rest = record.partition(b"\t")
            kind, _, text = rest.partition(b"\t")
            if word == b"item":
                collected.setdefault(kind.decode(), []).append(decode(text))
        return encode({"version": 1, **collected}) if collected else outcome.stdout.strip()

    def environment(self, path: str) -> dict:
        """Run env.sh and return the environment it leaves behind; raise MetaError when it fails."""
        _, records = self._run(ENV_HOOK, path)
        pairs = (record.decode("utf-8", "surrogateescape").partition("=") for record in records)
        own = ("SHLVL", "_", "PWD", "OLDPWD", "_mcp_name")  # what the shell itself sets
        return {name: value for name, _, value in pairs if name not in own}

    def verdict(self, path: str, name: str, item: bytes) -> Steps:
        """Ask policy.sh whether tool `name` may run; return None for yes. Everything unexpected is a no."""
        records: list[bytes] = []
        item_file = os.path.join(self._containment.directory(), "policy.%s" % os.urandom(4).hex())
        try:
            atomic_write(item_file, item)
            outcome = yield self.job(POLICY_HOOK, [name, item_file, path], records)
        except OSError as error:
            why = "policy.sh could not be run (%s)" % error.strerror
            return InvalidParams("Tool '%s' blocked by policy: %s" % (name, why))
        finally:
            remove_quietly(item_file)
        for record in records:
            fields = record.decode("utf-8", "replace").split("\t", 4)
            if fields[0] == "verdict" and len(fields) == 5:
                return None if fields[1] == "0" and outcome.exit_code == 0 else self._denial(name, fields)
        message = "%s: gave no verdict (%s); the call is denied." % (path, describe_end(outcome))
        self._log("error", "mcp.tools.policy", message)
        return InvalidParams("Tool '%s' blocked by policy: policy.sh gave no verdict" % name)

    @staticmethod
    def _denial(name: str, fields: list[str]) -> RpcError:
        _, _, code, data, message = fields
        has_data, value = document(data)
        number = int(code) if re.match(r"-?\d{1,9}\Z", code) else INVALID_PARAMS
        return RpcError(number, message or "Tool '%s' blocked by policy" % name, value if has_data else None)


def describe_end(outcome: Outcome) -> str:
    """Return how a child ended, in words a person can act on."""
    first = one_line(outcome.stderr.decode("utf-8", "replace").strip().split("\n")[0])
    if outcome.why in ("fixed", "idle", "max_exceeded"):
        end = "stopped after %s s" % format_number(outcome.seconds)
    elif outcome.signal:
        end = "killed by " + signal_name(outcome.signal)
    else:
        end = "exit status %d" % outcome.exit_code
    return end + (": " + clip(first, 200) if first else "")


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number when it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def format_number(value: float) -> str:
    """Return a number without a needless fraction.

    >>> format_number(30.0), format_number(0.25)
    ('30', '0.25')
    """
    return "%d" % value if value == int(value) else "%.3g" % value


class Policy:
    """Decides, at every call anew, whether a tool may run. A check that fails or cannot be made denies."""

    def __init__(self, project: Project, settings: Settings, hooks: Hooks, environment: ToolEnvironment) -> None:
        self._project, self._settings, self._hooks, self._environment = project, settings, hooks, environment
        self._policy_file = os.path.join(project.server_dir, "policy.sh")

    def check(self, tool: Tool) -> Steps:
        """Return when `tool` may run now; raise InvalidParams when not. Yields the job of policy.sh, if any."""
        self._check_allow_list(tool.name)
        refused = self._environment.refused() or self.unsafe_path(tool.file)
        if refused:
            raise InvalidParams("Tool '%s' path rejected by policy: %s" % (tool.name, self._relative(refused)))
        if os.path.lexists(self._policy_file):
            yield from self._ask_policy_script(tool)

    def _relative(self, text: str) -> str:
        return text.replace(self._project.root + "/", "").replace(self._project.root, "the project directory")

    def _check_allow_list(self, name: str) -> None:
        allowed = self._settings.tool_allowlist
        if not allowed and self._settings.tool_allow_default == "deny":
            hint = "Set MCPBASH_TOOL_ALLOWLIST in your MCP client config."
            raise InvalidParams("Tool '%s' blocked by policy. %s" % (name, hint))
        if allowed and allowed not in (["*"], ["all"]) and name not in allowed:
            raise InvalidParams("Tool '%s' blocked by policy (not in MCPBASH_TOOL_ALLOWLIST)" % name)

    def unsafe_path(self, file: str) -> str:
        """Say why the script must not be run: outside tools/, or changeable by others. Empty when it may."""
        place, top = file, self._project.tools_dir
        while is_inside(top, place):
            try:
                status = os.lstat(place)
            except OSError as error:
                return "%s cannot be examined (%s)" % (place, error.strerror)
            if stat.S_ISLNK(status.st_mode):
                return self._unsafe_link(file)
            if place == file and not stat.S_ISREG(status.st_mode):
                return "%s is not a file" % place
            reason = unsafe_reason(place, status)
            if reason:
                return reason
            place = os.path.dirname(place)
        return ""

    def _unsafe_link(self, file: str) -> str:
        """Judge a path with symbolic links by where it leads."""
        real = os.path.realpath(file)
        if real == file or not is_inside(self._project.tools_dir, real):
            return "%s is a symbolic link that leaves the tools directory" % file
        return self.unsafe_path(real)

    def _ask_policy_script(self, tool: Tool) -> Steps:
        reason = unsafe_project_file(self._project.root, self._policy_file)
        if reason:
            why = "policy.sh is refused: " + self._relative(reason)
            raise InvalidParams("Tool '%s' blocked by policy: %s" % (tool.name, why))
        denial = yield from self._hooks.verdict(self._policy_file, tool.name, tool.encoded)
        if denial:
            raise denial


# ======================================================================================================================
# 12. PROTOCOL TABLES — versions, methods, features; results for older versions.
# ======================================================================================================================

V1, V2, V3, V4, V5 = VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
HANDSHAKE_VERSIONS = VERSIONS[:4]  # reached through initialize
STATELESS_VERSIONS = VERSIONS[4:]  # named in params._meta of every request

P = "io.modelcontextprotocol/"  # prefix of the protocol's own _meta keys

Method = namedtuple("Method", "name since until lane family")

# lane "now": begun as soon as it is read; "slot": begun when one of the slots for tools is free. Families can be
# switched off (minimal mode). Names of one meaning are rows of their own.
METHODS = {
    row[0]: Method(*row)
    for row in (
        ("initialize", V1, V4, "now", "lifecycle"),
        ("notifications/initialized", V1, V4, "now", "lifecycle"),
        ("initialized", V1, V4, "now", "lifecycle"),
        ("server/discover", V5, V5, "now", "lifecycle"),
        ("shutdown", V1, V4, "now", "lifecycle"),
        ("exit", V1, V4, "now", "lifecycle"),
        ("ping", V1, V4, "now", "lifecycle"),
        ("notifications/cancelled", V1, V5, "now", "lifecycle"),
        ("logging/setLevel", V1, V4, "now", "logging"),
        ("tools/list", V1, V5, "now", "tools"),
        ("tools/call", V1, V5, "slot", "tools"),
        ("subscriptions/listen", V5, V5, "now", "lifecycle"),
    )
}

NOTIFICATIONS = ("notifications/initialized", "initialized", "notifications/cancelled")  # never requests

# feature -> the versions that have it
FEATURES = {
    "tool annotations": (V2, V5),
    "progress message": (V2, V5),
    "audio": (V2, V5),
    "title": (V3, V5),
    "item _meta": (V3, V5),
    "lastModified": (V3, V5),
    "resource_link": (V3, V5),
    "structuredContent": (V3, V5),
    "icons": (V4, V5),
    "server description": (V4, V5),
    "execution": (V4, V4),
    "any structuredContent": (V5, V5),
    "any schema": (V5, V5),
    "result envelope": (V5, V5),  # resultType, serverInfo in _meta, ttlMs and cacheScope
}


def in_range(version: str, since: str, until: str) -> bool:
    """Say whether `version` lies between two others; they are dates, so text order is time order."""
    return since <= version <= until


def has(version: str, feature: str) -> bool:
    """Say whether a protocol version has a feature."""
    return in_range(version, *FEATURES[feature])


# Field of a tool -> feature it needs. Fields that are not listed here never leave the server.
TOOL_WIRE_FIELDS = {
    "name": None,
    "title": "title",
    "description": None,
    "inputSchema": None,
    "outputSchema": "structuredContent",
    "annotations": "tool annotations",
    "icons": "icons",
    "execution": "execution",
    "_meta": "item _meta",
}


def tool_for(version: str, item: dict) -> dict:
    """Return a registry item as `tools/list` of `version` shows it."""
    tool = {
        field: item[field]
        for field, feature in TOOL_WIRE_FIELDS.items()
        if field in item and (feature is None or has(version, feature))
    }
    if not has(version, "any schema"):
        tool["inputSchema"] = plain_schema({"properties": {}, **tool["inputSchema"]})
        if tool.get("outputSchema", {}).get("type", "object") != "object":
            del tool["outputSchema"]
        elif "outputSchema" in tool:
            tool["outputSchema"] = plain_schema({"type": "object", **tool["outputSchema"]})
    if "title" in item and not has(version, "title") and has(version, "tool annotations"):
        tool["annotations"] = {"title": item["title"], **tool.get("annotations", {})}
    return tool


def plain_schema(schema: dict) -> dict:
    """Return a schema whose properties are objects, as older versions ask: true is {}, false matches nothing."""
    plain: dict[bool, dict] = {True: {}, False: {"not": {}}}
    properties = schema.get("properties", {})
    if not any(isinstance(member, bool) for member in properties.values()):
        return schema
    members = {name: plain[member] if isinstance(member, bool) else member for name, member in properties.items()}
    return {**schema, "properties": members}


SERVER_INFO_NEEDS = {
    "title": "title",
    "description": "server description",
    "websiteUrl": "server description",
    "icons": "icons",
}


def server_info_for(version: str, identity: dict) -> dict:
    """Return `serverInfo` with the fields `version` knows."""
    return {
        field: value
        for field, value in identity.items()
        if field not in SERVER_INFO_NEEDS or has(version, SERVER_INFO_NEEDS[field])
    }


def call_result_for(version: str, result: dict) -> dict:
    """Return a tool result in the shape of `version`: blocks it knows, structure where it may be."""
    result = dict(result, content=[block_for(version, block) for block in result["content"]])
    if "structuredContent" in result:
        fits = has(version, "any structuredContent") or isinstance(result["structuredContent"], dict)
        if not (has(version, "structuredContent") and fits):
            del result["structuredContent"]
    return result


def block_for(version: str, block: dict) -> dict:
    """Return a content block as `version` can show it."""
    kind = block.get("type")
    if kind == "audio" and not has(version, "audio"):
        resource_block = {"uri": "data:" + block["mimeType"], "mimeType": block["mimeType"], "blob": block["data"]}
        return {"type": "resource", "resource": resource_block}
    if kind == "resource_link" and not has(version, "resource_link"):
        return {"type": "text", "text": "%s: %s" % (block["name"], block["uri"])}
    block = dict(block)
    if not has(version, "icons"):
        block.pop("icons", None)
    if not has(version, "item _meta"):
        block.pop("_meta", None)
        if kind == "resource":
            block["resource"] = {key: value for key, value in block["resource"].items() if key != "_meta"}
    if not has(version, "lastModified") and "annotations" in block:
        block["annotations"] = {key: value for key, value in block["annotations"].items() if key != "lastModified"}
    return block


# what a block of each kind must have: member -> type
BLOCK_MEMBERS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "image": {"data": str, "mimeType": str},
    "audio": {"data": str, "mimeType": str},
    "resource": {"resource": dict},
    "resource_link": {"uri": str, "name": str},
}


_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\Z")


def legal_block(block: Any) -> dict:
    """Return a content block of a tool as it is when clients can read it, else as text that shows what it was."""
    wanted = BLOCK_MEMBERS.get(str(block.get("type"))) if isinstance(block, dict) else None
    if wanted is None or not all(isinstance(block.get(member), kind) for member, kind in wanted.items()):
        return {"type": "text", "text": _ENCODER.encode(block)}
    if block["type"] == "resource" and not is_resource_content(block["resource"]):
        return {"type": "text", "text": _ENCODER.encode(block)}
    if "data" in wanted and not _BASE64.match(block["data"]):
        return {"type": "text", "text": _ENCODER.encode(block)}
    legal = dict(block)
    if not isinstance(legal.get("_meta", {}), dict):
        del legal["_meta"]
    if "annotations" in legal and not is_annotations(legal["annotations"]):
        del legal["annotations"]
    if "icons" in legal:
        legal["icons"] = usable_icons(legal["icons"], Source("", b"", os.devnull, []))
    for member in ("title", "description", "mimeType"):
        if not isinstance(legal.get(member, ""), str):
            del legal[member]
    if not is_number(legal.get("size", 0)):
        del legal["size"]
    return legal


def is_resource_content(value: dict) -> bool:
    """Say whether the inside of an embedded resource has a URI and either text or bytes."""
    has_body = isinstance(value.get("text"), str) != isinstance(value.get("blob"), str)
    return isinstance(value.get("uri"), str) and has_body and isinstance(value.get("mimeType", ""), str)


def is_annotations(value: Any) -> bool:
    """Say whether the annotations of a block are ones clients can read."""
    if not isinstance(value, dict):
        return False
    audience, priority = value.get("audience", []), value.get("priority", 0)
    roles = isinstance(audience, list) and all(role in ("user", "assistant") for role in audience)
    return roles and is_number(priority) and 0 <= priority <= 1 and isinstance(value.get("lastModified", ""), str)


def is_number(value: Any) -> bool:
    """Say whether a JSON value is a finite number."""
    return type(value) is int or (type(value) is float and value == value and abs(value) != float("inf"))


def envelope_for(version: str, identity: dict, cache_ms: int | None = None) -> dict:
    """Return the members every result of `version` carries besides its own."""
    if not has(version, "result envelope"):
        return {}
    members: dict = {"resultType": "complete"}
    if cache_ms is not None:
        members.update(ttlMs=cache_ms, cacheScope="private")
    members["_meta"] = {P + "serverInfo": server_info_for(version, identity)}
    return members


# ======================================================================================================================
# 13. WIRE — hold stdin and stdout, read lines, write lines.
# ======================================================================================================================
#
# First thing at start the protocol's descriptors move away from 0 and 1: stdin becomes the null device and stdout
# points at stderr, so that no print, no library and no child can put a byte between two messages.
#
# Nothing here blocks. offer() appends a line to the backlog; flush() writes as much of it as the client takes now, and
# the loop calls it again when the client takes more. So reading never waits for writing: a client that has stopped
# reading can still cancel. While the backlog is over HIGH_WATER no call is started or concluded, and notifications that
# are only informative are dropped; over twice that, reading stops too, for a client that asks and never listens.

HIGH_WATER = 24 << 20  # bytes
SAFE_WRITE = 4096  # bytes a pipe takes without blocking when it polls writable
FULL_WRITE = 1 << 16  # what we try where a write that would block returns instead


class Wire:
    """The two descriptors the client talks through."""

    def __init__(self, in_fd: int, out_fd: int, limit: int) -> None:
        self.in_fd, self.out_fd, self.limit = in_fd, out_fd, limit
        self.backlog_size = 0
        self.is_broken = False  # the client's end of stdout is gone or refuses bytes
        self.has_lost = False  # and something was still to be written
        self._backlog: deque = deque()  # lines in order; the first may be the rest of one
        self._parts: list[bytes] = []  # the line being read
        self._size = 0  # its length so far, also when its parts have been dropped
        self._can_take = select.poll()
        self._can_take.register(out_fd, select.POLLOUT)
        self._piece = SAFE_WRITE if os.get_blocking(out_fd) else FULL_WRITE

    @classmethod
    def claim(cls, limit: int) -> Wire:
        """Take stdin and stdout away from everybody else."""
        os.closerange(3, 64)  # descriptors that the client leaked into us would leak into tools
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, CHANNEL_FD, inheritable=False)  # keeps the number free: a pipe of ours must never get it
        wire = cls(_private(0), _private_output(1), limit)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)
        return wire

    # -- reading

    def read(self) -> list[bytes] | None:
        """Read what is there and return the lines it completes, None at the end of input.

        Only newlines split; an unfinished line waits for its rest, a line over the limit comes back as TOO_LONG.
        """
        try:
            chunk = os.read(self.in_fd, 1 << 18)
        except BlockingIOError:
            return []  # another holder made it non-blocking
        except OSError:
            chunk = b""  # a terminal that hung up reads as an error; for us it is the end
        if not chunk:
            return None
        if b"\n" not in chunk:
            self._collect(chunk)
            return []
        first, *others = chunk.split(b"\n")
        self._collect(first)
        lines = [self.rest(), *(line if len(line) <= self.limit else TOO_LONG for line in others[:-1])]
        self._collect(others[-1])
        return lines

    def rest(self) -> bytes:
        """Return the line collected so far and start a new one; also the last line of an input without a newline."""
        line = b"".join(self._parts) if self._size <= self.limit else TOO_LONG
        self._parts, self._size = [], 0
        return line

    def _collect(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self.limit:
            self._parts.append(part)
        else:
            self._parts.clear()  # it will be refused; only its length is still of interest

    # -- writing

    def offer(self, line: bytes, droppable: bool = False) -> None:
        """Take a line for the client; one that is only informative is dropped when the backlog is long."""
        if self.is_broken or (droppable and self.is_congested()):
            return
        self._backlog.append(line)
        self.backlog_size += len(line)

    def has_hung_up(self) -> bool:
        """Say whether the client has closed its end of stdout."""
        gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
        return any(event & gone for _, event in self._can_take.poll(0))

    def is_congested(self) -> bool:
        """Say whether the client reads so slowly that new results should wait."""
        return self.backlog_size > HIGH_WATER

    def flush(self) -> bool:
        """Write as much as the client takes now; return True when nothing is left to write."""
        while self._backlog:
            try:
                if not self._can_take.poll(0):
                    return False
            except OSError:
                return False  # no memory just now; the loop asks again
            self._write_piece()
        return True

    def _write_piece(self) -> None:
        """Write one piece of the backlog: small lines together, a large one in parts."""
        first = self._backlog.popleft()
        if len(first) < self._piece and self._backlog:
            first = self._joined(first)
        try:
            written = os.write(self.out_fd, memoryview(first)[: self._piece])
        except BlockingIOError:
            written = 0
        except OSError:
            self.is_broken = self.has_lost = True
            self._backlog.clear()
            self.backlog_size = 0
            return
        self.backlog_size -= written
        if written < len(first):
            self._backlog.appendleft(memoryview(first)[written:])


    def _joined(self, first: bytes) -> bytes:
        """Return the first lines of the backlog as one piece."""
        pieces, size = [first], len(first)
        while self._backlog and size < self._piece:
            pieces.append(self._backlog.popleft())
            size += len(pieces[-1])
        return b"".join(pieces)


TOO_LONG = b"(a line above the limit)"  # this very object stands for one; it is compared with `is`


def _private(fd: int) -> int:
    """Return a close-on-exec copy of `fd` above the numbers a child uses."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def _private_output(fd: int) -> int:
    """Return a copy of `fd` to write to; on Linux a pipe is opened anew: non-blocking for us, unchanged for others."""
    if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(fd).st_mode):
        try:
            opened = os.open("/proc/self/fd/%d" % fd, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            private = _private(opened)
            os.close(opened)
            return private
        except OSError:
            pass  # no /proc, or not ours to open: the shared one works as well, in smaller pieces
    return _private(fd)


# ======================================================================================================================
# 14. SESSIONS AND ERAS — who is asking, in which version, with which rights.
# ======================================================================================================================
#
# Two ways to talk live side by side in one process. A request whose params._meta names a protocol version is stateless:
# version, capabilities and log level come with it and are forgotten with it. `initialize` opens the one Session of the
# handshake era; it lasts until the next initialize or the end. A Context is one request of either kind, and handlers
# see nothing else: they ask it for the version, report progress, log, and return a result in the newest shape.
#
# Contexts, session and streams are touched by the serving thread only.


class Session:
    """The handshake-era client, between its `initialize` and the end."""

    def __init__(self, version: str, capabilities: dict, level: str) -> None:
        self.version, self.capabilities = version, capabilities
        self.level = level  # lowest level of notifications/message, changed by logging/setLevel
        self.is_ready = False  # notifications/initialized has arrived
        self.is_closing = False  # shutdown has been answered


class Stream:
    """One open subscriptions/listen request."""

    def __init__(self, context: Context, wanted: dict) -> None:
        self.context, self.wanted = context, wanted

    def message(self, method: str, params: dict) -> bytes:
        """Return a notification tagged with the stream it belongs to."""
        params = {"_meta": {P + "subscriptionId": self.context.id}, **params}
        return encode({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n"


class Context:
    """One request: what its handler may know and do."""

    __slots__ = (
        "server", "id", "method", "params", "version", "capabilities", "level", "token", "sink", "cancelled", "steps",
        "job", "on_stop", "has_slot", "slot_of", "_progress", "_progress_limit", "_log_limit", "_held",
    )  # fmt: skip

    def __init__(self, server: Any, request_id: Any, method: Method, params: dict, version: str) -> None:
        self.server = server  # the dispatcher
        self.id = request_id
        self.method = method
        self.params = params
        self.version = version
        self.capabilities: dict = {}  # what the client declared
        self.level = ""  # lowest level to log for this request; empty: nothing
        self.token: Any = None  # progress token, None when the client sent none
        self.sink: Callable[[bytes | None], None] | None = None  # takes the response instead of the wire (batches)
        self.cancelled = False
        self.steps: Any = None  # the handler's generator, when it has to wait for something
        self.job: Job | None = None  # the child it waits for
        self.on_stop: Callable[[], None] | None = None  # called when it is cancelled while a child runs
        self.has_slot = False
        self.slot_of = ""  # the tool whose own limit this call counts against
        self._progress: float | None = None  # the highest value reported
        self._progress_limit: RateLimit | None = None
        self._log_limit: RateLimit | None = None
        self._held: list[bytes] = []  # notifications kept back until the response (live progress switched off)

    @property
    def key(self) -> tuple:
        """What in-flight tables are keyed by: 1, 1.0 and True hash alike, the type does not."""
        return (type(self.id), self.id)

    def has(self, feature: str) -> bool:
        """Say whether the client's version has a feature."""
        return has(self.version, feature)

    def progress(self, value: float, total: float | None, message: str) -> None:
        """Report progress if the client asked for it; values that do not rise are dropped, as the protocol asks."""
        if self.token is None or (self._progress is not None and value <= self._progress):
            return
        if self._progress_limit is None:
            self._progress_limit = RateLimit(self.server.settings.max_progress_per_min)
        if not self._progress_limit.allow():
            return
        self._progress = value
        params: dict = {"progressToken": self.token, "progress": value}
        if total is not None:
            params["total"] = total
        if message and self.has("progress message"):
            params["message"] = message
        self._notify("notifications/progress", params)

    def log(self, level: str, logger: str, data: Any) -> None:
        """Send a log message on behalf of this request, if its level is wanted."""
        if not self.level or RANK[level] < RANK[self.level]:
            return
        if self._log_limit is None:
            self._log_limit = RateLimit(self.server.settings.max_logs_per_min)
        if self._log_limit.allow():
            self._notify("notifications/message", {"level": level, "logger": logger, "data": data})

    def _notify(self, method: str, params: dict) -> None:
        if self.cancelled:
            return
        line = encode({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n"
        if self.server.settings.enable_live_progress:
            self.server.announce(line)
        else:
            self._held.append(line)

    def stop_job(self) -> None:
        """End the child this request waits for, because it was cancelled."""
        if self.on_stop:
            self.on_stop()
        if self.job:
            self.job.stop("cancelled")

    def release_held(self) -> None:
        """Send what was held back; called just before the response."""
        for line in self._held:
            self.server.announce(line)
        self._held.clear()


def check_stateless(params: dict) -> str:
    """Return the version a stateless request asks for; raise the exact error for a broken envelope."""
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        raise InvalidParams("params._meta must be an object with %sprotocolVersion and %sclientCapabilities" % (P, P))
    missing = [P + name for name in ("protocolVersion", "clientCapabilities") if P + name not in meta]
    if missing:
        raise InvalidParams("params._meta is missing " + " and ".join(missing))
    version = meta[P + "protocolVersion"]
    if not isinstance(version, str) or not isinstance(meta[P + "clientCapabilities"], dict):
        raise InvalidParams("params._meta: %sprotocolVersion must be a string and clientCapabilities an object" % P)
    if meta.get(P + "logLevel", "info") not in LEVELS:
        raise InvalidParams("params._meta: %slogLevel must be one of %s" % (P, ", ".join(LEVELS)))
    if version not in STATELESS_VERSIONS:
        raise unsupported_version(version)
    return version


def unsupported_version(version: str) -> RpcError:
    """Return the error for a version that cannot be served statelessly."""
    data: dict = {"supported": list(reversed(VERSIONS)), "requested": clip(version, 64)}
    message = "Unsupported protocol version"
    if version in HANDSHAKE_VERSIONS:
        data["supported"] = list(STATELESS_VERSIONS)
        message += ": %s is reached through initialize" % version
    return RpcError(UNSUPPORTED_VERSION, message, data)


def progress_token(params: dict) -> Any:
    """Return the request's progress token, None when there is none; raise InvalidParams for one of a wrong type."""
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    if token is not None and (type(token) not in (str, int) or (type(token) is str and len(token) > 1024)):
        raise InvalidParams("params._meta.progressToken must be an integer or a string of at most 1024 characters")
    return token


# ======================================================================================================================
# 15. HANDLERS — one function per method.
# ======================================================================================================================
#
# A handler takes the Context and the params, checks them, and returns the result in the newest shape; the dispatcher
# adds what the version asks for. A Raw result is already encoded.

HANDLERS: dict[str, Callable[[Context, dict], Any]] = {}  # filled by @handles at import, never after


def handles(method: str) -> Callable:
    """Register the function below as the handler of `method`."""

    def register(function: Callable) -> Callable:
        HANDLERS[method] = function
        return function

    return register


class Raw(bytes):
    """A result that is encoded already."""


# -- lifecycle


@handles("initialize")
def initialize(ctx: Context, params: dict) -> dict:
    """Open the handshake session: agree on a version, say what is on offer."""
    for field, kind in (("protocolVersion", str), ("capabilities", dict), ("clientInfo", dict)):
        if not isinstance(params.get(field), kind):
            wanted = {"supported": list(reversed(HANDSHAKE_VERSIONS)), "requested": None}
            expected = "a string" if kind is str else "an object"
            message = "initialize: params.%s must be %s" % (field, expected)
            raise InvalidParams(message, wanted if field == "protocolVersion" else None)
    asked = params["protocolVersion"]
    version = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
    server = ctx.server
    server.session = Session(version, params["capabilities"], server.settings.log_level)
    ctx.version = version
    result = {
        "protocolVersion": version,
        "capabilities": capabilities(server),
        "serverInfo": server_info_for(version, server.identity()),
    }
    text = server.instructions()
    return {**result, "instructions": text} if text else result


def capabilities(server: Any) -> dict:
    """Return what this server offers, in every version the same."""
    offered: dict = {"logging": {}}
    if "tools" in server.families:
        offered["tools"] = {"listChanged": True}
    return offered


@handles("notifications/initialized")
@handles("initialized")
def initialized(ctx: Context, params: dict) -> None:
    """Note that the client is ready for traffic of ours."""
    if ctx.server.session:
        ctx.server.session.is_ready = True


@handles("server/discover")
def server_discover(ctx: Context, params: dict) -> dict:
    """Say which versions and capabilities there are, without touching the project's scripts."""
    server = ctx.server
    result = {
        "supportedVersions": list(reversed(VERSIONS)),
        "capabilities": capabilities(server),
        **envelope_for(ctx.version, server.identity(), cache_ms=60_000),
    }
    text = server.instructions()
    return {**result, "instructions": text} if text else result


@handles("ping")
def ping(ctx: Context, params: dict) -> Raw:
    """Answer."""
    return _EMPTY


_EMPTY = Raw(b"{}")


@handles("shutdown")
def shutdown(ctx: Context, params: dict) -> dict:
    """Refuse further work; the process ends at `exit` or after the shutdown timeout."""
    if ctx.server.session:
        ctx.server.session.is_closing = True
    ctx.server.end_in(ctx.server.settings.shutdown_timeout)
    return {}


@handles("exit")
def exit_(ctx: Context, params: dict) -> dict:
    """End the process once `shutdown` has been answered."""
    if not (ctx.server.session and ctx.server.session.is_closing):
        raise RpcError(EXIT_TOO_EARLY, "Shutdown not requested: send shutdown before exit")
    ctx.server.is_exiting = True
    return {}


@handles("notifications/cancelled")
def cancelled(ctx: Context, params: dict) -> None:
    """Stop a request; it gets no response."""
    ctx.server.cancel(params.get("requestId", params.get("id")), params.get("reason"))


# -- logging


@handles("logging/setLevel")
def logging_set_level(ctx: Context, params: dict) -> dict:
    """Set the lowest level of log messages for the session."""
    level = params.get("level")
    if level not in LEVELS:
        raise InvalidParams("Invalid log level: expected one of " + ", ".join(LEVELS))
    ctx.server.session.level = level
    return {}


# -- subscriptions


@handles("subscriptions/listen")
def subscriptions_listen(ctx: Context, params: dict) -> None:
    """Open a stream of change notifications; the acknowledgement is its first message, the result its last."""
    wanted = params.get("notifications")
    if not isinstance(wanted, dict):
        raise InvalidParams("subscriptions/listen: params.notifications must be an object")
    known = {kind.capability for kind in KINDS.values() if kind.name in ctx.server.families}
    honoured = {name: True for name in sorted(known) if wanted.get(name) is True}
    ctx.server.open_stream(Stream(ctx, honoured))


# -- tools


def fresh(server: Any, kind: str) -> Steps:
    """Return a snapshot no older than its TTL, having the clerk look at the disk if need be."""
    registry: Registry = server.registries[kind]
    if not registry.is_fresh():
        yield Errand(server.clerk, registry.refresh)
    return registry.snapshot


@handles("tools/list")
def tools_list(ctx: Context, params: dict) -> Steps:
    """Return one page of tools."""
    server = ctx.server
    snapshot = yield from fresh(server, "tools")
    offset = decode_cursor(params["cursor"], "tools", snapshot) if params.get("cursor") is not None else 0
    size = page_size(params, server.settings)
    encoded = snapshot.pages.get(ctx.version)
    if encoded is None:
        encoded = snapshot.pages[ctx.version] = [encode(tool_for(ctx.version, item)) for item in snapshot.items()]
    rest = envelope_for(ctx.version, server.identity(), cache_ms=1000)
    rest["_meta"] = {**rest.get("_meta", {}), "mcpbash/total": len(encoded)}
    if offset + size < len(encoded):
        rest["nextCursor"] = encode_cursor("tools", offset + size, snapshot.hash)
    return Raw(b'{"tools":[' + b",".join(encoded[offset : offset + size]) + b"]," + encode(rest)[1:])


def page_size(params: dict, settings: Settings) -> int:
    """Return how many items a page holds: the client's `limit` within bounds, else the default."""
    limit = params.get("limit")
    if limit is None:
        return settings.page_size
    if type(limit) is not int or limit < 1:
        raise InvalidParams("limit must be a whole number above 0")
    return min(limit, settings.page_size_max)


@handles("tools/call")
def tools_call(ctx: Context, params: dict) -> Steps:
    """Run a tool and return what came of it."""
    server = ctx.server
    name, arguments = params.get("name"), params.get("arguments")
    if not isinstance(name, str) or not name:
        raise InvalidParams("Tool name is required: params.name must be a string")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise InvalidParams("params.arguments must be an object, not " + type_name(arguments))
    tool = (yield from fresh(server, "tools")).by_name.get(name)
    if tool is None:
        raise InvalidParams("Tool '%s' not found: tools/list has the names" % clip(one_line(name), 100))
    yield from server.policy.check(tool)
    return (yield from ToolCall(ctx, tool, arguments).run())


# what an empty object looks like to a tool; many calls have no arguments and most have no _meta
_NOTHING_GIVEN = {
    name: {name + "_JSON": b"{}", flat_name: flatten({}).encode("ascii")}
    for name, flat_name in (("MCP_TOOL_ARGS", "MCP_ARGS_FLAT"), ("MCP_TOOL_META", "MCP_META_FLAT"))
}


class ToolCall:
    """One run of a tool: hand over the arguments, relay what it reports, shape what it returns."""

    def __init__(self, ctx: Context, tool: Tool, arguments: dict) -> None:
        self.ctx, self.tool, self.arguments = ctx, tool, arguments
        self.settings: Settings = ctx.server.settings
        self.failure: RpcError | None = None  # what the tool asked the call to end as

    def run(self) -> Steps:
        """Run the tool; return the result or raise RpcError. Yields the job."""
        clock = self._clock()
        try:
            files = self.ctx.server.take_files()
        except OSError as error:
            why = "the state directory cannot be written (%s); free some space" % error.strerror
            raise InternalError("Tool '%s' could not be started: %s" % (self.tool.name, why)) from None
        try:
            self.ctx.on_stop = files.note_cancelled
            outcome = yield self._job(files, clock)
            self._take_error_file(files)
        except OSError as error:
            raise self._cannot_start(error) from None
        finally:
            self.ctx.on_stop = None
            self.ctx.server.return_files(files, is_reusable=not self.tool.get("detach"))
        return self._conclude(outcome, clock)

    def _clock(self) -> Clock:
        seconds = self.tool.get("timeoutSecs") or self.settings.default_tool_timeout
        asked = self.ctx.params.get("timeoutSecs")
        if asked is not None and type(asked) in (int, float) and asked > 0:
            seconds = min(seconds, asked)  # a client may shorten, never lengthen
        extends = self.tool.get("progressExtendsTimeout", self.settings.progress_extends_timeout)
        return Clock(seconds, extends, self.tool.get("maxTimeoutSecs") or self.settings.max_timeout_secs)

    def _job(self, files: CallFiles, clock: Clock) -> Job:
        return Job(
            self.ctx.server.containment,
            [*self.tool.extra, self.tool.file],
            self._environment(files),
            clock,
            self.settings.max_tool_output_size,
            self.settings.max_tool_stderr_size,
            self._take_record,
            self.tool.get("detach", False),
        )

    def _cannot_start(self, error: OSError) -> RpcError:
        why = {
            errno.ENOENT: "its interpreter or the file itself does not exist; check the #! line",
            errno.ENOEXEC: "it has no #! line; add one such as #!/usr/bin/env bash",
            errno.EACCES: "it or its interpreter may not be executed; run: chmod +x",
            errno.EMFILE: "the server has no file descriptors left; raise the limit (ulimit -n)",
            errno.ENFILE: "the system has no file descriptors left",
            errno.EAGAIN: "no more processes may be started (ulimit -u)",
            errno.ENOMEM: "there is no memory left",
            errno.ENOSPC: "the disk is full",
            errno.E2BIG: "its environment is too large; lower MCPBASH_ENV_PAYLOAD_THRESHOLD",
        }.get(error.errno or 0, error.strerror or str(error))
        return InternalError("Tool '%s' could not be started: %s" % (self.tool.name, why))

    # -- what the tool is given

    def _environment(self, files: CallFiles) -> dict:
        meta = self.ctx.params.get("_meta")
        env = self.ctx.server.environment.copy()
        env.update(
            MCP_TOOL_NAME=self.tool.name,
            MCP_TOOL_PATH=self.tool.file,
            MCP_TOOL_ERROR_FILE=files.paths["error"],
            MCP_TOOL_RESOURCES_FILE=files.paths["resources"],
            MCP_CANCEL_FILE=files.paths["cancel"],
            MCP_PROGRESS_TOKEN="" if self.ctx.token is None else env_text(str(self.ctx.token)),
            MCP_LOG_LEVEL=self.ctx.level or "none",
        )
        for field, name in ENV_OF_FIELDS.items():
            if self.tool.get(field) is not None:
                env[name] = env_text(show_value(self.tool.get(field)))
        meta = meta if isinstance(meta, dict) else {}
        for key in TRACE_KEYS if meta else ():
            if isinstance(meta.get(key), str):
                env[key.upper()] = env_text(meta[key][:8192])
        self._hand_over(env, files, "MCP_TOOL_ARGS", "MCP_ARGS_FLAT", self.arguments)
        self._hand_over(env, files, "MCP_TOOL_META", "MCP_META_FLAT", meta)
        self._put(env, files, "MCP_TOOL_METADATA_JSON", "MCP_TOOL_METADATA_FILE", self.tool.encoded)
        return env

    def _hand_over(self, env: dict, files: CallFiles, name: str, flat_name: str, value: dict) -> None:
        if not value:
            env.update(_NOTHING_GIVEN[name])
            return
        text = encode(value)
        self._put(env, files, name + "_JSON", name + "_FILE", text)
        if len(text) <= FLAT_LIMIT:
            self._put(env, files, flat_name, flat_name + "_FILE", flatten(value).encode("utf-8", "surrogatepass"))

    def _put(self, env: dict, files: CallFiles, name: str, file_name: str, data: bytes) -> None:
        """Hand `data` over in a variable, or in a file when it is too long for one."""
        if len(data) <= self.settings.env_payload_threshold:
            env[name] = data
        else:
            env[name] = b""
            env[file_name] = files.write(file_name.lower(), data)

    # -- what the tool reports

    def _take_record(self, record: bytes) -> None:
        text = record.decode("utf-8", "replace")
        word, _, rest = text.partition("\t")
        if word == "progress":
            self._take_progress(*(rest.split("\t", 2) + ["", ""])[:3])
        elif word in ("log", "logjson"):
            self._take_log(word, *(rest.split("\t", 2) + ["", ""])[:3])
        elif word == "fail":
            self._take_failure(*(rest.split("\t", 2) + ["", ""])[:3])
        elif text.startswith("{"):
            self._take_message(text)

    def _take_progress(self, value: str, total: str, message: str) -> None:
        done, whole = parse_number(value), parse_number(total)
        if done is not None:
            self.ctx.progress(done, whole, clip(message, 4096))

    def _take_log(self, word: str, level: str, logger: str, data: str) -> None:
        level = {"warn": "warning"}.get(level.lower(), level.lower())
        is_json, value = document(data) if word == "logjson" else (False, None)
        self.ctx.log(level if level in RANK else "info", clip(logger, 256), value if is_json else clip(data, 16384))

    def _take_failure(self, code: str, data: str, message: str) -> None:
        number = int(code) if re.match(r"-?\d{1,9}\Z", code) else INTERNAL_ERROR
        has_data, value = document(data)
        self.failure = RpcError(number, clip(message, 16384) or "Tool failed", value if has_data else None)

    def _take_message(self, text: str) -> None:
        """Use the typed fields of a JSON-RPC notification as mcp-bash tools write it; anything else is dropped."""
        is_json, message = document(text)
        params = message.get("params") if is_json and isinstance(message, dict) else None
        if not isinstance(params, dict):
            return
        if message.get("method") == "notifications/progress":
            numbers = [value if is_number(value) else None for value in (params.get("progress"), params.get("total"))]
            if numbers[0] is not None:
                self.ctx.progress(numbers[0], numbers[1], clip(str(params.get("message") or ""), 4096))
        elif message.get("method") == "notifications/message" and params.get("level") in LEVELS:
            self.ctx.log(params["level"], clip(str(params.get("logger") or ""), 256), params.get("data"))

    def _take_error_file(self, files: CallFiles) -> None:
        data = files.content("error", RECORD_LIMIT)
        if not data or self.failure:
            return
        text = data.decode("utf-8", "replace")
        is_json, value = document(text)
        self.failure = as_error(value) if is_json else None
        if self.failure is None:
            self.failure = InternalError("Tool failed", clip(text, 4096))

    # -- what becomes of it

    def _conclude(self, outcome: Outcome, clock: Clock) -> dict:
        """Turn the outcome into a result: the tool's own failure first, then limits, then exit status, then output."""
        if self.failure:
            raise self._presentable(self.failure)
        if outcome.why == "shutdown":
            raise InternalError("The server is shutting down; the tool was stopped")
        if outcome.why == "unreadable":
            raise InternalError("The output of tool '%s' could not be read; the tool was stopped" % self.tool.name)
        meta = self._meta(outcome)
        if outcome.why in ("stdout", "stderr"):
            return self._too_much(outcome, meta)
        if outcome.why != "exit":
            return self._timed_out(outcome, clock, meta)
        text = outcome.stdout.decode("utf-8", "replace")
        is_json, value = document(text)
        if is_json and is_call_result(value):
            return self._own_result(value, meta)
        if outcome.exit_code:
            return self._failed(outcome, text, value if is_json else None, meta)
        result = {"content": [{"type": "text", "text": text}], "isError": False, "_meta": meta}
        return {**result, "structuredContent": value} if is_json else result

    def _own_result(self, value: dict, meta: dict) -> dict:
        """Return the result a tool printed itself: only what is the tool's to say, in blocks clients can read."""
        own = value.get("_meta")
        own = own if isinstance(own, dict) else {}
        result: dict = {
            "content": [legal_block(block) for block in value["content"]],
            "isError": bool(value["isError"]) or meta["exitCode"] != 0,
            "_meta": {**{key: item for key, item in own.items() if not key.startswith(P)}, **meta},
        }
        if value.get("structuredContent") is not None:
            result["structuredContent"] = value["structuredContent"]
        return result

    def _meta(self, outcome: Outcome) -> dict:
        meta: dict = {"exitCode": outcome.exit_code}
        if outcome.stderr and self.settings.tool_stderr_capture:
            meta["stderr"] = outcome.stderr.decode("utf-8", "replace")
        return meta

    def _presentable(self, error: RpcError) -> RpcError:
        """Return the error a tool asked for; codes that belong to the protocol are not the tool's to use there."""
        if self.ctx.version in STATELESS_VERSIONS and -32099 <= error.code <= -32000:
            return RpcError(INTERNAL_ERROR, error.message, error.data)
        return error

    def _failed(self, outcome: Outcome, text: str, value: Any, meta: dict) -> dict:
        error = as_error(value)
        if error:
            raise self._presentable(error)
        shown = text if text.strip() else "Tool failed: " + describe_end(outcome)
        if outcome.signal:
            shown = "Tool failed: %s\n%s" % (describe_end(outcome), text) if text.strip() else shown
        return error_result(shown, meta)

    def _too_much(self, outcome: Outcome, meta: dict) -> dict:
        limit = self.settings.max_tool_output_size if outcome.why == "stdout" else self.settings.max_tool_stderr_size
        name = "output" if outcome.why == "stdout" else "stderr"
        message = "Tool %s exceeded %d bytes; the tool was stopped." % (name, limit)
        head = clip_utf8(outcome.stdout, 16384).decode("utf-8", "replace")
        text = message + (" It began with:\n" + head if head else "")
        details = {"type": "output_too_large", "message": message, "limitBytes": limit}
        return error_result(text, meta, {"success": False, "error": details})

    def _timed_out(self, outcome: Outcome, clock: Clock, meta: dict) -> dict:
        seconds = format_number(clock.cap if outcome.why == "max_exceeded" else clock.seconds)
        message = {
            "fixed": "Tool timed out after %ss",
            "idle": "Tool timed out after %ss (no progress reported)",
            "max_exceeded": "Tool exceeded maximum runtime of %ss",
        }[outcome.why] % seconds
        hint = self.tool.get("timeoutHint")
        message += "\n\nSuggestion: " + hint if hint else ""
        error: dict = {"type": "timeout", "message": message, "timeoutSecs": clock.seconds, "reason": outcome.why}
        error["exitCode"] = outcome.exit_code
        if clock.extends:
            error.update(progressExtendsTimeout=True, maxTimeoutSecs=clock.cap)
        if hint:
            error["hint"] = hint
        return error_result(message, meta, {"success": False, "error": error})


def error_result(text: str, meta: dict, structure: dict | None = None) -> dict:
    """Return a tool result that tells the model what went wrong."""
    result: dict = {"content": [{"type": "text", "text": text}], "isError": True, "_meta": meta}
    return {**result, "structuredContent": structure} if structure else result


def is_call_result(value: Any) -> bool:
    """Say whether a tool printed a complete result of its own: blocks in `content`, and `isError`."""
    return isinstance(value, dict) and "isError" in value and isinstance(value.get("content"), list)


def as_error(value: Any) -> RpcError | None:
    """Return the JSON-RPC error a tool described as `{code, message, data}`, or None."""
    if isinstance(value, dict) and type(value.get("code")) is int and isinstance(value.get("message"), str):
        return RpcError(value["code"], value["message"], value.get("data"))
    return None


_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")


def parse_number(text: str) -> float | None:
    """Return the number in `text`, None when it is not one.

    >>> parse_number("40"), parse_number("0.5"), parse_number("nan"), parse_number("")
    (40, 0.5, None, None)
    """
    if not _NUMBER.match(text) or len(text) > 40:
        return None
    value = int(text) if text.lstrip("-").isdigit() else float(text)
    return value if is_number(value) else None


# ======================================================================================================================
# 16. DISPATCHER — from a line to its answer: slots, in-flight table, cancellation.
# ======================================================================================================================
#
# Threads. The serving thread does everything but wait for the disk: it reads, decides, starts tools, relays what they
# say and answers. The clerk does what may take long without being a child process: scanning a registry, writing its
# cache file, sweeping stale directories. The two meet in Errand: the clerk runs a function, the loop gets the outcome.
# Both threads are made at the start: from 3.12 on Python makes no new ones once the main script has run, and it has
# (see serve() in room 20).
#
# Straight-line code. A handler that has to wait is a generator: it yields the Job or the Errand it waits for and gets
# the outcome back, or the exception. drive() is the whole machinery: send in what happened, look at what comes out. A
# request that waits costs its generator and nothing else.
#
# Slots. tools/call needs one of MCPBASH_MAX_CONCURRENT_REQUESTS slots from its first step to its last; calls beyond
# that wait in a queue, and beyond the queue they are refused at once. A tool may have a limit of its own
# ("concurrency"); calls of other tools overtake those that wait for it. One call is started per turn of the loop, since
# starting a process takes as long as everything else together and the outcome of earlier calls should not wait for it.
#
# One answer each. A request that is not answered on the spot enters _flight; whoever takes it out owns its answer: the
# step that finishes it, or the cancel that stops it. A cancel that comes second finds nothing. The same id again while
# the first is in flight could not be answered without confusing the first; it is refused with an error that has no id.

MAX_BATCH = 1000
MAX_ID = 1024  # bytes of an id as JSON; it comes back in the answer, which must not grow by it
MAX_STREAMS = 1024


class Batch:
    """Collects the responses to a batch and sends them as one array, within the limit for a line."""

    SHORT = 512  # bytes kept for each response still to come, enough for an error

    def __init__(self, count: int, send: Callable[[bytes], None], limit: int) -> None:
        self._missing, self._send = count, send
        self._room = limit - 3 - self.SHORT * count  # bytes that long responses may share
        self._responses: list[bytes] = []

    def take(self, response: bytes | None) -> None:
        """Accept a response line, or None for a member that gets none; the last one sends the array."""
        if response is not None:
            self._responses.append(self._fitting(response.rstrip(b"\n")))
        self._missing -= 1
        if not self._missing and self._responses:
            self._send(b"[" + b",".join(self._responses) + b"]\n")

    def _fitting(self, response: bytes) -> bytes:
        excess = len(response) + 1 - self.SHORT
        if excess <= max(0, self._room):
            self._room -= max(0, excess)
            return response
        error = InternalError("Response exceeded response size limit: the batch has no room left; ask for it alone")
        return encode({"jsonrpc": "2.0", "id": decode(response).get("id"), "error": error.to_wire()})


class Server:
    """Reads messages, routes them, answers them."""

    def __init__(
        self,
        project: Project,
        settings: Settings,
        log: Log,
        containment: Containment,
        wire: Any,  # a Wire, or what a command puts in its place
        sdk: Callable[[Containment], str],  # finds or makes the SDK directory
    ) -> None:
        self.project, self.settings, self.log, self.containment, self.wire = project, settings, log, containment, wire
        self._sdk = sdk
        self.environ = dict(os.environ)  # the operator's variables without our secret
        self.families = {"lifecycle", "logging"} if settings.force_minimal else {"lifecycle", "logging", "tools"}
        self._hooks = Hooks(containment, project, settings, self.environ, log)
        if "MCPBASH_LOG_LEVEL" not in settings.given and os.path.exists(os.path.join(project.server_dir, ".debug")):
            settings.log_level = "debug"
        may_run = settings.allow_project_hooks and not settings.static_registry
        register = self._hooks.register if may_run else None
        manual = Registration(project, settings, log, register)
        self.registries = {name: Registry(kind, project, settings, log, manual) for name, kind in KINDS.items()}
        self._environment: ToolEnvironment | None = None
        self._policy: Policy | None = None
        self._identity: dict | None = None
        self.loop = Loop(self._loop_error)
        self.clerk = Clerk()
        self.session: Session | None = None
        self.is_exiting = False  # `exit` has been answered
        self._input_ended = False
        self._is_stuck = False  # the client does not take what we have written
        self._is_deaf = False  # we do not read, because the client does not either
        self._end_at = INFINITY  # when the process ends, whatever is still running
        self.last_input = time.monotonic()
        self._numbers = iter(range(1, 1 << 62))
        self._spare_files: list[CallFiles] = []  # at most as many as there are slots
        self._flight: dict[tuple, Context] = {}  # requests not answered yet, and open streams, by id and its type
        self._streams: dict[tuple, Stream] = {}
        self._waiting: deque[Context] = deque()  # calls without a slot, oldest first
        self._is_scanning = False  # the first scan is under way
        self._busy = 0  # slots taken
        self._busy_tools: dict[str, int] = {}  # how many calls of a tool hold a slot, for tools with a limit
        self._token_failures = RateLimit(settings.remote_token_max_failures_per_min)
        self._corruption = RateLimit(settings.corruption_threshold, settings.corruption_window)
        self._stray_log = RateLimit(1, 1.0)  # responses nobody asked for: one log line a second
        self._payload_log: PayloadLog | None = None
        log.forward = self.forward_log

    # -- what is made on first use, so that nothing stands before the first reply

    @property
    def environment(self) -> ToolEnvironment:
        """The environment tools get."""
        if self._environment is None:
            sdk = self._sdk(self.containment)
            about = {**self.identity(), "instructions": self.instructions()}
            self._environment = ToolEnvironment(self.project, self.settings, self.environ, about, sdk)
        return self._environment

    @property
    def policy(self) -> Policy:
        """What decides whether a tool may run."""
        if self._policy is None:
            self._policy = Policy(self.project, self.settings, self._hooks, self.environment)
        return self._policy

    def identity(self) -> dict:
        """Return what the project says about itself."""
        if self._identity is None:
            self._identity = self.project.identity(self.log, self.environ)
        return self._identity

    def instructions(self) -> str:
        """Return the project's text for the model."""
        return self.project.instructions(self.log, self.environ)

    def take_files(self) -> CallFiles:
        """Return a set of files for one call."""
        if self._spare_files:
            return self._spare_files.pop()
        while True:
            try:
                return CallFiles(self.containment.directory(), next(self._numbers))
            except FileExistsError:
                continue  # a tool has planted a file there; it is welcome to the number

    def return_files(self, files: CallFiles, is_reusable: bool) -> None:
        """Take a set of files back after its call."""
        if files.is_clean() and is_reusable:
            self._spare_files.append(files)
        else:
            files.remove()

    # -- the cycle

    def serve(self, housekeeping: Any) -> int:
        """Serve until the input ends, a shutdown is due or the client is gone; return the exit status."""
        if self.settings.debug_payloads:
            self._payload_log = PayloadLog(os.path.join(self.containment.directory(), "payload.debug.log"))
        for registry in self.registries.values():
            registry.on_change = lambda kind: self.loop.post(lambda: self.list_changed(kind))
        self.loop.watch(self.wire.in_fd, self._on_input)
        self.loop.watch(self.wire.out_fd, self._on_output, 0)
        following: Context | None = None  # the next call to start
        while not self._is_done():
            by_itself = housekeeping.due()
            self.loop.turn(0 if following else min(self._end_at, by_itself))
            self._start_waiting()
            following = self._next_waiting() if self._waiting else None
            self._write()
            if time.monotonic() >= by_itself:
                housekeeping.look(time.monotonic())
        return EXIT_BROKEN_PIPE if self.wire.has_lost else EXIT_OK

    def _is_done(self) -> bool:
        if self.is_exiting or self.wire.is_broken or time.monotonic() >= self._end_at:
            return True
        return self._input_ended and not self._flight and not self.wire.backlog_size

    def _on_input(self) -> None:
        lines = self.wire.read()
        self.last_input = time.monotonic()
        if lines is None:
            self._end_of_input()
            lines = [self.wire.rest()]
        for line in lines:
            self.receive(line)
        if self.wire.backlog_size > 2 * HIGH_WATER:
            self._is_deaf = True
            self.loop.unwatch(self.wire.in_fd)

    def _end_of_input(self) -> None:
        """Let the calls that were received come to an end, for the shutdown timeout at most."""
        self._input_ended = True
        self.loop.unwatch(self.wire.in_fd)
        self._close_streams()
        self.end_in(self.settings.shutdown_timeout)

    def end_in(self, seconds: float) -> None:
        """End the process when this time has passed."""
        self._end_at = min(self._end_at, time.monotonic() + seconds)

    def _write(self) -> None:
        """Write what there is; while something is left, the loop tells when the client takes more."""
        if not self.wire.backlog_size:
            return
        is_stuck = not self.wire.flush()
        if is_stuck != self._is_stuck:
            self._is_stuck = is_stuck
            self.loop.watch(self.wire.out_fd, self._on_output, select.POLLOUT if is_stuck else 0)
        if self._is_deaf and self.wire.backlog_size <= HIGH_WATER and not self._input_ended:
            self._is_deaf = False
            self.loop.watch(self.wire.in_fd, self._on_input)

    def _on_output(self) -> None:
        """Called when the client takes more, or has closed its end."""
        if self.wire.flush() and self.wire.has_hung_up():
            self.wire.is_broken = True

    def _loop_error(self, error: Exception) -> None:
        self.log("error", "mcp.rpc", "unexpected %s" % describe_exception(error), to_clients=False)

    # -- receiving

    def receive(self, line: bytes) -> None:
        """Answer one line, or start what will answer it."""
        if line[:3] == b"\xef\xbb\xbf":
            line = line[3:]
        line = line.strip(b" \t\r")
        if not line:
            return
        if self._payload_log:
            secret = self.settings.remote_token.encode("utf-8", "replace")
            self._payload_log.write("in", line.replace(secret, b"[redacted]") if secret else line)
        message: Any = None
        try:
            if line is TOO_LONG:
                raise RpcError(INVALID_REQUEST, "Message exceeds %d bytes" % self.settings.max_request_bytes)
            message = decode(line)
            if isinstance(message, list):
                self._receive_batch(message)
            else:
                self._receive_message(message, None)
        except RpcError as error:
            self._refuse(error, None, None)
        except BaseException as bug:  # or an exhausted machine; the next line may fare better
            incident = self._incident("a message", bug)
            if not isinstance(message, dict):
                self._refuse(incident, None, None)
            elif is_usable_id(message.get("id")) and "method" in message:
                self._flight.pop((type(message["id"]), message["id"]), None)
                self._refuse(incident, message["id"], None)

    def _receive_batch(self, messages: list) -> None:
        negotiated = self.session is not None and self.session.version == V2
        if not (negotiated or self.settings.compat_batches):
            raise RpcError(INVALID_REQUEST, "Invalid Request: batch arrays are only accepted after a %s handshake" % V2)
        if not messages or len(messages) > MAX_BATCH:
            raise RpcError(INVALID_REQUEST, "Invalid Request: a batch has 1 to %d messages" % MAX_BATCH)
        batch = Batch(len(messages), self.answer, self.settings.max_response_bytes) if negotiated else None
        for message in messages:
            self._receive_member(message, batch)

    def _receive_member(self, message: Any, batch: Batch | None) -> None:
        try:
            if isinstance(message, dict) and message.get("method") == "initialize":
                raise RpcError(INVALID_REQUEST, "Invalid Request: initialize must not be part of a batch")
            self._receive_message(message, batch)
        except RpcError as error:
            number = message.get("id") if isinstance(message, dict) else None
            is_free = is_usable_id(number) and (type(number), number) not in self._flight
            self._refuse(error, number if is_free else None, batch)

    def _receive_message(self, message: Any, batch: Batch | None) -> None:
        """Sort a message into response, notification or request. Raises RpcError only when no id is usable."""
        if not isinstance(message, dict):
            raise RpcError(INVALID_REQUEST, "Invalid Request: expected a JSON object")
        method, request_id = message.get("method"), message.get("id")
        if "id" in message and not is_usable_id(request_id):
            raise RpcError(INVALID_REQUEST, "Invalid Request: id must be a string or an integer, not too long")
        has_outcome = "result" in message or "error" in message
        if "method" not in message and has_outcome:
            self._stray_response()
            return batch.take(None) if batch else None
        if message.get("jsonrpc") != "2.0" or not isinstance(method, str) or has_outcome:
            problem = RpcError(INVALID_REQUEST, 'Invalid Request: expected "jsonrpc":"2.0" and a string "method"')
            return self._refuse(problem, request_id, batch)
        if "id" in message:
            return self._receive_request(request_id, method, message.get("params"), batch)
        self._receive_notification(method, message.get("params"))
        if batch:
            batch.take(None)

    def _stray_response(self) -> None:
        if self._stray_log.allow():
            self.log("debug", "mcp.rpc", "a response arrived that nobody asked for; it is ignored")

    def _receive_notification(self, name: str, params: Any) -> None:
        """Act on a notification we know; none is ever answered, not even a wrong one."""
        if name not in (*NOTIFICATIONS, "exit") or not (params is None or isinstance(params, dict)):
            return
        try:
            HANDLERS[name](Context(self, None, METHODS[name], params or {}, VERSIONS[-1]), params or {})
        except RpcError as error:
            self.log("debug", "mcp.rpc", "%s: %s" % (name, error.message))

    def _receive_request(self, request_id: Any, name: str, params: Any, batch: Batch | None) -> None:
        if (type(request_id), request_id) in self._flight:
            raise RpcError(INVALID_REQUEST, "Invalid Request: a request with this id is still in flight")
        try:
            if params is None:
                params = {}
            elif not isinstance(params, dict):
                raise InvalidParams("params must be an object")
            self._check_token(params)
            ctx = self._admit(request_id, name, params)
        except RpcError as error:
            return self._refuse(error, request_id, batch)
        ctx.sink = batch.take if batch else None
        if ctx.method.lane == "slot":
            self._queue(ctx)
        else:
            self.drive(ctx)

    # -- admitting: which era, which version, which rights

    def _admit(self, request_id: Any, name: str, params: dict) -> Context:
        row = METHODS.get(name)
        meta = params.get("_meta")
        if (isinstance(meta, dict) and P + "protocolVersion" in meta) or (row and row.since == V5):
            return self._admit_stateless(request_id, name, row, params)
        session = self.session
        if row and name in ("initialize", "ping"):
            return Context(self, request_id, row, params, session.version if session else V4)
        if session is None:
            raise InvalidParams("Neither initialize nor params._meta[%sprotocolVersion] was seen: send one of them" % P)
        return self._admit_session(request_id, name, row, params, session)

    def _admit_stateless(self, request_id: Any, name: str, row: Method | None, params: dict) -> Context:
        version = check_stateless(params)
        token = progress_token(params)
        row = self._served(row, name, version)
        ctx = Context(self, request_id, row, params, version)
        ctx.capabilities = params["_meta"][P + "clientCapabilities"]
        ctx.level = params["_meta"].get(P + "logLevel", "")
        ctx.token = token
        return ctx

    def _admit_session(self, request_id: Any, name: str, row: Method | None, params: dict, session: Session) -> Context:
        row = self._served(row, name, session.version)
        if session.is_closing and name not in ("exit", "shutdown"):
            raise RpcError(SHUTTING_DOWN, "Server shutting down")
        if not session.is_ready and name not in ("exit", "shutdown"):
            raise RpcError(NOT_INITIALIZED, "Server not initialized: send notifications/initialized first")
        ctx = Context(self, request_id, row, params, session.version)
        ctx.capabilities, ctx.level, ctx.token = session.capabilities, session.level, progress_token(params)
        return ctx

    def _served(self, row: Method | None, name: str, version: str) -> Method:
        """Return the method's row when this version has it and it is switched on."""
        if row is None or not in_range(version, row.since, row.until) or name in NOTIFICATIONS:
            raise MethodNotFound(name)
        if row.family not in self.families:
            raise MethodNotFound(name, "%s capability unavailable in minimal mode" % row.family.capitalize())
        return row

    def _check_token(self, params: dict) -> None:
        """Require the shared secret when there is one, and take it out of params before anybody else sees it."""
        secret = self.settings.remote_token
        if not secret:
            return
        import hmac

        meta = params.get("_meta")
        given = ""
        if isinstance(meta, dict):
            keys = (self.settings.remote_token_key, self.settings.remote_token_fallback_key)
            found = [meta.pop(key, None) for key in keys]
            given = next((value for value in found if isinstance(value, str)), "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode("utf-8", "replace")):
            throttled = "" if self._token_failures.allow() else " (throttled)"
            raise InvalidParams("Remote token missing or invalid" + throttled)

    # -- slots

    def _queue(self, ctx: Context) -> None:
        """Let a call wait for a slot, unless too many do already."""
        room = self.settings.max_concurrent_requests - self._busy + self.settings.max_queued_requests
        if len(self._waiting) >= max(0, room):
            busy = "Server busy: %d calls run and %d wait; try again later" % (self._busy, len(self._waiting))
            return self._refuse(InternalError(busy), ctx.id, None, ctx.sink)
        if ctx.token is not None and self._has_token(ctx.token):
            ctx.token = None  # the token of a call in flight cannot serve a second one
        self._flight[ctx.key] = ctx
        self._waiting.append(ctx)
        registry = self.registries["tools"]
        if registry.snapshot is None and not self._is_scanning:
            self._is_scanning = True
            Errand(self.clerk, registry.refresh).begin(self.loop, self._note_scanned)

    def _has_token(self, token: Any) -> bool:
        return any(ctx.token == token and type(ctx.token) is type(token) for ctx in self._flight.values())

    def _note_scanned(self, value: Any, error: BaseException | None) -> None:
        self._is_scanning = False  # an error is met again, and reported, by the call that asks for the snapshot

    def _next_waiting(self) -> Context | None:
        """Return the first waiting call that may start now; none does before the tools and their limits are known."""
        if self._busy >= self.settings.max_concurrent_requests or self.wire.is_congested() or self._is_scanning:
            return None
        for ctx in self._waiting:
            limit = self._limit_of(ctx)
            if not limit or self._busy_tools.get(ctx.params["name"], 0) < limit:
                return ctx
        return None

    def _limit_of(self, ctx: Context) -> int:
        """Return how many calls of the requested tool may run at once; 0: no limit of its own."""
        name, snapshot = ctx.params.get("name"), self.registries["tools"].snapshot
        tool = snapshot.by_name.get(name) if snapshot and isinstance(name, str) else None
        return tool.get("concurrency", 0) if tool else 0

    def _start_waiting(self) -> None:
        ctx = self._next_waiting() if self._waiting else None
        if ctx is None:
            return
        self._waiting.remove(ctx)
        self._busy += 1
        if self._limit_of(ctx):
            ctx.slot_of = ctx.params["name"]
            self._busy_tools[ctx.slot_of] = self._busy_tools.get(ctx.slot_of, 0) + 1
        ctx.has_slot = True
        self.drive(ctx)

    def _free_slot(self, ctx: Context) -> None:
        if ctx.has_slot:
            ctx.has_slot = False
            self._busy -= 1
            if ctx.slot_of:
                self._busy_tools[ctx.slot_of] -= 1

    # -- performing

    def drive(self, ctx: Context, value: Any = None, error: BaseException | None = None) -> None:
        """Take a request one step further; the one place where any exception becomes an error for the client."""
        try:
            wanted = self._step(ctx, value, error)
            if wanted is not None:
                self._flight.setdefault(ctx.key, ctx)
                ctx.job = wanted if isinstance(wanted, Job) else None
                return self._begin(ctx, wanted)
            line = None  # a stream: answered when it ends
        except StopIteration as finished:
            line = self._final_line(ctx, finished.value)
        except Cancelled:
            line = None
        except RpcError as failure:
            line = self._error_line(ctx.id, failure)
        except BaseException as bug:  # or an exhausted machine: the client gets an answer, we get the details
            line = self._error_line(ctx.id, self._incident(ctx.method.name, bug))
        self._free_slot(ctx)
        ctx.steps = ctx.job = ctx.on_stop = None
        if line is not None and not ctx.cancelled:
            self._flight.pop(ctx.key, None)
            ctx.release_held()
            (ctx.sink or self.answer)(line)

    def _step(self, ctx: Context, value: Any, error: BaseException | None) -> Any:
        """Run the handler up to its next wait; raises StopIteration with the result when there is none."""
        if ctx.steps is None:
            result = HANDLERS[ctx.method.name](ctx, ctx.params)
            if not hasattr(result, "send"):
                if result is None:
                    return None
                raise StopIteration(result)
            ctx.steps = result
        if ctx.cancelled:
            ctx.steps.close()  # runs its `finally` clauses
            raise Cancelled
        return ctx.steps.throw(error) if error is not None else ctx.steps.send(value)

    def _begin(self, ctx: Context, wanted: Any) -> None:
        try:
            wanted.begin(self.loop, lambda value, error=None: self.drive(ctx, value, error))
        except (OSError, RpcError) as error:  # the handler knows what it wanted and says so better
            self.drive(ctx, None, error)

    def _final_line(self, ctx: Context, result: Any) -> bytes:
        try:
            return self._response(ctx, result)
        except RpcError as error:
            return self._error_line(ctx.id, error)
        except BaseException as bug:  # most likely no memory for a large result; an error is small
            return self._error_line(ctx.id, self._incident(ctx.method.name, bug))

    def _incident(self, where: str, error: BaseException) -> InternalError:
        number = os.urandom(4).hex()
        what = "incident %s in %s: %s" % (number, where, describe_exception(error))
        self.log("error", "mcp.rpc", what, to_clients=False)
        return InternalError("Internal error (incident %s; the server's log has the details)" % number)

    def _response(self, ctx: Context, result: Any) -> bytes:
        if not isinstance(result, Raw):
            if ctx.method.name == "tools/call":
                result = self._with_envelope(ctx, call_result_for(ctx.version, result))
            try:
                result = encode(result)
            except (ValueError, TypeError, RecursionError) as error:
                raise self._corrupted(ctx, error) from None
        line = self._result_line(ctx, result)
        return line if len(line) <= self.settings.max_response_bytes else self._oversize(ctx, len(line))

    @staticmethod
    def _result_line(ctx: Context, result: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (encode(ctx.id), result)

    def _with_envelope(self, ctx: Context, result: dict) -> dict:
        envelope = envelope_for(ctx.version, self.identity())
        meta = {**envelope.pop("_meta", {}), **result.get("_meta", {})}
        return {**envelope, **result, "_meta": meta}

    def _corrupted(self, ctx: Context, error: Exception) -> RpcError:
        """Count an answer that cannot be one line of JSON; too many in a row and serving on would only do harm."""
        self.log("error", "mcp.rpc", "the answer to %s cannot be written as JSON (%s)" % (ctx.method.name, error))
        if self._corruption.reached() and not self.settings.allow_corrupt_stdout:
            self.log("critical", "mcp.rpc", "too many unwritable answers; exiting (status %d)" % EXIT_CORRUPT)
            self.containment.leave(EXIT_CORRUPT)
        return InternalError("The answer could not be written as JSON")

    def _oversize(self, ctx: Context, size: int) -> bytes:
        limit = self.settings.max_response_bytes
        text = "It would be %d bytes; clients accept %d at most. Return less, or write a file." % (size, limit)
        if ctx.method.name != "tools/call":
            return self._error_line(ctx.id, InternalError("Response exceeded response size limit. " + text))
        details = {"type": "output_too_large", "message": text, "limitBytes": limit}
        structure = {"success": False, "error": details}
        result = error_result("Tool output exceeded the response size. " + text, {}, structure)
        return self._result_line(ctx, encode(self._with_envelope(ctx, call_result_for(ctx.version, result))))

    def _error_line(self, request_id: Any, error: RpcError) -> bytes:
        message: dict = {"jsonrpc": "2.0", "id": request_id, "error": error.to_wire()}
        if request_id is None:
            del message["id"]  # the protocol has no null ids
        try:
            line = encode(message) + b"\n"
        except ValueError:
            line = b""  # data a tool supplied cannot be written as JSON
        if not line or len(line) > self.settings.max_response_bytes:
            message["error"] = {"code": error.code, "message": clip(error.message, 300)}
            line = encode(message) + b"\n"
        return line

    def _refuse(self, error: RpcError, request_id: Any, batch: Batch | None, sink: Any = None) -> None:
        sink = sink or (batch.take if batch else self.answer)
        sink(self._error_line(request_id, error))

    def answer(self, line: bytes) -> None:
        """Give the client a line it must get."""
        if self._payload_log:
            self._payload_log.write("out", line)
        self.wire.offer(line)

    def announce(self, line: bytes) -> None:
        """Give the client a line it can do without when it has stopped reading."""
        if self._payload_log:
            self._payload_log.write("out", line)
        self.wire.offer(line, droppable=True)

    # -- cancelling

    def cancel(self, request_id: Any, reason: Any) -> None:
        """Stop the request with exactly this id; unknown and finished ones are ignored, as the protocol asks."""
        key = (type(request_id), request_id)
        ctx = self._flight.pop(key, None) if type(request_id) in (int, str) else None
        if ctx is None:
            return
        ctx.cancelled = True
        self._streams.pop(key, None)
        if ctx.job:
            ctx.stop_job()
        elif ctx in self._waiting:
            self._waiting.remove(ctx)
        if ctx.sink:
            ctx.sink(None)
        self.log("debug", "mcp.rpc", "cancelled: %s" % clip(str(reason or "no reason given"), 200))

    # -- streams and notifications of our own

    def open_stream(self, stream: Stream) -> None:
        """Acknowledge a subscription and keep it until it is cancelled or the server ends."""
        if len(self._streams) >= MAX_STREAMS:
            raise InternalError("Too many open subscriptions; close one first")
        if stream.context.sink:
            stream.context.sink(None)  # the others in the batch do not wait for a subscription to end
            stream.context.sink = None
        self._flight[stream.context.key] = stream.context
        self._streams[stream.context.key] = stream
        self.answer(stream.message("notifications/subscriptions/acknowledged", {"notifications": stream.wanted}))

    def _close_streams(self) -> None:
        for key, stream in list(self._streams.items()):
            ctx = stream.context
            envelope = envelope_for(ctx.version, self.identity())
            envelope["_meta"][P + "subscriptionId"] = ctx.id
            self.answer(self._result_line(ctx, encode(envelope)))
            del self._streams[key], self._flight[key]

    def is_watched(self) -> bool:
        """Say whether anybody would hear of a changed list."""
        return bool(self._streams) or self._has_live_session()

    def _has_live_session(self) -> bool:
        return self.session is not None and self.session.is_ready and not self.session.is_closing

    def list_changed(self, kind: Kind) -> None:
        """Tell everybody who wants to know that a list has changed."""
        if self._has_live_session():
            self.announce(encode({"jsonrpc": "2.0", "method": kind.notification}) + b"\n")
        for stream in self._streams.values():
            if stream.wanted.get(kind.capability):
                self.announce(stream.message(kind.notification, {}))

    def forward_log(self, level: str, logger: str, text: str) -> None:
        """Send a log record of the server's own to the handshake session; called from both threads."""
        session = self.session
        text = text.replace(self.project.root + "/", "").replace(self.project.root, ".")  # no places on this machine
        if session and session.is_ready and RANK[level] >= RANK[session.level]:
            params = {"level": level, "logger": logger, "data": text}
            line = encode({"jsonrpc": "2.0", "method": "notifications/message", "params": params}) + b"\n"
            self.loop.post(lambda: self.announce(line))

    def has_work(self) -> bool:
        """Say whether requests are in flight, streams aside."""
        return len(self._flight) > len(self._streams)

    def leave(self, code: int, grace: float) -> None:
        """Ask running tools to end, give them a moment, answer what is still open, end the process."""
        deadline = time.monotonic() + grace
        for job in list(self.loop.jobs):
            job.stop("shutdown")
        while self.loop.jobs and time.monotonic() < deadline:
            self.loop.turn(deadline)
        for ctx in [ctx for ctx in self._flight.values() if ctx.key not in self._streams]:
            self._refuse(InternalError("The server is shutting down"), ctx.id, None, ctx.sink)
        self.wire.flush()
        self.containment.leave(code)


def is_usable_id(value: Any) -> bool:
    """Say whether a request id is one that can be sent back."""
    return type(value) in (int, str) and len(encode(value)) <= MAX_ID


def describe_exception(error: BaseException) -> str:
    """Return an exception on one line with the places it passed, for the log only. Needs nothing from the disk."""
    places, step = [], error.__traceback__
    while step:
        places.append("%s:%d" % (step.tb_frame.f_code.co_name, step.tb_lineno))
        step = step.tb_next
    return "%s: %s (%s)" % (type(error).__name__, error, " < ".join(reversed(places)))


class PayloadLog:
    """Every message, redacted, for MCPBASH_DEBUG_PAYLOADS; stops growing at 10 MiB."""

    LIMIT = 10 << 20

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = 0

    def write(self, direction: str, line: bytes) -> None:
        """Append one message."""
        if self._size > self.LIMIT:
            return
        is_json, value = document(line.decode("utf-8", "replace"))
        text = _ENCODER.encode(redact(value)) if is_json else one_line(repr(line[:200]))
        method = value.get("method", "response") if isinstance(value, dict) else "-"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        status = "ok" if is_json else "bad"
        data = "%s|%s|%s|%s|%s\n" % (stamp, direction, clip(one_line(str(method)), 80), status, text)
        try:
            self._size += os.write(self._fd, data.encode("utf-8", "backslashreplace"))
        except OSError:
            self._size = self.LIMIT + 1  # the disk is full; debugging must not disturb the service


# ======================================================================================================================
# 17. HOUSEKEEPING — everything that happens by itself.
# ======================================================================================================================

LAST_GRACE = 0.5  # seconds between TERM and KILL for tools when the server itself must end soon
WATCH_INTERVAL = 0.5  # seconds between looks at the registries while somebody wants list_changed
WATCH_SHARE = 100  # and never more than a hundredth of a core, however large the project
SETTLE_AFTER = 0.2  # seconds after the start, when the first answers are out
SWEEP_AFTER = 2.0  # stale state directories can wait


def give_memory_back() -> None:
    """Return to the system what compiling this file needed: some 9 MiB that would stay unused to the end."""
    call_libc("malloc_trim", 0)


class Housekeeping:
    """Watches for the client's death, signals, changed lists and idleness."""

    def __init__(self, server: Server, parent_fd: int, signal_fd: int) -> None:
        self._server, self._parent_fd, self._signal_fd = server, parent_fd, signal_fd
        now = time.monotonic()
        self._settle_at, self._sweep_at, self._watch_at = now + SETTLE_AFTER, now + SWEEP_AFTER, now + WATCH_INTERVAL
        self._parent_check_at = now + server.settings.orphan_check_interval
        self._is_watching = False  # the clerk is looking at the registries right now
        server.loop.watch(signal_fd, self._on_signal)
        if parent_fd >= 0:
            server.loop.watch(parent_fd, lambda: self._leave("the process that started the server is gone; exiting"))
        for registry in server.registries.values():
            registry.on_unsaved = self._saver(registry)

    def _saver(self, registry: Registry) -> Callable[[], None]:
        return lambda: self._server.clerk.put(self._guarded(registry.save))

    def _on_signal(self) -> None:
        self._server.leave(128 + os.read(self._signal_fd, 1)[0], LAST_GRACE)

    def due(self) -> float:
        """Return when look() has something to do."""
        due = min(self._settle_at, self._sweep_at, self._idle_at(), self._parent_check_at)
        return min(due, self._watch_at) if self._server.is_watched() and not self._is_watching else due

    def _idle_at(self) -> float:
        settings = self._server.settings
        if not settings.idle_timeout or not settings.idle_timeout_enabled:
            return INFINITY
        return self._server.last_input + settings.idle_timeout

    def look(self, now: float) -> None:
        """Do what is due."""
        server = self._server
        if now >= self._settle_at:
            self._settle_at = INFINITY
            server.clerk.put(give_memory_back)
        if now >= self._sweep_at:
            self._sweep_at = INFINITY
            server.clerk.put(self._guarded(server.containment.sweep_stale))
        if now >= self._parent_check_at:
            self._check_parent(now)
        if now >= self._idle_at():
            self._check_idle(now)
        if server.is_watched() and not self._is_watching and now >= self._watch_at:
            self._is_watching = True
            server.clerk.put(self._guarded(self._watch))

    def _guarded(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return `function` for the clerk: whatever it raises is logged, the clerk goes on."""

        def call() -> None:
            try:
                function()
            except BaseException as error:  # the clerk has more to do than this
                self._server.log("error", "mcp.lifecycle", "housekeeping: " + describe_exception(error))

        return call

    def _watch(self) -> None:
        """Look for changed lists, in the clerk's thread."""
        cost = 0.0
        try:
            for registry in self._server.registries.values():
                try:
                    registry.refresh(force=True)
                except RpcError:
                    pass  # a broken registration; it has been logged, and whoever lists is told
                cost += registry.cost
        finally:
            self._watch_at = time.monotonic() + max(WATCH_INTERVAL, WATCH_SHARE * cost)
            self._is_watching = False

    def _check_idle(self, now: float) -> None:
        if self._server.has_work():
            self._server.last_input = now  # a client that waits for an answer is not idle
        else:
            seconds = format_number(self._server.settings.idle_timeout)
            self._leave("idle timeout after %ss with no client activity; exiting" % seconds)

    def _check_parent(self, now: float) -> None:
        """Where there is no descriptor for the client's process, ask whether it still exists."""
        settings, parent = self._server.settings, self._server.containment.parent
        self._parent_check_at = INFINITY
        if self._parent_fd >= 0 or not settings.orphan_check_enabled or parent <= 1:
            return
        self._parent_check_at = now + settings.orphan_check_interval
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            self._leave("the process that started the server is gone; exiting")
        except PermissionError:
            pass  # it lives, as another user

    def _leave(self, note: str) -> None:
        self._server.log("warning", "mcp.lifecycle", note)
        self._server.containment.leave(EXIT_OK)


# ======================================================================================================================
# 18. SUPPLIES — which project, which SDK; both built in, for a file that travels alone.
# ======================================================================================================================
#
# Tools find the SDK in MCP_SDK. Where the sdk directory lies beside this file, that is it. Otherwise the copies below
# are written into the state directory by the first call. They are the files of sdk/, word for word;
# `python3 tests/embed.py` renews them and tests/test_shape.py fails when they differ.

GETTING_STARTED = {
    "server.d/server.meta.json": """{"name": "mcp-bash", "title": "Getting started with mcp_bash"}
""",
    "tools/getting_started/tool.meta.json": """{
  "name": "getting_started",
  "description": "Explain how to turn a directory of scripts into tools with mcp_bash",
  "timeoutSecs": 5
}
""",
    "tools/getting_started/tool.sh": """#!/bin/sh
cat <<'TEXT'
No project is configured yet. To make one:

1. mkdir -p my-project/tools
2. Put an executable script into it, for example my-project/tools/hello.sh:
     #!/bin/sh
     # mcp: {"description": "Say hello"}
     echo "Hello from a script"
3. chmod +x my-project/tools/hello.sh
4. In the MCP client's configuration, start the server with
     python3 mcp_bash.py --project-root /path/to/my-project

Every executable script below tools/ is a tool. NAME.meta.json beside it describes its arguments.
TEXT
""",
}

# embedded files: begin
EMBEDDED: dict[str, str] = {
    "sdk/tool-sdk.sh": r'''# shellcheck shell=bash
# tool-sdk.sh: the name tools written for mcp-bash use. All is in tool_sdk.sh; this also sets their shell options.
# shellcheck source=sdk/tool_sdk.sh
source "${BASH_SOURCE[0]%/*}/tool_sdk.sh"
set -euo pipefail
''',
    "sdk/tool_sdk.py": r'''"""Helpers for tools written in Python (3.9 or newer). No dependencies, cheap to import.

Two lines make them available; the rest is a function whose parameters are the tool's arguments::

    import os, sys; sys.path.insert(0, os.environ["MCP_SDK"])
    import tool_sdk as mcp

    @mcp.main
    def greet(name: str, count: int = 1):
        mcp.progress(1, 2, "half way")
        mcp.log.info("greeting", logger="greet")
        return {"greeting": f"hello {name}", "count": count}

What the function returns is the result: a string is text, anything JSON can express is structured content, a block from
`text`, `image`, `audio` or `link` (or a list of them) is content. Returning None makes what it printed the result; any
other value sends what it printed to stderr. An exception is an error result the model can read; `fail` is an error of
the protocol. A tool can also be written without `main`: call `arg`, `result`, `error` and `fail` directly.

Everything works when the tool is tried by hand, too: without a server, logs go to stderr and progress goes nowhere.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    JsonObject = dict[str, Any]
else:
    JsonObject = dict

__all__ = [
    "arg", "args", "audio", "cancelled", "error", "fail", "image", "is_cancelled", "link", "log", "main", "meta",
    "progress", "result", "run", "text",
]  # fmt: skip

INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

# What an exception is called in an error result, the most specific class first.
ERROR_TYPES = (
    (FileNotFoundError, "not_found"),
    (PermissionError, "permission_denied"),
    (TimeoutError, "timeout"),
    (ConnectionError, "network_error"),
    (ValueError, "validation_error"),
    (Exception, "internal_error"),
)

# MIME types that Python's mimetypes would need a file and several milliseconds for.
MEDIA_TYPES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
    ".svg": "image/svg+xml", ".bmp": "image/bmp", ".wav": "audio/wav", ".mp3": "audio/mpeg", ".ogg": "audio/ogg",
    ".oga": "audio/ogg", ".flac": "audio/flac", ".m4a": "audio/mp4",
}  # fmt: skip

_RECORD_LIMIT = 60_000  # bytes of free text in one record; the server drops records above 64 KiB
_MISSING: Any = object()
_documents: dict[str, Any] = {}  # parsed JSON, keyed by the environment variable it came from
_answered = False  # whether a result has been printed


class Block(JsonObject):
    """One piece of content of a result."""


# --- Arguments ---


def _document(name: str) -> Any:
    """Return the JSON that the variables NAME_FILE or NAME_JSON hold; an empty object when there is none."""
    if name not in _documents:
        import json

        path = os.environ.get(name + "_FILE", "")
        source = os.environ.get(name + "_JSON", "")
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                source = file.read()
        try:
            _documents[name] = json.loads(source or "{}")
        except ValueError as problem:
            fail(f"{name}_JSON is not valid JSON: {problem}", INVALID_PARAMS)
    return _documents[name]


def args() -> JsonObject:
    """Return all arguments of the call."""
    found: JsonObject = _document("MCP_TOOL_ARGS")
    return found


def meta() -> JsonObject:
    """Return the `_meta` of the request."""
    found: JsonObject = _document("MCP_TOOL_META")
    return found


def arg(path: str, default: Any = _MISSING) -> Any:
    """Return the argument at `path`: a name, or steps as in `.files[0].name` and `["a name"]`.

    An argument that is absent or null is `default`; without a default the call fails with "invalid params".
    """
    found: Any = args()
    for step in [path] if isinstance(found, dict) and path in found else _steps(path):
        found = _member(found, step)
    if found is None and default is _MISSING:
        fail(f"{path} is required", INVALID_PARAMS)
    return default if found is None else found


def _member(parent: Any, step: str | int) -> Any:
    """Return one member of an object or array; None when it has no such member or is neither."""
    if isinstance(parent, list) and isinstance(step, int) and -len(parent) <= step < len(parent):
        return parent[step]
    if isinstance(parent, dict) and isinstance(step, str):
        return parent.get(step)
    return None


def _steps(path: str) -> list[str | int]:
    """Take a path apart.

    >>> _steps('.a.b[0]["x y"]')
    ['a', 'b', 0, 'x y']
    """
    import json
    import re

    pattern = re.compile(r'\.?\[\s*(?:(-?\d+)|("(?:[^"\\]|\\.)*"))\s*\]|\.?("(?:[^"\\]|\\.)*")|(?:^|\.)([^.\[\]"]+)')
    steps: list[str | int] = []
    at = 1 if path == "." else 0
    while at < len(path):
        match = pattern.match(path, at)
        if not match:
            raise ValueError(f'"{path}" is not a path; expected a name or steps such as .files[0]["a name"]')
        index, bracketed, quoted, name = match.groups()
        string = bracketed or quoted
        steps.append(int(index) if index else json.loads(string) if string else name)
        at = match.end()
    return steps


# --- Live ---


def _send(*fields: str) -> bool:
    """Write one record to the channel in one go. False when there is no channel."""
    channel = os.environ.get("MCP_CHANNEL_FD", "")
    if not channel.isdigit():
        return False
    free = fields[-1].replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(free) > _RECORD_LIMIT:
        free = free[:_RECORD_LIMIT] + b" [cut]"
    head = "".join(field.replace("\t", " ").replace("\0", " ") + "\t" for field in fields[:-1])
    record = head.encode("utf-8", "replace") + free + b"\0"
    try:
        while record:
            record = record[os.write(int(channel), record) :]
    except OSError:
        return False  # the server has gone or the tool closed the channel: nobody is listening
    return True


def progress(done: float, total: float | None = None, message: str = "") -> None:
    """Report progress: `done` of `total`, with a message for people."""
    _send("progress", _number(done), "" if total is None else _number(total), str(message))


def _number(value: float) -> str:
    """Write a number as JSON does; anything that is not finite is 0."""
    if value != value or value in (float("inf"), float("-inf")):
        return "0"
    return repr(int(value)) if value == int(value) else repr(float(value))


class Log:
    """Send log messages: `log.info("text")`, or `log("info", {"any": "JSON"}, logger="name")`."""

    def __call__(self, level: str, message: Any, logger: str = "") -> None:
        """Send `message` at `level`; a string is sent as text, anything else as JSON."""
        level = {"warn": "warning"}.get(level.lower(), level.lower())
        if level not in LEVELS:
            raise ValueError(f'"{level}" is not a log level; expected one of {", ".join(LEVELS)}')
        if not self.wants(level):
            return
        logger = logger or os.environ.get("MCP_TOOL_NAME", "") or "tool"
        kind, body = ("log", message) if isinstance(message, str) else ("logjson", _dumps(message))
        if not _send(kind, level, logger, body):
            print(f"[{level}] {logger}: {body}", file=sys.stderr)

    def wants(self, level: str) -> bool:
        """Tell whether anybody listens to `level`; ask before building an expensive message."""
        lowest = os.environ.get("MCP_LOG_LEVEL", "debug")
        if lowest == "none":
            return False
        return lowest not in LEVELS or LEVELS.index(level) >= LEVELS.index(lowest)

    def debug(self, message: Any, logger: str = "") -> None:
        """Send a debug message."""
        self("debug", message, logger)

    def info(self, message: Any, logger: str = "") -> None:
        """Send an info message."""
        self("info", message, logger)

    def notice(self, message: Any, logger: str = "") -> None:
        """Send a notice."""
        self("notice", message, logger)

    def warning(self, message: Any, logger: str = "") -> None:
        """Send a warning."""
        self("warning", message, logger)

    def error(self, message: Any, logger: str = "") -> None:
        """Send an error message. (It does not end the call: see `error` and `fail`.)"""
        self("error", message, logger)

    def critical(self, message: Any, logger: str = "") -> None:
        """Send a critical message."""
        self("critical", message, logger)


log = Log()


def cancelled() -> bool:
    """Tell whether the client has cancelled this call."""
    path = os.environ.get("MCP_CANCEL_FILE", "")
    return bool(path) and os.path.exists(path)


is_cancelled = cancelled

# --- Results ---


def _plain(value: Any) -> Any:
    """Express what JSON does not know: paths, dates, sets."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be expressed as JSON")


def _dumps(value: Any, ascii_only: bool = True) -> str:
    import json

    return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"), default=_plain)


def _answer(message: JsonObject) -> None:
    """Print a result on the real stdout: `run` has put something else in its place."""
    global _answered
    line = _dumps(message) + "\n"
    stream = sys.__stdout__
    if stream is not None:
        stream.write(line)
        stream.flush()
    _answered = True


def text(value: str) -> Block:
    """Make a block of text."""
    return Block(type="text", text=value)


def image(source: str | os.PathLike[str] | bytes, mime: str | None = None) -> Block:
    """Make a block that shows an image, from a file or from bytes."""
    return _media("image", source, mime)


def audio(source: str | os.PathLike[str] | bytes, mime: str | None = None) -> Block:
    """Make a block that plays a sound, from a file or from bytes."""
    return _media("audio", source, mime)


def _media(kind: str, source: str | os.PathLike[str] | bytes, mime: str | None) -> Block:
    from base64 import b64encode

    name = "the bytes" if isinstance(source, bytes) else os.fspath(source)
    mime = mime or MEDIA_TYPES.get(os.path.splitext(name)[1].lower(), "")
    if not mime.startswith(kind + "/"):
        raise ValueError(f'the type of {name} is "{mime or "unknown"}"; expected {kind}/..., say it with mime=')
    if isinstance(source, bytes):
        data = source
    else:
        with open(source, "rb") as file:
            data = file.read()
    return Block(type=kind, data=b64encode(data).decode("ascii"), mimeType=mime)


def link(uri: str, name: str, mime: str | None = None, description: str | None = None) -> Block:
    """Make a block that points at a resource."""
    block = Block(type="resource_link", uri=uri, name=name)
    if mime:
        block["mimeType"] = mime
    if description:
        block["description"] = description
    return block


def _is_content(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Block) for item in value)


def result(value: Any) -> None:
    """Print a successful result: text, blocks, or a JSON value as structured content and as text."""
    if isinstance(value, str):
        value = text(value)
    if isinstance(value, Block):
        value = [value]
    if _is_content(value):
        _answer({"content": value, "isError": False})
        return
    structured = value if isinstance(value, dict) else {"result": value}
    content = [text(_dumps(value, ascii_only=False))]
    _answer({"content": content, "structuredContent": structured, "isError": False})


def error(message: str, type: str = "internal_error", hint: str | None = None, data: Any = None) -> None:
    """Print an error result, which the model can read and act on. It does not end the tool.

    Types in use: not_found validation_error permission_denied timeout network_error cli_error internal_error
    rate_limited.
    """
    details: JsonObject = {"type": type, "message": message}
    if hint is not None:
        details["hint"] = hint
    if data is not None:
        details["data"] = data
    structured = {"success": False, "error": details}
    _answer({"content": [text(message)], "structuredContent": structured, "isError": True})


def fail(message: str, code: int = INTERNAL_ERROR, data: Any = None) -> NoReturn:
    """End the call with a JSON-RPC error, for what is wrong with the request itself, and exit with status 1."""
    problem: JsonObject = {"code": code, "message": message}
    if data is not None:
        problem["data"] = data
    line = _dumps(problem)
    if not _write_error(line):
        _send("fail", str(code), "" if data is None else _dumps(data), message)
    if sys.__stdout__ is not None:
        print(line, file=sys.__stdout__, flush=True)
    print(message, file=sys.stderr)
    global _answered
    _answered = True
    raise SystemExit(1)


def _write_error(line: str) -> bool:
    """Leave the error where the server looks first. False when there is no such place."""
    path = os.environ.get("MCP_TOOL_ERROR_FILE", "")
    if not path:
        return False
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(line)
    except OSError:
        return False  # the record on the channel says the same
    return True


# --- Running ---


def main(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run `function` as the tool when its module is the program. Use it as a decorator on the last definition."""
    if function.__module__ == "__main__":
        raise SystemExit(run(function))
    return function


def run(function: Callable[..., Any]) -> int:
    """Call `function` with the arguments it names, print its result, and return the exit status."""
    from io import StringIO

    sys.stdout = printed = StringIO()
    try:
        value = function(**_accepted(function))
        if hasattr(value, "__await__"):
            value = _finish(value)
        if value is not None:
            result(value)
    except Exception as problem:
        sys.excepthook(*sys.exc_info())
        error(str(problem) or type(problem).__name__, _error_type(problem))
        return 0 if os.environ.get("MCP_CHANNEL_FD") else 1
    finally:
        sys.stdout = sys.__stdout__
        _release(printed.getvalue())
    return 0


def _release(printed: str) -> None:
    """Pass on what the function printed: it is the result unless there is another one."""
    stream = sys.stderr if _answered else sys.stdout
    if printed and stream is not None:
        stream.write(printed)
        stream.flush()


def _finish(awaitable: Any) -> Any:
    import asyncio

    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())


def _error_type(problem: Exception) -> str:
    return next(name for kind, name in ERROR_TYPES if isinstance(problem, kind))


def _accepted(function: Callable[..., Any]) -> JsonObject:
    """Return the arguments that `function` has parameters for; fail when one that it needs is missing.

    Read from the code object: the module `inspect` would cost more than everything else here.
    """
    given = args()
    if not isinstance(given, dict):
        fail("arguments must be an object", INVALID_PARAMS)
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    optional = set(names[code.co_argcount - len(function.__defaults__ or ()) : code.co_argcount])
    optional |= set(function.__kwdefaults__ or ())
    for name in names:
        if name not in given and name not in optional:
            fail(f"{name} is required", INVALID_PARAMS)
    takes_all = code.co_flags & 0x08  # **kwargs
    return {name: value for name, value in given.items() if takes_all or name in names}


# --- For tool_sdk.sh ---


def _answer_shell(words: list[str]) -> int:
    """Print what the JSON document on stdin has at `get PATH`, or what `jsonpath EXPRESSION` finds in it."""
    import json

    document = json.load(sys.stdin)
    if words[0] == "get":
        _documents["MCP_TOOL_ARGS"] = document
        found = [arg(words[1], None)]
    else:
        try:
            from jsonpath_ng.ext import parse
        except ImportError:
            print(f"the filter {words[1]} needs the Python package jsonpath-ng", file=sys.stderr)
            return 1
        found = [match.value for match in parse(words[1]).find(document)]
    for value in found:
        print(value if isinstance(value, str) else _dumps(value))
    return 0


if __name__ == "__main__":
    sys.exit(_answer_shell(sys.argv[1:]))
''',
    "sdk/tool_sdk.sh": r'''# shellcheck shell=bash
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
''',
}
# embedded files: end


def home() -> str:
    """Return the directory this file lies in."""
    return os.path.dirname(THIS_FILE)


def sdk_directory(containment: Containment) -> str:
    """Return the directory with the SDK, writing it out when only this file was installed."""
    beside = os.path.join(home(), "sdk")
    if os.path.isfile(os.path.join(beside, "tool_sdk.sh")):
        return beside
    write_tree(containment.directory(), EMBEDDED)
    return os.path.join(containment.directory(), "sdk")


PROJECT_MARKS = ("tools", "resources", "prompts", "server.d")


def choose_project(given: str | None, environ: dict) -> str | None:
    """Return the project's directory: the option, the variable, a marked parent, our own directory; else None."""
    for source, path in (("--project-root", given), ("MCPBASH_PROJECT_ROOT", environ.get("MCPBASH_PROJECT_ROOT"))):
        if path:
            if not os.path.isdir(path):
                raise UserError("%s directory does not exist: %s" % (source, path))
            return os.path.realpath(path)
    place = os.getcwd()
    while True:
        if os.path.isfile(os.path.join(place, "server.d", "server.meta.json")):
            return os.path.realpath(place)
        if place == os.path.dirname(place):
            break
        place = os.path.dirname(place)
    return home() if any(os.path.isdir(os.path.join(home(), mark)) for mark in PROJECT_MARKS) else None


def write_tree(root: str, files: dict[str, str]) -> None:
    """Write `files` (relative path -> text) below `root`; scripts become executable."""
    for name, text in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        atomic_write(path, text.encode("utf-8"), 0o700 if text.startswith("#!") else 0o600)


# ======================================================================================================================
# 19. COMMANDS — what a person types.
# ======================================================================================================================

COMMANDS: dict[str, tuple] = {}  # name -> (function, help, argument specifications); filled by @command at import


def command(name: str, summary: str, *arguments: tuple) -> Callable:
    """Register the function below as a command; `arguments` are (flags, options) for argparse."""

    def register(function: Callable) -> Callable:
        COMMANDS[name] = (function, summary, arguments)
        return function

    return register


_PROJECT_ROOT = (("--project-root",), {"metavar": "DIR", "help": "the project (default: see MCPBASH_PROJECT_ROOT)"})


@command(
    "settings",
    "print every setting with its value",
    (("--markdown",), {"action": "store_true", "help": "as the README shows them"}),
)
def show_settings(options: Any) -> int:
    """Print the settings in force, or their documentation."""
    if options.markdown:
        sys.stdout.write(settings_markdown())
        return EXIT_OK
    settings = Settings(dict(os.environ))
    for row in SETTINGS:
        value = show_value(getattr(settings, attribute_of(row)))
        shown = "[redacted]" if row.name in ENV_NEVER and value else value
        print("%-44s %s%s" % (row.name, shown, "" if row.name in settings.given else "  (default)"))
    for problem in settings.problems:
        print("mcp_bash: " + str(problem), file=sys.stderr)
    return EXIT_OK


class Terminal:
    """Stands in for the wire when a command runs a tool: notifications become lines, or a bar, on stderr."""

    def __init__(self) -> None:
        self._is_tty = os.isatty(2)
        self._has_bar = False

    def offer(self, line: bytes, droppable: bool = False) -> None:
        """Show a notification."""
        message = decode(line)
        params = message.get("params", {})
        if message.get("method") == "notifications/progress":
            self._show_progress(params)
        elif message.get("method") == "notifications/message":
            data = params.get("data")
            text = data if isinstance(data, str) else _ENCODER.encode(data)
            self._line("%s: %s" % (params.get("level"), one_line(text)))

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        """End the line of the progress bar."""
        if self._has_bar:
            os.write(2, b"\n")
            self._has_bar = False

    def _show_progress(self, params: dict) -> None:
        done, total = params["progress"], params.get("total") or 100
        share = max(0.0, min(1.0, done / total))
        text = "%3d%% %s" % (round(share * 100), one_line(params.get("message", "")))
        if not self._is_tty:
            return self._line("progress: " + text)
        bar = "#" * round(share * 24)
        os.write(2, ("\r\x1b[K[%-24s] %s" % (bar, clip(text, 60))).encode("utf-8", "replace"))
        self._has_bar = True

    def _line(self, text: str) -> None:
        self.close()
        os.write(2, (text + "\n").encode("utf-8", "backslashreplace"))


@command(
    "run-tool",
    "run one tool as the server would and print its result",
    (("name",), {"help": "the tool"}),
    (("--args",), {"metavar": "JSON", "default": "{}", "help": "arguments: JSON, @FILE, or - for stdin"}),
    (("--timeout",), {"metavar": "SECONDS", "type": float, "help": "stop it after this time"}),
    _PROJECT_ROOT,
)
def run_tool(options: Any) -> int:
    """Run a tool without a client; progress and logs go to stderr, the result to stdout."""
    arguments = read_arguments(options.args)
    settings = Settings(dict(os.environ))
    os.environ.pop("MCPBASH_REMOTE_TOKEN", None)
    log = Log(settings)
    log.problems(settings.problems, "mcp.lifecycle")
    root = choose_project(options.project_root, dict(os.environ))
    if root is None:
        raise UserError("No MCP project found. Give --project-root DIR, or run this inside a project.")
    containment = Containment(settings, log)
    terminal = Terminal()
    server = Server(Project(root, settings), settings, log, containment, terminal, sdk_directory)
    os.chdir(root)
    params = {"name": options.name, "arguments": arguments, "_meta": {"progressToken": 0}}
    if options.timeout:
        params["timeoutSecs"] = options.timeout
    ctx = Context(server, 0, METHODS["tools/call"], params, V5)
    ctx.token, ctx.level = 0, settings.log_level
    server.clerk.start()
    try:
        answer, code = run_request(server, ctx), EXIT_OK
    except RpcError as error:
        answer, code = {"_mcpToolError": True, **error.to_wire()}, EXIT_FAILED
    finally:
        terminal.close()
        containment.end_all()
        containment.close()
    sys.stdout.write(encode(answer).decode("ascii") + "\n")
    return code


def run_request(server: Server, ctx: Context) -> dict:
    """Drive one request to its end and return the handler's result; raises what the handler raises."""
    steps, value, error = tools_call(ctx, ctx.params), None, None
    while True:
        try:
            wanted = steps.throw(error) if error else steps.send(value)
        except StopIteration as finished:
            return finished.value
        outcomes: list = []
        try:
            wanted.begin(server.loop, lambda *outcome: outcomes.append(outcome))  # noqa: B023
            while not outcomes:
                server.loop.turn(INFINITY)
            value, error = (*outcomes[0], None)[:2]
        except OSError as failure:
            value, error = None, failure


def read_arguments(text: str) -> dict:
    """Return the object given on the command line as JSON, as @FILE or on stdin."""
    try:
        if text == "-":
            data = sys.stdin.buffer.read()
        elif text.startswith("@"):
            data = read_small(text[1:], 1 << 30)
        else:
            data = text.encode("utf-8", "surrogateescape")
        value = decode(data.strip() or b"{}")
    except OSError as error:
        raise UserError("run-tool: --args %s: %s" % (text, error.strerror)) from None
    except ParseError as error:
        raise UserError("run-tool: --args is not JSON (%s)" % error.why) from None
    if not isinstance(value, dict):
        raise UserError("run-tool: --args must be a JSON object, not " + type_name(value))
    return value


def usage() -> str:
    """Return the text of --help."""
    lines = [
        "usage: mcp_bash.py [--project-root DIR]     serve the project on stdin and stdout",
        "       mcp_bash.py COMMAND ...              --help after a command explains it",
        "",
        "commands:",
        *("  %-12s %s" % (name, row[1]) for name, row in COMMANDS.items()),
        "",
        "options:",
        "  --project-root DIR  the project; else MCPBASH_PROJECT_ROOT, a parent directory with",
        "                      server.d/server.meta.json, or the directory mcp_bash.py lies in",
        "  --help, --version",
    ]
    return "\n".join(lines) + "\n"


def run_command(words: list[str]) -> int:
    """Parse and run a command; return the exit status."""
    import argparse

    function, summary, arguments = COMMANDS[words[0]]
    parser = argparse.ArgumentParser(prog="mcp_bash.py " + words[0], description=summary)
    for flags, options in arguments:
        parser.add_argument(*flags, **options)
    return function(parser.parse_args(words[1:]))


# ======================================================================================================================
# 20. MAIN — become the server or run a command.
# ======================================================================================================================

def greet(root: str | None) -> None:
    """Tell a person who started the server on a terminal what it is and what to do next."""
    what = "serving " + root if root else "no project found, serving the getting-started one"
    sys.stderr.write(
        "mcp_bash %s: %s.\n"
        "It speaks the Model Context Protocol on stdin and stdout; an MCP client starts it with\n"
        "    command: %s\n"
        "    args:    [%s]\n"
        "Ctrl-D ends it; --help lists the commands.\n"
        % (
            VERSION,
            what,
            sys.executable,
            ", ".join(_ENCODER.encode(word) for word in [THIS_FILE, "--project-root", root or "DIR"]),
        )
    )


def watch_parent(settings: Settings, parent: int) -> int:
    """Return a descriptor that tells when the process that started us ends, or -1."""
    if not settings.orphan_check_enabled or parent <= 1 or not _HAS_PIDFD:
        return -1
    try:
        descriptor = os.pidfd_open(parent)
    except OSError:
        return -1
    if os.getppid() == parent:
        return descriptor
    os.close(descriptor)  # it ended before we looked; the periodic check will notice
    return -1


def source_environment(settings: Settings, log: Log, containment: Containment, project: Project) -> Settings:
    """Apply server.d/env.sh, when the operator allows hooks and the file is safe; return the settings in force then."""
    path = os.path.join(project.server_dir, "env.sh")
    if not settings.allow_project_hooks or not os.path.lexists(path):
        return settings
    reason = unsafe_project_file(project.root, path)
    try:
        if reason:
            raise MetaError("is refused: " + reason)
        os.environ.update(Hooks(containment, project, settings, dict(os.environ), log).environment(path))
    except (MetaError, OSError) as error:
        raise UserError("%s: %s" % (path, error)) from None
    return Settings({**os.environ, "MCPBASH_REMOTE_TOKEN": settings.remote_token})


def serve(given_root: str | None) -> None:
    """Start the serving thread and return.

    It has to return: the interpreter keeps the syntax tree of the main script, 9 MiB for this file, until the last line
    has run. Then the main thread waits for the serving thread, which ends the process.
    """
    if os.name != "posix":
        raise UserError("the server needs Linux or macOS; on Windows run it inside WSL (docs/windows.md).")
    root = choose_project(given_root, dict(os.environ))
    if os.isatty(0):
        greet(root)
    settings = Settings(dict(os.environ))
    if settings.remote_token and len(settings.remote_token) < 32:
        raise UserError("MCPBASH_REMOTE_TOKEN is shorter than 32 characters; use a longer secret.")
    os.environ.pop("MCPBASH_REMOTE_TOKEN", None)
    wire = Wire.claim(settings.max_request_bytes)
    log = Log(settings)
    containment = Containment(settings, log)
    parent_fd = watch_parent(settings, containment.parent)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if root is None:
            root = os.path.join(containment.directory(), "getting-started")
            write_tree(root, GETTING_STARTED)
        os.chdir(root)
        project = Project(root, settings)
        settings = source_environment(settings, log, containment, project)
        log.problems(settings.problems, "mcp.lifecycle")
        server = Server(Project(root, settings), settings, log, containment, wire, sdk_directory)
        sys.setswitchinterval(0.001)  # the serving thread waits this long at most while the clerk computes
        server.clerk.start()
        threading.Thread(target=run, args=(server, Housekeeping(server, parent_fd, catch_signals()))).start()
    except UserError as error:
        sys.stderr.write("mcp_bash: %s\n" % error)
        containment.leave(error.exit_code)
    except BaseException as error:  # a bug: the operator must hear of it
        log("critical", "mcp.lifecycle", describe_exception(error))
        containment.leave(EXIT_FAILED)


def catch_signals() -> int:
    """Make TERM, INT and HUP arrive as bytes on a descriptor, whatever the main thread is doing; return it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would cost every exit status
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    return read


def run(server: Server, housekeeping: Housekeeping) -> None:
    """Serve until the end and leave; the body of the serving thread."""
    try:
        code = server.serve(housekeeping)
        for registry in server.registries.values():
            registry.save()
        server.leave(code, LAST_GRACE)
    except BaseException as error:  # a bug: the operator must hear of it
        server.log("critical", "mcp.lifecycle", describe_exception(error))
        server.containment.leave(EXIT_FAILED)


def main(words: list[str] | None = None) -> int | None:
    """Run the command line; return the exit status, None when a server has been started."""
    words = sys.argv[1:] if words is None else words
    first = words[0] if words else ""
    try:
        if first in ("--help", "-h"):
            sys.stdout.write(usage())
            return EXIT_OK
        if first in ("--version", "-v"):
            sys.stdout.write("mcp_bash %s\n" % VERSION)
            return EXIT_OK
        if first in COMMANDS:
            return run_command(words)
        if first and not first.startswith("-"):
            raise UserError("Unknown command: %s. --help lists the commands." % first, EXIT_USAGE)
        serve(option_value(words, "--project-root"))
        return None
    except UserError as error:
        sys.stderr.write("mcp_bash: %s\n" % error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def option_value(words: list[str], option: str) -> str | None:
    """Return the value of `--option VALUE` or `--option=VALUE` among `words`; unknown options are tolerated.

    >>> option_value(["--project-root", "/p"], "--project-root"), option_value(["--quiet"], "--project-root")
    ('/p', None)
    """
    for index, word in enumerate(words):
        if word == option:
            if index + 1 == len(words):
                raise UserError("%s needs a directory." % option, EXIT_USAGE)
            return words[index + 1]
        if word.startswith(option + "="):
            return word[len(option) + 1 :]
    return None


if __name__ == "__main__":
    _status = main()
    if _status is not None:
        sys.exit(_status)
