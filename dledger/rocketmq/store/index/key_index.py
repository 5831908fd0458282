# -*- test-case-name: tests.broker.store.test_key_index -*-
"""
The index of messages by key: all its files, and a mark of ours that reports up to where they are complete.

Everything here can be built again from the log. So damage never stops the broker: a damaged file goes, with
the files after it, and the records from its beginning on are put again.

The mark, C{indexed} beside the checkpoint, has a place in the log, the names of the first and the last file
in that state, their number, and the header of the last one. It is written when all are on stable storage. If
one of them is missing, the index is built again::

    closed in order, by us or by RocketMQ     the files are believed
    a crash, and the mark is there            the last file is taken back to the state in the mark
    a crash of RocketMQ, without a mark       as RocketMQ: files younger than the checkpoint's time go
    no mark, and a log that begins earlier    the index is built again

Rule 1: a record that is in the index twice is found once.
Rule 2: an entry is no proof: a cut of the log leaves entries of records that are gone, so readers compare the
record with the key.

Source: IndexService.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
from twisted.logger import Logger

from dledger.base.disk.disk import is_no_room
from dledger.base.disk.file_table import INDEXED
from dledger.base.disk.hints import HintFile, Hints
from dledger.base.threads import RunInThread
from dledger.rocketmq.store.index.index_directory import (
    NAME_SIZE,
    find_files,
    index_file_name,
    set_files_aside,
)
from dledger.rocketmq.store.index.index_file import IndexFile, IndexHeader, IndexShape
from dledger.rocketmq.store.index.index_mark import (
    IndexMark,
    decode_index_mark,
    encode_index_mark,
    is_whole_mark,
)
from dledger.rocketmq.store.records.message_log import MessageLog
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.values.errors import StoreError

#: Bytes of the log after which the mark of an index without changes moves on.
MARK_BYTES = 64 * 1024 * 1024
#: Bytes of entries in memory above which they are written before another is put.
PENDING_BYTES_MAX = 1024 * 1024
#: Files with changes above which no further one is begun: their slots are in memory.
CHANGED_FILES_MAX = 4
#: What a header's seconds may lack of the time of a record, ms.
_ROUNDED_MS = 999
#: The state has not gone back since the last flush began: more than any offset.
_FORWARD = 1 << 63


class KeyIndex:
    """
    Invariant: all files but the last are full, or of RocketMQ's making; names rise.

    @ivar offset: place in the log: the keys of all records before it are in the index.
    @ivar files: the files, oldest first.
    @ivar why_failed: why nothing can be put any more; empty: it can.
    @ivar end_timestamp: store timestamp of the last record on stable storage in the index, ms; 0: none.
    """

    log_events = Logger()

    def __init__(self, config: StoreConfig, hints: Hints, log: MessageLog) -> None:
        self._disk = hints.disk
        self._log = log
        self._mark_file = HintFile(hints, INDEXED, config.store_path_root_dir)
        self.directory = f"{config.store_path_root_dir}/index"
        self.shape = IndexShape(config.max_hash_slot_num, config.max_index_num)
        self.offset = 0
        self.files: list[IndexFile] = []
        self.why_failed = ""
        self.end_timestamp = 0
        self._last_name = 0
        self._marked: IndexMark | None = None
        self._back_to = _FORWARD
        self._is_flushing = self._has_new_file = self._reported_scarce = False
        self._to_close: list[IndexFile] = []

    @classmethod
    def open(
        cls, config: StoreConfig, hints: Hints, log: MessageLog, *, log_end: int, crashed: bool,
        timestamp: int,
    ) -> KeyIndex:
        """
        Open the files, and bring them into the state that L{offset} names.

        @param log_end: end of the log's records.
        @param crashed: the last run of the store did not end in order.
        @param timestamp: of the checkpoint: files with younger records were not closed.
        """
        index = cls(config, hints, log)
        try:
            hints.disk.makedirs(index.directory)
            index._recover(crashed=crashed, timestamp=timestamp)
            index.offset = max(min(index.offset, log_end), log.begin_offset)
            index._write_mark()
        except OSError as error:
            index.failed(error)
        return index

    # -- start -----------------------------------------------------------------------------------

    def _recover(self, *, crashed: bool, timestamp: int) -> None:
        shape = self.shape
        mark = decode_index_mark(
            self._mark_file.read(lambda data: data if is_whole_mark(data) else None), shape
        )
        self._list()
        if mark is not None and not self._has_all(mark):
            self.log_events.warn(
                "index: {path} lacks some of the {count} files from {first} to {last}: the index is built "
                "again", path=self.directory, count=mark.count, first=mark.first, last=mark.file,
            )
            self._lower_to_begin()
            self._delete(0)
            mark = self._marked
        for at, found in enumerate(self.files):
            try:
                self.files[at] = IndexFile.open(self._disk, found.path, shape)
            except StoreError as error:
                self._give_up(at, error)
                break
        if mark is None:
            if crashed:
                young = (at for at, file in enumerate(self.files) if file.header.end_timestamp > timestamp)
                self._delete(next(young, len(self.files)))
            begin = self._log.begin_offset + self._log.record_lead
            if self.files and self.files[0].header.begin_offset > begin:
                self._lower_to_begin()  # (Nothing says whether a file before it is missing.)
                self._delete(0)
            self._go_on()
        elif crashed or not mark.is_clean:
            self._unwind(mark)
        elif self._state(mark.offset) == attrs.evolve(mark, is_clean=False):
            self.offset = mark.offset
        else:
            self._go_on()  # RocketMQ has had the directory since
        self.end_timestamp = self.last_put[0]

    def _list(self) -> None:
        """Find the files; set those of another size aside."""
        shape = self.shape
        paths, others, self._last_name = find_files(self._disk, self.directory, shape.file_size)
        self.files = [IndexFile(self._disk, path, shape, IndexHeader()) for path in paths]
        if not others:
            return
        self._lower_to_begin()
        self.log_events.warn(
            "index: {count} files do not have the {size} bytes of maxHashSlotNum={slots} and "
            "maxIndexNum={entries}: they are in {path} now, and the index is built again",
            count=len(others), size=shape.file_size, slots=shape.slots, entries=shape.entries,
            path=set_files_aside(self._disk, self.directory, others),
        )
        self._delete(0)

    def _has_all(self, mark: IndexMark) -> bool:
        """Whether no file of the mark is missing, but perhaps the last: RocketMQ's start deletes it."""
        names = [int(file.name) for file in self.files]
        needed = mark.count if not mark.file or mark.file in names else mark.count - 1
        return sum(mark.first <= name <= mark.file for name in names) == needed

    def _unwind(self, mark: IndexMark) -> None:
        """Bring the files into the state in the mark, and on stable storage."""
        names = [int(file.name) for file in self.files]
        self._delete(next((at for at, name in enumerate(names) if name > mark.file), len(names)))
        if mark.file not in names:
            if mark.file:
                self._go_on()
            else:
                self.offset = mark.offset
            return
        try:
            self.files[-1].unwind(mark.header)
        except StoreError as error:
            self._give_up(len(self.files) - 1, error)
            return
        for step in self.files[-1].prepare_flush():
            step()
        self.offset = mark.offset

    def _go_on(self) -> None:
        """Continue with the last record in the files."""
        self.offset = self._log.begin_offset
        if self.files:
            offset = self.files[-1].header.end_offset
            try:
                is_sound = self._log.problem_at(offset) == ""
            except ValueError:
                is_sound = False  # the log does not have it
            if is_sound:
                self.offset = offset - self._log.record_lead

    def _give_up(self, at: int, reason: Exception) -> None:
        """Delete the file at C{at} and those after it; their records are put again."""
        self.log_events.warn(
            "index: {reason}; the file is deleted, and its records are put into the index again",
            reason=str(reason),
        )
        if len(self.files) - at > 1:
            self._lower_to_begin()
        self._delete(at)
        self._go_on()

    def _lower_to_begin(self) -> None:
        """
        Several files go. A power cut could keep any of them, and the mark would not show that one before it
        is missing: so everything is put again after one, until the next flush.

        @raise OSError: writing failed; nothing has gone.
        """
        self._write(IndexMark(offset=self._log.begin_offset))

    def _delete(self, at: int) -> None:
        """Delete the files from C{at} on, the last one first."""
        while len(self.files) > at:
            self._unlink(self.files.pop())

    def _unlink(self, file: IndexFile) -> None:
        if self._is_flushing:
            self._to_close.append(file)  # a thread uses the handle
        else:
            file.close()
        self._disk.unlink(file.path)

    # -- put -------------------------------------------------------------------------------------

    def put(self, keys: Sequence[tuple[int, int, int]], offset: int) -> None:
        """
        Put the keys of the records from L{offset} up to C{offset}.

        @param keys: see L{IndexFile.put}.
        @raise OSError: a file cannot be made; a later call repeats the records.
        """
        while keys:
            keys = keys[self._file(keys[0][2]).put(keys) :]
        self.offset = offset

    @property
    def is_stuffed(self) -> bool:
        """Whether nothing more is put before a flush: too many files have changes."""
        return sum(not file.is_clean for file in self.files) > CHANGED_FILES_MAX

    def _file(self, timestamp: int) -> IndexFile:
        """The file for the next key. @raise OSError: it cannot be read or made."""
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            last.load()
            if last.pending_bytes >= PENDING_BYTES_MAX:
                last.write()
            return last
        self._last_name = max(index_file_name(timestamp), self._last_name + 1)
        path = f"{self.directory}/{self._last_name:0{NAME_SIZE}d}"
        made = IndexFile.create(self._disk, path, self.shape, None if last is None else last.header)
        self._has_new_file = True
        self.files.append(made)
        return made

    def write(self) -> None:
        """Write the pending entries. @raise OSError: writing failed; they stay pending."""
        for file in self.files:
            file.write()

    # -- read ------------------------------------------------------------------------------------

    @property
    def last_put(self) -> tuple[int, int]:
        """Store timestamp and offset of the last record with a key; 0 without one."""
        header = self.files[-1].header if self.files else IndexHeader()
        return header.end_timestamp, header.end_offset

    def search(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """
        Look for the records with a key; see rules 1 and 2.

        @param begin_ms, end_ms: store timestamps; some records outside may be found, too.
        @return: offsets in the log, the youngest first; and -1 for each other entry that is looked at.
        @raise OSError: reading failed.
        """
        for file in reversed(self.files.copy()):
            header = file.header
            is_within = begin_ms <= header.end_timestamp and header.begin_timestamp <= end_ms
            if header.index_count > 1 and is_within:
                try:
                    yield from self._search(file, key_hash, begin_ms, end_ms)
                except StoreError as error:
                    if file in self.files:
                        self._rebuild(self.files.index(file), error)
                except FileNotFoundError:
                    return  # its records have expired in the meantime
                finally:
                    if file in self.files[:-1] and file.is_clean and not self._is_flushing:
                        file.close()
            if header.begin_timestamp < begin_ms:
                return

    def _search(self, file: IndexFile, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        number = file.newest(key_hash)
        while number > 0:
            entry = file.entry_of(number, key_hash)
            time_ms = file.header.begin_timestamp + entry.seconds * 1000
            is_late = begin_ms <= time_ms + _ROUNDED_MS
            yield entry.offset if entry.key_hash == key_hash and is_late and time_ms <= end_ms else -1
            number = entry.previous if is_late else 0

    # -- changes of the log ------------------------------------------------------------------------

    def cut(self, log_end: int) -> None:
        """The log ends at C{log_end} now. @raise OSError: the mark cannot be written."""
        if self.offset > log_end:
            self.offset = log_end
            self._lower()

    def clear(self, log_begin: int) -> None:
        """The log is empty, and begins at C{log_begin}. @raise OSError: deleting failed."""
        self._delete(0)
        self.offset = log_begin
        self._lower()

    def expire(self, log_begin: int) -> None:
        """
        Delete the files whose records are all before C{log_begin}, but never the last.

        @raise OSError: deleting failed.
        """
        old = [file for file in self.files[:-1] if file.header.end_offset < log_begin and file.is_clean]
        if not old or old != self.files[: len(old)] or self._is_flushing:
            return
        del self.files[: len(old)]
        marked = self._marked
        if marked is not None and marked.file:  # (The mark first: it must not count files that are gone.)
            left = [int(file.name) for file in self.files if int(file.name) <= marked.file]
            if left:
                self._write(attrs.evolve(marked, first=left[0], count=len(left)))
            else:
                self._lower_to_begin()
        for file in old:
            self._unlink(file)

    def _rebuild(self, at: int, reason: Exception) -> None:
        self._give_up(at, reason)
        self._lower()

    def _lower(self) -> None:
        """The state has gone back: the mark must not say more."""
        self._back_to = min(self._back_to, self.offset)
        if not self._is_flushing:  # else its end does
            self._lower_mark(self._marked)

    def _lower_mark(self, durable: IndexMark | None) -> None:
        """
        Let the mark say no more than a state that is on stable storage, nor than the present one.

        @raise OSError: writing failed.
        """
        names = {0, *(int(file.name) for file in self.files)}
        if durable is not None and durable.file in names:
            offset = min(durable.offset, self.offset, self._back_to)
            if durable is not self._marked or offset < durable.offset:
                self._write(attrs.evolve(durable, offset=offset, is_clean=False))
        elif all(file.is_clean for file in self.files):
            self._write_mark()
        else:
            self._lower_to_begin()

    # -- flush -----------------------------------------------------------------------------------

    def _state(self, offset: int) -> IndexMark:
        last = self.files[-1] if self.files else None
        if last is None:
            return IndexMark(offset=offset)
        return IndexMark(
            offset=offset, first=int(self.files[0].name), file=int(last.name), count=len(self.files),
            header=last.header,
        )

    def _write_mark(self, *, is_clean: bool = False) -> None:
        """Record the present state, which is on stable storage. @raise OSError: writing failed."""
        self._write(attrs.evolve(self._state(self.offset), is_clean=is_clean))

    def _write(self, mark: IndexMark) -> None:
        self._marked = mark if self._mark_file.lower(encode_index_mark(mark, self.shape)) else None

    def prepare_flush(self) -> IndexFlush | None:
        """
        Take what a flush has to write, of the state of this moment.

        @return: None: there is nothing to do. Else the caller runs L{flush} with it.
        """
        state, marked = self._state(self.offset), self._marked
        if self.why_failed or self._is_flushing:
            return None
        is_equal = marked is not None and (state.file, state.header) == (marked.file, marked.header)
        if is_equal and marked is not None and 0 <= state.offset - marked.offset < MARK_BYTES:
            return None
        flush = IndexFlush(mark=state)
        self._back_to = _FORWARD
        try:
            for file in self.files:
                if not file.is_clean:
                    flush.files.append(file)
                    flush.steps += file.prepare_flush()
        except OSError as error:
            self._flush_failed(flush, error)
            return None
        if self._has_new_file:
            self._has_new_file = False
            flush.steps.append(lambda: self._disk.sync_directory(self.directory))
        self._is_flushing = True
        return flush

    async def flush(self, flush: IndexFlush, run_in_thread: RunInThread) -> None:
        """Bring a state to stable storage, off the reactor, and record it. Failures are logged."""
        file, durable = self._mark_file, self._marked
        written: list[bool] = []
        try:
            await run_in_thread(flush.run)
            durable = flush.mark
            if self._back_to == _FORWARD:
                data = encode_index_mark(flush.mark, self.shape)
                await run_in_thread(lambda: written.append(file.write(data)))
                if written[0]:
                    self._marked = flush.mark
                    self.end_timestamp = flush.mark.header.end_timestamp
        except OSError as error:
            self._flush_failed(flush, error)  # first: a file that is not clean keeps its slots
        self._end_flush(flush)
        if self._back_to != _FORWARD:
            try:
                self._lower_mark(durable)
            except OSError as error:
                self.failed(error)

    def _end_flush(self, flush: IndexFlush) -> None:
        self._is_flushing = False
        for file in self._to_close:
            file.close()
        self._to_close.clear()
        for file in flush.files:
            if file in self.files[:-1] and file.is_clean:
                file.unload()

    def _flush_failed(self, flush: IndexFlush, error: OSError) -> None:
        for file in flush.files:
            file.flush_failed()
        self._has_new_file = bool(self.files)
        self.failed(error)

    def failed(self, error: OSError) -> None:
        """Writing or reading has failed: if it was not for want of room, nothing is put any more."""
        if is_no_room(error):
            if not self._reported_scarce:
                self._reported_scarce = True
                self.log_events.error("index: {error}; it is tried again", error=str(error))
        elif not self.why_failed:
            self.why_failed = str(error)
            self.log_events.error(
                "index: {error}; messages are not put into the index until the next start", error=str(error)
            )

    def close(self, *, is_clean: bool) -> None:
        """
        Release the files.

        @param is_clean: the store is closed in order; record that, if all is on stable storage.
        @raise OSError: writing failed.
        """
        if is_clean and not self.why_failed and all(file.is_clean for file in self.files):
            self._write_mark(is_clean=True)
        self._to_close += self.files
        if not self._is_flushing:
            for file in self._to_close:
                file.close()


@attrs.define(eq=False, kw_only=True)
class IndexFlush:
    """
    The work of one flush.

    @ivar mark: the state that it brings to stable storage.
    @ivar files: those with steps.
    """

    mark: IndexMark
    files: list[IndexFile] = attrs.Factory(list)
    steps: list[Callable[[], None]] = attrs.Factory(list)

    def run(self) -> None:
        """Run the steps. @raise OSError: one failed."""
        for step in self.steps:
            step()
