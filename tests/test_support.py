#!/usr/bin/env python3
# once
"""The harness itself: a faultless small server passes, and each kind of fault is noticed.

The small server below is not the product; it is the positive control, and with a fault chosen on its command line the
negative one. A checker that accepts everything would let every other test pass.
"""
from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support
from support import Case, Checker, Project, Transcript, matches, record

STUB = r'''
import json, os, subprocess, sys, time
fault = sys.argv[1] if len(sys.argv) > 1 else ""
META = "io.modelcontextprotocol/"
out = sys.stdout.buffer

def write(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    out.write(text + b"\n")
    out.flush()

def answer(message, result):
    response = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    if fault == "extra member":
        response["extra"] = 1
    if fault == "wrong id type":
        response["id"] = str(response["id"])
    if fault == "result and error":
        response["error"] = {"code": -1, "message": "both"}
    if fault == "no jsonrpc":
        del response["jsonrpc"]
    if fault != "no answer":
        write(response)
    if fault == "two answers":
        write(response)

def progress(token, *values):
    for value in values:
        params = {"progressToken": token, "progress": value}
        write({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

def call(message):
    params = message["params"]
    token = params.get("_meta", {}).get("progressToken")
    if token is not None:
        progress(token, 1, 1 if fault == "progress stands" else 2)
    text = params.get("arguments", {}).get("text", "")
    result = {"content": [{"type": "text", "text": "foreign" if fault == "lost nonce" else text}]}
    if META + "protocolVersion" in params.get("_meta", {}):
        result["resultType"] = "complete"
    answer(message, result)
    if token is not None and fault == "late progress":
        progress(token, 3)

def discover():
    return {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {},
            "ttlMs": "soon" if fault == "schema" else 0, "cacheScope": "private"}

def handle(message):
    method = message.get("method")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        answer(message, {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}})
    elif method == "server/discover":
        answer(message, discover())
    elif method == "tools/call" and message["params"]["name"] == "hold":
        held.append(message)
    elif method == "tools/call":
        call(message)
    elif method == "notifications/cancelled" and "cancel" not in fault:
        held[:] = [each for each in held if each["id"] != message["params"]["requestId"]]
    elif "id" in message:
        answer(message, {})
    elif fault == "answers a notification":
        write({"jsonrpc": "2.0", "id": 99, "result": {}})

held = []
if fault == "leaves a process":
    subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
if fault == "leaves a file":
    open(os.path.join(os.environ["TMPDIR"], "left"), "w").close()
if fault == "prints":
    write(b"hello, I am a server")
if fault == "not utf-8":
    write(b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"\xff"}}')
if fault == "nan":
    write(b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":NaN}}')
if fault == "unknown notification":
    write({"jsonrpc": "2.0", "method": "notifications/hello"})
if fault == "early log":
    write({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
if fault == "early change":
    write({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
if fault == "asks without a session":
    write({"jsonrpc": "2.0", "id": "s1", "method": "roots/list"})
for line in sys.stdin.buffer:
    try:
        message = json.loads(line)
    except ValueError:
        write({"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}})
        continue
    if isinstance(message, list):
        write({"jsonrpc": "2.0", "error": {"code": -32600, "message": "no batches"}})
        continue
    handle(message)
    if fault == "answers after cancel" and message.get("method") == "server/discover":
        for each in held:
            answer(each, {"content": []})
        held.clear()
if fault == "half a line":
    out.write(b'{"jsonrpc":')
    out.flush()
if fault == "ignores cancel":
    for each in held:
        answer(each, {"content": []})
if fault == "hangs":
    time.sleep(600)
sys.exit(3 if fault == "exit status" else 0)
'''

# What is said when a fault is noticed.
FAULTS = {
    "extra member": "I1: members that do not belong here: extra",
    "wrong id type": "I3: a response to an id that has no open request",
    "result and error": "I1: a response needs exactly one of result and error",
    "no jsonrpc": 'I1: "jsonrpc" is not "2.0"',
    "no answer": "I2: ping id 1 was never answered",
    "two answers": "I3: a response to an id that has no open request",
    "answers a notification": "I3: a response to an id that has no open request",
    "leaves a process": "I7: a process is left",
    "leaves a file": "I7: a file is left in TMPDIR: left",
    "prints": "I1: not strict JSON",
    "not utf-8": "I1: not strict JSON ('utf-8' codec",
    "nan": "I1: not strict JSON (NaN is not JSON)",
    "unknown notification": "I4: a server does not send notifications/hello",
    "early log": "I4: a log message that no session",
    "early change": "I4: an untagged notification without a handshake session",
    "asks without a session": "I4: a request to the client without a handshake session",
    "half a line": "I1: stdout ends without a line end",
    "exit status": "ended with 3, expected 0",
}
CALL_FAULTS = {
    "progress stands": "I8: progress did not increase: 1 after 1",
    "late progress": "I8: progress for a token that no open request carries",
    "lost nonce": "I5: tools/call id 1 carries no nonce",
}
CANCEL_FAULTS = {
    "answers after cancel": "I2: tools/call id 1 was answered after its cancellation was read",
    "ignores cancel": "I2: tools/call id 1 was answered after its cancellation was read",
}


class StubCase(Case):
    """A project whose server is the small one above."""

    def stub(self, fault: str = "") -> support.Client:
        project = self.new_project()
        script = project.file("stub.py", STUB)
        return project.client(command=[support.PYTHON, "-I", "-S", script, fault])

    def assert_noticed(self, sentence: str, client: support.Client, **options: object) -> None:
        with self.assertRaises(AssertionError) as caught:
            client.close(**options)

        self.assertIn(sentence, str(caught.exception))


class TheCheckerTest(StubCase):
    def ping(self, fault: str) -> support.Client:
        client = self.stub(fault)
        client.send_request("ping")
        client.notify("notifications/unheard_of")
        return client

    def call(self, fault: str) -> support.Client:
        client = self.stub(fault)
        nonce = support.new_nonce()
        client.send_call("echo", {"text": nonce}, nonce=nonce, token=0)
        return client

    def cancel(self, fault: str) -> support.Client:
        client = self.stub(fault)
        client.cancel(client.send_call("hold"))
        client.fence()
        return client

    def test_a_faultless_server_passes(self):
        for start in (self.ping, self.call, self.cancel):
            with self.subTest(start.__name__):
                self.assertEqual(0, start("").close())

    def test_faults_of_an_answer_are_noticed(self):
        for fault, sentence in FAULTS.items():
            with self.subTest(fault):
                if "process" in fault and not support.IS_SUBREAPER:
                    continue  # orphans cannot be seen here
                self.assert_noticed(sentence, self.ping(fault))

    def test_faults_of_a_call_are_noticed(self):
        for fault, sentence in CALL_FAULTS.items():
            with self.subTest(fault):
                self.assert_noticed(sentence, self.call(fault))

    def test_answers_after_a_cancellation_was_read_are_noticed(self):
        for fault, sentence in CANCEL_FAULTS.items():
            with self.subTest(fault):
                self.assert_noticed(sentence, self.cancel(fault))

    def test_an_answer_that_crosses_its_cancellation_is_allowed(self):
        client = self.stub()
        number = client.send_call("echo", {"text": "x"})
        client.cancel(number)

        self.assertEqual(0, client.close())

    def test_a_server_that_does_not_end_is_noticed_and_ended(self):
        client = self.ping("hangs")
        self.assert_noticed("still running 1 s after", client, timeout=1 / support.PATIENCE)

        self.assertIsNotNone(client.process.poll())

    def test_an_unanswered_request_may_be_declared_fine(self):
        self.assertEqual(0, self.ping("no answer").close(unanswered_ok=True))

    def test_a_left_process_is_ended(self):
        if not support.IS_SUBREAPER:
            raise support.not_here("the system gives orphans to process 1")
        client = self.ping("leaves a process")
        support.wait_until(client.tree, what="the child of the server")
        child = client.tree()[0].pid
        self.assert_noticed("I7: a process is left: %d" % child, client)

        self.assertIsNone(support.read_process(child))

    def test_a_parse_error_is_answered_without_an_id(self):
        client = self.stub()
        client.send_raw(b"{nonsense\n")
        client.expect({"error": {"code": -32700}})

        self.assertEqual(0, client.close())

    def test_more_errors_without_an_id_than_faulty_lines_are_noticed(self):
        error = b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}'
        self.assertEqual([], Checker([record(True, b"{"), record(False, error)]).violations)

        found = Checker([record(True, b"{"), record(False, error), record(False, error)]).violations
        self.assertEqual(1, len(found), found)

    def test_a_refused_batch_owes_its_members_nothing(self):
        client = self.stub()
        client.send([{"jsonrpc": "2.0", "id": 1, "method": "ping"}])
        client.expect({"error": {"code": -32600}})

        self.assertEqual(0, client.close())

    def test_an_array_needs_a_batch_before_it(self):
        request, answer = b'{"jsonrpc":"2.0","id":1,"method":"ping"}', b'{"jsonrpc":"2.0","id":1,"result":{}}'
        good = [record(True, b"[%s]" % request), record(False, b"[%s]" % answer)]
        bad = [record(True, request), record(False, b"[%s]" % answer)]

        self.assertEqual([], Checker(good).violations)
        self.assertIn("I1: an array although no batch was sent", Checker(bad).violations[0])

    def test_two_requests_with_one_id_get_two_answers(self):
        request = record(True, b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}')
        refusal = record(False, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"in use"}}')
        result = record(False, b'{"jsonrpc":"2.0","id":1,"result":{}}')

        self.assertEqual([], Checker([request, request, refusal, result]).violations)
        self.assertIn("never answered", Checker([request, request, refusal]).violations[0])

    def test_an_id_may_be_used_again_after_a_cancellation(self):
        request = record(True, b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}')
        cancel = record(True, b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}')
        ping, pong = b'{"jsonrpc":"2.0","id":2,"method":"ping"}', b'{"jsonrpc":"2.0","id":2,"result":{}}'
        result = record(False, b'{"jsonrpc":"2.0","id":1,"result":{}}')
        proof = [record(True, ping), record(False, pong)]

        self.assertEqual([], Checker([request, cancel, *proof, request, result]).violations)
        self.assertEqual(1, len(Checker([request, cancel, *proof, request, result, result]).violations))

    def test_codes_of_the_other_era_are_noticed(self):
        request = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": support.stateless()}
        answer = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32002, "message": "no such resource"}}
        for code, count in ((-32602, 0), (-32002, 1)):
            answer["error"]["code"] = code
            lines = [record(True, json.dumps(request).encode()), record(False, json.dumps(answer).encode())]

            self.assertEqual(count, len(Checker(lines).violations))


class TheSchemasTest(StubCase):
    def setUp(self):
        if support.schemas_missing():
            raise support.not_here(support.schemas_missing())

    def test_a_message_that_departs_from_the_official_type_is_noticed(self):
        for fault in ("", "schema"):
            client = self.stub(fault)
            client.modern("server/discover")
            if fault:
                self.assert_noticed("2026-07-28 DiscoverResult", client)
            else:
                self.assertEqual(0, client.close())

    def test_every_method_of_every_version_has_a_result_type(self):
        for version in support.VERSIONS:
            for method, name in support.schema_methods(version).items():
                if name.endswith("Request"):
                    with self.subTest(version=version, method=method):
                        self.assertNotIn("Result", support.result_types(version, method))

    def test_initialize_is_checked_in_the_version_that_was_agreed(self):
        for version in support.HANDSHAKE_VERSIONS:
            client = self.stub()
            client.initialize(version)
            client.close()
            checked, _, request = client.check().messages[0]

            self.assertEqual((version, "initialize"), (checked, request.message["method"]))


class TheClientTest(StubCase):
    def test_it_speaks_both_eras(self):
        client = self.stub()
        self.assertEqual("2025-06-18", client.initialize("2025-06-18")["protocolVersion"])
        self.assertEqual("complete", client.modern("server/discover")["result"]["resultType"])
        self.assertEqual("hi", client.text("echo", {"text": "hi"}))
        client.close()

    def test_ids_are_matched_with_their_type(self):
        client = self.stub()
        for value in (0, "", "0", 1 << 60):
            self.assertEqual(value, client.request("ping", id=value)["id"])
        client.close()

    def test_expect_takes_each_message_once(self):
        client = self.stub()
        client.send_request("ping", id="a")
        client.send_request("ping", id="b")
        client.expect({"id": "b"})
        client.expect({"id": "a"})
        with self.assertRaisesRegex(AssertionError, "nothing received that matches"):
            client.expect({"id": "a"}, timeout=0.1)
        client.close()

    def test_a_failure_shows_the_conversation(self):
        client = self.stub()
        client.request("ping", id="needle")
        with self.assertRaisesRegex(AssertionError, '(?s)--- conversation.*> .*"needle".*< .*"needle"'):
            client.fail("so that it can be seen")
        client.close()

    def test_a_paused_reader_lets_the_pipe_fill(self):
        client = self.stub()
        client.request("ping")
        client.stop_reading()
        client.send_raw(b'{"jsonrpc":"2.0","id":"x","method":"ping"}\n')
        client.resume_reading()

        self.assertEqual({}, client.response("x")["result"])
        client.close()

    def test_the_override_replaces_the_server_command(self):
        project = self.new_project()
        script = project.file("stub.py", STUB)
        code = (
            "import sys; sys.path.insert(0, %r)\nimport support\n"
            "with support.Project() as project, project.client() as client:\n    client.initialize('2025-03-26')\n"
            "    print(client.version)" % support.TESTS
        )
        env = {**os.environ, "MCPBASH_TEST_SERVER": '"%s" "%s"' % (support.PYTHON, script)}
        done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=True)

        self.assertEqual("2025-03-26\n", done.stdout)

    def test_the_environment_of_a_server_is_small_and_its_own(self):
        project = self.new_project()
        env = project.environment({"MCPBASH_X": "1"})

        self.assertEqual({"PATH", "HOME", "TMPDIR", "MCPBASH_X"}, set(env))
        self.assertTrue(env["TMPDIR"].startswith(project.base))


class TheProjectTest(Case):
    def test_a_tool_is_an_executable_file_with_metadata_beside_it(self):
        project = self.new_project()
        path = project.tool("hello", "echo hi", {"description": "says hi"})

        self.assertEqual(project.path("tools/hello/tool.sh"), path)
        self.assertTrue(os.access(path, os.X_OK))
        with open(project.path("tools/hello/tool.meta.json"), encoding="utf-8") as stream:
            self.assertEqual({"name": "hello", "description": "says hi"}, json.load(stream))
        self.assertEqual("hi\n", subprocess.run([path], stdout=subprocess.PIPE, text=True).stdout)

    def test_the_peak_counts_tools_at_the_same_time(self):
        project = self.new_project()
        gate = project.fifo("gate")
        path = project.counting_tool("count", "read -r _ <%s" % gate)
        running = [subprocess.Popen([path]) for _ in range(3)]
        support.wait_until(lambda: os.path.exists(os.path.join(project.base, "counts")) and project.peak() == 3)
        # Opened for reading too, so that the pipe keeps what was written until the last tool has read its line.
        with open(os.open(gate, os.O_RDWR), "wb", buffering=0) as stream:
            stream.write(b"\n\n\n")
            for process in running:
                process.wait(support.DEADLINE)
        subprocess.run([project.counting_tool("alone")], check=True)

        self.assertEqual(3, project.peak())

    def test_nothing_is_left_of_it(self):
        with Project() as project:
            project.file("a/b/c", "x")
            os.chmod(project.path("a"), 0)

        self.assertFalse(os.path.exists(project.base))


class TheTranscriptsTest(StubCase):
    def replay(self, text: str, version: str = "") -> None:
        project = self.new_project()
        script = project.file("stub.py", STUB)
        transcript = Transcript(project.file("session.txt", text))
        client = project.client(command=[support.PYTHON, "-I", "-S", script, ""], env=transcript.env)
        try:
            support.Replay(transcript, client, version or transcript.versions[0]).run()
        finally:
            if not client.closed:
                client.abandon()

    PING = '> {"jsonrpc":"2.0","id":%d,"method":"ping"}\n'

    def test_a_session_that_goes_as_written_passes(self):
        self.replay("# versions: 2025-06-18\n" + self.PING % 1 + '< {"id":1,"result":{}}\n')

    def test_a_session_that_goes_otherwise_fails(self):
        cases = {
            "line 2: expected": self.PING % 1 + '< {"id":2}\n',
            "an unexpected line at the end": self.PING % 1 + self.PING % 2 + '< {"id":1}\n',
            "line 2: stdout ended before": '# eof\n< {"id":1}\n',
            "ended with 0, expected 7": "# exit: 7\n" + self.PING % 1 + '< {"id":1}\n',
            "stderr does not contain 'x'": "# stderr: x\n" + self.PING % 1 + '< {"id":1}\n',
        }
        for sentence, text in cases.items():
            with self.subTest(sentence), self.assertRaises(AssertionError) as caught:
                self.replay(text)
            self.assertIn(sentence, str(caught.exception))

    def test_any_order_is_only_allowed_where_it_is_said(self):
        text = self.PING % 1 + self.PING % 2 + "%s" + '< {"id":2}\n< {"id":1}\n'
        self.replay(text % "# any-order\n")
        with self.assertRaisesRegex(AssertionError, "line 3: expected"):
            self.replay(text % "")

    def test_variables_are_filled_in_and_captured(self):
        self.replay(
            "# versions: 2025-03-26\n"
            '> {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"$VERSION"}}\n'
            '< {"result":{"protocolVersion":"…$SEEN","serverInfo":{"name":"…"}}}\n'
            '> {"jsonrpc":"2.0","id":"$SEEN","method":"server/discover","params":{$META}}\n'
            '< {"id":"2025-03-26","result":{"supportedVersions":["…"],"resultType":"com…"}}\n'
        )

    def test_a_transcript_without_an_expectation_is_refused(self):
        with self.assertRaisesRegex(AssertionError, "cannot fail"):
            self.replay(self.PING % 1)

    def test_matching_ignores_what_is_not_named_and_nothing_else(self):
        actual = {"a": 1, "b": [1, 2, 3], "c": "long text", "d": None}
        for wanted in ({}, {"a": 1}, {"b": [1, 2, 3]}, {"b": [1, "…"]}, {"b": ["…"]}, {"c": "l…t"}, {"d": "…"}):
            self.assertTrue(matches(wanted, actual), wanted)
        for wanted in ({"e": "…"}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"b": [1, 2]}, {"b": [2, "…"]}, {"c": "l…x"}):
            self.assertFalse(matches(wanted, actual), wanted)


RUN = [sys.executable, os.path.join(support.TESTS, "run.py"), "--offline"]

SAMPLE = '''
import unittest
class T(unittest.TestCase):
    def test_passes(self): pass
    def test_fails(self): self.assertEqual(1, 2, "so it goes")
    def test_skips(self): self.skipTest("no moon")
    def test_cannot_be(self): self.skipTest("not here: needs a moon")
    def test_subtests_count_once(self):
        for n in range(3):
            with self.subTest(n): self.fail()
    @unittest.expectedFailure
    def test_known(self): self.fail()
    @unittest.expectedFailure
    def test_mended(self): pass
'''


class TheRunnerTest(Case):
    """Runs tests/run.py over a copy of itself with sample files, so that its counting is proved."""

    def run_samples(self, files: dict[str, str], *options: str) -> tuple[subprocess.CompletedProcess, dict]:
        project = self.new_project()
        for name in ("run.py", "support.py", "requirements.txt"):
            with open(os.path.join(support.TESTS, name), encoding="utf-8") as stream:
                project.file("tests/" + name, stream.read())
        for name, text in files.items():
            project.file("tests/" + name, text)
        command = [sys.executable, project.path("tests/run.py"), "--offline", "--json", *options]
        env = {**os.environ, "TMPDIR": project.tmp}
        env.pop("MCPBASH_TEST_PYTHON", None)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        self.assertEqual([], support.listing(project.tmp))
        return done, json.loads(done.stdout)

    def test_every_outcome_is_counted_once(self):
        done, report = self.run_samples({"test_sample.py": SAMPLE})

        self.assertEqual("2 passed, 3 failed, 2 skipped", done.stderr.splitlines()[-1])
        self.assertEqual(1, done.returncode)
        self.assertEqual((2, 3, 2), (report["passed"], report["failed"], report["skipped"]))
        self.assertIn("so it goes", done.stderr)
        self.assertIn("SKIPPED 1: no moon", done.stderr)

    def test_strict_turns_skips_into_failures_except_for_the_impossible(self):
        done, _ = self.run_samples({"test_sample.py": SAMPLE}, "--strict", "-k", "test_skips")
        self.assertEqual("0 passed, 1 failed, 0 skipped", done.stderr.splitlines()[-1])

        done, _ = self.run_samples({"test_sample.py": SAMPLE}, "--strict", "-k", "cannot_be")
        self.assertEqual("0 passed, 0 failed, 1 skipped", done.stderr.splitlines()[-1])
        self.assertEqual(0, done.returncode)

    def test_files_that_do_not_end_well_are_failures(self):
        head = "import os, time, unittest\nclass T(unittest.TestCase):\n    def test_it(self): "
        cases = {
            "import nonsense_that_is_not_there": "nonsense_that_is_not_there",
            "x = 1": "the file has no tests",
            head + "os._exit(0)": "ended in the middle",
            head + "os.kill(os.getpid(), 9)": "ended with status -9",
            "# timeout: 2\n" + head + "time.sleep(600)": "still running after 2 s",
            "import unittest\nraise unittest.SkipTest('all of it')": "all of it",
            head + "open(os.environ['TMPDIR'] + '/left', 'w').close()": "left files behind: left",
        }
        files = {"test_%d.py" % number: text for number, text in enumerate(cases)}
        _, report = self.run_samples(files, "--jobs", "4")
        found = {file["file"]: file["tests"] for file in report["files"]}
        for number, sentence in enumerate(cases.values()):
            with self.subTest(sentence):
                self.assertIn(sentence, found["test_%d.py" % number][-1]["reason"])
        self.assertEqual((1, 6, 1), (report["passed"], report["failed"], report["skipped"]))

    def test_a_process_left_by_a_test_is_charged_to_that_test(self):
        if not support.IS_SUBREAPER:
            raise support.not_here("the system gives orphans to process 1")
        text = (
            "import subprocess, unittest\nclass T(unittest.TestCase):\n"
            "    def test_a(self): subprocess.run(['sh', '-c', 'setsid sleep 600 & sleep 0.2'])\n"
            "    def test_b(self): pass\n"
        )
        _, report = self.run_samples({"test_left.py": text})
        outcomes = {test["test"].split(".")[-1]: test for test in report["files"][0]["tests"]}

        self.assertEqual("passed", outcomes["test_b"]["outcome"])
        self.assertIn("left a process behind", outcomes["test_a"]["reason"])

    def test_an_unknown_file_is_an_error_that_names_the_choices(self):
        command = [*RUN, "no_such_file"]
        done = subprocess.run(command, capture_output=True, text=True)

        self.assertEqual(1, done.returncode)
        self.assertIn("there is no test file no_such_file. Choose from: ", done.stderr)


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: object) -> unittest.TestSuite:
    """Run the examples in the docstrings of the harness as well."""
    tests.addTests(doctest.DocTestSuite(support))
    return tests


if __name__ == "__main__":
    unittest.main()
