# -*- test-case-name: tests.core.test_admission -*-
"""
What a member refuses before any part of it acts: numbers that no sound member of its group can send.

Rule 1: a term that is more than C{TERM_JUMP_MAX} above the own one is not adopted, whoever names it.
Rule 2: no entry of a push is of a later term than the push. (Within a batch terms never fall, so the last
entry is the latest.)

Rule 3: a member that is known to speak another version of the protocol (DLedger 0.4) is not a member of this
group: it must neither elect this member, nor be elected or followed by it.

Rule 4: a member that knows no leader for C{LEAP_PATIENCES} patiences, and hears of terms out of reach for all
that time, raises its own term by C{TERM_JUMP_MAX}, and waits again. A false peer can raise a group's term in
steps of the allowed size; without this rule a member that was away meanwhile, or a new one, would never get
in. A member that follows never leaps, so a false peer does not disturb a group that works. A leader raises
its term by half of that, so that its followers can go with it, when answers to its own requests report
a term out of reach for all that time: the peer may be alone in its term, and comes back no other way. (One
answer with a term within reach ends a leadership at once.)

The decoders have refused numbers above the bounds of the protocol (L{protocols.wire.ledger.bounds}).
"""

from __future__ import annotations

import attrs

from dledger.core.state.member_state import MemberState
from dledger.values.errors import DirectoryError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.bounds import TERM_JUMP_MAX, TERM_MAX
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    LedgerMessage,
    PushEntryRequest,
    Request,
    Response,
    VoteRequest,
)

#: Patiences without a leader after which a member leaps towards terms out of reach.
LEAP_PATIENCES = 2

#: Requests of one member to another that bind.
PeerRequest = VoteRequest | HeartBeatRequest | PushEntryRequest


def check_start(term: int, ledger_end_term: int, path: str) -> None:
    """
    Check the recovered terms of a member.

    @param path: directory of the member's files.
    @raise DirectoryError: no election could ever raise this term; the message names the way out.
    """
    if ledger_end_term >= TERM_MAX:
        raise DirectoryError(
            f"the last entry in {path} has term {ledger_end_term}; terms end at {TERM_MAX - 1}. No sound "
            "leader writes such an entry: set this directory aside and start the member with an empty one, "
            "while a majority of the other members has lower terms; it will copy the log from them"
        )
    if term >= TERM_MAX:
        raise DirectoryError(
            f"{path}/currterm holds the term {term}; terms end at {TERM_MAX - 1}, so no election could raise "
            "it. Stop every member whose currterm holds such a term. In the currterm of each write the same "
            "number, larger than every sound currTerm in the group and than the term of the last entry of "
            "every member (dledger verify shows it), with an empty voteLeader=. Then start them again"
        )


def is_too_far(member: MemberState, term: int) -> bool:
    """Whether C{term} is further above the own one than a sound member's term can be (rule 1)."""
    return term > member.term + TERM_JUMP_MAX


def fault_of(member: MemberState, request: PeerRequest) -> str | None:
    """Why no sound member of this group sends this request; None if one may."""
    if request.leader_id in member.peers.incompatible:
        return "version"
    if request.term > member.term and is_too_far(member, request.term):
        return "term"
    entries = request.entries if type(request) is PushEntryRequest else None
    if entries is not None and entries.term > request.term >= member.term:
        return "entry-term"  # (a push of an earlier term is refused anyway, and learns the present one)
    return None


def refusing_answer(member: MemberState, request: Request, fault: str) -> Response:
    """The answer that refuses C{request} and names the own term; a refused vote has the result UNKNOWN."""
    code = ResponseCode.UNEXPECTED_MEMBER if fault == "version" else ResponseCode.UNEXPECTED_ARGUMENT
    return MESSAGES[request.kind][1](
        code=code, group=request.group, remote_id=request.remote_id, local_id=request.local_id,
        leader_id=request.leader_id, term=member.term, wire_version=WIRE_VERSION,
    )


@attrs.define
class RefusedMessages:
    """
    Reports the refused messages of members, and decides when this member leaps (rule 4).

    Invariant: C{_since_ms} is the time of the first of the messages with a term out of reach that came while
    no other leader was known, without a longer pause than a patience between them; -1 if there is none.
    """

    member: MemberState
    _since_ms: int = -1
    _last_ms: int = -1

    def note(self, sender_id: str, message: LedgerMessage, fault: str) -> int | None:
        """
        A member's message was refused.

        @return: a term to adopt now; None for the present one.
        """
        member = self.member
        member.out.report("message-refused", sender_id=sender_id, kind=type(message).__name__, fault=fault,
                          its_term=message.term, term=member.term)
        if fault != "term":
            return None
        patience_ms = member.config.heart_beat_time_interval_ms * member.config.max_heart_beat_leak
        if member.is_leader and not isinstance(message, Response):
            return None
        now_ms, last_ms = member.out.now_ms, self._last_ms
        self._last_ms = now_ms
        if not member.is_leader and member.leader_id is not None:
            self._since_ms = -1
        elif self._since_ms < 0 or now_ms - last_ms > patience_ms:
            self._since_ms = now_ms
        elif now_ms - self._since_ms >= LEAP_PATIENCES * patience_ms:
            self._since_ms = -1
            member.out.report("term-leap", sender_id=sender_id, its_term=message.term, term=member.term)
            return member.term + (TERM_JUMP_MAX // 2 if member.is_leader else TERM_JUMP_MAX)
        return None
