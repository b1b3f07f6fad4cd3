#!/usr/bin/env python3
# serial
"""Long service: memory, descriptors, processes and files are at the end what they were at the beginning (G1, G12).

Normally 3,000 requests and a reader that stalls for 3 seconds; with --soak 100,000 and 30. What is measured is counted
when nothing is going on: pages that belong to the server alone, open descriptors, processes, files in its directory for
temporary files.
"""
from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
import unittest
from typing import Any, Callable, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support
from support import Case, Client, text_of, wait_until

SEED = 20261
MIB = 1 << 20
REQUESTS = 100_000 if support.SOAK else 3_000
WARM_UP = 5_000 if support.SOAK else 600
PART = 1_000 if support.SOAK else 200  # requests between two measurements
SLOTS = 16  # MCPBASH_MAX_CONCURRENT_REQUESTS
STALL = 30.0 if support.SOAK else 3.0  # seconds

# ======================================================================================================================
# Measuring
# ======================================================================================================================


class Holdings(NamedTuple):
    """What a server holds besides memory."""

    descriptors: int
    processes: int
    files: tuple


class Gauge:
    """Measures one server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        pids = [client.pid] + [process.pid for process in client.tree()]
        self._pid = next(pid for pid in pids if is_python(pid))

    def holdings(self) -> Holdings:
        """Count what it holds."""
        files = tuple(support.listing(self._client.project.tmp))
        return Holdings(support.open_files(self._pid), len(self._client.tree()), files)

    def memory(self) -> int:
        """Return its private bytes."""
        return support.private_memory(self._pid)

    def is_steady(self) -> bool:
        """Wait a moment; tell whether its memory stayed the same, which it does not right after the start."""
        before = self.memory()
        time.sleep(0.3)
        return abs(self.memory() - before) <= before / 200

    def peak(self) -> int:
        """Return the most bytes it had in memory since `reset_peak`."""
        with open("/proc/%d/status" % self._pid, encoding="ascii") as stream:
            return next(int(line.split()[1]) * 1024 for line in stream if line.startswith("VmHWM"))

    def reset_peak(self) -> None:
        """Start measuring the peak anew."""
        with open("/proc/%d/clear_refs" % self._pid, "w", encoding="ascii") as stream:
            stream.write("5")


def is_python(pid: int) -> bool:
    """Tell whether a process is the interpreter, not the guardian's shell."""
    process = support.read_process(pid)
    return process is not None and process.name.startswith("python")


def sha256(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def slope(values: list[int]) -> float:
    """Return by how much values grow per step: the median over all pairs, which one odd value does not move."""
    pairs = [(later - first) / (j - i) for i, first in enumerate(values) for j, later in enumerate(values) if j > i]
    return sorted(pairs)[len(pairs) // 2]


# A server hides what it holds from other processes of its user. Root sees it; others start one that does not hide.
NOT_HIDDEN = """
import sys
sys.path[0] = sys.argv[1]
import mcp_bash
mcp_bash.hide_from_tools = lambda: None
status = mcp_bash.main(sys.argv[2:])
if status is not None:
    sys.exit(status)
"""


# ======================================================================================================================
# What is asked
# ======================================================================================================================

HANDSHAKE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}}
LARGE = {"text": "x" * 100_000}  # too large for the environment: travels in a file


def call(client: Client, arguments: dict | None = None, **fields: Any) -> Any:
    """Send a call that must come back with its own nonce."""
    nonce = support.new_nonce()
    return client.send_call("echo", {"nonce": nonce, **(arguments or {})}, nonce=nonce, **fields)


# share in percent, what to send, whether it is answered with an error: 60 % cheap, 30 % calls, 10 % errors
MIX: list[tuple[int, Callable[[Client], Any], bool]] = [
    (30, lambda client: client.send_request("ping"), False),
    (15, lambda client: client.send_request("tools/list"), False),
    (15, lambda client: client.send_request("tools/list", modern=True), False),
    (14, lambda client: call(client), False),
    (13, lambda client: call(client, modern=True, token=os.urandom(8).hex()), False),
    (2, lambda client: call(client, LARGE), False),
    (1, lambda client: call(client, {"fail": True}), False),
    (4, lambda client: client.send_call("no such tool"), True),
    (3, lambda client: client.send_request("no/such/method"), True),
    (3, lambda client: client.send_request("tools/list", {"cursor": "x"}), True),
]
ECHO = """
[ "$MCP_PROGRESS_TOKEN" = "" ] || printf 'progress\\t1\\t2\\thalf\\0' >&7
if [ -n "${MCP_TOOL_ARGS_FILE-}" ]; then grep -o 'nonce-[0-9a-f]*' "$MCP_TOOL_ARGS_FILE"; exit; fi
echo "$MCP_TOOL_ARGS_JSON"
case $MCP_TOOL_ARGS_JSON in *fail*) exit 3 ;; esac
"""


class Traffic:
    """Sends the mix, a few requests at a time, and checks every part of the conversation by itself."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client, self._random = client, random.Random(seed)
        self._kept = len(client.records)  # the handshake, which the checker needs to know
        self._codes = {True: "error", False: "result"}

    def send(self, count: int) -> None:
        """Send requests and wait for their answers; 8 are under way at the same time."""
        for _ in range(count // 8):
            rows = self._random.choices(MIX, [row[0] for row in MIX], k=8)
            for number, row in [(row[1](self._client), row) for row in rows]:
                response = self._client.response(number)
                if self._codes[row[2]] not in response:
                    self._client.fail("expected %s, got %s" % (self._codes[row[2]], json.dumps(response)[:300]))
        self._check()

    def _check(self) -> None:
        """Verify the invariants over this part, and forget it: the test must not grow either."""
        checker = self._client.check(complete=True)
        if checker.violations:
            self._client.fail("\n".join(checker.violations[:10]))
        del self._client.records[self._kept :]
        self._client.nonces.clear()


# ======================================================================================================================
# Tests
# ======================================================================================================================


class SoakTest(Case):
    """What a server holds does not grow with what it has done."""

    def setUp(self) -> None:
        if not os.path.exists("/proc/self/smaps_rollup"):
            raise support.not_here("memory and descriptors are read from /proc")
        self.project = self.new_project()
        self.project.tool("hello", "echo hello")

    def serve(self) -> tuple[Client, Gauge]:
        """Start a server, open a session, and wait until it has settled."""
        command = [support.PYTHON, "-c", NOT_HIDDEN, support.ROOT, "--project-root", self.project.root]
        client = self.new_client(self.project, command=command if os.geteuid() else None)
        client.initialize()
        client.call("hello")
        gauge = Gauge(client)
        wait_until(gauge.is_steady)
        return client, gauge

    def test_thousands_of_requests_leave_no_trace(self):  # G1
        self.project.tool("echo", ECHO)
        self.gate = self.project.fifo("gate")
        self.project.tool("wait", "cat '%s'" % self.gate)
        self.project.counting_tool("crowd", "until [ -e '%s' ]; do sleep 0.05; done" % self.project.path("open"))
        client, gauge = self.serve()
        self.fill_slots(client)
        traffic = Traffic(client, SEED)
        print("%d requests after %d, seed %d" % (REQUESTS, WARM_UP, SEED))
        traffic.send(WARM_UP)
        wait_until(gauge.is_steady)
        before, memory = gauge.holdings(), [gauge.memory()]
        for _ in range(REQUESTS // PART):
            traffic.send(PART)
            memory.append(gauge.memory())

        wait_until(lambda: gauge.holdings() == before, 5, "%s, after %s" % (before, gauge.holdings()))
        self.check_that_holdings_show(client, gauge, before)
        shown = "private KiB: " + " ".join(str(each // 1024) for each in memory)
        self.assertLessEqual(slope(memory) * (len(memory) - 1), MIB, shown)
        self.assertLessEqual(max(memory), memory[0] * 1.05 + MIB / 2, shown)

    def fill_slots(self, client: Client) -> None:
        """Run as many calls at once as there are slots: files of a call are kept for another one, a set per slot."""
        numbers = [client.send_call("crowd") for _ in range(SLOTS)]
        wait_until(lambda: os.path.exists(self.project.base + "/counts") and self.project.peak() == SLOTS)
        self.project.file("open", "")
        for number in numbers:
            client.response(number)

    def check_that_holdings_show(self, client: Client, gauge: Gauge, before: Holdings) -> None:
        """The control: a call that is running is seen in descriptors, processes and files."""
        number = client.send_call("wait", LARGE)
        with open(self.gate, "w", encoding="ascii"):  # opens when the tool does
            during = gauge.holdings()
        client.response(number)

        self.assertGreater(during.descriptors, before.descriptors)
        self.assertGreater(during.processes, before.processes)
        self.assertGreater(len(during.files), len(before.files))

    def test_output_is_not_kept(self):  # G1, RX-01
        self.project.tool("print", "head -c 5000000 /dev/zero | tr '\\0' x")
        client, gauge = self.serve()
        client.call("print")
        wait_until(gauge.is_steady)
        before, memory = gauge.memory(), []
        for _ in range(20):  # 100 MB
            self.assertEqual(5_000_000, len(client.text("print")))
            memory.append(gauge.memory())
        wait_until(gauge.is_steady)

        shown = "private KiB: %d, then %s" % (before // 1024, " ".join(str(each // 1024) for each in memory))
        self.assertLessEqual(gauge.memory(), before * 1.05, shown)

    def test_a_reader_that_stalls_loses_nothing(self):  # G12
        self.project.tool("print", 'head -c 1000000 /dev/zero | tr "\\0" "${MCP_TOOL_ARGS_JSON:9:1}"')
        client, gauge = self.serve()
        before = gauge.memory()
        gauge.reset_peak()
        client.stop_reading()
        letters = [chr(ord("a") + index % 26) for index in range(120)]
        wanted = {client.send_call("print", {"text": letter}): sha256(letter * 1_000_000) for letter in letters}
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() - begun > STALL, STALL + 5)
        client.resume_reading()
        found = {number: sha256(text_of(client.response(number)["result"])) for number in wanted}

        self.assertEqual(wanted, found)
        self.assertLessEqual(gauge.peak(), before + 96 * MIB)
        # The control: without limits 120 results would have piled up, some 120 MB in the pipe's backlog alone.
        self.assertGreater(gauge.peak(), before + 20 * MIB)


class MeasuringTest(unittest.TestCase):
    """The measures can tell growth from noise."""

    def test_growth_is_a_slope(self):
        for name, values, expected in (
            ("flat", [5, 5, 5, 5, 5], 0),
            ("noise", [5, 6, 5, 4, 5], 0),
            ("one odd value", [10, 12, 14, 99, 18], 2),
            ("a leak", [100, 110, 120, 130], 10),
        ):
            with self.subTest(name):
                self.assertEqual(expected, slope(values))


if __name__ == "__main__":
    unittest.main()
