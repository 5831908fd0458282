# -*- test-case-name: tests.broker.store.test_deleted_topics -*-
"""
Which topics were deleted, and where in the log.

A deletion is a message of its own in the log, in L{DELETED_TOPIC}: a note with the topic's name. Messages of
that name before the note are those of the deleted topic, and no reader gets them. So what a deletion covers
is a fact of the log alone: a log that has not this note at this place (an older copy, the log of another
broker, that of a slave that lacks the end) shows its messages, whatever a table says; a copy of the log has
the deletions, too. When the note expires, all that it covers has expired before.

Rule 1: a topic begins at its last note, and without one with the log. No table says more, or less.
Rule 2: a note counts when it is in its queue; that of this master when it is stored.
Rule 3: a note that cannot be read covers nothing: the messages are shown, and the log says so.
Rule 4: it covers the retries of its topic, too: those that wait, and those in the topics of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from twisted.logger import Logger

from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.store.queues.queue_begins import begin_from
from dledger.rocketmq.store.queues.queue_files import Unit
from dledger.rocketmq.store.records.message_log import MessageLog
from dledger.rocketmq.store.records.records import NewMessage
from dledger.rocketmq.store.sound_records import SoundRecords
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import DELETED_TOPIC
from protocols.wire.rocketmq.message import Host, Message, decode_message

#: Topics with the retries of a group, of several topics; and the property that names the topic of each.
_RETRY_PREFIX, _RETRY_TOPIC = "%RETRY%", "RETRY_TOPIC"
#: Notes that one read of their queue takes.
READ_UNITS = 1_024


def deletion_note(topic: str, host: Host, now_ms: int) -> NewMessage:
    """The note that a topic is deleted. @param host: of this broker. @param now_ms: ms since 1970."""
    return NewMessage(
        topic=DELETED_TOPIC, queue_id=0, body=topic.encode(), properties_data=b"", flag=0, sys_flag=0,
        born_timestamp=now_ms, born_host=host, store_host=host,
    )


class DeletedTopics:
    """
    Those of one store, read from its queue when somebody asks where a topic begins.

    Invariant: C{_places} has the notes before C{_read_to} in the queue, and those of L{note}.
    """

    log = Logger()

    def __init__(self, queues: ConsumeQueues, log: MessageLog, sound: SoundRecords) -> None:
        self._queues = queues
        self._log = log
        self._sound = sound
        self.forget()

    def forget(self) -> None:
        """The log was cut, or another broker leads it: all notes are read again."""
        self._places: dict[str, int] = {}
        self._read_to = 0

    def note(self, topic: str, place: int) -> None:
        """A note of this broker is stored. @param place: where it is in the log, in bytes."""
        self._places[topic] = max(place, self._places.get(topic, 0))

    def place_of(self, topic: str) -> int:
        """
        Where the last note of a topic is, in bytes from the beginning of the log: the topic's messages before
        it are over; 0: none is.

        @raise OSError: reading failed.
        """
        bounds = self._queues.bounds(DELETED_TOPIC, 0)
        if bounds is not None and bounds[1] != self._read_to:
            self._read(*bounds)
        return self._places.get(topic, 0)

    def begin_of(self, topic: str, queue: ConsumeQueue) -> int:
        """
        The index of the first record of a topic's queue that is shown.

        @raise OSError: reading failed.
        """
        place = self.place_of(topic)
        return begin_from(queue, place) if place else queue.begin_index

    def _read(self, begin: int, end: int) -> None:
        queue = self._queues.get(DELETED_TOPIC, 0)
        assert queue is not None
        if end < self._read_to:
            self.forget()
        self._read_to = max(self._read_to, begin)
        while self._read_to < end:
            for unit in queue.read(self._read_to, READ_UNITS):
                self._take(unit)
                self._read_to = unit.queue_offset + 1

    def _take(self, unit: Unit) -> None:
        record = self._sound.at(unit.offset, size=unit.size)
        try:
            topic = "" if record is None else decode_message(record).body.decode()
        except (WireError, UnicodeDecodeError):
            topic = ""
        if topic:
            self.note(topic, unit.offset)
        elif unit.offset >= self._log.begin_offset:
            self.log.warn("the note of a deleted topic at {offset} cannot be read: the topic's messages are "
                          "shown", offset=unit.offset)

    def is_over(self, message: Message) -> bool:
        """
        Whether a message of a topic of retries, or one that waits for such a topic, is of a topic that was
        deleted since it was stored.

        @raise OSError: reading failed.
        """
        real = message.properties.get(_RETRY_TOPIC)
        return real is not None and message.physical_offset < self.place_of(real)

    def retries_of(self, topic: str) -> Callable[[bytes], bool] | None:
        """
        Which records of a topic of retries are not over; None: all, as of any other topic.

        @raise OSError: reading failed.
        """
        if not topic.startswith(_RETRY_PREFIX):
            return None
        self.place_of(topic)
        return self._lives if self._places else None

    def _lives(self, record: bytes) -> bool:
        try:
            return not self.is_over(decode_message(record, verify_body=False))
        except WireError:
            return True  # its consumer is shown that it is damaged

    def kept(self) -> Set[str]:
        """
        The topics that have queues here, without those all of whose messages are over.

        @raise OSError: reading failed.
        """
        queues, found = self._queues, set()
        for topic, queue_id in queues.keys():
            if topic in found:
                continue
            place, queue = self.place_of(topic), queues.get(topic, queue_id)
            if not place or (queue is not None and begin_from(queue, place) < queue.next_index):
                found.add(topic)
        return found
