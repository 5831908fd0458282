# -*- test-case-name: tests.interop.test_clients -*-
"""
Our client at a group of Java members; and the answers of leaders of each kind to both clients.

Java's client at a group of ours: L{tests.interop.test_java_client}.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import dledger
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import GetRequest, GetResponse
from tests.interop.java import JavaClient, JavaMissing, class_path
from tests.interop.mixed import JAVA, OURS, MixedGroup
from tests.processes.asking import ask


class ClientTests(SynchronousTestCase):
    """A client of one kind, three members of the other."""

    def group_of(self, *kinds: str, **ours: object) -> MixedGroup:
        """A started group that is ended after the test."""
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        group = MixedGroup(self.directory, kinds, ours=ours)
        self.addCleanup(group.kill)
        group.start()
        group.leader()
        return group

    def java_client(self, group: MixedGroup) -> JavaClient:
        """A started client that is ended after the test."""
        client = JavaClient(group.peers, self.directory, group=group.name)
        self.addCleanup(client.kill)
        client.start()
        client.wait_started()
        return client

    def test_uncommitted_side_by_side(self) -> None:
        """W2: Java's leader shows an entry without a majority; ours refuses, to Java's client too."""
        for kind, is_shown in ((JAVA, True), (OURS, False)):
            group = self.group_of(kind, kind, kind)
            client = self.java_client(group)
            group.append(b"committed")
            end_index = group.wait_equal()
            leader_id = group.leader()
            for peer_id, member in group.members.items():
                if peer_id != leader_id:
                    member.pause()
            group.propose(leader_id, [b"uncommitted"])
            request = GetRequest(group=group.name, remote_id=leader_id, begin_index=end_index + 1)
            answer = ask(group.peers[leader_id], request, seconds=10.0)
            assert isinstance(answer, GetResponse)
            self.assertEqual(answer.entries is not None, is_shown, f"{kind}: {answer}")
            if kind is OURS:
                code, body = client.get(end_index + 1)
                self.assertEqual(body, b"")
                self.assertNotEqual(code, ResponseCode.SUCCESS)
            group.kill()

    def test_our_client(self) -> None:
        """Append, read, tail and a transfer through our client, at Java members."""
        group = self.group_of(JAVA, JAVA, JAVA)
        with dledger.connect(group.peers, group=group.name) as log:
            bodies = [b"", b"a", bytes(range(256)), b"x" * 20_000]
            for body in bodies:
                group.acknowledged[log.append(body).index] = body
            summary = log.append_many([b"stream %d" % number for number in range(200)], window=50)
            self.assertEqual(summary.count, 200)
            for index, body in group.acknowledged.items():
                self.assertEqual(log.get(index).body, body)
            error = self.assertRaises(DLedgerError, log.get, 10**6)
            self.assertIs(error.code, ResponseCode.INDEX_OUT_OF_RANGE)
            seen = [entry.body for entry in log.tail(summary.first_index)][:200]
            self.assertEqual(seen, [b"stream %d" % number for number in range(200)])
            leader_id = group.leader()
            other_id = next(peer_id for peer_id in group.peers if peer_id != leader_id)
            log.transfer(other_id, term=log.append(b"which term?").term)
            self.assertEqual(group.leader(), other_id)
            group.acknowledged[log.append(b"after the transfer").index] = b"after the transfer"
        group.check()
