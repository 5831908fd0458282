# -*- test-case-name: tests.storage.test_machine_copy -*-
"""
The snapshots that an archive holds beside the log, as its manifest lists them: of the state machine, and of
the state of the group (L{dledger.values.ledger.group_state})::

    machine/snapshot-<index>-<term>    of the machine, as the member has it
    machine/group-<index>-<term>       of the group: a snapshot of a machine without a name

Both have the format of L{dledger.storage.files.snapshot_file}.

Rule 1: a snapshot is I{usable} if the log beside it goes on after its last entry, and reaches that entry.
Rule 2: at most L{KEPT} are listed: the newest usable one, and one that the log has not reached yet. That one
becomes usable by a later run; an archive whose log ends with a closed segment may have no other.
"""

from __future__ import annotations

import re

import attrs

from dledger.storage.manifests.document import MalformedManifest, digest_in, field_in, place_in
from protocols.wire.fastjson import JsonObject
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX

#: Directory of the snapshots, in an archive. A member has those of its machine there.
MACHINE_DIRECTORY = "machine"
#: Most snapshots in a manifest.
KEPT = 2
_NAME = re.compile(r"(?:snapshot|group)-(\d{1,19})-(\d{1,19})")


def snapshot_name(index: int, term: int, *, is_of_group: bool = False) -> str:
    """Path of a snapshot, below the directory of a member or an archive."""
    return f"{MACHINE_DIRECTORY}/{'group' if is_of_group else 'snapshot'}-{index}-{term}"


def parsed_snapshot_name(name: str) -> tuple[int, int] | None:
    """Index and term in the name of a file in L{MACHINE_DIRECTORY}; None: it is no snapshot's."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


@attrs.frozen(kw_only=True)
class KeptSnapshot:
    """
    A snapshot that is listed.

    @ivar index, term, chain_crc: of the last entry in the state; C{chain_crc} 0 if that has none.
    @ivar machine, machine_version: name and version of the machine; the name is empty for the state of the
        group.
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
        """Path of the file, below the place of the archive."""
        return snapshot_name(self.index, self.term, is_of_group=not self.machine)


@attrs.frozen
class KeptMachine:
    """
    The group has a state machine; or, of the state of the group: a member of ours was copied.

    @ivar snapshots: by rising index; at most L{KEPT}.
    """

    snapshots: tuple[KeptSnapshot, ...] = ()

    def usable(self, begin_index: int, end_index: int) -> KeptSnapshot | None:
        """The newest one from which a machine can go on with these entries; None: there is none."""
        fitting = [one for one in self.snapshots if begin_index - 1 <= one.index <= end_index]
        return fitting[-1] if fitting else None


def snapshots_of(*kept: KeptMachine | None) -> tuple[KeptSnapshot, ...]:
    """All that are listed."""
    return tuple(one for machine in kept if machine is not None for one in machine.snapshots)


def usable_snapshot(
    machine: KeptMachine | None, begin_index: int, end_index: int
) -> KeptSnapshot | None:
    """See L{KeptMachine.usable}; None, too, if the group has no machine."""
    return None if machine is None else machine.usable(begin_index, end_index)


def why_no_start(
    machine: KeptMachine | None, group: KeptMachine | None, begin_index: int, end_index: int
) -> str:
    """
    Why a state machine, or producers and readers, could not go on with these entries and snapshots; empty if
    they could.
    """
    why = _why_no_machine(machine, begin_index, end_index)
    if group is None or begin_index <= 0 or group.usable(begin_index, end_index) is not None:
        return why
    return (why or f"the log begins with entry {begin_index}, and there is no state of the group that these "
            "entries continue: producers and readers would be refused")


def _why_no_machine(machine: KeptMachine | None, begin_index: int, end_index: int) -> str:
    if machine is None or begin_index <= 0 or machine.usable(begin_index, end_index) is not None:
        return ""
    later = [one.index for one in machine.snapshots if one.index > end_index]
    has = (f"its snapshot is after entry {later[0]}, which the log in it does not reach yet" if later
           else "it has no snapshot of the machine that these entries continue")
    return (f"the group has a state machine, and the log begins with entry {begin_index}, but {has}: a "
            "machine could not start from it")


def snapshots_in(content: JsonObject, name: str) -> KeptMachine | None:
    """The field C{machine} or C{group_state} of a manifest. @raise ValueError: it is missing or malformed."""
    found = content.get(name, "")
    if found is None:
        return None
    snapshots = found.get("snapshots") if isinstance(found, dict) else None
    if not isinstance(snapshots, list) or len(snapshots) > KEPT:
        raise MalformedManifest(f"{name} is {str(found)[:100]!r}")
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
