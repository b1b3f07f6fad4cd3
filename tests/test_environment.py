#!/usr/bin/env python3
"""What a tool is given: variables, files, flattened arguments; and what it is not given."""
from __future__ import annotations

import json
import os
import random
import re
import stat
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

sys.path.append(support.ROOT)

import mcp_bash

SEED = 20250802
ROUNDS = 20000 if support.FUZZ else 1500
RS, US, ESCAPE = "\x1e", "\x1f", "\x1d"
SECRET = "s3cr3t-" + "x" * 40

# Prints what the tool was given as JSON; env comes from the kernel, so that no shell can have touched it.
SHOW = """
import json, os, stat, sys
env = {}
for pair in open("/proc/self/environ", "rb").read().split(b"\\0"):
    if pair:
        name, _, value = pair.partition(b"=")
        env[name.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
files = {}
for name, path in env.items():
    if name.startswith("MCP_") and name.endswith("_FILE") and os.path.exists(path):
        status = os.stat(path)
        text = open(path, "rb").read().decode("utf-8", "surrogateescape")
        files[name] = {"text": text, "mode": stat.S_IMODE(status.st_mode), "size": status.st_size}
facts = {"env": env, "files": files, "cwd": os.getcwd(), "argv": sys.argv, "stdin": os.readlink("/proc/self/fd/0")}
facts.update(sid=os.getsid(0), pid=os.getpid(), umask=os.umask(0o77))
facts["fds"] = sorted(int(name) for name in os.listdir("/proc/self/fd"))
json.dump(facts, sys.stdout)
"""


class Given(support.Case):
    """A case whose tool `show` tells what it was given."""

    def start(self, env: dict | None = None, meta: dict | None = None, **options) -> support.Client:
        """Start a server with the tool `show`."""
        if not sys.platform.startswith("linux"):
            raise support.not_here("the tool looks at itself through /proc")
        project = self.new_project()
        project.tool("show", SHOW, meta if meta is not None else {"description": "d"}, suffix=".py")
        return self.new_client(project, env=env, **options)

    def given(self, client: support.Client, arguments: dict | None = None, meta: dict | None = None, **fields) -> dict:
        """Call `show` and return what it saw."""
        params = {"_meta": meta} if meta else {}
        return json.loads(client.text("show", arguments, params=params, **fields))


class VariablesTest(Given):
    def test_every_variable_of_the_contract_is_there(self):
        # contract 3.4
        client = self.start(meta={"description": "d", "timeoutSecs": 9})
        client.project.json(
            "server.d/server.meta.json",
            {"name": "n", "version": "1", "title": "t", "description": "words", "websiteUrl": "https://example.com"},
        )
        client.initialize()
        seen = self.given(client, {"a": 1}, token="tok")
        env, root = seen["env"], client.project.root
        item = {
            "name": "show",
            "description": "d",
            "path": "show/tool.py",
            "inputSchema": {"type": "object", "properties": {}},
        }
        expected = {
            "MCP_TOOL_NAME": "show",
            "MCP_TOOL_PATH": root + "/tools/show/tool.py",
            "MCP_TOOL_ARGS_JSON": '{"a":1}',
            "MCP_TOOL_META_JSON": '{"progressToken":"tok"}',
            "MCP_PROGRESS_TOKEN": "tok",
            "MCP_LOG_LEVEL": "info",
            "MCP_ELICIT_SUPPORTED": "0",
            "MCP_ROOTS_PATHS": root,
            "MCP_ROOTS_COUNT": "1",
            "MCP_CHANNEL_FD": "7",
            "MCP_PROGRESS_STREAM": "/dev/fd/7",
            "MCP_LOG_STREAM": "/dev/fd/7",
            "MCPBASH_PROJECT_ROOT": root,
            "MCPBASH_MODE": "full",
            "MCPBASH_FRAMEWORK_VERSION": "1.3.0",
            "MCPBASH_TRANSPORT": "stdio",
            "MCPBASH_SERVER_NAME": "n",
            "MCPBASH_SERVER_VERSION": "1",
            "MCPBASH_SERVER_TITLE": "t",
            "MCPBASH_SERVER_DESCRIPTION": "words",
            "MCPBASH_SERVER_WEBSITE_URL": "https://example.com",
            "HOME": client.project.home,
            "TMPDIR": client.project.tmp,
        }
        self.assertEqual(expected, {name: env.get(name) for name in expected})
        self.assertEqual({**item, "timeoutSecs": 9}, json.loads(env["MCP_TOOL_METADATA_JSON"]))
        self.assertEqual(
            [{"uri": "file://" + root, "name": "project", "path": root}], json.loads(env["MCP_ROOTS_JSON"])
        )
        self.assertTrue(os.path.isdir(env["MCP_SDK"]))
        self.assertTrue(os.path.isfile(os.path.join(env["MCP_SDK"], "tool_sdk.sh")))
        self.assertIn("UTF-8", env["LANG"])
        for name in ("MCP_TOOL_ARGS_FILE", "MCP_TOOL_META_FILE", "MCP_TOOL_METADATA_FILE", "MCP_ARGS_FLAT_FILE"):
            self.assertNotIn(name, env)

    def test_the_rest_of_the_contract_is_there_when_it_is_known(self):
        # contract 3.4: "only if meta/env set them", and what server.meta.json cannot say in one line
        meta = {"description": "d", "timeoutHint": "ask for less", "progressExtendsTimeout": True, "maxTimeoutSecs": 50}
        client = self.start(meta=meta)
        icons = [{"src": "https://example.com/i.png"}]
        client.project.json("server.d/server.meta.json", {"name": "n", "icons": icons})
        client.project.file("server.d/server.instructions.md", "do\nthis\n")
        env = self.given(client)["env"]
        rows = {
            "MCPBASH_SERVER_INSTRUCTIONS": "do\nthis",
            "MCPBASH_SERVER_ICONS": json.dumps(icons, separators=(",", ":")),
            "MCPBASH_TIMEOUT_HINT": "ask for less",
            "MCPBASH_PROGRESS_EXTENDS_TIMEOUT": "true",
            "MCPBASH_MAX_TIMEOUT_SECS": "50",
        }
        for name, value in rows.items():
            with self.subTest(name=name):
                self.assertEqual(value, env.get(name))

    def test_the_standing_files_are_private_and_empty_and_the_cancel_file_is_absent(self):
        client = self.start()
        for _ in range(2):
            seen = self.given(client)
            for name in ("MCP_TOOL_ERROR_FILE", "MCP_TOOL_RESOURCES_FILE"):
                self.assertEqual({"text": "", "mode": 0o600, "size": 0}, seen["files"][name])
            self.assertIn("MCP_CANCEL_FILE", seen["env"])
            self.assertNotIn("MCP_CANCEL_FILE", seen["files"])
            directory = os.path.dirname(seen["env"]["MCP_TOOL_ERROR_FILE"])
            self.assertEqual(0o700, stat.S_IMODE(os.stat(directory).st_mode))

    def test_a_tool_starts_in_the_project_alone_in_its_session_without_input(self):
        #
        client = self.start()
        seen = self.given(client)

        self.assertEqual(client.project.root, seen["cwd"])
        self.assertEqual("/dev/null", seen["stdin"])
        self.assertEqual(seen["pid"], seen["sid"])
        self.assertEqual([client.project.path("tools/show/tool.py")], seen["argv"])
        self.assertLessEqual(set(seen["fds"]), {0, 1, 2, 3, 7})  # 3: the listing itself

    def test_the_progress_token_keeps_its_text(self):
        client = self.start()
        rows = (
            ("tok", "tok"),
            (0, "0"),
            (17, "17"),
            ("", ""),
            ("a b\nc", "a b\nc"),
            ("x\0y", "xy"),
            ("1", "1"),
            (None, ""),
        )
        for token, expected in rows:
            with self.subTest(token=token):
                meta = {} if token is None else {"progressToken": token}

                self.assertEqual(expected, self.given(client, meta=meta)["env"]["MCP_PROGRESS_TOKEN"])

    def test_the_log_level_says_what_would_be_forwarded(self):
        client = self.start()
        self.assertEqual("none", self.given(client)["env"]["MCP_LOG_LEVEL"])
        self.assertEqual("debug", self.given(client, log_level="debug")["env"]["MCP_LOG_LEVEL"])
        client.initialize()
        self.assertEqual("info", self.given(client)["env"]["MCP_LOG_LEVEL"])
        client.result("logging/setLevel", {"level": "error"})
        self.assertEqual("error", self.given(client)["env"]["MCP_LOG_LEVEL"])

    def test_trace_context_is_handed_on(self):
        #
        client = self.start()
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        meta = {"traceparent": parent, "tracestate": "a=b", "baggage": "k=v,é=1"}
        for modern in (True, False):
            if not modern:
                client.initialize()
            env = self.given(client, meta=meta)["env"]
            self.assertEqual(
                (parent, "a=b", "k=v,é=1"), tuple(env[name] for name in ("TRACEPARENT", "TRACESTATE", "BAGGAGE"))
            )
        env = self.given(client, meta={"traceparent": 5, "tracestate": None, "baggage": ["x"]})["env"]
        self.assertEqual(set(), {"TRACEPARENT", "TRACESTATE", "BAGGAGE"} & set(env))

    def test_odd_text_in_the_request_never_keeps_a_tool_from_running(self):
        # PR-06, PR-07, R-092
        client = self.start()
        texts = ("\ud800", "a\udfffb", "\0", "x" * 200000, "\x1b[2J", "é" * 1000, "\n")
        for name in ("traceparent", "baggage", "progressToken", "com.example/own"):
            for text in texts:
                with self.subTest(name=name, text=text[:5].encode("unicode_escape")):
                    message = {"jsonrpc": "2.0", "id": client.new_id(), "method": "tools/call"}
                    message["params"] = support.stateless({"name": "show", "_meta": {name: text}})
                    client.send_raw(json.dumps(message).encode("ascii") + b"\n")
                    answer = client.response(message["id"])
                    if name == "progressToken" and len(text) > 1024:
                        self.assertEqual(-32602, answer["error"]["code"])
                    else:
                        self.assertIn("result", answer, str(answer)[:300])
                        self.assertFalse(answer["result"]["isError"])

    def test_a_json_tool_is_named_when_the_machine_has_one(self):
        project_bin = os.path.join(self.new_project().base, "bin")
        os.mkdir(project_bin)
        jq = os.path.join(project_bin, "jq")
        with open(jq, "w", encoding="ascii") as stream:
            stream.write("#!/bin/sh\necho jq\n")
        os.chmod(jq, 0o755)
        path = os.path.dirname(support.PYTHON) + ":" + project_bin + ":/usr/bin:/bin"
        env = self.given(self.start({"PATH": path}))["env"]
        self.assertEqual(("jq", jq), (env["MCPBASH_JSON_TOOL"], env["MCPBASH_JSON_TOOL_BIN"]))
        own = os.path.join(project_bin, "gojq")
        os.rename(jq, own)
        env = self.given(self.start({"PATH": path, "MCPBASH_JSON_TOOL_BIN": own}))["env"]
        self.assertEqual(("gojq", own), (env["MCPBASH_JSON_TOOL"], env["MCPBASH_JSON_TOOL_BIN"]))


class ModesTest(Given):
    OPERATOR = {
        "AWS_SECRET_ACCESS_KEY": "aws",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "PYTHONPATH": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "EDITOR": "vi",
        "MCP_OWN": "mcp",
        "MCPBASH_OWN": "mcpbash",
        "MCPX": "not ours",
    }
    DANGEROUS = {"LD_PRELOAD": "", "BASH_ENV": "/nonexistent", "ENV": "/nonexistent"}
    KEPT = {"PATH", "HOME", "TMPDIR", "LANG"}

    def names(self, env: dict) -> set[str]:
        """Return the operator's variables a tool sees under these settings."""
        seen = self.given(self.start({**self.OPERATOR, **self.DANGEROUS, **env}))["env"]
        return {name for name in {**self.OPERATOR, **self.DANGEROUS} if name in seen}

    def test_minimal_keeps_little(self):
        # EN-02
        for mode in (
            {},
            {"MCPBASH_TOOL_ENV_MODE": "minimal"},
            {"MCPBASH_TOOL_ENV_MODE": "MINIMAL"},
            {"MCPBASH_TOOL_ENV_MODE": "nonsense"},
            {"MCPBASH_TOOL_ENV_ALLOWLIST": "EDITOR"},
        ):
            with self.subTest(mode=mode):
                self.assertEqual({"MCP_OWN", "MCPBASH_OWN"}, self.names(mode))

    def test_allowlist_adds_what_is_named(self):
        rows = (
            ("", set()),
            ("EDITOR", {"EDITOR"}),
            ("EDITOR,LC_ALL MCPX", {"EDITOR", "LC_ALL", "MCPX"}),
            ("E*", set()),
            ("editor", set()),
            ("MISSING", set()),
        )
        for text, added in rows:
            with self.subTest(text=text):
                mode = {"MCPBASH_TOOL_ENV_MODE": "allowlist", "MCPBASH_TOOL_ENV_ALLOWLIST": text}

                self.assertEqual({"MCP_OWN", "MCPBASH_OWN"} | added, self.names(mode))

    def test_inherit_keeps_everything_but_the_secret(self):
        # EN-01, EN-04
        mode = {"MCPBASH_TOOL_ENV_MODE": "inherit", "MCPBASH_TOOL_ENV_INHERIT_ALLOW": "true"}
        self.assertEqual(set(self.OPERATOR) | set(self.DANGEROUS), self.names(mode))
        client = self.start({**mode, "MCPBASH_REMOTE_TOKEN": SECRET})
        seen = self.given(client, meta={"mcpbash/remoteToken": SECRET})
        self.assertNotIn(SECRET, json.dumps(seen))

    def test_inherit_without_its_switch_is_refused(self):
        # EN-04
        client = self.start({"MCPBASH_TOOL_ENV_MODE": "inherit"})

        self.assertEqual(-32602, client.modern("tools/call", {"name": "show"})["error"]["code"])

    def test_what_every_tool_needs_has_defaults(self):
        project = self.new_project()
        project.tool("show", SHOW.replace("#!", ""), suffix=".py")
        script = "#!%s\n%s" % (support.PYTHON, SHOW)
        project.file("tools/show/tool.py", script, 0o755)
        command = ["env", "-i", *support.server_command(), "--project-root", project.root]
        client = self.new_client(project, command=command)
        env = self.given(client)["env"]
        client.close(check=False)  # without TMPDIR its state directory was in the common place

        self.assertEqual("/usr/local/bin:/usr/bin:/bin", env["PATH"])
        self.assertEqual(project.root, env["HOME"])
        self.assertEqual("/tmp", env["TMPDIR"])
        self.assertIn("UTF-8", env["LANG"])
        self.assertFalse(os.path.exists(os.path.dirname(env["MCP_TOOL_ERROR_FILE"])))

    def test_variables_of_the_server_win_over_the_operators(self):
        lies = (
            "MCP_TOOL_NAME",
            "MCP_TOOL_ARGS_JSON",
            "MCP_TOOL_ARGS_FILE",
            "MCP_ARGS_FLAT",
            "MCP_ARGS_FLAT_FILE",
            "MCP_TOOL_ERROR_FILE",
            "MCP_CHANNEL_FD",
            "MCP_TOOL_META_FILE",
            "MCP_TOOL_METADATA_FILE",
            "MCP_CANCEL_FILE",
        )
        client = self.start(dict.fromkeys(lies, "lie"))
        for arguments in (None, {"a": 1}, {"a": "x" * 70000}, {"a": "x" * 2 * mcp_bash.FLAT_LIMIT}):
            with self.subTest(size=len(json.dumps(arguments))):
                seen = self.given(client, arguments)["env"]

                self.assertEqual([], [name for name, value in seen.items() if value == "lie"])
                self.assertEqual("show", seen["MCP_TOOL_NAME"])

    def test_arguments_never_become_variables(self):
        # EN-03
        client = self.start()
        arguments = dict.fromkeys(
            ("PATH", "LD_PRELOAD", "BASH_ENV", "IFS", "MCP_TOOL_NAME", "HOME", "EVIL", "a=b"), "evil"
        )
        plain, seen = self.given(client)["env"], self.given(client, arguments)["env"]

        self.assertEqual(set(plain), set(seen))
        changed = {name for name in seen if seen[name] != plain[name]}
        self.assertEqual(
            {"MCP_TOOL_ARGS_JSON", "MCP_ARGS_FLAT"},
            changed - {"MCP_TOOL_ERROR_FILE", "MCP_CANCEL_FILE", "MCP_TOOL_RESOURCES_FILE"},
        )


class SecretsTest(Given):
    def test_the_remote_token_is_nowhere_a_tool_can_look(self):
        # EN-01
        client = self.start({"MCPBASH_REMOTE_TOKEN": SECRET})
        for key in ("mcpbash/remoteToken", "remoteToken"):
            with self.subTest(key=key):
                seen = self.given(client, {"a": 1}, meta={key: SECRET, "other": "kept"})
                self.assertNotIn(SECRET, json.dumps(seen))
                self.assertEqual("kept", json.loads(seen["env"]["MCP_TOOL_META_JSON"])["other"])
        seen = self.given(client, meta={"mcpbash/remoteToken": SECRET, "remoteToken": SECRET})
        self.assertNotIn(SECRET, json.dumps(seen))

    def test_arguments_are_in_no_command_line(self):
        # EN-07
        client = self.start({"MCPBASH_ENV_PAYLOAD_THRESHOLD": "0"})
        ready, go = client.project.fifo("ready"), client.project.fifo("go")
        client.project.tool("hold", 'echo "$MCP_TOOL_ARGS_FILE" >%s; read -r line <%s; echo done' % (ready, go))
        number = client.send_call("hold", {"password": SECRET})
        with open(ready, encoding="utf-8") as stream:
            spill = stream.read().strip()
        commands = [process.command() for process in client.tree()]
        mode = stat.S_IMODE(os.stat(spill).st_mode)
        with open(go, "w", encoding="ascii") as stream:
            stream.write("\n")
        client.response(number)

        self.assertTrue(any("hold" in command for command in commands), commands)
        self.assertEqual([], [command for command in commands if SECRET in command])
        self.assertEqual(0o600, mode)
        self.assertFalse(os.path.exists(spill))

    def test_payload_logs_are_redacted_and_private(self):
        # EN-09
        jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlLXNpZ25hdHVyZQ"
        client = self.start({"MCPBASH_DEBUG_PAYLOADS": "true"})
        arguments = {
            "Authorization": "Bearer abcdefghijklmno",
            "deep": [{"apiKey": SECRET}],
            "note": "see " + jwt,
            "plain": "visible",
        }
        seen = self.given(client, arguments)
        path = os.path.join(os.path.dirname(seen["env"]["MCP_TOOL_ERROR_FILE"]), "payload.debug.log")
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        sent = [line for line in text.split("\n") if "|in|" in line and "tools/call" in line]

        self.assertEqual(0o600, stat.S_IMODE(os.stat(path).st_mode))
        self.assertEqual(1, len(sent), text[:500])
        self.assertIn("visible", sent[0])
        for secret in ("abcdefghijklmno", SECRET, jwt):
            self.assertNotIn(secret, sent[0])

    def test_nothing_said_about_failures_holds_arguments_paths_or_tracebacks(self):
        # EN-08
        project = self.new_project()
        project.tool("missing", "#!/no/such/interpreter\n")
        project.tool("open", "echo", mode=0o777)
        project.file("tools/broken.sh", "#!/bin/sh\n", 0o755)
        project.file("tools/broken.meta.json", "{")
        project.file("server.d/server.meta.json", "{")
        project.tool("odd", """echo '{"content":[],"isError":false,"_meta":5}'""")
        project.tool("infinite", "echo 1e999")
        client = self.new_client(project)
        client.initialize()
        client.request("tools/list", {"cursor": SECRET})
        for name in ("missing", "open", "broken", "odd", "infinite", "unknown"):
            client.request("tools/call", {"name": name, "arguments": {"password": SECRET}})
        client.request("tools/call", {"name": "odd", "arguments": SECRET})
        client.request("tools/call", {"name": ["x"], "arguments": {}})
        client.fence()
        heard = [
            message
            for message in client.messages
            if "error" in message or message.get("method") == "notifications/message"
        ]

        self.assertGreater(len(heard), 6)
        for message in heard:
            with self.subTest(message=json.dumps(message)[:200]):
                text = json.dumps(message)
                self.assertNotIn(SECRET, text)
                self.assertNotIn(project.base, text)
                self.assertNotRegex(text, r"Traceback|\(\w+:\d+ <")
        self.assertNotIn(SECRET, client.stderr)


    def test_a_bug_of_the_server_is_told_by_a_number_and_explained_in_its_own_log_only(self):
        # EN-08: the handler is made to fail here, so that no mended bug can make this test pass
        project = self.new_project()
        script = project.file(
            "../broken.py",
            "import sys\nsys.path.insert(0, %r)\nimport mcp_bash\n"
            "def fail(ctx, params):\n    raise KeyError(%r + ctx.server.project.root)\n"
            "mcp_bash.HANDLERS['tools/list'] = fail\nmcp_bash.main(sys.argv[1:])\n" % (support.ROOT, SECRET),
        )
        client = self.new_client(project, command=[support.PYTHON, script, "--project-root", project.root])
        client.initialize()
        client.result("logging/setLevel", {"level": "debug"})
        error = client.error("tools/list")
        client.fence()
        self.assertEqual(-32603, error["code"])
        number = re.search(r"incident ([0-9a-f]+)", error["message"])
        self.assertIsNotNone(number, error)
        self.assertIn("KeyError", client.wait_stderr(number.group(1)))
        heard = json.dumps(client.messages)
        for words in ("KeyError", SECRET, project.base, "drive:"):
            with self.subTest(words=words):
                self.assertNotIn(words, heard)


class SpillTest(Given):
    def spilled(self, seen: dict, json_name: str, file_name: str) -> str:
        """Return the payload, having seen that it came in exactly one way."""
        self.assertEqual("", seen["env"][json_name] if file_name in seen["files"] else "")
        if file_name in seen["files"]:
            self.assertEqual(0o600, seen["files"][file_name]["mode"])
            return seen["files"][file_name]["text"]
        self.assertNotIn(file_name, seen["env"])
        return seen["env"][json_name]

    def test_large_arguments_travel_in_private_files_and_arrive_whole(self):
        # EN-06, PR-02
        client = self.start()
        rows = (  # text, arrives in a file
            ("x" * 1000, False),
            ("x" * 70000, True),
            ("\U0001f389" * 50000, True),  # 200 KB as UTF-8, 600 KB with escapes
            ("x" * 3_000_000, True),
        )
        for text, in_file in rows:
            with self.subTest(length=len(text)):
                seen = self.given(client, {"t": text})
                payload = self.spilled(seen, "MCP_TOOL_ARGS_JSON", "MCP_TOOL_ARGS_FILE")

                self.assertEqual(in_file, "MCP_TOOL_ARGS_FILE" in seen["files"])
                self.assertEqual({"t": text}, json.loads(payload))
                if len(payload) > mcp_bash.FLAT_LIMIT:
                    self.assertEqual([], [name for name in seen["env"] if name.startswith("MCP_ARGS_FLAT")])
                else:
                    self.assertEqual(text, decode_flat(self.spilled(seen, "MCP_ARGS_FLAT", "MCP_ARGS_FLAT_FILE"))["t"])
                gone = [
                    seen["env"][name] for name in ("MCP_TOOL_ARGS_FILE", "MCP_ARGS_FLAT_FILE") if name in seen["env"]
                ]
                self.assertEqual([], [path for path in gone if os.path.exists(path)])

    def test_the_threshold_is_exact_and_in_bytes(self):
        client = self.start({"MCPBASH_ENV_PAYLOAD_THRESHOLD": "100"})
        frame = len('{"t":""}')
        for length, in_file in ((100 - frame, False), (101 - frame, True)):
            with self.subTest(length=length):
                seen = self.given(client, {"t": "x" * length})

                self.assertEqual(in_file, "MCP_TOOL_ARGS_FILE" in seen["files"])

    def test_threshold_0_means_always_a_file(self):
        client = self.start({"MCPBASH_ENV_PAYLOAD_THRESHOLD": "0"})
        seen = self.given(client, {"a": 1})
        for json_name, file_name in (
            ("MCP_TOOL_ARGS_JSON", "MCP_TOOL_ARGS_FILE"),
            ("MCP_TOOL_META_JSON", "MCP_TOOL_META_FILE"),
            ("MCP_TOOL_METADATA_JSON", "MCP_TOOL_METADATA_FILE"),
        ):
            with self.subTest(name=file_name):
                self.assertIn(file_name, seen["files"])
                self.assertIsInstance(json.loads(self.spilled(seen, json_name, file_name)), dict)

    def test_large_request_metadata_and_large_tool_metadata_spill_too(self):
        client = self.start(meta={"description": "d" * 100000})
        seen = self.given(client, meta={"com.example/k": "v" * 100000})

        self.assertEqual(
            "v" * 100000, json.loads(self.spilled(seen, "MCP_TOOL_META_JSON", "MCP_TOOL_META_FILE"))["com.example/k"]
        )
        self.assertEqual(
            "d" * 100000,
            json.loads(self.spilled(seen, "MCP_TOOL_METADATA_JSON", "MCP_TOOL_METADATA_FILE"))["description"],
        )
        flat = decode_flat(self.spilled(seen, "MCP_META_FLAT", "MCP_META_FLAT_FILE"))
        self.assertEqual("v" * 100000, flat["com.example/k"])

    def test_nul_and_lone_surrogates_arrive_through_the_json(self):
        # PR-06, PR-07
        client = self.start()
        for text in ("a\0b", "\ud800", "\udc80x", "\x1d\x1e\x1f", "\n\t\x7f\x85"):
            for threshold_pad in ("", "x" * 70000):
                with self.subTest(text=text.encode("unicode_escape"), spilled=bool(threshold_pad)):
                    message = {"jsonrpc": "2.0", "id": client.new_id(), "method": "tools/call"}
                    arguments = {"t": text, text: 1, "pad": threshold_pad}
                    message["params"] = support.stateless({"name": "show", "arguments": arguments})
                    client.send_raw(json.dumps(message).encode("ascii") + b"\n")
                    seen = json.loads(support.text_of(client.response(message["id"])["result"]))
                    payload = self.spilled(seen, "MCP_TOOL_ARGS_JSON", "MCP_TOOL_ARGS_FILE")

                    self.assertEqual(arguments, json.loads(payload))


# -- the flattened form: RS PATH US KIND VALUE ... RS

STEP = re.compile(r'\.(?P<name>[A-Za-z_][A-Za-z0-9_]*)|\.?\[(?:(?P<index>\d+)|(?P<key>"(?:[^"\\]|\\.)*"))\]')


def unescape(text: str) -> str:
    """Undo the escapes of the separators."""
    return re.sub(ESCAPE + "(.)", lambda found: {"d": "\x1d", "e": "\x1e", "f": "\x1f"}[found.group(1)], text)


def steps_of(path: str) -> list:
    """Return a jq path as keys and positions; the empty list is the root."""
    if path == ".":
        return []
    steps, at = [], 0
    while at < len(path):
        found = STEP.match(path, at)
        if not found:
            raise ValueError("not a path: %r" % path)
        if found.group("index") is not None:
            steps.append(int(found.group("index")))
        else:
            steps.append(found.group("name") if found.group("key") is None else json.loads(found.group("key")))
        at = found.end()
    return steps


def entries_of(text: str) -> list[tuple[list, str, str]]:
    """Return the entries of a flat text as (steps, kind, value), escapes undone."""
    if not (text.startswith(RS) and text.endswith(RS) and len(text) > 1):
        raise ValueError("not framed: %r" % text[:50])
    entries = []
    for entry in text[1:-1].split(RS):
        path, _, rest = entry.partition(US)
        entries.append((steps_of(unescape(path)), rest[:1], rest[1:]))
    return entries


def value_of(kind: str, value: str):
    """Return what one entry stands for; containers are empty and filled by their members' entries."""
    if kind == "s":
        return unescape(value)
    if kind in "nbx":
        return json.loads(value)
    if kind == "z" and not value:
        return None
    if kind in "oa":
        return {} if kind == "o" else []
    raise ValueError("unknown kind %r" % kind)


def decode_flat(text: str):
    """Rebuild the JSON value from its flat form, from the entries of the leaves alone where there are any."""
    entries = entries_of(text)
    holder: dict = {}
    for steps, kind, value in entries:
        place, last = holder, "root"
        for step in steps:
            place, last = place[last], step
        item = value_of(kind, value)
        if kind in "oa":
            count, _, document = value.partition(US)
            whole = json.loads(unescape(document))
            if int(count) != len(whole) or len(steps) == 16:
                item = whole  # below this level there is the document only
        if isinstance(place, list):
            if last != len(place):
                raise ValueError("out of order: %r" % steps)
            place.append(item)
        else:
            place[last] = item
    return holder["root"]


class FlatTest(support.Case):
    KEYS = (
        "a",
        "_x9",
        "x y",
        "",
        "é",
        "a.b",
        "a[0]",
        '"',
        "\\",
        "\x1d",
        "\x1e",
        "\x1f",
        "\n",
        "\0",
        "9",
        "\ud800",
        "🎉",
        "]",
        "[",
        ".",
    )
    TEXTS = (
        "",
        "plain",
        "two\nlines",
        "\x1d",
        "\x1e\x1f\x1d",
        "\x1dd",
        "é🎉\u2028",
        "a\0b",
        '"quoted" \\',
        " ",
        "\ud800x",
        "null",
        "5",
    )
    NUMBERS = (0, -1, 5, 2**53, 10**30, 0.5, -0.0, 1e300, 5e-324, 1.0)

    def random_value(self, source: random.Random, depth: int):
        """Return a random JSON value."""
        kind = source.randrange(9 if depth < 6 else 6)
        if kind == 0:
            return None
        if kind == 1:
            return source.random() < 0.5
        if kind == 2:
            return source.choice(self.NUMBERS)
        if kind < 6:
            return source.choice(self.TEXTS) if source.random() < 0.7 else self.random_text(source)
        size = source.randrange(4)
        if kind == 6:
            return [self.random_value(source, depth + 1) for _ in range(size)]
        names = [source.choice(self.KEYS) if source.random() < 0.8 else self.random_text(source) for _ in range(size)]
        return {name: self.random_value(source, depth + 1) for name in names}

    @staticmethod
    def random_text(source: random.Random) -> str:
        """Return text of characters that may mean something to somebody."""
        return "".join(
            chr(source.choice((*range(0, 128), 0xE9, 0x2028, 0x1F389, 0xD800))) for _ in range(source.randrange(12))
        )

    def test_decoding_gives_the_value_back(self):
        source = random.Random(SEED)
        for number in range(ROUNDS):
            value = {"root": self.random_value(source, 0)} if number % 2 else self.random_value(source, 0)
            flat = mcp_bash.flatten(value)
            again = decode_flat(flat)

            self.assertEqual(repr(value), repr(again), "seed %d, round %d" % (SEED, number))
            self.assertNotIn("\0", flat)

    def test_the_json_of_every_container_is_its_own(self):
        source = random.Random(SEED + 1)
        for number in range(ROUNDS // 5):
            value = self.random_value(source, 0)
            for steps, kind, text in entries_of(mcp_bash.flatten(value)):
                part = value
                for step in steps:
                    part = part[step]
                if kind in "oa":
                    count, _, document = text.partition(US)
                    self.assertEqual(len(part), int(count))
                    self.assertEqual(repr(part), repr(json.loads(document)), "seed %d, round %d" % (SEED + 1, number))
                    self.assertEqual(json.dumps(part, separators=(",", ":")), document)

    ROWS = (  # value, entries with | for RS and = for US
        ({}, "|.=o0={}|"),
        ({"n": 5}, '|.=o1={"n":5}|.n=n5|'),
        ({"a": [True, None]}, '|.=o1={"a":[true,null]}|.a=a2=[true,null]|.a[0]=btrue|.a[1]=z|'),
        ({"x y": {"b": "s"}}, '|.=o1={"x y":{"b":"s"}}|.["x y"]=o1={"b":"s"}|.["x y"].b=ss|'),
        ({"a": {"x y": 1}}, '|.=o1={"a":{"x y":1}}|.a=o1={"x y":1}|.a["x y"]=n1|'),
        ({"é": 1.5}, '|.=o1={"\\u00e9":1.5}|.["é"]=n1.5|'),
        ({"a": "t\0u"}, '|.=o1={"a":"t\\u0000u"}|.a=x"t\\u0000u"|'),
        ({"a": "\x1d\x1e\x1f"}, '|.=o1={"a":"\\u001d\\u001e\\u001f"}|.a=s\x1dd\x1de\x1df|'),
        ([1], "|.=a1=[1]|.[0]=n1|"),
        ({"": 1}, '|.=o1={"":1}|.[""]=n1|'),
    )

    def test_the_documented_form_to_the_byte(self):
        for value, expected in self.ROWS:
            with self.subTest(value=value):
                self.assertEqual(expected, mcp_bash.flatten(value).replace(RS, "|").replace(US, "="))

    def test_deep_values_are_bounded(self):
        value: dict = {"leaf": 1}
        for _ in range(40):
            value = {"a": value}
        entries = entries_of(mcp_bash.flatten(value))

        self.assertEqual(17, len(entries))
        self.assertEqual(16, max(len(steps) for steps, _, _ in entries))
        self.assertEqual(repr(value), repr(decode_flat(mcp_bash.flatten(value))))

    def test_the_size_stays_near_that_of_the_document(self):
        """Containers repeat their JSON at every level; the depth bound keeps that from exploding."""
        wide = {"k%d" % number: list(range(20)) for number in range(500)}

        self.assertLess(len(mcp_bash.flatten(wide)), 6 * len(json.dumps(wide)))

    def test_a_tool_gets_exactly_this(self):
        given = Given("start")
        given.new_project, given.new_client = self.new_project, self.new_client
        client = given.start()
        source = random.Random(SEED + 2)
        for number in range(30):
            value = {"v": self.random_value(source, 0)}
            message = {"jsonrpc": "2.0", "id": client.new_id(), "method": "tools/call"}
            message["params"] = support.stateless(
                {"name": "show", "arguments": value, "_meta": {"com.example/m": number}}
            )
            client.send_raw(json.dumps(message).encode("ascii") + b"\n")
            seen = json.loads(support.text_of(client.response(message["id"])["result"]))
            expected = mcp_bash.flatten(value).encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")

            self.assertEqual(expected, seen["env"]["MCP_ARGS_FLAT"])
            self.assertEqual(number, decode_flat(seen["env"]["MCP_META_FLAT"])["com.example/m"])

    def test_numbers_arrive_as_they_were_written(self):
        project = self.new_project()
        project.tool("x", 'printf %s "$MCP_TOOL_ARGS_JSON"')
        client = self.new_client(project)
        frame = '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}\n'
        params = '{"name":"x","arguments":{"n":%s},"_meta":%s}'
        meta = json.dumps(support.stateless()["_meta"])
        for literal in ("0", "-1", "9007199254740993", "1" * 400, "0.1", "1e+308", "5e-324", "-0.0", "1.0"):
            with self.subTest(literal=literal[:20]):
                number = client.new_id()
                client.send_raw((frame % (number, params % (literal, meta))).encode("ascii"))

                self.assertEqual('{"n":%s}' % literal, support.text_of(client.response(number)["result"]))


if __name__ == "__main__":
    unittest.main()
