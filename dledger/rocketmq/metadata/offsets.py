# -*- test-case-name: tests.broker.metadata.test_tables -*-
"""
The two tables of offsets of a broker: those of consumers and of delay levels.

See L{dledger.rocketmq.metadata.tables} for what all tables have in common. Consumer offsets are always
merged, since their version does not change with every commit: the master's offset replaces ours, except where
a consumer has committed more here, until the master has caught up.

Offsets of consumers are of one life of their topic: they are noted with the place in the log of the topic's
last deletion before them (C{topicLives} of the document, which RocketMQ passes over). Those of an earlier
life are gone when somebody asks.

Source: ConsumerOffsetManager, ScheduleMessageService (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import ClassVar

from dledger.rocketmq.answering.java_json import (
    DataVersion,
    file_json,
    read_document,
    to_long,
    wire_json,
    wire_members,
)
from dledger.rocketmq.answering.pieces import Pieces
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import INT_BITS, JsonObject, shown, to_int

#: Of the document with the offsets of consumers: ours.
LIVES = "topicLives"


def _queues(value: object, name: str) -> dict[int, int]:
    """Check a map of queue or level numbers to offsets."""
    found = {}
    for key, offset in to_object(value, name).items():
        number = to_int(key, INT_BITS, f"key in {name}")
        if number is None or number < 0:
            raise BodyError(f"{name}: {shown(key)} is not a number of a queue or level")
        found[number] = to_long(offset, f"{name}, {number}")
    return found


class _Offsets:
    """
    Common base of the two tables of offsets: an optional version.

    Implements L{dledger.rocketmq.metadata.tables.LoggedTable}.

    @ivar changed: see L{dledger.rocketmq.metadata.tables.LoggedTable}.
    """

    def __init__(self, now_ms: int) -> None:
        self.version: DataVersion | None = DataVersion(timestamp=now_ms)
        self.changed: dict[str, None] = {}
        self._rest: JsonObject = {}
        self.is_dirty = False

    def _document(self) -> JsonObject:
        raise NotImplementedError

    def _more(self) -> JsonObject:
        """Parts of the document that are ours; a file has those that are not empty."""
        return {}

    def file_bytes(self) -> bytes:
        """See L{FileTable.file_bytes}."""
        head = {} if self.version is None else {"dataVersion": self.version.document()}
        more = {name: value for name, value in self._more().items() if value}
        return file_json({**head, **self._rest, **more, "offsetTable": self._document()})

    def wire_pieces(self) -> Pieces[bytes]:
        """See L{Table.wire_pieces}; always with a version, since a slave of 5.x fails without."""
        version = self.version or DataVersion()
        head = wire_json({"dataVersion": version.wire_document(), **self._rest, **self._more()})
        return head[:-1] + b',"offsetTable":{' + (yield from wire_members(self._document())) + b"}}"

    def names(self) -> list[str]:
        return [str(name) for name in self._document()]

    def logged_version(self) -> object:
        return None if self.version is None else self.version.document()

    def _changed(self, name: str, now_ms: int) -> None:
        self.version = (self.version or DataVersion()).following(now_ms)
        self.is_dirty = True
        self.changed.pop(name, None)
        self.changed[name] = None

    def _applied(self, version: object) -> None:
        if version is not None:
            self.version = DataVersion.read(version)
        self.is_dirty = True


def _parse_offsets(data: bytes) -> tuple[DataVersion | None, JsonObject]:
    document = read_document(data)
    version = document.get("dataVersion")
    table = to_object(document.get("offsetTable"), "offsetTable")
    return (None if version is None else DataVersion.read(version)), table


def _parse_lives(data: bytes) -> dict[str, int] | None:
    """Topics and the places of their last deletions; None: the document says none."""
    found = read_document(data).get(LIVES)
    if found is None:
        return None
    lives = to_object(found, LIVES).items()
    return {topic: to_long(place, f"{LIVES}, {shown(topic)}") for topic, place in lives}


def never_deleted(topic: str) -> int:
    """The place of the last deletion in a log without deletions."""
    return 0


class ConsumerOffsets(_Offsets):
    """
    C{consumerOffset.json}; answers request 43.

    Invariant: C{_ahead} holds the offsets that consumers have committed here beyond the master's last ones;
    C{_lives} has no topic without offsets.

    Implements L{dledger.rocketmq.metadata.tables.LoggedTable}.
    """

    file_name: ClassVar[str] = "consumerOffset.json"

    def __init__(self, now_ms: int, place_of: Callable[[str], int] = never_deleted) -> None:
        """@param place_of: returns where a topic's last deletion is in the log, in bytes; 0: nowhere."""
        super().__init__(now_ms)
        self._table: dict[str, dict[int, int]] = {}
        self._ahead: dict[tuple[str, int], int] = {}
        self._lives: dict[str, int] = {}
        self._place_of = place_of

    def _renew(self, topic: str) -> int:
        """Forget the offsets of an earlier life of a topic. @return: the place of its last deletion."""
        place = self._place_of(topic)
        if place > self._lives.get(topic, 0):
            self._forget_life(topic)
        return place

    def _forget_life(self, topic: str) -> None:
        self.delete_topic(topic, 0 if self.version is None else self.version.timestamp)

    def _renew_all(self) -> None:
        for topic in {key.rpartition("@")[0] for key in self._table}:
            self._renew(topic)

    def forget_other_logs(self, log_begin: int) -> list[str]:
        """
        Forget the offsets of lives that this log does not have: they are of another log, or of a later place
        than the end of this copy.

        @param log_begin: notes of deletions before it have expired.
        @return: the topics.
        """
        gone = [
            topic for topic, life in self._lives.items() if life >= log_begin and life > self._place_of(topic)
        ]
        for topic in gone:
            self._forget_life(topic)
        return gone

    def _more(self) -> JsonObject:
        return {LIVES: dict(sorted(self._lives.items()))}

    def _carry(self, data: bytes) -> bool:
        """Keep C{groupTopicMap} of 5.x as it came. @return: whether it has changed."""
        found = read_document(data).get("groupTopicMap")
        if found is None or found == self._rest.get("groupTopicMap"):
            return False
        self._rest["groupTopicMap"] = found
        return True

    def commit(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """Record that a consumer has consumed all messages before C{offset}."""
        key, place = f"{topic}@{group}", self._renew(topic)
        queues = self._table.setdefault(key, {})
        if place:
            self._lives[topic] = place
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._ahead[key, queue_id] = offset
            self._changed(key, now_ms)

    def forget_ahead(self) -> None:
        """From now on a master's offsets replace also those that were committed here and are higher."""
        self._ahead = {}

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Offset of the next message to consume; None if the group never committed there."""
        found = self._table.get(f"{topic}@{group}")
        if found is None or self._place_of(topic) > self._lives.get(topic, 0):
            return None
        return found.get(queue_id)

    def rows(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """For each group and topic with a commit: both, and the offset of the next message of each queue."""
        self._renew_all()
        for key, queues in self._table.items():
            topic, _, group = key.rpartition("@")
            yield group, topic, queues

    def topics_of(self, group: str) -> list[str]:
        """Topics in which the group has committed."""
        end = "@" + group
        topics = [key[: -len(end)] for key in self._table if key.endswith(end)] if "@" not in group else []
        for topic in topics:
            self._renew(topic)
        return [topic for topic in topics if topic + end in self._table]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have committed in the topic."""
        self._renew(topic)
        begin = topic + "@"
        groups = [key[len(begin) :] for key in self._table if key.startswith(begin)]
        return [group for group in groups if "@" not in group]

    def delete_topic(self, topic: str, now_ms: int) -> None:
        """Delete the offsets of a topic."""
        self._delete([key for key in self._table if key.rpartition("@")[0] == topic], now_ms)

    def delete_group(self, group: str, now_ms: int) -> None:
        """Delete the offsets of a group."""
        self._delete([key for key in self._table if key.rpartition("@")[2] == group], now_ms)

    def _delete(self, gone: list[str], now_ms: int) -> None:
        for key in gone:
            del self._table[key]
            self._changed(key, now_ms)
        topics = {key.rpartition("@")[0] for key in self._table}
        self._lives = {topic: life for topic, life in self._lives.items() if topic in topics}
        self._ahead = {at: offset for at, offset in self._ahead.items() if at[0] not in set(gone)}

    def names(self) -> list[str]:
        self._renew_all()
        return super().names()

    def _document(self) -> JsonObject:
        return dict(self._table)

    def logged(self, name: str) -> object:
        """See L{dledger.rocketmq.metadata.tables.LoggedTable.logged}: none of an earlier life."""
        topic, queues = name.rpartition("@")[0], self._table.get(name)
        if self._place_of(topic) > self._lives.get(topic, 0):
            return None
        return None if queues is None else {str(queue_id): offset for queue_id, offset in queues.items()}

    def apply(self, changes: JsonObject, version: object) -> None:
        read = {
            key: None if value is None else _queues(value, f"offsets of {key}")
            for key, value in changes.items()
        }
        self._applied(version)
        for key, queues in read.items():
            if queues is None:
                self._table.pop(key, None)
                self._ahead = {at: offset for at, offset in self._ahead.items() if at[0] != key}
            else:  # the log has the deletions before this
                topic = key.rpartition("@")[0]
                self._merge(key, queues, self._renew(topic))

    def of_this_life(self, changes: JsonObject, place: int) -> JsonObject:
        """
        Those entries of a record that are not of an earlier life of their topic.

        @param place: of the record in the log, which has later deletions, too, if it is read again.
        @raise OSError: reading failed.
        """
        return {
            key: value for key, value in changes.items() if self._place_of(key.rpartition("@")[0]) <= place
        }

    def load(self, data: bytes) -> None:
        """See L{FileTable.load}."""
        version, table = _parse_offsets(data)
        lives = _parse_lives(data)
        self._carry(data)
        self._lives = lives or {}
        self._table = {key: _queues(value, f"offsets of {key}") for key, value in table.items()}
        self.version = version
        self._ahead = {}
        self.is_dirty = False

    def adopt(self, data: bytes, keep: Set[str] = frozenset()) -> bool:
        """
        See L{Table.adopt}. Keys that the master lacks stay. Of two lives of a topic the later one counts; a
        master of RocketMQ says none, and means the present one.
        """
        version, table = _parse_offsets(data)
        lives = _parse_lives(data)
        theirs = {key: _queues(value, f"offsets of {key}") for key, value in table.items()}
        changed = self._carry(data)
        for key, queues in theirs.items():
            topic = key.rpartition("@")[0]
            ours = max(self._renew(topic), self._lives.get(topic, 0))
            life = ours if lives is None else lives.get(topic, 0)
            if life > ours:
                self._forget_life(topic)
            if life >= ours:
                changed = self._merge(key, queues, life) or changed
        if version is not None and version != self.version:
            self.version = version
            changed = True
        self.is_dirty = self.is_dirty or changed
        return changed

    def _merge(self, key: str, queues: dict[int, int], life: int) -> bool:
        """
        Take a master's offsets, but none below those committed here.

        @param life: of the topic, not before that of ours.
        @return: whether any is new.
        """
        ours, changed = self._table.setdefault(key, {}), False
        if life:
            self._lives[key.rpartition("@")[0]] = life
        for queue_id, offset in queues.items():
            ahead = self._ahead.get((key, queue_id), -1)
            if offset >= ahead:
                self._ahead.pop((key, queue_id), None)
            offset = max(offset, ahead)
            if ours.get(queue_id) != offset:
                ours[queue_id] = offset
                changed = True
        return changed


class DelayOffsets(_Offsets):
    """
    C{delayOffset.json}; answers request 45.

    Implements L{dledger.rocketmq.metadata.tables.LoggedTable}.
    """

    file_name: ClassVar[str] = "delayOffset.json"

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self._table: dict[int, int] = {}

    def get(self, level: int) -> int:
        """Queue offset of the next message of a level to deliver."""
        return self._table.get(level, 0)

    def put(self, level: int, offset: int, now_ms: int) -> None:
        """Record that all messages of this level before C{offset} are delivered."""
        if self._table.get(level) != offset:
            self._table[level] = offset
            self._changed(str(level), now_ms)

    def _document(self) -> JsonObject:
        return dict(self._table)  # type: ignore[arg-type]

    def logged(self, name: str) -> object:
        return self._table.get(int(name))

    def apply(self, changes: JsonObject, version: object) -> None:
        read = _queues({key: value for key, value in changes.items() if value is not None}, "delay levels")
        self._applied(version)
        self._table.update(read)

    def load(self, data: bytes) -> None:
        """See L{FileTable.load}."""
        version, table = _parse_offsets(data)
        self._table = _queues(table, "offsets of delay levels")
        self.version = version
        self.is_dirty = False

    def adopt(self, data: bytes, keep: Set[str] = frozenset()) -> bool:
        """See L{Table.adopt}. Levels that the master lacks stay."""
        version, table = _parse_offsets(data)
        theirs = {**self._table, **_queues(table, "offsets of delay levels")}
        if (theirs, version) == (self._table, self.version):
            return False
        self._table = theirs
        self.version = version
        self.is_dirty = True
        return True
