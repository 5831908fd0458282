# -*- test-case-name: tests.broker.store.test_consume_queues -*-
"""
All consume queues of a store, by topic and number.

Directories are C{TOPIC/QUEUEID}. Topics come from records that other programs wrote, so a topic that is not
a valid directory name is refused; its records stay in the log and are counted.

Which queues have files, and where these begin, is listed beside their directories
(L{dledger.rocketmq.store.queues.queue_list}), so that a start notices the loss of some.

At most about L{open_queues_max} queues keep files open; the least recently used are closed first, also those
with writes since the last flush: the flush opens them again, one after the other.

Source: DefaultMessageStore.consumeQueueTable (4.9.8), ConsumeQueueStore (5.3.3).
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice

from twisted.logger import Logger

from dledger.base.disk.disk import Disk
from dledger.base.disk.hints import Hints
from dledger.base.disk.segment import file_name, list_segments
from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue
from dledger.rocketmq.store.queues.queue_list import ListedQueue, QueueKey, QueueList
from dledger.rocketmq.store.queues.queue_losses import loss_of
from dledger.rocketmq.store.queues.unit_check import TornUnits
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.values.errors import DirectoryError, StoreError

#: Most queues that keep their files open, and the share of the process's descriptors that they may take.
OPEN_MAX = 512
OPEN_SHARE = 4

#: Number of pending units from which on they are written.
UNWRITTEN_MAX = 8192

#: Number of queues examined for one to close when another is opened.
_LOOKS = 16

#: A queue without files, units and a past: it is not listed.
_NEW = ListedQueue(None, 0)

#: The characters that RocketMQ allows in a topic, and at most the length of a file name. Only the name of a
#: topic with retries of POP has a plus: it ends the name of the group.
_TOPIC = re.compile(r"(?:%RETRY%[%|a-zA-Z0-9_-]{1,120}\+)?[%|a-zA-Z0-9_-]{1,255}")
TOPIC_CHARACTERS_MAX = 255


def open_queues_max() -> int:
    """Number of queues that keep their files open: a bounded share of the process's descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_MAX if soft == resource.RLIM_INFINITY else max(min(OPEN_MAX, soft // OPEN_SHARE), 8)


def is_topic(name: str) -> bool:
    """Whether C{name} can be a topic with consume queues."""
    return len(name) <= TOPIC_CHARACTERS_MAX and _TOPIC.fullmatch(name) is not None


class ConsumeQueues:
    """
    Invariant: C{_touched} are the queues with units to write or open files, the most recently used last;
    C{_closed} are those whose files are closed and need a sync; C{_listed} is what the next list will have.

    @ivar has_lost: a start found no file for units of the log, a listed queue without its first, its last or
        any file, or no directory of queues: all records must be dispatched again, which puts the missing
        ones, and passes over the others.
    @ivar refused: count of records whose topic or queue number is invalid.
    @ivar mend: called with a queue and the indexes of units that the disk cannot read, see L{ConsumeQueue}.
    @ivar unwritten: count of units that were put since the last L{write}: readable, but not in the files.
    """

    log_events = Logger()

    def __init__(self, config: StoreConfig, hints: Hints) -> None:
        self._config = config
        self._disk = hints.disk
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._touched: dict[QueueKey, ConsumeQueue] = {}
        self._closed: dict[QueueKey, ConsumeQueue] = {}
        self._flushing: list[ConsumeQueue] = []
        self._listed: dict[QueueKey, ListedQueue] = {}
        self._open_max = open_queues_max()
        self._list = QueueList(hints, config.store_path_root_dir)
        self.refused = self.unwritten = 0
        self.has_lost = False
        self._is_list_old = True  # RocketMQ writes none
        self.mend: Callable[[QueueKey, AbstractSet[int]], None] = lambda key, lost: None

    @classmethod
    def open(
        cls, config: StoreConfig, hints: Hints, *, log_begin: int, log_end: int, is_trusted: bool,
        crashed: bool, torn: TornUnits, losing: Callable[[], None] = lambda: None,
    ) -> ConsumeQueues:
        """
        Open every queue, as far as its records are in the log; see L{ConsumeQueue.open}.

        @param torn: judges the last units after a crash.
        @param losing: see L{ConsumeQueue.open}.
        @raise DirectoryError: a directory has foreign files.
        @raise StoreError: reading or cutting failed.
        """
        queues, disk = cls(config, hints), hints.disk
        try:
            if log_end > log_begin and not disk.exists(config.consume_queue_path):
                # (Deleted topics leave the directory.) The messages would be out of sight, and the next
                # ones at the indexes of earlier ones.
                losing()
                queues.has_lost = True
            lost: set[QueueKey] = set()
            for topic, queue_id in queues._found():
                if queues._has_loss((topic, queue_id), log_begin, losing):
                    lost.add((topic, queue_id))
                queue = ConsumeQueue.open(
                    disk, queues._path(topic, queue_id), config.mapped_file_size_consume_queue,
                    log_begin=log_begin, log_end=log_end, is_trusted=is_trusted, crashed=crashed,
                    is_torn=partial(torn.is_torn, topic, queue_id), losing=losing,
                )
                queues._own((topic, queue_id), queue)
                queues._touch((topic, queue_id), queue)
                queues.has_lost = queues.has_lost or queue.has_lost
            lost |= queues._lost()
            if log_end > log_begin and not queues.has_lost and lost:
                cls.log_events.warn(
                    "{count} consume queues have lost files, {first} among them: all queues are"
                    " completed from the log", count=len(lost), first="{}/{}".format(*min(lost)),
                )
                losing()
                queues.has_lost = True
            queues._continue_lost()
            for key, queue in queues._queues.items():
                queues._note(key, queue)
        except OSError as error:
            queues.close()
            raise StoreError(f"{config.consume_queue_path} cannot be read: {error}") from error
        except BaseException:
            queues.close()
            raise
        return queues

    def _found(self) -> Iterator[QueueKey]:
        root, disk = self._config.consume_queue_path, self._disk
        if not disk.exists(root):
            return
        for topic in disk.listdir(root):
            try:
                names = disk.listdir(f"{root}/{topic}")
            except NotADirectoryError:
                raise DirectoryError(f"{root}/{topic} is not a directory of a topic: move it away") from None
            for name in names:
                if not (is_topic(topic) and name.isascii() and name.isdecimal() and len(name) <= 10):
                    raise DirectoryError(f"{root}/{topic}/{name} is not a directory of a queue: move it away")
                yield topic, int(name)

    def _lost(self) -> frozenset[QueueKey]:
        """The listed queues for which the start found no file."""
        return self._list.lacks({key for key, queue in self._queues.items() if queue.had_files})

    def _has_loss(self, key: QueueKey, log_begin: int, losing: Callable[[], None]) -> bool:
        """
        Whether a queue has lost files or units since it was listed. What is after them is deleted.

        @raise OSError: reading or deleting failed.
        """
        directory, file_size = self._path(*key), self._config.mapped_file_size_consume_queue
        offsets = list_segments(self._disk, directory, file_size, "mapped_file_size_consume_queue").offsets
        if not offsets:
            return False
        first, last = self._list.bounds_of(key)
        found = loss_of(
            self._disk, directory, offsets, file_size, first=first, last=last, log_begin=log_begin
        )
        if found.is_lost:
            losing()
            for offset in reversed(offsets[found.kept :]):
                self._disk.unlink(f"{directory}/{file_name(offset)}")
        return found.is_lost

    def _continue_lost(self) -> None:
        """
        Queues without files continue where the list says, or at the first record that the log has of them.
        """
        for key, listed in self._list.listed.items():
            queue = self._queues.get(key) or ConsumeQueue(
                self._disk, self._path(*key), self._config.mapped_file_size_consume_queue
            )
            if queue.next_index < listed.next_index and queue.listed.first is None:
                queue.begin(listed.next_index)
                self._own(key, queue)

    def _path(self, topic: str, queue_id: int) -> str:
        return f"{self._config.consume_queue_path}/{topic}/{queue_id}"

    def _own(self, key: QueueKey, queue: ConsumeQueue) -> None:
        self._queues[key] = queue
        queue.mend = lambda lost: self.mend(key, lost)

    def _touch(self, key: QueueKey, queue: ConsumeQueue) -> None:
        self._touched.pop(key, None)
        self._closed.pop(key, None)
        if len(self._touched) >= self._open_max:
            self._shed(_LOOKS)
        self._touched[key] = queue

    def _shed(self, looks: int) -> None:
        """
        Close the least recently used queues except those in a flush; examine C{looks} at most.

        @raise OSError: writing the units of one failed.
        """
        for key in list(islice(self._touched, looks)):
            if len(self._touched) < self._open_max:
                return
            queue = self._touched[key]
            if queue.shed():
                del self._touched[key]
                if not queue.is_clean:
                    self._closed[key] = queue

    def reach_beyond(self, log_end: int, *, crashed: bool) -> bool:
        """
        Whether a start found units beyond the end of the log, of messages that this log never had: the queues
        are of a longer one, and may lack messages that this one has, of a topic that was deleted there.
        (After a crash, it may have had them: then only a queue counts that has nothing else.)
        """
        return any(
            queue.cut_from >= log_end and not (crashed and queue.next_index > queue.begin_index)
            for queue in self._queues.values()
        )

    # -- use -------------------------------------------------------------------------------------

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, for reading now; None if no message was ever put into it."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            self._touch((topic, queue_id), queue)
        return queue

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """Its begin index and next index, without the use that keeps files open; None as of L{get}."""
        queue = self._queues.get((topic, queue_id))
        return None if queue is None else (queue.begin_index, queue.next_index)

    def keys(self) -> list[QueueKey]:
        """Topic and number of every queue."""
        return list(self._queues)

    def last(self) -> tuple[ConsumeQueue, int] | None:
        """The queue that has the last message of the log, and its index there; None: there is no message."""
        queue = max(self._queues.values(), key=lambda one: one.log_end, default=None)
        return None if queue is None or queue.is_empty else (queue, queue.next_index - 1)

    def topics(self) -> set[str]:
        """The topics that have queues."""
        return {topic for topic, _ in self._queues}

    def put(self, topic: str, queue_id: int, index: int, offset: int, size: int, tags_code: int) -> bool:
        """
        Put the unit of a record; see L{ConsumeQueue.put}.

        @return: False if the queue had it already, or if topic or queue number are invalid.
        """
        key = (topic, queue_id)
        queue = self._touched.get(key)
        if queue is None:
            queue = self._queues.get(key)
            if queue is None:
                if not is_topic(topic) or queue_id < 0 or index < 0:
                    self.refused += 1
                    return False
                queue = ConsumeQueue(
                    self._disk, self._path(topic, queue_id), self._config.mapped_file_size_consume_queue
                )
                self._own(key, queue)
            self._touch(key, queue)
        self.unwritten += 1
        return queue.put(index, offset, size, tags_code)

    def go_on_from(self, key: QueueKey, index: int) -> None:
        """
        The next message of a queue has this index at least, though the log has none of its messages. A queue
        that has some, or is as far, stays as it is.

        @param key: topic and number of the queue; nothing happens if they are invalid.
        @raise OSError: deleting the files of messages that the log no longer has failed.
        """
        queue = self._queues.get(key)
        if queue is None:
            if not is_topic(key[0]) or key[1] < 0:
                return
            queue = ConsumeQueue(self._disk, self._path(*key), self._config.mapped_file_size_consume_queue)
        if queue.is_empty and queue.next_index < index:
            queue.begin(index)
            self._own(key, queue)
            self._touch(key, queue)
            self._note(key, queue)

    def write(self) -> None:
        """
        Write the pending units of every queue: RocketMQ assumes that all queues are complete up to the last
        record of any of them.

        @raise OSError: writing failed.
        """
        for queue in self._touched.values():
            if queue.has_pending:
                queue.write()
        self.unwritten = 0

    @property
    def log_end(self) -> int:
        """End of the last record that any queue has."""
        return max((queue.log_end for queue in self._queues.values()), default=0)

    @property
    def misplaced(self) -> int:
        """Count of records at another index than their own."""
        return sum(queue.misplaced for queue in self._queues.values())

    def next_indexes(self) -> dict[QueueKey, int]:
        """The index of the next message of every queue."""
        return {key: queue.next_index for key, queue in self._queues.items()}

    def cut(self, log_end: int) -> None:
        """Drop the units of records from C{log_end} on. @raise OSError: cutting failed."""
        for key, queue in self._queues.items():
            if queue.log_end > log_end:
                self._touch(key, queue)
                queue.cut(log_end)
                self._note(key, queue)

    def expire(self, log_begin: int) -> None:
        """Delete the files of records before C{log_begin}. @raise OSError: deleting failed."""
        for key, queue in self._queues.items():
            queue.expire(log_begin)
            self._note(key, queue)
            self._touch(key, queue)

    def destroy(self, topic: str | None = None) -> None:
        """
        Delete the queues of a topic, or all of them. @raise OSError: deleting failed.
        """
        gone = frozenset(key for key in self._queues if topic is None or key[0] == topic)
        self._list.take_out(gone)
        self._is_list_old = True
        for key in sorted(gone):
            self._listed.pop(key, None)
            self._queues.pop(key).destroy()
            self._touched.pop(key, None)
            self._closed.pop(key, None)

    # -- flush -----------------------------------------------------------------------------------

    def prepare_flush(self) -> list[Callable[[], None]]:
        """
        Write the pending units; return the steps that bring everything to stable storage.

        @return: the steps; run them in this order, in any thread, then call L{finish_flush}.
        @raise OSError: writing failed; there is no flush, and the next one does all of it.
        """
        assert not self._flushing, "a flush is under way"
        closed, self._closed = self._closed, {}
        try:
            return self._take_dirty((*self._touched.items(), *closed.items()))
        except OSError:
            self._closed = closed
            self._end_flush(has_failed=True)
            raise

    def _take_dirty(self, queues: Iterable[tuple[QueueKey, ConsumeQueue]]) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = []
        for key, queue in queues:
            if queue.is_clean:
                continue
            files, paths, directory = queue.take_dirty()
            steps += [file.datasync for file in files]
            steps += [partial(_sync_closed, self._disk, path) for path in paths]
            if directory:
                steps.append(lambda path=directory: self._disk.sync_directory(path))  # type: ignore[misc]
            self._flushing.append(queue)
            self._note(key, queue)
        if self._is_list_old:
            self._is_list_old = False
            steps.append(self._list.writing(dict(self._listed)))
        return steps

    def _note(self, key: QueueKey, queue: ConsumeQueue) -> None:
        """The next flush, which makes all units durable before, lists the queue as it is now."""
        listed = queue.listed
        if listed != self._listed.get(key, _NEW):
            self._listed[key] = listed
            self._is_list_old = True

    def finish_flush(self, *, has_failed: bool = False) -> None:
        """The steps have ended. @param has_failed: not all of them ran: the next flush repeats them all."""
        self._end_flush(has_failed=has_failed)
        self._is_list_old = self._is_list_old or self._list.is_late
        self._shed(len(self._touched))

    def _end_flush(self, *, has_failed: bool) -> None:
        flushed, self._flushing = self._flushing, []
        for queue in flushed:
            queue.release()
            if has_failed:
                queue.flush_failed()
        if has_failed:
            self._is_list_old = True
            touched = set(self._touched.values())
            self._closed.update({key: queue for key, queue in self._queues.items()
                                 if queue in flushed and queue not in touched})

    def close(self) -> None:
        """Release all handles without writing."""
        for queue in self._queues.values():
            queue.close()
        self._touched.clear()
        self._closed.clear()


def _sync_closed(disk: Disk, path: str) -> None:
    """Bring the writes of a closed file to stable storage, unless it was deleted in the meantime."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    try:
        file.datasync()
    finally:
        file.close()
