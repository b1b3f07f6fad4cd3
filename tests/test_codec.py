#!/usr/bin/env python3
"""Room 2, the JSON codec: what is read, what is refused, and that what is written is always one safe line."""
from __future__ import annotations

import json
import os
import random
import sys
import time
import unittest
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

sys.path.append(support.ROOT)

import mcp_bash

SEED = 20260728
SAMPLES = 100_000 if support.FUZZ else 2_000
CPU_LIMIT = 2.0  # seconds; the worst line here needs a tenth of that, an unbounded reader needs minutes

# line -> value; repr() tells 1 from 1.0 and True, and keeps the order of keys
READ = (
    (b"null", None),
    (b" \t\r\n{} \n", {}),
    (b'{"b":1,"a":[true,false,null]}', {"b": 1, "a": [True, False, None]}),
    (b"-0", 0),
    (b"-0.0", -0.0),
    (b"1e2", 100.0),
    (b"9007199254740993", 9007199254740993),
    (b"1180591620717411303424", 1 << 70),
    (b'"\\u0000\\u2028\\/"', "\0\u2028/"),
    ('"\u00e9\u2028\U0001f600"'.encode(), "\u00e9\u2028\U0001f600"),
    (b'"\\ud83d\\ude00"', "\U0001f600"),
    (b'"\\ud800"', "\ud800"),
    (b'{"a":1,"a":2}', {"a": 2}),
)

# line -> part of the reason
REFUSED = (
    (b"", ""),
    (b"   ", ""),
    (b"not-json", ""),
    (b"{}{}", "Extra data"),
    (b"1 2", "Extra data"),
    (b'{"a":1,}', ""),
    (b"[1,]", ""),
    (b"{'a':1}", ""),
    (b"{a:1}", ""),
    (b"[1 /* two */]", ""),
    (b"+1", ""),
    (b"01", ""),
    (b"1.", ""),
    (b".5", ""),
    (b"0x10", ""),
    (b'"open', ""),
    (b'"a\nb"', ""),  # raw control characters in a string
    (b'"a\tb"', ""),
    (b'"a\0b"', ""),  # PR-05
    (b"\0", ""),
    (b'"\\x41"', ""),
    (b'"\\u12"', ""),
    (b"tru", ""),
    (b"NaN", "not JSON"),  # PR-09, R-014
    (b'{"a":[Infinity]}', "not JSON"),
    (b"-Infinity", "not JSON"),
    (b'"\xff\xfe"', "UTF-8"),  # PR-04
    (b'"\xc0\xaf"', "UTF-8"),  # overlong
    (b'"\xed\xa0\x80"', "UTF-8"),  # a surrogate in UTF-8
    (b'"\xe2\x82"', "UTF-8"),  # cut in the middle
    ("{}".encode("utf-16"), "UTF-8"),  # json.loads would guess
    ("\ufeff{}".encode(), ""),  # the reader of lines takes a mark off, the codec does not know it
    ("\u00a0{}".encode(), ""),
    (b"[" * 129 + b"]" * 129, "128"),
    (b'{"a":' * 129 + b"1" + b"}" * 129, "128"),
    (b"[" * 100_000, "128"),  # PR-01
    (b'{"a":' * 100_000, "128"),
    (b"[" * 100_000 + b"]" * 100_000, "128"),
    (b"[" + b"[]," * mcp_bash.MAX_BRACKETS + b"[]]", str(mcp_bash.MAX_BRACKETS)),  # PR-11
    (b'{"a":1e999}', "out of range"),  # PR-09
    (b"-1e999", "out of range"),
    (b"1" * 4_301, "4300"),  # PR-08
    (b'{"a":-' + b"1" * 1_000_000 + b"}", "4300"),
)

# text -> the document in it, or NOT_ONE
NOT_ONE = (False, None)
DOCUMENTS = (
    ("{}", (True, {})),
    ("\n [1] \n", (True, [1])),
    ('"text"', (True, "text")),
    ("-1.5", (True, -1.5)),
    ("false", (True, False)),
    ("null", (True, None)),
    ("", NOT_ONE),
    (" \n", NOT_ONE),
    ("plain text", NOT_ONE),
    ("true story", NOT_ONE),
    ("{} {}", NOT_ONE),
    ("{}\n{}", NOT_ONE),
    ("NaN", NOT_ONE),
    ("Infinity", NOT_ONE),
    ("[NaN]", NOT_ONE),
    ("[1e999]", NOT_ONE),
    ('"\ud800"', NOT_ONE),  # cannot be UTF-8, so it cannot be a document
    ("[" * 5_000, NOT_ONE),
    ("12 monkeys", NOT_ONE),
)


def random_value(source: random.Random, depth: int = 0) -> Any:
    """Return a random JSON value, with the characters and numbers that break encoders."""
    kind = source.randrange(8 if depth < 5 else 6)
    if kind == 6:
        return [random_value(source, depth + 1) for _ in range(source.randrange(4))]
    if kind == 7:
        return {random_text(source): random_value(source, depth + 1) for _ in range(source.randrange(4))}
    if kind == 0:
        return source.choice((None, True, False))
    if kind == 1:
        return source.choice((0, -1, 1 << 53, -(1 << 70), source.randrange(-(10**40), 10**40)))
    if kind == 2:
        return source.choice((0.5, -0.0, 1e300, 5e-324, source.uniform(-1e9, 1e9)))
    return random_text(source)


def random_text(source: random.Random) -> str:
    """Return a short text of ordinary and troublesome characters; two halves of a pair would join, so one is there."""
    letters = 'ab "\\/\n\r\t\0\x1b\x7f\x85\u00e9\u2028\u2029\ud800\ufeff\uffff\U0001f600'
    return "".join(source.choice(letters) for _ in range(source.randrange(8)))


def mutated(source: random.Random, line: bytes) -> bytes:
    """Return a line with a few bytes changed, removed, doubled or cut off."""
    data = bytearray(line)
    for _ in range(source.randrange(1, 4)):
        place = source.randrange(len(data) + 1)
        action = source.randrange(4)
        if action == 0:
            data[place:place] = bytes([source.choice(b'{}[],:"\\0123456789.eE+-tfnuaN \n\t\x00\xff\xc3\xe2')])
        elif action == 1:
            del data[place : place + source.randrange(1, 3)]
        elif action == 2:
            data[place:place] = data[place : place + source.randrange(1, 12)]
        else:
            del data[place:]
    return bytes(data)


class DecodeTest(unittest.TestCase):
    def test_strict_json_is_read(self):
        for line, value in READ:
            with self.subTest(line=line):
                self.assertEqual(repr(value), repr(mcp_bash.decode(line)))

    def test_everything_else_is_a_parse_error_that_gives_a_reason(self):
        for line, reason in REFUSED:
            with self.subTest(line=line[:40], length=len(line)):
                with self.assertRaises(mcp_bash.ParseError) as caught:
                    mcp_bash.decode(line)

                self.assertEqual(-32700, caught.exception.code)
                self.assertIn(reason, caught.exception.message)

    def test_the_reason_is_one_short_line(self):
        for line, _ in REFUSED:
            with self.subTest(line=line[:40], length=len(line)):
                with self.assertRaises(mcp_bash.ParseError) as caught:
                    mcp_bash.decode(line)
                message = caught.exception.message

                self.assertLessEqual(len(message), 160)
                self.assertTrue(message.startswith("Parse error: ") and message.isprintable(), message)

    def test_the_limits_are_where_they_are_said_to_be(self):
        deepest = b"[" * 127 + b"{}" + b"]" * 127
        many = b"[" + b"[]," * (mcp_bash.MAX_BRACKETS - 2) + b"[]]"

        self.assertEqual(128, mcp_bash.depth_of(mcp_bash.decode(deepest)))
        self.assertEqual(mcp_bash.MAX_BRACKETS - 1, len(mcp_bash.decode(many)))
        self.assertEqual(int("1" * 4_300), mcp_bash.decode(b"1" * 4_300))

    def test_brackets_inside_text_are_not_depth(self):
        text = "[" * 200_000

        self.assertEqual([text], mcp_bash.decode(json.dumps([text]).encode()))

    def test_hostile_lines_cost_little(self):  # PR-01, PR-08: no quadratic time, whatever the line holds
        before = time.process_time()
        for line, _ in REFUSED:
            with self.assertRaises(mcp_bash.ParseError):
                mcp_bash.decode(line)

        self.assertLess(time.process_time() - before, support.patient(CPU_LIMIT))

    def test_damaged_lines_are_read_as_a_strict_reader_reads_them_or_refused(self):
        source = random.Random(SEED)
        refused = 0
        for number in range(SAMPLES):
            line = mutated(source, mcp_bash.encode(random_value(source)))
            expected = support.record(True, line)
            try:
                actual = mcp_bash.decode(line)
            except mcp_bash.ParseError:
                refused += 1
                # The strict reader refuses an object that names a member twice as well; nothing else may differ.
                self.assertTrue(expected.problem, "seed %d, line %d: %r was refused" % (SEED, number, line))
            else:
                if "twice" not in expected.problem:
                    self.assertEqual(("", repr(expected.message)), (expected.problem, repr(actual)), line)

        self.assertGreater(refused, SAMPLES // 10)
        self.assertGreater(SAMPLES - refused, SAMPLES // 10)


class DepthTest(unittest.TestCase):
    def test_depth_counts_arrays_and_objects(self):
        for value, depth in ((1, 0), ("[[", 0), ([], 1), ({}, 1), ([1, {"a": []}], 3), ({"a": [[]], "b": {}}, 3)):
            with self.subTest(value=value):
                self.assertEqual(depth, mcp_bash.depth_of(value))

    def test_depth_needs_no_stack(self):
        value: list = []
        for _ in range(50_000):
            value = [value]

        self.assertEqual(50_001, mcp_bash.depth_of(value))
        while value:  # taken apart by hand: some interpreters free a nest this deep recursively
            value = value.pop()


class EncodeTest(unittest.TestCase):
    def test_any_value_becomes_one_line_of_ascii_and_comes_back_the_same(self):  # R-001, R-002, R-004
        source = random.Random(SEED)
        for number in range(SAMPLES):
            value = random_value(source)
            line = mcp_bash.encode(value)

            self.assertTrue(line.isascii() and all(32 <= byte < 127 for byte in line), (SEED, number, line))
            self.assertEqual(repr(value), repr(mcp_bash.decode(line)), "seed %d, value %d" % (SEED, number))

    def test_the_form_is_compact(self):
        value = {"b": [1, 2.5, None], "a": "\u00e9\n\U0001f600"}

        self.assertEqual(b'{"b":[1,2.5,null],"a":"\\u00e9\\n\\ud83d\\ude00"}', mcp_bash.encode(value))

    def test_numbers_that_json_does_not_have_are_refused(self):  # R-015
        for value in (float("nan"), float("inf"), float("-inf"), {"a": [float("inf")]}):
            with self.subTest(value=value), self.assertRaises(ValueError):
                mcp_bash.encode(value)


class CanonicalTest(unittest.TestCase):
    def test_the_order_of_keys_makes_no_difference(self):
        source = random.Random(SEED)
        for _ in range(200):
            value = random_value(source)

            self.assertEqual(mcp_bash.canonical(value), mcp_bash.canonical(shuffled(source, value)))

    def test_everything_else_makes_a_difference(self):
        values = (1, 1.0, True, "1", None, [], {}, [1, 2], [2, 1], {"a": 1}, {"a": "1"}, {"A": 1}, [[]], "")
        texts = {mcp_bash.canonical(value) for value in values}

        self.assertEqual(len(values), len(texts))

    def test_the_form_is_sorted_compact_ascii(self):
        value = {"b": {"z": 1, "\u00e9": 2, "a": 3}, "a": []}

        self.assertEqual(b'{"a":[],"b":{"a":3,"z":1,"\\u00e9":2}}', mcp_bash.canonical(value))


def shuffled(source: random.Random, value: Any) -> Any:
    """Return an equal value whose objects have their keys in another order."""
    if isinstance(value, list):
        return [shuffled(source, item) for item in value]
    if not isinstance(value, dict):
        return value
    items = list(value.items())
    source.shuffle(items)
    return {key: shuffled(source, item) for key, item in items}


class DocumentTest(unittest.TestCase):
    def test_a_text_is_a_document_only_as_a_whole(self):
        for text, expected in DOCUMENTS:
            with self.subTest(text=text[:30]):
                self.assertEqual(repr(expected), repr(mcp_bash.document(text)))

    def test_no_text_raises(self):
        source = random.Random(SEED)
        for number in range(SAMPLES):
            text = mutated(source, mcp_bash.encode(random_value(source))).decode("utf-8", "surrogateescape")
            is_json, value = mcp_bash.document(text)

            self.assertTrue(is_json or value is None, "seed %d, text %d: %r" % (SEED, number, text))


if __name__ == "__main__":
    unittest.main()
