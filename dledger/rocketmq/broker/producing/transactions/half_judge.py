# -*- test-case-name: tests.broker.transactions.test_check -*-
"""
Judges a half message that no op message has ended: whether it is over, has time, or needs a copy.

Ages are those of the broker's clock, from the first half message on.

Source: TransactionalMessageServiceImpl.check (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs
from twisted.logger import Logger

from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.halves import (
    CHECK_TIMES,
    DISCARDED_TOPIC,
    FIRST_OFFSET,
    FIRST_STORED,
    IMMUNITY,
    REAL_TOPIC,
    age_ms,
    copied,
    first_of,
    number_in,
    op_message,
)
from dledger.rocketmq.broker.producing.puts import PutPipeline
from dledger.rocketmq.broker.producing.transactions.commands import immunity_ms
from dledger.rocketmq.broker.producing.transactions.ends import COMMIT, TransactionEnds
from dledger.rocketmq.broker.producing.transactions.ends_reading import first_place
from dledger.rocketmq.store.records.plain_records import PlainMessage
from dledger.rocketmq.store.records.records import NewMessage
from protocols.wire.rocketmq.message import Message, encode_properties


class HalfCopy(NamedTuple):
    """
    A half message that is stored again.

    @ivar plain: C{message}, checked.
    @ivar asks: its producer is asked about the copy.
    """

    half: Message
    message: NewMessage
    plain: PlainMessage
    asks: bool


class HalfJudge:
    """The rules for half messages; it changes nothing."""

    log = Logger()

    def __init__(self, inside: BrokerInside, pipeline: PutPipeline, ends: TransactionEnds) -> None:
        """@param pipeline: checks copies."""
        self._config = inside.config
        self._store = inside.store
        self._pipeline = pipeline
        self._ends = ends
        self._own = inside.own
        self._wall_ms = inside.wall_ms

    def examined(self, half: Message, reached: list[int]) -> HalfCopy | bool | None:
        """
        @param reached: gets the number of the first half message of the transaction, unless it has time.
        @return: the copy that it needs; True: none; None: it is too young, and so are those after it.
        """
        named, now_ms, config = half.properties, self._wall_ms(), self._config
        first = first_of(half)
        if self._ends.kind_of(first) is not None:
            reached.append(first)
            return True
        if first_place(self._store, half) < self._store.deleted.place_of(named.get(REAL_TOPIC, "")):
            reached.append(first)
            self.log.info("the half message at {offset} is over: its topic was deleted",
                          offset=half.physical_offset)
            return True
        count = number_in(named.get(CHECK_TIMES)) or 0
        age = age_ms(half, now_ms)  # below 0: the clock was set back, and nobody waits for it
        if count >= config.transaction_check_max or age > config.store.file_reserved_time_h * 3_600_000:
            reached.append(first)
            return self._discarded(half)
        named[FIRST_OFFSET], named[FIRST_STORED] = str(first), str(now_ms - age)
        if 0 <= age < immunity_ms(named.get(IMMUNITY), config.transaction_time_out):
            if not named.get(IMMUNITY):
                return None
            return self._copy(half, named, asks=False)
        reached.append(first)
        named[CHECK_TIMES] = str(count + 1)
        return self._copy(half, named, asks=True)

    def ops(self, offsets: Sequence[int]) -> list[PlainMessage]:
        """Op messages of a committed transaction. @param offsets: of its half messages, in their queue."""
        host, now_ms = self._own.host, self._wall_ms()
        return self._pipeline.checked([op_message(one, host, now_ms, end=COMMIT) for one in offsets])

    def _copy(self, half: Message, named: dict[str, str], *, asks: bool) -> HalfCopy | bool:
        """A copy with these properties; one that would be too long with them is discarded."""
        try:
            message = copied(half, self._own.host, encode_properties(named))
            (plain,) = self._pipeline.checked([message])
        except ValueError:
            return self._discarded(half)
        return HalfCopy(half, message, plain, asks)

    def _discarded(self, half: Message) -> HalfCopy | bool:
        message = attrs.evolve(copied(half, self._own.host, half.properties_data), topic=DISCARDED_TOPIC)
        try:
            (plain,) = self._pipeline.checked([message])
        except ValueError as error:  # as after a change of the limits
            self.log.error("skipping the half message at {offset}: it cannot be stored again: {reason}",
                           offset=half.physical_offset, reason=str(error))
            return True
        return HalfCopy(half, message, plain, False)
