#!/usr/bin/env python3
"""Room 8, registries: what is a tool, what a second look costs, what is kept on disk, who hears of changes.

Scanning rules and the cache are tried in this process on real files; everything a client can see goes over the wire.
"""
from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

sys.path.append(support.ROOT)

import mcp_bash

SCRIPT = "#!/bin/sh\necho ran\n"
CHANGED = "notifications/tools/list_changed"
HOOKS = {"MCPBASH_ALLOW_PROJECT_HOOKS": "true"}
ALWAYS = {"MCP_TOOLS_TTL": "0"}  # every list looks at the disk
NEVER = {"MCP_TOOLS_TTL": "86400"}
SETTLED = mcp_bash.RACY + 0.02  # seconds after which a file's times are trusted
SEED = 20250801


class Recorder(mcp_bash.Log):
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(mcp_bash.Settings({}))
        self.lines: list[str] = []

    def __call__(self, level: str, logger: str, text: str) -> None:
        self.lines.append("%s: %s" % (level, text))


def new_registry(project: support.Project, env: dict | None = None) -> mcp_bash.Registry:
    """Return a registry of a project's tools, in this process; `.log.lines` has what it said."""
    settings, log = mcp_bash.Settings(env or {}), Recorder()
    place = mcp_bash.Project(project.root, settings)
    manual = mcp_bash.Registration(place, settings, log, None)
    return mcp_bash.Registry(mcp_bash.KINDS["tools"], place, settings, log, manual)


def names_in(registry: mcp_bash.Registry) -> list[str]:
    """Look at the disk and return the names."""
    registry.refresh(force=True)
    return [item["name"] for item in registry.snapshot.items()]


def put(project: support.Project, path: str, text: str = SCRIPT, mode: int = 0o755) -> str:
    """Put a file into the project in one step; no watcher ever sees half of it, nor a temporary name."""
    full = project.path(path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    temporary = os.path.join(project.base, "incoming")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(temporary, mode)
    os.replace(temporary, full)
    return full


def described(text: str) -> str:
    """Return a script that describes itself."""
    return "#!/bin/sh\n# mcp: %s\necho ran\n" % json.dumps({"description": text})


def listed(client: support.Client, **fields) -> list[str]:
    """Return the names on a client's first page."""
    fields.setdefault("modern", not client.version)
    return [tool["name"] for tool in client.result("tools/list", {"limit": 200}, **fields)["tools"]]


class Reads:
    """Counts which files a registry opens."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._head, self._small = mcp_bash.read_head, mcp_bash.read_small

    def __enter__(self) -> Reads:
        self._patches = [
            mock.patch.object(mcp_bash, "read_head", self._counted(self._head)),
            mock.patch.object(mcp_bash, "read_small", self._counted(self._small)),
        ]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _counted(self, function):
        def call(path, *rest):
            if ".registry" not in path and not path.endswith("register.json"):
                self.paths.append(os.path.basename(path))
            return function(path, *rest)

        return call


class ScanTest(support.Case):
    # path below tools/, mode, content, name of the tool or None (contract 1.3 as decided)
    ROWS = (
        ("a/tool.sh", 0o755, SCRIPT, "a"),
        ("top.sh", 0o755, SCRIPT, "top"),
        ("shebang/x.py", 0o644, "#!/usr/bin/env python3\n", "x"),
        ("exec/noshebang", 0o755, "echo hi\n", "noshebang"),
        ("exec/group", 0o610, "echo hi\n", "group"),
        ("exec/empty", 0o755, "", "empty"),
        ("plain/plain.sh", 0o644, "echo hi\n", None),
        ("plain/plain.bash", 0o644, "echo hi\n", None),
        ("plain/notes", 0o644, "text\n", None),
        ("docs/README.md", 0o755, "# read me\n", None),
        ("docs/data.json", 0o755, "{}\n", None),
        ("docs/NOTES.TXT", 0o755, "x\n", None),
        ("docs/odd.md", 0o644, "#!/bin/sh\n", "odd"),
        (".hidden.sh", 0o755, SCRIPT, None),
        ("a/.hidden.sh", 0o755, SCRIPT, None),
        (".git/hooks/pre-commit", 0o755, SCRIPT, None),
        ("a/smoke.sh", 0o755, SCRIPT, None),
        ("a/smoke.py", 0o755, SCRIPT, "smoke"),
        ("a/x.completion.sh", 0o755, SCRIPT, None),
        ("a/x.completion", 0o755, SCRIPT, None),
        ("a/y.meta.json", 0o755, SCRIPT, None),
        ("a/y.meta.yaml", 0o755, SCRIPT, None),
        ("deep/b/c/d/e/tool.sh", 0o755, SCRIPT, "e"),
        ("deep/b/helper.sh", 0o755, SCRIPT, "helper"),
    )

    def test_the_table_of_what_is_a_tool(self):
        project = self.new_project()
        for path, mode, text, _ in self.ROWS:
            project.file("tools/" + path, text, mode)
        registry = new_registry(project)
        registry.refresh()
        found = {item["path"]: item["name"] for item in registry.snapshot.items()}

        for path, _, _, expected in self.ROWS:
            with self.subTest(path=path):
                self.assertEqual(expected, found.pop(path, None))
        self.assertEqual({}, found)
        self.assertEqual([], registry.log.lines)

    def test_what_is_not_a_file_is_not_a_tool_and_never_opened_for_long(self):
        project = self.new_project()
        project.tool("good", "echo")
        os.mkfifo(project.path("tools/pipe.sh"))
        os.mkdir(project.path("tools/folder.sh"), 0o755)
        os.symlink("/dev/zero", project.path("tools/zero.sh"))
        os.symlink("..", project.path("tools/loop"))
        os.symlink("itself", project.path("tools/itself"))
        os.symlink("nowhere", project.path("tools/broken.sh"))
        registry = new_registry(project)

        self.assertEqual(["good"], names_in(registry))
        self.assertIn("broken.sh", " ".join(registry.log.lines))

    def test_a_link_to_a_script_inside_is_a_tool_of_its_own(self):
        project = self.new_project()
        project.tool("real", "echo")
        os.symlink("real/tool.sh", project.path("tools/alias.sh"))

        self.assertEqual(["alias", "real"], names_in(new_registry(project)))

    def test_a_project_without_tools_has_an_empty_list(self):
        client = self.new_client(self.new_project())

        self.assertEqual([], listed(client))

    def test_depth_and_number_of_files_are_bounded(self):
        project = self.new_project()
        path = "tools/"
        for level in range(mcp_bash.MAX_WALK_DEPTH + 3):
            project.file("%st%02d.sh" % (path, level), SCRIPT, 0o755)
            path += "d/"
        self.assertEqual(
            ["t%02d" % level for level in range(mcp_bash.MAX_WALK_DEPTH + 1)], names_in(new_registry(project))
        )
        with mock.patch.object(mcp_bash, "MAX_WALK_FILES", 5):
            registry = new_registry(project)
            self.assertEqual(5, len(names_in(registry)))
            self.assertEqual(1, len([line for line in registry.log.lines if "holds more than 5 files" in line]))

    def test_the_order_is_by_name_whatever_the_directory_gives(self):
        #
        project = self.new_project()
        order = ["t%03d" % number for number in range(60)]
        random.Random(SEED).shuffle(order)
        for name in order:
            project.file("tools/%s/%s.sh" % (name[-1], name), SCRIPT, 0o755)
        first, second = self.new_client(project), self.new_client(project)
        lists = [listed(client) for client in (first, first, second)]

        self.assertEqual([sorted(order)] * 3, lists)

    def test_the_tools_directory_can_be_elsewhere(self):
        project = self.new_project()
        project.tool("inside", "echo")
        project.file("elsewhere/x/tool.sh", SCRIPT, 0o755)
        client = self.new_client(project, env={"MCPBASH_TOOLS_DIR": project.path("elsewhere")})

        self.assertEqual(["x"], listed(client))
        self.assertEqual("ran\n", client.text("x"))

    def test_a_script_without_execute_bit_runs_with_the_interpreter_it_names(self):
        project = self.new_project()
        project.tool("shell", 'echo "${BASH_VERSION:+bash}"', mode=0o644)
        project.tool("python", "import sys\nprint('python', sys.version_info[0])\n", mode=0o644, suffix=".py")
        project.file("tools/bare", 'echo "${BASH_VERSION:+bash}"\n', 0o755)
        client = self.new_client(project)

        self.assertEqual("bash\n", client.text("shell"))
        self.assertEqual("bash\n", client.text("bare"))
        self.assertEqual("python 3\n", client.text("python"))


class SecondLookTest(support.Case):
    def some_tools(self, count: int = 20) -> support.Project:
        """Return a project whose files are old enough to be trusted."""
        project = self.new_project()
        for number in range(count):
            project.tool("t%02d" % number, "echo", {"description": "d"})
        project.file("tools/README.md", "no tool\n")
        time.sleep(SETTLED)
        return project

    def test_nothing_changed_reads_nothing(self):
        registry = new_registry(self.some_tools())
        with Reads() as first:
            names_in(registry)
        with Reads() as second:
            names_in(registry)

        self.assertEqual(20 + 20 + 1, len(first.paths))  # scripts, metadata, README
        self.assertEqual([], second.paths)

    def test_only_what_changed_is_read(self):
        project = self.some_tools()
        registry = new_registry(project)
        names_in(registry)
        rows = (
            (lambda: put(project, "tools/t03/tool.sh", SCRIPT + "#\n"), ["tool.meta.json", "tool.sh"]),
            (lambda: put(project, "tools/t04/tool.meta.json", '{"name": "t04"}', 0o644), ["tool.meta.json", "tool.sh"]),
            (lambda: put(project, "tools/new.sh"), ["new.sh"]),
            (lambda: put(project, "tools/README.md", "still no tool\n", 0o644), ["README.md"]),
            (lambda: os.chmod(project.path("tools/t05/tool.sh"), 0o700), ["tool.meta.json", "tool.sh"]),
            (lambda: os.unlink(project.path("tools/t06/tool.sh")), []),
            (lambda: os.unlink(project.path("tools/t07/tool.meta.json")), ["tool.sh"]),
            (lambda: os.utime(project.path("tools/t08/tool.sh")), ["tool.meta.json", "tool.sh"]),
        )
        for change, expected in rows:
            change()
            time.sleep(SETTLED)
            with Reads() as reads:
                names_in(registry)
            self.assertEqual(expected, sorted(reads.paths))
        with Reads() as reads:
            names_in(registry)
        self.assertEqual([], reads.paths)

    def test_edits_of_equal_length_within_one_tick_of_the_clock_are_seen(self):
        """In place, same size, same inode, times as coarse as the kernel makes them: nothing in stat need differ."""
        project = self.new_project()
        path = project.file("tools/x.sh", described("000"), 0o755)
        registry = new_registry(project)
        for number in range(1, 200):
            with open(path, "r+", encoding="utf-8") as stream:
                stream.write(described("%03d" % number))
            registry.refresh(force=True)

            self.assertEqual("%03d" % number, registry.snapshot.items()[0]["description"])

    def test_an_edit_that_hides_its_time_is_seen(self):
        project = self.new_project()
        path = project.file("tools/x.sh", described("one"), 0o755)
        before = os.stat(path)
        time.sleep(SETTLED)
        registry = new_registry(project)
        names_in(registry)
        with open(path, "r+", encoding="utf-8") as stream:
            stream.write(described("two"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        registry.refresh(force=True)

        self.assertEqual("two", registry.snapshot.items()[0]["description"])

    def test_a_touched_file_changes_neither_list_nor_hash(self):
        project = self.some_tools(3)
        registry = new_registry(project)
        names_in(registry)
        before = registry.snapshot
        os.utime(project.path("tools/t01/tool.sh"))

        self.assertFalse(registry.refresh(force=True))
        self.assertIs(before, registry.snapshot)
        put(project, "tools/t01/tool.meta.json", '{"description": "other"}', 0o644)
        self.assertTrue(registry.refresh(force=True))
        self.assertNotEqual(before.hash, registry.snapshot.hash)

    def test_the_time_to_live_is_honoured(self):
        for env, expected in ((NEVER, ["a"]), (ALWAYS, ["a", "b"])):
            with self.subTest(env=env):
                project = self.new_project()
                put(project, "tools/a.sh")
                client = self.new_client(project, env=env)
                self.assertEqual(["a"], listed(client))
                put(project, "tools/b.sh")

                self.assertEqual(expected, listed(client))


class CacheFileTest(support.Case):
    # seeds: registry JSON contracts
    def filled(self, **env: str) -> tuple[support.Project, dict]:
        """Return a project with a few tools and its cache file as a server wrote it."""
        project = self.new_project()
        project.tool("b", "echo b", {"description": "ünï", "timeoutSecs": 5, "outputSchema": {"type": "object"}})
        project.tool("a", "echo a", {"annotations": {"z": 1, "a": 2}})
        put(project, "tools/plain.sh")
        time.sleep(SETTLED)
        with project.client(env=env) as client:
            listed(client)
            text = support.wait_for_file(project.path(".registry/tools.json"))
        return project, json.loads(text)

    def test_the_envelope_is_as_documented(self):
        project, cache = self.filled()
        members = {"format_version", "version", "generatedAt", "items", "hash", "total", "sources"}

        self.assertEqual(members, set(cache))
        self.assertEqual((1, 1, 3), (cache["format_version"], cache["version"], cache["total"]))
        self.assertRegex(cache["generatedAt"], r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
        self.assertEqual(["a", "b", "plain"], [item["name"] for item in cache["items"]])
        expected = {
            "name": "b",
            "description": "ünï",
            "path": "b/tool.sh",
            "inputSchema": {"type": "object", "properties": {}},
            "outputSchema": {"type": "object"},
            "timeoutSecs": 5,
        }
        self.assertEqual(expected, cache["items"][1])

    def test_the_hash_is_sha256_of_the_canonical_items(self):
        _, cache = self.filled()
        text = json.dumps(cache["items"], sort_keys=True, separators=(",", ":"), ensure_ascii=True)

        self.assertEqual(hashlib.sha256(text.encode("ascii")).hexdigest(), cache["hash"])

    def test_the_cache_is_private_and_strangers_in_its_directory_stay(self):
        project, _ = self.filled()
        self.assertEqual(0o700, os.stat(project.path(".registry")).st_mode & 0o777)
        self.assertEqual(0o600, os.stat(project.path(".registry/tools.json")).st_mode & 0o777)
        project.file(".registry/commands.json", "mine")
        put(project, "tools/more.sh")
        with project.client() as client:
            self.assertIn("more", listed(client))
            support.wait_until(lambda: '"more"' in support.wait_for_file(project.path(".registry/tools.json")))

        self.assertEqual(["commands.json", "tools.json"], sorted(os.listdir(project.path(".registry"))))

    def test_a_restart_reads_no_file_that_did_not_change(self):
        project, _ = self.filled()
        with Reads() as reads:
            self.assertEqual(["a", "b", "plain"], names_in(new_registry(project)))
        self.assertEqual([], reads.paths)
        put(project, "tools/plain.sh", described("new"))
        with Reads() as reads:
            registry = new_registry(project)
            names_in(registry)
        self.assertEqual(["plain.sh"], reads.paths)
        self.assertEqual("new", registry.snapshot.items()[2]["description"])

    def test_a_restarted_server_runs_and_lists_the_same(self):
        project, cache = self.filled()
        project.file("tools/plain.sh", SCRIPT, 0o644)  # runs through its interpreter, also when it comes from the cache
        for _ in range(2):
            with project.client() as client:
                self.assertEqual(["a", "b", "plain"], listed(client))
                self.assertEqual("ran\n", client.text("plain"))
                support.wait_for_file(project.path(".registry/tools.json"))
            time.sleep(SETTLED)

    def test_edits_made_while_no_server_ran_are_seen_at_once(self):
        project, _ = self.filled()
        os.unlink(project.path("tools/plain.sh"))
        put(project, "tools/a/tool.meta.json", '{"name": "renamed"}', 0o644)
        with project.client(env=NEVER) as client:
            self.assertEqual(["b", "renamed"], listed(client))

    def damage(self) -> dict:
        """Return ways to spoil a cache file: name -> function of (path, good text)."""

        def text(value):
            def write(path: str, good: str) -> None:
                with open(path, "w", encoding="utf-8") as stream:
                    stream.write(value(good))

            return write

        def with_member(**members):
            return text(lambda good: json.dumps({**json.loads(good), **members}))

        def with_item(**members):
            return text(
                lambda good: json.dumps({**json.loads(good), "items": [{"name": "x", "path": "a/tool.sh", **members}]})
            )

        return {
            "empty": text(lambda good: ""),
            "truncated": text(lambda good: good[: len(good) // 2]),
            "no JSON": text(lambda good: "\0" * 100),
            "array": text(lambda good: "[]"),
            "null": text(lambda good: "null"),
            "wrong version": with_member(format_version=2),
            "no version": with_member(format_version=None),
            "items no array": with_member(items=5),
            "items of numbers": with_member(items=[1, 2]),
            "sources no object": with_member(sources=[1]),
            "sources odd": with_member(sources={"a/tool.sh": [None, None]}),
            "no items": text(lambda good: '{"format_version": 1}'),
            "item without path": with_item(path=None),
            "item with a bad name": with_item(name="not a name!"),
            "item with a bad path": with_item(path="../../../bin/sh"),
            "item with an absolute path": with_item(path="/bin/sh"),
            "item with NUL in its path": with_item(path="a\0b"),
            "deep": text(lambda good: '{"a":' * 5000),
            "writable by others": lambda path, good: os.chmod(path, 0o666),
            "link": lambda path, good: (os.rename(path, path + ".real"), os.symlink("tools.json.real", path)),
            "directory": lambda path, good: (os.unlink(path), os.mkdir(path)),
            "pipe": lambda path, good: (os.unlink(path), os.mkfifo(path)),
            **({"other owner": lambda path, good: os.chown(path, 65534, 65534)} if os.geteuid() == 0 else {}),
        }

    def test_a_damaged_cache_is_rebuilt(self):
        # RC-04, FS-07
        project, cache = self.filled()
        path = project.path(".registry/tools.json")
        good = support.wait_for_file(path)
        for name, damage in self.damage().items():
            for env in ({}, {"MCPBASH_STATIC_REGISTRY": "true"}):
                with self.subTest(name=name, env=env):
                    shutil.rmtree(project.path(".registry"))
                    project.file(".registry/tools.json", good, 0o600)
                    damage(path, good)
                    registry = new_registry(project, env)
                    registry.refresh()
                    names = [item["name"] for item in registry.snapshot.items()]

                    if env and "path" in name and "without" not in name:
                        self.assertNotIn("x", names)  # the rest of a static registry is believed
                    else:
                        self.assertEqual(["a", "b", "plain"], names)

    def test_a_server_on_a_damaged_cache_is_up_and_writes_a_good_one(self):
        # RC-04
        project, _ = self.filled()
        path = project.path(".registry/tools.json")
        for text in ("", '{"format_version": 1, "items": [{"name": "no name!", "path": "a/tool.sh"}]}'):
            with self.subTest(text=text):
                project.file(".registry/tools.json", text, 0o600)
                with project.client() as client:
                    self.assertEqual(["a", "b", "plain"], listed(client))
                    support.wait_until(lambda: '"hash"' in support.wait_for_file(path))

    def test_a_larger_cache_than_allowed_is_not_read(self):
        project, cache = self.filled()
        cache["items"][0]["description"] = "only in the cache"
        project.json(".registry/tools.json", cache)
        os.chmod(project.path(".registry/tools.json"), 0o600)
        registry = new_registry(project)
        registry.refresh()
        self.assertEqual("only in the cache", registry.snapshot.items()[0]["description"])
        project.json(".registry/tools.json", {**cache, "pad": " " * 5000})
        os.chmod(project.path(".registry/tools.json"), 0o600)
        registry = new_registry(project, {"MCPBASH_REGISTRY_MAX_BYTES": "4096"})
        registry.refresh()
        self.assertEqual("", registry.snapshot.items()[0]["description"])

    def test_a_project_that_cannot_be_written_is_served_without_a_cache_and_in_silence(self):
        # FS-09
        project = self.new_project()
        put(project, "tools/a.sh")
        project.file("file", "not a directory")
        client = self.new_client(project, env={"MCPBASH_REGISTRY_DIR": project.path("file/registry"), **ALWAYS})
        client.initialize()
        for number in range(3):
            put(project, "tools/b%d.sh" % number)
            self.assertIn("b%d" % number, listed(client))
        self.assertEqual("ran\n", client.text("a"))
        client.close()

        self.assertEqual("", client.stderr)
        self.assertEqual([], client.notifications("notifications/message"))

    def test_a_read_only_project_is_served(self):
        # FS-09
        project = self.new_project()
        put(project, "tools/a.sh")
        os.chmod(project.root, 0o555)
        options, command = {}, None
        if os.geteuid() == 0:  # root may write everywhere, so the server has to be somebody else
            options = {"user": 12345, "group": 12345, "extra_groups": []}
            command = [self.python_for(options), support.SERVER, "--project-root", project.root]
            for directory in (project.base, project.home, project.tmp):
                os.chown(directory, 12345, 12345)
        client = self.new_client(project, command=command, env=ALWAYS, **options)
        client.initialize()
        for _ in range(3):
            self.assertEqual(["a"], listed(client))
        self.assertEqual("ran\n", client.text("a"))
        client.close()

        self.assertEqual("", client.stderr)
        self.assertNotIn(".registry", os.listdir(project.root))

    def python_for(self, options: dict) -> str:
        """Return an interpreter that another user can start and that can read the server."""
        read = "import sys; open(sys.argv[1]).close(); sys.exit(sys.version_info < (3, 9))"
        for python in (support.PYTHON, shutil.which("python3", path=os.defpath)):
            try:
                if python and not subprocess.run([python, "-c", read, support.SERVER], **options).returncode:
                    return python
            except OSError:
                continue  # not reachable for that user
        raise support.not_here("another user can reach no interpreter")


class StaticTest(support.Case):
    # contract 6.5
    STATIC = {"MCPBASH_STATIC_REGISTRY": "1", **ALWAYS}

    def frozen(self, **members) -> support.Project:
        """Return a project with the tool `real` on disk and a cache, as older releases write it, that says `frozen`."""
        project = self.new_project()
        put(project, "tools/real.sh")
        items = [{"name": "frozen", "path": "real.sh", "description": "from the cache"}]
        project.json(".registry/tools.json", {"format_version": 1, "version": 1, "items": items, **members})
        return project

    def test_the_cache_is_served_as_it_is_and_nothing_is_scanned(self):
        project = self.frozen()
        client = self.new_client(project, env=self.STATIC)
        self.assertEqual(["frozen"], listed(client))
        put(project, "tools/later.sh")

        self.assertEqual(["frozen"], listed(client))
        self.assertEqual("ran\n", client.text("frozen"))
        self.assertEqual(-32602, client.error("tools/call", {"name": "real"}, modern=True)["code"])

    def test_without_the_switch_the_same_project_is_scanned(self):
        self.assertEqual(["real"], listed(self.new_client(self.frozen())))

    def test_scripts_that_need_an_interpreter_run_from_an_older_cache_too(self):
        project = self.frozen()
        os.chmod(project.path("tools/real.sh"), 0o644)
        client = self.new_client(project, env=self.STATIC)

        self.assertEqual("ran\n", client.text("frozen"))

    def test_a_cache_of_another_format_or_none_means_scanning_once(self):
        for version in (2, None):
            with self.subTest(version=version):
                client = self.new_client(self.frozen(format_version=version), env=self.STATIC)
                self.assertEqual(["real"], listed(client))
        project = self.new_project()
        put(project, "tools/real.sh")
        self.assertEqual(["real"], listed(self.new_client(project, env=self.STATIC)))

    def test_register_json_is_honoured_and_register_sh_is_not(self):
        project = self.frozen()
        project.file("server.d/register.sh", 'mcp_register_tool \'{"name":"hooked","path":"real.sh"}\'\n', 0o755)
        client = self.new_client(project, env={**self.STATIC, **HOOKS})
        self.assertEqual(["frozen"], listed(client))
        project.json("server.d/register.json", {"version": 1, "tools": [{"name": "manual", "path": "real.sh"}]})
        self.assertEqual(["manual"], listed(self.new_client(project, env={**self.STATIC, **HOOKS})))

    def test_paths_out_of_the_tools_directory_are_not_served(self):
        # FS-07
        items = [
            {"name": "n%d" % number, "path": path}
            for number, path in enumerate(("../../../bin/sh", "/bin/sh", "a/../../../../bin/sh", "..", "real.sh"))
        ]
        client = self.new_client(self.frozen(items=items), env=self.STATIC)

        self.assertEqual(["n4"], listed(client))
        self.assertEqual("ran\n", client.text("n4"))


class RegisterJsonTest(support.Case):
    # contract 6.2
    def project_with(self, document) -> support.Project:
        """Return a project with a script and a register.json."""
        project = self.new_project()
        put(project, "tools/one.sh")
        put(project, "tools/two/tool.sh")
        if document is not None:
            text = document if isinstance(document, (str, bytes)) else json.dumps(document)
            project.file("server.d/register.json", text)
        return project

    def test_it_replaces_the_scan_per_kind(self):
        tools = [
            {"name": "z", "path": "one.sh", "description": "by hand", "timeoutSecs": 3},
            {"name": "y", "path": "two/tool.sh"},
        ]
        rows = (
            ({"version": 1, "tools": tools}, ["y", "z"]),
            ({"version": 1, "tools": []}, []),
            ({"version": 1, "tools": None}, ["one", "two"]),
            ({"version": 1}, ["one", "two"]),
            ({"version": 1, "resources": [], "prompts": None, "_meta": {"a": 1}}, ["one", "two"]),
            (None, ["one", "two"]),
        )
        for document, expected in rows:
            with self.subTest(document=document):
                self.assertEqual(expected, names_in(new_registry(self.project_with(document))))

    def test_registered_tools_run(self):
        tools = [{"name": "z", "path": "one.sh", "arguments": {"properties": {"a": {}}}, "secret": 1}]
        client = self.new_client(self.project_with({"version": 1, "tools": tools}))
        client.initialize()

        self.assertEqual("ran\n", client.text("z"))
        tool = client.result("tools/list")["tools"][0]
        self.assertEqual({"name", "description", "inputSchema"}, set(tool))
        self.assertEqual({"a": {}}, tool["inputSchema"]["properties"])
        self.assertEqual(-32602, client.error("tools/call", {"name": "one"})["code"])

    STRICT = (  # document, part of the message
        ({"tools": []}, '"version": 1'),
        ({"version": 2, "tools": []}, '"version": 1'),
        ({"version": "1", "tools": []}, '"version": 1'),
        ({"version": True, "tools": []}, '"version": 1'),
        ({"version": 1, "tolls": []}, 'unknown key "tolls"'),
        ({"version": 1, "tools": {}}, '"tools" is not an array'),
        ({"version": 1, "tools": [5]}, '"tools" is not an array'),
        ({"version": 1, "prompts": "x"}, '"prompts" is not an array'),
        ({"version": 1, "_meta": []}, "_meta"),
        ([], "expected an object"),
        ("{oops", "is not JSON"),
        ("", "is not JSON"),
        (b"\xef\xbb\xbf" + b'{"version": 1}', "byte order mark"),
        (b'{"version": 1, "_meta": {"a": "\xff"}}', "not valid UTF-8"),
    )

    def test_one_mistake_is_an_error_for_every_list(self):
        for document, words in self.STRICT:
            with self.subTest(document=document):
                registry = new_registry(self.project_with(document))
                with self.assertRaises(mcp_bash.InternalError) as caught:
                    registry.refresh()

                self.assertEqual(-32603, caught.exception.code)
                self.assertIn("server.d/register.json", caught.exception.message)
                self.assertIn(words, caught.exception.message)

    def test_a_mistake_is_told_to_the_client_and_repaired_without_a_restart(self):
        project = self.project_with({"version": 1, "tolls": []})
        client = self.new_client(project, env=ALWAYS)
        client.initialize()
        for method, params in (("tools/list", None), ("tools/call", {"name": "one"})):
            error = client.error(method, params)
            self.assertEqual(-32603, error["code"])
            self.assertIn('server.d/register.json has the unknown key "tolls"', error["message"])
        put(project, "server.d/register.json", '{"version": 1, "tools": [{"name": "z", "path": "one.sh"}]}', 0o644)
        self.assertEqual(["z"], listed(client))

    def test_unsafe_files_are_refused(self):
        def make_link(project):
            os.rename(project.path("server.d/register.json"), project.path("real.json"))
            os.symlink("../real.json", project.path("server.d/register.json"))

        def make_directory_link(project):
            os.rename(project.path("server.d"), project.path("real.d"))
            os.symlink("real.d", project.path("server.d"))

        rows = {
            "file 0666": lambda project: os.chmod(project.path("server.d/register.json"), 0o666),
            "file 0664": lambda project: os.chmod(project.path("server.d/register.json"), 0o664),
            "directory 0777": lambda project: os.chmod(project.path("server.d"), 0o777),
            "root 0777": lambda project: os.chmod(project.root, 0o777),
            "link": make_link,
            "directory is a link": make_directory_link,
        }
        if os.geteuid() == 0:
            rows["other owner"] = lambda project: os.chown(project.path("server.d/register.json"), 65534, 65534)
        for name, spoil in rows.items():
            with self.subTest(name=name):
                project = self.project_with({"version": 1, "tools": [{"name": "z", "path": "one.sh"}]})
                self.assertEqual(["z"], names_in(new_registry(project)))
                spoil(project)
                with self.assertRaises(mcp_bash.InternalError) as caught:
                    new_registry(project).refresh()
                self.assertIn("is refused", caught.exception.message)

    def test_its_size_is_limited(self):
        project = self.project_with({"version": 1, "tools": [], "_meta": {"pad": "x" * 100}})
        self.assertEqual([], names_in(new_registry(project)))
        with self.assertRaises(mcp_bash.InternalError) as caught:
            new_registry(project, {"MCPBASH_MAX_MANUAL_REGISTRY_BYTES": "64"}).refresh()
        self.assertIn("larger than 64 bytes", caught.exception.message)

    def test_no_error_names_a_place_on_this_machine(self):
        # EN-08
        rows = ({"MCPBASH_MAX_MANUAL_REGISTRY_BYTES": "64"}, {})
        for env in rows:
            with self.subTest(env=env):
                project = self.project_with({"version": 1, "tools": [], "_meta": {"pad": "x" * 100}})
                if not env:
                    os.chmod(project.path("server.d/register.json"), 0o666)
                client = self.new_client(project, env=env)
                client.initialize()
                error = client.error("tools/list")

                self.assertIn("server.d/register.json", error["message"])
                self.assertNotIn(project.base, json.dumps(client.messages))

    def test_single_entries_that_cannot_be_served_are_left_out_with_a_warning(self):
        # FS-07
        rows = (
            {"name": "a", "path": "../../../bin/sh"},
            {"name": "b", "path": "/bin/sh"},
            {"name": "c", "path": "link.sh"},
            {"name": "d", "path": "missing.sh"},
            {"name": "e", "path": "two"},
            {"name": "f"},
            {"name": "g", "path": 5},
            {"name": "no name!", "path": "one.sh"},
            {"name": "h", "path": "one\0.sh"},
            {"name": "good", "path": "one.sh", "description": "second"},
        )
        project = self.project_with({"version": 1, "tools": [{"name": "good", "path": "two/tool.sh"}, *rows]})
        os.symlink("/bin/sh", project.path("tools/link.sh"))
        client = self.new_client(project)
        self.assertEqual(["good"], listed(client))
        for row in rows[:-1]:
            self.assertEqual(-32602, client.error("tools/call", {"name": row["name"]}, modern=True)["code"])
        client.close()
        said = [line for line in client.stderr.split("\n") if line.startswith("mcp_bash: warning")]

        self.assertEqual(len(rows), len(said), said)
        for row in rows[:-1]:
            self.assertEqual(1, len([line for line in said if 'tool "%s"' % row["name"] in line]), row)

    def test_it_wins_over_register_sh_even_when_it_is_broken(self):
        project = self.project_with("{")
        marker = project.path("ran")
        project.file("server.d/register.sh", "touch %s\necho '{\"tools\":[]}'\n" % marker, 0o755)
        client = self.new_client(project, env=HOOKS)

        self.assertEqual(-32603, client.error("tools/list", modern=True)["code"])
        self.assertFalse(os.path.exists(marker))


class RegisterShTest(support.Case):
    # contract 6.3, PL-07
    def project_with(self, script: str, mode: int = 0o755) -> support.Project:
        """Return a project with two scripts and a register.sh that also leaves a mark."""
        project = self.new_project()
        put(project, "tools/one.sh")
        put(project, "tools/two.sh")
        self.mark = os.path.join(project.base, "register-ran")
        project.file("server.d/register.sh", "echo x >>%s\n%s" % (self.mark, script), mode)
        return project

    def test_it_is_not_run_unless_hooks_are_allowed(self):
        # PL-07
        script = 'mcp_register_tool \'{"name":"hooked","path":"one.sh"}\'\n'
        for value, expected in (
            (None, ["one", "two"]),
            ("false", ["one", "two"]),
            ("maybe", ["one", "two"]),
            ("true", ["hooked"]),
            ("1", ["hooked"]),
            ("yes", ["hooked"]),
            ("on", ["hooked"]),
        ):
            with self.subTest(value=value):
                project = self.project_with(script)
                env = {} if value is None else {"MCPBASH_ALLOW_PROJECT_HOOKS": value}
                with project.client(env=env) as client:
                    self.assertEqual(expected, listed(client))
                self.assertEqual(expected == ["hooked"], os.path.exists(self.mark))

    def test_an_unsafe_file_is_refused_and_not_run(self):
        # PL-07
        project = self.project_with("echo '{}'\n", 0o666)
        client = self.new_client(project, env=HOOKS)
        error = client.error("tools/list", modern=True)

        self.assertEqual(-32603, error["code"])
        self.assertIn("server.d/register.sh is refused", error["message"])
        self.assertFalse(os.path.exists(self.mark))

    SCRIPTS = (  # what it says, the names on the list (scanned: one, two)
        ('mcp_register_tool \'{"name":"h","path":"one.sh"}\'\n', ["h"]),
        ('mcp_tools_register_manual \'{"name":"h","path":"one.sh"}\'\n', ["h"]),
        (
            'mcp_register_tool \'{"name":"z","path":"one.sh"}\'\nmcp_register_tool \'{"name":"a","path":"two.sh"}\'\n',
            ["a", "z"],
        ),
        ('mcp_register_tool \'{"name":"h","path":"one.sh"}\'\necho noise\nexit 0\n', ["h"]),
        ('mcp_register_prompt \'{"name":"p","path":"p.txt"}\'\n', ["one", "two"]),
        ('mcp_register_resource \'{"name":"r","uri":"file:///r"}\'\n', ["one", "two"]),
        (
            'mcp_completion_manual_begin\nmcp_completion_register_manual \'{"name":"c","path":"c.sh"}\'\n'
            "mcp_completion_manual_finalize\n",
            ["one", "two"],
        ),
        (
            'mcp_resources_templates_manual_begin\nmcp_resources_templates_register_manual \'{"name":"t"}\'\n'
            "mcp_resources_templates_manual_finalize\n",
            ["one", "two"],
        ),
        ('printf \'%s\' \'{"tools":[{"name":"h","path":"one.sh"}]}\'\n', ["h"]),
        ("echo '{\"tools\":[]}'\n", []),
        ('echo \'{"version":1,"resources":[]}\'\n', ["one", "two"]),
        ("mcp_logging_info mcp.registry hello\nmcp_logging_warning a b\n", ["one", "two"]),
        ('set -euo pipefail\nmcp_register_tool "$(printf \'{"name":"%s","path":"one.sh"}\' h)"\n', ["h"]),
        ('case $PWD:$MCPBASH_PROJECT_ROOT in "$PWD:$PWD") ;; *) exit 9 ;; esac\n', ["one", "two"]),
        ("cat\n", ["one", "two"]),  # stdin is empty, never the protocol
        ("true\n", ["one", "two"]),
    )

    def test_what_it_may_say(self):
        client = self.new_client(self.project_with("true\n"), env={**HOOKS, **ALWAYS})
        for script, expected in self.SCRIPTS:
            with self.subTest(script=script):
                put(client.project, "server.d/register.sh", script)

                self.assertEqual(expected, listed(client))

    FAILURES = (  # what it does, part of the message
        ("exit 3\n", "exit status 3"),
        ("echo why >&2; false; exit 1\n", "why"),
        ("set -e\nfalse\n", "exit status 1"),
        ("mcp_register_tool '{broken'\n", ""),
        ("mcp_register_tool '[]'\n", ""),
        ("echo not json\n", "is not JSON"),
        ("echo '{\"tolls\":[]}'\n", "tolls"),
        ("echo '{\"version\":2}'\n", "version"),
        ("sleep 60\n", "stopped after"),
        ("kill -9 $$\n", "SIGKILL"),
        ("head -c 200000 /dev/zero\n", ""),
        ("if then\n", ""),
    )

    def test_every_failure_is_an_error_for_every_list(self):
        limits = {"MCPBASH_HOOK_TIMEOUT": "2", "MCPBASH_MAX_MANUAL_REGISTRY_BYTES": "100000"}
        client = self.new_client(self.project_with("true\n"), env={**HOOKS, **ALWAYS, **limits})
        for script, words in self.FAILURES:
            with self.subTest(script=script):
                put(client.project, "server.d/register.sh", "true\n")
                self.assertEqual(["one", "two"], listed(client))
                put(client.project, "server.d/register.sh", script)
                error = client.error("tools/list", modern=True)

                self.assertEqual(-32603, error["code"])
                self.assertIn("server.d/register.sh", error["message"])
                self.assertIn(words, error["message"])

    def test_a_long_item_is_registered_or_refused_but_never_dropped(self):
        big = "text=$(head -c 70000 /dev/zero | tr '\\0' d)\n"
        big += 'mcp_register_tool \'{"name":"big","path":"one.sh","description":"\'$text\'"}\'\n'
        project = self.project_with(big + 'mcp_register_tool \'{"name":"small","path":"two.sh"}\'\n')
        client = self.new_client(project, env=HOOKS)
        answer = client.modern("tools/list")

        if "error" not in answer:
            self.assertEqual(["big", "small"], [tool["name"] for tool in answer["result"]["tools"]])

    def test_it_sees_the_environment_of_the_server_without_the_secret(self):
        # EN-01
        token = "t" * 40
        project = self.project_with("env >%s/env\n" % self.new_project().base)
        place = os.path.join(project.base, "env")
        project.file("server.d/register.sh", "env >%s\n" % place, 0o755)
        env = {**HOOKS, "MCPBASH_REMOTE_TOKEN": token, "MY_OWN": "value"}
        client = self.new_client(project, env=env)
        client.request("tools/list", {"_meta": {"remoteToken": token}}, modern=True)
        text = support.wait_for_file(place)

        self.assertIn("MY_OWN=value", text)
        self.assertNotIn(token, text)

    def test_it_is_asked_again_after_its_time_to_live(self):
        project = self.project_with("cat %s\n" % os.path.join(self.new_project().base, "none"))
        source = os.path.join(project.base, "source")
        project.file("server.d/register.sh", "cat %s\n" % source, 0o755)
        for ttl, expected in (("86400", ["a"]), ("0", ["b"])):
            with self.subTest(ttl=ttl):
                with open(source, "w", encoding="ascii") as stream:
                    stream.write('{"tools":[{"name":"a","path":"one.sh"}]}')
                with project.client(env={**HOOKS, **ALWAYS, "MCPBASH_REGISTER_TTL": ttl}) as client:
                    self.assertEqual(["a"], listed(client))
                    with open(source, "w", encoding="ascii") as stream:
                        stream.write('{"tools":[{"name":"b","path":"one.sh"}]}')
                    self.assertEqual(expected, listed(client))


class EnvShTest(support.Case):
    SCRIPT = (
        'echo noise\nMCPBASH_PAGE_SIZE=1\nexport MCP_GREETING="two\nlines"\nMCP_HOME_WAS="$HOME"\nPWD_FOR_TOOLS=x\n'
    )

    def project_with(self, script: str, mode: int = 0o644) -> support.Project:
        """Return a project with two tools and an env.sh."""
        project = self.new_project()
        project.tool("show", 'printf "%s|" "${MCP_GREETING-unset}" "${MCP_HOME_WAS-unset}" "${PWD_FOR_TOOLS-unset}"')
        put(project, "tools/other.sh")
        project.file("server.d/env.sh", script, mode)
        return project

    def test_it_sets_settings_and_variables_when_hooks_are_allowed(self):
        project = self.project_with(self.SCRIPT)
        mode = {"MCPBASH_TOOL_ENV_MODE": "allowlist", "MCPBASH_TOOL_ENV_ALLOWLIST": "PWD_FOR_TOOLS"}
        client = self.new_client(project, env={**HOOKS, **mode})
        result = client.modern("tools/list")["result"]

        self.assertEqual(1, len(result["tools"]))
        self.assertIn("nextCursor", result)
        self.assertEqual("two\nlines|%s|x|" % project.home, client.text("show"))

    def test_it_is_not_read_otherwise(self):
        client = self.new_client(self.project_with(self.SCRIPT + "touch ran\n"))

        self.assertEqual(["other", "show"], listed(client))
        self.assertEqual("unset|unset|unset|", client.text("show"))
        self.assertFalse(os.path.exists(client.project.path("ran")))

    def test_a_failing_or_unsafe_one_stops_the_start_with_a_reason(self):
        rows = (
            ("exit 4\n", 0o644, "exit status 4"),
            ("A=1\n", 0o666, "writable by others"),
            ("if then\n", 0o644, "env.sh"),
        )
        for script, mode, words in rows:
            with self.subTest(script=script, mode=mode):
                project = self.project_with(script, mode)
                with project.client(env=HOOKS) as client:
                    self.assertEqual(1, client.close(exit_code=1))
                self.assertIn("server.d/env.sh", client.stderr)
                self.assertIn(words, client.stderr)


class ListChangedTest(support.Case):
    """R-094 to R-096, R-138 to R-145. With a TTL of 0 a list looks at the disk and what it finds is said before."""

    def session(self, version: str = "2025-11-25") -> tuple[support.Project, support.Client]:
        """Return a project with one tool and a handshake session that has looked at it."""
        project = self.new_project()
        put(project, "tools/a.sh")
        client = self.new_client(project, env=ALWAYS)
        client.initialize(version)
        listed(client)
        return project, client

    CHANGES = (
        ("new tool", lambda project: put(project, "tools/b.sh"), 1),
        ("touched", lambda project: os.utime(project.path("tools/b.sh")), 0),
        ("nothing", lambda project: None, 0),
        ("body edited", lambda project: put(project, "tools/b.sh", SCRIPT + "# more\n"), 0),
        ("description edited", lambda project: put(project, "tools/b.sh", described("d")), 1),
        ("same again", lambda project: put(project, "tools/b.sh", described("d")), 0),
        ("not a tool", lambda project: put(project, "tools/README.md", "x", 0o644), 0),
        ("metadata", lambda project: put(project, "tools/b.meta.json", '{"title": "T"}', 0o644), 1),
        ("broken metadata", lambda project: put(project, "tools/b.meta.json", "{", 0o644), 1),
        ("metadata gone", lambda project: os.unlink(project.path("tools/b.meta.json")), 1),
        ("renamed", lambda project: os.rename(project.path("tools/b.sh"), project.path("tools/c.sh")), 1),
        ("removed", lambda project: os.unlink(project.path("tools/c.sh")), 1),
        ("registered", lambda project: put(project, "server.d/register.json", '{"version":1,"tools":[]}', 0o644), 1),
        ("unregistered", lambda project: os.unlink(project.path("server.d/register.json")), 1),
    )

    def test_a_session_hears_once_of_every_real_change_and_of_nothing_else(self):
        #
        for version in support.HANDSHAKE_VERSIONS:
            project, client = self.session(version)
            count = 0
            for name, change, expected in self.CHANGES:
                with self.subTest(version=version, change=name):
                    change(project)
                    listed(client)
                    listed(client)
                    count += expected
                    self.assertEqual(count, len(client.notifications(CHANGED)))

    def test_a_session_hears_without_asking(self):
        #
        project, client = self.session()
        put(project, "tools/b.sh")
        note = client.expect({"method": CHANGED})

        self.assertEqual({"jsonrpc": "2.0", "method": CHANGED}, note)
        self.assertEqual(["a", "b"], listed(client))
        os.unlink(project.path("tools/b.sh"))
        client.expect({"method": CHANGED})
        self.assertEqual(2, len(client.notifications(CHANGED)))

    def test_nobody_hears_of_the_first_look_nor_before_the_session_is_ready(self):
        #
        project = self.new_project()
        put(project, "tools/a.sh")
        client = self.new_client(project, env=ALWAYS)
        for name in ("b", "c"):  # a stateless client without a stream
            put(project, "tools/%s.sh" % name)
            listed(client, modern=True)
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        client.result("initialize", params)
        put(project, "tools/d.sh")
        listed(client, modern=True)
        self.assertEqual([], client.notifications(CHANGED))
        client.notify("notifications/initialized")
        put(project, "tools/e.sh")
        listed(client, modern=True)
        self.assertEqual(1, len(client.notifications(CHANGED)))

    def listen(self, client: support.Client, request_id, wanted: dict) -> dict:
        """Open a stream and return its acknowledgement."""
        client.send_request("subscriptions/listen", {"notifications": wanted}, id=request_id, modern=True)
        return client.expect(lambda message: self.stream_of(message) == request_id)

    @staticmethod
    def stream_of(message: dict):
        """Return the subscription a message belongs to, None for none."""
        return support.meta_of(message).get(support.PREFIX + "subscriptionId")

    def test_streams_get_their_own_tagged_copies_of_what_they_asked_for(self):
        #
        project = self.new_project()
        put(project, "tools/a.sh")
        client = self.new_client(project, env=ALWAYS)
        listed(client)
        rows = (  # id, wanted, acknowledged
            ("s", {"toolsListChanged": True}, {"toolsListChanged": True}),
            (77, {"toolsListChanged": True, "promptsListChanged": True, "unknown": True}, {"toolsListChanged": True}),
            ("77", {"toolsListChanged": False}, {}),
            ("none", {}, {}),
            ("odd", {"toolsListChanged": 1}, {}),
        )
        for request_id, wanted, honoured in rows:
            ack = self.listen(client, request_id, wanted)
            self.assertEqual("notifications/subscriptions/acknowledged", ack["method"])
            self.assertEqual(honoured, ack["params"]["notifications"])
        put(project, "tools/b.sh")
        listed(client)
        put(project, "tools/c.sh")
        listed(client)
        heard = [self.stream_of(message) for message in client.notifications(CHANGED)]

        self.assertEqual(sorted(["s", 77] * 2, key=str), sorted(heard, key=str))
        self.assertEqual({"int", "str"}, {type(stream).__name__ for stream in heard})
        for request_id, _, _ in rows:
            first = next(
                m for m in client.notifications() if support.id_key(self.stream_of(m)) == support.id_key(request_id)
            )
            self.assertEqual("notifications/subscriptions/acknowledged", first["method"])

    def test_streams_hear_without_asking(self):
        #
        project = self.new_project()
        put(project, "tools/a.sh")
        client = self.new_client(project)
        listed(client)
        self.listen(client, 5, {"toolsListChanged": True})
        put(project, "tools/b.sh")
        note = client.expect({"method": CHANGED})

        self.assertEqual(5, self.stream_of(note))

    def test_session_and_stream_on_one_process_each_hear_once(self):
        project, client = self.session()
        self.listen(client, "s", {"toolsListChanged": True})
        put(project, "tools/b.sh")
        listed(client)

        self.assertEqual([None, "s"], [self.stream_of(message) for message in client.notifications(CHANGED)])

    def test_a_cancelled_stream_is_silent_and_gets_no_response(self):
        #
        project = self.new_project()
        put(project, "tools/a.sh")
        client = self.new_client(project, env=ALWAYS)
        listed(client)
        for request_id in ("gone", "stays"):
            self.listen(client, request_id, {"toolsListChanged": True})
        client.cancel("gone")
        put(project, "tools/b.sh")
        listed(client)

        self.assertEqual(["stays"], [self.stream_of(message) for message in client.notifications(CHANGED)])
        client.close()
        self.assertEqual([], client.responses_to("gone"))
        self.assertEqual(1, len(client.responses_to("stays")))

    def test_the_end_of_input_closes_streams_with_their_result(self):
        #
        client = self.new_client(self.new_project())
        self.listen(client, 9, {"toolsListChanged": True})
        client.end_input()
        result = client.response(9)["result"]

        self.assertEqual(9, result["_meta"][support.PREFIX + "subscriptionId"])
        self.assertEqual("complete", result["resultType"])

    def test_a_request_without_notifications_is_refused(self):
        #
        client = self.new_client(self.new_project())
        for params in ({}, {"notifications": None}, {"notifications": []}, {"notifications": "toolsListChanged"}):
            with self.subTest(params=params):
                self.assertEqual(-32602, client.error("subscriptions/listen", params, modern=True)["code"])

    def test_a_shut_down_session_hears_nothing(self):
        project, client = self.session()
        client.result("shutdown")
        put(project, "tools/b.sh")
        listed(client, modern=True)

        self.assertEqual([], client.notifications(CHANGED))


class GuardsTest(support.Case):
    def test_many_tools_are_paged_in_order_and_cost_little(self):
        # RX-15
        count, cpu_limit = 5000, 2.0
        project = self.new_project()
        os.mkdir(project.path("tools"))
        for number in range(count):
            with open(project.path("tools", "t%04d" % number), "w", encoding="ascii") as stream:
                stream.write(SCRIPT)
        client = self.new_client(project)
        client.fence()
        before = self.cpu(client)
        page = client.modern("tools/list", timeout=60)["result"]
        spent = self.cpu(client) - before
        self.assertLess(spent, support.patient(cpu_limit))
        self.assertEqual(["t%04d" % number for number in range(50)], [tool["name"] for tool in page["tools"]])
        self.assertEqual(count, page["_meta"]["mcpbash/total"])
        again = client.modern("tools/list")["result"]
        self.assertEqual(page["tools"], again["tools"])
        self.assertEqual("ran\n", client.text("t4999"))
        client.close()
        said = [line for line in client.stderr.split("\n") if "holds 5000 tools" in line]
        self.assertEqual(1, len(said), client.stderr[:2000])
        self.assertIn("register.json", said[0])

    @staticmethod
    def cpu(client: support.Client) -> float:
        """Return the processor time of the server and everything below it."""
        return sum(support.cpu_seconds(pid) for pid in [client.pid, *(process.pid for process in client.tree())])

    def test_more_than_500_tools_are_worth_a_warning_and_500_are_not(self):
        for count, expected in ((500, 0), (501, 1)):
            with self.subTest(count=count):
                project = self.new_project()
                for number in range(count):
                    put(project, "tools/t%d" % number)
                registry = new_registry(project)
                names_in(registry)
                names_in(registry)

                self.assertEqual(expected, len(registry.log.lines), registry.log.lines)

    def test_a_registry_beyond_its_limit_is_an_error(self):
        # seeds: "If the serialised registry exceeds MCPBASH_REGISTRY_MAX_BYTES, the scan aborts with -32603"
        project = self.new_project()
        for number in range(4):
            put(project, "tools/t%d.sh" % number, described("d" * 400))
        self.assertEqual(4, len(listed(self.new_client(project, env={"MCPBASH_REGISTRY_MAX_BYTES": "100000"}))))
        error = self.new_client(project, env={"MCPBASH_REGISTRY_MAX_BYTES": "1024"}).error("tools/list", modern=True)
        self.assertEqual(-32603, error["code"])
        self.assertIn("MCPBASH_REGISTRY_MAX_BYTES", error["message"])

    def test_lists_and_calls_stay_whole_while_the_directory_changes(self):
        # CR-03
        project = self.new_project()
        for number in range(5):
            project.tool("fixed%d" % number, "echo fixed%d" % number)
        put(project, "tools/moving.sh", described("v0"))
        client = self.new_client(project, env=ALWAYS)
        client.initialize()
        stop = threading.Event()
        churn = threading.Thread(target=self.churn, args=(project, stop))
        churn.start()
        try:
            for number in range(5000 if support.SOAK else 170):
                self.check_list(client.result("tools/list")["tools"])
                answer = client.request("tools/call", {"name": "fixed%d" % (number % 5)})
                self.assertEqual("fixed%d\n" % (number % 5), support.text_of(answer["result"]))
                moving = client.request("tools/call", {"name": "moving"})
                if "error" in moving:
                    self.assertIn(moving["error"]["code"], (-32602, -32603))
                    self.assertNotIn("incident", moving["error"]["message"])
        finally:
            stop.set()
            churn.join()
        client.close()
        self.assertNotIn("incident", client.stderr)
        self.assertNotIn("Traceback", client.stderr)

    def churn(self, project: support.Project, stop: threading.Event) -> None:
        """Rewrite, remove and bring back a tool about 100 times a second."""
        number = 0
        while not stop.is_set():
            number += 1
            put(project, "tools/moving.sh", described("v%d" % number))
            put(project, "tools/extra%d/tool.sh" % (number % 3))
            stop.wait(0.005)
            shutil.rmtree(project.path("tools/extra%d" % (number % 3)))
            if number % 4 == 0:
                os.unlink(project.path("tools/moving.sh"))
            stop.wait(0.005)

    def check_list(self, tools: list) -> None:
        """See that a list is sorted, unique and made of whole items."""
        names = [tool["name"] for tool in tools]
        self.assertEqual(sorted(set(names)), names)
        self.assertLessEqual({"fixed%d" % number for number in range(5)}, set(names))
        self.assertLessEqual(set(names), {"fixed%d" % n for n in range(5)} | {"moving", "extra0", "extra1", "extra2"})
        moving = [tool["description"] for tool in tools if tool["name"] == "moving"]
        self.assertTrue(all(re.fullmatch(r"v\d+", text) for text in moving), moving)


if __name__ == "__main__":
    unittest.main()
