# -*- test-case-name: tests.broker.consuming.test_key_queries -*-
"""
QUERY_MESSAGE (12): the messages of a topic with a key, that were stored within a time::

    0   messages follow, the oldest first
    22  there is none; or the index has not got so far in L{WAIT_S}

Every answer names the time and the offset of the last message in the index. Masters and slaves answer.

Rule 1: a record is answered only if its topic and one of its keys are those asked for: the index has
only hashes of them.
Rule 2: a query is answered once. It works for L{STEPS_TURN} steps or L{BYTES_TURN} bytes in a turn, and then
waits for its next turn, after the other queries.
Rule 3: steps, messages and bytes of one query are bounded, and so is the number of queries that wait. A query
that has found messages within its bounds is answered with them.
Rule 4: a query keeps the messages that it has found until it is answered. So it begins only when its
connection and the process have room for the largest answer, and takes this room.
Rule 5: a query sees what was stored before it: it waits until that is dispatched and in the index, for
L{WAIT_S} at most; then it is answered with what is there.

Source: QueryMessageProcessor, DefaultMessageStore.queryMessage, IndexService.queryOffset (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import attrs
from twisted.internet.interfaces import IDelayedCall

from dledger.rocketmq.answering.refusals import (
    LONG_MAX,
    LONG_MIN,
    Code,
    CommandGroup,
    Fields,
    Handlers,
    Refused,
)
from dledger.rocketmq.broker.consuming.visible import Visible, VisibleTo, all_visible
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.store.index.indexing import keys_of
from dledger.rocketmq.store.records.key_hash import hash_of_key
from dledger.rocketmq.store.records.records import keyed_part_of
from dledger.values.errors import StoreError
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX

QUERY_MESSAGE = 12
UNIQUE_KEY_FIELD = "_UNIQUE_KEY_QUERY"

#: Messages of an answer: maxMsgsNumBatch, and defaultQueryMaxNum for a unique key.
COUNT_MAX = 64
UNIQUE_COUNT_MAX = 32
#: Bytes of messages in an answer; it has at least one message.
BYTES_MAX = 4 * 1024 * 1024
#: Work of all queries in a turn of the reactor: entries of the index, and bytes of the log.
STEPS_TURN = 256
BYTES_TURN = 1024 * 1024
#: Entries of the index that one query looks at.
STEPS_MAX = 200_000
#: Steps for which reading one record counts.
RECORD_STEPS = 4
#: Queries of all connections that wait.
WAITING_MAX = 256
#: Seconds after which queries that have no room are looked at again.
NO_ROOM_S = 0.1
#: Seconds that a query waits for the index, and between two looks at it.
WAIT_S, LOOK_S = 2.0, 0.005

_NOT_FOUND = "can not find message, maybe time range not correct"


@attrs.define(eq=False)
class _Query:
    """
    A query.

    @ivar visible: whether its sender may see a record; None: all.
    @ivar found: offsets in the log of the messages so far, and their records.
    @ivar steps, size: entries that it has looked at, and bytes of its messages.
    @ivar is_begun: whether it has taken room for its answer.
    @ivar search: begins to look into the index.
    @ivar upto: end of the log when it came; -1: all before it is in the index, or need not be.
    @ivar until_s: it waits no longer, on the clock.
    """

    connection: CommandConnection
    request: RemotingCommand
    topic: bytes
    key: bytes
    count_max: int
    search: Callable[[], Iterator[int]]
    upto: int
    until_s: float
    offsets: Iterator[int] = iter(())
    visible: Visible | None = None
    found: dict[int, bytes] = attrs.Factory(dict)
    steps: int = 0
    size: int = 0
    is_begun: bool = False


class KeyQueries(CommandGroup):
    """The group of commands."""

    def __init__(self, inside: BrokerInside, *, visible: VisibleTo = all_visible) -> None:
        """@param visible: what the sender of a request may see of its topic."""
        self._store = inside.store
        self._visible = visible
        self._clock = inside.clock
        self._waiting: deque[_Query] = deque()
        self._call: IDelayedCall | None = None

    def handlers(self) -> Handlers:
        """By request code."""
        return {QUERY_MESSAGE: self._query}

    def _query(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        topic, key = fields.text("topic"), fields.text("key")
        count_max = min(fields.number("maxNum"), COUNT_MAX)
        begin_ms = fields.number("beginTimestamp", least=LONG_MIN, most=LONG_MAX)
        end_ms = fields.number("endTimestamp", least=LONG_MIN, most=LONG_MAX)
        if fields.text(UNIQUE_KEY_FIELD, "") == "true":
            count_max = UNIQUE_COUNT_MAX
        indexing = self._store.indexing
        if indexing is None:
            raise Refused(Code.SYSTEM_ERROR, "messages cannot be found by key: messageIndexEnable is false")
        if len(self._waiting) >= WAITING_MAX:
            raise Refused(Code.SYSTEM_BUSY, f"{WAITING_MAX} queries by key wait already: ask again later")
        if len(key) > PROPERTIES_BYTES_MAX or len(topic) > PROPERTIES_BYTES_MAX:
            count_max, key = 0, ""  # no record has it
        index, hashed = indexing.index, hash_of_key(topic, key)
        self._store.reput.show()
        self._waiting.append(_Query(
            connection, request, topic.encode("utf-8", "surrogatepass"), key.encode("utf-8", "surrogatepass"),
            count_max, partial(index.search, hashed, begin_ms, end_ms) if count_max > 0 else lambda: iter(()),
            self._store.log.record_end, self._clock.seconds() + WAIT_S,
            visible=self._visible(connection, request, topic),
        ))
        if self._call is not None and self._call.getTime() > self._clock.seconds():
            self._call.cancel()
            self._call = None
        if self._call is None:
            self.turn()

    def _lags(self, query: _Query) -> bool:
        """Whether a query has to wait for the index; it begins when it has not. See rule 5."""
        if query.upto < 0:
            return False
        indexing, store = self._store.indexing, self._store
        assert indexing is not None
        is_there = store.has_dispatched(query.upto) and not indexing.behind_bytes
        if not (is_there or indexing.index.offset >= query.upto or indexing.index.why_failed):
            if self._clock.seconds() < query.until_s:
                indexing.hurry()
                return True
        query.upto = -1
        query.offsets = query.search()
        return False

    def turn(self) -> None:
        """Go on with the queries that wait, for a turn; the clock calls this."""
        self._call = None
        steps, size, passed, lagging = STEPS_TURN, BYTES_TURN, 0, 0
        while len(self._waiting) > passed and steps > 0 and size > 0:
            query = self._waiting.popleft()
            if self._lags(query):
                passed += 1
                lagging += 1
                self._waiting.append(query)
                continue
            if not query.is_begun:
                if query.connection.is_congested:
                    remark = "this connection does not read its answers"
                    query.connection.answer(query.request, code=Code.SYSTEM_BUSY, remark=remark)
                    continue
                if not query.connection.may_answer:
                    passed += 1
                    self._waiting.append(query)
                    continue
                query.is_begun = True
                query.connection.account.reserve(BYTES_MAX)
            passed = 0
            before = query.steps, query.size
            try:
                is_done = self._work(query, steps, size)
            except (OSError, StoreError) as error:
                self._end(query)
                query.connection.answer(query.request, code=Code.SYSTEM_ERROR, remark=str(error))
                continue
            steps -= query.steps - before[0]
            size -= query.size - before[1]
            if is_done:
                self._answer(query)
            else:
                self._waiting.append(query)
        if self._waiting:
            wait_s = LOOK_S if lagging else NO_ROOM_S
            self._call = self._clock.callLater(wait_s if passed else 0, self.turn)

    def _end(self, query: _Query) -> None:
        if query.is_begun:
            query.connection.account.unreserve(BYTES_MAX)

    def _work(self, query: _Query, steps: int, size: int) -> bool:
        """
        Go on with a query.

        @return: whether it has found everything, or as much as it may.
        @raise OSError: reading failed.
        """
        steps_end, size_end = query.steps + steps, query.size + size
        for offset in query.offsets:
            query.steps += 1
            if offset >= 0 and offset not in query.found:
                query.steps += RECORD_STEPS
                self._take(query, offset)
            if len(query.found) >= query.count_max or query.size >= BYTES_MAX or query.steps >= STEPS_MAX:
                return True
            if query.steps >= steps_end or query.size >= size_end:
                return False
        return True

    def _take(self, query: _Query, offset: int) -> None:
        """Read the record at an offset, and keep it if rule 1 allows it."""
        record = self._store.sound.at(offset)
        if record is None:
            return
        try:
            topic, properties, _, _ = keyed_part_of(record, offset)
        except WireError:
            return
        if query.visible is not None and not query.visible(record):
            return
        if topic == query.topic and query.key in keys_of(properties):
            if offset < self._store.deleted.place_of(topic.decode("utf-8", "replace")):
                return  # of a deleted topic of this name
            if not query.found or query.size + len(record) <= BYTES_MAX:
                query.found[offset] = record
            query.size += len(record)

    def _answer(self, query: _Query) -> None:
        self._end(query)
        assert self._store.indexing is not None
        time_ms, offset = self._store.indexing.index.last_put
        found = query.found
        query.connection.answer(
            query.request, code=Code.SUCCESS if found else Code.QUERY_NOT_FOUND,
            remark=None if found else _NOT_FOUND, body=b"".join(found[at] for at in sorted(found)),
            ext_fields={"indexLastUpdateTimestamp": str(time_ms), "indexLastUpdatePhyoffset": str(offset)},
        )

    def connection_lost(self, connection: CommandConnection) -> None:
        """The queries of an ended connection are not worked on."""
        self._waiting = deque(query for query in self._waiting if query.connection is not connection)

    def stop(self) -> None:
        """Answer the waiting queries with the messages found so far."""
        waiting, self._waiting = self._waiting, deque()
        for query in waiting:
            self._answer(query)
        if self._call is not None:
            self._call.cancel()
            self._call = None
