# -*- test-case-name: tests.sim.test_records_on_disk -*-
"""What a disk says of its member, made wrong by hand; each check must fail."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, encode_mark
from dledger.storage.files.state_file import STATE_NAME, StatePlace, encode_state
from dledger.testing.group.watching.records_on_disk import mark_in
from dledger.values.ledger.chunks import ChunkSum
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.group_state import GroupState, Producer
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.entry import decode_header
from tests.sim.test_words import GroupOfThree


class LookTests(GroupOfThree):
    """A follower, while it runs and when it starts again."""

    def setUp(self) -> None:
        """Its records, and its mark."""
        super().setUp()
        self.cluster.run(8)
        self.records = self.follower.records
        self.path = f"{self.follower.config.self_path}/{COMMIT_MARK_NAME}"

    def looks(self, says: str, look: Callable[[], None] | None = None) -> None:
        """This is found wrong."""
        self.assertIn(f"the disk says of {says}", self.broken(20, look or self.records.look))

    def test_as_it_is_the_disk_is_right(self) -> None:
        """Nothing is wrong, also after kills and losses of power of all members."""
        self.records.look()
        self.cluster.start_again()

    def test_an_id_that_is_not_recorded(self) -> None:
        """The process knows another id of the group than its disk."""
        self.state.group_name = GroupName("a" * 32, 1, True)
        self.looks("the group")

    def test_a_doubt_that_is_not_recorded(self) -> None:
        """It takes itself for unsure."""
        self.state.is_unsure = True
        self.looks("doubt")

    def test_a_flush_that_was_none(self) -> None:
        """An entry counts as flushed, and is not durable."""
        self.leader.call(lambda node: node.append((b"d",)))
        self.cluster.run(0.05)
        mirror = self.cluster.invariants.mirror(self.leader.member_id)
        self.leader.core.member.flushed_index = mirror.end_index
        if not self.leader.is_durable(mirror.ends[-2], mirror.ends[-1] - mirror.ends[-2]):
            self.looks("the flushed entry", self.leader.records.look)

    def _with_mark(self, **fields: object) -> None:
        mark = mark_in(self.follower.disk.cached_content(self.path))
        assert mark is not None
        slot = encode_mark(attrs.evolve(mark, **fields), 1 << 40)  # type: ignore[arg-type]
        self.follower.disk.write_file(self.path, slot.ljust(SLOT_SIZE, b"\0") + bytes(SLOT_SIZE))

    def test_a_mark_that_is_wrong(self) -> None:
        """It names another end, a commit that is not known, a repair that is none."""
        position = self.follower.ledger.end_position
        self._with_mark(end_position=7)
        self.looks("the end")
        self._with_mark(end_position=position, committed_index=9)
        self.looks("the commit")
        self._with_mark(committed_index=2, repair_end_index=9)
        self.looks("the repair")

    def test_lists_that_the_log_outlives(self) -> None:
        """Members by an entry that was cut; a chunk of another term."""
        mirror = self.cluster.invariants.mirror(self.follower.member_id)
        term = mirror.term_of(1)
        chunk = ChunkSum(1, 2, mirror.ends[0], mirror.ends[2], term + 1, 0, 0, 0)
        self.patch(self.follower.ledger, "chunk_from", lambda index: chunk if index <= 1 else None)
        self.looks("a chunk")
        self.patch(type(self.follower.ledger), "memberships",
                   (Membership(voters=self.state.config.peers, index=1, term=term + 1),))
        self.looks("members at 1")

    def test_chunks_that_a_loss_of_power_brings_back(self) -> None:
        """They may be of entries that were cut; a read of one shows it."""
        mirror = self.cluster.invariants.mirror(self.follower.member_id)
        chunk = ChunkSum(1, 2, mirror.ends[0], mirror.ends[2], mirror.term_of(1) + 1, 0, 0, 0)
        for end, is_stale in ((self.follower.kill, False), (self.follower.lose_power, True)):
            end()
            self.follower.start()
            self.patch(self.follower.ledger, "chunk_from", lambda index: chunk if index <= 1 else None)
            if is_stale:
                self.records.look()
            else:
                self.looks("a chunk")

    def test_a_disk_that_is_full_for_ever(self) -> None:
        """The process takes it for full long after its store has room again."""
        self.state.is_full = True

        def look_on() -> None:
            for _ in range(200):
                self.records.look()

        self.looks("room, late", look_on)

    def test_a_mark_that_is_old(self) -> None:
        """It says for many checkpoints that less is committed than is."""
        self._with_mark(committed_index=1)

        def look_on() -> None:
            for _ in range(30):
                self.records.look()

        self.looks("the commit, late", look_on)

    def test_a_start_that_forgets(self) -> None:
        """The process has another vote, another id, or a shorter log than its disk had."""
        for says in ("the vote", "the group", "the last whole entry"):
            self.records.before_start()
            before = self.state.voted_for, self.state.group_name
            if says == "the vote":
                self.state.voted_for = "n9"
            elif says == "the group":
                self.state.group_name = GroupName("b" * 32, 1, True)
            else:
                assert self.records.found is not None
                self.records.found = attrs.evolve(self.records.found, last_whole=3)
            self.looks(says, self.records.after_start)
            self.state.voted_for, self.state.group_name = before

    def test_a_start_that_is_not_counted(self) -> None:
        """The disk had counted as many starts before."""
        self.records.before_start()
        self.looks("starts before this", self.records.after_start)

    def test_a_file_of_the_group_that_is_wrong(self) -> None:
        """It has a producer of which the log says nothing, or is of another entry, or one after the log."""
        self._with_state()
        self.records.look()
        self._with_state(producers=(Producer("p", 1, 0),))
        self.looks("the group its file, of 2: it knows {'p'}, which are forgotten")
        self._with_state(term=99)
        self.looks("the group its file names")
        self._with_state(index=self.follower.ledger.ledger_end_index + 1)
        self.looks("the group its file is of the entry")

    def _with_state(
        self, *, producers: tuple[Producer, ...] = (), term: int | None = None, index: int = 2
    ) -> None:
        """A file whose newer slot has this state of the entry 2."""
        mirror = self.cluster.invariants.mirror(self.follower.member_id)
        header = decode_header(self.cluster.invariants.records[2, mirror.term_of(2)][0])
        state = GroupState()
        state.index = index
        state.restored(producers, ())
        place = StatePlace(index, header.term if term is None else term, header.pos, header.chain_crc)
        slot = encode_state(state, place, 1)
        path = f"{self.follower.config.self_path}/{STATE_NAME}"
        self.follower.disk.write_file(path, slot + bytes(len(slot)))
