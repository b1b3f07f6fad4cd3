"""The YAML reader of room 7: what it accepts PyYAML reads identically, everything else is a positioned YamlError.

Data: data/yaml/valid/NAME.yaml with the expected value in NAME.json, and data/yaml/invalid/NAME.yaml with
`line:column: part of the message` in NAME.error. The differential tests need PyYAML and hypothesis.
MCPBASH_TEST_EXAMPLES=N makes each of them try N examples.
"""
from __future__ import annotations

import glob
import json
import math
import os
import random
import re
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))

from mcp_bash import YamlError, parse_yaml  # noqa: E402

try:
    import yaml
except ImportError:
    yaml = None
try:
    import hypothesis
    from hypothesis import strategies as st
except ImportError:
    hypothesis = None

VALID = sorted(glob.glob(os.path.join(HERE, "data", "yaml", "valid", "*.yaml")))
INVALID = sorted(glob.glob(os.path.join(HERE, "data", "yaml", "invalid", "*.yaml")))
SEED = 20240229
EXAMPLES = int(os.environ.get("MCPBASH_TEST_EXAMPLES", "400"))
REFUSED_AT_MOST = 0.05  # of what safe_dump writes for random JSON: text such as y, 1e5 or ?x that it leaves unquoted
DEADLINE = 30.0  # seconds for one hostile text; linear time needs less than one, quadratic time minutes
HOSTILE = 1 << 18  # characters of it
MEGABYTE = 1 << 20


def read(path: str) -> str:
    """Return the text of a file with its line ends untouched."""
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def sibling(path: str, extension: str) -> str:
    """Return the text of the file that differs from `path` in the extension only."""
    return read(os.path.splitext(path)[0] + extension)


def name_of(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def outcome(parse, text: str):
    """Return ("value", repr) or ("error", sentence); repr tells 1 from 1.0 and True, and keeps the order of keys."""
    try:
        return "value", repr(parse(text))
    except YamlError as error:
        return "error", str(error)


def peer_outcome(text: str):
    """Return what PyYAML makes of `text`; whatever it raises is a refusal, and it raises more than its own errors."""
    try:
        return "value", repr(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        return "error", str(error)


class DataFiles(unittest.TestCase):
    maxDiff = None

    def test_there_are_data_files(self):
        self.assertGreater(len(VALID), 15)
        self.assertGreater(len(INVALID), 80)

    def test_each_valid_file_gives_the_value_beside_it(self):
        for path in VALID:
            with self.subTest(name_of(path)):
                expected = json.loads(sibling(path, ".json"))

                self.assertEqual(("value", repr(expected)), outcome(parse_yaml, read(path)))

    def test_each_invalid_file_is_refused_at_the_place_and_with_the_words_beside_it(self):
        for path in INVALID:
            with self.subTest(name_of(path)):
                line, column, words = sibling(path, ".error").strip().split(":", 2)
                with self.assertRaises(YamlError) as caught:
                    parse_yaml(read(path))

                self.assertEqual((int(line), int(column)), (caught.exception.line, caught.exception.column))
                self.assertIn(words.strip(), caught.exception.message)

    def test_each_message_says_what_was_found_what_is_expected_and_what_to_do(self):
        for path in INVALID:
            with self.subTest(name_of(path)):
                kind, sentence = outcome(parse_yaml, read(path))

                self.assertEqual("error", kind)
                self.assertRegex(sentence, r"\Aline \d+, column \d+: found .+; expected .+; [a-z].+\Z")
                self.assertLess(len(sentence), 250)

    def test_valid_files_read_the_same_with_windows_line_ends_and_a_byte_order_mark(self):
        for path in VALID:
            with self.subTest(name_of(path)):
                text = read(path)

                self.assertEqual(parse_yaml(text), parse_yaml("\ufeff" + text.replace("\n", "\r\n")))

    @unittest.skipUnless(yaml, "PyYAML is not installed")
    def test_pyyaml_reads_each_valid_file_the_same(self):
        for path in VALID:
            for text in (read(path), "\ufeff" + read(path).replace("\n", "\r\n")):
                with self.subTest(name_of(path)):
                    self.assertEqual(peer_outcome(text), outcome(parse_yaml, text))


class Places(unittest.TestCase):
    """What editors would spoil in a data file: tabs, missing final newlines, invisible characters."""

    def refused(self, text: str, line: int, column: int, words: str):
        with self.assertRaises(YamlError) as caught:
            parse_yaml(text)

        self.assertEqual((line, column), (caught.exception.line, caught.exception.column))
        self.assertIn(words, caught.exception.message)

    def test_tabs_are_refused_wherever_they_separate_or_indent(self):
        self.assertEqual({"a": {"b": 1}}, parse_yaml("a:\n  b: 1\n"))
        self.refused("a:\n\tb: 1\n", 2, 1, "a tab")
        self.refused("a:\t1\n", 1, 3, "a tab")
        self.refused("a: 1\t# x\n", 1, 5, "a tab")
        self.refused("a: b\tc\n", 1, 5, "a tab")
        self.refused("-\ta\n", 1, 2, "a tab")
        self.refused("a: [1,\t2]\n", 1, 7, "a tab")
        self.refused("a: 1\n  \t\nb: 2\n", 2, 3, "a tab")

    def test_tabs_are_kept_in_quotes_text_blocks_and_comments(self):
        self.assertEqual({"a": "x\ty", "b": "\tz\n"}, parse_yaml("a: 'x\ty' # \t\nb: |\n  \tz\n"))

    def test_control_characters_and_rival_line_ends_are_refused(self):
        for character in "\0\x07\x0b\x0c\r\x1b\x7f\x85\u2028\u2029\ud800\ufeff\ufffe":
            code = f"U+{ord(character):04X}"
            with self.subTest(code):
                self.refused(f"a: 1\nb: 'x{character}y'\n", 2, 6, code)

    def test_the_last_line_may_lack_its_end(self):
        for text, expected in (
            ("a: 1", 1), ("a: 'x'", "x"), ("a:", None), ("a: [1]", [1]), ("a: |\n  x", "x"), ("a: |\n  x\n  ", "x\n"),
            ("a: |\n  x\n    ", "x\n  "), ("a: |", ""), ("a: >+\n  x\n\n ", "x\n\n"), ("a: # c", None),
            ("a:\n-", [None]),
        ):
            with self.subTest(text):
                self.assertEqual({"a": expected}, parse_yaml(text))

    def test_columns_count_characters_and_a_byte_order_mark_is_none(self):
        self.refused("\ufeffa: @", 1, 4, "reserved")
        self.refused("\u00e9\U0001f600: @", 1, 5, "reserved")

    def test_keys_of_1024_characters_are_read(self):
        for mark in ("", "'", '"'):
            key = mark + "k" * (1024 - 2 * len(mark)) + mark

            self.assertEqual(1, len(parse_yaml(key + ": 1")))
            self.assertEqual(1, len(parse_yaml("{" + key + ": 1}")))
            self.refused(key + " : 1", 1, 1, "1024")
            self.refused("{" + key + " : 1}", 1, 2, "1024")

    def test_64_levels_are_read_in_every_style(self):
        for text in ("[" * 64 + "]" * 64, "{a: " * 64 + "1" + "}" * 64, "- " * 64 + "x",
                     "".join(" " * n + "a:\n" for n in range(64)) + " " * 64 + "x"):
            depth, value = 0, parse_yaml(text)
            while isinstance(value, (list, dict)):
                depth, value = depth + 1, (list(value.values()) if isinstance(value, dict) else value or [None])[0]

            self.assertEqual(64, depth)

    def test_neighbours_do_not_count_as_levels(self):
        for entry in ("- - x\n", "- a: x\n", "- [x]\n", "- {a: x}\n", "- - a: [x]\n"):
            with self.subTest(entry):
                self.assertEqual(100, len(parse_yaml(entry * 100)))

    def test_keys_that_need_a_question_mark_are_refused(self):
        self.refused("? ''\n: 1\n", 1, 1, "a complex key")
        self.refused("a: {? 'b' : 1}\n", 1, 5, "a complex key")
        self.assertEqual({"": 1, "a\nb": 2}, parse_yaml("'': 1\n\"a\\nb\": 2\n"))

    def test_an_error_carries_its_parts(self):
        with self.assertRaises(ValueError) as caught:
            parse_yaml("a: 1\nb: yes\n")

        self.assertIsInstance(caught.exception, YamlError)
        self.assertEqual("line 2, column 4: " + caught.exception.message, str(caught.exception))


class HostileText(unittest.TestCase):
    """A large text of any kind ends, in a value or a YamlError, long before a quadratic algorithm would."""

    def test_a_hostile_text_is_read_or_refused_before_the_deadline(self):
        pieces = {
            "open brackets": "[", "open braces": "{a: ", "dashes": "- ", "dash lines": "-\n", "spaces": " ",
            "quotes": "'", "double quotes": '"', "escapes": '"\\n', "backslashes": "\\", "colons": "a:", "keys": "a: ",
            "flow items": "[" + "1," * 1000 + "],", "blank lines": "\n", "spaced lines": "  \n", "comments": "# x\n",
            "hashes": " #", "words": "word ", "lines": "word\n", "digits": "1", "digit groups": "1:1", "points": "1.",
            "underscores": "1_", "dates": "2024-01-01 ", "markers": "---\n", "text blocks": "a: |\n",
            "indented": " a\n",
        }
        starts = ("", "a: ", "a: [", "a: '", 'a: "', "a: |\n  ", "a: >\n  ", "- ", "{'a': '", "a: >\n x\n")
        for name, piece in pieces.items():
            for start in starts:
                for end in ("", "z", "\nz: 1\n"):
                    text = start + piece * (HOSTILE // len(piece)) + end
                    began = time.monotonic()
                    outcome(parse_yaml, text)
                    self.assertLess(time.monotonic() - began, DEADLINE, (name, start))

    def test_large_valid_texts_are_read(self):
        lines = [f"key{number}: [value, 'quoted text', {{a: {number}}}]\n" for number in range(20000)]

        self.assertEqual(20000, len(parse_yaml("".join(lines))))
        self.assertEqual(20000, len(parse_yaml("[" + ",".join(["x"] * 20000) + "]")))
        self.assertEqual("x" * MEGABYTE, parse_yaml("a: " + "x" * MEGABYTE)["a"])
        self.assertEqual("x\n" * 20000, parse_yaml("a: |\n" + "  x\n" * 20000)["a"])

    def test_random_bytes_of_text_end_in_a_value_or_a_yaml_error(self):
        generator = random.Random(SEED)
        characters = "ab1 \t\n\r:-?[]{},'\"\\|>#&*!%@`~=.\u2028\x00\u00e9"
        ends = {"value": 0, "error": 0}
        for _ in range(5000):
            text = "".join(generator.choices(characters, k=generator.randrange(1, 30)))
            ends[outcome(parse_yaml, text)[0]] += 1

        self.assertGreater(min(ends.values()), 50, f"seed {SEED}: {ends}")


def settings():
    """Return the hypothesis settings: the same examples in each run, no time limit for one of them."""
    return hypothesis.settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def run(strategy, check) -> None:
    """Call `check` with examples of `strategy`."""
    settings()(hypothesis.given(strategy)(check))()


def prose():
    """Return texts of words, blanks, line ends and the marks that matter in YAML."""
    return st.one_of(
        st.lists(st.sampled_from("a word or two, it's: #1 - \n x".split(" ")), max_size=30).map(" ".join),
        st.from_regex(r"[ \n]?([a-z]{1,4}[ \n,:-]{1,2}){0,9}", fullmatch=True),
    )


def json_values():
    scalars = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12),
        prose(),
    )
    # safe_dump writes keys that are empty or have line breaks after a question mark, which is refused: none here.
    in_line = st.characters(exclude_characters="\n\x85\u2028\u2029", exclude_categories=["Cs"])
    words = st.sampled_from(["name", "a b", "type", "$ref", "1", "true"])
    keys = st.one_of(st.text(in_line, min_size=1, max_size=8), words)
    return st.recursive(
        scalars, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
        max_leaves=12,
    )


def dump_styles():
    return st.fixed_dictionaries({
        "default_flow_style": st.sampled_from([True, False, None]), "width": st.sampled_from([5, 20, 80, 10000]),
        "allow_unicode": st.booleans(), "indent": st.sampled_from([None, 2, 4, 7]), "explicit_end": st.booleans(),
        "line_break": st.sampled_from(["\n", "\r\n"]), "sort_keys": st.booleans(),
    })


SNIPPETS = (
    "a", "b c", "key: ", "k:", ": ", ":", "- ", "-", "\n", "\n  ", "\n    ", "\n\n", " ", "  ", "\t", "#", " # c\n",
    "'", "''", '"', "\\", "\\n", "\\x41", "\\\n", "[", "]", "{", "}", ",", ", ", "|", ">", "|-\n", ">+\n", "|2\n",
    "&x", "*x", "!t ", "?", "? ", "%", "@", "`", "~", "null", "true", "yes", "y", "<<", "=", "0", "12", "-1", "1.5",
    "1e3", "0o7", "0x1", "1_0", "12:30", "2024-01-01", ".5", ".inf", "---", "---\n", "...", "...\n", "\r", "\r\n",
    "\u00e9", "\u2028", "\ufeff", "\x00",
)


def edits():
    """Return lists of (place, removed characters, inserted text); places are fractions of the text's length."""
    edit = st.tuples(st.floats(0, 1), st.sampled_from([0, 0, 1, 1, 2, 5, 20]), st.sampled_from(SNIPPETS + ("",)))
    return st.lists(edit, min_size=1, max_size=4)


def edited(text: str, changes) -> str:
    for place, removed, inserted in changes:
        start = int(place * len(text))
        text = text[:start] + inserted + text[start + removed :]
    return text


@unittest.skipUnless(yaml, "PyYAML is not installed")
@unittest.skipUnless(hypothesis, "hypothesis is not installed")
class Differential(unittest.TestCase):
    """Whatever is accepted, PyYAML reads identically."""

    def agree(self, text: str) -> bool:
        """Tell whether the text was accepted; fail when it was, and PyYAML reads something else or nothing."""
        ours = outcome(parse_yaml, text)
        if ours[0] == "value":
            self.assertEqual(peer_outcome(text), ours, text)
        return ours[0] == "value"

    def test_what_safe_dump_writes_is_read_back_or_rarely_refused(self):
        counts = {True: 0, False: 0}

        def check(example):
            value, style = example
            accepted = self.agree(yaml.safe_dump(value, **style))
            counts[accepted] += 1

        run(st.tuples(json_values(), dump_styles()), check)
        refused = counts[False] / sum(counts.values())
        self.assertLess(refused, REFUSED_AT_MOST, counts)

    def test_text_written_in_any_quoting_style_is_read_back_or_rarely_refused(self):
        counts = {True: 0, False: 0}

        def check(example):
            texts, quoting, style = example
            counts[self.agree(yaml.safe_dump({"k": texts}, **dict(style, default_style=quoting)))] += 1

        texts = st.lists(st.one_of(st.text(max_size=12), prose()), max_size=3)
        run(st.tuples(texts, st.sampled_from(["'", '"', "|", ">"]), dump_styles()), check)
        refused = counts[False] / sum(counts.values())
        self.assertLess(refused, REFUSED_AT_MOST, counts)

    def test_edited_valid_files_are_read_like_pyyaml_or_refused(self):
        counts = {True: 0, False: 0}
        texts = [read(path) for path in VALID]

        def check(example):
            text, changes = example
            counts[self.agree(edited(text, changes))] += 1

        run(st.tuples(st.sampled_from(texts), edits()), check)
        self.assertGreater(min(counts.values()), EXAMPLES // 20, counts)

    def test_single_lines_of_valid_files_in_any_order_are_read_like_pyyaml_or_refused(self):
        lines = [line for path in VALID for line in read(path).splitlines(True)]
        counts = {True: 0, False: 0}

        def check(chosen):
            counts[self.agree("".join(chosen))] += 1

        run(st.lists(st.sampled_from(lines), min_size=1, max_size=5), check)
        self.assertGreater(min(counts.values()), EXAMPLES // 20, counts)

    def test_snippets_in_any_order_are_read_like_pyyaml_or_refused(self):
        counts = {True: 0, False: 0}

        def check(snippets):
            counts[self.agree("".join(snippets))] += 1

        run(st.lists(st.sampled_from(SNIPPETS), min_size=1, max_size=12), check)
        self.assertGreater(min(counts.values()), EXAMPLES // 20, counts)

    def test_number_like_words_are_read_like_pyyaml_or_refused(self):
        counts = {True: 0, False: 0}

        def check(word):
            for text in (word, "a: " + word, f"[{word}]", "- " + word):
                counts[self.agree(text)] += 1

        like_numbers = r"[-+]?[0-9._:eExob]{1,5}([-+T: ][0-9.]{1,4}){0,3}|[yYnNoOtTfF][a-zA-Z]{0,4}"
        run(st.from_regex(like_numbers, fullmatch=True), check)
        self.assertGreater(min(counts.values()), EXAMPLES // 20, counts)

    def test_arbitrary_text_never_raises_anything_else(self):
        def check(text):
            self.agree(text)
            for path in VALID[:3]:
                self.agree(read(path) + text)

        run(st.text(max_size=40), check)


class Values(unittest.TestCase):
    """Only what JSON can say comes out."""

    def test_every_value_survives_a_strict_json_round_trip(self):
        for path in VALID:
            with self.subTest(name_of(path)):
                value = parse_yaml(read(path))

                self.assertEqual(repr(value), repr(json.loads(json.dumps(value, allow_nan=False))))

    def test_numbers_keep_their_type(self):
        one, one_point, yes = parse_yaml("[1, 1.0, true]")

        self.assertEqual((int, float, bool), (type(one), type(one_point), type(yes)))
        self.assertEqual(-1.0, math.copysign(1, parse_yaml("-0.0")))

    def test_the_documentation_names_every_refused_word(self):
        refused = re.search(r"differently: (.*?)\n *- ", parse_yaml.__doc__, re.S)[1]
        words = [word for word in re.split(r"[\s,]+", refused) if word != "and"]

        self.assertGreater(len(words), 15)
        for word in words:
            with self.subTest(word):
                self.assertEqual("error", outcome(parse_yaml, "a: " + word)[0])
                self.assertEqual({"a": word}, parse_yaml(f"a: '{word}'"))


if __name__ == "__main__":
    unittest.main()
