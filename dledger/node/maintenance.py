# -*- test-case-name: tests.node.test_maintenance -*-
"""
House-keeping of a member: its keys, the tokens of its clients, and its store. The room of the store is
measured, its expired files are deleted, its closed ones are read again.

It never ends the member: what failed is logged once, and tried again at the next time. Only a failed write
breaks the store, which then says so itself.
"""

from __future__ import annotations

from twisted.logger import Logger

from dledger.base.disk.disk import DiskSpace
from dledger.base.tls.key_watch import KeyWatch
from dledger.core.driver import Terms
from dledger.core.state import inputs as ev
from dledger.core.status import MemberStatus
from dledger.node.handlers import Handlers
from dledger.node.host import MemberHost
from dledger.node.reporting.status import Counters, StoreStatus, bytes_behind
from dledger.node.work.aside_watch import AsideWatch
from dledger.node.work.inside import MemberInside
from dledger.node.work.scrubbing import Scrubbing
from dledger.storage.store.file_store import FileStore
from dledger.storage.store.store_room import DeletedSegment
from dledger.values.ledger.config import DLedgerConfig

#: Seconds between two checks of disk space and expired files.
MAINTENANCE_INTERVAL_S = 10.0

#: The same while the disk is full.
FULL_CHECK_INTERVAL_S = 1.0


class FileMaintenance:
    """
    @ivar begin_moved: the file that was deleted last, and why; empty: none was.
    """

    def __init__(self, self_id: str, store: FileStore, counters: Counters, log: Logger) -> None:
        """@param log: of the member."""
        self._self_id = self_id
        self._store = store
        self._counters = counters
        self._log = log
        self._trouble = ""
        self.begin_moved = ""

    def keep(self, clock: tuple[float, int], *, keep_from_index: int, drop_to_index: int) -> None:
        """
        Do what is due now.

        @param clock: seconds since 1970, and the local hour.
        @raise StoreError: the store is broken.
        """
        trouble, deleted = "", list[DeletedSegment]()
        try:
            deleted = self._store.maintenance(
                *clock, keep_from_index=keep_from_index, drop_to_index=drop_to_index
            )
        except OSError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            self._log.error("house-keeping: {reason}; it is tried again", reason=trouble,
                            self_id=self._self_id)
        self._trouble = trouble
        for path, why in self._store.hint_news().items():
            self._log.warn("hint {path}: {reason}", path=path, reason=why, self_id=self._self_id)
        for one in deleted:
            self.begin_moved = f"{one.path} deleted: {one.why}"
            self._log.info(
                "segment {path} deleted: {why}; the ledger begins at {begin_index} now", path=one.path,
                why=one.why, begin_index=one.begin_index, self_id=self._self_id,
            )
        self._counters.segments_deleted += len(deleted)


class MemberMaintenance:
    """
    Everything that a member does for its files and keys from time to time.

    Invariant: the next house-keeping, the next checkpoint and the next scrub each have their own time.
    """

    def __init__(
        self, inside: MemberInside, host: MemberHost, terms: Terms, handlers: Handlers, key_watch: KeyWatch,
        log: Logger,
    ) -> None:
        """@param log: of the member."""
        config, store = inside.config, inside.store
        self._inside = inside
        self._host = host
        self._terms = terms
        self._handlers = handlers
        self._key_watch = key_watch
        self._maintenance = FileMaintenance(config.self_id, store, inside.counters, log)
        self._aside = AsideWatch(store, log, config.self_id)
        self._scrubbing = Scrubbing(config, store, inside.seconds, inside.counters, log)
        self._space: DiskSpace | None = None
        self._next_s = 0.0
        self._check_point_s = config.check_point_interval / 1000
        self._next_check_point_s = inside.seconds() + self._check_point_s

    @property
    def tls_expires_s(self) -> float:
        """The end of the certificate, seconds since 1970; -1 without TLS."""
        return self._key_watch.expires_s

    def tick(self, now_s: float) -> None:
        """Time passed: do what is due. @param now_s: of the monotonic clock."""
        inside = self._inside
        if now_s >= self._next_check_point_s:
            self._next_check_point_s = now_s + self._check_point_s
            inside.with_store(inside.store.check_point)
            inside.with_store(self._terms.check_point)
        if inside.store.disk_full:
            self._next_s = min(self._next_s, now_s + FULL_CHECK_INTERVAL_S)
        if now_s >= self._next_s:
            self.keep()
        if now_s >= self._scrubbing.next_s:
            inside.with_store(self._scrubbing.step)

    def reread(self, config: DLedgerConfig) -> None:
        """The options were read again: work by them, and look at keys and tokens at once."""
        self._scrubbing.reread(config)
        self._handlers.readers.reread(config)
        self.keep()

    def keep(self) -> None:
        """Do what is due now."""
        self._next_s = self._inside.seconds() + MAINTENANCE_INTERVAL_S
        self._key_watch.check(self._host.wall_clock()[0])
        self._handlers.router.access.refresh()
        self._inside.with_store(self._keep_store)

    def _keep_store(self) -> None:
        self._maintenance.keep(
            self._host.wall_clock(), keep_from_index=self._handlers.keep_from_index(),
            drop_to_index=self._handlers.drop_to_index(),
        )
        self._aside.look()
        is_full = self._inside.store.disk_full
        if is_full != self._inside.core.is_full:
            self._inside.feed(ev.RoomChecked(is_full))
        if self._host.disk_space is not None:
            self._space = self._host.disk_space()

    def status(self, member: MemberStatus) -> StoreStatus:
        """The files of the member. @param member: the core's status at the same moment."""
        config, store, space = self._inside.config, self._inside.store, self._space
        return StoreStatus(
            path=config.self_path,
            unsynced_bytes=bytes_behind(store, member.flushed_index),
            free_bytes=space.usable if space is not None else -1,
            total_bytes=space.total if space is not None else -1,
            is_full=store.disk_full or bool(self._inside.driver.why_mute),
            set_aside_files=max(self._aside.files, 0), set_aside_bytes=self._aside.size,
            begin_moved=self._maintenance.begin_moved,
        )
