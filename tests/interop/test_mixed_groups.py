# -*- test-case-name: tests.interop.test_mixed_groups -*-
"""
Java members and ours in one group: as leader, as follower, after a restart, and with a tail to cut.

Every test ends with the files of all three members compared byte for byte.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.storage.start.verify import verify_directory
from tests.interop.java import JavaMissing, class_path
from tests.interop.load import Load
from tests.interop.mixed import DEADLINE_S, JAVA, OURS, MixedGroup
from tests.processes.children import wait_until
from tests.processes.ledgers import read_records
from tests.processes.members import Member
from tests.slowness import patient

LARGE_FILE_BYTES = 3 << 20


def bodies(name: str, count: int, size: int = 300) -> list[bytes]:
    """Bodies that no other call makes; many of them fill several small files."""
    return [(b"%s %d;" % (name.encode(), number)).ljust(size, b".") for number in range(count)]


class MixedGroupTests(SynchronousTestCase):
    """Three members of both kinds."""

    def group_of(self, *kinds: str, start: bool = True, **java: object) -> MixedGroup:
        """A group, started if not said otherwise, that is ended after the test."""
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        size = java.get("mappedFileSizeForEntryData")
        ours = {"mapped_file_size_for_entry_data": size} if size else {}
        group = MixedGroup(Path(held.name), kinds, java=java, ours=ours)
        self.addCleanup(group.kill)
        if start:
            group.start()
        return group

    def test_one_of_ours_follows_java(self) -> None:
        """Among two Java members, ours replicates the pushes of a Java leader, entry by entry."""
        group = self.group_of(JAVA, JAVA, OURS)
        group.lead("n0")
        group.append(*bodies("one by one", 5))
        group.append_pipelined(bodies("pipelined", 400))
        self.assertEqual(group.get(3), group.acknowledged.get(3, group.get(3)))
        group.check()

    def test_one_of_ours_follows_batches(self) -> None:
        """With Java's batch push, ours accepts batches of many entries."""
        group = self.group_of(JAVA, JAVA, OURS, enableBatchPush=True)
        group.lead("n1")
        group.append_pipelined(bodies("batched", 500, 60))
        group.append_pipelined(bodies("batched again", 500, 900))
        group.check()

    def test_ours_leads_java(self) -> None:
        """Two Java members follow a leader of ours."""
        group = self.group_of(OURS, JAVA, JAVA)
        group.lead("n0")
        group.append(*bodies("one by one", 5))
        group.append_pipelined(bodies("pipelined", 400))
        group.check()

    def test_one_java_among_ours(self) -> None:
        """A single Java member follows, then leads two of ours."""
        group = self.group_of(OURS, OURS, JAVA)
        group.lead("n0")
        group.append_pipelined(bodies("ours leads", 200))
        group.lead("n2")
        group.append_pipelined(bodies("java leads", 200))
        group.lead("n1")
        group.append_pipelined(bodies("ours leads again", 200))
        group.check()

    def test_new_member_of_an_empty_group(self) -> None:
        """A Java leader without an entry pushes nothing: ours finds out by itself that it lacks nothing."""
        group = self.group_of(JAVA, JAVA, OURS, start=False)
        group.start("n0", "n1")
        group.leader()
        group.start("n2")
        member = group.members["n2"]
        wait_until(
            lambda: "sure-again" in member.log_path.read_text(), seconds=DEADLINE_S, what="n2 being sure"
        )
        said = member.metadata()
        assert said is not None
        self.assertEqual(said.end_index, -1, "nothing was appended")
        group.lead("n2")
        group.check()

    def test_wiped_member_under_load(self) -> None:
        """While a Java leader takes appends without a pause, a wiped member of ours becomes sure."""
        self.wiped_under_load(JAVA, JAVA, OURS)

    def test_wiped_member_beside_one_of_ours(self) -> None:
        """The same with one Java member."""
        self.wiped_under_load(JAVA, OURS, OURS)

    def test_wiped_member_of_five(self) -> None:
        """The same in a group of five."""
        self.wiped_under_load(JAVA, JAVA, OURS, JAVA, OURS)

    def wiped_under_load(self, *kinds: str) -> None:
        """Wipe the last member, wait until its vote counts, and lose the leader: the group goes on."""
        group = self.group_of(*kinds)
        group.lead("n0")
        load = Load(group.peers, group.name, group.acknowledged, seed=1, rate=100.0)
        self.addCleanup(load.close)
        load.go()
        load.wait_acknowledged()
        member = group.members[f"n{len(kinds) - 1}"]
        assert isinstance(member, Member)
        member.kill()
        shutil.rmtree(member.ledger_path)
        sure = member.log_path.read_text().count("sure-again")
        member.start()
        wait_until(lambda: member.log_path.read_text().count("sure-again") > sure, seconds=DEADLINE_S,
                   what=f"{member.self_id} being sure under load")
        load.wait_acknowledged()
        group.members["n0"].kill()
        if len(kinds) == 5:  # three are left, and all of them are needed
            group.members["n1"].kill()
        load.wait_acknowledged(seconds=patient(DEADLINE_S / 2))
        load.pause()
        group.start()
        group.check()

    def test_large_bodies(self) -> None:
        """Entries of a megabyte pass both ways; each fills a whole file or more than half of one."""
        group = self.group_of(JAVA, OURS, OURS, mappedFileSizeForEntryData=LARGE_FILE_BYTES)
        for leader_id in ("n0", "n1"):
            group.lead(leader_id)
            group.append(*bodies(f"large under {leader_id}", 6, 1 << 20))
            group.append(*bodies(f"small under {leader_id}", 6, 10))
        group.check()

    def test_leader_of_either_kind_dies(self) -> None:
        """After SIGKILL of a Java leader ours continues, and the other way round; both come back."""
        group = self.group_of(JAVA, OURS, OURS)
        for peer_id in ("n0", "n1"):
            group.lead(peer_id)
            group.append_pipelined(bodies(f"under {peer_id}", 50))
            group.members[peer_id].kill()
            group.append(*bodies(f"without {peer_id}", 20))
            group.start(peer_id)
        group.append(*bodies("all are back", 5))
        group.check()

    def test_follower_comes_back(self) -> None:
        """A follower of either kind that was down catches up, over several files."""
        group = self.group_of(JAVA, JAVA, OURS)
        for leader_id, away_id in (("n0", "n2"), ("n2", "n0")):
            group.lead(leader_id)
            group.append(*bodies(f"before {away_id} leaves", 3))
            group.members[away_id].kill()
            group.append_pipelined(bodies(f"while {away_id} is away", 600))
            group.start(away_id)
            group.append(*bodies(f"{away_id} is back", 3))
            group.check()

    def test_uncommitted_tail_of_java_is_cut(self) -> None:
        """The entries that a Java leader wrote alone are replaced by those that ours committed since."""
        self.tail_is_cut("n0", "n1")

    def test_uncommitted_tail_of_ours_is_cut(self) -> None:
        """The entries that a leader of ours wrote alone are replaced by those that Java committed since."""
        self.tail_is_cut("n1", "n0")

    def tail_is_cut(self, loser_id: str, winner_id: str) -> None:
        """The loser writes alone, dies, and comes back to a group that has continued."""
        group = self.group_of(JAVA, OURS, OURS) if loser_id == "n0" else self.group_of(JAVA, OURS, JAVA)
        group.lead(loser_id)
        group.append(*bodies("common", 5))
        group.wait_equal()
        others = [peer_id for peer_id in group.members if peer_id != loser_id]
        for peer_id in others:
            group.members[peer_id].kill()
        group.propose(loser_id, bodies("alone", 30))
        group.members[loser_id].kill()
        ledger = group.members[loser_id].directory / f"dledger-{loser_id}"
        alone = [record for record in read_records(ledger) if record.body.startswith(b"alone")]
        self.assertEqual(len(alone), 30, "there is no tail to cut")
        group.start(*others)
        group.lead(winner_id)
        group.append(*bodies("the others", 7))
        group.start(loser_id)
        group.append(*bodies("together", 3))
        group.check()

    def test_kinds_change_on_the_same_files(self) -> None:
        """Ours starts on the directory of a stopped Java member, and Java on ours, without a conversion."""
        group = self.group_of(JAVA, JAVA, JAVA)
        group.append(*bodies("java only", 5))
        group.append_pipelined(bodies("java only, many", 300))
        for kinds in ((OURS, OURS, OURS), (OURS, JAVA, OURS), (JAVA, JAVA, JAVA)):
            group.wait_equal()
            group.stop()
            for peer_id, member in group.members.items():
                verified = verify_directory(OsDisk(), str(member.directory / f"dledger-{peer_id}"))
                self.assertEqual(verified.findings, [])
            for peer_id, kind in zip(group.peers, kinds, strict=True):
                group.replace(peer_id, kind)
            group.start()
            group.append(*bodies(f"now {kinds}", 5))
            group.append_pipelined(bodies(f"now {kinds}, many", 300))
            group.check()
