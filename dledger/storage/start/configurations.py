# -*- test-case-name: tests.storage.test_configurations -*-
"""
The configuration entries of a ledger, listed beside it in C{members}, so that a start need not read the log.

Rule 1: the file lists an entry, durably, before the ledger holds it. So every configuration entry of the
ledger is listed; one that is listed and not in the ledger (a crash in between, a lost tail) is dropped at the
next start. Index and term identify an entry, here and on every other member.
Rule 2: an entry is dropped from the list after the ledger has been cut below it.
Rule 3: without a configuration entry there is no file, and the start list of the options counts. A member
that joins a group has a file with an empty membership of index -1.
Rule 4: while there is a file, the identity of the directory says so: from before the first entry is in the
ledger until the file is to be removed. So a start without the file is refused, if it was lost.

Rule 5: C{members.copy} is written before C{members}, and both before the ledger. So each of them lists every
entry of the ledger, and one that is sound is enough.

The files are replaced as a whole, by rename. They have checksums: a start is refused if both are damaged, and
writes a damaged one again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence

from construct import Int32sb, Int32ub, Struct

from dledger.base.disk.disk import Disk, is_no_room
from dledger.base.disk.guard import DiskGuard
from dledger.base.disk.unreadable import read_copy
from dledger.storage.start.open_ledger import OpenLedger
from dledger.values.errors import DamagedEntryError, DirectoryError, DLedgerError, StoreError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.membership import Membership
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import as_int, as_list, as_object, read_object, write_object
from protocols.wire.layout import struct_of
from protocols.wire.ledger.memberships import member_lists
from protocols.wire.ledger.own.configuration import decode_configuration

MEMBERS_NAME = "members"
#: After the path of the list, for its copy.
COPY_SUFFIX = ".copy"
#: For people: the way out if the file is lost or damaged.
WITHOUT_LIST = (
    "Put the file back (members.copy beside it has the same), not an older one; or give the member an empty "
    "directory: remove it with dledger "
    "member remove, start it with join=true, and add it again"
)
#: Memberships that are kept, at most; the oldest go. All but the last few are committed long since.
KEPT_MAX = 64

MEMBERS_DECLARATION = Struct(
    "magic" / Int32sb,  # "DLMB"
    "version" / Int32sb,
    "crc" / Int32ub,  # CRC-32 of the text, JSON, which follows
)
_HEADER = struct_of(MEMBERS_DECLARATION)
_MAGIC, _VERSION = 0x444C4D42, 1

#: A configuration entry in a batch: its index, its term, its body.
ConfigurationFound = tuple[int, int, bytes]

#: The membership of a member that joins a group: it knows no member yet.
JOINING = Membership(voters={})


def read_memberships(disk: Disk, path: str) -> tuple[Membership, ...]:
    """
    The memberships in the file, by index, or in its copy if it is damaged or missing; none without both.

    @raise DirectoryError: the file is damaged, and so is its copy, or one is of a later version.
    @raise OSError: it cannot be read.
    """
    copy = path + COPY_SUFFIX
    if not disk.exists(path):
        return _memberships_in(copy, read_copy(disk, copy)) if disk.exists(copy) else ()
    try:
        return _memberships_in(path, read_copy(disk, path))
    except DirectoryError:
        if not disk.exists(copy):
            raise
        return _memberships_in(copy, read_copy(disk, copy))


def has_list(disk: Disk, path: str) -> bool:
    """Whether there is a file, or a copy of it."""
    return disk.exists(path) or disk.exists(path + COPY_SUFFIX)


def check_memberships(path: str, data: bytes) -> None:
    """@raise DirectoryError: a file of these bytes is damaged, or of a later version."""
    _memberships_in(path, data)


def _memberships_in(path: str, data: bytes) -> tuple[Membership, ...]:
    try:
        magic, version, crc = _HEADER.unpack_from(data)
        text = data[_HEADER.size :]
        if magic != _MAGIC or crc32(text) != crc:
            raise ValueError("its checksum does not fit")
        if version != _VERSION:
            raise ValueError(f"version={version}, this program reads {_VERSION}")
        listed = as_list(read_object(text)["memberships"])
        return tuple(
            Membership(index=as_int(one["index"]), term=as_int(one["term"]), **member_lists(one)._asdict())
            for one in map(as_object, listed)
        )
    except (ValueError, KeyError, TypeError, BodyError, struct.error) as error:
        raise DirectoryError(
            f"{path} is damaged ({error}): it names the members of the group, and without it this "
            f"member could count a majority of the wrong ones. {WITHOUT_LIST}"
        ) from error


def encode_memberships(memberships: Iterable[Membership]) -> bytes:
    """The content of the file."""
    text = write_object({"memberships": [
        {"index": one.index, "learners": dict(one.learners), "term": one.term, "voters": dict(one.voters)}
        for one in memberships
    ]})
    return _HEADER.pack(_MAGIC, _VERSION, crc32(text)) + text


def begin_joining(config: DLedgerConfig, disk: Disk, *, is_new: bool) -> None:
    """
    Record that a new directory joins a group, if the options say so; before anything else is recorded there.

    @param is_new: the directory has never held a member's files.
    @raise DirectoryError: it holds those of a member that the start list names.
    @raise OSError: it could not be recorded.
    """
    path = f"{config.self_path}/{MEMBERS_NAME}"
    if not config.join or has_list(disk, path):
        return
    if not is_new:
        raise DirectoryError(
            f"{config.self_path} belongs to a member of the start list, but is opened with join=true, which "
            "is for an empty directory: start without it, or give the new member another directory"
        )
    disk.makedirs(config.self_path)
    disk.write_file(path, encode_memberships((JOINING,)))


class ConfigurationList:
    """
    Invariant: C{known} is in order of indexes, which differ; the last one is in force.

    @ivar current: the membership in force; None: the start list.
    """

    def __init__(
        self, disk: Disk, path: str, known: tuple[Membership, ...],
        guard: DiskGuard, record_listed: Callable[[bool], None],
    ) -> None:
        """@param record_listed: records durably whether there is a file. @raise StoreError: that failed."""
        self._disk = disk
        self._path = path
        self._known = known
        self._guard = guard
        self._record_listed = record_listed
        self.current = known[-1] if known else None

    @property
    def known(self) -> tuple[Membership, ...]:
        """All that are listed."""
        return self._known

    def keep_those_in(self, ledger: OpenLedger, term_of: Callable[[int], int]) -> None:
        """
        Drop what the ledger, which was just opened, does not hold.

        @param term_of: the term of an entry of the ledger.
        @raise StoreError: the file could not be written.
        """
        def is_held(one: Membership) -> bool:
            # (Committed entries are never cut; the index unit of one may be damaged.)
            if one.index <= max(ledger.committed_index, ledger.begin_index - 1):
                return True
            try:
                return one.index <= ledger.end_index and term_of(one.index) == one.term
            except DamagedEntryError:
                return True

        self._save(tuple(filter(is_held, self._known)))
        if self._known:
            content = encode_memberships(self._known)
            with self._guard.storing("writing the list of members failed"):
                for path in (self._path + COPY_SUFFIX, self._path):
                    if not self._disk.exists(path) or read_copy(self._disk, path) != content:
                        self._write(path, content)

    def _write(self, path: str, content: bytes) -> None:
        """Write one of the two files again; without room it stays as it is until the next start."""
        try:
            self._disk.write_file(path, content)
        except OSError as error:
            if not is_no_room(error):
                raise

    def note(self, found: Iterable[ConfigurationFound]) -> None:
        """
        List entries that are about to be written; durable on return.

        @raise DLedgerError: INCONSISTENT_STATE: one cannot be read; DISK_FULL; nothing has changed.
        @raise StoreError: the file could not be written.
        """
        known = {one.index: one for one in self._known}
        try:
            for index, term, body in found:
                known[index] = Membership(index=index, term=term, **decode_configuration(body)._asdict())
        except (WireError, ValueError) as error:
            raise DLedgerError(ResponseCode.INCONSISTENT_STATE, index=index, reason=str(error)) from None
        self._save(tuple(known[index] for index in sorted(known))[-KEPT_MAX:], is_new=True)

    def note_after_cut(self, found: Sequence[ConfigurationFound]) -> None:
        """As L{note}, when the ledger is cut already: there is no way back. @raise StoreError: it failed."""
        try:
            if found:
                self.note(found)
        except StoreError:
            raise
        except DLedgerError as error:
            raise self._guard.fail(str(error)) from error

    def cut(self, first_gone: int) -> None:
        """The ledger was cut. @raise StoreError: the file could not be written."""
        if self.current is not None and self.current.index >= first_gone:
            self._save(tuple(one for one in self._known if one.index < first_gone))

    def begin_anew(self, index: int, committed_index: int, reported: tuple[Membership, ...]) -> None:
        """
        The ledger begins at C{index} now: the memberships before are those that a leader reported, and those
        that are committed here.

        @raise StoreError: the file could not be written.
        """
        kept = {one.index: one for one in self._known if one.index <= committed_index}
        kept.update({one.index: one for one in reported if 0 <= one.index < index})
        known = tuple(kept[at] for at in sorted(kept))[-KEPT_MAX:]
        if known != self._known:
            self._save(known)

    def _save(self, known: tuple[Membership, ...], *, is_new: bool = False) -> None:
        if known == self._known:
            return
        with self._guard.storing("writing the list of members failed"):
            try:
                if known:
                    for path in (self._path + COPY_SUFFIX, self._path):
                        self._disk.write_file(path, encode_memberships(known))
                    self._record_listed(True)
                elif has_list(self._disk, self._path):
                    self._record_listed(False)
                    for path in (self._path + COPY_SUFFIX, self._path):
                        if self._disk.exists(path):
                            self._disk.unlink(path)
                    self._disk.sync_directory(self._path.rpartition("/")[0])
            except OSError as error:
                if not is_no_room(error):
                    raise
                if is_new:
                    raise DLedgerError(ResponseCode.DISK_FULL, reason=str(error)) from error
                # Nothing of the ledger is listed wrongly: a start drops what the ledger does not hold.
        self._known = known
        self.current = known[-1] if known else None
