# -*- test-case-name: tests.machine.test_watch -*-
"""
Compares the state machine of this member with those of the others, as they report them in METADATA.

Rule 1: machines of another name or version are a warning with the names of their members, once for each
change.
Rule 2: members with the same machine compare digests of their states after the same entry. A difference is a
warning with the names; a member that is not with the majority of those that report is in doubt.
Rule 3: where the machine asks for that, only members with the highest version answer queries while different
versions run; the others are not fit to lead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from protocols.wire.errors import BodyError
from protocols.wire.ledger.machines import ReportedMachine, decode_reported_machine


class MachineWatch:
    """
    @ivar differs: what other members run instead; empty if nothing else.
    @ivar in_doubt: why the state here may be wrong: no majority of those that report has it; empty if not.
    @ivar outdated: why this member answers no queries, because of its version; empty if it does.
    """

    def __init__(
        self, self_id: str, reported_by: Callable[[str], str | None],
        note: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        """
        @param reported_by: the text of a member; None: nothing yet.
        @param note: reports an event.
        """
        self._self_id = self_id
        self._reported_by = reported_by
        self._note = note
        self._read: dict[str, tuple[str, ReportedMachine | None]] = {}
        self.differs = self.outdated = self.in_doubt = ""
        self._compared = ""

    def others(self, peer_ids: Iterable[str]) -> dict[str, ReportedMachine]:
        """The machines of other members, as far as they have reported."""
        found = {}
        for peer_id in peer_ids:
            text = self._reported_by(peer_id)
            if text is None:
                continue
            known = self._read.get(peer_id)
            if known is None or known[0] != text:
                try:
                    known = text, decode_reported_machine(text)
                except BodyError:
                    known = text, None
                self._read[peer_id] = known
            if known[1] is not None:
                found[peer_id] = known[1]
        return found

    def look(self, mine: ReportedMachine, peer_ids: Iterable[str]) -> None:
        """Compare now."""
        others = self.others(peer_ids)
        differs = "; ".join(
            f"{peer_id} runs the version {one.version} of {one.name!r}" for peer_id, one in others.items()
            if (one.name, one.version) != (mine.name, mine.version)
        )
        if differs != self.differs:
            self.differs = differs
            if differs:
                self._note("machine-differs", {"member_id": self._self_id, "reason": (
                    f"this member runs the version {mine.version} of {mine.name!r}, {differs}"
                )})
        newer = [
            f"{peer_id} the version {one.version}" for peer_id, one in others.items()
            if one.runs and one.name == mine.name and one.version > mine.version
        ]
        self.outdated = ""
        if newer and mine.newest_only:
            self.outdated = f"this member runs the version {mine.version} of {mine.name!r}, {newer[0]}"
        self._compare(mine, {
            peer_id: one for peer_id, one in others.items()
            if (one.name, one.version) == (mine.name, mine.version)
        })

    def _compare(self, mine: ReportedMachine, others: Mapping[str, ReportedMachine]) -> None:
        for index in sorted(mine.digests, reverse=True):
            reported = {peer_id: one.digests[index] for peer_id, one in others.items()
                        if index in one.digests}
            if reported:
                self._judge(index, {self._self_id: mine.digests[index], **reported})
                return
        self.in_doubt = ""

    def _judge(self, index: int, reported: Mapping[str, str]) -> None:
        """C{reported}: the digests after an entry, of this member and of others."""
        groups: dict[str, list[str]] = {}
        for member_id, digest in sorted(reported.items()):
            groups.setdefault(digest, []).append(member_id)
        self.in_doubt = ""
        if len(groups) == 1:
            return
        text = f"after the entry {index} the states differ: " + " against ".join(
            ", ".join(members) for members in sorted(groups.values())
        )
        mine = groups[reported[self._self_id]]
        if 2 * len(mine) <= len(reported):
            self.in_doubt = text
        if text != self._compared:
            self._compared = text
            self._note("machine-differs", {"member_id": self._self_id, "reason": text})
