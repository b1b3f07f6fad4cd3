#!/usr/bin/env python3
"""Lines no client should send, by the thousand: the server answers every request once and never stumbles (G8).

 1  Corpus     messages of both eras, lines and values that have broken servers before
 2  Mutations  of messages by their grammar, of lines by their bytes; all from one seed
 3  Stage      the real dispatcher in this process; tools are played, not started
 4  Ledger     what was asked against what was answered
 5  Tests      20,000 lines in this process (--fuzz: 1,000,000), 2,000 through real pipes, outputs of tools

A failure names the seed, the round and the line; MCPBASH_TEST_ROUND=17 repeats that round alone.
"""
from __future__ import annotations

import base64
import copy
import errno
import json
import os
import random
import re
import sys
import tempfile
import unittest
from collections.abc import Iterator
from typing import Any, Callable
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support
from support import Case, Project, id_key, is_id, stateless, strict_json

sys.path.insert(0, support.ROOT)

import mcp_bash

SEED = 20268
LINES = 1_000_000 if support.FUZZ else 20_000  # in this process
PIPED = 20_000 if support.FUZZ else 2_000  # through real pipes
ROUND = 500  # lines that one server gets
TROUBLE = re.compile("error|critical|Traceback|incident|unexpected")

# ======================================================================================================================
# 1. CORPUS — messages of both eras, lines and values that have broken servers before.
# ======================================================================================================================

P = support.PREFIX
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}}
ARGUMENTS = {"a": 1, "b": ["x", None, 1.5], "c": {"d": "é", "x y": True}}


def cursor(**fields: Any) -> str:
    """Return a cursor with this content, as the server would encode it."""
    payload = {"ver": 1, "collection": "tools", "offset": 1, "hash": "0" * 64, **fields}
    payload = {key: value for key, value in payload.items() if value is not ...}
    return base64.urlsafe_b64encode(json.dumps(payload).encode()).rstrip(b"=").decode("ascii")


# (method, params); each is sent as it is, with the envelope of the stateless era, and mutated.
MESSAGES: list[tuple[str, Any]] = [
    ("ping", {}),
    ("tools/list", {}),
    ("tools/list", {"cursor": "x", "limit": 1}),
    ("tools/list", {"cursor": cursor()}),
    ("tools/list", {"cursor": cursor(offset=...)}),
    ("tools/list", {"cursor": cursor(hash=...)}),
    ("tools/list", {"cursor": cursor(hash=[], offset=10**30)}),
    ("tools/call", {"name": "echo", "arguments": {}}),
    ("tools/call", {"name": "echo", "arguments": ARGUMENTS, "_meta": {"progressToken": "t"}}),
    ("tools/call", {"name": "fail", "timeoutSecs": 1}),
    ("tools/call", {"name": "no such tool", "arguments": {"a": "b"}}),
    ("tools/call", {"name": "echo", "_meta": {"progressToken": 7, "traceparent": "00-1-2-03"}}),
    ("server/discover", {}),
    ("logging/setLevel", {"level": "debug"}),
    ("subscriptions/listen", {"notifications": {"toolsListChanged": True}}),
    ("resources/list", {}),
    ("prompts/get", {"name": "x"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}}),
    ("initialize", INITIALIZE),
    ("no/such/method", {"deep": [[[[]]]]}),
]
NOTIFICATIONS: list[tuple[str, Any]] = [
    ("notifications/initialized", {}),
    ("notifications/cancelled", {"requestId": 1, "reason": "why not"}),
    ("notifications/cancelled", {}),
    ("notifications/progress", {"progressToken": 1, "progress": 1}),
    ("notifications/roots/list_changed", None),
    ("notifications/unknown", {}),
]
ENDING: list[tuple[str, Any]] = [("shutdown", {}), ("exit", {})]  # only at the end of a round

# Lines as they stand: PA-01, -02, -04, -05, -07, -12, -13, -14, -15, -20; PR-01, -04, -05, -06, -07, -08, -09, -11.
LINES_AS_THEY_ARE = [
    b"not-json",
    b'{"jsonrpc":"2.0","id":71,"method":"ping"}{"jsonrpc":"2.0","id":72,"method":"ping"}',
    *(b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % word for word in (b"true", b"1.5", b"null", b"{}", b"[]")),
    b'{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1180591620717411303424,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":"%s","method":"ping"}' % (b"x" * 20_000),
    b'{"jsonrpc":"2.0","id":1,"method":"%s"}' % (b"m" * 20_000),
    b"",
    b" \t\r",
    b"\xef\xbb\xbf" + b'{"jsonrpc":"2.0","id":2,"method":"ping"}\r',
    b"[]",
    b"[1,2,3]",
    b'[{"jsonrpc":"2.0","id":3,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"},7]',
    b"[" + b",".join([b'{"jsonrpc":"2.0","id":4,"method":"ping"}'] * 1001) + b"]",
    b'{"jsonrpc":"1.0","id":5,"method":"ping"}',
    b'{"id":6,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":7,"method":8}',
    b'{"jsonrpc":"2.0","id":9,"method":"ping","result":{}}',
    b'{"jsonrpc":"2.0","id":99,"result":{}}',
    b'{"jsonrpc":"2.0","id":99,"error":{"code":1,"message":"x"}}',
    b'{"jsonrpc":"2.0","id":10,"method":"tools/call","params":[]}',
    b'{"jsonrpc":"2.0","id":11,"method":"tools/call","params":"x"}',
    b'{"jsonrpc":"2.0","id":12,"method":"tools/call","params":{"name":"echo","arguments":[]}}',
    b"[" * 20_000,
    b'{"a":' * 20_000,
    b"[" * 130 + b"]" * 130,
    b'{"jsonrpc":"2.0","id":13,"method":"\xff\xfe"}',
    b'{"jsonrpc":"2.0","id":14,"method":"pi\x00ng"}',
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
    b'{"jsonrpc":"2.0","id":15,"method":"\\ud800"}',
    b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % (b"1" * 4300),
    b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % (b"1" * 4301),
    b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":-Infinity,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}',
    b"[" + b"[]," * 10_000 + b"[]]",
    b"\x00",
    b"nul",
    b'"',
    b"{",
    b'{"jsonrpc":"2.0","id":16,"id":17,"method":"ping"}',
]

HUGE = "@1e999@"  # becomes the number 1e999, which the encoder would not write
ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 1.5, -0.0, 2**53 + 1, 2**70, -(2**63), 10**4299, HUGE, "", " ", "\0", "\n", "\u2028",
    "\ud800", "\udcff", "é", "x" * 5000, "../../etc/passwd", "-n", "1", "__class__", "%s%n", "$(id)", "echo", [], {},
    [[]], {"": ""}, {"\0": 1}, {"\ud800": "\ud800"}, [None] * 50, {"a": {"b": {"c": {}}}}, "2025-03-26", "2026-07-28",
    "1900-01-01", "debug", "tools/call", cursor(ver="1"), cursor(collection=None), cursor(offset=True),
]  # fmt: skip
ODD_KEYS = [
    "jsonrpc", "id", "method", "params", "result", "error", "_meta", "name", "arguments", "cursor", "limit", "level",
    "requestId", "reason", "timeoutSecs", "notifications", "protocolVersion", "capabilities", "clientInfo", "", "\0",
    "\ud800", "traceparent", "progressToken", "task", P + "protocolVersion", P + "clientCapabilities", P + "logLevel",
]  # fmt: skip

# ======================================================================================================================
# 2. MUTATIONS — of messages by their grammar, of lines by their bytes; all from one seed.
# ======================================================================================================================


def to_line(value: Any) -> bytes:
    """Return a message as a line, with numbers that JSON encoders do not write."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace('"%s"' % HUGE, "1e999").encode("ascii")


def containers_in(value: Any) -> list[Any]:
    """Return every object and array in a value, itself first."""
    found = [value] if isinstance(value, (dict, list)) else []
    for each in found:
        members = each.values() if isinstance(each, dict) else each
        found.extend(member for member in members if isinstance(member, (dict, list)))
    return found


class Fuzzer:
    """Makes lines; the same ones for the same seed."""

    def __init__(self, seed: Any) -> None:
        self.random = random.Random(seed)
        self._count = 0
        self._ids: list[Any] = [1, "1"]  # some that were used, to be used again and to be cancelled

    def new_id(self) -> Any:
        """Return an id that no other request has."""
        self._count += 1
        number = self.random.choice((self._count + 1000, "s%d" % self._count, -self._count - 1000))
        self._ids.append(number)
        return number

    def message(self) -> dict:
        """Return a sound message of either era."""
        if self.random.random() < 0.15:
            method, params = self.random.choice(NOTIFICATIONS)
            params = {**(params or {}), "requestId": self.random.choice(self._ids[-20:])}
            return {"jsonrpc": "2.0", "method": method, "params": params}
        method, params = self.random.choice(MESSAGES)
        params = copy.deepcopy(params)  # mutations must not get into the corpus
        if self.random.random() < 0.5:
            level = self.random.choice((None, "info"))
            params = stateless(params, log_level=level)
        return {"jsonrpc": "2.0", "id": self.new_id(), "method": method, "params": params}

    def mutated(self, message: dict) -> Any:
        """Return a message with some of its members changed, removed or added."""
        for _ in range(self.random.randint(1, 3)):
            place = self.random.choice(containers_in(message))
            value = copy.deepcopy(self.random.choice(ODD_VALUES))
            if isinstance(place, list):
                place.insert(self.random.randint(0, len(place)), value)
            elif place and self.random.random() < 0.7:
                key = self.random.choice(sorted(place))
                if self.random.random() < 0.3:
                    del place[key]
                else:
                    place[key] = value
            else:
                place[self.random.choice(ODD_KEYS)] = value
        return [message, self.message()] if self.random.random() < 0.05 else message

    def shaken(self, line: bytes) -> bytes:
        """Return a line with some of its bytes changed."""
        data = bytearray(line)
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randint(0, len(data))
            end = min(len(data), at + self.random.choice((1, 1, 2, 10, 100)))
            self.random.choice(BYTE_MUTATIONS)(self, data, at, end)
        return bytes(data)

    def line(self) -> tuple[bytes, Any]:
        """Return a line, and the id it is certain to be answered under, None when that is not certain."""
        dice = self.random.random()
        message = self.message()
        if dice < 0.25:
            return to_line(message), message.get("id")
        if dice < 0.70:
            return to_line(self.mutated(message)), None
        if dice < 0.95:
            return self.shaken(to_line(message)), None
        return self.random.choice(LINES_AS_THEY_ARE), None

    def start(self) -> list[bytes]:
        """Return the lines that open a session, or none."""
        version = self.random.choice((*support.HANDSHAKE_VERSIONS, "", "1900-01-01"))
        params = {**INITIALIZE, "protocolVersion": version}
        opening = {"jsonrpc": "2.0", "id": "opening", "method": "initialize", "params": params}
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        return [to_line(opening), to_line(ready)][: self.random.choice((0, 1, 2, 2, 2, 2))] if version else []


def flip(fuzzer: Fuzzer, data: bytearray, at: int, end: int) -> None:
    """Change one bit."""
    if at < len(data):
        data[at] ^= 1 << fuzzer.random.randint(0, 7)


def cut(fuzzer: Fuzzer, data: bytearray, at: int, end: int) -> None:
    """Remove some bytes."""
    del data[at:end]


def repeat(fuzzer: Fuzzer, data: bytearray, at: int, end: int) -> None:
    """Repeat some bytes."""
    data[at:at] = data[at:end] * fuzzer.random.choice((1, 2, 50))


TOKENS = (b'"', b"\\", b"{", b"]", b",", b":", b"\xff", b"\x00", b"\xed\xa0\x80", b"1e999", b"\\ud800", b"-", b".")


def put(fuzzer: Fuzzer, data: bytearray, at: int, end: int) -> None:
    """Insert what means something to a parser."""
    data[at:at] = fuzzer.random.choice(TOKENS)


def splice(fuzzer: Fuzzer, data: bytearray, at: int, end: int) -> None:
    """Go on with a part of another line."""
    other = to_line(fuzzer.message())
    data[at:] = other[fuzzer.random.randint(0, len(other)) :]


BYTE_MUTATIONS: list[Callable[[Fuzzer, bytearray, int, int], None]] = [flip, cut, repeat, put, splice]

# ======================================================================================================================
# 3. STAGE — the real dispatcher in this process; tools are played, not started.
# ======================================================================================================================
#
# Server.serve() runs as usual, but its input never says anything: lines are handed to Server.receive() by what stands
# in for the housekeeping, one per turn of the loop, and so are the ends of the tools that are played.

# What a tool may print, and the records it may send.
OUTPUTS = [
    b"", b"hi\n", b"\xff\xfe\x00", b"{}", b"[]", b"null", b"1", b'"x"', b'{"code":-1,"message":"m"}', b'{"code":1e5}',
    b'{"content":[],"isError":false}', b'{"content":[{"type":"text","text":"x"}],"isError":1,"_meta":{"a":1}}',
    b'{"content":[{"type":"text"}],"isError":false,"structuredContent":[1]}', b"{" * 300, b"[" * 200 + b"]" * 200,
    b'{"content":[{"type":"image","data":"","annotations":[]}],"isError":null}', b"x" * 70_000, b"\xed\xa0\x80",
    b'{"content":[{"type":"audio","mimeType":7}],"isError":[]}', b'{"a":"\\ud800"}', b"1" * 5000,
    b'{"content":[{"type":"resource_link","uri":[],"name":{}}],"isError":false}', b'{"a":1}{"b":2}',
    b'{"content":[],"isError":false,"_meta":5}', b'{"content":[],"isError":false,"_meta":[[1,2]]}', b'{"a":1e999}',
    b'{"content":[],"isError":false,"structuredContent":-1e999}', b'{"code":-32000,"message":"m","data":1e999}',
    b'{"content":[{"type":"resource"}],"isError":false,"resultType":[],"task":1}', b'{"code":true,"message":""}',
]  # fmt: skip
RECORDS = [
    b"", b"progress", b"progress\t1\t2\thalf", b"progress\tnan\t\t", b"progress\t1e400\t\t", b"progress\t-1\t\t\t\t",
    b"log\tinfo\tlogger\ttext", b"log\tno level\t\t", b"logjson\tdebug\tx\t{", b"logjson\tdebug\tx\t[1]", b"fail",
    b"fail\t-32000\t{}\tno", b"fail\tx\t\t", b"fail\t99999999999\t1e999\tm", b"\xff\xfe", b"unknown\t1", b"{", b"{}",
    b'{"method":"notifications/progress","params":{"progress":5,"message":[]}}',
    b'{"method":"notifications/progress","params":{"progress":true}}', b'{"params":[]}', b"[1]",
    b'{"method":"notifications/message","params":{"level":"info","data":{"a":[1]}}}',
    b'{"method":[],"params":{"level":"info"}}', b"progress\t" + b"9" * 400, b"logjson\tinfo\t\t1e999",
    b'{"method":"notifications/message","params":{"level":[],"data":1}}', b"fail\t-1\t[1e999]\tm",
]  # fmt: skip


class PlayedJob:
    """Stands for a child process: checks what it would be started with, and ends when the stage says so."""

    stage: Any = None  # filled in by the stage
    ENV_LIMIT = 131072  # bytes of one string, including its NUL

    def __init__(self, containment: Any, argv: list, env: dict, clock: Any, *limits: Any) -> None:
        self._argv, self._env = argv, env
        self._on_record = limits[2] if len(limits) > 2 else None
        self._why = "exit"

    def begin(self, loop: Any, on_done: Callable[..., None]) -> None:
        """Fail as the system call would, or join the cast."""
        pairs = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in self._env.items()]
        for text in [os.fsencode(word) for word in self._argv] + pairs:
            if b"\0" in text:
                raise ValueError("embedded null byte")
            if len(text) >= self.ENV_LIMIT:
                raise OSError(errno.E2BIG, "Argument list too long")
        self._on_done = on_done
        self.stage.cast.append(self)

    def stop(self, why: str) -> None:
        """Note that it should end."""
        self._why = why

    def end(self, source: random.Random) -> None:
        """Say something and exit."""
        for _ in range(source.choice((0, 0, 1, 3))):
            if self._on_record:
                self._on_record(source.choice(RECORDS))
        stdout = source.choice(OUTPUTS)
        stderr = source.choice((b"", b"oops\n", b"\xff"))
        code, number = source.choice(((0, 0), (0, 0), (1, 0), (137, 9)))
        self._on_done(mcp_bash.Outcome(code, number, self._why, stdout, stderr, len(stderr), 0.01))


class Left(BaseException):
    """The server wanted to end the process."""


class PlayedContainment:
    """Stands for what owns processes: there are none."""

    def __init__(self, settings: Any, log: Any, directory: str) -> None:
        self.settings, self.log, self._directory = settings, log, directory

    def directory(self) -> str:
        """Return a directory for files of calls."""
        return self._directory

    def leave(self, code: int) -> None:
        """Nothing a client sends may end the server in this way."""
        raise Left("the server wanted to end with status %d" % code)


class PlayedWire:
    """Stands for the client's pipes: takes lines at once; its input ends when the stage closes it."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.in_fd, self.closing = os.pipe()
        self.out_fd = os.open(os.devnull, os.O_WRONLY)
        self.backlog_size, self.is_broken, self._take = 0, False, take

    def __getattr__(self, name: str) -> Any:
        return lambda *_: False  # is_congested and other questions

    def offer(self, line: bytes, droppable: bool = False) -> None:
        """Take a line of the server."""
        self._take(line)

    def read(self) -> None:
        """Tell the server that its input has ended."""

    def rest(self) -> bytes:
        """Return the last line."""
        return b""

    def close(self) -> None:
        """Give the descriptors back."""
        for number in (self.in_fd, self.out_fd):
            os.close(number)


class Stage:
    """One server and the lines it gets; it is also its housekeeping."""

    def __init__(self, project: Project, env: dict[str, str], lines: Iterator[tuple[bytes, Any]], seed: Any) -> None:
        self._lines, self._random = lines, random.Random(seed)
        self.cast: list[PlayedJob] = []  # tools that are running
        self.ledger = Ledger()
        self.line = b""  # the last one that was sent
        self._log = tempfile.TemporaryFile()
        settings = mcp_bash.Settings(env)
        log = mcp_bash.Log(settings, self._log.fileno())
        containment = PlayedContainment(settings, log, project.tmp)
        self._wire = PlayedWire(self.ledger.received)
        served = mcp_bash.Project(project.root, settings)
        self.server = mcp_bash.Server(served, settings, log, containment, self._wire, lambda _: project.base)
        self._is_over = False

    def play(self) -> Ledger:
        """Serve until all lines are sent and all tools have ended; return the accounts."""
        PlayedJob.stage = self
        self.server.clerk.start()
        try:
            self.server.serve(self)
            self._check_log()
        finally:
            self.server.clerk.put(sys.exit)
            self.server.loop.close()
            self._wire.close()
            if not self._is_over:
                os.close(self._wire.closing)
            self._log.close()
        return self.ledger

    def due(self) -> float:
        """Return when look() has something to do: always, since the end of a played tool does not wake the loop."""
        return 0.0

    def look(self, now: float) -> None:
        """Send the next line, and let some tools end."""
        while self.cast and (self._is_over or self._random.random() < 0.3):
            self.cast.pop(self._random.randrange(len(self.cast))).end(self._random)
        if self._is_over:
            return
        self.line, number = next(self._lines, (None, None))
        if self.line is None:
            self._is_over = True
            os.close(self._wire.closing)
            return
        self.ledger.sent(self.line, number)
        self.server.receive(self.line)
        self._check_log()

    def _check_log(self) -> None:
        """Fail when the server has complained about itself."""
        if os.fstat(self._log.fileno()).st_size:
            self._log.seek(0)
            text = self._log.read().decode("utf-8", "replace")
            if TROUBLE.search(text):
                raise AssertionError("the server logged: " + text.strip())
            self._log.truncate(0)


# ======================================================================================================================
# 4. LEDGER — what was asked against what was answered.
# ======================================================================================================================


class Ledger:
    """Keeps accounts: no request answered twice, no sound request forgotten, every line strict JSON."""

    def __init__(self) -> None:
        self.asked: dict[tuple, int] = {}  # id -> requests that carried it
        self.answers: dict[tuple, int] = {}  # id -> responses that carried it
        self.sure: set[tuple] = set()  # ids of sound requests
        self.cancelled: set[tuple] = set()
        self.lines = self.members = self.nameless = 0  # lines sent, messages in arrays, errors without an id
        self.wrong: list[str] = []

    def sent(self, line: bytes, number: Any) -> None:
        """Enter a line; `number` is the id of a sound request that is sure to be answered."""
        self.lines += 1
        if number is not None:
            self.sure.add(id_key(number))
        for message in self._messages(line):
            if isinstance(message, dict) and is_id(message.get("id")):
                key = id_key(message["id"])
                self.asked[key] = self.asked.get(key, 0) + 1
            if isinstance(message, dict) and "cancelled" in str(message.get("method")):
                params = message.get("params")
                for name in ("requestId", "id"):
                    if isinstance(params, dict) and is_id(params.get(name)):
                        self.cancelled.add(id_key(params[name]))

    def _messages(self, line: bytes) -> list[Any]:
        try:
            value = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            return []  # nothing in it can be answered by name
        self.members += len(value) if isinstance(value, list) else 0
        return value if isinstance(value, list) else [value]

    def received(self, line: bytes) -> None:
        """Enter a line of the server."""
        try:
            value = strict_json(line.rstrip(b"\n"))
        except (ValueError, RecursionError) as error:
            self.wrong.append("not strict JSON (%s): %r" % (error, line[:300]))
            return
        if line.count(b"\n") != 1 or not line.endswith(b"\n"):
            self.wrong.append("not exactly one line: %r" % line[:300])
        for message in value if isinstance(value, list) else [value]:
            self._message(message)

    def _message(self, message: Any) -> None:
        fault = support.shape_fault(message) if isinstance(message, dict) else "not an object"
        if fault:
            self.wrong.append("%s: %s" % (fault, json.dumps(message)[:300]))
        elif "method" not in message and "id" not in message:
            self.nameless += 1
        elif "method" not in message:
            key = id_key(message["id"])
            self.answers[key] = self.answers.get(key, 0) + 1
            if self.answers[key] > self.asked.get(key, 0):
                self.wrong.append("answered more often than asked: %s" % json.dumps(message)[:300])

    def close(self, complete: bool) -> list[str]:
        """Return everything that is wrong; with `complete`, sound requests must have been answered."""
        if self.nameless > self.lines + self.members:
            self.wrong.append("%d errors without an id for %d lines" % (self.nameless, self.lines))
        if complete:
            for key in sorted(self.sure - self.cancelled, key=str):
                asked, answered = self.asked.get(key, 0), self.answers.get(key, 0)
                # A mutated line may carry the same id while the first is in flight; that one is refused without it.
                if not 1 <= answered <= asked:
                    self.wrong.append("%s was asked %d times, answered %d" % (key, asked, answered))
        return self.wrong


# ======================================================================================================================
# 5. TESTS
# ======================================================================================================================


def make_project(project: Project) -> Project:
    """Fill a project with a few tools."""
    project.tool("echo", "echo hi", {"title": "Echo", "description": "says hi"})
    project.tool("fail", "exit 3", {"concurrency": 1, "icons": [{"src": "https://example.org/a.png"}]})
    project.tool("third", "cat", {"timeoutSecs": 5, "outputSchema": {"type": "object"}})
    return project


REQUEST = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
NAMELESS = b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}\n'


class LedgerTest(unittest.TestCase):
    """The accounts are worth something: each of these is noticed."""

    CASES = (
        ("nothing", [REQUEST], [ANSWER], ""),
        ("an answer twice", [REQUEST], [ANSWER, ANSWER], "more often than asked"),
        ("an answer nobody asked for", [], [ANSWER], "more often than asked"),
        ("an answer under a similar id", [REQUEST], [ANSWER.replace(b":1,", b':"1",')], "more often than asked"),
        ("no answer", [REQUEST], [], "asked 1 times, answered 0"),
        ("too many complaints", [b"{"], [NAMELESS, NAMELESS], "2 errors without an id"),
        ("bytes that are no JSON", [REQUEST], [ANSWER, b"{\n"], "not strict JSON"),
        ("a number that is none", [REQUEST], [ANSWER.replace(b"{}", b'{"a":NaN}')], "not strict JSON"),
        ("two lines in one", [REQUEST, REQUEST], [ANSWER.replace(b"\n", b"\n\n")], "not exactly one line"),
        ("an odd member", [REQUEST], [ANSWER.replace(b'"result"', b'"x":1,"result"')], "do not belong"),
    )

    def test_faults_are_noticed(self):
        for name, sent, received, expected in self.CASES:
            with self.subTest(name):
                ledger = Ledger()
                for line in sent:
                    ledger.sent(line, 1)
                for line in received:
                    ledger.received(line)
                found = ledger.close(complete=True)

                self.assertIn(expected, found[0]) if expected else self.assertEqual([], found)

    def test_the_same_seed_makes_the_same_lines(self):
        first, second, other = (Fuzzer(seed) for seed in (SEED, SEED, SEED + 1))
        lines = [first.line() for _ in range(200)]

        self.assertEqual(lines, [second.line() for _ in range(200)])
        self.assertNotEqual(lines, [other.line() for _ in range(200)])


class FuzzTest(Case):
    """G8: whatever the line, no crash, no complaint of the server about itself, no request answered twice."""

    def play_round(self, number: int, size: int) -> None:
        """Send one server its lines."""
        fuzzer = Fuzzer("%d/%d" % (SEED, number))
        is_ending = number % 4 == 3  # these rounds end with shutdown and exit, the others with the end of input
        env = {"MCPBASH_PAGE_SIZE": "1", "MCPBASH_COMPAT_BATCHES": "true" if number % 5 == 1 else "false"}

        def lines() -> Iterator[tuple[bytes, Any]]:
            yield from ((line, None) for line in fuzzer.start())
            yield from (fuzzer.line() for _ in range(size))
            for method, params in ENDING if is_ending else ():
                yield to_line({"jsonrpc": "2.0", "id": fuzzer.new_id(), "method": method, "params": params}), None

        stage = Stage(self.project, env, lines(), number)
        try:
            wrong = stage.play().close(complete=not is_ending)
        except BaseException as error:
            error.args = ("round %d, seed %d, %r\n%s" % (number, SEED, stage.line[:2000], error),)
            raise
        self.assertEqual([], wrong[:5], "round %d, seed %d" % (number, SEED))

    def test_the_dispatcher_takes_any_line(self):
        self.project = make_project(self.new_project())
        only = os.environ.get("MCPBASH_TEST_ROUND")
        print("%d lines in rounds of %d, seed %d" % (LINES, ROUND, SEED))
        with mock.patch.object(mcp_bash, "Job", PlayedJob):
            for number in [int(only)] if only else range(LINES // ROUND):
                self.play_round(number, ROUND)

    def test_a_stumbling_server_is_noticed(self):
        self.project = make_project(self.new_project())

        def stumble(*_: Any) -> None:
            raise KeyError("stumbled")

        with mock.patch.object(mcp_bash, "Job", PlayedJob), mock.patch.dict(mcp_bash.HANDLERS, {"ping": stumble}):
            self.assertRaisesRegex(AssertionError, "(?s)round 0.*stumbled", lambda: self.play_round(0, ROUND))

    def test_a_real_server_takes_any_line(self):
        fuzzer = Fuzzer(SEED)
        client = make_project(self.new_project()).client(env={"MCPBASH_PAGE_SIZE": "1"})
        self.addCleanup(lambda: client.closed or client.abandon())
        ledger = Ledger()
        for start in range(0, PIPED, 100):
            for line, number in [fuzzer.line() for _ in range(min(100, PIPED - start))]:
                for part in line.split(b"\n"):
                    ledger.sent(part, number)
                client.send_raw(line + b"\n")
            fence = to_line({"jsonrpc": "2.0", "id": "fence %d" % start, "method": "ping"})
            ledger.sent(fence, "fence %d" % start)
            client.send_raw(fence + b"\n")
            client.response("fence %d" % start)
        code = client.close(check=False)
        for line in client.records:
            if not line.sent:
                ledger.received(line.raw + b"\n")

        self.assertEqual([], ledger.close(complete=True)[:5], "seed %d" % SEED)
        self.assertEqual((0, []), (code, client.not_clean()))
        self.assertNotRegex(client.stderr, TROUBLE)


if __name__ == "__main__":
    unittest.main()
