# -*- test-case-name: tests.storage.test_state_keeper -*-
"""What a ledger knows of its group: after starts, cuts, holes, expiry, and from other members."""

from __future__ import annotations

import random
from unittest import mock

from dledger.storage.files.state_file import (
    STATE_NAME,
    StateFile,
    StatePlace,
    decode_state,
    encode_state,
)
from dledger.storage.store import state_keeper
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.disk import SimDisk
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import GroupState, Known, Marked
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, decode_header
from protocols.wire.ledger.own.own_entries import (
    SESSION_CHANNEL,
    STATE_CHANNEL,
    TERM_START_CHANNEL,
    slot_channels,
)
from protocols.wire.ledger.own.session_entries import Session, encode_session_entry
from protocols.wire.ledger.own.state_entries import StateEntry, StateWord, encode_state_entry
from tests.storage.support import (
    BROKEN,
    ROOT,
    HookedCase,
    append_bare,
    config_of,
    entry_at,
    flush,
)

PATH = f"{ROOT}/{STATE_NAME}"
NOON, HOUR_S = 12, 3600.0


def begin_session(store: FileStore, name: str, slot: int) -> None:
    """A session entry."""
    store.append_bodies((encode_session_entry([Session(slot, name)]),), 1, channels=(SESSION_CHANNEL,))


def number(store: FileStore, name: str, count: int = 1, body: bytes = b"n" * 50) -> None:
    """The next entries of a producer that has a session."""
    fold = store.group
    assert fold is not None
    producer = fold.producer(name)
    assert producer is not None
    channels = tuple(slot_channels(producer.slot, producer.last + 1, count))
    store.append_bodies((body,) * count, 1, channels=channels)


def commit(store: FileStore) -> None:
    """All is committed and on stable storage."""
    flush(store)
    store.record_commit(store.ledger_end_index)


class KeeperCase(HookedCase):
    """A store, small files, with a producer whose numbers 0 to 29 are between entries of nobody."""

    def setUp(self) -> None:
        super().setUp()
        begin_session(self.store, "p", 1)
        for _ in range(10):
            number(self.store, "p", 3)
            self.store.append_bodies((b"x" * 50,), 1)
        commit(self.store)

    def judged(self, sequence: int, store: FileStore | None = None) -> tuple[Known, int]:
        """What the ledger says about a number of the producer, and where it is."""
        fold = (store or self.store).group
        assert fold is not None
        return fold.judge("p", sequence, 1)[:2]

    def assertKnown(self, store: FileStore | None = None) -> None:
        """All numbers are known, and the next one is new."""
        self.assertEqual([self.judged(29, store), self.judged(30, store)],
                         [(Known.REPEATED, 39), (Known.NEW, -1)])

    def follower(self, begin: int) -> FileStore:
        """A new member whose log begins there, with all that follows."""
        store = FileStore.open(config_of("other"), self.disk)
        store.truncate_to(entry_at(self.store, begin))
        while store.ledger_end_index < self.store.ledger_end_index:
            store.append_entries(self.store.read_batch(
                store.ledger_end_index + 1, max_count=1000, max_bytes=1 << 20
            ))
        return store

    def first_of_a_file(self) -> int:
        """An entry with which a data file begins, not the first one."""
        offset = self.store.parts.data.offsets[1]
        return next(at for at in range(self.store.ledger_end_index) if self.store.position_of(at) == offset)


class StartTests(KeeperCase):
    """The state after a start."""

    def test_after_any_end(self) -> None:
        """A kill, and an orderly stop: from the log, and from the file."""
        self.assertFalse(self.disk.exists(PATH))
        self.reopen()
        self.assertKnown()
        self.store.record_commit(self.store.ledger_end_index)
        self.store.clean_close()
        self.assertTrue(self.disk.exists(PATH))
        self.store = FileStore.open(self.config, self.disk)
        self.assertKnown()

    def test_a_start_reads_what_follows_the_state(self) -> None:
        """Not the whole log."""
        self.store.clean_close()
        self.store = FileStore.open(self.config, self.disk)
        number(self.store, "p", 2)
        self.store.abandon()
        read: list[int] = []
        whole = state_keeper.marks_in

        def looked(batch: EntryBatch) -> tuple[Marked, ...]:
            read.append(batch.first_index)
            return whole(batch)

        with mock.patch.object(state_keeper, "marks_in", looked):
            self.store = FileStore.open(self.config, self.disk)
        self.assertEqual(self.judged(31)[0], Known.REPEATED)
        self.assertEqual(min(read), 41)

    def test_a_damaged_file_costs_nothing(self) -> None:
        """While the log has all entries: each bit of the file is changed, and all is known again."""
        self.store.clean_close()
        sound = self.disk.read_file(PATH)
        for at in (*range(0, 200, 7), *range(len(sound) // 2, len(sound) // 2 + 200, 7)):
            wrong = bytearray(sound)
            wrong[at] ^= 0x10
            self.disk.write_file(PATH, bytes(wrong))
            self.store = FileStore.open(self.config, self.disk)
            self.assertKnown()
            self.store.abandon()
        self.store = FileStore.open(self.config, self.disk)

    def test_a_file_of_another_directory_is_void(self) -> None:
        """It names an entry by its checksum: with index, term and place alone it would count here."""
        other = FileStore.open(config_of("foreign"), MemoryDisk())
        begin_session(other, "p", 1)
        for _ in range(10):
            number(other, "p", 3, b"m" * 50)
            other.append_bodies((b"x" * 50,), 1)
        number(other, "p", 1)
        other.append_bodies((b"x" * 50,), 1)
        commit(other)
        for index in (40, 42):
            assert other.group is not None
            data = b"".join(other.encoding_group()[1].run())
            stored = decode_state(data)
            place = stored.place._replace(entry_index=index) if index == 40 else stored.place
            self.store.clean_close()
            self.disk.write_file(PATH, 2 * encode_state(stored.state, place).ljust(1 << 16, b"\0"))
            self.store = FileStore.open(self.config, self.disk)
            self.assertKnown()

    def test_a_log_that_begins_later_knows_nothing(self) -> None:
        """Without a state before its begin: it says so, also after a restart."""
        store = self.follower(self.first_of_a_file())
        self.assertIsNone(store.group)
        self.assertIn("another member has to give the state", store.why_group_unknown)
        commit(store)
        store.clean_close()
        store = FileStore.open(config_of("other"), self.disk)
        self.assertIsNone(store.group)
        self.assertIn("there is no state of the group before it", store.why_group_unknown)

    def test_a_directory_of_java_begins_anew(self) -> None:
        """Java numbers nothing. What others numbered may be older than its log, so none is certainly new."""
        store = FileStore.open(config_of("java"), self.disk)
        append_bare(store, [b"j" * 50] * 30, 1)
        commit(store)
        store.clean_close()
        path = config_of("java").self_path
        for name in ("commitmark", "identity", STATE_NAME, f"data/{0:020d}", f"index/{0:020d}"):
            self.disk.unlink(f"{path}/{name}")
        store = FileStore.open(config_of("java"), self.disk)
        self.assertGreater(store.ledger_begin_index, 0)
        self.assertIsNone(store.group, "another member may have a state")
        self.assertTrue(store.may_begin_group_anew)
        store.clean_close()
        store = FileStore.open(config_of("java"), self.disk)
        self.assertTrue(store.may_begin_group_anew, "nothing has begun at the first start")
        store.begin_group_anew()
        store.record_commit(store.ledger_end_index)
        store.check_point(force=True)
        store.abandon()
        store = FileStore.open(config_of("java"), self.disk)
        assert store.group is not None
        self.assertFalse(store.may_begin_group_anew)
        self.assertIs(store.group.judge("p", 5, 1).known, Known.FORGOTTEN_PRODUCER)
        self.assertIs(store.group.judge("p", 0, 1).known, Known.NEW)


class FailedTests(KeeperCase):
    """The disk fails at the file."""

    def test_a_failed_write_ends_nobody(self) -> None:
        """The store goes on, a start folds the log, and the next stop writes the file."""
        for call in ("write_file", "pwrite", "datasync"):
            with self.subTest(call=call):
                self.disk.failures = {(call, STATE_NAME): BROKEN}
                self.store.clean_close()
                self.disk.failures = {}
                self.store = FileStore.open(self.config, self.disk)
                self.assertKnown()
                self.store.clean_close()
                self.assertTrue(self.disk.exists(PATH))
                self.store = FileStore.open(self.config, self.disk)
                self.store.append_bodies((b"x",), 1)
                commit(self.store)


class BeginAnewTests(KeeperCase):
    """A log without a state, and an entry that begins it anew."""

    def setUp(self) -> None:
        super().setUp()
        self.config = config_of("other")
        self.store = self.follower(self.first_of_a_file())
        commit(self.store)
        self.at = self.store.ledger_end_index + 1
        body = encode_state_entry(StateEntry(StateWord.BEGIN_ANEW))
        self.store.append_bodies((body,), 1, channels=(STATE_CHANNEL,))

    def assertBegun(self) -> None:
        """The state is empty, and goes on."""
        assert self.store.group is not None
        self.assertIs(self.judged(3)[0], Known.FORGOTTEN_PRODUCER)
        self.assertEqual(self.store.why_group_unknown, "")

    def test_it_counts_when_it_is_committed(self) -> None:
        """Not before; what follows it is folded, too."""
        begin_session(self.store, "r", 1)
        self.assertIsNone(self.store.group)
        commit(self.store)
        self.assertBegun()
        number(self.store, "r")
        commit(self.store)
        assert self.store.group is not None
        self.assertEqual(self.store.group.judge("r", 0, 1)[:2], (Known.REPEATED, self.at + 2))

    def test_it_is_soon_on_the_disk(self) -> None:
        """The next checkpoint writes the file."""
        commit(self.store)
        self.store.check_point(force=True)
        self.reopen()
        self.assertBegun()
        self.assertEqual([one.place.entry_index for one in StateFile(self.disk, self.path()).read()],
                         [self.at] * 2)

    def test_a_start_without_the_file_finds_it(self) -> None:
        """And one that does not know it to be committed waits for that."""
        begin_session(self.store, "r", 1)
        flush(self.store)
        self.reopen()
        self.assertIsNone(self.store.group)
        commit(self.store)
        self.assertBegun()
        self.store.check_point(force=True)
        self.disk.unlink(self.path())
        self.reopen()
        self.assertBegun()

    def test_a_cut_takes_it_back(self) -> None:
        """Another entry that is committed in its place begins nothing."""
        self.store.truncate_to(self.store.read_batch(self.at - 1, max_count=1, max_bytes=1 << 20))
        begin_session(self.store, "r", 1)
        commit(self.store)
        self.assertIsNone(self.store.group)

    def path(self) -> str:
        """Of the file."""
        return f"{self.config.self_path}/{STATE_NAME}"


class VoidTests(KeeperCase):
    """A state that is wrong."""

    def test_it_is_gone(self) -> None:
        """From memory and from the disk; the log keeps the entries."""
        self.store.clean_close()
        self.store = FileStore.open(self.config, self.disk)
        self.assertTrue(self.disk.exists(PATH))
        self.store.void_group("it differs")
        self.assertIsNone(self.store.group)
        self.assertEqual(self.store.why_group_unknown, "it differs")
        self.assertFalse(self.disk.exists(PATH))
        self.assertFalse(self.store.parts.state.before_expiry(3))

    def test_a_flush_brings_it_back_to_nobody(self) -> None:
        """One that was under way writes the file once more: it goes when that has ended."""
        self.store.parts.state._is_wanted = True
        self.store.append_bodies((b"x",), 1)
        job = self.store.prepare_flush()
        assert job is not None
        self.store.void_group("it differs")
        job.run()
        self.assertTrue(self.disk.exists(PATH))
        self.store.finish_flush(job)
        self.assertFalse(self.disk.exists(PATH))


class WriteTests(KeeperCase):
    """What may be written."""

    def test_an_entry_that_does_not_fit_is_refused(self) -> None:
        """And nothing has changed."""
        before = self.store.ledger_end_index
        for channel in (slot_channels(1, 33, 1)[0], slot_channels(9, 0, 1)[0], SESSION_CHANNEL, -1):
            error = self.assertRaises(DLedgerError, self.store.append_bodies, (b"", b"y"), 1,
                                      channels=(0, channel))
            self.assertIs(error.code, ResponseCode.INCONSISTENT_STATE)
            self.assertIn(f"entry {before + 2}", str(error))
        self.assertEqual(self.store.ledger_end_index, before)
        self.assertKnown()

    def test_what_was_not_written_is_not_known(self) -> None:
        """A full disk takes numbers back."""
        with mock.patch.object(self.disk, "open", side_effect=OSError(28, "No space left on device")):
            self.assertRaises(DLedgerError, number, self.store, "p", 30)
        self.assertKnown()

    def test_a_cut_takes_numbers_back(self) -> None:
        """Also for the next start."""
        number(self.store, "p", 5)
        self.store.truncate_to(entry_at(self.store, 40))
        self.assertKnown()
        self.reopen()
        self.assertKnown()

    def test_java_continues_no_run(self) -> None:
        """What a Java leader writes after the entries of a producer, in the same term, is nobody's."""
        append_bare(self.store, [b"row of java"] * 5, 1)
        for _ in range(2):
            self.assertKnown()
            self.reopen()
        number(self.store, "p")
        self.assertEqual(self.judged(30), (Known.REPEATED, 46))

    def test_the_last_entry_of_a_program(self) -> None:
        """The log's own entries are not it, also after a start and a cut."""
        self.assertEqual(self.store.last_program_index, 40)
        for _ in range(3):
            self.store.append_bodies((b"",), 1, channels=(TERM_START_CHANNEL,))
        self.assertEqual(self.store.last_program_index, 40)
        self.reopen()
        self.assertEqual(self.store.last_program_index, 40)
        self.store.append_bodies((b"",), 1)
        self.assertEqual(self.store.last_program_index, 44)
        self.store.truncate_to(entry_at(self.store, 42))
        self.assertEqual(self.store.last_program_index, 40)


class InstallTests(KeeperCase):
    """The state of another member."""

    def setUp(self) -> None:
        super().setUp()
        self.stored = decode_state(b"".join(self.store.encoding_group()[1].run()))
        self.other = self.follower(self.first_of_a_file())

    def test_a_state_of_this_log_counts(self) -> None:
        """Once its entry is committed here; then also after a restart."""
        self.assertIn("must be committed", self.other.install_group(self.stored))
        commit(self.other)
        self.assertEqual(self.other.install_group(self.stored), "")
        self.assertKnown(self.other)
        self.other.clean_close()
        self.other = FileStore.open(config_of("other"), self.disk)
        self.assertKnown(self.other)

    def test_it_is_soon_on_the_disk(self) -> None:
        """With the next flush, or checkpoint: members that all had it from others may lose power at once."""
        for does in ("flush", "check_point"):
            commit(self.other)
            self.other.install_group(self.stored)
            if does == "flush":
                self.other.append_bodies((b"next",), 1)
                flush(self.other)
            else:
                self.other.check_point()
            self.other.abandon()
            self.other = FileStore.open(config_of("other"), self.disk)
            self.assertKnown(self.other)
            self.disk.unlink(f"{config_of('other').self_path}/{STATE_NAME}")
            self.other.abandon()
            self.other = FileStore.open(config_of("other"), self.disk)
            self.assertIsNone(self.other.group)

    def test_what_follows_the_state_is_folded(self) -> None:
        """Entries that are committed, and entries that are not."""
        number(self.store, "p", 2)
        self.other.append_entries(self.store.read_batch(41, max_count=9, max_bytes=1 << 20))
        self.other.record_commit(41)
        self.assertEqual(self.other.install_group(self.stored), "")
        self.assertEqual(self.judged(31, self.other), (Known.REPEATED, 42))
        assert self.other.group is not None
        self.assertEqual(self.other.group.state.index, 41)

    def test_a_state_of_another_log_is_refused(self) -> None:
        """By each fact that it names of its entry; one from before the log; one that the log contradicts."""
        commit(self.other)
        place = self.stored.place
        for wrong in (
            place._replace(entry_index=39), place._replace(term=2),
            place._replace(position=place.position + 1),
            place._replace(chain_crc=place.chain_crc ^ 1), place._replace(entry_index=3),
        ):
            self.assertNotEqual(self.other.install_group(self.stored._replace(place=wrong)), "", wrong)
            self.assertIsNone(self.other.group)
        before = self.other.ledger_begin_index - 1
        chain_crc = decode_header(entry_at(self.store, before).records).chain_crc
        for chain, why in ((chain_crc ^ 1, "not that of this log"), (chain_crc, "contradicts")):
            empty = GroupState()
            empty.index = before
            stored = self.stored._replace(place=StatePlace(before, 1, 0, chain), state=empty)
            self.assertIn(why, self.other.install_group(stored))
            self.assertIsNone(self.other.group)


class HoleTests(KeeperCase):
    """Entries that are damaged."""

    def damage(self, index: int) -> None:
        """One byte of its body is another one, at the next start."""
        position = self.store.position_of(index)
        self.store.abandon()
        self.rot(position + 60)
        self.store = FileStore.open(self.config, self.disk)

    def rot(self, position: int) -> None:
        """One bit of the data files flips."""
        base = max(one for one in self.offsets if one <= position)
        file = self.disk.open(f"{ROOT}/data/{base:020d}", create=False)
        byte = file.pread(1, position - base)
        file.pwrite(bytes((byte[0] ^ 0x40,)), position - base)
        file.close()

    def setUp(self) -> None:
        super().setUp()
        self.offsets = list(self.store.parts.data.offsets)

    def test_a_hole_that_may_name_producers(self) -> None:
        """Nothing is known until it is mended."""
        sound = entry_at(self.store, 1)
        self.damage(1)
        self.assertIsNone(self.store.group)
        self.assertIn("damaged", self.store.why_group_unknown)
        self.store.fill_hole(sound, is_committed=True)
        self.assertEqual(self.store.holes, ())
        self.assertKnown()

    def test_damage_that_only_the_fold_meets(self) -> None:
        """
        A hole is mended, and another record has become rotten meanwhile: in any byte of its header, before an
        entry with a mark, in it, or after it. Nothing is known until that is mended, too.
        """
        for index in (2, 3, 5):
            for at in range(ENTRY_HEADER_SIZE):
                self.disk, self.config = SimDisk(random.Random(at)), config_of()
                self.store = FileStore.open(self.config, self.disk)
                self.store.append_bodies((bytes(50),) * 3, 1)
                begin_session(self.store, "p", 1)
                number(self.store, "p")
                self.store.append_bodies((bytes(50),) * 4, 1)
                self.offsets = [0]
                commit(self.store)
                sound = [entry_at(self.store, one) for one in (0, index)]
                self.damage(0)
                self.rot(self.store.position_of(index) + at)
                self.store.fill_hole(sound[0], is_committed=True)
                self.assertIsNone(self.store.group, (index, at))
                self.store.fill_hole(sound[1], is_committed=True)
                self.assertEqual(self.judged(0), (Known.REPEATED, 4), (index, at))

    def test_a_hole_before_the_state_does_not_matter(self) -> None:
        """The file says what its entries said."""
        self.store.clean_close()
        self.store = FileStore.open(self.config, self.disk)
        self.damage(1)
        self.assertNotEqual(self.store.holes, ())
        self.assertKnown()


class ExpiryTests(KeeperCase):
    """Files of the log go only when both states of the file are later."""

    options = {"file_reserved_hours": 72, "enable_disk_force_clean": True}

    def keep(self) -> int:
        """House keeping long afterwards. @return: the number of files that went."""
        for offset in self.store.parts.data.offsets:
            self.disk.modified_s[self.store.parts.data.path(offset)] = 0.0
        return len(self.store.maintenance(100 * HOUR_S, 4, keep_from_index=1 << 40))

    def test_after_expiry_all_is_known(self) -> None:
        """In this process and the next one, whichever slot of the file is damaged."""
        self.assertGreater(self.keep(), 0)
        self.assertGreater(self.store.ledger_begin_index, 1)
        self.assertKnown()
        self.store.abandon()
        sound = self.disk.read_file(PATH)
        for at in (3, len(sound) // 2 + 3):
            wrong = bytearray(sound)
            wrong[at] ^= 1
            self.disk.write_file(PATH, bytes(wrong))
            self.store = FileStore.open(self.config, self.disk)
            self.assertKnown()
            self.store.abandon()
        self.store = FileStore.open(self.config, self.disk)

    def test_either_state_is_enough(self) -> None:
        """Whichever slot is lost: both are of entries that the log has, also in a file that is not new."""
        self.assertGreater(self.keep(), 0)
        for _ in range(10):
            number(self.store, "p", 3)
            self.store.append_bodies((b"x" * 50,), 1)
        commit(self.store)
        self.assertGreater(self.keep(), 0)
        places = [one.place.entry_index for one in StateFile(self.disk, PATH).read()]
        self.assertEqual(len(places), 2)
        self.assertGreaterEqual(min(places), self.store.ledger_begin_index - 1)

    def test_a_state_waits_for_the_disk(self) -> None:
        """It counts no entry that a loss of power may take: nothing expires before the next flush."""
        flush(self.store)
        durable = self.store.ledger_end_index
        number(self.store, "p", 1)
        self.store.record_commit(self.store.ledger_end_index)
        self.assertEqual(self.keep(), 0)
        self.assertLessEqual({one.place.entry_index for one in StateFile(self.disk, PATH).read()}, {durable})
        flush(self.store)
        self.assertGreater(self.keep(), 0)

    def test_a_void_state_keeps_the_log(self) -> None:
        """The log goes when two states of its own are there, whatever a void one names."""
        data = b"".join(self.store.encoding_group()[1].run())
        place = decode_state(data).place._replace(entry_index=1 << 30)
        self.store.clean_close()
        (stored, *_) = StateFile(self.disk, PATH).read()
        content = encode_state(stored.state, place, stored.generation + 1)
        data = self.disk.read_file(PATH)
        half = len(data) // 2
        self.disk.write_file(PATH, encode_state(stored.state, stored.place, 1).ljust(half, b"\0")
                             + content.ljust(half, b"\0"))
        self.store = FileStore.open(self.config, self.disk)
        self.assertKnown()
        self.assertGreater(self.keep(), 0)
        places = [one.place.entry_index for one in StateFile(self.disk, PATH).read()]
        self.assertEqual(places, [40, 40])

    def test_without_a_state_nothing_expires(self) -> None:
        """A failed write of the file keeps the log, and ends nothing."""
        with mock.patch.object(self.disk, "write_file", side_effect=OSError(28, "No space left on device")):
            self.assertEqual(self.keep(), 0)
        self.assertEqual(self.store.ledger_begin_index, 0)
        self.assertGreater(self.keep(), 0)
        self.assertKnown()


class PowerTests(KeeperCase):
    """The file never counts further than what a start finds."""

    def test_power_cuts(self) -> None:
        """Whatever of the last writes is lost: a start knows each number that its log has, at its place."""
        for seed in range(60):
            rng = random.Random(seed)
            disk = SimDisk(rng)
            disk.makedirs("/s")
            config = config_of("/s", flush_disk_type="async", file_reserved_hours=1,
                               enable_disk_force_clean=True)
            with mock.patch.object(state_keeper, "SAVE_EVERY_BYTES", 300):
                store = FileStore.open(config, disk)
                begin_session(store, "p", 1)
                for _ in range(rng.randrange(4, 40)):
                    number(store, "p", rng.randrange(1, 4))
                    if rng.random() < 0.5:
                        store.record_commit(store.ledger_end_index)
                    if rng.random() < 0.4:
                        flush(store)
                disk.lose_power()
                store = FileStore.open(config, disk)
            self.assertIsNotNone(store.group, seed)
            assert store.group is not None
            known = store.group.producer("p")
            entries = store.ledger_end_index  # (All except the session entry, with which the log begins.)
            self.assertEqual(-1 if known is None else known.last, max(entries, 0) - 1, seed)

