# -*- test-case-name: tests.sim.test_logged_tables -*-
"""
What the metadata in a raft log make of the tables of a broker.

B26. On raft logs the tables of a slave are the fold of the metadata before its place in the log, also after
a start; in the end every entry of a master is in its log, in a record of its own term, too, and a topic is in
it before the first message.

The rig reads each committed record once, from any broker: committed logs are equal. It looks at an entry of
a slave when its record is dispatched there, and at all entries when a process has caught up.

Not judged are entries whose last record is older than the end of the last reign of this machine: a former
master has changes that were never committed, until the next one has written the entry again; nor those whose
last record has expired: a broker that got the log from a later place on has never had it, until the master
writes it again. (There are no name servers here, so nobody copies tables from a master.)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

import attrs

from dledger.raft_broker.queue_ends import TABLE_NAME
from dledger.rocketmq.broker.admin.commands import SYSTEM_TOPICS
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import LoggedTable
from dledger.testing.brokers.rig.accounts import require_pair
from dledger.testing.brokers.rig.machine import BrokerMachine
from dledger.testing.brokers.rig.states import NO_MESSAGE
from dledger.testing.raft_brokers.facts import is_made
from dledger.testing.raft_brokers.raft import node_of
from protocols.wire.errors import WireError
from protocols.wire.fastjson import as_int
from protocols.wire.ledger.entry import BLANK, BLANK_MAGIC, ENTRY_HEADER, ENTRY_HEADER_SIZE
from protocols.wire.rocketmq.layout import DELETED_TOPIC, METADATA_TOPIC, START_SIZE
from protocols.wire.rocketmq.message import decode_message

#: Table and name of an entry.
EntryKey = tuple[str, str]

#: Bytes of a read; more than those of a file.
_READ_BYTES = 1 << 20
#: A change of a master that is so old is in the log.
_WRITTEN_US = 2_500_000
#: In a record with addresses of four bytes, the length of its body, which follows.
_BODY_SIZE_AT, _BODY_SIZE = 84, struct.Struct(">i")


class _Change(NamedTuple):
    """
    The entries of one table in a record, or the note that a topic is deleted.

    @ivar after, upto: the range in which it has all entries; C{after} is None: in none.
    @ivar deleted: the topic; its offsets are over.
    """

    offset: int
    term: int
    table: str
    entries: dict[str, object]
    after: str | None
    upto: str | None
    deleted: str | None = None

    def covers(self, name: str) -> bool:
        """Whether the record has this entry, or shows that there is none."""
        if self.deleted is not None:
            return name.rpartition("@")[0] == self.deleted
        is_within = self.after is not None and self.after < name and (self.upto is None or name <= self.upto)
        return name in self.entries or (is_within and name not in SYSTEM_TOPICS)


class _Known(NamedTuple):
    """An entry, and the place and term of its last record. @ivar value: None: it was deleted."""

    value: object
    offset: int
    term: int


class _Fold:
    """The entries in the log before a place. @ivar touched: those that changed since it was emptied."""

    def __init__(self, changes: list[_Change]) -> None:
        self._changes = changes
        self._next = 0
        self.entries: dict[EntryKey, _Known] = {}
        self.touched: dict[EntryKey, None] = {}

    def advance(self, upto: int) -> None:
        """Fold all records before an offset."""
        while self._next < len(self._changes) and self._changes[self._next].offset < upto:
            change = self._changes[self._next]
            self._next += 1
            gone = () if change.after is None and change.deleted is None else [
                name for table, name in self.entries if table == change.table and change.covers(name)
            ]
            for name, value in {**dict.fromkeys(gone), **change.entries}.items():
                self.entries[change.table, name] = _Known(value, change.offset, change.term)
                self.touched[change.table, name] = None


@attrs.define(eq=False)
class _View:
    """
    One machine.

    @ivar boots: number of its process.
    @ivar high: the highest place up to which any process had dispatched.
    @ivar is_new: all entries of the process are to be compared.
    @ivar last_term: the last one in which it was the master.
    """

    fold: _Fold
    boots: int = 0
    high: int = 0
    is_new: bool = True
    last_term: int = -1


class LoggedTables:
    """
    All metadata of the log so far, and the brokers.

    @ivar end: offset up to which the log was read.
    @ivar compared: number of entries that were compared.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._changes: list[_Change] = []
        self._named: set[str] = set()
        #: Topics of messages that came before their topics, and places of the messages.
        self._early: dict[str, int] = {}
        self._views: dict[str, _View] = {}
        self._seen: dict[EntryKey, tuple[object, int]] = {}
        #: Offsets that consumers asked a broker to commit: by broker, entry and number of the queue.
        self._commits: dict[tuple[str, str, str], set[int]] = {}
        self.end = self.compared = 0

    # -- the log ---------------------------------------------------------------------------------

    def read(self, machine: BrokerMachine, path: str) -> None:
        """
        Read what is new of the committed log of a broker, unless its disk has trouble.

        @param path: of the files of its log.
        """
        parts, disk = machine.parts, machine.disk
        if parts is None or parts.store.log.record_end <= self.end or parts.store.log.begin_offset > self.end:
            return
        if disk.are_reads_armed or disk.death is not None or disk.has_bad_pages(path):
            return
        log, taken = parts.store.log, 0
        while self.end < log.record_end:
            data = log.read(self.end, _READ_BYTES)
            try:
                taken = self._records(data, log.file_size)
            except (ValueError, LookupError, TypeError, struct.error, WireError) as error:
                require_pair(False, 26, f"{machine.name}: no record of the log is at {self.end}: {error}")
            if not taken:
                return
            self.end += taken

    def _records(self, data: bytes, file_size: int) -> int:
        """Take the records of a read. @return: the bytes that are done."""
        at = 0
        while len(data) - at >= START_SIZE:
            magic, size = BLANK.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                return at + file_size - (self.end + at) % file_size
            if size > len(data) - at:
                break
            self._record(data, at, size)
            at += size
        return at

    def _record(self, data: bytes, at: int, size: int) -> None:
        begin, end = at + ENTRY_HEADER_SIZE, at + size
        if data.startswith(NO_MESSAGE, begin, end):
            return
        (body_size,) = _BODY_SIZE.unpack_from(data, begin + _BODY_SIZE_AT)
        name_at = begin + _BODY_SIZE_AT + _BODY_SIZE.size + body_size
        topic = data[name_at + 1 : name_at + 1 + data[name_at]].decode("latin-1")
        if topic == METADATA_TOPIC:
            term = ENTRY_HEADER.unpack_from(data, at)[3]
            self._metadata(decode_message(data[begin:end]).body, self.end + at, term)
        elif topic == DELETED_TOPIC:
            term = ENTRY_HEADER.unpack_from(data, at)[3]
            deleted = decode_message(data[begin:end]).body.decode()
            self._changes.append(
                _Change(self.end + at, term, "consumerOffsets", {}, None, None, deleted)
            )
        elif topic not in self._named:
            self._early.setdefault(topic, self.end + at)

    def _metadata(self, body: bytes, offset: int, term: int) -> None:
        document = json.loads(body)
        if document["format"] != 1:
            return
        for table, part in document["tables"].items():
            entries = part["entries"]
            self._changes.append(_Change(offset, term, table, entries, part.get("after"), part.get("upto")))
            if table != "topics":
                continue
            for name, value in entries.items():
                early = self._early.pop(name, -1)
                require_pair(early < 0 or value is None, 26,
                             f"topic {name} is in the log at {offset}, its first message at {early}")
                self._named.add(name)

    def committing(self, broker: str, name: str, queue_id: int, offset: int) -> None:
        """A consumer commits an offset at a broker, which may be a slave, and may have a higher one."""
        self._commits.setdefault((broker, name, str(queue_id)), set()).add(offset)

    # -- slaves ----------------------------------------------------------------------------------

    def _view(self, name: str) -> _View:
        return self._views.setdefault(name, _View(_Fold(self._changes)))

    def reigns(self, name: str, term: int) -> None:
        """A broker is the master, perhaps only until the next look."""
        view = self._view(name)
        view.last_term = max(view.last_term, term)

    def look(self, machine: BrokerMachine, parts: BrokerParts, term: int) -> None:
        """Compare the tables of a broker. @param term: of its member."""
        view = self._view(machine.name)
        if view.boots != machine.boots:
            view.boots = machine.boots
            view.is_new = True
        offset = parts.store.reput.offset
        if not parts.config.role.is_slave:
            self.reigns(machine.name, term)
        elif offset > self.end or offset < view.high or not parts.store.is_ready:
            return  # a start dispatches again, and makes the tables older for a while
        view.high = max(view.high, min(offset, self.end))
        view.fold.advance(view.high)
        if parts.config.role.is_slave:
            begin = parts.store.log.begin_offset
            for key in view.fold.entries if view.is_new else view.fold.touched:
                known = view.fold.entries[key]
                if known.offset < begin:
                    continue
                if key[0] == TABLE_NAME:
                    self._reaches(machine.name, key[1], known, parts)
                elif known.term > view.last_term:
                    self._compare(machine.name, key, known, _tables(parts.metadata)[key[0]])
        view.is_new = False
        view.fold.touched.clear()

    def _compare(self, broker: str, key: EntryKey, known: _Known, table: LoggedTable) -> None:
        self.compared += 1
        found, wanted = table.logged(key[1]) or None, known.value or None
        if found == wanted:
            return
        # Consumers commit, and begin groups, at slaves, too.
        if not is_made(key[1]) and (
            (key[0] == "groups" and wanted is None)
            or (key[0] == "consumerOffsets" and self._is_ahead(broker, key[1], found, wanted))
        ):
            return
        require_pair(False, 26,
                     f"{broker}: {' '.join(key)} is {found}, and {wanted} in the log at {known.offset}")

    def _reaches(self, broker: str, name: str, known: _Known, parts: BrokerParts) -> None:
        topic, _, queue_id = name.rpartition("@")
        bounds = parts.store.queues.bounds(topic, int(queue_id))
        require_pair(bounds is not None and bounds[1] >= as_int(known.value), 26,
                     f"{broker}: the queue {name} is {bounds}, and ends at {known.value} in the log at "
                     f"{known.offset}")

    def _is_ahead(self, broker: str, name: str, found: object, wanted: object) -> bool:
        """Whether each offset is at or above the one in the log, or was committed here."""
        if not isinstance(wanted, dict):
            return True
        return isinstance(found, dict) and all(
            found.get(queue, -1) >= offset
            or found.get(queue) in self._commits.get((broker, name, queue), ())
            for queue, offset in wanted.items()
        )

    # -- masters ---------------------------------------------------------------------------------

    def lacks(self, parts: BrokerParts) -> str:
        """
        Which entry of a master the log lacks, from its begin on; empty if none. One that has changed since
        the first look, and less than 2.5 s ago, may be missing.
        """
        fold, begin, now_us = _Fold(self._changes), parts.store.log.begin_offset, self._now_us()
        fold.advance(self.end)
        seen, self._seen = self._seen, {}
        lacking = ""
        for table_name, table in _tables(parts.metadata).items():
            for name in table.names():
                key, value = (table_name, name), table.logged(name)
                before = seen.get(key)
                # Those of the first look count as old.
                since_us = before[1] if before is not None and before[0] == value else now_us if seen else 0
                self._seen[key] = value, since_us
                known = fold.entries.get(key)
                is_there = known is not None and known.offset >= begin and known.value == value
                if value and not is_there and now_us - since_us >= _WRITTEN_US:
                    lacking = f"the log from {begin} on lacks {table_name} {name}: {value}, and has {known}"
        return lacking

    def unwritten(self, parts: BrokerParts, term: int) -> str:
        """
        Which entry of a master no record of its term has; empty if none.

        @param term: of its reign, which has lasted for more than 2.5 s.
        """
        said = {(one.table, name) for one in self._changes if one.term == term for name in one.entries}
        for table_name, table in _tables(parts.metadata).items():
            for name in table.names():
                if (table_name, name) not in said and table.logged(name):
                    return f"{table_name} {name} is in no record of term {term}"
        return ""

    def says(self, table: str, name: str, term: int) -> bool:
        """Whether a record of this term says what an entry is, or that there is none."""
        return any(change.term == term and change.table == table and change.covers(name)
                   for change in reversed(self._changes))


def write_checkpoint(machine: BrokerMachine) -> None:
    """Let a broker write its checkpoint now: by itself it does so in every twentieth second alone."""
    parts = machine.parts
    if parts is not None and parts.store.is_ready:
        parts.store.checkpoint()


def log_path(machine: BrokerMachine) -> str:
    """Of the files of its log."""
    return f"/store/dledger-{machine.name}/data"


def look_at_tables(logged: LoggedTables, machines: Iterable[BrokerMachine]) -> None:
    """Read what is new in the log, and compare the tables of all brokers. @raise AssertionError: B26."""
    for machine in machines:
        logged.read(machine, log_path(machine))
    for machine in machines:
        parts, node = machine.parts, node_of(machine)
        if parts is not None and node is not None:
            logged.look(machine, parts, node.term)


def _tables(metadata: Metadata) -> dict[str, LoggedTable]:
    """By their names in the log."""
    return {
        "topics": metadata.topics, "groups": metadata.groups, "consumerOffsets": metadata.consumer_offsets,
        "delayOffsets": metadata.delay_offsets, "orderInfo": metadata.order_info,
        "requestModes": metadata.request_modes,
    }
