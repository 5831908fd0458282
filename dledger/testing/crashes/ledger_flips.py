# -*- test-case-name: tests.sim.test_crashes -*-
"""
Flips every bit of every file of a member's directory, one at a time, and lets the member start.

A member must never lie: an entry that it shows is the one that was written. While an acknowledged entry is
missing, the member calls itself repairing, or the entry is in a hole, or a read of it is refused. Its term
does not fall and its vote is not another one. Then its peers, which are sound, give it the missing entries,
in the steps of the core: holes are looked at again and filled, the end is appended. After that, and after
another start, it must hold every entry as it was, without a person.

Records of Java have no checksums, so the flips of their bodies cannot be seen: they are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from dledger.storage.files.term_file import TermVote
from dledger.storage.store.file_store import FileStore
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import BadImage, demand
from dledger.testing.crashes.image import DiskImage
from dledger.testing.crashes.ledger_check import LedgerPromise, crash_config, start
from dledger.testing.crashes.ledger_stories import LedgerActor
from dledger.values.errors import DamagedEntryError, DirectoryError, DLedgerError
from protocols.wire.ledger.batches import EntryBatch

#: Steps of a repair; each puts at least one entry back.
_STEPS_MAX = 200


@attrs.define
class FlipTally:
    """
    Sums.

    @ivar flips: flipped bits.
    @ivar untouched: the member noticed nothing, and nothing was missing.
    @ivar repaired: it noticed, and got everything back.
    @ivar refused: it did not start; a person is needed.
    @ivar bad: sentences about lies, and about entries that did not come back.
    @ivar refusals: path and bit of some refused ones.
    """

    flips: int = 0
    untouched: int = 0
    repaired: int = 0
    refused: int = 0
    bad: list[str] = attrs.Factory(list)
    refusals: list[str] = attrs.Factory(list)

    def add(self, other: FlipTally) -> None:
        """Add the sums of another run."""
        self.flips += other.flips
        self.untouched += other.untouched
        self.repaired += other.repaired
        self.refused += other.refused
        self.bad += other.bad
        self.refusals += other.refusals


@attrs.frozen(eq=False, kw_only=True)
class Situation:
    """
    A directory of a member that does not run.

    @ivar twin: every acknowledged entry, by its index; from where the ledger begins.
    @ivar committed: the peers know the entries up to here to be committed.
    """

    name: str
    image: DiskImage
    twin: dict[int, EntryBatch]
    term: TermVote
    committed: int


def _closed(actor: LedgerActor) -> None:
    actor.append(40, 300, 100, 0, 200, 10, flush=True)
    actor.vote(2, "n0")
    actor.append(0, 90, 90, 90, flush=True)
    actor.commit(6)
    actor.check_point(force=True)
    actor.append(90, flush=True)
    actor.vote(3, "n2")
    actor.commit(10)


def _clean(actor: LedgerActor) -> None:
    _closed(actor)
    actor.store.record_commit(actor.log.end)


def _expired(actor: LedgerActor) -> None:
    actor.append(*[200] * 10, flush=True)
    actor.commit(9)
    actor.check_point(force=True)
    actor.expire(6)
    actor.append(30, 0, 5, flush=True)


def _with_hole(actor: LedgerActor) -> None:
    actor.append(*[150] * 9, flush=True)
    actor.commit(8)
    actor.rot(4)


def situations() -> Iterator[Situation]:
    """A killed member, one that was closed, one whose beginning has expired, one with a hole."""
    for name, work, kind in (
        ("killed", _closed, "sync"), ("killed-async", _closed, "async"), ("closed", _clean, "sync"),
        ("expired", _expired, "sync"), ("hole", _with_hole, "sync"),
    ):
        yield situation(name, work, kind)


def situation(name: str, work: Callable[[LedgerActor], None], kind: str) -> Situation:
    """Make one."""
    disk = CrashDisk()
    config = crash_config(flush_disk_type=kind)
    twins: dict[int, EntryBatch] = {}

    class Remembering(LedgerActor):
        """An actor that keeps every entry as it was written."""

        def append(self, *sizes: int, flush: bool = False) -> None:
            """Append, and keep them."""
            first = self.log.end + 1
            super().append(*sizes, flush=flush)
            twins.update((index, self.entry(index)) for index in range(first, self.log.end + 1))

    def nobody(_promise: LedgerPromise) -> None:
        """The promises are not needed."""

    actor = Remembering(config, disk, nobody)
    work(actor)
    if name == "closed":
        actor.close()
    else:
        actor.kill()
    disk.settle()
    twin = {index: entry for index, entry in twins.items() if index >= actor.log.begin}
    return Situation(name=name, image=disk.image(), twin=twin, term=actor.term, committed=max(twin))


class Flipping:
    """All flips of one situation."""

    def __init__(self, situation: Situation, *, kind: str = "sync") -> None:
        self.tally = FlipTally()
        self._situation = situation
        self._config = crash_config(flush_disk_type=kind)

    def flips(self) -> Iterator[tuple[str, int, int]]:
        """Path, byte and bit of each."""
        for path, content in sorted(self._situation.image.contents().items()):
            for at in range(len(content)):
                for bit in range(8):
                    yield path, at, bit

    def run(self, *, every: int = 1, offset: int = 0, bad_max: int = 5) -> FlipTally:
        """
        Flip them.

        @param every, offset: flip one in C{every} bits, beginning with number C{offset}.
        """
        for number, (path, at, bit) in enumerate(self.flips()):
            if number % every != offset or len(self.tally.bad) >= bad_max:
                continue
            self.tally.flips += 1
            place = f"{self._situation.name}: bit {bit} of byte {at} of {path}"
            try:
                self._flip(path, at, bit, place)
            except BadImage as bad:
                self.tally.bad.append(f"{place}: {bad}")
            except (DLedgerError, AssertionError) as error:
                self.tally.bad.append(f"{place}: {type(error).__name__}: {error}")
        return self.tally

    def _flip(self, path: str, at: int, bit: int, place: str) -> None:
        disk = CrashDisk(self._situation.image.with_flipped_bit(path, at, bit))
        try:
            store, terms, found = start(self._config, disk, boots=0)
        except DirectoryError as error:
            self.tally.refused += 1
            self.tally.refusals.append(f"{place}: {error}")
            return
        terms.close()
        self._check_term(found)
        if not self._lacks(store):
            self.tally.untouched += 1
            store.abandon()
            return
        self._repair(store)
        store.abandon()
        again, terms, found = start(self._config, disk, boots=0)
        terms.close()
        self._check_term(found)
        demand(not self._lacks(again), "after the repair and another start something is missing")
        again.abandon()
        self.tally.repaired += 1

    def _check_term(self, found: TermVote) -> None:
        was = self._situation.term
        demand(found == was or found.term > was.term, f"term and vote were {was}, and are {found}")

    def _lacks(self, store: FileStore) -> bool:
        """
        Whether entries are missing, or the member says so.

        @raise BadImage: an entry is another one, or is missing and the member does not say so.
        """
        lacks = bool(store.holes) or store.repair_end_index >= 0
        twin = self._situation.twin
        begin, end = store.ledger_begin_index, store.ledger_end_index
        demand(end <= max(twin), f"it ends at {end}, after {max(twin)}")
        if end < max(twin):
            demand(store.repair_end_index >= max(twin), f"it ends at {end}, and does not say that it owes "
                   f"{max(twin)}: repairing up to {store.repair_end_index}")
        if end >= 0:
            demand(begin == min(twin), f"it begins at {begin}")
        for index in range(max(begin, 0), end + 1):
            try:
                entry = store.read_range(index, end_index=index, max_bytes=0)
            except DamagedEntryError:
                lacks = True
                continue
            demand(entry.records == twin[index].records, f"entry {index} is another one")
        return lacks

    def _repair(self, store: FileStore) -> None:
        """What a sound leader, and the peers, do."""
        twin = self._situation.twin
        for _ in range(_STEPS_MAX):
            if store.holes:
                if not store.look_again():
                    store.fill_hole(self._batch(store.holes[0].first_index), is_committed=True)
            elif store.ledger_end_index < 0:
                store.truncate_to(twin[min(twin)], anew=min(twin) > 0)
            elif store.ledger_end_index < max(twin):
                store.append_entries(twin[store.ledger_end_index + 1])
            elif store.repair_end_index >= 0:
                store.end_repair()
            elif not self._lacks(store):
                store.check_point(force=True)
                return
        raise BadImage("it does not come to an end of its repair")

    def _batch(self, index: int) -> EntryBatch:
        return self._situation.twin[index]
