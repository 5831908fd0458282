# -*- test-case-name: tests.sim.test_crashes -*-
"""
Runs a workload once, then looks at every state that a crash in it may leave.

A crash comes before a changing call, in it (the call is a write, and a part of it is done) or after the
last one. It is the end of the process, which leaves the page cache, or a power cut. A power cut keeps any
subset of the changes that are not on stable storage: all subsets of at most L{SUBSETS_OF} changes, else a
seeded sample with none, all, all but one, and one alone. From each state the directory is opened and checked;
then the same is done with a second crash in every changing call of that recovery, with fewer outcomes.

Knows nothing of ledgers or commit logs: a L{Story} runs and checks them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import attrs

from dledger.testing.crashes.disk import CrashDisk, WatchedCall
from dledger.testing.crashes.image import DiskImage

#: Of this many changes all subsets are tried.
SUBSETS_OF = 8
#: Of more changes this many subsets are.
SUBSETS_MAX = 256
#: Subsets that are drawn for a second crash, besides none and all.
SECOND_SUBSETS = 3

_Promise = TypeVar("_Promise")


class BadImage(Exception):
    """A state in which a promise is broken."""


def demand(condition: bool, sentence: str) -> None:
    """@raise BadImage: the condition does not hold."""
    if not condition:
        raise BadImage(sentence)


class Story(Protocol[_Promise]):
    """
    A workload.

    @ivar name: unique.
    """

    @property
    def name(self) -> str:
        """Unique."""

    def run(self, disk: CrashDisk, promised: Callable[[_Promise], None]) -> None:
        """
        Do the work on an empty disk.

        @param promised: to be called with the promises that hold from now on, whatever happens.
        """

    def check(self, disk: CrashDisk, promise: _Promise, *, boots: int, goes_on: Callable[[], bool]) -> None:
        """
        Recover, and check.

        @param boots: number of power cuts so far.
        @param goes_on: asked when all is checked; True: check that the recovered files can be used, too. From
            then on calls of the disk are not watched.
        @raise BadImage: a promise is broken.
        """


@attrs.frozen(eq=False)
class CrashPoint(Generic[_Promise]):
    """
    Before a changing call.

    @ivar call: None: after the last one.
    """

    call: WatchedCall | None
    image: DiskImage
    promise: _Promise


@attrs.frozen(eq=False)
class Crash:
    """
    A state that a crash leaves.

    @ivar says: what happened, for a report.
    @ivar is_power: whether the machine lost power.
    """

    says: str
    image: DiskImage
    is_power: bool


@attrs.define
class CrashTally:
    """
    Sums.

    @ivar calls: changing calls of the workloads.
    @ivar images, second_images: different states after one crash, and after two.
    @ivar bad: sentences about the bad ones.
    """

    calls: int = 0
    images: int = 0
    second_images: int = 0
    bad: list[str] = attrs.Factory(list)

    def add(self, other: CrashTally) -> None:
        """Add the sums of another run."""
        self.calls += other.calls
        self.images += other.images
        self.second_images += other.second_images
        self.bad += other.bad


def subsets(numbers: list[int], rng: random.Random, *, subsets_max: int) -> Iterator[frozenset[int]]:
    """All subsets of the changes C{numbers}, or a sample of about C{subsets_max}."""
    if len(numbers) <= SUBSETS_OF and 1 << len(numbers) <= subsets_max:
        for mask in range(1 << len(numbers)):
            yield frozenset(number for at, number in enumerate(numbers) if mask >> at & 1)
        return
    yield frozenset()
    yield frozenset(numbers)
    given = 2
    if subsets_max > 2 * len(numbers) + 2:
        for number in numbers:
            yield frozenset((number,))
            yield frozenset(numbers) - {number}
        given += 2 * len(numbers)
    for _ in range(max(subsets_max - given, 0)):
        share = rng.random()
        yield frozenset(number for number in numbers if rng.random() < share)


def _torn_lengths(size: int, rng: random.Random, *, many: bool) -> list[int]:
    """Where an interrupted write of C{size} bytes ends."""
    if size <= 1:
        return []
    if not many:
        return [1 + int(rng.random() * (size - 1))]
    edges = {1, 8, size // 2, size - 8, size - 1, 1 + int(rng.random() * (size - 1))}
    return sorted(edge for edge in edges if 0 < edge < size)


def crashes(
    point: CrashPoint[_Promise], rng: random.Random, *, subsets_max: int = SUBSETS_MAX, share: float = 1.0
) -> Iterator[Crash]:
    """
    Every state that a crash at this point leaves, as far as the module says.

    @param share: of the states that are given; the others are passed over at random.
    """
    image, call = point.image, point.call
    where = "at the end" if call is None else f"before the {call.kind} of {call.path}"
    if rng.random() < share:
        yield Crash(f"killed {where}", image, False)
    pending = image.pending
    for kept in subsets(pending, rng, subsets_max=subsets_max):
        if rng.random() < share:
            yield Crash(f"power cut {where}, kept {sorted(kept)} of {pending}",
                        image.after_power_cut(kept), True)
    if call is None or call.inode < 0:
        return
    for size in _torn_lengths(len(call.data), rng, many=subsets_max >= SUBSETS_MAX):
        if rng.random() < share:
            yield from _torn(image, call, size)


def _torn(image: DiskImage, call: WatchedCall, size: int) -> Iterator[Crash]:
    """A crash in a write of which the first C{size} bytes, or the others, are done."""
    where = f"in the {call.kind} of {call.path}, after {size} of {len(call.data)} bytes"
    for start, piece in ((0, call.data[:size]), (size, call.data[size:])):
        torn = image.with_torn(call.inode, call.position + start, piece)
        if start == 0:
            yield Crash(f"killed {where}", torn, False)
        for kept in (frozenset((torn.number,)), frozenset(torn.pending)):
            yield Crash(f"power cut {where}, from {start} on", torn.after_power_cut(kept), True)


class Enumeration(Generic[_Promise]):
    """
    All crashes of one story.

    @ivar tally: the sums so far.
    """

    def __init__(
        self, story: Story[_Promise], *, seed: int = 1, share: float = 1.0, second_share: float = 1.0,
        bad_max: int = 5,
    ) -> None:
        """
        @param share: of the states after one crash that are looked at, drawn at random.
        @param second_share: of the states after a second crash in the recovery; 0: there is none.
        @param bad_max: give up after this many bad states.
        """
        self.tally = CrashTally()
        self._story = story
        self._rng = random.Random(f"{seed} {story.name}")
        self._share = share
        self._second_share = second_share
        self._bad_max = bad_max
        self._seen: set[tuple[int, int, int]] = set()
        self._gone_on: set[int] = set()

    def points(self) -> list[CrashPoint[_Promise]]:
        """Run the story and keep the state before every changing call, from the first promise on."""
        found: list[CrashPoint[_Promise]] = []
        promises: list[_Promise] = []

        def watch(call: WatchedCall) -> None:
            if promises:
                found.append(CrashPoint(call, disk.image(), promises[-1]))

        disk = CrashDisk(watcher=watch)
        self._story.run(disk, promises.append)
        found.append(CrashPoint(None, disk.image(), promises[-1]))
        return found

    def run(self) -> CrashTally:
        """Look at all states."""
        for point in self.points():
            self.tally.calls += 1
            for crash in crashes(point, self._rng, share=self._share):
                if len(self.tally.bad) >= self._bad_max:
                    return self.tally
                if self._is_new(crash, point.promise, 0):
                    self.tally.images += 1
                    self._look(crash, point.promise)
        return self.tally

    def _is_new(self, crash: Crash, promise: _Promise, boots: int) -> bool:
        key = (crash.image.key(), id(promise), boots + crash.is_power)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _look(self, crash: Crash, promise: _Promise) -> None:
        points: list[CrashPoint[_Promise]] = []
        disk = CrashDisk(crash.image)
        if self._second_share:
            disk.watcher = lambda call: points.append(CrashPoint(call, disk.image(), promise))
        if not self._check(disk, promise, int(crash.is_power), crash.says):
            return
        for point in points:
            for second in crashes(point, self._rng, subsets_max=2 + SECOND_SUBSETS, share=self._second_share):
                if len(self.tally.bad) >= self._bad_max:
                    return
                if self._is_new(second, promise, int(crash.is_power)):
                    self.tally.second_images += 1
                    self._check(CrashDisk(second.image), promise, crash.is_power + second.is_power,
                                f"{crash.says}; then {second.says}")

    def _check(self, disk: CrashDisk, promise: _Promise, boots: int, says: str) -> bool:
        def goes_on() -> bool:
            disk.watcher = None
            key = disk.image().key()
            is_new = key not in self._gone_on
            self._gone_on.add(key)
            return is_new

        try:
            self._story.check(disk, promise, boots=boots, goes_on=goes_on)
        except BadImage as bad:
            self.tally.bad.append(f"{self._story.name}: {says}: {bad}")
            return False
        return True
