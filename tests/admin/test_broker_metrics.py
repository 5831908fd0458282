# -*- test-case-name: tests.admin.test_broker_metrics -*-
"""The metrics of a broker, by our names and by those of RocketMQ's exporter."""

from __future__ import annotations

import re
from typing import Any

import attrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.broker import BrokerPages
from dledger.admin.broker_metrics import BrokerCollector
from dledger.base.histogram import Histogram
from dledger.rocketmq.broker.showing.status import (
    BrokerMeasures,
    BrokerStatus,
    ConsumerLag,
    GroupMeasure,
    SlaveLag,
    TopicMeasure,
    Waiting,
)
from tests.admin.fakes import picture as member_picture
from tests.admin.test_broker import FakeBroker, picture
from tests.test_docs import DOCS

_NAME = re.compile(r"(?:dledger_broker|rocketmq)_\w+")


def _group(name: str, topic: str, **changes: Any) -> GroupMeasure:
    return GroupMeasure(**{
        "group": name, "topic": topic, "consumed": 30, "lag": 12, "worst_lag": 7, "per_second": 2.5,
        "members": 3, "is_broadcasting": False, **changes,
    })


def figures(**changes: Any) -> BrokerMeasures:
    """Of a broker with a topic, its retries and dead letters, and two groups; every number differs."""
    puts, gets = Histogram(), Histogram()
    for value in (0.0004, 0.02, 9.0):
        puts.observe(value)
    gets.observe(0.002)
    facts: dict[str, Any] = {
        "puts": puts.status(), "gets": gets.status(),
        "topics": (
            TopicMeasure(topic="orders", stored=60, kept=57, per_second=1.5),
            TopicMeasure(topic="%RETRY%billing", stored=9, kept=8, per_second=0.0),
            TopicMeasure(topic="%DLQ%billing", stored=4, kept=2, per_second=0.0),
        ),
        "groups": (
            _group("billing", "orders"), _group("billing", "%RETRY%billing", lag=5),
            _group("billing", "%DLQ%billing", lag=2), _group("all", "orders", is_broadcasting=True),
        ),
        "dead_letters": {"billing": 2}, "cut": {"topics": 21, "groups": 22, "dead_letters": 23, "queues": 24},
        "waiting": Waiting(delayed={1: 0, 3: 31}, timed=32, halves=33, popped=34, popped_in_order=35),
        "totals": {
            "delayed_delivered": 41, "delayed_skipped": 42, "halves_asked": 43, "halves_discarded": 44,
            "popped_again": 45, "popped_dead": 46, "pulls_found": 47,
        },
        "rates": {"put": 51.0, "found": 52.0, "missed": 53.0, "got": 54.0},
        "mornings": {"put": (61, 62, 63), "got": (64, 65, 66)},
        "disk_free_bytes": 250, "disk_total_bytes": 1000, "role_changes": 71, "boot_ms": 1_700_000_000_000,
    }
    return BrokerMeasures(**{**facts, **changes})


def exposed(status: BrokerStatus, measures: BrokerMeasures | None) -> str:
    """The page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(lambda: status, lambda: measures))
    return generate_latest(registry).decode()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """By name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text) for sample in family.samples
    }


class MetricTests(SynchronousTestCase):
    """One page."""

    def setUp(self) -> None:
        self.found = samples(exposed(picture(), figures()))

    def check(self, name: str, value: float, **labels: str) -> None:
        """A sample with these labels, and no others, has this value."""
        self.assertEqual(self.found.get((name, frozenset(labels.items()))), value, f"{name} {labels}")

    def test_ours(self) -> None:
        """Each figure has its place."""
        for name, value in (
            ("timed_messages", 32), ("half_messages", 33), ("popped_messages", 34),
            ("popped_in_order_messages", 35), ("delayed_delivered_total", 41), ("delayed_skipped_total", 42),
            ("half_messages_asked_total", 43), ("half_messages_discarded_total", 44),
            ("popped_again_total", 45), ("popped_dead_total", 46), ("pulls_found_total", 47),
            ("disk_free_bytes", 250), ("disk_total_bytes", 1000), ("role_changes_total", 71),
        ):
            self.check("dledger_broker_" + name, value)
        self.check("dledger_broker_delayed_messages", 31, level="3")
        self.check("dledger_broker_dead_letters", 2, group="billing")
        for number, what in enumerate(("topics", "groups", "dead_letters", "queues"), 21):
            self.check("dledger_broker_series_cut", number, of=what)
        self.check("dledger_broker_topic_messages_total", 60, topic="orders")
        self.check("dledger_broker_topic_kept_messages", 57, topic="orders")
        self.check("dledger_broker_worst_queue_lag_messages", 7, group="billing", topic="orders")
        self.check("dledger_broker_consumers", 3, group="billing")

    def test_durations(self) -> None:
        """As histograms, whose buckets include the smaller ones."""
        for bound, count in (("0.0005", 1), ("0.025", 2), ("5.0", 2), ("+Inf", 3)):
            self.check("dledger_broker_put_duration_seconds_bucket", count, le=bound)
        self.check("dledger_broker_get_duration_seconds_count", 1)

    def test_exporter(self) -> None:
        """Names and labels are those of the exporter."""
        status = picture()
        where = {"cluster": status.cluster, "broker": status.name}
        broker = {**where, "brokerIP": status.address}
        for name, value in (("tps", 51), ("qps", 54), ("commitlog_diff", 640)):
            self.check(f"rocketmq_broker_{name}", value, **broker)
        self.check("rocketmq_producer_tps", 1.5, **where, topic="orders")
        self.check("rocketmq_producer_offset", 60, **where, topic="orders")
        self.check("rocketmq_topic_retry_offset", 9, **where, topic="%RETRY%billing")
        self.check("rocketmq_topic_dlq_offset", 4, **where, group="billing")
        self.check("rocketmq_consumer_tps", 2.5, **where, topic="orders", group="billing")
        self.check("rocketmq_consumer_offset", 30, **where, topic="orders", group="billing")
        for name, topic, value in (
            ("diff", "orders", 12), ("retrydiff", "%RETRY%billing", 5), ("dlqdiff", "%DLQ%billing", 2),
        ):
            self.check(f"rocketmq_group_{name}", value, group="billing", topic=topic,
                       countOfOnlineConsumers="3", msgModel="1")
        runtime = {
            "cluster": status.cluster, "brokerIP": status.address, "brokerHost": status.address,
            "des": status.name, "boottime": "1700000000000", "broker_version": "V5_3_3",
        }
        for name, number in (
            ("msg_put_total_today_now", 63.0), ("gettotal_tps10", 105.0), ("commitlog_disk_ratio", 0.75),
        ):
            self.check(f"rocketmq_brokeruntime_{name}", number, **runtime)
        text = exposed(status, figures())
        self.assertNotIn('rocketmq_group_diff{countOfOnlineConsumers="3",group="all"', text)
        self.assertEqual(text.count("rocketmq_producer_offset{"), 1)

    def test_not_open(self) -> None:
        """Before its store is open, a broker has its status only; a disk may not say how large it is."""
        self.assertNotIn("put_duration", exposed(picture(problem="it starts"), None))
        found = samples(exposed(picture(), figures(disk_total_bytes=-1, disk_free_bytes=-1)))
        (ratio,) = [value for (name, _), value in found.items() if name.endswith("commitlog_disk_ratio")]
        self.assertEqual(ratio, -1)

    def test_member(self) -> None:
        """A broker on a raft log has its member's metrics on the same page; each has its process's."""
        broker = FakeBroker()
        broker.figures = figures()
        pages: Any = BrokerPages(broker, lambda: 0.0, wall_s=lambda: 0.0, member=member_picture)
        text = generate_latest(pages.registry).decode()
        for name in ("dledger_term{", "dledger_broker_put_duration_seconds_sum", "process_open_fds"):
            self.assertIn(name, text)
        alone: Any = BrokerPages(broker, lambda: 0.0, wall_s=lambda: 0.0)
        self.assertNotIn("dledger_term{", generate_latest(alone.registry).decode())

    def test_every_metric_is_documented(self) -> None:
        """docs/ha.md has each, with the labels that it has."""
        text = exposed(picture(), figures())
        names = {name for name in _NAME.findall(text) if not name.endswith(("_sum", "_count", "_bucket"))}
        reported = (DOCS / "ha.md").read_text("utf-8")
        short = {re.sub(r"^dledger_broker_|_total$", "", name) for name in names}
        missing = {
            name for name in short
            if not any(f"`{one}`" in reported or f"`{one}{{" in reported for one in (name, f"{name}_total"))
        }
        self.assertEqual(missing, set())


class BoundTests(SynchronousTestCase):
    """However many names there are, the page stays below a size."""

    def test_size(self) -> None:
        """500 of each, with names of 255 characters, are below 4 MiB."""
        longest = "x" * 250
        topics = tuple(
            TopicMeasure(topic=f"{longest}{n}", stored=n, kept=n, per_second=1.0) for n in range(500)
        )
        groups = tuple(_group(f"{longest}{n}", f"{longest}{n}") for n in range(500))
        dead = {f"{longest}{n}": n for n in range(500)}
        lags = tuple(
            ConsumerLag(group=one.group, topic=one.topic, queues=1, messages=1) for one in groups
        )
        slaves = tuple(SlaveLag(address=f"10.0.0.{n}:7", gap_bytes=n, is_in_sync=True) for n in range(100))
        status = attrs.evolve(picture(), lags=lags, slaves=slaves)
        measures = figures(topics=topics, groups=groups, dead_letters=dead)
        self.assertLess(len(exposed(status, measures)), 4 << 20)
