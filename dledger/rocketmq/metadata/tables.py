# -*- test-case-name: tests.broker.metadata.test_tables -*-
"""
The metadata of a broker: topics, subscription groups, offsets of consumers and of delay levels.

Each table is the same document in three places: in memory, in a file of C{config/}, in the answer to a
slave. A slave adopts a whole table or nothing of it.

Rule 1: a table with another data version replaces ours; a table with the same version is ignored. The
offsets of consumers are an exception, see L{dledger.rocketmq.metadata.offsets}.
Rule 2: unknown fields are kept, and written again.
Rule 3: tables are changed on the reactor's thread; a copy of their state is written in another thread, see
L{dledger.rocketmq.metadata.files}.

Rule 4: a broker whose log is a raft group carries the changes of its tables in the log: a table notes the
names of its changed entries (L{LoggedTable}). A table that nobody asks has at most its own names noted.

Source: TopicConfigManager, SubscriptionGroupManager, MessageRequestModeManager (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import ClassVar, Generic, Protocol, TypeVar

import attrs

from dledger.rocketmq.answering.java_json import (
    DataVersion,
    FileText,
    file_json,
    file_text,
    read_document,
    wire_json,
    wire_members,
)
from dledger.rocketmq.answering.pieces import Pieces
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import INT_BITS, JsonObject, shown, to_int

#: Bits of a topic's C{perm}.
PERM_READ, PERM_WRITE, PERM_INHERIT = 4, 2, 1

#: Topic whose settings new topics inherit; by its name producers know that they may create topics.
AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
RETRY_PREFIX = "%RETRY%"

_Entry = TypeVar("_Entry", bound="_Config")

#: Entries that are written in one piece of an answer.
_ENTRIES = 64


_FIELD_NAMES: dict[type[attrs.AttrsInstance], dict[str, str]] = {}


def _field_names(cls: type[attrs.AttrsInstance]) -> dict[str, str]:
    """Attribute names to names in documents: C{read_queue_nums} to C{readQueueNums}."""
    names = _FIELD_NAMES.get(cls)
    if names is None:
        names = _FIELD_NAMES[cls] = {}
        for field in attrs.fields(cls):
            if field.name != "rest":
                head, *words = field.name.split("_")
                names[field.name] = head + "".join(word.title() for word in words)
    return names


def _typed(value: object, like: object, name: str) -> object:
    if isinstance(like, bool):
        if not isinstance(value, bool):
            raise BodyError(f"{name}={shown(value)} is neither true nor false")
        return value
    if isinstance(like, int):
        number = to_int(value, INT_BITS, name)
        if number is None:
            raise BodyError(f"{name}={shown(value)} is not a number")
        return number
    if not isinstance(value, str):
        raise BodyError(f"{name}={shown(value)} is not a text")
    return value


@attrs.frozen(kw_only=True)
class _Config:
    """An entry of a table. C{rest} holds the fields that we do not know."""

    rest: Mapping[str, object] = attrs.Factory(dict)

    def document(self) -> JsonObject:
        """As in files, keys in order."""
        named = {name: getattr(self, attribute) for attribute, name in _field_names(type(self)).items()}
        return dict(sorted({**self.rest, **named}.items()))

    @classmethod
    def read(cls: type[_Entry], value: object, name: str) -> _Entry:
        """Read an entry. @raise BodyError: a known field has another type."""
        document = dict(to_object(value, name))
        fields: JsonObject = {}
        for attribute, key in _field_names(cls).items():
            given = document.pop(key, None)
            default = getattr(attrs.fields(cls), attribute).default
            if given is not None:
                fields[attribute] = _typed(given, default, f"{key} of {name}")
        entry = cls(rest=document, **fields)
        return entry


@attrs.frozen(kw_only=True)
class TopicConfig(_Config):
    """
    A topic. Field names are RocketMQ's.

    @ivar perm: sum of L{PERM_READ}, L{PERM_WRITE}, L{PERM_INHERIT}.
    """

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False

    @property
    def name(self) -> str:
        """Its key in the table."""
        return self.topic_name

    @property
    def can_read(self) -> bool:
        """Whether consumers may pull from it."""
        return bool(self.perm & PERM_READ)

    @property
    def can_write(self) -> bool:
        """Whether producers may send to it."""
        return bool(self.perm & PERM_WRITE)


@attrs.frozen(kw_only=True)
class GroupConfig(_Config):
    """A subscription group. Field names are RocketMQ's."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True

    @property
    def name(self) -> str:
        """Its key in the table."""
        return self.group_name


class FileTable(Protocol):
    """
    A table, which is one document in a file.

    @ivar is_dirty: whether it has changed since it was last written.
    """

    file_name: ClassVar[str]
    is_dirty: bool

    def file_bytes(self) -> bytes:
        """Content of its file."""

    def load(self, data: bytes) -> None:
        """Replace the content by that of a file. @raise BodyError: it is malformed; nothing has changed."""


class Table(FileTable, Protocol):
    """A table that slaves copy."""

    def wire_pieces(self) -> Pieces[bytes]:
        """Body of the answer to a slave, made in pieces: changes meanwhile come with the next version."""

    def adopt(self, data: bytes, keep: Set[str] = frozenset()) -> bool:
        """
        Adopt a master's table.

        @param keep: names of entries that stay although the master does not name them.
        @return: whether the table has changed.
        @raise BodyError: C{data} is malformed; nothing has changed.
        """


class LoggedTable(Protocol):
    """
    A table whose changes are carried in the log, entry by entry.

    @ivar changed: names of the entries that were put or deleted here, the oldest change first. The
        caller that carries them removes them.
    """

    changed: dict[str, None]

    def names(self) -> list[str]:
        """Names of all entries."""

    def logged(self, name: str) -> object:
        """An entry as in the file; None: there is no such entry (any more)."""

    def logged_version(self) -> object:
        """The data version, as in the file; None: the table has none."""

    def apply(self, changes: JsonObject, version: object) -> None:
        """
        Take entries over from the master's log.

        @param changes: names to L{logged} entries.
        @param version: what L{logged_version} said there.
        @raise BodyError: a value is malformed; nothing has changed.
        """


class ConfigTable(Generic[_Entry]):
    """
    Entries by name, with a data version that rises with each change. See L{Table} and L{LoggedTable}.

    Implements L{LoggedTable}, L{FileTable}.

    @ivar entries: read only for callers.
    @ivar kept: names of the entries that the last adopted table did not have.
    """

    file_name: ClassVar[str]
    _table_key: ClassVar[str]
    #: Other parts of a master's document, copied as they are.
    _carried: ClassVar[tuple[str, ...]] = ()
    _entry: type[_Entry]

    def __init__(self, now_ms: int) -> None:
        self.version = DataVersion(timestamp=now_ms)
        self.entries: dict[str, _Entry] = {}
        self.kept: tuple[str, ...] = ()
        self.changed: dict[str, None] = {}
        self.is_dirty = False
        self._rest: JsonObject = {}
        self._texts: dict[str, tuple[_Entry, FileText]] = {}
        self._wire: dict[bool, tuple[DataVersion, bytes]] = {}

    def get(self, name: str) -> _Entry | None:
        """The entry; None if there is none."""
        return self.entries.get(name)

    def put(self, entry: _Entry, now_ms: int) -> None:
        """Add or replace an entry."""
        name: str = entry.name  # type: ignore[attr-defined]
        if self.entries.get(name) != entry:
            self.entries[name] = entry
            self._changed(name, now_ms)

    def delete(self, name: str, now_ms: int) -> bool:
        """Delete an entry. @return: whether it existed."""
        if self.entries.pop(name, None) is None:
            return False
        self._changed(name, now_ms)
        return True

    def renew(self, now_ms: int) -> None:
        """Make a new version without a change, so that everybody reads the table again."""
        self.version = self.version.following(now_ms)
        self.is_dirty = True

    def _changed(self, name: str, now_ms: int) -> None:
        self.version = self.version.following(now_ms)
        self.is_dirty = True
        self.changed.pop(name, None)
        self.changed[name] = None

    def names(self) -> list[str]:
        return list(self.entries)

    def logged(self, name: str) -> object:
        entry = self.entries.get(name)
        return None if entry is None else entry.document()

    def logged_version(self) -> object:
        return self.version.document()

    def apply(self, changes: JsonObject, version: object) -> None:
        read = {name: None if value is None else self._read(name, value) for name, value in changes.items()}
        self.version = DataVersion.read(version)
        for name, entry in read.items():
            if entry is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = entry
        self.is_dirty = True

    def file_bytes(self) -> bytes:
        if len(self._texts) > 2 * len(self.entries):
            self._texts.clear()
        table = {name: self._text_of(name, entry) for name, entry in self.entries.items()}
        document = {**self._rest, "dataVersion": self.version.document(), self._table_key: table}
        return file_json(dict(sorted(document.items())))

    def _text_of(self, name: str, entry: _Entry) -> FileText:
        """The entry as in the file. Kept: with 9,000 topics the file is written in 10 ms instead of 1 s."""
        kept = self._texts.get(name)
        if kept is None or kept[0] is not entry:
            kept = self._texts[name] = (entry, file_text(entry.document(), depth=2))
        return kept[1]

    def wire_document(self, *, is_whole: bool = False) -> JsonObject:
        """
        The document for a slave or a name server.

        @param is_whole: with attributes. Else they are left empty: slaves of 5.3.2 and 5.3.3 refuse a table
            with any attribute.
        """
        table = {
            name: entry.document() if is_whole else {**entry.document(), "attributes": {}}
            for name, entry in self.entries.items()
        }
        return {"dataVersion": self.version.wire_document(), self._table_key: table, **self._beside()}

    def _beside(self) -> JsonObject:
        """What the document for a slave has besides version and table."""
        return {}

    def wire_pieces(self, *, is_whole: bool = False) -> Pieces[bytes]:
        """See L{Table.wire_pieces}. Kept for a version: thousands of topics take a tenth of a second."""
        version, kept = self.version, self._wire.get(is_whole)
        if kept is not None and kept[0] is version:
            return kept[1]
        head = wire_json({"dataVersion": version.wire_document(), **self._beside()})
        parts = []
        for number, (name, entry) in enumerate(list(self.entries.items()), 1):
            document = entry.document() if is_whole else {**entry.document(), "attributes": {}}
            parts.append(wire_json({name: document})[1:-1])
            if not number % _ENTRIES:
                yield
        body = head[:-1] + b',"%s":{%s}}' % (self._table_key.encode(), b",".join(parts))
        self._wire[is_whole] = version, body
        return body

    def _parse(self, data: bytes) -> tuple[DataVersion, dict[str, _Entry], JsonObject]:
        document = read_document(data)
        version = DataVersion.read(document.pop("dataVersion", None))
        table = to_object(document.pop(self._table_key, None), self._table_key)
        return version, {name: self._read(name, value) for name, value in table.items()}, document

    def _read(self, name: str, value: object) -> _Entry:
        entry = self._entry.read(value, name)
        if entry.name != name:  # type: ignore[attr-defined]
            raise BodyError(f"{self._table_key}: {shown(name)} is the key of another name")
        return entry

    def load(self, data: bytes) -> None:
        self.version, self.entries, self._rest = self._parse(data)
        self.is_dirty = False
        self.file_bytes()  # keeps the texts: the first save is as fast as the later ones

    def adopt(self, data: bytes, keep: Set[str] = frozenset()) -> bool:
        """See L{Table.adopt}."""
        version, entries, rest = self._parse(data)
        if version.is_same(self.version):
            return False
        self.kept = tuple(sorted(name for name in keep & self.entries.keys() if name not in entries))
        entries.update({name: self.entries[name] for name in self.kept})
        self.version = version
        self.entries = entries
        self._rest.update({name: rest[name] for name in self._carried if name in rest})
        self.is_dirty = True
        return True


class Topics(ConfigTable[TopicConfig]):
    """C{topics.json}; answers request 21."""

    file_name = "topics.json"
    _table_key = "topicConfigTable"
    _entry = TopicConfig

    def show(self, found: Iterable[TopicConfig]) -> None:
        """A slave has these topics until it has its master's table: no version is made."""
        self.entries.update({entry.name: entry for entry in found})

    def add_system_topics(self, *, cluster: str, broker: str, now_ms: int) -> None:
        """Add the topics that every broker has, if they are missing."""
        inherit = PERM_READ | PERM_WRITE | PERM_INHERIT
        for name, queues, perm in (
            ("SELF_TEST_TOPIC", 1, 6), (AUTO_CREATE_TOPIC, 8, inherit), ("BenchmarkTest", 1024, 6),
            (cluster, 16, inherit), (broker, 1, inherit), ("OFFSET_MOVED_EVENT", 1, 6),
            (SCHEDULE_TOPIC, 18, 6), (f"{cluster}_REPLY_TOPIC", 1, 6), ("RMQ_SYS_TRANS_HALF_TOPIC", 1, 6),
        ):
            if name not in self.entries:
                self.put(TopicConfig(
                    topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
                ), now_ms)

    def create_on_send(
        self, name: str, *, default_topic: str, queue_nums: int, now_ms: int,
        topic_sys_flag: int | None = None,
    ) -> TopicConfig | None:
        """
        The topic of a producer's message; created if the default topic allows inheritance.

        @param queue_nums: number of queues that the producer requests; the default topic's is the maximum.
        @param topic_sys_flag: flag of a new topic; None: as the default topic.
        @return: None if the topic does not exist and cannot be created.
        """
        found = self.entries.get(name)
        if found is not None:
            return found
        default = self.entries.get(default_topic)
        if default is None or not default.perm & PERM_INHERIT:
            return None
        queues = max(min(queue_nums, default.write_queue_nums), 0)
        made = TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues,
            perm=default.perm & ~PERM_INHERIT,
            topic_sys_flag=default.topic_sys_flag if topic_sys_flag is None else topic_sys_flag,
            topic_filter_type=default.topic_filter_type,
        )
        self.put(made, now_ms)
        return made

    def _beside(self) -> JsonObject:
        """The empty tables of static topics that 5.x looks for."""
        return {
            "mappingDataVersion": DataVersion().document(),
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }


class Groups(ConfigTable[GroupConfig]):
    """C{subscriptionGroup.json}; answers request 201."""

    file_name = "subscriptionGroup.json"
    _table_key = "subscriptionGroupTable"
    _carried = ("forbiddenTable",)
    _entry = GroupConfig

    def find(self, name: str, now_ms: int) -> GroupConfig:
        """The group; created with the default settings on first use, as RocketMQ does."""
        found = self.entries.get(name)
        if found is None:
            found = GroupConfig(group_name=name)
            self.put(found, now_ms)
        return found

    def _beside(self) -> JsonObject:
        """The groups' forbidden topics of 5.x, uninterpreted."""
        return {"forbiddenTable": self._rest.get("forbiddenTable", {})}


class RequestModes:
    """
    C{messageRequestMode.json} of 5.x; answers request 402. By topic and group, whether its consumers pull or
    pop. See also L{LoggedTable}.

    Implements L{FileTable}, L{Table}, L{LoggedTable}.
    """

    file_name: ClassVar[str] = "messageRequestMode.json"

    def __init__(self) -> None:
        self.is_dirty = False
        self.changed: dict[str, None] = {}
        self._map: JsonObject = {}

    def get(self, topic: str, group: str) -> JsonObject | None:
        """An entry, as in the file; None: there is none."""
        groups = self._map.get(topic)
        found = groups.get(group) if isinstance(groups, dict) else None
        return found if isinstance(found, dict) else None

    def put(self, topic: str, group: str, entry: JsonObject) -> None:
        """Add or replace an entry."""
        groups = self._map.get(topic)
        self._map[topic] = {**(groups if isinstance(groups, dict) else {}), group: entry}
        self._note(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete the entries of a topic."""
        if self._map.pop(topic, None) is not None:
            self._note(topic)

    def _note(self, topic: str) -> None:
        self.is_dirty = True
        self.changed.pop(topic, None)
        self.changed[topic] = None

    def file_bytes(self) -> bytes:
        return file_json({"messageRequestModeMap": self._map})

    def wire_pieces(self) -> Pieces[bytes]:
        members = yield from wire_members(self._map)
        return b'{"messageRequestModeMap":{' + members + b"}}"

    def load(self, data: bytes) -> None:
        self._map = to_object(read_document(data).get("messageRequestModeMap"), "messageRequestModeMap")
        self.is_dirty = False

    def adopt(self, data: bytes, keep: Set[str] = frozenset()) -> bool:
        theirs = to_object(read_document(data).get("messageRequestModeMap"), "messageRequestModeMap")
        if theirs == self._map:
            return False
        self._map = theirs
        self.is_dirty = True
        return True

    def names(self) -> list[str]:
        return list(self._map)

    def logged(self, name: str) -> object:
        return self._map.get(name)

    def logged_version(self) -> object:
        return None

    def apply(self, changes: JsonObject, version: object) -> None:
        read = {
            name: None if value is None else to_object(value, f"modes of {name}")
            for name, value in changes.items()
        }
        for name, groups in read.items():
            if groups is None:
                self._map.pop(name, None)
            else:
                self._map[name] = groups
        self.is_dirty = True
