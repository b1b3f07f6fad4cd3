"""Helpers for tools written in Python (3.9 or newer). No dependencies, cheap to import.

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
