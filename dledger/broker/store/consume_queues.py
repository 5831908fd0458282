# -*- test-case-name: tests.broker.store.test_consume_queues -*-
"""
All consume queues of a store, by topic and number.

Directories are C{TOPIC/QUEUEID}. A topic comes from records that others wrote, so one that is no
directory name of ours is refused; its records stay in the log and are counted.

About L{OPEN_MAX} queues keep files open; those that were not used for longest give theirs back. What has
been written since the last flush keeps them open, too.

Source: DefaultMessageStore.consumeQueueTable (4.9.8), ConsumeQueueStore (5.3.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice

from dledger.base.disk.disk import Disk
from dledger.base.errors import DirectoryError, StoreError
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.broker.store.store_config import StoreConfig

#: Queues that keep their files open.
OPEN_MAX = 512

#: Units that wait to be written, over which they are.
UNWRITTEN_MAX = 8192

#: Queues that are looked at for one to close when another is opened.
_LOOKS = 16

#: What RocketMQ allows in a topic, and no more than a file name holds.
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")

QueueKey = tuple[str, int]


def is_topic(name: str) -> bool:
    """Whether C{name} can be a topic with consume queues."""
    return _TOPIC.fullmatch(name) is not None


class ConsumeQueues:
    """
    Invariant: C{_touched} are the queues with units to write or files to sync, or with files open; the last
    used is the last in it.

    @ivar refused: records whose topic or queue number no queue can have.
    @ivar unwritten: units that were put since the last L{write}: they can be read, but are not in the files.
    """

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self._config = config
        self._disk = disk
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._touched: dict[QueueKey, ConsumeQueue] = {}
        self._flushing: list[ConsumeQueue] = []
        self.refused = self.unwritten = 0

    @classmethod
    def open(
        cls, config: StoreConfig, disk: Disk, *, log_begin: int, log_end: int, is_trusted: bool,
        crashed: bool,
    ) -> ConsumeQueues:
        """
        Every queue there is, as far as its records stand in the log; see L{ConsumeQueue.open}.

        @raise DirectoryError: foreign files.
        @raise StoreError: it cannot be read or cut.
        """
        queues = cls(config, disk)
        try:
            for topic, queue_id in queues._found():
                queue = ConsumeQueue.open(
                    disk, queues._path(topic, queue_id), config.mapped_file_size_consume_queue,
                    log_begin=log_begin, log_end=log_end, is_trusted=is_trusted, crashed=crashed,
                )  # fmt: skip
                queues._queues[topic, queue_id] = queue
                queues._touch((topic, queue_id), queue)
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
                raise DirectoryError(f"{root}/{topic} is no directory of a topic: move it away") from None
            for name in names:
                if not (is_topic(topic) and name.isascii() and name.isdecimal() and len(name) <= 10):
                    raise DirectoryError(f"{root}/{topic}/{name} is no directory of a queue: move it away")
                yield topic, int(name)

    def _path(self, topic: str, queue_id: int) -> str:
        return f"{self._config.consume_queue_path}/{topic}/{queue_id}"

    def _touch(self, key: QueueKey, queue: ConsumeQueue) -> None:
        self._touched.pop(key, None)
        if len(self._touched) >= OPEN_MAX:
            self._shed(_LOOKS)
        self._touched[key] = queue

    def _shed(self, looks: int) -> None:
        """Close the queues not used for longest, but for what a flush needs; look at so many at most."""
        for key in list(islice(self._touched, looks)):
            if len(self._touched) < OPEN_MAX:
                return
            if self._touched[key].is_clean:
                self._touched.pop(key).close()

    # -- use -------------------------------------------------------------------------------------

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, to be read now; None if no message was ever put into it."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            self._touch((topic, queue_id), queue)
        return queue

    def keys(self) -> list[QueueKey]:
        """Topic and number of every queue."""
        return list(self._queues)

    def put(self, topic: str, queue_id: int, index: int, offset: int, size: int, tags_code: int) -> bool:
        """
        Put the unit of a record; see L{ConsumeQueue.put}.

        @return: False if it was there already, or no queue can have it.
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
                self._queues[key] = queue
            self._touch(key, queue)
        self.unwritten += 1
        return queue.put(index, offset, size, tags_code)

    def write(self) -> None:
        """
        Write what waits, in every queue: RocketMQ takes the last record that one of them has for the last
        that all have.

        @raise OSError: it could not be written.
        """
        for queue in self._touched.values():
            if queue.has_pending:
                queue.write()
        self.unwritten = 0

    @property
    def log_end(self) -> int:
        """Behind the last record that any queue has."""
        return max((queue.log_end for queue in self._queues.values()), default=0)

    @property
    def misplaced(self) -> int:
        """Records that stand at another index than they say."""
        return sum(queue.misplaced for queue in self._queues.values())

    def next_indexes(self) -> dict[QueueKey, int]:
        """Of every queue, the index of its next message."""
        return {key: queue.next_index for key, queue in self._queues.items()}

    def cut(self, log_end: int) -> None:
        """Drop the units of records from C{log_end} on. @raise OSError: it failed."""
        for key, queue in self._queues.items():
            if queue.log_end > log_end:
                self._touch(key, queue)
                queue.cut(log_end)

    def expire(self, log_begin: int) -> None:
        """The log begins at C{log_begin} now. @raise OSError: it failed."""
        for key, queue in self._queues.items():
            queue.expire(log_begin)
            self._touch(key, queue)

    def destroy(self, topic: str | None = None) -> None:
        """
        Delete the queues of a topic, or all of them. @raise OSError: it failed.
        """
        for key in self.keys():
            if topic is None or key[0] == topic:
                self._queues.pop(key).destroy()
                self._touched.pop(key, None)

    # -- flush -----------------------------------------------------------------------------------

    def prepare_flush(self) -> list[Callable[[], None]]:
        """
        Write what waits, and hand out the steps that bring everything to stable storage: in any thread, in
        this order. L{finish_flush} follows.

        @raise OSError: it could not be written.
        """
        assert not self._flushing, "a flush is under way"
        steps: list[Callable[[], None]] = []
        for queue in self._touched.values():
            if queue.is_clean:
                continue
            files, directory = queue.take_dirty()
            steps += [file.datasync for file in files]
            if directory:
                steps.append(lambda path=directory: self._disk.sync_directory(path))  # type: ignore[misc]
            self._flushing.append(queue)
        return steps

    def finish_flush(self) -> None:
        """The steps have been run, or have failed."""
        flushed, self._flushing = self._flushing, []
        for queue in flushed:
            queue.release()
        self._shed(len(self._touched))

    def close(self) -> None:
        """Release all handles without writing."""
        for queue in self._queues.values():
            queue.close()
        self._touched.clear()
