# -*- test-case-name: tests.node.test_access -*-
"""Tokens of clients: their rights, where, and after a change of their file. Without tokens: addresses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.error import ConnectionDone
from twisted.logger import LogLevel, capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.tokens import ClientTokenFile, new_token
from dledger.node.connections.access import NEEDED
from dledger.values.hosts import ChangeHosts
from dledger.values.rights import NO_RIGHTS, ClientRole, Rights
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.machines import SkipRequest
from protocols.wire.ledger.messages import (
    AppendRequest,
    BeginStateRequest,
    GetRequest,
    HeartBeatRequest,
    LeadershipTransferRequest,
    MembershipRequest,
    MetadataRequest,
    ReaderRequest,
    ResetTimesRequest,
)
from tests.node.rig import FakeClient, Rig

FORBIDDEN = ResponseCode.FORBIDDEN


class AccessCase(SynchronousTestCase):
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
        self.rig.node.router.access.judge_with(rights_of, ClientTokenFile(str(self.path)))

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


class ClosedTests(AccessCase):
    """The member of a program with accounts, where nobody is known by name."""

    def guard(self) -> None:
        """Neither certificates nor tokens."""
        self.close(ChangeHosts())

    def close(self, changers: ChangeHosts, tokens: ClientTokenFile | None = None) -> None:
        """Close it."""
        self.rig.node.router.access.judge_with(None, tokens, changers, is_closed=True)

    def test_a_closed_door_takes_metadata_and_changes(self) -> None:
        """METADATA, and changes from where they may come; nothing else. A token opens it."""
        client = self.rig.client()
        self.assertEqual(self.may(client), [False, False, False])
        self.assertEqual(client.ask(MetadataRequest(**self.rig.base())).code, 200)
        self.close(ChangeHosts(("*",)))
        self.assertEqual(self.may(self.rig.client()), [False, False, True])
        self.close(ChangeHosts(), ClientTokenFile(str(self.path)))
        self.assertEqual(self.may(self.with_token("reader")), [True, False, False])


class TokenTests(AccessCase):
    """On connections without rights of their own."""

    def test_tokens_give_their_roles(self) -> None:
        """As those of certificates; in this group."""
        for name, allowed in (
            ("reader", [True, False, False]), ("writer", [True, True, False]), ("ops", [True, True, True]),
            ("here", [True, False, False]),
        ):
            self.assertEqual(self.may(self.with_token(name)), allowed, name)

    def test_a_missing_token_gives_nothing(self) -> None:
        """METADATA only, and what a token gave to another connection gives nothing here."""
        self.with_token("ops")
        client = self.rig.client()
        self.assertEqual(self.may(client), [False] * 3)
        self.assertEqual(client.ask(MetadataRequest(**self.rig.base())).code, 200)

    def test_metadata_makes_nobody_known(self) -> None:
        """By TLS without a certificate: METADATA alone makes nobody known; a token does."""
        self.rights = Rights(members=frozenset(), roles=frozenset())
        self.guard()
        client = self.rig.client()
        client.ask(MetadataRequest(**self.rig.base()), native=False)
        self.assertFalse(client.connection.account.is_proven)
        self.show(client, self.texts["reader"])
        self.assertTrue(client.connection.account.is_proven)

    def test_a_wrong_token_is_refused(self) -> None:
        """Refused with a reason that has no token; so is one of another group. The log has neither."""
        client = self.rig.client()
        with capturedLogs() as logs:
            for token in ("wrong", self.texts["ops"][:-1], self.texts["there"], self.lines[2].split()[2]):
                self.assertIs(self.show(client, token).code, FORBIDDEN)
        self.assertEqual(self.may(client), [False] * 3)
        self.assertEqual(self.rig.node.status().counts.reports["token-refused"], 4)
        self.assertNotIn(self.texts["there"], repr(logs))
        self.assertNotIn(self.texts["ops"], repr(MetadataRequest(token=self.texts["ops"])))

    def test_wrong_after_right(self) -> None:
        """It takes nothing away; a second right one replaces the first."""
        client = self.with_token("writer")
        self.show(client, "wrong")
        self.assertEqual(self.may(client), [True, True, False])
        self.show(client, self.texts["reader"])
        self.assertEqual(self.may(client), [True, False, False])

    def test_a_token_counts_for_the_same_read(self) -> None:
        """Token and request in one read."""
        client = self.rig.client()
        base = self.rig.base()
        client.send(GetRequest(begin_index=0, **base), MetadataRequest(token=self.texts["reader"], **base),
                    GetRequest(begin_index=0, **base), native=False)
        codes = [answer.code for answer in client.answers()]
        self.assertEqual(sorted(map(int, codes))[:1], [200])
        self.assertEqual(codes.count(FORBIDDEN), 1)

    def test_a_withdrawn_token_ends_its_connections(self) -> None:
        """Connections end whose token is gone, or grants something else; the others go on."""
        clients = {name: self.with_token(name) for name in ("reader", "writer", "ops")}
        access = self.rig.node.router.access
        access.refresh()
        self.assertTrue(all(client.connection.is_open for client in clients.values()))
        self.write(reader=(ClientRole.READ, ()), writer=(ClientRole.READ, ()), new=(ClientRole.ADMIN, ()))
        access.refresh()
        self.rig.clock.advance(0)
        self.assertEqual([client.connection.is_open for client in clients.values()], [True, False, False])
        self.assertEqual(self.rig.node.status().counts.reports["token-withdrawn"], 2)
        self.assertIs(self.show(self.rig.client(), self.texts["ops"]).code, FORBIDDEN)
        self.assertEqual(self.may(self.with_token("new")), [True] * 3)
        self.assertEqual(self.may(clients["reader"]), [True, False, False])

    def test_the_file_is_read_every_ten_seconds(self) -> None:
        """Every ten seconds."""
        client = self.with_token("ops")
        self.write(reader=(ClientRole.READ, ()))
        self.rig.clock.pump([0.5] * 24)
        self.assertFalse(client.connection.is_open)

    def test_an_unsound_file_changes_nothing(self) -> None:
        """The old tokens stay; said once."""
        client = self.with_token("writer")
        self.path.write_text("nonsense\n")
        with capturedLogs() as logs:
            self.rig.node.router.access.refresh()
            self.rig.node.router.access.refresh()
        self.assertEqual(len(logs), 1)
        self.assertEqual(self.may(client), [True, True, False])

    def test_a_token_adds_to_a_certificate(self) -> None:
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


class PlainTests(AccessCase):
    """Without TLS: members are known by the ids that they name."""

    rights = None

    def test_tokens_give_roles_without_tls(self) -> None:
        """As by TLS."""
        self.assertEqual(self.may(self.rig.client()), [False] * 3)
        self.assertEqual(self.may(self.with_token("writer")), [True, True, False])

    def test_members_need_no_token(self) -> None:
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

    def test_changes_of_members(self) -> None:
        """Whoever speaks for a member that is down needs a token for what no member asks of another."""
        rig = self.rig = Rig(peers="n0-h:1;n1-h:2;n2-h:3")
        rig.node.start()
        self.guard()
        client = rig.client()
        client.ask(MetadataRequest(local_id="n1", **rig.base()))
        self.assertEqual(client.connection.peer_id, "n1")
        for request in (
            MembershipRequest(change="remove", member_id="n2", **rig.base(local_id="n1")),
            LeadershipTransferRequest(transfer_id="n0", transferee_id="n1", **rig.base(local_id="n1")),
        ):
            self.assertIs(client.ask(request).code, FORBIDDEN)

    def test_owners(self) -> None:
        """The account of a token that counts, from then on; without one the address."""
        access = self.rig.node.router.access
        stranger, writer = self.rig.client("10.0.0.7"), self.rig.client("10.0.0.7")
        self.assertEqual([access.owner_of(one.connection) for one in (stranger, writer)], ["@10.0.0.7"] * 2)
        self.show(writer, self.texts["writer"])
        self.assertEqual([access.owner_of(one.connection) for one in (stranger, writer)],
                         ["@10.0.0.7", "writer"])
        writer.connection.connectionLost(Failure(ConnectionDone()))
        stranger.connection.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(access._owners, {})

    def test_tokens_count_for_nothing_without_a_file(self) -> None:
        """A member without a file takes any token for nothing: addresses decide."""
        rig = self.rig = Rig().lead()
        client = rig.client()
        self.assertEqual(self.show(client, "any").code, 200)
        self.assertEqual(self.may(client), [True, True, False])


class AddressTests(SynchronousTestCase):
    """Without TLS and without tokens: who may change the group."""

    def setUp(self) -> None:
        self.rig = Rig().lead()

    def changes(self, **base: Any) -> list[Any]:
        """One of each."""
        asked = self.rig.base(**base)
        return [
            MembershipRequest(change="remove", member_id="n7", **asked),
            LeadershipTransferRequest(transfer_id="n0", transferee_id="n7", **asked),
            SkipRequest(index=7, **asked),
            BeginStateRequest(**asked),
            ResetTimesRequest(**asked),
        ]

    def test_every_request_is_classified(self) -> None:
        """A new request must say which right it needs; changes need that of administrators."""
        self.assertEqual(set(NEEDED), set(RequestCode))
        changes = {kind for kind, role in NEEDED.items() if role is ClientRole.ADMIN}
        self.assertEqual(changes, {request.kind for request in self.changes()})

    def test_from_another_machine(self) -> None:
        """Refused with a code, and, where the answer has room, a sentence that names the option."""
        for local_id in (None, "n9"):
            client = self.rig.client("10.0.0.7")
            answers = [client.ask(one) for one in self.changes(local_id=local_id)]
            self.assertEqual([answer.code for answer in answers], [FORBIDDEN] * 5)
            for part in ("MEMBERSHIP is a change", "10.0.0.7", "change_hosts"):
                self.assertIn(part, answers[0].reason)
        self.assertEqual(self.rig.node.status().counts.reports["request-forbidden"], 10)

    def test_readers_are_moved_from_here(self) -> None:
        """Others may read under a name, and neither move nor forget it."""
        client, fields = self.rig.client("10.0.0.7"), self.rig.base(name="billing")
        for does in ("move", "forget"):
            answer = client.ask(ReaderRequest(does=does, **fields))
            self.assertIs(answer.code, FORBIDDEN)
            self.assertIn(f"READER {does} is a change", answer.reason)
            self.assertIn("change_hosts", answer.reason)
        for does, more in (("take", {"holder": "p", "lease_ms": 1000}), ("list", {})):
            client.send(ReaderRequest(does=does, **{**fields, **more}))
            self.rig.clock.pump([0.0] * 5)
            (answer,) = client.answers()
            self.assertIs(answer.code, ResponseCode.SUCCESS)
        here = self.rig.client("127.0.0.1")
        here.send(ReaderRequest(does="forget", **fields))
        self.rig.clock.pump([0.0] * 5)
        self.assertEqual([answer.code for answer in here.answers()], [ResponseCode.SUCCESS])

    def test_other_requests_come_from_everywhere(self) -> None:
        """Everything else is taken from everywhere."""
        client, base = self.rig.client("10.0.0.7"), self.rig.base()
        for request in (
            MetadataRequest(**base), AppendRequest(bodies=(b"a",), **base), GetRequest(begin_index=0, **base),
        ):
            client.send(request)
            self.assertNotIn(FORBIDDEN, [answer.code for answer in client.answers()], request)

    def test_from_this_machine(self) -> None:
        """In each form of the loopback interface."""
        for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
            client = self.rig.client(host)
            for request in self.changes():
                self.assertIsNot(client.ask(request).code, FORBIDDEN, host)

    def test_named_hosts_may_change_the_group(self) -> None:
        """That the option names, and no others."""
        access = self.rig.node.router.access
        for hosts, host, is_taken in (
            (("10.0.0.0/24", "fd00::7"), "10.0.0.7", True), (("10.0.0.0/24",), "::ffff:10.0.0.7", True),
            (("10.0.0.0/24", "fd00::7"), "fd00::7", True), (("10.0.0.0/24",), "10.0.1.7", False),
            (("*",), "10.0.1.7", True),
        ):
            access.judge_with(None, None, ChangeHosts(hosts))
            codes = [self.rig.client(host).ask(one).code for one in self.changes()]
            self.assertEqual([code is not FORBIDDEN for code in codes], [is_taken] * 5, host)

    def test_in_the_name_of_a_member(self) -> None:
        """Whoever speaks for one that is down may not change the group either."""
        rig = self.rig = Rig(peers="n0-h:1;n1-h:2;n2-h:3")
        rig.node.start()
        client = rig.client("10.0.0.7")
        client.ask(MetadataRequest(local_id="n1", **rig.base()))
        self.assertEqual(client.connection.peer_id, "n1")
        for request in self.changes(local_id="n1"):
            self.assertIs(client.ask(request).code, FORBIDDEN)

    def test_a_leader_that_hands_over_is_no_client(self) -> None:
        """A leader that hands over is not a client: its successor knows the connection as that member's."""
        rig = self.rig = Rig(peers="n0-h:1;n1-h:2;n2-h:3")
        rig.node.start()
        client = rig.client("10.0.0.7")
        beat = HeartBeatRequest(local_id="n1", leader_id="n1", term=5, **rig.base())
        self.assertEqual(client.ask(beat).code, 200)
        client.send(LeadershipTransferRequest(
            local_id="n1", transfer_id="n1", transferee_id="n0", term=5, **rig.base()))
        self.assertNotIn(FORBIDDEN, [answer.code for answer in client.answers()])

    def test_a_change_of_members_is_logged(self) -> None:
        """Every change of members is a warning that names who asked; the same question again is folded."""
        with capturedLogs() as logs:
            client = self.rig.client("127.0.0.1")
            remove = MembershipRequest(change="remove", member_id="n7", **self.rig.base())
            for request in (remove, remove, attrs.evolve(remove, member_id="n8"),
                            attrs.evolve(remove, member_id="n9", is_dry=True)):
                client.ask(request)
        reported = [event for event in logs if event.get("event") == "change-asked"]
        self.assertEqual([event["log_level"] for event in reported], [LogLevel.warn] * 2)
        self.assertIn("address=127.0.0.1:4711 change=remove member_id=n7", reported[0]["facts"])
