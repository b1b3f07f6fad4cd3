#!/usr/bin/env python3
"""Room 7, metadata: from a file to a record; a bad file is a problem with a place, never an exception.

Most tests use the reader in this process, on real files; those about the wire start a server.
"""
from __future__ import annotations

import base64
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

sys.path.append(support.ROOT)

import mcp_bash

SCRIPT = "#!/bin/sh\necho ran\n"
HUGE = 50 << 20  # bytes, of a sparse file
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Recorder(mcp_bash.Log):
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(mcp_bash.Settings({}))
        self.lines: list[str] = []

    def __call__(self, level: str, logger: str, text: str) -> None:
        self.lines.append("%s: %s" % (level, text))


def scan(project: support.Project) -> tuple[dict, list[str]]:
    """Return the registry items of a project by name, and what was logged about it."""
    settings, log = mcp_bash.Settings({}), Recorder()
    place = mcp_bash.Project(project.root, settings)
    manual = mcp_bash.Registration(place, settings, log, None)
    registry = mcp_bash.Registry(mcp_bash.KINDS["tools"], place, settings, log, manual)
    return {item["name"]: item for item in registry.get().items()}, log.lines


def identity(project: support.Project, environ: dict | None = None) -> tuple[dict, list[str]]:
    """Return what a project says about itself, and what was logged about it."""
    log = Recorder()
    return mcp_bash.Project(project.root, mcp_bash.Settings({})).identity(log, environ or {}), log.lines


def listed(client: support.Client, **fields) -> dict:
    """Return the tools of a client's first page by name."""
    return {tool["name"]: tool for tool in client.result("tools/list", {"limit": 200}, **fields)["tools"]}


def warnings(client: support.Client, count: int = 0) -> list[str]:
    """Return the warnings a server wrote to stderr, having waited for `count` of them."""
    if count:
        support.wait_until(lambda: len(warnings(client)) >= count, 10, "%d warnings" % count)
    mark = "mcp_bash: warning: "
    return [line[len(mark) :] for line in client.stderr.split("\n") if line.startswith(mark)]


class PrecedenceTest(support.Case):
    # The first that is there wins, as a whole: fields of the others do not shine through.
    SOURCES = (
        ("tools/x/tool.sh.meta.json", '{"description": "file.json"}'),
        ("tools/x/tool.meta.json", '{"description": "stem.json"}'),
        ("tools/x/tool.sh.meta.yaml", "description: file.yaml\n"),
        ("tools/x/tool.meta.yaml", "description: stem.yaml\n"),
        ("tools/x/tool.meta.yml", "description: stem.yml\n"),
    )
    INLINE = '#!/bin/sh\n# mcp: {"description": "inline", "title": "Inline"}\necho ran\n'

    def test_json_wins_over_yaml_over_the_comment_over_the_default(self):
        project = self.new_project()
        project.file("tools/x/tool.sh", self.INLINE, 0o755)
        for path, text in self.SOURCES:
            project.file(path, text)
        for path, _ in self.SOURCES:
            items, problems = scan(project)
            self.assertEqual(
                path.split("/tool.")[-1].replace("sh.meta", "file").replace("meta", "stem"), items["x"]["description"]
            )
            self.assertNotIn("title", items["x"])
            self.assertEqual([], problems)
            os.unlink(project.path(path))

        self.assertEqual(("inline", "Inline"), tuple(scan(project)[0]["x"][key] for key in ("description", "title")))
        project.file("tools/x/tool.sh", SCRIPT, 0o755)
        self.assertEqual("", scan(project)[0]["x"]["description"])

    def test_a_client_sees_the_winner(self):
        project = self.new_project()
        project.tool("both", "echo", {"description": "from json"})
        project.file("tools/both/tool.meta.yaml", "description: from yaml\n")
        project.file("tools/yaml.sh", SCRIPT, 0o755)
        project.file(
            "tools/yaml.meta.yaml", "name: from_yaml\ninputSchema:\n  properties:\n    count: {type: integer}\n"
        )
        client = self.new_client(project)
        client.initialize()
        tools = listed(client)

        self.assertEqual("from json", tools["both"]["description"])
        self.assertEqual({"count": {"type": "integer"}}, tools["from_yaml"]["inputSchema"]["properties"])

    def test_metadata_of_one_tool_is_not_metadata_of_its_neighbour(self):
        project = self.new_project()
        project.file("tools/a.sh", SCRIPT, 0o755)
        project.file("tools/a.meta.json", '{"description": "of a"}')
        project.file("tools/ab.sh", SCRIPT, 0o755)
        items, _ = scan(project)

        self.assertEqual({"a": "of a", "ab": ""}, {name: item["description"] for name, item in items.items()})

    def test_a_broken_winner_does_not_hand_over_to_the_next(self):
        """Falling back would publish a tool with another description than its author believes."""
        project = self.new_project()
        project.file("tools/x/tool.sh", self.INLINE, 0o755)
        project.file("tools/x/tool.meta.json", "{broken")

        self.assertEqual({}, scan(project)[0])
        os.unlink(project.path("tools/x/tool.meta.json"))
        self.assertEqual(["x"], list(scan(project)[0]))


class FieldsTest(support.Case):
    GOOD = {
        "title": "A title",
        "description": "Says ünïcödé 🎉\n\tand keeps its lines",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        "outputSchema": {"type": "object", "properties": {"b": {"type": "number"}}},
        "timeoutSecs": 2.5,
        "timeoutHint": "try less",
        "progressExtendsTimeout": True,
        "maxTimeoutSecs": 604800,
        "concurrency": 1,
        "detach": False,
        "annotations": {"readOnlyHint": True, "title": "T"},
        "icons": [{"src": "https://example.com/i.png", "mimeType": "image/png", "sizes": ["48x48"]}],
        "execution": {"taskSupport": "optional"},
        "_meta": {"com.example/k": [1]},
    }
    # field, values that are not accepted
    WRONG = (
        ("title", (5, ["x"], {"a": 1})),
        ("description", (5, ["x"], True)),
        ("inputSchema", ([], "x", 5, False)),
        ("outputSchema", ([], "x", True)),
        ("timeoutSecs", ("5", 0, -1, True, 604801)),
        ("timeoutHint", (1, [])),
        ("progressExtendsTimeout", ("true", 1)),
        ("maxTimeoutSecs", ("x", 0, False)),
        ("concurrency", (0, -1, 1.5, True, "2")),
        ("detach", ("yes", 1)),
        ("annotations", ([], "x")),
        ("icons", ({}, "x")),
        ("execution", (1, [])),
        ("_meta", ([], "x")),
    )

    def test_every_field_is_read(self):
        project = self.new_project()
        project.tool("x", "echo", self.GOOD)
        items, problems = scan(project)

        self.assertEqual({**self.GOOD, "name": "x", "path": "x/tool.sh"}, items["x"])
        self.assertEqual([], problems)

    def test_the_table_of_fields_is_complete_here(self):
        self.assertEqual(set(mcp_bash.TOOL_FIELDS), set(self.GOOD) | {"name"})
        self.assertEqual(set(self.GOOD), {field for field, _ in self.WRONG})

    def test_a_field_of_the_wrong_type_is_ignored_with_its_place_and_the_tool_stays(self):
        project = self.new_project()
        rows = [(field, value) for field, values in self.WRONG for value in values]
        for number, (field, value) in enumerate(rows):
            text = '{\n  "name": "t%d",\n\n  "%s": %s\n}\n' % (number, field, json.dumps(value))
            project.file("tools/t%d.sh" % number, SCRIPT, 0o755)
            project.file("tools/t%d.meta.json" % number, text)
        items, problems = scan(project)

        self.assertEqual(len(rows), len(problems))
        for number, (field, value) in enumerate(rows):
            with self.subTest(field=field, value=value):
                item = items["t%d" % number]
                self.assertNotEqual(value, item.get(field))
                said = [line for line in problems if "t%d.meta.json:4:" % number in line]
                self.assertEqual(1, len(said), problems)
                self.assertIn('"%s" is %s; expected ' % (field, json.dumps(value, separators=(",", ":"))), said[0])
                self.assertTrue(said[0].endswith("It is ignored."), said[0])

    def test_null_is_the_same_as_absent(self):
        project = self.new_project()
        project.json("tools/x.meta.json", dict.fromkeys(mcp_bash.TOOL_FIELDS))
        project.file("tools/x.sh", SCRIPT, 0o755)
        items, problems = scan(project)

        self.assertEqual([], problems)
        schema = {"type": "object", "properties": {}}
        self.assertEqual({"name": "x", "description": "", "path": "x.sh", "inputSchema": schema}, items["x"])

    def test_schemas_get_what_the_protocol_demands_and_nothing_else(self):
        rows = (  # metadata, inputSchema of the item
            ({}, {"type": "object", "properties": {}}),
            ({"arguments": {"properties": {"a": {}}}}, {"type": "object", "properties": {"a": {}}}),
            ({"inputSchema": {"required": ["a"]}}, {"type": "object", "required": ["a"]}),
            ({"inputSchema": {"type": "object"}, "arguments": {"properties": {"z": {}}}}, {"type": "object"}),
            ({"arguments": [{"name": "a"}]}, {"type": "object", "properties": {}}),
        )
        for meta, expected in rows:
            with self.subTest(meta=meta):
                project = self.new_project()
                project.tool("x", "echo", meta)

                self.assertEqual(expected, scan(project)[0]["x"]["inputSchema"])

    def test_icons_that_no_client_may_load_are_left_out(self):
        #
        icons = [
            {"src": "https://example.com/a.png"},
            {"src": "http://example.com/b.png"},
            {"src": "javascript:alert(1)"},
            {"src": "file:///etc/passwd"},
            {"src": 5},
            {},
            "x",
            {"src": "data:image/png;base64,AAAA"},
        ]
        project = self.new_project()
        project.tool("x", "echo", {"icons": icons})

        self.assertEqual([icons[0], icons[-1]], scan(project)[0]["x"]["icons"])

    def test_an_icon_in_a_file_beside_the_metadata_travels_as_data(self):
        # contract 1.8
        project = self.new_project()
        project.tool("x", "echo", {"icons": [{"src": "icon.png"}]})
        project.file("tools/x/icon.png", PIXEL)
        expected = "data:image/png;base64," + base64.b64encode(PIXEL).decode()

        icons = scan(project)[0]["x"].get("icons")
        self.assertEqual([expected], [icon["src"] for icon in icons])

    def test_every_version_gets_the_fields_it_knows(self):
        #
        common = {"name", "description", "inputSchema"}
        visible = {
            "2024-11-05": common,
            "2025-03-26": common | {"annotations"},
            "2025-06-18": common | {"annotations", "title", "outputSchema", "_meta"},
            "2025-11-25": common | {"annotations", "title", "outputSchema", "_meta", "icons", "execution"},
            "2026-07-28": common | {"annotations", "title", "outputSchema", "_meta", "icons"},
        }
        project = self.new_project()
        project.tool("x", "echo", self.GOOD)
        client = self.new_client(project)
        for version, expected in visible.items():
            with self.subTest(version=version):
                is_stateless = version == support.STATELESS_VERSION
                if not is_stateless:
                    client.initialize(version)

                self.assertEqual(expected, set(listed(client, modern=is_stateless)["x"]))

    def test_the_title_reaches_clients_that_only_know_annotations(self):
        project = self.new_project()
        project.tool("x", "echo", {"title": "Shown"})
        client = self.new_client(project)
        client.initialize("2025-03-26")
        self.assertEqual({"title": "Shown"}, listed(client)["x"]["annotations"])
        client.initialize("2024-11-05")
        self.assertNotIn("annotations", listed(client)["x"])

    def test_one_odd_file_never_makes_the_list_unreadable_for_strict_clients(self):
        """A client that parses the list with types drops all of it when one member does not fit."""
        #
        rows = (
            {"inputSchema": {"type": "string"}},
            {"inputSchema": {"type": ["object", "null"]}},
            {"inputSchema": {"properties": []}},
            {"inputSchema": {"properties": {"a": True}}},
            {"inputSchema": {"properties": {"a": 5}}},
            {"inputSchema": {"required": "a"}},
            {"inputSchema": {"required": [5]}},
            {"inputSchema": {"$schema": 5}},
            {"outputSchema": {"properties": {"a": {}}}},
            {"outputSchema": {"type": "array"}},
            {"outputSchema": {"type": "object", "required": "a"}},
            {"annotations": {"title": 5}},
            {"annotations": {"readOnlyHint": "yes"}},
            {"icons": [{"src": "https://example.com/i.png", "sizes": "48x48"}]},
            {"icons": [{"src": "https://example.com/i.png", "mimeType": 5}]},
            {"execution": {"taskSupport": "sometimes"}},
        )
        missing = support.schemas_missing()
        if missing:
            raise support.not_here(missing)
        project = self.new_project()
        project.tool("good", "echo", self.GOOD)
        for number, meta in enumerate(rows):
            project.tool("t%02d" % number, "echo", meta)
        client = self.new_client(project)
        faults: dict[str, list[str]] = {}
        for version in support.VERSIONS:
            is_stateless = version == support.STATELESS_VERSION
            if not is_stateless:
                client.initialize(version)
            result = client.result("tools/list", {"limit": 200}, modern=is_stateless)
            self.assertIn("good", [tool["name"] for tool in result["tools"]])
            for tool in result["tools"]:
                message = {"jsonrpc": "2.0", "id": 0, "result": {**result, "tools": [tool]}}
                found = support.validate_against_schema(version, message, "tools/list")
                faults.setdefault(tool["name"], []).extend(found)
        client.close(check=False)  # the checker would only repeat what the subtests say
        self.assertEqual([], faults["good"])
        for number, meta in enumerate(rows):
            with self.subTest(meta=meta):
                self.assertEqual([], faults.get("t%02d" % number, []))

    def test_a_number_that_json_cannot_hold_does_not_hide_the_other_tools(self):
        project = self.new_project()
        project.tool("good", "echo")
        project.file("tools/x.sh", SCRIPT, 0o755)
        project.file("tools/x.meta.json", '{"inputSchema": {"properties": {"a": {"maximum": 1e999}}}}')
        client = self.new_client(project)

        self.assertIn("good", listed(client, modern=True))


class NamesTest(support.Case):
    # FS-11, PL-05, R-073
    ACCEPTED = ("a", "A-b_c.9", "0", "-", "_", "a" * 128, "a..b", "all", ".a", "...a")
    REFUSED = (
        "",
        ".",
        "..",
        "a/../b",
        "a" * 129,
        "a,b",
        "a b",
        " a",
        "a\n",
        "a\u200bb",
        "\u202ea",
        "раypal",
        "é",
        "a\x00",
        "e\u0301cho",
        "a*",
        "a\\b",
        "\U000e0041",
    )

    def test_names_are_1_to_128_plain_characters_and_not_only_dots(self):
        for name in self.ACCEPTED + self.REFUSED:
            with self.subTest(name=name):
                project = self.new_project()
                project.tool("keeps", "echo", {"description": "stays"})
                project.file("tools/x/tool.sh", SCRIPT, 0o755)
                project.json("tools/x/tool.meta.json", {"description": "d", "name": name})
                items, problems = scan(project)

                self.assertIn("keeps", items)
                self.assertEqual(name in self.ACCEPTED, name in items)
                self.assertEqual(0 if name in self.ACCEPTED else 1, len(problems), problems)
                if problems:
                    self.assertIn("x/tool.meta.json:3: the name ", problems[0])
                    self.assertIn("left out", problems[0])

    def test_the_default_name_comes_from_the_path(self):
        rows = (
            ("hello/tool.sh", "hello"),
            ("deep/er/tool.py", "er"),
            ("hello/greet.sh", "greet"),
            ("greet.py", "greet"),
            ("noext", "noext"),
            ("a.b.sh", "a.b"),
            ("tool.sh", "tool"),
            ("x/tools.sh", "tools"),
        )
        for path, expected in rows:
            with self.subTest(path=path):
                project = self.new_project()
                project.file("tools/" + path, SCRIPT, 0o755)

                self.assertEqual([expected], list(scan(project)[0]))

    def test_of_two_tools_with_one_name_the_first_path_wins_and_the_other_is_reported(self):
        # FS-12
        project = self.new_project()
        for place in ("b", "a", "c"):
            project.file("tools/%s/run.sh" % place, "#!/bin/sh\necho from %s\n" % place, 0o755)
            project.json("tools/%s/run.meta.json" % place, {"name": "same", "description": place})
        client = self.new_client(project)

        self.assertEqual("a", listed(client, modern=True)["same"]["description"])
        self.assertEqual("from a\n", client.text("same"))
        self.assertEqual(1, client.modern("tools/list")["result"]["_meta"]["mcpbash/total"])
        said = sorted(line for line in warnings(client, 2) if "already taken by a/run.sh" in line)
        self.assertEqual(["b/run.sh", "c/run.sh"], [line.split(":")[0] for line in said])

    # FS-10: how a directory may be called
    STRANGE = (
        b"a b",
        b"new\nline",
        b"$(touch pwned)",
        b"`touch pwned`",
        b"a;touch pwned;b",
        b"-rf",
        b"n" * 255,
        b"bad\xff\xfe",
        b"'\"",
        b"*",
        b"\\",
        b"tab\there",
        "é\u2028\u202e".encode(),
    )

    def test_strange_directory_names_are_listed_safely_or_left_out_and_run_nothing(self):
        # FS-10
        for named in (False, True):
            with self.subTest(named=named):
                project = self.new_project()
                project.tool("plain", "pwd")
                for number, directory in enumerate(self.STRANGE):
                    self._strange_tool(project, directory, "named%d" % number if named else "")
                client = self.new_client(project)
                client.initialize()
                tools = listed(client)
                expected = [
                    "named%d" % number for number, name in enumerate(self.STRANGE) if named and b"\xff" not in name
                ]
                # An undecorated directory whose name is a legal tool name is a tool like any other.
                self.assertEqual(sorted((expected or ["-rf"]) + ["plain"]), sorted(tools))
                for name in sorted(set(tools) - {"plain"}):
                    self.assertEqual("ran in %s\n" % project.root, client.text(name))
                self.assertEqual(project.root + "\n", client.text("plain"))
                self.assertEqual([], [path for path in support.listing(project.base) if path.endswith("pwned")])
                for line in client.stderr.split("\n")[:-1]:
                    self.assertTrue(line.startswith("mcp_bash: "), line)  # one line per record

    def _strange_tool(self, project: support.Project, directory: bytes, name: str) -> None:
        place = os.path.join(os.fsencode(project.path("tools")), directory)
        os.makedirs(place)
        files = {
            b"tool.sh": 'echo "ran in $PWD"\n',
            **({b"tool.meta.json": json.dumps({"name": name})} if name else {}),
        }
        for base, text in files.items():
            with open(os.path.join(place, base), "w", encoding="utf-8") as stream:
                stream.write("#!/bin/sh\n" + text if base == b"tool.sh" else text)
            os.chmod(os.path.join(place, base), 0o755 if base == b"tool.sh" else 0o644)


class InlineTest(support.Case):
    # text of the script -> description that is read, None when there is no header
    ROWS = (
        ('#!/bin/sh\n# mcp: {"description": "d"}\n', "d"),
        ('#!/bin/sh\n#mcp:{"description":"d"}\n', "d"),
        ('#!/bin/sh\n  ##  mcp:  {"description": "d"}  \n', "d"),
        ('#!/usr/bin/env node\n// mcp: {"description": "d"}\n', "d"),
        ('#!/usr/bin/env lua\n-- mcp: {"description": "d"}\n', "d"),
        ('#!/usr/bin/env sbcl\n;; mcp: {"description": "d"}\n', "d"),
        ('#!/usr/bin/env node\n/*\n * mcp: {"description": "d"}\n */\n', "d"),
        ('#!/bin/sh\r\n# mcp: {"description": "d"}\r\n', "d"),
        ("#!/bin/sh\n" + "#\n" * 8 + '# mcp: {"description": "d"}\n', "d"),
        ("#!/bin/sh\n" + "#\n" * 9 + '# mcp: {"description": "d"}\n', None),
        ('#!/bin/sh\n# mcp: {"description": "d"}\n# mcp: {"description": "second"}\n', "d"),
        ('#!/bin/sh\necho "# mcp: {}"\n', None),
        ('#!/bin/sh\n# see mcp: {"description": "d"}\n', None),
        ("#!/bin/sh\n# mcp: nothing\n", None),
        ('#!/bin/sh\n# mcp: {"description": "%s"}\n' % ("d" * 6000), "d" * 6000),
    )

    def test_the_comment_is_found_among_the_first_ten_lines(self):
        for text, expected in self.ROWS:
            with self.subTest(text=text[:60]):
                project = self.new_project()
                project.file("tools/x.sh", text, 0o755)
                items, problems = scan(project)

                self.assertEqual([], problems)
                self.assertEqual(expected or "", items["x"]["description"])

    def test_the_comment_has_the_same_fields_as_a_file(self):
        project = self.new_project()
        meta = {"name": "other", **FieldsTest.GOOD, "description": "one line"}
        project.file("tools/x.sh", "#!/bin/sh\n# mcp: %s\n" % json.dumps(meta), 0o755)

        self.assertEqual({**meta, "path": "x.sh"}, scan(project)[0]["other"])

    def test_a_broken_comment_is_a_problem_on_its_line(self):
        rows = (  # text after the marker, part of the message
            ('{"name": }', "is not JSON"),
            ('{"name": "x"} trailing', "is not JSON"),
            ('{"name": "a b"}', 'the name "a b" is not usable'),
            ('{"n": NaN}', "is not JSON"),
        )
        for text, words in rows:
            with self.subTest(text=text):
                project = self.new_project()
                project.file("tools/x.sh", "#!/bin/sh\n#\n# mcp: %s\necho\n" % text, 0o755)
                project.file("tools/good.sh", SCRIPT, 0o755)
                items, problems = scan(project)

                self.assertEqual(["good"], list(items))
                self.assertEqual(1, len(problems), problems)
                self.assertIn("x.sh:3: ", problems[0])
                self.assertIn(words, problems[0])
                self.assertIn("left out", problems[0])


class BrokenFilesTest(support.Case):
    # PR-15: what a metadata file may be like; each hides its own tool and nothing else
    def break_tools(self, project: support.Project) -> list[str]:
        """Make one tool for every way of breaking metadata; return their names."""
        texts = {
            "syntax": b'{\n  "name": "x",\n  oops\n}\n',
            "truncated": b'{"name": "x"',
            "empty": b"",
            "utf8": b'{"name":\n "\xff\xfe"}',
            "deep": b"[" * 10000 + b"]" * 10000,
            "deepobj": b'{"a":' * 10000 + b"1" + b"}" * 10000,
            "array": b'[{"name": "x"}]',
            "scalar": b"5",
            "nan": b'{"timeoutSecs": NaN}',
            "two": b'{"name": "x"} {"name": "y"}',
        }
        for name, data in texts.items():
            project.file("tools/%s.sh" % name, SCRIPT, 0o755)
            project.file("tools/%s.meta.json" % name, data)
        for name in ("huge", "pipe", "folder", "gone", "yaml"):
            project.file("tools/%s.sh" % name, SCRIPT, 0o755)
        with open(project.path("tools/huge.meta.json"), "wb") as stream:
            stream.truncate(HUGE)
        os.mkfifo(project.path("tools/pipe.meta.json"))
        os.mkdir(project.path("tools/folder.meta.json"))
        os.symlink("nowhere", project.path("tools/gone.meta.json"))
        project.file("tools/yaml.meta.yaml", "name: x\ndescription: &anchor a\n")
        return [*texts, "huge", "pipe", "folder", "gone", "yaml"]

    def test_each_broken_file_costs_its_own_tool_and_one_warning(self):
        # PR-15
        project = self.new_project()
        broken = self.break_tools(project)
        project.tool("good", "echo good", {"description": "fine"})
        client = self.new_client(project, env={"MCP_TOOLS_TTL": "0"})
        client.initialize()
        for _ in range(3):  # a second look does not repeat the warnings
            self.assertEqual(["good"], list(listed(client)))
        self.assertEqual("good\n", client.text("good"))
        client.close()
        said = warnings(client, len(broken))
        for name in broken:
            with self.subTest(name=name):
                self.assertEqual(
                    1, len([line for line in said if line.startswith((name + ".meta", name + ".sh"))]), said
                )
        self.assertEqual(len(broken), len(said), said)

    def test_a_broken_file_cannot_be_called_and_a_repaired_one_can(self):
        project = self.new_project()
        project.file("tools/x.sh", SCRIPT, 0o755)
        project.file("tools/x.meta.json", "{")
        client = self.new_client(project, env={"MCP_TOOLS_TTL": "0"})

        self.assertEqual(-32602, client.modern("tools/call", {"name": "x"})["error"]["code"])
        project.file("tools/x.meta.json", "{}")
        self.assertEqual("ran\n", client.text("x"))

    def test_problems_name_the_line(self):
        rows = (  # file, content, place
            ("x.meta.json", '{\n  "name": "x",\n  oops\n}\n', "x.meta.json:3: is not JSON"),
            ("x.meta.json", b'{\n\n"name": "\xff"}', "x.meta.json:3: is not valid UTF-8"),
            ("x.meta.json", "[1]", "x.meta.json:1: holds an array; expected an object"),
            ("x.meta.yaml", "name: x\n\ndescription: [a\n", "x.meta.yaml:"),
            ("x.meta.yaml", "- a\n", "x.meta.yaml:1: holds an array; expected an object"),
            ("x.meta.json", '{\n "timeoutSecs":\n  "soon"}', 'x.meta.json:2: "timeoutSecs" is "soon"; expected'),
            ("x.meta.yaml", "name: x\ntimeoutSecs: soon\n", 'x.meta.yaml:2: "timeoutSecs" is "soon"; expected'),
        )
        for name, content, expected in rows:
            with self.subTest(name=name, content=content):
                project = self.new_project()
                project.file("tools/x.sh", SCRIPT, 0o755)
                project.file("tools/" + name, content)
                _, problems = scan(project)

                self.assertEqual(1, len(problems), problems)
                self.assertTrue(problems[0].startswith("warning: " + expected), problems[0])

    def test_a_session_is_told_too(self):
        project = self.new_project()
        project.file("tools/x.sh", SCRIPT, 0o755)
        project.file("tools/x.meta.json", "\n{")
        client = self.new_client(project)
        client.initialize()
        note = client.expect({"method": "notifications/message", "params": {"logger": "mcp.tools"}})

        self.assertEqual("warning", note["params"]["level"])
        self.assertTrue(note["params"]["data"].startswith("x.meta.json:2: is not JSON"), note)

    def test_byte_order_marks_are_tolerated(self):
        project = self.new_project()
        for suffix, text in ((".json", '{"description": "d"}'), (".yaml", "description: d\n")):
            project.file("tools/%s.sh" % suffix[1:], SCRIPT, 0o755)
            project.file("tools/%s.meta%s" % (suffix[1:], suffix), b"\xef\xbb\xbf" + text.encode())
        items, problems = scan(project)

        self.assertEqual([], problems)
        self.assertEqual({"json": "d", "yaml": "d"}, {name: item["description"] for name, item in items.items()})


class InvisibleTextTest(support.Case):
    def test_descriptions_lose_terminal_sequences_and_invisible_characters_with_a_warning(self):
        # LG-03
        nasty = "\x1b[31mred\x1b[0m \x1b]0;title\x07zero\u200bwidth \u202ertl\u2066 "
        nasty += "\U000e0041tag\u00adsoft \x9b31mC1\x00end"
        clean = "red zerowidth rtl tagsoft 31mC1end"
        project = self.new_project()
        project.tool("x", "echo", {"description": nasty, "title": nasty})
        project.tool("ok", "echo", {"description": "plain\n\ttext", "title": "ok"})
        client = self.new_client(project)
        client.initialize()
        tools = listed(client)

        self.assertEqual((clean, clean), (tools["x"]["description"], tools["x"]["title"]))
        self.assertEqual("plain\n\ttext", tools["ok"]["description"])
        said = warnings(client, 2)
        self.assertEqual(2, len(said), said)
        for line in said:
            self.assertTrue(line.startswith("x/tool.meta.json:"), line)
            self.assertIn("invisible characters. They are removed.", line)


class ServerMetaTest(support.Case):
    META = {
        "name": "named",
        "version": "1.2.3",
        "title": "Titled",
        "description": "Described",
        "websiteUrl": "https://example.com",
        "icons": [{"src": "https://example.com/i.png"}],
    }

    def test_every_version_gets_the_fields_it_knows(self):
        # contract 6.4
        project = self.new_project()
        project.json("server.d/server.meta.json", self.META)
        visible = dict.fromkeys(support.VERSIONS[:2], ("name", "version"))
        visible["2025-06-18"] = ("name", "version", "title")
        visible["2025-11-25"] = visible["2026-07-28"] = tuple(self.META)
        client = self.new_client(project)
        for version, fields in visible.items():
            with self.subTest(version=version):
                if version == support.STATELESS_VERSION:
                    info = client.modern("server/discover")["result"]["_meta"][support.PREFIX + "serverInfo"]
                else:
                    info = client.initialize(version)["serverInfo"]

                self.assertEqual({field: self.META[field] for field in fields}, info)

    def test_defaults_come_from_the_directory_and_its_version_files(self):
        project = self.new_project()
        root = project.path("my-cool_server")
        os.mkdir(root)
        place = mcp_bash.Project(root, mcp_bash.Settings({}))
        expected = {"name": "my-cool_server", "version": "0.0.0", "title": "My Cool Server"}
        self.assertEqual(expected, place.identity(Recorder(), {}))
        project.json("my-cool_server/package.json", {"version": "3.1.4"})
        self.assertEqual("3.1.4", place.identity(Recorder(), {})["version"])
        project.file("my-cool_server/VERSION", "2.7.1\n")
        self.assertEqual("2.7.1", place.identity(Recorder(), {})["version"])

    def test_variables_of_the_operator_win(self):
        project = self.new_project()
        project.json("server.d/server.meta.json", self.META)
        environ = {
            "MCPBASH_SERVER_" + name: "env" for name in ("NAME", "VERSION", "TITLE", "DESCRIPTION", "WEBSITE_URL")
        }
        info, _ = identity(project, environ)

        self.assertEqual({**dict.fromkeys(self.META, "env"), "icons": self.META["icons"]}, info)

    def test_a_field_of_the_wrong_type_is_the_default(self):
        project = self.new_project()
        defaults, _ = identity(project)
        for field in self.META:
            for value in (5, True, [], {}, [5, {"src": 5}, {"src": "http://example.com/i.png"}], None, ""):
                if field != "icons" and isinstance(value, str) and value:
                    continue
                with self.subTest(field=field, value=value):
                    project.json("server.d/server.meta.json", {field: value})

                    self.assertEqual(defaults, identity(project)[0])

    def test_a_file_that_cannot_be_read_gives_defaults_and_one_warning_with_its_line(self):
        rows = (
            (b'{\n "name": oops}', ":2: is not JSON"),
            (b"[]", ":1: holds an array"),
            (b"\n\xff", ":2: is not valid UTF-8"),
            (b" " * (2 << 20), "larger than"),
        )
        for data, words in rows:
            with self.subTest(data=data[:20]):
                project = self.new_project()
                project.file("server.d/server.meta.json", data)
                info, log = identity(project)

                self.assertEqual("project", info["name"])
                self.assertEqual(1, len(log), log)
                self.assertIn("server.meta.json", log[0])
                self.assertIn(words, log[0])
                self.assertIn("Defaults are used.", log[0])

    def test_odd_metadata_never_keeps_a_client_out_nor_a_tool_from_running(self):
        rows = (
            '{"icons": 5}',
            '{"icons": true}',
            '{"name": "\\ud800"}',
            '{"description": "a\\u0000b"}',
            "{",
            '{"icons": [{"src": "https://example.com/i.png", "sizes": "48x48"}]}',
            '{"version": "1\\n2"}',
        )
        for text in rows:
            with self.subTest(text=text):
                project = self.new_project()
                project.tool("x", "echo ran")
                project.file("server.d/server.meta.json", text)
                with project.client() as client:
                    client.initialize()

                    self.assertEqual("ran\n", client.text("x"))

    def test_instructions_are_the_file_as_it_stands(self):
        project = self.new_project()
        text = 'Line one\n\n"quoted" \\ back\\nslash\n\tünï 🎉\n'
        project.file("server.d/server.instructions.md", text)
        client = self.new_client(project, env={"MCPBASH_SERVER_INSTRUCTIONS": "from the variable"})

        self.assertEqual(text.rstrip("\n"), client.initialize()["instructions"])
        self.assertEqual(text.rstrip("\n"), client.modern("server/discover")["result"]["instructions"])
        os.unlink(project.path("server.d/server.instructions.md"))
        self.assertEqual("from the variable", client.initialize()["instructions"])

    def test_without_instructions_there_is_no_such_member(self):
        client = self.new_client(self.new_project())

        self.assertNotIn("instructions", client.initialize())


if __name__ == "__main__":
    unittest.main()
