# -*- test-case-name: tests.raft_broker.test_queue_ends -*-
"""
The next offset of every queue, as a table of the metadata in the log.

A member that was away for longer than the log keeps its entries gets a log that begins later. Queues whose
messages have all expired meanwhile are not in it: without this table such a member would, as the next master,
give out queue offsets that others have given out.

Rule 1: a master writes the table with all others, so always after the begin of its log: a queue has a message
after that place, or an entry there.
Rule 2: an entry counts only for a queue none of whose messages are in the log, and only forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import INT_BITS, LONG_BITS, JsonObject, to_int

#: Of the table, in the log.
TABLE_NAME = "queueEnds"


class QueueEnds:
    """
    A L{dledger.rocketmq.metadata.tables.LoggedTable} without changes: it is only written as a whole.
    Its names are C{TOPIC@QUEUEID}, its entries the offset of the queue's next message.
    """

    def __init__(
        self, queues: ConsumeQueues, given_out: Callable[[], Mapping[tuple[str, int], int]]
    ) -> None:
        """@param given_out: the next offsets, by topic and queue, of a master."""
        self._queues = queues
        self._given_out = given_out
        self.changed: dict[str, None] = {}

    def names(self) -> list[str]:
        """Those of the queues with a message. See L{LoggedTable}."""
        return [f"{topic}@{queue_id}" for (topic, queue_id), offset in self._given_out().items() if offset]

    def logged(self, name: str) -> object:
        """The offset, see L{LoggedTable}; None: the queue was never used."""
        topic, _, queue_id = name.rpartition("@")
        return self._given_out().get((topic, int(queue_id)))

    def logged_version(self) -> object:
        """The table has none: it is of no file."""
        return None

    def apply(self, changes: JsonObject, version: object) -> None:
        """
        See L{dledger.rocketmq.metadata.tables.LoggedTable.apply}.

        @raise OSError: the files of a queue could not be deleted.
        """
        ends = []
        for name, value in changes.items():
            topic, _, digits = name.rpartition("@")
            queue_id, offset = to_int(digits, INT_BITS, name), to_int(value, LONG_BITS, name)
            if queue_id is None or queue_id < 0 or offset is None or offset < 0:
                raise BodyError(f"{name!r:.80} with the offset {offset}")
            ends.append(((topic, queue_id), offset))
        for key, offset in ends:
            self._queues.go_on_from(key, offset)
