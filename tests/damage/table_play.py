# -*- test-case-name: tests.damage.test_file_table -*-
"""
Plays the table of files: each failure of each file, and compares the outcome with that of its column.

    python -m tests.damage.table_play --within 60 --seed 1
    python -m tests.damage.table_play --only "member checkpoint rename EIO run"
"""

from __future__ import annotations

import argparse
import errno
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import click

from dledger.base.disk.file_table import FileRow, Worth, row_of
from dledger.testing.world.running import Effort
from tests.damage.faulty_disk import ERRORS, KINDS
from tests.damage.table_rigs import RIGS, TableRig

#: Kinds of damage, while no process runs.
GONE, CUT, FLIPPED = "gone", "cut", "flipped"
DAMAGES = (GONE, CUT, FLIPPED)
#: Times of a fault.
START, RUN = "start", "run"


@attrs.frozen
class TableCase:
    """
    One case. @ivar rig: kind of directory. @ivar name: of the file. @ivar error: of the calls; empty: damage.
    """

    rig: str
    name: str
    kind: str
    error: str = ""
    when: str = START

    def __str__(self) -> str:
        return " ".join(filter(None, (self.rig, self.name, self.kind, self.error, self.when)))


class Judgement:
    """Plays cases, from one template of each kind of directory."""

    def __init__(self, forget: Callable[[], object]) -> None:
        """@param forget: see L{TableRig}."""
        self._forget = forget
        self._templates: dict[str, Mapping[str, bytes]] = {}
        self._sent: dict[str, list[bytes]] = {}
        self.seen: Counter[str] = Counter()
        self.unknown: list[str] = []
        for kind, make in RIGS.items():
            rig = make(forget)
            for _ in range(2):
                rig.start()
                rig.work()
                rig.stop()
                assert not rig.ended, rig.ended
                rig.furnish()
            self._templates[kind] = {
                path: data for path, data in rig.disk.content.items() if not path.endswith("/lock")
            }
            self._sent[kind] = rig.sent
            self.unknown += [f"{kind}: {name}" for name in rig.names()
                             if row_of((*make.table, *make.inner), name) is None]

    def _row(self, make: type[TableRig], name: str) -> FileRow | None:
        return row_of(make.table, name)

    def cases(self, seed: int) -> Iterator[TableCase]:
        """All, shuffled: of each row the file that was written last."""
        found = []
        for kind in RIGS:
            for name in self.files(kind).values():
                found += [TableCase(kind, name, damage) for damage in DAMAGES]
                found += [TableCase(kind, name, fault, errno.errorcode[number], when)
                          for fault in KINDS for number in ERRORS for when in (START, RUN)
                          if (fault, number) != ("read", errno.ENOSPC)]
        random.Random(seed).shuffle(found)
        yield from found

    def files(self, kind: str) -> dict[str, str]:
        """Of each row of a kind of directory, the file that was written last; by the names of the rows."""
        make, last = RIGS[kind], dict[str, str]()
        for path in sorted(self._templates[kind]):
            name = path.removeprefix(f"{make.root}/")
            row = self._row(make, name)
            if row is not None:
                last[row.name] = name
        return last

    def flips(self, kind: str, count: int, seed: int) -> dict[str, Counter[str]]:
        """
        Flip single bits of each file, and let C{dledger verify} look; not in the zeroes after its content,
        which nobody reads. @param count: flips of each.
        @return: by row: how many were C{found}, C{named} (the finding is about this file), or C{missed}.
        """
        make, chance = RIGS[kind], random.Random(seed)
        rig = make(self._forget, dict(self._templates[kind]))
        assert not rig.findings(), rig.findings()
        counted: dict[str, Counter[str]] = {}
        for row, name in self.files(kind).items():
            path = f"{rig.root}/{name}"
            sound, seen = rig.disk.content[path], Counter[str]()
            for _ in range(count if sound else 0):
                at, bit = chance.randrange(len(sound.rstrip(b"\0"))), chance.randrange(8)
                rig.disk.put(path, sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :])
                findings = rig.findings()
                is_named = any(path.startswith(one) for one in findings)
                seen["named" if is_named else "found" if findings else "missed"] += 1
            rig.disk.put(path, sound)
            counted[row] = seen
        return counted

    def play(self, case: TableCase) -> str:
        """@return: the problem; empty if there is none."""
        try:
            return self._play(case)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} in {at.filename}:{at.lineno}: {error}"

    def _play(self, case: TableCase) -> str:
        make = RIGS[case.rig]
        row = self._row(make, case.name)
        assert row is not None
        rig = make(self._forget, dict(self._templates[case.rig]))
        before = list(self._sent[case.rig])
        rig.resume(before)
        path = f"{rig.root}/{case.name}"
        if not case.error:
            rig.disk.put(path, _damaged(case.kind, rig.disk.content[path], random.Random(str(case))))
        elif case.when == START:
            rig.disk.fail(path, case.kind, getattr(errno, case.error))
        rig.start()
        if case.error and case.when == RUN:
            rig.disk.fail(path, case.kind, getattr(errno, case.error))
        rig.work()
        rig.disk.heal()
        rig.work()
        rig.stop()
        return self._judge(case, row, rig, path, before)

    def _judge(self, case: TableCase, row: FileRow, rig: TableRig, path: str, before: list[bytes]) -> str:
        hits, said = rig.disk.hits, [*rig.ended, *rig.said]
        is_named = any(path in one or path.rpartition("/")[0] in one for one in said)
        if row.name.startswith("data/"):  # what cannot be read is damaged, and is asked of others
            is_named = is_named or any("entries-damaged" in one for one in said)
        if case.error and not hits:
            self.seen["no such call"] += 1
            return ""
        if row.worth is Worth.HINT:
            self.seen["hint"] += 1
            if rig.ended:
                return f"a hint ended the process: {rig.ended}"
            if case.error and not is_named:
                return "nothing was reported"
            if not rig.promised:
                return "nothing was done"
            # (RocketMQ's format has no checksum: dledger verify finds what a start does not.)
            is_found_only = case.kind == FLIPPED and row.name.startswith("index/")
            if path in rig.findings() and not is_found_only:
                return f"it was not made again: {rig.findings()}"
        else:
            self.seen["ended" if rig.ended else "went on"] += 1
            if case.error == "EIO" and row.worth is Worth.TRUTH and not is_named:
                return f"no sentence names it: {said[-3:]}"
            if rig.ended and not is_named:
                return f"the process ended, and no sentence names it: {rig.ended}"
            if row.worth is Worth.COPY and rig.ended and not case.error:
                return f"its other copy was not used: {rig.ended}"
        return self._judge_bodies(case, row, rig, before)

    def _judge_bodies(self, case: TableCase, row: FileRow, rig: TableRig, before: list[bytes]) -> str:
        if rig.ended and not case.error:
            return ""  # refused, and nothing has changed
        found = rig.readable()
        lost = [one for one in (*before, *rig.promised) if one not in found]
        strange = [one for one in found if one not in rig.sent]
        if strange:
            return f"{len(strange)} bodies that nobody has sent"
        if lost and (case.error or row.worth is not Worth.TRUTH):
            return f"{len(lost)} bodies are lost, the first is {lost[0][:9]!r}"
        return ""


def problem_of_flips(kind: str, row: str, seen: Counter[str]) -> str:
    """What is wrong with the count of the flips of a file; empty: nothing."""
    unproved = next(one.unproved for one in RIGS[kind].table if one.name == row)
    if seen["missed"] and not unproved:
        return f"{kind} {row}: {seen['missed']} of {seen.total()} flipped bits are not found"
    return ""


def _damaged(kind: str, data: bytes, chance: random.Random) -> bytes | None:
    if kind == GONE:
        return None
    if kind == CUT:
        return data[: len(data) // 2]
    found = bytearray(data)
    if found:
        for _ in range(max(1, len(found) // 64)):
            found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play cases; the last line counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage.table_play")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="play the cases whose names have this text")
    parser.add_argument("--within", type=float, help="seconds of the processor after which no case begins")
    parser.add_argument("--flips", type=int, default=300,
                        help="flipped bits of each file; a tenth with --within")
    given = parser.parse_args(arguments)
    effort = Effort(within_s=given.within)
    table = Judgement(lambda: None)
    cases = [one for one in table.cases(given.seed) if given.only in str(one)]
    failed = 0
    problems = effort.bounded(effort.played(table.play, cases, jobs=1))
    count = 0
    for case, problem in zip(cases, problems, strict=False):
        count += 1
        if problem:
            failed += 1
            click.echo(f"{case}: {problem}")
            click.echo(f'again: python -m tests.damage.table_play --only "{case}"')
    flips = given.flips // 10 if given.within else given.flips
    for kind in RIGS:
        for row, seen in table.flips(kind, flips, given.seed).items() if flips else ():
            count += 1
            if problem := problem_of_flips(kind, row, seen):
                failed += 1
                click.echo(problem)
            elif seen["missed"]:
                click.echo(f"{kind} {row}: {seen['missed']} of {flips} flipped bits are where the format "
                           "has no checksum")
    for outcome, number in sorted(table.seen.items()):
        click.echo(f"{number:7,} {outcome}")
    click.echo(f"{count - failed} table cases passed, {failed} failed")
    for name in table.unknown:
        click.echo(f"{name} is in no table")
    return 1 if failed or table.unknown else 0


if __name__ == "__main__":
    sys.exit(main())
