# -*- test-case-name: tests.interop.test_stray_leader -*-
"""
A member of ours and a Java leader that are in different terms find together again.

A Java leader that keeps its quorum ignores a refusal that carries a higher term, and a Java follower with a
longer log refuses a candidate without adopting its term. So a member of ours must not raise its term where
it cannot win, and must bring the group up to its term when it is ahead all the same.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.storage.files.term_file import TERM_FILE_NAME, encode_term
from tests.interop.java import JavaMember, JavaMissing, class_path
from tests.interop.mixed import DEADLINE_S, JAVA, OURS, MixedGroup
from tests.interop.test_mixed_groups import bodies
from tests.processes.children import wait_until

#: Terms that the member of ours is ahead.
AHEAD = 7


class StrayLeaderTests(SynchronousTestCase):
    """Two Java members, and n2 of ours."""

    def group_led_by_java(self) -> MixedGroup:
        """A started group that n0 leads, and that is ended after the test."""
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        group = MixedGroup(Path(held.name), (JAVA, JAVA, OURS))
        self.addCleanup(group.kill)
        group.start()
        group.lead("n0")
        group.append(*bodies("before", 3))
        return group

    def terms(self, group: MixedGroup) -> dict[str, int]:
        """The term of every member; -1 while a member does not answer."""
        found = {}
        for peer_id, member in group.members.items():
            if isinstance(member, JavaMember):
                found[peer_id] = int(member.status()["term"])
            else:
                said = member.metadata()
                found[peer_id] = -1 if said is None else said.term
        return found

    def test_member_that_is_ahead(self) -> None:
        """Its term file names a much higher term: the group comes up to it, and replicates to it again."""
        group = self.group_led_by_java()
        before = self.terms(group)["n0"]
        member = group.members["n2"]
        member.stop()
        group.append(*bodies("without it", 20))
        path = member.directory / "dledger-n2" / TERM_FILE_NAME
        path.write_bytes(encode_term(before + AHEAD, "n2"))
        group.start("n2")

        def together() -> bool:
            return len(set(self.terms(group).values())) == 1

        wait_until(together, seconds=DEADLINE_S, what="members of one term", every=0.2)
        self.assertGreaterEqual(self.terms(group)["n2"], before + AHEAD)
        group.append(*bodies("together", 3))
        group.check()

    def test_frozen_java_leader(self) -> None:
        """
        Both Java members freeze while ours is behind them, and thaw once ours has missed the leader.

        The follower, thawed first, knows no leader for a moment. Ours asks it, learns that its log is longer,
        and does not leave the term.
        """
        group = self.group_led_by_java()
        ours = group.members["n2"]
        ours.pause()
        group.propose("n0", bodies("while ours is frozen", 30))
        wait_until(
            lambda: group.members["n1"].status()["end"] == group.members["n0"].status()["end"],
            seconds=DEADLINE_S, what="the Java follower has them", every=0.1,
        )
        for peer_id in ("n0", "n1"):
            group.members[peer_id].pause()
        ours.resume()

        def missed() -> bool:
            said = ours.metadata()
            return said is not None and said.leader_id is None

        wait_until(missed, seconds=DEADLINE_S, what="ours has missed its leader", every=0.05)
        group.members["n1"].resume()
        time.sleep(0.5)  # for the question and its answer, but not for an election
        group.members["n0"].resume()
        group.append(*bodies("thawed", 3))
        group.check()
        self.assertEqual(len(set(self.terms(group).values())), 1)
