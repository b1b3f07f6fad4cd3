#!/usr/bin/env python3
"""Every call to the system fails once: the server answers or leaves, and nothing is left behind.

Cases RC-01, RC-02 (the fault sweeps), RC-05, RC-06 (exceptions inside the server) and RC-08 (the wall clock jumps).

 1  Shots       which call fails, how, and which of them are fired
 2  Scenarios   what is going on meanwhile
 3  Strace      makes calls of a real server fail from outside; needs the right to trace it
 4  Puppet      a real server with strings attached: faults, exceptions and a clock, without strace
 5  Sweeps      RC-01 and RC-02
 6  Exceptions  RC-05 and RC-06
 7  Clock       RC-08

A shot that went wrong is named in the message; MCPBASH_TEST_SHOT='warm call/read/2/EIO' fires it alone. Normally a
sample is fired, chosen by the seed; with --soak it is every call with every error.
"""
from __future__ import annotations

import base64
import errno
import fcntl
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import unittest
from collections.abc import Iterable, Iterator
from typing import Any, Callable, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support
from support import Case, Client, Project, text_of, wait_until

SEED = 20261
HANG = 5.0  # seconds without an answer and without an exit
MOST_FAILURES = 8  # of one sweep: each may cost HANG seconds

# ======================================================================================================================
# 1. SHOTS — which call fails, how, and which of them are fired.
# ======================================================================================================================

# Kind of call -> system calls, as machines and C libraries differ; strace passes over names it does not know.
CALLS = {
    "open": "?open,?openat",
    "pipe": "?pipe,?pipe2",
    "spawn": "?clone3,?clone,?vfork,?fork",
    "read": "?read",
    "write": "?write",
    "mkdir": "?mkdir,?mkdirat",
    "unlink": "?unlink,?unlinkat",
    "rename": "?rename,?renameat,?renameat2",
    "listing": "?getdents,?getdents64",
    "pidfd": "?pidfd_open",
    "poll": "?poll,?ppoll",
    "wait": "?waitid,?wait4",
}
KIND = {name.lstrip("?"): kind for kind, names in CALLS.items() for name in names.split(",")}

ERRORS = ("EMFILE", "ENOSPC", "EIO", "EINTR", "EAGAIN", "ENOMEM")

# RC-02: what can stay wrong. EINTR and EAGAIN pass by nature: the interpreter repeats a call as long as it is
# interrupted, and a descriptor that is ready and would block for ever does not exist. Only a spawn can meet EAGAIN for
# long, at the limit of processes. Waiting for a child that exists does not fail for long either.
LASTING = {
    "open": ("EMFILE", "ENOSPC", "EIO", "ENOMEM"),
    "pipe": ("EMFILE", "ENOMEM"),
    "spawn": ("EAGAIN", "ENOMEM"),
    "read": ("EIO", "ENOMEM"),
    "write": ("ENOSPC", "EIO", "ENOMEM"),
    "mkdir": ("ENOSPC", "EIO", "ENOMEM"),
    "unlink": ("EIO", "ENOMEM"),
    "rename": ("ENOSPC", "EIO", "ENOMEM"),
    "listing": ("EIO", "ENOMEM"),
    "pidfd": ("EMFILE", "ENOMEM"),
    "poll": ("ENOMEM",),
    "wait": (),
}


class Shot(NamedTuple):
    """One fault: the `number`-th call of a kind fails in a scenario; with `lasting`, all later ones do as well."""

    scenario: str
    kind: str
    number: int
    error: str
    lasting: bool

    def __str__(self) -> str:
        return "%s/%s/%d%s/%s" % (self.scenario, self.kind, self.number, "+" if self.lasting else "", self.error)


Site = tuple  # (scenario, kind, number): a call that can be shot at


def parse_shot(text: str) -> Shot:
    """Return the shot that a failure message named."""
    scenario, kind, number, error = text.split("/")
    return Shot(scenario, kind, int(number.rstrip("+")), error, number.endswith("+"))


def choose(sites: list[Site], errors: dict[str, tuple], lasting: bool, most: int) -> list[Shot]:
    """Return the shots to fire: with --soak each site with each error, else a sample with every kind of call."""
    wanted = os.environ.get("MCPBASH_TEST_SHOT")
    if wanted:
        shot = parse_shot(wanted)
        return [shot] if shot.lasting == lasting and shot[:3] in sites else []
    shots = [Shot(*site, error, lasting) for site in sites for error in errors[site[1]]]
    if support.SOAK:
        return shots
    random.Random(SEED).shuffle(shots)
    rows: dict[tuple, list[Shot]] = {}
    for shot in shots:
        rows.setdefault(shot[:2], []).append(shot)
    # One shot at every kind of call in every scenario, then a second one, and so on.
    dealt = [shot for turn in itertools.zip_longest(*rows.values()) for shot in turn if shot]
    return sorted(dealt[:most])


# ======================================================================================================================
# 2. SCENARIOS — what is going on meanwhile.
# ======================================================================================================================

TOOLS = {
    "echo": "echo hi",
    "hold": "echo held >'%s/held'; exec sleep 600",
    "leave": "(setsid sleep 600 >/dev/null 2>&1 &); echo hi",
}
POLICY = "mcp_tools_policy_check() { return 0; }\n"
ENV = {"MCPBASH_SHUTDOWN_TIMEOUT": "1"}


class Wrong(AssertionError):
    """The server did not do what it must, whatever fails."""


def in_time(condition: Callable[[], Any]) -> bool:
    """Wait for a condition; tell whether it came true before the wait counts as hanging."""
    try:
        return bool(wait_until(condition, HANG))
    except AssertionError:
        return False


def has_ended(client: Client) -> bool:
    """Tell whether the process that was started has ended."""
    return client.process.poll() is not None


def act(scenario: str, client: Client) -> None:
    """Let a client do what a scenario says; a server that ends meanwhile is looked at later."""
    try:
        SCENARIOS[scenario].act(client)
    except BrokenPipeError:
        if not in_time(lambda: has_ended(client)):
            raise Wrong("the server closed its input and did not end within %g s" % HANG) from None


def answer(client: Client, number: Any) -> dict | None:
    """Wait for the response to a request and return it, None when the server ended instead."""
    try:
        return client.response(number, HANG)
    except AssertionError as failure:
        if "stdout ended" in str(failure) and in_time(lambda: has_ended(client)):
            return None
    raise Wrong("a request was not answered within %g s and the server did not end" % HANG)


def call(client: Client, tool: str, arguments: dict | None = None) -> None:
    """Call a tool; what comes is an error, or the whole of what the tool printed."""
    response = answer(client, client.send_call(tool, arguments)) or {}
    result = response.get("result", {"isError": True})
    if not result["isError"] and text_of(result) != "hi\n":
        raise Wrong("a call succeeded with %r, expected 'hi' or an error" % text_of(result))


def call_and_cancel(client: Client) -> None:
    """Call a tool that waits, cancel it, and see that the server still listens."""
    held = os.path.join(client.project.base, "held")
    number = client.send_call("hold")
    if not in_time(lambda: os.path.exists(held) or client.responses_to(number) or has_ended(client)):
        raise Wrong("a tool was neither started nor refused within %g s" % HANG)
    client.cancel(number)
    if os.path.exists(held):
        os.unlink(held)
    answer(client, client.send_request("server/discover", modern=True))


def list_and_call(client: Client) -> None:
    """Ask for the tools and call one."""
    if answer(client, client.send_request("tools/list", modern=True)):
        call(client, "echo")


class Scenario(NamedTuple):
    """What a client does, and to what kind of server."""

    act: Callable[[Client], None]
    thread: str = "serving"  # for strace, which follows one thread
    warm: bool = True  # tools have run before; False: every shot is at a new server
    env: tuple = ()
    policy: bool = False  # the project has a policy script


SCENARIOS = {
    "first call": Scenario(lambda client: call(client, "echo"), warm=False),
    "first scan": Scenario(lambda client: call(client, "echo"), "clerk", warm=False),
    "warm call": Scenario(lambda client: call(client, "echo")),
    "large arguments": Scenario(lambda client: call(client, "echo", {"text": "x" * 200_000})),
    "cancelled call": Scenario(call_and_cancel),
    "process left": Scenario(lambda client: call(client, "leave")),
    "policy": Scenario(lambda client: call(client, "echo"), policy=True),
    "scan": Scenario(list_and_call, "clerk", env=(("MCP_TOOLS_TTL", "0"),)),
}


def make_project(project: Project, policy: bool = False) -> Project:
    """Fill a project with the tools of the scenarios."""
    for name, script in TOOLS.items():
        project.tool(name, script.replace("%s", project.base), {"description": name})
    if policy:
        project.file("server.d/policy.sh", POLICY)
    return project


def check_up(client: Client) -> None:
    """UP: the server answers further calls, each in time."""
    for _ in range(3):
        response = answer(client, client.send_call("echo"))
        if response is None:
            raise Wrong("the server ended with status %s" % client.process.poll())
        if text_of(response.get("result", {})) != "hi\n":
            raise Wrong("a call after the fault did not succeed: %s" % json.dumps(response)[:300])


def end(client: Client) -> None:
    """End a server that is still there, without looking at what it said."""
    if not client.closed:
        client.abandon()


class Rest(NamedTuple):
    """What a server holds when nothing is going on."""

    processes: int  # below the one that was started
    descriptors: int


def at_rest(server: Any) -> Rest:
    """Return what a server holds when it holds nothing for a call any more."""
    seen = [server.rest()]
    while len(seen) < 3 or seen[-3:] != [min(seen)] * 3:
        time.sleep(0.03)
        seen.append(server.rest())
    return min(seen)


def check_rest(server: Any, before: Rest) -> None:
    """CLEAN: as many processes and descriptors as before; a state directory that others know to be in use."""
    for name in os.listdir(server.client.project.tmp):
        if not os.path.exists(os.path.join(server.client.project.tmp, name, "owner")):
            raise Wrong("%s names no owner: another server would take it for abandoned" % name)
    if not in_time(lambda: server.rest() == before):
        left = [process.command()[:100] for process in server.client.tree()]
        raise Wrong("left behind: %s, before %s; processes now: %s" % (server.rest(), before, left))


# ======================================================================================================================
# 3. STRACE — makes calls of a real server fail from outside; needs the right to trace it.
# ======================================================================================================================
#
# The server works with two threads: the one that serves and the clerk that looks at the disk. strace is attached to one
# of them after the start, so that calls of the interpreter's own start do not count and nothing else is slowed down.


def why_untraceable() -> str:
    """Say why strace cannot be used on a process that is not its child, or return an empty string."""
    sleeper = support.spawn(["sleep", "60"])
    tracer = Strace(sleeper.pid, os.devnull)
    tracer.detach()
    support.end_group(sleeper)
    support.known.discard(sleeper.pid)
    return tracer.refusal


class Strace:
    """strace on one thread, with a fault or only watching."""

    def __init__(self, thread: int, output: str, inject: str = "") -> None:
        self.output = output
        command = ["strace", "-p", str(thread), "-o", output, "-e", "trace=" + ",".join(CALLS.values())]
        command += ["-e", "inject=" + inject] if inject else []
        quiet = subprocess.DEVNULL
        self._process = support.spawn(command, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE)
        first = self._process.stderr.readline().decode("utf-8", "replace").strip()
        self.refusal = "" if "attached" in first else first

    def detach(self) -> None:
        """Let the thread go on untraced."""
        self._process.terminate()
        self._process.wait()
        self._process.stderr.close()
        support.known.discard(self._process.pid)

    def lines(self) -> list[str]:
        """Return the calls that were made, one per line."""
        with open(self.output, encoding="utf-8", errors="replace") as stream:
            return [line for line in stream.read().splitlines() if line.partition("(")[0] in KIND]


class Traced:
    """A server under strace."""

    scenarios = tuple(SCENARIOS)
    errors = {kind: ERRORS for kind in CALLS}

    def __init__(self, project: Project, env: dict[str, str]) -> None:
        self.client = project.client(env=env)
        self.client.modern("server/discover")
        self.pid, *self._ends = self._find()
        threads = sorted(int(name) for name in os.listdir("/proc/%d/task" % self.pid))
        if len(threads) != 3:
            raise Wrong("the server has %d threads, expected main, clerk and serving" % len(threads))
        self._threads = dict(zip(("main", "clerk", "serving"), threads))  # in the order they are started
        self._output = os.path.join(project.base, "trace")
        self._lines: list[str] = []  # the calls of the last run

    def _find(self) -> list[int]:
        """Return the process that holds the other ends of the client's pipes, and their numbers there."""
        pipes = (self.client.process.stdin, self.client.process.stdout)
        wanted = [os.readlink("/proc/self/fd/%d" % pipe.fileno()) for pipe in pipes]
        for pid in [self.client.pid] + [process.pid for process in self.client.tree()]:
            links = {os.readlink("/proc/%d/fd/%s" % (pid, name)): int(name) for name in os.listdir("/proc/%d/fd" % pid)}
            if all(link in links for link in wanted):
                return [pid, *(links[link] for link in wanted)]
        raise Wrong("no process holds the client's pipes")

    def rest(self) -> Rest:
        """Return what the server holds now."""
        return Rest(len(self.client.tree()), support.open_files(self.pid))

    def watch(self, scenario: str) -> list[str]:
        """Run a scenario; return the kinds of its calls, in order."""
        self._run(scenario, "")
        return [KIND[line.partition("(")[0]] for line in self._lines if "detached" not in line]

    def shoot(self, shot: Shot) -> None:
        """Run a scenario with a fault."""
        when = "%d%s" % (shot.number, "+" if shot.lasting else "")
        self._run(shot.scenario, "%s:error=%s:when=%s" % (CALLS[shot.kind], shot.error, when))

    def _run(self, scenario: str, inject: str) -> None:
        tracer = Strace(self._threads[SCENARIOS[scenario].thread], self._output, inject)
        try:
            act(scenario, self.client)
        finally:
            tracer.detach()
            self._lines = tracer.lines()

    def failed(self) -> list[str]:
        """Return the calls that failed in the last shot, as text."""
        return [line for line in self._lines if "INJECTED" in line]

    def is_on_wire(self, line: str, kind: str) -> bool:
        """Tell whether a failed call is one of the client's pipes being read or written."""
        number = self._ends[0 if kind == "read" else 1]
        return line.startswith("%s(%d," % (kind, number))


# ======================================================================================================================
# 4. PUPPET — a real server with strings attached: faults, exceptions and a clock, without strace.
# ======================================================================================================================
#
# A few lines of Python import the server and start it as usual, but the name `os` in it stands for something that
# counts calls and lets one fail, `time` for something with a wall clock that can be set, and any function can be made
# to raise. Commands come as JSON lines through a socket; a thread of the server process answers them.

PUPPET = r"""
import json, os, socket, sys, threading, time
ROOT, NUMBER = sys.argv[1], int(sys.argv[2])
os.set_inheritable(NUMBER, False)
sys.path[0] = ROOT
import mcp_bash

KINDS = {"open": "open", "scandir": "open", "listdir": "open", "pipe": "pipe", "posix_spawn": "spawn",
         "posix_spawnp": "spawn", "read": "read", "write": "write", "mkdir": "mkdir", "unlink": "unlink",
         "replace": "rename", "pidfd_open": "pidfd", "waitid": "wait", "waitpid": "wait"}


class Os:
    def __init__(self):
        self.lock, self.fault = threading.Lock(), None
        self.calls, self.failed, self.raised = [], [], []

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in KINDS:
            return real

        def call(*arguments, **options):
            self.count(name, arguments)
            return real(*arguments, **options)

        setattr(self, name, call)
        return call

    def count(self, name, arguments):
        with self.lock:
            kind = KINDS[name]
            self.calls.append(kind)
            if self.fault is None or self.fault[0] != kind:
                return
            self.fault[1] -= 1
            if self.fault[1] == 0 or (self.fault[1] < 0 and self.fault[3]):
                first = arguments[0] if arguments else ""
                self.failed.append("%s(%s, ...)" % (name, ends.get(first, first)))
                raise OSError(self.fault[2], os.strerror(self.fault[2]))


class Time:
    offset = 0

    def __getattr__(self, name):
        return getattr(time, name)

    def time(self):
        return time.time() + self.offset


ends, fake, clock = {}, Os(), Time()
mcp_bash.os, mcp_bash.time = fake, clock
make_wire = mcp_bash.Wire.__init__


def note_ends(wire, in_fd, out_fd, *rest):
    ends.update({in_fd: "stdin", out_fd: "stdout"})
    make_wire(wire, in_fd, out_fd, *rest)


mcp_bash.Wire.__init__ = note_ends


def place_of(path):
    if path.startswith("handler "):
        return mcp_bash.HANDLERS, path[len("handler "):]
    owner, _, name = path.rpartition(".")
    return (vars(mcp_bash), name) if not owner else (getattr(mcp_bash, owner), name)


def make_it_raise(path, kind):
    place, name = place_of(path)
    is_dict = isinstance(place, dict)
    real = place[name] if is_dict else place.__dict__[name]

    def restore():
        if is_dict:
            place[name] = real
        else:
            setattr(place, name, real)

    def fail(*arguments, **options):
        restore()
        fake.raised.append(path)
        raise getattr(__builtins__, kind)("injected")

    if is_dict:
        place[name] = fail
    else:
        setattr(place, name, fail)


def obey(command):
    failed, raised = fake.failed, fake.raised
    if "fault" in command:
        fake.fault = command["fault"]
        fake.failed = []
    if "raise" in command:
        fake.raised = []
        make_it_raise(*command["raise"])
    clock.offset = command.get("clock", clock.offset)
    calls, fake.calls = fake.calls, []
    return {"calls": calls, "failed": failed, "raised": raised, "descriptors": len(os.listdir("/proc/self/fd"))}


def listen():
    with socket.socket(fileno=NUMBER) as strings, strings.makefile("rw") as stream:
        for line in stream:
            stream.write(json.dumps(obey(json.loads(line))) + "\n")
            stream.flush()


start = mcp_bash.Clerk.start


def start_both(clerk):
    threading.Thread(target=listen, daemon=True).start()
    start(clerk)


mcp_bash.Clerk.start = start_both
status = mcp_bash.main(sys.argv[3:])
if status is not None:
    sys.exit(status)
"""
ERRNO = {name: getattr(errno, name) for name in ERRORS}


class Puppet:
    """A server whose system calls, functions and wall clock can be made to fail."""

    # The interpreter repeats interrupted calls itself, so code in Python never sees EINTR; polling is not replaced.
    errors = {kind: tuple(error for error in ERRORS if error != "EINTR") for kind in CALLS}
    scenarios = ("first call", "large arguments", "cancelled call", "process left", "policy", "scan")

    def __init__(self, project: Project, env: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        # The server closes low descriptors when it starts.
        number = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 100)
        theirs.close()
        command = [support.PYTHON, "-c", PUPPET, support.ROOT, str(number), "--project-root", project.root]
        self.client = project.client(command=command, env=env, pass_fds=[number])
        os.close(number)
        self._commands = ours.makefile("wb", buffering=0)
        self._replies = ours.makefile("r")
        self._failed: list[str] = []
        ours.close()
        self.client.modern("server/discover")

    def rest(self) -> Rest:
        """Return what the server holds now; it counts its descriptors itself, because it hides them from others."""
        return Rest(len(self.client.tree()), self.tell()["descriptors"])

    def tell(self, **command: Any) -> dict:
        """Pull a string; return what the server has to say about its calls, nothing when it is gone."""
        try:
            self._commands.write(json.dumps(command).encode("ascii") + b"\n")
            return json.loads(self._replies.readline() or "{}")
        except OSError:
            return {}

    def watch(self, scenario: str) -> list[str]:
        """Run a scenario; return the kinds of its calls, in order."""
        self.tell(fault=None)
        act(scenario, self.client)
        return self.tell()["calls"]

    def shoot(self, shot: Shot) -> None:
        """Run a scenario with a fault."""
        self.tell(fault=[shot.kind, shot.number, ERRNO[shot.error], shot.lasting])
        try:
            act(shot.scenario, self.client)
        finally:
            self._failed = self.tell(fault=None).get("failed", ["unknown, the server is gone"])

    def failed(self) -> list[str]:
        """Return the calls that failed in the last shot, as text."""
        return self._failed

    def is_on_wire(self, line: str, kind: str) -> bool:
        """Tell whether a failed call is one of the client's pipes being read or written."""
        return line.startswith(("read(stdin" if kind == "read" else "write(stdout", "unknown"))


# ======================================================================================================================
# 5. SWEEPS — RC-01 and RC-02.
# ======================================================================================================================

# What ends the server when it is the client's pipe: kind of call -> exit status.
FATAL = {
    "read": 0,  # input that cannot be read has ended
    "write": 3,  # a client that does not take answers is gone
}
HOPELESS = 1  # exit status when nothing can be waited for any more


class Range:
    """Fires shots at servers; one that has survived is there for the next shot at the same scenario."""

    def __init__(self, case: Case, kind: Any) -> None:
        self._case, self._kind = case, kind
        # One project each: a server is asked at its end whether its directory for temporary files is as before.
        self._projects = {name: make_project(case.new_project(), row.policy) for name, row in SCENARIOS.items()}
        self._standing: dict[str, Any] = {}  # scenario -> server
        self._resting: dict[str, Rest] = {}  # scenario -> what a server holds that has met no fault
        self.hits = 0  # shots that met a call

    def _server(self, scenario: str) -> Any:
        if scenario in self._standing:
            return self._standing.pop(scenario)
        row = SCENARIOS[scenario]
        server = self._kind(self._projects[scenario], {**ENV, **dict(row.env)})
        self._case.addCleanup(end, server.client)
        if row.warm:
            check_up(server.client)
        return server

    def _keep(self, scenario: str, server: Any) -> None:
        if SCENARIOS[scenario].warm:
            self._standing[scenario] = server
        else:
            server.client.close()

    def close(self) -> None:
        """End the servers that are still standing, and check everything that was said."""
        for server in self._standing.values():
            server.client.close()

    def sites(self) -> list[Site]:
        """Run every scenario without a fault; return the calls that can be shot at."""
        found = []
        for scenario in self._kind.scenarios:
            server = self._server(scenario)
            before = [at_rest(server)] if SCENARIOS[scenario].warm else []
            kinds = server.watch(scenario)
            check_up(server.client)
            self._resting[scenario] = min(before + [at_rest(server)])
            self._keep(scenario, server)
            found += [(scenario, kind, n + 1) for kind in CALLS for n in range(kinds.count(kind))]
        return found

    def fire(self, shot: Shot) -> None:
        """Let calls fail; fail unless the server answers and goes on, or ends as it is known to."""
        server = self._server(shot.scenario)
        try:
            server.shoot(shot)
            self.hits += bool(server.failed())
            if self._is_fatal(server, shot):
                self._check_end(server.client, FATAL[shot.kind])
            else:
                self._check_alive(server, shot)
        except (AssertionError, BrokenPipeError) as error:
            said = server.client.stderr[-600:].strip()
            end(server.client)
            for name in os.listdir(server.client.project.tmp):  # must not be held against the next one
                shutil.rmtree(os.path.join(server.client.project.tmp, name))
            text = str(error).split("\n--- conversation")[0]
            report = "%s: %s\n    failed: %s\n    stderr: %s"
            raise Wrong(report % (shot, text, server.failed()[:2], said)) from None

    def _is_fatal(self, server: Any, shot: Shot) -> bool:
        """Tell whether the server must end because of what failed."""
        if shot.error in ("EINTR", "EAGAIN") or shot.kind not in FATAL:
            return False
        return any(server.is_on_wire(line, shot.kind) for line in server.failed())

    def _check_alive(self, server: Any, shot: Shot) -> None:
        try:
            check_up(server.client)
        except (Wrong, BrokenPipeError):
            if not (shot.kind == "poll" and shot.lasting):
                raise
            self._check_end(server.client, HOPELESS)  # may have given up before the fault was over
        else:
            check_rest(server, self._resting[shot.scenario])
            self._keep(shot.scenario, server)

    def _check_end(self, client: Client, status: int) -> None:
        if not in_time(lambda: has_ended(client)):
            raise Wrong("the server neither answers nor ends")
        # The last line may have been cut by the fault, so that its error belongs to no line the checker knows of.
        ended_with = client.close(check=False)
        faults = [line.problem for line in client.records if line.problem and not line.sent] + client.not_clean()
        if (status, []) != (ended_with, faults):
            raise Wrong("the server ended with %s, expected %s; %s" % (ended_with, status, faults))


class SweepTest(Case):
    """RC-01 and RC-02, from outside with strace and from inside without."""

    def setUp(self) -> None:
        if not sys.platform.startswith("linux"):
            raise support.not_here("processes and descriptors are counted in /proc")

    def strace(self) -> Any:
        """Return the kind of server to shoot at with strace, or skip."""
        if not shutil.which("strace"):
            self.skipTest("strace is not installed")
        refusal = why_untraceable() if os.geteuid() == 0 else "a server hides itself from all but root"
        if refusal:
            raise support.not_here("processes cannot be traced (%s)" % refusal)
        return Traced

    def sweep(self, kind: Any, lasting: bool, most: int) -> None:
        """Shoot at all scenarios; report every shot that went wrong."""
        stand = Range(self, kind)
        sites = stand.sites()
        shots = choose(sites, LASTING if lasting else kind.errors, lasting, most)
        print("%s: %d calls, %d shots, seed %d" % (self.id().rpartition(".")[2], len(sites), len(shots), SEED))
        wrong = []
        for shot in shots:
            try:
                stand.fire(shot)
            except Wrong as failure:
                wrong.append(str(failure))
            if len(wrong) >= MOST_FAILURES:
                break
        if wrong:
            self.fail("%d shots went wrong\n%s" % (len(wrong), "\n".join(wrong)))
        stand.close()
        # A shot misses when a scenario happens to make one call less; if that were the rule, nothing would be shown.
        self.assertGreater(stand.hits, len(shots) * 0.7)

    def test_any_system_call_may_fail_once(self):  # RC-01
        self.sweep(self.strace(), False, 75)

    def test_system_calls_may_fail_from_any_one_on(self):  # RC-02
        self.sweep(self.strace(), True, 40)

    def test_any_call_of_the_server_may_fail_once(self):  # RC-01
        self.sweep(Puppet, False, 45)

    def test_calls_of_the_server_may_fail_from_any_one_on(self):  # RC-02
        self.sweep(Puppet, True, 25)


# ======================================================================================================================
# 6. EXCEPTIONS — RC-05 and RC-06.
# ======================================================================================================================

EXITS = ("SystemExit", "KeyboardInterrupt")
EXCEPTIONS = ("Exception", "MemoryError", "RecursionError", *EXITS)
INTERNAL_ERROR = -32603

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
LISTEN = {"notifications": {"toolsListChanged": True}}


def request(method: str, params: dict | None = None, modern: bool = False) -> Callable[[Client], Any]:
    """Return a function that sends a request and returns its id."""
    return lambda client: client.send_request(method, params, modern=modern)


def notification(method: str, params: dict | None = None) -> Callable[[Client], None]:
    """Return a function that sends a notification."""
    return lambda client: client.notify(method, params)


# Method -> how a client with a handshake session asks for it.
REQUESTS: dict[str, Callable[[Client], Any]] = {
    "initialize": request("initialize", INITIALIZE),
    "ping": request("ping"),
    "logging/setLevel": request("logging/setLevel", {"level": "error"}),
    "tools/list": request("tools/list"),
    "tools/call": request("tools/call", {"name": "echo"}),
    "server/discover": request("server/discover", modern=True),
    "subscriptions/listen": request("subscriptions/listen", LISTEN, modern=True),
    "exit": request("exit"),
    "shutdown": request("shutdown"),
    "notifications/initialized": notification("notifications/initialized"),
    "initialized": notification("initialized"),
    "notifications/cancelled": notification("notifications/cancelled", {"requestId": "none"}),
}


def add_a_tool(client: Client) -> None:
    """Change what the server offers."""
    client.project.tool("new" + os.urandom(8).hex(), "echo new")


# Where else code runs: function, what makes it run, whether a session has to be open.
CALL = request("tools/call", {"name": "echo"}, modern=True)
LIST = request("tools/list", modern=True)
SPEAK = request("tools/call", {"name": "speak", "_meta": {"progressToken": 7}}, modern=True)
CANCEL = notification("notifications/cancelled", {"requestId": "no such request"})
PLACES = (
    ("decode", CALL, False),
    ("Server._receive_message", CALL, False),
    ("Server._receive_request", CALL, False),
    ("Server._admit", CALL, False),
    ("Server._queue", CALL, False),
    ("Server._response", CALL, False),
    ("Server._with_envelope", CALL, False),
    ("Registry.refresh", LIST, False),
    ("Registry._scan", LIST, False),
    ("tool_for", LIST, False),
    ("Policy.check", CALL, False),
    ("ToolCall._environment", CALL, False),
    ("ToolCall._take_record", SPEAK, False),
    ("ToolCall._conclude", CALL, False),
    ("Job.begin", CALL, False),
    ("Job._read", CALL, False),
    ("Containment.end_orphans", CALL, False),
    ("Containment.spawn", CALL, False),
    ("Server.return_files", CALL, False),
    ("Server.cancel", CANCEL, False),
    ("Server.list_changed", add_a_tool, True),
    ("Registry.refresh", lambda client: None, True),  # housekeeping looks for changes by itself
)


def code_of(client: Client, number: Any) -> int | None:
    """Return the code of the error that a request was answered with, None for a result."""
    return client.responses_to(number)[0].get("error", {}).get("code")


def errors_without_id(client: Client) -> int:
    """Return how many errors the server has sent that name no request."""
    return sum(isinstance(each, dict) and "error" in each and "id" not in each for each in client.messages)


class ExceptionTest(Case):
    """An exception costs the request it belongs to, and nothing else."""

    def setUp(self) -> None:
        self.project = make_project(self.new_project())
        self.project.tool("speak", "printf 'progress\\t1\\t\\t\\0' >&7; echo hi")
        self.servers: dict[bool, Puppet] = {}  # with or without a session
        self.resting: dict[bool, Rest] = {}  # what they hold

    def server(self, session: bool) -> Puppet:
        """Return a server with or without a handshake session; the same one as long as it lives."""
        puppet = self.servers.get(session)
        if puppet is None or puppet.client.closed or has_ended(puppet.client):
            puppet = self.servers[session] = Puppet(self.project, {**ENV, "MCP_TOOLS_TTL": "0"})
            self.addCleanup(end, puppet.client)
            if session:
                puppet.client.initialize()
            check_up(puppet.client)
            self.resting.setdefault(session, at_rest(puppet))
        return puppet

    def inject(self, place: str, kind: str, send: Callable[[Client], Any], session: bool) -> None:
        """Let a function raise the next time it is called and have it called; fail unless the server copes."""
        puppet = self.server(session)
        client, before = puppet.client, self.resting[session]
        complaints = errors_without_id(client)
        puppet.tell(**{"raise": [place, kind]})
        try:
            number = send(client)
            if not in_time(lambda: has_ended(client) or puppet.tell().get("raised")):
                raise Wrong("%s was not called" % place)
            self.check(client, number, complaints)
            if place.startswith("handler ") and number is not None:
                self.assertEqual(INTERNAL_ERROR, code_of(client, number))
            check_up(client)
            check_rest(puppet, before)
        except (AssertionError, BrokenPipeError):
            self.forgive_exit(client, kind if not place.startswith("handler ") else "")

    def check(self, client: Client, number: Any, complaints: int) -> None:
        """Fail unless a request was answered, if only by an error that cannot name it."""
        if number is not None and not in_time(
            lambda: client.responses_to(number) or errors_without_id(client) > complaints or has_ended(client)
        ):
            raise Wrong("a request was not answered within %g s" % HANG)

    def forgive_exit(self, client: Client, kind: str) -> None:
        """Inside an `except`: what asks the process to end may end it, outside handlers; all else is raised again."""
        try:
            if kind not in EXITS or not in_time(lambda: has_ended(client)):
                raise  # noqa: PLE0704
            self.assertEqual(1, client.wait())
        finally:
            client.abandon()

    def sweep(self, rows: Iterable[tuple[str, Callable[[Client], Any], bool]], kinds: Iterable[str]) -> None:
        """Raise everything everywhere; report what went wrong."""
        wrong: list[str] = []
        for (place, send, session), kind in itertools.product(rows, kinds):
            try:
                if len(wrong) < MOST_FAILURES:
                    self.inject(place, kind, send, session)
            except (AssertionError, BrokenPipeError) as failure:
                wrong.append("%s raises %s: %s" % (place, kind, str(failure)[:600]))
        if wrong:
            self.fail("%d exceptions were not dealt with\n%s" % (len(wrong), "\n".join(wrong)))

    def test_the_table_names_every_handler(self):
        sys.path.insert(0, support.ROOT)
        import mcp_bash

        self.assertEqual(sorted(mcp_bash.HANDLERS), sorted(REQUESTS))

    def test_no_request_of_the_table_is_an_internal_error_by_itself(self):  # the control of the tests below
        for method, send in REQUESTS.items():
            with self.subTest(method):
                client = self.server(True).client
                number = send(client)
                if number is not None and method != "subscriptions/listen":
                    self.assertIsNotNone(answer(client, number))
                    self.assertNotEqual(INTERNAL_ERROR, code_of(client, number))
                if method == "shutdown":
                    client.close(check=False)

    def test_an_exception_in_a_handler_is_an_internal_error_of_that_request(self):  # RC-05, RC-06
        self.sweep([("handler " + method, send, True) for method, send in REQUESTS.items()], EXCEPTIONS)

    def test_an_exception_elsewhere_leaves_no_request_unanswered(self):  # RC-05, RC-06
        self.sweep(PLACES, EXCEPTIONS if support.SOAK else ("MemoryError", "SystemExit"))


# ======================================================================================================================
# 7. CLOCK — RC-08.
# ======================================================================================================================

JUMPS = (-3600, 86400)  # seconds: an hour back, a day ahead


def time_in(cursor: str) -> int:
    """Return the time of day that a cursor was made at."""
    return json.loads(base64.urlsafe_b64decode(cursor + "=="))["timestamp"]


class ClockTest(Case):
    """The time of day may jump: deadlines, limits and lists do not care."""

    def setUp(self) -> None:
        self.project = make_project(self.new_project())

    def server(self, **env: str) -> Puppet:
        """Return a server whose wall clock can be set."""
        puppet = Puppet(self.project, {**ENV, **env})
        self.addCleanup(self._close, puppet.client)
        return puppet

    def each_jump(self) -> Iterator[int]:
        """Yield the jumps, each as a subtest."""
        for jump in JUMPS:
            with self.subTest(jump=jump):
                yield jump

    def test_the_clock_of_the_server_can_be_set(self):  # the control of all others
        for jump in self.each_jump():
            puppet = self.server(MCPBASH_PAGE_SIZE="1")
            puppet.tell(clock=jump)
            cursor = puppet.client.modern("tools/list")["result"]["nextCursor"]

            self.assertLess(abs(time.time() + jump - time_in(cursor)), 60)

    def test_a_timeout_is_neither_shortened_nor_lengthened(self):
        self.project.tool("short", TOOLS["hold"] % self.project.base, {"timeoutSecs": 1})
        released = self.project.fifo("released")
        self.project.tool("long", "read -r line <'%s'; echo hi" % released)
        for jump in self.each_jump():
            puppet = self.server()
            begun = time.monotonic()
            short, long = puppet.client.send_call("short"), puppet.client.send_call("long")
            support.wait_for_file(os.path.join(self.project.base, "held"))
            puppet.tell(clock=jump)
            result = puppet.client.response(short)["result"]
            seconds = time.monotonic() - begun
            with open(released, "w") as stream:
                stream.write("go\n")

            self.assertEqual("timeout", result["structuredContent"]["error"]["type"])
            self.assertGreater(seconds, 0.9)
            self.assertLess(seconds, support.patient(10))
            self.assertEqual("hi\n", text_of(puppet.client.response(long)["result"]))
            os.unlink(os.path.join(self.project.base, "held"))

    def test_a_rate_limit_does_not_start_anew(self):
        more = self.project.fifo("more")
        report = "for n in %s; do printf 'progress\\t%%s\\t\\t\\0' $n >&7; done\n"
        self.project.tool("speak", report % "1 2 3" + "read -r line <'%s'\n" % more + report % "4 5 6")
        for jump in self.each_jump():
            client = (puppet := self.server(MCPBASH_MAX_PROGRESS_PER_MIN="3")).client
            number = client.send_call("speak", token="t")
            client.expect({"method": "notifications/progress", "params": {"progress": 3}})
            puppet.tell(clock=jump)
            with open(more, "w") as stream:
                stream.write("go\n")
            client.response(number)

            self.assertEqual(3, len(client.notifications("notifications/progress")))

    def test_an_idle_server_ends_in_time_when_the_clock_goes_back(self):
        puppet = self.server(MCPBASH_IDLE_TIMEOUT="1")
        puppet.tell(clock=-3600)

        self.assertEqual(0, puppet.client.wait())
        self.assertIn("idle timeout", puppet.client.stderr)

    def test_a_server_is_not_idle_because_the_clock_goes_ahead(self):
        puppet = self.server(MCPBASH_IDLE_TIMEOUT="3600")
        puppet.tell(clock=86400)
        check_up(puppet.client)

    def test_changes_of_the_project_are_seen(self):
        for jump in self.each_jump():
            puppet = self.server(MCP_TOOLS_TTL="0.1")
            check_up(puppet.client)
            puppet.tell(clock=jump)
            for round in range(3):
                name = "new%d.%d" % (abs(jump), round)
                self.project.tool(name, "echo one")
                names = lambda: [each["name"] for each in puppet.client.modern("tools/list")["result"]["tools"]]  # noqa: B023, E731
                wait_until(lambda: name in names(), what="the new tool")  # noqa: B023
                self.project.tool(name, "echo two")

                self.assertEqual("two\n", puppet.client.text(name))

    def test_a_cursor_stays_valid(self):
        for jump in self.each_jump():
            puppet = self.server(MCPBASH_PAGE_SIZE="1")
            cursor = puppet.client.modern("tools/list")["result"]["nextCursor"]
            puppet.tell(clock=jump)
            page = puppet.client.modern("tools/list", {"cursor": cursor})["result"]["tools"]

            self.assertEqual(["hold"], [each["name"] for each in page])

    def test_state_of_the_living_stays_and_that_of_the_dead_goes(self):
        gone = subprocess.Popen(["true"])
        gone.wait()
        for jump in self.each_jump():
            living = self.server()
            check_up(living.client)
            states = set(os.listdir(self.project.tmp))
            dead = os.path.join(self.project.tmp, "mcpbash.state.1.%d.%d" % (gone.pid, abs(jump)))
            os.mkdir(dead, 0o700)
            with open(os.path.join(dead, "owner"), "w") as stream:
                stream.write("%d 0\n" % gone.pid)
            sweeper = self.server()
            sweeper.tell(clock=jump)
            wait_until(lambda: not os.path.exists(dead), what="the sweep")  # noqa: B023

            self.assertLessEqual(states, set(os.listdir(self.project.tmp)))
            check_up(living.client)
            sweeper.client.close(check=False)  # the directory that is gone was there when it started


if __name__ == "__main__":
    unittest.main()
