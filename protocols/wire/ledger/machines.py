# -*- test-case-name: tests.wire.test_machine_entries,tests.wire.test_messages -*-
"""
State machines on the wire: the messages about them (commands, queries, snapshots, entries to skip), and what
a member reports of its machine in METADATA: JSON in one text. All is ours.

Members that know nothing of a field of that text leave it out; those that know of more ignore the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

import attrs

from protocols.wire.errors import BodyError
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import Request, Response, Role
from protocols.wire.values import value_class

#: Characters of the text, at most; of a name; and digests in it.
REPORTED_MACHINE_CHARACTERS_MAX = 4096
_NAME_CHARACTERS_MAX = 255
DIGESTS_MAX = 8


@attrs.frozen(kw_only=True)
class ReportedMachine:
    """
    @ivar name, version: of the machine.
    @ivar state: as of L{dledger.node.reporting.status.MachineStatus}.
    @ivar applied_index: last entry in its state; -1 for none.
    @ivar failed_index: the entry at which it failed; -1 for none.
    @ivar newest_only: while members run different versions, only those with the highest one answer queries.
    @ivar digests: index to a digest of the state after that entry, hexadecimal; of the last few.
    """

    name: str
    version: int
    state: str
    applied_index: int = -1
    failed_index: int = -1
    newest_only: bool = False
    digests: Mapping[int, str] = attrs.Factory(dict)

    @property
    def runs(self) -> bool:
        """Whether it applies entries."""
        return self.state == "running"


def encode_reported_machine(reported: ReportedMachine) -> str:
    """As a text."""
    return json.dumps({
        "name": reported.name, "version": reported.version, "state": reported.state,
        "applied": reported.applied_index,
        "failedAt": reported.failed_index, "newestOnly": reported.newest_only,
        "digests": {str(index): digest for index, digest in sorted(reported.digests.items())[-DIGESTS_MAX:]},
    }, separators=(",", ":"), sort_keys=True)


def decode_reported_machine(text: str) -> ReportedMachine | None:
    """
    From a text of another member; None: it is empty, the member runs no machine.

    @raise BodyError: it is malformed.
    """
    if not text:
        return None
    try:
        reported = json.loads(text)
        digests = {int(index): str(digest)[:64] for index, digest in reported.get("digests", {}).items()}
        return ReportedMachine(
            name=str(reported["name"])[:_NAME_CHARACTERS_MAX], version=int(reported["version"]),
            state=str(reported["state"])[:16], applied_index=int(reported.get("applied", -1)),
            failed_index=int(reported.get("failedAt", -1)), newest_only=reported.get("newestOnly") is True,
            digests=dict(sorted(digests.items())[-DIGESTS_MAX:]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BodyError(f"machine: {type(error).__name__}: {error}") from None


@value_class(kw_only=True)
class SubmitRequest(Request):
    """
    Append a command, and answer with what the state machine of the leader made of it.

    @ivar command: None: the request has none, and is refused.
    @ivar producer, sequence: as of L{AppendOnceRequest}: the command is applied once however often it is
        sent, and each answer has the first result. An empty C{producer}: it is sent once.
    @ivar is_again: it may be in the log: if the log may have forgotten the producer, it is not appended.
    """

    kind: ClassVar[RequestCode] = RequestCode.SUBMIT
    role: ClassVar[Role] = "append"
    price: ClassVar[int] = 8
    command: bytes | None = None
    producer: str = ""
    sequence: int = -1
    is_again: bool = False


@value_class(kw_only=True)
class SubmitResponse(Response):
    """
    @ivar index: of the entry; -1 if it is not known to be in the log.
    @ivar result: what the machine returned; None unless SUCCESS.
    @ivar reason: why there is none.
    @ivar last_sequence: SEQUENCE_GAP, SEQUENCE_FORGOTTEN: the last one of the producer; else -1.
    """

    kind: ClassVar[RequestCode] = RequestCode.SUBMIT
    last_sequence: int = -1
    index: int = -1
    result: bytes | None = None
    reason: str = ""


@value_class(kw_only=True)
class QueryRequest(Request):
    """
    Ask the state machine of a member.

    @ivar query: None: the request has none, and is refused.
    @ivar max_age_ms: milliseconds by which the state may be old, at any member; -1: linearizable, at the
        leader.
    """

    kind: ClassVar[RequestCode] = RequestCode.QUERY
    role: ClassVar[Role] = "read"
    price: ClassVar[int] = 8
    query: bytes | None = None
    max_age_ms: int = -1


@value_class(kw_only=True)
class QueryResponse(Response):
    """
    @ivar result: what the machine answered; None unless SUCCESS.
    @ivar applied_index: last index that the machine had applied; -1 unless SUCCESS.
    @ivar age_ms: age of the state in milliseconds, at most; -1 unless SUCCESS.
    @ivar reason: why there is no answer.
    """

    kind: ClassVar[RequestCode] = RequestCode.QUERY
    result: bytes | None = None
    applied_index: int = -1
    age_ms: int = -1
    reason: str = ""


@value_class(kw_only=True)
class SnapshotRequest(Request):
    """
    A member asks another one for a piece of a snapshot of its state machine, or of the state of the group.
    C{local_id} names the asker.

    @ivar machine, machine_version: of the machine that the asker runs; empty: the state of the group is
        asked for.
    @ivar oldest_version: of snapshots that this machine takes; -1: only its own.
    @ivar index, index_term: last entry in the snapshot, and its term; -1: the newest one.
    @ivar offset: where the piece begins in the file, bytes.
    """

    kind: ClassVar[RequestCode] = RequestCode.SNAPSHOT
    role: ClassVar[Role] = ""
    price: ClassVar[int] = 16
    machine: str = ""
    machine_version: int = -1
    oldest_version: int = -1
    index: int = -1
    index_term: int = -1
    offset: int = 0


@value_class(kw_only=True)
class SnapshotResponse(Response):
    """
    @ivar index, index_term: of the snapshot; -1 unless SUCCESS.
    @ivar size: bytes of the file.
    @ivar offset: where the piece begins.
    @ivar data: the piece; None: nothing may be sent now, the asker is to ask again.
    @ivar crc: CRC-32 of the piece.
    @ivar reason: why there is none.
    """

    kind: ClassVar[RequestCode] = RequestCode.SNAPSHOT
    index: int = -1
    index_term: int = -1
    size: int = 0
    offset: int = 0
    data: bytes | None = None
    crc: int = 0
    reason: str = ""


@value_class(kw_only=True)
class SkipRequest(Request):
    """
    Write into the log that no state machine applies an entry.

    @ivar index: of the entry; the machine of the leader has failed there.
    """

    kind: ClassVar[RequestCode] = RequestCode.SKIP
    role: ClassVar[Role] = "admin"
    price: ClassVar[int] = 8
    index: int = -1


@value_class(kw_only=True)
class SkipResponse(Response):
    """
    @ivar index: of the order in the log; -1 unless SUCCESS.
    @ivar reason: why it is refused.
    """

    kind: ClassVar[RequestCode] = RequestCode.SKIP
    index: int = -1
    reason: str = ""
