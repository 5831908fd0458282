# -*- test-case-name: tests.machine.test_kept_results -*-
"""
The last results of the commands of each client, which a client that asks again is answered with.

They are a fold of the log, as the state is: producer entries say which entries are of which producer
(L{protocols.wire.ledger.producers}), and the machine reports their results. So every member has the same ones
at the same index, and they are a part of its snapshots.

Rule 1: the bounds are numbers of the log, not of the member: L{CLIENTS_MAX} producers, those whose last
entries are the newest; of each the last L{RESULTS_MAX} results, and of all together L{RESULT_BYTES_IN_ALL}:
the results of the producer whose last entry is the oldest go first. The last sequence of a producer stays as
long as it does.
Rule 2: an announced entry counts only if it has the term of the entry that announced it.

Source: Ongaro's dissertation, 6.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from struct import Struct as StructOfNumbers
from typing import NamedTuple

import attrs
from construct import Int8ub, Int16ub, Int32ub, Int64sb, Int64ub, Struct

from dledger.machine.state_machine import RefusedAnswer
from dledger.storage.files.snapshot_file import SnapshotRefused
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of
from protocols.wire.ledger.entry import EntryHeader
from protocols.wire.ledger.own.producer_entries import decode_producer_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL

#: Producers, results of one of them, and bytes of all results (each counts as L{RESULT_OVERHEAD} more).
CLIENTS_MAX = 2048
RESULTS_MAX = 16
RESULT_BYTES_IN_ALL = 3 * 1024 * 1024
RESULT_OVERHEAD = 64

KEPT_MAGIC = 0x444C4B52  # "DLKR"
KEPT_DECLARATION = Struct(
    "magic" / Int32ub,  # "DLKR"
    "clients" / Int32ub,  # their number: that of the oldest last entry first
    "runs" / Int32ub,  # number of announced runs whose entries have not all come, which follow the clients
    "skips" / Int32ub,  # number of entries that the state was made without, which follow the runs
)
KEPT_CLIENT_DECLARATION = Struct(
    "last_sequence" / Int64sb,
    "results" / Int16ub,  # their number; they follow the id
    "id_length" / Int16ub,  # bytes of the id of the producer, which follows
)
KEPT_RESULT_DECLARATION = Struct(
    "sequence" / Int64sb,
    "index" / Int64sb,  # of the entry
    "is_refused" / Int8ub,  # 1: the result is the reason of a refusal
    "length" / Int32ub,  # bytes of the result, which follows
)
KEPT_SKIP_DECLARATION = Struct("index" / Int64sb)
KEPT_RUN_DECLARATION = Struct(
    "first_index" / Int64sb,  # of the first entry that has not come
    "entries" / Int64ub,  # those that have not come; 0: all up to the next entry of a member's own
    "term" / Int64sb,
    "sequence" / Int64sb,  # of the first one
    "id_length" / Int16ub,  # bytes of the id of the producer, which follows
)
_HEAD = struct_of(KEPT_DECLARATION)
_CLIENT = struct_of(KEPT_CLIENT_DECLARATION)
_RESULT = struct_of(KEPT_RESULT_DECLARATION)
_RUN = struct_of(KEPT_RUN_DECLARATION)
_SKIP = struct_of(KEPT_SKIP_DECLARATION)


class _Pieces:
    """Reads declared numbers, and the bytes that these count."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def numbers(self, declared: StructOfNumbers) -> tuple[int, ...]:
        numbers: tuple[int, ...] = declared.unpack(self.bytes(declared.size))
        return numbers

    def bytes(self, length: int) -> bytes:
        """@raise WireError: there are fewer."""
        found = self._data[self._at : self._at + length]
        if len(found) != length:
            raise WireError(f"kept results: {len(found)} of {length} bytes at {self._at}")
        self._at += length
        return found

    def text(self, length: int) -> str:
        """@raise WireError: it is none."""
        try:
            return self.bytes(length).decode()
        except UnicodeDecodeError as error:
            raise WireError(f"kept results: an id is not UTF-8: {error}") from None

    def end(self) -> None:
        """@raise WireError: there is more."""
        if self._at != len(self._data):
            raise WireError(f"kept results: {len(self._data) - self._at} bytes after the end")


class KeptResult(NamedTuple):
    """The result of one command. @ivar entry_index: of its entry."""

    sequence: int
    entry_index: int
    result: bytes


class _Run(NamedTuple):
    """
    Announced entries that have not come; C{sequence} is of the one at C{first_index}.

    @ivar entries: 0: the run is open.
    """

    first_index: int
    entries: int
    term: int
    sequence: int
    producer: str


@attrs.define
class _Client:
    last_sequence: int
    results: deque[KeptResult] = attrs.Factory(deque)


def _size_of(result: KeptResult) -> int:
    return len(result.result) + RESULT_OVERHEAD


@attrs.define
class KeptResults:
    """
    Invariant: C{clients} is in the order of the last entries; C{held_bytes} is the size of all results.

    @ivar held_bytes: size of all results.
    @ivar clients: results by producer, in the order of their last entries.
    """

    clients: dict[str, _Client] = attrs.Factory(dict)
    _runs: list[_Run] = attrs.Factory(list)
    held_bytes: int = 0

    def find(self, producer: str, sequence: int) -> tuple[int, KeptResult | None]:
        """
        @return: the last sequence of the producer that is in the state, -1 for none, and what is kept of
            C{sequence}.
        """
        client = self.clients.get(producer)
        if client is None:
            return -1, None
        return client.last_sequence, next((one for one in client.results if one.sequence == sequence), None)

    def fold(self, batch: Sequence[tuple[EntryHeader, bytes]], results: dict[int, bytes]) -> None:
        """
        Entries are in the state now.

        @param batch: all of them, in their order. @param results: by their indexes.
        """
        if not self._runs and not any(header.channel for header, _ in batch):
            return
        for header, body in batch:
            if header.channel:
                self._announce(header, body)
            elif self._runs:
                self._came(header, results.get(header.index))

    def _announce(self, header: EntryHeader, body: bytes) -> None:
        """An entry that a member has made for itself: an open run ends there."""
        self._runs = []
        if header.channel != PRODUCER_CHANNEL:
            return
        try:
            runs = decode_producer_entry(body)
        except WireError:
            return  # another kind of entry of this channel
        self._runs = [
            _Run(header.index + run.distance, run.entries, header.term, run.sequence, run.producer)
            for run in runs
        ]

    def _came(self, header: EntryHeader, result: bytes | None) -> None:
        run = self._runs[0]
        if header.term != run.term:
            self._runs.clear()
        elif header.index >= run.first_index:
            if header.index == run.first_index:
                self._keep(run.producer, KeptResult(run.sequence, header.index, result or b""))
            if run.entries != 1:
                rest = max(run.entries - 1, 0)
                self._runs[0] = run._replace(
                    first_index=run.first_index + 1, entries=rest, sequence=run.sequence + 1
                )
            else:
                del self._runs[0]

    def _keep(self, producer: str, result: KeptResult) -> None:
        client = self.clients.pop(producer, None)
        if client is None or result.sequence != client.last_sequence + 1:
            self.held_bytes -= sum(map(_size_of, client.results)) if client is not None else 0
            client = _Client(result.sequence)  # (The log had forgotten the producer, and it began again.)
        self.clients[producer] = client
        client.last_sequence = result.sequence
        client.results.append(result)
        self.held_bytes += _size_of(result)
        if len(client.results) > RESULTS_MAX:
            self._drop_first(client)
        while len(self.clients) > CLIENTS_MAX:
            oldest = self.clients.pop(next(iter(self.clients)))
            self.held_bytes -= sum(map(_size_of, oldest.results))
        if self.held_bytes > RESULT_BYTES_IN_ALL:
            self._shrink(client)

    def _shrink(self, newest: _Client) -> None:
        for client in self.clients.values():
            while client.results and self.held_bytes > RESULT_BYTES_IN_ALL:
                if client is newest and len(client.results) == 1:
                    return  # (One result may be as long as it likes, as results go.)
                self._drop_first(client)

    def _drop_first(self, client: _Client) -> None:
        self.held_bytes -= _size_of(client.results.popleft())

    # -- in snapshots -------------------------------------------------------------------------

    def encode(self, skips: Collection[int] = ()) -> bytes:
        """All as bytes, for a snapshot. @param skips: entries that the state was made without."""
        pieces = [_HEAD.pack(KEPT_MAGIC, len(self.clients), len(self._runs), len(skips))]
        for producer, client in self.clients.items():
            raw = producer.encode()
            pieces += [_CLIENT.pack(client.last_sequence, len(client.results), len(raw)), raw]
            for sequence, index, result in client.results:
                is_refused = isinstance(result, RefusedAnswer)
                pieces += [_RESULT.pack(sequence, index, is_refused, len(result)), result]
        for first_index, entries, term, sequence, producer in self._runs:
            raw = producer.encode()
            pieces += [_RUN.pack(first_index, entries, term, sequence, len(raw)), raw]
        pieces += [_SKIP.pack(index) for index in sorted(skips)]
        return b"".join(pieces)

    @classmethod
    def decode(cls, data: bytes) -> tuple[KeptResults, frozenset[int]]:
        """@return: all, and the entries that the state was made without. @raise WireError: malformed."""
        reader = _Pieces(data)
        magic, clients, runs, skips = reader.numbers(_HEAD)
        if magic != KEPT_MAGIC:
            raise WireError("kept results: the magic does not fit")
        kept = cls()
        for _ in range(clients):
            last_sequence, results, length = reader.numbers(_CLIENT)
            client = kept.clients[reader.text(length)] = _Client(last_sequence)
            for _ in range(results):
                sequence, index, is_refused, length = reader.numbers(_RESULT)
                result = reader.bytes(length)
                client.results.append(KeptResult(
                    sequence, index, RefusedAnswer(result) if is_refused else result
                ))
            kept.held_bytes += sum(map(_size_of, client.results))
        for _ in range(runs):
            first_index, entries, term, sequence, length = reader.numbers(_RUN)
            kept._runs.append(_Run(first_index, entries, term, sequence, reader.text(length)))
        left_out = frozenset(reader.numbers(_SKIP)[0] for _ in range(skips))
        reader.end()
        return kept, left_out


def kept_in(piece: bytes) -> tuple[KeptResults, frozenset[int]]:
    """The first piece of a snapshot, see L{KeptResults.decode}. @raise SnapshotRefused: it is none."""
    try:
        return KeptResults.decode(piece)
    except WireError as error:
        raise SnapshotRefused(str(error)) from error
