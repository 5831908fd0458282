# -*- test-case-name: tests.interop.test_versions -*-
"""Other versions of Java DLedger: 0.2.7 and 0.3.1.3 are peers, 0.4.0 is refused."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import AppendRequest
from tests.interop.java import JavaMissing, class_path
from tests.interop.mixed import DEADLINE_S, JAVA, OURS, MixedGroup
from tests.interop.test_mixed_groups import bodies
from tests.processes.asking import Asker, NoAnswer, ask
from tests.processes.children import wait_until
from tests.slowness import patient
from tests.wire.golden import PUSHES_0_4


class VersionTests(SynchronousTestCase):
    """Groups with Java members of another version than 0.3.1.2."""

    def group_of(
        self, version: str, *kinds: str, start: tuple[str, ...] = (),
        ours: dict[str, object] | None = None, **java: object,
    ) -> MixedGroup:
        """
        A group of which these members, or all, are started; it is ended after the test.

        @param ours: options of our members; C{java}: of Java's.
        """
        try:
            class_path(version)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        if start:  # a new group of which a member is missing
            ours = {"bootstrap": True, **(ours or {})}
        group = MixedGroup(Path(held.name), kinds, java=java, ours=ours, version=version)
        self.addCleanup(group.kill)
        group.start(*start)
        return group

    def play(self, version: str, **java: object) -> None:
        """Two members of that version and one of ours: each kind leads, one of each is killed and returns."""
        group = self.group_of(version, JAVA, JAVA, OURS, **java)
        for leader_id in ("n2", "n0"):
            group.lead(leader_id)
            group.append(*bodies(f"under {leader_id}", 3))
            group.append_pipelined(bodies(f"many under {leader_id}", 200))
        for peer_id in ("n0", "n2"):
            group.members[peer_id].kill()
            group.append(*bodies(f"without {peer_id}", 5))
            group.start(peer_id)
            group.append(b"with it")
        group.check()

    def test_0_2_7(self) -> None:
        """A member of 0.2.7 follows ours and leads it."""
        self.play("0.2.7")

    def test_0_2_7_in_batches(self) -> None:
        """The same with its batches, whose answers 0.2.7 reads differently."""
        self.play("0.2.7", enableBatchPush=True)

    def test_0_3_1_3(self) -> None:
        """A member of 0.3.1.3 follows ours and leads it."""
        self.play("0.3.1.3", enableBatchPush=True)

    def test_0_4_0_follows(self) -> None:
        """A follower of 0.4.0 answers SUCCESS to pushes that it has not understood; that does not count."""
        group = self.group_of("0.4.0", OURS, OURS, JAVA, start=("n0", "n1"))
        leader_id = group.leader()
        other_id, = {"n0", "n1"} - {leader_id}
        group.start("n2")
        group.leader()
        group.members[other_id].kill()
        request = AppendRequest(group=group.name, remote_id=leader_id, bodies=(b"nobody else has it",))
        answer = ask(group.peers[leader_id], request, seconds=20.0)
        self.assertIs(answer.code, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        leader = group.members[leader_id]
        wait_until(
            lambda: "DLedger 0.4 peer" in leader.log_path.read_text(), seconds=DEADLINE_S,
            what="a line about a peer of 0.4 in our log",
        )
        said = leader.metadata()  # type: ignore[union-attr]
        assert said is not None
        self.assertEqual((said.end_index, said.committed_index), (0, -1))
        self.assertEqual(group.members["n2"].status()["end"], "-1")  # type: ignore[union-attr]

    def test_0_4_0_led_by_ours(self) -> None:
        """A leader of ours that two members of 0.4.0 do not understand gives way to one that they do."""
        deadline = time.monotonic() + patient(DEADLINE_S)
        # A Java member asks for votes when it starts, and then so seldom that we win the first election.
        group = self.group_of(
            "0.4.0", JAVA, JAVA, OURS, start=("n0",), minVoteIntervalMs=6_000, maxVoteIntervalMs=7_000,
            ours={"max_vote_interval_ms": 120},
        )
        ours = group.members["n2"]
        group.start("n2")
        while group.leader() != "n2":
            group.kill()  # on a busy machine ours was slower nevertheless
            self.assertLess(time.monotonic(), deadline, "n2 never led")
            group.start("n0")
            group.start("n2")
        group.start("n1")
        # Even before the first append it learns that neither understands its pushes, and gives way. It does
        # not follow them either, so the two of them are the group.
        wait_until(
            lambda: "stepping-down reason=a quorum does not understand" in ours.log_path.read_text(),
            seconds=DEADLINE_S, what="a leader of ours that gives way",
        )

        def appended() -> bool:
            for peer_id in ("n0", "n1"):
                request = AppendRequest(group=group.name, remote_id=peer_id, bodies=(b"under Java",))
                with contextlib.suppress(NoAnswer):
                    if ask(group.peers[peer_id], request).code is ResponseCode.SUCCESS:
                        return True
            return False

        wait_until(appended, seconds=DEADLINE_S, what="an append under 0.4.0")
        said = ours.metadata()  # type: ignore[union-attr]
        assert said is not None
        self.assertEqual((said.role, said.leader_id, said.committed_index), ("follower", None, -1))

    def test_0_4_0(self) -> None:
        """Pushes of a leader of 0.4.0 are refused with 411, the reason is logged, no entry is written."""
        # Followers of 0.4.0 accept no entry from a leader of ours, so ours must not win the election.
        group = self.group_of("0.4.0", JAVA, JAVA, OURS, ours={"never_lead": True})
        ours = group.members["n2"]
        group.append(b"something to push")
        wait_until(
            lambda: "DLedger 0.4 peer" in ours.log_path.read_text(), seconds=DEADLINE_S,
            what="a line about a peer of 0.4 in our log",
        )
        with Asker(ours.address) as asker:
            for body in PUSHES_0_4:
                opaque = asker.send_body(RequestCode.PUSH, body)
                self.assertIs(asker.collect(opaque).code, ResponseCode.UNEXPECTED_ARGUMENT)
        answer = ours.metadata()  # type: ignore[union-attr]
        assert answer is not None
        self.assertEqual(answer.end_index, -1)
