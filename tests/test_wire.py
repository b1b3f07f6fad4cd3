#!/usr/bin/env python3
# timeout: 600
"""Room 13, the wire: every line in, every line out, and clients that misuse both.

The cases are those of the protocol's wire rules (R-…), of protocol abuse (PA-…), of the parser (PR-…) and of exhausted
pipes (RX-…). Most of them end with a look at whether the server still serves: refusing well is half of each case.
"""
from __future__ import annotations

import glob
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import unittest
from typing import Any
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

sys.path.append(support.ROOT)

import mcp_bash
from mcp_bash import HIGH_WATER, TOO_LONG, Wire

SEED = 20241105
MIB = 1 << 20
NO_ID = object()  # the error has no "id" member

ECHO = 'printf %s "$MCP_TOOL_ARGS_JSON"'
PING = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}'
CALL = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%b}}'

# Lines that are answered with exactly one error, and with which id. The session is open.
REFUSED = (
    # PA-01, R-009, R-010: no JSON
    (b"not-json", -32700, NO_ID),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"', -32700, NO_ID),
    (b"{}garbage", -32700, NO_ID),
    # PA-02: two documents on a line
    (b'{"jsonrpc":"2.0","id":71,"method":"ping"}{"jsonrpc":"2.0","id":72,"method":"ping"}', -32700, NO_ID),
    (b'{"jsonrpc":"2.0","id":71,"method":"ping"} {"jsonrpc":"2.0","id":72,"method":"ping"}', -32700, NO_ID),
    # PR-04, PR-05: bytes that are no text
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\xff\xfe"}}', -32700, NO_ID),
    (b"\xff", -32700, NO_ID),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\xed\xa0\x80"}}', -32700, NO_ID),
    (b'{"jsonrpc":"2.0","id":1,"method":"pi\0ng"}', -32700, NO_ID),
    (b'\0{"jsonrpc":"2.0","id":1,"method":"ping"}', -32700, NO_ID),
    (b"\0", -32700, NO_ID),
    (b"\0\0", -32700, NO_ID),
    # PR-01, PR-08, PR-09, R-014: documents nobody should read
    (b"[" * 100_000, -32700, NO_ID),
    (b'{"a":' * 100_000, -32700, NO_ID),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"9" * 4_301 + b"}}", -32700, NO_ID),
    (b'{"jsonrpc":"2.0","id":' + b"9" * 1_000_000 + b',"method":"ping"}', -32700, NO_ID),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', -32700, NO_ID),
    (b'{"jsonrpc":"2.0","id":Infinity,"method":"ping"}', -32700, NO_ID),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":-Infinity}}', -32700, NO_ID),
    # PA-04, R-006, R-007: ids
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, NO_ID),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, NO_ID),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, NO_ID),
    (b'{"jsonrpc":"2.0","id":1.0,"method":"ping"}', -32600, NO_ID),
    (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, NO_ID),
    (b'{"jsonrpc":"2.0","id":[],"method":"ping"}', -32600, NO_ID),
    (b'{"jsonrpc":"2.0","id":null,"result":{}}', -32600, NO_ID),
    # no message at all
    (b'"text"', -32600, NO_ID),
    (b"17", -32600, NO_ID),
    (b"null", -32600, NO_ID),
    (b"{}", -32600, NO_ID),
    (b'{"jsonrpc":"2.0"}', -32600, NO_ID),
    # PA-14, R-011, R-012: a usable id, the rest is wrong
    (b'{"id":9021,"method":"ping"}', -32600, 9021),
    (b'{"jsonrpc":"1.0","id":9022,"method":"ping"}', -32600, 9022),
    (b'{"jsonrpc":2.0,"id":"9023","method":"ping"}', -32600, "9023"),
    (b'{"jsonrpc":"2.0","id":9024,"method":7}', -32600, 9024),
    (b'{"jsonrpc":"2.0","id":9025,"method":null}', -32600, 9025),
    (b'{"jsonrpc":"2.0","id":9027,"method":"ping","result":{}}', -32600, 9027),
    (b'{"jsonrpc":"2.0","id":9028,"method":"ping","error":{}}', -32600, 9028),
    # PA-15, R-013: params
    (b'{"jsonrpc":"2.0","id":9031,"method":"ping","params":[]}', -32602, 9031),
    (b'{"jsonrpc":"2.0","id":9032,"method":"ping","params":"x"}', -32602, 9032),
    (b'{"jsonrpc":"2.0","id":9033,"method":"tools/call","params":[1]}', -32602, 9033),
    (b'{"jsonrpc":"2.0","id":9034,"method":"tools/call","params":7}', -32602, 9034),
    (b'{"jsonrpc":"2.0","id":9035,"method":"tools/call","params":{"name":"mark","arguments":[]}}', -32602, 9035),
    (b'{"jsonrpc":"2.0","id":9036,"method":"tools/call","params":{"name":"mark","arguments":"{}"}}', -32602, 9036),
    (b'{"jsonrpc":"2.0","id":9037,"method":"tools/call","params":{"name":["mark"]}}', -32602, 9037),
    # PA-22: tokens
    (CALL % (9041, b'"name":"mark","_meta":{"progressToken":{}}'), -32602, 9041),
    (CALL % (9042, b'"name":"mark","_meta":{"progressToken":true}'), -32602, 9042),
    (CALL % (9043, b'"name":"mark","_meta":{"progressToken":1.5}'), -32602, 9043),
)

# Lines that are answered with nothing. R-008, PA-08, PA-09, R-027
SILENT = (
    b"",
    b"  \t ",
    b"\r",
    b'{"jsonrpc":"2.0","method":"notifications/unheard_of"}',
    b'{"jsonrpc":"2.0","method":"notifications/unheard_of","params":[1]}',
    b'{"jsonrpc":"2.0","method":"notifications/unheard_of","params":"x"}',
    b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"mark"}}',
    b'{"jsonrpc":"2.0","method":"ping"}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":null}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4711,"reason":{}}}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized","params":7}',
    b'{"jsonrpc":"2.0","id":99,"result":{}}',
    b'{"jsonrpc":"2.0","id":"99","error":{"code":1,"message":"x"}}',
    b'{"jsonrpc":"2.0","id":99,"result":null}',
)

# R-005, PA-05: what an id may be
IDS = (0, 1, "1", "", -1, 1 << 53, 9007199254740993, 1 << 70, "\u2028", "\U0001f600", '"\\\n', "null", "x" * 1000)

# PR-14
CURSORS = ("garbage", "", "\ud800", "AAAA", "eyJ2ZXIiOjF9", "x" * 5_000_000, "bnVsbA", 5, True, {}, [], -1, 1e18)


class WireCase(support.Case):
    """Tests with a project that has a tool `echo`, and a tool `mark` that leaves a trace of every run."""

    def setUp(self):
        self.project = self.new_project()
        self.project.tool("echo", ECHO)
        self.project.tool("mark", "echo run >>marks")

    def marks(self) -> int:
        """Return how often the tool `mark` has run."""
        try:
            with open(self.project.path("marks"), encoding="ascii") as stream:
                return len(stream.readlines())
        except FileNotFoundError:
            return 0

    def open_session(self, version: str = support.HANDSHAKE_VERSIONS[-1], **options: Any) -> support.Client:
        """Return a client with a handshake session, nothing of which is left to be expected."""
        client = self.new_client(self.project, **options)
        client.initialize(version)
        client.fence()
        self.drain(client)
        return client

    def drain(self, client: support.Client) -> None:
        """Pass over everything received so far."""
        number = client.send_request("ping")
        while not support.matches({"id": number}, client.expect_next().message):
            continue

    def assert_up(self, client: support.Client) -> None:
        """See that the server is the same process as before and still runs tools."""
        self.assertIsNone(client.process.poll())
        for _ in range(10 if support.SOAK else 3):
            nonce = support.new_nonce()
            client.call("echo", {"nonce": nonce}, nonce=nonce)


def server_pid(client: Any) -> int:
    """Return the process id of the server itself, which need not be the process that was started."""
    tree = [support.read_process(client.pid), *support.descendants(client.pid)]
    return next(process.pid for process in tree if process and process.name.startswith("python"))


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended; nobody need have collected it yet."""
    process = support.read_process(pid)
    return process is None or process.state in "ZX"


def read_fifo(path: str) -> str:
    """Return what a tool writes into a named pipe. Closing it unread could end the tool with SIGPIPE."""
    with open(path, encoding="ascii") as stream:
        return stream.read()


def reset_peak(pid: int) -> int:
    """Make the kernel forget the peak of a process's memory; return what it uses now (Linux)."""
    with open("/proc/%d/clear_refs" % pid, "w") as stream:
        stream.write("5")
    return peak_memory(pid)


def peak_memory(pid: int) -> int:
    """Return the most memory a process has used since reset_peak(), in bytes (Linux)."""
    with open("/proc/%d/status" % pid, encoding="utf-8", errors="replace") as stream:
        (line,) = [line for line in stream if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def needs_proc() -> None:
    """Skip where memory and processor time of another process cannot be read."""
    if not os.path.exists("/proc/self/clear_refs"):
        raise support.not_here("there is no /proc")


# ======================================================================================================================
# Lines in
# ======================================================================================================================


class RefusedLinesTest(WireCase):
    def test_each_faulty_line_gets_one_error_and_nothing_runs(self):
        client = self.open_session()
        for line, code, request_id in REFUSED:
            with self.subTest(line=line[:80], length=len(line)):
                client.send_raw(line + b"\n")
                message = client.expect_next().message
                number = client.send_request("ping")
                self.assertEqual(number, client.expect_next().message.get("id"), "more than one answer")

                self.assertEqual(code, message["error"]["code"])
                self.assertEqual(request_id is NO_ID, "id" not in message)
                if request_id is not NO_ID:
                    self.assertEqual(support.id_key(request_id), support.id_key(message["id"]))
        client.call("mark")

        self.assertEqual(1, self.marks(), "only the last, proper call may run the tool")
        self.assert_up(client)

    def test_a_request_without_a_method_is_refused(self):
        client = self.open_session()
        client.send_raw(b'{"jsonrpc":"2.0","id":26}\n')
        response = client.response(26)
        client.close(check=False)  # the checker takes such a line for an answer of the client

        self.assertEqual(-32600, response["error"]["code"])

    def test_lines_that_ask_nothing_get_no_answer(self):  # PA-08
        client = self.open_session()
        for line in SILENT:
            with self.subTest(line=line):
                client.send_raw(line + b"\n")
                number = client.send_request("ping")

                self.assertEqual(number, client.expect_next().message.get("id"))
        client.call("mark")

        self.assertEqual(1, self.marks())
        self.assert_up(client)

    def test_the_same_lines_are_refused_before_a_session(self):
        client = self.new_client(self.project)
        rows = [row for row in REFUSED if row[2] is NO_ID]
        for line, _, _ in rows:
            client.send_raw(line + b"\n")
        client.fence()
        errors = [message["error"]["code"] for message in client.messages if "error" in message]

        self.assertEqual([code for _, code, _ in rows], errors)

    def test_an_overlong_token_is_refused_and_a_usual_one_is_not(self):  # PA-22
        client = self.open_session()
        refused = client.error("tools/call", {"name": "mark", "_meta": {"progressToken": "t" * 1_000_000}})
        for token in (0, "", "t", -5):
            client.call("mark", token=token)

        self.assertEqual(-32602, refused["code"])
        self.assertLess(len(refused["message"]), 256)
        self.assertEqual(4, self.marks())

    def test_a_token_in_use_serves_no_second_call(self):  # PA-22
        self.project.tool("steps", r"""for n in 1 2 3; do printf 'progress\t%s\t3\t\0' $n >&"$MCP_CHANNEL_FD"; done""")
        client = self.open_session()
        meta = b'"name":"steps","_meta":{"progressToken":"same"}'
        client.send_raw(CALL % (801, meta) + b"\n" + CALL % (802, meta) + b"\n")  # one write: both are in flight
        self.assertIn("result", client.response(801))
        self.assertIn("result", client.response(802))
        self.assertEqual([1, 2, 3], [each["params"]["progress"] for each in client.notifications()])
        client.call("steps", token="same")

        self.assertEqual([1, 2, 3] * 2, [each["params"]["progress"] for each in client.notifications()])

    def test_an_unknown_method_is_not_echoed_at_length(self):  # PA-20
        client = self.open_session()
        for name in ("m" * MIB, "\x1b[2J" * 1000, "\u202e" * 1000):
            error = client.error(name)

            self.assertEqual(-32601, error["code"])
            self.assertLessEqual(len(error["message"]), 256 * (6 if "\u202e" in name else 1))
            self.assertTrue(error["message"].isprintable())
        self.assert_up(client)

    def test_cursors_that_nobody_made_are_refused(self):  # PR-14
        client = self.open_session()
        for cursor in CURSORS:
            with self.subTest(cursor=ascii(cursor)[:40]):
                number = client.new_id()
                request = {"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": {"cursor": cursor}}
                client.send_raw(json.dumps(request).encode() + b"\n")
                error = client.response(number).get("error", {})

                self.assertEqual(-32602, error.get("code"))
                self.assertLess(len(error["message"]), 256)
        self.assertEqual(2, len(client.result("tools/list")["tools"]))

    def test_the_client_can_only_shorten_the_time_a_tool_gets(self):  # PA-21
        self.project.tool("hang", "exec sleep 600", {"timeoutSecs": 1.5})
        client = self.open_session()
        table = ((999999999, 1.5), (-1, 1.5), (0, 1.5), ("1e9", 1.5), (True, 1.5), (None, 1.5), ([], 1.5), (0.25, 0.25))
        numbers = [client.send_call("hang", params={"timeoutSecs": asked}) for asked, _ in table]
        for number, (asked, seconds) in zip(numbers, table):
            with self.subTest(asked=asked):
                result = client.response(number)["result"]

                self.assertTrue(result["isError"])
                self.assertEqual(seconds, result["structuredContent"]["error"]["timeoutSecs"])


class IdTest(WireCase):
    def test_an_id_comes_back_as_it_was(self):  # R-005, PA-05
        client = self.open_session()
        for request_id in IDS:
            for method, params in (("ping", None), ("tools/call", {"name": "echo"}), ("no/such", None)):
                with self.subTest(id=request_id, method=method):
                    client.request(method, params, id=request_id)

    def test_large_numbers_come_back_digit_for_digit(self):  # PA-05
        client = self.open_session()
        for digits in (b"9007199254740993", b"1180591620717411303424", b"-0", b"-9223372036854775809"):
            client.send_raw(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}\n' % digits)
            raw = client.expect_next().raw

            self.assertIn(b'"id":%b,' % (digits if digits != b"-0" else b"0"), raw)

    def test_numbers_and_texts_are_different_ids(self):
        ready = self.project.fifo("ready")
        self.project.tool("hold", "echo >%s; exec sleep 600" % ready)
        client = self.open_session()
        client.send_call("hold", id=5)
        read_fifo(ready)
        client.cancel("5")
        self.assertEqual({}, client.result("ping", id="5"))
        self.assertEqual([], client.responses_to(5))
        client.cancel(5)
        client.fence()

        self.assertEqual({}, client.result("ping", id=5))

    def test_a_megabyte_of_id_is_echoed_or_refused(self):  # PA-07
        client = self.open_session()
        long_id = "\u00e9/../" * (MIB // 6)
        client.send({"jsonrpc": "2.0", "id": long_id, "method": "tools/call", "params": {"name": "echo"}})
        message = client.expect(lambda each: each.get("id") == long_id or "error" in each)

        self.assertTrue(message.get("id") == long_id or (message["error"]["code"] == -32600 and "id" not in message))
        self.assertEqual([], [name for name in support.listing(self.project.base) if "\u00e9" in name])
        self.assert_up(client)
        client.close(check=False)  # the checker misses the answer to this id

    def test_the_same_id_again_does_not_disturb_the_first(self):  # PA-03
        ready, go = self.project.fifo("ready"), self.project.fifo("go")
        self.project.tool("hold", "echo run >>marks; echo >%s; read line <%s; echo first" % (ready, go))
        client = self.open_session()
        client.send_call("hold", id=7)
        read_fifo(ready)
        client.send_call("hold", id=7)
        refusal = client.expect({"error": {"code": -32600}})
        client.send_request("ping", id=7)
        second = client.expect({"error": {"code": -32600}})
        with open(go, "w", encoding="ascii") as stream:
            stream.write("go\n")
        self.assertEqual("first\n", support.text_of(client.response(7)["result"]))

        self.assertEqual((False, False), ("id" in refusal, "id" in second))
        self.assertEqual(1, self.marks())
        self.assertEqual(1, len(client.responses_to(7)))
        self.assertEqual({}, client.result("ping", id=7), "the id is free again")
        client.close(check=False)  # the checker expects the refusal of a second request to name it


class TextTest(WireCase):
    def test_half_a_surrogate_pair_hurts_nobody(self):  # PR-07, R-004
        client = self.open_session()
        half = b'"\\ud800"'
        rows = (
            b'{"jsonrpc":"2.0","id":1%b,"method":"tools/call","params":{"name":"echo","arguments":{"a":%b}}}',
            b'{"jsonrpc":"2.0","id":2%b,"method":"tools/call","params":{"name":"echo","arguments":{%b:1}}}',
            b'{"jsonrpc":"2.0","id":3%b,"method":"tools/call","params":{"name":%b}}',
            b'{"jsonrpc":"2.0","id":4%b,"method":"tools/list","params":{"cursor":%b}}',
            b'{"jsonrpc":"2.0","id":5%b,"method":%b}',
            b'{"jsonrpc":"2.0","id":6%b,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":%b}}}',
            b'{"jsonrpc":"2.0","id":7%b,"method":"tools/call","params":{"name":"echo","_meta":{"traceparent":%b}}}',
        )
        for number, row in enumerate(rows, 1):
            with self.subTest(row=row):
                client.send_raw(row % (b"0", half) + b"\n")

                self.assertIn(client.response(number * 10).get("error", {"code": 0})["code"], (0, -32602, -32601))
        client.send_raw(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}\n' % half)
        client.expect(lambda each: each.get("id") == "\ud800")
        self.assertIn(b'"id":"\\ud800"', client.records[-1].raw)
        cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b,"reason":%b}}\n'
        client.send_raw(cancel % (half, half))
        self.assert_up(client)

    def test_a_nul_in_an_argument_reaches_the_tool(self):  # PR-06
        client = self.open_session()
        arguments = {"a": "x\0y", "k\0": 1}

        self.assertEqual(arguments, client.call("echo", arguments)["structuredContent"])

    def test_a_number_out_of_range_is_refused_or_left_alone_and_never_becomes_infinity(self):  # PR-09, R-015
        client = self.open_session()
        client.send_raw(CALL % (81, b'"name":"mark","arguments":{"a":1e999}') + b"\n")
        client.send_raw(b'{"jsonrpc":"2.0","id":82,"method":"ping","params":{"_meta":{"x":-1e999}}}\n')
        client.fence()
        client.call("mark")

        self.assertEqual(1, self.marks())
        self.assertEqual([], [line.raw for line in client.records if not line.sent and b"Infinity" in line.raw])
        self.assert_up(client)

    def test_a_tool_that_prints_a_number_out_of_range_does_not_take_the_server_down(self):  # PR-09
        self.project.tool("huge", """echo '{"a":1e999}'""")
        with self.project.client() as client:
            client.initialize()
            for _ in range(5):
                client.request("tools/call", {"name": "huge"})
            self.assert_up(client)

    def test_output_of_every_kind_stays_on_its_line(self):  # LG-04
        self.project.tool("raw", 'cat "$(dirname "$MCP_TOOL_PATH")/../../said"')
        client = self.open_session()
        table = (
            (b"one\ntwo\r\nthree\n", "one\ntwo\r\nthree\n"),
            ("\u2028\u2029\x85 \U0001f600".encode(), "\u2028\u2029\x85 \U0001f600"),
            (b"\x1b[31m\x00\x07\x7f", "\x1b[31m\0\x07\x7f"),
            (b"caf\xe9 \xff\xfe", "caf\ufffd \ufffd\ufffd"),
            (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
            (b'{"jsonrpc":"2.0","id":1,"result":{}}\n', '{"jsonrpc":"2.0","id":1,"result":{}}\n'),
            (b"", ""),
        )
        for said, text in table:
            with self.subTest(said=said):
                self.project.file("said", said)

                self.assertEqual(text, client.text("raw"))
        raw = b"".join(line.raw for line in client.records if not line.sent)
        self.assertEqual([], sorted({byte for byte in raw if byte < 32 or byte > 126}))

    def test_bad_metadata_takes_one_tool_away_and_says_why(self):  # PR-15
        table = {
            "large": b'{"description": "' + b"x" * (50 * MIB) + b'"}',
            "latin": b'{"description": "caf\xe9"}',
            "deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
            "array": b'[{"name": "array"}]',
        }
        for name, data in table.items():
            self.project.tool(name, "echo hi")
            self.project.file("tools/%s/tool.meta.json" % name, data)
        client = self.open_session()

        self.assertEqual(["echo", "mark"], [tool["name"] for tool in client.result("tools/list")["tools"]])
        for name in table:
            with self.subTest(name=name):
                self.assertEqual(1, client.stderr.count("%s/tool.meta.json" % name), client.stderr)


class FramingTest(WireCase):
    def test_a_request_in_two_parts_is_one_request(self):  # PA-10
        client = self.open_session()
        line = PING % 500 + b"\n"
        client.send_raw(line[:20])
        time.sleep(5 if support.SOAK else 2.5)  # the pause is the case: longer than everything that happens by itself
        client.send_raw(line[20:])

        self.assertEqual({}, client.response(500)["result"])
        self.assertEqual([], [message for message in client.messages if "error" in message])

    def test_a_request_byte_by_byte_is_one_request(self):
        client = self.open_session()
        line = '{"jsonrpc":"2.0","id":"\u00e9\u2028\U0001f600","method":"ping"}\n'.encode()
        for byte in line:
            client.send_raw(bytes([byte]))

        self.assertEqual({}, client.response("\u00e9\u2028\U0001f600")["result"])

    def test_many_requests_in_one_write_are_many_requests(self):  # CR-06, R-055
        client = self.new_client(self.project)
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        messages = [
            {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": info},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
        ]
        calls = {"name": "echo", "arguments": {}}
        for number in range(1, 101):
            method, params = (("ping", {}), ("tools/list", {}), ("tools/call", calls))[number % 3]
            messages.append({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        client.send_raw(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        for number in range(101):
            self.assertIn("result", client.response(number))

    def test_only_a_line_feed_ends_a_line(self):
        client = self.open_session()
        for separator in ("\u2028", "\u2029", "\x85", "\u000b"):
            with self.subTest(separator=separator):
                text = "a%sb" % separator if separator != "\u000b" else "a b"
                self.assertEqual(text, client.call("echo", {"t": text})["structuredContent"]["t"])
        client.send_raw(PING % 601 + b"\x0b" + PING % 602 + b"\n")

        self.assertEqual(-32700, client.expect({"error": {}})["error"]["code"])

    def test_carriage_returns_blank_lines_and_a_mark_at_the_start_are_tolerated(self):  # R-026, PA-12
        client = self.new_client(self.project)
        blank = b"\n" * 5_000 + b" \t\r\n" * 5_000
        client.send_raw(b"\xef\xbb\xbf" + PING % 1 + b"\r\n" + blank + b"  " + PING % 2 + b" \r\n")
        answers = [client.response(1), client.response(2)]
        client.close(check=False)  # the checker takes the mark for the beginning of a faulty line

        self.assertEqual(answers, client.messages)

    def test_the_last_line_needs_no_line_end(self):  # PA-11
        for line, expected in ((PING % 1, {"id": 1}), (b"junk", {"error": {"code": -32700}}), (b"   ", None)):
            with self.subTest(line=line):
                client = self.new_client(self.project)
                client.send_raw(line)
                with client._changed:  # the harness records lines with an end only
                    client.records.append(support.record(True, line))
                client.end_input()
                message = client.expect_next()
                if expected is None:
                    self.assertIsNone(message)
                else:
                    self.assertTrue(support.matches(expected, message.message))
                client.close(exit_code=0)

    def test_a_call_on_the_last_line_is_run_to_its_end(self):  # PA-11
        call = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": support.stateless({"name": "mark"})}
        done = self.project.cli("--project-root", self.project.root, input=json.dumps(call))

        self.assertEqual(0, done.returncode)
        self.assertEqual([9], [json.loads(line)["id"] for line in done.stdout.splitlines()])
        self.assertEqual(1, self.marks())


class LimitTest(WireCase):
    def test_a_line_may_be_as_long_as_the_limit_and_no_longer(self):  # PR-02, PR-03
        client = self.open_session(env={"MCPBASH_MAX_REQUEST_BYTES": "100000"})
        head, tail = b'{"jsonrpc":"2.0","id":700,"method":"ping","params":{"x":"', b'"}}'
        fill = 100_000 - len(head) - len(tail)
        client.send_raw(head + b"y" * fill + tail + b"\n")
        self.assertEqual({}, client.response(700)["result"])
        for extra in (1, 2, 100_000):
            client.send_raw(b"y" * (100_000 + extra) + b"\n" + PING % (700 + extra) + b"\n")
            error = client.expect({"error": {"code": -32600}})

            self.assertNotIn("id", error)
            self.assertIn("100000", error["error"]["message"])
            self.assertEqual({}, client.response(700 + extra)["result"])

    def test_ten_mebibytes_are_read_and_one_byte_more_is_not(self):  # PR-02, PR-03
        needs_proc()
        client = self.open_session()
        server = server_pid(client)
        spent, limit = support.cpu_seconds(server), 10 * MIB
        head, tail = b'{"jsonrpc":"2.0","id":700,"method":"ping","params":{"x":"', b'"}}'
        client.send_raw(head + b"y" * (limit - len(head) - len(tail)) + tail + b"\n")
        self.assertEqual({}, client.response(700)["result"])
        self.assertLess(support.cpu_seconds(server) - spent, support.patient(10))
        base = reset_peak(server)
        client.send_raw(b"x" * (limit + 1) + b"\n")
        self.assertEqual(-32600, client.expect({"error": {}})["error"]["code"])

        self.assertLess(peak_memory(server) - base, limit + 6 * MIB)
        self.assert_up(client)

    def test_an_endless_line_costs_no_memory(self):  # PR-03: a gigabyte without a line end, then a ping
        needs_proc()
        client = self.open_session()
        server = server_pid(client)
        base = reset_peak(server)
        self.flood(client, 1024 * MIB if support.SOAK else 192 * MIB)
        client.send_request("ping", id=800)
        self.assertEqual(-32600, client.expect({"error": {}})["error"]["code"])
        self.assertEqual({}, client.response(800)["result"])

        self.assertLess(peak_memory(server) - base, 16 * MIB)
        self.assert_up(client)

    def flood(self, client: support.Client, size: int) -> None:
        """Send a line of `size` bytes without keeping it."""
        descriptor, chunk = client.process.stdin.fileno(), memoryview(b"x" * MIB)
        with client._changed:
            client.records.append(support.record(True, b"(a very long line)"))
        os.set_blocking(descriptor, True)
        for _ in range(size // MIB):
            rest = chunk
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.write(descriptor, b"\n")
        os.set_blocking(descriptor, False)

    def test_hostile_documents_cost_little_time_and_memory(self):  # PR-01, PR-08, PR-11
        needs_proc()
        client = self.open_session()
        server = server_pid(client)
        wrapped = b'{"jsonrpc":"2.0","id":%d,"method":"ping","params":{"x":%b}}'
        rows = (
            # line, mebibytes of memory at most, whether it is answered with a result
            (b"[" * 100_000, 8, False),
            (b'{"a":' * 100_000, 8, False),
            (wrapped % (1, b"9" * 1_000_000), 16, False),
            (b"[" + b"[]," * 3_400_000 + b"[]]", 64, False),
            (wrapped % (901, b"[" + b"[]," * (mcp_bash.MAX_BRACKETS - 10) + b"[]]"), 128, True),
        )
        for line, memory, accepted in rows:
            with self.subTest(line=line[:30]):
                base, spent = reset_peak(server), support.cpu_seconds(server)
                client.send_raw(line + b"\n")
                message = client.expect(lambda each: "error" in each or each.get("id") == 901)

                self.assertEqual(accepted, "result" in message)
                self.assertLess(support.cpu_seconds(server) - spent, support.patient(2))
                self.assertLess(peak_memory(server) - base, memory * MIB)
        self.assert_up(client)


# ======================================================================================================================
# Lines out
# ======================================================================================================================


class NoiseTest(WireCase):
    """Nothing but the server's own messages reaches the client: R-003, R-030, W1, W2."""

    def test_a_tool_cannot_read_the_protocol(self):
        ready = self.project.fifo("ready")
        self.project.tool("reader", 'echo >%s; cat; echo end' % ready)
        client = self.open_session()
        number = client.send_call("reader")
        read_fifo(ready)
        for _ in range(25):
            self.assertEqual({}, client.result("ping"))

        self.assertEqual("end\n", support.text_of(client.response(number)["result"]))

    def test_a_tool_cannot_write_the_protocol(self):
        forged = '{"jsonrpc":"2.0","id":"victim","result":{}}'
        script = "for fd in 3 4 5 6 7 8 9 {10..60}; do { echo '%s' >&$fd; } 2>/dev/null; done; echo '%s'; echo '%s' >&2"
        self.project.tool("forger", script % (forged, forged, forged))
        client = self.open_session()
        result = client.call("forger")

        self.assertIn("victim", support.text_of(result), "the tool did run")
        self.assertIn("victim", result["_meta"]["stderr"])
        self.assertEqual([], client.responses_to("victim"))

    def test_a_tool_has_no_stdin_and_a_session_of_its_own(self):
        needs_proc()
        script = 'readlink /proc/$$/fd/0; set -- $(cat /proc/$$/stat); echo "$1 $6 $5"; ls /proc/$$/fd'
        self.project.tool("look", script)
        client = self.open_session()
        stdin, numbers, *descriptors = client.text("look").splitlines()
        pid, session, group = numbers.split()

        self.assertEqual("/dev/null", stdin)
        self.assertEqual((pid, pid), (session, group))
        self.assertEqual({"0", "1", "2", "7"}, set(descriptors) - {"3", "255"}, "3 is ls, 255 is bash")

    def test_print_and_stdin_of_the_server_itself_lead_nowhere(self):
        code = (
            "import os, sys; sys.path.insert(0, %r); import mcp_bash; wire = mcp_bash.Wire.claim(1000)\n"
            "print('noise', flush=True); os.system('echo more noise'); assert os.read(0, 10) == b''\n"
            "os.system('cat'); wire.offer(b'message\\n'); wire.flush(); print(wire.read())"
        )
        command = [support.PYTHON, "-c", code % support.ROOT]
        done = subprocess.run(command, input=b"line\n", capture_output=True, timeout=60)

        self.assertEqual(b"message\n", done.stdout)
        self.assertEqual(b"noise\nmore noise\n[b'line']\n", done.stderr)


class LongAnswerTest(WireCase):
    LIMIT = 100_000

    def setUp(self):
        super().setUp()
        self.project.tool("say", 'n=${MCP_TOOL_ARGS_JSON//[!0-9]/}; head -c "$n" /dev/zero | tr "\\0" x')

    def open_limited(self, version: str = support.HANDSHAKE_VERSIONS[-1]) -> support.Client:
        """Return a session whose lines may have LIMIT bytes."""
        return self.open_session(version, env={"MCPBASH_MAX_RESPONSE_BYTES": str(self.LIMIT)})

    def assert_no_long_line(self, client: support.Client, limit: int = LIMIT) -> None:
        """See that no line out was longer than allowed, its end included."""
        self.assertEqual([], [len(line.raw) + 1 for line in client.records if not line.sent and len(line.raw) >= limit])

    def test_a_result_over_the_limit_becomes_an_error_result(self):
        client = self.open_limited()
        self.assertEqual("x" * 90_000, client.text("say", {"n": 90_000}))
        result = client.call("say", {"n": 150_000})

        self.assertTrue(result["isError"])
        self.assertEqual("output_too_large", result["structuredContent"]["error"]["type"])
        self.assert_no_long_line(client)

    def test_eight_mebibytes_is_the_limit_by_default(self):
        client = self.open_session()
        fits = client.call("say", {"n": 8 * MIB - 1000})
        result = client.call("say", {"n": 8 * MIB + 1})

        self.assertEqual((False, True), (fits["isError"], result["isError"]))
        self.assert_no_long_line(client, 8 * MIB)

    def test_a_list_over_the_limit_becomes_an_error(self):
        for number in range(4):
            self.project.tool("t%d" % number, "echo", {"description": "d" * 40_000})
        client = self.open_limited()
        error = client.error("tools/list")

        self.assertEqual(-32603, error["code"])
        self.assertEqual(1, len(client.result("tools/list", {"limit": 1})["tools"]))
        self.assert_no_long_line(client)

    def test_an_id_that_would_make_the_answer_too_long_is_refused_without_it(self):  # R-025, PA-07
        for method, params in (("ping", {}), ("tools/call", {"name": "echo"}), ("no/such", {}), ("tools/list", {})):
            env = {"MCPBASH_MAX_RESPONSE_BYTES": str(self.LIMIT)}
            with self.subTest(method=method), self.project.client(env=env) as client:
                client.initialize()
                client.send({"jsonrpc": "2.0", "id": "i" * self.LIMIT, "method": method, "params": params})
                message = client.expect({"error": {}}, timeout=5)

                self.assert_no_long_line(client)
                self.assertEqual(-32600, message["error"]["code"])
                self.assertNotIn("id", message)
                self.assert_up(client)
                client.close(check=False)  # the checker misses the answer to this id

    def test_an_id_of_many_bytes_costs_no_slot(self):  # the same with the default limits: id and answer pass 8 MiB
        with self.project.client(env={"MCPBASH_MAX_CONCURRENT_REQUESTS": "1"}) as client:
            client.initialize()
            client.send({"jsonrpc": "2.0", "id": "i" * (9 * MIB), "method": "tools/call", "params": {"name": "echo"}})

            self.assertEqual("{}", client.text("echo", timeout=5))
            client.close(check=False)  # the checker misses the answer to this id

    def test_a_batch_is_answered_within_the_limit(self):
        client = self.open_limited("2025-03-26")
        numbers = [client.new_id() for _ in range(3)]
        calls = [{"name": "say", "arguments": {"n": 50_000}}] * 3
        client.send([{"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": c} for n, c in zip(numbers, calls)])
        for number in numbers:
            client.response(number)
        client.close(check=False)  # the checker wants one array; more than one, or errors, are as good

        self.assert_no_long_line(client)
        self.assertEqual([1, 1, 1], [sum(each.get("id") == n for each in self.flat(client)) for n in numbers])

    def flat(self, client: support.Client) -> list[dict]:
        """Return every message received, the members of arrays one by one."""
        return [each for message in client.messages for each in (message if isinstance(message, list) else [message])]

    def test_an_error_of_a_tool_over_the_limit_is_cut(self):
        long = "$(head -c 150000 /dev/zero | tr '\\0' d)"
        script = """printf '{"code": -32050, "message": "short", "data": "%%s"}' "%s"; exit 1""" % long
        self.project.tool("fail", script)
        client = self.open_limited()
        error = client.error("tools/call", {"name": "fail"})

        self.assertEqual((-32050, "short"), (error["code"], error["message"]))
        self.assert_no_long_line(client)


class Bare:
    """A server whose stdout belongs to the test: nobody reads it unless the test does."""

    def __init__(self, project: support.Project, stdout: int, env: dict[str, str] | None = None) -> None:
        command = support.server_command() + ["--project-root", project.root]
        pipe = subprocess.PIPE
        self.process = support.spawn(
            command, stdin=pipe, stdout=stdout, stderr=subprocess.DEVNULL, env=project.environment(env)
        )
        self.pid = self.process.pid
        self.project = project

    def send(self, method: str, params: dict | None = None, id: Any = None) -> None:
        """Send one message."""
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if id is not None:
            message["id"] = id
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Send bytes."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.process.stdin.fileno(), view) :]

    def handshake(self) -> None:
        """Open a session; its answer is the first line out."""
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        self.send("initialize", info, id=0)
        self.send("notifications/initialized")

    def wait(self, timeout: float = support.EXIT_DEADLINE) -> int:
        """Wait for the exit; return its status."""
        return self.process.wait(support.patient(timeout))

    def close(self) -> None:
        """End it, whatever it is doing."""
        self.process.stdin.close()
        tree = support.descendants(self.pid)
        support.end_group(self.process)
        support.end_processes(tree)
        support.known.discard(self.pid)
        support.end_processes(support.wait_for_no_orphans())


class Lines:
    """Reads lines from a descriptor and forgets them again, so that hundreds of megabytes can pass."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, b""

    def next(self, timeout: float = support.DEADLINE, chunk: int = 1 << 20) -> Any:
        """Return the next message; fail when it does not come in time."""
        parts = [self._rest]
        end = time.monotonic() + support.patient(timeout)
        while b"\n" not in parts[-1]:
            if not select.select([self._descriptor], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError("no line within %g s" % support.patient(timeout))
            data = os.read(self._descriptor, chunk)
            if not data:
                raise AssertionError("the server's output ended")
            parts.append(data)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return support.strict_json(line)


class StalledReaderTest(WireCase):
    """A client that does not read: R-024, RX-04, RX-05, RX-09."""

    def start(self, stdout: int, **options: Any) -> Bare:
        """Start a server that writes to `stdout`; the test's copy of it is closed."""
        server = Bare(self.project, stdout, **options)
        self.addCleanup(server.close)
        os.close(stdout)
        return server

    def pipe(self) -> tuple[int, int]:
        """Return a pipe whose reading end is closed after the test."""
        read, write = os.pipe()
        self.addCleanup(lambda: self.close_quietly(read))
        return read, write

    def close_quietly(self, descriptor: int) -> None:
        """Close a descriptor that the test may have closed before."""
        try:
            os.close(descriptor)
        except OSError:
            pass  # closed by the test, that was its case

    def test_a_client_that_stops_reading_loses_nothing_and_can_still_cancel(self):  # RX-04, R-024
        needs_proc()
        count, size = 200, 1_000_000
        script = 'echo run >>marks; printf %%s "${MCP_TOOL_ARGS_JSON//[!0-9]/}"; head -c %d /dev/zero | tr "\\0" x'
        self.project.tool("big", script % size)
        self.project.tool("hold", "echo $$ >held; exec sleep 600", {"timeoutSecs": 600})
        read, write = self.pipe()
        bare = self.start(write)
        bare.handshake()
        lines = Lines(read)
        lines.next()
        bare.send("tools/call", {"name": "hold"}, id="hold")
        held = int(support.wait_for_file(self.project.path("held")))
        server = server_pid(bare)
        base = support.private_memory(server)

        for number in range(count):
            bare.send("tools/call", {"name": "big", "arguments": {"n": number}}, id=number)
        started = self.settled_marks()
        if support.SOAK:
            time.sleep(30)  # the whole case; it changes nothing
        self.assertLess(started, count, "nothing held the calls back")
        self.assertLess(support.private_memory(server) - base, 96 * MIB)
        bare.send("notifications/cancelled", {"requestId": "hold"})
        bare.send("notifications/cancelled", {"requestId": count - 1})
        support.wait_until(lambda: is_gone(held), what="the end of the cancelled tool")
        bare.send("ping", id="ping")

        got: dict[Any, bool] = {}
        while len(got) < count:
            message = lines.next()
            self.assertNotIn(message["id"], got)
            text = support.text_of(message["result"])
            got[message["id"]] = message["id"] == "ping" or text == str(message["id"]) + "x" * size
        self.assertEqual({"ping", *range(count - 1)}, set(got))
        self.assertEqual([], [number for number, intact in got.items() if not intact])
        bare.process.stdin.close()
        self.assertEqual(0, bare.wait())

    def settled_marks(self) -> int:
        """Return how many calls were started when for a second no further one was."""
        seen, since = self.marks(), time.monotonic()

        def settled() -> bool:
            nonlocal seen, since
            if self.marks() != seen:
                seen, since = self.marks(), time.monotonic()
            return time.monotonic() - since > 1.0 and seen > 0

        support.wait_until(settled, 60)
        return seen

    def test_a_client_that_asks_and_never_listens_is_no_longer_read(self):  # back-pressure in the other direction
        needs_proc()
        self.project.file("server.d/server.instructions.md", "i" * 1_000_000)  # the size of an answer to discover
        read, write = self.pipe()
        bare = self.start(write)
        bare.send("ping", id="first")
        lines = Lines(read)
        lines.next()
        server = server_pid(bare)
        base = support.private_memory(server)
        sent, rest = self.ask_until_ignored(bare.process.stdin.fileno(), 400)
        self.assertLess(sent, 400, "the server made 400 answers of a megabyte although none was read")
        self.assertGreater(sent * 1_000_000, HIGH_WATER)
        self.assertLess(support.private_memory(server) - base, 2 * HIGH_WATER + 32 * MIB)

        for number in range(sent - 1):
            message = lines.next()
            self.assertEqual((number, 1_000_000), (message["id"], len(message["result"]["instructions"])))
        bare.write(rest)
        self.assertEqual(sent - 1, lines.next()["id"])
        bare.send("ping", id="last")
        self.assertEqual("last", lines.next()["id"])

    def ask_until_ignored(self, descriptor: int, most: int) -> tuple[int, bytes]:
        """Send requests until two seconds pass without one being read; return their number and the unsent rest."""
        os.set_blocking(descriptor, False)
        rest, sent = b"", 0
        while sent < most and select.select([], [descriptor], [], 2.0)[1]:
            if not rest:  # the padding fills the pipe, so that few requests wait in it
                params = {**support.stateless(), "padding": "p" * 65_536}
                request = {"jsonrpc": "2.0", "id": sent, "method": "server/discover", "params": params}
                rest, sent = json.dumps(request).encode() + b"\n", sent + 1
            rest = rest[os.write(descriptor, rest) :]
        os.set_blocking(descriptor, True)
        return sent, rest

    def test_a_stdout_that_somebody_made_non_blocking_gets_every_byte(self):  # RX-05
        self.project.tool("big", 'printf start; head -c 3000000 /dev/zero | tr "\\0" x; printf end')
        read, write = self.pipe()
        os.set_blocking(write, False)
        bare = self.start(write)
        bare.handshake()
        lines = Lines(read)
        lines.next()
        for number in range(2):
            bare.send("tools/call", {"name": "big"}, id=number)
        for _ in range(2):
            message = lines.next(chunk=8192)  # a slow reader: the pipe is full all the time
            self.assertEqual("start" + "x" * 3_000_000 + "end", support.text_of(message["result"]))

    def test_a_full_device_ends_the_server_with_an_error(self):  # RX-09
        if not os.path.exists("/dev/full"):
            raise support.not_here("there is no /dev/full")
        for what in ("answer", "tool"):
            with self.subTest(what=what):
                self.project.tool("hold", "echo $$ >held.%s; exec sleep 600" % what)
                bare = self.start(os.open("/dev/full", os.O_WRONLY))
                if what == "tool":
                    bare.send("tools/call", support.stateless({"name": "hold"}), id=1)
                    held = int(support.wait_for_file(self.project.path("held.tool")))
                bare.send("ping", id=2)

                self.assertNotIn(bare.wait(5), (0, None), "an answer was lost, that is not a success")
                if what == "tool":
                    support.wait_until(lambda held=held: is_gone(held), 2, "the end of the tool")
                self.assertEqual([], support.listing(self.project.tmp))

    def test_a_client_that_closes_stdout_ends_the_server(self):  # EPIPE, without and with something to lose
        for what in ("idle", "tool"):
            with self.subTest(what=what):
                self.project.tool("hold", "echo $$ >held.%s; exec sleep 600" % what)
                read, write = self.pipe()
                bare = self.start(write)
                bare.handshake()
                Lines(read).next()
                if what == "tool":
                    bare.send("tools/call", {"name": "hold"}, id=1)
                    held = int(support.wait_for_file(self.project.path("held.tool")))
                os.close(read)

                self.assertIn(bare.wait(10), (0, 3))
                if what == "tool":
                    support.wait_until(lambda held=held: is_gone(held), 2, "the end of the tool")
                self.assertEqual([], support.listing(self.project.tmp))


class SlowToolsTest(WireCase):
    def test_tools_that_take_their_time_delay_nothing_else(self):
        self.project.tool("hold", "echo $$ >held.$$; exec sleep 600")
        client = self.open_session()
        numbers = [client.send_call("hold") for _ in range(8)]
        support.wait_until(lambda: len(glob.glob(self.project.path("held.*"))) == 8, 30, "eight tools")
        self.assertEqual({}, client.result("ping"))
        self.assertIn("tools", client.result("tools/list"))
        self.assertIn("supportedVersions", client.result("server/discover", modern=True))
        self.assertEqual("{}", client.text("echo"))
        self.assertEqual([], [number for number in numbers if client.responses_to(number)], "a call has ended")
        for number in numbers:
            client.cancel(number)
        client.fence()

    def test_an_idle_server_ends_with_its_input(self):
        client = self.open_session()
        client.end_input()

        self.assertEqual(0, client.wait(1.5 * 4))

    def test_a_signal_ends_the_server_and_its_tools(self):
        for number, expected in ((signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
            with self.subTest(signal=number):
                ready = self.project.fifo("ready%d" % number)
                self.project.tool("hold%d" % number, "echo $$ >%s; exec sleep 600" % ready)
                client = self.open_session()
                client.send_call("hold%d" % number)
                tool = int(read_fifo(ready))
                client.kill(number)
                code = client.wait(5)
                support.wait_until(lambda tool=tool: is_gone(tool), 2, "the end of the tool")
                client.close(exit_code=expected)

                self.assertEqual(expected, code)


class DeafTest(WireCase):
    """Nothing a tool does to the files of its call stops the server from listening."""

    SABOTAGE = {
        "the directory is gone": 'rm -rf "$(dirname "$MCP_CANCEL_FILE")"',
        "the file is a pipe": 'mkfifo "$MCP_CANCEL_FILE"',
        "the file is a directory": 'mkdir "$MCP_CANCEL_FILE"',
        "the file is a dangling link": 'ln -s /no/such/place "$MCP_CANCEL_FILE"',
        "nothing": "true",
    }

    def test_a_cancellation_that_cannot_be_noted_is_still_a_cancellation(self):
        for what, script in self.SABOTAGE.items():
            ready = self.project.fifo("ready " + what)
            self.project.tool("sabotage", "%s; echo $$ >'%s'; exec sleep 600" % (script, ready))
            with self.subTest(what=what), self.project.client() as client:
                client.initialize()
                number = client.send_call("sabotage")
                tool = int(read_fifo(ready))
                client.cancel(number)

                self.assertEqual({}, client.result("ping", timeout=5))
                support.wait_until(lambda tool=tool: is_gone(tool), 10, "the end of the tool")
                self.assert_up(client)

    def test_files_planted_for_later_calls_do_not_hold_the_server(self):
        suffixes = "mcp_tool_args_file mcp_args_flat_file mcp_tool_meta_file mcp_meta_flat_file cancel"
        script = 'cd "${MCP_CANCEL_FILE%%/*}"; for n in 1 2 3; do for s in %s; do mkfifo $n.$s; done; done; echo done'
        self.project.tool("plant", script % suffixes)
        with self.project.client() as client:
            client.initialize()
            self.assertEqual("done\n", client.text("plant"))
            number = client.send_call("echo", {"x": "y" * 200_000})

            self.assertEqual({}, client.result("ping", timeout=5))
            self.assertTrue(client.response(number, timeout=5))

    def test_stray_responses_are_mentioned_once_a_second_at_most(self):  # PA-09
        client = self.open_session(env={"MCPBASH_LOG_LEVEL": "debug"})
        begun = time.monotonic()
        client.send_raw(b'{"jsonrpc":"2.0","id":99,"result":{}}\n' * 1000)
        client.fence()
        seconds = time.monotonic() - begun
        mentioned = client.stderr.count("nobody asked for")

        self.assertTrue(1 <= mentioned <= seconds + 1, "%d times in %.1f s" % (mentioned, seconds))
        self.assert_up(client)


# ======================================================================================================================
# Pieces
# ======================================================================================================================


class WireUnitTest(unittest.TestCase):
    """The class Wire on pipes of the test."""

    def new_wire(self, limit: int = 100) -> Wire:
        """Return a wire; `feed` writes its input, `output` reads what it wrote."""
        in_read, self.feed = os.pipe()
        self.output, out_write = os.pipe()
        for descriptor in (in_read, self.feed, self.output, out_write):
            self.addCleanup(self.close_quietly, descriptor)
        os.set_blocking(in_read, False)
        os.set_blocking(self.output, False)
        return Wire(in_read, out_write, limit)

    def close_quietly(self, descriptor: int) -> None:
        """Close a descriptor that the test may have closed before."""
        try:
            os.close(descriptor)
        except OSError:
            pass  # closed by the test, that was its case

    def read_output(self) -> bytes:
        """Return what the wire has written and nobody has read."""
        try:
            return os.read(self.output, 1 << 20)
        except BlockingIOError:
            return b""

    def test_however_the_bytes_arrive_the_lines_are_the_same(self):
        source = random.Random(SEED)
        for number in range(200):
            lines = [source.randbytes(source.randrange(30)).replace(b"\n", b"\r") for _ in range(8)]
            data, got, wire = b"\n".join(lines), [], self.new_wire()
            while data:
                cut = source.randrange(1, 40)
                os.write(self.feed, data[:cut])
                data = data[cut:]
                got += wire.read()
            got.append(wire.rest())

            self.assertEqual(lines, got, "seed %d, round %d" % (SEED, number))

    def test_a_line_over_the_limit_is_marked_and_the_next_one_is_whole(self):
        for size in (99, 100, 101, 250):
            for step in (7, 1000):
                with self.subTest(size=size, step=step):
                    wire, got = self.new_wire(), []
                    data = b"x" * size + b"\nnext\n"
                    for start in range(0, len(data), step):
                        os.write(self.feed, data[start : start + step])
                        got += wire.read()

                    self.assertEqual([b"x" * size if size <= 100 else TOO_LONG, b"next"], got)
                    self.assertEqual(size > 100, got[0] is TOO_LONG)

    def test_a_real_line_is_never_taken_for_one_over_the_limit(self):
        wire = self.new_wire()
        os.write(self.feed, TOO_LONG + b"\n" + TOO_LONG + b"\n")

        self.assertEqual([False, False], [line is TOO_LONG for line in wire.read()])

    def test_nothing_there_is_no_lines_and_the_end_is_none(self):
        wire = self.new_wire()
        self.assertEqual([], wire.read())
        os.write(self.feed, b"half")
        self.assertEqual([], wire.read())
        os.close(self.feed)

        self.assertIsNone(wire.read())
        self.assertEqual((b"half", b""), (wire.rest(), wire.rest()))

    def test_lines_are_written_in_order_whatever_their_size(self):
        for is_blocking in (True, False):
            with self.subTest(blocking=is_blocking):
                wire, source = self.new_wire(), random.Random(SEED)
                os.set_blocking(wire.out_fd, is_blocking)
                sizes = source.choices((0, 10, 4095, 4096, 5000, 200_000), k=60)
                lines = [b"%d:" % number + b"x" * size + b"\n" for number, size in enumerate(sizes)]
                got = b""
                for line in lines:
                    wire.offer(line)
                    wire.flush()
                    got += self.read_output()
                while wire.backlog_size:
                    wire.flush()
                    got += self.read_output()

                self.assertEqual(b"".join(lines), got + self.read_output())
                self.assertTrue(wire.flush())

    def test_a_full_pipe_stops_writing_and_not_the_server(self):
        wire = self.new_wire()
        wire.offer(b"x" * MIB)

        self.assertFalse(wire.flush())
        self.assertGreater(wire.backlog_size, 0)

    def test_what_is_only_informative_is_dropped_while_the_backlog_is_long(self):
        wire = self.new_wire()
        wire.offer(b"before\n", droppable=True)
        wire.offer(b"x" * HIGH_WATER)
        self.assertTrue(wire.is_congested())
        size = wire.backlog_size
        wire.offer(b"progress\n", droppable=True)
        self.assertEqual(size, wire.backlog_size)
        wire.offer(b"response\n")

        self.assertEqual(size + 9, wire.backlog_size)

    def test_a_client_that_is_gone_breaks_the_wire_once_and_for_all(self):
        wire = self.new_wire()
        self.assertFalse(wire.has_hung_up())
        os.close(self.output)
        self.assertTrue(wire.has_hung_up())
        wire.offer(b"x\n")
        wire.flush()
        self.assertEqual((True, 0), (wire.is_broken, wire.backlog_size))
        wire.offer(b"y\n")

        self.assertEqual(0, wire.backlog_size)


class FakeContainment:
    """Notes that the server would have ended."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def leave(self, code: int) -> None:
        """Note the exit status."""
        self.left.append(code)


class CorruptionTest(support.Case):
    """Answers that cannot be written as JSON: each becomes an error, three within a minute end the server."""

    def new_server(self, environ: dict[str, str]) -> mcp_bash.Server:
        """Return a server with nothing around it."""
        settings = mcp_bash.Settings(environ)
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        self.addCleanup(os.close, write)
        log = mcp_bash.Log(settings, write)
        self.containment = FakeContainment()
        project = mcp_bash.Project(self.new_project().root, settings)
        server = mcp_bash.Server(project, settings, log, self.containment, None, None)
        self.addCleanup(server.loop.close)
        return server

    def answer(self, server: mcp_bash.Server, at: float, value: Any = float("nan")) -> dict:
        """Return the response to a call that came back with `value`, at a moment."""
        ctx = mcp_bash.Context(server, 7, mcp_bash.METHODS["tools/call"], {}, mcp_bash.V4)
        result = {"content": [], "isError": False, "structuredContent": {"value": value}}
        with mock.patch.object(mcp_bash.time, "monotonic", lambda: 1000.0 + at):
            return json.loads(server._final_line(ctx, result))

    def test_one_is_an_error_for_its_caller(self):
        server = self.new_server({})
        for value in (float("nan"), float("inf"), object()):
            response = self.answer(self.new_server({}), 0, value)

            self.assertEqual((7, -32603), (response["id"], response["error"]["code"]))
            self.assertEqual([], self.containment.left)
        self.assertEqual({"value": 1}, self.answer(server, 0, 1)["result"]["structuredContent"])

    def test_three_in_a_minute_end_the_server_with_status_2(self):
        table = (
            ({}, (0, 1), []),
            ({}, (0, 1, 2), [2]),
            ({}, (0, 30, 59), [2]),
            ({}, (0, 30, 61), []),
            ({}, (0, 30, 61, 80), [2]),
            ({"MCPBASH_CORRUPTION_THRESHOLD": "2"}, (0, 1), [2]),
            ({"MCPBASH_CORRUPTION_WINDOW": "10"}, (0, 6, 12, 18), []),
            ({"MCPBASH_ALLOW_CORRUPT_STDOUT": "true"}, (0, 1, 2, 3), []),
        )
        for environ, moments, left in table:
            with self.subTest(environ=environ, moments=moments):
                server = self.new_server(environ)
                for moment in moments:
                    self.answer(server, moment)

                self.assertEqual(left, self.containment.left)

    def test_good_answers_do_not_count(self):
        server = self.new_server({})
        for moment in range(20):
            self.answer(server, moment, 1)

        self.assertEqual([], self.containment.left)


if __name__ == "__main__":
    unittest.main()
