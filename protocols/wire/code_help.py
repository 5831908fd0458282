# -*- test-case-name: tests.test_reference -*-
"""
The cause of each outcome of L{protocols.wire.codes}, and what an operator or a program does about it.

The table in the reference is made of this one (C{tests.reference}). A text is Markdown, with
links as that page has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from protocols.wire.codes import ResponseCode


class CodeHelp(NamedTuple):
    """
    @ivar cause: why a call ends like this.
    @ivar remedy: what to do; empty for nothing.
    """

    cause: str
    remedy: str = ""


CODE_HELP: Mapping[ResponseCode, CodeHelp] = {
    ResponseCode.UNKNOWN: CodeHelp(
        "a code that this version does not know",
        "look at the peer's version and log",
    ),
    ResponseCode.SUCCESS: CodeHelp(""),
    ResponseCode.TIMEOUT: CodeHelp("a client's own deadline passed", "check that the group has a leader"),
    ResponseCode.METADATA_ERROR: CodeHelp(
        "no member named a leader",
        "check that a majority runs and its members reach each other",
    ),
    ResponseCode.NETWORK_ERROR: CodeHelp(
        "a peer could not be reached",
        "check the network, the peer, its port",
    ),
    ResponseCode.UNSUPPORTED: CodeHelp(
        "the wire cannot carry the request (PULL over remoting); an append to the log of brokers; a change "
        "of members in a group with members of Java; a chunk that a follower does not take",
        "use the native wire, or GET; send messages to the brokers; replace those members; nothing, the "
        "leader pushes its entries",
    ),
    ResponseCode.UNKNOWN_GROUP: CodeHelp(
        "the request names another group",
        "correct `--group` of the client or the member",
    ),
    ResponseCode.UNKNOWN_MEMBER: CodeHelp(
        "the request is addressed to another id, its sender is not in `peers`, or a transfer names an "
        "unknown member",
        "make `peers` and ids the same everywhere",
    ),
    ResponseCode.UNEXPECTED_MEMBER: CodeHelp(
        "a heartbeat under the receiver's own id",
        "two processes run under one id: stop one",
    ),
    ResponseCode.EXPIRED_TERM: CodeHelp(
        "the request comes from a leader of an earlier term",
        "nothing; that leader steps down",
    ),
    ResponseCode.NOT_LEADER: CodeHelp(
        "the member does not lead",
        "ask the leader that the answer names; clients do so automatically",
    ),
    ResponseCode.NOT_FOLLOWER: CodeHelp(
        "from Java members: a member that is not a follower got a push",
        "nothing",
    ),
    ResponseCode.INCONSISTENT_STATE: CodeHelp(
        "a push does not fit the follower's ledger",
        "nothing; if it lasts, compare file sizes and run `dledger verify` on both",
    ),
    ResponseCode.INCONSISTENT_TERM: CodeHelp("a push or a transfer names another term", "nothing"),
    ResponseCode.INCONSISTENT_INDEX: CodeHelp("Java's internal check", "nothing"),
    ResponseCode.INCONSISTENT_LEADER: CodeHelp(
        "a second leader in one term",
        "never among our members; with Java ones see W4, W7",
    ),
    ResponseCode.INDEX_OUT_OF_RANGE: CodeHelp("nothing committed at that index (yet)", "read lower, or wait"),
    ResponseCode.UNEXPECTED_ARGUMENT: CodeHelp(
        "the request cannot be decoded or is invalid, or a body is too large",
        "read the reason in the member's log",
    ),
    ResponseCode.REPEATED_REQUEST: CodeHelp("never sent"),
    ResponseCode.REPEATED_PUSH: CodeHelp("the same push arrived before", "nothing"),
    ResponseCode.DISK_ERROR: CodeHelp(
        "the record of the entry is damaged at this member, see [Repairing](operations.md#repairing); or "
        "the store failed; or a record cannot be stored",
        "read the entry at another member, or again in a moment; if the store failed, the log says so and "
        "the member has stopped",
    ),
    ResponseCode.DISK_FULL: CodeHelp(
        "no room, see [Disk full](operations.md#disk-full)",
        "make room; appends then succeed again",
    ),
    ResponseCode.TERM_NOT_READY: CodeHelp("from Java members: they take a new term in two steps", "nothing"),
    ResponseCode.FALL_BEHIND_TOO_MUCH: CodeHelp(
        "the target of a transfer is too far behind",
        "wait until it has caught up",
    ),
    ResponseCode.TAKE_LEADERSHIP_FAILED: CodeHelp(
        "the transfer timed out, or the target lost its election",
        "try again",
    ),
    ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN: CodeHelp(
        "the entry's segment was deleted",
        "read from the member's begin index",
    ),
    ResponseCode.REQUEST_WITH_EMPTY_BODYS: CodeHelp("the append has no body", "send at least one"),
    ResponseCode.PUSH_REQUEST_IS_FULL: CodeHelp(
        "a follower's reorder window is full",
        "nothing; if it lasts, the follower's disk is too slow",
    ),
    ResponseCode.FORBIDDEN: CodeHelp(
        "the client's certificate or token lacks the role for this request, or the token is unknown, see "
        "[Security](security.md); or, without TLS, a change of the group comes from a host that may not ask "
        "for one",
        "use a certificate with the role (`dledger certs`); ask on the member's machine, or name the host "
        "in its `change_hosts`",
    ),
    ResponseCode.CONFLICT: CodeHelp(
        "an append expected another end of the log: somebody else was first. It is not in the log",
        "read on to the end, decide again, append again",
    ),
    ResponseCode.SEQUENCE_GAP: CodeHelp(
        "an append of a producer that does not follow its last one. It is not in the log",
        "go on after the last sequence, which the answer names: [exactly once](exactly-once.md)",
    ),
    ResponseCode.UNKNOWN_PRODUCER: CodeHelp(
        "an append of a producer that the log has never had does not begin with the sequence 0. It is not in "
        "the log",
        "begin with the sequence 0",
    ),
    ResponseCode.PRODUCER_FORGOTTEN: CodeHelp(
        "an append of a producer that the log does not know, and may have forgotten, does not begin with the "
        "sequence 0. It is not in the log "
        "(`producers_expire_hours`)",
        "find out what the log has of it, and begin with a new id",
    ),
    ResponseCode.SEQUENCE_FORGOTTEN: CodeHelp(
        "the log has or had a body with this sequence, perhaps another one: its index is not known any more, "
        "or its entry has expired",
        "go on with the sequence after the last one, which the answer names; read the log if somebody else "
        "may use the id",
    ),
    ResponseCode.SEQUENCE_TAKEN: CodeHelp(
        "the log has another body with this sequence: somebody else uses the id of the producer, or the "
        "program gave one number to two bodies. It is not in the log",
        "look at the entry that the answer names; use an id that nobody else has",
    ),
    ResponseCode.PRODUCERS_FULL: CodeHelp(
        "the group remembers as many producers as it can (16 MiB of ids), and takes no new one until old "
        "ones are forgotten (`producers_expire_hours`). It is not in the log",
        "use few ids, each for long; shorten the time",
    ),
    ResponseCode.SHARE_FULL: CodeHelp(
        "the producers, or the readers, of this account, or without accounts of this address, take half of "
        "the room that the group has for them: it takes no new one of them. Nothing was written",
        "use few ids, each for long; give programs accounts of their own; forget readers",
    ),
    ResponseCode.READERS_FULL: CodeHelp(
        "the readers of the group take all the room that there is for them (16 MiB): it takes no new one, "
        "and gives no further process a part. Nothing was written",
        "forget readers (`dledger readers forget`)",
    ),
    ResponseCode.MACHINE_STOPPED: CodeHelp(
        "the state machine of the member has stopped: [machines](machines.md). The command is not in the "
        "log",
        "read the reason in the log of the member or in `/status`, mend the machine, restart the member",
    ),
    ResponseCode.LEASE_HELD: CodeHelp(
        "other processes of a named reader have what there is to read: [readers](readers.md)",
        "wait, or end them",
    ),
    ResponseCode.LEASE_LOST: CodeHelp(
        "the lease of a process of a named reader is over: another one has its entries, or may get "
        "them, or an operator has moved the reader. Nothing was committed",
        "open the reader again",
    ),
    ResponseCode.COMMAND_REFUSED: CodeHelp(
        "the state machine has refused a command, with a reason: the command is in the log, and has changed "
        "nothing; see [machines](machines.md#refused-commands)",
        "nothing; the same command again is refused again, or not, as the state is then",
    ),
    ResponseCode.TOO_MANY_CLIENTS: CodeHelp(
        "a member has no place for this connection: all are taken, or its address has its share. METADATA "
        "says which. Nothing was done, and the connection ends",
        "our clients try again, and other members; close connections, or raise `max_connections`, "
        "the limit of descriptors",
    ),
    ResponseCode.GROUP_RESTORED: CodeHelp(
        "not sent: a client that reads meets the log of another group than before, "
        "[restored](operations.md#backup) or forced to begin anew",
        "open the log again, and begin where the program's own state ends",
    ),
    ResponseCode.INTERNAL_ERROR: CodeHelp("from Java members and clients", "read its log"),
    ResponseCode.TERM_CHANGED: CodeHelp(
        "leadership ended while the append waited, and the outcome was not seen within "
        "2.5 s: **unknown** whether it will commit",
        "read the log before sending it again",
    ),
    ResponseCode.WAIT_QUORUM_ACK_TIMEOUT: CodeHelp(
        "no majority in time: **unknown** whether it will commit",
        "read the log before sending it again; look at the followers",
    ),
    ResponseCode.LEADER_PENDING_FULL: CodeHelp("too much is waiting for the commit", "slow down, try again"),
    ResponseCode.ILLEGAL_MEMBER_STATE: CodeHelp(
        "the member starts, stops, or has diverged from its leader; a message of a member whose address "
        "does not answer (`sender-absent` in the log); from Java members: an assertion failed",
        "read its log",
    ),
    ResponseCode.LEADER_NOT_READY: CodeHelp(
        "a read arrived before the new leader's first commit, and that commit took too long",
        "try again",
    ),
    ResponseCode.LEADER_TRANSFERRING: CodeHelp(
        "leadership is being handed over; to a request for a transfer also: this leader took over by a "
        "transfer less than 3 s ago, or its last transfer failed less than 10 s ago",
        "try again shortly",
    ),
}


def cause_of(code: ResponseCode) -> str:
    """The cause of an outcome as plain text."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", CODE_HELP[code].cause).replace("**", "").replace("`", "")
