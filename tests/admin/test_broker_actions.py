# -*- test-case-name: tests.admin.test_broker_actions -*-
"""What a person can let a broker do: its effects are shown first, and doing it is another question."""

from __future__ import annotations

from typing import Any

import treq
from treq.testing import StubTreq
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.broker import KEPT_S, BrokerPages
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import LeadershipTransferResponse
from tests.admin import fakes
from tests.admin.test_broker import STOPPED, FakeBroker


class ActionCase(SynchronousTestCase):
    """The pages of a broker with a commit log."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.broker = FakeBroker()
        self.stub = self.make()

    def make(self, **options: Any) -> StubTreq:
        """The pages."""
        pages = BrokerPages(self.broker, self.clock.seconds, wall_s=lambda: 1_700_000_000.0, **options)
        return StubTreq(pages.app.resource())

    def document(self, path: str, status: int = 200, method: str = "GET") -> Any:
        """The JSON of a page."""
        self.clock.advance(KEPT_S)
        response = self.successResultOf(self.stub.request(method, f"http://admin.test{path}"))
        self.assertEqual(response.code, status, path)
        return self.successResultOf(treq.json_content(response))

    def html(self, path: str) -> str:
        """As a browser gets it."""
        asked = self.successResultOf(
            self.stub.get(f"http://admin.test{path}", headers={"accept": "text/html"})
        )
        text: str = self.successResultOf(treq.text_content(asked))
        return text


class LogTests(ActionCase):
    """With a commit log."""

    def test_forms(self) -> None:
        """Those of this kind of log; what only the effects can know is not asked for."""
        self.assertIn("actions", self.html("/"))
        page = self.html("/actions")
        for words in ("Actions of broker b0", 'value="flush"', 'value="resolve"', "<option>take-master<"):
            self.assertIn(words, page)
        for words in ("transfer", 'method="post"', "common_end"):
            self.assertNotIn(words, page)

    def test_flush(self) -> None:
        """First how much it is, then it is done."""
        reported = self.document("/effects?do=flush")
        self.assertEqual((reported["target"], reported["problem"]), ("flush", ""))
        self.assertIn(f"up to {self.broker.picture.end_offset:,} on stable storage", reported["effects"][0])
        self.assertEqual(self.broker.fake_acts.done, [])
        self.assertEqual(self.document("/flush", 200, "POST"), {"flushed_offset": 77})
        self.broker.fake_acts.problem = "the disk is broken"
        self.assertEqual(self.document("/flush", 409, "POST"), {"error": "the disk is broken"})

    def test_nothing_to_resolve(self) -> None:
        """A master, and a slave that follows, say so."""
        self.broker.fake_acts.problem = "this broker is a master: ask its slave"
        reported = self.document("/effects?do=resolve&how=try-again")
        self.assertEqual(reported["problem"], "this broker is a master: ask its slave")
        self.broker.fake_acts.problem = ""
        for how in ("try-again", "take-master"):
            reported = self.document(f"/effects?do=resolve&how={how}")
            self.assertIn("nothing to decide", reported["problem"], how)
            self.assertNotIn('method="post"', self.html(f"/effects?do=resolve&how={how}"))

    def test_try_again(self) -> None:
        """Nothing is cut."""
        self.broker.fake_acts.found = STOPPED
        reported = self.document("/effects?do=resolve&how=try-again")
        self.assertEqual((reported["target"], reported["problem"]), ("resolve?how=try-again", ""))
        self.assertIn("both are sound", reported["effects"][0])
        self.assertIn("nothing is cut", reported["effects"][1])
        self.assertEqual(self.document("/resolve?how=try-again", 200, "POST"), {"directory": ""})
        self.assertEqual(self.broker.fake_acts.done, [("try-again", -1, -1)])

    def test_take_master(self) -> None:
        """The button decides about the state that was shown, and about no other."""
        self.broker.fake_acts.found = STOPPED
        reported = self.document("/effects?do=resolve&how=take-master")
        self.assertEqual(reported["target"], "resolve?how=take-master&common_end=400&our_end=1000")
        self.assertEqual(reported["problem"], "")
        self.assertIn("gives up 600 bytes, 6 messages or more, from 400 on", reported["effects"][1])
        self.assertIn("Nothing is deleted", reported["effects"][2])
        self.assertEqual(self.broker.fake_acts.done, [])
        self.assertEqual(
            self.document(f"/{reported['target']}", 200, "POST"), {"directory": "commitlog.set-aside-1"}
        )
        self.assertEqual(self.broker.fake_acts.done, [("take-master", 400, 1000)])

    def test_only_sound_record(self) -> None:
        """Is not given up, and there is no button for it."""
        self.broker.fake_acts.found = {**STOPPED, "masterProblem": "bad"}
        reported = self.document("/effects?do=resolve&how=take-master")
        self.assertIn("only the slave's record is sound", reported["problem"])

    def test_wrong_queries(self) -> None:
        """Do nothing."""
        for path in ("/flush?junk=1", "/resolve", "/resolve?how=cut", "/resolve?how=try-again&to=n1",
                     "/resolve?how=take-master&common_end=x", "/transfer", "/transfer?to=n1&to=n2"):
            self.assertIn("write /", self.document(path, 400, "POST")["error"], path)
        for query in ("", "?do=transfer&to=n1", "?do=flush&how=try-again", "?do=resolve"):
            self.document(f"/effects{query}", 400)
        self.assertEqual(self.broker.fake_acts.done, [])

    def test_not_open(self) -> None:
        """Before the store is open there is nothing to do."""
        self.broker.is_open = False
        self.document("/effects?do=flush", 503)
        self.assertEqual(self.document("/flush", 503, "POST"), {"error": "the store is not open"})

    def test_no_group(self) -> None:
        """Its role is that of the options."""
        self.assertIn("has a commit log", self.document("/transfer?to=n1", 409, "POST")["error"])


class RaftTests(ActionCase):
    """With a raft log."""

    def setUp(self) -> None:
        super().setUp()
        self.node = fakes.FakeNode()
        self.stub = self.make(member=self.node.status, transfer=self.node.transfer)

    def test_transfer(self) -> None:
        """As of its member."""
        self.assertIn('value="transfer"', self.html("/actions"))
        reported = self.document("/effects?do=transfer&to=n1")
        self.assertEqual((reported["target"], reported["problem"]), ("transfer?to=n1", ""))
        self.assertEqual(self.node.transferees, [])
        self.assertEqual(self.document("/transfer?to=n1", 200, "POST"), {"leader_id": "n1", "term": 8})
        self.assertIn("the members are n0, n1, n2", self.document("/transfer?to=n9", 400, "POST")["error"])
        self.node.transfer_code = ResponseCode.TIMEOUT
        self.assertIn("TIMEOUT", self.document("/transfer?to=n1", 409, "POST")["error"])

    def test_follower(self) -> None:
        """Says who leads."""
        self.node.picture = fakes.picture(role="follower", leader_id="n2")
        self.assertIn("ask the pages of n2", self.document("/effects?do=transfer&to=n1")["effects"][0])
        said = self.document("/transfer?to=n1", 409, "POST")
        self.assertEqual(said, {"error": "n0 does not lead; n2 does"})
        self.assertEqual(self.node.transferees, [])

    def test_others(self) -> None:
        """What belongs to a commit log is not there."""
        for path in ("/flush", "/resolve?how=try-again"):
            self.assertIn("raft group", self.document(path, 409, "POST")["error"])
        self.document("/effects?do=flush", 400)

    def test_waits(self) -> None:
        """Until the member has answered."""
        waiting: Deferred[Any] = Deferred()
        self.stub = self.make(member=self.node.status, transfer=lambda to: waiting)
        asked = self.stub.request("POST", "http://admin.test/transfer?to=n1")
        self.assertNoResult(asked)
        waiting.callback(LeadershipTransferResponse(group="g", remote_id="n0", term=8, leader_id="n0"))
        self.stub.flush()
        self.assertEqual(self.successResultOf(asked).code, 200)
