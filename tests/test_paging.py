#!/usr/bin/env python3
"""Room 9, pagination: opaque cursors over a snapshot, good for this very list and nothing else."""
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
HASH = "0123456789abcdef" * 4


def project_with(case: support.Case, count: int) -> support.Project:
    """Return a project with `count` tools called t000, t001 and so on."""
    project = case.new_project()
    for number in range(count):
        project.file("tools/t%03d" % number, SCRIPT, 0o755)
    return project


def names(result: dict) -> list[str]:
    """Return the names on a page."""
    return [tool["name"] for tool in result["tools"]]


def all_pages(client: support.Client, **params) -> list[dict]:
    """Follow the cursors from the first page to the last."""
    pages = [client.modern("tools/list", params)["result"]]
    while "nextCursor" in pages[-1] and len(pages) < 2000:
        pages.append(client.result("tools/list", {**params, "cursor": pages[-1]["nextCursor"]}, modern=True))
    return pages


def opened(cursor: str) -> dict:
    """Return what is inside a cursor."""
    return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))


def closed(payload) -> str:
    """Return a payload as a cursor, however wrong it is."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


class CursorTest(unittest.TestCase):
    def test_every_offset_comes_back(self):
        """The text of a cursor has any length; none may depend on how base64 pads it."""
        for offset in [*range(1, 1100), 9999, 10000, 99999, 100000]:
            snapshot = mcp_bash.Snapshot([])
            snapshot.records = range(200000)
            snapshot._hash = HASH
            cursor = mcp_bash.encode_cursor("tools", offset, HASH)

            self.assertRegex(cursor, r"\A[A-Za-z0-9_-]+\Z")
            self.assertEqual(offset, mcp_bash.decode_cursor(cursor, "tools", snapshot))

    def test_every_length_of_collection_comes_back(self):
        for length in range(1, 20):
            snapshot = mcp_bash.Snapshot([])
            snapshot.records = range(10)
            snapshot._hash = HASH
            name = "c" * length

            self.assertEqual(3, mcp_bash.decode_cursor(mcp_bash.encode_cursor(name, 3, HASH), name, snapshot))


class PagesTest(support.Case):
    def test_all_pages_together_are_the_list_once(self):
        #
        for count, size in ((0, 3), (1, 3), (3, 3), (4, 3), (10, 1), (23, 7), (120, 50)):
            with self.subTest(count=count, size=size):
                project = project_with(self, count)
                client = self.new_client(project, env={"MCPBASH_PAGE_SIZE": str(size)})
                pages = all_pages(client)

                self.assertEqual(
                    ["t%03d" % number for number in range(count)], [name for page in pages for name in names(page)]
                )
                self.assertEqual(max(1, -(-count // size)), len(pages))
                self.assertNotIn("nextCursor", pages[-1])
                self.assertEqual([count] * len(pages), [page["_meta"]["mcpbash/total"] for page in pages])

    def test_every_version_pages(self):
        project = project_with(self, 5)
        client = self.new_client(project, env={"MCPBASH_PAGE_SIZE": "2"})
        for version in support.HANDSHAKE_VERSIONS:
            with self.subTest(version=version):
                client.initialize(version)
                first = client.result("tools/list")
                second = client.result("tools/list", {"cursor": first["nextCursor"]})

                self.assertEqual((["t000", "t001"], ["t002", "t003"]), (names(first), names(second)))

    def test_the_cursor_of_one_era_is_good_in_the_other(self):
        client = self.new_client(project_with(self, 5), env={"MCPBASH_PAGE_SIZE": "2"})
        client.initialize()
        cursor = client.result("tools/list")["nextCursor"]

        self.assertEqual(["t002", "t003"], names(client.result("tools/list", {"cursor": cursor}, modern=True)))

    def test_every_page_has_the_same_cache_scope(self):
        #
        client = self.new_client(project_with(self, 5), env={"MCPBASH_PAGE_SIZE": "2"})

        self.assertEqual(1, len({page["cacheScope"] for page in all_pages(client)}))

    def test_the_default_page_has_50_items(self):
        client = self.new_client(project_with(self, 51))

        self.assertEqual([50, 1], [len(page["tools"]) for page in all_pages(client)])

    def test_a_cursor_is_as_documented(self):
        client = self.new_client(project_with(self, 5), env={"MCPBASH_PAGE_SIZE": "2"})
        payload = opened(client.modern("tools/list")["result"]["nextCursor"])

        self.assertEqual({"ver", "collection", "offset", "hash", "timestamp"}, set(payload))
        self.assertEqual((1, "tools", 2), (payload["ver"], payload["collection"], payload["offset"]))
        with open(support.wait_until(lambda: self.cache(client)), encoding="utf-8") as stream:
            self.assertEqual(json.load(stream)["hash"], payload["hash"])

    @staticmethod
    def cache(client: support.Client) -> str:
        """Return the path of the registry file once it is there."""
        path = client.project.path(".registry/tools.json")
        return path if os.path.exists(path) else ""

    def test_a_cursor_survives_a_restart(self):
        project = project_with(self, 25)
        cursors = {}
        with project.client(env={"MCPBASH_PAGE_SIZE": "3"}) as client:
            for page in all_pages(client)[:-1]:
                cursors[page["nextCursor"]] = int(names(page)[-1][1:]) + 1
        with project.client(env={"MCPBASH_PAGE_SIZE": "1"}) as client:
            for cursor, following in cursors.items():
                page = client.result("tools/list", {"cursor": cursor}, modern=True)
                self.assertEqual(["t%03d" % following], names(page))
        self.assertEqual(8, len(cursors))

    def test_touching_a_file_does_not_make_cursors_stale(self):
        project = project_with(self, 5)
        client = self.new_client(project, env={"MCPBASH_PAGE_SIZE": "2", "MCP_TOOLS_TTL": "0"})
        cursor = client.modern("tools/list")["result"]["nextCursor"]
        os.utime(project.path("tools/t001"))

        self.assertEqual(["t002", "t003"], names(client.result("tools/list", {"cursor": cursor}, modern=True)))

    def test_a_changed_list_makes_cursors_stale(self):
        # CR-04
        project = project_with(self, 5)
        client = self.new_client(project, env={"MCPBASH_PAGE_SIZE": "2", "MCP_TOOLS_TTL": "0"})
        cursor = client.modern("tools/list")["result"]["nextCursor"]
        self.assertEqual(["t002", "t003"], names(client.result("tools/list", {"cursor": cursor}, modern=True)))
        os.unlink(project.path("tools/t004"))
        error = client.error("tools/list", {"cursor": cursor}, modern=True)

        self.assertEqual(-32602, error["code"])
        self.assertIn("changed", error["message"])
        self.assertEqual(["t000", "t001"], names(client.modern("tools/list")["result"]))


class InvalidCursorTest(support.Case):
    def bad_cursors(self, good: str) -> list:
        """Return everything that is not a cursor of this list, given one that is."""
        inside = opened(good)

        def altered(**members) -> str:
            return closed({**inside, **members})

        return [
            "",
            " ",
            "garbage",
            "!!!",
            "é",
            "\ud800",
            "\0",
            good + "x",
            "x" + good,
            good[:-1],
            good + "\n",
            " " + good,
            "A" * 5_000_000,
            5,
            0,
            True,
            [],
            {},
            [good],
            {"cursor": good},
            altered(offset=-1),
            altered(offset=0),
            altered(offset=5),
            altered(offset=10**18),
            altered(offset=True),
            altered(offset="2"),
            altered(offset=2.0),
            altered(offset=None),
            altered(collection="resources"),
            altered(collection=None),
            altered(ver=2),
            altered(ver="1"),
            altered(hash="0" * 64),
            altered(hash=None),
            altered(hash=5),
            closed([1]),
            closed(5),
            closed(None),
            closed(b"{"),
            closed(b"\xff"),
            closed(b"[" * 2000),
            closed({}),
            *(
                closed({key: value for key, value in inside.items() if key != name})
                for name in ("ver", "collection", "offset", "hash")
            ),
        ]

    def test_everything_else_is_refused_and_the_server_goes_on(self):
        # PR-14, R-118
        project = project_with(self, 5)
        client = self.new_client(project, env={"MCPBASH_PAGE_SIZE": "2"})
        good = client.modern("tools/list")["result"]["nextCursor"]
        for cursor in self.bad_cursors(good):
            with self.subTest(cursor=str(cursor)[:80].encode("ascii", "backslashreplace")):
                line = {"cursor": cursor, "_meta": support.stateless()["_meta"]}
                request_id = client.new_id()
                message = {"jsonrpc": "2.0", "id": request_id, "method": "tools/list", "params": line}
                client.send_raw(json.dumps(message).encode("ascii") + b"\n")
                answer = client.response(request_id)

                self.assertEqual(-32602, answer.get("error", {}).get("code"), str(answer)[:300])
                self.assertLess(len(answer["error"]["message"]), 300)
        self.assertEqual(["t002", "t003"], names(client.result("tools/list", {"cursor": good}, modern=True)))

    def test_null_is_the_same_as_no_cursor(self):
        client = self.new_client(project_with(self, 2))

        self.assertEqual(["t000", "t001"], names(client.modern("tools/list", {"cursor": None})["result"]))

    def test_the_cursor_of_another_project_is_refused(self):
        other = self.new_client(project_with(self, 6), env={"MCPBASH_PAGE_SIZE": "2"})
        client = self.new_client(project_with(self, 5), env={"MCPBASH_PAGE_SIZE": "2"})
        cursor = other.modern("tools/list")["result"]["nextCursor"]

        self.assertEqual(-32602, client.error("tools/list", {"cursor": cursor}, modern=True)["code"])
        self.assertEqual(2, len(other.result("tools/list", {"cursor": cursor}, modern=True)["tools"]))


class LimitTest(support.Case):
    def test_a_client_may_ask_for_a_page_size_within_bounds(self):
        env = {"MCPBASH_PAGE_SIZE": "4", "MCPBASH_PAGE_SIZE_MAX": "8"}
        client = self.new_client(project_with(self, 10), env=env)
        for limit, expected in ((None, 4), (1, 1), (4, 4), (8, 8), (9, 8), (10**18, 8)):
            with self.subTest(limit=limit):
                page = client.modern("tools/list", {"limit": limit})["result"]

                self.assertEqual(["t%03d" % number for number in range(expected)], names(page))
        self.assertEqual(10, len([name for page in all_pages(client, limit=3) for name in names(page)]))

    def test_what_is_no_size_is_refused(self):
        client = self.new_client(project_with(self, 3))
        for limit in (0, -1, 1.5, "2", True, [], {}):
            with self.subTest(limit=limit):
                self.assertEqual(-32602, client.error("tools/list", {"limit": limit}, modern=True)["code"])
        self.assertEqual(["t000", "t001"], names(client.modern("tools/list", {"limit": 2})["result"]))

    def test_the_default_maximum_is_200(self):
        client = self.new_client(project_with(self, 201))

        self.assertEqual(200, len(client.modern("tools/list", {"limit": 100000})["result"]["tools"]))


if __name__ == "__main__":
    unittest.main()
