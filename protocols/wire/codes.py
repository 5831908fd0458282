# -*- test-case-name: tests.wire.test_codes -*-
"""
Outcomes of calls, for both products: an error has one, a member sends it as the code of an answer.

A broker maps them to RemotingCommand codes where it answers RocketMQ's clients. Numbers and names below 500
that are not marked I{ours} are those of Java DLedger 0.3.1.2, so that logs stay searchable and peers
understand each other.

Source: DLedgerResponseCode.
"""

from __future__ import annotations

from enum import IntEnum


class ResponseCode(IntEnum):
    """Outcome of a request. 2xx: done; 3xx: not delivered; 4xx: refused; 5xx: unknown, or a server fault."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    METADATA_ERROR = 301
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_REQUEST = 412
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    INDEX_LESS_THAN_LOCAL_BEGIN = 419
    REQUEST_WITH_EMPTY_BODYS = 420
    PUSH_REQUEST_IS_FULL = 421
    FORBIDDEN = 440  # ours: the certificate of the connection does not allow the request
    CONFLICT = 441  # ours: the log does not end where an append expects it to
    SEQUENCE_GAP = 442  # ours: a sequence of this producer is missing before the one of an append
    UNKNOWN_PRODUCER = 443  # ours: a producer goes on that the log has never had
    SEQUENCE_FORGOTTEN = 444  # ours: the sequence is known; its index is not, or it has expired
    MACHINE_STOPPED = 445  # ours: the state machine of the member has stopped
    LEASE_HELD = 446  # ours: another process of this reader reads, or too many do
    LEASE_LOST = 447  # ours: the lease of a process of a reader is over, and another may have it
    COMMAND_REFUSED = 449  # ours: the state machine has refused a command, which is in the log
    TOO_MANY_CLIENTS = 448  # ours: a member has no place for this connection, and did nothing that it asked
    GROUP_RESTORED = 450  # ours, not sent: a client meets another group's log than before
    SEQUENCE_TAKEN = 451  # ours: the log has another body with this sequence
    PRODUCER_FORGOTTEN = 452  # ours: a producer goes on that the log does not know, or not any more
    PRODUCERS_FULL = 453  # ours: the group remembers as many producers as it can, and takes no new one
    SHARE_FULL = 454  # ours: an account or address has its share of the producers or readers of the group
    READERS_FULL = 455  # ours: the group has room for no other reader
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506
