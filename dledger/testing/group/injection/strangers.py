# -*- test-case-name: tests.sim.test_faults -*-
"""
A stranger who speaks to the members of a group: well-formed requests of any content, and garbage.

It is not a member, and says so or nothing; it must disturb nobody.
"""

from __future__ import annotations

import random
from base64 import b64encode

from twisted.internet.protocol import Protocol

from dledger.base.serving.endpoints import connect_with
from dledger.testing.group.injection.frames import corrupt
from dledger.testing.group.members.cluster import SECOND_US, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.world.process import SimProcess
from dledger.testing.world.streams import StreamClient
from protocols.wire.ledger.bounds import INDEX_MAX
from protocols.wire.ledger.codes import Consistency, PushType
from protocols.wire.ledger.java.json_bodies import encode_request
from protocols.wire.ledger.machines import QueryRequest, SkipRequest, SnapshotRequest, SubmitRequest
from protocols.wire.ledger.messages import (
    AppendIfRequest,
    AppendOnceRequest,
    AppendRequest,
    BeginStateRequest,
    GetRequest,
    HeartBeatRequest,
    LeadershipTransferRequest,
    MembershipRequest,
    MessageFields,
    MetadataRequest,
    PullRequest,
    PushEntryRequest,
    ReaderRequest,
    Request,
    SequenceRequest,
    VoteRequest,
)
from protocols.wire.ledger.push import encode_request_frame
from protocols.wire.remoting import RemotingCommand, encode_command

#: The name of a member that there is not.
NOBODY = "n9"


_DOES = ("take", "take", "renew", "commit", "release", "move", "forget", "list", "dance")
_NUMBERS = (-1, 0, 1, 7, 1000, (1 << 31) - 1, INDEX_MAX)


def any_request(rng: random.Random, *, group: str, member_id: str, term: int) -> Request:
    """A well-formed request with numbers of any size, in the name of nobody."""
    base: MessageFields = {
        "group": group, "remote_id": member_id, "term": max(term + rng.choice((-1, 0, 1, 1000)), 0),
        "local_id": rng.choice((None, NOBODY)), "leader_id": NOBODY,
        "wire_version": rng.choice((0, 1)),
    }
    index = rng.choice(_NUMBERS)
    return rng.choice((
        MetadataRequest(**base),
        GetRequest(**base, begin_index=index, consistency=rng.choice(list(Consistency))),
        PullRequest(**base, begin_index=index, end_index=rng.choice(_NUMBERS),
                    max_bytes=rng.choice((0, 1, 1 << 20)), wait_ms=rng.choice((0, 500, 1 << 20))),
        VoteRequest(**base, ledger_end_index=index, ledger_end_term=term, pre_vote=rng.random() < 0.5),
        HeartBeatRequest(**base, heart_beat_interval_ms=rng.choice((0, 1, 600))),
        PushEntryRequest(**base, type=PushType.COMMIT, commit_index=index),
        LeadershipTransferRequest(**base, transfer_id=NOBODY, transferee_id=member_id),
    ))


def any_clients_request(rng: random.Random, *, group: str, member_id: str, body: bytes) -> Request:
    """
    A well-formed request that a client or an operator may send, with fields that make no sense together.

    @param body: of an entry, if it appends one.
    """
    base: MessageFields = {
        "group": rng.choice((group, group, group, "another")), "remote_id": member_id, "wire_version": 1,
        "local_id": rng.choice((None, None, NOBODY)), "leader_id": None, "term": 0,
    }
    index, text = rng.choice(_NUMBERS), rng.choice(("", "stranger", "x" * 300, "a b\n"))
    return rng.choice((
        AppendRequest(**base, bodies=rng.choice(((body,), ()))),
        AppendIfRequest(**base, body=rng.choice((None, body)), expected_end=index),
        AppendOnceRequest(**base, bodies=(body,), producer=text, sequence=index),
        ReaderRequest(**base, does=rng.choice(_DOES), name=text, holder=rng.choice(("", "stranger")),
                      token=index, index=rng.choice(_NUMBERS), lease_ms=rng.choice((-1, 0, 500)),
                      share=rng.choice((-1, 0, 3))),
        SubmitRequest(**base, command=rng.choice((None, body)), producer=text),
        QueryRequest(**base, query=rng.choice((None, b"r0")), max_age_ms=rng.choice((-1, 0, 500))),
        SnapshotRequest(**base, machine=text, index=index),
        SkipRequest(**base, index=index),
        BeginStateRequest(**base, insists=rng.random() < 0.5),
        SequenceRequest(**base, producer=text),
        MembershipRequest(**base, change=rng.choice(("add", "remove", "dance")),
                          member_id=rng.choice((NOBODY, member_id)), address=rng.choice(("", "n9.sim:20911")),
                          is_forced=rng.random() < 0.5),
    ))


def _in_json(request: Request, opaque: int) -> bytes:
    command = RemotingCommand(
        code=int(request.kind), opaque=opaque, ext_fields={}, body=encode_request(request)
    )
    return encode_command(command)


class _Reporter(Protocol):
    """Says something, and does not listen."""

    def __init__(self, words: bytes) -> None:
        self._words = words

    def connectionMade(self) -> None:
        """Say it."""
        assert self.transport is not None
        self.transport.write(self._words)

    def hang_up(self) -> None:
        """End the connection, if there is one."""
        if self.transport is not None:
            self.transport.loseConnection()


class Stranger:
    """A host that is not a member."""

    is_dying = False

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("stranger")
        self._process = SimProcess(cluster.clock, self._rng, self)
        self._asked = 0

    def event_ended(self) -> None:
        """See L{dledger.testing.world.process.ProcessOwner.event_ended}."""
        self._cluster.bugs.notify()

    def ask(self) -> None:
        """Ask a member as a client and as an operator; the members do not know this host as either."""
        cluster, rng = self._cluster, self._rng
        member = rng.choice(list(cluster.members.values()))
        words = b""
        for number in range(1 + int(rng.random() * 8)):
            self._asked += 1
            body = b"stranger.%d" % self._asked
            request = any_clients_request(
                rng, group=member.config.group, member_id=member.member_id, body=body,
            )
            # (It hears no answer: an append may have come into the log, or not.)
            cluster.history.begin("append", client="stranger", body=body)
            is_in_json = not isinstance(request, AppendRequest) or rng.random() < 0.5
            # (Of these, an append alone has a native frame.)
            frame = _in_json(request, number + 1) if is_in_json else encode_request_frame(request, number + 1)
            is_spoilt = rng.random() < 0.2 and body not in frame and b64encode(body) not in frame
            words += corrupt(frame, rng) if is_spoilt else frame
        self._say(member, words)

    def crowd(self) -> None:
        """
        Connect to a member many times: with bodies that no file has room for, and with waits for entries.
        None of the bodies may come into the log.
        """
        cluster, rng = self._cluster, self._rng
        member = rng.choice(list(cluster.members.values()))
        base: MessageFields = {
            "group": member.config.group, "remote_id": member.member_id, "wire_version": 1, "local_id": None,
            "leader_id": None, "term": 0,
        }
        body = bytes(member.config.body_bytes_max + 1)
        end = cluster.invariants.last_committed
        for _ in range(2 + int(rng.random() * 6)):
            wait = PullRequest(**base, begin_index=end + 1 + int(rng.random() * 40), end_index=INDEX_MAX,
                               max_bytes=1 << 20, wait_ms=rng.choice((500, 1 << 20)))
            count = rng.choice((1, 1, 1, 300))
            words = b"".join(encode_request_frame(wait, number + 1) for number in range(count))
            large = rng.choice((
                AppendRequest(**base, bodies=(b"small", body)), SubmitRequest(**base, command=body),
                AppendOnceRequest(**base, bodies=(body,), producer="stranger", sequence=1),
            ))
            is_native = isinstance(large, AppendRequest)  # (in JSON it would carry one body)
            words += encode_request_frame(large, 1000) if is_native else _in_json(large, 1000)
            self._say(member, words)

    def speak(self) -> None:
        """Connect to a member, say some things, and stay for a while."""
        cluster, rng = self._cluster, self._rng
        member = rng.choice(list(cluster.members.values()))
        words = b""
        for number in range(1 + int(rng.random() * 5)):
            words += encode_request_frame(any_request(
                rng, group=member.config.group, member_id=member.member_id, term=member.persisted_term,
            ), number + 1)
        chance = rng.random()
        if chance < 0.2:
            words += rng.randbytes(1 + int(rng.random() * 100))
        elif chance < 0.4:
            words = words[: int(rng.random() * len(words))]
        self._say(member, words)

    def _say(self, member: SimMember, words: bytes) -> None:
        cluster, rng = self._cluster, self._rng
        reporter = _Reporter(words)
        there = StreamClient(cluster.network, "stranger", self._process, member.member_id)
        connect_with(there, reporter).addErrback(lambda _: None)
        us = int(rng.random() * 20 * SECOND_US)
        cluster.clock.after(us, self._process.run, self, reporter.hang_up)
