# -*- test-case-name: tests.node.test_event_kinds -*-
"""
The events of a member: what each means, how important it is, and which repetitions of it are folded.

C{docs/events.md} is made of this table (C{python -m tests.events --write}); logs, C{/events},
C{dledger events} and the metric C{dledger_events_total} have the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class EventKind(NamedTuple):
    """
    One kind of event.

    @ivar level: C{info}; C{warn}: an operator should look; C{error}: the member cannot do its work.
    @ivar meaning: for operators.
    @ivar same: the facts by which a repetition is known, if a retry or another party can repeat the event:
        then it is folded, see L{dledger.base.serving.folding}. None: each one is written.
    """

    level: str
    meaning: str
    same: tuple[str, ...] | None = None


def _info(meaning: str, same: tuple[str, ...] | None = None) -> EventKind:
    return EventKind("info", meaning, same)


def _warn(meaning: str, same: tuple[str, ...] | None = None) -> EventKind:
    return EventKind("warn", meaning, same)


def _error(meaning: str, same: tuple[str, ...] | None = None) -> EventKind:
    return EventKind("error", meaning, same)


EVENT_KINDS: Mapping[str, EventKind] = {
    # Elections.
    "started": _info("the member runs; with the term and the indexes that it has recovered"),
    "role-changed": _info("the member leads, follows, or is a candidate, in this term"),
    "term-adopted": _info("another member has a higher term, which counts from now on"),
    "vote-answered": _info("another member asked for a vote", ("candidate_id", "result")),
    "vote-refused": _error("term and vote could not be written for want of room: the member gives no vote"),
    "votes-again": _info("term and vote can be written again"),
    "standing-in": _warn("a member that must never lead stands for election, as a candidate lacks entries"),
    "stepping-down": _warn("the leader gives up: it does not hear a majority, or must not lead any more"),
    "two-leaders": _warn("two members lead in one term: one of them is not sound", ("known", "other")),
    "stray-leader-called": _warn("a Java leader of an earlier term got an answer with the present one"),
    "term-leap": _warn("a message has a term that no election can have led to", ("sender_id",)),
    "terms-exhausted": _warn("there is no higher term: this group cannot elect any more", ()),
    "group-named": _info("a majority knows the id of the group"),
    # Hand-over of leadership.
    "transfer-started": _info("the leader hands leadership over"),
    "transfer-ended": _info("how the hand-over ended"),
    "leaving-full": _warn("the leader's disk is full: it hands over", ("transferee_id",)),
    "leaving-machine": _warn("the leader's state machine does not run: it hands over", ("transferee_id",)),
    "leaving-damaged": _warn("entries are missing that only a Java leader gives: it hands over",
                             ("transferee_id",)),
    "leaving-slow-disk": _warn("the leader's disk is much slower than a follower's: it hands over",
                               ("transferee_id",)),
    # Members.
    "membership": _info("the members of the group, by a configuration entry of the log"),
    "membership-asked": _info("the leader has answered a change of members"),
    "change-asked": _warn(
        "a client asks for a change of members",
        # (Not the port: a client that asks again connects again. A change that was made has another index.)
        ("change", "member_id", "member_address", "is_forced", "configuration"),
    ),
    "dismissed": _info("another member reports that this one is not a voter any more"),
    # Replication.
    "dispatcher-state": _info("how the leader brings a follower's log in step", ("peer_id", "old", "new")),
    "push-set-back": _info("a push has failed: the leader compares the logs again", ("peer_id", "state")),
    "push-refused": _warn("this follower refuses a push of its leader", ("code", "type")),
    "push-waits-for-damaged": _warn("a follower needs an entry that this leader has lost to damage",
                                    ("peer_id", "write_index")),
    "chunk-refused": _warn("a follower refuses a chunk of closed log, and gets its entries one by one",
                           ("peer_id",)),
    "truncating": _info("entries that differ from the leader's are cut, or set aside"),
    "truncate-refused": _warn("a leader would cut a committed entry: this member does not", ("leader_id",)),
    "diverged": _error("this member has a committed entry that its leader has not: it stays as it is"),
    "agrees-again": _warn("the log equals the leader's again"),
    # Appends.
    "append-refused": _warn("the store has refused the leader's own entries", ("code",)),
    "append-too-large": _warn("a client sends bodies that no file has room for", ()),
    "clock-ahead": _warn(
        "the leader's clock is further ahead of a majority's than entry_times_ahead_ms: theirs count", (),
    ),
    "clock-behind": _warn(
        "the clock of the leader is a minute or more behind the log, whose times stand still until then", (),
    ),
    "times-ahead": _warn(
        "the log's times are far ahead of the clocks of a majority: dledger times --reset", (),
    ),
    # The store.
    "disk-full": _error("there is no room for entries", ()),
    "disk-has-room": _info("there is room again", ()),
    "readers-let-go": _warn(
        "the disk is nearly full: named readers keep no entry from being deleted, until there is room again",
        (),
    ),
    "slow-fsync": _warn("an fsync took half a second or more", ()),
    "store-failed": _error("a file could not be written or flushed: the member stops"),
    "entries-damaged": _warn("entries are damaged, and are asked of other members", ()),
    "entries-mended": _info("all damaged entries are back", ()),
    "entries-not-found": _error("no member that answers has a damaged entry", ("first_index",)),
    "repairing": _warn("the end of the log was damaged: no vote, until the entries are back"),
    "repaired": _info("the entries are back, and the member votes"),
    "unsure": _warn("entries that were acknowledged may be missing: the vote counts only with all others"),
    "sure-again": _info("the log has all that it may have acknowledged: the vote counts"),
    "doubted": _info("the directory is not the one that this member had before"),
    # The state of the group.
    "state-differs": _error("the state of the group of this member is not that of a majority: it gets another"
                            " one", ()),
    "state-undecided": _error("members have different states of the group, and none has a majority",
                              ("index",)),
    # State machines.
    "machine-differs": _warn("the state of a machine differs from that of other members",
                             ("member_id", "reason")),
    # Connections and strangers.
    "peer-connected": _info("a member has connected", ("peer_id",)),
    "peer-disconnected": _info("the connection of a member has ended", ("peer_id",)),
    "claim-refused": _warn("a second connection speaks for a member, or one for two members",
                           ("peer_id", "reason")),
    "foreign-member": _warn("a member of another group, or with another list of members, has called", ()),
    "member-remade": _info("a member has another directory than before"),
    "sender-absent": _info("a message in the name of a member that does not answer at its address",
                           ("sender_id",)),
    "message-refused": _warn("a message of a member makes no sense, and was not acted on",
                             ("sender_id", "kind", "fault")),
    "request-forbidden": _warn("a client asked for more than its token allows", ("who", "request")),
    "token-refused": _warn("a client shows a token that is unknown, or of another group", ("address",)),
    "token-withdrawn": _info("a client's token grants something else now: its connection ends", ("who",)),
    "handshake-failed": _warn("TLS with a caller has failed", ("reason",)),
}
