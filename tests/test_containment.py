#!/usr/bin/env python3
# serial
# timeout: 600
"""Containment: nothing outlives anything. Guardian, tags, state directory, sweeping; and the systems without all that.

Three kinds of processes take part: the server, which the client started; the guardian, a small shell that the server
starts before its first child; and tools with whatever they start. Each test kills some of them and then looks for what
is left. This process is a subreaper (see support.py), so whatever escapes everybody turns up here as an orphan.
"""
from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support
from support import Case, Client, Process, Project, listing, not_here, orphans, wait_until

sys.path.insert(0, support.ROOT)

import mcp_bash

SEED = 20260728
ROUNDS = 30  # of killing every victim
POINTS = 200 if support.SOAK else 20  # moments at which a start is interrupted
CALLS_OF_TWO = 500 if support.SOAK else 100
SOON = 3.0  # for "within a second"; the machine may be busy
PIPE, NOWHERE = subprocess.PIPE, subprocess.DEVNULL
PIPES: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "stderr": NOWHERE, "bufsize": 0}

# Everything a process can do to get away: another session, an empty environment, a deaf ear, no parent, no group.
DAEMONS = """#!/bin/sh
trap '' TERM HUP
(cd /; setsid env -i /bin/sleep 301 >/dev/null 2>&1 &)
( (setsid sh -c 'trap "" TERM; sleep 302; :' &) & )
sleep 303 &
echo >>"$MCPBASH_PROJECT_ROOT/../there"
exec sleep 304
"""
SLEEPS = 4  # how many `sleep` one call of that tool ends up with

# What the interpreter offers elsewhere than on Linux: no tags, no subreaper, no pidfd, no /proc.
ELSEWHERE = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import mcp_bash
mcp_bash._TAG_LIMIT = None
mcp_bash._HAS_PIDFD = False
mcp_bash.become_subreaper = lambda: False
mcp_bash.start_time = lambda pid: b"0"
mcp_bash.GUARDIAN = mcp_bash.GUARDIAN.replace("/proc/", "/no-proc/")
for name in sys.argv[3:]:
    delattr(os, name)
mcp_bash.main(["--project-root", sys.argv[2]])
"""


def guardian_of(client: Client) -> int:
    """Return the process id of the guardian, a child of the server; 0 when there is none."""
    found = [each.pid for each in client.tree() if each.parent == client.pid and "mcp_bash-guardian" in each.command()]
    return found[0] if found else 0


def state_of(project: Project) -> str:
    """Return the one state directory in a project's TMPDIR."""
    names = [name for name in os.listdir(project.tmp) if name.startswith("mcpbash.state.")]
    if len(names) != 1:
        raise AssertionError("expected one state directory, found %s" % names)
    return os.path.join(project.tmp, names[0])


def wait_for_lines(project: Project, name: str, count: int) -> None:
    """Wait until tools have written so many lines into a file beside the project."""
    path = os.path.join(project.base, name)
    wait_until(lambda: support.wait_for_file(path).count("\n") >= count, what="%d lines in %s" % (count, name))


def is_alive(pid: int) -> bool:
    """Say whether a process exists and is not a zombie."""
    process = support.read_process(pid)
    return process is not None and process.state not in "ZX"


def sleeping(client: Client) -> int:
    """Return how many `sleep` run below a server."""
    return sum(process.name == "sleep" and process.state not in "ZX" for process in client.tree())


def show(processes: list[Process]) -> str:
    """Return processes as lines for a message."""
    return "\n".join(process.command() for process in processes)


class LinuxCase(Case):
    """A test of what holds on Linux only."""

    def setUp(self) -> None:
        if not support.IS_SUBREAPER:
            raise not_here("needs Linux: /proc and child subreapers")

    def holding_tool(self, project: Project) -> Callable[[int], None]:
        """Write the tool `hold`, which stays; return a function that waits until so many calls of it were there."""
        project.tool("hold", "echo >>%s/there; exec sleep 600" % project.base)
        return lambda count: wait_for_lines(project, "there", count)

    def assert_clean(self, project: Project, seconds: float = support.CLEAN_DEADLINE) -> None:
        """Fail when a process or a file is left after some seconds."""
        end = time.monotonic() + support.patient(seconds)
        left = support.wait_for_no_orphans(seconds)
        shown = show(left)
        support.end_processes(left)
        while os.listdir(project.tmp) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(("", []), (shown, listing(project.tmp)))


# ======================================================================================================================
# kill -9
# ======================================================================================================================

VICTIMS: dict[str, Callable[[Client], None]] = {
    "server": lambda client: os.kill(client.pid, signal.SIGKILL),
    "group": lambda client: os.killpg(client.pid, signal.SIGKILL),
}


class KilledTest(LinuxCase):
    """R-023, PS-05, G4: kill -9 of any one process leaves nothing after two seconds."""

    def test_nothing_is_left_of_eight_daemonising_tools(self) -> None:
        projects = {victim: self.new_project() for victim in VICTIMS}
        for project in projects.values():
            project.tool("daemons", DAEMONS)
        failures: list[str] = []
        for number in range(ROUNDS):
            clients = {victim: project.client() for victim, project in projects.items()}
            try:
                failures += self.one_round(number, clients)
            finally:
                for client in clients.values():
                    client.abandon()
            if len(failures) > 3:
                break
        self.assertEqual([], failures)

    def one_round(self, number: int, clients: dict[str, Client]) -> list[str]:
        """Have every victim run eight calls, kill it, and return what is left two seconds later."""
        for client in clients.values():
            client.initialize()
            for _ in range(8):
                client.send_call("daemons")
        trees = {}
        for victim, client in clients.items():
            wait_for_lines(client.project, "there", 8 * (number + 1))
            wait_until(lambda client=client: sleeping(client) == 8 * SLEEPS, what="all the daemons")
            trees[victim] = {process.pid for process in client.tree()}
        for victim, client in clients.items():
            VICTIMS[victim](client)
            client.wait()
        left = {process.pid: process for process in support.wait_for_no_orphans()}
        support.end_processes(left.values())
        problems = []
        for victim, client in clients.items():
            mine = [process for pid, process in left.items() if pid in trees[victim]]
            files = listing(client.project.tmp)
            if mine or files:
                problems.append("round %d, %s killed: %d processes, %s" % (number, victim, len(mine), files[:3]))
                shutil.rmtree(client.project.tmp)
                os.mkdir(client.project.tmp, 0o700)
        return problems

    def test_sixteen_tools_die_with_the_server(self) -> None:  # PS-05
        project = self.new_project()
        project.tool("daemons", DAEMONS)
        project.tool("plain", "exec sleep 305")
        client = self.new_client(project)
        client.initialize()
        for name in ["daemons"] * 3 + ["plain"] * 13:
            client.send_call(name)
        wait_until(lambda: sleeping(client) == 3 * SLEEPS + 13)
        client.kill()
        client.wait()

        self.assert_clean(project)

    def test_a_killed_guardian_is_replaced_and_the_new_one_knows_the_old_tools(self) -> None:
        project = self.new_project()
        project.tool("daemons", DAEMONS)
        client = self.new_client(project)
        client.initialize()
        guardians = [guardian_of(client)]
        for number in (1, 2):
            client.send_call("daemons")
            wait_until(lambda number=number: sleeping(client) == number * SLEEPS)
            guardians.append(guardian_of(client))
            if number == 1:
                os.kill(guardians[-1], signal.SIGKILL)
                wait_until(lambda: not is_alive(guardians[-1]))
        client.kill()
        client.wait()

        self.assertEqual((0, True), (guardians[0], 0 < guardians[1] != guardians[2] > 0))
        self.assert_clean(project)

    def test_a_useless_path_does_not_keep_the_guardian_from_its_work(self) -> None:
        project = self.new_project()
        project.tool("hold", "#!/bin/sh\nexec /bin/sleep 600\n")
        client = self.new_client(project, env={"PATH": "/nonexistent"})
        client.initialize()
        client.send_call("hold")
        wait_until(lambda: sleeping(client) == 1)
        client.kill()
        client.wait()

        self.assert_clean(project)

    def test_any_moment_will_do_and_the_next_start_works(self) -> None:  # RC-03
        random.seed(SEED)
        print("seed %d, %d points" % (SEED, POINTS), file=sys.stderr)
        project = self.new_project()
        project.tool("daemons", DAEMONS)
        project.tool("echo", "echo here")
        failures = []
        for number in range(POINTS):
            victim = sorted(VICTIMS)[number % 2]
            delay = random.uniform(0.0, 0.3)
            left = self.interrupt(project, victim, delay)
            if left:
                failures.append("point %d, %s killed after %.3f s: %s" % (number, victim, delay, left))
            if number % 5 == 4:
                with project.client() as client:
                    client.initialize()
                    self.assertEqual("here\n", client.text("echo"))
        self.assertEqual([], failures)

    def interrupt(self, project: Project, victim: str, delay: float) -> str:
        """Start a server, give it work, kill at a moment; return what is left."""
        client = project.client()
        try:
            client.send_request("server/discover", modern=True)
            for _ in range(4):
                client.send_call("daemons")
            threading.Event().wait(delay)  # the moment is the subject here
            VICTIMS[victim](client)
            client.wait()
            left = support.wait_for_no_orphans()
            shown = show(left)
            support.end_processes(left)
            return shown or " ".join(listing(project.tmp))
        finally:
            client.abandon()


class BothKilledTest(LinuxCase):
    """Guardian and server killed at once: nobody is left to clean, the next start does it (RC-03)."""

    def test_the_next_start_sweeps_dead_state_and_keeps_live_state(self) -> None:
        project = self.new_project()
        project.tool("echo", "echo here")
        victim = project.client()
        victim.initialize()
        victim.text("echo")
        stale, alive = state_of(project), os.path.join(project.tmp, "mcpbash.state.1.1.neighbour")
        os.kill(guardian_of(victim), signal.SIGKILL)
        os.kill(victim.pid, signal.SIGKILL)
        victim.abandon()
        self.assertTrue(os.path.isdir(stale), "the control: there is something to sweep")
        os.mkdir(alive)
        with open(os.path.join(alive, "owner"), "wb") as stream:
            stream.write(b"%d %s\n" % (os.getpid(), mcp_bash.start_time(os.getpid())))
        client = self.new_client(project)
        client.initialize()
        client.text("echo")
        wait_until(lambda: not os.path.exists(stale), what="the sweep")

        self.assertTrue(os.path.isdir(alive))
        client.close(check=False)


# ======================================================================================================================
# Orderly ends
# ======================================================================================================================

SIGNALS = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


class SignalTest(LinuxCase):
    """PS-21, R-022: a signal asks tools to end, then ends them, and the exit status says which signal it was."""

    def running(self) -> tuple[Project, Client]:
        """Return a server with two tools that act on TERM and two that do not."""
        project = self.new_project()
        polite = "trap 'echo >>%s/told; exit 0' TERM; echo >>%s/up; sleep 600 & wait"
        project.tool("polite", polite % (project.base, project.base))
        project.tool("deaf", "trap '' TERM; echo >>%s/up; sleep 600; sleep 600" % project.base)
        client = self.new_client(project)
        client.initialize()
        for name in ("polite", "deaf", "polite", "deaf"):
            client.send_call(name)
        wait_for_lines(project, "up", 4)
        return project, client

    def test_a_signal_ends_everything_and_the_exit_status_names_it(self) -> None:
        for number, status in SIGNALS.items():
            with self.subTest(signal=number):
                project, client = self.running()
                begun = time.monotonic()
                client.kill(number)

                self.assertEqual(status, client.close(exit_code=status))
                self.assertLess(time.monotonic() - begun, support.patient(SOON))
                self.assertEqual(2, support.wait_for_file(project.base + "/told").count("\n"))
                self.assertEqual("", client.stderr, "an ordered end is no reason to complain")

    def test_a_second_signal_does_no_harm(self) -> None:
        _, client = self.running()
        client.kill(signal.SIGTERM)
        client.kill(signal.SIGTERM)

        self.assertEqual(143, client.close(exit_code=143))


class LeavingTest(LinuxCase):
    """The client goes away, in each of the ways there are."""

    def start(self, project: Project) -> subprocess.Popen:
        """Start a server without threads on its pipes, so that the pipes can be closed."""
        command = support.server_command() + ["--project-root", project.root]
        return support.spawn(command, env=project.environment(), **PIPES)

    def test_closing_both_pipes_ends_a_server_with_a_hung_tool(self) -> None:  # PS-07
        project = self.new_project()
        is_there = self.holding_tool(project)
        process = self.start(project)
        self.addCleanup(support.end_group, process)
        process.stdin.write(call_line("hold"))
        is_there(1)
        begun = time.monotonic()
        process.stdin.close()
        process.stdout.close()
        process.wait(support.patient(SOON))

        self.assertLess(time.monotonic() - begun, support.patient(SOON))
        support.known.discard(process.pid)
        self.assert_clean(project)

    def test_the_end_of_input_ends_an_idle_server_at_once(self) -> None:  # R-021
        project = self.new_project()
        project.tool("service", "sleep 600 >/dev/null 2>&1 7>&- & echo $!", {"detach": True})
        client = self.new_client(project)
        client.initialize()
        child = int(client.text("service"))
        begun = time.monotonic()
        code = client.close(check=False)
        took = time.monotonic() - begun
        os.kill(child, signal.SIGKILL)

        self.assertEqual(0, code)
        self.assertLess(took, support.patient(SOON))
        self.assert_clean(project)

    def test_the_end_of_the_launching_process_ends_the_server(self) -> None:  # PS-24
        for watched in ("true", "false"):
            with self.subTest(watched=watched):
                self.launch(watched)

    def launch(self, watched: str) -> None:
        """Start a server below a process that is killed, while this process keeps stdin open."""
        project = self.new_project()
        is_there = self.holding_tool(project)
        launcher = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
        command = [support.PYTHON, "-c", launcher] + support.server_command() + ["--project-root", project.root]
        env = project.environment({"MCPBASH_ORPHAN_CHECK_ENABLED": watched})
        process = support.spawn(command, env=env, **PIPES)
        process.stdin.write(call_line("hold"))
        is_there(1)
        process.kill()
        process.wait()
        support.known.discard(process.pid)
        if watched == "false":  # the control: it is the watch that ends it
            process.stdin.write(call_line("hold", 2))
            is_there(2)
            self.assertNotEqual([], orphans())
        if watched == "false":
            process.stdin.close()
            process.stdout.close()
        self.assert_clean(project)
        process.stdin.close()
        process.stdout.close()

    def test_a_child_of_process_one_keeps_serving(self) -> None:  # PS-25
        wrapper = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh"]
        if not shutil.which("unshare") or subprocess.call(wrapper + ["true"], stderr=subprocess.DEVNULL):
            raise not_here("needs the right to make a process id namespace")
        project = self.new_project()
        project.tool("parent", 'read -r _ _ _ ppid _ <"/proc/$PPID/stat"; echo "$ppid"; exec sleep 0.1')
        command = wrapper + support.server_command() + ["--project-root", project.root]
        client = self.new_client(project, command=command, env={"MCPBASH_ORPHAN_CHECK_INTERVAL": "0.1"})
        client.initialize()
        seen = [client.text("parent") for _ in range(6)]  # six times as long as the interval of the check

        self.assertEqual(1, len(set(seen)))

    def test_a_finished_server_that_was_only_pinged_has_made_no_directory(self) -> None:
        project = self.new_project()
        project.tool("echo", "echo here")
        client = self.new_client(project)
        client.initialize()
        client.result("ping")
        client.result("tools/list")
        before = os.listdir(project.tmp)
        client.text("echo")

        self.assertEqual(([], 1), (before, len(os.listdir(project.tmp))))


def call_line(tool: str, number: int = 1) -> bytes:
    """Return a stateless tools/call as bytes."""
    params = support.stateless({"name": tool})
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode() + b"\n"


# ======================================================================================================================
# detach
# ======================================================================================================================

SERVICES = {
    "in the group": "sleep 600 >/dev/null 2>&1 7>&- & echo $!",
    "in a session of its own": "setsid sleep 600 >/dev/null 2>&1 7>&- & echo $!",
    "without an environment": "env -i /bin/sleep 600 >/dev/null 2>&1 7>&- & echo $!",
}


class DetachTest(LinuxCase):
    """Background processes end with their call, unless the metadata says detach."""

    def service(self, script: str, detach: bool) -> tuple[Project, Client, int]:
        """Call a tool that leaves a process behind; return its number."""
        project = self.new_project()
        project.tool("service", script, {"detach": True} if detach else {})
        project.tool("echo", "echo here")
        client = self.new_client(project)
        client.initialize()
        return project, client, int(client.text("service"))

    def test_a_detached_service_survives_its_call_and_the_server(self) -> None:
        for name, script in SERVICES.items():
            with self.subTest(name):
                project, client, pid = self.service(script, True)
                client.text("echo")
                after_call = is_alive(pid)
                client.close(check=False)
                after_exit = is_alive(pid)
                os.kill(pid, signal.SIGKILL)

                self.assertEqual((True, True), (after_call, after_exit))
                self.assert_clean(project)

    def test_without_detach_it_is_gone_with_the_answer(self) -> None:
        for name, script in SERVICES.items():
            with self.subTest(name):
                _, client, pid = self.service(script, False)

                self.assertFalse(is_alive(pid))
                client.close()

    def test_a_detached_tool_that_hangs_is_ended_by_its_timeout(self) -> None:
        project = self.new_project()
        project.tool("service", "trap '' TERM; sleep 600; sleep 600", {"detach": True, "timeoutSecs": 0.3})
        client = self.new_client(project, env={"MCPBASH_KILL_GRACE": "0.2"})
        client.initialize()

        self.assertTrue(client.call("service")["isError"])
        wait_until(lambda: sleeping(client) == 0, SOON)


# ======================================================================================================================
# The state directory
# ======================================================================================================================


class StateTest(LinuxCase):
    """What lies in TMPDIR: private, unpredictable, and gone in the end."""

    def test_with_no_umask_everything_is_still_private(self) -> None:  # FS-01
        for place in ("beside the SDK", "alone"):
            with self.subTest(place):
                project = self.new_project()
                project.tool("hold", "umask >%s/umask; exec sleep 600" % project.base)
                options: dict[str, Any] = {}
                if place == "alone":
                    shutil.copy(support.SERVER, project.base)
                    file = os.path.join(project.base, "mcp_bash.py")
                    options["command"] = [support.PYTHON, file, "--project-root", project.root]
                client = self.new_client(project, preexec_fn=lambda: os.umask(0), **options)
                client.initialize()
                number = client.send_call("hold", {"text": "x" * 200_000})
                umask = support.wait_for_file(project.base + "/umask")
                state = state_of(project)
                modes = {path: private_bits(os.path.join(state, path)) for path in [".", *listing(state)]}

                self.assertEqual("0000\n", umask)
                self.assertTrue([path for path in modes if "args" in path], "the control: arguments are in a file")
                self.assertEqual({}, {path: bits for path, bits in modes.items() if bits})
                client.cancel(number)
                client.close()

    def test_a_tool_sees_the_umask_of_the_operator(self) -> None:  # FS-01
        project = self.new_project()
        project.tool("mask", "umask")
        client = self.new_client(project, preexec_fn=lambda: os.umask(0o027))
        client.initialize()

        self.assertEqual("0027\n", client.text("mask"))

    def test_what_others_prepared_in_tmpdir_is_neither_used_nor_followed(self) -> None:  # FS-02
        project = self.new_project()
        project.tool("where", 'cd "$(dirname "$MCP_TOOL_ERROR_FILE")" && pwd -P')
        victim = os.path.join(project.base, "victim")
        os.mkdir(victim)
        with open(os.path.join(victim, "precious"), "w"):
            pass
        stem = os.path.join(project.tmp, "mcpbash.state.%d.%d." % (os.getpid(), os.getpid() + 1))
        os.mkdir(stem + "directory")
        os.symlink(victim, stem + "link")
        os.symlink(victim, os.path.join(stem + "directory", "link"))
        with open(stem + "file", "w"):
            pass
        os.utime(stem + "directory", (0, 0))  # old and without an owner: the sweep takes it, but not what it points to
        client = self.new_client(project)
        client.initialize()
        used = client.text("where").strip()

        self.assertEqual(0o700, stat.S_IMODE(os.stat(used).st_mode))
        self.assertTrue(os.path.basename(used).startswith("mcpbash.state.%d." % os.getpid()))
        wait_until(lambda: not os.path.exists(stem + "directory"), what="the sweep")
        self.assertEqual(["precious"], os.listdir(victim))
        self.assertTrue(os.path.islink(stem + "link") and os.path.isfile(stem + "file"))
        client.close(check=False)  # the sweep has removed what was there before

    def test_a_call_whose_tool_is_killed_leaves_no_arguments_behind(self) -> None:  # FS-13
        project = self.new_project()
        project.tool("hold", "echo $$ >%s/pid; exec sleep 600" % project.base)
        client = self.new_client(project)
        client.initialize()
        number = client.send_call("hold", {"text": "x" * 200_000})
        pid = int(support.wait_for_file(project.base + "/pid"))
        during = [name for name in listing(state_of(project)) if "args" in name]
        os.kill(pid, signal.SIGKILL)
        answer = client.response(number)
        after = [name for name in listing(state_of(project)) if "args" in name]

        self.assertIn("SIGKILL", support.text_of(answer["result"]))
        self.assertEqual((True, []), (bool(during), after))

    def test_an_unsafe_tmpdir_is_refused_with_a_warning(self) -> None:  # FS-03
        for mode, is_safe in ((0o777, False), (0o770, False), (0o1777, True), (0o700, True)):
            with self.subTest(mode=oct(mode)):
                project = self.new_project()
                project.tool("where", 'dirname "$MCP_TOOL_ERROR_FILE"')
                os.chmod(project.tmp, mode)
                client = self.new_client(project)
                client.initialize()
                used = client.text("where").strip()

                self.assertEqual(is_safe, os.path.dirname(used) == project.tmp)
                self.assertEqual(not is_safe, "chmod +t" in client.stderr)
                client.close()
                self.assertFalse(os.path.exists(used))

    def test_preserved_state_survives_every_end_and_every_sweep(self) -> None:
        for end in ("orderly", "killed", "not preserved"):
            with self.subTest(end):
                project = self.new_project()
                project.tool("echo", "echo here")
                env = {} if end == "not preserved" else {"MCPBASH_PRESERVE_STATE": "true"}
                client = project.client(env=env)
                client.initialize()
                client.text("echo")
                state = state_of(project)
                if end == "killed":
                    os.kill(client.pid, signal.SIGKILL)
                else:
                    client.end_input()
                client.wait()
                support.wait_for_no_orphans()
                client.abandon()

                self.assertEqual(end != "not preserved", os.path.isdir(state))
                if end == "killed":
                    containment(self, project.tmp).sweep_stale()  # as a new server does
                    self.assertTrue(os.path.isdir(state))

    def test_two_servers_on_one_project_leave_each_other_alone(self) -> None:  # CR-05
        project = self.new_project()
        project.tool("echo", 'echo "$MCP_TOOL_ARGS_JSON"')
        env = {"MCP_TOOLS_TTL": "0"}
        victim, survivor = project.client(env=env), self.new_client(project, env=env)
        victim.initialize()
        survivor.initialize()
        broken: list[str] = []
        done = threading.Event()
        reader = threading.Thread(target=read_cache, args=(project, done, broken))
        reader.start()
        try:
            for number in range(CALLS_OF_TWO):
                for client in (victim, survivor):
                    if client is survivor or number < CALLS_OF_TWO // 2:
                        nonce = support.new_nonce()
                        self.assertIn(nonce, client.text("echo", {"n": nonce}, nonce=nonce))
                if number == CALLS_OF_TWO // 2:
                    os.kill(victim.pid, signal.SIGKILL)
                if number % 10 == 0:
                    project.tool("t%d" % number, "echo %d" % number)  # a reason to write the cache
        finally:
            done.set()
            reader.join()
            victim.abandon()

        self.assertEqual([], broken)
        self.assertEqual(CALLS_OF_TWO // 10 + 1, survivor.result("tools/list")["_meta"]["mcpbash/total"])


def private_bits(path: str) -> str:
    """Return the permission bits that others have on a path, as text; empty when they have none."""
    bits = stat.S_IMODE(os.lstat(path).st_mode) & 0o077
    return oct(bits) if bits else ""


def read_cache(project: Project, done: threading.Event, broken: list[str]) -> None:
    """Read the registry cache again and again; note when it is not JSON."""
    path = project.path(".registry", "tools.json")
    while not done.wait(0.002):
        try:
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
            json.loads(text)
        except FileNotFoundError:
            continue  # not written yet
        except ValueError as error:
            broken.append("%s: %.80s" % (error, text))


def containment(case: unittest.TestCase, directory: str) -> Any:
    """Return a Containment of this process whose state directory lies in `directory`, closed after the test."""
    settings = mcp_bash.Settings({"MCPBASH_TMP_ROOT": directory})
    log = mcp_bash.Log(settings, os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
    case.addCleanup(os.close, log._fd)
    found = mcp_bash.Containment(settings, log)
    case.addCleanup(found.close)
    return found


class AbandonedTest(LinuxCase):
    """Which directories a sweep may remove."""

    def test_only_state_of_dead_owners_is_abandoned(self) -> None:
        me = b"%d %s\n" % (os.getpid(), mcp_bash.start_time(os.getpid()))
        dead = subprocess.Popen(["true"])
        dead.wait()
        rows: list[tuple[str, bytes | None, float, bool, bool]] = [
            # what it is, content of `owner`, its age in seconds, preserved, whether it is abandoned
            ("owned by a living process", me, 0, False, False),
            ("owned by a dead process", b"%d 1\n" % dead.pid, 0, False, True),
            ("its number was taken over", b"%d 1\n" % os.getpid(), 0, False, True),
            ("dead and preserved", b"%d 1\n" % dead.pid, 0, True, False),
            ("without an owner, new", None, 0, False, False),
            ("without an owner, old", None, 120, False, True),
            ("without an owner, old and preserved", None, 120, True, False),
            ("an owner that cannot be read", b"x\n", 120, False, False),
            ("an empty owner", b"", 120, False, False),
        ]
        for name, owner, age, preserved, expected in rows:
            with self.subTest(name), tempfile.TemporaryDirectory() as path:
                if owner is not None:
                    with open(os.path.join(path, "owner"), "wb") as stream:
                        stream.write(owner)
                if preserved:
                    open(os.path.join(path, "preserve"), "w").close()
                os.utime(path, (time.time() - age,) * 2)
                self.assertEqual(expected, mcp_bash.is_abandoned(path))

    def test_what_is_not_a_directory_is_not_abandoned(self) -> None:
        with tempfile.TemporaryDirectory() as base:
            target = os.path.join(base, "target")
            os.mkdir(target)
            os.utime(target, (0, 0))
            link, file = os.path.join(base, "link"), os.path.join(base, "file")
            os.symlink(target, link)
            open(file, "w").close()

            self.assertTrue(mcp_bash.is_abandoned(target))
            self.assertFalse(mcp_bash.is_abandoned(link))
            self.assertFalse(mcp_bash.is_abandoned(file))

    def test_a_directory_that_vanishes_meanwhile_is_no_problem(self) -> None:
        # Two servers that start together sweep together.
        self.assertFalse(mcp_bash.is_abandoned("/nonexistent/mcpbash.state.1.2.3"))

    def test_a_sweep_removes_abandoned_state_and_nothing_else(self) -> None:
        with tempfile.TemporaryDirectory() as base:
            kept = ["mcpbash.state.1.1.new", "something.else"]
            for name in [*kept, "mcpbash.state.1.1.old"]:
                os.mkdir(os.path.join(base, name))
            for name in ("mcpbash.state.1.1.old", "something.else"):
                os.utime(os.path.join(base, name), (0, 0))
            mine = containment(self, base)
            kept.append(os.path.basename(mine.directory()))
            mine.sweep_stale()

            self.assertEqual(sorted(kept), sorted(os.listdir(base)))


class DirectoryTest(LinuxCase):
    """Containment.directory(), in this process."""

    def test_a_name_that_is_taken_is_neither_followed_nor_shared(self) -> None:  # FS-02
        makers: dict[str, Callable[[str, str], None]] = {
            "directory": lambda path, target: os.mkdir(path),
            "link": lambda path, target: os.symlink(target, path),
            "file": lambda path, target: open(path, "w").close(),
        }
        for name, make in makers.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as base:
                target = os.path.join(base, "target")
                os.mkdir(target)
                mine = containment(self, base)
                planted = mine.state_dir
                make(planted, target)
                try:
                    used = mine.directory()
                except OSError:
                    used = ""  # to refuse is as good as to take another name

                self.assertNotEqual(planted, used)
                self.assertEqual([], os.listdir(target))

    def test_a_removed_directory_is_made_again_but_never_what_others_put_in_its_place(self) -> None:
        # The name of a directory that was there is no secret any more.
        with tempfile.TemporaryDirectory() as base:
            target = os.path.join(base, "target")
            os.mkdir(target)
            mine = containment(self, base)
            first = mine.directory()
            shutil.rmtree(first)
            second = mine.directory()
            self.assertTrue(os.path.isdir(second))
            shutil.rmtree(second)
            os.symlink(target, second)
            try:
                third = mine.directory()
            except OSError:
                third = ""

            self.assertNotEqual(second, third)
            self.assertEqual([], os.listdir(target))

    def test_no_two_servers_get_the_same_name(self) -> None:
        with tempfile.TemporaryDirectory() as base:
            self.assertEqual(100, len({containment(self, base).state_dir for _ in range(100)}))

    def test_a_directory_that_could_not_be_signed_is_signed_later(self) -> None:
        # Without an owner another server's sweep would take it away after a minute.
        with tempfile.TemporaryDirectory() as base:
            mine = containment(self, base)
            full = OSError(errno.ENOSPC, "No space left on device")
            with mock.patch.object(mcp_bash, "atomic_write", side_effect=full), self.assertRaises(OSError):
                mine.directory()
            os.utime(mine.directory(), (0, 0))

            self.assertFalse(mcp_bash.is_abandoned(mine.directory()))

    def test_after_the_end_nothing_starts(self) -> None:
        with tempfile.TemporaryDirectory() as base:
            mine = containment(self, base)
            mine.end_all()
            with self.assertRaises(mcp_bash.InternalError):
                mine.spawn(["true"], {}, [], False)


# ======================================================================================================================
# Elsewhere: no tags, no subreaper, no pidfd
# ======================================================================================================================


class ElsewhereTest(LinuxCase):
    """A system that is not Linux, as far as the server can tell: a call is its process group."""

    # What an interpreter has for waiting; on macOS os.waitid came with Python 3.13.
    KINDS: dict[str, tuple[str, ...]] = {"with waitid": (), "without waitid": ("waitid",)}

    def elsewhere(self, kind: str = "with waitid", env: dict | None = None, **tools: str) -> tuple[Project, Client]:
        """Return a server without the Linux mechanisms."""
        project = self.new_project()
        for name, script in tools.items():
            project.tool(name, script)
        command = [support.PYTHON, "-c", ELSEWHERE, support.ROOT, project.root, *self.KINDS[kind]]
        client = self.new_client(project, command=command, env=env)
        client.initialize()
        return project, client

    def test_calls_work_and_exit_statuses_are_right(self) -> None:
        tools = {
            "ok": ("echo fine", 0),
            "bad": ("echo broken >&2; exit 7", 7),
            "kill": ("kill -KILL $$", 137),
            "close": ("exec >&- 2>&- 7>&-; sleep 0.2; exit 5", 5),
        }
        for kind in self.KINDS:
            with self.subTest(kind):
                _, client = self.elsewhere(kind, **{name: script for name, (script, _) in tools.items()})
                found = {name: client.call(name, timeout=10)["_meta"]["exitCode"] for name in tools}
                self.assertEqual({name: status for name, (_, status) in tools.items()}, found)
                client.close()

    def test_background_processes_in_the_group_end_with_their_call(self) -> None:
        for kind in self.KINDS:
            with self.subTest(kind):
                _, client = self.elsewhere(kind, leave="sleep 600 & echo $!")
                pid = int(client.text("leave", timeout=10))
                wait_until(lambda pid=pid: not is_alive(pid), SOON)
                client.close()

    def test_a_daemon_outside_the_group_escapes_so_this_is_really_elsewhere(self) -> None:
        daemon = "setsid sh -c 'echo >\"$MCPBASH_PROJECT_ROOT/up\"; exec sleep 600' >/dev/null 2>&1 7>&- & echo $!"
        wait = "; while [ ! -e \"$MCPBASH_PROJECT_ROOT/up\" ]; do sleep 0.02; done"
        _, client = self.elsewhere(leave=daemon + wait)
        pid = int(client.text("leave", timeout=10))
        escaped = is_alive(pid)
        os.kill(pid, signal.SIGKILL)

        self.assertTrue(escaped)

    def test_cancel_and_timeout_end_a_deaf_tool(self) -> None:
        env = {"MCPBASH_KILL_GRACE": "0.2", "MCPBASH_DEFAULT_TOOL_TIMEOUT": "1"}
        for kind in self.KINDS:
            with self.subTest(kind):
                _, client = self.elsewhere(kind, env, deaf="trap '' TERM; sleep 600; sleep 600")
                number = client.send_call("deaf", params={"timeoutSecs": 600})
                wait_until(lambda client=client: sleeping(client) == 1)
                client.cancel(number)
                wait_until(lambda client=client: sleeping(client) == 0, SOON)
                result = client.call("deaf", timeout=10)
                self.assertEqual("timeout", result["structuredContent"]["error"]["type"])
                wait_until(lambda client=client: sleeping(client) == 0, SOON)
                client.close()

    def test_kill_9_leaves_nothing(self) -> None:
        for victim, kill in VICTIMS.items():
            with self.subTest(victim):
                project, client = self.elsewhere(hold="sleep 600 & sleep 600 & wait")
                for _ in range(4):
                    client.send_call("hold")
                wait_until(lambda client=client: sleeping(client) == 8)
                client._lost_ok = client._cut_ok = True
                kill(client)
                client.wait()
                self.assert_clean(project)

    def test_the_end_of_the_launching_process_is_noticed_by_looking(self) -> None:  # PS-24
        project = self.new_project()
        launcher = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
        command = [support.PYTHON, "-c", launcher, support.PYTHON, "-c", ELSEWHERE, support.ROOT, project.root]
        env = project.environment({"MCPBASH_ORPHAN_CHECK_INTERVAL": "0.2"})
        process = support.spawn(command, env=env, **PIPES)
        process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        self.assertIn(b'"result"', process.stdout.readline())
        process.kill()
        process.wait()
        support.known.discard(process.pid)

        self.assert_clean(project, SOON)
        process.stdin.close()
        process.stdout.close()


class CappedTest(LinuxCase):
    """Somebody capped the limit that carries the tag: a call is its group, as elsewhere."""

    def test_groups_are_ended_by_the_guardian(self) -> None:
        project = self.new_project()
        project.tool("hold", "sleep 600 & sleep 600 & wait")
        project.tool("echo", "sleep 600 & echo here")
        cap = (1_000_000_000, 1_000_000_000)
        client = self.new_client(project, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_RTTIME, cap))
        client.initialize()
        self.assertEqual("here\n", client.text("echo"))
        wait_until(lambda: sleeping(client) == 0, SOON)
        client.send_call("hold")
        wait_until(lambda: sleeping(client) == 2)
        client.kill()
        client.wait()

        self.assert_clean(project)


if __name__ == "__main__":
    unittest.main()
