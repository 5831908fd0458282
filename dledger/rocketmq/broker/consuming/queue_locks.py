# -*- test-case-name: tests.broker.consuming.test_queue_locks -*-
"""
Locks for consumption in order: a master lends each queue to one client of a group at a time::

    41  LOCK_BATCH_MQ    42  UNLOCK_BATCH_MQ

A lock lasts 60 s after the last request for it; clients repeat the request every 20 s. Locks are not stored:
after a restart the first client that asks gets the lock, as in RocketMQ.

Source: RebalanceLockManager, AdminBrokerProcessor (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.rocketmq.answering.java_json import read_request, wire_items
from dledger.rocketmq.answering.pieces import ITEMS_A_PIECE, Pieces
from dledger.rocketmq.answering.refusals import Code, CommandGroup, Handlers, Refused
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.documents import name_in, to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import INT_BITS, JsonObject, shown, to_int
from protocols.wire.remoting import RemotingCommand

LOCK_BATCH_MQ = 41
UNLOCK_BATCH_MQ = 42

EXPIRED_MS = 60_000
#: The most locks of all groups together, and the most queues of one request.
LOCKS_MAX = 131_072
QUEUES_MAX = 16_384

#: Topic, broker name and number of a queue.
_Queue = tuple[str, str, int]


@attrs.define
class _Lock:
    client_id: str
    asked_ms: int


class QueueLocks(CommandGroup):
    """The group of commands."""

    small_codes = frozenset({LOCK_BATCH_MQ, UNLOCK_BATCH_MQ})

    def __init__(self, *, steady_ms: Callable[[], int], locks_max: int = LOCKS_MAX) -> None:
        """@param steady_ms: milliseconds of a clock that nobody sets."""
        self._steady_ms = steady_ms
        self._locks_max = locks_max
        self._locks: dict[tuple[str, _Queue], _Lock] = {}

    def __len__(self) -> int:
        """Number of locks, including expired ones before the next L{sweep}."""
        return len(self._locks)

    def handlers(self) -> Handlers:
        """By request code."""
        return {LOCK_BATCH_MQ: self._lock, UNLOCK_BATCH_MQ: self._unlock}

    def sweep(self) -> None:
        """Remove expired locks. Called regularly."""
        now_ms = self._steady_ms()
        self._locks = {at: one for at, one in self._locks.items() if now_ms - one.asked_ms <= EXPIRED_MS}

    def _lock(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        group, client_id, queues = yield from read_queues(request.body)
        now_ms = self._steady_ms()
        mine = yield from wire_items(
            {"topic": queue[0], "brokerName": queue[1], "queueId": queue[2]}
            for queue in queues if self._take(group, queue, client_id, now_ms)
        )
        connection.answer(request, body=b'{"lockOKMQSet":[' + mine + b"]}")

    def _take(self, group: str, queue: _Queue, client_id: str, now_ms: int) -> bool:
        found = self._locks.get((group, queue))
        if found is None:
            if len(self._locks) >= self._locks_max:
                return False
            self._locks[group, queue] = _Lock(client_id, now_ms)
            return True
        if found.client_id != client_id and now_ms - found.asked_ms <= EXPIRED_MS:
            return False
        found.client_id = client_id
        found.asked_ms = now_ms
        return True

    def _unlock(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        group, client_id, queues = yield from read_queues(request.body)
        for number, queue in enumerate(queues, 1):
            if not number % ITEMS_A_PIECE:
                yield
            found = self._locks.get((group, queue))
            if found is not None and found.client_id == client_id:
                del self._locks[group, queue]
        connection.answer(request)


def read_queues(body: bytes) -> Pieces[tuple[str, str, list[_Queue]]]:
    """
    Read the body of requests 41 and 42.

    @return: group, client and queues.
    @raise Refused: SYSTEM_ERROR: it is malformed.
    """
    try:
        document = read_request(body)
        queues = document.get("mqSet")
        if not isinstance(queues, list) or len(queues) > QUEUES_MAX:
            raise BodyError(f"mqSet={shown(queues)} is not an array of at most {QUEUES_MAX} queues")
        group, client_id, found = name_in(document, "consumerGroup"), name_in(document, "clientId"), []
        for number, one in enumerate(queues, 1):
            found.append(_queue(to_object(one, "item of mqSet")))
            if not number % (ITEMS_A_PIECE // 2):
                yield
        return group, client_id, found
    except BodyError as error:
        raise Refused(Code.SYSTEM_ERROR, f"queues to lock: {error}") from error


def _queue(document: JsonObject) -> _Queue:
    number = to_int(document.get("queueId"), INT_BITS, "queueId")
    return name_in(document, "topic"), name_in(document, "brokerName"), number or 0
