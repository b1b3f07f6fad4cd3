#!/usr/bin/env python3
"""Room 15, tools/list and tools/call: requests, outcomes, results in every version, timeouts, progress and logs."""
from __future__ import annotations

import base64
import json
import os
import shlex
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

sys.path.append(support.ROOT)

import mcp_bash

OLD = support.HANDSHAKE_VERSIONS
NEW = support.STATELESS_VERSION
PIXEL = base64.b64encode(b"\x89PNG not really").decode()
RECORD = "printf '%s\\0' >&7\n"  # one record on the channel, fields separated by \t


def printing(value) -> str:
    """Return a script that prints a value: text as it stands, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "printf '%%s' %s\n" % shlex.quote(text)


class Tools(support.Case):
    """A case with one project whose tools are written as the test needs them."""

    def start(self, tools: dict, env: dict | None = None, **options) -> support.Client:
        """Start a server with tools: name -> script or (script, metadata)."""
        project = self.new_project()
        for name, script in tools.items():
            script, meta = script if isinstance(script, tuple) else (script, None)
            project.tool(name, script, meta)
        return self.new_client(project, env=env, **options)

    def raw_call(self, client: support.Client, version: str, name: str, **params) -> dict:
        """Call a tool in a version and return the whole response."""
        if version == NEW:
            return client.modern("tools/call", {"name": name, **params})
        if client.version != version:
            client.initialize(version)
        return client.request("tools/call", {"name": name, **params})


class RequestTest(Tools):
    def test_requests_that_make_no_sense_are_refused(self):
        # R-077, R-078
        client = self.start({"x": "echo ran"})
        client.initialize()
        rows = (  # params, words of the message
            ({}, "name"),
            ({"name": None}, "name"),
            ({"name": ""}, "name"),
            ({"name": 5}, "name"),
            ({"name": ["x"]}, "name"),
            ({"name": {}}, "name"),
            ({"name": "unknown"}, "Tool 'unknown' not found"),
            ({"name": "X"}, "not found"),
            ({"name": "x", "arguments": []}, "arguments"),
            ({"name": "x", "arguments": "{}"}, "arguments"),
            ({"name": "x", "arguments": 5}, "arguments"),
            ({"name": "x", "arguments": False}, "arguments"),
        )
        for params, words in rows:
            for modern in (False, True):
                with self.subTest(params=params, modern=modern):
                    error = client.error("tools/call", params, modern=modern)

                    self.assertEqual(-32602, error["code"])
                    self.assertIn(words, error["message"])
        self.assertEqual("ran\n", client.text("x"))

    def test_absent_arguments_are_an_empty_object(self):
        # R-079
        client = self.start({"x": 'printf %s "$MCP_TOOL_ARGS_JSON"'})
        for version in support.VERSIONS:
            for params in ({}, {"arguments": {}}, {"arguments": None}):
                with self.subTest(version=version, params=params):
                    self.assertEqual("{}", support.text_of(self.raw_call(client, version, "x", **params)["result"]))

    def test_members_nobody_knows_are_ignored(self):
        # R-091
        client = self.start({"x": "echo ran"})
        for version in (OLD[-1], NEW):
            answer = self.raw_call(client, version, "x", task={"ttl": 5}, whatever=[1], inputResponses={})
            self.assertEqual("ran\n", support.text_of(answer["result"]))

    def test_arguments_cannot_alter_the_command(self):
        # R-092
        nasty = (
            "; touch pwned",
            "$(touch pwned)",
            "`touch pwned`",
            "| touch pwned",
            "\n touch pwned\n",
            "-x",
            "'\"",
            "\0",
            "*",
            "x" * 200000,
        )
        client = self.start({"x": 'printf "%s" "$#"; [ "$0" = "$MCP_TOOL_PATH" ] && echo " same"'})
        for text in nasty:
            with self.subTest(text=text[:20]):
                arguments = {"a": text, text[:100]: [text[:100]], "--help": text[:10]}
                self.assertEqual("0 same\n", client.text("x", arguments))
        self.assertEqual([], [path for path in support.listing(client.project.base) if "pwned" in path])

    def test_schemas_survive_to_the_byte_for_the_newest_version(self):
        # R-076
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"a": {"type": "string", "x-mcp-header": "A"}, "ü": {"$ref": "#/$defs/u"}},
            "$defs": {"u": {"anyOf": [{"const": 1.0}, {"enum": [None, {}]}]}},
            "if": {"required": ["a"]},
            "then": {"minProperties": 2},
            "unevaluatedProperties": False,
            "$comment": "kept",
        }
        client = self.start({"x": ("echo", {"inputSchema": schema})})
        tool = client.modern("tools/list")["result"]["tools"][0]

        self.assertEqual(json.dumps(schema), json.dumps(tool["inputSchema"]))

    def test_every_list_item_has_a_name_and_an_object_schema(self):
        # R-072, R-073
        client = self.start({"plain": "echo", "b": ("echo", {"inputSchema": {"required": ["a"]}})})
        for version in support.VERSIONS:
            if version != NEW:
                client.initialize(version)
            for tool in client.result("tools/list", modern=version == NEW)["tools"]:
                self.assertRegex(tool["name"], r"\A[A-Za-z0-9_.-]{1,64}\Z")
                self.assertEqual("object", tool["inputSchema"]["type"])
                self.assertEqual(set(), set(tool) & {"path", "timeoutSecs", "timeoutHint"})

    def test_concurrent_calls_of_one_tool_do_not_mix(self):
        # R-093
        script = 'for i in 1 2 3; do printf "%s\\n" "$MCP_TOOL_ARGS_JSON"; done; printf "%s" "$MCP_TOOL_ARGS_JSON" >&2'
        client = self.start({"x": script})
        nonces = {
            client.send_call("x", {"n": nonce}, nonce=nonce): nonce
            for nonce in (support.new_nonce() for _ in range(48))
        }
        for number, nonce in nonces.items():
            result = client.response(number)["result"]
            self.assertEqual('{"n":"%s"}\n' % nonce * 3, support.text_of(result))
            self.assertEqual('{"n":"%s"}' % nonce, result["_meta"]["stderr"])


class OutcomeTest(Tools):
    """contract 3.5 and 3.8 as decided: failure of its own, limits, timeouts, exit status, output."""

    ERROR = {"code": 4242, "message": "mine", "data": {"k": [1]}}
    WRITE = "printf '%%s' %s >\"$MCP_TOOL_ERROR_FILE\"\n"

    # script, expected error
    ERRORS = (
        (WRITE % shlex.quote(json.dumps(ERROR)) + "exit 1\n", ERROR),
        (WRITE % shlex.quote(json.dumps(ERROR)) + "exit 0\n", ERROR),
        (WRITE % shlex.quote(json.dumps(ERROR)) + printing({"content": [], "isError": False}), ERROR),
        (WRITE % "'plain words'" + "exit 3\n", {"code": -32603, "message": "Tool failed", "data": "plain words"}),
        (
            WRITE % shlex.quote('{"code":"5","message":"m"}'),
            {"code": -32603, "message": "Tool failed", "data": '{"code":"5","message":"m"}'},
        ),
        (WRITE % shlex.quote('{"code":5}'), {"code": -32603, "message": "Tool failed", "data": '{"code":5}'}),
        (
            WRITE % shlex.quote('{"code":true,"message":"m"}'),
            {"code": -32603, "message": "Tool failed", "data": '{"code":true,"message":"m"}'},
        ),
        (WRITE % shlex.quote('{"code":7,"message":"m"}'), {"code": 7, "message": "m"}),
        (WRITE % shlex.quote('{"code":7,"message":"m","data":null}'), {"code": 7, "message": "m"}),
        (
            printing({"code": 8, "message": "on stdout", "data": 1}) + "exit 1\n",
            {"code": 8, "message": "on stdout", "data": 1},
        ),
        (
            RECORD % r"fail\t9\t{\"a\":1}\tby record" + "echo out\n",
            {"code": 9, "message": "by record", "data": {"a": 1}},
        ),
        (RECORD % r"fail\t9\t\tno data", {"code": 9, "message": "no data"}),
        (RECORD % r"fail\tx\tnot json\ttwo\nlines\tand tabs", {"code": -32603, "message": "two\nlines\tand tabs"}),
        (RECORD % r"fail\t9\t\t", {"code": 9, "message": "Tool failed"}),
        (
            RECORD % r"fail\t9\t\tfirst" + WRITE % shlex.quote('{"code":1,"message":"file"}'),
            {"code": 9, "message": "first"},
        ),
        (
            "(exit 5)\n"
            + "( "
            + (WRITE % shlex.quote('{"code":7,"message":"from a subshell"}')).strip()
            + "; exit 1 ) || true\necho going on\n",
            {"code": 7, "message": "from a subshell"},
        ),
    )

    def test_failures_of_its_own_are_protocol_errors(self):
        client = self.start({"t%02d" % number: script for number, (script, _) in enumerate(self.ERRORS)})
        client.initialize()
        for number, (script, expected) in enumerate(self.ERRORS):
            with self.subTest(script=script):
                self.assertEqual(expected, client.error("tools/call", {"name": "t%02d" % number}))

    # script, isError, text, exit code
    FAILURES = (
        ("exit 3\n", "Tool failed: exit status 3", 3),
        ("echo why >&2; echo more >&2; exit 4\n", "Tool failed: exit status 4: why", 4),
        ("echo said; exit 5\n", "said\n", 5),
        ("echo said; echo why >&2; exit 5\n", "said\n", 5),
        (printing([1, 2]) + "exit 1\n", "[1, 2]", 1),
        (printing({"code": "no", "message": 5}) + "exit 1\n", '{"code": "no", "message": 5}', 1),
        ("echo '  '; exit 6\n", "Tool failed: exit status 6", 6),
        ("kill -9 $$\n", "Tool failed: killed by SIGKILL", 137),
        ("echo said; kill -TERM $$; sleep 5\n", "Tool failed: killed by SIGTERM\nsaid\n", 143),
        ("#!/bin/false\n", "Tool failed: exit status 1", 1),
    )

    def test_an_exit_status_is_a_result_the_model_can_read(self):
        # R-082
        client = self.start({"t%02d" % number: row[0] for number, row in enumerate(self.FAILURES)})
        client.initialize()
        for number, (script, text, code) in enumerate(self.FAILURES):
            with self.subTest(script=script):
                result = client.call("t%02d" % number)

                self.assertIs(True, result["isError"])
                self.assertEqual(text, support.text_of(result))
                self.assertEqual(code, result["_meta"]["exitCode"])
                self.assertNotIn("structuredContent", result)

    # what is printed, structuredContent in the newest version (None: none)
    PRINTED = (
        ("plain text\n", None),
        ("", None),
        ("\n", None),
        ('{"a": 1}\n', {"a": 1}),
        (' {"a": 1} \n\n', {"a": 1}),
        ("[1, 2]", [1, 2]),
        ("5", 5),
        ('"text"', "text"),
        ("true", True),
        ("{} {}", None),
        ('{"a": 1}\n{"b": 2}\n', None),
        ("{broken", None),
        ("NaN", None),
        ("Infinity", None),
        ('{"a": NaN}', None),
        ("nothing", None),
        ("-", None),
        ("[" * 200 + "]" * 200, None),
        ('{"code": 1, "message": "not an error, it succeeded"}', {"code": 1, "message": "not an error, it succeeded"}),
        ('{"content": [], "other": 1}', {"content": [], "other": 1}),
        ('{"content": {}, "isError": false}', {"content": {}, "isError": False}),
        ('{"isError": true}', {"isError": True}),
        ("\u2028é🎉\x1b[31mred\x07\r\n", None),
        ("٣", None),
    )

    def test_output_is_text_and_also_structure_when_it_is_one_json_document(self):
        # R-086, R-087, R-088, R-089, LG-04
        client = self.start({"t%02d" % number: printing(text) for number, (text, _) in enumerate(self.PRINTED)})
        for version in support.VERSIONS:
            for number, (text, value) in enumerate(self.PRINTED):
                with self.subTest(version=version, text=text[:40]):
                    answer = self.raw_call(client, version, "t%02d" % number)
                    self.assertIn("result", answer, answer)
                    result = answer["result"]

                    self.assertEqual([{"type": "text", "text": text}], result["content"])
                    self.assertIs(False, result["isError"])
                    is_shown = value is not None and (
                        version == NEW or (version >= "2025-06-18" and isinstance(value, dict))
                    )
                    self.assertEqual(value if is_shown else "absent", result.get("structuredContent", "absent"))
                    self.assertNotIn("name", result)

    def test_null_is_a_structure_in_the_newest_version_only(self):
        # R-086, R-089
        client = self.start({"x": printing("null")})
        self.assertIsNone(self.raw_call(client, NEW, "x")["result"]["structuredContent"])
        for version in OLD:
            self.assertNotIn("structuredContent", self.raw_call(client, version, "x")["result"])

    def test_a_tool_that_prints_what_json_cannot_hold_harms_nobody(self):
        """Three answers that cannot be written end the server; a tool must not be able to bring that about."""
        client = self.start(
            {
                "huge": printing("1e999"),
                "deep": printing('{"a":[{"b":-1e999}]}'),
                "result": printing('{"content":[],"isError":false,"structuredContent":{"a":1e999}}'),
                "error": printing('{"code":1,"message":"m","data":1e999}') + "exit 1\n",
                "log": RECORD % r"logjson\tinfo\tl\t{\"a\":1e999}" + RECORD % r"log\tinfo\tl\tafter" + "echo fine\n",
                "ok": "echo fine\n",
            }
        )
        client.initialize()
        for _ in range(2):
            for name in ("huge", "deep", "result", "error", "log"):
                answer = client.request("tools/call", {"name": name})
                self.assertNotIn("incident", json.dumps(answer))
                self.assertEqual("fine\n", client.text("ok"))
        self.assertEqual(
            ["after"] * 2,
            [
                note["params"]["data"]
                for note in client.notifications("notifications/message")
                if note["params"]["logger"] == "l" and note["params"]["data"] == "after"
            ],
        )

    def test_output_that_is_not_utf8_is_made_readable(self):
        # R-004
        client = self.start({"x": r"printf 'a\377b\303'", "y": r"printf '\377' >&2"})
        self.assertEqual("a\ufffdb\ufffd", client.text("x"))
        self.assertEqual("\ufffd", client.call("y")["_meta"]["stderr"])

    def test_stderr_comes_along_by_its_end(self):
        script = "head -c 5000 /dev/zero | tr '\\0' x >&2; printf end >&2; echo out\n"
        rows = (
            ({}, 4096),
            ({"MCPBASH_TOOL_STDERR_TAIL_LIMIT": "10"}, 10),
            ({"MCPBASH_TOOL_STDERR_TAIL_LIMIT": "0"}, 0),
            ({"MCPBASH_TOOL_STDERR_CAPTURE": "false"}, 0),
        )
        for env, size in rows:
            with self.subTest(env=env):
                meta = self.start({"x": script}, env).call("x")["_meta"]

                self.assertEqual(("x" * (size - 3) + "end") if size else None, meta.get("stderr"))
                self.assertEqual(0, meta["exitCode"])

    def test_too_much_output_is_a_result_that_says_so(self):
        # RX-02
        client = self.start(
            {
                "exact": "head -c 1000 /dev/zero | tr '\\0' x",
                "over": "head -c 1001 /dev/zero | tr '\\0' x; sleep 600",
                "stderr": "head -c 2001 /dev/zero | tr '\\0' x >&2; sleep 600",
                "forever": "yes",
            },
            {"MCPBASH_MAX_TOOL_OUTPUT_SIZE": "1000", "MCPBASH_MAX_TOOL_STDERR_SIZE": "2000"},
        )
        client.initialize()
        self.assertEqual("x" * 1000, client.text("exact"))
        for name, what, limit in (("over", "output", 1000), ("stderr", "stderr", 2000), ("forever", "output", 1000)):
            with self.subTest(name=name):
                result = client.call(name)

                self.assertIs(True, result["isError"])
                self.assertTrue(support.text_of(result).startswith("Tool %s exceeded %d bytes" % (what, limit)), result)
                error = result["structuredContent"]["error"]
                self.assertEqual(("output_too_large", limit), (error["type"], error["limitBytes"]))
                self.assertLess(len(json.dumps(result)), 10000)

    def test_a_tool_that_cannot_be_started_says_why(self):
        client = self.start({"interpreter": "#!/no/such/interpreter\n", "directory": "#!/\n", "ok": "echo ran"})
        rows = (("interpreter", "#! line"), ("directory", "could not be started"))
        for name, words in rows:
            with self.subTest(name=name):
                error = client.modern("tools/call", {"name": name})["error"]

                self.assertEqual(-32603, error["code"])
                self.assertIn(words, error["message"])
        self.assertEqual("ran\n", client.text("ok"))

    def test_codes_a_tool_chooses_stay_out_of_the_protocols_own_range(self):
        # R-204: -32020 to -32099 are the protocol's, and -32002 and -32042 must not be sent to the newest version
        client = self.start({"x": 'printf \'{"code":%s,"message":"m"}\' "$(cat code)" >"$MCP_TOOL_ERROR_FILE"'})
        for code, is_free in (
            (-32050, False),
            (-32099, False),
            (-32042, False),
            (-32001, False),
            (-32002, False),
            (-32602, True),
            (-32603, True),
            (-1, True),
            (7, True),
            (-31000, True),
        ):
            with self.subTest(code=code):
                client.project.file("code", str(code))
                error = client.modern("tools/call", {"name": "x"})["error"]

                self.assertEqual(is_free, code == error["code"], error)
                self.assertEqual("m", error["message"])


class PassThroughTest(Tools):
    """A tool that prints a whole result of its own."""

    TEXT = {"type": "text", "text": "t"}

    def test_a_whole_result_passes_through(self):
        mine = {"content": [self.TEXT], "structuredContent": {"a": 1}, "isError": False, "_meta": {"com.example/k": 1}}
        client = self.start({"x": printing(mine) + "echo noted >&2\n"})
        for version in support.VERSIONS:
            with self.subTest(version=version):
                result = self.raw_call(client, version, "x")["result"]

                self.assertEqual([self.TEXT], result["content"])
                self.assertIs(False, result["isError"])
                self.assertEqual(version >= "2025-06-18", "structuredContent" in result)
                meta = {"com.example/k": 1, "exitCode": 0, "stderr": "noted\n"}
                self.assertEqual(
                    meta, {key: value for key, value in result["_meta"].items() if not key.startswith("io.")}
                )

    def test_its_own_verdict_and_the_exit_status_both_count(self):
        rows = (
            (True, 0, True),
            (False, 0, False),
            (False, 3, True),
            (True, 3, True),
            (None, 0, False),
            (1, 0, True),
            ("no", 0, True),
        )
        client = self.start(
            {
                "t%d" % number: printing({"content": [self.TEXT], "isError": value}) + "exit %d\n" % code
                for number, (value, code, _) in enumerate(rows)
            }
        )
        for number, (value, code, expected) in enumerate(rows):
            with self.subTest(value=value, code=code):
                result = client.call("t%d" % number)

                self.assertIs(expected, result["isError"])
                self.assertEqual([self.TEXT], result["content"])
                self.assertEqual(code, result["_meta"]["exitCode"])

    def test_a_tool_cannot_speak_for_the_server(self):
        # R-059, R-061, R-201
        own = {
            "content": [self.TEXT],
            "isError": False,
            "resultType": "input_required",
            "ttlMs": 5,
            "requestState": "x",
            "inputRequests": {},
            "_meta": {support.PREFIX + "serverInfo": {"name": "evil"}, "exitCode": 99},
        }
        client = self.start({"x": printing(own)})
        result = self.raw_call(client, NEW, "x")["result"]
        self.assertEqual("complete", result["resultType"])
        self.assertEqual("project", result["_meta"][support.PREFIX + "serverInfo"]["name"])
        self.assertEqual(0, result["_meta"]["exitCode"])
        for version in OLD:
            result = self.raw_call(client, version, "x")["result"]
            self.assertEqual(
                [], [key for key in ("resultType", "ttlMs", "inputRequests", "requestState") if key in result]
            )

    def test_odd_members_never_become_an_internal_error(self):
        rows = (
            {"_meta": "x"},
            {"_meta": 5},
            {"_meta": [1]},
            {"_meta": None},
            {"structuredContent": None},
            {"structuredContent": [1]},
            {"content": []},
            {"isError": None},
        )
        tools = {
            "t%d" % number: printing({"content": [self.TEXT], "isError": False, **row})
            for number, row in enumerate(rows)
        }
        client = self.start(tools)
        for version in (OLD[-1], NEW):
            for number, row in enumerate(rows):
                with self.subTest(version=version, row=row):
                    answer = self.raw_call(client, version, "t%d" % number)

                    self.assertIn("result", answer, answer)
                    self.assertEqual(row.get("content", [self.TEXT]), answer["result"]["content"])

    def test_blocks_reach_every_version_in_a_form_it_knows(self):
        # R-083, R-084
        link = {"type": "resource_link", "uri": "file:///f", "name": "f", "title": "F", "_meta": {"com.example/k": 1}}
        blocks = [
            {
                "type": "text",
                "text": "t",
                "_meta": {"com.example/k": 1},
                "annotations": {"priority": 0.5, "audience": ["user"], "lastModified": "2025-01-01T00:00:00Z"},
            },
            {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///r", "mimeType": "text/plain", "text": "r"}},
            link,
        ]
        kinds = {
            "2024-11-05": ["text", "image", "resource", "resource", "text"],
            "2025-03-26": ["text", "image", "audio", "resource", "text"],
        }
        client = self.start({"x": printing({"content": blocks, "isError": False})})
        for version in support.VERSIONS:
            with self.subTest(version=version):
                content = self.raw_call(client, version, "x")["result"]["content"]

                self.assertEqual(
                    kinds.get(version, ["text", "image", "audio", "resource", "resource_link"]),
                    [block["type"] for block in content],
                )
                if version >= "2025-06-18":
                    self.assertEqual(blocks, content)
                else:
                    self.assertIn("file:///f", content[4]["text"])
                    self.assertEqual({"priority": 0.5, "audience": ["user"]}, content[0]["annotations"])
                    self.assertNotIn("_meta", content[0])
                if version == "2024-11-05":
                    self.assertEqual(
                        (PIXEL, "audio/wav"), tuple(content[2]["resource"][key] for key in ("blob", "mimeType"))
                    )

    def test_what_is_no_legal_block_never_reaches_a_client_as_one(self):
        """Strict clients drop the connection, or the whole result, over one wrong block."""
        # R-083, R-100
        rows = (
            {"type": "bogus"},
            {"type": "text"},
            {"type": "text", "text": 5},
            {"type": "text", "text": "t", "annotations": "x"},
            {"type": "image", "data": PIXEL},
            {"type": "image", "mimeType": "image/png"},
            {"type": "image", "data": "*** not base64 ***", "mimeType": "image/png"},
            {"type": "audio", "data": "%", "mimeType": "audio/wav"},
            {"type": "resource"},
            {"type": "resource", "resource": {"uri": "file:///r"}},
            {"type": "resource_link", "uri": "file:///f"},
            {"text": "no type"},
            "just text",
            None,
        )
        missing = support.schemas_missing()
        if missing:
            raise support.not_here(missing)
        client = self.start(
            {"t%02d" % number: printing({"content": [block], "isError": False}) for number, block in enumerate(rows)}
        )
        for number, block in enumerate(rows):
            with self.subTest(block=block):
                faults = []
                for version in support.VERSIONS:
                    answer = self.raw_call(client, version, "t%02d" % number)
                    faults += support.validate_against_schema(version, answer, "tools/call")
                    faults += [
                        version + " " + self.media_fault(shown)
                        for shown in answer["result"]["content"]
                        if self.media_fault(shown)
                    ]
                self.assertEqual([], faults)
        client.close(check=False)  # the checker would only repeat what the subtests say

    @staticmethod
    def media_fault(block: dict) -> str:
        """Return what is wrong with the data of an image or a sound, or an empty string."""
        try:
            if block.get("type") in ("image", "audio"):
                base64.b64decode(block["data"], validate=True)
            return ""
        except (KeyError, ValueError) as error:
            return repr(error)


class TimeoutTest(Tools):
    """contract 3.7."""

    SLEEP = "echo started; echo note >&2; exec sleep 600\n"

    def test_a_timeout_is_a_result_the_model_can_read(self):
        client = self.start(
            {
                "x": (self.SLEEP, {"timeoutSecs": 0.4, "timeoutHint": "ask for less"}),
                "stubborn": (
                    "trap '' TERM; echo >$MCP_TOOL_ARGS_JSON; while :; do sleep 600; done",
                    {"timeoutSecs": 0.4},
                ),
            },
            {"MCPBASH_KILL_GRACE": "0.2"},
        )
        for version in ("2025-06-18", "2025-11-25", NEW):
            with self.subTest(version=version):
                result = self.raw_call(client, version, "x")["result"]
                text = "Tool timed out after 0.4s\n\nSuggestion: ask for less"
                error = {
                    "type": "timeout",
                    "message": text,
                    "timeoutSecs": 0.4,
                    "reason": "fixed",
                    "exitCode": 143,
                    "hint": "ask for less",
                }

                self.assertIs(True, result["isError"])
                self.assertEqual([{"type": "text", "text": text}], result["content"])
                self.assertEqual({"success": False, "error": error}, result["structuredContent"])
                self.assertEqual((143, "note\n"), (result["_meta"]["exitCode"], result["_meta"]["stderr"]))
                self.assertNotIn("name", result)
        result = self.raw_call(client, NEW, "stubborn")["result"]
        self.assertEqual("Tool timed out after 0.4s", support.text_of(result))
        self.assertEqual(137, result["structuredContent"]["error"]["exitCode"])

    def test_older_versions_get_the_same_words(self):
        client = self.start({"x": (self.SLEEP, {"timeoutSecs": 0.3})})
        for version in OLD[:2]:
            result = self.raw_call(client, version, "x")["result"]
            self.assertEqual(("Tool timed out after 0.3s", True), (support.text_of(result), result["isError"]))
            self.assertNotIn("structuredContent", result)

    def test_the_default_applies_when_the_metadata_is_silent(self):
        client = self.start({"x": self.SLEEP, "quick": "echo quick"}, {"MCPBASH_DEFAULT_TOOL_TIMEOUT": "0.5"})
        error = client.call("x")["structuredContent"]["error"]

        self.assertEqual(("fixed", 0.5), (error["reason"], error["timeoutSecs"]))
        self.assertEqual("quick\n", client.text("quick"))

    def test_a_client_can_shorten_but_never_lengthen_or_switch_off(self):
        # PA-21
        tools = {"x": (self.SLEEP, {"timeoutSecs": 0.6}), "long": (self.SLEEP, {"timeoutSecs": 500})}
        client = self.start(tools)
        rows = [("x", asked, 0.6) for asked in (999999999, -1, 0, "1e9", "0", True, False, None, [], {}, 10**30, 1e308)]
        rows += [("long", asked, asked) for asked in (0.3, 1)]
        running = [client.send_call(name, params={"timeoutSecs": asked}) for name, asked, _ in rows]
        for (name, asked, expected), number in zip(rows, running):
            with self.subTest(name=name, asked=asked):
                error = client.response(number)["result"]["structuredContent"]["error"]

                self.assertEqual(("fixed", expected), (error["reason"], error["timeoutSecs"]))

    def test_progress_extends_an_idle_timeout_up_to_the_cap(self):
        steps = "for i in 1 2 3 4 5 6 7 8; do printf 'progress\\t%s\\t8\\t\\0' $i >&7; sleep 0.25; done\n"
        forever = "i=0; while :; do i=$((i+1)); printf 'progress\\t%s\\t\\t\\0' $i >&7; sleep 0.1; done\n"
        idle = {"timeoutSecs": 1.2, "progressExtendsTimeout": True}
        client = self.start(
            {
                "steps": (steps + "echo done", idle),
                "silent": ("sleep 600", {**idle, "timeoutSecs": 0.4}),
                "forever": (forever, {**idle, "maxTimeoutSecs": 1.5, "timeoutHint": "h"}),
                "fixed": (steps + "echo done", {"timeoutSecs": 0.5}),
            }
        )
        running = {name: client.send_call(name, token=name) for name in ("steps", "silent", "forever", "fixed")}
        results = {name: client.response(number)["result"] for name, number in running.items()}

        self.assertEqual("done\n", support.text_of(results["steps"]))
        error = {name: results[name]["structuredContent"]["error"] for name in ("silent", "forever", "fixed")}
        self.assertEqual("Tool timed out after 0.4s (no progress reported)", error["silent"]["message"])
        self.assertEqual(
            ("idle", True, 600),
            tuple(error["silent"][key] for key in ("reason", "progressExtendsTimeout", "maxTimeoutSecs")),
        )
        self.assertEqual("Tool exceeded maximum runtime of 1.5s\n\nSuggestion: h", error["forever"]["message"])
        self.assertEqual(("max_exceeded", 1.5), (error["forever"]["reason"], error["forever"]["maxTimeoutSecs"]))
        self.assertEqual("fixed", error["fixed"]["reason"])
        self.assertNotIn("progressExtendsTimeout", error["fixed"])

    def test_progress_extends_even_when_nobody_asked_to_hear_of_it(self):
        steps = "for i in 1 2 3 4 5 6; do printf 'progress\\t%s\\t\\t\\0' $i >&7; sleep 0.25; done; echo done\n"
        client = self.start({"x": (steps, {"timeoutSecs": 1.2})}, {"MCPBASH_PROGRESS_EXTENDS_TIMEOUT": "true"})

        self.assertEqual("done\n", client.text("x"))
        self.assertEqual([], client.notifications("notifications/progress"))

    def test_what_a_tool_reported_before_its_timeout_is_not_lost(self):
        client = self.start({"x": (RECORD % r"progress\t1\t2\thalf" + self.SLEEP, {"timeoutSecs": 0.5})})
        client.call("x", token=1)

        self.assertEqual([1], [note["params"]["progress"] for note in client.notifications("notifications/progress")])


class ProgressTest(Tools):
    def progress(self, client: support.Client) -> list[dict]:
        """Return the params of all progress so far."""
        return [note["params"] for note in client.notifications("notifications/progress")]

    def test_a_token_comes_back_as_it_was_in_every_version(self):
        # R-126, R-128, R-129
        client = self.start({"x": RECORD % r"progress\t40\t100\thalf way" + RECORD % r"progress\t50\t\t" + "echo done"})
        seen = 0
        for version in support.VERSIONS:
            for token in ("t", 0, 7, "", "0", -1, 2**60):
                with self.subTest(version=version, token=token):
                    self.raw_call(client, version, "x", _meta={"progressToken": token})
                    notes = self.progress(client)[seen:]
                    seen += len(notes)
                    first = {"progressToken": token, "progress": 40, "total": 100, "message": "half way"}
                    if version == "2024-11-05":
                        del first["message"]
                    self.assertEqual([first, {"progressToken": token, "progress": 50}], notes)
                    self.assertIs(type(token), type(notes[0]["progressToken"]))

    def test_without_a_token_there_is_no_progress(self):
        # R-126
        client = self.start({"x": RECORD % r"progress\t1\t\t" + "echo done"})
        for version in support.VERSIONS:
            self.raw_call(client, version, "x")
        self.assertEqual([], self.progress(client))
        client.call("x", token="t")
        self.assertEqual(1, len(self.progress(client)))

    def test_progress_is_live(self):
        client = self.start({"x": RECORD % r"progress\t1\t\tnow" + "read -r line <go; echo done"})
        os.mkfifo(client.project.path("go"))
        number = client.send_call("x", token="t")
        client.expect({"method": "notifications/progress", "params": {"message": "now"}})
        self.assertEqual([], client.responses_to(number))
        with open(client.project.path("go"), "w", encoding="ascii") as stream:
            stream.write("\n")
        self.assertEqual("done\n", support.text_of(client.response(number)["result"]))

    def test_progress_can_be_held_back_until_just_before_the_response(self):
        client = self.start(
            {"x": RECORD % r"progress\t1\t\ta" + "read -r line <go; " + RECORD % r"log\tinfo\tl\tb" + "echo done"},
            {"MCPBASH_ENABLE_LIVE_PROGRESS": "false"},
        )
        os.mkfifo(client.project.path("go"))
        number = client.send_call("x", token="t", log_level="info")
        with open(client.project.path("go"), "w", encoding="ascii") as stream:  # opens when the tool has come this far
            client.fence()
            self.assertEqual([], client.notifications())
            stream.write("\n")
        client.response(number)

        self.assertEqual(
            ["notifications/progress", "notifications/message"], [note["method"] for note in client.notifications()]
        )

    # records of one call, values that are forwarded
    VALUES = (
        (("1", "2", "3"), [1, 2, 3]),
        (("3", "2", "3", "4"), [3, 4]),
        (("1", "1", "1.5", "1.5"), [1, 1.5]),
        (("0", "0"), [0]),
        (("-5", "-4"), [-5, -4]),
        (("nan", "inf", "-inf", "1e999", "x", "", "1"), [1]),
        (("1e3", "1e2", "2e3"), [1000, 2000]),
        (("0x10", "1_000", "٣", "5"), [5]),
        ((" 1", "+2", "9" * 400, "3"), None),
    )

    def test_progress_only_rises(self):
        # R-127
        tools = {
            "t%d" % number: "".join(RECORD % ("progress\\t%s\\t\\t" % value) for value in values) + "echo"
            for number, (values, _) in enumerate(self.VALUES)
        }
        client = self.start(tools)
        seen = 0
        for number, (values, expected) in enumerate(self.VALUES):
            with self.subTest(values=values):
                client.call("t%d" % number, token=number)
                notes = self.progress(client)[seen:]
                seen += len(notes)
                if (
                    expected is not None
                ):  # else whatever is made of them: the checker sees that it rises and is a number
                    self.assertEqual(expected, [note["progress"] for note in notes])

    def test_the_rate_is_limited_per_call(self):
        # RX-13
        many = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); printf 'progress\\t%s\\t\\t\\0' $i; done >&7; echo done\n"
        for env, expected in (
            ({}, 100),
            ({"MCPBASH_MAX_PROGRESS_PER_MIN": "5"}, 5),
            ({"MCPBASH_MAX_PROGRESS_PER_MIN": "0"}, 300),
        ):
            with self.subTest(env=env):
                client = self.start({"x": many}, env)
                for token in (1, 2):
                    client.call("x", token=token)

                self.assertEqual(2 * expected, len(self.progress(client)))

    def test_tokens_of_the_wrong_kind_are_refused(self):
        # PA-22
        client = self.start({"x": RECORD % r"progress\t1\t\t" + "echo done"})
        for token in ({}, [], True, False, 1.5, "x" * 1_000_000):
            for version in (OLD[-1], NEW):
                with self.subTest(token=str(token)[:20], version=version):
                    answer = self.raw_call(client, version, "x", _meta={"progressToken": token})
                    self.assertEqual(-32602, answer.get("error", {}).get("code"), answer)
        self.assertEqual([], self.progress(client))
        self.assertEqual("done\n", client.text("x", token="fine"))

    def test_a_token_in_use_serves_one_call_only(self):
        # PA-22: "-32602 or no progress"; two sources would break the rule that a token's progress rises
        script = (
            'read -r line <"$(printf %s "$MCP_TOOL_ARGS_JSON" | tr -cd a-z)"; '
            + RECORD % r"progress\t5\t\t"
            + "echo done"
        )
        client = self.start({"x": script})
        for name in ("a", "b"):
            os.mkfifo(client.project.path("n" + name))
        first = client.send_call("x", {"n": "a"}, token="same")
        second = client.send_call("x", {"n": "b"}, token="same")
        for name, number in (("a", first), ("b", second)):
            path = client.project.path("n" + name)
            support.wait_until(lambda: client.responses_to(number) or self.released(path))  # noqa: B023
        answers = [client.response(number) for number in (first, second)]

        self.assertIn("result", answers[0])
        self.assertLessEqual(len(self.progress(client)), 1)

    @staticmethod
    def released(path: str) -> bool:
        """Let a tool go on that waits for a line from a named pipe; tell whether there is one yet."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False  # nobody reads yet
        os.write(descriptor, b"\n")
        os.close(descriptor)
        return True

    def test_records_of_the_channel_are_taken_by_their_fields(self):
        rows = (  # record, (progress, total, message)
            (r"progress\t1\t2\ttwo\nlines\tand a tab", (1, 2, "two\nlines\tand a tab")),
            (r"progress\t1\t2", (1, 2, None)),
            (r"progress\t1", (1, None, None)),
            (r"progress\t1\tx\tm", (1, None, "m")),
            (r"progress", None),
            (r"PROGRESS\t1\t2\tm", None),
            (r"unknown\t1", None),
            ("", None),
            (r"progress 1 2 m", None),
        )
        client = self.start({"t%d" % number: RECORD % record + "echo" for number, (record, _) in enumerate(rows)})
        seen = 0
        for number, (record, expected) in enumerate(rows):
            with self.subTest(record=record):
                client.call("t%d" % number, token=number)
                notes = self.progress(client)[seen:]
                seen += len(notes)
                found = [tuple(note.get(key) for key in ("progress", "total", "message")) for note in notes]
                self.assertEqual([expected] if expected else [], found)

    def test_a_record_beyond_its_limit_is_dropped_and_the_next_is_read(self):
        big = "{ printf 'progress\\t1\\t\\t'; head -c 100000 /dev/zero | tr '\\0' x; printf '\\0'; } >&7\n"
        client = self.start({"x": big + RECORD % r"progress\t2\t\tafter" + "echo done"})
        client.call("x", token="t")

        self.assertEqual([2], [note["progress"] for note in self.progress(client)])

    def test_records_do_not_depend_on_how_the_pipe_cuts_them(self):
        """A shell may write line by line, and a busy machine reads what is there: every cut gives the same records."""
        text = b'\n\n{"a":1}\n\n\nprogress\t1\t\tx\0\n\n\nlog\tinfo\tl\ttwo\nlines\0'
        text += b'{"b":2}\n\n{broken\n{\n\n\nprogress\t2\t\ty\0'
        expected = [
            b'{"a":1}',
            b"progress\t1\t\tx",
            b"log\tinfo\tl\ttwo\nlines",
            b'{"b":2}',
            b"{broken",
            b"{",
            b"progress\t2\t\ty",
        ]
        places = range(len(text) + 1)
        cuts = [(), tuple(places[1:-1]), *((one, two) for one in places for two in places[one:])]
        for cut in cuts:
            records = mcp_bash.Records()
            edges = [0, *cut, len(text)]
            found = [record for start, end in zip(edges, edges[1:]) for record in records.feed(text[start:end])]

            self.assertEqual(expected, found, "cut at %s" % (cut,))

    def test_lines_as_older_tools_write_them_are_understood(self):
        line = {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": "forged", "progress": 5, "total": None, "message": "m"},
        }
        note = {
            "jsonrpc": "2.0",
            "method": "notifications/message",
            "params": {"level": "info", "logger": "l", "data": {"a": 1}},
        }
        script = (
            "printf '%%s\\n' %s >>\"$MCP_PROGRESS_STREAM\"; printf '%%s\\n' %s >>\"$MCP_LOG_STREAM\"; echo done"
            % (shlex.quote(json.dumps(line)), shlex.quote(json.dumps(note)))
        )
        client = self.start({"x": script})
        client.call("x", token="mine", log_level="info")

        self.assertEqual([{"progressToken": "mine", "progress": 5, "message": "m"}], self.progress(client))
        self.assertEqual([note["params"]], [each["params"] for each in client.notifications("notifications/message")])

    def test_nothing_else_can_be_said_through_the_channel(self):
        # LG-05
        lines = (
            {"jsonrpc": "2.0", "id": "other", "result": {}},
            {"jsonrpc": "2.0", "id": 1, "result": {"content": []}},
            {"jsonrpc": "2.0", "id": 5, "method": "sampling/createMessage", "params": {}},
            {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
            {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "loud", "data": 1}},
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": "5"}},
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": True}},
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": 5},
            {"method": ["notifications/progress"]},
        )
        text = "".join("printf '%%s\\n' %s >&7\n" % shlex.quote(json.dumps(line)) for line in lines)
        text += "printf '{broken\\n{\\n\\n\\n' >&7\n" + RECORD % r"progress\t1\t\tend" + "echo done"
        client = self.start({"x": text})
        client.initialize()
        client.call("x", token="t")

        self.assertEqual(["notifications/progress"], [note["method"] for note in client.notifications()])
        self.assertEqual("end", self.progress(client)[0]["message"])


class LogTest(Tools):
    LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
    ALL = "".join(RECORD % (r"log\t%s\tl\t%s" % (level, level)) for level in LEVELS) + "echo done"

    def logs(self, client: support.Client) -> list[dict]:
        """Return the params of the log messages of tools."""
        notes = client.notifications("notifications/message")
        return [note["params"] for note in notes if not note["params"].get("logger", "").startswith("mcp.")]

    def test_the_newest_version_hears_only_what_the_request_asked_for(self):
        # R-121, R-122, R-125, LG-07
        client = self.start({"x": self.ALL})
        seen = 0
        for asked in (None, *self.LEVELS):
            with self.subTest(asked=asked):
                client.call("x", log_level=asked)
                notes = self.logs(client)[seen:]
                seen += len(notes)
                expected = self.LEVELS[self.LEVELS.index(asked) :] if asked else ()

                self.assertEqual([{"level": level, "logger": "l", "data": level} for level in expected], notes)

    def test_an_unknown_level_is_refused(self):
        # R-123
        client = self.start({"x": self.ALL})
        for level in ("loud", "", 5, None, "INFO"):
            with self.subTest(level=level):
                params = support.stateless({"name": "x"})
                params["_meta"][support.PREFIX + "logLevel"] = level
                self.assertEqual(-32602, client.error("tools/call", params)["code"])
        self.assertEqual([], self.logs(client))

    def test_a_session_hears_from_its_level_on(self):
        # R-124
        for version in OLD:
            client = self.start({"x": self.ALL})
            client.initialize(version)
            seen = 0
            for level in (None, "debug", "error", "emergency", "info"):
                with self.subTest(version=version, level=level):
                    if level:
                        self.assertEqual({}, client.result("logging/setLevel", {"level": level}))
                    client.call("x")
                    notes = self.logs(client)[seen:]
                    seen += len(notes)
                    self.assertEqual(
                        list(self.LEVELS[self.LEVELS.index(level or "info") :]), [note["level"] for note in notes]
                    )
            for level in ("loud", None, 5, "", ["info"]):
                self.assertEqual(-32602, client.error("logging/setLevel", {"level": level})["code"])

    def test_the_first_level_of_a_session_is_the_operators(self):
        client = self.start({"x": self.ALL}, {"MCPBASH_LOG_LEVEL": "critical"})
        client.initialize()
        client.call("x")

        self.assertEqual(["critical", "alert", "emergency"], [note["level"] for note in self.logs(client)])

    def test_one_era_does_not_change_the_level_of_the_other(self):
        client = self.start({"x": self.ALL})
        client.initialize()
        client.result("logging/setLevel", {"level": "emergency"})
        client.call("x", modern=True, log_level="alert")
        client.call("x", modern=True)
        client.call("x")

        self.assertEqual(["alert", "emergency", "emergency"], [note["level"] for note in self.logs(client)])

    # record, (level, logger, data)
    RECORDS = (
        (r"log\tinfo\tlogger\ttext with\ttab\nand line", ("info", "logger", "text with\ttab\nand line")),
        (r"log\tWARN\tl\tm", ("warning", "l", "m")),
        (r"log\tError\tl\tm", ("error", "l", "m")),
        (r"log\tloud\tl\tm", ("info", "l", "m")),
        (r"log\tinfo\tl\t", ("info", "l", "")),
        (r"logjson\tinfo\tl\t{\"a\":[1,null]}", ("info", "l", {"a": [1, None]})),
        (r"logjson\tinfo\tl\t5", ("info", "l", 5)),
        (r"logjson\tinfo\tl\t{broken", ("info", "l", "{broken")),
        (r"log\tinfo\tl\t{\"a\":1}", ("info", "l", '{"a":1}')),
    )

    def test_records_become_log_messages(self):
        client = self.start(
            {"t%d" % number: RECORD % record + "echo" for number, (record, _) in enumerate(self.RECORDS)}
        )
        client.initialize()
        seen = 0
        for number, (record, expected) in enumerate(self.RECORDS):
            with self.subTest(record=record):
                client.call("t%d" % number)
                notes = self.logs(client)[seen:]
                seen += len(notes)
                self.assertEqual([expected], [(note["level"], note.get("logger", ""), note["data"]) for note in notes])

    def test_progress_and_logs_come_in_order_and_before_the_response(self):
        # R-122, R-128
        script = (
            "".join(RECORD % (r"progress\t%d\t\t" % n) + RECORD % (r"log\tinfo\tl\t%d" % n) for n in range(1, 11))
            + "echo done"
        )
        client = self.start({"x": script})
        for _ in range(5):
            before = len(client.messages)
            number = client.send_call("x", token="t", log_level="info")
            client.response(number)
            messages = client.messages[before:]
            self.assertEqual(number, messages[-1]["id"])
            values = [note["params"].get("progress") or int(note["params"]["data"]) for note in messages[:-1]]
            self.assertEqual([n for n in range(1, 11) for _ in "pl"], values)

    def test_the_rate_is_limited_per_call(self):
        many = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); printf 'log\\tinfo\\tl\\t%s\\0' $i; done >&7; echo done\n"
        for env, expected in (({}, 100), ({"MCPBASH_MAX_LOGS_PER_MIN": "0"}, 300)):
            with self.subTest(env=env):
                client = self.start({"x": many}, env)
                client.call("x", log_level="debug")

                self.assertEqual(expected, len(self.logs(client)))

    def test_a_tool_without_records_says_nothing(self):
        client = self.start({"x": "echo out; echo err >&2"})
        client.initialize()
        client.result("logging/setLevel", {"level": "debug"})
        client.call("x", token=1)

        self.assertEqual([], self.logs(client))
        self.assertEqual([], client.notifications("notifications/progress"))


class HostileSchemaTest(support.Case):
    def test_a_pattern_that_explodes_holds_nobody_up(self):  # PR-16
        project = self.new_project()
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
        project.tool("x", "echo ran", {"name": "x", "inputSchema": schema})
        client = self.new_client(project)
        client.initialize()
        client.text("x", {"a": "aaa"})  # the control: the tool runs
        number = client.send_call("x", {"a": "a" * 40 + "!"})
        self.assertEqual({}, client.result("ping", timeout=5))
        answer = client.response(number, timeout=5)

        self.assertTrue("result" in answer or answer["error"]["code"] == -32602, answer)


if __name__ == "__main__":
    unittest.main()
