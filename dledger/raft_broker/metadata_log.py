# -*- test-case-name: tests.raft_broker.test_metadata_log -*-
"""
Carries the metadata of a master in the raft log: topics, subscription groups, offsets of consumers and of
delay levels, request modes, what groups hold that pop in order, and where queues end. RocketMQ's followers
copy most of them every ten seconds instead, so a new master of RocketMQ may have forgotten what the last one
acknowledged.

The changed entries of all tables are one record of the topic L{METADATA_TOPIC}, of the type of a transaction
that was rolled back: RocketMQ stores it and passes it over. A new master first writes all its entries again,
so the entries after the begin of the log are complete, wherever it begins. It writes its topics and groups in
the order of their names, and each such record says from which name to which one it is complete: a former
master may have entries that were never committed, and a slave drops what is in the range and not in the
record.

Rule 1: a record has whole entries, never differences: what is applied twice, or again from an earlier place,
ends the same.
Rule 2: what is not in the log is never taken for acknowledged: L{MetadataLog.settled} waits for its commit,
and a change whose append failed is written again. It waits for these ranges, too: a deletion writes nothing
if this master has not had the entry since it leads, while others may have it.
Rule 3: a slave applies the records in the order of the log, a master none: it has written them.

The body is JSON: C{{"format": 1, "tables": {NAME: {"dataVersion": ..., "entries": {NAME: ENTRY}}}}}; an entry
is as in the table's file, and C{null} for one that was deleted. A table that is complete in a range has
C{"after": NAME, "upto": NAME}, too: of names after the first one, up to the second one; C{null}: to the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.node.node import Node
from dledger.node.requests.appends import AppendResult
from dledger.raft_broker.queue_ends import TABLE_NAME, QueueEnds
from dledger.raft_broker.stamps import PutPlaces, UnplacedRecord, unseen_record
from dledger.rocketmq.answering.java_json import read_document
from dledger.rocketmq.broker.admin.commands import SYSTEM_TOPICS
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import LoggedTable
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import JsonObject, shown
from protocols.wire.rocketmq.layout import METADATA_TOPIC
from protocols.wire.rocketmq.message import decode_message

FORMAT = 1
#: A record has one entry, or more of at most this size together, in bytes of JSON.
RECORD_BYTES = 64 * 1024
#: More than the bytes of a record besides its entries.
_AROUND_BYTES = 1_600
#: Entries of a new master are written again in pieces of this number, one piece after the other.
PIECE_ENTRIES = 500
#: Tables that a new master writes in ranges.
_IN_RANGES = ("topics", "groups")


class _Waiter(NamedTuple):
    """Waits for all records before number C{upto}. C{failures}: number of failed appends when it began."""

    upto: int
    failures: int
    done: Deferred[None]


class _Range(NamedTuple):
    """Of names: after C{after}, up to C{upto}; None: to the end."""

    after: str
    upto: str | None

    def text(self) -> str:
        """In a record."""
        return f',"after":{json.dumps(self.after)},"upto":{json.dumps(self.upto)}'

    def missing(self, names: list[str], entries: Collection[str]) -> list[str]:
        """Names in it that are no entries of the record."""
        return [name for name in names if self.after < name and (self.upto is None or name <= self.upto)
                and name not in entries and name not in SYSTEM_TOPICS]


class MetadataLog:
    """
    Writes the changes of a master, and applies them to the tables of a slave.

    Invariant: while C{is_open}, each entry that differs from the log is in C{changed} of its table, in
    C{_backlog} or C{_ranges}, or in an append without a result.

    @ivar is_open: whether this broker is the master.
    @ivar is_whole: whether its topics and groups are in the log, so that no slave has more.
    @ivar passed_over: number of records that could not be applied.
    """

    log = Logger()

    def __init__(
        self, metadata: Metadata, node: Node, clock: IReactorTime, *, wall_ms: Callable[[], int],
        body_bytes_max: int, ends: QueueEnds,
    ) -> None:
        """
        @param wall_ms: milliseconds since 1970.
        @param body_bytes_max: of a record, as the ledger takes it.
        @param ends: what the queues are in the end, in the log alone.
        """
        self._tables: dict[str, LoggedTable] = {
            "topics": metadata.topics, "groups": metadata.groups,
            "consumerOffsets": metadata.consumer_offsets, "delayOffsets": metadata.delay_offsets,
            "orderInfo": metadata.order_info, "requestModes": metadata.request_modes,
            TABLE_NAME: ends,
        }
        self._metadata = metadata
        self._node = node
        self._clock = clock
        self._wall_ms = wall_ms
        self._bytes_max = max(min(RECORD_BYTES, body_bytes_max - _AROUND_BYTES), 1)
        self._backlog: list[tuple[str, str]] = []
        #: Tables, and the name after which they are still to be written.
        self._ranges: list[tuple[str, str]] = []
        self._unsure: set[int] = set()
        self._begin_offset = 0
        self._call: IDelayedCall | None = None
        self._written = self._failures = 0
        self._last_piece = -1
        self._unanswered: dict[int, None] = {}
        self._waiters: list[_Waiter] = []
        self.is_open = self.is_whole = False
        self.passed_over = 0

    # -- the master ------------------------------------------------------------------------------

    def begin(self, log_end: int) -> None:
        """This broker is the master now: write all entries. C{log_end}: of the log, now."""
        self.is_open = True
        self.is_whole = False
        self._unsure.clear()
        for table in self._tables.values():
            table.changed.clear()
        self._write_all(log_end)

    def _write_all(self, log_end: int) -> None:
        self._begin_offset = log_end
        self._ranges = [(name, "") for name in reversed(_IN_RANGES)]
        self._backlog = [(name, key) for name, table in self._tables.items() if name not in _IN_RANGES
                         for key in table.names()]
        self._backlog.reverse()
        self._next_piece()

    def cease(self) -> None:
        """This broker is a slave now."""
        self.is_open = False
        self._backlog = []
        self._ranges = []
        self._metadata.consumer_offsets.forget_ahead()
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None
        self._notify()

    def topics_first(self) -> None:
        """A message is appended next: write new topics before it, so that nobody has it without its topic."""
        topics = self._metadata.topics
        if topics.changed and self.is_open:
            self._write("topics", list(topics.changed))

    def tick(self, begin_offset: int, log_end: int) -> None:
        """
        Write what has changed. Called once a second.

        @param begin_offset, log_end: of the log, now; in bytes.
        """
        if not self.is_open:
            return
        self._write_changes()
        if self._begin_offset < begin_offset:
            self._write_all(log_end)  # the log has lost the beginning of the entries
        else:
            self._next_piece()

    def settled(self) -> Deferred[None]:
        """
        Write what has changed.

        @return: fires when all changes until now are committed; fails with L{DLedgerError} if that is not
            known.
        """
        if not self.is_open:
            return fail(DLedgerError(ResponseCode.NOT_LEADER, reason="this broker is not the master now"))
        failures = self._failures
        self._write_changes()
        if failures == self._failures and not self._unanswered and self.is_whole:
            return succeed(None)
        waiter = _Waiter(self._written, failures, Deferred())
        self._waiters.append(waiter)
        self._notify()
        return waiter.done

    def _write_changes(self) -> None:
        for name, table in self._tables.items():
            if table.changed:
                self._write(name, list(table.changed))

    def _write(self, name: str, keys: list[str], within: _Range | None = None) -> None:
        """Append entries of one table. @param within: the keys are all its names in this range, in order."""
        table = self._tables[name]
        for key in keys:
            table.changed.pop(key, None)
        for taken, record in self._records(name, keys, within):
            number = self._written
            self._written += 1
            self._unanswered[number] = None
            if within is not None:
                self._unsure.add(number)
            self._node.append([record]).addCallbacks(
                self._committed, self._not_written, callbackArgs=(number,),
                errbackArgs=(number, table, taken),
            )

    def _records(
        self, name: str, keys: list[str], within: _Range | None
    ) -> Iterator[tuple[list[str], UnplacedRecord]]:
        """The entries in records, each with its keys."""
        table = self._tables[name]
        texts: list[str] = []
        taken: list[str] = []
        size = 0
        for key in keys:
            text = f"{json.dumps(key)}:{json.dumps(table.logged(key), separators=(',', ':'))}"
            if texts and size + len(text) > self._bytes_max:
                part = None if within is None else within._replace(upto=taken[-1])
                yield taken, self._record(name, texts, part)
                within = within and within._replace(after=taken[-1])
                texts, taken, size = [], [], 0
            texts.append(text)
            taken.append(key)
            size += len(text) + 1  # with the comma after it
        if texts or within is not None:
            yield taken, self._record(name, texts, within)

    def _record(self, name: str, entries: list[str], within: _Range | None) -> UnplacedRecord:
        version = json.dumps(self._tables[name].logged_version())
        body = (
            f'{{"format":{FORMAT},"tables":{{"{name}":{{"dataVersion":{version},'
            f'"entries":{{{",".join(entries)}}}{"" if within is None else within.text()}}}}}}}'
        )
        record = UnplacedRecord(unseen_record(METADATA_TOPIC, body.encode(), self._wall_ms()))
        record.queue = None
        record.place = PutPlaces()
        return record

    def _committed(self, _: AppendResult, number: int) -> None:
        if number in self._unsure:
            self._unsure.remove(number)
            is_left = self._unsure or self._ranges or self._begin_offset < 0
            self.is_whole = self.is_whole or not is_left
        self._answered(number)

    def _not_written(self, failure: Failure, number: int, table: LoggedTable, keys: list[str]) -> None:
        """The next tick writes these entries again, if this is still the master."""
        self._failures += 1
        if self.is_open:
            table.changed.update(dict.fromkeys(keys))
            if number in self._unsure:
                self._unsure.remove(number)
                self._begin_offset = -1  # the next tick writes all again
        if not failure.check(DLedgerError):
            self.log.failure("changes of metadata could not be appended", failure)
        self._answered(number)

    def _answered(self, number: int) -> None:
        del self._unanswered[number]
        if number == self._last_piece and (self._backlog or self._ranges):
            self._call = self._clock.callLater(0, self._next_piece)
        self._notify()

    def _notify(self) -> None:
        """Answer the waiters whose records all have a result."""
        first = next(iter(self._unanswered), self._written)
        while self._waiters and self._waiters[0].upto <= first:
            has_failed = not self.is_open or self._waiters[0].failures != self._failures
            if not (has_failed or self.is_whole):
                return
            waiter = self._waiters.pop(0)
            if not has_failed:
                waiter.done.callback(None)
            else:
                waiter.done.errback(DLedgerError(
                    ResponseCode.UNKNOWN, reason="the change is made in this broker; it is not known whether "
                    "a next master will have it"
                ))

    def _next_piece(self) -> None:
        """Write some of what is left, and more when they have a result."""
        self._call = None
        if not self.is_open or self._last_piece in self._unanswered:
            return
        if self._ranges:
            name, after = self._ranges.pop()
            keys = sorted(key for key in self._tables[name].names() if key > after)
            upto = keys[PIECE_ENTRIES - 1] if len(keys) > PIECE_ENTRIES else None
            if upto is not None:
                self._ranges.append((name, upto))
            self._last_piece = self._written
            self._write(name, keys[:PIECE_ENTRIES], _Range(after, upto))
            return
        if not self._backlog:
            return
        name = self._backlog[-1][0]
        keys = []
        while self._backlog and self._backlog[-1][0] == name and len(keys) < PIECE_ENTRIES:
            keys.append(self._backlog.pop()[1])
        self._last_piece = self._written
        self._write(name, keys)

    # -- a slave ---------------------------------------------------------------------------------

    def apply(self, record: bytes, offset: int, *, is_kept: bool = False) -> bool:
        """
        Apply a record of the master. One that cannot be read is passed over, and logged.

        @param record: a record of L{METADATA_TOPIC}, whole. @param offset: its place in the log.
        @param is_kept: its tables were saved before; only the queues, which are built again, need it.
        @return: whether its entries are in the tables now.
        @raise OSError: the files of a queue could not be deleted.
        """
        try:
            document = read_document(decode_message(record).body)
            if document.get("format") != FORMAT:
                raise BodyError(f"format={document.get('format')}; this version reads {FORMAT}")
            tables = to_object(document.get("tables"), "tables")
            for name, value in tables.items():
                table = self._tables.get(name)
                if table is None:
                    raise BodyError(f"a table of the name {name!r:.80}")
                if is_kept and name != TABLE_NAME:
                    continue
                part = to_object(value, name)
                entries = to_object(part.get("entries"), "entries")
                if table is self._metadata.consumer_offsets:
                    entries = self._metadata.consumer_offsets.of_this_life(entries, offset)
                table.apply({**_gone(table, part, entries), **entries}, part.get("dataVersion"))
        except (WireError, BodyError) as error:
            self.passed_over += 1
            self.log.warn("skipping the metadata in the log at {offset}: {reason}",
                          offset=offset, reason=str(error))
            return False
        return True


def _gone(table: LoggedTable, part: JsonObject, entries: JsonObject) -> JsonObject:
    """What a table has in the range of a record, and the master has not: names to None."""
    after, upto = part.get("after"), part.get("upto")
    if after is None:
        return {}
    if not (isinstance(after, str) and (upto is None or isinstance(upto, str))):
        raise BodyError(f"a range from {shown(after)} to {shown(upto)}")
    return dict.fromkeys(_Range(after, upto).missing(table.names(), entries))
