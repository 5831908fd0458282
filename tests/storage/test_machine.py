# -*- test-case-name: tests.storage.test_machine -*-
"""
A store against a list: whatever is done to it, in whatever order, it holds the entries of the list.

Kills and clean stops lose nothing that was written; power cuts lose at most what was not flushed.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.start.verify import verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.disk import SimDisk
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.ledger.entry import decode_header, iterate_records
from tests.storage.support import DATA_SIZE, batch_of, config_of, entry_at, flush, our_record

BODIES = st.lists(st.integers(0, 400), min_size=1, max_size=12)


class StoreMachine(RuleBasedStateMachine):
    """
    C{model}: term and body of each entry from C{begin} on. C{flushed}: how many are on stable storage.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begin = 0
        self.model: list[tuple[int, bytes]] = []
        self.flushed = 0
        self.committed = -1
        self.serial = 0

    @initialize(seed=st.integers(0, 1 << 30), sync=st.booleans())
    def start(self, seed: int, sync: bool) -> None:
        """A new member."""
        self.config = config_of(flush_disk_type="sync" if sync else "async", file_reserved_hours=1)
        self.disk = SimDisk(random.Random(seed))
        self.store = FileStore.open(self.config, self.disk)

    @property
    def end(self) -> int:
        """Last index of the model."""
        return self.begin + len(self.model) - 1

    def make(self, size: int) -> bytes:
        """A body that no other entry has."""
        self.serial += 1
        return (b"%d " % self.serial).ljust(size, b".")[: max(size, 8)]

    @rule(sizes=BODIES, raise_term=st.booleans())
    def append(self, sizes: list[int], raise_term: bool) -> None:
        """A leader's batch."""
        term = (self.model[-1][0] if self.model else 1) + raise_term
        bodies = tuple(self.make(size) for size in sizes)
        if not self.model and self.begin:
            return
        self.store.append_bodies(bodies, term)
        self.model.extend((term, body) for body in bodies)

    @rule(size=st.integers(0, 400))
    def append_entry(self, size: int) -> None:
        """A leader's record, sound and not."""
        if not self.model:
            return
        term, body = self.model[-1][0], self.make(size)
        pos = self.store.end_position
        if 48 + len(body) + 8 > DATA_SIZE - pos % DATA_SIZE:
            pos += DATA_SIZE - pos % DATA_SIZE
        chain = decode_header(entry_at(self.store, self.end).records).chain_crc
        record = our_record(body, index=self.end + 1, term=term, pos=pos, chain=chain)
        for wrong in (our_record(body, index=self.end + 1, term=term, pos=pos, chain=chain ^ 1),
                      our_record(body, index=self.end + 2, term=term, pos=pos, chain=chain)):
            try:
                self.store.append_entries(batch_of([wrong]))
            except DLedgerError as error:
                assert not isinstance(error, StoreError)
            else:
                raise AssertionError("a wrong record was taken")
        self.store.append_entries(batch_of([record]))
        self.model.append((term, body))

    @precondition(lambda self: self.end > self.committed and self.end >= self.begin)
    @rule(back=st.integers(0, 30), replace=st.booleans(), size=st.integers(0, 300))
    def truncate(self, back: int, replace: bool, size: int) -> None:
        """A new leader's command."""
        index = max(self.end - back, self.committed, self.begin)
        entry = entry_at(self.store, index)
        keep = index
        if replace and index > max(self.committed, self.begin):
            term, body = self.model[-1][0] + 1, self.make(size)
            before = decode_header(entry_at(self.store, index - 1).records)
            pos = before.pos + before.size
            if 48 + len(body) + 8 > DATA_SIZE - pos % DATA_SIZE:
                pos += DATA_SIZE - pos % DATA_SIZE
            entry = batch_of([our_record(body, index=index, term=term, pos=pos, chain=before.chain_crc)])
            keep = index - 1
        self.store.truncate_to(entry)
        del self.model[keep - self.begin + 1 :]
        if keep != index:
            self.model.append((term, body))
        self.flushed = len(self.model)

    @rule(forward=st.integers(1, 50), files=st.integers(0, 3))
    def begin_anew(self, forward: int, files: int) -> None:
        """A leader whose log begins after our end."""
        index = self.end + forward + (1 if self.model else 0)
        if index < 1:
            return
        term, body = (self.model[-1][0] if self.model else 1), self.make(20)
        pos = (self.store.end_position // DATA_SIZE + 1 + files) * DATA_SIZE
        self.store.truncate_to(batch_of([our_record(body, index=index, term=term, pos=pos, chain=7)]))
        self.begin, self.model, self.flushed = index, [(term, body)], 1
        self.committed = index - 1

    @rule()
    def flush(self) -> None:
        """As the node does."""
        flush(self.store)
        self.flushed = len(self.model)

    @rule(share=st.floats(0, 1), force=st.booleans())
    def commit(self, share: float, force: bool) -> None:
        """Of what is flushed, and a checkpoint."""
        end = self.begin + self.flushed - 1
        if end < max(self.committed, self.begin):
            return
        low = max(self.committed, self.begin - 1)
        self.committed = low + int((end - low) * share)
        self.store.record_commit(self.committed)
        self.store.check_point(force=force)
        if force:
            self.flushed = len(self.model)

    @rule()
    def expire(self) -> None:
        """House keeping, long after."""
        self.store.maintenance(1e10, 4, keep_from_index=self.committed)
        gone = max(self.store.ledger_begin_index, 0) - self.begin
        assert gone == 0 or self.store.ledger_begin_index <= self.committed
        if gone > 0:
            del self.model[:gone]
            self.begin += gone
            self.flushed -= gone

    @rule(how=st.sampled_from(("clean", "kill", "power")))
    def restart(self, how: str) -> None:
        """Stop in one way or another, and come back."""
        if how == "clean":
            self.store.clean_close()
            report = verify_directory(self.disk, self.config.self_path)
            assert all(one.file.endswith("currterm") for one in report.findings), report.findings
        elif how == "power":
            self.disk.lose_power()
        else:
            self.disk.end_process()
        self.store = FileStore.open(self.config, self.disk)
        assert self.store.repair_end_index == -1
        assert self.store.committed_index <= self.committed
        if how == "power":
            kept = self.store.ledger_end_index - self.begin + 1
            assert self.flushed <= kept <= len(self.model), (self.flushed, kept, len(self.model))
            del self.model[kept:]
        self.flushed = len(self.model)
        self.store.record_commit(min(self.committed, self.end))

    @invariant()
    def equal(self) -> None:
        """What can be seen is the model."""
        store = self.store
        assert store.ledger_begin_index == (self.begin if self.model else -1)
        assert store.ledger_end_index == (self.end if self.model else -1)
        assert store.ledger_end_term == (self.model[-1][0] if self.model else -1)
        index, found = self.begin, []
        while index <= store.ledger_end_index:
            batch = store.read_batch(index, max_count=11, max_bytes=1500)
            found.extend((header.term, body) for header, body in iterate_records(batch))
            index = batch.last_index + 1
        assert found == self.model
        for index in (self.begin, self.end):
            if self.model:
                assert store.term_of(index) == self.model[index - self.begin][0]
                assert store.position_of(index) == decode_header(entry_at(store, index).records).pos


class MachineTests(SynchronousTestCase):
    """Runs of the machine."""

    def test_runs_are_the_same_each_time(self) -> None:
        """The same ones each time."""
        StoreMachine.TestCase.settings = settings(
            max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck),
        )
        StoreMachine.TestCase("runTest").runTest()
