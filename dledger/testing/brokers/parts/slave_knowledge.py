# -*- test-case-name: tests.sim.test_ha -*-
"""What was seen of the log of one slave, for L{dledger.testing.brokers.invariants}."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class SlaveKnowledge:
    """
    What the checks of replication know of one slave.

    @ivar end: its log was compared up to here; -1: not yet since its process started.
    @ivar best_end: highest end that it reached in the master's present log.
    @ivar own_begin, own_end: what its present log has had of that; C{earlier}: what its logs of before had.
    @ivar promised_offset: the highest correct report.
    @ivar promised_begin: the beginning of its log at that report.
    @ivar flushed_offset: of its log, as last seen.
    @ivar power_lost: its unflushed bytes may be lost or damaged.
    @ivar old_session: the connection that may still carry bytes that its master has lost; -1: none.
    @ivar is_divergent: its log may differ: see H1.
    @ivar shadow: the content of its log, from C{shadow_begin} on, as last seen.
    @ivar reported_offset: the highest report of any of its processes, below the end of its log.
    @ivar is_resolving: an operator takes its log away at present.
    @ivar sure_end: before a power cut it had flushed its log up to here, and since then the log was not equal
        to the master's; -1: there was none, or it was.
    """

    end: int = -1
    best_end: int = 0
    own_begin: int = 0
    own_end: int = 0
    earlier: list[tuple[int, int]] = attrs.Factory(list)
    flushed_offset: int = 0
    power_lost: bool = False
    old_session: int = -1
    promised_offset: int = 0
    promised_begin: int = 0
    is_divergent: bool = False
    shadow: bytes = b""
    shadow_begin: int = 0
    reported_offset: int = 0
    is_resolving: bool = False
    sure_end: int = -1

    def note_own(self, begin: int, end: int) -> None:
        """Its log, from C{begin} on, was the master's up to C{end}."""
        if begin != self.own_begin:
            self._another_log()
            self.own_begin = begin
        self.own_end = max(self.own_end, end)

    def _another_log(self) -> None:
        """Its log begins anew. A report of before may still be under way."""
        self.earlier.append((self.own_begin, self.own_end))
        self.own_end = 0

    def lose_disk(self) -> None:
        """It has an empty disk; its log, which it has reported, is gone with the last one."""
        self._another_log()
        self.end = self.old_session = self.sure_end = -1
        self.promised_offset = self.promised_begin = self.flushed_offset = self.reported_offset = 0
        self.best_end = 0
        self.shadow = b""
        self.shadow_begin = 0
        self.power_lost = self.is_divergent = self.is_resolving = False

    def lost_from(self, offset: int) -> None:
        """The master has lost its log from here on."""
        self.own_end = min(self.own_end, offset)
        self.earlier = [(begin, min(end, offset)) for begin, end in self.earlier]

    def had(self, start: int, end: int) -> bool:
        """Whether a log of before had these bytes."""
        return any(begin <= start and end <= its_end for begin, its_end in self.earlier)
