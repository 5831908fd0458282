# -*- test-case-name: tests.node.test_embedding -*-
"""A program in the process of a member hears of commits and roles, and alone appends."""

from __future__ import annotations

import random

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.broker_hooks import Embedding
from dledger.node.connections.server import MemberServer
from dledger.node.host import MemberHost, NodeFiles
from dledger.node.node import Node
from dledger.storage.files.records import BodyStamps
from dledger.storage.files.term_file import TermVote
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendRequest
from tests.node.rig import FakeClient, FakePeers, FakeThread, ForgetfulTerms, Rig


class NamedTerms(BodyStamps):
    """Terms begin with a body."""

    term_start_body = b"a term begins"


class EmbeddingTests(SynchronousTestCase):
    """One member with a program."""

    def setUp(self) -> None:
        self.heard: list[str] = []
        self.rig = Rig()
        config = DLedgerConfig(bootstrap=True, mapped_file_size_for_entry_data=65536,
                               mapped_file_size_for_entry_index=32000)
        self.clock = Clock()
        self.store = FileStore.open(config, MemoryDisk())
        self.store.append_bodies((b"of an earlier term",), 1)
        self.node = Node(
            config=config,
            files=NodeFiles(store=self.store, terms=ForgetfulTerms(), vote=TermVote(term=1)),
            host=MemberHost(
                clock=self.clock, rng=random.Random(1), run_in_thread=FakeThread().run,
                wall_clock=lambda: (1e9, 4),
            ),
            embedding=Embedding(
                stamps=NamedTerms(), committed=lambda: self.heard.append("committed"),
                role_changed=lambda: self.heard.append("role"),
            ),
        )
        self.server = MemberServer(self.node.router, self.node.turn, note=self.node.note)
        self.rig.clock, self.rig.node, self.rig.server, self.rig.config = (
            self.clock, self.node, self.server, config,
        )
        self.node.connect(peers=FakePeers(self.rig), server=self.server)

    def test_a_program_hears_of_its_role(self) -> None:
        """The program hears of the roles, then of the commit of the entry that begins the term, its own."""
        self.assertFalse(self.node.is_leader)
        self.rig.lead()
        self.clock.advance(0.1)
        self.assertTrue(self.node.is_leader and self.node.is_settled_leader)
        self.assertEqual(self.heard[-1], "committed")
        self.assertIn("role", self.heard[:-1])
        body = self.store.read_range(1, end_index=1, max_bytes=1000).records[48:]
        self.assertEqual(body, NamedTerms.term_start_body)

    def test_an_uncommitted_entry_is_not_settled(self) -> None:
        """A leader with an entry that is not committed is none to build on."""
        self.rig.lead()
        self.clock.advance(0.1)
        self.patch(type(self.node.core), "committed_index", property(lambda _: 0))
        self.assertTrue(self.node.is_leader)
        self.assertFalse(self.node.is_settled_leader)

    def test_appends_of_clients_are_refused(self) -> None:
        """Appends of clients are refused, with the way to go; the program's are taken."""
        self.rig.lead()
        client = FakeClient(self.rig)
        for bodies in ((b"foreign",), ()):
            answer = client.ask(AppendRequest(**self.rig.base(bodies=bodies)), native=False)
            self.assertIs(answer.code, ResponseCode.UNSUPPORTED)
        appended = self.node.append(b"own")
        self.clock.advance(0.1)
        self.assertEqual(self.successResultOf(appended).count, 1)
