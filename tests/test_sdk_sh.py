#!/usr/bin/env python3
"""sdk/tool_sdk.sh: every helper, run by a real Bash with what the server hands over, and a real pipe as channel."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import mcp_bash  # noqa: E402

SDK = os.path.join(os.path.dirname(os.path.abspath(mcp_bash.__file__)), "sdk")
SOURCE = 'source "$MCP_SDK/tool_sdk.sh"\n'
OPTIONS_SAME = 'o2=$(set +o; shopt -p) || :; [ "$o1" = "$o2" ] && echo same'
BASH = shutil.which("bash") or "bash"

ARGUMENTS = {
    "name": 'Ann "x" \\ $HOME `id`',
    "lines": "one\ntwo\n",
    "n": 4,
    "float": 1.0,
    "half": 0.5,
    "yes": True,
    "no": False,
    "nothing": None,
    "empty": "",
    "list": ["p", "q r", 3, True, {"k": "v"}],
    "deep": {"a": {"b": [10, 20]}},
    "x y": "spaced",
    "sep": "a\x1db\x1ec\x1fd",
}


class Outcome:
    """What a script did: status, stdout, stderr and the records it wrote to the channel."""

    def __init__(self, done: subprocess.CompletedProcess, records: list[str]) -> None:
        self.status, self.out, self.err = done.returncode, done.stdout.decode(), done.stderr.decode()
        self.records = records


def run(
    script: str, arguments: object = None, env: dict | None = None, channel: bool = True, argv: list | None = None
) -> Outcome:
    """Run `script` in Bash the way the server runs a tool."""
    arguments = ARGUMENTS if arguments is None else arguments
    read, write = os.pipe()
    full = {
        "PATH": os.environ["PATH"],
        "MCP_SDK": SDK,
        "MCP_TOOL_NAME": "t",
        "MCP_TOOL_ARGS_JSON": json.dumps(arguments),
        "MCP_ARGS_FLAT": mcp_bash.flatten(arguments),
        "MCP_META_FLAT": mcp_bash.flatten({"trace": "m1"}),
        "MCP_PROGRESS_TOKEN": "0",
        "MCP_LOG_LEVEL": "debug",
        "LC_ALL": "C.UTF-8",
        **({"MCP_CHANNEL_FD": str(write)} if channel else {}),
        **(env or {}),
    }
    try:
        done = subprocess.run(
            [*(argv or []), BASH, "-c", SOURCE + script],
            env={name: value for name, value in full.items() if value is not None},
            pass_fds=[write],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
    finally:
        os.close(write)
    with os.fdopen(read, "rb") as file:
        records = file.read().decode("utf-8", "surrogateescape").split("\0")
    return Outcome(done, records[:-1])


def content(path: str) -> str:
    """Return what is in a file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


class ArgumentsTest(unittest.TestCase):
    # filter -> what is printed
    FILTERS = {
        ".name": ARGUMENTS["name"],
        ".lines": "one\ntwo\n",
        ".n": "4",
        ".half": "0.5",
        ".yes": "true",
        ".no": "false",
        ".nothing": "null",
        ".missing": "null",
        ".empty": "",
        ".list[1]": "q r",
        ".list[4].k": "v",
        ".list[9]": "null",
        ".list[]": 'p\nq r\n3\ntrue\n{"k":"v"}',
        ".list | length": "5",
        ".deep.a.b[1]": "20",
        ".deep.a": '{"b":[10,20]}',
        '.["x y"]': "spaced",
        '.["name"]': ARGUMENTS["name"],
        '.deep["a"].b[0]': "10",
        ".n?": "4",
        ".sep": ARGUMENTS["sep"],
        '.missing // "fall back"': "fall back",
        ".missing // 7": "7",
        ".missing // .n": "4",
        ".no // true": "true",
        ".n // 1": "4",
        ".missing | length": "0",
    }

    def test_every_simple_filter_is_answered_without_another_program(self):
        for text, expected in self.FILTERS.items():
            with self.subTest(text):
                done = run("PATH=/nowhere; mcp_args_get -v x '%s'; printf '%%s' \"$x\"" % text)

                self.assertEqual((0, expected, ""), (done.status, done.out, done.err))

    def test_a_filter_prints_when_it_is_not_told_to_assign(self):
        self.assertEqual("4", run('x=$(mcp_args_get .n); printf %s "$x"').out)

    def test_the_default_is_used_for_what_is_missing_or_null(self):
        self.assertEqual(
            "dd4",
            run(
                "mcp_args_get .missing --default d; mcp_args_get .nothing --default d; mcp_args_get .n --default d"
            ).out,
        )

    def test_other_filters_go_to_jq_and_say_so_without_it(self):
        without = run("PATH=/nowhere; mcp_args_get '.n + 1'")

        self.assertEqual(1, without.status)
        self.assertIn("needs jq or gojq", without.err)
        if shutil.which("jq"):
            self.assertEqual("5", run("mcp_args_get '.n + 1'").out)

    def test_without_the_flat_form_the_answers_are_the_same(self):
        for text in (".name", ".deep.a.b[1]", '.["x y"]', ".missing"):
            with self.subTest(text):
                done = run("mcp_args_get '%s'" % text, env={"MCP_ARGS_FLAT": None})

                self.assertEqual(self.FILTERS[text], done.out)

    def test_a_flat_file_is_read_like_the_variable(self):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(mcp_bash.flatten(ARGUMENTS))
            file.flush()
            done = run("mcp_args_get .list[1]", env={"MCP_ARGS_FLAT": "", "MCP_ARGS_FLAT_FILE": file.name})

        self.assertEqual("q r", done.out)

    def test_request_metadata_is_read_the_same_way(self):
        self.assertEqual("m1 4", run('mcp_meta_get -v m .trace; mcp_args_get -v n .n; printf "%s %s" "$m" "$n"').out)

    def test_required_values_are_required(self):
        self.assertEqual("4", run("mcp_args_require .n").out)
        for text in (".missing", ".nothing", ".empty"):
            done = run("mcp_args_require -v x '%s'; echo not reached" % text)
            self.assertEqual((1, ""), (done.status, done.out))
            self.assertEqual(["fail\t-32602\t\t%s is required" % text], done.records)

    def test_integers_are_checked(self):
        rows = (
            (".n", "4", ""),
            (".float", "1", ""),
            (".missing --default 9", "9", ""),
            (".n --min 1 --max 4", "4", ""),
            (".n --min 5", "", ".n must be >= 5"),
            (".n --max 3", "", ".n must be <= 3"),
            (".half", "", ".half must be an integer"),
            (".name", "", ".name must be an integer"),
            (".missing", "", ".missing is required"),
            (".n --min 5 --max 1", "", "mcp_args_int: --min cannot exceed --max"),
        )
        for words, value, problem in rows:
            with self.subTest(words):
                done = run('mcp_args_int -v x %s; printf %%s "$x"' % words)

                self.assertEqual(value, done.out)
                self.assertEqual(["fail\t-32602\t\t" + problem] if problem else [], done.records)

    def test_booleans_are_true_or_false(self):
        self.assertEqual(
            "true false false true",
            run(
                "mcp_args_bool -v a .yes; mcp_args_bool -v b .no; mcp_args_bool -v c .name; "
                "mcp_args_bool -v d .missing --default 1;"
                'echo -n "$a $b $c $d"'
            ).out,
        )

    def test_lists_become_arrays(self):
        self.assertEqual(
            "5|q r|3",
            run('mcp_args_list items .list; printf "%s|%s|%s" "${#items[@]}" "${items[1]}" "${items[2]}"').out,
        )
        self.assertEqual("0", run('mcp_args_list items .missing; printf "%s" "${#items[@]}"').out)


class JsonTest(unittest.TestCase):
    def quoted(self, text: str, locale: str) -> str:
        return run('mcp_json_escape "$TEXT"', env={"TEXT": text, "LC_ALL": locale}).out

    def test_every_code_point_survives_quoting(self):
        points = [chr(n) for n in range(1, 0x110000) if not 0xD800 <= n <= 0xDFFF]
        chunks = [
            "".join(points[at : at + 12000]) for at in (*range(0, 24000, 12000), *range(24000, len(points), 150000))
        ]
        for locale in ("C", "C.UTF-8"):
            for chunk in chunks:
                self.assertEqual(chunk, json.loads(self.quoted(chunk, locale)))

    def test_random_text_survives_quoting(self):
        random.seed(7)
        alphabet = [chr(n) for n in range(1, 128)] + ["é", "\u2028", "😀"]
        for _ in range(20):
            text = "".join(random.choice(alphabet) for _ in range(200))
            self.assertEqual(text, json.loads(self.quoted(text, "C.UTF-8")), repr(text))

    def test_objects_and_arrays_are_built_from_words(self):
        done = run(
            "mcp_json_obj a 'x\"y' b \"$(printf 'l1\\nl2')\"; echo; "
            "mcp_json_arr 1 '' 'a b'; echo; mcp_json_obj; mcp_json_arr"
        )
        lines = done.out.split("\n")

        self.assertEqual({"a": 'x"y', "b": "l1\nl2"}, json.loads(lines[0]))
        self.assertEqual(["1", "", "a b"], json.loads(lines[1]))
        self.assertEqual("{}[]", lines[2])
        self.assertEqual(1, run("mcp_json_obj odd").status)

    def test_validity_is_told(self):
        verdicts = run(
            "for t in '{}' '[1]' 'null' '' '{' '1 2'; do mcp_is_valid_json \"$t\" && echo -n y || echo -n n; done"
        ).out

        self.assertEqual("yyynnn", verdicts)


class ResultsTest(unittest.TestCase):
    def test_a_successful_result_has_text_and_structure(self):
        result = json.loads(run("""mcp_result_success '{"a":[1,"x\\"y"]}'""").out)

        self.assertEqual({"success": True, "result": {"a": [1, 'x"y']}}, result["structuredContent"])
        self.assertEqual(result["structuredContent"], json.loads(result["content"][0]["text"]))
        self.assertIs(False, result["isError"])

    def test_a_long_result_is_summarised_in_its_text_only(self):
        result = json.loads(run("mcp_result_success '\"%s\"' 100" % ("x" * 200)).out)

        self.assertEqual("x" * 200, result["structuredContent"]["result"])
        self.assertLess(len(result["content"][0]["text"]), 100)

    def test_error_results_carry_type_message_hint_and_data(self):
        result = json.loads(run("""mcp_error not_found 'no "x"' --hint 'look again' --data '{"id":1}'""").out)
        expected = {"type": "not_found", "message": 'no "x"', "hint": "look again", "data": {"id": 1}}

        self.assertEqual({"success": False, "error": expected}, result["structuredContent"])
        self.assertEqual((True, 'no "x"'), (result["isError"], result["content"][0]["text"]))

    def test_failing_ends_the_script_and_tells_the_server(self):
        done = run('x=$(mcp_fail -32602 "a	b\nc" \'{"k":1}\'); echo still here; mcp_fail; echo not here')

        self.assertEqual(['fail\t-32602\t{"k":1}\ta\tb\nc', "fail\t-32603\t\tTool failed"], done.records)
        self.assertEqual((1, "still here\n"), (done.status, done.out))

    def test_failing_without_a_server_prints_the_error(self):
        done = run("mcp_fail_invalid_args 'no good'", channel=False)

        self.assertEqual({"code": -32602, "message": "no good", "data": None}, json.loads(done.out))


class LiveTest(unittest.TestCase):
    def test_progress_is_one_record(self):
        done = run("mcp_progress 40 'half\tway'; mcp_progress 250; mcp_progress 3 of 7; mcp_progress x")

        self.assertEqual(
            ["progress\t40\t100\thalf\tway", "progress\t100\t100\t", "progress\t3\t7\tof", "progress\t0\t100\t"],
            done.records,
        )

    def test_logs_below_the_level_are_not_written(self):
        script = "mcp_log_debug l d; mcp_log_info l i; mcp_log_warn l 'w\"'; mcp_log_error e; mcp_log NOTICE l '[1]'"
        everything = [
            "log\tdebug\tl\td",
            "log\tinfo\tl\ti",
            'log\twarning\tl\tw"',
            "log\terror\tt\te",
            "logjson\tnotice\tl\t[1]",
        ]

        self.assertEqual(everything, run(script).records)
        self.assertEqual(everything[2:4], run(script, env={"MCP_LOG_LEVEL": "warning"}).records)
        self.assertEqual([], run(script, env={"MCP_LOG_LEVEL": "none"}).records)

    def test_without_a_server_logs_go_to_stderr_and_progress_nowhere(self):
        done = run("mcp_log_info l hello; mcp_progress 5 x; echo ok", channel=False)

        self.assertEqual((0, "ok\n", "l: [info] hello\n"), (done.status, done.out, done.err))

    def test_cancellation_is_a_file(self):
        script = "mcp_is_cancelled && echo yes || echo no"

        self.assertEqual("no\n", run(script, env={"MCP_CANCEL_FILE": "/nowhere/x"}).out)
        self.assertEqual("yes\n", run(script, env={"MCP_CANCEL_FILE": "/"}).out)

    def test_roots_contain_what_lies_below_them(self):
        with tempfile.TemporaryDirectory() as place:
            root = os.path.realpath(place)
            os.makedirs(root + "/in/sub")
            os.makedirs(root + "/in-not")
            os.symlink(root + "/in-not", root + "/in/link")
            script = 'for p in "$@"; do mcp_roots_contains "$p" && echo -n y || echo -n n; done'
            paths = " ".join(
                "'%s/%s'" % (root, p) for p in ("in", "in/sub", "in/new", "in-not", "in/../in-not", "in/link")
            )

            self.assertEqual(
                "yyynnn", run("set -- %s; %s" % (paths, script), env={"MCP_ROOTS_PATHS": root + "/in"}).out
            )


class MannersTest(unittest.TestCase):
    SCRIPT = (
        "mcp_args_get -v a .name; mcp_args_int -v b .n; mcp_args_require -v c .deep.a; "
        "mcp_args_bool -v d .yes; mcp_meta_get -v e .trace;"
        "mcp_progress 1; mcp_log_info x; mcp_args_list f .list; "
    )

    def forks(self, script: str) -> int:
        with tempfile.NamedTemporaryFile() as log:
            run(script, argv=["strace", "-f", "-qq", "-o", log.name, "-e", "trace=clone,clone3,fork,vfork"])
            return len(re.findall(rb"\b(?:clone3?|v?fork)\(", log.read()))

    @unittest.skipUnless(shutil.which("strace"), "strace is not installed")
    def test_nothing_on_the_way_of_a_call_starts_a_process(self):
        self.assertEqual(1, self.forks("x=$(:)"), "the counter must see a fork")

        self.assertEqual(0, self.forks(self.SCRIPT))

    def test_shell_options_are_left_alone(self):
        for options in ("", "set -euo pipefail; shopt -s nullglob extglob; ", "set -f; IFS=:; "):
            done = run(options + "o1=$(set +o; shopt -p) || :; " + self.SCRIPT + OPTIONS_SAME)

            self.assertEqual(("same\n", ""), (done.out, done.err), options)

    def test_only_names_of_its_own_are_left(self):
        script = (
            'compgen -v >%s/before; compgen -A function >>%s/before; source "$MCP_SDK/tool_sdk.sh"; ' + self.SCRIPT
        )
        with tempfile.TemporaryDirectory() as place:
            prelude = "unset -f $(compgen -A function mcp_) $(compgen -A function _mcp_); "
            run(
                prelude
                + script.replace("%s", place)
                + "compgen -v >%s/after; compgen -A function >>%s/after" % (place, place)
            )
            before, after = (set(content(os.path.join(place, name)).split()) for name in ("before", "after"))
        expected = set("abcdef") | {"REPLY", "BASH_REMATCH", "PIPESTATUS", "_"}

        self.assertEqual(
            set(), {name for name in after - before if not name.startswith(("mcp_", "_mcp_", "MCP_"))} - expected
        )

    def test_the_hyphenated_name_sets_the_options_of_mcp_bash(self):
        done = run('source "$MCP_SDK/tool-sdk.sh"; mcp_args_get .n; echo "$-"; false; echo not reached')

        self.assertRegex(done.out, r"^4\w*e\w*u")
        self.assertEqual(1, done.status)

    def test_no_construct_is_newer_than_bash_3_2(self):
        newer = (
            r"\bdeclare -A|\blocal -A|\bmapfile|\breadarray|local -n|\$\{[^}]*(,,|\^\^)|\{[a-z]+\}[<>]"
            r"|&>>|\bcoproc\b|%\(.*\)T|\$EPOCH"
        )
        for name in ("tool_sdk.sh", "tool-sdk.sh"):
            self.assertEqual([], re.findall(newer, content(os.path.join(SDK, name))))


if __name__ == "__main__":
    unittest.main()
