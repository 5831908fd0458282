# -*- test-case-name: tests.node.test_lineages -*-
"""
Notices a member whose directory was remade, put back from an older copy, or started twice.

Members show each other their lineage (L{dledger.values.ledger.lineage}) in the greeting, and how each
remembers the other. Three rules:

Rule 1: the process that answers at a member's address is that member. It is remembered. Another process that
speaks for that member is a suspect: what it says binds nobody until the address has answered once more. Then
its connection ends, whichever came first; or the one at the address was gone, and nobody had noticed. So a
copy of a directory never drives its original out, although it may have been started more often.
Rule 2: a member that is remembered otherwise, or whose incarnation was followed by another one, trusts its
directory no longer: it joins, that is, its vote does not count alone until it holds all that a leader has. It
records that before it answers anything else.
Rule 3: until it does so, nothing of it counts: its connections end.

Members that say nothing (Java, native greetings) are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from dledger.node.connections.server import Note
from dledger.values.ledger.lineage import Fault, Lineage, Standing

#: Why a connection ends whose other end is not at the member's address; and if that is so for this member.
RIVAL = "another process answers at that member's address: two processes run under one id, stop one of them"
OWN_RIVAL = RIVAL.replace("that member's", "this member's")


class Others(Protocol):
    """The other members as they were met last."""

    @property
    def met(self) -> Mapping[str, Lineage]:
        """Member id to lineage."""

    def was_before(self, member_id: str, incarnation: int) -> bool:
        """Whether the member had this incarnation before the one that it reported last."""

    def meet(self, member_id: str, lineage: Lineage) -> None:
        """Remember."""


class Directory(Protocol):
    """The identity of this member's directory."""

    @property
    def others(self) -> Others:
        """See L{Others}."""

    @property
    def lineage(self) -> Lineage | None:
        """What this member shows; None: nothing."""


class Lineages:
    """
    Invariant: C{_answering} has the runs of the processes that this member is connected to; C{_calling} those
    that have last greeted, in the name of each known member; C{_refuted} those that the address refuted.

    @ivar suspects: members for which another process speaks than the one at their address, as far as known.
    """

    def __init__(
        self, directory: Directory, *, is_blank: Callable[[], bool], doubt: Callable[[str, bool], None],
        note: Note,
    ) -> None:
        """
        @param is_blank: whether this member has neither an entry nor an id of its group.
        @param doubt: makes this member join, durably; with the reason, and whether in a new incarnation.
        """
        self._directory = directory
        self._is_blank = is_blank
        self._doubt = doubt
        self._note = note
        self._end_calls: Callable[[str, str], None] = lambda member_id, reason: None
        self._recheck: Callable[[str], None] = lambda member_id: None
        self._answering: dict[str, int] = {}
        self._calling: dict[str, int] = {}
        self.suspects: set[str] = set()
        self._refuted: dict[str, int] = {}

    def connect(self, *, end_calls: Callable[[str, str], None], recheck: Callable[[str], None]) -> None:
        """
        Set the connections.

        @param end_calls: ends the connection on which somebody speaks for a member, with a reason.
        @param recheck: asks the member at its address for a sign of life.
        """
        self._end_calls = end_calls
        self._recheck = recheck

    @property
    def reported(self) -> str:
        """This member's lineage, as text; empty if it reports none."""
        lineage = self._directory.lineage
        return "" if lineage is None else lineage.encode()

    def reported_of(self, member_id: str | None, text: str = "") -> str:
        """
        What this member remembers of another, as text; empty for nothing.

        @param text: what the other one has reported. If that was its incarnation before the last one, it is
            informed that the incarnation has gone on since: so it takes itself for an older copy.
        """
        others, reported = self._directory.others, Lineage.decode(text)
        if reported is not None and others.was_before(member_id or "", reported.incarnation):
            return attrs.evolve(reported, starts=reported.starts + 1).encode()
        met = others.met.get(member_id or "")
        return "" if met is None else met.encode()

    def is_rival(self, member_id: str | None, text: str) -> bool:
        """Whether another process than that of C{text} has answered at the member's address meanwhile."""
        reported = Lineage.decode(text)
        return reported is not None and self._refuted.get(member_id or "") == reported.run

    def _look(self, member_id: str) -> None:
        calling, answering = self._calling.get(member_id), self._answering.get(member_id)
        if calling is None or answering is None or calling == answering:
            self.suspects.discard(member_id)
        else:
            self.suspects.add(member_id)

    def heed(self, reporter_id: str, met_text: str, group_id: str) -> None:
        """
        A member of the group has reported how it remembers this one.

        @param group_id: the id of the group if it is known there; else empty.
        """
        own, met = self._directory.lineage, Lineage.decode(met_text)
        if own is None or own.standing is Standing.JOINING and (
            met is None or met.incarnation != own.incarnation
        ):
            return
        fault = own.fault(met)
        if fault is None and group_id and own.standing is Standing.TRUSTED and self._is_blank():
            fault = Fault.REMADE
        if fault is None:
            return
        self._doubt(f"{reporter_id} says of this member: {fault}", fault is not Fault.REMADE)

    def problem_of_call(self, member_id: str, text: str) -> str:
        """Why the member that greets is not believed; empty if it is."""
        reported = Lineage.decode(text)
        if reported is None:
            return ""
        if self.is_rival(member_id, text):
            self._recheck(member_id)  # that one may be gone by now
            return RIVAL
        problem = self._problem(member_id, reported)
        if not problem:
            self._calling[member_id] = reported.run
            self._look(member_id)
            if member_id in self.suspects:
                self._recheck(member_id)
        return problem

    def problem_of_answer(self, member_id: str, text: str) -> str:
        """Why the process that answers at a member's address is not believed; empty: it is, and is met."""
        reported = Lineage.decode(text)
        if reported is None:
            return ""
        problem = self._problem(member_id, reported)
        if problem:
            return problem
        self._answering[member_id] = reported.run
        is_refuted = self._calling.get(member_id, reported.run) != reported.run
        if is_refuted:
            self._refuted[member_id] = self._calling.pop(member_id)
        self._look(member_id)
        if is_refuted:
            self._end_calls(member_id, RIVAL)
        met = self._directory.others.met.get(member_id)
        if met is not None and met.incarnation != reported.incarnation:
            self._note("member-remade", {"peer_id": member_id, "was": f"{met.incarnation:016x}",
                                         "incarnation": f"{reported.incarnation:016x}"})
        self._directory.others.meet(member_id, reported)
        return ""

    def lost(self, member_id: str) -> None:
        """The connection to the member's address has ended."""
        self._answering.pop(member_id, None)
        self._look(member_id)
        self._refuted.pop(member_id, None)

    def _problem(self, member_id: str, reported: Lineage) -> str:
        met = self._directory.others.met.get(member_id)
        is_earlier = self._directory.others.was_before(member_id, reported.incarnation)
        fault = Fault.OLDER if is_earlier else reported.fault(met)
        if fault is None or met is None:
            return ""
        return (
            f"{fault}: it names the incarnation {reported.incarnation:016x} with {reported.starts} starts, "
            f"and this member has met it as {met.incarnation:016x} with {met.starts}"
        )
