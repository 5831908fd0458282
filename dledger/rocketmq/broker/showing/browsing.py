# -*- test-case-name: tests.broker.test_browsing -*-
"""
Reads queues and messages for the pages of a broker.

Rule 1: messages are shown as consumers get them: only what is in its consume queue, and sound.
Rule 2: one call reads at most L{BYTES_MAX} bytes of the log, or one record. A search by key begins in a turn
of its own, and takes L{STEPS_TURN} steps and as many bytes in each turn, and L{STEPS_MAX} steps in all.
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted.internet.task import deferLater

from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.showing.shown import NotShown, ShownMessage, ShownMessages, ShownQueue
from dledger.rocketmq.store.index.indexing import keys_of
from dledger.rocketmq.store.queries import get_messages, offset_at
from dledger.rocketmq.store.records.key_hash import hash_of_key
from dledger.values.errors import StoreError
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX
from protocols.wire.rocketmq.message import Message, decode_message

#: Bytes of the records of one page; it has at least one message.
BYTES_MAX = 256 * 1024
#: Queues of one page.
QUEUES_MAX = 2_000
#: Entries of the index that one turn, and one search, look at.
STEPS_TURN = 64
STEPS_MAX = 20_000
_LONG_MAX = (1 << 63) - 1


class MessageBrowser:
    """The queues and messages of one store."""

    def __init__(self, inside: BrokerInside) -> None:
        self._store = inside.store
        self._clock = inside.clock

    def queues(self, topic: str = "") -> tuple[tuple[ShownQueue, ...], bool]:
        """
        The queues by topic and number.

        @param topic: of which; empty: of all.
        @return: at most L{QUEUES_MAX}, and whether these are all.
        """
        keys = sorted(key for key in self._store.queues.keys() if not topic or key[0] == topic)
        shown = [self._queue(*key) for key in keys[:QUEUES_MAX]]
        return tuple(one for one in shown if one is not None), len(keys) <= QUEUES_MAX

    def _queue(self, topic: str, queue_id: int) -> ShownQueue | None:
        bounds = self._store.queues.bounds(topic, queue_id)
        if bounds is None:
            return None
        return ShownQueue(topic=topic, queue_id=queue_id, begin_offset=bounds[0], end_offset=bounds[1])

    def queue(self, topic: str, queue_id: int) -> ShownQueue:
        """
        One queue.

        @raise NotShown: there is no such queue.
        """
        found = self._queue(topic, queue_id)
        if found is None:
            ids = [str(key[1]) for key in sorted(self._store.queues.keys()) if key[0] == topic]
            known = f"it has {', '.join(ids[:40])}" if ids else "no message of this topic was stored here"
            raise NotShown(f"topic {topic!r} has no queue {queue_id}: {known}")
        return found

    def offset_at(self, topic: str, queue_id: int, moment_ms: int) -> int:
        """
        Offset of the first message that was stored at a time or later; after the last one if none was.

        @raise NotShown: there is no such queue, or it cannot be read.
        """
        self.queue(topic, queue_id)
        try:
            return offset_at(self._store, topic, queue_id, moment_ms)
        except StoreError as error:
            raise NotShown(str(error)) from None

    def page(self, topic: str, queue_id: int, first: int, count: int) -> ShownMessages:
        """
        Messages of a queue.

        @raise NotShown: there is no such queue, C{first} is not in it, or it cannot be read.
        """
        queue = self.queue(topic, queue_id)
        if first < queue.begin_offset:
            raise NotShown(f"offset {first} was deleted: the queue begins at {queue.begin_offset}")
        if first > queue.end_offset:
            raise NotShown(f"offset {first} is after the end of the queue, {queue.end_offset}")
        try:
            got = get_messages(
                self._store, topic, queue_id, first, is_slave=True, count_max=count, bytes_max=BYTES_MAX
            )
        except StoreError as error:
            raise NotShown(str(error)) from None
        return ShownMessages(
            queue=queue, first_offset=first, next_offset=max(got.next_offset, first),
            messages=tuple(_shown_all(got.records)),
        )

    def at(self, position: int) -> ShownMessages:
        """
        The message whose record begins at a position of the log.

        @raise NotShown: none does, or the log cannot be read.
        """
        try:
            record = self._store.sound.at(position)
        except (OSError, StoreError) as error:
            raise NotShown(f"the log cannot be read at {position}: {error}") from None
        messages = tuple(_shown_all([record] if record is not None else []))
        if not messages:
            raise NotShown(f"no message begins at {position} of the log: it was deleted, or never was there")
        return ShownMessages(messages=messages)

    async def with_key(self, topic: str, key: str, count: int) -> ShownMessages:
        """
        The last messages of a topic with this word in KEYS, or with this unique key; the oldest first.

        @raise NotShown: there is no index, or it cannot be read.
        """
        indexing = self._store.indexing
        if indexing is None:
            raise NotShown("messages cannot be found by key: messageIndexEnable is false")
        if len(key) > PROPERTIES_BYTES_MAX or len(topic) > PROPERTIES_BYTES_MAX:
            return ShownMessages()
        offsets = indexing.index.search(hash_of_key(topic, key), 0, _LONG_MAX)
        found: dict[int, bytes] = {}
        steps = size = looked = 0
        try:
            await deferLater(self._clock, 0)
            for offset in offsets:
                steps += 1
                record = self._store.sound.at(offset) if offset >= 0 and offset not in found else None
                if record is not None:
                    looked += len(record)
                if record is not None and _has_key(record, topic, key):
                    if size and size + len(record) > BYTES_MAX:
                        steps = STEPS_MAX
                        break
                    found[offset] = record
                    size += len(record)
                if len(found) >= count or steps >= STEPS_MAX:
                    break
                if steps % STEPS_TURN == 0 or looked >= BYTES_MAX:
                    looked = 0
                    await deferLater(self._clock, 0)
        except (OSError, StoreError) as error:
            raise NotShown(f"searching for the key: {error}") from None
        messages = tuple(_shown_all(found[at] for at in sorted(found)[-count:]))
        return ShownMessages(messages=messages, is_whole=steps < STEPS_MAX and len(found) < count)


def _decoded(records: Iterable[bytes]) -> Iterable[Message]:
    for record in records:
        try:
            yield decode_message(record)
        except WireError:
            continue  # (It was found damaged, and reported, by the store.)


def _has_key(record: bytes, topic: str, key: str) -> bool:
    return any(
        one.topic == topic and key.encode() in keys_of(one.properties_data) for one in _decoded([record])
    )


def _shown_all(records: Iterable[bytes]) -> Iterable[ShownMessage]:
    for one in _decoded(records):
        yield ShownMessage(
            topic=one.topic, queue_id=one.queue_id, queue_offset=one.queue_offset,
            position=one.physical_offset, born_ms=one.born_timestamp, stored_ms=one.store_timestamp,
            message_id=one.message_id, unique_key=one.unique_key or "", compression=one.compression,
            reconsume_times=one.reconsume_times, properties=one.properties, body=one.body,
        )
