#!/usr/bin/env python3
# serial
# timeout: 600
"""Many calls at once: slots, the queue behind them, limits of single tools, cancellation at any moment.

The run is recorded and the checker of support.py looks at all of it: every request is answered once, none after its
cancellation was read, every answer carries its own nonce, progress comes in order and before the answer.
"""
from __future__ import annotations

import heapq
import json
import os
import random
import signal
import sys
import threading
import time
import unittest
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support
from support import Case, Client, Project, not_here, text_of, wait_until

SEED = 20251125
CANCELS = 10_000 if support.SOAK else 2_000
SLOTS = 16
QUEUE = 1024
SOON = 3.0  # for "within a second"; the machine may be busy


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


def running(client: Client, name: str = "sleep") -> int:
    """Return how many processes of a name live below a server."""
    return sum(process.name == name and process.state not in "ZX" for process in client.tree())


def children(client: Client) -> list[str]:
    """Return what is below a server apart from its guardian, dead or alive."""
    return [each.command() for each in client.tree() if "mcp_bash-guardian" not in each.command()]


def lines_in(project: Project, name: str) -> int:
    """Return how many lines tools have written into a file beside the project."""
    try:
        with open(os.path.join(project.base, name), encoding="utf-8") as stream:
            return stream.read().count("\n")
    except FileNotFoundError:
        return 0


def send_at_once(client: Client, messages: list[dict]) -> None:
    """Send several messages in one write."""
    client.send_raw(b"".join(json.dumps(message).encode() + b"\n" for message in messages))


def call_message(client: Client, tool: str, arguments: dict | None = None, token: Any = None) -> dict:
    """Return a tools/call of the handshake era with a new id."""
    params: dict = {"name": tool, "arguments": arguments or {}}
    if token is not None:
        params["_meta"] = {"progressToken": token}
    return {"jsonrpc": "2.0", "id": client.new_id(), "method": "tools/call", "params": params}


def footprint(client: Client) -> tuple[int, int]:
    """Return descriptors and private bytes of a server; only root sees them once tools have run."""
    try:
        return support.open_files(client.pid), support.private_memory(client.pid)
    except PermissionError:
        raise not_here("the server hides itself from other processes of its user; run as root") from None


# ======================================================================================================================
# Slots and queue
# ======================================================================================================================


class SlotTest(LinuxCase):
    """How many run at once, and what happens to the rest."""

    def test_a_thousand_calls_at_once(self) -> None:  # CR-02, RX-11, G2
        project = self.new_project()
        say = "printf 'progress\\t%s\\t3\\t\\0' 1 >&7; printf 'progress\\t%s\\t3\\t\\0' 2 >&7; "
        project.counting_tool("echo", say + "printf '%s' \"$MCP_TOOL_ARGS_JSON\"")
        client = self.new_client(project)
        client.initialize()
        client.call("echo")
        before, _ = footprint(client)
        calls = []
        for number in range(1000):
            nonce = support.new_nonce()
            calls.append(call_message(client, "echo", {"nonce": nonce}, "token-%d" % number))
            client.nonces[support.id_key(calls[-1]["id"])] = nonce
        send_at_once(client, calls)
        descriptors = []
        for position, call in enumerate(calls):
            self.assertFalse(client.response(call["id"], timeout=120)["result"]["isError"])
            if position % 50 == 0:
                descriptors.append(support.open_files(client.pid))
        progress = client.notifications("notifications/progress")

        self.assertEqual(2000, len(progress))
        self.assertLessEqual(project.peak(), SLOTS)
        self.assertLessEqual(max(descriptors), before + SLOTS * 6)
        wait_until(lambda: support.open_files(client.pid) == before, SOON, "the descriptors of before")

    def test_the_number_of_slots_is_a_setting(self) -> None:  # I6
        for slots in (1, 3):
            with self.subTest(slots=slots):
                project = self.new_project()
                project.counting_tool("brief", "sleep 0.05")
                client = self.new_client(project, env={"MCPBASH_MAX_CONCURRENT_REQUESTS": str(slots)})
                client.initialize()
                calls = [call_message(client, "brief") for _ in range(10)]
                send_at_once(client, calls)
                for call in calls:
                    client.response(call["id"])

                self.assertEqual(slots, project.peak())
                client.close()

    def test_calls_beyond_the_queue_are_refused_at_once(self) -> None:  # RX-12
        _, client = self.serving(hold="exec sleep 300")
        calls = [call_message(client, "hold") for _ in range(SLOTS + 5000)]
        send_at_once(client, calls)
        self.assertEqual({}, client.result("ping"))
        client.fence()
        refused = refusals(client)

        self.assertEqual(5000 - QUEUE, len(refused))
        self.assertEqual({call["id"] for call in calls[SLOTS + QUEUE :]}, {answer["id"] for answer in refused})
        self.assertEqual({-32603}, {answer["error"]["code"] for answer in refused})
        self.assertIn("busy", refused[0]["error"]["message"])
        send_at_once(client, [cancellation(call["id"]) for call in calls[: SLOTS + QUEUE]])
        wait_until(lambda: not children(client))
        client.call("hold", params={"timeoutSecs": 0.1})  # there is room again

    def test_no_queue_at_all(self) -> None:
        project, client = self.serving(
            {"MCPBASH_MAX_CONCURRENT_REQUESTS": "2", "MCPBASH_MAX_QUEUED_REQUESTS": "0"}, hold="exec sleep 300"
        )
        calls = [call_message(client, "hold") for _ in range(3)]
        send_at_once(client, calls)

        self.assertEqual(-32603, client.response(calls[2]["id"])["error"]["code"])
        wait_until(lambda: running(client) == 2)
        client.cancel(calls[0]["id"])
        wait_until(lambda: running(client) == 1)
        client.call("hold", params={"timeoutSecs": 0.1})
        client.cancel(calls[1]["id"])

    def test_a_hundred_calls_at_once_leave_nothing_behind(self) -> None:  # G1, in small
        _, client = self.serving(echo='printf %s "$MCP_TOOL_ARGS_JSON"')

        def hundred() -> None:
            calls = [call_message(client, "echo", {"n": n}) for n in range(100)]
            send_at_once(client, calls)
            for n, call in enumerate(calls):
                self.assertEqual({"n": n}, json.loads(text_of(client.response(call["id"])["result"])))

        for _ in range(4):  # until caches and the allocator have their size
            hundred()
        before = footprint(client)
        for _ in range(5):
            hundred()
        after = footprint(client)

        self.assertEqual(before[0], after[0])
        self.assertLess(after[1], before[1] * 1.05)
        wait_until(lambda: not children(client), SOON)

    def test_large_results_are_not_kept(self) -> None:
        # A finished call must not wait for the garbage collector, which counts objects and not their size.
        _, client = self.serving(large="head -c 4000000 /dev/zero | tr '\\0' x")
        for _ in range(2):
            client.call("large")
        before = footprint(client)
        for _ in range(10):
            self.assertEqual(4_000_000, len(client.text("large")))

        self.assertLess(footprint(client)[1], before[1] + (16 << 20))


def refusals(client: Client) -> list[dict]:
    """Return the error responses received so far."""
    return [each for each in client.messages if isinstance(each, dict) and "error" in each]


def cancellation(request_id: Any) -> dict:
    """Return the notification that cancels a request."""
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}


class HeadOfLineTest(LinuxCase):
    """What needs no slot is served while all slots are taken."""

    def test_pings_are_answered_while_everything_hangs_and_thousands_wait(self) -> None:  # G13
        _, client = self.serving({"MCPBASH_MAX_QUEUED_REQUESTS": "5000"}, hold="exec sleep 300")
        calls = [call_message(client, "hold") for _ in range(SLOTS + 5000)]
        send_at_once(client, calls)
        wait_until(lambda: running(client) == SLOTS)
        client.fence()
        times = []
        for _ in range(200):
            begun = time.monotonic()
            client.result("ping")
            times.append(time.monotonic() - begun)
        times.sort()

        self.assertLess(times[100], support.patient(0.2))
        self.assertLess(times[197], support.patient(1.0))
        self.assertEqual(1, client.result("tools/list")["_meta"]["mcpbash/total"])
        send_at_once(client, [cancellation(call["id"]) for call in calls])
        wait_until(lambda: not children(client))
        client.fence()

    def test_with_hung_slots_a_cancel_lets_the_next_call_start(self) -> None:  # PS-28
        env = {"MCPBASH_MAX_CONCURRENT_REQUESTS": "2"}
        project, client = self.serving(env, hold="exec sleep 300", echo="echo here")
        hung = [client.send_call("hold") for _ in range(2)]
        wait_until(lambda: running(client) == 2)
        third = client.send_call("echo")
        begun = time.monotonic()
        client.result("ping")
        answered = time.monotonic() - begun
        self.assertEqual([], client.responses_to(third))  # the control: it does wait
        client.cancel(hung[0])

        self.assertEqual("here\n", text_of(client.response(third)["result"]))
        self.assertLess(answered, support.patient(SOON))
        client.cancel(hung[1])

    def test_a_call_that_is_cancelled_while_it_waits_never_starts(self) -> None:  # PS-29
        project = self.new_project()
        project.tool("mark", "echo x >>%s/marks; echo here" % project.base)
        project.tool("hold", "exec sleep 300")
        client = self.new_client(project, env={"MCPBASH_MAX_CONCURRENT_REQUESTS": "1"})
        client.initialize()
        first = client.send_call("hold")
        wait_until(lambda: running(client) == 1)
        waiting = [client.send_call("mark") for _ in range(3)]
        client.cancel(waiting[1])
        client.fence()
        client.cancel(first)
        for number in (waiting[0], waiting[2]):
            self.assertEqual("here\n", text_of(client.response(number)["result"]))

        self.assertEqual([], client.responses_to(waiting[1]))
        self.assertEqual(2, lines_in(project, "marks"))

    def test_everything_in_one_write_is_answered(self) -> None:  # CR-06
        project = self.new_project()
        project.tool("echo", "echo here")
        client = self.new_client(project)
        info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        messages: list[dict] = [
            {"jsonrpc": "2.0", "id": "init", "method": "initialize", "params": info},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
        ]
        for number in range(100):
            method = ("ping", "tools/list", "tools/call", "nonsense")[number % 4]
            params = {"name": "echo"} if method == "tools/call" else {}
            messages.append({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        send_at_once(client, messages)
        self.assertEqual("2025-06-18", client.response("init")["result"]["protocolVersion"])
        answers = [client.response(number) for number in range(100)]

        self.assertEqual([{}] * 25, [answer["result"] for answer in answers[0::4]])
        listed = [answer["result"]["tools"] for answer in answers[1::4]]
        self.assertEqual([["echo"]] * 25, [[tool["name"] for tool in tools] for tools in listed])
        self.assertEqual(["here\n"] * 25, [text_of(answer["result"]) for answer in answers[2::4]])
        self.assertEqual([-32601] * 25, [answer["error"]["code"] for answer in answers[3::4]])


class ToolLimitTest(LinuxCase):
    """A tool may have a limit of its own; others overtake those that wait for it."""

    def limited(self, limit: int, env: dict[str, str] | None = None) -> tuple[Project, Client]:
        """Return a server with a tool that has a limit."""
        project = self.new_project()
        project.counting_tool("limited", "sleep 0.1", {"concurrency": limit})
        project.tool("other", "echo here")
        return project, self.new_client(project, env=env)

    def test_no_more_calls_of_it_run_at_once(self) -> None:
        for limit in (1, 3):
            with self.subTest(limit=limit):
                project, client = self.limited(limit)
                client.initialize()
                client.result("tools/list")
                calls = [call_message(client, "limited") for _ in range(10)]
                send_at_once(client, calls)
                for call in calls:
                    client.response(call["id"])

                self.assertEqual(limit, project.peak())
                client.close()

    def test_the_limit_holds_for_the_first_calls_of_a_server_too(self) -> None:
        project, client = self.limited(1)
        numbers = [client.send_call("limited") for _ in range(6)]
        for number in numbers:
            client.response(number)

        self.assertEqual(1, project.peak())

    def test_other_tools_overtake(self) -> None:
        project, client = self.limited(1)
        project.tool("limited", "exec sleep 300", {"concurrency": 1})
        client.initialize()
        client.result("tools/list")
        numbers = [client.send_call("limited") for _ in range(20)]  # more than there are slots

        self.assertEqual("here\n", client.text("other"))
        wait_until(lambda: running(client) == 1)
        for number in numbers:
            client.cancel(number)
        wait_until(lambda: not children(client))

    def test_a_cancelled_call_gives_its_place_back(self) -> None:
        project, client = self.limited(1)
        project.tool("limited", "exec sleep 300", {"concurrency": 1})
        client.initialize()
        client.result("tools/list")
        first = client.send_call("limited")
        wait_until(lambda: running(client) == 1)
        client.cancel(first)

        self.assertTrue(client.call("limited", params={"timeoutSecs": 0.2})["isError"])


# ======================================================================================================================
# Cancellation
# ======================================================================================================================


class CancelTest(LinuxCase):
    """notifications/cancelled: exactly that request, at once, without a word."""

    def holding(self, **options: Any) -> tuple[Project, Client]:
        """Return a server with a tool that stays."""
        project, client = self.serving(hold="exec sleep 300", echo="echo here", **options)
        return project, client

    def test_a_cancelled_call_ends_with_its_whole_group_and_without_a_word(self) -> None:
        _, client = self.serving(tree="sleep 300 & (sleep 300; sleep 300) & sleep 300")
        number = client.send_call("tree")
        wait_until(lambda: running(client) == 3)
        client.cancel(number)
        wait_until(lambda: not children(client), 1 + SOON)
        client.fence()

        self.assertEqual([], client.responses_to(number))

    def test_nothing_at_all_is_sent_for_a_cancelled_request(self) -> None:
        last = "trap 'say 2; exit 0' TERM; say 1; sleep 300 & wait"
        say = "say() { printf 'progress\\t%s\\t\\t\\0log\\terror\\tx\\ttext\\0' $1 >&7; echo >>%s/said; }\n"
        for era in ("handshake", "stateless"):
            with self.subTest(era):
                project = self.new_project()
                project.tool("tell", say.replace("%s/said", project.base + "/said") + last)
                client = self.new_client(project)
                if era == "handshake":
                    client.initialize()
                number = client.send_call("tell", token="t", **({} if client.version else {"log_level": "debug"}))
                client.expect({"method": "notifications/progress"})
                client.expect({"method": "notifications/message"})
                wait_until(lambda project=project: lines_in(project, "said") == 1)
                client.cancel(number)
                wait_until(lambda project=project: lines_in(project, "said") == 2, what="the tool's last words")
                wait_until(lambda client=client: not children(client))
                client.fence()

                self.assertEqual(([], 2), (client.responses_to(number), len(client.notifications())))
                client.close()

    IDS = [7, "7", 0, -1, "", "true", 2**70, "\u00fc", "7.0"]
    STRANGERS: list[Any] = [7.0, True, None, [7], {"id": 7}, 8, "8", "07", 7.5, "null"]

    def test_ids_are_matched_by_type_and_value(self) -> None:
        _, client = self.holding()
        for request_id in self.IDS:
            client.send_call("hold", id=request_id)
        wait_until(lambda: running(client) == len(self.IDS))
        for stranger in self.STRANGERS:
            client.notify("notifications/cancelled", {"requestId": stranger})
        client.notify("notifications/cancelled")
        client.notify("notifications/cancelled", {})
        client.fence()
        self.assertEqual(len(self.IDS), running(client))
        for count, request_id in enumerate(self.IDS, 1):
            client.cancel(request_id)
            wait_until(lambda count=count: running(client) == len(self.IDS) - count, SOON, "the end of %r" % request_id)
        client.fence()

        self.assertEqual([], [each for each in client.messages if "error" in each])

    def test_finished_and_unknown_requests_are_ignored(self) -> None:
        _, client = self.holding()
        number = client.send_call("echo")
        client.response(number)
        before = len(client.messages)
        for each in (number, 999, "x"):
            client.cancel(each)
        client.fence()

        self.assertEqual(before + 1, len(client.messages))  # the fence
        self.assertEqual("here\n", client.text("echo", id=number))

    def test_a_stream_ends_silently_when_it_is_cancelled(self) -> None:
        project, client = self.holding()
        params = {"notifications": {"toolsListChanged": True}}
        number = client.send_request("subscriptions/listen", params, modern=True)
        client.expect({"method": "notifications/subscriptions/acknowledged"})
        client.cancel(number)
        client.cancel(number)
        client.fence()

        self.assertEqual([], client.responses_to(number))

    def test_initialize_cannot_be_cancelled(self) -> None:  # R-134, PA-24
        project = self.new_project()
        project.tool("echo", "echo here")
        client = self.new_client(project)
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        send_at_once(client, [
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info},
            cancellation(1),
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
        ])  # fmt: skip
        client.version = client.response(1)["result"]["protocolVersion"]

        self.assertEqual("here\n", client.text("echo", id=2))

    def test_an_id_can_be_used_again_right_after_its_cancellation(self) -> None:
        deaf = "trap '' TERM; sleep 300; sleep 300"
        _, client = self.serving({"MCPBASH_KILL_GRACE": "5"}, deaf=deaf, echo="echo here")
        client.send_call("deaf", id="again")
        wait_until(lambda: running(client) == 1)
        client.cancel("again")
        client.fence()

        self.assertEqual("here\n", client.text("echo", id="again"))
        self.assertEqual(1, running(client))  # the control: the first one is still dying
        for process in client.tree():
            if process.name == "sleep":
                os.killpg(process.session, signal.SIGKILL)

    def test_a_call_that_is_cancelled_while_the_policy_thinks_never_starts(self) -> None:
        project = self.new_project()
        policy = """trap '' TERM
mcp_tools_policy_check() { echo >>%s/asked; while [ ! -e %s/go ]; do sleep 0.02; done; return 0; }
"""
        project.file("server.d/policy.sh", policy % (project.base, project.base))
        project.tool("mark", "echo x >>%s/marks; echo here" % project.base)
        client = self.new_client(project, env={"MCPBASH_KILL_GRACE": "20"})
        client.initialize()
        client.send_call("mark", id="again")
        wait_until(lambda: lines_in(project, "asked") == 1)
        client.cancel("again")
        client.fence()
        open(os.path.join(project.base, "go"), "w").close()
        wait_until(lambda: not children(client))

        self.assertEqual(0, lines_in(project, "marks"))
        self.assertEqual("here\n", client.text("mark", id="again", timeout=10))  # the control, and the id is free

    def test_a_cancel_works_whatever_the_tool_did_to_its_files(self) -> None:
        pranks = {
            "removes the directory": 'rm -rf "$(dirname "$MCP_CANCEL_FILE")"',
            "puts a directory there": 'mkdir "$MCP_CANCEL_FILE"',
            "puts a link there": 'ln -s /nonexistent/x "$MCP_CANCEL_FILE"',
            "does nothing": ":",
        }
        for name, prank in pranks.items():
            with self.subTest(name):
                _, client = self.serving(prank=prank + "; exec sleep 300")
                number = client.send_call("prank")
                wait_until(lambda client=client: running(client) == 1)
                client.cancel(number)

                self.assertEqual({}, client.result("ping", timeout=5))
                wait_until(lambda client=client: not children(client), 1 + SOON)
                client.close()

    def test_a_tool_can_see_that_it_is_cancelled(self) -> None:
        project = self.new_project()
        script = "trap '[ -e \"$MCP_CANCEL_FILE\" ] && echo seen >%s/seen; exit 0' TERM\n"
        script += "[ ! -e \"$MCP_CANCEL_FILE\" ] && echo >%s/up; sleep 300 & wait"
        project.tool("look", script % (project.base, project.base))
        client = self.new_client(project)
        client.initialize()
        for _ in range(2):  # the second call reuses the files of the first, without the cancellation
            number = client.send_call("look")
            support.wait_for_file(project.base + "/up")
            client.cancel(number)
            support.wait_for_file(project.base + "/seen")
            os.unlink(project.base + "/up")
            os.unlink(project.base + "/seen")
        wait_until(lambda: not children(client))


class CancelRaceTest(LinuxCase):
    """CR-01, G3, R-133: cancellations at every moment of a call's life."""

    def test_cancels_at_seeded_moments(self) -> None:
        print("seed %d, %d calls" % (SEED, CANCELS), file=sys.stderr)
        choice = random.Random(SEED)
        project = self.new_project()
        project.tool("brief", "#!/bin/sh\nprintf 'progress\\t1\\t\\t\\0' >&7\n")
        project.tool("long", "#!/bin/sh\nexec sleep 300\n")
        client = self.new_client(project)
        client.initialize()
        self.run_calls(client, choice, 200)
        before = self.settled(client)
        worst = self.run_calls(client, choice, CANCELS)
        after = self.settled(client)

        self.assertEqual(before[0], after[0])
        self.assertLess(after[1], before[1] * 1.05)
        self.assertLess(worst, support.patient(1.0))
        answered = sum(1 for each in client.messages if "result" in each)
        self.assertGreater(answered, 50, "the control: some calls were faster than their cancellation")

    def run_calls(self, client: Client, choice: random.Random, count: int) -> float:
        """Start calls and cancel each 0 to 20 ms later; return how long the slowest of the pings in between took."""
        due: list[tuple[float, int]] = []
        worst = 0.0
        for number in range(count):
            call = client.send_call(choice.choice(("brief", "long")), token="t%d" % client._ids)
            heapq.heappush(due, (time.monotonic() + choice.uniform(0, 0.02), call))
            while due and (due[0][0] <= time.monotonic() or len(due) > 2 * SLOTS):
                client.cancel(heapq.heappop(due)[1])
            threading.Event().wait(choice.uniform(0, 0.003))
            if number % 50 == 0:
                begun = time.monotonic()
                client.result("ping")
                worst = max(worst, time.monotonic() - begun)
        for _, call in due:
            client.cancel(call)
        client.fence()
        return worst

    def settled(self, client: Client) -> tuple[int, int]:
        """Return the footprint once nothing runs any more."""
        wait_until(lambda: not children(client), what="no descendant")
        client.fence()
        return footprint(client)


if __name__ == "__main__":
    unittest.main()
