# -*- test-case-name: tests.client.test_members -*-
"""Connections are shared, probed and closed; the leader is found."""

from __future__ import annotations

import gc
import random
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.members import ADDRESSES_MAX, IDLE_CLOSE_S, REFRESH_S, ClientSecurity, Members
from dledger.values.client_token import ClientToken
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import MEMBERS_MAX
from protocols.wire.ledger.messages import GetRequest, MetadataRequest, MetadataResponse
from tests.client.fakes import FakeGroup


class MembersTests(SynchronousTestCase):
    """L{Members} with three fake ones."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = FakeGroup(self.clock)
        self.made = 0
        self.members = self.make()

    def make(self, wire: str = "auto", **options: Any) -> Members:
        """Members of the fake group."""
        members = Members(
            self.group.peers, group="default", clock=self.clock, endpoint_for=self.group.endpoint_for,
            wire=wire, rng=random.Random(1), security=ClientSecurity(**options),
        )
        self.made += 1
        self.addCleanup(self.close, members)
        return members

    def close(self, members: Members) -> None:
        """Nothing is left once the last is closed."""
        members.close()
        self.group.settle()
        self.made -= 1
        if not self.made:
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_one_connection_for_all(self) -> None:
        """A question while it is being made gets the same one, and so does a later one."""
        first, second = self.members.connection("n1"), self.members.connection("n1")
        self.assertNoResult(first)
        self.group.settle()
        connection = self.successResultOf(first)
        self.assertIs(self.successResultOf(second), connection)
        self.assertIs(self.successResultOf(self.members.connection("n1")), connection)
        self.assertEqual(len(self.group["n1"].wires), 1)

    def shown(self, members: Members) -> list[str]:
        """The tokens of the METADATA requests that n1 got for two questions."""
        del self.group["n1"].received[:]
        for _ in range(2):
            members.ask("n1").addErrback(lambda _: None)
            self.group.settle()
        return [one.token for one in self.group["n1"].received if isinstance(one, MetadataRequest)]

    def test_a_token_is_sent_once(self) -> None:
        """Shown once on a connection; not to other machines without TLS, unless that is said."""
        self.assertEqual(self.shown(self.make(token=ClientToken("secret", is_insecure=True))), ["secret", ""])
        self.assertEqual(self.shown(self.make()), ["", ""])
        members = self.make(token=ClientToken("secret"))
        self.assertEqual(self.shown(members), [])
        self.assertIn("is not shown to", members.problems["n1"])
        self.assertNotIn("secret", members.problems["n1"])
        members.addresses["n1"] = members.given["n1"] = "127.0.0.1:1"
        ClientSecurity(token=ClientToken("secret")).check("127.0.0.1:1")
        with self.assertRaises(ValueError):
            Members(self.group.peers, group="default", clock=self.clock, wire="binary",
                    endpoint_for=self.group.endpoint_for, rng=random.Random(1),
                    security=ClientSecurity(token=ClientToken("secret")))

    def test_token_by_tls(self) -> None:
        """There it is shown to everybody who has proved to be the member."""
        keys = Mock()
        keys.dial = lambda endpoint, name: endpoint
        self.assertEqual(self.shown(self.make(token=ClientToken("secret"), tls=keys)), ["secret", ""])

    def test_a_refused_token_names_the_group(self) -> None:
        """The problem names the group, not the token."""
        members = self.make(token=ClientToken("secret", is_insecure=True))
        self.group["n1"].answer = lambda request: MetadataResponse(  # type: ignore[method-assign]
            code=ResponseCode.FORBIDDEN)
        self.shown(members)
        self.assertEqual(members.problems["n1"], "n1 does not know the token, or not for the group 'default'")

    def test_stories_are_collected(self) -> None:
        """A search and an attempt that Python collects with everything around them leave no error behind."""
        clock = Clock()
        group = FakeGroup(clock)
        members = Members(
            group.peers, group="default", clock=clock, endpoint_for=group.endpoint_for, rng=random.Random(1),
        )
        for member_id in group.peers:
            group[member_id].is_silent = True
        members.leader()
        group.settle()
        del members, group, clock
        gc.collect()
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_each_format_is_kept(self) -> None:
        """C{auto} asks, C{remoting} never writes native frames, C{binary} nothing else."""
        for wire, formats in (
            ("auto", ["remoting", "native"]), ("remoting", ["remoting"] * 2), ("binary", ["native"] * 2),
        ):
            members = self.make(wire)
            members.ask("n2")
            self.group.settle()
            link = members.connected("n2")
            assert link is not None
            link.ask(GetRequest(group="default", remote_id="n2", begin_index=0), 1.0).addErrback(bool)
            self.group.settle()
            self.assertEqual(self.group["n2"].formats, formats)
            members.ask("n2")
            self.group.settle()
            self.assertEqual(self.group["n2"].formats[2:], ["native" if wire == "binary" else "remoting"])
            self.group["n2"].formats.clear()

    def test_a_java_member_gets_json(self) -> None:
        """Who advertises nothing is never sent a native frame."""
        self.group["n2"].wire_version = 0
        for _ in range(2):
            self.members.ask("n2")
            self.group.settle()
        self.assertEqual(self.group["n2"].formats, ["remoting"] * 2)

    def test_an_unknown_wire_is_refused(self) -> None:
        """Refused at once."""
        self.assertRaises(ValueError, self.make, "morse")

    def test_problems_are_kept_until_answers(self) -> None:
        """Why a member cannot be asked is kept, and forgotten once it answers."""
        self.group["n1"].is_up = False
        self.failureResultOf(self.members.connection("n1"))
        self.assertEqual(self.members.problems, {"n1": "connection refused"})
        self.group["n1"].is_up = True
        self.members.connection("n1")
        self.group.settle()
        self.assertEqual(self.members.problems, {})

    def test_a_silent_member_is_not_used(self) -> None:
        """A connection that is not answered on is not used."""
        self.group["n1"].is_silent = True
        waiting = self.members.connection("n1")
        self.group.run(1.1)
        self.failureResultOf(waiting, DLedgerError)
        self.assertIn("did not answer METADATA", self.members.problems["n1"])
        self.assertEqual(self.group["n1"].wires, [])

    def test_a_cancelled_wait_disturbs_nobody(self) -> None:
        """One of two who wait goes away; the other gets the connection."""
        first, second = self.members.connection("n1"), self.members.connection("n1")
        first.cancel()
        self.group.settle()
        self.failureResultOf(first, CancelledError)
        self.successResultOf(second)

    def test_ended_before_an_answer(self) -> None:
        """A connection that ends before its first answer: the member may speak TLS, or not."""
        member = self.group["n0"]
        member.holds = lambda request: True
        asked = self.members.connection("n0")
        self.group.settle()
        member.lose_connections()
        self.group.settle()
        self.assertIn("the member may want TLS", self.failureResultOf(asked).getErrorMessage())
        self.assertIn("may want TLS", self.members.problems["n0"])

    def test_idle_connections_close(self) -> None:
        """Before the server would; one in use stays."""
        for member_id in ("n0", "n1"):
            self.members.connection(member_id)
        self.group.settle()
        first = self.members.connected("n0")
        for _ in range(4):
            self.clock.advance(IDLE_CLOSE_S / 2)
            self.members.ask("n0")
            self.group.settle()
        self.assertEqual((len(self.group["n0"].wires), len(self.group["n1"].wires)), (1, 0))
        self.assertIs(self.members.connected("n0"), first)  # never connected anew

    def test_addresses_are_learnt(self) -> None:
        """Members that are not known are added; addresses that were given are kept."""
        self.members.addresses = {"n0": "n0.test:20911", "n1": "elsewhere:1"}
        self.members.ask("n0")
        self.group.settle()
        self.assertEqual(self.members.addresses["n1"], "elsewhere:1")
        self.assertEqual(self.members.addresses["n2"], "n2.test:20911")

    def test_a_moved_member_is_found(self) -> None:
        """Where the caller said, and then where the members say."""
        self.members.addresses = {"n0": "n0.test:20911", "n1": "elsewhere:1"}
        self.members.ask("n0")
        self.group.settle()
        connection = self.members.connection("n1")
        self.group.settle()
        self.assertIs(self.successResultOf(connection), self.members.connected("n1"))
        self.assertEqual(self.members.addresses["n1"], "n1.test:20911")
        self.group["n0"].is_up = False
        self.group["n0"].lose_connections()
        self.failureResultOf(self.members.connection("n0"))
        self.assertEqual(self.members.problems["n0"], "connection refused")

    def test_where_the_caller_said(self) -> None:
        """An address at which a member once was does not replace the caller's."""
        self.members.addresses["n1"] = "elsewhere:1"
        connection = self.members.connection("n1")
        self.group.settle()
        self.assertIs(self.successResultOf(connection), self.members.connected("n1"))
        self.assertEqual(self.members.addresses["n1"], "n1.test:20911")

    def test_closed_before_the_other_address(self) -> None:
        """An attempt that ends with the client does not go on at the next address."""
        dialled: list[str] = []
        endpoint_for = self.members._endpoint_for

        def dial(address: str) -> Any:
            dialled.append(address)
            return endpoint_for(address)

        self.patch(self.members, "_endpoint_for", dial)
        self.members.reported["n1"] = "elsewhere:1"
        self.group["n1"].is_silent = True
        connection = self.members.connection("n1")
        self.group.settle()
        self.members.close()
        self.group.settle()
        self.failureResultOf(connection)
        self.assertEqual(dialled, ["n1.test:20911"])

    def test_false_members_fill_nothing(self) -> None:
        """A member that names others in every answer fills neither memory nor the network."""
        true = dict(self.group.peers)
        for turn in range(6):
            self.group.peers = {f"x{turn}.{number}": f"x{number}.test:1" for number in range(1000)}
            self.members.ask("n0")
            self.group.settle()
            self.group.peers = {**true, "n7": "n7.test:20911"}
            self.members.ask("n1")
            Deferred.fromCoroutine(self.members.ask_these(self.members.addresses, 1.0))
            self.group.settle()
            self.assertLessEqual({*true, "n7"}, self.members.addresses.keys())
            self.assertLessEqual(len(self.members.addresses), len(true) + 1 + MEMBERS_MAX)
            self.assertLessEqual(len(self.members.keepers), len(self.members.addresses))
            self.assertLessEqual(self.members.problems.keys(), self.members.addresses.keys())

    def test_an_unnamed_member_is_forgotten(self) -> None:
        """One that no member names any more: after its connection; callers that wait for one are informed."""
        self.members.given = {"n0": "n0.test:20911"}
        self.members.connection("n1")
        self.group["n2"].is_silent = True
        waiting = self.members.connection("n2")
        self.group.settle()
        self.members.named.clear()
        self.members.learn("n0", {"n0": "n0.test:20911"})
        self.assertEqual(self.members.addresses.keys(), {"n0", "n1"})
        self.failureResultOf(waiting)
        self.assertEqual(self.members.problems, {})
        self.group["n1"].lose_connections()
        self.members.learn("n0", {"n0": "n0.test:20911"})
        self.assertEqual(self.members.addresses.keys(), {"n0"})

    def test_the_number_of_members_is_bounded(self) -> None:
        """The bound of all; the caller's members are among them."""
        self.group.peers = {f"x{number}": f"x{number}.test:1" for number in range(MEMBERS_MAX)}
        for reporter in ("n0", "n1", "n2"):
            self.members.learn(reporter, {f"{reporter}.{number}": "a:1" for number in range(1000)})
        for number in range(1000):
            self.members.learn(f"x{number}", {f"y{number}.{each}": "a:1" for each in range(1000)})
        self.assertEqual(len(self.members.addresses), ADDRESSES_MAX)
        self.assertLessEqual({"n0", "n1", "n2"}, self.members.addresses.keys())

    def test_others_are_asked_for(self) -> None:
        """A connection that is used learns of new members; one that is not used is left alone."""
        for member_id in ("n0", "n1"):
            self.members.connection(member_id)
        self.group.settle()
        self.group.peers = {"n0": "n0.test:20911", "n7": "n7.test:20911"}
        asked = [len(self.group[one].received) for one in ("n0", "n1")]
        link = self.members.connected("n0")
        assert link is not None
        request = GetRequest(group="default", remote_id="n0", begin_index=0)
        for turn in range(1, 4):
            link.ask(request, 1.0)
            self.group.settle()
            self.clock.advance(REFRESH_S)
            self.group.settle()
            self.assertEqual(self.members.addresses.get("n7"), "n7.test:20911")
            self.assertEqual(len(self.group["n0"].received), asked[0] + 2 * turn)
        self.clock.advance(2 * REFRESH_S)
        self.group.settle()
        self.assertEqual(len(self.group["n0"].received), asked[0] + 6)
        self.assertEqual(len(self.group["n1"].received), asked[1])

    def test_member_that_stops(self) -> None:
        """It names the others, though it is none to use."""
        self.members.addresses = {"n0": "n0.test:20911"}
        self.group["n0"].is_stopping = True
        self.group.lead("n1")
        self.members.leader()
        self.group.settle()
        self.assertEqual(self.members.problems["n0"], "member 'n0' stops")
        found = self.members.leader()
        self.group.settle()
        leader = self.successResultOf(found)
        assert leader is not None
        self.assertEqual(leader.member_id, "n1")

    def test_one_search_for_all(self) -> None:
        """Many who look for the leader cost one round."""
        found = [self.members.leader() for _ in range(50)]
        self.group.settle()
        self.assertEqual({self.successResultOf(one).member_id for one in found}, {"n0"})
        asked = [r for r in self.group["n1"].received if isinstance(r, MetadataRequest)]
        self.assertEqual(len(asked), 1)

    def test_a_hint_is_asked_first(self) -> None:
        """Who is said to lead is asked first, and believed only when it says so itself."""
        self.members.leader("n0")
        self.group.settle()
        self.assertEqual(self.group["n1"].received, [])
        self.assertEqual(self.members.leader_id, "n0")
        found = self.members.leader("n1")
        self.group.settle()
        leader = self.successResultOf(found)
        assert leader is not None
        self.assertEqual(leader.member_id, "n0")

    def test_hint_to_nobody(self) -> None:
        """A name that is not a member is no hint."""
        found = self.members.leader("n17")
        self.group.settle()
        self.assertIsNotNone(self.successResultOf(found))

    def test_a_slow_leader_is_found(self) -> None:
        """A leader whose answer takes longer than the others' is found by their answers."""
        self.group["n0"].holds = lambda _: True
        found = self.members.leader()
        self.group.run(0.3)
        self.group["n0"].holds = lambda _: False
        self.group["n0"].release(len(self.group["n0"].held))
        self.group.settle()
        self.assertIsNotNone(self.successResultOf(found))

    def test_member_that_stands_still_hides_nobody(self) -> None:
        """Without any leader, the search is over long before a silent member's time-out."""
        self.group["n0"].is_silent = True
        for member_id in ("n1", "n2"):
            self.group[member_id].leader_id = None
        found = self.members.leader()
        self.group.run(0.3)
        self.assertIsNone(self.successResultOf(found))
        self.group.run(1.0)

    def test_no_leader_is_found_without_one(self) -> None:
        """None, once everybody has answered."""
        for member in self.group.members.values():
            member.leader_id = None
        found = self.members.leader()
        self.group.settle()
        self.assertIsNone(self.successResultOf(found))

    def test_all_members_are_asked(self) -> None:
        """Everybody in order, with answers or reasons, within the deadline."""
        self.group["n0"].is_up = False
        self.group["n2"].is_silent = True
        infos = Deferred.fromCoroutine(self.members.ask_all(0.5))
        self.group.run(0.6)
        n0, n1, n2 = self.successResultOf(infos)
        self.assertEqual((n0.problem, n1.problem), ("connection refused", ""))
        self.assertEqual(n2.problem, "no answer in 0.5 s")
        self.assertEqual((n1.role, n1.leader_id, n1.address), ("follower", "n0", "n1.test:20911"))
        self.group.run(1.0)

    def test_closing_informs_all_callers(self) -> None:
        """Callers that wait are informed; nobody is connected later."""
        self.group["n1"].is_silent = True
        waiting, looking = self.members.connection("n1"), self.members.leader()
        self.group.settle()
        self.members.close()
        self.group.settle()
        self.failureResultOf(waiting)
        self.successResultOf(looking)
        self.failureResultOf(self.members.connection("n0"), DLedgerError)
