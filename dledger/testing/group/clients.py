# -*- test-case-name: tests.sim.test_clients -*-
"""
Clients of a simulated group: they append, read and follow, and record the answers.

Rule 1: an append is never sent twice; without a certain answer its outcome is unknown.
Rule 2: every body is unique in a run.

Entries that a follower shows (committed reads, tails) may lag but must be in the log: they are compared at
once with the committed entries. Linearizable calls go to the history and are judged at the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from dledger.testing.group.history import History
from dledger.testing.group.invariants import require
from dledger.testing.group.member import LOST, SimMember
from protocols.wire.ledger.codes import ResponseCode

if TYPE_CHECKING:
    from dledger.testing.group.cluster import SimCluster

#: Answers to an append after which the entry may be in the log.
_UNKNOWN = (LOST, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.TERM_CHANGED)


@attrs.frozen(kw_only=True)
class Load:
    """
    The load of a run.

    @ivar clients: number of clients.
    @ivar think_us: mean wait between two calls of one client.
    @ivar appends, gets, ends, follows: weights of the kinds of calls.
    @ivar bodies_max: most bodies in one append.
    @ivar body_bytes_max: longest body.
    @ivar patience_us: a client gives up a call after this time.
    @ivar wander: share of calls that go to a random member instead of the last known leader.
    """

    clients: int = 3
    think_us: int = 600_000
    appends: float = 0.6
    gets: float = 0.2
    ends: float = 0.05
    follows: float = 0.15
    bodies_max: int = 1
    body_bytes_max: int = 100
    wander: float = 0.05
    patience_us: int = 6_000_000


class SimClient:
    """One client: one call at a time, until C{is_stopped} is set."""

    def __init__(self, cluster: SimCluster, name: str, load: Load, rng: random.Random) -> None:
        self.name = name
        self._cluster = cluster
        self._history: History = cluster.history
        self._load = load
        self._rng = rng
        self._leader_id: str | None = None
        self._count = 0
        self._call_number = 0
        self._followed = 0
        self._highest = 0
        self.is_stopped = False
        weights = (load.appends, load.gets, load.ends, load.follows)
        total = sum(weights)
        self._append_below = weights[0] / total
        self._get_below = self._append_below + weights[1] / total
        self._end_below = self._get_below + weights[2] / total

    def start(self) -> None:
        """Begin the calls."""
        self._wait()

    def _wait(self) -> None:
        self._call_number += 1
        if not self.is_stopped:
            think_us = int(self._load.think_us * 2 * self._rng.random())
            self._cluster.clock.after(think_us, self._next, self._call_number)

    def _next(self, number: int) -> None:
        if number != self._call_number or self.is_stopped:
            return
        chance = self._rng.random()
        if chance < self._append_below:
            self._append()
        elif chance < self._get_below:
            self._get()
        elif chance < self._end_below:
            self._end()
        else:
            self._follow()

    def _target(self) -> SimMember:
        members = self._cluster.members
        if self._leader_id in members and self._rng.random() >= self._load.wander:
            return members[self._leader_id]
        return self._rng.choice(list(members.values()))

    def _call(self, ended: Callable[..., None], method: Callable[..., None], *arguments: object) -> None:
        """Deliver a call, and its answer, each after a delay; give up after C{patience_us}."""
        clock, number = self._cluster.clock, self._call_number
        delay_us = self._cluster.network.delay_us + int(self._rng.random() * 1000)

        def answered(code: ResponseCode, index: int, bodies: tuple[bytes, ...], leader: str | None) -> None:
            clock.after(delay_us, came, code, index, bodies, leader)

        def came(code: ResponseCode, index: int, bodies: tuple[bytes, ...], leader: str | None) -> None:
            if number == self._call_number:
                self._leader_id = leader if code is not LOST else None
                ended(code, index, bodies)
                self._wait()

        clock.after(delay_us, method, *arguments, answered)
        clock.after(self._load.patience_us, came, LOST, -1, (), None)

    def _body(self) -> bytes:
        self._count += 1
        size = int(self._load.body_bytes_max * self._rng.random() ** 2)
        return f"{self.name}.{self._count}:".encode().ljust(size, b"x")

    def _append(self) -> None:
        bodies = tuple(self._body() for _ in range(1 + int(self._load.bodies_max * self._rng.random())))
        calls = [self._history.begin("append", client=self.name, body=body) for body in bodies]

        def ended(code: ResponseCode, index: int, _: tuple[bytes, ...]) -> None:
            if code is ResponseCode.SUCCESS:
                self._highest = max(self._highest, index + len(calls) - 1)
            for offset, call in enumerate(calls):
                if code is ResponseCode.SUCCESS:
                    self._history.end(call, "ok", index=index + offset)
                else:
                    self._history.end(call, "unknown" if code in _UNKNOWN else "failed")

        self._call(ended, self._target().append, bodies)

    def _get(self) -> None:
        known = max(self._highest, self._cluster.invariants.last_committed)
        index = int(self._rng.random() * (known + 3))
        if self._rng.random() < 0.5:
            index = max(known - int(self._rng.random() * 3) + 1, 0)
        call = self._history.begin("get", client=self.name, index=index)

        def ended(code: ResponseCode, _: int, bodies: tuple[bytes, ...]) -> None:
            if code is ResponseCode.SUCCESS:
                self._history.end(call, "ok", body=bodies[0])
            else:
                beyond = code is ResponseCode.INDEX_OUT_OF_RANGE
                self._history.end(call, "beyond" if beyond else "failed")

        self._call(ended, self._target().read, index)

    def _end(self) -> None:
        call = self._history.begin("end", client=self.name)

        def ended(code: ResponseCode, index: int, _: tuple[bytes, ...]) -> None:
            self._history.end(call, "ok" if code is ResponseCode.SUCCESS else "failed", index=index)

        self._call(ended, self._target().read, -1)

    def _follow(self) -> None:
        first = self._followed
        member = self._rng.choice(list(self._cluster.members.values()))

        def ended(code: ResponseCode, index: int, bodies: tuple[bytes, ...]) -> None:
            if code is ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
                self._followed = max(self._followed, index)
            if code is not ResponseCode.SUCCESS:
                return
            require(index == first, 4, f"{self.name} asked {member.member_id} for {first} and got {index}")
            invariants = self._cluster.invariants
            for offset, body in enumerate(bodies):
                at = first + offset
                require(at in invariants.committed and invariants.body_of(at) == body, 4,
                        f"{member.member_id} showed {self.name} an entry at {at} that is not committed")
            self._followed = first + len(bodies)

        def pull(done: Callable[..., None]) -> None:
            member.read_committed(first, done, most=50)

        self._call(ended, pull)
