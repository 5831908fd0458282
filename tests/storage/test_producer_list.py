# -*- test-case-name: tests.storage.test_producer_list -*-
"""
The producers of a ledger: folded while it is written, pushed, cut, opened again, damaged.

C{DLEDGER_PRODUCER_HISTORIES=10000} in the environment sets the number of random histories.
"""

from __future__ import annotations

import os
import random
from itertools import count
from unittest import mock

import attrs

from dledger.base.disk.memory_disk import MemoryDisk
from dledger.ledger.producers import Known, Verdict
from dledger.storage.files.records import check_batch
from dledger.storage.start import scanner
from dledger.storage.store import producer_list
from dledger.storage.store.file_store import FileStore
from dledger.storage.store.producer_list import PRODUCERS_NAME
from dledger.values.errors import DamagedEntryError
from protocols.wire.ledger.entry import iterate_records
from protocols.wire.ledger.own.producer_entries import decode_producer_entry, encode_producer_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL, ProducerRun
from protocols.wire.ledger.runs import RUN_MIN
from tests.storage.producer_logs import (
    MEMBERS,
    ListCase,
    announced,
    append,
    append_plain,
    config_of,
    in_log,
    placed,
)

HISTORIES = int(os.environ.get("DLEDGER_PRODUCER_HISTORIES", "30"))


class StartTests(ListCase):
    """A start folds the log again."""

    def test_random_stores_fold_their_log(self) -> None:
        """Two stores, random leaders, cuts and restarts: each table is the fold of its log."""
        for seed in range(25):
            rng = random.Random(seed)
            disk = MemoryDisk()
            stores = [FileStore.open(config_of(f"n{at}"), disk) for at in range(2)]
            for term in range(1, 12):
                at = rng.randrange(2)
                leader, follower = stores[at], stores[1 - at]
                for _ in range(rng.randrange(1, 6)):
                    name = rng.choice("pqr")
                    last = max((one for who, one in in_log(leader) if who == name), default=-1)
                    append(leader, term, name, last + 1, rng.randrange(1, 4), leaves_open=rng.random() < 0.5)
                    if rng.random() < 0.3:
                        append_plain(leader, term, *(bytes(rng.randrange(60)) for _ in "xy"))
                    elif rng.random() < 0.1:
                        leader.append_configuration(MEMBERS, term)
                same = min(leader.ledger_end_index, follower.ledger_end_index)
                while same >= 0 and not follower.holds(leader.read_range(same, end_index=same, max_bytes=1)):
                    same -= 1
                if same < follower.ledger_end_index:
                    first = max(same, 0)
                    follower.truncate_to(leader.read_range(first, end_index=first, max_bytes=1))
                end = rng.randrange(follower.ledger_end_index, leader.ledger_end_index + 1)
                while follower.ledger_end_index < end:
                    index = follower.ledger_end_index + 1
                    follower.append_entries(leader.read_batch(
                        index, max_count=min(5, end + 1 - index), max_bytes=600
                    ))
                committed = min(leader.ledger_end_index, follower.ledger_end_index)
                for number, store in enumerate(stores):
                    self.check(store)
                    if rng.random() < 0.3:
                        if rng.random() < 0.5:
                            store.record_commit(max(committed, store.committed_index))
                            store.clean_close()
                        else:
                            store.abandon()
                        stores[number] = FileStore.open(config_of(f"n{number}"), disk)
                        self.check(stores[number])

    def remembered(self, store: FileStore, bound: int) -> dict[str, int]:
        """
        The producers that are to be remembered, and their last sequences: the plain rule. Announced entries
        that have not come count for the order, unless another term has come in their place.
        """
        last: dict[str, int] = {}
        index, end = max(store.ledger_begin_index, 0), store.ledger_end_index
        indexes = {one.index: one.producer for one in placed(store)[0]}
        terms = [store.term_of(at) for at in range(index, end + 1)]
        while index <= end:
            batch = store.read_range(index, end_index=end, max_bytes=1000)
            for header, body in iterate_records(batch):
                if header.channel != PRODUCER_CHANNEL:
                    continue
                for name, sequence, distance, entries in decode_producer_entry(body):
                    first = header.index + distance
                    if any(term != header.term for term in terms[header.index : first + 1]):
                        continue
                    before = last.pop(name, -1)
                    if entries:
                        come = sum(term == header.term for term in terms[first : first + entries])
                    else:
                        come = next(at for at in count() if indexes.get(first + at) != name)
                    last[name] = sequence + come - 1 if come else before
                    if len(last) > bound:
                        del last[next(iter(last))]
            index += batch.count
        return last

    def check_bounded(self, store: FileStore, bound: int, why: str) -> None:
        """The last sequences of those who are remembered are found, those of all others are not."""
        log, last = in_log(store), self.remembered(store, bound)
        for name in {name for name, _ in log}:
            verdict = self.judge(name, max(last.get(name, 1), 0), store)
            if last.get(name, -1) >= 0:
                expected = Verdict(Known.REPEATED, log[name, last[name]], 1, last[name])
                self.assertEqual(verdict, expected, (why, name))
                self.assertIs(self.judge(name, last[name] + 1, store).known, Known.NEW, (why, name))
                older = self.judge(name, 0, store)
                self.assertTrue(older.known is Known.FORGOTTEN or older.first_index == log[name, 0], why)
            elif name not in last:
                self.assertIs(verdict.known, Known.UNKNOWN_PRODUCER, (why, name))

    def history(self, seed: int) -> None:
        """
        A leader, a follower, more producers than are remembered; crashes, files, cuts, starts that look at
        more or less of the log. A producer that was forgotten does not come again: its 0 would come twice.
        """
        rng, disk, why = random.Random(seed), MemoryDisk(), f"seed {seed}"
        bound, names = rng.choice((3, 5)), [f"p{at}" for at in range(1000)]
        self.patch(producer_list, "PRODUCERS_MAX", bound)
        self.patch(producer_list, "SAVE_EVERY_BYTES", rng.choice((300, 3000)))
        self.patch(producer_list, "_SCAN_BYTES", rng.choice((200, 1000, 100_000)))
        stores, committed = [FileStore.open(config_of(f"n{at}"), disk) for at in range(2)], -1
        at = 0
        for term in range(1, 9):
            if stores[0].ledger_end_index == stores[1].ledger_end_index:
                at = rng.randrange(2)
            if rng.random() < 0.5:
                append_plain(stores[at], term, *[bytes(rng.randrange(90))] * rng.randrange(1, 5))
            for _ in range(rng.randrange(1, 9)):
                last = self.remembered(stores[at], bound)
                name = rng.choice([*last, names.pop()])
                append(
                    stores[at], term, name, last.get(name, -1) + 1, rng.randrange(1, 4),
                    leaves_open=rng.random() < 0.6,
                )
                if rng.random() < 0.15:
                    append_plain(stores[at], term, b"x")
                elif rng.random() < 0.05:
                    stores[at].append_configuration(MEMBERS, term)
                job = stores[at].prepare_flush() if rng.random() < 0.3 else None
                if job is not None:
                    job.run()
                    stores[at].finish_flush(job)
            lead, other = stores[at], stores[1 - at]
            while other.ledger_end_index < lead.ledger_end_index and rng.random() < 0.95:
                other.append_entries(lead.read_batch(
                    other.ledger_end_index + 1, max_count=rng.randrange(1, 6), max_bytes=600
                ))
            if rng.random() < 0.5:
                committed = max(committed, rng.randrange(-1, other.ledger_end_index + 1))
                lead.record_commit(committed)
                other.record_commit(committed)
            if rng.random() < 0.4 and other.ledger_end_index > max(committed, 0):  # The follower leads on.
                keep = rng.randrange(max(committed, 0), other.ledger_end_index + 1)
                other.truncate_to(other.read_range(keep, end_index=keep, max_bytes=1))
                lead.truncate_to(other.read_range(keep, end_index=keep, max_bytes=1))
                at = 1 - at
            for number, store in enumerate(stores):
                self.check_bounded(store, bound, why)
                if rng.random() < 0.4:
                    if rng.random() < 0.3:
                        store.clean_close()
                    else:
                        store.abandon()
                    store = stores[number] = FileStore.open(config_of(f"n{number}"), disk)
                    self.check_bounded(store, bound, why)
                    self.look_at(store, rng.randrange(store.ledger_end_index + 2))
                    self.check_bounded(store, bound, why)

    def test_open_run_that_never_came(self) -> None:
        """Whom it made the table forget is known, though another term came instead."""
        self.patch(producer_list, "PRODUCERS_MAX", 1)
        append(self.store, 1, "p", 0)
        self.store.append_bodies((encode_producer_entry((ProducerRun("q", 0, 1, 0),)),), 1, producers_at=0)
        append_plain(self.store, 2, *(b"x" * 100 for _ in range(9)))
        self.store.record_commit(self.store.ledger_end_index)
        self.assertEqual(self.judge("p", 0).first_index, 1)
        self.patch(producer_list, "_SCAN_BYTES", 200)
        self.look_at(self.store, 0)
        self.assertEqual(self.judge("p", 0).first_index, 1)

    def test_histories_depend_on_the_log(self) -> None:
        """Which producers are remembered depends on the log alone, after each crash."""
        for seed in range(HISTORIES):
            self.history(seed)

    def test_expired_producers_are_remembered(self) -> None:
        """What a deleted file of the log reported is remembered after a crash."""
        self.expired(is_reopened=False)

    def test_expired_after_a_crash(self) -> None:
        """Also if the file was older than the log when the member started."""
        self.expired(is_reopened=True)

    def expired(self, *, is_reopened: bool) -> None:
        """Producers, the end of their entries by retention, and a crash."""
        for name in "pqr":
            append(self.store, 1, name, 0, 2)
        for _ in range(30):
            self.store.append_bodies((b"x" * 900,), 1)
        self.store.record_commit(self.store.ledger_end_index)
        job = self.store.prepare_flush()
        assert job is not None
        job.run()
        self.store.finish_flush(job)
        if is_reopened:
            self.reopen(clean=False)
        deleted = self.store.house_keeping(10**6, 4, keep_from_index=30, drop_to_index=20)
        self.assertGreater(len(deleted), 1)
        self.reopen(clean=False)
        for name in "pqr":
            self.assertIs(self.judge(name, 1).known, Known.REPEATED)
            self.assertIs(self.judge(name, 2).known, Known.NEW)

    def test_the_file_knows_earlier_producers(self) -> None:
        """A producer whose entries lie before what recovery looks at is known by the file."""
        append(self.store, 1, "old", 0, 2)
        self.store.record_commit(2)
        for _ in range(30):
            self.store.append_bodies((b"x" * 900,), 1)
        append(self.store, 1, "new", 0)
        self.reopen()
        self.look_at(self.store, self.store.ledger_end_index + 1)
        self.assertEqual(self.judge("old", 1).first_index, 2)
        self.assertEqual(self.judge("old", 0).first_index, 1)

    def test_saved_by_flushes(self) -> None:
        """While the ledger grows, a flush writes the file; with a commit after it, only what is committed."""
        self.patch(producer_list, "SAVE_EVERY_BYTES", 1000)
        append(self.store, 1, "p", 0)
        self.store.record_commit(1)
        before = self.disk.read_file(self.path)
        for at in range(1, 30):
            append(self.store, 1, "p", at)
        self.store.record_commit(31)
        job = self.store.prepare_flush()
        assert job is not None
        job.run()
        self.store.finish_flush(job)
        self.assertNotEqual(self.disk.read_file(self.path), before)
        self.assertIn(b'"index":31', self.disk.read_file(self.path))
        self.reopen(clean=False)
        self.check()

    def test_the_same_list_is_not_written_again(self) -> None:
        """What the file has is not written again while the ledger grows by other entries."""
        self.patch(producer_list, "SAVE_EVERY_BYTES", 1000)
        append(self.store, 1, "p", 0)
        self.store.record_commit(1)
        calls = []
        for _ in range(3):
            for _ in range(30):
                self.store.append_bodies((b"x" * 60,), 1)
            self.store.record_commit(self.store.ledger_end_index)
            job = self.store.prepare_flush()
            assert job is not None
            with mock.patch.object(self.disk, "write_file", wraps=self.disk.write_file) as writes:
                job.run()
                self.store.finish_flush(job)
            calls.append([call.args[0] for call in writes.call_args_list if PRODUCERS_NAME in call.args[0]])
        self.assertEqual(list(map(len, calls)), [1, 0, 0])

    def test_a_damaged_file_is_not_used(self) -> None:
        """Every byte of it: it is not used, and what recovery reads counts."""
        append(self.store, 1, "p", 0, 3)
        self.store.record_commit(3)
        self.reopen()
        content = self.disk.read_file(self.path)
        for at in range(len(content)):
            flipped = bytearray(content)
            flipped[at] ^= 0x40
            for damaged in (bytes(flipped), content[:at]):
                self.store.abandon()
                self.disk.write_file(self.path, damaged)
                self.store = FileStore.open(config_of(), self.disk)
                self.check()

    def test_of_another_ledger(self) -> None:
        """A file that reports more than the ledger has is not used."""
        append(self.store, 1, "p", 0)
        self.store.record_commit(1)
        self.reopen()
        content = self.disk.read_file(self.path)
        self.store.abandon()
        other = FileStore.open(config_of("n1"), self.disk)
        other.abandon()
        self.disk.write_file(f"{config_of('n1').self_path}/{PRODUCERS_NAME}", content)
        other = FileStore.open(config_of("n1"), self.disk)
        self.assertEqual(len(self.table(other)), 0)

    def test_a_full_disk_takes_appends_still(self) -> None:
        """Without room for the file appends go on; it is written when there is room."""
        disk = self.disk = MemoryDisk()
        store = FileStore.open(config_of("n1"), disk)
        path = f"{config_of('n1').self_path}/{PRODUCERS_NAME}"
        with mock.patch.object(disk, "write_file", side_effect=OSError(28, "no space")):
            append(store, 1, "p", 0)
        self.assertFalse(disk.exists(path))
        append(store, 1, "p", 1)
        self.assertTrue(disk.exists(path))
        self.check(store)


class PushedTests(ListCase):
    """What a follower finds in a push."""

    def test_an_entry_among_equals_is_found(self) -> None:
        """A producer entry is found among records of its own size."""
        config = attrs.evolve(config_of("n1"), mapped_file_size_for_entry_data=1 << 16)
        store = FileStore.open(config, self.disk)
        run = ProducerRun("p", 0, 1, RUN_MIN)
        entry = encode_producer_entry((run,))
        store.append_bodies((b"x",), 1)
        bodies = [b"%d" % number for number in range(RUN_MIN)]
        store.append_bodies((entry, *(body.ljust(len(entry)) for body in bodies)), 1, producers_at=0)
        first = store.position_of(1)
        batch = store.read_range(1, end_index=1 + RUN_MIN, max_bytes=1 << 20)
        self.assertEqual(batch.count, 1 + RUN_MIN)
        layout = check_batch(batch, first_index=1, last_term=1, end_position=first, file_size=1 << 16,
                             previous_chain_crc=None)
        self.assertEqual(layout.producers, ((1, 1, entry),))


class HoleTests(ListCase):
    """Damaged entries."""

    def test_unknown_until_filled(self) -> None:
        """With a hole in what must be read, nothing is known; with the entries back, all is."""
        for at in range(6):
            append(self.store, 1, "p", at)
        self.store.record_commit(11)
        whole = self.store.read_range(4, end_index=4, max_bytes=1)
        self.hole(4)
        self.store.append_bodies(announced(ProducerRun("p", 6, 1, 1)), 1, producers_at=0)
        self.store.fill_hole(whole, is_committed=True)
        self.assertEqual(self.store.holes, ())
        self.check()
        self.assertEqual(len(in_log(self.store)), 7)

    def test_known_in_spite_of_an_older_hole(self) -> None:
        """A start does not need the entries of an old hole, which may stay: only the later one hides all."""
        append(self.store, 1, "p", 0)
        while self.store.end_position < 5 * 4096:
            self.store.append_bodies((b"x" * 500,), 1)
        append(self.store, 1, "p", 1)
        at = self.store.ledger_end_index
        append(self.store, 1, "p", 2)
        self.store.record_commit(self.store.ledger_end_index)
        self.store.clean_close()
        self.store = FileStore.open(config_of(), self.disk)
        whole = self.store.read_range(at, end_index=at, max_bytes=1)
        self.flip(self.store.position_of(4))
        self.assertRaises(DamagedEntryError, self.store.read_range, 4, end_index=4, max_bytes=1)
        self.patch(scanner, "SCAN_BACK_BYTES", 1000)
        self.hole(at, holes=2)
        self.store.fill_hole(whole, is_committed=True)
        self.assertEqual([hole.first_index for hole in self.store.holes], [4])
        assert self.store.producers is not None
        self.assertEqual(self.judge("p", 2).known, Known.REPEATED)

    def hole(self, at: int, *, holes: int = 1) -> None:
        """This entry is damaged when the store is opened again, and nothing is known of producers."""
        position = self.store.position_of(at)
        self.store.check_point(force=True)
        self.store.abandon()
        self.flip(position)
        self.store = FileStore.open(config_of(), self.disk)
        self.assertEqual(len(self.store.holes), holes)
        self.assertIsNone(self.store.producers)

    def flip(self, position: int) -> None:
        """A byte of the body of the record at this place."""
        at = position + 50
        path = sorted(path for path in self.disk.files if "/data/" in path)[at // 4096]
        file = self.disk.open(path, create=False)
        byte = file.pread(1, at % 4096)
        file.pwrite(bytes([byte[0] ^ 1]), at % 4096)
        file.close()

    def test_after_a_cut_all_is_known_again(self) -> None:
        """With the hole cut by a new leader, all is known again."""
        for at in range(6):
            append(self.store, 1, "p", at)
        self.store.record_commit(5)
        kept = self.store.read_range(7, end_index=7, max_bytes=1)
        self.hole(8)
        self.store.truncate_to(kept)
        self.assertEqual((self.store.holes, self.store.ledger_end_index), ((), 7))
        self.check()
        self.assertEqual(len(in_log(self.store)), 4)

    def test_a_ledger_after_a_gap_counts_new_producers(self) -> None:
        """A ledger that goes on after a gap counts new producers, though it knew none before."""
        for at in range(6):
            append(self.store, 1, "p", at)
        self.store.record_commit(11)
        self.hole(4)
        peer = FileStore.open(config_of("n1"), self.disk)
        while peer.end_position < 3 * 4096:
            append(peer, 2, "q", peer.ledger_end_index + 1)
        first = next(index for index in range(40, peer.ledger_end_index + 1)
                     if peer.position_of(index) % 4096 == 0)
        self.store.truncate_to(peer.read_range(first, end_index=first, max_bytes=1), anew=True)
        self.assertEqual(self.store.ledger_begin_index, first)
        assert self.store.producers is not None and self.store.readers is not None
        self.store.append_bodies(announced(ProducerRun("r", 0, 1, 1)), 2, producers_at=0)
        self.assertEqual(self.judge("r", 0).known, Known.REPEATED)
        self.assertEqual(self.store.ledger_end_index, first + 2)
