#!/usr/bin/env python3
# once
"""Static checks: ruff and mypy for Python, shellcheck and shfmt for shell, and a few rules of the house."""
from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

TYPED = ("mcp_bash.py", "sdk/tool_sdk.py")
SHELL_FIRST_LINE = re.compile(rb"#!.*\b(ba)?sh\b")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
TEXT_SUFFIXES = (".py", ".sh", ".md", ".txt", ".toml", ".ini", ".yml", ".json")


def project_files() -> list[str]:
    """Return the files of the checkout that are or could be committed, as relative paths."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=support.ROOT, stdout=subprocess.PIPE, check=True).stdout
        names = [name for name in listed.decode("utf-8").split("\0") if name]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive, or a machine without git
        hidden = (".git" + os.sep, "tests" + os.sep + ".cache")
        names = [name for name in support.listing(support.ROOT) if not name.startswith(hidden)]
    return sorted({name for name in names if os.path.isfile(os.path.join(support.ROOT, name))})


def is_shell(name: str) -> bool:
    """Tell whether a file is a shell script, by its name or its first line."""
    if name.endswith(".sh"):
        return True
    if "." in os.path.basename(name)[1:]:
        return False
    with open(os.path.join(support.ROOT, name), "rb") as stream:
        return SHELL_FIRST_LINE.match(stream.readline(200)) is not None


class LintTest(unittest.TestCase):
    def run_program(self, name: str, *arguments: str) -> None:
        """Run a program of the test packages in the checkout; what it prints is the failure."""
        program = support.find_program(name)
        if not program:
            self.skipTest("%s is not installed; tests/run.py installs it when there is a network" % name)
        command = [program, *arguments]
        done = subprocess.run(
            command, cwd=support.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
        )
        if done.returncode != 0:
            self.fail("%s %s\n%s" % (name, " ".join(arguments[:6]), done.stdout[-8000:]))

    def shell_files(self) -> list[str]:
        """Return the shell scripts; there is at least .ci/run."""
        files = [name for name in project_files() if is_shell(name)]
        self.assertIn(os.path.join(".ci", "run"), files)
        return files

    def test_ruff_finds_nothing(self):
        files = [name for name in project_files() if name.endswith(".py")]
        self.assertIn(os.path.join("tests", "run.py"), files)
        cache = os.path.join(support.CACHE, "ruff")
        self.run_program("ruff", "check", "--quiet", "--output-format", "concise", "--cache-dir", cache, *files)

    def test_mypy_finds_nothing(self):
        cache = os.path.join(support.CACHE, "mypy")
        for name in TYPED:
            if os.path.exists(os.path.join(support.ROOT, name)):
                with self.subTest(name):
                    self.run_program("mypy", "--config-file", "mypy.ini", "--cache-dir", cache, name)

    def test_shellcheck_finds_nothing(self):
        self.run_program("shellcheck", "--shell=bash", "--external-sources", *self.shell_files())

    def test_shfmt_would_change_nothing(self):
        self.run_program("shfmt", "-d", *self.shell_files())

    def test_shell_scripts_parse(self):
        for name in self.shell_files():
            with self.subTest(name):
                done = subprocess.run(["bash", "-n", name], cwd=support.ROOT, stderr=subprocess.PIPE, text=True)
                self.assertEqual((0, ""), (done.returncode, done.stderr))

    def test_nothing_is_left_unfinished(self):
        found = []
        for name in project_files():
            if name.endswith(TEXT_SUFFIXES) or is_shell(name):
                with open(os.path.join(support.ROOT, name), encoding="utf-8", errors="replace") as stream:
                    found += ["%s:%d" % (name, n) for n, line in enumerate(stream, 1) if UNFINISHED.search(line)]

        self.assertEqual([], found)

    def test_test_files_can_be_run_alone(self):
        names = [name for name in project_files() if re.fullmatch(r"tests.test_\w+\.py", name)]
        self.assertGreater(len(names), 3)
        for name in names:
            with self.subTest(name), open(os.path.join(support.ROOT, name), encoding="utf-8") as stream:
                self.assertIn('if __name__ == "__main__":', stream.read())


if __name__ == "__main__":
    unittest.main()
