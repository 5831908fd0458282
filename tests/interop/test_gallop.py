# -*- test-case-name: tests.interop.test_gallop -*-
"""
A member comes back with thirty thousand entries that no other member has; our leader finds the beginning
of these entries with few COMPAREs (docs/divergence.md W12).

The member writes the entries as a leader that has lost its followers. Then the others continue without it,
and commit as many entries of their own.
"""

from __future__ import annotations

import sys
import tempfile
from math import log2
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import AppendRequest
from tests.interop.java import JavaMember, JavaMissing, class_path
from tests.interop.mixed import DEADLINE_S, JAVA, OURS, MixedGroup
from tests.interop.pushes import PushTap
from tests.interop.test_mixed_groups import bodies
from tests.processes.asking import Asker, NoAnswer, ask
from tests.processes.children import wait_until
from tests.processes.ledgers import read_records

COMMON = 1_000
TAIL = 30_000
AT_ONCE = 2_000
SIZES = {"mapped_file_size_for_entry_data": 1 << 23, "mapped_file_size_for_entry_index": 32 << 16}
JAVA_SIZES = {"mappedFileSizeForEntryData": 1 << 23, "mappedFileSizeForEntryIndex": 32 << 16}


class GallopTests(SynchronousTestCase):
    """n0 has its own tail, n1 and n2 are ours and have continued."""

    def setUp(self) -> None:
        """The directory."""
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)

    def group_of(
        self, *kinds: str, java: dict[str, object] | None = None, only: dict[str, object] | None = None,
        tap: PushTap | None = None,
    ) -> MixedGroup:
        """A group, not started; ended after the test."""
        group = MixedGroup(
            self.directory, kinds, java={**JAVA_SIZES, **(java or {})}, ours=SIZES, only=only,
            lossy=tap is not None, tap=tap.tap if tap is not None else None,
        )
        self.addCleanup(group.kill)
        return group

    def write_alone(self, group: MixedGroup, peer_id: str) -> None:
        """Append L{TAIL} entries at a leader without followers: none is acknowledged, its files have all."""
        native = group.kinds[peer_id] == OURS
        many, at_once = bodies("alone", TAIL, 20), AT_ONCE if native else 1
        before = self.end_of(group, peer_id)
        with Asker(group.peers[peer_id], native=native, seconds=60.0) as asker:
            for first in range(0, TAIL, at_once):
                asker.send(AppendRequest(
                    group=group.name, remote_id=peer_id, bodies=tuple(many[first : first + at_once])
                ))
            while (end := self.end_of(group, peer_id)) < before + TAIL:
                # (As long as it goes on, a busy machine may take as long as it takes.)
                wait_until(
                    lambda end=end: self.end_of(group, peer_id) > end, seconds=DEADLINE_S, every=0.2,
                    what=f"more of {TAIL} entries at {peer_id} than up to {end}",
                )

    def write(self, group: MixedGroup) -> None:
        """Append as many entries at a leader of ours, each acknowledged."""
        many = bodies("the others", TAIL, 20)
        for first in range(0, TAIL, AT_ONCE):
            wait_until(
                lambda chunk=tuple(many[first : first + AT_ONCE]): self.is_taken(group, chunk),
                seconds=DEADLINE_S, what="an acknowledgement",
            )

    def is_taken(self, group: MixedGroup, chunk: tuple[bytes, ...]) -> bool:
        """Whether a leader acknowledges these bodies."""
        leader_id = group.leader()
        request = AppendRequest(group=group.name, remote_id=leader_id, bodies=chunk)
        try:
            answer = ask(group.peers[leader_id], request, native=True, seconds=20.0)
        except NoAnswer:
            return False
        return answer.code is ResponseCode.SUCCESS

    def end_of(self, group: MixedGroup, peer_id: str) -> int:
        """The last index of a member's ledger."""
        member = group.members[peer_id]
        if isinstance(member, JavaMember):
            return int(member.status()["end"])
        said = member.metadata(seconds=20.0)
        assert said is not None, f"{peer_id} does not answer"
        return said.end_index

    def count(self, name: str) -> int:
        """Number of entries of n0 whose bodies begin with C{name}."""
        ledger = self.directory / "n0" / "dledger-n0"
        return sum(record.body.startswith(name.encode()) for record in read_records(ledger))

    def come_back(self, kind: str) -> None:
        """A member of this kind comes back to a leader of ours."""
        # The leader stays one without its followers for three times this, and accepts entries that they do
        # not acknowledge. On a busy machine Java takes more than 90 s for all of them.
        group = self.group_of(
            kind, OURS, OURS, java={"heartBeatTimeIntervalMs": 120_000, "maxPendingRequestsNum": 2 * TAIL},
            only={"heart_beat_time_interval_ms": 120_000},
        )
        group.start()
        group.lead("n0")
        group.append_pipelined(bodies("common", COMMON))
        end_index = group.check()
        for peer_id in ("n1", "n2"):
            group.members[peer_id].kill()
        self.write_alone(group, "n0")
        group.kill()
        self.assertEqual(self.count("alone"), TAIL)
        tap = PushTap("n0")
        group = self.group_of(kind, OURS, OURS, tap=tap)
        group.start("n1", "n2")
        group.append(b"a new term")
        self.write(group)
        group.start("n0")
        self.assertTrue(tap.wait(seconds=DEADLINE_S), f"no APPEND was accepted: {tap.pushes[-12:]}")
        self.judge(kind, tap)
        self.assertGreater(group.wait_equal(seconds=2 * DEADLINE_S), end_index + TAIL)
        group.check()
        self.assertEqual(self.count("alone"), 0)

    def judge(self, kind: str, tap: PushTap) -> None:
        """There is one TRUNCATE, after a search in doubling steps and halves; the time is only printed."""
        accepted = next(push for push in tap.pushes if push.type is PushType.APPEND and push.code is not None)
        before = tap.pushes[: tap.pushes.index(accepted)]
        asked = [push for push in before if push.type is PushType.COMPARE and push.answered]
        cuts = [push for push in before if push.type is PushType.TRUNCATE]
        sys.stdout.write(
            f"\ngallop, {kind} follower: {len(asked)} COMPAREs, TRUNCATE done"
            f" {cuts[0].answered - asked[0].sent:.3f} s after the first,"
            f" {cuts[0].answered - tap.connected:.3f} s after the connection,"
            f" first APPEND accepted after {accepted.answered - tap.connected:.3f} s\n"
        )
        self.assertEqual([push.code for push in cuts], [ResponseCode.SUCCESS])
        # Down in doubling steps, then by halves; the first one or two find the follower's end.
        # One is asked again if the follower did not follow yet, or if its TRUNCATE takes long.
        indexes = {push.index for push in asked}
        self.assertLessEqual(len(indexes), 2 * log2(TAIL) + 4)
        self.assertLessEqual(len(asked), 2 * len(indexes))
        self.assertGreater(len(indexes), log2(TAIL), "there was nothing to search")

    def test_java_follower(self) -> None:
        """A Java 0.3.1.2 member comes back with its own tail."""
        self.come_back(JAVA)

    def test_our_follower(self) -> None:
        """A member of ours comes back with its own tail."""
        self.come_back(OURS)
