# -*- test-case-name: tests.machine.test_runner -*-
"""How snapshots lie to the log of their member: of the same log, within it, and usable."""

from __future__ import annotations

from dledger.node.node import Node
from dledger.storage.files.snapshot_file import SnapshotHead, SnapshotRefused
from dledger.values.errors import DamagedEntryError, DLedgerError
from protocols.wire.ledger.entry import iterate_records


def check_base(entries: Node, head: SnapshotHead) -> bool:
    """
    Whether it is known that a snapshot is of this log.

    @raise SnapshotRefused: it is of another one.
    """
    try:
        found = entries.read_committed(head.index, max_bytes=1)
    except DLedgerError:
        return True  # expired, or damaged: nothing here can say
    if found is None:
        return False
    ((entry, _),) = iterate_records(found)
    chain_crc = entry.chain_crc if head.chain_crc else 0
    if (entry.term, chain_crc) != (head.term, head.chain_crc if entry.chain_crc else 0):
        raise SnapshotRefused(
            f"the snapshot after the entry {head.index} is of another log: there the entry is of term "
            f"{head.term} and has the chain checksum {head.chain_crc}, here {entry.term} and "
            f"{entry.chain_crc}"
        )
    return True


def lowest_usable(entries: Node, applied_index: int) -> int:
    """The oldest snapshot after which the log goes on, and which is newer than the state."""
    lowest = applied_index + 1
    try:
        entries.read_committed(lowest, max_bytes=1)
    except DLedgerError as error:
        begin_index = error.facts.get("ledger_begin_index")
        if isinstance(begin_index, int):
            return max(lowest, begin_index - 1)
    return lowest


def is_reached(entries: Node, head: SnapshotHead) -> bool:
    """
    Whether the log has come to the last entry of a snapshot, so that both can be compared.

    Where the log begins just after it, nothing here can say whether they fit. A member keeps the last entry
    of its snapshots, so that is a log of another member.
    """
    try:
        return entries.read_committed(head.index, max_bytes=1) is not None
    except DamagedEntryError:
        return False  # a peer gives it back
    except DLedgerError:
        return True


def ahead_of_log(entries: Node) -> str:
    """Why a snapshot is refused whose last entry a settled log does not have."""
    return (
        f"it is ahead of the log, which ends at {entries.committed_index}: a loss of power has taken the "
        "end of the log, and with it entries that this snapshot has. Nothing is to be done; the file stays, "
        "and may go if the log is as it should be"
    )


def waits_for_log(entries: Node, head: SnapshotHead) -> str:
    """What a machine waits for, with a snapshot whose last entry is not known to be committed."""
    return (
        f"its snapshot is after the entry {head.index}, the log is known to be committed up to "
        f"{entries.committed_index}: it waits until both can be compared"
    )


def lacks_entries(error: DLedgerError, applied_index: int) -> str:
    """Why a machine cannot go on whose next entry has expired, where nobody can send a snapshot."""
    return (
        f"the log begins at {error.facts.get('ledger_begin_index')}, the state ends at {applied_index}: the "
        "entries between are gone from this member. Copy a snapshot of another member into its directory "
        "machine, or give this member the whole log again"
    )
