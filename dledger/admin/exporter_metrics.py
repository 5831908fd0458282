# -*- test-case-name: tests.admin.test_broker_metrics -*-
"""
The metrics of a broker by the names and labels of Apache's rocketmq-exporter, so that dashboards and alerts
which there are for it work without it.

Rates are RocketMQ's: of a broker those of the last ten seconds, of topics and groups about the last minute's.
Not here: what the exporter asks clients for (C{rocketmq_client_...}), and figures of Java's thread pools.

Source: RMQMetricsCollector, MetricsCollectTask (rocketmq-exporter).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from dledger.rocketmq.broker.showing.status import BrokerMeasures, BrokerStatus, GroupMeasure

_RETRY, _DLQ = "%RETRY%", "%DLQ%"
_VERSION = "V5_3_3"
_RUNTIME_LABELS = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")

_Number = Callable[[BrokerStatus, BrokerMeasures], float]


def _used(_: BrokerStatus, measures: BrokerMeasures) -> float:
    total = measures.disk_total_bytes
    return 1 - measures.disk_free_bytes / total if total > 0 else -1.0


#: Of a broker: name, help, and the function that reads the number.
RUNTIME: tuple[tuple[str, str, _Number], ...] = (
    ("put_tps10", "Messages put a second.", lambda s, m: m.rates["put"]),
    ("getfound_tps10", "Pulls with messages a second.", lambda s, m: m.rates["found"]),
    ("getmiss_tps10", "Pulls without a second.", lambda s, m: m.rates["missed"]),
    ("gettotal_tps10", "Pulls a second.", lambda s, m: m.rates["found"] + m.rates["missed"]),
    ("gettransfered_tps10", "Messages given to consumers a second.", lambda s, m: m.rates["got"]),
    ("msg_puttotal_yesterdaymorning", "Messages put, yesterday at midnight.",
     lambda s, m: m.mornings["put"][0]),
    ("msg_puttotal_todaymorning", "Messages put, today at midnight.", lambda s, m: m.mornings["put"][1]),
    ("msg_put_total_today_now", "Messages put.", lambda s, m: m.mornings["put"][2]),
    ("msg_gettotal_yesterdaymorning", "Messages given, yesterday at midnight.",
     lambda s, m: m.mornings["got"][0]),
    ("msg_gettotal_todaymorning", "Messages given, today at midnight.", lambda s, m: m.mornings["got"][1]),
    ("msg_gettotal_today_now", "Messages given.", lambda s, m: m.mornings["got"][2]),
    ("dispatch_behind_bytes", "Bytes in no consume queue yet.", lambda s, m: s.undispatched_bytes),
    ("commitlog_minoffset", "First byte of the log.", lambda s, m: s.begin_offset),
    ("commitlog_maxoffset", "End of the log.", lambda s, m: s.end_offset),
    ("remain_howmanydata_toflush", "Bytes not on stable storage.",
     lambda s, m: s.end_offset - s.flushed_offset),
    ("commitlog_disk_ratio", "Share of the disk that is used; -1: not known.", _used),
    ("commitlogdir_capacity_free", "Free bytes of the disk.", lambda s, m: m.disk_free_bytes),
    ("commitlogdir_capacity_total", "Bytes of the disk.", lambda s, m: m.disk_total_bytes),
)


def exporter_metrics(status: BrokerStatus, measures: BrokerMeasures) -> Iterator[Metric]:
    """Every family."""
    broker = (status.cluster, status.address, status.name)
    names = ("cluster", "brokerIP", "broker")
    yield _one("rocketmq_broker_tps", "Messages put a second.", names, broker, measures.rates["put"])
    yield _one("rocketmq_broker_qps", "Messages given a second.", names, broker, measures.rates["got"])
    if status.slaves:
        gap = max(one.gap_bytes for one in status.slaves)
        yield _one("rocketmq_broker_commitlog_diff", "Bytes that the last slave lacks.", names, broker, gap)
    runtime = (status.cluster, status.address, status.address, status.name, str(measures.boot_ms), _VERSION)
    for name, text, number in RUNTIME:
        yield _one(f"rocketmq_brokeruntime_{name}", text, _RUNTIME_LABELS, runtime, number(status, measures))
    yield from _topics(status, measures)
    yield from _groups(status, measures)
    yield from _lags(measures)


def _one(
    name: str, text: str, names: tuple[str, ...], who: tuple[str, ...], value: float
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=names)
    family.add_metric(who, float(value))
    return family


def _topics(status: BrokerStatus, measures: BrokerMeasures) -> Iterator[Metric]:
    names, where = ("cluster", "broker", "topic"), (status.cluster, status.name)
    tps = GaugeMetricFamily("rocketmq_producer_tps", "Messages put a second.", labels=names)
    ends = GaugeMetricFamily("rocketmq_producer_offset", "Sum of the ends of its queues.", labels=names)
    retries = GaugeMetricFamily(
        "rocketmq_topic_retry_offset", "The same of a topic of retries.", labels=names
    )
    dead = GaugeMetricFamily(
        "rocketmq_topic_dlq_offset", "The same of the dead letters of a group.",
        labels=("cluster", "broker", "group"),
    )
    for topic in measures.topics:
        if topic.topic.startswith(_DLQ):
            dead.add_metric((*where, topic.topic[len(_DLQ):]), float(topic.stored))
        elif topic.topic.startswith(_RETRY):
            retries.add_metric((*where, topic.topic), float(topic.stored))
        else:
            tps.add_metric((*where, topic.topic), topic.per_second)
            ends.add_metric((*where, topic.topic), float(topic.stored))
    yield from (tps, ends, retries, dead)


def _groups(status: BrokerStatus, measures: BrokerMeasures) -> Iterator[Metric]:
    names, where = ("cluster", "broker", "topic", "group"), (status.cluster, status.name)
    tps = GaugeMetricFamily("rocketmq_consumer_tps", "Messages given a second.", labels=names)
    offsets = GaugeMetricFamily("rocketmq_consumer_offset", "Sum of the committed offsets.", labels=names)
    for group in measures.groups:
        who = (*where, group.topic, group.group)
        tps.add_metric(who, group.per_second)
        offsets.add_metric(who, float(group.consumed))
    yield from (tps, offsets)


def _lags(measures: BrokerMeasures) -> Iterator[Metric]:
    """Of groups that share the messages of a topic: others have no common lag."""
    names = ("group", "topic", "countOfOnlineConsumers", "msgModel")
    diff = GaugeMetricFamily("rocketmq_group_diff", "Messages not consumed.", labels=names)
    retry = GaugeMetricFamily("rocketmq_group_retrydiff", "The same of retries.", labels=names)
    dead = GaugeMetricFamily("rocketmq_group_dlqdiff", "The same of dead letters.", labels=names)
    for group in measures.groups:
        if not group.is_broadcasting:
            _family_of(group, diff, retry, dead).add_metric(
                (group.group, group.topic, str(group.members), "1"), float(group.lag)
            )
    yield from (diff, retry, dead)


def _family_of(
    group: GroupMeasure, diff: GaugeMetricFamily, retry: GaugeMetricFamily, dead: GaugeMetricFamily
) -> GaugeMetricFamily:
    if group.topic.startswith(_RETRY):
        return retry
    return dead if group.topic.startswith(_DLQ) else diff
