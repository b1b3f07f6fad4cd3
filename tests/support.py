"""What every test stands on: a throw-away project, a client with real pipes, a checker, transcripts.

    with Project() as project:
        project.tool("hello", 'echo "hi $1"')
        with project.client() as client:
            client.initialize()
            result = client.call("hello", {})

Leaving the `with` closes stdin, waits for the exit and verifies the invariants over everything that was
sent and received (see `Checker`), that no process is left, and that the temporary directory is as before.

 1  Surroundings   where things lie, which interpreter, how patient to be
 2  Waiting        conditions instead of sleeps
 3  Processes      the harness is the reaper of everything a server leaves behind
 4  Project        a temporary tree that is a project
 5  Records        what went over the wire, in order
 6  Checker        invariants over a recorded run
 7  Schemas        every emitted message against the official types
 8  Client         spawn a server, talk to it, end it
 9  Command line   run a command and look at what it printed
10  Transcripts    sessions as text files
11  Case           a TestCase that cleans up after itself
"""
from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import select
import shlex
import shutil
import signal
import site
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterable, Iterator
from typing import Any, Callable, NamedTuple

__unittest = True  # unittest leaves frames of this file out of tracebacks: the test's own line matters

# ======================================================================================================================
# 1. SURROUNDINGS — where things lie, which interpreter, how patient to be.
# ======================================================================================================================

TESTS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(TESTS)
CACHE = os.path.join(TESTS, ".cache")
SERVER = os.path.join(ROOT, "mcp_bash.py")
SCHEMAS = os.environ.get("MCPBASH_TEST_SCHEMAS") or os.path.join(os.path.dirname(ROOT), "shared", "mcp-schema")

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSION = "2026-07-28"
VERSIONS = HANDSHAKE_VERSIONS + (STATELESS_VERSION,)
PREFIX = "io.modelcontextprotocol/"

# A virtual environment's python is a link to the real one; servers run without the test packages in sight.
PYTHON = os.environ.get("MCPBASH_TEST_PYTHON") or os.path.realpath(sys.executable)
PATIENCE = float(os.environ.get("MCPBASH_TEST_PATIENCE") or 1)  # multiplies every deadline, for slow machines
SOAK = os.environ.get("MCPBASH_TEST_SOAK") == "1"
FUZZ = os.environ.get("MCPBASH_TEST_FUZZ") == "1"

DEADLINE = 30.0  # for one answer; generous, because a deadline says "hangs", not "is slow"
EXIT_DEADLINE = 15.0  # from closing stdin to the end of the process
CLEAN_DEADLINE = 2.0  # from the end of the process to nothing left


def venv_directory() -> str:
    """Return where tests/run.py keeps the packages for this interpreter."""
    return os.path.join(CACHE, "venv-%s-%d.%d" % (sys.implementation.name, *sys.version_info[:2]))


def use_cached_packages() -> None:
    """Make the cached packages importable when a test file is started by hand."""
    directory = venv_directory()
    if sys.prefix == sys.base_prefix and os.path.exists(os.path.join(directory, ".ready")):
        site.addsitedir(os.path.join(directory, "lib", "python%d.%d" % sys.version_info[:2], "site-packages"))


use_cached_packages()


def find_program(name: str) -> str:
    """Return the path of a development program, from the cache first, or an empty string."""
    for directory in (os.path.join(venv_directory(), "bin"), os.path.dirname(sys.executable)):
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK):
            return path
    return shutil.which(name) or ""


def not_here(reason: str) -> unittest.SkipTest:
    """Return the skip for what this machine can never run; --strict accepts it, unlike any other skip."""
    return unittest.SkipTest("not here: " + reason)


def server_command() -> list[str]:
    """Return the command that starts the server under test."""
    override = os.environ.get("MCPBASH_TEST_SERVER")
    return shlex.split(override) if override else [PYTHON, SERVER]


# ======================================================================================================================
# 2. WAITING — conditions instead of sleeps.
# ======================================================================================================================


def patient(seconds: float) -> float:
    """Return a number of seconds scaled to this machine."""
    return seconds * PATIENCE


def wait_until(condition: Callable[[], Any], timeout: float = DEADLINE, what: str = "") -> Any:
    """Return the first true value of `condition()`; fail after `timeout` seconds."""
    end = time.monotonic() + patient(timeout)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("waited %g s for %s" % (patient(timeout), what or condition))
        time.sleep(0.005)


def wait_for_file(path: str, timeout: float = DEADLINE) -> str:
    """Return the text of a file once it exists and is not empty."""

    def text() -> str:
        try:
            with open(path, encoding="utf-8") as stream:
                return stream.read()
        except FileNotFoundError:
            return ""  # not written yet

    return wait_until(text, timeout, "the file " + path)


# ======================================================================================================================
# 3. PROCESSES — the harness is the reaper of everything a server leaves behind.
# ======================================================================================================================
#
# On Linux an orphan goes to its nearest ancestor that asked to be a "child subreaper". The test process asks, so
# whatever a server leaves behind becomes a child of the test process and is found by parent number: no matching of
# names, no reading of other processes' memory. Elsewhere orphans go to process 1 and only direct leftovers are seen.
#
# Reaping is the delicate part: waitpid() on a child that a Popen object also waits for would steal its exit status.
# So only children in another session are reaped here, and servers are the only Popen objects with a session of their
# own; they register in `known`. A test that starts its own session uses `spawn`.

PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    state: str
    name: str

    def command(self) -> str:
        """Return the command line, for messages."""
        try:
            with open("/proc/%d/cmdline" % self.pid, "rb") as stream:
                line = stream.read(300).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            line = ""  # gone in the meantime
        return "%d (%s, %s) %s" % (self.pid, self.name, self.state, line)


known: set[int] = set()  # process ids that belong to a Popen object of this module
spawning = threading.Lock()  # held from the fork until the child is in `known`, so that it is never taken for an orphan


def become_subreaper() -> bool:
    """Adopt orphans of our children; return whether the system can do that."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


IS_SUBREAPER = become_subreaper()


def read_process(pid: int) -> Process | None:
    """Return the process with this number, or None when there is none."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except OSError:
        return None  # ended between listing and reading
    name, _, rest = text[text.index("(") + 1 :].rpartition(")")
    fields = rest.split()
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], name)


def all_processes() -> list[Process]:
    """Return the process table; empty where there is no /proc."""
    if not os.path.isdir("/proc/self"):
        return []
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def descendants(pid: int, table: Iterable[Process] | None = None) -> list[Process]:
    """Return everything below `pid`, parents before children."""
    below: dict[int, list[Process]] = {}
    for process in all_processes() if table is None else table:
        below.setdefault(process.parent, []).append(process)
    result: list[Process] = []
    queue = [pid]
    while queue:
        children = below.get(queue.pop(0), [])
        result.extend(children)
        queue.extend(child.pid for child in children)
    return result


def orphans() -> list[Process]:
    """Return what ended up with us although we did not start it, with everything below it; reap the dead."""
    with spawning:
        table = all_processes()
        strangers = [each for each in table if each.parent == os.getpid() and each.pid not in known]
    session = os.getsid(0)
    found: list[Process] = []
    for process in strangers:
        if process.session == session:
            continue
        if process.state == "Z":
            reap(process.pid)
        else:
            found.append(process)
            found.extend(descendants(process.pid, table))
    return found


def reap(pid: int) -> None:
    """Collect a dead child that nobody else waits for."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # collected in the meantime


def wait_for_no_orphans(timeout: float = CLEAN_DEADLINE) -> list[Process]:
    """Return the orphans that are still there after `timeout` seconds; an empty list is what one wants."""
    end = time.monotonic() + patient(timeout)
    left = orphans()
    while left and time.monotonic() < end:
        time.sleep(0.01)
        left = orphans()
    return left


def end_processes(processes: Iterable[Process]) -> None:
    """Kill processes that came back to us, each by its number, and collect them."""
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.session == process.session:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # ended by itself
    wait_for_no_orphans()


def open_files(pid: int) -> int:
    """Return how many descriptors a process holds (Linux)."""
    return len(os.listdir("/proc/%d/fd" % pid))


def private_memory(pid: int) -> int:
    """Return the bytes that only this process has in memory (Linux); unlike RSS it does not count shared pages."""
    with open("/proc/%d/smaps_rollup" % pid, encoding="ascii") as stream:
        return sum(int(line.split()[1]) * 1024 for line in stream if line.startswith("Private_"))


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of the children it has waited for (Linux)."""
    with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stream:
        fields = stream.read().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def spawn(command: list[str], **options: Any) -> subprocess.Popen:
    """Start a process in a session of its own, known to the reaper."""
    with spawning:
        process = subprocess.Popen(command, start_new_session=True, **options)
        known.add(process.pid)
    return process


def end_group(process: subprocess.Popen) -> None:
    """Kill the process group that `spawn` made, and collect its leader."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # already ended; macOS answers EPERM for a group of zombies
    process.wait()


# ======================================================================================================================
# 4. PROJECT — a temporary tree that is a project.
# ======================================================================================================================


class Project:
    """A temporary directory with a project, a home directory and a TMPDIR of its own."""

    def __init__(self, prefix: str = "mcpb-") -> None:
        self.base = os.path.realpath(tempfile.mkdtemp(prefix=prefix))
        self.root = self._made("project")  # what the server serves
        self.home = self._made("home")  # $HOME of the server
        self.tmp = self._made("tmp")  # $TMPDIR of the server; as empty at the end as at the beginning

    def _made(self, name: str) -> str:
        path = os.path.join(self.base, name)
        os.mkdir(path, 0o700)
        return path

    def __enter__(self) -> Project:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the whole tree, whatever its permissions are."""
        for directory, names, _ in os.walk(self.base):
            for name in names:
                make_writable(os.path.join(directory, name))
        shutil.rmtree(self.base, ignore_errors=True)

    def path(self, *parts: str) -> str:
        """Return a path inside the project."""
        return os.path.join(self.root, *parts)

    def file(self, path: str, text: str | bytes, mode: int = 0o644) -> str:
        """Write a file, with its directories; return its path."""
        full = self.path(path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        data = text.encode("utf-8") if isinstance(text, str) else text
        # Write beside and rename: a running server must never see half a file.
        with open(full + ".new", "wb") as stream:
            stream.write(data)
        os.chmod(full + ".new", mode)
        os.replace(full + ".new", full)
        return full

    def json(self, path: str, value: Any) -> str:
        """Write a JSON file; return its path."""
        return self.file(path, json.dumps(value, indent=2) + "\n")

    def tool(
        self,
        name: str,
        script: str,
        meta: dict | None = None,
        mode: int = 0o755,
        suffix: str = ".sh",
        top: bool = False,
    ) -> str:
        """Write tools/NAME/tool.sh (or tools/NAME.sh when `top`) and its metadata; return the script's path."""
        stem = "tools/" + (name if top else name + "/tool")
        if meta is not None:
            self.json(stem + ".meta.json", {"name": name, **meta})
        if not script.startswith("#!"):
            script = ("#!/usr/bin/env python3\n" if suffix == ".py" else "#!/usr/bin/env bash\n") + script
        return self.file(stem + suffix, script if script.endswith("\n") else script + "\n", mode)

    def counting_tool(self, name: str, body: str = "", meta: dict | None = None) -> str:
        """Write a tool that notes when it begins and ends, for `peak`; an append this small is atomic."""
        log = shlex.quote(os.path.join(self.base, "counts"))
        return self.tool(name, "echo + >>%s\ntrap 'echo - >>%s' EXIT\n%s" % (log, log, body), meta)

    def peak(self) -> int:
        """Return how many counting tools ran at the same time at most."""
        running = most = 0
        with open(os.path.join(self.base, "counts"), encoding="ascii") as stream:
            for line in stream:
                running += 1 if line[0] == "+" else -1
                most = max(most, running)
        return most

    def fifo(self, name: str) -> str:
        """Make a named pipe outside the project, for tools that wait for the test; return its path."""
        path = os.path.join(self.base, name)
        os.mkfifo(path)
        return path

    def environment(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        """Return what a client passes to a server: almost nothing, plus `extra`."""
        # The interpreter under test comes first: tools written in Python run with it, not with a slow shim.
        path = os.path.dirname(PYTHON) + os.pathsep + os.environ.get("PATH", "/usr/bin:/bin")
        env = {"PATH": path, "HOME": self.home, "TMPDIR": self.tmp}
        env.update(extra or {})
        return env

    def client(self, **options: Any) -> Client:
        """Start the server on this project and return a client for it."""
        return Client(self, **options)

    def cli(self, *args: str, **options: Any) -> subprocess.CompletedProcess:
        """Run a command of the server's command line with this project's environment."""
        options["env"] = self.environment(options.get("env"))
        return run_cli(list(args), **{"cwd": self.root, **options})


def make_writable(path: str) -> None:
    """Give ourselves the rights to remove a directory's contents."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.chmod(path, 0o700)
    except OSError:
        pass  # rmtree tells what it cannot remove by leaving it; nothing depends on it


def listing(directory: str) -> list[str]:
    """Return every path below a directory, relative and sorted."""
    found = []
    for parent, directories, files in os.walk(directory):
        found.extend(os.path.relpath(os.path.join(parent, name), directory) for name in directories + files)
    return sorted(found)


# ======================================================================================================================
# 5. RECORDS — what went over the wire, in order.
# ======================================================================================================================


class Record(NamedTuple):
    """One line that was sent or received."""

    at: float  # seconds on the monotonic clock; when writing began, or when the line end was read
    sent: bool
    raw: bytes  # without the line end
    message: Any  # None when `problem` says why there is none
    problem: str

    def show(self, width: int = 400) -> str:
        """Return the line as a transcript shows it, cut to a readable length."""
        text = self.raw.decode("utf-8", "backslashreplace")
        more = "… (%d bytes)" % len(self.raw) if len(text) > width else ""
        return ("> " if self.sent else "< ") + text[:width] + more


def strict_json(raw: bytes) -> Any:
    """Parse JSON as the standard has it: UTF-8, no NaN, nothing out of range, no duplicate keys."""

    def no_constant(name: str) -> None:
        raise ValueError(name + " is not JSON")

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("an object names the same member twice: " + ", ".join(key for key, _ in pairs))
        return result

    def in_range(text: str) -> float:
        if abs(float(text)) == float("inf"):
            raise ValueError(text + " is out of range")
        return float(text)

    hooks: dict = {"parse_constant": no_constant, "parse_float": in_range, "object_pairs_hook": no_duplicates}
    return json.loads(raw.decode("utf-8"), **hooks)


def record(sent: bool, raw: bytes) -> Record:
    """Make the record of one line, now."""
    at = time.monotonic()
    try:
        return Record(at, sent, raw, strict_json(raw), "")
    except (ValueError, RecursionError) as error:
        return Record(at, sent, raw, None, str(error) or "nested too deeply")


def id_key(value: Any) -> tuple[str, Any]:
    """Return a dictionary key that keeps 1, "1", 1.0 and true apart."""
    return type(value).__name__, value if isinstance(value, (int, str, float)) else json.dumps(value)


def is_id(value: Any) -> bool:
    """Tell whether a value may be the id of a request; one of more than a kibibyte is refused as well."""
    return type(value) in (int, str) and len(json.dumps(value)) <= 1024


def meta_of(message: dict) -> dict:
    """Return params._meta of a message, or an empty dict."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta if isinstance(meta, dict) else {}


def show(records: Iterable[Record], last: int = 40) -> str:
    """Return the end of a recorded run as text."""
    lines = list(records)
    head = ["… %d lines before" % (len(lines) - last)] if len(lines) > last else []
    return "\n".join(head + [line.show() for line in lines[-last:]])


# ======================================================================================================================
# 6. CHECKER — invariants over a recorded run.
# ======================================================================================================================
#
# I1  every received line is one strict UTF-8 JSON-RPC object (or a batch answer) with a line end and no odd members
# I2  every accepted request gets exactly one response, none once its cancellation was read
# I3  no response to notifications or unknown ids
# I4  nothing but messages that a server may author in this state
# I5  a result carries the nonce of its own request (calls made with `nonce=`)
# I8  progress strictly increases, only between a request and its response
#
# I6 (slots) is `Project.peak`, I7 (clean) is in `Client.close`: they are about processes, not about lines.
#
# "Was read" cannot be seen from outside, but it can be proved: the server reads in order, so an answer to a request
# that was sent after the cancellation shows that the cancellation was read before.

SERVER_NOTIFICATIONS = {
    "notifications/cancelled",
    "notifications/progress",
    "notifications/message",
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/resources/updated",
    "notifications/elicitation/complete",
    "notifications/tasks/status",
    "notifications/tasks",
    "notifications/subscriptions/acknowledged",
}
SERVER_REQUESTS = {"ping", "roots/list", "sampling/createMessage", "elicitation/create"}
OTHER_ERA_CODES = (-32000, -32001, -32002, -32003, -32004, -32005, -32042)
NONCE = re.compile("nonce-[0-9a-f]+")
LINE_LIMIT = 8 * 1024 * 1024 + 64 * 1024  # official clients hang up at 10 MiB


def new_nonce() -> str:
    """Return a text that no other call carries, for `nonce=` of a call; the tool has to echo it."""
    return "nonce-" + os.urandom(8).hex()


class Request:
    """One request of the client while the checker walks over a run."""

    def __init__(self, message: dict, index: int, version: str) -> None:
        self.message = message
        self.index = index  # position in the run; everything sent before it was read when it is answered
        self.version = version  # protocol version it is served in, "" before a handshake
        self.cancelled_at = -1  # position of the cancellation, -1 when there is none
        self.answer: dict | None = None
        self.progress: float | None = None  # the last value reported

    def __str__(self) -> str:
        return "%s id %s" % (self.message.get("method"), json.dumps(self.message.get("id")))


class Checker:
    """Walks over a recorded run once; `violations` says what was wrong, `answers` pairs requests with responses."""

    def __init__(
        self, records: Iterable[Record], complete: bool = True, nonces: dict[tuple[str, Any], str] | None = None
    ) -> None:
        self.violations: list[str] = []
        self.requests: list[Request] = []
        self.messages: list[tuple[str, dict, Request | None]] = []  # (version, received message, its request)
        self._open: dict[tuple[str, Any], list[Request]] = {}  # unanswered requests of the client, by id
        self._odd = 0  # lines that may be answered without an id, not yet answered
        self._odd_ids: dict[tuple[str, Any], int] = {}  # ids of malformed requests, which may get an error
        self._batches: list[list[Request]] = []  # arrays sent and not yet answered, as their requests
        self._asked: dict[tuple[str, Any], str] = {}  # unanswered requests of the server
        self._session = ""  # version of the handshake session
        self._read = -1  # everything sent up to this position was certainly read by the server
        self._nonces = nonces or {}
        for index, line in enumerate(records):
            if line.sent:
                self._sent(line, index)
            else:
                self._received(line, index)
        if complete:
            self._nothing_unanswered()
        self._nonces_match()

    def _bad(self, rule: str, text: str, line: Record | None = None) -> None:
        self.violations.append("%s: %s%s" % (rule, text, "\n    " + line.show() if line else ""))

    # -- what the client sent

    def _sent(self, line: Record, index: int) -> None:
        if not line.raw.strip(b" \t\r\xef\xbb\xbf"):
            return
        if isinstance(line.message, list):
            before = len(self.requests)
            self._odd += 1  # the whole array may be refused with one error
            for member in line.message:
                self._sent_one(member, index)
            self._batches.append(self.requests[before:])
        else:
            self._sent_one(line.message, index)

    def _sent_one(self, message: Any, index: int) -> None:
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            self._sent_odd(message)
        elif isinstance(message.get("method"), str) and is_id(message.get("id")):
            request = Request(message, index, meta_of(message).get(PREFIX + "protocolVersion") or self._session)
            self.requests.append(request)
            self._open.setdefault(id_key(message["id"]), []).append(request)
        elif isinstance(message.get("method"), str) and "id" not in message:
            self._sent_notification(message, index)
        elif "method" not in message and is_id(message.get("id")):
            self._asked.pop(id_key(message["id"]), None)
        else:
            self._sent_odd(message)

    def _sent_odd(self, message: Any) -> None:
        self._odd += 1
        if isinstance(message, dict) and is_id(message.get("id")):
            key = id_key(message["id"])
            self._odd_ids[key] = self._odd_ids.get(key, 0) + 1

    def _sent_notification(self, message: dict, index: int) -> None:
        params = message.get("params")
        if message["method"] == "notifications/cancelled" and isinstance(params, dict):
            for request in self._open.get(id_key(params.get("requestId")), []):
                if request.cancelled_at < 0 and request.message["method"] != "initialize":
                    request.cancelled_at = index

    # -- what the server sent

    def _received(self, line: Record, index: int) -> None:
        if line.problem:
            self._bad("I1", "not strict JSON (%s)" % line.problem, line)
        elif len(line.raw) > LINE_LIMIT:
            self._bad("I1", "a line of %d bytes; clients hang up at 10 MiB" % len(line.raw), line)
        elif isinstance(line.message, list):
            self._received_batch(line)
        elif not isinstance(line.message, dict):
            self._bad("I1", "a line that is not an object", line)
        else:
            self._received_one(line.message, line)

    def _received_batch(self, line: Record) -> None:
        if not self._batches:
            self._bad("I1", "an array although no batch was sent", line)
        else:
            self._batches.pop(0)
            self._odd -= 1
        for member in line.message or [None]:
            if isinstance(member, dict) and "method" not in member:
                self._received_one(member, line)
            else:
                self._bad("I1", "a batch answer holds something that is not a response", line)

    def _received_one(self, message: dict, line: Record) -> None:
        fault = shape_fault(message)
        if fault:
            self._bad("I1", fault, line)
        elif "method" not in message:
            self._response(message, line)
        elif "id" in message:
            self._server_request(message, line)
        else:
            self._notification(message, line)

    def _response(self, message: dict, line: Record) -> None:
        if message.get("id") is None:
            self._answer_without_id(message, line)
            return
        key = id_key(message["id"])
        request = self._answered(key, message)
        if request is not None:
            self._check_answer(request, message, line)
        elif self._odd_ids.get(key) and "error" in message:
            self._odd_ids[key] -= 1
            self.messages.append((self._session, message, None))
        else:
            self._bad("I3", "a response to an id that has no open request", line)

    def _answer_without_id(self, message: dict, line: Record) -> None:
        self._odd -= 1
        if self._odd < 0:
            self._bad("I3", "more errors without an id than faulty lines sent", line)
        if self._batches and message["error"]["code"] == -32600:
            self._refused_batch(self._batches.pop(0))
        self.messages.append((self._session, message, None))

    def _refused_batch(self, members: list[Request]) -> None:
        """A batch that was refused as a whole owes no answers to its members."""
        for request in members:
            waiting = self._open.get(id_key(request.message["id"]), [])
            if request in waiting:
                waiting.remove(request)

    def _answered(self, key: tuple[str, Any], message: dict) -> Request | None:
        """Take the request that this response belongs to out of the open ones."""
        waiting = self._open.get(key)
        if not waiting:
            return None
        # Two in flight with one id: the refusal belongs to the later one, the first keeps running.
        refused = message.get("error", {}).get("code") == -32600
        # One that was cancelled gets no answer, so its id may be in use again.
        alive = [request for request in waiting if not self._is_over(request)] or waiting
        request = alive[-1 if refused else 0]
        waiting.remove(request)
        return request

    def _is_over(self, request: Request) -> bool:
        """Tell whether the server has certainly read the cancellation of a request."""
        return 0 <= request.cancelled_at <= self._read

    def _check_answer(self, request: Request, message: dict, line: Record) -> None:
        if self._is_over(request):
            self._bad("I2", "%s was answered after its cancellation was read" % request, line)
        request.answer = message
        self._read = max(self._read, request.index)
        if request.message["method"] == "initialize" and "result" in message:
            self._session = request.version = str(message["result"].get("protocolVersion", ""))
        code = message.get("error", {}).get("code")
        if request.version == STATELESS_VERSION and code in OTHER_ERA_CODES:
            self._bad("I4", "the code %d does not exist in the stateless era" % code, line)
        self.messages.append((request.version or self._session, message, request))

    def _server_request(self, message: dict, line: Record) -> None:
        if message["method"] not in SERVER_REQUESTS:
            self._bad("I4", "a server does not send %s" % message["method"], line)
        elif not self._session:
            self._bad("I4", "a request to the client without a handshake session", line)
        key = id_key(message["id"])
        if key in self._asked:
            self._bad("I4", "the server used one id for two open requests", line)
        self._asked[key] = message["method"]
        self.messages.append((self._session, message, None))

    def _notification(self, message: dict, line: Record) -> None:
        method = message["method"]
        version = self._session
        if method not in SERVER_NOTIFICATIONS:
            self._bad("I4", "a server does not send %s" % method, line)
        elif method == "notifications/progress":
            version = self._progress(message, line)
        elif method == "notifications/message":
            version = self._log_message(line)
        elif method.endswith(("list_changed", "/updated", "/acknowledged", "notifications/tasks")):
            version = self._change(message, line)
        self.messages.append((version, message, None))

    def _progress(self, message: dict, line: Record) -> str:
        params = message.get("params", {})
        token = id_key(params.get("progressToken"))
        fitting = sorted((each for each in self._all_open() if self._token(each) == token), key=self._is_over)
        if not fitting:
            self._bad("I8", "progress for a token that no open request carries", line)
            return self._session
        request = fitting[0]
        if self._is_over(request):
            self._bad("I8", "progress for %s after its cancellation was read" % request, line)
        value = params.get("progress")
        if type(value) not in (int, float):
            self._bad("I8", "progress is not a number", line)
        elif request.progress is not None and value <= request.progress:
            self._bad("I8", "progress did not increase: %s after %s" % (value, request.progress), line)
        else:
            request.progress = value
        return request.version or self._session

    def _token(self, request: Request) -> tuple[str, Any] | None:
        meta = meta_of(request.message)
        return id_key(meta["progressToken"]) if "progressToken" in meta else None

    def _log_message(self, line: Record) -> str:
        asked = [each for each in self._all_open() if PREFIX + "logLevel" in meta_of(each.message)]
        if not self._session and not asked:
            self._bad("I4", "a log message that no session and no open request asked for", line)
        return self._session or STATELESS_VERSION

    def _change(self, message: dict, line: Record) -> str:
        if PREFIX + "subscriptionId" not in meta_of(message):
            if not self._session:
                self._bad("I4", "an untagged notification without a handshake session", line)
            return self._session
        key = id_key(meta_of(message)[PREFIX + "subscriptionId"])
        listening = [each for each in self._open.get(key, []) if each.message["method"] == "subscriptions/listen"]
        if all(self._is_over(each) for each in listening):
            self._bad("I4", "a notification for a subscription that is not open", line)
        return STATELESS_VERSION

    def _all_open(self) -> Iterator[Request]:
        return (request for waiting in self._open.values() for request in waiting)

    # -- at the end

    def _nothing_unanswered(self) -> None:
        for request in self._all_open():
            if request.cancelled_at < 0:
                self._bad("I2", "%s was never answered" % request)

    def _nonces_match(self) -> None:
        for request in self.requests:
            own = self._nonces.get(id_key(request.message["id"]))
            if own is None or request.answer is None or "result" not in request.answer:
                continue
            found = set(NONCE.findall(json.dumps(request.answer)))
            if found != {own}:
                shown = sorted(found) or "no nonce"
                self._bad("I5", "%s carries %s, expected its own %s alone" % (request, shown, own))


def shape_fault(message: dict) -> str:
    """Return what is wrong with the envelope of a JSON-RPC message, or an empty string."""
    if message.get("jsonrpc") != "2.0":
        return '"jsonrpc" is not "2.0"'
    if "method" in message:
        allowed = {"jsonrpc", "id", "method", "params"}
        if not isinstance(message["method"], str) or not isinstance(message.get("params", {}), dict):
            return "method or params has the wrong type"
    else:
        allowed = {"jsonrpc", "id", "result" if "result" in message else "error"}
        if ("result" in message) == ("error" in message):
            return "a response needs exactly one of result and error"
    if set(message) - allowed:
        return "members that do not belong here: " + ", ".join(sorted(set(message) - allowed))
    if "id" in message and not is_id(message["id"]):
        return "the id is neither a string nor an integer"
    return body_fault(message)


def body_fault(message: dict) -> str:
    """Return what is wrong with the result or error of a response, or an empty string."""
    if "result" in message and ("id" not in message or not isinstance(message["result"], dict)):
        return "a result needs an id and has to be an object"
    error = message.get("error", {"code": 0, "message": ""})
    if not isinstance(error, dict) or set(error) - {"code", "message", "data"}:
        return "the error object is malformed"
    if type(error.get("code")) is not int or not isinstance(error.get("message"), str):
        return "the error needs an integer code and a text message"
    return ""


# ======================================================================================================================
# 7. SCHEMAS — every emitted message against the official types.
# ======================================================================================================================

# The definition of each result is named after the request, with these exceptions.
RESULT_NAMES = {
    "ping": "EmptyResult",
    "logging/setLevel": "EmptyResult",
    "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
    "tasks/result": "GetTaskPayloadResult",
}
ALTERNATIVE_RESULTS = {
    ("2025-11-25", "tools/call"): ["CreateTaskResult"],
    ("2026-07-28", "tools/call"): ["InputRequiredResult"],
    ("2026-07-28", "prompts/get"): ["InputRequiredResult"],
    ("2026-07-28", "resources/read"): ["InputRequiredResult"],
}
ERROR_TYPES = {
    -32021: "MissingRequiredClientCapabilityError",
    -32022: "UnsupportedProtocolVersionError",
    -32042: "URLElicitationRequiredError",
}
# An error that cannot name its request has no id; the older schemas demand one, but there is none to give.
VERSIONS_WITH_ERROR_ID = ("2024-11-05", "2025-03-26", "2025-06-18")
SCHEMA_SAMPLE = 400  # messages checked per run; a run with thousands of pings proves nothing more

_loaded: dict[str, Any] = {}  # version -> schema document
_validators: dict[tuple[str, tuple[str, ...]], Any] = {}


def schemas_missing() -> str:
    """Return why messages cannot be checked against the official schemas, or an empty string."""
    if not os.path.isdir(SCHEMAS):
        return "the official schemas are not beside the checkout (%s)" % os.path.relpath(SCHEMAS, ROOT)
    try:
        import jsonschema  # noqa: F401
    except ImportError:
        return "the package jsonschema is not installed"
    return ""


def load_schema(version: str) -> dict:
    """Return the official schema document of a protocol version."""
    if version not in _loaded:
        with open(os.path.join(SCHEMAS, version + ".json"), encoding="utf-8") as stream:
            _loaded[version] = json.load(stream)
    return _loaded[version]


def definitions(version: str) -> dict:
    """Return the named types of a protocol version."""
    document = load_schema(version)
    return document.get("$defs") or document["definitions"]


def schema_methods(version: str) -> dict[str, str]:
    """Return the methods of a protocol version, each with the name of its message type."""
    found = {}
    for name, definition in definitions(version).items():
        method = definition.get("properties", {}).get("method", {}).get("const")
        if method and name.endswith(("Request", "Notification")) and name != "ClientNotification":
            found[method] = name
    return found


def result_types(version: str, method: str) -> list[str]:
    """Return the type names that the result of a method may have."""
    name = RESULT_NAMES.get(method) or schema_methods(version).get(method, "Request")[: -len("Request")] + "Result"
    names = [name if name in definitions(version) else "Result"]
    return names + ALTERNATIVE_RESULTS.get((version, method), [])


def message_types(version: str, message: dict, method: str = "") -> list[str]:
    """Return the type names that a message may have; `method` is that of the request a response belongs to."""
    if "method" in message:
        return [schema_methods(version).get(message["method"], "JSONRPCNotification")]
    if "error" in message:
        if "id" not in message and version in VERSIONS_WITH_ERROR_ID:
            return []
        names = (ERROR_TYPES.get(message["error"]["code"]), "JSONRPCErrorResponse", "JSONRPCError")
        return [name for name in names if name in definitions(version)][:1]
    return result_types(version, method)


def schema_validator(version: str, names: tuple[str, ...]) -> Any:
    """Return a validator for "one of these types"."""
    if (version, names) not in _validators:
        import jsonschema

        document = load_schema(version)
        where = "$defs" if "$defs" in document else "definitions"
        schema = {"$schema": document["$schema"], where: document[where]}
        schema["anyOf"] = [{"$ref": "#/%s/%s" % (where, name)} for name in names]
        _validators[version, names] = jsonschema.validators.validator_for(schema)(schema)
    return _validators[version, names]


def validate_against_schema(version: str, message: dict, method: str = "") -> list[str]:
    """Return how a message departs from the official types of a version; raise SkipTest without the schemas."""
    missing = schemas_missing()
    if missing:
        raise not_here(missing)
    names = tuple(message_types(version, message, method))
    if not names:
        return []
    subject = message["result"] if "result" in message else message
    import jsonschema

    error = jsonschema.exceptions.best_match(schema_validator(version, names).iter_errors(subject))
    if error is None:
        return []
    return ["%s %s: %s at %s" % (version, "/".join(names), error.message[:300], error.json_path)]


def schema_violations(checker: Checker) -> list[str]:
    """Return how the messages of a run depart from the official types; nothing when they are not at hand."""
    if schemas_missing():
        return []
    found = []
    for version, message, request in checker.messages[:SCHEMA_SAMPLE]:
        if version and version not in VERSIONS:
            version = STATELESS_VERSION  # the answer says that this version does not exist
        method = request.message["method"] if request else ""
        if "result" in message and request is None:
            continue
        found.extend(validate_against_schema(version or HANDSHAKE_VERSIONS[-1], message, method))
    return ["schema: " + text for text in found]


# ======================================================================================================================
# 8. CLIENT — spawn a server, talk to it, end it.
# ======================================================================================================================

STDERR_KEEP = 1024 * 1024


class Client:
    """A server process with real pipes; two threads read what it says, everything is recorded."""

    def __init__(
        self,
        project: Project,
        env: dict[str, str] | None = None,
        args: Iterable[str] = (),
        command: list[str] | None = None,
        cwd: str | None = None,
        **popen: Any,
    ) -> None:
        self.project = project
        self.records: list[Record] = []  # everything on the wire, in order
        self.handlers: dict[str, Callable[[dict], dict]] = {}  # method -> answer to a request of the server
        self.nonces: dict[tuple[str, Any], str] = {}  # id -> what the answer must carry
        self.version = ""  # of the handshake session
        self.exit_code: int | None = None
        self._changed = threading.Condition()  # guards everything below and `records`
        self._responses: dict[tuple[str, Any], list[dict]] = {}  # id -> responses that nobody took yet
        self._eof = False  # stdout has ended
        self._partial = b""  # bytes after the last line end
        self._unsent = b""  # bytes sent after the last line end
        self._stderr = bytearray()
        self._err_ended = False
        self._next = 0  # position in `records` up to which expect() has consumed
        self._taken: set[int] = set()  # positions after that, consumed out of order
        self._ids = 0
        self._reading = threading.Event()  # cleared while a test wants the pipe to fill up
        self._reading.set()
        self._before = listing(project.tmp)
        self.closed = False  # close() or abandon() is done with this client
        self._lost_ok = False  # the process got a signal: answers may be missing
        self._cut_ok = False  # the process was killed: the last line may be incomplete
        command = command or server_command() + ["--project-root", project.root]
        pipe = subprocess.PIPE
        self.process = spawn(
            command + list(args), stdin=pipe, stdout=pipe, stderr=pipe, env=project.environment(env), cwd=cwd, **popen
        )
        self.pid = self.process.pid
        for stream in (self.process.stdin, self.process.stderr):
            os.set_blocking(stream.fileno(), False)
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._read_out, self._read_err)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    # -- reading, in threads of their own

    def _read_out(self) -> None:
        descriptor = self.process.stdout.fileno()
        buffer = bytearray()
        while True:
            self._reading.wait()
            try:
                data = os.read(descriptor, 1 << 16)
            except OSError:
                data = b""  # the pipe was closed by abandon()
            if not data:
                break
            start = len(buffer)
            buffer += data
            if data.find(b"\n") >= 0:
                end = buffer.rfind(b"\n", start)
                lines = bytes(buffer[:end]).split(b"\n")
                del buffer[: end + 1]
                for line in lines:
                    self._received(line)
        with self._changed:
            self._partial, self._eof = bytes(buffer), True
            self._changed.notify_all()

    def _received(self, raw: bytes) -> None:
        line = record(False, raw)
        message = line.message
        with self._changed:
            self.records.append(line)
            for each in message if isinstance(message, list) else [message]:
                if isinstance(each, dict) and "method" not in each and "id" in each:
                    self._responses.setdefault(id_key(each["id"]), []).append(each)
            self._changed.notify_all()
        if isinstance(message, dict) and "id" in message and message.get("method") in self.handlers:
            result = self.handlers[message["method"]](message.get("params", {}))
            body = {"error": result["error"]} if set(result) == {"error"} else {"result": result}
            self.send({"jsonrpc": "2.0", "id": message["id"], **body})

    def _read_err(self) -> None:
        waiting = select.poll()
        waiting.register(self.process.stderr.fileno(), select.POLLIN)
        while not self._err_ended:
            waiting.poll()
            self._drain_err()

    def _drain_err(self) -> None:
        """Take what is in the pipe, in whichever thread: the lock keeps bytes from being between pipe and buffer."""
        with self._changed:
            while not self._err_ended:
                try:
                    data = os.read(self.process.stderr.fileno(), 1 << 16)
                except BlockingIOError:
                    return
                except (OSError, ValueError):
                    data = b""  # the pipe was closed by abandon()
                self._err_ended = not data
                self._stderr += data
                del self._stderr[:-STDERR_KEEP]
                self._changed.notify_all()

    @property
    def stderr(self) -> str:
        """What the server wrote to stderr so far (the last MiB): all that it wrote before a response we have."""
        with self._changed:
            self._drain_err()
            return self._stderr.decode("utf-8", "replace")

    def stop_reading(self) -> None:
        """Let the server's output pile up in the pipe; one read may still be under way."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """Read again after stop_reading()."""
        self._reading.set()

    # -- writing

    def send_raw(self, data: bytes, timeout: float = DEADLINE) -> None:
        """Write bytes as they are; complete lines are recorded before they are written."""
        with self._changed:
            lines = (self._unsent + data).split(b"\n")
            self._unsent = lines.pop()
            self.records.extend(record(True, line) for line in lines)
        end = time.monotonic() + patient(timeout)
        view = memoryview(data)
        descriptor = self.process.stdin.fileno()
        while view:
            ready = select.select([], [descriptor], [], max(0, end - time.monotonic()))[1]
            if not ready:
                self.fail("the server does not read its input; %d bytes are left" % len(view))
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                continue  # another thread of the test was faster

    def send(self, message: Any) -> None:
        """Write one message as a line."""
        self.send_raw(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8") + b"\n")

    def notify(self, method: str, params: dict | None = None) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    def send_request(self, method: str, params: dict | None = None, id: Any = None, **fields: Any) -> Any:
        """Send a request and return its id without waiting; `modern=True` adds the stateless envelope."""
        if fields.get("modern"):
            params = stateless(params, fields.get("caps"), fields.get("log_level"), fields.get("version"))
        if fields.get("token") is not None:
            params = dict(params or {})
            params["_meta"] = {**params.get("_meta", {}), "progressToken": fields["token"]}
        request_id = self.new_id() if id is None else id
        body = {} if params is None else {"params": params}
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, **body})
        return request_id

    def new_id(self) -> int:
        """Return an id that was not used yet."""
        self._ids += 1
        return self._ids

    def cancel(self, request_id: Any, reason: str = "the test says so") -> None:
        """Tell the server that an answer is no longer wanted."""
        self.notify("notifications/cancelled", {"requestId": request_id, "reason": reason})

    # -- waiting

    def fail(self, text: str) -> None:
        """Raise an AssertionError that shows the end of the conversation."""
        with self._changed:
            lines = show(self.records)
        raise AssertionError("%s\n--- conversation\n%s\n--- stderr\n%s" % (text, lines, self.stderr[-4000:]))

    def _await(self, find: Callable[[], Any], timeout: float, what: Callable[[], str]) -> Any:
        end = time.monotonic() + patient(timeout)
        with self._changed:
            while True:
                found = find()
                if found is not None:
                    return found
                left = end - time.monotonic()
                if self._eof or left <= 0:
                    break
                self._changed.wait(min(left, 1.0))
            reason = "stdout ended" if self._eof else "waited %g s" % patient(timeout)
        self.fail("%s: %s" % (what(), reason))

    def response(self, request_id: Any, timeout: float = DEADLINE) -> dict:
        """Wait for the response to an id, type-exact, and return the whole message."""
        waiting = self._responses.setdefault(id_key(request_id), [])
        find = lambda: waiting.pop(0) if waiting else None  # noqa: E731
        return self._await(find, timeout, lambda: "no response to id %s" % json.dumps(request_id))

    def expect(self, wanted: Any, timeout: float = DEADLINE) -> Any:
        """Wait for the next message not yet expected that matches: a function, or a value for `matches`."""
        fits = wanted if callable(wanted) else lambda message: matches(wanted, message)

        def find() -> Any:
            for index in range(self._next, len(self.records)):
                line = self.records[index]
                if not line.sent and index not in self._taken and not line.problem and fits(line.message):
                    self._taken.add(index)
                    return line.message
            return None

        return self._await(find, timeout, lambda: "nothing received that matches %s" % (wanted,))

    def expect_next(self, timeout: float = DEADLINE) -> Record | None:
        """Wait for the next line and return its record; None at the end of stdout."""

        def find() -> Any:
            while self._next < len(self.records):
                self._next += 1
                line = self.records[self._next - 1]
                if not line.sent and self._next - 1 not in self._taken:
                    return line
            return "end" if self._eof else None

        found = self._await(find, timeout, lambda: "no further line")
        return None if found == "end" else found

    def wait_stderr(self, text: str, timeout: float = DEADLINE) -> str:
        """Wait until stderr contains a text; return all of stderr."""
        wait_until(lambda: text in self.stderr or None, timeout, "%r on stderr:\n%s" % (text, self.stderr[-2000:]))
        return self.stderr

    # -- requests

    def request(self, method: str, params: dict | None = None, timeout: float = DEADLINE, **fields: Any) -> dict:
        """Send a request, wait, and return the whole response."""
        return self.response(self.send_request(method, params, **fields), timeout)

    def modern(self, method: str, params: dict | None = None, caps: dict | None = None, **fields: Any) -> dict:
        """Send a request of the stateless era, wait, and return the whole response."""
        return self.request(method, params, modern=True, caps=caps, **fields)

    def result(self, method: str, params: dict | None = None, **fields: Any) -> dict:
        """Send a request, wait, and return its result; an error response fails the test."""
        response = self.request(method, params, **fields)
        if "result" not in response:
            self.fail("%s was answered with an error: %s" % (method, json.dumps(response.get("error"))))
        return response["result"]

    def error(self, method: str, params: dict | None = None, **fields: Any) -> dict:
        """Send a request, wait, and return its error; a result fails the test."""
        response = self.request(method, params, **fields)
        if "error" not in response:
            self.fail("%s was expected to fail, but: %s" % (method, json.dumps(response)[:500]))
        return response["error"]

    def initialize(self, version: str = HANDSHAKE_VERSIONS[-1], capabilities: dict | None = None) -> dict:
        """Open a handshake session; return the result of initialize."""
        info = {"name": "test-client", "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": info}
        result = self.result("initialize", params)
        self.version = result["protocolVersion"]
        self.notify("notifications/initialized")
        return result

    def send_call(self, tool: str, arguments: dict | None = None, **fields: Any) -> Any:
        """Send tools/call in the era of this client and return the id; `nonce=` must come back in the answer."""
        fields.setdefault("modern", not self.version)
        params = {"name": tool, **({} if arguments is None else {"arguments": arguments}), **fields.pop("params", {})}
        nonce = fields.pop("nonce", None)
        request_id = fields.pop("id", None)
        if request_id is None:
            request_id = self.new_id()
        if nonce is not None:
            self.nonces[id_key(request_id)] = nonce
        return self.send_request("tools/call", params, id=request_id, **fields)

    def call(self, tool: str, arguments: dict | None = None, timeout: float = DEADLINE, **fields: Any) -> dict:
        """Call a tool and return the result of the call; a protocol error fails the test."""
        response = self.response(self.send_call(tool, arguments, **fields), timeout)
        if "result" not in response:
            self.fail("the call of %s was answered with an error: %s" % (tool, json.dumps(response.get("error"))))
        return response["result"]

    def text(self, tool: str, arguments: dict | None = None, **fields: Any) -> str:
        """Call a tool and return the text of its result, all text blocks joined."""
        return text_of(self.call(tool, arguments, **fields))

    def fence(self) -> None:
        """Return when the server has read everything sent so far."""
        self.request("server/discover", modern=True)

    # -- looking

    @property
    def messages(self) -> list[Any]:
        """Every message received so far."""
        with self._changed:
            return [line.message for line in self.records if not line.sent]

    def notifications(self, method: str = "") -> list[dict]:
        """Return the notifications received so far, of one method or all."""
        found = (each for each in self.messages if isinstance(each, dict) and "method" in each and "id" not in each)
        return [each for each in found if method in ("", each["method"])]

    def responses_to(self, request_id: Any) -> list[dict]:
        """Return the responses received so far for an id, type-exact."""
        found = (each for each in self.messages if isinstance(each, dict) and "method" not in each and "id" in each)
        return [each for each in found if id_key(each["id"]) == id_key(request_id)]

    def tree(self) -> list[Process]:
        """Return every process below the one that was started, without that one."""
        return descendants(self.pid)

    # -- ending

    def end_input(self) -> None:
        """Close the server's stdin."""
        try:
            self.process.stdin.close()
        except OSError as error:
            if error.errno != errno.EPIPE:  # the server is gone; nothing was buffered
                raise

    def kill(self, number: int = signal.SIGKILL, group: bool = False) -> None:
        """Send a signal to the process that was started, or to its group; answers may be lost from now on."""
        self._lost_ok = True
        self._cut_ok = number == signal.SIGKILL
        if group:
            os.killpg(self.pid, number)
        else:
            self.process.send_signal(number)

    def wait(self, timeout: float = EXIT_DEADLINE) -> int:
        """Wait for the end of the process that was started; return its exit code."""
        try:
            self.exit_code = self.process.wait(patient(timeout))
        except subprocess.TimeoutExpired:
            self.fail("the server is still running %g s after it should have ended" % patient(timeout))
        known.discard(self.pid)
        return self.exit_code

    def close(
        self, timeout: float = EXIT_DEADLINE, exit_code: int | None = 0, unanswered_ok: bool = False, check: bool = True
    ) -> int:
        """Close stdin, wait for the end, verify the invariants; `exit_code=None` accepts any, return it."""
        if self.closed:
            return self.exit_code or 0
        try:
            self._reading.set()
            if not self._lost_ok:  # after a signal the end of input must not be what ends the server
                self.end_input()
            code = self.wait(timeout)
            self.end_input()
            self._join()
            if check:
                self._verify(exit_code if not self._lost_ok or exit_code else None, unanswered_ok)
            self.closed = True
            return code
        finally:
            if not self.closed:
                self.abandon()

    def _join(self) -> None:
        for thread, pipe in zip(self._threads, (self.process.stdout, self.process.stderr)):
            thread.join(patient(CLEAN_DEADLINE))
            if not thread.is_alive():
                pipe.close()

    def _verify(self, exit_code: int | None, unanswered_ok: bool) -> None:
        checker = self.check(complete=not (unanswered_ok or self._lost_ok))
        problems = checker.violations + schema_violations(checker) + self.not_clean()
        if self._partial and not self._cut_ok:
            problems.append("I1: stdout ends without a line end: %r" % self._partial[:200])
        if exit_code is not None and self.exit_code != exit_code:
            problems.append("the server ended with %s, expected %s" % (self.exit_code, exit_code))
        if problems:
            self.fail("%d things are wrong with this run:\n" % len(problems) + "\n".join(problems[:20]))

    def check(self, complete: bool = False) -> Checker:
        """Run the checker over what was recorded so far."""
        with self._changed:
            return Checker(list(self.records), complete, dict(self.nonces))

    def not_clean(self) -> list[str]:
        """Return what is left of a server that has ended: processes, an open stdout, files in TMPDIR."""
        left = wait_for_no_orphans()
        problems = ["I7: a process is left: " + process.command() for process in left]
        end_processes(left)
        if not self._eof and not left:
            problems.append("I7: something still holds the server's stdout")
        new = sorted(set(listing(self.project.tmp)) - set(self._before))
        gone = sorted(set(self._before) - set(listing(self.project.tmp)))
        problems += ["I7: a file is left in TMPDIR: " + path for path in new[:10]]
        return problems + ["I7: the server removed what is not its own: " + path for path in gone[:10]]

    def abandon(self) -> None:
        """End the process without any checks, for a test that has failed already."""
        self.closed = True
        self._reading.set()
        tree = self.tree()
        end_group(self.process)
        end_processes(tree)
        known.discard(self.pid)
        end_processes(wait_for_no_orphans())
        self.end_input()
        self._join()


def stateless(
    params: dict | None = None, caps: dict | None = None, log_level: str | None = None, version: str | None = None
) -> dict:
    """Return params with the `_meta` that every request of the stateless era carries."""
    meta = {
        PREFIX + "protocolVersion": version or STATELESS_VERSION,
        PREFIX + "clientCapabilities": caps or {},
        PREFIX + "clientInfo": {"name": "test-client", "version": "1"},
    }
    if log_level is not None:
        meta[PREFIX + "logLevel"] = log_level
    params = dict(params or {})
    params["_meta"] = {**meta, **params.get("_meta", {})}
    return params


def text_of(result: dict) -> str:
    """Return the text blocks of a tool result, joined."""
    return "".join(block.get("text", "") for block in result.get("content", []) if block.get("type") == "text")


# ======================================================================================================================
# 9. COMMAND LINE — run a command and look at what it printed.
# ======================================================================================================================


def run_cli(
    args: list[str],
    input: str | None = None,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    timeout: float = 60,
    command: list[str] | None = None,
) -> subprocess.CompletedProcess:
    """Run the server's command line to its end; stdin is empty unless `input` is given."""
    command = (command or server_command()) + args
    if env is None:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("MCPBASH_", "MCP_"))}
    pipe = subprocess.PIPE
    stdin = pipe if input is not None else subprocess.DEVNULL
    process = spawn(command, stdin=stdin, stdout=pipe, stderr=pipe, env=env, cwd=cwd, text=True, encoding="utf-8")
    try:
        out, err = process.communicate(input, patient(timeout))
    except subprocess.TimeoutExpired:
        end_group(process)
        raise AssertionError("%s is still running after %g s" % (shlex.join(command), patient(timeout))) from None
    finally:
        known.discard(process.pid)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


# ======================================================================================================================
# 10. TRANSCRIPTS — sessions as text files.
# ======================================================================================================================
#
# > {"jsonrpc":"2.0","id":1,"method":"ping"}      sent as it stands, after variables were put in
# < {"id":1,"result":{}}                          the next line received must match
# # text                                          a comment
#
# An expected object matches when every member it names matches; members it does not name are ignored. Arrays match
# element by element; one that ends with "…" may go on. A string "…" matches anything, and inside a longer string it
# stands for any text. A string "…$NAME" matches anything and puts it into the variable NAME.
#
# Directives before the first line:                     Directives anywhere:
#   # versions: 2025-06-18..   once per version           # any-order   the block of < lines below may come in any order
#   # env: NAME=VALUE          for the server             # eof         close stdin here instead of at the end
#   # exit: 0                  expected exit code
#   # project: examples/00-x   what to serve
#   # ignore: METHOD           these notifications may come at any time
#   # stderr: TEXT             stderr contains this at the end
#
# Variables: $VERSION is the version of the round, $META is the `"_meta": {…}` member of a stateless request.

ANYTHING = "…"
DIRECTIVE = re.compile(r"#\s*(versions|env|exit|project|ignore|stderr):\s*(.*)$")
VARIABLE = re.compile(r"\$([A-Z][A-Z_0-9]*)")
CAPTURE = re.compile(ANYTHING + r"\$([A-Z][A-Z_0-9]*)$")


class Step(NamedTuple):
    """One thing a transcript does: "send", "expect" (one or more lines) or "eof"."""

    kind: str
    line: int
    texts: list[str]
    any_order: bool


class Transcript:
    """A parsed transcript file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.versions: list[str] = [""]
        self.env: dict[str, str] = {}
        self.exit_code = 0
        self.project = ""
        self.ignore: set[str] = set()
        self.stderr: list[str] = []
        self.steps: list[Step] = []
        with open(path, encoding="utf-8") as stream:
            self._parse(stream.read().split("\n"))
        if not any(step.kind == "expect" for step in self.steps):
            raise AssertionError(path + ": a transcript without an expectation cannot fail")

    def _parse(self, lines: list[str]) -> None:
        any_order = False
        previous = ""
        for number, line in enumerate(lines, 1):
            mark = line[:2].rstrip()
            if mark == "<" and previous == "<":
                self.steps[-1].texts.append(line[2:])
            elif mark == "<":
                self.steps.append(Step("expect", number, [line[2:]], any_order))
            elif mark == ">":
                self.steps.append(Step("send", number, [line[2:]], False))
            elif mark == "#":
                self._comment(line, number)
            elif line.strip():
                raise AssertionError("%s:%d: expected >, < or # at the beginning of the line" % (self.path, number))
            any_order = line.strip() == "# any-order"
            previous = mark

    def _comment(self, line: str, number: int) -> None:
        found = DIRECTIVE.match(line)
        if line.strip() == "# eof":
            self.steps.append(Step("eof", number, [], False))
        elif found and not self.steps:
            self._directive(found.group(1), found.group(2).strip())

    def _directive(self, name: str, value: str) -> None:
        if name == "versions":
            self.versions = versions_in(value)
        elif name == "env":
            key, _, text = value.partition("=")
            self.env[key] = text
        elif name == "exit":
            self.exit_code = int(value)
        elif name == "project":
            self.project = value
        elif name == "ignore":
            self.ignore.add(value)
        else:
            self.stderr.append(value)


def versions_in(text: str) -> list[str]:
    """Return the versions a range names; an open end stops at the newest handshake version.

    >>> versions_in("2025-06-18..")
    ['2025-06-18', '2025-11-25']
    >>> versions_in("..2025-03-26, 2026-07-28")
    ['2024-11-05', '2025-03-26', '2026-07-28']
    """
    found: list[str] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        low = first or VERSIONS[0]
        high = (last or HANDSHAKE_VERSIONS[-1]) if dots else first
        found.extend(version for version in VERSIONS if low <= version <= high)
    if not found:
        raise AssertionError("no version in %r; known are %s" % (text, ", ".join(VERSIONS)))
    return found


def matches(wanted: Any, actual: Any, captured: dict[str, str] | None = None) -> bool:
    """Tell whether `actual` has everything that `wanted` names; see the rules above."""
    if isinstance(wanted, str):
        return matches_text(wanted, actual, captured)
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(
            key in actual and matches(value, actual[key], captured) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        open_end = wanted[-1:] == [ANYTHING]
        wanted = wanted[:-1] if open_end else wanted
        if not isinstance(actual, list) or (len(actual) < len(wanted) if open_end else len(actual) != len(wanted)):
            return False
        return all(matches(one, other, captured) for one, other in zip(wanted, actual))
    # 1, 1.0 and true are equal in Python and different on the wire.
    return type(wanted) is type(actual) and wanted == actual


def matches_text(wanted: str, actual: Any, captured: dict[str, str] | None) -> bool:
    """Match a string that may hold the wildcard or a capture."""
    capture = CAPTURE.match(wanted)
    if capture and captured is not None:
        captured[capture.group(1)] = actual if isinstance(actual, str) else json.dumps(actual)
    if capture or wanted == ANYTHING:
        return True
    if not isinstance(actual, str):
        return False
    return re.fullmatch(".*".join(map(re.escape, wanted.split(ANYTHING))), actual, re.DOTALL) is not None


class Replay:
    """One round of a transcript against a running server."""

    def __init__(self, transcript: Transcript, client: Client, version: str, crlf: bool = False) -> None:
        self.transcript, self.client = transcript, client
        self.crlf = crlf
        meta = stateless(version=version if version == STATELESS_VERSION else None)
        self.variables = {"VERSION": version, "META": json.dumps(meta)[1:-1]}

    def run(self) -> None:
        """Do every step, close stdin, and see that nothing unexpected was said."""
        for step in self.transcript.steps:
            if step.kind == "send":
                self.client.send_raw(self._fill(step.texts[0]).encode("utf-8") + (b"\r\n" if self.crlf else b"\n"))
            elif step.kind == "eof":
                self.client.end_input()
            else:
                self._expect(step)
        self.client.end_input()
        extra = self._next()
        if extra is not None:
            self._fail("an unexpected line at the end", extra.show(2000))
        self.client.close(exit_code=self.transcript.exit_code)
        for text in self.transcript.stderr:
            if text not in self.client.stderr:
                self._fail("stderr does not contain %r" % text, self.client.stderr[-2000:])

    def _fill(self, text: str) -> str:
        def value(found: re.Match) -> str:
            name = found.group(1)
            text = self.variables.get(name, found.group(0))
            return text if name == "META" else json.dumps(text, ensure_ascii=False)[1:-1]

        return VARIABLE.sub(value, text)

    def _next(self) -> Record | None:
        while True:
            line = self.client.expect_next()
            method = line.message.get("method") if line is not None and isinstance(line.message, dict) else None
            if method not in self.transcript.ignore or method is None:
                return line

    def _expect(self, step: Step) -> None:
        wanted = [(number, self._wanted(text, number)) for number, text in enumerate(step.texts, step.line)]
        while wanted:
            line = self._next()
            if line is None:
                self._fail("line %d: stdout ended before" % wanted[0][0], step.texts[0])
            candidates = wanted if step.any_order else wanted[:1]
            found = next((each for each in candidates if self._fits(each[1], line)), None)
            if found is None:
                number, value = candidates[0]
                self._fail("line %d: expected %s, got" % (number, show_json(value)), line.show(4000))
            wanted.remove(found)

    def _wanted(self, text: str, number: int) -> Any:
        # A capture must survive until it is matched, so "…$NAME" is not a variable here.
        kept = re.sub(ANYTHING + r"\$", ANYTHING + "\0", text)
        try:
            return json.loads(self._fill(kept).replace("\0", "$"))
        except ValueError as error:
            raise AssertionError("%s:%d: not JSON: %s" % (self.transcript.path, number, error)) from None

    def _fits(self, wanted: Any, line: Record) -> bool:
        captured: dict[str, str] = {}
        if line.problem or not matches(wanted, line.message, captured):
            return False
        self.variables.update(captured)
        return True

    def _fail(self, text: str, detail: str) -> None:
        where = os.path.relpath(self.transcript.path, ROOT)
        self.client.fail("%s (version %s): %s\n%s" % (where, self.variables["VERSION"] or "any", text, detail))


def show_json(value: Any) -> str:
    """Return a value as compact readable JSON."""
    return json.dumps(value, ensure_ascii=False)


def replay(transcript: Transcript, project: Project, version: str, crlf: bool = False) -> None:
    """Replay one round of a transcript against a fresh server on `project`."""
    with project.client(env=transcript.env) as client:
        Replay(transcript, client, version, crlf).run()


# ======================================================================================================================
# 11. CASE — a TestCase that cleans up after itself.
# ======================================================================================================================


class Case(unittest.TestCase):
    """A test with projects and clients that are closed, and checked, when it ends."""

    maxDiff = 4000

    def new_project(self) -> Project:
        """Return an empty project that is removed after the test."""
        project = Project()
        self.addCleanup(project.close)
        return project

    def new_client(self, project: Project, **options: Any) -> Client:
        """Start a server; at the end of the test it is closed and its run is verified."""
        client = project.client(**options)
        self.addCleanup(self._close, client)
        return client

    def _close(self, client: Client) -> None:
        if client.closed:
            return
        if self._has_failed():
            client.abandon()  # a second report would only hide the first
        else:
            client.close()

    def _has_failed(self) -> bool:
        outcome = getattr(self, "_outcome", None)
        return outcome is not None and not getattr(outcome, "success", True)


def copy_project(source: str, project: Project) -> None:
    """Copy a directory into an empty project, with permissions, without what a server wrote there."""
    shutil.copytree(source, project.root, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".registry"))
