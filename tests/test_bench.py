#!/usr/bin/env python3
"""The benchmark measures what it says: tables fit together, numbers are plausible, wrong answers end the run.

No time is asserted here; bench.py itself judges speed.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

import bench

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench.py")

# Answers the handshake well and every ping as if it were request 7, or with a good id when argv[1] is "good".
PARROT = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    ident = message.get("id")
    if ident is not None:
        if message["method"] == "ping" and sys.argv[1] != "good":
            ident = 7
        print(json.dumps({"jsonrpc": "2.0", "id": ident, "result": {"serverInfo": {}}}), flush=True)
"""


def run_bench(*arguments: str) -> subprocess.CompletedProcess:
    """Run bench.py on the smallest scale."""
    command = [sys.executable, BENCH, "--quick", "--rounds", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


class TablesTest(unittest.TestCase):
    """Rows, groups, scales and goals name each other."""

    def test_every_group_has_rows_a_scale_and_a_generator(self):
        groups = {row.group for row in bench.ROWS}

        self.assertEqual(set(bench.SCALES), groups)
        self.assertEqual(set(bench.GROUPS), groups)

    def test_row_keys_are_unique(self):
        self.assertEqual(len(bench.ROWS), len(bench.ROW))

    def test_every_goal_is_about_a_row_and_has_a_known_sign(self):
        for goal in bench.GOALS:
            self.assertIn(goal.key, bench.ROW)
            self.assertIn(goal.sign, bench.SIGNS)
            self.assertIn(goal.basis, ("ratio", "value"))


class StatisticsTest(unittest.TestCase):
    """The arithmetic behind the tables."""

    def test_the_exponent_of_a_square_is_two_and_of_a_line_one(self):
        self.assertAlmostEqual(2.0, bench.exponent([(n, 3.0 * n * n) for n in bench.SIZES]))
        self.assertAlmostEqual(1.0, bench.exponent([(n, 0.5 * n) for n in bench.SIZES]))

    def test_ratios_are_paired_by_round_and_skip_rounds_that_one_side_missed(self):
        samples = bench.Samples()
        for turn, (ours, bare) in enumerate([(2.0, 1.0), (30.0, 10.0), (4.0, None)]):
            samples.add("ours", turn, {"call_p50": ours})
            samples.add("bare", turn, {"call_p50": bare} if bare else {})

        self.assertEqual([2.0, 3.0], samples.ratios("call_p50", "ours", "bare"))

    def test_the_ratio_of_a_rate_is_a_cost_too(self):
        samples = bench.Samples()
        samples.add("ours", 0, {"ping_rate": 50.0})
        samples.add("pyfloor", 0, {"ping_rate": 100.0})

        self.assertEqual([2.0], samples.ratios("ping_rate", "ours", "pyfloor"))

    def test_a_pooled_row_takes_its_quantile_over_all_rounds(self):
        samples = bench.Samples()
        samples.add("ours", 0, {"call_p99": [1.0] * 98})
        samples.add("ours", 1, {"call_p99": [8.0, 9.0]})

        self.assertEqual([9.0], samples.all("call_p99", "ours"))

    def test_a_goal_is_met_at_its_bound_and_missed_beyond_it(self):
        for value, met, missed_by in ((22.0, True, 0.0), (33.0, False, 0.5)):
            samples = bench.Samples()
            samples.add("ours", 0, {"rss_calls": value})

            verdict = bench.judge(samples)[0]

            self.assertEqual("rss_calls", verdict["row"])
            self.assertEqual((met, missed_by), (verdict["met"], verdict["missed_by"]))

    def test_a_missed_ratio_says_whether_the_best_rounds_meet_it(self):
        for ours, best_met in (([1.0, 9.0, 9.0], True), ([2.0, 9.0, 9.0], False)):
            samples = bench.Samples()
            for turn, value in enumerate(ours):
                samples.add("ours", turn, {"call_p50": value})
                samples.add("bare", turn, {"call_p50": 1.0})

            verdict = bench.judge(samples)[0]

            self.assertEqual((False, best_met), (verdict["met"], verdict["best_met"]))

    def test_the_next_page_is_found_without_parsing(self):
        self.assertEqual(b'{"cursor":"abc_-"}', bench.next_page(b'{"result":{"tools":[],"nextCursor": "abc_-"}}'))
        self.assertEqual(b"", bench.next_page(b'{"result":{"tools":[]}}'))


class RunTest(unittest.TestCase):
    """Whole runs on the smallest scale."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def path(self, name: str, text: str | None = None) -> str:
        """Return a path in the test's directory, with this text in it."""
        path = os.path.join(self.directory.name, name)
        if text is not None:
            with open(path, "w") as file:
                file.write(text)
        return path

    def test_a_tiny_run_writes_plausible_numbers_and_ends_with_the_goals(self):
        done = run_bench("--rows", "burst,ping", "--json", self.path("out.json"))

        self.assertEqual(0, done.returncode, done.stderr)
        with open(self.path("out.json")) as file:
            report = json.load(file)
        self.assertEqual({"burst", "ping_p50", "ping_rate"}, set(report["rows"]))
        self.assertEqual(["burst", "ping_rate"], [verdict["row"] for verdict in report["goals"]])
        for row in report["rows"].values():
            self.assertLessEqual({"ours", row["reference"]}, set(row["columns"]))
            for column in row["columns"].values():
                self.assertTrue(0 < column["median"] < math.inf, row)
                self.assertTrue(column["samples"], row)
        goals = done.stdout.rstrip().rpartition("\n\n")[2].splitlines()
        self.assertEqual(["row", "ours", "reference", "ratio", "goal", "verdict"], goals[0].split())
        self.assertEqual(2 + len(report["goals"]), len(goals))

    def test_the_servers_start_without_what_is_installed_beside_the_interpreter(self):
        python = bench.clean_python(bench.real_python(None), self.path("python"))

        code = "import sys; print(*(path for path in sys.path if path.endswith(('site-packages', 'dist-packages'))))"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        plain = subprocess.run([python, "-c", "import json; print(1)"], capture_output=True, text=True, check=True)

        self.assertEqual("", done.stdout.strip())
        self.assertEqual("1", plain.stdout.strip())

    def test_a_wrong_answer_ends_the_run_with_a_sentence(self):
        parrot = shlex.join([sys.executable, self.path("parrot.py", PARROT)])

        bad = run_bench("--rows", "ping", "--server", parrot + " bad")
        good = run_bench("--rows", "ping", "--server", parrot + " good")

        self.assertEqual(2, bad.returncode, bad.stderr)
        self.assertIn("bench: ours answered id 7, which was not waiting", bad.stderr)
        self.assertEqual(0, good.returncode, good.stderr)

    def test_a_server_that_ends_is_reported_with_its_last_words(self):
        script = self.path("dies.py", "import sys; sys.exit('no such thing')")

        done = run_bench("--rows", "ping", "--server", shlex.join([sys.executable, script]))

        self.assertEqual(2, done.returncode, done.stderr)
        self.assertRegex(done.stderr, r"bench: ours closed its std(in|out); its stderr ends with:\nno such thing")

    def test_an_unknown_group_is_refused_with_the_list_of_groups(self):
        done = run_bench("--rows", "pong")

        self.assertEqual(2, done.returncode)
        self.assertIn("there is no group 'pong'; the groups are cold, call", done.stderr)


if __name__ == "__main__":
    unittest.main()
