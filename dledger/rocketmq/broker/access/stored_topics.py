# -*- test-case-name: tests.broker.test_parts -*-
"""Of which topics a stored message is, for the rights of its readers."""

from __future__ import annotations

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.access.request_rights import topics_of
from dledger.rocketmq.store.store import MessageStore
from dledger.values.errors import StoreError
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.message import decode_message


def stored_topics(store: MessageStore, offset: int) -> tuple[str, ...]:
    """
    The topics to which a reader of the message that begins at an offset of the log needs the right; none: no
    message begins there.

    @raise Refused: it cannot be read, so nobody knows who may see it.
    """
    try:
        record = store.sound.at(offset)
        if record is None:
            return ()
        found = decode_message(record)
        return topics_of(found.topic, found.properties)
    except (OSError, StoreError, WireError) as error:
        raise Refused(Code.SYSTEM_ERROR, f"the message at {offset} cannot be read: {error}") from error
