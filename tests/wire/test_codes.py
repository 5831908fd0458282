# -*- test-case-name: tests.wire.test_codes -*-
"""The numbers are Java's."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION, PushType, RequestCode, VoteResult
from protocols.wire.ledger.push_layout import KINDS
from protocols.wire.native import FRAME_VERSION

#: DLedgerResponseCode.java, number and name.
RESPONSE_CODES = """
-1 UNKNOWN 200 SUCCESS 300 TIMEOUT 301 METADATA_ERROR 302 NETWORK_ERROR 303 UNSUPPORTED 400 UNKNOWN_GROUP
401 UNKNOWN_MEMBER 402 UNEXPECTED_MEMBER 403 EXPIRED_TERM 404 NOT_LEADER 405 NOT_FOLLOWER
406 INCONSISTENT_STATE 407 INCONSISTENT_TERM 408 INCONSISTENT_INDEX 409 INCONSISTENT_LEADER
410 INDEX_OUT_OF_RANGE 411 UNEXPECTED_ARGUMENT 412 REPEATED_REQUEST 413 REPEATED_PUSH 414 DISK_ERROR
415 DISK_FULL 416 TERM_NOT_READY 417 FALL_BEHIND_TOO_MUCH 418 TAKE_LEADERSHIP_FAILED
419 INDEX_LESS_THAN_LOCAL_BEGIN 420 REQUEST_WITH_EMPTY_BODYS 421 PUSH_REQUEST_IS_FULL 500 INTERNAL_ERROR
501 TERM_CHANGED 502 WAIT_QUORUM_ACK_TIMEOUT 503 LEADER_PENDING_FULL 504 ILLEGAL_MEMBER_STATE
505 LEADER_NOT_READY 506 LEADER_TRANSFERRING
"""

VOTE_RESULTS = (
    "UNKNOWN", "ACCEPT", "REJECT_UNKNOWN_LEADER", "REJECT_UNEXPECTED_LEADER", "REJECT_EXPIRED_VOTE_TERM",
    "REJECT_ALREADY_VOTED", "REJECT_ALREADY_HAS_LEADER", "REJECT_TERM_NOT_READY",
    "REJECT_TERM_SMALL_THAN_LEDGER", "REJECT_EXPIRED_LEDGER_TERM", "REJECT_SMALL_LEDGER_END_INDEX",
    "REJECT_TAKING_LEADERSHIP",
)


class CodesTests(SynchronousTestCase):
    """Names and numbers are a contract with every other implementation."""

    def test_response_codes(self) -> None:
        """All of Java's. Ours are answered only to what Java does not send."""
        words = RESPONSE_CODES.split()
        ours = {"FORBIDDEN": 440, "CONFLICT": 441, "SEQUENCE_GAP": 442, "UNKNOWN_PRODUCER": 443,
                "SEQUENCE_FORGOTTEN": 444, "MACHINE_STOPPED": 445, "LEASE_HELD": 446,
                "LEASE_LOST": 447, "TOO_MANY_CLIENTS": 448, "COMMAND_REFUSED": 449, "GROUP_RESTORED": 450,
                "SEQUENCE_TAKEN": 451, "PRODUCER_FORGOTTEN": 452, "PRODUCERS_FULL": 453, "SHARE_FULL": 454,
                "READERS_FULL": 455}
        self.assertEqual(
            {code.name: int(code) for code in ResponseCode},
            ours | {name: int(number) for number, name in zip(words[::2], words[1::2], strict=True)},
        )

    def test_request_codes(self) -> None:
        """DLedgerRequestCode."""
        self.assertEqual(
            {code.name: int(code) for code in RequestCode},
            {
                "METADATA": 50000, "APPEND": 50001, "GET": 50002, "VOTE": 51001, "HEART_BEAT": 51002,
                "PULL": 51003, "PUSH": 51004, "LEADERSHIP_TRANSFER": 51005,
                "MEMBERSHIP": 51901,  # ours
                "APPEND_IF": 51902,  # ours
                "APPEND_ONCE": 51903,  # ours
                "SUBMIT": 51911,  # ours
                "QUERY": 51912,  # ours
                "READER": 51913,  # ours
                "SNAPSHOT": 51914,  # ours
                "SKIP": 51915,  # ours
                "BEGIN_STATE": 51916, "SEQUENCE": 51917, "RESET_TIMES": 51918,  # ours
            },
        )

    def test_ordinals(self) -> None:
        """fastjson accepts enums by ordinal, so their order counts."""
        self.assertEqual(tuple(result.name for result in VoteResult), VOTE_RESULTS)
        self.assertEqual([int(result) for result in VoteResult], list(range(12)))
        self.assertEqual([push.name for push in PushType], ["APPEND", "COMMIT", "COMPARE", "TRUNCATE"])
        self.assertEqual([int(push) for push in PushType], [0, 1, 2, 3])

    def test_native_numbers(self) -> None:
        """A kind keeps its number for as long as the version is the same."""
        self.assertEqual((WIRE_VERSION, FRAME_VERSION), (1, 1))
        self.assertEqual(
            {kind.name: number for kind, number in KINDS.items()},
            {
                "METADATA": 1, "APPEND": 2, "GET": 3, "PULL": 4, "VOTE": 5, "HEART_BEAT": 6, "PUSH": 7,
                "LEADERSHIP_TRANSFER": 8, "APPEND_ONCE": 9,
            },
        )
