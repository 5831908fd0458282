# -*- test-case-name: tests.storage.test_identity -*-
"""
C{identity}: whose directory this is, and what its last process promised.

A file of ours beside Java's, with two slots (L{dledger.base.disk.two_slots}), written in place. A directory
without it (Java's, or of an earlier version) is adopted.

With C{async} flushing a loss of power takes entries that were acknowledged. A member that was not closed in
order and wakes under another boot of its machine may have lost some: it is I{unsure} until it holds all that
a leader has, see L{dledger.core.leaders_word}. That is recorded here, and survives further restarts.
"""

from __future__ import annotations

import attrs
from construct import Int32sb, Int64sb, Struct

from dledger.base.disk.disk import Disk
from dledger.base.disk.two_slots import SlotFile, SlotForm
from dledger.base.errors import DirectoryError
from dledger.config import DLedgerConfig

IDENTITY_NAME = "identity"

IDENTITY_DECLARATION = Struct(
    "magic" / Int32sb,
    "version" / Int32sb,
    "generation" / Int64sb,  # grows with every write
    "was_async" / Int32sb,  # 1: the last process acknowledged entries before they were flushed
    "unsure" / Int32sb,  # 1: entries that were acknowledged may be lost
    "has_terms" / Int32sb,  # 1: term and vote were recorded once, so their files exist
)


@attrs.frozen(kw_only=True)
class Identity:
    """
    Content of a slot.

    @ivar boot_id: of the machine's boot under which the last process ran; empty if not known.
    @ivar was_async, unsure, has_terms: 0 or 1, see the declaration.
    """

    group: str
    member_id: str
    boot_id: str
    was_async: int = 0
    unsure: int = 0
    has_terms: int = 0


_FORM = SlotForm(
    Identity, IDENTITY_DECLARATION, magic=0x444C4944, version=1,  # "DLID"
    unsound="neither slot is sound, so it is not known which member's files these are. If they are this "
    "member's, remove this one file: the directory is adopted then",
    texts=("group", "member_id", "boot_id"),
)
read_identity = _FORM.read


def decode_identity(data: bytes) -> Identity | None:
    """Content of the file: its newest sound slot; None without one."""
    found = _FORM.newest(data)
    return None if found is None else found[1]


class IdentityFile(SlotFile[Identity]):
    """The open file."""

    form = _FORM


def recorded_identity(config: DLedgerConfig, disk: Disk) -> Identity | None:
    """
    What the directory records; None if it records nothing. Nothing is changed.

    @raise DirectoryError: the files are another group's or another member's, or the file is damaged.
    """
    path = f"{config.self_path}/{IDENTITY_NAME}"
    found = read_identity(disk, path)
    if found is None:
        return None
    identity = found[1]
    for what, option, recorded, given in (
        ("group", "--group", identity.group, config.group),
        ("member", "--node-id", identity.member_id, config.self_id),
    ):
        if recorded != given:
            raise DirectoryError(
                f"{config.self_path} belongs to {what} {recorded!r}, but is opened as {what} {given!r}: "
                f"start with {option} {recorded}, or give this member another directory. If the {what} was "
                f"renamed on every member, remove {path}; then the directory is adopted"
            )
    return identity


def identity_now(
    config: DLedgerConfig, recorded: Identity | None, boot_id: str, *, is_clean: bool
) -> Identity:
    """
    What this process records at its start.

    @param is_clean: the last process closed the ledger in order.
    """
    unsure = 0
    if recorded is not None and not config.accept_unclean_start:
        lost_power = bool(recorded.boot_id and boot_id) and recorded.boot_id != boot_id
        unsure = int(bool(recorded.unsure) or (bool(recorded.was_async) and lost_power and not is_clean))
    return Identity(group=config.group, member_id=config.self_id, boot_id=boot_id,
                    was_async=int(not config.is_sync), unsure=unsure,
                    has_terms=recorded.has_terms if recorded is not None else 0)
