# -*- test-case-name: tests.storage.test_machine_copy -*-
"""
The snapshots of the state machine that a backup or an archive holds beside the log, as its manifest lists
them.

    machine/snapshot-<index>-<term>    as the member has it, see L{dledger.storage.files.snapshot_file}

Rule 1: a snapshot is I{usable} if the log beside it goes on after its last entry, and reaches that entry.
Rule 2: at most L{KEPT} are listed: the newest usable one, and one that the log has not reached yet. That one
becomes usable by a later run; an archive, whose log ends with a closed segment, may have no other.
"""

from __future__ import annotations

import re

import attrs

from dledger.storage.manifests.document import MalformedManifest, digest_in, field_in, place_in
from protocols.wire.fastjson import JsonObject
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX

#: Directory of the snapshots, in a member's directory, a backup and an archive.
MACHINE_DIRECTORY = "machine"
#: Most snapshots in a manifest.
KEPT = 2
_NAME = re.compile(r"snapshot-(\d{1,19})-(\d{1,19})")


def snapshot_name(index: int, term: int) -> str:
    """Path of a snapshot, below the directory of a member, a backup or an archive."""
    return f"{MACHINE_DIRECTORY}/snapshot-{index}-{term}"


def parsed_snapshot_name(name: str) -> tuple[int, int] | None:
    """Index and term in the name of a file in L{MACHINE_DIRECTORY}; None: it is no snapshot's."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


@attrs.frozen(kw_only=True)
class KeptSnapshot:
    """
    A snapshot that is listed.

    @ivar index, term, chain_crc: of the last entry in the state; C{chain_crc} 0 if that has none.
    @ivar machine, machine_version: name and version of the machine.
    @ivar size: of the file, in bytes.
    @ivar sha256: of the file, in hexadecimal digits.
    """

    index: int
    term: int
    chain_crc: int
    machine: str
    machine_version: int
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """Path of the file, below the directory of the backup."""
        return snapshot_name(self.index, self.term)


@attrs.frozen
class KeptMachine:
    """
    The group has a state machine.

    @ivar snapshots: by rising index; at most L{KEPT}.
    """

    snapshots: tuple[KeptSnapshot, ...] = ()

    def usable(self, begin_index: int, end_index: int) -> KeptSnapshot | None:
        """The newest one from which a machine can go on with these entries; None: there is none."""
        fitting = [one for one in self.snapshots if begin_index - 1 <= one.index <= end_index]
        return fitting[-1] if fitting else None


def usable_snapshot(
    machine: KeptMachine | None, begin_index: int, end_index: int
) -> KeptSnapshot | None:
    """See L{KeptMachine.usable}; None, too, if the group has no machine."""
    return None if machine is None else machine.usable(begin_index, end_index)


def why_no_start(machine: KeptMachine | None, begin_index: int, end_index: int) -> str:
    """
    Why a state machine could not start from these entries and snapshots; empty if it could, or there is none.
    """
    if machine is None or begin_index <= 0 or machine.usable(begin_index, end_index) is not None:
        return ""
    later = [one.index for one in machine.snapshots if one.index > end_index]
    has = (f"its snapshot is after entry {later[0]}, which the log in it does not reach yet" if later
           else "it has no snapshot of the machine that these entries continue")
    return (f"the group has a state machine, and the log begins with entry {begin_index}, but {has}: a "
            "machine could not start from it")


def machine_in(content: JsonObject) -> KeptMachine | None:
    """The field C{machine} of a manifest. @raise ValueError: it is missing or malformed."""
    found = content.get("machine", "")
    if found is None:
        return None
    snapshots = found.get("snapshots") if isinstance(found, dict) else None
    if not isinstance(snapshots, list) or len(snapshots) > KEPT:
        raise MalformedManifest(f"machine is {str(found)[:100]!r}")
    kept = tuple(map(_snapshot_in, snapshots))
    if any(after.index <= before.index for before, after in zip(kept, kept[1:], strict=False)):
        raise MalformedManifest("its snapshots are not in order")
    return KeptMachine(kept)


def _snapshot_in(found: object) -> KeptSnapshot:
    if not isinstance(found, dict):
        raise MalformedManifest(f"a snapshot is {found!r}")
    return KeptSnapshot(
        index=place_in(found, "index", INDEX_MAX), term=place_in(found, "term", INDEX_MAX),
        chain_crc=field_in(found, "chain_crc", int), machine=field_in(found, "machine", str),
        machine_version=field_in(found, "machine_version", int),
        size=place_in(found, "size", POSITION_MAX), sha256=digest_in(found, "sha256"),
    )
