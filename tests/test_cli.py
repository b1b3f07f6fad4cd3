#!/usr/bin/env python3
"""Rooms 18 to 20: which project is served, what a person types, and the file that travels alone."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import unittest

import support

DISCOVER = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": support.stateless({})}) + "\n"


class CliCase(support.Case):
    def setUp(self):
        super().setUp()
        self.project = self.new_project()
        self.project.tool("greet", 'echo "hi $MCP_TOOL_ARGS_JSON"; echo note >&2')
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("MCP", "PYTHON"))}
        self.env["TMPDIR"] = self.project.tmp

    def run_it(self, *words: str, file: str = support.SERVER, stdin: str = "", **options: object):
        """Run the command line with plain pipes."""
        options.setdefault("cwd", self.project.tmp)
        command = [sys.executable, file, *words]
        return subprocess.run(
            command, input=stdin.encode(), capture_output=True, env=self.env, timeout=support.patient(30), **options
        )

    def tools(self, *words: str, **options: object) -> list[str]:
        """Return the names of the tools that a server started this way lists."""
        done = self.run_it(*words, stdin=DISCOVER, **options)
        return [tool["name"] for tool in json.loads(done.stdout)["result"]["tools"]]


class OptionsTest(CliCase):
    def test_help_names_every_command_and_version_is_one_line(self):
        usage = self.run_it("--help").stdout.decode()
        for name in ("run-tool", "settings", "--project-root"):
            self.assertIn(name, usage)
        self.assertRegex(self.run_it("--version").stdout.decode(), r"^mcp_bash \d+\.\d+\.\d+\n$")

    def test_an_unknown_command_is_refused_and_an_unknown_option_tolerated(self):
        done = self.run_it("serv")
        self.assertEqual((2, b""), (done.returncode, done.stdout))
        self.assertIn(b"Unknown command: serv", done.stderr)

        self.assertEqual(["greet"], self.tools("--verbose", "--project-root", self.project.root))


class ChoiceTest(CliCase):
    def test_the_option_comes_before_the_variable_and_the_variable_before_a_parent(self):
        other = self.new_project()
        other.tool("other", "echo")
        marked = self.new_project()
        marked.tool("marked", "echo")
        marked.file("server.d/server.meta.json", "{}")
        inside = os.path.join(marked.root, "tools")

        self.assertEqual(["marked"], self.tools(cwd=inside))
        self.env["MCPBASH_PROJECT_ROOT"] = other.root
        self.assertEqual(["other"], self.tools(cwd=inside))
        self.assertEqual(["greet"], self.tools("--project-root=" + self.project.root, cwd=inside))

    def test_a_directory_that_does_not_exist_is_an_error(self):
        done = self.run_it("--project-root", "/nonexistent")

        self.assertEqual(1, done.returncode)
        self.assertIn(b"--project-root directory does not exist", done.stderr)

    def test_alone_the_file_serves_the_project_around_it_or_a_getting_started_one(self):
        place = os.path.join(self.project.base, "alone")
        os.mkdir(place)
        file = shutil.copy(support.SERVER, place)
        self.assertEqual(["getting_started"], self.tools(file=file))

        shutil.copytree(os.path.join(self.project.root, "tools"), os.path.join(place, "tools"))
        self.assertEqual(["greet"], self.tools(file=file))

    def test_alone_the_file_brings_its_own_sdk(self):
        place = os.path.join(self.project.base, "alone")
        os.mkdir(place)
        file = shutil.copy(support.SERVER, place)
        self.project.tool("sdk", '#!/usr/bin/env bash\nsource "$MCP_SDK/tool-sdk.sh"; mcp_args_require .name')
        done = self.run_it("run-tool", "sdk", "--args", '{"name":"x"}', "--project-root", self.project.root, file=file)

        self.assertEqual("x", json.loads(done.stdout)["content"][0]["text"])
        self.assertEqual([], support.listing(self.project.tmp))

    def test_on_a_terminal_it_says_what_it_is(self):
        controller, terminal = pty.openpty()
        try:
            process = subprocess.Popen(
                [sys.executable, support.SERVER, "--project-root", self.project.root],
                stdin=terminal,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self.env,
                start_new_session=True,
            )
            os.close(terminal)
            os.write(controller, b"\x04")
            _, said = process.communicate(timeout=support.patient(20))
        finally:
            os.close(controller)

        self.assertIn(b"speaks the Model Context Protocol", said)
        self.assertIn(self.project.root.encode(), said)


class RunToolTest(CliCase):
    def run_tool(self, *words: str, stdin: str = ""):
        return self.run_it("run-tool", *words, "--project-root", self.project.root, stdin=stdin)

    def test_the_result_is_one_line_of_json(self):
        result = json.loads(self.run_tool("greet", "--args", '{"a": 1}').stdout)

        self.assertEqual('hi {"a":1}\n', result["content"][0]["text"])
        self.assertEqual({"exitCode": 0, "stderr": "note\n"}, result["_meta"])

    def test_arguments_may_come_from_a_file_or_from_stdin(self):
        self.project.file("args.json", '{"b": 2}')
        from_file = self.run_tool("greet", "--args", "@" + self.project.path("args.json"))
        from_stdin = self.run_tool("greet", "--args", "-", stdin='{"c": 3}')

        self.assertIn(b'{\\"b\\":2}', from_file.stdout)
        self.assertIn(b'{\\"c\\":3}', from_stdin.stdout)

    def test_what_cannot_be_run_is_an_error_with_a_reason(self):
        rows = (
            (("nope",), b"not found"),
            (("greet", "--args", "[1]"), b"must be a JSON object"),
            (("greet", "--args", "{"), b"is not JSON"),
            (("greet", "--args", "@/nonexistent"), b"No such file"),
        )
        for words, reason in rows:
            with self.subTest(words=words):
                done = self.run_tool(*words)

                self.assertEqual(1, done.returncode)
                self.assertIn(reason, done.stdout + done.stderr)

    def test_a_timeout_is_a_result_and_nothing_is_left(self):
        self.project.tool("slow", "sleep 600")
        result = json.loads(self.run_tool("slow", "--timeout", "0.3").stdout)

        self.assertTrue(result["isError"])
        self.assertEqual([], support.listing(self.project.tmp))

    def test_progress_and_logs_go_to_stderr(self):
        self.project.tool("talk", r"printf 'progress\t1\t2\thalf\0log\tinfo\tx\thello\0' >&7; echo done")
        done = self.run_tool("talk")

        self.assertEqual(b"progress:  50% half\ninfo: hello\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
