#!/usr/bin/env python3
"""Run the tests: python3 tests/run.py [options] [file ...]

Sets up what the tests need in tests/.cache (packages, test data), runs every tests/test_*.py in a process of its
own, two at a time, and ends with one line: "N passed, N failed, N skipped". What cannot be set up, for example
without a network, is said loudly and skipped. Exit status 0 means that nothing failed.

A test file may say in its first lines:
    # serial          run it alone, because it measures or loads the machine
    # once            do not repeat it with --all-pythons, because the interpreter makes no difference
    # timeout: 600    seconds before it is ended (default 300)

 1  Files      which test files there are, and what they say about themselves
 2  Cache      packages and test data, made once
 3  One file   run a test file in this process and note every result
 4  All files  run files in processes of their own, with a deadline
 5  Report     progress, failures, the last line
 6  Main       options
"""
from __future__ import annotations

import argparse
import faulthandler
import fcntl
import glob
import hashlib
import importlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

FILE_TIMEOUT = 300
LONG_TIMEOUT = 6 * 3600  # with --soak or --fuzz
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")

# ======================================================================================================================
# 1. FILES — which test files there are, and what they say about themselves.
# ======================================================================================================================


class TestFile(NamedTuple):
    """A test file and its marks."""

    path: str
    name: str
    serial: bool
    once: bool
    timeout: float


def read_test_file(path: str) -> TestFile:
    """Return a test file with the marks of its first ten lines."""
    with open(path, encoding="utf-8") as stream:
        head = [stream.readline().strip() for _ in range(10)]
    limits = [float(line.split(":")[1]) for line in head if re.match(r"# timeout: *\d", line)]
    return TestFile(path, os.path.basename(path), "# serial" in head, "# once" in head, max(limits, default=0))


def find_files(wanted: list[str]) -> list[TestFile]:
    """Return the test files named by `wanted` (a path, test_x.py, or x), or all of them."""
    paths = sorted(glob.glob(os.path.join(support.TESTS, "test_*.py")))
    if not wanted:
        return [read_test_file(path) for path in paths]
    chosen = []
    for name in wanted:
        stem = os.path.basename(name)
        found = [path for path in paths if os.path.basename(path) in (stem, "test_%s.py" % stem)]
        if not found:
            sys.exit("tests/run.py: there is no test file %s. Choose from: %s" % (name, " ".join(map(short, paths))))
        chosen.extend(found)
    return [read_test_file(path) for path in chosen]


def short(path: str) -> str:
    """Return the part of a test file's name that is enough to name it."""
    return os.path.basename(path)[len("test_") : -len(".py")]


# ======================================================================================================================
# 2. CACHE — packages and test data, made once.
# ======================================================================================================================
#
# Each step of PREPARE returns an empty string, or a sentence that says what is missing and why. A step that finds
# its work done returns at once. Further steps (node modules, browsers) are rows of that table.


class Setup:
    """What the preparation needs to know, and what it found."""

    def __init__(self, python: str, offline: bool) -> None:
        self.base_python = python  # the interpreter under test, not that of a virtual environment
        self.test_python = python  # what runs the test files: the same one, with packages when there are any
        self.offline = offline


def run_quietly(command: list[str], timeout: float = 600, keep: int = 2, **options: Any) -> str:
    """Run a command; return an empty string, or the last lines it printed when it failed."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = subprocess.run(command, timeout=timeout, **streams, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line for line in done.stdout.decode("utf-8", "replace").split("\n") if line.strip()]
    return "" if done.returncode == 0 else "; ".join(lines[-keep:]) or "exit status %d" % done.returncode


def interpreter_facts(python: str) -> tuple[str, str, tuple[int, int]]:
    """Return the real path, the name of the implementation and the version of an interpreter."""
    code = "import os,sys;print(os.path.realpath(sys.executable));print(sys.implementation.name,*sys.version_info[:2])"
    try:
        lines = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, check=True, timeout=60).stdout.decode()
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit("tests/run.py: %s does not work as a Python interpreter: %s" % (python, error))
    path, facts = lines.splitlines()[:2]
    name, major, minor = facts.split()
    return path, name, (int(major), int(minor))


def prepare_packages(setup: Setup) -> str:
    """Make the virtual environment with the packages of tests/requirements.txt."""
    real, name, version = interpreter_facts(setup.base_python)
    directory = os.path.join(support.CACHE, "venv-%s-%d.%d" % (name, *version))
    python = os.path.join(directory, "bin", "python")
    requirements = os.path.join(support.TESTS, "requirements.txt")
    with open(requirements, "rb") as stream:
        digest = hashlib.sha256(real.encode() + b"\n" + stream.read()).hexdigest()
    marker = os.path.join(directory, ".ready")
    if read_text(marker) == digest and os.path.exists(python):
        setup.test_python = python
        return ""
    if setup.offline:
        return "packages of tests/requirements.txt are not installed (--offline)"
    failure = make_venv(real, directory) or install(python, requirements)
    if os.path.exists(python):
        setup.test_python = python  # half a set of packages is better than none: tests skip what they miss
    if failure:
        return "packages of tests/requirements.txt could not be installed: " + failure
    write_text(marker, digest)
    return ""


def make_venv(real: str, directory: str) -> str:
    """Make a virtual environment, unless there is one of this interpreter already; return what went wrong."""
    marker = os.path.join(directory, ".made")
    if read_text(marker) == real:
        return ""
    shutil.rmtree(directory, ignore_errors=True)
    failure = run_quietly([real, "-m", "venv", directory])
    if failure:
        shutil.rmtree(directory, ignore_errors=True)
        return failure + " (on Debian and Ubuntu: install python3-venv)"
    write_text(marker, real)
    return ""


def install(python: str, requirements: str) -> str:
    """Install all packages at once; when only some can be had, take those. Return what is missing."""
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    failure = run_quietly(pip + ["-r", requirements], keep=100)
    if not failure:
        return ""
    if re.search("connection|name resolution|unreachable|timed out", failure, re.IGNORECASE):
        return "no connection to the package index"
    with open(requirements, encoding="utf-8") as stream:
        pins = [line.strip() for line in stream if line.strip() and not line.startswith("#")]
    missing = [pin for pin in pins if run_quietly(pip + [pin])]
    return "; ".join(missing) and "missing are " + ", ".join(missing)


def read_text(path: str) -> str:
    """Return the text of a file, or an empty string when there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""  # that is the answer


def write_text(path: str, text: str) -> None:
    """Write a small file."""
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)


def prepare_schema_suite(setup: Setup) -> str:
    """Fetch the JSON Schema test suite, when this checkout has the script for it."""
    if not os.path.exists(os.path.join(support.TESTS, "fetch_suite.py")):
        return ""
    if setup.offline:
        return "the JSON Schema test suite was not looked for (--offline)"
    code = "import fetch_suite, inspect; f = fetch_suite.fetch_suite; f(*%r[:len(inspect.signature(f).parameters)])"
    env = {**os.environ, "PYTHONPATH": support.TESTS, "PYTHONDONTWRITEBYTECODE": "1"}
    failure = run_quietly([setup.test_python, "-c", code % [support.CACHE]], keep=1, env=env)
    return failure and "the JSON Schema test suite could not be fetched: " + failure


PREPARE = (prepare_packages, prepare_schema_suite)


def prepare(setup: Setup) -> list[str]:
    """Do all preparations, one run at a time; return sentences about what is missing."""
    os.makedirs(support.CACHE, exist_ok=True)
    with open(os.path.join(support.CACHE, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs in one checkout must not build the same directory
        return [text for text in (step(setup) for step in PREPARE) if text]


def other_pythons(setup: Setup) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the other interpreters to be found as (version, path), and sentences about those that are not."""
    own = interpreter_facts(setup.base_python)[2]
    prefix = os.path.dirname(os.path.dirname(interpreter_facts(setup.base_python)[0]))
    found, missing = [], []
    for version in PYTHONS:
        if version == "%d.%d" % own:
            continue
        names = [shutil.which("python" + version) or ""]
        for pattern in ("../%s.*/bin/python%s", "../../%s.*/*/bin/python%s"):  # versions installed side by side
            names += sorted(glob.glob(os.path.join(prefix, pattern % (version, version))))
        path = next((name for name in names if name and works(name, version)), "")
        if path:
            found.append((version, os.path.realpath(path)))
        else:
            missing.append("Python %s was not found; nothing was run with it" % version)
    return found, missing


def works(python: str, version: str) -> bool:
    """Tell whether an interpreter starts and is of a version; a shim may exist without one behind it."""
    code = "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '" + version + "')"
    return run_quietly([python, "-c", code]) == ""


# ======================================================================================================================
# 3. ONE FILE — run a test file in this process and note every result.
# ======================================================================================================================


class Notes(unittest.TestResult):
    """Writes one JSON line per finished test; a test counts once, whatever its subtests do."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self._begun = 0.0
        self._faults: list[str] = []  # tracebacks of the test that is running
        self._skip = ""

    def write(self, **fields: Any) -> None:
        """Write a line at once, so that a killed process leaves what it knew."""
        self._stream.write(json.dumps(fields) + "\n")
        self._stream.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._begun, self._faults, self._skip = time.monotonic(), [], ""
        self.write(started=test.id())

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        left = support.wait_for_no_orphans() if support.orphans() else []
        self._faults += ["the test left a process behind: " + process.command() for process in left]
        support.end_processes(left)
        self._finish(test.id(), time.monotonic() - self._begun)

    def _finish(self, name: str, seconds: float) -> None:
        outcome = "failed" if self._faults else "skipped" if self._skip else "passed"
        reason = "\n".join(self._faults) or self._skip
        self.write(test=name, outcome=outcome, reason=reason, seconds=round(seconds, 3))

    def _note(self, test: Any, text: str) -> None:
        if isinstance(test, unittest.TestCase) or hasattr(test, "test_case"):
            self._faults.append(text)
        else:  # setUpClass or setUpModule: there is no startTest and no stopTest
            self.write(test=test.id(), outcome="failed", reason=text, seconds=0)

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._note(test, self.errors[-1][1])

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, self.failures[-1][1])

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._faults.append("%s\n%s" % (subtest, self._exc_info_to_string(err, test)))

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        if isinstance(test, unittest.TestCase) or hasattr(test, "test_case"):
            self._skip = reason or "no reason given"
        else:
            self.write(test=test.id(), outcome="skipped", reason=reason, seconds=0)

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self._faults.append("expected to fail, but passed: take the mark off")


def run_file(path: str, results: str, pattern: str, timeout: float) -> int:
    """Run the tests of one file in this process; write what happened to `results`."""
    faulthandler.dump_traceback_later(max(1.0, timeout - 5), exit=False)  # so that a hanging test shows where
    with open(results, "w", encoding="utf-8") as stream:
        notes = Notes(stream)
        try:
            module = importlib.import_module(os.path.basename(path)[: -len(".py")])
        except unittest.SkipTest as reason:
            notes.write(test=os.path.basename(path), outcome="skipped", reason=str(reason), seconds=0)
        except BaseException:
            notes.write(test=os.path.basename(path), outcome="failed", reason=traceback.format_exc(), seconds=0)
        else:
            run_module(module, notes, pattern)
        for process in support.wait_for_no_orphans():
            text = "a process is left: " + process.command()
            notes.write(test="afterwards", outcome="failed", reason=text, seconds=0)
        notes.write(end=True)
    faulthandler.cancel_dump_traceback_later()
    return 0


def run_module(module: Any, notes: Notes, pattern: str) -> None:
    """Run the tests of an imported module."""
    loader = unittest.TestLoader()
    if pattern:
        loader.testNamePatterns = [pattern if "*" in pattern else "*%s*" % pattern]
    suite = loader.loadTestsFromModule(module)
    for error in loader.errors:
        notes.write(test=module.__name__, outcome="failed", reason=error, seconds=0)
    if suite.countTestCases() == 0 and not pattern:
        notes.write(test=module.__name__, outcome="failed", reason="the file has no tests", seconds=0)
    suite.run(notes)


# ======================================================================================================================
# 4. ALL FILES — run files in processes of their own, with a deadline.
# ======================================================================================================================


class Job(NamedTuple):
    """A test file to be run with one interpreter."""

    file: TestFile
    python: str  # runs the tests
    base_python: str  # runs the servers
    label: str  # for people: the file, and the interpreter when it is not the main one
    main: bool  # False for the repetitions of --all-pythons


class Done:
    """What came out of one test file."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tests: list[dict] = []  # the lines that `Notes` wrote
        self.seconds = 0.0
        self.output = ""  # what the file printed

    def count(self, outcome: str) -> int:
        """Return how many tests ended in this way."""
        return sum(test["outcome"] == outcome for test in self.tests)

    def add_failure(self, name: str, reason: str) -> None:
        """Count something that went wrong outside a test."""
        self.tests.append({"test": name, "outcome": "failed", "reason": reason, "seconds": 0})


def file_environment(job: Job, directory: str, options: argparse.Namespace) -> dict[str, str]:
    """Return the environment of a test file: nothing that would configure a server, a TMPDIR of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MCPBASH_", "MCP_"))}
    env.update((key, value) for key, value in os.environ.items() if key.startswith("MCPBASH_TEST_"))
    env.update(TMPDIR=directory, MCPBASH_TEST_PYTHON=job.base_python, MCPBASH_TEST_CACHE=support.CACHE)
    env.update(PYTHONPYCACHEPREFIX=os.path.join(support.CACHE, "pycache"))
    env.update(HYPOTHESIS_STORAGE_DIRECTORY=os.path.join(support.CACHE, "hypothesis"))
    env.update({"MCPBASH_TEST_" + name.upper(): "1" for name in ("soak", "fuzz") if getattr(options, name)})
    return env


def run_job(job: Job, directory: str, options: argparse.Namespace) -> Done:
    """Run one test file in a process and a session of its own; kill the session after the deadline."""
    done = Done(job)
    results, output = directory + ".results", directory + ".output"
    os.mkdir(directory)
    limit = options.timeout or job.file.timeout or (LONG_TIMEOUT if options.soak or options.fuzz else FILE_TIMEOUT)
    command = [job.python, os.path.abspath(__file__), "--file", job.file.path, "--results", results]
    command += ["--timeout", str(limit)] + (["-k", options.k] if options.k else [])
    begun = time.monotonic()
    with open(output, "wb") as stream:
        process = support.spawn(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=support.ROOT,
            env=file_environment(job, directory, options),
        )
        why = wait_for(process, limit)
    done.seconds = time.monotonic() - begun
    read_results(done, results, why)
    with open(output, encoding="utf-8", errors="replace") as stream:
        done.output = stream.read()
    left = support.listing(directory)
    if left and not why:
        done.add_failure("TMPDIR", "the tests left files behind: " + ", ".join(left[:10]))
    shutil.rmtree(directory, ignore_errors=True)
    return done


def wait_for(process: subprocess.Popen, limit: float) -> str:
    """Wait for a test file; return an empty string, or why it did not end well."""
    try:
        status = process.wait(limit)
        why = "" if status == 0 else "the test process ended with status %d" % status
    except subprocess.TimeoutExpired:
        why = "still running after %g s; the process group was killed" % limit
    if why:
        support.end_group(process)
        # The servers of a killed test file have lost their parent and are ours now.
        support.end_processes(support.orphans())
    support.known.discard(process.pid)
    return why


def read_results(done: Done, path: str, why: str) -> None:
    """Read the lines a test file wrote; a test that began and did not end has failed."""
    started, ended = "", False
    for line in read_text(path).splitlines():
        try:
            note = json.loads(line)
        except ValueError:
            continue  # cut off in the middle when the process was killed
        if "test" in note:
            done.tests.append(note)
        started = note.get("started", "" if "test" in note else started)
        ended = ended or "end" in note
    if why or not ended:
        done.add_failure(started or done.job.file.name, why or "the test process ended in the middle")


def make_strict(done: Done) -> None:
    """Turn skips into failures, except those for what this machine can never run."""
    for test in done.tests:
        if test["outcome"] == "skipped" and done.job.main and not test["reason"].startswith("not here: "):
            test.update(outcome="failed", reason="skipped, which --strict does not accept: " + test["reason"])


def run_jobs(jobs: list[Job], options: argparse.Namespace, report: Report) -> None:
    """Run the jobs: those that may share the machine first, then the others one by one."""
    scratch = tempfile.mkdtemp(prefix="mcpb-run-")
    os.chmod(scratch, 0o711)  # tests that run a server as another user must get through
    try:
        numbered = list(enumerate(jobs))
        shared = [each for each in numbered if not each[1].file.serial]
        alone = [each for each in numbered if each[1].file.serial]
        for batch, workers in ((shared, options.jobs), (alone, 1)):
            run_batch(batch, workers, scratch, options, report)
    except KeyboardInterrupt:
        support.end_processes(support.descendants(os.getpid()))
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_batch(
    batch: list[tuple[int, Job]], workers: int, scratch: str, options: argparse.Namespace, report: Report
) -> None:
    """Run jobs with a number of workers; report each in the main thread as it ends."""
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    finished: queue.SimpleQueue = queue.SimpleQueue()
    for each in batch:
        waiting.put(each)

    def work() -> None:
        while True:
            try:
                number, job = waiting.get_nowait()
            except queue.Empty:
                return  # all taken
            report.begins(job)
            try:
                finished.put(run_job(job, os.path.join(scratch, str(number)), options))
            except BaseException as error:  # the main thread waits for one answer per job
                finished.put(failed_job(job, error))

    for _ in range(max(1, workers)):
        threading.Thread(target=work, daemon=True).start()
    for _ in batch:
        done = finished.get()
        if options.strict:
            make_strict(done)
        report.ended(done)


def failed_job(job: Job, error: BaseException) -> Done:
    """Return the outcome of a job that could not even be started."""
    done = Done(job)
    done.add_failure(job.file.name, "could not be run: %r" % error)
    return done


# ======================================================================================================================
# 5. REPORT — progress, failures, the last line.
# ======================================================================================================================


class Report:
    """Tells people (or, with --json, machines) what happens."""

    def __init__(self, total: int, options: argparse.Namespace) -> None:
        self.results: list[Done] = []
        self.missing: list[str] = []
        self._options = options
        self._total = total
        self._stream = sys.stderr if options.json else sys.stdout
        self._live = self._stream.isatty()  # one line that changes in place
        self._running: list[str] = []
        self._lock = threading.Lock()

    def say(self, text: str = "") -> None:
        """Print a line for people."""
        self._stream.write(("\r\x1b[K" if self._live else "") + text + "\n")
        self._stream.flush()

    def lacks(self, sentences: list[str]) -> None:
        """Say loudly what is missing, now and again at the end."""
        self.missing += sentences
        for text in sentences:
            self.say("NOT AVAILABLE: " + text)

    def begins(self, job: Job) -> None:
        """A file is started."""
        with self._lock:
            self._running.append(job.label)
            self._progress()

    def ended(self, done: Done) -> None:
        """A file has ended."""
        with self._lock:
            if done.job.label in self._running:
                self._running.remove(done.job.label)
            self.results.append(done)
            counts = [(done.count(each), each) for each in ("passed", "failed", "skipped")]
            text = ", ".join("%d %s" % pair for pair in counts if pair[0]) or "no tests"
            mark = "FAIL" if done.count("failed") else "ok  "
            self.say("%s %-34s %6.1f s  %s" % (mark, done.job.label, done.seconds, text))
            self._progress()

    def _progress(self) -> None:
        if self._live:
            text = "[%d/%d] %d passed, %d failed; running %s"
            values = (len(self.results), self._total, self.count("passed"), self.count("failed"))
            line = text % (*values, " ".join(self._running) or "nothing")
            width = shutil.get_terminal_size().columns
            self._stream.write("\r\x1b[K" + line[: width - 1])
            self._stream.flush()

    def count(self, outcome: str) -> int:
        """Return how many tests of all files ended in this way."""
        return sum(done.count(outcome) for done in self.results)

    def finish(self, seconds: float) -> int:
        """Print everything that was kept back and the last line; return the exit status."""
        for done in self.results:
            if done.count("failed"):
                self._failures(done)
        self._skips()
        self._slowest(seconds)
        for text in self.missing:
            self.say("NOT AVAILABLE: " + text)
        if self._options.json:
            print(json.dumps(self._as_json(seconds)))
        counts = tuple(self.count(outcome) for outcome in ("passed", "failed", "skipped"))
        self.say("%d passed, %d failed, %d skipped" % counts)
        return 1 if counts[1] else 0

    def _failures(self, done: Done) -> None:
        self.say("\n==== %s" % done.job.label)
        for test in done.tests:
            if test["outcome"] == "failed":
                self.say("---- %s\n%s" % (test["test"], test["reason"].rstrip()))
        if done.output.strip():
            lines = done.output.rstrip().split("\n")
            self.say("---- what it printed\n" + "\n".join(lines[-60:]))

    def _skips(self) -> None:
        reasons: dict[str, list[str]] = {}
        for done in self.results:
            for test in done.tests:
                if test["outcome"] == "skipped":
                    reasons.setdefault(test["reason"], []).append(done.job.label)
        for reason, files in sorted(reasons.items()):
            self.say("SKIPPED %d: %s (%s)" % (len(files), reason, ", ".join(sorted(set(files)))))

    def _slowest(self, seconds: float) -> None:
        if len(self.results) > 1:
            slow = sorted(self.results, key=lambda done: -done.seconds)[:5]
            text = ", ".join("%s %.1f s" % (done.job.label, done.seconds) for done in slow)
            self.say("slowest: %s; all: %.1f s" % (text, seconds))

    def _as_json(self, seconds: float) -> dict:
        files = [
            {
                "file": done.job.file.name,
                "python": done.job.base_python,
                "seconds": round(done.seconds, 3),
                "tests": done.tests,
                "output": done.output if done.count("failed") else "",
            }
            for done in self.results
        ]
        totals = {outcome: self.count(outcome) for outcome in ("passed", "failed", "skipped")}
        return {**totals, "seconds": round(seconds, 3), "missing": self.missing, "files": files}


# ======================================================================================================================
# 6. MAIN — options.
# ======================================================================================================================


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="tests/run.py", description="Run the tests.")
    parser.add_argument("files", nargs="*", help="test files: tests/test_x.py, test_x.py or x (default: all)")
    parser.add_argument("-k", default="", metavar="PATTERN", help="only tests whose name contains or matches this")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="test files at the same time (default 2)")
    parser.add_argument("--strict", action="store_true", help="a skip is a failure")
    parser.add_argument("--json", action="store_true", help="print results as JSON; text for people goes to stderr")
    parser.add_argument("--python", default="", metavar="PATH", help="run everything with another interpreter")
    parser.add_argument("--all-pythons", action="store_true", help="repeat with every Python 3.9 to 3.13 found")
    parser.add_argument("--offline", action="store_true", help="do not try to fetch anything")
    parser.add_argument("--soak", action="store_true", help="long runs: many requests, memory and handles watched")
    parser.add_argument("--fuzz", action="store_true", help="long runs: random input")
    parser.add_argument("--timeout", type=float, default=0, metavar="S", help="seconds for one file (default 300)")
    parser.add_argument("--list", action="store_true", help="print the test files and their marks")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--results", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Do what the command line says; return the exit status."""
    options = parse(arguments)
    if options.file:
        return run_file(options.file, options.results, options.k, options.timeout)
    files = find_files(options.files)
    if options.list:
        for file in files:
            print(file.name, "serial" if file.serial else "", "once" if file.once else "")
        return 0
    return run_all(files, options)


def run_all(files: list[TestFile], options: argparse.Namespace) -> int:
    """Prepare, run, report."""
    begun = time.monotonic()
    setup = Setup(interpreter_facts(options.python or sys.executable)[0], options.offline)
    pythons, absent = other_pythons(setup) if options.all_pythons else ([], [])
    repeated = [file for file in files if not file.once]
    report = Report(len(files) + len(pythons) * len(repeated), options)
    report.lacks(prepare(setup) + absent)
    jobs = [Job(file, setup.test_python, setup.base_python, file.name, True) for file in files]
    for version, path in pythons:
        jobs += [Job(file, path, path, "%s (%s)" % (file.name, version), False) for file in repeated]
    run_jobs(jobs, options, report)
    return report.finish(time.monotonic() - begun)


if __name__ == "__main__":
    if sys.version_info < (3, 9):  # noqa: UP036 (the reader may well have an older one)
        sys.exit("tests/run.py: this is Python %d.%d; Python 3.9 or newer is needed." % sys.version_info[:2])
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
