#!/usr/bin/env python3
"""Measure mcp_bash.py beside the least that the same work can cost, in one interleaved run.

    python3 tests/bench.py                      every row, about a minute and a half
    python3 tests/bench.py --quick              every row without the official SDK, about 20 seconds
    python3 tests/bench.py --rows call,ping     some groups of rows
    python3 tests/bench.py --compare old.py     one more column: another mcp_bash.py

Absolute times belong to one machine in one minute. What counts is the ratio to a reference that ran in the same round:
every round visits all columns, each round starts with another column, and a ratio is the median over the rounds of
(ours / reference in that round). Ratios are costs: above 1 is dearer than the reference, for rates too.

Columns   ours      python mcp_bash.py --project-root DIR (or --server CMD)
          before    the file given with --compare
          bare      posix_spawn, one pipe, wait: the same script started from this process, no server at all
          pyfloor   the least a Python server can do: python -I -S and the loop PYFLOOR below
          pysdk     the official Python SDK (low level), when tests/.cache/venv*/bin/python can import it
The servers get a clean environment (no PYTHON*, no shims on PATH) and the real interpreter behind sys.executable, in a
virtual environment without packages: a .pth file somewhere in site-packages can cost more than the server.
Answers are checked after the clock has stopped; a wrong, missing or late one ends the run with a sentence and exit 2.

Contents: 1. Tables  2. Reference servers  3. Driver  4. Accounting  5. Columns  6. Rows  7. Rounds  8. Report  9. main
"""

from __future__ import annotations

import argparse
import gc
import glob
import json
import math
import os
import platform
import resource
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Good = Callable[[dict], bool]  # tells whether a result is the expected one

# ------------------------------------------------------------------------------------------------------------------
# 1. Tables: what is measured, how much of it, and what is good enough.
# ------------------------------------------------------------------------------------------------------------------

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = (10, 100, 1000, 5000)  # tools in the projects of the "list" group

Row = namedtuple("Row", "key group what unit reference")  # reference: the column a ratio is taken to
ROWS = (
    Row("cold_init", "cold", "spawn to initialize answered", "ms", "pyfloor"),
    Row("cold_call", "cold", "spawn to first tools/call answered", "ms", "pyfloor"),
    Row("cold_cpu", "cold", "CPU of the server until then", "ms", "pyfloor"),
    Row("call_p50", "call", "tools/call, sh tool, one at a time, p50", "ms", "bare"),
    Row("call_p99", "call", "tools/call, sh tool, one at a time, p99", "ms", "bare"),
    Row("call_cpu", "call", "CPU of the server per call", "ms", "pyfloor"),
    Row("args_into", "args", "bash tool, 3 arguments, mcp_args_get -v, p50", "ms", "bare"),
    Row("args_fork", "args", "bash tool, 3 arguments, x=$(mcp_args_get), p50", "ms", "bare"),
    Row("burst", "burst", "16 calls in flight, wall per call", "ms", "bare"),
    Row("ping_p50", "ping", "ping, one at a time, p50", "us", "pyfloor"),
    Row("ping_rate", "ping", "pings written back to back", "/s", "pyfloor"),
    *(Row(f"list_cold_{n}", "list", f"{n} tools: spawn to full list, no cache", "ms", "pyfloor") for n in SIZES),
    *(Row(f"list_cache_{n}", "list", f"{n} tools: spawn to full list, cache", "ms", "pyfloor") for n in SIZES),
    *(Row(f"list_first_{n}", "list", f"{n} tools: warm, first page", "ms", "pyfloor") for n in SIZES),
    *(Row(f"list_all_{n}", "list", f"{n} tools: warm, all pages", "ms", "pyfloor") for n in SIZES),
    Row("grow_cold", "list", "growth exponent cold, fit over all sizes", "", "pyfloor"),
    Row("grow_cold_top", "list", "growth exponent cold, last step", "", "pyfloor"),
    Row("grow_warm", "list", "growth exponent warm, fit over all sizes", "", "pyfloor"),
    Row("grow_warm_top", "list", "growth exponent warm, last step", "", "pyfloor"),
    Row("rss_start", "load", "RSS of the process tree after start", "MiB", "pyfloor"),
    Row("pss_start", "load", "PSS of the process tree after start", "MiB", "pyfloor"),
    Row("rss_calls", "load", "RSS of the process tree after 1000 calls", "MiB", "pyfloor"),
    Row("pss_calls", "load", "PSS of the process tree after 1000 calls", "MiB", "pyfloor"),
    Row("load_cpu", "load", "CPU of the server per call, 16 in flight", "ms", "pyfloor"),
    Row("load_all", "load", "CPU per call with all it starts, 16 in flight", "ms", "bare"),
    Row("idle_cpu", "idle", "CPU of the server per idle second", "ms", "pyfloor"),
    Row("arg_1", "data", "1 MB argument in", "MB/s", "pyfloor"),
    Row("arg_10", "data", "10 MB argument in", "MB/s", "pyfloor"),
    Row("out_1", "data", "1 MB output back", "MB/s", "bare"),
    Row("out_8", "data", "8 MB output back", "MB/s", "bare"),
)
ROW = {row.key: row for row in ROWS}
RATES = ("/s", "MB/s")  # units in which more is better
POOLED = {"call_p99": 0.99}  # rows whose rounds give latencies, and the quantile taken over all of them together

Scale = namedtuple("Scale", "rounds size quick_rounds quick_size")  # size: calls, pings or seconds in one round
SCALES = {
    "cold": Scale(15, 1, 5, 1),
    "call": Scale(40, 25, 12, 25),
    "args": Scale(15, 20, 6, 10),
    "burst": Scale(9, 208, 4, 208),
    "ping": Scale(15, 4000, 5, 2000),
    "list": Scale(4, 6, 1, 4),
    "load": Scale(2, 1000, 1, 1000),
    "idle": Scale(1, 3, 1, 1),
    "data": Scale(9, 1, 3, 1),
}

Goal = namedtuple("Goal", "key basis sign bound")  # basis: "ratio" to the row's reference, or the "value" itself
GOALS = (
    Goal("call_p50", "ratio", "<=", 1.5),
    Goal("burst", "ratio", "<=", 1.4),
    Goal("cold_call", "ratio", "<=", 3.5),
    Goal("cold_call", "value", "<", 100),
    Goal("call_cpu", "value", "<=", 0.4),
    Goal("rss_calls", "value", "<=", 22),
    Goal("ping_rate", "value", ">=", 40000),
    Goal("list_all_1000", "value", "<=", 5),
    Goal("grow_cold", "value", "<=", 1.1),
    Goal("grow_cold_top", "value", "<=", 1.1),
    Goal("grow_warm", "value", "<=", 1.1),
    Goal("grow_warm_top", "value", "<=", 1.1),
    Goal("arg_10", "value", ">=", 80),
    Goal("out_8", "value", ">=", 100),
)
SIGNS = {"<=": lambda a, b: a <= b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b}

CALIBRATION = {
    "busy": "machine used by others while the driver sleeps [%]",
    "spin": "a fixed Python loop [ms]",
    "twin": "noise of a ratio: bare p50 / bare p50, 25 calls each",
    "echo": "driver, one line through cat and back [us]",
    "echo_rate": "driver, lines through cat back to back [/s]",
    "echo_data": "driver, one 8 MB line through cat and back [MB/s]",
}
TOO_BUSY = 20  # percent; above it absolute numbers say more about the others

# The tools of the project: name -> text of the script. {scratch} is the directory of the prepared outputs.
TOOLS = {
    "hi": "#!/bin/sh\necho hi\n",
    "sink": "#!/bin/sh\n:\n",
    "size": '#!/bin/sh\nwc -c <"$MCP_TOOL_ARGS_FILE"\n',
    "out_1": "#!/bin/sh\nexec cat {scratch}/1\n",
    "out_8": "#!/bin/sh\nexec cat {scratch}/8\n",
    "args_plain": '#!/bin/bash\necho "$ARG_a $ARG_b $ARG_c"\n',
    "args_into": '#!/bin/bash\nsource "$MCP_SDK/tool_sdk.sh"\n'
    'for key in a b c; do mcp_args_get -v "$key" ".$key"; done\necho "$a $b $c"\n',
    "args_fork": '#!/bin/bash\nsource "$MCP_SDK/tool_sdk.sh"\n'
    'echo "$(mcp_args_get .a) $(mcp_args_get .b) $(mcp_args_get .c)"\n',
}
ARGUMENTS = {"a": "one", "b": 2, "c": "three"}
MB = 1000 * 1000
WIDTH = 16  # calls in flight in the "burst" and "load" groups
PATIENCE = 60  # seconds a peer may take for anything before the run is given up
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}

# ------------------------------------------------------------------------------------------------------------------
# 2. Reference servers: complete programs, written into the scratch directory. argv[-1] is the project.
# ------------------------------------------------------------------------------------------------------------------

PYFLOOR = r"""
import json, os, select, sys
ROOT = sys.argv[-1]
NULL = os.open(os.devnull, os.O_RDWR)
jobs = {}  # descriptor of a tool's output -> [request id, pid, chunks, arguments file or None]

def tools():
    for entry in sorted(os.listdir(ROOT + "/tools")):
        with open("%s/tools/%s/tool.meta.json" % (ROOT, entry), "rb") as file:
            yield json.loads(file.read())

def answer(ident, result):
    send(ident, json.dumps(result, separators=(",", ":")).encode())

def send(ident, result):
    data = memoryview(b'{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (json.dumps(ident).encode(), result))
    while data:
        data = data[os.write(1, data):]

def start(ident, name, arguments):
    env, text, path = dict(os.environ), json.dumps(arguments), None
    if len(text) > 65536:
        path = env["MCP_TOOL_ARGS_FILE"] = "%s/args.%d.%s" % (ROOT, os.getpid(), ident)
        with open(path, "w") as file:
            file.write(text)
    else:
        env["MCP_TOOL_ARGS_JSON"] = text
        env.update(("ARG_" + key, str(value)) for key, value in arguments.items())
    out, write = os.pipe()
    script = "%s/tools/%s/tool.sh" % (ROOT, name)
    moves = [(os.POSIX_SPAWN_DUP2, NULL, 0), (os.POSIX_SPAWN_DUP2, write, 1)]
    jobs[out] = [ident, os.posix_spawn(script, [script], env, file_actions=moves), [], path]
    os.close(write)
    poll.register(out, select.POLLIN)

def finish(out):
    ident, pid, chunks, path = jobs.pop(out)
    poll.unregister(out)
    os.close(out)
    failed = os.waitpid(pid, 0)[1] != 0
    if path:
        os.unlink(path)
    answer(ident, {"content": [{"type": "text", "text": b"".join(chunks).decode()}], "isError": failed})

def handle(message):
    method, ident, params = message["method"], message.get("id"), message.get("params")
    if method == "tools/call":
        start(ident, params["name"], params.get("arguments") or {})
    elif method == "tools/list":
        if not listed:
            listed.append(json.dumps({"tools": list(tools())}, separators=(",", ":")).encode())
        send(ident, listed[0])
    elif method == "initialize":
        answer(ident, {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                       "serverInfo": {"name": "pyfloor", "version": "1"}})
    elif ident is not None:
        answer(ident, {})

poll, listed, parts, open_ = select.poll(), [], [], True
poll.register(0, select.POLLIN)
while open_ or jobs:
    for fd, _ in poll.poll():
        chunk = os.read(fd, 1 << 18)
        if fd and chunk:
            jobs[fd][2].append(chunk)
        elif fd:
            finish(fd)
        elif not chunk:
            open_ = False
            poll.unregister(0)
        else:
            parts.append(chunk)
            if b"\n" in chunk:
                *lines, rest = b"".join(parts).split(b"\n")
                parts[:] = [rest]
                for line in lines:
                    handle(json.loads(line))
"""

PYSDK = r"""
import asyncio, json, os, sys
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
ROOT = sys.argv[-1]
listed = []

async def list_tools(ctx, params):
    if not listed:
        for entry in sorted(os.listdir(ROOT + "/tools")):
            with open("%s/tools/%s/tool.meta.json" % (ROOT, entry), "rb") as file:
                listed.append(types.Tool.model_validate(json.loads(file.read())))
    return types.ListToolsResult(tools=listed)

async def call_tool(ctx, params):
    env, arguments, path = dict(os.environ), params.arguments or {}, None
    text = json.dumps(arguments)
    if len(text) > 65536:
        path = env["MCP_TOOL_ARGS_FILE"] = "%s/args.%d.%d" % (ROOT, os.getpid(), id(params))
        with open(path, "w") as file:
            file.write(text)
    else:
        env["MCP_TOOL_ARGS_JSON"] = text
        env.update(("ARG_" + key, str(value)) for key, value in arguments.items())
    child = await asyncio.create_subprocess_exec(
        "%s/tools/%s/tool.sh" % (ROOT, params.name), env=env,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE)
    output, _ = await child.communicate()
    if path:
        os.unlink(path)
    content = [types.TextContent(type="text", text=output.decode())]
    return types.CallToolResult(content=content, is_error=child.returncode != 0)

async def main():
    server = Server("pysdk", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())

asyncio.run(main())
"""

# ------------------------------------------------------------------------------------------------------------------
# 3. Driver: one started process, its two pipes, and a clock that stops before anything is parsed.
# ------------------------------------------------------------------------------------------------------------------

clock = time.perf_counter


class Wrong(Exception):
    """A sentence that ends the run: an answer was wrong, late or missing."""


def spawn(argv: list[str], env: dict[str, str], *descriptors: int) -> int:
    """Start a program on these descriptors (stdin, stdout, stderr); return its pid."""
    moves = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(descriptors)]
    return os.posix_spawn(argv[0], argv, env, file_actions=moves)


class Peer:
    """A server process on two pipes. Both ends here are non-blocking; all waiting is in poll()."""

    def __init__(self, name: str, argv: list[str], project: Project):
        self.name, self.project = name, project
        self.parts: list[bytes] = []  # what was read since the last newline
        self.last_id = 0  # of the last request built
        self.answered = 0.0  # when bytes last arrived
        self.log = f"{project.root}.{name}.stderr"
        child_in, self.to = os.pipe()
        self.back, child_out = os.pipe()
        child_err = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.started = clock()
        self.pid = spawn(argv, project.env, child_in, child_out, child_err)
        for fd in (child_in, child_out, child_err):
            os.close(fd)
        self.readable, self.either = select.poll(), select.poll()
        for poll in (self.readable, self.either):
            poll.register(self.back, select.POLLIN)
        self.either.register(self.to, select.POLLOUT)
        os.set_blocking(self.back, False)
        os.set_blocking(self.to, False)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        is_failing = kind is not None and issubclass(kind, Wrong)
        os.close(self.to)
        late = clock() + (1 if is_failing else PATIENCE)
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if clock() > late:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                if is_failing:  # the first complaint is the one to show
                    break
                raise Wrong(f"{self.name} did not exit within {PATIENCE} s after its stdin was closed")
            time.sleep(0.001)
        os.close(self.back)

    def exchange(self, requests: list[bytes], width: int = 1) -> list[bytes]:
        """Send the requests, at most `width` unanswered at any time, and return the answer lines."""
        sent = min(width, len(requests))
        pending = memoryview(b"".join(requests[:sent]))
        answers: list[bytes] = []
        while len(answers) < len(requests):
            if pending:
                pending = pending[self.write(pending) :]
            if not (self.either if pending else self.readable).poll(PATIENCE * 1000):
                raise Wrong(f"{self.name} gave no answer within {PATIENCE} s{self.last_words()}")
            answers += self.read()
            more = requests[sent : len(answers) + width]
            if more:
                sent += len(more)
                pending = memoryview(b"".join([pending, *more]))
        return answers

    def write(self, data: memoryview) -> int:
        """Write what fits into the pipe now."""
        try:
            return os.write(self.to, data)
        except BlockingIOError:  # the pipe is full: the caller polls
            return 0
        except BrokenPipeError:
            raise Wrong(f"{self.name} closed its stdin{self.last_words()}") from None

    def read(self) -> list[bytes]:
        """Return the answers that are complete now; notifications are dropped."""
        try:
            chunk = os.read(self.back, 1 << 18)
        except BlockingIOError:  # woken because stdin is writable again
            return []
        self.answered = clock()  # before lines are cut: that is the driver's work, not the server's
        if not chunk:
            raise Wrong(f"{self.name} closed its stdout{self.last_words()}")
        self.parts.append(chunk)
        if b"\n" not in chunk:
            return []
        *lines, rest = b"".join(self.parts).split(b"\n")
        self.parts = [rest]
        return [line for line in lines if b'"method":' not in line[:160]]

    def last_words(self) -> str:
        """Return the end of its stderr, as the end of a sentence."""
        with open(self.log, "rb") as file:
            text = file.read()[-600:].decode("utf-8", "replace").strip()
        return "; its stderr ends with:\n" + text if text else "; its stderr is empty"

    def request(self, method: str, params: bytes) -> bytes:
        """Build the next request line."""
        self.last_id += 1
        head = b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":' % (self.last_id, method.encode())
        return head + params + b"}\n"

    def check(self, answers: list[bytes], good: Good) -> None:
        """Raise Wrong unless these answer the last requests, each once, with good results."""
        left = set(range(self.last_id - len(answers) + 1, self.last_id + 1))
        for line in answers:
            message = json.loads(line)
            ident = message.get("id")
            if type(ident) is not int or ident not in left:
                raise Wrong(f"{self.name} answered id {ident!r}, which was not waiting: {line[:300]!r}")
            left.remove(ident)
            if "result" not in message or not good(message["result"]):
                raise Wrong(f"{self.name} gave a wrong answer to id {ident}: {line[:300]!r}")

    def ask(self, method: str, params: bytes, good: Good, count: int = 1, width: int = 1) -> list[float]:
        """Return the seconds of each of `count` equal requests, or of all together when several are in flight."""
        requests = [self.request(method, params) for _ in range(count)]
        times, answers = [], []
        for batch in [requests] if width > 1 else [[request] for request in requests]:
            start = clock()
            answers += self.exchange(batch, width)
            times.append(self.answered - start)
        self.check(answers, good)
        return times

    def hello(self) -> float:
        """Shake hands; return the seconds from the start of the process to the answer."""
        self.ask("initialize", json.dumps(HELLO).encode(), lambda result: "serverInfo" in result)
        seconds = self.answered - self.started
        self.write(memoryview(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'))
        return seconds

    def call(self, tool: str, text: str, count: int = 1, width: int = 1, arguments: bytes = b"{}") -> list[float]:
        """Return the seconds of each of `count` calls, or of all together when several are in flight."""
        return self.ask("tools/call", call_params(tool, arguments), lambda r: printed(r) == text, count, width)

    def list_all(self) -> float:
        """Return the seconds that all pages of tools/list took; check that exactly the project's tools came."""
        pages: list[bytes] = []
        params, start = b"{}", clock()
        while params:
            pages += self.exchange([self.request("tools/list", params)])
            params = next_page(pages[-1])
        seconds = self.answered - start
        self.check(pages, lambda result: bool(result["tools"]))
        names = [tool["name"] for page in pages for tool in json.loads(page)["result"]["tools"]]
        if sorted(names) != self.project.names:
            expected = len(self.project.names)
            raise Wrong(f"{self.name} listed {len(names)} tools in {len(pages)} pages; expected {expected}")
        return seconds

    def cpu(self) -> float:
        """Return the CPU seconds that the live processes of this server have used themselves."""
        return sum(own_cpu(pid) for pid in tree(self.pid))

    def cpu_all(self) -> float:
        """Return those CPU seconds plus the ones of every process they have waited for."""
        return self.cpu() + sum(waited_cpu(pid) for pid in tree(self.pid))


class Bare:
    """The same calls without a server: posix_spawn, read one pipe to its end, wait."""

    def __init__(self, project: Project):
        self.project = project
        self.null = os.open(os.devnull, os.O_RDWR)
        self.env = {**project.env, **{"ARG_" + key: str(value) for key, value in ARGUMENTS.items()}}

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.null)

    def hello(self) -> float:
        """Nobody to greet."""
        return 0.0

    def call(self, tool: str, text: str, count: int = 1, width: int = 1, arguments: bytes = b"{}") -> list[float]:
        """Return the seconds of each of `count` runs, or of all together when several are in flight."""
        times, outputs = [], []
        for _ in range(count) if width == 1 else [0]:
            start = clock()
            outputs += [self.run(tool)] if width == 1 else self.run_many(tool, count, width)
            times.append(clock() - start)
        self.check(outputs, text)
        return times

    def check(self, outputs: list[list[bytes]], text: str) -> None:
        """Raise Wrong unless every output is this text and a newline or none."""
        for output in outputs:
            if b"".join(output).decode().rstrip("\n") != text:
                raise Wrong("a bare run printed {!r}; expected {!r}".format(b"".join(output)[:300], text[:300]))

    def begin(self, tool: str) -> tuple[int, int]:
        """Start one run; return its pid and the descriptor of its output."""
        out, write = os.pipe()
        pid = spawn([self.project.script(tool)], self.env, self.null, write)
        os.close(write)
        return pid, out

    def run(self, tool: str) -> list[bytes]:
        """Run once and return the chunks of its output."""
        pid, out = self.begin(tool)
        chunks = list(iter(lambda: os.read(out, 1 << 18), b""))
        os.close(out)
        os.waitpid(pid, 0)
        return chunks

    def run_many(self, tool: str, count: int, width: int) -> list[list[bytes]]:
        """Run `count` times, `width` at a time, in one poll loop; return the chunks of each output."""
        poll = select.poll()
        running: dict[int, tuple[int, list[bytes]]] = {}  # descriptor -> pid, chunks so far
        outputs: list[list[bytes]] = []
        while len(outputs) < count:
            while len(running) < width and len(running) + len(outputs) < count:
                pid, out = self.begin(tool)
                running[out] = (pid, [])
                poll.register(out, select.POLLIN)
            for out, _ in poll.poll():
                pid, chunks = running[out]
                chunks.append(os.read(out, 1 << 18))
                if not chunks[-1]:
                    poll.unregister(out)
                    os.close(out)
                    os.waitpid(pid, 0)
                    outputs.append(running.pop(out)[1])
        return outputs

    def cpu(self) -> float:
        """Return the CPU seconds of this process."""
        return time.process_time()

    def cpu_all(self) -> float:
        """Return the CPU seconds of this process and of everything it has waited for."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + used.ru_utime + used.ru_stime


def call_params(tool: str, arguments: bytes) -> bytes:
    """Return the params of a tools/call."""
    return b'{"name":"%s","arguments":%s}' % (tool.encode(), arguments)


def printed(result: dict) -> str | None:
    """Return the text of a successful tool result, without its last newline."""
    content = result.get("content")
    if result.get("isError") or not content or content[0].get("type") != "text":
        return None
    return content[0]["text"].rstrip("\n")


def next_page(line: bytes) -> bytes:
    """Return the params for the page after this one, or nothing; found without parsing, the clock is running."""
    at = line.rfind(b'"nextCursor":')
    if at < 0:
        return b""
    start = line.index(b'"', at + 13) + 1
    return b'{"cursor":"%s"}' % line[start : line.index(b'"', start)]


# ------------------------------------------------------------------------------------------------------------------
# 4. Accounting: what a process tree holds and has used, from /proc.
# ------------------------------------------------------------------------------------------------------------------

HAS_PROC = os.path.exists("/proc/self/smaps_rollup")
TICKS = os.sysconf("SC_CLK_TCK")


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command name; field 1 is the parent."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def tree(root: int) -> list[int]:
    """Return a process and all its live descendants."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(stat_fields(int(entry))[1])
            except (FileNotFoundError, ProcessLookupError):  # it ended while the directory was read
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def own_cpu(pid: int) -> float:
    """Return the CPU seconds of one process, all its threads, to the nanosecond where the kernel allows."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the clock that clock_getcpuclockid(3) names
    except OSError:
        return sum(map(int, stat_fields(pid)[11:13])) / TICKS


def waited_cpu(pid: int) -> float:
    """Return the CPU seconds of the processes that this one has waited for."""
    return sum(map(int, stat_fields(pid)[13:15])) / TICKS


def memory(pid: int, file: str, field: str) -> float:
    """Return one field of one file of /proc, summed over the tree, in MiB."""
    total = 0
    for member in tree(pid):
        try:
            with open(f"/proc/{member}/{file}") as lines:
                total += sum(int(line.split()[1]) for line in lines if line.startswith(field))
        except (FileNotFoundError, ProcessLookupError):  # it ended since the tree was read
            continue
    return total / 1024


def busy_share(seconds: float) -> float:
    """Sleep, and return the percentage of all cores that others used meanwhile."""

    def ticks() -> list[int]:
        with open("/proc/stat") as file:
            return [int(word) for word in file.readline().split()[1:9]]

    before = ticks()
    time.sleep(seconds)
    used = [after - then for after, then in zip(ticks(), before)]
    return 100 * (1 - (used[3] + used[4]) / max(1, sum(used)))  # fields 3 and 4: idle, waiting for a disk


def settle(pid: int) -> None:
    """Wait until the tree has had the same members and the same memory for three tenths of a second."""
    seen, since, late = None, clock(), clock() + 5
    while clock() - since < 0.3 and clock() < late:
        now = tree(pid), memory(pid, "status", "VmRSS:")
        if now != seen:
            seen, since = now, clock()
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------------------------------
# 5. Columns: who is measured, and the projects they serve.
# ------------------------------------------------------------------------------------------------------------------


class Project:
    """A directory with tools, laid out as any project, and the environment it is served in."""

    def __init__(self, root: str, env: dict[str, str], tools: dict[str, str]):
        self.root, self.env = root, env
        self.names = sorted(tools)
        self.registry = os.path.join(root, ".registry")  # what a server may leave for its next start
        for name, text in tools.items():
            self.add(name, text)

    def add(self, name: str, text: str) -> None:
        """Add one tool: a script and its metadata."""
        properties = {"text": {"type": "string", "description": "what to work on"}, "count": {"type": "integer"}}
        schema = {"type": "object", "properties": properties}
        meta = {"name": name, "description": f"The tool {name} of the benchmark.", "inputSchema": schema}
        os.makedirs(os.path.dirname(self.script(name)))
        write_file(self.script(name), text, 0o755)
        write_file(self.script(name)[:-2] + "meta.json", json.dumps(meta))

    def script(self, tool: str) -> str:
        """Return the path of a tool's script."""
        return f"{self.root}/tools/{tool}/tool.sh"


class Scratch:
    """The directory of a run: reference servers, prepared outputs, home of the servers, and the projects."""

    def __init__(self, root: str):
        self.root = root
        self.projects: dict[int, Project] = {}  # by number of equal tools; 0 is the one with a tool of each kind
        self.env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        for variable, name in (("HOME", "home"), ("TMPDIR", "tmp")):
            self.env[variable] = os.path.join(root, name)
            os.mkdir(self.env[variable])
        for name, text in (("pyfloor.py", PYFLOOR), ("pysdk.py", PYSDK), ("1", "x" * MB), ("8", "x" * (8 * MB))):
            write_file(os.path.join(root, name), text)

    def project(self, tools: int = 0) -> Project:
        """Return a project, made when first asked for."""
        if tools not in self.projects:
            root = os.path.join(self.root, f"project-{tools}")
            each_kind = {name: text.replace("{scratch}", shlex.quote(self.root)) for name, text in TOOLS.items()}
            equal = {f"tool-{number:04d}": TOOLS["hi"] for number in range(tools)}
            self.projects[tools] = Project(root, self.env, equal or each_kind)
        return self.projects[tools]


class Column:
    """One subject of the measurement; without a command it is the bare one."""

    def __init__(self, name: str, argv: list[str], slow: int = 1, is_product: bool = False):
        self.name, self.argv = name, argv
        self.slow = slow  # so many times fewer rounds, pings and lists than the others
        self.is_product = is_product  # it has our SDK and our registry on disk

    def start(self, project: Project) -> Any:
        """Start it on a project."""
        argv = [word.replace("{project}", project.root) for word in self.argv]
        return Peer(self.name, argv, project) if argv else Bare(project)


def write_file(path: str, text: str, mode: int = 0o644) -> None:
    """Write a new file."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)


def real_python(given: str | None) -> str:
    """Return the interpreter itself, behind shims, links and virtual environments."""
    if given:
        command = [given, "-c", "import sys; print(sys.executable)"]
        given = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode().strip()
    return os.path.realpath(given or sys.executable)


def clean_python(python: str, root: str) -> str:
    """Return that interpreter in an empty virtual environment: what others installed must not start with the server."""
    os.makedirs(os.path.join(root, "bin"))
    settings = f"home = {os.path.dirname(python)}\ninclude-system-site-packages = false\n"
    write_file(os.path.join(root, "pyvenv.cfg"), settings)
    link = os.path.join(root, "bin", "python3")
    os.symlink(python, link)
    return link


def sdk_python() -> tuple[str, str]:
    """Return the interpreter that can import the official SDK, or nothing, and its version or why there is none."""
    probe = "import mcp_types, mcp.server.lowlevel, importlib.metadata as m; print(m.version('mcp'))"
    says = "left out, there is no tests/.cache/venv*/bin/python"
    for path in sorted(glob.glob(os.path.join(HERE, ".cache/venv*/bin/python"))):
        done = subprocess.run([path, "-c", probe], capture_output=True, check=False)
        if done.returncode == 0:
            return path, f"{done.stdout.decode().strip()} ({path})"
        says = f"left out, {path} cannot import version 2 of the package mcp"
    return "", says


def make_columns(options: argparse.Namespace, python: str, scratch: str, sdk: str) -> list[Column]:
    """Return the columns of this run, ours first."""
    ours = [python, os.path.join(os.path.dirname(HERE), "mcp_bash.py"), "--project-root", "{project}"]
    if options.server:
        ours = [word.replace("{python}", python) for word in shlex.split(options.server)]
        ours[0] = shutil.which(ours[0]) or ours[0]
        ours += [] if "{project}" in options.server else ["--project-root", "{project}"]
    columns = [Column("ours", ours, is_product=True)]
    if options.compare:
        before = [python, os.path.abspath(options.compare), "--project-root", "{project}"]
        columns.append(Column("before", before, is_product=True))
    columns.append(Column("bare", []))
    columns.append(Column("pyfloor", [python, "-I", "-S", scratch + "/pyfloor.py", "{project}"]))
    if sdk:
        columns.append(Column("pysdk", [sdk, scratch + "/pysdk.py", "{project}"], slow=4))
    return columns


# ------------------------------------------------------------------------------------------------------------------
# 6. Rows: one generator per group. It sets up, then gives {row: value} once per round; closing it cleans up.
# ------------------------------------------------------------------------------------------------------------------

GROUPS: dict[str, Callable] = {}  # filled by the decorator below
SERVERS_ONLY = ("cold", "ping", "list", "idle")  # groups in which a bare run has no meaning
FRESH = ("list", "load")  # groups that start new processes in each round and do without a first round for warmth
NEEDS_PROC = ("cold", "call", "load", "idle")  # groups that read /proc


def group(name: str) -> Callable:
    """Register a generator as the one of this group."""
    return lambda function: GROUPS.setdefault(name, function)


@group("cold")
def cold_start(column: Column, scratch: Scratch, size: int) -> Iterator[dict]:
    """From the start of the interpreter to the first answers."""
    while True:
        with column.start(scratch.project()) as peer:
            hello = peer.hello()
            peer.call("hi", "hi")
            first = peer.answered - peer.started
            values = {"cold_init": hello * 1e3, "cold_call": first * 1e3, "cold_cpu": peer.cpu() * 1e3}
        yield values


@group("call")
def sequential_calls(column: Column, scratch: Scratch, size: int) -> Iterator[dict]:
    """One call after the other."""
    with column.start(scratch.project()) as peer:
        peer.hello()
        while True:
            cpu = peer.cpu()
            times = [seconds * 1e3 for seconds in peer.call("hi", "hi", size)]
            used = (peer.cpu() - cpu) / size * 1e3
            yield {"call_p50": statistics.median(times), "call_p99": times, "call_cpu": used}


@group("args")
def argument_reads(column: Column, scratch: Scratch, size: int) -> Iterator[dict]:
    """A bash tool that prints its three arguments; ours reads them through the SDK, the others from variables."""
    arguments, text = json.dumps(ARGUMENTS).encode(), " ".join(map(str, ARGUMENTS.values()))
    with column.start(scratch.project()) as peer:
        peer.hello()
        while True:
            values = {}
            for row in ("args_into", "args_fork"):
                tool = row if column.is_product else "args_plain"
                values[row] = statistics.median(peer.call(tool, text, size, arguments=arguments)) * 1e3
            yield values


@group("burst")
def calls_in_flight(column: Column, scratch: Scratch, size: int) -> Iterator[dict]:
    """Many calls, some of them in flight at any time."""
    with column.start(scratch.project()) as peer:
        peer.hello()
        while True:
            yield {"burst": peer.call("hi", "hi", size, WIDTH)[0] / size * 1e3}


@group("ping")
def pings(column: Column, scratch: Scratch, size: int) -> Iterator[dict]:
    """Round trips, and a pile of pings in one write."""
    count = size // column.slow
    with column.start(scratch.project()) as peer:
        peer.hello()
        while True:
            times = peer.ask("ping", b"{}", is_object, count // 10)
            pile = peer.ask("ping", b"{}", is_object, count, count)[0]
            yield {"ping_p50": statistics.median(times) * 1e6, "ping_rate": count / pile}


@group("list")
def tool_lists(column: Column, scratch: Scratch, size: int) -> Iterator[dict]:
    """tools/list over growing projects: cold, cold with what the last start left on disk, warm."""
    with column.start(scratch.project()) as peer:
        peer.hello()
    while True:
        values: dict[str, float] = {}
        for tools in SIZES:
            project = scratch.project(tools)
            shutil.rmtree(project.registry, ignore_errors=True)
            for kind in ("cold", "cache") if column.is_product else ("cold",):
                with column.start(project) as peer:
                    peer.hello()
                    peer.list_all()
                    values[f"list_{kind}_{tools}"] = (peer.answered - peer.started) * 1e3
                    values.update(warm_lists(peer, tools, size // column.slow))
        for name, row in (("cold", "list_cold_%d"), ("warm", "list_all_%d")):
            points = [(tools, values[row % tools]) for tools in SIZES]
            values["grow_" + name] = exponent(points)
            values[f"grow_{name}_top"] = exponent(points[-2:])
        yield values


@group("load")
def memory_and_cpu(column: Column, scratch: Scratch, size: int) -> Iterator[dict]:
    """Memory of a fresh server, then memory and CPU after many calls."""
    while True:
        values: dict[str, float] = {}
        with column.start(scratch.project()) as peer:
            peer.hello()
            if column.argv:
                peer.list_all()
                values.update(weigh(peer.pid, "start"))
            own, everything = peer.cpu(), peer.cpu_all()
            peer.call("hi", "hi", size, WIDTH)
            values["load_cpu"] = (peer.cpu() - own) / size * 1e3
            if column.argv:
                values.update(weigh(peer.pid, "calls"))
            values["load_all"] = (peer.cpu_all() - everything) / size * 1e3
        yield values


@group("idle")
def idle_cpu(column: Column, scratch: Scratch, size: int) -> Iterator[dict]:
    """CPU of a server that nobody asks anything. All columns idle at the same time."""
    with column.start(scratch.project()) as peer:
        peer.hello()
        peer.call("hi", "hi")
        settle(peer.pid)
        start, cpu = clock(), peer.cpu()
        yield {}
        while True:
            time.sleep(max(0.0, start + size - clock()))
            yield {"idle_cpu": (peer.cpu() - cpu) / (clock() - start) * 1e3}
            start, cpu = clock(), peer.cpu()


@group("data")
def payloads(column: Column, scratch: Scratch, size: int) -> Iterator[dict]:
    """Megabytes in as an argument, megabytes back as output."""
    arguments = {millions: b'{"text":"%s"}' % (b"x" * (millions * MB)) for millions in (1, 10) if column.argv}
    outputs = {millions: "x" * (millions * MB) for millions in (1, 8)}
    with column.start(scratch.project()) as peer:
        peer.hello()
        for text in arguments.values():  # it arrives whole: the file has at least as many bytes as the text
            peer.ask("tools/call", call_params("size", text), partial(has_size, len(text)))
        while True:
            values = {f"out_{n}": n / peer.call(f"out_{n}", text)[0] for n, text in outputs.items()}
            for millions, text in arguments.items():
                values[f"arg_{millions}"] = millions / peer.call("sink", "", arguments=text)[0]
            yield values


def has_size(size: int, result: dict) -> bool:
    """Tell whether the tool that counts bytes has counted at least these."""
    return int(printed(result) or 0) >= size


def is_object(result: object) -> bool:
    """Tell whether a ping was answered with an object."""
    return isinstance(result, dict)


def warm_lists(peer: Peer, tools: int, size: int) -> dict[str, float]:
    """Return the median times of first pages and of full lists on a running server."""
    names = set(peer.project.names)
    first = peer.ask("tools/list", b"{}", lambda r: names.issuperset(t["name"] for t in r["tools"]), size)
    full = [peer.list_all() for _ in range(size)]
    medians = statistics.median(first) * 1e3, statistics.median(full) * 1e3
    return {f"list_first_{tools}": medians[0], f"list_all_{tools}": medians[1]}


def weigh(pid: int, when: str) -> dict[str, float]:
    """Return the memory rows of a tree that has come to rest."""
    settle(pid)
    return {"rss_" + when: memory(pid, "status", "VmRSS:"), "pss_" + when: memory(pid, "smaps_rollup", "Pss:")}


def exponent(points: list[tuple[int, float]]) -> float:
    """Return the slope of the least-squares line through the logarithms."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    middle_x, middle_y = statistics.fmean(xs), statistics.fmean(ys)
    above = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys))
    return above / sum((x - middle_x) ** 2 for x in xs)


# ------------------------------------------------------------------------------------------------------------------
# 7. Rounds: every round visits every column once; samples keep the number of their round.
# ------------------------------------------------------------------------------------------------------------------


class Samples:
    """Values by row, column and round, and the statistics over them."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, dict[int, Any]]] = {}

    def add(self, column: str, turn: int, values: dict) -> None:
        """Record the values of one round."""
        for key, value in values.items():
            self.values.setdefault(key, {}).setdefault(column, {})[turn] = value

    def all(self, key: str, column: str) -> list[float]:
        """Return every value of a cell; a pooled row gives its one quantile."""
        found = self.values.get(key, {}).get(column, {})
        if key not in POOLED:
            return [*found.values()]
        pool = sorted(value for values in found.values() for value in values)
        return [pool[min(len(pool) - 1, int(len(pool) * POOLED[key]))]] if pool else []

    def middle(self, key: str, column: str) -> float | None:
        """Return the median of a cell, or None when it is empty."""
        values = self.all(key, column)
        return statistics.median(values) if values else None

    def best(self, key: str, column: str) -> float | None:
        """Return the least value of a cell, for a rate the greatest, or None when it is empty."""
        values = self.all(key, column)
        return (max if ROW[key].unit in RATES else min)(values) if values else None

    def best_ratio(self, key: str) -> float:
        """Return the cost of our best round over that of the reference's best: the least disturbed of each."""
        ours, theirs = self.best(key, "ours") or 0.0, self.best(key, ROW[key].reference) or math.inf
        return theirs / ours if ROW[key].unit in RATES else ours / theirs

    def ratios(self, key: str, column: str, reference: str) -> list[float]:
        """Return the cost of a column over that of another, one number per round that has both."""
        ours, theirs = self.values.get(key, {}).get(column, {}), self.values.get(key, {}).get(reference, {})
        turns = sorted(set(ours) & set(theirs))
        pairs = [(ours[turn], theirs[turn]) for turn in turns]
        if key in POOLED:
            pairs = [*zip(self.all(key, column), self.all(key, reference))]
        if ROW[key].unit in RATES:
            pairs = [(theirs, ours) for ours, theirs in pairs]
        return [a / b for a, b in pairs if b]


def run_group(name: str, columns: list[Column], scratch: Scratch, scale: tuple[int, int], samples: Samples) -> None:
    """Run the rounds of one group over its columns; most have a round before, which is not recorded."""
    rounds, size = scale
    taking = [column for column in columns if column.argv or name not in SERVERS_ONLY]
    running = [(column, GROUPS[name](column, scratch, size)) for column in taking]
    try:
        for turn in range(0 if name in FRESH else -1, rounds):
            shift = turn % len(running)
            for column, steps in running[shift:] + running[:shift]:
                if turn < 0 or turn % column.slow == 0:
                    values = next(steps)
                    samples.add(column.name, turn, values if turn >= 0 else {})
    finally:
        for _, steps in running:
            steps.close()


def calibrate(project: Project) -> dict[str, list[float]]:
    """Measure the machine and the driver itself: no server is involved."""
    found: dict[str, list[float]] = {key: [] for key in CALIBRATION}
    line = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
    block = b"x" * (8 * MB) + b"\n"
    with Peer("cat", ["/bin/cat"], project) as cat, Bare(project) as bare:
        for _ in range(9):
            found["busy"].append(busy_share(0.1) if HAS_PROC else 0.0)
            found["spin"].append(timed(lambda: sum(range(200000))) * 1e3)
            one, two = (statistics.median(bare.call("hi", "hi", 25)) for _ in "ab")
            found["twin"].append(one / two)
            found["echo"].append(statistics.median(timed(lambda: cat.exchange([line])) for _ in range(200)) * 1e6)
            found["echo_rate"].append(3000 / timed(lambda: cat.exchange([line] * 3000, 3000)))
            found["echo_data"].append(8 / timed(lambda: cat.exchange([block])))
    return found


def timed(function: Callable) -> float:
    """Return the seconds that a function took."""
    start = clock()
    function()
    return clock() - start


# ------------------------------------------------------------------------------------------------------------------
# 8. Report: who ran, how noisy it was, every row, and last the goals.
# ------------------------------------------------------------------------------------------------------------------


def short(number: float | None) -> str:
    """Write a number with three significant digits, at most three of them behind the point."""
    if number is None:
        return "-"
    places = 2 - math.floor(math.log10(abs(number))) if number else 0
    return f"{number:.{min(max(places, 0), 3)}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Lay out cells in columns, the first one left, the others right."""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(zip(line, widths)))
        for line in lines
    )


def calibration_table(before: dict[str, list[float]], after: dict[str, list[float]]) -> str:
    """Show what the machine and the driver did without a server, before and after the run."""
    rows = []
    for key, what in CALIBRATION.items():
        low, middle, high = statistics.quantiles(before[key], n=4)
        cells = [short(middle), f"{short(low)}-{short(high)}", short(min(before[key]))]
        rows.append([what, *cells, short(statistics.median(after[key]))])
    return table(["calibration", "median", "quartiles", "min", "after"], rows)


def full_table(samples: Samples, columns: list[Column]) -> str:
    """Show each measured row: per column median and (best); the ratio to the reference with its quartiles."""
    rows = []
    for row in ROWS:
        if row.key not in samples.values:
            continue
        cells = []
        for column in columns:
            middle, best = samples.middle(row.key, column.name), samples.best(row.key, column.name)
            cells.append("-" if middle is None else f"{short(middle)} ({short(best)})")
        label = f"{row.what} [{row.unit}]" if row.unit else row.what
        compared = [spread(samples.ratios(row.key, "ours", "before"))] if columns[1].name == "before" else []
        rows.append([label, *cells, spread(samples.ratios(row.key, "ours", row.reference)), row.reference, *compared])
    head = ["row: median (best)", *(column.name for column in columns), "ratio [quartiles]", "to"]
    return table(head + (["to before"] if columns[1].name == "before" else []), rows)


def spread(ratios: list[float]) -> str:
    """Write the median of some ratios and their quartiles."""
    if not ratios:
        return "-"
    if len(ratios) < 3:
        return short(statistics.median(ratios)) + "x"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{short(middle)}x [{short(low)}-{short(high)}]"


def judge(samples: Samples) -> list[dict]:
    """Return one verdict per goal whose row was measured."""
    verdicts = []
    for goal in GOALS:
        row, ours = ROW[goal.key], samples.middle(goal.key, "ours")
        ratios = samples.ratios(goal.key, "ours", row.reference)
        ratio = statistics.median(ratios) if ratios else None
        value = ratio if goal.basis == "ratio" else ours
        if value is None:
            continue
        verdict = {"row": goal.key, "ours": ours, "reference": samples.middle(goal.key, row.reference), "ratio": ratio}
        unit = f"x {row.reference}" if goal.basis == "ratio" else " " + row.unit
        verdict["goal"] = f"{goal.sign} {goal.bound}{unit}".rstrip()
        verdict["met"] = SIGNS[goal.sign](value, goal.bound)
        verdict["missed_by"] = 0.0 if verdict["met"] else abs(value - goal.bound) / goal.bound
        best = samples.best_ratio(goal.key) if goal.basis == "ratio" else samples.best(goal.key, "ours")
        verdict["best_met"] = SIGNS[goal.sign](best, goal.bound)
        verdicts.append(verdict)
    return verdicts


def goals_table(verdicts: list[dict]) -> str:
    """Show the goals, one line each."""
    rows = []
    for verdict in verdicts:
        row = ROW[verdict["row"]]
        said = "met" if verdict["met"] else f"missed by {verdict['missed_by']:.0%}"
        said += ", met by the best rounds" if verdict["best_met"] and not verdict["met"] else ""
        ratio = "-" if verdict["ratio"] is None else short(verdict["ratio"]) + "x"
        label = f"{row.what} [{row.unit}]" if row.unit else row.what
        rows.append([label, short(verdict["ours"]), short(verdict["reference"]), ratio, verdict["goal"], said])
    return table(["row", "ours", "reference", "ratio", "goal", "verdict"], rows)


def as_json(about: dict, samples: Samples, calibration: dict, verdicts: list[dict]) -> dict:
    """Return everything that was measured, for programs."""
    rows = {}
    for key, cells in samples.values.items():
        row = ROW[key]
        columns = {}
        for name in cells:
            values = {"median": samples.middle(key, name), "best": samples.best(key, name)}
            columns[name] = {**values, "samples": samples.all(key, name)}
        ratios = {name: samples.ratios(key, "ours", name) for name in cells if name != "ours"}
        middles = {name: statistics.median(found) for name, found in ratios.items() if found}
        rows[key] = {"what": row.what, "unit": row.unit, "reference": row.reference, "columns": columns}
        rows[key]["cost_of_ours_over"] = middles
    return {"about": about, "calibration": calibration, "rows": rows, "goals": verdicts}


# ------------------------------------------------------------------------------------------------------------------
# 9. main
# ------------------------------------------------------------------------------------------------------------------


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no official SDK, about 20 seconds")
    parser.add_argument("--rows", metavar="A,B", help="groups of rows: " + ", ".join(SCALES))
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of every group, instead of its own number")
    parser.add_argument("--python", metavar="PATH", help="interpreter for the servers (default: this one)")
    parser.add_argument("--server", metavar="CMD", help="measure this as ours; {python}, {project} are filled in")
    parser.add_argument("--compare", metavar="FILE", help="another mcp_bash.py, measured in the same rounds")
    parser.add_argument("--json", metavar="FILE", help="also write everything measured here")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    options = parser.parse_args(arguments)
    options.groups = options.rows.split(",") if options.rows else [*SCALES]
    for name in options.groups:
        if name not in SCALES:
            parser.error("--rows: there is no group {!r}; the groups are {}".format(name, ", ".join(SCALES)))
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is too few; give 1 or more")
    return options


def describe(python: str, sdk: str) -> dict[str, str]:
    """Return what a reader must know about this run."""
    version = subprocess.run([python, "-V"], stdout=subprocess.PIPE, check=True).stdout.decode().strip()
    inherited = os.environ.get("PYTHONDONTWRITEBYTECODE")
    return {
        "servers run on": f"{version} ({python}, in an empty virtual environment)",
        "driver": f"Python {platform.python_version()}",
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}",
        "PYTHONDONTWRITEBYTECODE": f"{inherited!r} here, not given to the servers" if inherited else "not set",
        "official SDK": sdk,
    }


def scale_of(name: str, options: argparse.Namespace) -> tuple[int, int]:
    """Return rounds and size of a group."""
    scale = SCALES[name]
    rounds, size = (scale.quick_rounds, scale.quick_size) if options.quick else (scale.rounds, scale.size)
    return options.rounds or rounds, size


def run(options: argparse.Namespace, scratch: Scratch) -> int:
    """Measure, report, and return the exit code."""
    python = real_python(options.python)
    sdk, sdk_says = ("", "left out of quick runs") if options.quick else sdk_python()
    clean = clean_python(python, os.path.join(scratch.root, "python"))
    columns, samples = make_columns(options, clean, scratch.root, sdk), Samples()
    about, began = describe(python, sdk_says), clock()
    for what, says in about.items():
        print(f"{what}: {says}")
    before = calibrate(scratch.project())
    for name in options.groups:
        if name in NEEDS_PROC and not HAS_PROC:
            print(f"{name}: left out, there is no /proc here to read CPU and memory from", file=sys.stderr)
            continue
        start = clock()
        run_group(name, columns, scratch, scale_of(name, options), samples)
        print(f"{name}: {clock() - start:.1f} s", file=sys.stderr)
    after, verdicts = calibrate(scratch.project()), judge(samples)
    about["seconds"] = f"{clock() - began:.1f}"
    reports = calibration_table(before, after), full_table(samples, columns), goals_table(verdicts)
    print("seconds: {}\n\n{}".format(about["seconds"], "\n\n".join(reports)))
    busy = statistics.median(before["busy"] + after["busy"])
    if busy > TOO_BUSY:
        print(
            f"note: others used {busy:.0f} % of this machine; judge ratios and CPU, not ms, MB/s and /s",
            file=sys.stderr,
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(as_json(about, samples, {"before": before, "after": after}, verdicts), file, indent=1)
    return 1 if options.check and not all(verdict["met"] for verdict in verdicts) else 0


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark in a scratch directory of its own."""
    options = parse(arguments)
    os.umask(0o022)
    gc.disable()  # a collection here would count as time of whoever is being measured
    bytearray(24 * MB)  # once freed, malloc keeps such blocks: no page faults inside somebody's megabytes
    scratch = os.path.realpath(tempfile.mkdtemp(prefix="bench-"))
    try:
        return run(options, Scratch(scratch))
    except Wrong as wrong:
        print(f"bench: {wrong}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
