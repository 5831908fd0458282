# -*- test-case-name: tests.storage.test_group_setup -*-
"""
What an operator does to the directory of a member that does not run: begin a new group, join one, or go on
without a majority that is lost for good.

Nothing here talks to other members. Everything holds the directory's lock, so a running member refuses it.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.hints import Hints
from dledger.storage.start.directory import inspect_ledger, lock_ledger
from dledger.storage.start.identity import (
    IDENTITY_NAME,
    Identity,
    begin_identity,
    is_without_records,
    read_identity,
)
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_name import GroupName, is_group_id
from dledger.values.ledger.membership import Membership


@attrs.frozen(kw_only=True)
class MemberSeen:
    """
    A directory as it is recorded. Indexes are inclusive, -1 for none.

    @ivar identity: None if the directory records none (Java's).
    @ivar has_ledger: whether there is any file of a ledger.
    @ivar end_index, committed_index: of the last mark; a start may find more.
    @ivar repair_end_index: -1, or the end that the ledger must reach again.
    """

    path: str
    identity: Identity | None
    has_ledger: bool
    end_index: int
    committed_index: int
    repair_end_index: int


def seen_member(config: DLedgerConfig, disk: Disk) -> MemberSeen:
    """
    Look at C{config.self_path}; nothing is changed.

    @raise DirectoryError: it must not be opened as it is.
    """
    directory = inspect_ledger(config, Hints(disk))
    found = read_identity(disk, f"{config.self_path}/{IDENTITY_NAME}")
    return MemberSeen(
        path=config.self_path, identity=None if found is None else found[1],
        has_ledger=directory.has_files or not is_without_records(config, disk),
        end_index=-1 if directory.mark is None else directory.mark.recorded_end_index,
        committed_index=directory.committed_index, repair_end_index=directory.repair_end_index,
    )


def check_group_id(text: str) -> str:
    """@raise ValueError: C{text} is not the id of a group."""
    if not is_group_id(text):
        raise ValueError(f"{text[:64]!r} is not the id of a group: 32 digits 0 to 9, a to f")
    return text


def prepare_member(config: DLedgerConfig, disk: Disk, name: GroupName) -> None:
    """
    Make the directory of a member that has never run.

    @param config: with C{bootstrap} the member votes as one of a new group; else it is unsure until it holds
        all that a leader has.
    @param name: the id of the group: known, proposed, or none.
    @raise DirectoryError: there is a member's directory already; nothing has changed.
    @raise OSError: it could not be written.
    """
    _check_unused(config, disk)
    lock = lock_ledger(config, disk)
    try:
        _check_unused(config, disk)  # before we held the lock, a member may have run here
        begin_identity(config, disk, "", name)
    finally:
        lock.close()


def _check_unused(config: DLedgerConfig, disk: Disk) -> None:
    seen = seen_member(config, disk)
    if seen.identity is None and not seen.has_ledger:
        return
    whose = "a ledger" if seen.identity is None else (
        f"member {seen.identity.member_id} of group {seen.identity.group}")
    raise DirectoryError(f"{config.self_path} holds {whose} already: take another --store, or move it away")


def survivor(config: DLedgerConfig, disk: Disk) -> MemberSeen:
    """
    The member whose ledger can become that of a new group; nothing is changed.

    @raise DirectoryError: there is no ledger, or it must not be opened.
    """
    seen = seen_member(config, disk)
    if not seen.has_ledger:
        raise DirectoryError(
            f"{config.self_path} holds no ledger: to begin a new group, see dledger group create"
        )
    return seen


def force_new_group(config: DLedgerConfig, disk: Disk, name: GroupName) -> int:
    """
    Make this member's ledger, as it is, that of a new group.

    What only lost members held is given up. The member is sure, and owes nothing; damaged entries that no
    member of the new group has stay damaged.

    @param config: C{peers} are the members of the new group.
    @param name: its id, known.
    @return: the last index of the ledger.
    @raise DirectoryError: there is no ledger, or it must not be opened; nothing has changed.
    @raise StoreError: a file cannot be read or written.
    """
    survivor(config, disk)
    trusting = attrs.evolve(config, accept_new_members=True, accept_unclean_start=True)
    store = FileStore.open(trusting, disk)
    store.identity.record_group(name)
    if store.repair_end_index >= 0:
        store.end_repair()
    if store.identity.is_listed:  # the log names the members: it has to report the new ones
        store.append_configuration(Membership(voters=config.peers), max(store.ledger_end_term, 0))
    end_index = store.ledger_end_index
    store.clean_close()
    return end_index
