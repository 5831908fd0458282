# -*- test-case-name: tests.namesrv.test_key_values -*-
"""
The KV configuration: namespace to key to value, in memory and in a file of RocketMQ's format.

Rule 1: a change is answered when the file has it. A file is replaced by rename after fsync; when the write
fails, nothing has changed, in memory neither.
Rule 2: at most one write is under way; changes that arrive meanwhile share the next one.
Rule 3: a file that cannot be read ends the start, and stays as it is.

Source: KVConfigManager, KVConfigSerializeWrapper (4.9.8, 5.3.3).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from dledger.base.disk.disk import Disk
from dledger.base.threads import RunInThread
from dledger.rocketmq.answering.java_json import read_document
from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.namesrv.answers import configuration_body
from dledger.values.errors import DirectoryError
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import shown

#: Changes that wait for a write, at most; further ones are refused.
WAITING_MAX = 4096

#: Characters of a namespace and of a key, and of a value, at most: a value is in the header of an answer.
KEY_CHARACTERS_MAX = 4096
VALUE_CHARACTERS_MAX = 1024 * 1024

#: Namespace of the queues of ordered topics: topic to C{broker:queues;broker:queues}.
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"

_Tables = dict[str, dict[str, str]]


@attrs.frozen(kw_only=True)
class _Change:
    """C{value} is None to remove the key."""

    namespace: str
    key: str
    value: str | None
    done: Deferred[None]


class KeyValues:
    """
    Invariant: C{_tables} is the content of the file; C{entries} and C{bytes} are its namespaces and keys, and
    the bytes of its texts.
    """

    log = Logger()

    def __init__(
        self, disk: Disk, path: str, run_in_thread: RunInThread, *, entries_max: int, bytes_max: int
    ) -> None:
        """Nothing is read: see L{load}. @param bytes_max: bytes of all texts."""
        self._disk = disk
        self._path = path
        self._run_in_thread = run_in_thread
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._tables: _Tables = {}
        self._waiting: list[_Change] = []
        self._writing: Deferred[None] | None = None
        self._is_closed = False
        self.entries = 0
        self.bytes = 0

    def load(self) -> None:
        """
        Read the file, if there is one; make its directory.

        @raise DirectoryError: it cannot be read, or is malformed.
        """
        try:
            self._disk.makedirs(os.path.dirname(os.path.abspath(self._path)))
            data = self._disk.read_file(self._path) if self._disk.exists(self._path) else None
        except OSError as error:
            raise DirectoryError(f"{self._path} cannot be read: {error.strerror or error}") from error
        if data is not None:
            try:
                self._tables = _read_tables(data)
            except BodyError as error:
                raise DirectoryError(
                    f"{self._path}: {error}. Put a sound copy there, or move the file away to begin without"
                ) from None
        self.entries, self.bytes = _size(self._tables)

    def get(self, namespace: str | None, key: str | None) -> str | None:
        """The value of a key; None if there is none."""
        return self._tables.get(namespace or "", {}).get(key or "")

    def table(self, namespace: str | None) -> Mapping[str, str] | None:
        """The values of a namespace; None if there is none. A namespace stays when its last key goes."""
        return self._tables.get(namespace or "")

    def change(self, namespace: str, key: str, value: str | None) -> Deferred[None]:
        """
        Set a key, or remove it with None.

        @return: fires when the file has the change. Fails with L{Refused}: beyond a bound, too many changes
            wait, or the file cannot be written.
        """
        done: Deferred[None] = Deferred()
        if self._is_closed:
            done.errback(Refused(Code.SYSTEM_ERROR, "the name server stops: nothing has changed"))
            return done
        if max(len(namespace), len(key)) > KEY_CHARACTERS_MAX or len(value or "") > VALUE_CHARACTERS_MAX:
            done.errback(Refused(
                Code.SYSTEM_ERROR, f"a namespace and a key have at most {KEY_CHARACTERS_MAX} characters, a "
                f"value {VALUE_CHARACTERS_MAX}",
            ))
            return done
        if len(self._waiting) >= WAITING_MAX:
            done.errback(Refused(Code.SYSTEM_BUSY, f"{WAITING_MAX} changes wait for the disk: try again"))
            return done
        self._waiting.append(_Change(namespace=namespace, key=key, value=value, done=done))
        if self._writing is None:
            self._writing = Deferred()
            Deferred.fromCoroutine(self._write_all()).addErrback(
                lambda failure: self.log.failure("writing the KV configuration failed", failure)
            )
        return done

    def close(self) -> Deferred[None]:
        """
        Refuse further changes.

        @return: fires when those of before have been written or have failed; never fails.
        """
        self._is_closed = True
        if self._writing is None:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._writing.addCallback(lambda _: waiting.callback(None))
        return waiting

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._write(batch)
        finally:
            ended, self._writing = self._writing, None
            if ended is not None:
                ended.callback(None)

    async def _write(self, batch: list[_Change]) -> None:
        tables, accepted = dict(self._tables), []
        copied: set[str] = set()
        entries, size = self.entries, self.bytes
        for change in batch:
            more_entries, more_bytes = _growth(tables, change)
            if not self._fits(change, entries + more_entries, size + more_bytes):
                continue
            entries, size = entries + more_entries, size + more_bytes
            if change.namespace not in copied:
                copied.add(change.namespace)
                tables[change.namespace] = dict(tables.get(change.namespace, {}))
            table = tables[change.namespace]
            if change.value is None:
                table.pop(change.key, None)
            else:
                table[change.key] = change.value
            accepted.append(change)
        if not accepted:
            return
        data = configuration_body(tables)
        try:
            await self._run_in_thread(lambda: self._disk.write_file(self._path, data))
        except OSError as error:
            reason = f"{self._path} cannot be written, nothing has changed: {error.strerror or error}"
            self.log.error("{reason}", reason=reason)
            for change in accepted:
                change.done.errback(Refused(Code.SYSTEM_ERROR, reason))
            return
        self._tables = tables
        self.entries = entries
        self.bytes = size
        for change in accepted:
            change.done.callback(None)

    def _fits(self, change: _Change, entries: int, size: int) -> bool:
        for what, count, before, most in (
            ("entries", entries, self.entries, self._entries_max),
            ("bytes", size, self.bytes, self._bytes_max),
        ):
            if count > most and count > before:
                change.done.errback(Refused(
                    Code.SYSTEM_ERROR, f"the KV configuration would have {count} {what}; kv_{what}_max={most}"
                ))
                return False
        return True


def _growth(tables: _Tables, change: _Change) -> tuple[int, int]:
    """Entries and bytes that a change adds."""
    table = tables.get(change.namespace)
    before = None if table is None else table.get(change.key)
    entries, size = (0, 0) if table is not None else (1, _bytes_of(change.namespace))
    if before is not None:
        entries, size = entries - 1, size - _bytes_of(change.key) - _bytes_of(before)
    if change.value is not None:
        entries, size = entries + 1, size + _bytes_of(change.key) + _bytes_of(change.value)
    return entries, size


def _bytes_of(text: str) -> int:
    return len(text.encode("utf-8"))


def _size(tables: _Tables) -> tuple[int, int]:
    entries = len(tables) + sum(map(len, tables.values()))
    size = sum(_bytes_of(name) for name in tables)
    for table in tables.values():
        size += sum(_bytes_of(key) + _bytes_of(value) for key, value in table.items())
    return entries, size


def _read_tables(data: bytes) -> _Tables:
    """@raise BodyError: no document of ours."""
    if not data:
        raise BodyError("the file is empty")
    found: _Tables = {}
    for namespace, table in to_object(read_document(data).get("configTable"), "configTable").items():
        values = found[namespace] = {}
        for key, value in to_object(table, namespace).items():
            if value is None:
                continue
            if not isinstance(value, str):
                raise BodyError(f"configTable: {namespace} {key}={shown(value)} is not text")
            values[key] = value
    return found
