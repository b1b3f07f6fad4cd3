#!/usr/bin/env python3
"""Room 5, the log: one line per record, short, redacted, bounded in number, and never in the way."""
from __future__ import annotations

import glob
import os
import stat
import sys
import unittest
from typing import Any
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

sys.path.append(support.ROOT)

import mcp_bash
from mcp_bash import LEVELS, Log, RateLimit, Settings

LINE_LIMIT = 1024  # bytes, the line end included
FORGED = "mcp_bash: critical: forged"
# LG-01: clear the screen, set the title, make a link, write the clipboard, overwrite the line, C1 and direction marks
HOSTILE = "\x1b[2J\x1b]0;owned\x07 \x1b]8;;http://x.example\x07x \x1b]52;c;ZXZpbA==\x07 a\rb \x9b31m\u202eg\u2028\0\x7f"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"

# text -> what is written of it
WRITTEN = (
    ("plain", "plain"),
    ("two\nlines", "two\\nlines"),
    ("caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600"),
    ("Authorization: Bearer abcdefgh12345678", "Authorization: [redacted]"),
    ("basic QWxhZGRpbjpvcGVu", "[redacted]"),
    ("token %s end" % JWT, "token [redacted] end"),
    ("lone \ud800", "lone \\ud800"),
)


class LogCase(unittest.TestCase):
    """Tests that read what a Log writes."""

    def new_log(self, environ: dict | None = None) -> Log:
        """Return a log that writes into a pipe of this test."""
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        self.addCleanup(os.close, self._read)
        self.addCleanup(os.close, write)
        return Log(Settings(environ or {}), write)

    def written(self) -> str:
        """Return what the log has written since the last call."""
        try:
            return os.read(self._read, 1 << 16).decode("utf-8")
        except BlockingIOError:
            return ""  # nothing


class LineTest(LogCase):
    def test_a_record_is_one_line_with_its_level(self):
        log = self.new_log()
        for text, expected in WRITTEN:
            with self.subTest(text=text):
                log("warning", "mcp.test", text)

                self.assertEqual("mcp_bash: warning: %s\n" % expected, self.written())

    def test_nothing_in_a_record_reaches_a_terminal_raw(self):  # LG-01
        log = self.new_log()
        log("error", "mcp.test", HOSTILE)
        line = self.written()

        self.assertEqual(1, line.count("\n"))
        self.assertTrue(line[:-1].isprintable(), ascii(line))
        self.assertIn("\\x1b[2J", line)

    def test_a_record_cannot_forge_another(self):  # LG-02
        log = self.new_log()
        for end in ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"):
            with self.subTest(end=end):
                log("warning", "mcp.test", "a" + end + FORGED)
                line = self.written()

                self.assertEqual(1, len(line.splitlines()), ascii(line))
                self.assertFalse(line.startswith(FORGED))

    def test_no_line_is_longer_than_a_kibibyte(self):  # LG-02
        log = self.new_log()
        for text in ("x", "\n", "\x1b", "\u00e9", "\u2028", "\U0001f600", "\udc80", "\u202e"):
            with self.subTest(text=ascii(text)):
                log("emergency", "mcp.test", text * 1_000_000)
                line = self.written()

                self.assertTrue(line.startswith("mcp_bash: emergency: ") and line.endswith("\n"))
                self.assertLessEqual(len(line.encode()), LINE_LIMIT)

    def test_a_record_that_fits_is_not_cut(self):
        log = self.new_log()
        log("warning", "mcp.test", "x" * 900)

        self.assertEqual("mcp_bash: warning: %s\n" % ("x" * 900), self.written())

    def test_a_secret_on_the_edge_of_the_cut_does_not_survive_in_half(self):
        log = self.new_log()
        for length in range(980, 1001):
            log("warning", "mcp.test", "x" * length + " Bearer abcdefgh12345678")

            self.assertNotIn("abcd", self.written())

    def test_nobody_reading_is_no_reason_to_fail(self):
        read, write = os.pipe()
        os.close(read)
        log = Log(Settings({}), write)
        log("warning", "mcp.test", "into a broken pipe")
        os.close(write)
        log("warning", "mcp.test", "into a closed descriptor")
        forwarded: list = []
        log.forward = lambda *record: forwarded.append(record)
        log("warning", "mcp.test", "still alive")

        self.assertEqual([("warning", "mcp.test", "still alive")], forwarded)

    def test_problems_are_warnings_one_line_each(self):
        log = self.new_log()
        problems = [mcp_bash.Problem("a/b.json", 3, "is wrong.", "Fix it."), mcp_bash.Problem("c", 0, "too.", "")]
        log.problems(problems, "mcp.test")
        lines = self.written().splitlines()

        self.assertEqual(["mcp_bash: warning: a/b.json:3: is wrong. Fix it.", "mcp_bash: warning: c: too."], lines)


class LevelTest(LogCase):
    def shown(self, environ: dict) -> list[str]:
        """Return the levels that reach stderr."""
        log = self.new_log(environ)
        for level in LEVELS:
            log(level, "mcp.test", "x")
        return [line.split(": ")[1] for line in self.written().splitlines()]

    def test_without_a_setting_the_operator_sees_warnings_and_above(self):
        self.assertEqual(list(LEVELS[3:]), self.shown({}))

    def test_a_level_that_was_set_rules_stderr(self):
        for index, level in enumerate(LEVELS):
            with self.subTest(level=level):
                self.assertEqual(list(LEVELS[index:]), self.shown({"MCPBASH_LOG_LEVEL": level}))

    def test_the_level_for_clients_does_not(self):
        self.assertEqual(list(LEVELS[3:]), self.shown({"MCPBASH_LOG_LEVEL_DEFAULT": "debug"}))

    def test_clients_get_every_level_cleaned_and_decide_themselves(self):
        log = self.new_log()
        forwarded: list[Any] = []
        log.forward = lambda *record: forwarded.append(record)
        log("debug", "mcp.a", "x\ny")
        log("error", "mcp.b", "Bearer abcdefgh12345678")

        self.assertEqual([("debug", "mcp.a", "x\\ny"), ("error", "mcp.b", "[redacted]")], forwarded)


class RateLimitTest(LogCase):
    def at(self, seconds: float) -> Any:
        """Return a patch that makes it `seconds` o'clock."""
        return mock.patch.object(mcp_bash.time, "monotonic", lambda: 1000.0 + seconds)

    def allowed(self, limit: RateLimit, seconds: float, count: int) -> int:
        """Return how many of `count` events at a moment pass."""
        with self.at(seconds):
            return sum(limit.allow() for _ in range(count))

    def test_so_many_pass_in_any_window(self):
        limit = RateLimit(3, 60.0)

        self.assertEqual(2, self.allowed(limit, 0, 2))
        self.assertEqual(1, self.allowed(limit, 30, 5))
        self.assertEqual(0, self.allowed(limit, 59.9, 5))
        self.assertEqual(2, self.allowed(limit, 60, 5))  # the two of the first moment have left the window
        self.assertEqual(0, self.allowed(limit, 89, 5))
        self.assertEqual(1, self.allowed(limit, 90, 5))

    def test_zero_is_no_limit(self):
        self.assertEqual(10_000, self.allowed(RateLimit(0), 0, 10_000))

    def test_reached_is_true_from_the_event_that_fills_the_window(self):
        limit = RateLimit(3, 60.0)
        outcomes = []
        for seconds in (0, 10, 20, 30, 200, 201):
            with self.at(seconds):
                outcomes.append(limit.reached())

        self.assertEqual([False, False, True, True, False, False], outcomes)

    def test_a_flood_of_records_is_cut_off_and_flows_again_later(self):
        log = self.new_log()
        forwarded: list[Any] = []
        log.forward = lambda *record: forwarded.append(record)
        with self.at(0):
            for _ in range(2_000):
                log("warning", "mcp.test", "x")
        count = len(self.written().splitlines())
        self.assertEqual((600, 600), (count, len(forwarded)))
        with self.at(61):
            log("warning", "mcp.test", "later")

        self.assertEqual("mcp_bash: warning: later\n", self.written())


class ServerLogTest(support.Case):
    """What a whole server writes to stderr."""

    def lines(self, client: support.Client) -> list[str]:
        """Return the lines on stderr after the server has ended, each a proper one."""
        client.close()
        lines = client.stderr.split("\n")
        self.assertEqual("", lines.pop())
        for line in lines:
            self.assertTrue(line.startswith("mcp_bash: ") and line.isprintable(), ascii(line[:200]))
            self.assertFalse(line.startswith(FORGED))
            self.assertLessEqual(len(line.encode()) + 1, LINE_LIMIT)
        return lines

    def test_a_session_without_trouble_is_silent(self):
        project = self.new_project()
        project.tool("hello", "echo hi; echo a note >&2")
        client = self.new_client(project)
        client.initialize()
        client.call("hello")

        self.assertEqual([], self.lines(client))

    def test_what_a_tool_says_on_stderr_reaches_no_terminal_and_is_not_lost(self):  # LG-01, LG-04
        project = self.new_project()
        project.file("said", HOSTILE.replace("\0", "") + "\n" + FORGED + "\n")
        project.tool("noisy", "cat said >&2; cat said; exit 3")
        client = self.new_client(project, env={"MCPBASH_LOG_LEVEL": "debug"})
        client.initialize()
        result = client.call("noisy")
        raw = client.records[-1].raw

        self.assertIn("\x1b[2J", result["_meta"]["stderr"])
        self.assertIn("\x1b[2J", support.text_of(result))
        self.assertEqual([], [byte for byte in raw if byte < 32 or byte > 126])
        self.lines(client)

    def test_names_of_project_files_reach_no_terminal(self):  # LG-01
        project = self.new_project()
        project.file("tools/" + HOSTILE.replace("/", "").replace("\0", "") + ".sh", "#!/bin/sh\n", 0o755)
        project.file("tools/bad.meta.json", '{"name": "\x1b[2J')
        project.file("tools/bad.sh", "#!/bin/sh\n", 0o755)
        client = self.new_client(project)
        client.initialize()
        client.result("tools/list")
        lines = self.lines(client)

        self.assertTrue(any("\\x1b[2J" in line for line in lines), lines)
        self.assertTrue(any("bad.meta.json" in line for line in lines), lines)

    def test_what_a_client_says_stays_on_one_short_line(self):  # LG-02
        project = self.new_project()
        ready = project.fifo("ready")
        project.tool("hold", "echo >%s; exec sleep 600" % ready)
        client = self.new_client(project, env={"MCPBASH_LOG_LEVEL": "debug"})
        evil = "x\n%s\r%s" % (FORGED, "\u00e9" * 1_000_000)
        info = {"name": evil, "version": evil}
        client.result("initialize", {"protocolVersion": evil, "capabilities": {evil: {}}, "clientInfo": info})
        client.notify("notifications/initialized")
        client.error(evil)
        client.error("tools/call", {"name": evil})
        client.error("logging/setLevel", {"level": evil})
        client.error("tools/list", {"cursor": evil})
        client.notify(evil, {evil: evil})
        number = client.send_call("hold")
        with open(ready, encoding="ascii") as stream:
            stream.read()  # the tool is there; closing without reading could kill it with SIGPIPE
        client.cancel(number, evil)
        client.fence()

        lines = self.lines(client)
        self.assertTrue(any("cancelled: x\\n" in line for line in lines), lines)

    def test_errors_for_clients_hold_no_paths_and_no_traces(self):  # EN-08
        project = self.new_project()
        project.file("tools/dead.sh", "#!/no/such/interpreter\n", 0o755)
        project.file("tools/open.sh", "#!/bin/sh\n", 0o777)
        client = self.new_client(project)
        client.initialize()
        for name in ("dead", "open", "absent"):
            with self.subTest(tool=name):
                message = client.error("tools/call", {"name": name, "arguments": {"password": "hunter2"}})["message"]

                self.assertNotIn(project.base, message)
                self.assertNotIn("Traceback", message)
                self.assertNotIn("hunter2", message + client.stderr)

    def payloads(self, script: str, arguments: dict) -> tuple[str, int]:
        """Return the payload log of a session that calls a tool, and its mode."""
        project = self.new_project()
        project.tool("tool", script)
        client = self.new_client(project, env={"MCPBASH_DEBUG_PAYLOADS": "true"})
        client.initialize()
        client.call("tool", arguments)
        client.send_raw(b"Bearer not-json-at-all\n")
        client.fence()
        (path,) = glob.glob(os.path.join(project.tmp, "mcpbash.state.*", "payload.debug.log"))
        with open(path, encoding="utf-8") as stream:
            return stream.read(), stat.S_IMODE(os.stat(path).st_mode)

    def test_the_payload_log_is_private_and_redacted(self):  # EN-09
        secrets = {"Authorization": "Basic QWxhZGRpbjpv", "nested": [{"apiKey": "k-123456789"}], "note": "see " + JWT}
        text, mode = self.payloads("echo done", {**secrets, "harmless": "keep me"})

        self.assertEqual(0o600, mode)
        self.assertIn("keep me", text)
        self.assertIn("done", text)
        self.assertEqual([], [secret for secret in ("QWxhZGRpbjpv", "k-123456789", JWT) if secret in text])
        self.assertTrue(all(line.count("|") >= 4 for line in text.splitlines()), text)

    def test_the_payload_log_masks_the_text_twin_of_a_structured_result_too(self):  # EN-09
        text, _ = self.payloads("""echo '{"apiKey": "k-123456789", "harmless": "keep me"}'""", {})

        self.assertIn("keep me", text)
        self.assertNotIn("k-123456789", text)

    def test_the_payload_log_stops_growing(self):  # EN-09
        project = self.new_project()
        path = project.path("payload.log")
        log = mcp_bash.PayloadLog(path)
        self.addCleanup(os.close, log._fd)
        line = mcp_bash.encode({"method": "x", "params": {"text": "y" * 1_000_000}})
        for _ in range(20):
            log.write("in", line)

        self.assertLess(os.path.getsize(path), mcp_bash.PayloadLog.LIMIT + 2 * len(line))
        self.assertGreater(os.path.getsize(path), mcp_bash.PayloadLog.LIMIT // 2)

    def test_no_message_upsets_the_payload_log(self):  # PR-09 and friends, while everything is written down
        project = self.new_project()
        client = self.new_client(project, env={"MCPBASH_DEBUG_PAYLOADS": "true"})
        for raw in (b"\xff\xfe", b"[" * 1000, b"1e999", b'"\\ud800"', b"[]", b'{"method":{}}', b'{"id":1e999}'):
            client.send_raw(raw + b"\n")
        client.send_raw(b'{"jsonrpc":"2.0","method":"notifications/x","params":{"x":1e999}}\n')

        self.assertEqual({}, client.result("ping", timeout=10))


if __name__ == "__main__":
    unittest.main()
