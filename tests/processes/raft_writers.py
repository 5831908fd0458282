# -*- test-case-name: tests.processes.test_raft_broker -*-
"""
Producers that send each message once, whatever happens, and the judge of what the brokers then have.

A message is sent once, so its outcome is one of three: acknowledged, with a place; refused, which must mean
that it is not stored; unknown, when the connection was lost or the broker said that it does not know.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from protocols.wire.remoting import RemotingCommand
from tests.processes.brokers import Remoting
from tests.processes.raft_brokers import Kept, RaftTrio

WINDOW = 32
QUEUES = 4
#: Without an answer for so long, a producer looks for another master.
SILENCE_S = 3.0
#: Codes of answers to sends. 10, 11 and 12 would say that a message is stored, and may be lost.
STORED, UNKNOWN, REFUSED = 0, 1, 14


class Reported(NamedTuple):
    """The place of an acknowledged message."""

    queue_id: int
    queue_offset: int
    physical_offset: int


def body_of(writer: int, number: int) -> bytes:
    """The body of one message; no other has it."""
    return b"%d/%d " % (writer, number) + b"x" * (number * 37 % 600)


class RaftWriter(threading.Thread):
    """
    One producer.

    Invariant: a number is in exactly one of C{acknowledged}, C{refused}, C{unknown}, or under way.

    @ivar codes: how often each code was the answer.
    @ivar acknowledged: number to its place.
    @ivar last_ok_s: the moment at which the last acknowledged message was sent.
    """

    def __init__(self, trio: RaftTrio, writer: int, topic: str, *, pause_s: float = 0.002) -> None:
        super().__init__(daemon=True)
        self._trio = trio
        self._writer = writer
        self._topic = topic
        self._pause_s = pause_s
        self._ends = threading.Event()
        self._next = 0
        self.codes: collections.Counter[int] = collections.Counter()
        self.acknowledged: dict[int, Reported] = {}
        self.last_ok_s = 0.0
        self.refused: list[int] = []
        self.unknown: list[int] = []

    def end(self) -> None:
        """Send no more; wait for the answers."""
        self._ends.set()
        self.join(60)
        assert not self.is_alive()

    def run(self) -> None:
        """Send to the master of the moment, until L{end}."""
        while not self._ends.is_set():
            master = self._trio.master()
            if master is not None:
                with contextlib.suppress(OSError):
                    self._send(self._trio.brokers[master].connect(seconds=SILENCE_S))
            self._ends.wait(0.02)

    def _send(self, connection: Remoting) -> None:
        waiting: dict[int, tuple[int, float]] = {}
        turned_away = False
        try:
            while waiting or not (self._ends.is_set() or turned_away):
                while len(waiting) < WINDOW and not (self._ends.is_set() or turned_away):
                    number, self._next = self._next, self._next + 1
                    # Lost or not, from here on its outcome is unknown until the answer comes.
                    waiting[connection.last + 1] = (number, time.monotonic())
                    connection.put(self._topic, number % QUEUES, body_of(self._writer, number))
                answer = connection.next()
                number, sent_s = waiting.pop(answer.opaque)
                turned_away = not self._took(answer, number, sent_s) or turned_away
                self._ends.wait(self._pause_s)
        finally:
            self.unknown += [number for number, _ in waiting.values()]
            connection.close()

    def _took(self, answer: RemotingCommand, number: int, sent_s: float) -> bool:
        """Note the outcome. @return: whether to go on with this broker."""
        self.codes[answer.code] += 1
        if answer.code == STORED:
            fields = answer.ext_fields
            self.acknowledged[number] = Reported(
                int(fields["queueId"]), int(fields["queueOffset"]), int(fields["msgId"][-16:], 16)
            )
            self.last_ok_s = max(self.last_ok_s, sent_s)
        elif answer.code == REFUSED:
            self.refused.append(number)
        else:
            self.unknown.append(number)
        return answer.code == STORED

    def judge(self, queues: Sequence[Sequence[Kept]]) -> list[str]:
        """Compare the outcomes with the queues that all brokers have. @return: what is wrong."""
        places: dict[bytes, list[tuple[int, Kept]]] = collections.defaultdict(list)
        for queue_id, queue in enumerate(queues):
            for kept in queue:
                places[kept.body].append((queue_id, kept))
        wrong = [
            f"writer {self._writer}: {count} answers with code {code}" for code, count in self.codes.items()
            if code not in (STORED, UNKNOWN, REFUSED)
        ]
        for number, reported in self.acknowledged.items():
            found = places.get(body_of(self._writer, number), [])
            there = [Reported(queue_id, kept.queue_offset, kept.physical_offset) for queue_id, kept in found]
            if there != [reported]:
                wrong.append(f"acknowledged {self._writer}/{number} at {reported}, is at {there}")
        for number in self.refused:
            if body_of(self._writer, number) in places:
                wrong.append(f"refused {self._writer}/{number} is stored")
        for number in self.unknown:
            if len(places.get(body_of(self._writer, number), [])) > 1:
                wrong.append(f"{self._writer}/{number} was sent once and is stored twice")
        return wrong

