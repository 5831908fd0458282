# -*- test-case-name: tests.interop.test_java_group -*-
"""
Our codecs against three real Java members: each side understands the other's messages.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.storage.start.verify import verify_directory
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import bodies_of
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    LeadershipTransferRequest,
    MetadataRequest,
    MetadataResponse,
)
from tests.interop.java import JavaMember, JavaMissing, class_path, wait_leader
from tests.processes.asking import Asker, NoAnswer, ask
from tests.processes.children import free_ports
from tests.processes.ledgers import assert_identical, read_records


class JavaGroupTests(SynchronousTestCase):
    """Three Java members, asked by our codecs. One group serves all tests: a JVM takes seconds to start."""

    group = "interop"
    members: ClassVar[dict[str, JavaMember]] = {}
    peers: ClassVar[dict[str, str]] = {}
    left: ClassVar[set[str]] = set()

    def setUp(self) -> None:
        """The first test starts the group."""
        if not self.members:
            self.start_group()
        self.addCleanup(self.end_group)

    @classmethod
    def start_group(cls) -> None:
        """Start the members and wait for their election."""
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        cls.held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        cls.left = {name for name in dir(cls) if name.startswith("test_")}
        cls.peers = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(3))}
        cls.members = {
            peer_id: JavaMember(
                peer_id, cls.peers, Path(cls.held.name) / peer_id, group=cls.group,
                options={"mappedFileSizeForEntryData": 1 << 16, "mappedFileSizeForEntryIndex": 32 * 100},
            )
            for peer_id in cls.peers
        }
        for member in cls.members.values():
            member.start()
        for member in cls.members.values():
            member.wait_started()
        wait_leader(cls.members)

    def end_group(self) -> None:
        """The last test ends the group; if not all are run, the end of the program does."""
        self.left.discard(self.id().rpartition(".")[2])
        if not self.left:
            for member in self.members.values():
                member.kill()
            self.members.clear()
            self.held.cleanup()

    def leader(self) -> tuple[str, str]:
        """Id and address of the leader."""
        leader_id = wait_leader(self.members)
        return leader_id, self.peers[leader_id]

    def append(self, body: bytes) -> AppendResponse:
        """Append one entry at the leader."""
        leader_id, address = self.leader()
        answer = ask(address, AppendRequest(group=self.group, remote_id=leader_id, bodies=(body,)))
        assert isinstance(answer, AppendResponse)
        self.assertEqual(answer.code, ResponseCode.SUCCESS)
        return answer

    def test_metadata(self) -> None:
        """Every member names the leader and all peers, and claims no native wire."""
        leader_id, _address = self.leader()
        for peer_id, address in self.peers.items():
            answer = ask(address, MetadataRequest(group=self.group, remote_id=peer_id))
            assert isinstance(answer, MetadataResponse)
            self.assertEqual((answer.code, answer.leader_id), (ResponseCode.SUCCESS, leader_id))
            self.assertEqual((answer.peers, answer.wire_version), (self.peers, 0))

    def test_append_and_get(self) -> None:
        """Bodies of all kinds come back unchanged, with consecutive indexes."""
        bodies = [b"", b"a", bytes(range(256)), "Grüße \U0001f40d".encode(), b"x" * 30_000]
        indexes = []
        for body in bodies:
            answer = self.append(body)
            indexes.append(answer.index)
        self.assertEqual(indexes, list(range(indexes[0], indexes[0] + len(bodies))))
        leader_id, address = self.leader()
        for index, body in zip(indexes, bodies, strict=True):
            request = GetRequest(group=self.group, remote_id=leader_id, begin_index=index)
            answer = ask(address, request)
            assert isinstance(answer, GetResponse) and answer.entries is not None
            self.assertEqual(answer.entries.first_index, index)
            self.assertEqual(bodies_of(answer.entries), [body])

    def test_pipelined(self) -> None:
        """Many requests are sent before the first answer: each is answered, by its opaque."""
        leader_id, address = self.leader()
        with Asker(address, seconds=20.0) as asker:
            bodies = [b"pipelined %d" % number for number in range(200)]
            asked = [
                asker.send(AppendRequest(group=self.group, remote_id=leader_id, bodies=(body,)))
                for body in bodies
            ]
            answers = [asker.collect(opaque) for opaque in asked]
        self.assertEqual({answer.code for answer in answers}, {ResponseCode.SUCCESS})
        indexes = [answer.index for answer in answers if isinstance(answer, AppendResponse)]
        self.assertEqual(len(set(indexes)), len(bodies))

    def test_refusals(self) -> None:
        """Java's refusals arrive as codes."""
        leader_id, address = self.leader()
        follower_id = next(peer_id for peer_id in self.peers if peer_id != leader_id)
        for to, request, code in (
            (address, MetadataRequest(group="other", remote_id=leader_id), ResponseCode.UNKNOWN_GROUP),
            (address, MetadataRequest(group=self.group, remote_id="n9"), ResponseCode.UNKNOWN_MEMBER),
            (self.peers[follower_id],
             AppendRequest(group=self.group, remote_id=follower_id, bodies=(b"a",)), ResponseCode.NOT_LEADER),
            (address, GetRequest(group=self.group, remote_id=leader_id, begin_index=10**9),
             ResponseCode.INDEX_OUT_OF_RANGE),
        ):
            self.assertEqual(ask(to, request).code, code)

    def test_no_body_is_a_remoting_error(self) -> None:
        """Java answers an append without a body by a frame without a body; that is a separate error."""
        leader_id, address = self.leader()
        error = self.assertRaises(
            NoAnswer, ask, address, AppendRequest(group=self.group, remote_id=leader_id, bodies=())
        )
        self.assertIn("remoting error 1", str(error))

    def test_transfer(self) -> None:
        """Leadership is transferred on our request, and the new leader accepts appends."""
        self.append(b"before the transfer")
        leader_id, address = self.leader()
        other_id = next(peer_id for peer_id in self.peers if peer_id != leader_id)
        request = LeadershipTransferRequest(
            group=self.group, remote_id=leader_id, transfer_id=leader_id, transferee_id=other_id,
            term=int(self.members[leader_id].status()["term"]),
        )
        self.assertEqual(ask(address, request, seconds=12.0).code, ResponseCode.SUCCESS)
        self.assertEqual(self.leader()[0], other_id)
        self.append(b"after the transfer")

    def test_files_are_read(self) -> None:
        """The members' directories hold the appended bodies, over several small files."""
        bodies = [b"%d " % number * 50 for number in range(300)]
        indexes = [self.append(body).index for body in bodies[:1]]
        leader_id, address = self.leader()
        with Asker(address, seconds=20.0) as asker:
            for body in bodies[1:]:
                answer = asker.ask(AppendRequest(group=self.group, remote_id=leader_id, bodies=(body,)))
                assert isinstance(answer, AppendResponse)
                indexes.append(answer.index)
        paths = [member.directory / f"dledger-{peer_id}" for peer_id, member in self.members.items()]
        committed = min(int(member.status()["end"]) for member in self.members.values())
        assert_identical(paths, committed)
        found = {record.index: record.body for record in read_records(paths[0])}
        for index, body in zip(indexes, bodies, strict=True):
            if index <= committed:
                self.assertEqual(found[index], body)
        self.assertGreater(len(list((paths[0] / "data").iterdir())), 1)
        for path in paths:
            self.assertEqual(verify_directory(OsDisk(), str(path)).findings, [])
