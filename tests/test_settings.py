#!/usr/bin/env python3
"""Room 4, settings: every row of the table parses, clamps and complains, and no value keeps a server from starting."""
from __future__ import annotations

import os
import re
import sys
import unittest
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

sys.path.append(support.ROOT)

import mcp_bash
from mcp_bash import SETTINGS, Settings

KINDS = {"int", "float", "bool", "text", "words", "path", "level"}
GROUPS = ["paths", "security", "limits", "timing", "behaviour", "diagnostics"]

# kind -> text, value
GOOD = {
    "bool": (("true", True), ("1", True), ("Yes", True), ("ON", True), (" true ", True))
    + (("false", False), ("0", False), ("no", False), ("off", False), ("", False)),
    "level": (("debug", "debug"), ("WARNING", "warning"), ("warn", "warning"), ("true", "debug"), ("0", "info"))
    + (("emergency", "emergency"),),
    "words": (("", []), ("a, b  c", ["a", "b", "c"]), ("*", ["*"])),
    "text": (("", ""), ("any text: \u00e9", "any text: \u00e9"), (" x ", "x")),
    "path": (("", ""), ("/some/where", "/some/where"), ("relative dir", "relative dir")),
}

# kind -> texts that mean nothing
BAD = {
    "int": ("", "abc", "1.5", "1e3", "nan", "0x10", "--1", "1 2", "\u221e", "9" * 5000 + "x"),
    "float": ("", "abc", "nan", "inf", "-inf", "1e999", "1,5", "5s"),
    "bool": ("maybe", "2", "tru", "-1"),
    "level": ("", "loud", "5", "debug,info"),
}
# What a value that cannot be read is taken for, where the default would be wrong: no permission by misspelling.
STRICT = {"MCPBASH_TOOL_ALLOW_DEFAULT": "deny"}
NASTY = "\x1b[2Jx\nmcp_bash: error: forged"  # what a terminal or a log must never get as it is


def rows(*kinds: str) -> list[Any]:
    """Return the rows of these kinds; "choice" is any tuple of words."""
    return [row for row in SETTINGS if ("choice" if isinstance(row.kind, tuple) else row.kind) in kinds]


def fallback_of(row: Any) -> Any:
    """Return what is used instead of a value that cannot be read."""
    return STRICT.get(row.name, row.default)


def value_of(row: Any, text: str) -> Any:
    """Return the value a row gets from a text, and what is said about it."""
    settings = Settings({row.name: text})
    return getattr(settings, mcp_bash.attribute_of(row)), settings.problems


def step(row: Any, value: float, direction: int) -> str:
    """Return the text of a number just outside a limit."""
    return str(value + direction) if row.kind == "int" else repr(float(value) + direction * 0.5)


class TableTest(unittest.TestCase):
    def test_every_row_is_complete(self):
        for row in SETTINGS:
            with self.subTest(row=row.name):
                self.assertTrue(row.kind in KINDS or (isinstance(row.kind, tuple) and row.default in row.kind))
                self.assertRegex(row.name, r"\A(MCPBASH|MCP)_[A-Z_]+\Z")
                self.assertIn(row.group, GROUPS)
                self.assertRegex(row.help, r"\A[a-z].*[^.\s]\Z", "lower case, no full stop")

    def test_names_and_attributes_are_used_once(self):
        self.assertEqual(len(SETTINGS), len({row.name for row in SETTINGS}))
        self.assertEqual(len(SETTINGS), len({mcp_bash.attribute_of(row) for row in SETTINGS}))

    def test_groups_stand_together(self):
        groups = [row.group for row in SETTINGS]

        self.assertEqual(GROUPS, [group for index, group in enumerate(groups) if group not in groups[:index]])
        self.assertEqual(sorted(groups, key=GROUPS.index), groups)

    def test_only_numbers_have_limits_and_the_default_lies_between(self):
        for row in SETTINGS:
            with self.subTest(row=row.name):
                if row.kind in ("int", "float"):
                    self.assertTrue(row.low <= row.default <= row.high)
                else:
                    self.assertEqual((None, None), (row.low, row.high))


class ParseTest(unittest.TestCase):
    def test_without_variables_there_are_defaults_and_no_problems(self):
        settings = Settings({})
        for row in SETTINGS:
            with self.subTest(row=row.name):
                expected = [] if row.kind == "words" else row.default

                self.assertEqual(expected, getattr(settings, mcp_bash.attribute_of(row)))
        self.assertEqual(([], set()), (settings.problems, settings.given))

    def test_every_row_takes_the_good_values_of_its_kind(self):
        for row in rows(*GOOD):
            for text, expected in GOOD[row.kind]:
                with self.subTest(row=row.name, text=text):
                    self.assertEqual((expected, []), value_of(row, text))

    def test_every_number_is_taken_up_to_its_limits(self):
        for row in rows("int", "float"):
            for number in (row.low, row.high, row.default):
                with self.subTest(row=row.name, number=number):
                    value, problems = value_of(row, " %s " % number)

                    self.assertEqual((number, []), (value, problems))
                    self.assertIs(int if row.kind == "int" else float, type(value))

    def test_every_word_of_a_choice_is_taken_in_any_case(self):
        for row in rows("choice"):
            for word in row.kind:
                with self.subTest(row=row.name, word=word):
                    self.assertEqual((word, []), value_of(row, word.upper()))

    def test_the_rows_that_were_set_are_known(self):
        settings = Settings({"MCPBASH_PAGE_SIZE": "7", "MCPBASH_LOG_LEVEL": "bad", "OTHER": "x"})

        self.assertEqual({"MCPBASH_PAGE_SIZE", "MCPBASH_LOG_LEVEL"}, settings.given)

    def test_the_default_level_counts_when_no_level_is_set(self):
        table = (
            ({}, "info"),
            ({"MCPBASH_LOG_LEVEL_DEFAULT": "error"}, "error"),
            ({"MCPBASH_LOG_LEVEL": "debug", "MCPBASH_LOG_LEVEL_DEFAULT": "error"}, "debug"),
        )
        for environ, expected in table:
            with self.subTest(environ=environ):
                self.assertEqual(expected, Settings(environ).log_level)

    def test_a_name_that_is_not_in_the_table_is_an_error_that_says_so(self):
        with self.assertRaisesRegex(AttributeError, "SETTINGS"):
            Settings({}).page_sise  # noqa: B018


class ComplainTest(unittest.TestCase):
    def complaint(self, row: Any, text: str, used: Any) -> str:
        """Return the one complaint about a value, having seen that `used` is in force."""
        value, problems = value_of(row, text)

        self.assertEqual(used, value)
        self.assertEqual(1, len(problems), problems)
        return str(problems[0])

    def test_every_number_is_moved_to_its_nearest_limit(self):
        for row in rows("int", "float"):
            for limit, direction in ((row.low, -1), (row.high, 1)):
                with self.subTest(row=row.name, limit=limit):
                    text = self.complaint(row, step(row, limit, direction), limit)

                    self.assertTrue(text.startswith(row.name + ": is "), text)
                    self.assertIn("lowest" if direction < 0 else "highest", text)
                    self.assertIn("Using %s." % limit, text)

    def test_absurdly_large_numbers_are_moved_too(self):
        for row in rows("int"):
            with self.subTest(row=row.name):
                self.complaint(row, "1" + "0" * 400, row.high)
                self.complaint(row, "-1" + "0" * 400, row.low)

    def test_what_is_no_value_of_its_kind_leaves_the_default_or_the_stricter_choice(self):
        for row in rows(*BAD, "choice"):
            for bad in BAD.get(row.kind, ("", "neither", "allow deny")):
                with self.subTest(row=row.name, text=bad[:20]):
                    text = self.complaint(row, bad, fallback_of(row))

                    self.assertIn("expected", text)
                    self.assertIn("Using %s." % mcp_bash.show_value(fallback_of(row)), text)

    def test_the_complaint_shows_the_value_on_one_short_line(self):
        for row in rows("int", "float", "bool", "level", "choice"):
            with self.subTest(row=row.name):
                text = self.complaint(row, NASTY + "y" * 1000, fallback_of(row))

                self.assertTrue(text.isprintable() and len(text) < 300, text)
                self.assertTrue("\\x1b[2Jx" in text or "[redacted]" in text, text)

    def test_a_choice_and_a_level_name_what_is_possible(self):
        for row in rows("choice", "level"):
            with self.subTest(row=row.name):
                words = row.kind if isinstance(row.kind, tuple) else mcp_bash.LEVELS

                self.assertIn(", ".join(words), self.complaint(row, "neither", fallback_of(row)))


class CommandTest(support.Case):
    def test_markdown_is_one_table_with_a_row_for_every_setting(self):
        done = self.new_project().cli("settings", "--markdown")
        lines = done.stdout.splitlines()
        cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]

        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.assertTrue(done.stdout.endswith("|\n"))
        self.assertEqual("|---|---|---|", lines[1])
        self.assertEqual({3}, {len(row) for row in cells}, "a cell holds a bar")
        self.assertEqual(GROUPS, re.findall(r"^\| \*\*(\w+)\*\* \| \| \|$", done.stdout, re.M))
        names = re.findall(r"^\| `(\w+)` \|", done.stdout, re.M)
        self.assertEqual([row.name for row in SETTINGS], names)
        self.assertEqual(2 + len(GROUPS) + len(SETTINGS), len(lines))

    def test_markdown_does_not_depend_on_what_is_set(self):
        project = self.new_project()
        plain = project.cli("settings", "--markdown").stdout
        other = project.cli("settings", "--markdown", env={"MCPBASH_PAGE_SIZE": "7", "MCPBASH_LOG_LEVEL": "x"}).stdout

        self.assertEqual(plain, other)

    def test_the_list_shows_values_defaults_and_problems(self):
        env = {"MCPBASH_PAGE_SIZE": "7", "MCPBASH_PAGE_SIZE_MAX": "x", "MCPBASH_TOOL_ALLOWLIST": "a,b"}
        done = self.new_project().cli("settings", env=env)
        shown = {line.split()[0]: line.split(None, 1)[1] for line in done.stdout.splitlines() if " " in line.strip()}

        self.assertEqual(0, done.returncode)
        self.assertEqual("7", shown["MCPBASH_PAGE_SIZE"])
        self.assertEqual("a b", shown["MCPBASH_TOOL_ALLOWLIST"])
        self.assertEqual("false  (default)", shown["MCPBASH_FORCE_MINIMAL"])
        self.assertEqual(len(SETTINGS), len(done.stdout.splitlines()))
        self.assertRegex(done.stderr, r"\Amcp_bash: MCPBASH_PAGE_SIZE_MAX: is \"x\"; .*\n\Z")

    def test_the_secret_is_never_shown(self):
        secret = "correct-horse-battery-staple-9876543210"
        done = self.new_project().cli("settings", env={"MCPBASH_REMOTE_TOKEN": secret})

        self.assertNotIn(secret, done.stdout + done.stderr)
        self.assertIn("[redacted]", done.stdout)


class ServerTest(support.Case):
    """A server starts and serves whatever the variables say."""

    def serve(self, env: dict[str, str]) -> str:
        """Start a server, have it list and call a tool in both eras; return what it wrote to stderr."""
        project = self.new_project()
        project.tool("hello", "echo hi")
        # A policy that cannot be read forbids everything that is not named.
        client = self.new_client(project, env={**env, "MCPBASH_TOOL_ALLOWLIST": "hello"})
        client.result("server/discover", modern=True)
        client.initialize()
        self.assertEqual(["hello"], [tool["name"] for tool in client.result("tools/list")["tools"]])
        self.assertEqual("hi\n", client.text("hello"))
        client.close(exit_code=0)
        return client.stderr

    def test_every_bad_value_at_once_is_reported_and_survived(self):
        env = {row.name: "no such value" for row in rows("int", "float", "bool", "level", "choice")}
        lines = self.serve(env).splitlines()
        reported = [line.split(": ")[2] for line in lines if line.startswith("mcp_bash: warning: MCP")]

        self.assertEqual(sorted(env), sorted(reported))
        self.assertEqual([], [line for line in lines if not line.startswith("mcp_bash: ")])

    def test_values_with_control_characters_reach_no_terminal(self):
        env = {row.name: NASTY for row in rows("int", "float", "bool", "level", "choice")}
        stderr = self.serve(env)

        self.assertIn("\\x1b[2Jx", stderr)
        self.assertNotIn("\x1b", stderr)
        self.assertEqual({"mcp_bash: warning"}, {line[:17] for line in stderr.splitlines()})

    def test_all_the_lowest_numbers_at_once(self):
        env = {row.name: str(row.low) for row in rows("int", "float")}
        # What a tool may say and how long it may take has to be enough for the one called here.
        env.update(MCPBASH_MAX_TOOL_OUTPUT_SIZE="100", MCPBASH_DEFAULT_TOOL_TIMEOUT="20", MCPBASH_HOOK_TIMEOUT="20")

        self.assertEqual("", self.serve(env))

    def test_all_the_highest_numbers_at_once(self):
        self.assertEqual("", self.serve({row.name: str(row.high) for row in rows("int", "float")}))

    def test_numbers_beyond_every_limit(self):
        for sign in ("", "-"):
            with self.subTest(sign=sign):
                env = {row.name: sign + "9" * 30 for row in rows("int", "float")}
                if sign:
                    env.update(MCPBASH_MAX_TOOL_OUTPUT_SIZE="100", MCPBASH_DEFAULT_TOOL_TIMEOUT="20")
                self.assertIn("Using ", self.serve(env))

    def test_empty_values_are_survived(self):
        self.serve({row.name: "" for row in SETTINGS})

    def test_a_short_secret_is_refused_at_the_start_and_a_long_one_is_not(self):
        for length, expected in ((31, 1), (32, 0)):
            with self.subTest(length=length):
                done = self.new_project().cli(env={"MCPBASH_REMOTE_TOKEN": "s" * length}, input="")

                self.assertEqual(expected, done.returncode)
                self.assertEqual("", done.stdout)
                self.assertEqual(expected == 1, "MCPBASH_REMOTE_TOKEN" in done.stderr)
                self.assertNotIn("s" * 31, done.stderr)

    def test_directories_that_do_not_exist_are_empty_directories(self):
        project = self.new_project()
        names = ("TOOLS_DIR", "SERVER_DIR", "REGISTRY_DIR", "TMP_ROOT")
        client = self.new_client(project, env={"MCPBASH_" + name: project.path("not", "there") for name in names})
        client.initialize()

        self.assertEqual([], client.result("tools/list")["tools"])

    def test_a_project_that_does_not_exist_is_named(self):
        done = support.run_cli([], env={"MCPBASH_PROJECT_ROOT": "/no/such/project"}, input="")

        self.assertEqual(1, done.returncode)
        self.assertIn("/no/such/project", done.stderr)
        self.assertEqual(1, len(done.stderr.splitlines()))


if __name__ == "__main__":
    unittest.main()
