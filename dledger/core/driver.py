# -*- test-case-name: tests.node.test_driver -*-
"""
Runs a core: feeds it inputs, runs its effects in order, and feeds their outcomes back as inputs.

Rule 1: inputs are taken one at a time; an input fed from within an effect is only queued.
Rule 2: the outcome of a write comes before every other queued input.
Rule 3: when an effect fails, the rest of its tuple is dropped and the failure comes back as an input.

No Twisted here. The simulator runs a subclass, which checks each step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.mute import mute_answer
from dledger.core.state.ports import LedgerView
from dledger.values.errors import DamagedEntryError, DLedgerError, StoreError
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch

_FAILURES = frozenset({ev.WriteRefused, ev.StoreFailed})
#: Not carried out while term and vote are not durable.
_HELD_BACK = frozenset({
    fx.SendRequest, fx.Reply, fx.WriteBodies, fx.WriteEntries, fx.WriteConfiguration, fx.TruncateLedger,
})
#: Milliseconds between two attempts to save a term and a vote for which there was no room.
SAVE_AGAIN_MS = 200


class LedgerIdentity(Protocol):
    """
    What is recorded about a ledger beside its entries, see L{dledger.storage.start.identity.MemberIdentity}.
    """

    @property
    def is_unsure(self) -> bool:
        """Whether entries that this member acknowledged may be missing."""

    @property
    def forgot_terms(self) -> bool:
        """Whether that is so because its directory began empty: it may have forgotten its terms, too."""

    @property
    def group_name(self) -> GroupName:
        """The id of the group, as far as it is known."""

    def end_unsure(self) -> None:
        """Record, durably, that nothing is missing."""

    def record_group(self, name: GroupName) -> None:
        """Record the id of the group, durably."""


class Ledger(LedgerView, Protocol):
    """The writing half of a store, see L{dledger.storage.store.file_store.FileStore}."""

    @property
    def repair_end_index(self) -> int:
        """-1, or the end that the ledger must reach again before this member votes."""

    def append_bodies(
        self, bodies: tuple[bytes, ...], term: int, *, channels: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """
        Write bodies after the end.

        @param channels: of each record; none: 0 for all.
        @return: stream offset in bytes of each record.
        @raise DLedgerError: refused; the ledger is unchanged.
        """

    def append_entries(self, entries: EntryBatch) -> None:
        """Check and write a leader's records. @raise DLedgerError: refused; the ledger is unchanged."""

    def append_configuration(self, membership: Membership, term: int) -> tuple[int, ...]:
        """Write a configuration entry after the end, as L{append_bodies} writes one body."""

    def truncate_to(
        self, entry: EntryBatch, *, anew: bool = False, reported: tuple[Membership, ...] = ()
    ) -> None:
        """
        Make this entry the last one (C{anew}: and the only one), durably.

        @param reported: the leader's memberships; of use when the ledger begins after configuration entries.

        @raise DLedgerError: refused; the ledger is unchanged.
        """

    def record_commit(self, committed_index: int) -> None:
        """Record the last index that readers may see."""

    def look_again(self, index: int) -> bool:
        """
        Look for sound records at the beginning of the hole that C{index} lies in. @return: whether it has
        shrunk, or is no longer there.
        """

    def fill_hole(self, entries: EntryBatch, *, is_committed: bool) -> None:
        """
        Check records of a peer and write them into the hole that begins with them; durable when that is
        closed.

        @raise DLedgerError: refused; the ledger is unchanged.
        """

    def end_repair(self) -> None:
        """Clear the repairing mark, durably."""

    @property
    def identity(self) -> LedgerIdentity:
        """What is recorded about this ledger."""


class Terms(Protocol):
    """Durable term and vote."""

    def save(self, term: int, voted_for: str | None) -> None:
        """
        Save both; durable on return.

        @raise DLedgerError: DISK_FULL: they may not be durable; a later call may find room.
        @raise StoreError: they may not be durable, and nothing helps.
        """

    def check_point(self) -> None:
        """Write a file that found no room earlier. @raise StoreError: it failed for another reason."""


class Surroundings(Protocol):
    """The environment of a driver. No method may raise."""

    @property
    def seconds(self) -> Callable[[], float]:
        """A monotonic clock."""

    def send_request(self, effect: fx.SendRequest) -> None:
        """Send a request to a peer; later, ResponseReceived or RequestFailed is fed."""

    def continue_later(self, effect: fx.ContinueLater) -> None:
        """In a later turn of the reactor, feed TurnCame."""

    def reply(self, effect: fx.Reply) -> None:
        """Answer a request; unknown tokens are ignored."""

    def answer_append(self, answer: fx.AnswerAppend) -> None:
        """Answer the appends of one proposal."""

    def answer_read(self, answer: fx.AnswerRead) -> None:
        """Answer one linearizable read."""

    def start_flush(self, effect: fx.FlushLedger) -> None:
        """Start an fsync; later, EntriesFlushed or StoreFailed is fed."""

    def committed(self, committed_index: int) -> None:
        """Wake readers that wait for committed entries."""

    def follow_membership(self, effect: fx.FollowMembership) -> None:
        """The members of the group are others now: connect to them."""

    def report(self, report: fx.Report) -> None:
        """Log and count an event."""

    def stop_member(self, stop: fx.StopMember) -> None:
        """Stop the member."""

    def broken(self, error: BaseException) -> None:
        """The program has a bug (assertion, unexpected exception): log it and stop the member."""


class Stepping(Protocol):
    """The decisions of a member: L{dledger.core.replica.DLedgerCore}."""

    def step(self, happened: ev.Input, now_ms: int) -> tuple[fx.Effect, ...]:
        """Take an input. @return: the effects to run, in order."""


class Driver:
    """
    One core and its queue of inputs.

    Invariant: C{step} is never re-entered; after C{stop} it is not called.

    @ivar happened: the input of the last step.
    @ivar stepped: called after each step and its effects; the simulator's checks.
    @ivar is_stopped: whether the member has stopped for good.
    @ivar why_mute: why term and vote of the core are not durable; empty if they are. While there is no room
        for them, nothing that could depend on them leaves the member and nothing is written to the ledger:
        requests of others are refused, own ones fail. To others that is a member without a quorum of links.
    """

    def __init__(self, core: Stepping, ledger: Ledger, terms: Terms, around: Surroundings) -> None:
        self.core = core
        self._ledger = ledger
        self._terms = terms
        self._around = around
        self._seconds = around.seconds
        self._inbox: deque[ev.Input] = deque()
        self._running = False
        self.happened: ev.Input | None = None
        self.stepped: Callable[[], None] | None = None
        self.is_stopped = False
        self.why_mute = ""
        self._owed: fx.PersistTermVote | None = None
        self._durable_term = 0
        self._next_save_ms = 0
        self._runners: dict[type[fx.Effect], Callable[..., ev.Input | None]] = {}

    def _runners_now(self) -> dict[type[fx.Effect], Callable[..., ev.Input | None]]:
        """What runs each effect; asked with the first input, when all parts of the surroundings are there."""
        around = self._around
        return {
            fx.PersistTermVote: self._persist_term_vote,
            fx.WriteBodies: self._write_bodies,
            fx.WriteEntries: self._write_entries,
            fx.WriteConfiguration: self._write_configuration,
            fx.FollowMembership: around.follow_membership,
            fx.TruncateLedger: self._truncate_ledger,
            fx.FlushLedger: around.start_flush,
            fx.RecordCommit: self._record_commit,
            fx.LookAgain: self._look_again,
            fx.FillHole: self._fill_hole,
            fx.EndRepair: self._end_repair,
            fx.EndUnsure: self._end_unsure,
            fx.RecordGroup: self._record_group,
            fx.SendRequest: around.send_request,
            fx.ContinueLater: around.continue_later,
            fx.Reply: around.reply,
            fx.AnswerAppend: around.answer_append,
            fx.AnswerRead: around.answer_read,
            fx.Report: around.report,
            fx.StopMember: self._stop_member,
        }

    def feed(self, *happened: ev.Input) -> None:
        """Feed inputs; effects run before this returns, unless it is called from within an effect."""
        if self.is_stopped:
            return
        inbox = self._inbox
        inbox += happened
        if self._running:
            return
        runners = self._runners = self._runners or self._runners_now()
        self._running = True
        try:
            while inbox:
                one = self.happened = inbox.popleft()
                try:
                    if self.why_mute and isinstance(one, ev.Ticked):
                        self._save_again()
                    for effect in self.core.step(one, int(self._seconds() * 1000)):
                        if self.is_stopped:  # by an effect
                            break  # type: ignore[unreachable]
                        if self.why_mute and type(effect) in _HELD_BACK:
                            outcome = self._held_back(effect)
                        else:
                            outcome = runners[type(effect)](effect)
                        if outcome is not None:
                            inbox.appendleft(outcome)
                            if type(outcome) in _FAILURES:
                                break
                except StoreError as error:
                    inbox.appendleft(ev.StoreFailed(reason=str(error)))
                except OSError as error:
                    inbox.appendleft(ev.StoreFailed(reason=f"{type(error).__name__}: {error}"))
                if self.stepped is not None:
                    self.stepped()
                if self.is_stopped:
                    inbox.clear()  # type: ignore[unreachable]
        except BaseException as error:
            self.stop()
            self._around.broken(error)
        finally:
            self._running = False

    def stop(self) -> None:
        """Take no more inputs, run no more effects."""
        self.is_stopped = True
        self._inbox.clear()

    # -- term and vote -----------------------------------------------------------------------------

    def _persist_term_vote(self, effect: fx.PersistTermVote) -> None:
        """Rule: while this fails for want of room, the member is mute, see C{why_mute}."""
        try:
            self._terms.save(effect.term, effect.voted_for)
        except DLedgerError as error:
            if isinstance(error, StoreError):
                raise
            self._owed = effect
            self._next_save_ms = int(self._seconds() * 1000) + SAVE_AGAIN_MS
            if not self.why_mute:
                self.why_mute = str(error.facts.get("reason", ""))
                self._around.report(fx.Report(
                    event="vote-refused", facts={"term": effect.term, "reason": self.why_mute},
                ))
            return
        self._durable_term = effect.term
        self._owed = None
        if self.why_mute:
            self.why_mute = ""
            self._around.report(fx.Report(event="votes-again", facts={"term": effect.term}))

    def _save_again(self) -> None:
        assert self._owed is not None
        if int(self._seconds() * 1000) >= self._next_save_ms:
            self._persist_term_vote(self._owed)

    def _held_back(self, effect: fx.Effect) -> ev.Input | None:
        """The outcome of an effect that must not be carried out while the member is mute."""
        if isinstance(effect, fx.SendRequest):
            return ev.RequestFailed(
                peer_id=effect.peer_id, request_id=effect.request_id, reason="term and vote are not durable"
            )
        if isinstance(effect, fx.Reply):
            response = mute_answer(effect.response, self._durable_term)
            self._around.reply(fx.Reply(token=effect.token, response=response))
            return None
        return ev.WriteRefused(code=ResponseCode.DISK_FULL, reason=self.why_mute)

    # -- the ledger --------------------------------------------------------------------------------

    def _write_bodies(self, effect: fx.WriteBodies) -> ev.Input:
        assert effect.first_index == self._ledger.ends.end_index + 1, "the core lost count"
        try:
            positions = self._ledger.append_bodies(effect.bodies, effect.term, channels=effect.channels)
        except DLedgerError as error:
            return _refused(error)
        return ev.EntriesWritten(
            first_index=effect.first_index, count=len(effect.bodies), positions=positions
        )

    def _write_configuration(self, effect: fx.WriteConfiguration) -> ev.Input:
        assert effect.first_index == self._ledger.ends.end_index + 1, "the core lost count"
        try:
            positions = self._ledger.append_configuration(effect.membership, effect.term)
        except DLedgerError as error:
            return _refused(error)
        return ev.EntriesWritten(first_index=effect.first_index, count=1, positions=positions)

    def _write_entries(self, effect: fx.WriteEntries) -> ev.Input:
        try:
            self._ledger.append_entries(effect.entries)
        except DLedgerError as error:
            return _refused(error)
        return ev.EntriesWritten(first_index=effect.entries.first_index, count=effect.entries.count)

    def _truncate_ledger(self, effect: fx.TruncateLedger) -> ev.Input:
        try:
            self._ledger.truncate_to(effect.entries, anew=effect.anew, reported=effect.reported)
        except DLedgerError as error:
            return _refused(error)
        return ev.LedgerTruncated(
            end_index=self._ledger.ends.end_index, end_term=self._ledger.ends.end_term,
            repair_end_index=self._ledger.repair_end_index,
        )

    def _record_commit(self, effect: fx.RecordCommit) -> None:
        self._ledger.record_commit(effect.committed_index)
        self._around.committed(effect.committed_index)

    def _look_again(self, effect: fx.LookAgain) -> ev.Input:
        has_shrunk = self._ledger.look_again(effect.first_index)
        return ev.HoleHandled(reason="" if has_shrunk else "no sound record at its beginning")

    def _fill_hole(self, effect: fx.FillHole) -> ev.Input:
        try:
            self._ledger.fill_hole(effect.entries, is_committed=effect.is_committed)
        except DLedgerError as error:
            if isinstance(error, StoreError):
                raise
            return ev.HoleHandled(reason=str(error))
        return ev.HoleHandled()

    def _end_repair(self, _effect: fx.EndRepair) -> None:
        self._ledger.end_repair()

    def _record_group(self, effect: fx.RecordGroup) -> None:
        self._ledger.identity.record_group(effect.name)

    def _end_unsure(self, _effect: fx.EndUnsure) -> None:
        self._ledger.identity.end_unsure()

    def _stop_member(self, effect: fx.StopMember) -> None:
        self.stop()
        self._around.stop_member(effect)


def _refused(error: DLedgerError) -> ev.Input:
    if isinstance(error, StoreError):
        return ev.StoreFailed(reason=str(error))
    if isinstance(error, DamagedEntryError):
        return ev.WriteRefused(code=ResponseCode.INCONSISTENT_STATE, reason=str(error))
    assert error.code in (ResponseCode.DISK_FULL, ResponseCode.INCONSISTENT_STATE), error
    return ev.WriteRefused(code=error.code, reason=str(error))
