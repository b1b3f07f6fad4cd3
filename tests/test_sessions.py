#!/usr/bin/env python3
"""Room 14, sessions and eras: who may ask what, in which version, and how a conversation begins and ends."""
from __future__ import annotations

import json
import os
import sys
import unittest
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support
from support import HANDSHAKE_VERSIONS, PREFIX, STATELESS_VERSION, VERSIONS

sys.path.append(support.ROOT)

import mcp_bash

NEWEST_FIRST = list(reversed(VERSIONS))
INFO = {"name": "test-client", "version": "1"}
VERSION_KEY, CAPABILITIES_KEY = PREFIX + "protocolVersion", PREFIX + "clientCapabilities"
LEVEL_KEY = PREFIX + "logLevel"
GOOD_META = {VERSION_KEY: STATELESS_VERSION, CAPABILITIES_KEY: {}}
LOG = r"""printf 'log\t%s\tmcp.test\tsaid\0' "${1:-info}" >&"$MCP_CHANNEL_FD"; echo done"""

# PA-18: params of server/discover -> code (0: a result), part of the message
ENVELOPES = (
    (None, -32602, "_meta"),
    ({}, -32602, "_meta"),
    ({"_meta": None}, -32602, "_meta"),
    ({"_meta": []}, -32602, "_meta"),
    ({"_meta": {}}, -32602, "protocolVersion"),
    ({"_meta": {CAPABILITIES_KEY: {}}}, -32602, "protocolVersion"),
    ({"_meta": {VERSION_KEY: STATELESS_VERSION}}, -32602, "clientCapabilities"),
    ({"_meta": {VERSION_KEY: 20260728, CAPABILITIES_KEY: {}}}, -32602, "string"),
    ({"_meta": {VERSION_KEY: None, CAPABILITIES_KEY: {}}}, -32602, "string"),
    ({"_meta": {VERSION_KEY: [STATELESS_VERSION], CAPABILITIES_KEY: {}}}, -32602, "string"),
    ({"_meta": {VERSION_KEY: STATELESS_VERSION, CAPABILITIES_KEY: []}}, -32602, "object"),
    ({"_meta": {VERSION_KEY: STATELESS_VERSION, CAPABILITIES_KEY: None}}, -32602, "object"),
    ({"_meta": {**GOOD_META, LEVEL_KEY: "loud"}}, -32602, "logLevel"),
    ({"_meta": {**GOOD_META, LEVEL_KEY: {}}}, -32602, "logLevel"),
    ({"_meta": {**GOOD_META, LEVEL_KEY: None}}, -32602, "logLevel"),
    ({"_meta": {**GOOD_META, "progressToken": {}}}, -32602, "progressToken"),
    ({"_meta": {VERSION_KEY: "1900-01-01", CAPABILITIES_KEY: {}}}, -32022, "Unsupported"),
    ({"_meta": {VERSION_KEY: "", CAPABILITIES_KEY: {}}}, -32022, "Unsupported"),
    ({"_meta": GOOD_META}, 0, ""),
    ({"_meta": {**GOOD_META, LEVEL_KEY: "debug"}}, 0, ""),
    ({"_meta": {**GOOD_META, PREFIX + "clientInfo": INFO}}, 0, ""),
    ({"_meta": {**GOOD_META, PREFIX + "clientInfo": "anybody"}}, 0, ""),
    ({"_meta": {**GOOD_META, PREFIX + "unknown": 1, "traceparent": 7, "x/y": None}}, 0, ""),
    ({"_meta": {**GOOD_META, CAPABILITIES_KEY: {"experimental": {}, "unheard": []}}}, 0, ""),
    ({"_meta": GOOD_META, "unexpected": True}, 0, ""),
)

# what does not exist in the stateless era
NOT_STATELESS = (
    "initialize ping logging/setLevel resources/subscribe resources/unsubscribe tasks/list tasks/result tasks/get"
    " roots/list sampling/createMessage elicitation/create shutdown exit notifications/initialized no/such"
).split()

# params of initialize that are not good enough
BAD_INITIALIZE: tuple[Any, ...] = (
    None,
    {},
    {"capabilities": {}, "clientInfo": INFO},
    {"protocolVersion": "2025-11-25", "clientInfo": INFO},
    {"protocolVersion": "2025-11-25", "capabilities": {}},
    {"protocolVersion": 20251125, "capabilities": {}, "clientInfo": INFO},
    {"protocolVersion": None, "capabilities": {}, "clientInfo": INFO},
    {"protocolVersion": ["2025-11-25"], "capabilities": {}, "clientInfo": INFO},
    {"protocolVersion": "2025-11-25", "capabilities": [], "clientInfo": INFO},
    {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": "me"},
)

# versions nobody can speak after a handshake
STRANGE_VERSIONS = ("1999-12-31", "2026-07-28", "9999-12-31", "", "latest", "2025-11-25 ", "2025-11", "v" * 100_000)


def initialize_params(version: str = HANDSHAKE_VERSIONS[-1], meta: dict | None = None) -> dict:
    """Return the params of a proper initialize."""
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": INFO}
    return {**params, "_meta": meta} if meta else params


def call(number: Any, tool: str, **params: Any) -> dict:
    """Return a tools/call request as a member of a batch."""
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": tool, **params}}


def ping(number: Any) -> dict:
    """Return a ping request as a member of a batch."""
    return {"jsonrpc": "2.0", "id": number, "method": "ping"}


class SessionCase(support.Case):
    """Tests with a project of two tools: `echo`, and `mark`, which leaves a trace of every run."""

    def setUp(self):
        self.project = self.new_project()
        self.project.tool("echo", 'printf %s "$MCP_TOOL_ARGS_JSON"')
        self.project.tool("mark", "echo run >>marks")
        self.project.tool("log", LOG)

    def marks(self) -> int:
        """Return how often the tool `mark` has run."""
        try:
            with open(self.project.path("marks"), encoding="ascii") as stream:
                return len(stream.readlines())
        except FileNotFoundError:
            return 0

    def start(self, version: str = "", **env: str) -> support.Client:
        """Return a client, with a handshake session when a version is given."""
        client = self.new_client(self.project, env=env)
        if version:
            client.initialize(version)
        return client

    def names(self, client: support.Client, **fields: Any) -> list[str]:
        """Return the names of the tools a client is shown."""
        return [tool["name"] for tool in client.result("tools/list", **fields)["tools"]]


# ======================================================================================================================
# The stateless era
# ======================================================================================================================


class StatelessTest(SessionCase):
    def test_discover_answers_with_no_prior_traffic(self):
        result = self.start().result("server/discover", modern=True)

        self.assertEqual(NEWEST_FIRST, result["supportedVersions"])
        self.assertEqual({"logging": {}, "tools": {"listChanged": True}}, result["capabilities"])

    def test_the_envelope_is_checked_and_the_message_names_what_is_missing(self):
        client = self.start()
        for params, code, words in ENVELOPES:
            with self.subTest(params=params):
                response = client.request("server/discover", params)

                self.assertEqual(code, response.get("error", {"code": 0})["code"])
                self.assertIn(words, response.get("error", {"message": ""})["message"])

    def test_every_method_checks_the_envelope_first(self):
        client = self.start()
        for method in ("tools/list", "tools/call", "no/such", "ping", "subscriptions/listen"):
            with self.subTest(method=method):
                self.assertEqual(-32602, client.error(method, {"_meta": {VERSION_KEY: STATELESS_VERSION}})["code"])

    def test_an_unknown_version_is_told_which_there_are(self):  # PA-18
        client = self.start()
        offered = client.result("server/discover", modern=True)["supportedVersions"]
        for version in ("2031-01-01", "1900-01-01", "", "newest"):
            with self.subTest(version=version):
                error = client.error("tools/list", {"_meta": {VERSION_KEY: version, CAPABILITIES_KEY: {}}})

                self.assertEqual(-32022, error["code"])
                self.assertEqual({"supported": offered, "requested": version}, error["data"])

    def test_a_version_with_a_handshake_is_not_offered_again(self):
        client = self.start()
        for version in HANDSHAKE_VERSIONS:
            with self.subTest(version=version):
                error = client.error("tools/list", {"_meta": {VERSION_KEY: version, CAPABILITIES_KEY: {}}})

                self.assertEqual(-32022, error["code"])
                self.assertEqual({"supported": [STATELESS_VERSION], "requested": version}, error["data"])
                self.assertIn("initialize", error["message"])

    def test_a_version_of_a_megabyte_is_not_echoed_at_length(self):
        error = self.start().error("tools/list", {"_meta": {VERSION_KEY: "9" * 1_000_000, CAPABILITIES_KEY: {}}})

        self.assertEqual(-32022, error["code"])
        self.assertLess(len(json.dumps(error)), 1000)

    def test_what_the_revision_dropped_is_not_found(self):
        for version in ("", HANDSHAKE_VERSIONS[-1]):
            client = self.start(version)
            for method in NOT_STATELESS:
                with self.subTest(method=method, session=version):
                    params = initialize_params() if method == "initialize" else {"level": "debug", "uri": "x://y"}

                    self.assertEqual(-32601, client.error(method, params, modern=True)["code"])

    def test_the_level_of_one_request_is_not_that_of_the_next(self):  # R-052, LG-07
        client = self.start()
        client.call("log", log_level="info")
        self.assertEqual(1, len(client.notifications("notifications/message")))
        client.call("log")
        client.call("log", log_level="error")
        client.call("log")

        self.assertEqual(1, len(client.notifications("notifications/message")))

    def test_no_number_of_stateless_requests_opens_a_session(self):
        client = self.start()
        client.call("echo")
        client.notify("notifications/initialized")

        self.assertEqual(-32602, client.error("tools/list")["code"])

    def test_notifications_may_carry_the_envelope(self):
        ready = self.project.fifo("ready")
        self.project.tool("hold", "echo >%s; exec sleep 600" % ready)
        client = self.start()
        number = client.send_call("hold")
        with open(ready, encoding="ascii") as stream:
            stream.read()
        client.notify("notifications/cancelled", support.stateless({"requestId": number}))
        client.fence()

        self.assertEqual([], client.responses_to(number))

    def test_discover_runs_no_script(self):
        self.project.file("server.d/register.sh", "echo run >>marks\n", 0o755)
        client = self.start(MCPBASH_ALLOW_PROJECT_HOOKS="true")
        client.result("server/discover", modern=True)
        client.initialize()
        client.result("ping")
        before = self.marks()
        client.request("tools/list")

        self.assertEqual(0, before)
        self.assertEqual(1, self.marks(), "the script does run when the list is wanted")


# ======================================================================================================================
# The handshake era
# ======================================================================================================================


class HandshakeTest(SessionCase):
    def test_a_version_we_speak_is_echoed(self):
        for version in HANDSHAKE_VERSIONS:
            with self.subTest(version=version):
                result = self.start().result("initialize", initialize_params(version))

                self.assertEqual(version, result["protocolVersion"])

    def test_any_other_version_is_answered_with_our_newest(self):
        client = self.start()
        for version in STRANGE_VERSIONS:
            with self.subTest(version=version[:20]):
                result = client.result("initialize", initialize_params(version))

                self.assertEqual(HANDSHAKE_VERSIONS[-1], result["protocolVersion"])

    def test_an_incomplete_initialize_is_refused_and_opens_nothing(self):
        client = self.start()
        for params in BAD_INITIALIZE:
            with self.subTest(params=params):
                self.assertEqual(-32602, client.error("initialize", params)["code"])
        client.notify("notifications/initialized")

        self.assertEqual(-32602, client.error("tools/list")["code"])
        client.initialize()
        self.assertIn("echo", self.names(client))

    def test_ping_needs_no_session_and_nothing_else_goes_without(self):  # PA-16
        client = self.start()
        self.assertEqual({}, client.result("ping"))
        for method in ("tools/list", "tools/call", "logging/setLevel", "no/such", "shutdown", "exit"):
            with self.subTest(method=method):
                error = client.error(method, {"name": "mark", "level": "debug"})

                self.assertEqual(-32602, error["code"])
                self.assertIn("initialize", error["message"])
                self.assertIn(VERSION_KEY, error["message"])
        client.initialize()
        client.call("mark")

        self.assertEqual(1, self.marks())

    def test_between_initialize_and_initialized_only_ping_is_answered(self):
        for notification in ("notifications/initialized", "initialized"):
            with self.subTest(notification=notification):
                client = self.start()
                client.result("initialize", initialize_params())
                self.assertEqual({}, client.result("ping"))
                for method in ("tools/list", "tools/call", "logging/setLevel"):
                    self.assertEqual(-32000, client.error(method, {"name": "mark", "level": "debug"})["code"])
                client.notify(notification)

                self.assertIn("echo", self.names(client))
        self.assertEqual(0, self.marks())

    def test_nothing_is_said_unasked_before_initialized(self):
        waiting, ready = self.start(), self.start("2025-11-25")
        waiting.result("initialize", initialize_params())
        self.names(ready)
        waiting.modern("tools/list")
        self.project.tool("new", "echo")
        ready.expect({"method": "notifications/tools/list_changed"})  # by now the other server had as much time
        waiting.fence()
        self.assertEqual([], waiting.notifications())
        waiting.notify("notifications/initialized")
        waiting.fence()
        self.project.tool("newer", "echo")

        waiting.expect({"method": "notifications/tools/list_changed"})

    def test_everything_may_come_in_one_write(self):
        client = self.start()
        messages = (
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize_params("2025-06-18")},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
            call(3, "mark"),
        )
        client.send_raw(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        for number in (1, 2, 3):
            self.assertIn("result", client.response(number))

        self.assertEqual(1, self.marks())

    def test_initialize_cannot_be_cancelled(self):  # PA-24
        client = self.start()
        client.send({"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": initialize_params()})
        client.cancel("i")
        client.notify("notifications/initialized")

        self.assertIn("result", client.response("i"))
        self.assertIn("echo", self.names(client))

    def test_a_second_initialize_begins_anew(self):
        client = self.start("2024-11-05")
        client.result("logging/setLevel", {"level": "error"})
        client.call("log")
        self.assertEqual([], client.notifications("notifications/message"))
        result = client.result("initialize", initialize_params("2025-06-18"))
        self.assertEqual("2025-06-18", result["protocolVersion"])
        self.assertEqual(-32000, client.error("tools/list")["code"])
        client.notify("notifications/initialized")
        client.call("log")

        self.assertEqual(1, len(client.notifications("notifications/message")), "the level is the first one again")

    def test_a_second_initialize_loses_no_answer(self):
        ready, go = self.project.fifo("ready"), self.project.fifo("go")
        self.project.tool("hold", "echo >%s; read line <%s; echo done" % (ready, go))
        client = self.start("2025-11-25")
        number = client.send_call("hold")
        with open(ready, encoding="ascii") as stream:
            stream.read()
        client.initialize("2025-03-26")
        with open(go, "w", encoding="ascii") as stream:
            stream.write("go\n")

        self.assertEqual("done\n", support.text_of(client.response(number)["result"]))

    def test_the_level_of_the_session_decides_what_is_sent(self):
        client = self.start("2025-11-25")
        for level, expected in (("debug", 1), ("info", 1), ("notice", 0), ("emergency", 0)):
            with self.subTest(level=level):
                before = len(client.notifications("notifications/message"))
                self.assertEqual({}, client.result("logging/setLevel", {"level": level}))
                client.call("log")

                self.assertEqual(expected, len(client.notifications("notifications/message")) - before)
        for params in ({}, {"level": "loud"}, {"level": 3}, {"level": []}, {"level": None}):
            with self.subTest(params=params):
                self.assertEqual(-32602, client.error("logging/setLevel", params)["code"])

    def test_who_the_client_is_makes_no_difference(self):
        answers = []
        for info in (INFO, {"name": "", "version": ""}, {"name": "x" * 100_000, "version": "1", "odd": [1]}):
            client = self.start()
            answers.append(client.result("initialize", {**initialize_params(), "clientInfo": info}))

        self.assertEqual(answers[:1] * 3, answers)


class MixedTest(SessionCase):
    def test_both_eras_are_served_side_by_side(self):
        for version in HANDSHAKE_VERSIONS:
            with self.subTest(version=version):
                client = self.start()
                client.result("server/discover", modern=True)
                client.initialize(version)
                old, new = client.call("echo", modern=False), client.call("echo", modern=True)

                self.assertNotIn("resultType", old)
                self.assertEqual("complete", new["resultType"])
                self.assertEqual((-32602, {}), (client.error("server/discover")["code"], client.result("ping")))

    def test_only_the_key_of_the_version_makes_a_request_stateless(self):
        client = self.start("2025-11-25")
        for meta in ({}, {"progressToken": 0}, {"traceparent": "x"}, {CAPABILITIES_KEY: {}}, {LEVEL_KEY: "debug"}):
            with self.subTest(meta=meta):
                self.assertNotIn("resultType", client.result("tools/list", {"_meta": meta}))
        self.assertIn("resultType", client.result("tools/list", {"_meta": GOOD_META}))

    def test_an_id_is_in_flight_only_once_in_both_eras(self):
        ready, go = self.project.fifo("ready"), self.project.fifo("go")
        self.project.tool("hold", "echo >%s; read line <%s; echo done" % (ready, go))
        client = self.start("2025-11-25")
        client.send_call("hold", id=1000)
        with open(ready, encoding="ascii") as stream:
            stream.read()
        client.send_request("server/discover", modern=True, id=1000)
        refusal = client.expect({"error": {"code": -32600}})
        with open(go, "w", encoding="ascii") as stream:
            stream.write("go\n")
        result = client.response(1000)["result"]
        client.close(check=False)  # the checker expects the refusal of a second request to name it

        self.assertNotIn("id", refusal)
        self.assertEqual("done\n", support.text_of(result))

    def test_two_servers_on_one_project_do_not_disturb_each_other(self):
        first, second = self.start("2025-11-25"), self.start()
        for number in range(10):
            nonce = support.new_nonce()
            first.send_call("echo", {"n": nonce}, nonce=nonce)
            nonce = support.new_nonce()
            second.send_call("echo", {"n": nonce}, nonce=nonce)
            if number == 5:
                self.assertEqual(self.names(first), self.names(second, modern=True))
        first.close(check=False)  # the checker takes the files of the second one for what the first has left
        self.assertEqual("{}", second.text("echo"))
        third = self.start("2024-11-05")

        self.assertEqual(self.names(third), self.names(second, modern=True))
        self.assertEqual([], first.check(complete=True).violations)


# ======================================================================================================================
# Endings
# ======================================================================================================================


class ShutdownTest(SessionCase):
    def test_after_shutdown_work_is_refused_and_exit_ends_the_process(self):
        client = self.start("2025-11-25")
        self.assertEqual({}, client.result("shutdown"))
        for method in ("tools/list", "tools/call", "logging/setLevel"):
            with self.subTest(method=method):
                self.assertEqual(-32003, client.error(method, {"name": "mark", "level": "debug"})["code"])
        self.assertEqual({}, client.result("shutdown"))
        self.assertEqual({}, client.result("exit"))

        self.assertEqual(0, client.wait(5), "without the end of its input")
        self.assertEqual(0, self.marks())

    def test_exit_may_be_a_notification(self):
        client = self.start("2025-11-25", MCPBASH_SHUTDOWN_TIMEOUT="100")
        client.result("shutdown")
        client.notify("exit")

        self.assertEqual(0, client.wait(10))

    def test_exit_comes_after_shutdown(self):  # PA-23
        client = self.start("2025-11-25")
        self.assertEqual(-32005, client.error("exit")["code"])
        client.notify("exit")
        client.call("mark")

        self.assertEqual(1, self.marks())

    def test_without_exit_the_process_ends_by_itself(self):
        client = self.start("2025-11-25", MCPBASH_SHUTDOWN_TIMEOUT="0.3")
        client.result("shutdown")

        self.assertEqual(0, client.wait(10))

    def test_without_shutdown_it_does_not(self):
        client = self.start("2025-11-25", MCPBASH_SHUTDOWN_TIMEOUT="0.1")
        other = self.start("2025-11-25", MCPBASH_SHUTDOWN_TIMEOUT="0.3")
        other.result("shutdown")
        other.wait(10)  # as long as this takes, the first one could have ended too

        self.assertEqual({}, client.result("ping"))

    def test_a_tool_that_runs_at_exit_is_ended(self):
        ready = self.project.fifo("ready")
        self.project.tool("hold", "echo >%s; exec sleep 600" % ready)
        client = self.start("2025-11-25")
        client.send_call("hold")
        with open(ready, encoding="ascii") as stream:
            stream.read()
        client.result("shutdown")
        client.result("exit")
        client.wait(10)

        client.close(unanswered_ok=True)  # nothing may be left

    def test_a_session_that_is_shut_down_hears_nothing_more(self):
        closing, open_one = self.start("2025-11-25", MCPBASH_SHUTDOWN_TIMEOUT="100"), self.start("2025-11-25")
        self.names(closing)
        self.names(open_one)
        closing.result("shutdown")
        self.project.tool("new", "echo")
        open_one.expect({"method": "notifications/tools/list_changed"})
        closing.fence()

        self.assertEqual([], closing.notifications("notifications/tools/list_changed"))


class MinimalTest(SessionCase):
    def test_minimal_mode_offers_lifecycle_ping_and_logging(self):
        client = self.start("2025-11-25", MCPBASH_FORCE_MINIMAL="true")
        answers = [client.result("initialize", initialize_params()), client.result("server/discover", modern=True)]
        self.assertEqual([{"logging": {}}] * 2, [answer["capabilities"] for answer in answers])
        client.notify("notifications/initialized")

        self.assertEqual({}, client.result("ping"))
        self.assertEqual({}, client.result("logging/setLevel", {"level": "debug"}))
        self.assertEqual({}, client.result("shutdown"))

    def test_minimal_mode_declines_tools_in_both_eras(self):
        client = self.start("2025-11-25", MCPBASH_FORCE_MINIMAL="true")
        for method in ("tools/list", "tools/call"):
            for modern in (False, True):
                with self.subTest(method=method, modern=modern):
                    error = client.error(method, {"name": "mark"}, modern=modern)

                    self.assertEqual(-32601, error["code"])
                    self.assertEqual("Tools capability unavailable in minimal mode", error["message"])
        self.assertEqual(0, self.marks())

    def test_minimal_mode_honours_no_subscription(self):
        for env, honoured in (({"MCPBASH_FORCE_MINIMAL": "true"}, {}), ({}, {"toolsListChanged": True})):
            with self.subTest(env=env):
                client = self.start(**env)
                client.send_request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, modern=True)
                first = client.expect({"method": "notifications/subscriptions/acknowledged"})

                self.assertEqual(honoured, first["params"]["notifications"])


# ======================================================================================================================
# Batches
# ======================================================================================================================


class BatchTest(SessionCase):
    def batch(self, client: support.Client, members: list) -> list:
        """Send a batch and return the array that answers it."""
        client.send(members)
        return client.expect(lambda message: isinstance(message, list), timeout=10)

    def outcomes(self, answer: list) -> dict:
        """Return the code of each answered id, 0 for a result; entries without an id are under None."""
        return {each.get("id"): each.get("error", {"code": 0})["code"] for each in answer}

    def test_a_batch_is_answered_with_one_array_and_nothing_for_notifications(self):  # R-016, PA-13
        client = self.start("2025-03-26")
        quiet = {"jsonrpc": "2.0", "method": "notifications/unheard_of"}
        unknown = {"jsonrpc": "2.0", "id": "c", "method": "no/such"}
        answer = self.batch(client, [ping("a"), quiet, call("b", "mark"), unknown])

        self.assertEqual({"a": 0, "b": 0, "c": -32601}, self.outcomes(answer))
        self.assertEqual(1, self.marks())

    def test_an_empty_batch_is_one_error(self):
        client = self.start("2025-03-26")
        client.send([])
        error = client.expect({"error": {}})

        self.assertEqual((-32600, False), (error["error"]["code"], "id" in error))

    def test_initialize_is_refused_in_a_batch(self):
        client = self.start("2025-03-26")
        member = {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": initialize_params("2025-11-25")}

        self.assertEqual({"i": -32600, "p": 0}, self.outcomes(self.batch(client, [member, ping("p")])))
        self.assertEqual({"q": 0}, self.outcomes(self.batch(client, [ping("q")])), "the session is still the old one")

    def test_every_other_version_refuses_batches_as_a_whole(self):  # R-019, PA-13
        for version in ("", "2024-11-05", "2025-06-18", "2025-11-25"):
            with self.subTest(version=version):
                client = self.start(version)
                members = [call(901, "mark"), ping(902)]
                if not version:
                    members = [call(901, "mark", _meta=GOOD_META), ping(902)]
                client.send(members)
                error = client.expect({"error": {}})
                client.fence()

                self.assertEqual((-32600, False), (error["error"]["code"], "id" in error))
        self.assertEqual(0, self.marks())

    def test_a_batch_of_notifications_has_no_answer(self):
        client = self.start("2025-03-26")
        quiet = {"jsonrpc": "2.0", "method": "notifications/unheard_of"}
        client.send([quiet, quiet])
        client.send([{"jsonrpc": "2.0", "id": 99, "result": {}}])
        client.fence()

        self.assertEqual([], [each for each in client.messages if isinstance(each, list) or "error" in each])

    def test_members_that_are_no_messages_get_an_entry_each(self):
        client = self.start("2025-03-26")
        answer = self.batch(client, [17, "x", None, [ping(1)], {}, ping(None), ping("p")])
        client.close(check=False)  # the checker takes the entries for answers to unknown ids

        self.assertEqual({"p": 0, None: -32600}, self.outcomes(answer))
        self.assertEqual(7, len(answer))
        self.assertEqual(6, len([each for each in answer if "id" not in each]))

    def test_a_batch_may_have_a_thousand_members_and_no_more(self):  # PA-13
        client = self.start("2025-03-26")
        self.assertEqual(1000, len(self.batch(client, [ping("p%d" % number) for number in range(1000)])))
        for size in (1001, 10_001):
            client.send([call(number, "mark") for number in range(5000, 5000 + size)])
            error = client.expect({"error": {}})
            self.assertEqual((-32600, False), (error["error"]["code"], "id" in error))
        client.fence()

        self.assertEqual(0, self.marks(), "none of them is executed")

    def test_progress_of_a_batched_call_comes_by_itself_and_before(self):
        self.project.tool("steps", r"""printf 'progress\t1\t2\t\0' >&"$MCP_CHANNEL_FD"; echo done""")
        client = self.start("2025-03-26")
        answer = self.batch(client, [call("s", "steps", _meta={"progressToken": "t"}), ping("p")])

        self.assertEqual({"s": 0, "p": 0}, self.outcomes(answer))
        self.assertEqual(1, len(client.notifications("notifications/progress")))
        self.assertIsInstance(client.messages[-1], list)

    def test_a_cancelled_member_is_left_out(self):
        ready = self.project.fifo("ready")
        self.project.tool("hold", "echo >%s; exec sleep 600" % ready)
        client = self.start("2025-03-26")
        client.send([call("h", "hold"), ping("p")])
        with open(ready, encoding="ascii") as stream:
            stream.read()
        client.cancel("h")

        self.assertEqual({"p": 0}, self.outcomes(client.expect(lambda message: isinstance(message, list))))

    def test_a_member_with_an_id_in_flight_is_refused_without_it(self):  # PA-03 in a batch
        go = self.project.fifo("go")
        self.project.tool("hold", "read line <%s; echo first" % go)
        client = self.start("2025-03-26")
        client.send([call(7, "hold"), call(7, "mark"), ping("p")])
        with open(go, "w", encoding="ascii") as stream:
            stream.write("go\n")
        answer = client.expect(lambda message: isinstance(message, list))
        client.close(check=False)  # the checker expects the refusal of a second request to name it

        self.assertEqual({7: 0, "p": 0, None: -32600}, self.outcomes(answer))
        self.assertEqual(3, len(answer))
        self.assertEqual(0, self.marks())

    def test_a_subscription_in_a_batch_does_not_hold_the_others_back(self):
        with self.project.client() as client:
            client.initialize("2025-03-26")
            params = support.stateless({"notifications": {"toolsListChanged": True}})
            listen = {"jsonrpc": "2.0", "id": "l", "method": "subscriptions/listen", "params": params}
            client.send([listen, ping("p")])

            self.assertEqual({}, client.response("p", timeout=5)["result"])
            client.close(check=False)  # whether the subscription is refused or opened is not the matter here

    def test_with_compatibility_each_member_is_answered_on_a_line_of_its_own(self):
        for version in ("", "2024-11-05", "2025-06-18", "2025-11-25"):
            with self.subTest(version=version):
                client = self.start(version, MCPBASH_COMPAT_BATCHES="true")
                client.send([ping("a"), {"jsonrpc": "2.0", "method": "notifications/x"}, ping("b")])
                self.assertEqual(({}, {}), (client.response("a")["result"], client.response("b")["result"]))
                client.send([])
                client.expect({"error": {"code": -32600}})

                self.assertEqual([], [message for message in client.messages if isinstance(message, list)])

    def test_with_compatibility_the_version_that_has_batches_keeps_its_arrays(self):
        client = self.start("2025-03-26", MCPBASH_COMPAT_BATCHES="true")

        self.assertEqual({"a": 0}, self.outcomes(self.batch(client, [ping("a")])))


# ======================================================================================================================
# The shared secret
# ======================================================================================================================


class TokenTest(SessionCase):
    TOKEN = "correct-horse-battery-staple-0123456789"
    KEY, FALLBACK = "mcpbash/remoteToken", "remoteToken"

    def start_guarded(self, **env: str) -> support.Client:
        """Return a client of a server that wants the secret."""
        return self.start(**{"MCPBASH_REMOTE_TOKEN": self.TOKEN, **env})

    def with_token(self, params: dict | None = None, token: Any = TOKEN, key: str = KEY, **meta: Any) -> dict:
        """Return params of the stateless era that carry a secret."""
        return support.stateless({**(params or {}), "_meta": {key: token, **meta}})

    def test_every_request_needs_the_secret(self):
        client = self.start_guarded()
        for method in ("server/discover", "tools/list", "tools/call", "initialize", "ping", "no/such", "shutdown"):
            for params in (None, {}, support.stateless({"name": "mark"}), initialize_params()):
                with self.subTest(method=method, params=params):
                    error = client.error(method, params)

                    self.assertEqual(-32602, error["code"])
                    self.assertTrue(error["message"].startswith("Remote token missing or invalid"))
        self.assertEqual(0, self.marks())

    def test_the_secret_opens_both_eras(self):
        client = self.start_guarded()
        for key in (self.KEY, self.FALLBACK):
            with self.subTest(key=key):
                self.assertIn("tools", client.result("tools/list", self.with_token(key=key)))
                client.result("initialize", initialize_params(meta={key: self.TOKEN}))
                client.notify("notifications/initialized")
                self.assertEqual({}, client.result("ping", {"_meta": {key: self.TOKEN}}))
                client.result("tools/call", {"name": "mark", "_meta": {key: self.TOKEN}})
                self.assertEqual(-32602, client.error("tools/list")["code"], "once is not for ever")

        self.assertEqual(2, self.marks())

    def test_nothing_but_the_secret_is_the_secret(self):
        client = self.start_guarded(MCPBASH_REMOTE_TOKEN_MAX_FAILURES_PER_MIN="10000")
        wrong = ("", "x", self.TOKEN[:-1], self.TOKEN + "x", self.TOKEN.upper(), self.TOKEN + "\0", "\u00e9", "\ud800")
        for token in (*wrong, None, True, 0, [], {}, [self.TOKEN], {"": self.TOKEN}):
            with self.subTest(token=ascii(token)):
                number = client.new_id()
                request = {"jsonrpc": "2.0", "id": number, "method": "tools/list"}
                client.send_raw(json.dumps({**request, "params": self.with_token(token=token)}).encode() + b"\n")

                self.assertEqual(-32602, client.response(number).get("error", {}).get("code"))
        self.assertIn("tools", client.result("tools/list", self.with_token()))

    def test_the_key_can_be_chosen(self):
        client = self.start_guarded(MCPBASH_REMOTE_TOKEN_KEY="x.example/key", MCPBASH_REMOTE_TOKEN_FALLBACK_KEY="other")
        for key, is_good in (("x.example/key", True), ("other", True), (self.KEY, False), (self.FALLBACK, False)):
            with self.subTest(key=key):
                self.assertEqual(is_good, "result" in client.request("tools/list", self.with_token(key=key)))

    def test_guessing_is_noted_and_does_not_lock_the_owner_out(self):  # EN-10
        client = self.start_guarded()
        bad = self.with_token(token="x" * 39)
        messages = [client.error("tools/list", bad)["message"] for _ in range(15)]

        self.assertEqual(["Remote token missing or invalid"] * 10, messages[:10])
        self.assertEqual(["Remote token missing or invalid (throttled)"] * 5, messages[10:])
        self.assertIn("tools", client.result("tools/list", self.with_token()))

    def test_a_tool_sees_the_secret_nowhere(self):  # EN-01
        files = '"${MCP_CANCEL_FILE%/*}"/* /proc/$$/cmdline /proc/self/environ'
        self.project.tool("dump", "env; set; cat %s | tr '\\0' '\\n'" % files)
        for threshold, key in (("65536", self.KEY), ("0", self.KEY), ("65536", "x.example/door")):
            with self.subTest(threshold=threshold, key=key):
                client = self.start_guarded(
                    MCPBASH_ENV_PAYLOAD_THRESHOLD=threshold, MCPBASH_REMOTE_TOKEN_KEY=key, MCPBASH_DEBUG_PAYLOADS="true"
                )
                extra = {self.FALLBACK: self.TOKEN, "kept": "visible-meta"}
                params = self.with_token({"name": "dump", "arguments": {"a": "visible-argument"}}, key=key, **extra)
                text = support.text_of(client.result("tools/call", params))

                self.assertIn("visible-argument", text)
                self.assertIn("visible-meta", text)
                self.assertEqual([], [line for line in text.splitlines() if self.TOKEN in line])
                self.assertNotIn("MCPBASH_REMOTE_TOKEN=", text)
                self.assertNotIn(self.TOKEN, client.stderr)

    def test_a_hook_sees_the_secret_nowhere(self):  # EN-01
        out = self.project.path("seen")
        policy = "mcp_tools_policy_check() { { env; set; } >%s; return 0; }\n" % out
        self.project.file("server.d/policy.sh", policy, 0o755)
        client = self.start_guarded()
        client.result("tools/call", self.with_token({"name": "mark"}))
        seen = support.wait_for_file(out)

        self.assertIn("PATH=", seen)
        self.assertNotIn(self.TOKEN, seen)

    def test_a_batch_is_checked_member_by_member(self):
        client = self.start_guarded()
        client.result("initialize", initialize_params("2025-03-26", {self.KEY: self.TOKEN}))
        client.notify("notifications/initialized")
        client.send([call("bad", "mark"), call("good", "mark", _meta={self.KEY: self.TOKEN})])
        answer = client.expect(lambda message: isinstance(message, list))

        self.assertEqual({"bad": True, "good": False}, {each["id"]: "error" in each for each in answer})
        self.assertEqual(1, self.marks())

    def test_without_a_secret_the_key_means_nothing(self):
        client = self.start()

        self.assertIn("tools", client.result("tools/list", self.with_token(token="anything")))


# ======================================================================================================================
# Who the server is
# ======================================================================================================================


class IdentityTest(support.Case):
    """What a project says about itself; the first tests ask the class, the last ones a server."""

    FILE = "server.d/server.meta.json"
    DEFAULTS = {"name": "project", "version": "0.0.0", "title": "Project"}
    META = {
        "name": "meta-name",
        "version": "9.9",
        "title": "Meta Title",
        "description": "what it is",
        "websiteUrl": "https://meta.example",
        "icons": [{"src": "https://meta.example/i.png"}],
    }

    def identity(self, files: dict[str, Any], environ: dict | None = None) -> dict:
        """Return the identity of a project with these files; `said` is what was logged."""
        with support.Project() as project:
            for path, content in files.items():
                (project.json if isinstance(content, dict) else project.file)(path, content)
            settings = mcp_bash.Settings({})
            log = mcp_bash.Log(settings, -1)
            self.said: list[str] = []
            log.forward = lambda level, logger, text: self.said.append(text)
            return mcp_bash.Project(project.root, settings).identity(log, environ or {})

    def test_without_metadata_there_are_defaults(self):
        package = '{"version": "4.5.6"}'
        table = (
            ({}, "0.0.0"),
            ({"VERSION": "1.2.3\n"}, "1.2.3"),
            ({"package.json": package}, "4.5.6"),
            ({"VERSION": "1.2.3", "package.json": package}, "1.2.3"),
            ({"package.json": "{broken"}, "0.0.0"),
            ({"package.json": "[]"}, "0.0.0"),
            ({"package.json": "{}"}, "0.0.0"),
        )
        for files, version in table:
            with self.subTest(files=files):
                self.assertEqual({**self.DEFAULTS, "version": version}, self.identity(files))
                self.assertEqual([], self.said)

    def test_metadata_and_then_the_environment_win(self):
        environ = {"MCPBASH_SERVER_NAME": "env-name", "MCPBASH_SERVER_WEBSITE_URL": "https://env.example"}
        expected = {**self.META, "name": "env-name", "websiteUrl": "https://env.example"}

        self.assertEqual(self.META, self.identity({self.FILE: self.META}))
        self.assertEqual(expected, self.identity({self.FILE: self.META}, environ))

    def test_metadata_that_cannot_be_read_is_reported_and_defaults_are_used(self):
        for content in ('{"name": "x",\n "version" 1}', "[1]", b'{"name": "caf\xe9"}', " " * (2 << 20), ""):
            with self.subTest(content=content[:20]):
                self.assertEqual(self.DEFAULTS, self.identity({self.FILE: content}))
                self.assertEqual([True], ["server.meta.json" in text for text in self.said], self.said)

    def test_fields_of_the_wrong_type_are_ignored(self):
        icons = (["x"], [5], [{"src": 5}], [{"src": "http://plain.example/x.png"}])
        for field in self.META:
            for value in (5, True, None, [], {}, "", 1.5, *(icons if field == "icons" else ())):
                with self.subTest(field=field, value=value):
                    expected = {**self.META, field: self.DEFAULTS.get(field)}

                    self.assertEqual(
                        {key: each for key, each in expected.items() if each is not None},
                        self.identity({self.FILE: {**self.META, field: value}}),
                    )

    def test_terminal_sequences_and_hidden_characters_are_taken_out(self):  # LG-03
        info = self.identity({self.FILE: {"name": "a\x1b[31mb\u200bc", "title": "t\u202ex"}})

        self.assertEqual(("abc", "tx"), (info["name"], info["title"]))

    def test_icons_are_https_or_data(self):
        sources = ("https://a.example/x", "data:image/png;base64,AA", "http://a.example/x", "file:///x", "javascript:1")
        icons = [{"src": source} for source in sources]

        self.assertEqual(icons[:2], self.identity({self.FILE: {"icons": icons}})["icons"])

    def test_each_version_gets_the_fields_it_knows(self):
        project = self.new_project()
        project.json(self.FILE, self.META)
        client = self.new_client(project)
        old, titled = {"name", "version"}, {"name", "version", "title"}
        for version, fields in zip(HANDSHAKE_VERSIONS, (old, old, titled, set(self.META))):
            with self.subTest(version=version):
                info = client.initialize(version)["serverInfo"]

                self.assertEqual({field: self.META[field] for field in fields}, info)
        self.assertEqual(self.META, client.result("server/discover", modern=True)["_meta"][PREFIX + "serverInfo"])

    def test_no_metadata_keeps_a_session_from_opening(self):
        for content in ('{"icons": 5}', '{"name": {}, "icons": {"a": 1}}', "nonsense", '{"icons": [[[]]]}'):
            with self.subTest(content=content), support.Project() as project:
                project.file(self.FILE, content)
                with project.client() as client:
                    self.assertEqual("project", client.initialize()["serverInfo"]["name"])


class InstructionsTest(support.Case):
    FILE = "server.d/server.instructions.md"

    def instructions(self, data: bytes | None, **env: str) -> tuple[Any, str]:
        """Return the instructions of a project with this file, and stderr."""
        project = self.new_project()
        if data is not None:
            project.file(self.FILE, data)
        client = self.new_client(project, env=env)
        found = {client.result("server/discover", modern=True).get("instructions")}
        found |= {client.initialize(version).get("instructions") for version in HANDSHAKE_VERSIONS}
        self.assertEqual(1, len(found), "every version says the same")
        client.close()
        return found.pop(), client.stderr

    def test_the_text_comes_from_the_file_then_from_the_environment(self):
        name = "MCPBASH_SERVER_INSTRUCTIONS"
        table = (
            (None, {}, None),
            (b"use it well\n", {}, "use it well"),
            (b'two\nlines "quoted" \\ back\n\n', {}, 'two\nlines "quoted" \\ back'),
            ("caf\u00e9 \u2028 \U0001f600".encode(), {}, "caf\u00e9 \u2028 \U0001f600"),
            (b"\xef\xbb\xbfmarked", {}, "marked"),
            (None, {name: "from outside"}, "from outside"),
            (b"from the file", {name: "from outside"}, "from the file"),
        )
        for data, env, expected in table:
            with self.subTest(data=data, env=env):
                self.assertEqual((expected, ""), self.instructions(data, **env))

    def test_a_file_that_is_no_text_is_reported_and_not_sent(self):
        text, stderr = self.instructions(b"caf\xe9")

        self.assertIsNone(text)
        self.assertIn("server.instructions.md", stderr)

    def test_an_empty_file_is_no_instructions(self):
        for data in (b"", b"\n\n"):
            with self.subTest(data=data):
                self.assertEqual((None, ""), self.instructions(data))


if __name__ == "__main__":
    unittest.main()
