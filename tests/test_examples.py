#!/usr/bin/env python3
"""Every directory in examples/ is a complete project with a README and a session that goes as written."""
from __future__ import annotations

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

EXAMPLES = os.path.join(support.ROOT, "examples")


def example_names() -> list[str]:
    """Return the names of the example directories, in order."""
    if not os.path.isdir(EXAMPLES):
        return []
    return sorted(name for name in os.listdir(EXAMPLES) if os.path.isdir(os.path.join(EXAMPLES, name)))


class ExamplesTest(support.Case):
    def test_there_are_examples(self):
        self.assertNotEqual([], example_names(), "examples/ is missing or has no directories")

    def test_the_ladder_has_no_step_twice(self):
        numbers = [name.split("-")[0] for name in example_names()]

        self.assertEqual(sorted(set(numbers)), numbers)

    def replay_example(self, name: str, crlf: bool) -> None:
        """Replay the session of an example against a copy of it."""
        source = os.path.join(EXAMPLES, name)
        for needed in ("README.md", "session.txt"):
            path = os.path.join(source, needed)
            self.assertTrue(os.path.isfile(path), "examples/%s has no %s" % (name, needed))
        transcript = support.Transcript(os.path.join(source, "session.txt"))
        for version in transcript.versions:
            with self.subTest(version=version):
                project = self.new_project()
                support.copy_project(source, project)
                support.replay(transcript, project, version, crlf)


def add_tests(name: str) -> None:
    """Make the tests of one example: as written, and with the line ends of Windows."""

    def test(self: ExamplesTest) -> None:
        self.replay_example(name, crlf=False)

    def test_crlf(self: ExamplesTest) -> None:
        self.replay_example(name, crlf=True)

    stem = "test_" + name.replace("-", "_")
    setattr(ExamplesTest, stem, test)
    setattr(ExamplesTest, stem + "_with_carriage_returns", test_crlf)


for each in example_names():
    add_tests(each)


if __name__ == "__main__":
    unittest.main()
