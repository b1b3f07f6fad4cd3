#!/usr/bin/env python3
"""Room 17: what the server does by itself: the idle timeout and the end after a shutdown.

Stale directories and the death of the client are in test_containment.py, changed lists in test_registry.py.
"""

from __future__ import annotations

import unittest

import support


class IdleTest(support.Case):
    def test_a_server_nobody_talks_to_ends_with_a_note(self):
        project = self.new_project()
        project.tool("echo", "echo hi")
        client = self.new_client(project, env={"MCPBASH_IDLE_TIMEOUT": "1"})
        client.initialize()

        self.assertEqual(0, client.process.wait(support.patient(15)))
        self.assertIn("idle timeout after 1s", client.wait_stderr("idle timeout", timeout=5))

    def test_a_client_that_waits_for_an_answer_is_not_idle(self):
        project = self.new_project()
        project.tool("slow", "sleep 3; echo done")
        client = self.new_client(project, env={"MCPBASH_IDLE_TIMEOUT": "1"})
        client.initialize()

        self.assertEqual("done\n", client.text("slow", timeout=20))

    def test_zero_and_the_switch_turn_it_off(self):
        off = {"MCPBASH_IDLE_TIMEOUT": "1", "MCPBASH_IDLE_TIMEOUT_ENABLED": "false"}
        for env in ({"MCPBASH_IDLE_TIMEOUT": "0"}, off):
            project = self.new_project()
            project.tool("slow", "sleep 2; echo done")
            client = self.new_client(project, env=env)
            client.initialize()
            client.text("slow", timeout=20)  # longer than the timeout that is off

            self.assertEqual({}, client.result("ping"))


class ShutdownTest(support.Case):
    def test_without_exit_the_server_ends_after_the_shutdown_timeout(self):
        client = self.new_client(self.new_project(), env={"MCPBASH_SHUTDOWN_TIMEOUT": "1"})
        client.initialize()
        self.assertEqual({}, client.result("shutdown"))

        self.assertEqual(0, client.process.wait(support.patient(10)))


if __name__ == "__main__":
    unittest.main()
