# -*- test-case-name: tests.node.test_door -*-
"""Tokens of clients: what they allow, where, and what becomes of it when the file changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.rights import NO_RIGHTS, ClientRole, Rights
from dledger.base.tokens import ClientTokenFile, new_token
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.messages import (
    AppendRequest,
    GetRequest,
    HeartBeatRequest,
    LeadershipTransferRequest,
    MetadataRequest,
)
from tests.node.rig import FakeClient, Rig

FORBIDDEN = ResponseCode.FORBIDDEN


class DoorCase(SynchronousTestCase):
    """A leader that leads alone, and a file of tokens."""

    rights: Rights | None = NO_RIGHTS

    def setUp(self) -> None:
        self.rig = Rig().lead()
        self.path = Path(self.mktemp())
        self.written = 0
        self.texts: dict[str, str] = {}
        self.write(reader=(ClientRole.READ, ()), writer=(ClientRole.APPEND, ()), ops=(ClientRole.ADMIN, ()),
                   here=(ClientRole.READ, ("x", "default")), there=(ClientRole.ADMIN, ("other, group",)))
        self.guard()

    def guard(self) -> None:
        """The member looks at certificates, and at tokens."""
        rights = self.rights
        rights_of = None if rights is None else (lambda connection: rights)
        self.rig.node.router.door.judge_with(rights_of, ClientTokenFile(str(self.path)))

    def write(self, **tokens: tuple[ClientRole, tuple[str, ...]]) -> None:
        """Put these tokens into the file, new ones except those that are known."""
        lines = []
        for name, (role, groups) in tokens.items():
            token, line = new_token(name, role, groups)
            if name in self.texts:
                known = [one for one in self.lines if one.startswith(f"{name} ")][0].split()[2]
                line = line.replace(line.split()[2], known)
            else:
                self.texts[name] = token
            lines.append(line)
        self.lines = lines
        self.path.write_text("".join(lines))
        self.written += 1
        os.utime(self.path, (self.written, self.written))

    def show(self, client: FakeClient, token: str, **fields: Any) -> Any:
        """The first request of a connection, and its answer."""
        return client.ask(MetadataRequest(token=token, **self.rig.base(**fields)), native=False)

    def may(self, client: FakeClient) -> list[bool]:
        """Whether it may read, append and administer."""
        base, asked = self.rig.base(), []
        for request in (
            GetRequest(begin_index=0, **base), AppendRequest(bodies=(b"a",), **base),
            LeadershipTransferRequest(transfer_id="n0", transferee_id="n7", **base),
        ):
            client.send(request)
            asked.append([answer.code for answer in client.answers()] != [FORBIDDEN])
        return asked

    def with_token(self, name: str) -> FakeClient:
        """A client that has shown it."""
        client = self.rig.client()
        self.assertEqual(self.show(client, self.texts[name]).code, 200)
        return client


class TokenTests(DoorCase):
    """On connections without rights of their own."""

    def test_roles(self) -> None:
        """As those of certificates; in this group."""
        for name, allowed in (
            ("reader", [True, False, False]), ("writer", [True, True, False]), ("ops", [True, True, True]),
            ("here", [True, False, False]),
        ):
            self.assertEqual(self.may(self.with_token(name)), allowed, name)

    def test_missing(self) -> None:
        """METADATA only, and what a token gave to another connection gives nothing here."""
        self.with_token("ops")
        client = self.rig.client()
        self.assertEqual(self.may(client), [False] * 3)
        self.assertEqual(client.ask(MetadataRequest(**self.rig.base())).code, 200)

    def test_strangers(self) -> None:
        """By TLS without a certificate: METADATA alone makes nobody known; a token does."""
        self.rights = Rights(members=frozenset(), roles=frozenset())
        self.guard()
        client = self.rig.client()
        client.ask(MetadataRequest(**self.rig.base()), native=False)
        self.assertFalse(client.connection.account.is_proven)
        self.show(client, self.texts["reader"])
        self.assertTrue(client.connection.account.is_proven)

    def test_wrong(self) -> None:
        """Refused with a reason that has no token; so is one of another group. The log has neither."""
        client = self.rig.client()
        with capturedLogs() as logs:
            for token in ("wrong", self.texts["ops"][:-1], self.texts["there"], self.lines[2].split()[2]):
                self.assertIs(self.show(client, token).code, FORBIDDEN)
        self.assertEqual(self.may(client), [False] * 3)
        self.assertEqual(self.rig.node.status().reports["token-refused"], 4)
        self.assertNotIn(self.texts["there"], repr(logs))
        self.assertNotIn(self.texts["ops"], repr(MetadataRequest(token=self.texts["ops"])))

    def test_wrong_after_right(self) -> None:
        """It takes nothing away; a second right one replaces the first."""
        client = self.with_token("writer")
        self.show(client, "wrong")
        self.assertEqual(self.may(client), [True, True, False])
        self.show(client, self.texts["reader"])
        self.assertEqual(self.may(client), [True, False, False])

    def test_together(self) -> None:
        """Token and request in one read."""
        client = self.rig.client()
        base = self.rig.base()
        client.send(GetRequest(begin_index=0, **base), MetadataRequest(token=self.texts["reader"], **base),
                    GetRequest(begin_index=0, **base), native=False)
        codes = [answer.code for answer in client.answers()]
        self.assertEqual(sorted(map(int, codes))[:1], [200])
        self.assertEqual(codes.count(FORBIDDEN), 1)

    def test_withdrawn(self) -> None:
        """Connections end whose token is gone, or grants something else; the others go on."""
        clients = {name: self.with_token(name) for name in ("reader", "writer", "ops")}
        door = self.rig.node.router.door
        door.refresh()
        self.assertTrue(all(client.connection.is_open for client in clients.values()))
        self.write(reader=(ClientRole.READ, ()), writer=(ClientRole.READ, ()), new=(ClientRole.ADMIN, ()))
        door.refresh()
        self.rig.clock.advance(0)
        self.assertEqual([client.connection.is_open for client in clients.values()], [True, False, False])
        self.assertEqual(self.rig.node.status().reports["token-withdrawn"], 2)
        self.assertIs(self.show(self.rig.client(), self.texts["ops"]).code, FORBIDDEN)
        self.assertEqual(self.may(self.with_token("new")), [True] * 3)
        self.assertEqual(self.may(clients["reader"]), [True, False, False])

    def test_looked_at(self) -> None:
        """Every ten seconds."""
        client = self.with_token("ops")
        self.write(reader=(ClientRole.READ, ()))
        self.rig.clock.pump([0.5] * 24)
        self.assertFalse(client.connection.is_open)

    def test_unsound(self) -> None:
        """The old tokens stay; said once."""
        client = self.with_token("writer")
        self.path.write_text("nonsense\n")
        with capturedLogs() as logs:
            self.rig.node.router.door.refresh()
            self.rig.node.router.door.refresh()
        self.assertEqual(len(logs), 1)
        self.assertEqual(self.may(client), [True, True, False])

    def test_certificate_besides(self) -> None:
        """The token adds to the certificate's roles."""
        self.rights = Rights(members=frozenset(), roles=frozenset({ClientRole.READ}), who="CN=bob")
        self.guard()
        client = self.rig.client()
        self.assertEqual(self.may(client), [True, False, False])
        self.show(client, self.texts["writer"])
        self.assertEqual(self.may(client), [True, True, False])

    def test_it_is_no_member(self) -> None:
        """A token of an administrator does not let its holder speak for one."""
        rig = self.rig = Rig(peers="n0-h:1;n1-h:2;n2-h:3")
        rig.node.start()
        self.guard()
        client = self.with_token("ops")
        client.send(HeartBeatRequest(local_id="n1", leader_id="n1", term=5, **rig.base()))
        client.answers()
        self.assertFalse(client.connection.is_open)
        self.assertEqual(rig.node.status().member.term, 0)


class PlainTests(DoorCase):
    """Without TLS: members are known by what they say."""

    rights = None

    def test_roles(self) -> None:
        """As by TLS."""
        self.assertEqual(self.may(self.rig.client()), [False] * 3)
        self.assertEqual(self.may(self.with_token("writer")), [True, True, False])

    def test_members(self) -> None:
        """They need no token."""
        rig = self.rig = Rig(peers="n0-h:1;n1-h:2;n2-h:3")
        rig.node.start()
        self.guard()
        client = rig.client()
        beat = HeartBeatRequest(local_id="n1", leader_id="n1", term=5, **rig.base())
        self.assertEqual(client.ask(beat).code, 200)
        transfer = LeadershipTransferRequest(
            local_id="n1", transfer_id="n1", transferee_id="n0", term=5, **rig.base())
        client.send(transfer)
        self.assertNotIn(FORBIDDEN, [answer.code for answer in client.answers()])

    def test_no_tokens(self) -> None:
        """A member without a file takes any token for nothing, as everybody may do everything."""
        rig = self.rig = Rig().lead()
        client = rig.client()
        self.assertEqual(self.show(client, "any").code, 200)
        self.assertEqual(self.may(client), [True] * 3)
