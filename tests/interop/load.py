# -*- test-case-name: tests.interop.test_scenarios -*-
"""
A writer that appends at the leader of a group, in a thread, until it is closed.

Acknowledged appends are recorded. An append without an answer, or with an unknown outcome, is not repeated:
it may be in the ledger or not.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendRequest, AppendResponse, MetadataRequest, MetadataResponse
from tests.processes.asking import Asker, NoAnswer, ask
from tests.processes.children import wait_until

WINDOW = 8
BODY_BYTES_MAX = 900


class Load:
    """
    One writer with a window of L{WINDOW} appends.

    Invariant: while it is paused, nothing is in flight and C{acknowledged} does not change.

    @ivar acknowledged: index to body.
    @ivar twice: indexes that were acknowledged for two different bodies.
    @ivar answers: number of answers, by name of the code.
    """

    def __init__(
        self, peers: Mapping[str, str], group: str, acknowledged: dict[int, bytes], *, seed: int,
        rate: float = 250.0,
    ) -> None:
        """@param rate: most appends per second."""
        self.acknowledged = acknowledged
        self.twice: list[int] = []
        self.answers: Counter[str] = Counter()
        self._peers, self._group, self._interval = dict(peers), group, 1 / rate
        self._chance = random.Random(seed)
        self._number = 0
        self._last_ok_called = 0.0
        self._wanted, self._idle, self._over = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go(self) -> None:
        """Start writing."""
        self._idle.clear()
        self._wanted.set()

    def pause(self, *, seconds: float = 90.0) -> None:
        """Stop writing; return when no append is in flight."""
        self._wanted.clear()
        wait_until(self._idle.is_set, seconds=seconds, what="a writer without appends in flight")

    def close(self) -> None:
        """End the thread soon."""
        self._over.set()
        self._wanted.set()

    def wait_acknowledged(self, *, seconds: float = 150.0) -> float:
        """
        Wait until an append is acknowledged that was called after this call.

        @return: seconds until then.
        """
        now = time.monotonic()
        wait_until(lambda: self._last_ok_called > now, seconds=seconds, what="an acknowledged append")
        return time.monotonic() - now

    def _run(self) -> None:
        while not self._over.is_set():
            if not self._wanted.is_set():
                self._idle.set()
                self._wanted.wait(0.5)
                continue
            leader_id = self._leader()
            if leader_id is None:
                time.sleep(0.1)
                continue
            try:
                with Asker(self._peers[leader_id], seconds=3.0) as asker:
                    self._write(asker, leader_id)
            except (OSError, NoAnswer) as error:
                self.answers[type(error).__name__] += 1

    def _leader(self) -> str | None:
        """The member that calls itself the leader; of several, the one with the highest term."""
        found: list[tuple[int, str]] = []
        for peer_id, address in self._peers.items():
            try:
                request = MetadataRequest(group=self._group, remote_id=peer_id)
                said = ask(address, request, seconds=0.5)
            except NoAnswer:
                continue
            if isinstance(said, MetadataResponse) and said.leader_id == peer_id:
                found.append((said.term, peer_id))
        return max(found)[1] if found else None

    def _write(self, asker: Asker, leader_id: str) -> None:
        """Append until paused, or until an answer is not SUCCESS."""
        in_flight: deque[tuple[int, float, bytes]] = deque()
        while in_flight or self._wanted.is_set() and not self._over.is_set():
            while self._wanted.is_set() and len(in_flight) < WINDOW:
                body = self._body()
                called = time.monotonic()
                request = AppendRequest(group=self._group, remote_id=leader_id, bodies=(body,))
                in_flight.append((asker.send(request), called, body))
                time.sleep(self._interval)
            if not in_flight:
                return
            opaque, called, body = in_flight.popleft()
            answer = asker.collect(opaque)
            assert isinstance(answer, AppendResponse)
            self.answers[getattr(answer.code, "name", str(answer.code))] += 1
            if answer.code is not ResponseCode.SUCCESS:
                time.sleep(0.05)
                return
            if self.acknowledged.setdefault(answer.index, body) != body:
                self.twice.append(answer.index)
            self._last_ok_called = max(self._last_ok_called, called)

    def _body(self) -> bytes:
        self._number += 1
        size = self._chance.choice((0, 20, 200, BODY_BYTES_MAX))
        return (b"%d;" % self._number).ljust(size, b".")
