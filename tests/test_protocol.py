#!/usr/bin/env python3
"""Room 12, the protocol tables: what each revision has, and that nothing else is ever sent in it."""
from __future__ import annotations

import copy
import json
import os
import sys
import unittest
from typing import Any, Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support
from support import HANDSHAKE_VERSIONS, PREFIX, STATELESS_VERSION, VERSIONS

sys.path.append(support.ROOT)

import mcp_bash
from mcp_bash import V1, V2, V3, V4, V5

PIXEL = "iVBORw0KGgo="
ICON = {"src": "https://a.example/i.png", "mimeType": "image/png", "sizes": ["48x48"]}


def annotation_fields(types: dict) -> dict:
    """Return the fields of an annotation of a content block."""
    return (types.get("Annotations") or types["Annotated"]["properties"]["annotations"])["properties"]


def progress_fields(types: dict) -> dict:
    """Return the fields of a progress notification."""
    named = types.get("ProgressNotificationParams") or types["ProgressNotification"]["properties"]["params"]
    return named["properties"]


def has_field(types: dict, field: str, *names: str) -> bool:
    """Tell whether each of these types has a field."""
    return all(field in types[name]["properties"] for name in names)


# feature of ours -> how the official schema of a version shows that it has it
OFFICIAL: dict[str, Callable[[dict], bool]] = {
    "tool annotations": lambda types: has_field(types, "annotations", "Tool"),
    "progress message": lambda types: "message" in progress_fields(types),
    "audio": lambda types: "AudioContent" in types,
    "title": lambda types: has_field(types, "title", "Tool", "Implementation"),
    "item _meta": lambda types: has_field(types, "_meta", "Tool", "TextContent"),
    "lastModified": lambda types: "lastModified" in annotation_fields(types),
    "resource_link": lambda types: "ResourceLink" in types,
    "structuredContent": lambda types: has_field(types, "structuredContent", "CallToolResult")
    and has_field(types, "outputSchema", "Tool"),
    "icons": lambda types: has_field(types, "icons", "Tool", "Implementation"),
    "server description": lambda types: has_field(types, "description", "Implementation")
    and has_field(types, "websiteUrl", "Implementation"),
    "execution": lambda types: has_field(types, "execution", "Tool"),
    "any structuredContent": lambda types: has_field(types, "structuredContent", "CallToolResult")
    and "type" not in types["CallToolResult"]["properties"]["structuredContent"],
    "any schema": lambda types: "properties" not in types["Tool"]["properties"]["inputSchema"]["properties"],
    "result envelope": lambda types: has_field(types, "resultType", "CallToolResult"),
}

# A registry item with everything a tool may say, and with what never leaves the server.
ITEM = {
    "name": "all",
    "title": "All of it",
    "description": "has every field",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    "outputSchema": {"type": "object", "properties": {"b": {"type": "number"}}},
    "annotations": {"readOnlyHint": True},
    "icons": [ICON],
    "execution": {"taskSupport": "forbidden"},
    "_meta": {"x.example/y": 1},
    "path": "all/tool.sh",
    "timeoutSecs": 5,
    "detach": True,
}
TOOL_FIELDS = {
    V1: {"name", "description", "inputSchema"},
    V2: {"name", "description", "inputSchema", "annotations"},
    V3: {"name", "description", "inputSchema", "annotations", "title", "outputSchema", "_meta"},
    V4: {"name", "description", "inputSchema", "annotations", "title", "outputSchema", "_meta", "icons", "execution"},
    V5: {"name", "description", "inputSchema", "annotations", "title", "outputSchema", "_meta", "icons"},
}

NOTES = {"audience": ["user"], "priority": 0.5}
DATED = {**NOTES, "lastModified": "2025-01-12T15:00:58Z"}
TEXT = {"type": "text", "text": "t"}
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}
LINK = {"type": "resource_link", "uri": "file:///x", "name": "x"}
EMBEDDED = {"type": "resource", "resource": {"uri": "file:///x", "mimeType": "text/plain", "text": "t"}}
BLOB = {"uri": "data:audio/wav", "mimeType": "audio/wav", "blob": "UklGRg=="}

# block -> the block in each of the five versions
BLOCKS: tuple[tuple[dict, tuple], ...] = (
    (TEXT, (TEXT,) * 5),
    (IMAGE, (IMAGE,) * 5),
    (EMBEDDED, (EMBEDDED,) * 5),
    (AUDIO, ({"type": "resource", "resource": BLOB}, AUDIO, AUDIO, AUDIO, AUDIO)),
    (LINK, ({"type": "text", "text": "x: file:///x"}, {"type": "text", "text": "x: file:///x"}, LINK, LINK, LINK)),
    ({**TEXT, "annotations": DATED}, ({**TEXT, "annotations": NOTES},) * 2 + ({**TEXT, "annotations": DATED},) * 3),
    ({**IMAGE, "_meta": {"a": 1}}, (IMAGE,) * 2 + ({**IMAGE, "_meta": {"a": 1}},) * 3),
    ({**LINK, "icons": [ICON]}, (None, None, LINK, {**LINK, "icons": [ICON]}, {**LINK, "icons": [ICON]})),
    (
        {"type": "resource", "resource": {**EMBEDDED["resource"], "_meta": {"a": 1}}},
        (EMBEDDED,) * 2 + ({"type": "resource", "resource": {**EMBEDDED["resource"], "_meta": {"a": 1}}},) * 3,
    ),
)


def types_of(version: str) -> dict:
    """Return the official types of a version; skip without them."""
    if support.schemas_missing():
        raise support.not_here(support.schemas_missing())
    return support.definitions(version)


def faults(version: str, names: tuple, value: Any) -> list[str]:
    """Return how a value departs from all of the official types of these names."""
    known = tuple(name for name in names if name in types_of(version))
    return [error.message[:200] for error in support.schema_validator(version, known).iter_errors(value)][:3]


CONTENT = ("ContentBlock", "TextContent", "ImageContent", "AudioContent", "EmbeddedResource", "ResourceLink")


# ======================================================================================================================
# The tables
# ======================================================================================================================


class TableTest(unittest.TestCase):
    def test_the_versions_are_the_official_ones(self):
        self.assertEqual(VERSIONS, mcp_bash.VERSIONS)
        self.assertEqual(HANDSHAKE_VERSIONS, mcp_bash.HANDSHAKE_VERSIONS)
        self.assertEqual((STATELESS_VERSION,), mcp_bash.STATELESS_VERSIONS)
        self.assertEqual(sorted(VERSIONS), list(VERSIONS))

    def test_a_version_has_a_feature_when_its_schema_has_it(self):
        self.assertEqual(set(OFFICIAL), set(mcp_bash.FEATURES), "a feature without a row here")
        for version in VERSIONS:
            types = types_of(version)
            for feature, is_there in OFFICIAL.items():
                with self.subTest(version=version, feature=feature):
                    self.assertEqual(is_there(types), mcp_bash.has(version, feature))

    def test_a_method_exists_in_the_versions_whose_schema_has_it(self):
        own = {"initialized", "shutdown", "exit"}  # kept for older clients, in no schema
        for version in VERSIONS:
            types_of(version)
            official = support.schema_methods(version)
            for name, row in mcp_bash.METHODS.items():
                with self.subTest(version=version, method=name):
                    is_served = mcp_bash.in_range(version, row.since, row.until)

                    self.assertEqual(is_served and name not in own, name in official)
        self.assertLess(own, set(mcp_bash.METHODS))

    def test_a_tool_has_the_fields_its_version_knows(self):
        for version in VERSIONS:
            with self.subTest(version=version):
                self.assertEqual(set(types_of(version)["Tool"]["properties"]), TOOL_FIELDS[version])

    def test_every_field_of_a_tool_is_either_sent_somewhere_or_ours(self):
        sent = set(mcp_bash.TOOL_WIRE_FIELDS)

        self.assertEqual(set().union(*TOOL_FIELDS.values()), sent)
        self.assertTrue(set(mcp_bash.TOOL_WIRE_FIELDS.values()) - {None} <= set(mcp_bash.FEATURES))


class DowngradeTest(unittest.TestCase):
    def test_a_tool_is_shown_with_the_fields_of_the_version(self):
        before = copy.deepcopy(ITEM)
        for version in VERSIONS:
            with self.subTest(version=version):
                tool = mcp_bash.tool_for(version, ITEM)

                self.assertEqual(TOOL_FIELDS[version], set(tool))
                self.assertEqual(ITEM["inputSchema"], tool["inputSchema"])
                self.assertEqual([], faults(version, ("Tool",), tool))
        self.assertEqual(before, ITEM, "the item itself stays as it is")

    def test_a_title_moves_into_the_annotations_where_there_is_no_field_for_it(self):
        bare = {key: ITEM[key] for key in ("name", "title", "description", "inputSchema")}
        own = {**bare, "annotations": {"title": "Other", "readOnlyHint": True}}

        self.assertEqual({"title": "All of it"}, mcp_bash.tool_for(V2, bare)["annotations"])
        self.assertEqual(own["annotations"], mcp_bash.tool_for(V2, own)["annotations"])
        self.assertNotIn("annotations", mcp_bash.tool_for(V1, bare))
        self.assertNotIn("annotations", mcp_bash.tool_for(V3, bare))

    def test_schemas_are_shown_in_a_shape_the_version_allows(self):
        schemas = (
            {"type": "object"},
            {"type": "object", "oneOf": [{"required": ["a"]}]},
            {"type": "object", "$defs": {"x": {}}, "properties": {"a": {"$ref": "#/$defs/x"}}},
        )
        others: tuple[Any, ...] = ({"type": "array"}, {"type": ["object", "null"]}, {"oneOf": [{"type": "object"}]}, {})
        for version in VERSIONS:
            for schema in schemas:
                with self.subTest(version=version, inputSchema=schema):
                    tool = mcp_bash.tool_for(version, {**ITEM, "inputSchema": schema})

                    self.assertEqual([], faults(version, ("Tool",), tool))
                    self.assertEqual(schema, {key: tool["inputSchema"][key] for key in schema}, "nothing is lost")
            for schema in (*schemas, *others):
                with self.subTest(version=version, outputSchema=schema):
                    tool = mcp_bash.tool_for(version, {**ITEM, "outputSchema": schema})

                    self.assertEqual([], faults(version, ("Tool",), tool))
                    if version == V5:
                        self.assertEqual(schema, tool["outputSchema"], "the newest version shows the author's own")

    def test_a_server_is_shown_with_the_fields_of_the_version(self):
        identity = dict(name="n", version="1", title="T", description="d", websiteUrl="https://x", icons=[ICON])
        for version in VERSIONS:
            with self.subTest(version=version):
                info = mcp_bash.server_info_for(version, identity)

                self.assertEqual(set(types_of(version)["Implementation"]["properties"]), set(info))
                self.assertEqual([], faults(version, ("Implementation",), info))

    def test_a_block_becomes_what_the_version_can_show(self):
        for block, shapes in BLOCKS:
            for version, expected in zip(VERSIONS, shapes):
                with self.subTest(version=version, block=block):
                    before = copy.deepcopy(block)
                    shown = mcp_bash.block_for(version, block)

                    if expected is not None:
                        self.assertEqual(expected, shown)
                    self.assertEqual([], faults(version, CONTENT, shown))
                    self.assertEqual(before, block)

    def test_structure_is_sent_where_it_may_be(self):
        table = (
            ({"a": 1}, (V3, V4, V5)),
            ({}, (V3, V4, V5)),
            ([1], (V5,)),
            ("text", (V5,)),
            (5, (V5,)),
            (True, (V5,)),
            (None, (V5,)),
        )
        for value, versions in table:
            for version in VERSIONS:
                with self.subTest(version=version, value=value):
                    result = {"content": [TEXT], "isError": False, "structuredContent": value}
                    shown = mcp_bash.call_result_for(version, result)

                    self.assertEqual(version in versions, "structuredContent" in shown)
                    self.assertEqual(value, shown.get("structuredContent", value))
                    self.assertIn("structuredContent", result)

    def test_only_the_newest_version_has_an_envelope(self):
        identity = {"name": "n", "version": "1"}
        for version in HANDSHAKE_VERSIONS:
            self.assertEqual({}, mcp_bash.envelope_for(version, identity, 1000))
        meta = {PREFIX + "serverInfo": identity}

        self.assertEqual({"resultType": "complete", "_meta": meta}, mcp_bash.envelope_for(V5, identity))
        expected = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": meta}
        self.assertEqual(expected, mcp_bash.envelope_for(V5, identity, 0))


# ======================================================================================================================
# Whole sessions
# ======================================================================================================================

OWN_RESULT = {
    "content": [block for block, _ in BLOCKS],
    "isError": False,
    "structuredContent": {"k": 1},
    "_meta": {"x.example/m": 1},
}
SAY = "cat <<'END'\n%s\nEND\n"

# tool -> script, metadata
TOOLS: dict[str, tuple[str, dict]] = {
    "text": ("echo plain", {**ITEM, "name": "text"}),
    "object": ("""echo '{"b": 1}'""", {"outputSchema": ITEM["outputSchema"]}),
    "array": ("echo '[1, 2]'", {"outputSchema": {"type": "array"}, "title": "An array"}),
    "scalar": ("echo 5", {}),
    "blocks": (SAY % json.dumps(OWN_RESULT), {}),
    "empty": (SAY % '{"content": [], "isError": false}', {}),
    "fails": ("echo why >&2; exit 3", {}),
    "refuses": ("""echo '{"code": -31050, "message": "no", "data": {"x": 1}}'; exit 1""", {}),
    "slow": ("exec sleep 600", {"timeoutSecs": 0.2, "timeoutHint": "ask for less"}),
    "large": ("head -c 200000 /dev/zero | tr '\\0' x", {}),
    "speaks": (
        r"""printf 'progress\t%s\t2\thalf\0' 1 >&7; printf 'log\tinfo\tmcp.x\tsaid\0' >&7
printf 'logjson\terror\tmcp.x\t{"a":[1]}\0' >&7; printf 'progress\t2\t\t\0' >&7""",
        {},
    ),
}
ENV = {"MCPBASH_MAX_TOOL_OUTPUT_SIZE": "100000", "MCPBASH_PAGE_SIZE": "4"}


class WholeSessionTest(support.Case):
    """Everything a server says in one version, against the official types of that version. R-059 to R-071."""

    @classmethod
    def setUpClass(cls):
        types_of(V1)  # skips all of it when the schemas are not there
        cls.sessions = {}
        with support.Project() as project:
            for name, (script, meta) in TOOLS.items():
                project.tool(name, script, {"description": "d", **meta})
            project.json("server.d/server.meta.json", {"title": "T", "description": "d", "icons": [ICON]})
            project.file("server.d/server.instructions.md", "use it\nwell\n")
            for version in VERSIONS:
                with project.client(env=ENV) as client:
                    cls.converse(client, version)
                    project.file("tools/new.sh", "#!/bin/sh\n", 0o755)
                    client.expect({"method": "notifications/tools/list_changed"})
                    if version == V5:
                        client.end_input()
                    else:
                        client.result("shutdown")
                        client.result("exit")
                    client.wait()
                os.unlink(project.path("tools/new.sh"))
                cls.sessions[version] = client

    @classmethod
    def converse(cls, client: support.Client, version: str) -> None:
        """Have a server say everything it can say in a version."""
        modern = version == V5
        if modern:
            client.result("server/discover", modern=True)
            wanted = {"notifications": {"toolsListChanged": True}}
            client.send_request("subscriptions/listen", wanted, id="s", modern=True)
        else:
            client.initialize(version)
            client.result("ping")
            client.result("logging/setLevel", {"level": "debug"})
        cursor: dict = {}
        while True:
            page = client.result("tools/list", cursor, modern=modern)
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        level = "debug" if modern else None
        for name in TOOLS:
            client.request("tools/call", {"name": name}, modern=modern, token=name, log_level=level)
        for params in ({"name": "absent"}, {}, {"name": "text", "arguments": []}):
            client.error("tools/call", params, modern=modern)
        client.error("tools/list", {"cursor": "x"}, modern=modern)
        client.error("no/such", modern=modern)
        client.error("tools/list", modern=True, version="2031-01-01")
        client.send_raw(b"junk\n")
        if version == V2:
            client.send([{"jsonrpc": "2.0", "id": name, "method": name} for name in ("ping", "tools/list")])
            client.response("tools/list")
        client.fence()

    def messages(self, version: str) -> list[tuple[dict, str, str]]:
        """Return what was said in a session: message, the version it is in, the method it answers."""
        checker = self.sessions[version].check(complete=True)
        self.assertEqual([], checker.violations)
        return [
            (message, served if served in VERSIONS else V5, request.message["method"] if request else "")
            for served, message, request in checker.messages
        ]

    def results(self, version: str, method: str = "") -> list[dict]:
        """Return the results in a session that belong to its own version, of one method or of all."""
        return [
            message["result"]
            for message, served, answers in self.messages(version)
            if "result" in message and served == version and method in ("", answers)
        ]

    def test_every_message_has_the_official_shape(self):  # R-069, R-071, R-001, R-029
        for version in VERSIONS:
            messages = self.messages(version)
            self.assertGreater(len(messages), 20)
            for message, served, method in messages:
                with self.subTest(version=version, method=method or message.get("method")):
                    self.assertEqual([], support.validate_against_schema(served or version, message, method))

    def test_the_shapes_can_be_told_apart(self):  # the counterpart: a message that is wrong is noticed
        for version in VERSIONS:
            for message, served, method in self.messages(version):
                if method == "tools/call" and "result" in message and served == version:
                    broken = {**message["result"], "content": [{"type": "text"}]}

                    self.assertEqual([], faults(version, ("CallToolResult",), message["result"]))
                    self.assertNotEqual([], faults(version, ("CallToolResult",), broken))

    def test_a_session_says_all_the_kinds_of_things(self):
        for version in VERSIONS:
            with self.subTest(version=version):
                said = {message.get("method", "") for message, _, _ in self.messages(version)}
                codes = {message["error"]["code"] for message, _, _ in self.messages(version) if "error" in message}

                for name in ("progress", "message", "tools/list_changed"):
                    self.assertIn("notifications/" + name, said)
                self.assertLessEqual({-32700, -32601, -32602, -31050, -32022}, codes)
                self.assertEqual(version == V5, "notifications/subscriptions/acknowledged" in said)

    def test_nothing_is_sent_that_the_version_does_not_know(self):
        for version in VERSIONS:
            types = types_of(version)
            for message, served, method in self.messages(version):
                if "result" not in message or served != version or not method:
                    continue
                names = support.result_types(version, method)
                known = set().union(*(types[name]["properties"] for name in names if "properties" in types[name]))
                with self.subTest(version=version, method=method):
                    self.assertEqual(set(), set(message["result"]) - (known | {"_meta"}))
                    for tool in message["result"].get("tools", []):
                        self.assertEqual(set(), set(tool) - TOOL_FIELDS[version])

    def test_progress_has_words_from_the_second_version_on(self):
        for version in VERSIONS:
            with self.subTest(version=version):
                told = [each["params"] for each in self.sessions[version].notifications("notifications/progress")]

                self.assertEqual([(1, 2), (2, None)], [(params["progress"], params.get("total")) for params in told])
                words = [params["message"] for params in told if "message" in params]
                self.assertEqual(["half"] if version != V1 else [], words)

    def test_every_result_of_the_newest_version_has_its_envelope(self):  # R-059, R-060
        results = self.results(V5)
        self.assertGreater(len(results), 10)
        for result in results:
            self.assertEqual("complete", result["resultType"])
            self.assertLessEqual({"name", "version"}, set(result["_meta"][PREFIX + "serverInfo"]))
        self.assertEqual(1, len(self.results(V5, "subscriptions/listen")), "the end of a stream too")

    def test_no_result_of_an_older_version_has(self):  # R-061
        for version in HANDSHAKE_VERSIONS:
            results = self.results(version)
            self.assertGreater(len(results), 10)
            for result in results:
                self.assertEqual(set(), set(result) & {"resultType", "ttlMs", "cacheScope"})
                self.assertNotIn(PREFIX, json.dumps(result.get("_meta", {})))

    def test_what_may_be_kept_says_for_how_long(self):  # R-062, R-064, R-065
        for method in ("server/discover", "tools/list"):
            scopes = set()
            for result in self.results(V5, method):
                self.assertTrue(type(result["ttlMs"]) is int and result["ttlMs"] >= 0)
                scopes.add(result["cacheScope"])
            self.assertEqual({"private"}, scopes)
        self.assertGreater(len(self.results(V5, "tools/list")), 2, "more than one page")
        for result in self.results(V5, "tools/call"):
            self.assertEqual(set(), {"ttlMs", "cacheScope"} & set(result))

    def test_discover_says_what_there_is(self):  # R-065, R-066, R-068
        discovered = self.results(V5, "server/discover")[0]

        self.assertEqual(list(reversed(VERSIONS)), discovered["supportedVersions"])
        self.assertEqual({"tools": {"listChanged": True}, "logging": {}}, discovered["capabilities"])
        self.assertEqual("use it\nwell", discovered["instructions"])
        self.assertNotIn("serverInfo", discovered)

    def test_initialize_says_what_there_is(self):  # R-068, R-069
        for version in HANDSHAKE_VERSIONS:
            with self.subTest(version=version):
                (result,) = self.results(version, "initialize")

                self.assertEqual({"tools": {"listChanged": True}, "logging": {}}, result["capabilities"])
                self.assertEqual("use it\nwell", result["instructions"])

    def test_empty_results_are_empty(self):  # R-070
        for version in HANDSHAKE_VERSIONS:
            for method in ("ping", "logging/setLevel", "shutdown", "exit"):
                with self.subTest(version=version, method=method):
                    self.assertEqual({}, self.results(version, method)[0])

    def test_no_request_is_ever_sent_to_the_client(self):  # R-051, R-054
        for version in VERSIONS:
            self.assertEqual([], [each for each, _, _ in self.messages(version) if "method" in each and "id" in each])

    def test_own_keys_in_meta_obey_the_grammar(self):  # R-201
        for version in VERSIONS:
            keys = {key for result in self.results(version) for key in result.get("_meta", {})}
            for key in keys:
                with self.subTest(version=version, key=key):
                    self.assertRegex(key, r"\A([A-Za-z][\w-]*(\.[A-Za-z][\w-]*)*/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?\Z")


class OfferTest(support.Case):
    """What is advertised is served, and nothing else is. R-067"""

    NOT_OFFERED = (
        "resources/list resources/read resources/templates/list resources/subscribe resources/unsubscribe prompts/list"
        " prompts/get completion/complete tasks/get tasks/list tasks/result tasks/cancel tasks/update roots/list"
        " sampling/createMessage elicitation/create notifications/initialized notifications/cancelled rpc.discover"
    ).split()

    def test_methods_behind_capabilities_that_are_not_offered_do_not_exist(self):
        client = self.new_client(self.new_project())
        for version in VERSIONS:
            if version != V5:
                client.initialize(version)
            for method in self.NOT_OFFERED:
                with self.subTest(version=version, method=method):
                    params = {"uri": "file:///x", "name": "x", "taskId": "x"}

                    self.assertEqual(-32601, client.error(method, params, modern=version == V5)["code"])

    def test_methods_behind_capabilities_that_are_offered_exist(self):
        project = self.new_project()
        project.tool("hello", "echo hi")
        client = self.new_client(project)
        for version in VERSIONS:
            with self.subTest(version=version):
                if version != V5:
                    client.initialize(version)
                    client.result("logging/setLevel", {"level": "info"})
                client.result("tools/list", modern=version == V5)

                self.assertEqual("hi\n", client.text("hello", modern=version == V5))

    def test_a_method_of_another_version_does_not_exist(self):
        client = self.new_client(self.new_project())
        for version in HANDSHAKE_VERSIONS:
            client.initialize(version)
            for method in ("server/discover", "subscriptions/listen"):
                with self.subTest(version=version, method=method):
                    # Without its envelope it cannot be a request of the newest version, and no other has it.
                    self.assertIn(client.error(method, {"notifications": {}})["code"], (-32601, -32602))


# R-204: code a tool fails with -> code in a session, code in the stateless era, where -32000 to -32099 are not its own
ERROR_CODES = (
    (4001, 4001, 4001),
    (-31050, -31050, -31050),
    (-32602, -32602, -32602),
    (-32000, -32000, -32603),
    (-32002, -32002, -32603),
    (-32021, -32021, -32603),
    (-32099, -32099, -32603),
    (-32100, -32100, -32100),
)


class ErrorCodeTest(support.Case):
    def test_a_tool_cannot_use_the_codes_of_the_newest_version(self):
        project = self.new_project()
        by_output = r"""printf '{"code": %s, "message": "no"}' "${MCP_TOOL_ARGS_JSON//[!0-9-]/}"; exit 1"""
        by_record = r"""printf 'fail\t%s\t\tno\0' "${MCP_TOOL_ARGS_JSON//[!0-9-]/}" >&"$MCP_CHANNEL_FD" """
        project.tool("output", by_output)
        project.tool("record", by_record)
        client = self.new_client(project)
        client.initialize()
        for tool in ("output", "record"):
            for code, old, new in ERROR_CODES:
                with self.subTest(tool=tool, code=code):
                    params = {"name": tool, "arguments": {"c": code}}
                    codes = [client.error("tools/call", params, modern=modern)["code"] for modern in (False, True)]

                    self.assertEqual([old, new], codes)


# What an author may get wrong. One such tool must not make the list, or the result, unreadable for strict clients.
BAD_FIELDS = (
    {"inputSchema": {"type": "array"}},
    {"inputSchema": {"type": ["object", "null"]}},
    {"inputSchema": {"type": "object", "properties": []}},
    {"inputSchema": {"type": "object", "required": "a"}},
    {"outputSchema": {}},
    {"outputSchema": {"type": ["object", "null"]}},
    {"outputSchema": {"type": "object", "properties": 5}},
    {"annotations": {"title": 5}},
    {"annotations": {"readOnlyHint": "yes"}},
    {"icons": [{"src": "https://a.example/i.png", "sizes": "48x48"}]},
    {"icons": [{"src": "https://a.example/i.png", "mimeType": 5}]},
    {"execution": {"taskSupport": "maybe"}},
)
BAD_BLOCKS = (
    {"type": "video", "data": "x"},
    {"type": "text"},
    {"type": "text", "text": 5},
    {"type": "text", "text": None},
    {"type": "image", "data": PIXEL},
    {"type": "image", "mimeType": "image/png"},
    {"type": "audio"},
    {"type": "audio", "data": 5, "mimeType": []},
    {"type": "resource"},
    {"type": "resource", "resource": {"text": "no uri"}},
    {"type": "resource", "resource": "x"},
    {"type": "resource_link", "uri": "file:///x"},
    {"type": "resource_link", "name": "x"},
    {"type": "text", "text": "t", "annotations": "none"},
    {"type": "text", "text": "t", "annotations": {"priority": "high"}},
    {"type": "text", "text": "t", "_meta": 5},
)


class MistakesTest(support.Case):
    def faulty(self, project: support.Project, calls: list[str]) -> dict[str, list[str]]:
        """Return the tools whose list entry or result departs from the official types, each with the versions."""
        found: dict[str, list[str]] = {}
        with project.client() as client:
            for version in VERSIONS:
                modern = version == V5
                if not modern:
                    client.initialize(version)
                listed = client.result("tools/list", {"limit": 200}, modern=modern)["tools"]
                names = [tool["name"] for tool in listed if faults(version, ("Tool",), tool)]
                for name in calls:
                    result = client.request("tools/call", {"name": name}, modern=modern).get("result")
                    if result is not None and faults(version, ("CallToolResult",), result):
                        names.append(name)
                for name in names:
                    found.setdefault(name, []).append(version)
            client.close(check=False)  # it would complain of all of them at once
        return found

    def assert_readable(self, mistakes: tuple, found: dict[str, list[str]]) -> None:
        """Fail with the mistakes that reached the client, and the versions they did it in."""
        self.assertNotIn("good", found)
        rows = sorted((int(name), versions) for name, versions in found.items())
        if rows:
            lines = ["%s in %s" % (json.dumps(mistakes[number]), ", ".join(versions)) for number, versions in rows]
            self.fail("what strict clients cannot read is sent to them:\n" + "\n".join(lines))

    def test_a_wrong_field_of_one_tool_does_not_spoil_the_list(self):  # R-071, R-072
        types_of(V1)
        with support.Project() as project:
            project.tool("good", "echo hi", {"description": "d"})
            for number, fields in enumerate(BAD_FIELDS):
                project.tool(str(number), "echo hi", {"description": "d", **fields})
            found = self.faulty(project, ["good"])

        self.assert_readable(BAD_FIELDS, found)

    def test_a_wrong_block_of_a_tool_does_not_spoil_its_result(self):  # R-083
        types_of(V1)
        with support.Project() as project:
            project.tool("good", SAY % json.dumps({"content": [TEXT], "isError": False}))
            for number, block in enumerate(BAD_BLOCKS):
                project.tool(str(number), SAY % json.dumps({"content": [TEXT, block], "isError": False}))
            found = self.faulty(project, ["good", *(str(number) for number in range(len(BAD_BLOCKS)))])

        self.assert_readable(BAD_BLOCKS, found)


if __name__ == "__main__":
    unittest.main()
