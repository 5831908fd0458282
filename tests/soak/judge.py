# -*- test-case-name: tests.hostile.test_soak -*-
"""
Judges a soak by the calls of its clients and by the logs of its members.

Appends and reads of single entries are linearizable, see L{dledger.testing.group.checks.history}. The log has
each number of a producer once, and they are in order, without a gap. A process of the named reader begins
after all commits that were acknowledged before it asked, and leaves out no entry that nobody has committed.
Each answer of a state machine is that of the log up to an entry.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

import attrs

from dledger.testing.group.checks.history import NEVER, Call, NotLinearizable, check
from protocols.wire.ledger.own.own_entries import is_hidden
from tests.processes.ledgers import LedgerFault, assert_identical, read_records
from tests.soak.machine import states_of
from tests.soak.worker import numbered_body


@attrs.frozen
class Line:
    """A line of a worker, see L{tests.soak.worker}. @ivar client: name of the worker."""

    client: str
    kind: str
    began: int
    ended: int
    outcome: str
    index: int
    body: str


def lines_of_workers(paths: Iterable[Path]) -> list[Line]:
    """Their files."""
    return [
        Line(path.stem, *json.loads(line)) for path in paths
        for line in path.read_text().split("\n")[:-1]  # the last one may be cut: that worker was ended
    ]


def calls_of(lines: Iterable[Line]) -> list[Call]:
    """
    The appends and the reads of single entries.

    Stamps are times of one clock; two that are equal count as calls at the same time.
    """
    return [
        Call(
            one.kind, 2 * one.began, one.index, one.body.encode("latin-1"),
            ended=NEVER if one.outcome == "unknown" else 2 * one.ended + 1, outcome=one.outcome,
            client=one.client,
        )
        for one in lines if one.kind in ("append", "get")
    ]


def judged(lines: list[Line], ledgers: list[Path]) -> list[str]:
    """What is wrong: sentences; none if all is as the module says, and all logs are the same."""
    wrong = [f"{one.client}, number {one.index}: {one.body}" for one in lines if one.kind == "wrong"]
    records = list(read_records(ledgers[0]))
    log = [record.body for record in records]
    programs = {index: record.body.decode("latin-1") for index, record in enumerate(records)
                if not is_hidden(record.channel, record.chain_crc)}
    wrong += wrong_numbers(programs.values(), {one.client for one in lines if one.client.startswith("p")})
    wrong += wrong_states([one for one in lines if one.kind == "state"], programs)
    wrong += wrong_reads([one for one in lines if one.client.startswith("r")], programs)
    try:
        check(calls_of(lines), lambda index: log[index], len(log) - 1)
    except NotLinearizable as error:
        wrong.append(f"not linearizable: {error}")
    try:
        assert_identical(ledgers, len(log) - 1)
    except LedgerFault as error:
        wrong.append(f"the logs differ: {error}")
    return wrong


def wrong_numbers(bodies: Iterable[str], producers: Iterable[str]) -> Iterator[str]:
    """@param bodies: of the entries of programs, in order."""
    following = dict.fromkeys(producers, 0)
    for body in bodies:
        name = body.partition(":")[0]
        if name in following and body != numbered_body(name, following[name]):
            yield f"{name}: after number {following[name] - 1} comes {body[:40]}"
            return
        if name in following:
            following[name] += 1


def wrong_states(lines: Iterable[Line], programs: Mapping[int, str]) -> Iterator[str]:
    """@param programs: the entries of programs, by index."""
    states = dict(states_of({index: body.encode("latin-1") for index, body in programs.items()}))
    for one in lines:
        wanted = states.get(one.index, b"no state").decode()
        if one.index >= 0 and one.body != wanted:
            yield f"{one.client}: after the entry {one.index} the machine has {one.body}, the log {wanted}"


def wrong_reads(lines: list[Line], programs: Mapping[int, str]) -> Iterator[str]:
    """@param programs: the entries of programs, by index."""
    place = {index: number for number, index in enumerate(sorted(programs))}
    commits = [one for one in lines if one.kind == "commit"]
    sure = _highest((one.ended, place[one.index]) for one in commits if one.outcome == "ok")
    begun = _highest((one.began, place[one.index]) for one in commits)
    last: dict[str, int] = {}
    for one in lines:
        if one.kind != "read":
            continue
        session, at = one.outcome, place.get(one.index, -1)
        if at < 0 or programs[one.index] != one.body:
            yield f"{session} was given {one.body[:40]!r} as the entry {one.index}"
        elif session in last:
            if at != last[session] + 1:
                yield f"{session} was given the entry {one.index}, which does not follow"
        else:
            done, known = sure(one.began), begun(one.ended)
            if not done < at <= known + 1:
                yield f"{session} began with number {at}; committed was {done}, perhaps {known}"
        last[session] = at


def _highest(found: Iterable[tuple[int, int]]) -> Callable[[int], int]:
    """@param found: times and numbers. @return: gives the highest number before a time; -1: none."""
    pairs = sorted(found)
    times, highest = [time for time, _ in pairs], [*accumulate((number for _, number in pairs), max)]
    return lambda before: highest[at - 1] if (at := bisect_left(times, before)) else -1


def summary(lines: list[Line]) -> str:
    """Numbers of calls by kind and outcome."""
    counts = Counter(f"{one.kind} {'entries' if one.kind == 'read' else one.outcome}" for one in lines)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
