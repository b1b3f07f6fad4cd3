#!/usr/bin/env python3
"""Sessions written down in transcripts/*.txt, replayed against the server once per version they name.

The form is described in support.py, "Transcripts". Unless a file names a project, it is served a small one with a
single tool `echo`.
"""
from __future__ import annotations

import glob
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

FILES = sorted(glob.glob(os.path.join(support.TESTS, "transcripts", "*.txt")))

ECHO_META = {
    "description": "Say a text again",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
ECHO_SCRIPT = 'printf "%s\\n" "$MCP_TOOL_ARGS_JSON"\n'


class TranscriptsTest(support.Case):
    def replay_file(self, path: str, crlf: bool = False) -> None:
        """Replay one file in all its versions."""
        transcript = support.Transcript(path)
        for version in transcript.versions:
            with self.subTest(version=version):
                project = self.new_project()
                if transcript.project:
                    support.copy_project(os.path.join(support.ROOT, transcript.project), project)
                else:
                    project.tool("echo", ECHO_SCRIPT, ECHO_META)
                support.replay(transcript, project, version, crlf)

    def test_there_are_transcripts(self):
        self.assertGreater(len(FILES), 5, "nothing was found in tests/transcripts")

    def test_carriage_returns_at_line_ends_make_no_difference(self):
        self.replay_file(os.path.join(support.TESTS, "transcripts", "01-initialize.txt"), crlf=True)


def add_test(path: str) -> None:
    """Make a test of a transcript file."""

    def test(self: TranscriptsTest) -> None:
        self.replay_file(path)

    name = os.path.splitext(os.path.basename(path))[0].replace("-", "_")
    test.__doc__ = "tests/transcripts/" + os.path.basename(path)
    setattr(TranscriptsTest, "test_" + name, test)


for each in FILES:
    add_test(each)


if __name__ == "__main__":
    unittest.main()
