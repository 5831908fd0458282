# -*- test-case-name: tests.admin.test_browsing -*-
"""The queries of a broker's pages of queues and messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
from twisted.internet.defer import DeferredLock

from dledger.admin.browsing.query import Query, QueryProblem, preview_of
from dledger.rocketmq.broker.showing.shown import NotShown, ShownMessage, ShownMessages, ShownQueue

NAMES = ("topic", "queue", "from", "count", "as", "time", "key", "position")
TOPIC_NAMES = ("topic",)
_WAYS = "topic and queue, with from or time; topic and key; or position"


class MessageSource(Protocol):
    """What this module needs of L{dledger.rocketmq.broker.showing.browsing.MessageBrowser}."""

    def queues(self, topic: str = "") -> tuple[tuple[ShownQueue, ...], bool]:
        """The queues, and whether these are all."""

    def queue(self, topic: str, queue_id: int) -> ShownQueue:
        """One queue."""

    def offset_at(self, topic: str, queue_id: int, moment_ms: int) -> int:
        """Offset of the first message that was stored at a time or later."""

    def page(self, topic: str, queue_id: int, first: int, count: int) -> ShownMessages:
        """Messages of a queue."""

    def at(self, position: int) -> ShownMessages:
        """The message at a position of the log."""

    async def with_key(self, topic: str, key: str, count: int) -> ShownMessages:
        """The messages of a topic with a key."""


class MessageQueries:
    """Answers them. Rule: searches by key follow one another."""

    def __init__(self) -> None:
        self._lock = DeferredLock()

    async def find(self, source: MessageSource, query: Query) -> ShownMessages:
        """
        The messages that a query asks for.

        @raise QueryProblem: the query is wrong, or there is nothing to show.
        """
        try:
            return await self._found(source, query)
        except NotShown as error:
            raise QueryProblem(404, str(error)) from None

    async def _found(self, source: MessageSource, query: Query) -> ShownMessages:
        query.style()
        count, moment, topic, key = query.count(), query.moment_ms(), query.text("topic"), query.text("key")
        given = [name for name in ("from", "time", "key", "position") if query.text(name)]
        if len(given) > 1:
            raise QueryProblem(400, f"give either {given[0]} or {given[1]}, not both; known: {_WAYS}")
        if query.text("position"):
            return source.at(query.number("position", 0))
        if not topic:
            raise QueryProblem(400, f"give topic; known: {_WAYS}")
        if key:
            await self._lock.acquire()
            try:
                # (The lock lets the next one go on in the turn of the last: the search begins with a wait.)
                return await source.with_key(topic, key, count)
            finally:
                self._lock.release()
        queue = source.queue(topic, query.number("queue", 0))
        if moment is not None:
            first = source.offset_at(topic, queue.queue_id, moment)
        else:
            first = query.first(queue.begin_offset, queue.end_offset, count)
        return source.page(topic, queue.queue_id, first, count)


@attrs.frozen(kw_only=True)
class ReportedMessage:
    """
    A L{ShownMessage} for programs. @ivar body_bytes: size of the whole body. @ivar body: its beginning, as
    text or in hexadecimal.
    """

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    born_ms: int
    stored_ms: int
    message_id: str
    unique_key: str
    reconsume_times: int
    compression: str
    properties: Mapping[str, str]
    body_bytes: int
    body: str
    is_text: bool


@attrs.frozen(kw_only=True)
class ReportedMessages:
    """L{ShownMessages} for programs."""

    queue: ShownQueue | None
    first_offset: int
    next_offset: int
    is_whole: bool
    messages: tuple[ReportedMessage, ...]


@attrs.frozen(kw_only=True)
class ReportedQueues:
    """Queues for programs. @ivar is_whole: whether these are all."""

    queues: tuple[ShownQueue, ...]
    is_whole: bool


def reported_messages(shown: ShownMessages, style: str = "") -> ReportedMessages:
    """What programs see. @param style: of bodies, see L{preview_of}."""
    return ReportedMessages(
        queue=shown.queue, first_offset=shown.first_offset, next_offset=shown.next_offset,
        is_whole=shown.is_whole, messages=tuple(_reported(one, style) for one in shown.messages),
    )


def _reported(message: ShownMessage, style: str) -> ReportedMessage:
    body, is_text = preview_of(message.body, style)
    values = attrs.asdict(message, filter=lambda field, _value: field.name != "body")
    return ReportedMessage(**values, body_bytes=len(message.body), body=body, is_text=is_text)
