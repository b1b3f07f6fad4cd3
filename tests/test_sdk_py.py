#!/usr/bin/env python3
"""sdk/tool_sdk.py, imported by real tool processes with a real pipe as channel and no server."""

from __future__ import annotations

import ast
import base64
import json
import os
import subprocess
import sys
import tempfile
import unittest

SDK = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "sdk")
DEADLINE = 60.0  # says "hangs", not "is slow"
IMPORT = 'import os, sys; sys.path.insert(0, os.environ["MCP_SDK"])\nimport tool_sdk as mcp\n'

# Every public name -> the class that tests it. A name that is missing here fails a test.
NAMES = {
    "args": "ArgumentTest",
    "arg": "ArgumentTest",
    "meta": "ArgumentTest",
    "progress": "LiveTest",
    "log": "LiveTest",
    "cancelled": "LiveTest",
    "is_cancelled": "LiveTest",
    "result": "ResultTest",
    "error": "ResultTest",
    "text": "ResultTest",
    "image": "ResultTest",
    "audio": "ResultTest",
    "link": "ResultTest",
    "fail": "FailingTest",
    "main": "RunningTest",
    "run": "RunningTest",
}


class Run:
    """What a tool printed, how it ended, and the records it wrote to the channel."""

    def __init__(self, status: int, out: bytes, err: bytes, channel: bytes) -> None:
        self.status = status
        self.out = out.decode("utf-8")
        self.err = err.decode("utf-8", "replace")
        self.records = [tuple(part.decode("utf-8").split("\t", 3)) for part in channel.split(b"\0")[:-1]]

    @property
    def json(self) -> dict:
        """The one line of JSON on stdout."""
        assert self.out.endswith("\n") and self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="sdk-")
        self.addCleanup(directory.cleanup)
        self.scratch = directory.name

    def path(self, name: str) -> str:
        return os.path.join(self.scratch, name)

    def write(self, name: str, data: bytes) -> str:
        with open(self.path(name), "wb") as stream:
            stream.write(data)
        return self.path(name)

    def read(self, name: str) -> str:
        with open(self.path(name), encoding="utf-8") as stream:
            return stream.read()

    def tool(self, code: str, arguments: object = None, channel: bool = True, **extra: str) -> Run:
        """Run `code` as a tool that has imported the SDK as `mcp`."""
        env = dict({"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "MCP_SDK": SDK}, **extra)
        if arguments is not None:
            env["MCP_TOOL_ARGS_JSON"] = json.dumps(arguments)
        name = self.write("tool.py", (IMPORT + code).encode("utf-8"))
        reader, writer = os.pipe()
        try:
            if channel:
                env["MCP_CHANNEL_FD"] = str(writer)
            done = subprocess.run(
                [sys.executable, "-B", name],
                env=env,
                cwd=self.scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=[writer] if channel else [],
                timeout=DEADLINE,
            )
            os.close(writer)
            writer = -1
            with os.fdopen(reader, "rb", closefd=False) as stream:
                return Run(done.returncode, done.stdout, done.stderr, stream.read())
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)

    def good(self, code: str, *arguments: object, **options: object) -> Run:
        """Run a tool that must end with 0 and say nothing on stderr."""
        run = self.tool(code, *arguments, **options)
        self.assertEqual((0, ""), (run.status, run.err))
        return run


class ModuleTest(Case):
    def test_every_public_name_has_a_test_class_that_uses_it(self):
        names = self.good("print(*sorted(mcp.__all__))").out.split()
        self.assertEqual(sorted(NAMES), names)
        with open(os.path.abspath(__file__), encoding="utf-8") as stream:
            parts = stream.read().split("\nclass ")
        for name, place in NAMES.items():
            body = next(part for part in parts if part.startswith(place + "("))
            with self.subTest(name):
                self.assertIn("mcp." + name, body)

    def test_importing_it_imports_nothing_else(self):
        script = (
            'import os, sys; sys.path.insert(0, os.environ["MCP_SDK"]); before = set(sys.modules); import tool_sdk\n'
            "print(sorted(set(sys.modules) - before - {'tool_sdk', '__future__'}))"
        )
        done = subprocess.run(
            [sys.executable, "-B", "-c", script],
            env={"MCP_SDK": SDK},
            stdout=subprocess.PIPE,
            text=True,
            timeout=DEADLINE,
        )

        self.assertEqual("[]\n", done.stdout)

    def test_it_is_typed_and_documented(self):
        with open(os.path.join(SDK, "tool_sdk.py"), encoding="utf-8") as stream:
            tree = ast.parse(stream.read())
        public = [
            node
            for part in ast.walk(tree)
            if isinstance(part, (ast.Module, ast.ClassDef))
            for node in part.body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        ]
        self.assertGreater(len(public), 15)
        for node in public:
            with self.subTest(node.name):
                self.assertTrue(ast.get_docstring(node))
                self.assertIsNotNone(node.returns)
                arguments = [argument for argument in node.args.args if argument.arg != "self"]
                self.assertEqual([], [argument.arg for argument in arguments if argument.annotation is None])

    def test_the_idiom_in_its_docstring_works(self):
        with open(os.path.join(SDK, "tool_sdk.py"), encoding="utf-8") as stream:
            text = ast.get_docstring(ast.parse(stream.read()))
        lines = text.split("::\n\n", 1)[1].split("\n\nWhat the function returns")[0]
        code = "\n".join(line[4:] for line in lines.split("\n"))
        name = self.write("example.py", code.encode("utf-8"))
        env = {"MCP_SDK": SDK, "MCP_TOOL_ARGS_JSON": '{"name": "Ada"}', "MCP_LOG_LEVEL": "none"}
        done = subprocess.run([sys.executable, "-B", name], env=env, stdout=subprocess.PIPE, timeout=DEADLINE)

        self.assertEqual({"greeting": "hello Ada", "count": 1}, json.loads(done.stdout)["structuredContent"])


class ArgumentTest(Case):
    ARGUMENTS = {
        "name": "Ada",
        "zero": 0,
        "no": False,
        "empty": "",
        "nothing": None,
        "list": [1, {"x y": "deep"}],
        "a.b": "dotted",
        "box": {"in": {"side": 5}},
        'q"q': 1,
        "\u00e9": 2,
        "nul": "a\0b",
    }

    def test_all_arguments_and_the_metadata(self):
        code = "import json; print(json.dumps([mcp.args(), mcp.meta()]))"
        run = self.good(code, self.ARGUMENTS, MCP_TOOL_META_JSON='{"token": 1}')
        self.assertEqual([self.ARGUMENTS, {"token": 1}], json.loads(run.out))

        self.assertEqual([{}, {}], json.loads(self.good(code).out))

    def test_one_argument_by_name_or_path(self):
        cases = {
            "name": "Ada",
            "zero": 0,
            "no": False,
            "empty": "",
            "a.b": "dotted",
            "list[0]": 1,
            ".list[-2]": 1,
            '.list[1]["x y"]': "deep",
            "box.in.side": 5,
            ".box.in.side": 5,
            '["q\\"q"]': 1,
            "\u00e9": 2,
            '.["\\u00e9"]': 2,
            '."name"': "Ada",
            ".": self.ARGUMENTS,
        }
        code = "import json; print(json.dumps([mcp.arg(path) for path in %r]))" % list(cases)

        self.assertEqual(list(cases.values()), json.loads(self.good(code, self.ARGUMENTS).out))

    def test_a_default_stands_for_what_is_absent_or_null(self):
        paths = ["missing", "nothing", "list[9]", "name.first", "name[0]", "box.in.side.more", "zero"]
        code = "import json; print(json.dumps([mcp.arg(path, 'D') for path in %r] + [mcp.arg('x', None)]))" % paths

        self.assertEqual(["D"] * 6 + [0, None], json.loads(self.good(code, self.ARGUMENTS).out))

    def test_without_a_default_the_call_fails(self):
        run = self.tool("mcp.arg('.missing')", self.ARGUMENTS)

        self.assertEqual((1, {"code": -32602, "message": ".missing is required"}), (run.status, run.json))

    def test_a_path_that_is_none_is_the_tools_mistake(self):
        run = self.tool("mcp.arg('a[', 1)", self.ARGUMENTS)

        self.assertNotEqual(0, run.status)
        self.assertIn('"a[" is not a path', run.err)

    def test_a_file_takes_the_place_of_the_variable(self):
        name = self.write("args.json", '{"a": "\u00e9"}'.encode())
        run = self.good("print(ascii(mcp.arg('a')))", {"a": "variable"}, MCP_TOOL_ARGS_FILE=name)

        self.assertEqual("'\\xe9'\n", run.out)

    def test_invalid_json_is_reported(self):
        run = self.tool("mcp.args()", MCP_TOOL_ARGS_JSON="{oops")

        self.assertEqual(-32602, run.json["code"])
        self.assertIn("MCP_TOOL_ARGS_JSON is not valid JSON", run.err)


class LiveTest(Case):
    def test_progress_is_a_record(self):
        code = (
            "mcp.progress(1, 4, 'one\\nof\\tfour'); mcp.progress(2.5); mcp.progress(3, 3.5, 'x')\n"
            "mcp.progress(float('nan'), float('inf'), 'a\\0b'); mcp.progress(10**20)"
        )
        self.assertEqual(
            [
                ("progress", "1", "4", "one\nof\tfour"),
                ("progress", "2.5", "", ""),
                ("progress", "3", "3.5", "x"),
                ("progress", "0", "0", "a\ufffdb"),
                ("progress", "1" + "0" * 20, "", ""),
            ],
            self.good(code).records,
        )

    def test_logs_are_records(self):
        code = (
            "for level in ('debug', 'info', 'notice', 'warning', 'error', 'critical'): getattr(mcp.log, level)('t')\n"
            "mcp.log('WARN', {'a': [1, None, '\u00e9']}, logger='l\\tx'); mcp.log('alert', 'plain')"
        )
        records = self.good(code, MCP_TOOL_NAME="me").records
        self.assertEqual(
            [("log", level, "me", "t") for level in ("debug", "info", "notice", "warning", "error", "critical")],
            records[:6],
        )
        self.assertEqual(("logjson", "warning", "l x"), records[6][:3])
        self.assertEqual({"a": [1, None, "\u00e9"]}, json.loads(records[6][3]))

        self.assertEqual(("log", "alert", "me", "plain"), records[7])

    def test_levels_nobody_listens_to_are_not_written(self):
        code = "for level in ('debug', 'info', 'warning', 'error'): mcp.log(level, level)"
        for lowest, count in (("debug", 4), ("info", 3), ("warning", 2), ("emergency", 0), ("none", 0), ("odd", 4)):
            with self.subTest(lowest):
                self.assertEqual(count, len(self.good(code, MCP_LOG_LEVEL=lowest).records))

    def test_an_unknown_level_is_the_tools_mistake(self):
        run = self.tool("mcp.log('loud', 'x')")

        self.assertIn('ValueError: "loud" is not a log level', run.err)

    def test_long_messages_are_cut_to_what_a_record_can_hold(self):
        record = self.good("mcp.log.info('x' * 100000)").records[0]

        self.assertEqual("x" * 60000 + " [cut]", record[3])

    def test_by_hand_logs_go_to_stderr_and_progress_nowhere(self):
        run = self.tool("mcp.progress(1, 2); mcp.log.info('text', logger='l')", channel=False)

        self.assertEqual((0, "", "[info] l: text\n"), (run.status, run.out, run.err))

    def test_a_closed_channel_is_survived(self):
        code = (
            "import os; os.close(int(os.environ['MCP_CHANNEL_FD'])); mcp.progress(1); mcp.log.info('x'); mcp.result(1)"
        )
        run = self.tool(code)

        self.assertEqual((0, {"result": 1}), (run.status, run.json["structuredContent"]))

    def test_cancellation_is_a_file(self):
        code = "a = mcp.cancelled(); open('flag', 'w').close(); print(a, mcp.cancelled(), mcp.is_cancelled())"

        self.assertEqual("False True True\n", self.good(code, MCP_CANCEL_FILE=self.path("flag")).out)
        self.assertEqual("False\n", self.good("print(mcp.cancelled())").out)


class ResultTest(Case):
    def test_text(self):
        text = 'a "b"\n\u00e9\u2028\U0001f600\x01'

        self.assertEqual(
            {"content": [{"type": "text", "text": text}], "isError": False}, self.good("mcp.result(%r)" % text).json
        )

    def test_an_object_is_structured_content(self):
        value = {"a": [1, 2.5, None, True], "\u00e9": '"'}
        result = self.good("mcp.result(%r)" % value).json

        self.assertEqual(value, result["structuredContent"])
        self.assertEqual(value, json.loads(result["content"][0]["text"]))

    def test_other_values_are_wrapped(self):
        for value in ([1, "a"], 5, True, []):
            with self.subTest(value):
                self.assertEqual({"result": value}, self.good("mcp.result(%r)" % value).json["structuredContent"])

    def test_what_json_does_not_know_is_expressed(self):
        code = (
            "import datetime, pathlib\n"
            "mcp.result({'p': pathlib.Path('a'), 'd': datetime.date(2025, 1, 2), 's': {3, 1}})"
        )

        self.assertEqual({"p": "a", "d": "2025-01-02", "s": [1, 3]}, self.good(code).json["structuredContent"])

    def test_what_cannot_be_expressed_is_the_tools_mistake(self):
        self.assertIn("object cannot be expressed as JSON", self.tool("mcp.result({'a': object()})").err)
        self.assertNotEqual(0, self.tool("mcp.result({'a': float('nan')})").status)

    def test_blocks(self):
        self.write("dot.png", b"\x89PNG")
        code = (
            "mcp.result([mcp.text('t'), mcp.image('dot.png'), mcp.audio(b'RIFF', 'audio/wav'),\n"
            "            mcp.link('file:///a', 'a', mime='text/plain', description='d')])"
        )
        self.assertEqual(
            [
                {"type": "text", "text": "t"},
                {"type": "image", "data": base64.b64encode(b"\x89PNG").decode(), "mimeType": "image/png"},
                {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
                {
                    "type": "resource_link",
                    "uri": "file:///a",
                    "name": "a",
                    "mimeType": "text/plain",
                    "description": "d",
                },
            ],
            self.good(code).json["content"],
        )
        self.assertEqual(["image"], [b["type"] for b in self.good("mcp.result(mcp.image('dot.png'))").json["content"]])

    def test_a_block_of_the_wrong_type_is_refused(self):
        self.assertIn('the type of x.txt is "unknown"; expected image/', self.tool("mcp.image('x.txt')").err)

    def test_an_error_the_model_can_read(self):
        run = self.good("mcp.error('no \"x\"', type='not_found', hint='look', data={'a': 1})")

        self.assertEqual(
            {
                "content": [{"type": "text", "text": 'no "x"'}],
                "isError": True,
                "structuredContent": {
                    "success": False,
                    "error": {"type": "not_found", "message": 'no "x"', "hint": "look", "data": {"a": 1}},
                },
            },
            run.json,
        )


class FailingTest(Case):
    def test_the_error_goes_to_the_file_to_stdout_and_to_stderr(self):
        target = self.write("error", b"")
        run = self.tool(
            "mcp.fail('it \"broke\"', code=-32001, data={'a': 1}); print('not reached')", MCP_TOOL_ERROR_FILE=target
        )
        error = {"code": -32001, "message": 'it "broke"', "data": {"a": 1}}

        self.assertEqual((1, error, 'it "broke"\n', []), (run.status, run.json, run.err, run.records))
        self.assertEqual(error, json.loads(self.read("error")))

    def test_without_a_file_the_channel_carries_it(self):
        for extra in ({}, {"MCP_TOOL_ERROR_FILE": self.path("no/such/directory")}):
            with self.subTest(extra):
                self.assertEqual(
                    [("fail", "-32603", "[1]", "m")], self.tool("mcp.fail('m', data=[1])", **extra).records
                )


class RunningTest(Case):
    def run_main(self, body: str, arguments: object = None, signature: str = "", **extra: str) -> Run:
        return self.tool("@mcp.main\ndef tool(%s):\n    %s\n" % (signature, body), arguments, **extra)

    def test_parameters_are_arguments_and_the_return_value_is_the_result(self):
        run = self.run_main(
            "return {'n': name, 'c': count, 'k': key}",
            {"name": "Ada", "key": 3, "other": 1},
            "name, count=2, *, key, more=None",
        )

        self.assertEqual({"n": "Ada", "c": 2, "k": 3}, run.json["structuredContent"])

    def test_all_arguments_can_be_taken(self):
        run = self.run_main("return {'a': a, 'rest': rest}", {"a": 1, "b": 2}, "a, **rest")

        self.assertEqual({"a": 1, "rest": {"b": 2}}, run.json["structuredContent"])

    def test_a_missing_argument_fails_the_call(self):
        run = self.run_main("return 1", {"b": 1}, "a, b")

        self.assertEqual((1, {"code": -32602, "message": "a is required"}), (run.status, run.json))

    def test_an_exception_is_an_error_result(self):
        cases = {
            "raise FileNotFoundError('gone')": "not_found",
            "raise PermissionError('no')": "permission_denied",
            "raise TimeoutError('late')": "timeout",
            "raise ConnectionError('net')": "network_error",
            "raise ValueError('bad')": "validation_error",
            "raise RuntimeError('odd')": "internal_error",
        }
        for body, kind in cases.items():
            with self.subTest(body):
                run = self.run_main(body)
                error = run.json["structuredContent"]["error"]
                self.assertEqual((0, True, kind), (run.status, run.json["isError"], error["type"]))
                self.assertIn(body.split("'")[1], run.json["content"][0]["text"])
                self.assertIn("Traceback", run.err)
                self.assertNotIn("Traceback", run.out)

    def test_an_exception_without_text_is_named(self):
        self.assertEqual("AssertionError", self.run_main("raise AssertionError").json["content"][0]["text"])

    def test_by_hand_an_exception_is_a_failure_of_the_program(self):
        self.assertEqual(1, self.run_main("raise ValueError('x')", channel=False).status)

    def test_stray_output_does_not_damage_the_result(self):
        run = self.run_main("print('stray'); return 'text'")

        self.assertEqual(("text", "stray\n"), (run.json["content"][0]["text"], run.err))

    def test_printed_output_is_the_result_when_nothing_is_returned(self):
        self.assertEqual("one\ntwo\n", self.run_main("print('one'); print('two')").out)

    def test_an_explicit_result_counts(self):
        run = self.run_main("print('stray'); mcp.result('explicit')")

        self.assertEqual(("explicit", "stray\n"), (run.json["content"][0]["text"], run.err))

    def test_fail_and_exit_pass_through(self):
        self.assertEqual({"code": 7, "message": "m"}, self.run_main("print('stray'); mcp.fail('m', code=7)").json)
        self.assertEqual(3, self.run_main("sys.exit(3)").status)

    def test_a_coroutine_is_awaited(self):
        code = "import asyncio\n@mcp.main\nasync def tool(a):\n    await asyncio.sleep(0)\n    return a\n"

        self.assertEqual({"result": 5}, self.good(code, {"a": 5}).json["structuredContent"])

    def test_main_runs_nothing_in_a_module_that_is_imported(self):
        self.write("library.py", (IMPORT + "@mcp.main\ndef tool():\n    return 'ran'\n").encode())
        run = self.good("sys.path.insert(0, '.'); import library; print(library.tool())")

        self.assertEqual("ran\n", run.out)

    def test_run_returns_the_exit_status(self):
        self.assertEqual(
            '{"content":[{"type":"text","text":"x"}],"isError":false}\n0\n',
            self.good("print(mcp.run(lambda: 'x'))").out,
        )


if __name__ == "__main__":
    unittest.main()
