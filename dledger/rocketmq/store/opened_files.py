# -*- test-case-name: tests.broker.store.test_store -*-
"""
The parts that a store gets when it is made: its files, locked and recovered, and its surroundings.

Source: DefaultMessageStore.load (4.9.8).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from dledger.base.disk.disk import Disk, File
from dledger.base.disk.hints import Hints
from dledger.base.threads import RunInThread
from dledger.rocketmq.store.index.indexing import KeyIndexing
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.store.queues.reput import Dispatcher
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.message_log import StoredLog
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.values.errors import DirectoryError

STORE_LOCK_NAME = "lock"


#: Where C{dledger ha-resolve --copy-log} puts a log until it is whole.
COPY_NAME = "commitlog.copying"


def lock_store(config: StoreConfig, disk: Disk) -> File:
    """
    Lock the directory of a store; create it if absent.

    @raise DirectoryError: another process has it, it cannot be written, or a log was being copied to it: then
        its own may be set aside, and a start would begin with an empty one.
    """
    root = config.store_path_root_dir
    try:
        disk.makedirs(root)
        lock = disk.lock(f"{root}/{STORE_LOCK_NAME}")
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise DirectoryError(
                f"{root} is in use by another process: stop that one first, or name another "
                "store_path_root_dir"
            ) from error
        raise DirectoryError(f"{root} must be a directory that this user can write to: {error}") from error
    if disk.exists(f"{root}/{COPY_NAME}"):
        lock.close()
        raise DirectoryError(
            f"{root}/{COPY_NAME} is a copy of a log that was interrupted: run dledger ha-resolve --copy-log "
            f"FROM {root} again, with the store of before as FROM, which completes it; or move {COPY_NAME} "
            f"away, and what is in the last set-aside directories of {root} back, to start with the files of "
            "before"
        )
    return lock


def has_files(disk: Disk, path: str) -> bool:
    """Whether a directory is there and has a file. @raise OSError: reading it failed."""
    try:
        return bool(disk.listdir(path))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return False
        raise


AnyLog = TypeVar("AnyLog", bound=StoredLog)


@attrs.frozen(kw_only=True)
class OpenedFiles(Generic[AnyLog]):
    """
    The files of a store, recovered.

    @ivar hints: of the directory.
    @ivar lock: of the directory; released at the end.
    @ivar dispatcher: puts records of the log into the queues.
    @ivar indexing: puts messages into the index by key; None: there is none.
    """

    disk: Disk
    hints: Hints
    lock: File
    log: AnyLog
    queues: ConsumeQueues
    dispatcher: Dispatcher
    indexing: KeyIndexing | None


@attrs.frozen(kw_only=True)
class StoreSurroundings:
    """
    The surroundings of a store: time, threads, and who hears of it.

    @ivar failed: called once if the store has failed; the owner then abandons the store.
    @ivar events: hears of every dispatch; must call C{reput.wake} when the log has grown.
    @ivar is_awaited: whether a reader waits for new messages.
    """

    clock: IReactorTime
    run_in_thread: RunInThread
    failed: Callable[[Failure], None]
    events: BrokerEvents
    is_awaited: Callable[[], bool]
