#!/usr/bin/env python3
"""Room 3, text and paths, with the two text functions of room 1; and the examples in all docstrings."""
from __future__ import annotations

import copy
import doctest
import errno
import os
import random
import re
import stat
import subprocess
import sys
import threading
import time
import unittest
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

sys.path.append(support.ROOT)

import mcp_bash

SEED = 20251125
ESC = "\x1b"

# text -> what one_line() shows
ONE_LINE = (
    ("plain caf\u00e9 \U0001f600", "plain caf\u00e9 \U0001f600"),
    ("a\nb\r\nc", "a\\nb\\r\\nc"),
    ("tab\there", "tab\\there"),
    ("nul\0del\x7f", "nul\\x00del\\x7f"),
    (ESC + "[2J" + ESC + "]0;t\x07", "\\x1b[2J\\x1b]0;t\\x07"),
    ("\x9b31m\x85", "\\x9b31m\\x85"),
    ("\u2028\u2029", "\\u2028\\u2029"),
    ("\u202ertl\u202c \u2066iso\u2069", "\\u202ertl\\u202c \\u2066iso\\u2069"),
)

# text -> what clean_text() leaves of it
CLEAN = (
    ("two\nlines\tand a tab", "two\nlines\tand a tab"),
    ("caf\u00e9 \u65e5\u672c \U0001f600", "caf\u00e9 \u65e5\u672c \U0001f600"),
    (ESC + "[1;31mred" + ESC + "[0m", "red"),
    (ESC + "[?25lhidden cursor", "hidden cursor"),
    (ESC + "]0;title\x07text", "text"),
    (ESC + "]8;;https://x.example" + ESC + "\\link" + ESC + "]8;;" + ESC + "\\", "link"),
    (ESC + "]52;c;aGVsbG8=\x07after", "after"),
    (ESC + "cafter reset", "cafter reset"),
    ("bell\x07 nul\0 cr\r c1\x9b del\x7f", "bell nul cr c1 del"),
    ("zero\u200bwidth soft\u00adhyphen bom\ufeff", "zerowidth softhyphen bom"),
    ("\u202eevil\u202c\u2066x\u2069", "evilx"),
    ("tags\U000e0041\U000e007f", "tags"),
    ("line\u2028sep", "linesep"),
)

# value -> what redact() shows of it
MASK = "[redacted]"
REDACTED = (
    ({"password": "x", "Passwd": "x", "passphrase": "x"}, {"password": MASK, "Passwd": MASK, "passphrase": MASK}),
    ({"Authorization": "Basic QWxhZGRpbjpvcGVu"}, {"Authorization": MASK}),  # EN-09
    ({"a": [{"apiKey": 1, "api_key": [2], "APIKEY": {}}]}, {"a": [{"apiKey": MASK, "api_key": MASK, "APIKEY": MASK}]}),
    ({"clientSecret": None, "mcpbash/remoteToken": "t"}, {"clientSecret": MASK, "mcpbash/remoteToken": MASK}),
    ({"AWS_SECRET_ACCESS_KEY": "x", "private_key": "y"}, {"AWS_SECRET_ACCESS_KEY": MASK, "private_key": MASK}),
    ("curl -H 'Bearer abcdefgh12345'", "curl -H '[redacted]'"),
    ("basic QWxhZGRpbjpvcGVu and more", "[redacted] and more"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl!", "jwt [redacted]!"),
    ({"progress": 1, "name": "tool", "keys": ["k"]}, {"progress": 1, "name": "tool", "keys": ["k"]}),
    (["a basic idea", "bearer of news", 5, True, None, 1.5], ["a basic idea", "bearer of news", 5, True, None, 1.5]),
)

# root, path -> is the path inside
INSIDE = (
    ("/d", "/d", True),
    ("/d", "/d/x", True),
    ("/d/", "/d/x/y", True),
    ("/", "/anything", True),
    ("/d", "/dx", False),
    ("/d/safe", "/d/safe-evil/x", False),
    ("/d", "/", False),
    ("/d", "/e/d/x", False),
)

# value -> entries (path, kind, value) of flatten()
FLAT = (
    ({}, [(".", "o", "0\x1f{}")]),
    ([], [(".", "a", "0\x1f[]")]),
    ("text", [(".", "s", "text")]),
    ({"n": 5, "f": 1.5, "e": -1e300}, [(".n", "n", "5"), (".f", "n", "1.5"), (".e", "n", "-1e+300")]),
    ({"t": True, "f": False, "z": None}, [(".t", "b", "true"), (".f", "b", "false"), (".z", "z", "")]),
    ({"a": {"b": [7, "x"]}}, [(".a.b", "a", '2\x1f[7,"x"]'), (".a.b[0]", "n", "7"), (".a.b[1]", "s", "x")]),
    ([[1]], [(".[0]", "a", "1\x1f[1]"), (".[0][0]", "n", "1")]),
    ({"x y": 1, "": 2, "9a": 3}, [('.["x y"]', "n", "1"), ('.[""]', "n", "2"), ('.["9a"]', "n", "3")]),
    ({"a": {"x y": {"b": 1}}}, [('.a["x y"]', "o", '1\x1f{"b":1}'), ('.a["x y"].b', "n", "1")]),
    ({"\u00e9": 1, 'q"\\': 2}, [('.["\u00e9"]', "n", "1"), ('.["q\\"\\\\"]', "n", "2")]),
    ({"_a1": "two\nlines"}, [("._a1", "s", "two\nlines")]),
    ({"s": "\x1d\x1e\x1f"}, [(".s", "s", "\x1d\x1e\x1f")]),
    ({"k\x1e": 1}, [('.["k\\u001e"]', "n", "1")]),
    ({"nul": "a\0b"}, [(".nul", "x", '"a\\u0000b"')]),
    ({"\0": "v"}, [('.["\\u0000"]', "s", "v")]),
    ({"big": 1 << 70}, [(".big", "n", "1180591620717411303424")]),
)


def read_flat(text: str) -> list[tuple[str, str, str]]:
    """Return the entries of a flat text, decoded as its description says and not as the server writes it."""
    assert text[0] == text[-1] == "\x1e", "an entry begins with RS, and RS closes the text"
    entries = []
    for entry in text[1:-1].split("\x1e"):
        path, rest = entry.split("\x1f", 1)
        kind, value = rest[0], rest[1:]
        if kind not in "oa":
            value = unescaped(value)
        entries.append((unescaped(path), kind, value))
    return entries


def unescaped(text: str) -> str:
    """Put back the three separators."""
    assert "\x1e" not in text and "\x1f" not in text
    return re.sub("\x1d([def])", lambda found: chr(0x1D + "def".index(found.group(1))), text)


class DocstringTest(unittest.TestCase):
    def test_the_examples_in_the_docstrings_are_true(self):
        results = doctest.testmod(mcp_bash)

        self.assertEqual(0, results.failed)
        self.assertGreater(results.attempted, 15)


class ShortTextTest(unittest.TestCase):
    def test_one_line_shows_what_would_move_the_cursor_or_turn_the_text(self):
        for text, expected in ONE_LINE:
            with self.subTest(text=text):
                self.assertEqual(expected, mcp_bash.one_line(text))

    def test_every_control_character_is_shown(self):
        controls = [chr(code) for code in (*range(32), *range(127, 160))]

        self.assertEqual([], [char for char in controls if char in mcp_bash.one_line("a%sb" % char)])
        self.assertEqual(1, len(mcp_bash.one_line("".join(controls)).splitlines()))

    def test_clip_never_gives_more_than_asked(self):
        for text, limit, expected in (("abc", 3, "abc"), ("abcd", 3, "ab\u2026"), ("", 1, ""), ("ab", 1, "\u2026")):
            with self.subTest(text=text):
                self.assertEqual(expected, mcp_bash.clip(text, limit))

    def test_clean_text_removes_what_a_reader_would_not_see(self):
        for text, expected in CLEAN:
            with self.subTest(text=text):
                self.assertEqual(expected, mcp_bash.clean_text(text))

    def test_cleaning_twice_is_cleaning_once(self):
        for text, _ in CLEAN + ONE_LINE:
            with self.subTest(text=text):
                once = mcp_bash.clean_text(text)

                self.assertEqual(once, mcp_bash.clean_text(once))

    def test_split_list_takes_commas_and_blanks(self):
        rows = (("", []), (" , ,", []), ("one", ["one"]), ("a,b", ["a", "b"]), (" a\tb\n, c ", ["a", "b", "c"]))
        for text, expected in rows:
            with self.subTest(text=text):
                self.assertEqual(expected, mcp_bash.split_list(text))


class ClipUtf8Test(unittest.TestCase):
    def test_as_much_as_fits_and_no_half_characters(self):
        text = "a\u00e9\u20ac\U0001f600z"
        data = text.encode()
        for limit in range(len(data) + 2):
            with self.subTest(limit=limit):
                cut = mcp_bash.clip_utf8(data, limit)
                beginnings = [text[:length].encode() for length in range(len(text) + 1)]

                self.assertEqual(max(each for each in beginnings if len(each) <= limit), cut)

    def test_bytes_that_are_no_utf8_are_only_shortened(self):
        for data in (b"\xff" * 10, b"\x80" * 10, b"ab\xe2\x82" * 3):
            with self.subTest(data=data):
                self.assertLessEqual(len(mcp_bash.clip_utf8(data, 5)), 5)


class RedactTest(unittest.TestCase):
    def test_names_and_texts_that_tell_are_masked_and_nothing_else(self):
        for value, expected in REDACTED:
            with self.subTest(value=value):
                self.assertEqual(expected, mcp_bash.redact(value))

    def test_the_value_itself_is_not_touched(self):
        value = {"a": [{"token": "x"}], "b": "Bearer abcdefgh"}
        before = copy.deepcopy(value)
        mcp_bash.redact(value)

        self.assertEqual(before, value)

    def test_no_text_takes_long(self):
        # In a process of its own: an expression that starts again at every place would hold this one for minutes.
        words = ("eyJ", "eyJ.", "eyJaaaaaaaa.", "Bearer ", "bearer\t", "basic", "token")
        code = "import mcp_bash\nfor word in %r:\n  print(word, flush=True)\n  mcp_bash.redact(word * 60000)" % (words,)
        pipe = subprocess.PIPE
        process = support.spawn([support.PYTHON, "-c", code], cwd=support.ROOT, stdout=pipe, text=True)
        self.addCleanup(support.end_group, process)
        try:
            process.communicate(timeout=support.patient(10))
        except subprocess.TimeoutExpired as expired:
            self.fail("redacting 60000 times the last of these words takes too long: %r" % expired.stdout)

        self.assertEqual(0, process.returncode)


class PathTest(unittest.TestCase):
    def test_inside_is_decided_by_whole_components(self):
        for root, path, expected in INSIDE:
            with self.subTest(root=root, path=path):
                self.assertIs(expected, mcp_bash.is_inside(root, path))

    def test_the_digest_is_sha256(self):
        empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

        self.assertEqual(empty, mcp_bash.digest(b""))
        self.assertNotEqual(empty, mcp_bash.digest(b"\0"))


class FileCase(support.Case):
    def setUp(self):
        self.project = self.new_project()

    def path(self, name: str) -> str:
        """Return a path in a directory that only this test uses."""
        return self.project.path(name)

    def write(self, name: str, data: bytes) -> str:
        """Make a file and return its path."""
        return self.project.file(name, data)


class AtomicWriteTest(FileCase):
    def test_the_file_is_replaced_with_the_mode_asked_for(self):
        path = self.write("f", b"old")
        for mode in (0o600, 0o700):
            mcp_bash.atomic_write(path, b"new", mode)

            self.assertEqual(b"new", mcp_bash.read_small(path, 10))
            self.assertEqual(mode, stat.S_IMODE(os.stat(path).st_mode))
        self.assertEqual(["f"], os.listdir(self.project.root))

    def test_a_failure_leaves_nothing_beside_the_target(self):
        os.mkdir(self.path("target"))
        with self.assertRaises(OSError):
            mcp_bash.atomic_write(self.path("target"), b"data")

        self.assertEqual(["target"], os.listdir(self.project.root))

    def test_a_link_is_replaced_and_not_followed(self):
        victim = self.write("victim", b"precious")
        os.symlink(victim, self.path("link"))
        mcp_bash.atomic_write(self.path("link"), b"data")

        self.assertEqual(b"precious", mcp_bash.read_small(victim, 100))
        self.assertFalse(os.path.islink(self.path("link")))

    def test_a_reader_sees_one_whole_version(self):
        path = self.write("f", b"a" * 100_000)
        seen, stop = set(), threading.Event()

        def write() -> None:
            for number in range(100):
                mcp_bash.atomic_write(path, b"ab"[number % 2 : number % 2 + 1] * 100_000)
            stop.set()

        writer = threading.Thread(target=write)
        writer.start()
        while not stop.is_set():
            data = mcp_bash.read_small(path, 1 << 20)
            seen.add((len(data), len(set(data))))
        writer.join()

        self.assertEqual({(100_000, 1)}, seen)


class ReadSmallTest(FileCase):
    def test_a_file_up_to_the_limit_is_read(self):
        for size in (0, 1, 4095, 4096):
            with self.subTest(size=size):
                self.assertEqual(b"x" * size, mcp_bash.read_small(self.write("f", b"x" * size), 4096))

    def test_a_link_to_a_file_is_read(self):
        os.symlink(self.write("f", b"x"), self.path("link"))

        self.assertEqual(b"x", mcp_bash.read_small(self.path("link"), 10))

    def test_what_is_too_large_or_no_file_is_refused_without_waiting(self):
        os.mkdir(self.path("directory"))
        os.mkfifo(self.path("pipe"))
        rows = (
            (self.write("large", b"x" * 11), errno.EFBIG),
            (self.path("directory"), errno.EINVAL),
            (self.path("pipe"), errno.EINVAL),
            ("/dev/zero", errno.EINVAL),
            (self.path("missing"), errno.ENOENT),
        )
        for path, code in rows:
            with self.subTest(path=path):
                with self.assertRaises(OSError) as caught:
                    mcp_bash.read_small(path, 10)

                self.assertEqual(code, caught.exception.errno)

    def test_read_up_to_collects_short_reads_and_stops_at_the_limit(self):
        for limit, expected in ((100, b"onetwo"), (4, b"onet"), (0, b"")):
            with self.subTest(limit=limit):
                self.assertEqual(expected, self.through_pipe((b"one", b"two"), limit))

    def through_pipe(self, parts: tuple, limit: int) -> bytes:
        """Return what read_up_to() gets when the parts arrive one after the other."""
        read, write = os.pipe()

        def feed() -> None:
            for part in parts:
                os.write(write, part)
                time.sleep(0.01)  # so that the parts arrive apart; whether they do is not asserted
            os.close(write)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            return mcp_bash.read_up_to(read, limit)
        finally:
            feeder.join()
            os.close(read)


class OwnershipTest(FileCase):
    def fake(self, uid: int, mode: int) -> os.stat_result:
        """Return the status of a file with this owner and mode."""
        return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))

    def test_ours_is_what_we_or_root_own_and_nobody_else_can_write(self):
        mine, stranger = os.geteuid(), 54321
        rows = (
            (mine, 0o755, ""),
            (mine, 0o600, ""),
            (0, 0o755, ""),
            (stranger, 0o755, "another user"),
            (mine, 0o775, "writable by others"),
            (mine, 0o757, "writable by others"),
            (0, 0o777, "writable by others"),
        )
        for uid, mode, reason in rows:
            with self.subTest(uid=uid, mode=oct(mode)):
                text = mcp_bash.unsafe_reason("the/file", self.fake(uid, mode))

                self.assertEqual(bool(reason), bool(text))
                self.assertIn(reason, text)
                self.assertTrue(not text or "the/file" in text)

    def test_a_hook_is_refused_when_it_or_a_directory_around_it_is_not_ours_alone(self):
        hook = self.project.file("server.d/env.sh", "true\n", 0o755)
        self.assertEqual("", mcp_bash.unsafe_project_file(self.project.root, hook))
        for place in (hook, os.path.dirname(hook), self.project.root):
            with self.subTest(place=os.path.relpath(place, self.project.root)):
                mode = stat.S_IMODE(os.stat(place).st_mode)
                os.chmod(place, mode | 0o020)
                text = mcp_bash.unsafe_project_file(self.project.root, hook)
                os.chmod(place, mode)

                self.assertIn(place + " is writable by others", text)

    def test_a_hook_that_is_a_link_or_missing_is_refused(self):
        real = self.project.file("elsewhere/env.sh", "true\n", 0o755)
        os.mkdir(self.path("server.d"))
        link = self.path("server.d/env.sh")
        self.assertIn("cannot be examined", mcp_bash.unsafe_project_file(self.project.root, link))
        os.symlink(real, link)

        self.assertIn("symbolic link", mcp_bash.unsafe_project_file(self.project.root, link))


class FlattenTest(unittest.TestCase):
    def test_each_kind_of_value_has_its_entry(self):
        for value, entries in FLAT:
            with self.subTest(value=value):
                found = read_flat(mcp_bash.flatten(value))

                self.assertEqual(entries, [entry for entry in found if entry in entries])
                self.assertEqual(".", found[0][0])

    def test_parents_come_before_children_in_the_order_of_the_document(self):
        value = {"z": [1, {"y": 2}], "a": 3}
        paths = [path for path, _, _ in read_flat(mcp_bash.flatten(value))]

        self.assertEqual([".", ".z", ".z[0]", ".z[1]", ".z[1].y", ".a"], paths)

    def test_below_sixteen_levels_a_container_is_json_only(self):
        value: Any = "bottom"
        for _ in range(20):
            value = [value]
        found = read_flat(mcp_bash.flatten(value))

        self.assertEqual(["."] + ["." + "[0]" * level for level in range(1, 17)], [row[0] for row in found])
        self.assertEqual("a", found[-1][1])
        self.assertIn('"bottom"', found[-1][2])

    def test_separators_in_texts_never_start_an_entry(self):
        source = random.Random(SEED)
        for _ in range(500):
            texts = ["".join(source.choices("\x1c\x1d\x1e\x1fdef\n ", k=source.randrange(9))) for _ in range(3)]
            found = read_flat(mcp_bash.flatten(texts))

            self.assertEqual(texts, [value for _, kind, value in found if kind == "s"], "seed %d" % SEED)

    def test_a_number_that_json_does_not_have_is_an_error(self):
        with self.assertRaises(ValueError):
            mcp_bash.flatten({"a": float("inf")})


if __name__ == "__main__":
    unittest.main()
