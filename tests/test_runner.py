#!/usr/bin/env python3
# serial
"""The process runner: one child from start to end, whatever it does meanwhile.

The first part looks at Loop, Clock, Records and Job directly; jobs run in a process of their own, because a Containment
considers itself the owner of every orphan it sees. The second part goes through the server.
"""
from __future__ import annotations

import functools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
from typing import Any
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support
from support import Case, Client, Project, not_here, text_of, wait_until

sys.path.insert(0, support.ROOT)

import mcp_bash

FLOOD = 1_000_000_000 if support.SOAK else 200_000_000  # bytes of a tool that does not stop
SOMEBODY = 54321  # a user id that nobody has
SOON = 3.0  # for "within a second"; the machine may be busy


def sleeping(client: Client) -> int:
    """Return how many `sleep` run below a server."""
    return sum(process.name == "sleep" and process.state not in "ZX" for process in client.tree())


def children(client: Client) -> list[str]:
    """Return what is below a server apart from its guardian, dead or alive."""
    return [each.command() for each in client.tree() if "mcp_bash-guardian" not in each.command()]


class LinuxCase(Case):
    """A test that looks into /proc."""

    def setUp(self) -> None:
        if not support.IS_SUBREAPER:
            raise not_here("needs Linux: /proc and child subreapers")

    def serving(self, env: dict[str, str] | None = None, **tools: str) -> tuple[Project, Client]:
        """Return a server in a handshake session, with these tools."""
        project = self.new_project()
        for name, script in tools.items():
            project.tool(name, script)
        client = self.new_client(project, env=env)
        client.initialize()
        return project, client

    def assert_up(self, client: Client, pid: int) -> None:
        """The server is the same process and serves."""
        self.assertEqual(pid, client.pid)
        for _ in range(10):
            self.assertEqual("up\n", client.text("up"))


# ======================================================================================================================
# Loop
# ======================================================================================================================


class LoopTest(unittest.TestCase):
    """The loop waits for descriptors and times."""

    def setUp(self) -> None:
        self.errors: list[Exception] = []
        self.loop = mcp_bash.Loop(self.errors.append)
        self.addCleanup(self.loop.close)
        self.read, self.write = os.pipe()
        self.addCleanup(os.close, self.read)
        self.addCleanup(os.close, self.write)
        self.seen: list[bytes] = []

    def test_a_ready_descriptor_is_handled(self) -> None:
        self.loop.watch(self.read, lambda: self.seen.append(os.read(self.read, 10)))
        os.write(self.write, b"x")
        self.loop.turn(time.monotonic() + 10)

        self.assertEqual([b"x"], self.seen)

    def test_a_forgotten_descriptor_is_not_handled(self) -> None:
        self.loop.watch(self.read, lambda: self.seen.append(os.read(self.read, 10)))
        self.loop.unwatch(self.read)
        os.write(self.write, b"x")
        self.loop.turn(time.monotonic() + 0.01)

        self.assertEqual([], self.seen)

    def test_forgetting_twice_is_harmless(self) -> None:
        self.loop.watch(self.read, lambda: None)
        self.loop.unwatch(self.read)
        self.loop.unwatch(self.read)

    def test_a_handler_may_forget_another_one_of_the_same_turn(self) -> None:
        other, writer = os.pipe()
        self.addCleanup(os.close, other)
        self.addCleanup(os.close, writer)

        def handle(mine: int, its: int) -> None:
            self.seen.append(os.read(mine, 10))
            self.loop.unwatch(its)

        self.loop.watch(self.read, lambda: handle(self.read, other))
        self.loop.watch(other, lambda: handle(other, self.read))
        os.write(self.write, b"x")
        os.write(writer, b"y")
        self.loop.turn(time.monotonic() + 10)

        self.assertEqual(1, len(self.seen))

    def test_turn_returns_when_its_time_has_come(self) -> None:
        for due in (0.0, time.monotonic() + 0.02):
            begun = time.monotonic()
            self.loop.turn(due)

            self.assertLess(time.monotonic() - begun, support.patient(5))

    def test_turn_does_not_return_early_without_a_reason(self) -> None:
        due = time.monotonic() + 0.05
        self.loop.turn(due)

        self.assertGreaterEqual(time.monotonic(), due)

    def test_a_function_posted_by_another_thread_runs_in_the_loops_thread(self) -> None:
        names: list[str] = []
        poster = threading.Thread(target=lambda: self.loop.post(lambda: names.append(threading.current_thread().name)))
        poster.start()
        self.loop.turn(time.monotonic() + 10)
        poster.join()

        self.assertEqual([threading.current_thread().name], names)

    def test_functions_posted_faster_than_the_pipe_takes_all_run(self) -> None:
        for number in range(100_000):  # more wake-ups than a pipe holds
            self.loop.post(lambda number=number: self.seen.append(number))
        while len(self.seen) < 100_000:
            self.loop.turn(time.monotonic() + 10)

        self.assertEqual(list(range(100_000)), self.seen)

    def test_a_failing_handler_is_reported_once_and_forgotten(self) -> None:
        def fail() -> None:
            raise ValueError("broken")

        self.loop.watch(self.read, fail)
        os.write(self.write, b"x")
        for _ in range(3):
            self.loop.turn(0)

        self.assertEqual(["broken"], [str(error) for error in self.errors])

    def test_without_somebody_to_tell_the_error_comes_out(self) -> None:
        loop = mcp_bash.Loop()
        self.addCleanup(loop.close)
        loop.watch(self.read, lambda: 1 // 0)
        os.write(self.write, b"x")
        with self.assertRaises(ZeroDivisionError):
            loop.turn(0)


# ======================================================================================================================
# Clock
# ======================================================================================================================


class ClockTest(unittest.TestCase):
    """When a job must end. A row: seconds, extends, cap, when progress came, the moment it is due, why."""

    ROWS: list[tuple[float, bool, float, list[float], float, str]] = [
        (30, False, 600, [], 30, "fixed"),
        (30, False, 600, [10, 20], 30, "fixed"),
        (30, False, 5, [], 30, "fixed"),
        (30, True, 600, [], 30, "idle"),
        (30, True, 600, [10], 40, "idle"),
        (30, True, 600, [10, 25], 55, "idle"),
        (30, True, 50, [10, 25], 50, "max_exceeded"),
        (30, True, 20, [], 20, "max_exceeded"),
        (0.1, True, 3, [0.05, 2.95], 3, "max_exceeded"),
    ]

    def test_due_and_why(self) -> None:
        for seconds, extends, cap, progress, due, why in self.ROWS:
            with self.subTest((seconds, extends, cap, progress)), mock.patch.object(mcp_bash, "time") as fake:
                fake.monotonic.return_value = 1000.0
                clock = mcp_bash.Clock(seconds, extends, cap)
                for moment in progress:
                    fake.monotonic.return_value = 1000.0 + moment
                    clock.renew()
                fake.monotonic.return_value = clock.due()

                self.assertAlmostEqual(1000.0 + due, clock.due())
                self.assertEqual(why, clock.why())
                self.assertAlmostEqual(due, clock.elapsed())


# ======================================================================================================================
# Records
# ======================================================================================================================

LIMIT = mcp_bash.RECORD_LIMIT


class RecordsTest(unittest.TestCase):
    """How bytes become records. A row: a name, the bytes, the records."""

    ROWS: list[tuple[str, bytes, list[bytes]]] = [
        ("nothing", b"", []),
        ("one", b"a\tb\0", [b"a\tb"]),
        ("two", b"a\0b\0", [b"a", b"b"]),
        ("unfinished", b"a\0b", [b"a"]),
        ("an empty record", b"\0a\0", [b"a"]),
        ("newlines inside", b"log\tinfo\t\tone\ntwo\n\0", [b"log\tinfo\t\tone\ntwo\n"]),
        ("newlines between", b"a\0\n\n\nb\0", [b"a", b"b"]),
        ("a JSON line", b'{"a":1}\n', [b'{"a":1}']),
        ("a JSON line after newlines", b'\n\n{"a":1}\n\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        ("an unfinished JSON line", b'{"a":1}', []),
        ("JSON lines and records", b'{"a":1}\nlog\t1\t\t\0{"b":2}\n', [b'{"a":1}', b"log\t1\t\t", b'{"b":2}']),
        ("a JSON line with a carriage return", b'{"a":1}\r\n', [b'{"a":1}\r']),
        ("as long as allowed", b"x" * LIMIT + b"\0a\0", [b"x" * LIMIT, b"a"]),
        ("too long", b"x" * (LIMIT + 1) + b"\0a\0", [b"a"]),
        ("much too long", b"x" * (5 * LIMIT) + b"\0a\0", [b"a"]),
        ("a JSON line as long as allowed", b"{" + b"x" * (LIMIT - 1) + b"\na\0", [b"{" + b"x" * (LIMIT - 1), b"a"]),
        ("a JSON line that is too long", b"{" + b"x" * LIMIT + b'\n{"a":1}\n', [b'{"a":1}']),
        ("a JSON line that is much too long", b"{" + b"x" * (5 * LIMIT) + b'\n{"a":1}\na\0', [b'{"a":1}', b"a"]),
        ("too long, twice", (b"x" * (2 * LIMIT) + b"\0") * 2 + b"a\0", [b"a"]),
    ]

    def test_the_records_do_not_depend_on_how_the_bytes_arrive(self) -> None:
        for name, data, expected in self.ROWS:
            sizes = (1, 3, 4096, 65536, 1 << 20) if len(data) < 1000 else (4096, 65536, 1 << 20)
            for size in sizes:
                with self.subTest(name, size=size):
                    records = mcp_bash.Records()
                    found: list[bytes] = []
                    for start in range(0, len(data), size):
                        found.extend(records.feed(data[start : start + size]))
                    self.assertEqual(expected, [each for each in found if each])  # an empty record says nothing

    def test_what_is_not_finished_is_bounded(self) -> None:
        records = mcp_bash.Records()
        for _ in range(100):
            records.feed(b"x" * 65536)

        self.assertLessEqual(len(records._rest), LIMIT)


# ======================================================================================================================
# Job, in a process of its own
# ======================================================================================================================

DRIVER = """
import json, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import mcp_bash as m
settings = m.Settings({"MCPBASH_TMP_ROOT": sys.argv[2], "MCPBASH_KILL_GRACE": "0.3"})
log = m.Log(settings)
containment = m.Containment(settings, log)
def job(script, seconds=30, stdout=1 << 20, stderr=1 << 20, on_record=None, detach=False, argv=None):
    argv = argv or ["sh", "-c", script]
    return m.Job(containment, argv, dict(os.environ), m.Clock(seconds), stdout, stderr, on_record, detach)
def shown(outcome):
    fields = outcome._asdict()
    fields.update(stdout=outcome.stdout.decode("latin-1"), stderr=outcome.stderr.decode("latin-1"))
    return fields
result = None
%s
containment.end_all()
containment.close()
print(json.dumps(result))
"""


def drive(project: Project, code: str) -> Any:
    """Run code with `job` and `shown` at hand in a process of its own; return its `result`."""
    command = [support.PYTHON, "-c", DRIVER % code, support.ROOT, project.tmp]
    done = support.run_cli([], command=command, env=project.environment())
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


class JobTest(LinuxCase):
    """One child. A row: a name, the script, limits, what the outcome has."""

    ROWS: list[tuple[str, str, str, dict]] = [
        ("exit 0", "echo out; echo err >&2", "", {"exit_code": 0, "why": "exit", "stdout": "out\n", "stderr": "err\n"}),
        ("exit 7", "exit 7", "", {"exit_code": 7, "signal": 0, "why": "exit"}),
        ("a signal", "kill -USR1 $$", "", {"exit_code": 138, "signal": 10, "why": "exit"}),
        ("closes its output early", "exec >&- 2>&-; sleep 0.2; exit 3", "", {"exit_code": 3, "why": "exit"}),
        ("leaves a child with the output", "sleep 600 & echo out", "", {"exit_code": 0, "stdout": "out\n"}),
        ("too long", "sleep 600", "seconds=0.2", {"why": "fixed", "signal": 15}),
        ("too long and deaf", "trap '' TERM; sleep 600; sleep 600", "seconds=0.2", {"why": "fixed", "signal": 9}),
        ("too long and stopped", "kill -STOP $$; exit 1", "seconds=0.2", {"why": "fixed", "signal": 15}),
        ("too long, yields", "trap 'exit 4' TERM; sleep 600 & wait", "seconds=0.2", {"why": "fixed", "exit_code": 4}),
        ("just enough output", "head -c 1000 /dev/zero", "stdout=1000", {"why": "exit", "stdout": "\0" * 1000}),
        ("too much output", "cat /dev/zero", "stdout=1000", {"why": "stdout", "signal": 13}),
        ("just enough stderr", "head -c 1000 /dev/zero >&2", "stderr=1000", {"why": "exit", "stderr_size": 1000}),
        ("too much stderr", "cat /dev/zero >&2", "stderr=1000", {"why": "stderr"}),
        ("the end of stderr", "head -c 9000 /dev/zero >&2; printf end >&2", "", {"stderr": "\0" * 4093 + "end"}),
    ]  # fmt: skip

    def test_outcomes(self) -> None:
        project = self.new_project()
        calls = ["shown(m.run_to_end(job(%r%s)))" % (row[1], row[2] and ", " + row[2]) for row in self.ROWS]
        outcomes = drive(project, "result = [%s]" % ", ".join(calls))
        for (name, _, _, expected), outcome in zip(self.ROWS, outcomes):
            if name == "too much output":
                expected = dict(expected, signal=outcome["signal"])  # TERM, KILL or PIPE: whichever came first
            with self.subTest(name):
                self.assertEqual(expected, {key: outcome[key] for key in expected})

    def test_the_reason_of_the_first_stop_wins(self) -> None:
        code = """
loop, done = m.Loop(), []
first = job("sleep 600")
first.begin(loop, done.append)
for why in ("fixed", "cancelled", "stdout"):
    first.stop(why)
while not done:
    loop.turn(m.INFINITY)
first.stop("cancelled")
result = done[0].why
"""
        self.assertEqual("fixed", drive(self.new_project(), code))

    def test_a_child_that_cannot_be_started_costs_no_descriptor(self) -> None:
        code = """
before, errors = len(os.listdir("/proc/self/fd")), []
m.run_to_end(job("true"))
before = len(os.listdir("/proc/self/fd"))
for _ in range(20):
    try:
        m.run_to_end(job("", argv=["/nonexistent/program"]))
    except OSError as error:
        errors.append(error.errno)
result = [errors, len(os.listdir("/proc/self/fd")) - before]
"""
        self.assertEqual([[2] * 20, 0], drive(self.new_project(), code))

    def test_no_signal_goes_to_a_process_that_was_reaped_or_is_not_ours(self) -> None:  # PS-26
        code = """
reaped, wrong, sent = set(), [], 0
killpg, kill, waitpid, spawn = os.killpg, os.kill, os.waitpid, containment.spawn
def check(pid, number):
    global sent
    sent += 1
    if pid <= 1 or pid in reaped or pid == os.getpgrp():
        wrong.append([pid, number])
def spy_killpg(pid, number):
    check(pid, number)
    killpg(pid, number)
def spy_kill(pid, number):
    check(pid, number)
    kill(pid, number)
def spy_waitpid(pid, options):
    found = waitpid(pid, options)
    if found[0]:
        reaped.add(found[0])
    return found
def spy_spawn(*arguments):
    found = spawn(*arguments)
    reaped.discard(found[0])  # the number is in use again
    return found
os.killpg, os.kill, os.waitpid, containment.spawn = spy_killpg, spy_kill, spy_waitpid, spy_spawn
loop, done = m.Loop(), []
left = [job(script) for script in ["exit 0", "exit 1", "kill -9 $$", ":", "sleep 600 &"] * 200]
for each in left[:50]:
    each._clock.seconds = 0.01
while len(done) < 1000:
    while left and len(loop.jobs) < 16:
        left.pop().begin(loop, done.append)
    loop.turn(m.INFINITY)
try:
    os.killpg(list(reaped)[0], 0)
except OSError:
    pass
result = [wrong[:-1], len(wrong), sent >= 1000]
"""
        # The last signal is the control: the spy does notice one that goes to a reaped process.
        self.assertEqual([[], 1, True], drive(self.new_project(), code))


# ======================================================================================================================
# Stopping, through the server
# ======================================================================================================================


class StopTest(LinuxCase):
    """Cancel, timeouts and what they leave behind: nothing."""

    STUBBORN = {  # PS-01, PS-02: a script, how many `sleep` it ends up with
        "deaf": ("trap '' TERM; sleep 300; sleep 300", 1),
        "daemon": ("(setsid sh -c 'trap \"\" TERM; sleep 301' &) ; (env -i setsid /bin/sleep 302 &); sleep 303", 3),
        "stopped": ("sleep 304 & kill -STOP $$; sleep 305", 1),
        "forking": ("while :; do (sleep 306 &) ; sleep 0.02; done", 3),
    }

    def test_a_cancelled_tool_is_gone_however_it_resists(self) -> None:
        for name, (script, count) in self.STUBBORN.items():
            with self.subTest(name):
                _, client = self.serving({"MCPBASH_KILL_GRACE": "0.5"}, tool=script)
                number = client.send_call("tool")
                wait_until(lambda client=client, count=count: sleeping(client) >= count)
                client.cancel(number)
                wait_until(lambda client=client: not children(client), 2.5 + SOON, "no descendant")
                client.fence()

                self.assertEqual([], client.responses_to(number))
                client.close()

    def test_a_daemon_ends_with_its_call_and_a_concurrent_call_does_not(self) -> None:  # PS-03
        project, client = self.serving(
            daemon="(cd /; env -i setsid /bin/sleep 301 >/dev/null 2>&1 &); echo left", hold="sleep 302; echo held"
        )
        number = client.send_call("hold")
        wait_until(lambda: sleeping(client) == 1)
        self.assertEqual("left\n", client.text("daemon"))
        wait_until(lambda: sleeping(client) == 1, SOON)
        (one,) = (each for each in client.tree() if each.name == "sleep")
        self.assertIn("302", one.command())
        os.kill(one.pid, signal.SIGKILL)

        self.assertEqual("held\n", text_of(client.response(number)["result"]))

    def test_a_background_process_does_not_hold_the_answer_back(self) -> None:  # PS-04
        _, client = self.serving(tool="sleep 300 & echo hi")
        begun = time.monotonic()
        self.assertEqual("hi\n", client.text("tool"))
        self.assertLess(time.monotonic() - begun, support.patient(SOON))
        wait_until(lambda: not children(client), SOON)

    def test_at_the_end_of_input_short_calls_are_answered_and_long_ones_ended(self) -> None:  # PS-06
        _, client = self.serving({"MCPBASH_SHUTDOWN_TIMEOUT": "2"}, short="sleep 0.5; echo done", long="sleep 300")
        numbers = [client.send_call("short") for _ in range(3)]
        last = client.send_call("long")
        wait_until(lambda: sleeping(client) == 4)
        begun = time.monotonic()
        client.end_input()
        answers = [text_of(client.response(number)["result"]) for number in numbers]
        client.close(unanswered_ok=True)

        self.assertEqual(["done\n"] * 3, answers)
        self.assertLess(time.monotonic() - begun, support.patient(2 + SOON))
        self.assertLessEqual({answer["error"]["code"] for answer in client.responses_to(last)}, {-32603})

    def test_a_tool_without_a_timeout_of_its_own_gets_the_default(self) -> None:  # PS-08
        project, client = self.serving({"MCPBASH_DEFAULT_TOOL_TIMEOUT": "0.7"}, endless="sleep 45")
        project.tool("patient", "sleep 1; echo done", {"timeoutSecs": 30})
        begun = time.monotonic()
        result = client.call("endless")
        took = time.monotonic() - begun

        self.assertTrue(result["isError"])
        self.assertTrue(text_of(result).startswith("Tool timed out after 0.7s"), text_of(result))
        self.assertEqual(("timeout", "fixed"), error_of(result, "type", "reason"))
        self.assertTrue(0.7 <= took < support.patient(0.7 + SOON), took)
        self.assertEqual("done\n", client.text("patient"))  # the control

    def test_the_default_default_is_thirty_seconds(self) -> None:  # PS-08
        self.assertEqual(30, mcp_bash.Settings({}).default_tool_timeout)

    def test_a_client_can_shorten_a_timeout_but_not_lengthen_it(self) -> None:
        project, client = self.serving()
        project.tool("hold", "sleep 300", {"timeoutSecs": 0.6})
        rows = ((0.2, 0.2), (999_999_999, 0.6), (0, 0.6), (-1, 0.6), ("9", 0.6), (True, 0.6), (None, 0.6))
        numbers = [client.send_call("hold", params={"timeoutSecs": asked}) for asked, _ in rows]
        for (asked, expected), number in zip(rows, numbers):
            with self.subTest(asked=asked):
                self.assertEqual((expected,), error_of(client.response(number)["result"], "timeoutSecs"))

    def test_a_tool_that_spins_stops_using_the_processor(self) -> None:  # PS-09
        project, client = self.serving()
        project.tool("spin", "(while :; do :; done) & while :; do :; done", {"timeoutSecs": 0.5})
        result = client.call("spin")

        self.assertEqual(("timeout",), error_of(result, "type"))
        wait_until(lambda: not children(client), SOON)

    EXTENDED: list[tuple[str, str, dict, str]] = [
        # PS-27: name, script, metadata, reason of the timeout, or the text of the result
        ("progress goes on for ever", "while :; do %s; sleep 0.1; done", {"maxTimeoutSecs": 1.2}, "max_exceeded"),
        ("progress stops", "for i in 1 2 3; do %s; sleep 0.1; done; sleep 300", {}, "idle"),
        ("no progress at all", "sleep 300", {}, "idle"),
        ("progress until the end", "for i in 1 2 3 4 5 6 7 8; do %s; sleep 0.2; done; echo done", {}, "done\n"),
        ("not extended", "while :; do %s; sleep 0.1; done", {"progressExtendsTimeout": False}, "fixed"),
    ]  # fmt: skip

    def test_progress_extends_the_timeout_up_to_a_cap(self) -> None:
        project, client = self.serving()
        tick = "n=$((n + 1)); printf 'progress\\t%s\\t\\t\\0' $n >&7"
        for number, (_, script, meta, _) in enumerate(self.EXTENDED):
            meta = {"timeoutSecs": 0.7, "progressExtendsTimeout": True, **meta}
            project.tool("t%d" % number, script.replace("%s", tick), meta)
        numbers = [client.send_call("t%d" % number, token=number) for number in range(len(self.EXTENDED))]
        for (name, _, _, expected), number in zip(self.EXTENDED, numbers):
            with self.subTest(name):
                result = client.response(number)["result"]
                found = error_of(result, "reason")[0] if result["isError"] else text_of(result)
                self.assertEqual(expected, found)

    def test_five_hundred_children_leave_neither_processes_nor_zombies(self) -> None:  # PS-11
        _, client = self.serving(many="i=0; while [ $i -lt 500 ]; do sleep 300 & i=$((i + 1)); done; echo started")

        self.assertEqual("started\n", client.text("many"))
        wait_until(lambda: not children(client), SOON, "no descendant, no zombie")


def error_of(result: dict, *fields: str) -> tuple:
    """Return fields of the structured error of a tool result."""
    return tuple(result["structuredContent"]["error"][field] for field in fields)


# ======================================================================================================================
# Starting, and what a child finds
# ======================================================================================================================


class StartTest(LinuxCase):
    """What is started, and in which state."""

    UNSTARTABLE: list[tuple[str, bytes, int, str]] = [
        # PS-13: name, the file, its mode, what the answer says (the error, or the text of an error result)
        ("interpreter", b"#!/nonexistent/interpreter\n", 0o755, "could not be started: its interpreter"),
        ("interpreter-env", b"#!/usr/bin/env nonexistent-interpreter\n", 0o755, "exit status 127"),
        ("windows-line-end", b"#!/bin/sh\r\necho hi\r\n", 0o755, "could not be started: its interpreter"),
        ("no-program", b"\x7fELF, but not really", 0o755, "could not be started"),
        ("exit-126", b"#!/bin/sh\nexec /etc/passwd\n", 0o755, "exit status 126"),
    ]  # fmt: skip

    def test_what_cannot_be_started_says_so_and_the_server_goes_on(self) -> None:
        project, client = self.serving(up="echo up")
        for name, data, mode, _ in self.UNSTARTABLE:
            project.file("tools/%s/tool.sh" % name, data, mode)
        os.makedirs(project.path("tools", "directory", "tool.sh"))
        wait_until(lambda: client.result("tools/list")["_meta"]["mcpbash/total"] == 1 + len(self.UNSTARTABLE))
        for name, _, _, expected in self.UNSTARTABLE:
            with self.subTest(name):
                answer = client.request("tools/call", {"name": name})
                if "error" in answer:
                    self.assertEqual(-32603, answer["error"]["code"])
                    self.assertIn(expected, answer["error"]["message"])
                else:
                    self.assertTrue(answer["result"]["isError"])
                    self.assertIn(expected, text_of(answer["result"]))
        self.assertEqual(-32602, client.error("tools/call", {"name": "directory"})["code"])
        self.assert_up(client, client.pid)

    def test_a_script_needs_a_shebang_or_the_execute_bit_but_not_both(self) -> None:  # PS-13
        project, client = self.serving()
        project.tool("shebang-only", "echo one", mode=0o644)
        project.file("tools/bit-only/tool.sh", "echo two\n", 0o755)
        project.file("tools/empty/tool.sh", "", 0o755)

        self.assertEqual(["one\n", "two\n", ""], [client.text(name) for name in ("shebang-only", "bit-only", "empty")])

    def test_a_tool_that_dies_by_a_signal_says_which_and_leaves_no_core(self) -> None:  # PS-14
        project, client = self.serving(
            segv="kill -SEGV $$", abrt="kill -ABRT $$", kill="ulimit -c; kill -KILL $$"
        )
        for name, number in (("segv", 11), ("abrt", 6), ("kill", 9)):
            with self.subTest(name):
                result = client.call(name)
                self.assertTrue(result["isError"])
                self.assertIn("SIG" + name.upper(), text_of(result))
                self.assertEqual(128 + number, result["_meta"]["exitCode"])
        self.assertEqual("Tool failed: killed by SIGKILL\n0\n", text_of(client.call("kill")))
        self.assertEqual([], [name for name in os.listdir(project.root) if name.startswith("core")])

    def test_a_tool_that_reads_its_input_sees_the_end_and_takes_nothing_from_us(self) -> None:  # PS-16
        _, client = self.serving(read="cat; sleep 0.3; cat; echo end")
        number = client.send_call("read")
        pings = [client.send_request("ping") for _ in range(100)]

        self.assertEqual([{}] * 100, [client.response(each)["result"] for each in pings])
        self.assertEqual("end\n", text_of(client.response(number)["result"]))

    def test_a_tool_has_four_descriptors_and_none_leads_to_the_client(self) -> None:  # PS-17
        forged = '{"jsonrpc":"2.0","id":"victim","result":{}}'
        write = "printf '%%s\\n' '%s' >&$n" % forged
        _, client = self.serving(
            list="exec /bin/ls /proc/self/fd",
            forge="n=3; while [ $n -lt 64 ]; do %s; n=$((n + 1)); done; echo tried" % write,
        )
        listed = set(client.text("list").split()) - {"3"}  # ls has the directory itself open
        self.assertEqual({"0", "1", "2", "7"}, listed)
        result = client.call("forge")

        self.assertEqual("tried\n", text_of(result))
        self.assertIn("Bad file descriptor", result["_meta"]["stderr"])
        self.assertEqual([], client.responses_to("victim"))

    def test_no_signal_is_ignored_or_blocked_whatever_our_parent_did(self) -> None:  # PS-19
        def deaf() -> None:
            for number in (signal.SIGQUIT, signal.SIGUSR1, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGWINCH})

        project = self.new_project()
        project.tool("masks", "#!/bin/sh\nexec grep -E '^Sig(Ign|Blk)' /proc/self/status\n")
        for name, prepare in (("as usual", None), ("from a deaf parent", deaf)):
            with self.subTest(name):
                client = self.new_client(project, preexec_fn=prepare)
                client.initialize()
                # The C library keeps two signals for itself and ignores them in a child it spawns.
                pairs = (line.split(":\t") for line in client.text("masks").splitlines())
                masks = {name: int(mask, 16) & ~(3 << 31) for name, mask in pairs}
                self.assertEqual({"SigBlk": 0, "SigIgn": 0}, masks)
                client.close()

    def test_a_parent_that_ignores_sigchld_costs_no_exit_status(self) -> None:
        project = self.new_project()
        project.tool("bad", "exit 7")
        client = self.new_client(project, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        client.initialize()

        self.assertEqual(7, client.call("bad", timeout=10)["_meta"]["exitCode"])

    def test_a_broken_pipe_ends_a_writer(self) -> None:  # PS-20
        _, client = self.serving(pipe='yes | head -1; echo "${PIPESTATUS[0]}"')

        self.assertEqual("y\n141\n", client.text("pipe"))


class UnprivilegedTest(LinuxCase):
    """The server as a user that is not root: what tools of the same user can see, and running out of processes."""

    # Root starts it, because an interpreter may lie where others cannot reach it. Changing the user makes a process
    # undumpable by itself, which would hide whether the server does it; so that is undone.
    LAUNCHER = """
import argparse, ctypes, hashlib, hmac, os, resource, shutil, sys, traceback
root, project, user, processes, hides = sys.argv[1:]
sys.path.insert(0, root)
import mcp_bash
mcp_bash.call_libc("getpid")
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
if int(processes):
    resource.setrlimit(resource.RLIMIT_NPROC, (int(processes),) * 2)
if hides == "no":
    mcp_bash.hide_from_tools = lambda: None
mcp_bash.main(["--project-root", project])
"""

    def unprivileged(self, processes: int = 0, hides: str = "yes", **tools: str) -> Client:
        """Return a server that runs as somebody else, or as us when we are not root."""
        project = self.new_project()
        for name, script in tools.items():
            project.tool(name, script)
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", "%d:%d" % (SOMEBODY, SOMEBODY), project.base], check=True)
        arguments = [support.ROOT, project.root, str(SOMEBODY), str(processes), hides]
        client = self.new_client(project, command=[support.PYTHON, "-c", self.LAUNCHER, *arguments])
        client.initialize()
        return client

    SPY = """id -u
[ ! -r "/proc/$PPID/environ" ] || echo "readable: environ"
readlink "/proc/$PPID/fd/1" >/dev/null && echo "followed: fd/1"
/bin/ls "/proc/$PPID/fd" >/dev/null && echo "listed: fd"
exit 0"""

    def test_a_tool_cannot_look_into_the_server(self) -> None:  # PS-18
        found = {}
        for hides in ("yes", "no"):
            client = self.unprivileged(hides=hides, spy=self.SPY)
            user, *found[hides] = client.text("spy").splitlines()
            self.assertNotEqual("0", user)

        self.assertEqual([], found["yes"])
        self.assertEqual(["readable: environ", "followed: fd/1", "listed: fd"], found["no"])  # the control

    def test_running_out_of_processes_is_answered_and_survived(self) -> None:  # RX-10
        if os.getuid() != 0:
            raise not_here("needs root: the limit counts all processes of the user")
        client = self.unprivileged(processes=8, hold="exec sleep 300", up="echo up")
        numbers = [client.send_call("hold") for _ in range(12)]
        refused = [client.expect(lambda message: "error" in message)["error"] for _ in range(12 - 8 + 1)]
        client.fence()
        for number in numbers:
            client.cancel(number)
        wait_until(lambda: sleeping(client) == 0)

        self.assertEqual({-32603}, {error["code"] for error in refused})
        self.assertIn("ulimit -u", refused[0]["message"])
        self.assert_up(client, client.pid)


# ======================================================================================================================
# The channel
# ======================================================================================================================


def written(project: Project, data: bytes, name: str = "tell", then: str = "echo done") -> None:
    """Write a tool that puts these bytes on its channel."""
    path = os.path.join(project.base, name + ".records")
    with open(path, "wb") as stream:
        stream.write(data)
    project.tool(name, "cat %s >&7; %s" % (path, then))


def params_of(client: Client, method: str) -> list[dict]:
    """Return the params of the notifications of a method, without the token."""
    found = [dict(each["params"]) for each in client.notifications("notifications/" + method)]
    for params in found:
        params.pop("progressToken", None)
    return found


class ChannelTest(LinuxCase):
    """What a tool may say while it runs, and what becomes of it."""

    PROGRESS: list[tuple[bytes, dict | None]] = [
        # a record, and the notification it becomes
        (b"progress\t-1\t\t", {"progress": -1}),
        (b"progress\t1\t10\tfirst", {"progress": 1, "total": 10, "message": "first"}),
        (b"progress\t1\t10\tthe same again", None),
        (b"progress\t0.5\t10\tless", None),
        (b"progress\t1.5", {"progress": 1.5}),
        (b"progress\t2\t\t", {"progress": 2}),
        (b"progress\t2.5\t10\ttab\there\nand line", {"progress": 2.5, "total": 10, "message": "tab\there\nand line"}),
        (b"progress\t3\tmany\tx", {"progress": 3, "message": "x"}),
        (b"progress\tnan\t\t", None),
        (b"progress\tinf\t\t", None),
        (b"progress\t1e999\t\t", None),
        (b"progress\tmany\t\t", None),
        (b"progress\t\t\t", None),
        (b"progress", None),
        (b"progressive\t50\t\t", None),
        (b"unknown\t60\t\t", None),
        (b"", None),
        (b"progress\t1e1\t\t\xc3\xbc \xff", {"progress": 10.0, "message": "ü \ufffd"}),
        (
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"x","progress":11,"total":20}}\n',
            {"progress": 11, "total": 20},
        ),
        (
            b'{"method":"notifications/progress","params":{"progress":12,"message":"m","extra":1}}\n',
            {"progress": 12, "message": "m"},
        ),
        (b'{"method":"notifications/progress","params":{"progress":"13"}}\n', None),
        (b'{"method":"notifications/progress","params":{"progress":true}}\n', None),
        (b'{"method":"notifications/progress","params":{"progress":1e999}}\n', None),
        (b'{"method":"notifications/progress","params":[14]}\n', None),
        (b'{"method":"notifications/progress"}\n', None),
        (b'{"method":["notifications/progress"],"params":{"progress":15}}\n', None),
        (b'{"method":"notifications/progress","params":{"progress":16}} trailing\n', None),
        (b"{not json\n", None),
        (b"progress\t99\t\t", {"progress": 99}),
    ]  # fmt: skip

    def test_progress_records(self) -> None:
        project, client = self.serving()
        written(project, b"".join(terminated(data) for data, _ in self.PROGRESS))
        self.assertEqual("done\n", client.text("tell", token="t"))

        self.assertEqual([params for _, params in self.PROGRESS if params], params_of(client, "progress"))
        sent = client.notifications("notifications/progress")
        self.assertEqual({"t"}, {each["params"]["progressToken"] for each in sent})

    LOGS: list[tuple[bytes, tuple | None]] = [
        # a record, and level, logger and data of the notification it becomes
        (b"log\tinfo\tname\ta text", ("info", "name", "a text")),
        (b"log\tWARN\t\ttab\there\nline", ("warning", "", "tab\there\nline")),
        (b"log\tbogus\tx\tunknown level", ("info", "x", "unknown level")),
        (b"log\tdebug\tx\tbelow the level", None),
        (b"log\terror", ("error", "", "")),
        (b'logjson\tnotice\tx\t{"a":[1,2]}', ("notice", "x", {"a": [1, 2]})),
        (b"logjson\tnotice\tx\t{broken", ("notice", "x", "{broken")),
        (b"logjson\tinfo\tx\t1e999", ("info", "x", "1e999")),
        (b'logjson\tinfo\tx\t{"deep":[1e999]}', ("info", "x", '{"deep":[1e999]}')),
        (
            b'{"method":"notifications/message","params":{"level":"error","logger":"old","data":{"b":1}}}\n',
            ("error", "old", {"b": 1}),
        ),
        (b'{"method":"notifications/message","params":{"level":["error"],"data":1}}\n', None),
        (b'{"method":"notifications/message","params":{"level":{},"data":1}}\n', None),
        (b'{"method":"notifications/message","params":{"level":"loud","data":1}}\n', None),
        (b'{"jsonrpc":"2.0","id":"other","result":{}}\n', None),
        (b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}\n', None),
        (b'{"jsonrpc":"2.0","id":1,"method":"roots/list","params":{}}\n', None),
        (b"log\temergency\tx\tthe last", ("emergency", "x", "the last")),
    ]  # fmt: skip

    def test_log_records(self) -> None:  # LG-05
        project = self.new_project()
        written(project, b"".join(terminated(data) for data, _ in self.LOGS))
        client = self.new_client(project)
        self.assertEqual("done\n", client.text("tell", log_level="info"))
        found = [(each["level"], each.get("logger", ""), each["data"]) for each in params_of(client, "message")]

        self.assertEqual([row for _, row in self.LOGS if row], found)
        self.assertEqual("", client.stderr)

    def test_what_one_record_says_wrong_does_not_silence_the_next(self) -> None:
        project = self.new_project()
        rows: list[tuple[bytes, Any]] = [*self.LOGS, *self.PROGRESS]
        bad = [data for data, row in rows if row is None] + [b"logjson\tinfo\tx\t1e999"]
        client = self.new_client(project)
        for number, data in enumerate(bad):
            written(project, terminated(data) + b"progress\t1000\t\t\0", "t%d" % number)
        for number, data in enumerate(bad):
            with self.subTest(data):
                client.call("t%d" % number, token="t%d" % number, log_level="info")
                tokens = [each["params"] for each in client.notifications("notifications/progress")][-1:]
                self.assertEqual([{"progressToken": "t%d" % number, "progress": 1000}], tokens)

    FAILURES: list[tuple[bytes, dict]] = [
        (b'fail\t-32050\t{"a":1}\tout of\torder', {"code": -32050, "message": "out of\torder", "data": {"a": 1}}),
        (b"fail\t5\t\tno data", {"code": 5, "message": "no data"}),
        (b"fail\tmany\t{broken\tbad code", {"code": -32603, "message": "bad code"}),
        (b"fail\t-32050\t\t", {"code": -32050, "message": "Tool failed"}),
        (b"fail\t-32050\t1e999\tunwritable data", {"code": -32050, "message": "unwritable data"}),
    ]  # fmt: skip

    def test_a_fail_record_is_the_answer(self) -> None:
        project, client = self.serving()
        for number, (data, _) in enumerate(self.FAILURES):
            written(project, data + b"\0", "t%d" % number)
        for number, (data, expected) in enumerate(self.FAILURES):
            with self.subTest(data):
                self.assertEqual(expected, client.error("tools/call", {"name": "t%d" % number}))

    def test_a_record_above_the_limit_is_dropped_with_a_warning(self) -> None:
        project, client = self.serving()
        written(project, b"log\tinfo\tx\t" + b"y" * 70_000 + b"\0progress\t1\t\t\0", "large")
        written(project, b"log\tinfo\tx\tsmall\0progress\t1\t\t\0", "small")
        client.call("small", token=1)
        self.assertEqual(("", 1), (client.stderr, len(params_of(client, "message"))))
        client.call("large", token=2)

        self.assertEqual(2, len(params_of(client, "progress")))
        self.assertFalse([each for each in params_of(client, "message") if "yyyy" in json.dumps(each)])
        self.assertIn("65536", client.wait_stderr("warning", timeout=5))

    def test_the_calls_of_a_stateless_client_log_only_when_it_asks(self) -> None:  # LG-07
        project = self.new_project()
        written(project, b"log\temergency\tx\ttext\0")
        client = self.new_client(project)
        client.call("tell")
        silent = len(client.notifications())
        client.call("tell", log_level="debug")

        self.assertEqual((0, 1), (silent, len(client.notifications())))

    FLOOD = """import os
for start in range(0, 100_000, 1000):
    os.write(7, b"".join(b"progress\\t%d\\t\\tx\\0" % number for number in range(start, start + 1000)))
print("done")
"""

    def test_a_flood_of_progress_is_cut_and_delays_nothing(self) -> None:  # RX-13
        project, client = self.serving(up="echo up")
        project.tool("flood", self.FLOOD, suffix=".py")
        self.assertEqual("done\n", client.text("flood", token="t"))
        count = len(params_of(client, "progress"))

        self.assertTrue(1 <= count <= 100, count)
        self.assert_up(client, client.pid)

    def test_a_tool_that_never_ends_its_record_costs_no_memory(self) -> None:
        project, client = self.serving()
        flood = "head -c 50000000 /dev/zero | tr '\\0' x >&7; printf '\\0progress\\t1\\t\\t\\0' >&7; echo done"
        project.tool("flood", flood)
        before = peak_memory(client.pid, reset=True)
        self.assertEqual("done\n", client.text("flood", token="t"))

        self.assertLess(peak_memory(client.pid) - before, 20 << 20)
        self.assertEqual([{"progress": 1}], params_of(client, "progress"))


def terminated(data: bytes) -> bytes:
    """Return a record with its end: a JSON line has one already."""
    return data if data.endswith(b"\n") and data.startswith(b"{") else data + b"\0"


def peak_memory(pid: int, reset: bool = False) -> int:
    """Return the largest resident size a process had since the last reset; only root sees it once tools have run."""
    try:
        if reset:
            with open("/proc/%d/clear_refs" % pid, "w", encoding="ascii") as stream:
                stream.write("5")
    except PermissionError:
        raise not_here("the server hides its memory from other processes of its user; run as root") from None
    with open("/proc/%d/status" % pid, encoding="utf-8") as stream:
        return int(re.search(r"VmHWM:\s*(\d+)", stream.read()).group(1)) * 1024


# ======================================================================================================================
# Output
# ======================================================================================================================


class OutputTest(LinuxCase):
    """Whatever a tool prints: all of it, or a bounded part and a word about the rest."""

    def test_output_through_tee_arrives(self) -> None:
        project, client = self.serving(
            tee='exec > >(tee -a "$TMPDIR/../log"); echo one; echo two',
            both='exec > >(tee -a "$TMPDIR/../log") 2> >(cat >&2); echo out; echo err >&2',
        )
        numbers = [client.send_call("tee") for _ in range(4)]

        self.assertEqual(["one\ntwo\n"] * 4, [text_of(client.response(number)["result"]) for number in numbers])
        result = client.call("both")
        self.assertEqual(("out\n", "err\n"), (text_of(result), result["_meta"].get("stderr")))

    def test_escape_sequences_travel_escaped(self) -> None:  # LG-04
        ugly = "\x1b[2J\x1b]0;title\x07\x7f\u0085\u2028\u202eend"
        project, client = self.serving()
        with open(project.base + "/ugly", "w", encoding="utf-8") as stream:
            stream.write(ugly)
        project.tool("ugly", "cat %s/ugly; cat %s/ugly >&2" % (project.base, project.base))
        result = client.call("ugly")
        raw = [line.raw for line in client.records if not line.sent][-1]

        self.assertEqual((ugly, ugly), (text_of(result), result["_meta"]["stderr"]))
        self.assertRegex(raw, rb"\A[\x20-\x7e]*\Z")

    def test_invalid_utf8_is_replaced(self) -> None:
        _, client = self.serving(bad=r"printf 'a\377b'; printf 'c\376d' >&2")
        result = client.call("bad")

        self.assertEqual(("a\ufffdb", "c\ufffdd"), (text_of(result), result["_meta"]["stderr"]))

    def test_the_end_of_stderr_comes_with_the_result(self) -> None:
        rows: list[tuple[str, dict[str, str], str, Any]] = [
            ("all of it", {}, "printf oops >&2", "oops"),
            ("its end", {}, "printf '%05000d' 7 >&2", "0" * 4095 + "7"),
            ("a shorter end", {"MCPBASH_TOOL_STDERR_TAIL_LIMIT": "3"}, "printf 12345 >&2", "345"),
            ("no end", {"MCPBASH_TOOL_STDERR_TAIL_LIMIT": "0"}, "printf 12345 >&2", None),
            ("switched off", {"MCPBASH_TOOL_STDERR_CAPTURE": "false"}, "printf 12345 >&2", None),
            ("nothing", {}, ":", None),
        ]
        for name, env, script, expected in rows:
            with self.subTest(name):
                _, client = self.serving(env, good=script, bad=script + "; exit 3")
                found = [client.call(tool)["_meta"] for tool in ("good", "bad")]
                shown = [(meta["exitCode"], meta.get("stderr")) for meta in found]
                self.assertEqual([(0, expected), (3, expected)], shown)
                client.close()

    def test_the_limit_of_output_is_exact(self) -> None:  # RX-02
        for name, sink in (("output", ""), ("stderr", ">&2")):
            _, client = self.serving(
                {"MCPBASH_MAX_TOOL_OUTPUT_SIZE": "1000", "MCPBASH_MAX_TOOL_STDERR_SIZE": "1000"},
                exact="printf '%01000d' 0 " + sink,
                over="printf '%01001d' 0 " + sink,
            )
            with self.subTest(name):
                self.assertFalse(client.call("exact")["isError"])
                result = client.call("over")
                self.assertTrue(text_of(result).startswith("Tool %s exceeded 1000 bytes" % name), text_of(result)[:99])
                self.assertEqual(("output_too_large", 1000), error_of(result, "type", "limitBytes"))

    def test_endless_output_is_ended_and_costs_little_memory(self) -> None:  # RX-01, RX-03, G6
        flood = "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -c %d" % FLOOD
        project, client = self.serving(up="echo up", out=flood, err=flood + " >&2")
        client.call("up")
        for name, word in (("out", "output"), ("err", "stderr")):
            with self.subTest(name):
                before = peak_memory(client.pid, reset=True)
                result = client.call(name, timeout=60)

                self.assertEqual("Tool %s exceeded 10485760 bytes" % word, text_of(result).split(";")[0])
                self.assertLess(peak_memory(client.pid) - before, 40 << 20)
                self.assertLessEqual(len(result["_meta"].get("stderr", "")), 4096)
                wait_until(lambda: not children(client), SOON)
                files = [os.path.join(project.tmp, path) for path in support.listing(project.tmp)]
                self.assertLess(sum(os.path.getsize(path) for path in files if os.path.isfile(path)), 10_000)
        self.assert_up(client, client.pid)


# ======================================================================================================================
# Running out
# ======================================================================================================================


class ExhaustionTest(LinuxCase):
    """Descriptors and disk space that are not there."""

    def test_running_out_of_descriptors_is_answered_and_survived(self) -> None:  # RX-06
        if os.getuid() != 0:
            raise not_here("the server hides its descriptors from other processes of its user; run as root")
        for limit in (32, 38):
            with self.subTest(limit=limit):
                project = self.new_project()
                project.tool("brief", "sleep 0.2; echo brief")
                project.tool("up", "echo up")
                narrow = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, limit))
                client = self.new_client(project, preexec_fn=narrow)
                client.initialize()
                client.text("up")
                before = support.open_files(client.pid)
                for _ in range(2):
                    numbers = [client.send_call("brief") for _ in range(16)]
                    answers = [client.response(number) for number in numbers]
                    kinds = {answer.get("error", {}).get("code") or text_of(answer["result"]) for answer in answers}
                    self.assertEqual({"brief\n", -32603}, kinds)
                self.assert_up(client, client.pid)
                self.assertEqual(before, support.open_files(client.pid))
                client.close()

    def test_a_full_disk_is_answered_and_survived(self) -> None:  # RX-07
        project = self.new_project()
        place = os.path.join(project.base, "small")
        os.mkdir(place, 0o700)
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=64,mode=700", "none", place]
        if os.getuid() != 0 or subprocess.call(mount, stderr=subprocess.DEVNULL):
            raise not_here("needs the right to mount a small file system")
        self.addCleanup(subprocess.call, ["umount", "-l", place])
        project.tool("size", 'wc -c <"$MCP_TOOL_ARGS_FILE"')
        project.tool("up", "echo up")
        project.tool("hold", "exec sleep 300")
        client = self.new_client(project, env={"MCPBASH_TMP_ROOT": place})
        client.initialize()
        for moment in ("before the first call", "after it"):
            with self.subTest(moment):
                fill(place)
                error = client.error("tools/call", {"name": "size", "arguments": {"text": "x" * 200_000}})
                self.assertEqual(-32603, error["code"])
                self.assertRegex(error["message"], "space|full")
                drain(place)
                self.assertEqual(200_000 + len('{"text":""}'), int(client.text("size", {"text": "x" * 200_000})))
                self.assert_up(client, client.pid)
        number = client.send_call("hold")
        wait_until(lambda: sleeping(client) == 1)
        fill(place)
        client.cancel(number)
        self.assertEqual({}, client.result("ping", timeout=SOON))
        wait_until(lambda: sleeping(client) == 0, SOON, "the end of a call that was cancelled on a full disk")
        drain(place)
        self.assert_up(client, client.pid)


def fill(place: str) -> None:
    """Use up a small file system: first its blocks, then its entries."""
    os.mkdir(os.path.join(place, "filler"))
    try:
        with open(os.path.join(place, "filler", "blocks"), "wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 4096)
    except OSError:
        pass  # that was the intention
    try:
        for number in range(1000):
            open(os.path.join(place, "filler", str(number)), "w").close()
    except OSError:
        pass  # and so was this


def drain(place: str) -> None:
    """Undo fill()."""
    shutil.rmtree(os.path.join(place, "filler"))


if __name__ == "__main__":
    unittest.main()
