# -*- test-case-name: tests.broker.test_browsing -*-
"""Queues and messages as the pages of a broker show them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class ShownQueue:
    """
    A queue of a topic.

    @ivar begin_offset, end_offset: its first message, and after its last.
    """

    topic: str
    queue_id: int
    begin_offset: int
    end_offset: int


@attrs.frozen(kw_only=True)
class ShownMessage:
    """
    A message, with its body and properties as they are stored.

    @ivar position: of its record in the log, in bytes.
    @ivar born_ms, stored_ms: when the producer sent and the broker stored it, since 1970.
    @ivar message_id, unique_key: the broker's and the producer's name of it; the second may be empty.
    @ivar compression: of the body: C{none}, C{zlib}, C{lz4} or C{zstd}.
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
    body: bytes


@attrs.frozen(kw_only=True)
class ShownMessages:
    """
    Messages of one queue, or with one key.

    @ivar queue: of which they are; None for those with a key.
    @ivar first_offset, next_offset: in the queue: the first asked for, and after the last looked at.
    @ivar is_whole: whether the search by key looked at everything.
    """

    queue: ShownQueue | None = None
    first_offset: int = 0
    next_offset: int = 0
    messages: tuple[ShownMessage, ...] = ()
    is_whole: bool = True


class NotShown(Exception):
    """The message says why a query has no answer: no such queue, no such message, or it cannot be read."""
