# -*- test-case-name: tests.admin.test_broker -*-
"""The pages of a broker."""

from __future__ import annotations

from typing import Any

import attrs
import treq
from prometheus_client.parser import text_string_to_metric_families
from treq.testing import StubTreq
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.broker import KEPT_S, BrokerPages, make_broker_pages
from dledger.admin.broker_metrics import BROKER_COUNTERS, BROKER_GAUGES, GROUPS_MEASURED
from dledger.admin.dashboard.broker_page import GROUPS_SHOWN
from dledger.rocketmq.broker.options.operators import NotDone
from dledger.rocketmq.broker.showing.shown import NotShown, ShownMessage, ShownMessages, ShownQueue
from dledger.rocketmq.broker.showing.status import BrokerMeasures, BrokerStatus, ConsumerLag, SlaveLag
from dledger.values.option_values import Setting
from protocols.wire.fastjson import JsonObject

_WORDS = ("name", "cluster", "role", "log", "address", "problem", "refusals", "slaves", "master",
          "replication_problem", "name_servers", "lags", "are_lags_whole")
NASTY = "<script>alert('x')</script>\"&"


def picture(**changes: Any) -> BrokerStatus:
    """A synchronous master with a slave and a consumer; every number differs."""
    numbers = {
        field.name: number + 1000
        for number, field in enumerate(attrs.fields(BrokerStatus)) if field.name not in _WORDS
    }
    facts: dict[str, Any] = {
        "name": "b0", "cluster": "C", "role": "SYNC_MASTER", "log": "commit log", "address": "10.0.0.1:10911",
        "problem": "", "refusals": {"10:14": 3, "others": 1}, "master": "", "replication_problem": "",
        "slaves": (SlaveLag(address="10.0.0.2:7", gap_bytes=640, is_in_sync=True),),
        "name_servers": ("10.0.0.9:9876",), "are_lags_whole": True,
        "lags": (ConsumerLag(group="billing", topic="orders", queues=4, messages=12),), **numbers,
    }
    return BrokerStatus(**{**facts, **changes})


QUEUE = ShownQueue(topic="orders", queue_id=0, begin_offset=3, end_offset=60)
MESSAGE = ShownMessage(
    topic="orders", queue_id=0, queue_offset=3, position=4096, born_ms=1_700_000_000_000, body=b"{}",
    stored_ms=1_700_000_000_001, message_id="0A", unique_key="u1", reconsume_times=0, compression="none",
    properties={"TAGS": "paid", "KEYS": NASTY, "UNIQ_KEY": "u1", "city": "K\u00f6ln"},
)


class FakeBrowser:
    """
    One topic of one queue, each message like the others.

    @ivar asked: all calls.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def queues(self, topic: str = "") -> tuple[tuple[ShownQueue, ...], bool]:
        """As of a L{dledger.rocketmq.broker.showing.browsing.MessageBrowser}, as the others."""
        return ((QUEUE,) if topic in ("", QUEUE.topic) else ()), not topic

    def queue(self, topic: str, queue_id: int) -> ShownQueue:
        """Only one is there."""
        if (topic, queue_id) != ("orders", 0):
            raise NotShown(f"topic {topic!r} has no queue {queue_id}")
        return QUEUE

    def offset_at(self, topic: str, queue_id: int, moment_ms: int) -> int:
        """Always the same."""
        self.asked.append((topic, queue_id, moment_ms))
        return 40

    def page(self, topic: str, queue_id: int, first: int, count: int) -> ShownMessages:
        """As many as there are."""
        self.asked.append((topic, queue_id, first, count))
        offsets = range(first, min(first + count, QUEUE.end_offset))
        return ShownMessages(
            queue=QUEUE, first_offset=first, next_offset=offsets.stop,
            messages=tuple(attrs.evolve(MESSAGE, queue_offset=offset) for offset in offsets),
        )

    def at(self, position: int) -> ShownMessages:
        """One."""
        self.asked.append((position,))
        return ShownMessages(messages=(MESSAGE,))

    async def with_key(self, topic: str, key: str, count: int) -> ShownMessages:
        """One, and perhaps more."""
        self.asked.append((topic, key, count))
        return ShownMessages(messages=(MESSAGE,), is_whole=False)


#: What a slave shows whose replication has stopped.
STOPPED = {
    "master": "10.0.0.1:10912", "problem": "replication has stopped", "stopped": True, "decidable": True,
    "reason": "both are sound", "differsAt": 500, "commonEnd": 400, "ourEnd": 1000, "ourProblem": "",
    "masterProblem": "", "bytes": 600, "messages": 6,
}


class FakeActs:
    """As L{dledger.rocketmq.broker.admin.log_acts.LogActs}. @ivar done: decisions."""

    def __init__(self) -> None:
        self.problem = ""
        self.found: JsonObject = {"stopped": False, "decidable": False, "problem": ""}
        self.done: list[tuple[str, int, int]] = []

    def _check(self) -> None:
        if self.problem:
            raise NotDone(self.problem)

    async def flush(self) -> int:
        """Done, or not."""
        self._check()
        return 77

    async def stopped(self) -> JsonObject:
        """As it is."""
        self._check()
        return self.found

    async def resolve(self, how: str, *, common_end: int, our_end: int) -> JsonObject:
        """Decided."""
        self._check()
        self.done.append((how, common_end, our_end))
        return {"directory": "commitlog.set-aside-1"} if how == "take-master" else {}


class FakeBroker:
    """A state. @ivar looks: how often it was asked for. @ivar figures: further ones; None: there are none."""

    def __init__(self) -> None:
        self.fake_acts = FakeActs()
        self.is_open = True
        self.picture = picture()
        self.figures: BrokerMeasures | None = None
        self.messages = FakeBrowser()
        self.looks = 0
        self.fails = False

    @property
    def browser(self) -> FakeBrowser | None:
        """None while it does not serve."""
        return None if self.picture.problem else self.messages

    @property
    def acts(self) -> FakeActs | None:
        """None while it does not serve."""
        return self.fake_acts if self.is_open and not self.picture.problem else None

    def measures(self) -> BrokerMeasures | None:
        """As they are."""
        return self.figures

    def status(self) -> BrokerStatus:
        """As it is."""
        self.looks += 1
        if self.fails:
            raise ZeroDivisionError
        return self.picture


class PageTests(SynchronousTestCase):
    """GET and the answers."""

    def setUp(self) -> None:
        self.broker, self.clock = FakeBroker(), Clock()
        self.stub = self.make()

    def make(self, **options: Any) -> StubTreq:
        """The pages."""
        pages = BrokerPages(
            self.broker, self.clock.seconds, (Setting(name="broker_name", value="b0", origin="file"),),
            wall_s=lambda: 1_700_000_000.0, **options,
        )
        return StubTreq(pages.app.resource())

    def ask(self, path: str, accept: str = "*/*", method: str = "GET") -> Any:
        """The response, some time after the one before."""
        self.clock.advance(KEPT_S)
        asked = self.stub.request(method, f"http://admin.test{path}", headers={"accept": accept})
        return self.successResultOf(asked)

    def document(self, path: str, status: int = 200, method: str = "GET") -> Any:
        """The JSON of a page."""
        response = self.ask(path, method=method)
        self.assertEqual(response.code, status)
        return self.successResultOf(treq.json_content(response))

    def text(self, path: str, accept: str = "text/html") -> str:
        """The text of a page."""
        text: str = self.successResultOf(treq.text_content(self.ask(path, accept)))
        return text

    def test_pages(self) -> None:
        """Each page has the state."""
        self.assertIn("/metrics", self.document("/")["pages"])
        status = self.document("/status")
        self.assertEqual((status["topics"], status["is_healthy"]), (self.broker.picture.topics, True))
        self.assertEqual(status["lags"][0]["messages"], 12)
        self.assertEqual(self.document("/healthz"), {"status": "ok"})
        self.assertEqual(self.document("/readyz"), {"status": "ready", "reasons": []})
        self.assertEqual(self.document("/config")["options"]["broker_name"]["value"], "b0")

    def test_troubles(self) -> None:
        """A slave that is not in order serves, and is not ready for more; a failed broker does neither."""
        self.broker.picture = picture(role="SLAVE", replication_problem="its log differs")
        self.assertEqual(self.document("/healthz"), {"status": "ok"})
        self.assertEqual(self.document("/readyz", 503)["reasons"], ["its log differs"])
        self.assertIn("PROBLEM", self.text("/"))
        self.broker.picture = picture(problem="it starts")
        self.assertEqual(self.document("/healthz", 503)["reason"], "it starts")
        self.assertIn("it starts", self.text("/"))

    def test_metrics(self) -> None:
        """All numbers, and those by slave, group and code."""
        families = {one.name: one for one in text_string_to_metric_families(self.text("/metrics", "*/*"))}
        for name, _ in BROKER_GAUGES:
            (sample,) = families[f"dledger_broker_{name}"].samples
            self.assertEqual(sample.value, getattr(self.broker.picture, name), name)
        for name, _ in BROKER_COUNTERS:
            (sample,) = families[f"dledger_broker_{name}"].samples
            self.assertEqual(sample.value, getattr(self.broker.picture, name), name)
        lags = families["dledger_broker_consumer_lag_messages"].samples
        self.assertEqual([(one.labels, one.value) for one in lags],
                         [({"group": "billing", "topic": "orders"}, 12.0)])
        (slave,) = families["dledger_broker_slave_lag_bytes"].samples
        self.assertEqual((slave.labels, slave.value), ({"slave": "10.0.0.2:7"}, 640.0))
        refusals = families["dledger_broker_refusals"].samples
        self.assertEqual({(one.labels["request"], one.labels["code"]): one.value for one in refusals},
                         {("10", "14"): 3.0, ("others", ""): 1.0})

    def test_many_groups(self) -> None:
        """Neither the page nor the metrics grow without bound."""
        lags = tuple(ConsumerLag(group=f"g{n}", topic="t", queues=1, messages=n) for n in range(2000))
        self.broker.picture = picture(lags=lags)
        self.assertEqual(self.text("/metrics", "*/*").count("consumer_lag_messages{"), GROUPS_MEASURED)
        text = self.text("/")
        self.assertIn(f"{2000 - GROUPS_SHOWN:,} more, see status", text)
        self.assertNotIn(f"g{GROUPS_SHOWN}<", text)
        self.broker.picture = picture(are_lags_whole=False)
        self.assertIn("not all queues were looked at", self.text("/"))

    def test_dashboard(self) -> None:
        """For a browser: the broker, its groups and slaves, and nothing that others say is HTML."""
        text = self.text("/")
        for words in ("Broker b0, SYNC_MASTER 0 of C".replace(" 0 ", f" {self.broker.picture.broker_id} "),
                      "billing", "orders", "10.0.0.2:7", "The broker serves."):
            self.assertIn(words, text)
        self.broker.picture = picture(
            name=NASTY, cluster=NASTY, address=NASTY, master=NASTY, role="SLAVE", replication_problem=NASTY,
            refusals={NASTY: 1}, name_servers=(NASTY,),
            slaves=(SlaveLag(address=NASTY, gap_bytes=1, is_in_sync=False),),
            lags=(ConsumerLag(group=NASTY, topic=NASTY, queues=1, messages=1),),
        )
        self.assertNotIn("<script>alert", self.text("/live"))

    def test_token(self) -> None:
        """If reading needs a token, C{/} has no number."""
        self.stub = self.make(is_public=False)
        self.assertNotIn("b0", self.text("/"))
        self.assertEqual(self.broker.looks, 0)
        self.assertIn("b0", self.text("/live"))

    def test_kept(self) -> None:
        """However many ask, the broker is looked at once in L{KEPT_S}."""
        self.text("/live")
        for path in ("/status", "/metrics", "/live", "/healthz") * 3:
            self.successResultOf(self.stub.get(f"http://admin.test{path}"))
        self.assertEqual(self.broker.looks, 1)

    def test_errors(self) -> None:
        """Unknown pages and methods get a list of those there are; an error of ours shows no details."""
        self.assertIn("/status", self.document("/nothing", 404)["pages"])
        self.assertEqual(self.document("/status", 405, method="POST")["error"], "method not allowed")
        self.broker.fails = True
        self.assertEqual(self.document("/status", 500), {"error": "internal error"})
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)


class ServiceTests(SynchronousTestCase):
    """Where they listen."""

    def test_loopback(self) -> None:
        """On the loopback interface unless set otherwise."""
        reactor = MemoryReactorClock()
        make: Any = make_broker_pages
        service = make(FakeBroker(), "tcp:8080", reactor, wall_s=reactor.seconds)
        service.startService()
        ((port, _site, _backlog, interface),) = reactor.tcpServers
        self.assertEqual((port, interface), (8080, "127.0.0.1"))
