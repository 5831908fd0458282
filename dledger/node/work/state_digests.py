# -*- test-case-name: tests.node.test_state_digests -*-
"""
Compares the state of the group between members, by digests at entries of the log::

    leader: entry "take a digest" --committed--> each member takes it --a majority has one--> entry "digest"
    member: its digest at that entry is another one --> its state is void, and it gets one from another member

Rule 1: a digest is in the log only after a majority of the voters has said that it has it. So a leader with
a wrong state makes nobody else drop a sound one: it drops its own by the digest of the others, and hands
over. Where no digest has a majority, nobody drops anything, and the log of the leader says so.
Rule 2: a member that has no digest at an entry (it has started after it, or got the state from another one)
is not judged by it. A member that differs gives its state to nobody, and so does the one that it got it from.
Rule 3: the first entry comes L{FIRST_S} after the begin of a leadership without one, the others with every
L{EVERY_BYTES} of the log, and only where there is a producer or a reader. An idle group writes none.

This finds states that differ, whatever the reason: memory, a file, a bug of one version. It does not find
errors that all members share, and in a group of one it finds nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.core.state.effects import Report
from dledger.core.state.member_state import MemberState
from dledger.storage.files.state_file import digesting
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import DigestPlace, GroupState
from protocols.wire.ledger.messages import MetadataResponse
from protocols.wire.ledger.own.state_entries import StateEntry, StateWord, encode_state_entry

#: Seconds of a leadership without a digest before one is taken, and between two questions for others' ones.
FIRST_S, ASK_S = 60.0, 2.0
#: The next one is taken when the log has grown by this.
EVERY_BYTES = 32 * 1024 * 1024
#: Questions after which the members are asked rarely, and seconds between two questions then.
ASKED_OFTEN, RARELY_S = 15, 60.0
#: A digest as a member says it.
_REPORTED = re.compile("[0-9]{1,19}:[0-9]{1,19}:[0-9a-f]{16}")


class OwnDigest(NamedTuple):
    """The digest of this member at an entry."""

    entry_index: int
    term: int
    digest: int

    def __str__(self) -> str:
        return f"{self.entry_index}:{self.term}:{self.digest:016x}"


class StateDigests:
    """
    Invariant: C{_steps} are those of the newest entry that wants a digest; None: it has it, or there is none.
    """

    def __init__(
        self, ledger: FileStore, members: MemberState, *,
        ask: Callable[[str], Deferred[MetadataResponse]], report: Callable[[Report], None],
        append: Callable[[bytes, Callable[[object], None]], object] | None, void: Callable[[str], None],
        hand_over: Callable[[str], object],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        """
        @param ask: asks a member what it says of itself.
        @param append: writes a state entry, and makes a call with the outcome; None: a broker alone appends.
        @param void: the state is wrong, for this reason. @param hand_over: gives leadership to a member.
        @param later: makes a call in one of the next turns.
        """
        self._ledger = ledger
        self._members = members
        self._ask = ask
        self._report = report
        self._append = append
        self._hand_over = hand_over
        self._void = void
        self._later = later
        self._own: OwnDigest | None = None
        self._steps: Generator[None, None, int] | None = None
        self._reported: dict[str, str] = {}
        self._asked = 0
        self._taken_position = -1
        self._term = -1
        self._next_s = 0.0
        self._is_appending = False

    @property
    def reported(self) -> str:
        """What METADATA says: entry, term and digest; empty: none was taken."""
        return "" if self._own is None else str(self._own)

    def sweep(self, now_s: float) -> None:
        """Look whether the log wants a digest, or has one. @param now_s: of the monotonic clock."""
        group = self._ledger.group
        if group is None:
            self._own = self._steps = None
            return
        place = group.state.take_digest_place()
        if place is not None:
            self._take(place)
        if self._own is not None:
            self._compare(group.state, self._own)
        if self._append is not None and self._members.is_leader and self._ledger.group is not None:
            self._lead(group.state, now_s)

    def _take(self, place: DigestPlace) -> None:
        self._own = None
        self._reported.clear()
        self._asked = 0
        self._taken_position = self._ledger.end_position
        self._steps = digesting(place.state)
        self._step(self._steps, place)

    def _step(self, steps: Generator[None, None, int], place: DigestPlace) -> None:
        if steps is not self._steps:
            return
        try:
            next(steps)
        except StopIteration as done:
            self._steps = None
            self._own = OwnDigest(place.entry_index, place.term, done.value)
        else:
            self._later(partial(self._step, steps, place))

    def _compare(self, state: GroupState, own: OwnDigest) -> None:
        said = state.digest_entry
        if said is None or (said.entry_index, said.term) != own[:2] or said.digest == own.digest:
            return
        why = (f"its digest at the entry {own.entry_index} was {own.digest:016x}, that of a majority "
               f"{said.digest:016x}")
        self._report(Report(event="state-differs", facts={"index": own.entry_index, "reason": why}))
        sound = str(own._replace(digest=said.digest))
        self._own = None
        self._void(why)
        heir = next((one for one in self._members.voter_ids if self._reported.get(one) == sound), None)
        if self._members.is_leader and heir is not None:
            self._hand_over(heir)

    # -- the leader ------------------------------------------------------------------------------

    def _lead(self, state: GroupState, now_s: float) -> None:
        if self._term != self._members.term:
            self._term = self._members.term
            self._reported.clear()
            self._asked = 0
            self._next_s = now_s + (FIRST_S if self._taken_position < 0 else ASK_S)
        if self._is_appending or self._steps is not None or now_s < self._next_s:
            return
        self._next_s = now_s + ASK_S
        said, own = state.digest_entry, self._own
        if own is not None and (said is None or (said.entry_index, said.term) != own[:2]):
            self._gather(own, now_s)
        elif self._members.voter_ids and (state.has_producers or state.readers) and (
            self._taken_position < 0 or self._ledger.end_position - self._taken_position >= EVERY_BYTES
        ):
            self._write(StateEntry(StateWord.TAKE_DIGEST))

    def _gather(self, own: OwnDigest, now_s: float) -> None:
        members = self._members
        reported = {members.self_id: str(own), **self._reported}
        found = Counter(reported[one] for one in members.membership.voters
                        if reported.get(one, "").startswith(
            f"{own.entry_index}:{own.term}:"
        ))
        needed = len(members.membership.voters) // 2 + 1
        for text, count in found.items():
            if count >= needed:
                digest = int(text.rpartition(":")[2], 16)
                return self._write(StateEntry(StateWord.DIGEST, own.entry_index, own.term, digest))
        self._asked += 1
        if self._asked == ASKED_OFTEN and len(found) > 1:
            self._report(Report(event="state-undecided", facts={
                "index": own.entry_index,
                "reason": ", ".join(f"{one}: {reported[one]}" for one in sorted(reported))
            }))
        if self._asked >= ASKED_OFTEN:
            self._next_s = now_s + RARELY_S
        for peer_id in members.peer_ids:
            self._ask(peer_id).addCallbacks(self._answered, lambda _: None, callbackArgs=(peer_id,))

    def _answered(self, answer: MetadataResponse, peer_id: str) -> None:
        if _REPORTED.fullmatch(answer.state_digest):
            self._reported[peer_id] = answer.state_digest

    def _write(self, entry: StateEntry) -> None:
        assert self._append is not None
        self._is_appending = True
        self._append(encode_state_entry(entry), self._written)

    def _written(self, result: object) -> None:
        self._is_appending = False  # (What was refused is due again.)
        if isinstance(result, Failure):
            result.trap(DLedgerError)
