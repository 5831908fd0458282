# -*- test-case-name: tests.machine.test_asked_snapshots -*-
"""Snapshots that an operator asks for are taken at once, or refused with the reason."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.machine.rig import HostedRig


class AskedTests(SynchronousTestCase):
    """A snapshot that an operator asks for."""

    def test_an_operator_gets_a_snapshot(self) -> None:
        """At once, also where none are due by entries or bytes; the next start takes it up."""
        rig = HostedRig().run()
        rig.append(b"a", b"b")
        rig.machine_thread.is_lazy = True
        self.assertEqual(rig.node.ask_snapshot(), "")
        self.assertEqual(rig.node.ask_snapshot(), "a snapshot is being written")
        self.assertTrue(rig.runner.status().is_writing)
        rig.machine_thread.is_lazy = False
        rig.machine_thread.finish()
        rig.clock.advance(1)
        rig.pass_turns()
        status = rig.runner.status()
        self.assertEqual((status.snapshot_index, status.snapshots, status.is_writing), (2, 1, False))
        self.assertEqual(
            rig.node.ask_snapshot(), "there is a snapshot of the state after the entry 2"
        )
        rig.append(b"c")
        self.assertEqual(rig.runner.status().snapshots, 1)

    def test_a_snapshot_is_not_finished_in_doubt(self) -> None:
        """The state may have become doubtful while it was written; nobody may take it up."""
        rig = HostedRig().run()
        rig.append(b"a", b"b")
        rig.machine_thread.is_lazy = True
        self.assertEqual(rig.node.ask_snapshot(), "")
        rig.runner.in_doubt = "others have another state"
        rig.machine_thread.is_lazy = False
        rig.machine_thread.finish()
        rig.clock.advance(1)
        rig.pass_turns()
        status = rig.runner.status()
        self.assertEqual((status.snapshots, status.is_writing), (0, False))
        self.assertEqual(list(rig.snapshots.heads), [])

    def test_a_snapshot_is_refused_without_a_machine(self) -> None:
        """Where there is no machine, none that runs, or nowhere to keep it."""
        rig = HostedRig().lead()
        self.assertEqual(rig.node.ask_snapshot(), "the state machine is starting")
        rig.runner.start()
        rig.pass_turns()
        self.assertEqual(rig.node.ask_snapshot(), "")
        rig.runner.in_doubt = "others have another state"
        self.assertEqual(rig.node.ask_snapshot(), "others have another state")
        rig.runner.in_doubt = ""
        rig.runner._writer = None
        self.assertEqual(rig.node.ask_snapshot(), "this member keeps no snapshots")
        rig.node.machine_requests.hosting = None
        self.assertEqual(rig.node.ask_snapshot(), "this member runs no state machine")
