# -*- test-case-name: tests.broker.test_parts -*-
"""
The events inside one broker: one interface, with direct calls.

docs/put-path.md, section 3, has the senders and the listeners of each event; that table is made from the
source.

L{dledger.rocketmq.broker.parts.BrokerParts} implements the interface; only that module has the order. Slaves
hear of new bytes first, because a producer may wait for them.

Rule 1: an event is a call on the reactor's thread that returns when every listener has returned.
Rule 2: a part updates its own state before it emits an event. A listener neither appends nor cuts.
Rule 3: only C{cut} raises, with L{dledger.values.errors.StoreError}: consume queues that cannot follow the
log end the broker.
"""

from __future__ import annotations

#: Topic and number of the queues that have new messages.
Arrived = set[tuple[str, int]]


class BrokerEvents:
    """The event interface of a broker. An instance of this class has no listeners, for a log alone."""

    def grown(self) -> None:
        """The log has new bytes: readable now, not yet flushed."""

    def cut(self, end_offset: int) -> None:
        """
        The log now ends at C{end_offset}. Also emitted when an empty log begins elsewhere.

        @raise StoreError: the consume queues could not follow.
        """

    def arrived(self, arrived: Arrived) -> None:
        """These consume queues have new units."""

    def acknowledged(self) -> None:
        """A slave holds more of the log than before."""

    def role_changed(self) -> None:
        """
        The log, a raft log, has another leader: this broker is a master now, or a slave.

        @raise StoreError: the log or a queue cannot be read.
        """

    def topics_changed(self) -> None:
        """A topic was created, changed or deleted."""

    def metadata_logged(self, record: bytes, offset: int, term: int, *, is_kept: bool) -> None:
        """
        The log, a raft log, has metadata of the master of this term, in a record at this offset.

        @param is_kept: the tables have it: queues are built again.
        """
