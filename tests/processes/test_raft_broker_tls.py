# -*- test-case-name: tests.processes.test_raft_broker_tls -*-
"""The member port of brokers on a raft log, by TLS and with accounts: the readers of messages there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dledger
from dledger.base.serving.tokens import new_token
from dledger.base.tls.certificates import issue
from dledger.values.rights import ClientRole
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import GetRequest
from tests.base.keys import KeyRoom
from tests.processes.asking import NoAnswer, ask
from tests.processes.children import peers_text
from tests.processes.raft_brokers import GROUP
from tests.processes.raft_writers import QUEUES, STORED, body_of
from tests.processes.test_raft_broker import TOPIC, RaftCase

COUNT = 12


class MemberPortTests(RaftCase):
    """A group with messages."""

    def begin(self, size: int, **options: Any) -> None:
        """Start it; each member has its own keys if there are any."""
        self.group = self.trio(size=size)
        self.room = KeyRoom(self.group.directory / "keys")
        tokens = self.group.directory / "tokens"
        self.token, line = new_token("reader", ClientRole.READ, (GROUP,))
        tokens.write_text(line)
        for peer_id in self.group.brokers:
            files = self.room.member(peer_id, groups=[GROUP])
            keys = {"tlsCertificate": files.certificate, "tlsKey": files.key, "tlsAuthority": files.authority}
            self.group.brokers[peer_id] = self.group.made(peer_id, **{
                **(keys if options.get("tlsMembersEnable") else {}),
                **({"client_token_file": tokens} if options.get("tokens") else {}),
                **{name: value for name, value in options.items() if name != "tokens"},
            })
        for child in (self.group.name_server, *self.group.brokers.values()):
            child.start()
        self.master = self.group.wait_master()

    def put(self) -> None:
        """Some messages."""
        connection = self.connect(self.group.brokers[self.master])
        for number in range(COUNT):
            connection.put(TOPIC, number % QUEUES, body_of(0, number))
            self.assertEqual(connection.next().code, STORED)

    def read(self, **options: Any) -> int:
        """How many messages a client finds at the member ports."""
        with dledger.connect(peers_text(self.group.peers), timeout=20, group=GROUP, **options) as log:
            found, index = 0, 0
            while found < COUNT:
                found += TOPIC.encode() in log.get(index).body
                index += 1
            return found

    def assert_forbidden(self, **options: Any) -> None:
        """A client with these options reads nothing."""
        error = self.assertRaises(dledger.DLedgerError, self.read, **options)
        self.assertIs(error.code, ResponseCode.FORBIDDEN)

    def test_by_tls(self) -> None:
        """The group replicates by TLS; clients read with a certificate of the role, in the group."""
        self.begin(3, tlsMembersEnable=True, tokens=True)
        self.put()
        self.assertEqual(self.read(tls=self.room.client("reader", ClientRole.READ)), COUNT)
        believing = dledger.TlsFiles(authority=str(self.room.directory / "authority.pem"))
        self.assertEqual(self.read(tls=believing, token=self.token), COUNT)
        other = self.room.keep("other", issue(
            self.room.authority, "other", roles=[ClientRole.READ], groups=["another"], days=1))
        for files in (self.room.client("nobody"), other):
            self.assert_forbidden(tls=files)
        self.assertRaises(NoAnswer, ask, self.group.peers[self.master], GetRequest(
            group=GROUP, remote_id=self.master, begin_index=0))

    def test_with_accounts(self) -> None:
        """Without TLS nobody is known by name: no client reads there. (Another client is the broker's.)"""
        path = Path(self.mktemp())
        path.write_text("globalWhiteRemoteAddresses: ['*']\naccounts: []\n")
        self.begin(1, aclEnable=True, aclFile=path.absolute())
        self.put()
        self.assert_forbidden()
