#!/usr/bin/env python3
"""Who may run what: the allow list, owners and modes of files, policy.sh. A check that cannot be made denies."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

NOBODY = 65534
IS_ROOT = os.geteuid() == 0


def call(client: support.Client, name: str) -> dict:
    """Call a tool in the stateless era and return the whole response."""
    return client.modern("tools/call", {"name": name})


def has_run(project: support.Project) -> bool:
    """Tell whether a tool made by `marking_tool` has run since the last look."""
    path = os.path.join(project.base, "mark")
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def marking_tool(project: support.Project, name: str, **options) -> str:
    """Write a tool that leaves a mark, so that "not run" can be told from "run and refused"."""
    return project.tool(name, "echo >%s/mark\necho ran" % project.base, **options)


class Denial:
    """Mixed into cases: what a refused call looks like."""

    def assert_runs(self, client: support.Client, name: str) -> None:
        answer = call(client, name)
        self.assertEqual("ran\n", support.text_of(answer.get("result", {})), answer)
        self.assertTrue(has_run(client.project))

    def assert_denied(self, client: support.Client, name: str, words: str = "") -> dict:
        answer = call(client, name)
        self.assertEqual(-32602, answer.get("error", {}).get("code"), answer)
        self.assertIn(words, answer["error"]["message"])
        self.assertFalse(has_run(client.project))
        return answer["error"]


class AllowListTest(Denial, support.Case):
    # environment, tools that run (of foo, bar, all)
    ROWS = (
        ({}, ["all", "bar", "foo"]),
        ({"MCPBASH_TOOL_ALLOWLIST": ""}, ["all", "bar", "foo"]),
        ({"MCPBASH_TOOL_ALLOWLIST": "*"}, ["all", "bar", "foo"]),
        ({"MCPBASH_TOOL_ALLOWLIST": "all"}, ["all", "bar", "foo"]),
        ({"MCPBASH_TOOL_ALLOWLIST": "foo"}, ["foo"]),
        ({"MCPBASH_TOOL_ALLOWLIST": " foo "}, ["foo"]),
        ({"MCPBASH_TOOL_ALLOWLIST": "foo,bar"}, ["bar", "foo"]),
        ({"MCPBASH_TOOL_ALLOWLIST": "foo bar"}, ["bar", "foo"]),
        ({"MCPBASH_TOOL_ALLOWLIST": "foo*"}, []),
        ({"MCPBASH_TOOL_ALLOWLIST": "FOO"}, []),
        ({"MCPBASH_TOOL_ALLOWLIST": "fo"}, []),
        ({"MCPBASH_TOOL_ALLOWLIST": "foo.*"}, []),
        ({"MCPBASH_TOOL_ALLOWLIST": "foo,*"}, ["foo"]),
        ({"MCPBASH_TOOL_ALLOWLIST": "foo,all"}, ["all", "foo"]),
        ({"MCPBASH_TOOL_ALLOWLIST": "nothing"}, []),
        ({"MCPBASH_TOOL_ALLOW_DEFAULT": "deny"}, []),
        ({"MCPBASH_TOOL_ALLOW_DEFAULT": "deny", "MCPBASH_TOOL_ALLOWLIST": "  ,"}, []),
        ({"MCPBASH_TOOL_ALLOW_DEFAULT": "deny", "MCPBASH_TOOL_ALLOWLIST": "foo"}, ["foo"]),
        ({"MCPBASH_TOOL_ALLOW_DEFAULT": "deny", "MCPBASH_TOOL_ALLOWLIST": "*"}, ["all", "bar", "foo"]),
        ({"MCPBASH_TOOL_ALLOW_DEFAULT": "allow", "MCPBASH_TOOL_ALLOWLIST": "foo"}, ["foo"]),
        ({"MCPBASH_TOOL_ALLOW_DEFAULT": "all"}, ["all", "bar", "foo"]),
        ({"MCPBASH_TOOL_ALLOW_DEFAULT": "DENY"}, []),
        ({"MCPBASH_TOOL_ALLOW_DEFAULT": "dney"}, []),  # a slip of the pen in a security setting must not open the door
        ({"MCPBASH_TOOL_ALLOW_DEFAULT": "false"}, []),
    )

    def test_the_table_of_allow_lists(self):
        # PL-01, PL-03
        project = self.new_project()
        for name in ("foo", "bar", "all"):
            marking_tool(project, name)
        for env, expected in self.ROWS:
            with self.subTest(env=env):
                with project.client(env=env) as client:
                    listed = [tool["name"] for tool in client.modern("tools/list")["result"]["tools"]]
                    self.assertEqual(["all", "bar", "foo"], listed)  # the list shows what there is, allowed or not
                    for name in listed:
                        (self.assert_runs if name in expected else self.assert_denied)(client, name)

    def test_the_messages_say_what_to_do(self):
        project = self.new_project()
        marking_tool(project, "foo")
        rows = (
            (
                {"MCPBASH_TOOL_ALLOW_DEFAULT": "deny"},
                "Tool 'foo' blocked by policy. Set MCPBASH_TOOL_ALLOWLIST in your MCP client config.",
            ),
            ({"MCPBASH_TOOL_ALLOWLIST": "x"}, "Tool 'foo' blocked by policy (not in MCPBASH_TOOL_ALLOWLIST)"),
        )
        for env, expected in rows:
            with self.subTest(env=env):
                client = self.new_client(project, env=env)

                self.assertEqual(expected, self.assert_denied(client, "foo")["message"])

    NAMES = (
        "../echo",
        "echo\n",
        "echo\0",
        "ECHO",
        "e\u0301cho",
        "echo ",
        " echo",
        "/bin/sh",
        "echo/tool.sh",
        "tools/echo/tool.sh",
        "./echo",
        "echo;id",
        "$(id)",
        "-c",
        "е" + "cho",
        "echo\u200b",
        "x" * 100000,
        "\ud800",
        "",
    )

    def test_only_the_exact_name_calls_a_tool(self):
        # PL-04, R-077
        project = self.new_project()
        marking_tool(project, "echo")
        for env in ({}, {"MCPBASH_TOOL_ALLOWLIST": "*"}, {"MCPBASH_TOOL_ALLOWLIST": "echo"}):
            client = self.new_client(project, env=env)
            for name in self.NAMES:
                with self.subTest(env=env, name=name[:40].encode("unicode_escape")):
                    message = {"jsonrpc": "2.0", "id": client.new_id(), "method": "tools/call"}
                    message["params"] = support.stateless({"name": name})
                    client.send_raw(json.dumps(message).encode("ascii") + b"\n")
                    answer = client.response(message["id"])
                    self.assertEqual(-32602, answer.get("error", {}).get("code"), answer)
                    self.assertLess(len(answer["error"]["message"]), 400)
                    self.assertFalse(has_run(project))
            self.assert_runs(client, "echo")

    def test_look_alikes_are_not_registered(self):
        # PL-05
        project = self.new_project()
        marking_tool(project, "echo")
        for number, name in enumerate(("ech\u200bo", "\u202eohce", "есho", "echo\u2060", "ec\U000e0068ho")):
            project.tool("x%d" % number, "echo")
            project.json("tools/x%d/tool.meta.json" % number, {"name": name})
        client = self.new_client(project, env={"MCPBASH_TOOL_ALLOWLIST": "echo"})

        self.assertEqual(["echo"], [tool["name"] for tool in client.modern("tools/list")["result"]["tools"]])
        self.assert_runs(client, "echo")


class SafePathTest(Denial, support.Case):
    """FS-04, FS-05: what others could change, or what lies elsewhere, does not run."""

    def spoilers(self) -> dict:
        """Return ways to make tools/x/tool.sh unsafe: name -> (function, words of the message)."""

        def change(mode: int, *parts: str):
            return lambda project: os.chmod(project.path("tools", *parts), mode)

        def link_to(target: str):
            def spoil(project: support.Project) -> None:
                os.rename(project.path("tools/x/tool.sh"), project.path("outside.sh"))
                os.symlink(target.replace("ROOT", project.root), project.path("tools/x/tool.sh"))

            return spoil

        def link_into_open_directory(project: support.Project) -> None:
            os.mkdir(project.path("tools/.open"))
            os.rename(project.path("tools/x/tool.sh"), project.path("tools/.open/real"))
            os.symlink("../.open/real", project.path("tools/x/tool.sh"))
            os.chmod(project.path("tools/.open"), 0o777)

        def give_away(*parts: str):
            return lambda project: os.chown(project.path("tools", *parts), NOBODY, NOBODY)

        rows = {
            "file 0775": (change(0o775, "x", "tool.sh"), "writable by others"),
            "file 0757": (change(0o757, "x", "tool.sh"), "writable by others"),
            "file 0777": (change(0o777, "x", "tool.sh"), "writable by others"),
            "directory 0777": (change(0o777, "x"), "writable by others"),
            "directory 0770": (change(0o770, "x"), "writable by others"),
            "tools 0777": (change(0o777), "writable by others"),
            "tools 01777": (change(0o1777), "writable by others"),
            "link out": (link_to("ROOT/outside.sh"), "leaves the tools directory"),
            "relative link out": (link_to("../../outside.sh"), "leaves the tools directory"),
            "link into a directory others write": (link_into_open_directory, "writable by others"),
        }
        if IS_ROOT:
            rows["owner of the file"] = (give_away("x", "tool.sh"), "owned by another user")
            rows["owner of the directory"] = (give_away("x"), "owned by another user")
            rows["owner of tools"] = (give_away(), "owned by another user")
        return rows

    def test_each_of_these_denies_and_runs_nothing(self):
        for name, (spoil, words) in self.spoilers().items():
            with self.subTest(name=name):
                project = self.new_project()
                marking_tool(project, "x")
                marking_tool(project, "other")
                with project.client(env={"MCP_TOOLS_TTL": "0"}) as client:
                    self.assert_runs(client, "x")
                    spoil(project)
                    error = self.assert_denied(client, "x", "Tool 'x' path rejected by policy")
                    self.assertIn(words, error["message"])
                    self.assertNotIn(project.base, error["message"])
                    if not name.startswith("tools") and name != "owner of tools":
                        self.assert_runs(client, "other")

    def test_the_check_is_made_at_every_call(self):
        """The list may be an hour old; what counts is the file now."""
        project = self.new_project()
        path = marking_tool(project, "x")
        client = self.new_client(project, env={"MCP_TOOLS_TTL": "86400"})
        self.assert_runs(client, "x")
        os.chmod(path, 0o777)
        self.assert_denied(client, "x", "writable by others")
        os.chmod(path, 0o755)
        self.assert_runs(client, "x")

    def test_a_link_to_a_script_inside_runs(self):
        project = self.new_project()
        marking_tool(project, "real")
        os.symlink("real/tool.sh", project.path("tools/alias.sh"))

        self.assert_runs(self.new_client(project), "alias")

    def test_a_project_reached_through_a_link_runs(self):
        project = self.new_project()
        marking_tool(project, "x")
        link = os.path.join(project.base, "link")
        os.symlink(project.root, link)
        client = self.new_client(project, command=support.server_command() + ["--project-root", link])

        self.assert_runs(client, "x")

    def test_a_tool_that_vanished_is_an_error_and_not_a_crash(self):
        project = self.new_project()
        path = marking_tool(project, "x")
        client = self.new_client(project, env={"MCP_TOOLS_TTL": "86400"})
        self.assert_runs(client, "x")
        os.unlink(path)
        self.assert_denied(client, "x")
        os.mkdir(path)
        self.assert_denied(client, "x", "is not a file")

    def test_inherit_mode_needs_its_second_switch(self):
        # EN-04
        project = self.new_project()
        marking_tool(project, "x")
        self.assert_denied(
            self.new_client(project, env={"MCPBASH_TOOL_ENV_MODE": "inherit"}), "x", "MCPBASH_TOOL_ENV_INHERIT_ALLOW"
        )
        both = {"MCPBASH_TOOL_ENV_MODE": "inherit", "MCPBASH_TOOL_ENV_INHERIT_ALLOW": "true"}
        self.assert_runs(self.new_client(project, env=both), "x")

    @unittest.skipUnless(IS_ROOT, "needs two users")
    def test_an_ordinary_user_may_run_what_root_owns_but_nobody_elses(self):
        project = self.new_project()
        path = marking_tool(project, "x")
        self.open_to_all(project)
        options = {"user": 12345, "group": 12345, "extra_groups": []}
        command = [self.python_for(options), support.SERVER, "--project-root", project.root]
        with project.client(command=command, **options) as client:
            self.assert_runs(client, "x")
            os.chown(path, NOBODY, NOBODY)
            self.assert_denied(client, "x", "owned by another user")
            os.chown(path, 12345, 12345)
            self.assert_runs(client, "x")

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

    @staticmethod
    def open_to_all(project: support.Project) -> None:
        """Let another user use the project, its home and its temporary directory."""
        for directory in (project.base, project.root, project.home, project.tmp):
            os.chown(directory, 12345, 12345)
            os.chmod(directory, 0o755)


class PolicyScriptTest(Denial, support.Case):
    """contract 3.3, PL-02. Every row is a policy.sh and what becomes of a call of `x`."""

    def start(self, script: str = "", env: dict | None = None) -> support.Client:
        """Start a server on a project with the tool `x` and a policy; the policy is read anew at every call."""
        project = self.new_project()
        marking_tool(project, "x", meta={"description": "d"})
        project.file("server.d/policy.sh", script)
        return self.new_client(project, env=env)

    def outcome(self, client: support.Client, script: str) -> dict:
        """Return the response to a call under a policy; a denied tool must not have run."""
        client.project.file("server.d/policy.sh", script)
        answer = call(client, "x")
        self.assertEqual("result" in answer, has_run(client.project))
        return answer

    ALLOWED = (
        "mcp_tools_policy_check() { return 0; }\n",
        "mcp_tools_policy_check() { true; }\n",
        "# a policy without an opinion\n",
        "",
        "echo noise; echo noise >&2\nmcp_tools_policy_check() { echo more noise; }\n",
        "set -euo pipefail\nmcp_tools_policy_check() { return 0; }\n",
        'mcp_tools_policy_check() { [ "$1" = x ]; }\n',
        'mcp_tools_policy_check() { case $2 in *\'"path":"x/tool.sh"\'*) return 0 ;; esac; return 1; }\n',
        'mcp_tools_policy_check() { mcp_tools_policy_check_default "$@"; }\n',
        "declare -F mcp_tools_policy_check_default >/dev/null || exit 1\nmcp_tools_policy_check() { return 0; }\n",
        'mcp_tools_policy_check() { [ -d "$MCPBASH_PROJECT_ROOT/tools" ] && [ "$PWD" = "$MCPBASH_PROJECT_ROOT" ]; }\n',
        'mcp_tools_policy_check() { [ "$OPERATOR_VARIABLE" = seen ]; }\n',
        "mcp_tools_policy_check() { for l in debug info warning error; do mcp_logging_$l a b || exit 1; done; }\n",
        "mcp_tools_policy_check() { ! read -r line; }\n",  # stdin is empty, never the protocol
    )

    def test_a_policy_that_says_yes_lets_the_call_through(self):
        client = self.start(env={"OPERATOR_VARIABLE": "seen"})
        for script in self.ALLOWED:
            with self.subTest(script=script):
                self.assertIn("result", self.outcome(client, script))

    def test_a_policy_can_read_the_metadata_with_jq_when_there_is_one(self):
        script = 'mcp_tools_policy_check() { [ "$(mcp_json_extract_optional "$2" .description)" = d ]; }\n'
        answer = self.outcome(self.start(), script)
        has_jq = any(os.access(os.path.join(place, "jq"), os.X_OK) for place in os.environ["PATH"].split(":"))

        self.assertEqual(has_jq, "result" in answer, answer)

    GENERIC = "Tool 'x' blocked by policy"
    DENIED = (  # script, error
        ("mcp_tools_policy_check() { return 1; }\n", {"code": -32602, "message": GENERIC}),
        ("mcp_tools_policy_check() { return 42; }\n", {"code": -32602, "message": GENERIC}),
        (
            "mcp_tools_policy_check() { mcp_tools_error -32099 'not today' '{\"until\":5}'; return 1; }\n",
            {"code": -32099, "message": "not today", "data": {"until": 5}},
        ),
        (
            "mcp_tools_policy_check() { _MCP_TOOLS_ERROR_CODE=-32001 _MCP_TOOLS_ERROR_MESSAGE=hand; return 1; }\n",
            {"code": -32001, "message": "hand"},
        ),
        (
            "mcp_tools_policy_check() { mcp_tools_error oops 'two\nlines\tand \"quotes\"' 'no json'; return 1; }\n",
            {"code": -32602, "message": 'two\nlines\tand "quotes"'},
        ),
        (
            "set -euo pipefail\nmcp_tools_policy_check() { mcp_tools_error -32602 'strict shell'; return 1; }\n",
            {"code": -32602, "message": "strict shell"},
        ),
    )

    def test_a_policy_that_says_no_gives_its_own_reason(self):
        client = self.start()
        client.initialize()  # codes of their own are legal in this era
        for script, expected in self.DENIED:
            with self.subTest(script=script):
                client.project.file("server.d/policy.sh", script)

                self.assertEqual(expected, client.error("tools/call", {"name": "x"}))
                self.assertFalse(has_run(client.project))

    FAILING = (
        "if then\n",
        "mcp_tools_policy_check() { return 0; \n",
        "mcp_tools_policy_check() { return 0; }\nexit 0\n",
        "mcp_tools_policy_check() { return 0; }\nexit 1\n",
        "mcp_tools_policy_check() { exit 0; }\n",
        "mcp_tools_policy_check() { exit 1; }\n",
        "mcp_tools_policy_check() { kill -9 $$; }\n",
        "mcp_tools_policy_check() { kill -TERM $$; sleep 5; }\n",
        "mcp_tools_policy_check() { sleep 60; }\n",
        "sleep 60\nmcp_tools_policy_check() { return 0; }\n",
        "mcp_tools_policy_check() { trap 'sleep 60' EXIT; return 0; }\n",
        'set -u\nmcp_tools_policy_check() { : "$NOT_SET"; return 0; }\n',
        "set -e\nfalse\nmcp_tools_policy_check() { return 0; }\n",
        "set -e\nmcp_tools_policy_check() { false; return 0; }\n",
        ". /no/such/library.sh\n",  # the check was to come from there: it cannot be made
        "source ./missing.sh || return 1\nmcp_tools_policy_check() { return 0; }\n",
        "mcp_tools_policy_check() { exec 7>&-; return 0; }\n",
        "mcp_tools_policy_check() { head -c 3000000 /dev/zero; return 0; }\n",
        "exec true\n",
    )

    def test_a_policy_that_fails_in_any_way_denies(self):
        # PL-02
        client = self.start(env={"MCPBASH_HOOK_TIMEOUT": "0.8", "MCPBASH_KILL_GRACE": "0.1"})
        for script in self.FAILING:
            with self.subTest(script=script):
                answer = self.outcome(client, script)

                self.assertEqual(-32602, answer.get("error", {}).get("code"), answer)

    def unsafe(self) -> dict:
        """Return ways to make server.d/policy.sh unsafe or unreadable."""

        def replaced(function):
            def spoil(project: support.Project) -> None:
                os.rename(project.path("server.d/policy.sh"), project.path("real.sh"))
                function(project.path("server.d/policy.sh"))

            return spoil

        def link_directory(project: support.Project) -> None:
            os.rename(project.path("server.d"), project.path("real.d"))
            os.symlink("real.d", project.path("server.d"))

        rows = {
            "0666": lambda project: os.chmod(project.path("server.d/policy.sh"), 0o666),
            "0664": lambda project: os.chmod(project.path("server.d/policy.sh"), 0o664),
            "server.d 0777": lambda project: os.chmod(project.path("server.d"), 0o777),
            "root 0777": lambda project: os.chmod(project.root, 0o777),
            "link": replaced(lambda path: os.symlink("../real.sh", path)),
            "broken link": replaced(lambda path: os.symlink("nowhere", path)),
            "server.d is a link": link_directory,
            "directory": replaced(os.mkdir),
            "pipe": replaced(os.mkfifo),
        }
        if IS_ROOT:
            rows["owner"] = lambda project: os.chown(project.path("server.d/policy.sh"), NOBODY, NOBODY)
            rows["owner of server.d"] = lambda project: os.chown(project.path("server.d"), NOBODY, NOBODY)
        else:
            rows["unreadable"] = lambda project: os.chmod(project.path("server.d/policy.sh"), 0)
        return rows

    def test_an_unsafe_policy_denies_instead_of_being_ignored(self):
        # PL-02
        for name, spoil in self.unsafe().items():
            with self.subTest(name=name):
                client = self.start("mcp_tools_policy_check() { return 0; }\n", {"MCPBASH_HOOK_TIMEOUT": "2"})
                self.assert_runs(client, "x")
                spoil(client.project)
                answer = call(client, "x")

                self.assertFalse(has_run(client.project))
                self.assertEqual(-32602, answer.get("error", {}).get("code"), answer)
                self.assertIn("blocked by policy", answer["error"]["message"])
                self.assertNotIn("/mcpb-", answer["error"]["message"])  # EN-08: no place on this machine

    def test_it_comes_on_top_of_the_allow_list(self):
        yes = "mcp_tools_policy_check() { return 0; }\n"
        for env in ({"MCPBASH_TOOL_ALLOWLIST": "y"}, {"MCPBASH_TOOL_ALLOW_DEFAULT": "deny"}):
            with self.subTest(env=env):
                self.assert_denied(self.start(yes, env), "x")
        self.assert_runs(self.start(yes, {"MCPBASH_TOOL_ALLOWLIST": "x"}), "x")

    def test_it_needs_no_permission_for_hooks_and_is_asked_at_every_call(self):
        project = self.new_project()
        marking_tool(project, "x")
        client = self.new_client(project, env={"MCPBASH_ALLOW_PROJECT_HOOKS": "false"})
        self.assert_runs(client, "x")
        project.file("server.d/policy.sh", "mcp_tools_policy_check() { return 1; }\n")
        self.assert_denied(client, "x")
        project.file("server.d/policy.sh", "mcp_tools_policy_check() { return 0; }\n")
        self.assert_runs(client, "x")

    def test_a_tool_with_long_metadata_can_be_judged(self):
        project = self.new_project()
        marking_tool(project, "x", meta={"description": "d" * 200000})
        project.file("server.d/policy.sh", 'mcp_tools_policy_check() { [ "${#2}" -gt 200000 ]; }\n')

        self.assert_runs(self.new_client(project), "x")

    def test_it_never_sees_the_secret(self):
        # EN-01
        token = "s" * 40
        project = self.new_project()
        marking_tool(project, "x")
        place = os.path.join(project.base, "seen")
        project.file(
            "server.d/policy.sh",
            "mcp_tools_policy_check() { env >%s; printf '%%s\\n' \"$@\" >>%s; }\n" % (place, place),
        )
        client = self.new_client(project, env={"MCPBASH_REMOTE_TOKEN": token})
        answer = client.modern("tools/call", {"name": "x", "_meta": {"mcpbash/remoteToken": token}})
        self.assertIn("result", answer)

        self.assertNotIn(token, support.wait_for_file(place))

    def test_a_waiting_policy_can_be_cancelled(self):
        project = self.new_project()
        marking_tool(project, "x")
        ready = project.fifo("ready")
        project.file("server.d/policy.sh", "mcp_tools_policy_check() { echo >%s; sleep 600; }\n" % ready)
        client = self.new_client(project, env={"MCPBASH_HOOK_TIMEOUT": "600"})
        number = client.send_call("x")
        with open(ready, encoding="ascii") as stream:
            stream.read()
        client.cancel(number)
        client.fence()
        client.close()

        self.assertEqual([], client.responses_to(number))
        self.assertFalse(has_run(project))


if __name__ == "__main__":
    unittest.main()
