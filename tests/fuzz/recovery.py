# -*- test-case-name: tests.fuzz.test_recovery -*-
"""
Recovery of damaged directories: after any damage, a store opens or refuses clearly.

A store that opens holds a prefix of the old entries, with holes; if the prefix ends before the end that its
commit mark records, the store is repairing. The holes are closed with the old entries. It accepts entries,
and they are there again after the next start.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, read_mark
from dledger.storage.files.term_file import TermFile
from dledger.storage.start.verify import verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DamagedEntryError, DLedgerError, StoreError
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER, iterate_records

CONFIG = DLedgerConfig(
    store_base_dir="base", mapped_file_size_for_entry_data=1024, mapped_file_size_for_entry_index=320,
    file_reserved_hours=72,
)
ROOT = CONFIG.self_path

Entry = tuple[int, int, bytes]


@attrs.frozen
class Template:
    """A directory before the damage, and its content."""

    disk: MemoryDisk
    entries: list[Entry]
    first_index: int
    has_checksums: bool
    batches: list[EntryBatch]


def entries_of(store: FileStore) -> list[Entry]:
    """Index, term and body of all entries of a store that are in no hole."""
    found: list[Entry] = []
    index = max(store.ledger_begin_index, 0)
    while index <= store.ledger_end_index:
        try:
            batch = store.read_batch(index, max_count=50, max_bytes=4096)
        except DamagedEntryError:
            index += 1
            continue
        found.extend((header.index, header.term, body) for header, body in iterate_records(batch))
        index = batch.last_index + 1
    return found


def _fill(store: FileStore, rng: random.Random, count: int, bare: bool) -> None:
    term = 1
    while store.ledger_end_index < count - 1:
        if rng.random() < 0.2:
            term += 1
        bodies = tuple(rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 6)))
        if not bare:
            store.append_bodies(bodies, term)
            continue
        for body in bodies:  # as Java writes: no checksums
            size = len(body) + 48
            index, pos = store.ledger_end_index + 1, store.end_position
            if size + 8 > 1024 - pos % 1024:
                pos += 1024 - pos % 1024
            header = ENTRY_HEADER.pack(1, size, index, term, pos, 0, 0, 0, len(body))
            store.append_entries(EntryBatch(first_index=index, count=1, term=term, records=header + body))


def make_template(seed: int) -> Template:
    """A directory after a clean stop, a kill, or of Java's; whole or with its beginning expired."""
    rng = random.Random(seed)
    kind = seed % 4
    disk = MemoryDisk()
    store = FileStore.open(CONFIG, disk)
    count = rng.choice((0, 1, 3, 12, 40)) if seed >= 4 else 30
    _fill(store, rng, count, bare=kind == 2)
    if store.ledger_end_index >= 0:
        job = store.prepare_flush()
        assert job is not None
        job.run()
        store.finish_flush(job)
        store.record_commit(rng.randrange(-1, store.ledger_end_index + 1))
    store.check_point(force=True)
    if kind == 3:
        store.maintenance(1e9, 4, keep_from_index=store.committed_index)
    entries, first = entries_of(store), max(store.ledger_begin_index, 0)
    batches = [store.read_batch(entry[0], max_count=1, max_bytes=0) for entry in entries]
    TermFile(disk, ROOT).save(9, "n1")
    if kind in (0, 3):
        store.clean_close()
    else:
        store.abandon()
    if kind == 2:
        disk.unlink(f"{ROOT}/{COMMIT_MARK_NAME}")
    return Template(disk, entries, first, kind != 2, batches)


_templates: dict[int, Template] = {}


def _flip(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    content = disk.files[path]
    data = _whole(disk, path)
    for _ in range(rng.choice((1, 1, 1, 4))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    content.data = data


def _whole(disk: MemoryDisk, path: str) -> bytearray:
    content = disk.files[path]
    return bytearray(content.data.ljust(content.size, b"\0"))


def _cut(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    content = disk.files[path]
    content.size = rng.randrange(content.size + 1)
    del content.data[content.size :]


def _zero(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    data = _whole(disk, path)
    start = rng.randrange(len(data) + 1)
    end = min(start + rng.choice((1, 4, 8, 48, 100, 512)), len(data))
    data[start:end] = bytes(end - start)
    disk.files[path].data = data


def _scribble(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    data = _whole(disk, path)
    start = rng.randrange(len(data) + 1)
    end = min(start + rng.choice((1, 4, 8, 48, 100, 512)), len(data))
    data[start:end] = rng.randbytes(end - start)
    disk.files[path].data = data


def _move_block(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    data = _whole(disk, path)
    if len(data) > 64:
        size = rng.choice((32, 64))
        start, to = rng.randrange(len(data) - size), rng.randrange(len(data) - size)
        data[to : to + size] = data[start : start + size]
        disk.files[path].data = data


def _delete(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    disk.unlink(path)


def _grow(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    content = disk.files[path]
    content.data = _whole(disk, path) + rng.randbytes(rng.randrange(1, 100))
    content.size = len(content.data)


def _duplicate(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    head, _, name = path.rpartition("/")
    if name.isdecimal():
        step = 1024 if head.endswith("data") else 320
        name = f"{int(name) + rng.choice((-2, -1, 1, 2, 7)) * step:020d}"
    else:
        name += rng.choice((".tmp", ".bak", "2"))
    disk.write_file(f"{head}/{name}", bytes(_whole(disk, path)))


def _foreign(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    head = path.rpartition("/")[0]
    disk.write_file(f"{head}/{rng.choice(('x', '.nfs', '0', '000000000000000000_1', '9' * 20, '1' * 21))}",
                    rng.randbytes(rng.randrange(3)))


DAMAGES: tuple[Callable[[MemoryDisk, str, random.Random], None], ...] = (
    _flip, _flip, _cut, _zero, _zero, _scribble, _move_block, _delete, _grow, _duplicate, _foreign,
)


def _damaged(template: Template, rng: random.Random) -> MemoryDisk:
    disk = template.disk.clone()
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        path = rng.choice(sorted(disk.files))
        rng.choice(DAMAGES)(disk, path, rng)
        if not disk.files:
            break
    return disk


def fuzz_recovery(rng: random.Random) -> None:
    """
    One execution: damage a directory, open it, use it, open it again.

    @raise AssertionError: recovery broke its promise; any other exception is a failure, too.
    """
    seed = rng.randrange(64)
    template = _templates.get(seed)
    if template is None:
        template = _templates[seed] = make_template(seed)
    disk = _damaged(template, rng)
    recorded = _recorded_end(disk)
    try:
        if rng.random() < 0.1:
            verify_directory(disk, ROOT)
        if rng.random() < 0.3:
            TermFile(disk, ROOT).load()
        store = FileStore.open(CONFIG, disk)
    except StoreError as error:
        assert str(error)
        assert not disk.locked, "a refused directory stays locked"
        return
    try:
        _check(template, store, recorded)
        if not _mend(template, store):
            store.abandon()
            return
        entries = entries_of(store)
        _use(store, rng, entries)
        if rng.random() < 0.5:
            store.clean_close()
        else:
            store.abandon()
    except StoreError:
        # Damage in front of the part that recovery scans, found by a read: the next start knows it.
        store.abandon()
        return
    repairing = store.repair_end_index
    again = FileStore.open(CONFIG, disk)
    assert entries_of(again) == entries, "another start shows another ledger"
    assert again.repair_end_index == repairing
    again.abandon()


def _recorded_end(disk: MemoryDisk) -> int:
    try:
        found = read_mark(disk, f"{ROOT}/{COMMIT_MARK_NAME}")
    except StoreError:
        return -1
    if found is None or found[1].clean:
        return -1  # clean: the checkpoint decides whether the mark counts
    return max(found[1].end_index, found[1].committed_index)


def _check(template: Template, store: FileStore, recorded: int) -> None:
    assert store.ledger_begin_index <= store.ledger_end_index
    assert -1 <= store.committed_index <= store.ledger_end_index
    if store.ledger_end_index < recorded:
        assert store.repair_end_index >= recorded, "a lost tail goes unnoticed"
    found = entries_of(store)
    assert [entry[0] for entry in found] == [
        index for index in range(max(store.ledger_begin_index, 0), store.ledger_end_index + 1)
        if not any(hole.holds(index) for hole in store.holes)
    ]
    terms = [entry[1] for entry in found]
    assert terms == sorted(terms)
    if template.has_checksums and found:
        assert store.ledger_begin_index >= template.first_index, store.ledger_begin_index
        expected = {entry[0]: entry for entry in template.entries}
        assert found == [expected.get(entry[0]) for entry in found], "an entry is not what was written"


def _mend(template: Template, store: FileStore) -> bool:
    """Close all holes. @return: whether that is done; Java's records do not always prove themselves."""
    for _ in range(300):
        if not store.holes:
            if template.has_checksums:
                _check(template, store, -1)  # a read may find more
            if not store.holes:
                return True
        if store.look_again():
            continue
        at = store.holes[0].first_index - template.first_index
        try:
            store.fill_hole(template.batches[at], is_committed=True)
        except StoreError:
            raise
        except DLedgerError:
            continue
    assert not template.has_checksums, f"cannot be mended: {store.holes}"
    return False


def _use(store: FileStore, rng: random.Random, entries: list[Entry]) -> None:
    """Append and truncate as a member would; C{entries} is updated."""
    term = max(store.ledger_end_term, 0) + 1
    for _ in range(rng.randrange(4)):
        if rng.random() < 0.7:
            body = rng.randbytes(rng.randrange(200))
            store.append_bodies((body,), term)
            entries.append((store.ledger_end_index, term, body))
        elif store.ledger_end_index > max(store.committed_index, store.ledger_begin_index):
            low = max(store.committed_index, store.ledger_begin_index)
            index = rng.randrange(low, store.ledger_end_index)
            try:
                store.truncate_to(store.read_batch(index, max_count=1, max_bytes=0))
            except StoreError:
                raise
            except DLedgerError as error:
                raise AssertionError(f"an entry of ours is refused: {error}") from error
            del entries[index - max(store.ledger_begin_index, 0) + 1 :]
    if rng.random() < 0.3:
        job = store.prepare_flush()
        if job is not None:
            job.run()
            store.finish_flush(job)
