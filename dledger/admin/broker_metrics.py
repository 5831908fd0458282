# -*- test-case-name: tests.admin.test_broker_metrics -*-
"""
A broker's metrics for Prometheus, made on request; this module keeps no state.

Names of topics, groups and slaves are labels: their number is bounded, and what is left out is counted in
C{series_cut}. Those of L{dledger.admin.exporter_metrics} are there besides, for dashboards that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

import dledger
from dledger.admin.exporter_metrics import exporter_metrics
from dledger.admin.metrics import histogram_family
from dledger.rocketmq.broker.showing.status import BrokerMeasures, BrokerStatus

_PREFIX = "dledger_broker_"
#: Consumer groups in topics that have a metric of their own; the largest lags come first.
GROUPS_MEASURED = 500

#: Name and help of the numbers that rise and fall, and of those that only rise.
BROKER_GAUGES: tuple[tuple[str, str], ...] = (
    ("connections", "Open connections of clients."),
    ("begin_offset", "First byte of the log; -1 before the store is open."),
    ("end_offset", "End of the log, bytes; -1 before the store is open."),
    ("flushed_offset", "End of the log on stable storage, bytes."),
    ("undispatched_bytes", "Bytes of messages that are in no consume queue yet."),
    ("topics", "Topics."),
    ("groups", "Subscription groups."),
    ("waiting_puts", "Puts that wait for slaves or for the disk."),
    ("waiting_pulls", "Pulls that wait for messages."),
)
BROKER_COUNTERS: tuple[tuple[str, str], ...] = (
    ("stored", "Messages stored."),
    ("delivered", "Messages given to consumers."),
    ("pulls_empty", "Pulls that found no message."),
    ("bad_records", "Damaged messages seen."),
    ("overtaken", "Times that another broker had the name and id of this one at a name server."),
    ("wire_errors", "Connections ended because of malformed bytes."),
    ("connections_refused", "Connections refused."),
)

#: The same, of what is measured besides; for those that only rise, also the key in C{totals}.
MEASURED_GAUGES: tuple[tuple[str, str, Callable[[BrokerMeasures], float]], ...] = (
    ("timed_messages", "Messages that wait for a time of their own.", lambda m: m.waiting.timed),
    ("half_messages", "Half messages that are not known to have ended.", lambda m: m.waiting.halves),
    ("popped_messages", "Messages given by POP, and not acknowledged.", lambda m: m.waiting.popped),
    ("popped_in_order_messages", "The same of POP in order.", lambda m: m.waiting.popped_in_order),
    ("disk_free_bytes", "Bytes that its user may take of the file system with the log; -1: not known.",
     lambda m: m.disk_free_bytes),
    ("disk_total_bytes", "Size of that file system; -1: not known.", lambda m: m.disk_total_bytes),
)
MEASURED_COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("delayed_delivered", "Messages delivered after their delay, or at their time.", "delayed_delivered"),
    ("delayed_skipped", "Such messages that can never be delivered.", "delayed_skipped"),
    ("half_messages_asked", "Questions to producers about half messages.", "halves_asked"),
    ("half_messages_discarded", "Half messages that were given up.", "halves_discarded"),
    ("popped_again", "Messages that POP gives again, as they were not acknowledged in time.", "popped_again"),
    ("popped_dead", "Messages that became dead letters after too many pops.", "popped_dead"),
    ("pulls_found", "Pulls that found messages.", "pulls_found"),
)


class BrokerCollector(Collector):
    """Makes the metrics of one broker from one status, and from its further figures if there are any."""

    def __init__(
        self, status: Callable[[], BrokerStatus], measures: Callable[[], BrokerMeasures | None] = lambda: None
    ) -> None:
        self._status = status
        self._measures = measures

    def collect(self) -> Iterator[Metric]:
        """Every metric family."""
        status = self._status()
        for name, text in BROKER_GAUGES:
            yield GaugeMetricFamily(_PREFIX + name, text, value=float(getattr(status, name)))
        yield GaugeMetricFamily(_PREFIX + "is_healthy", "1 while it serves.", value=float(not status.problem))
        yield GaugeMetricFamily(_PREFIX + "is_master", "1 for a master.", value=float(status.role != "SLAVE"))
        yield GaugeMetricFamily(
            _PREFIX + "is_replicating", "0 if a slave is not in order, else 1.",
            value=float(not status.replication_problem),
        )
        yield GaugeMetricFamily(
            _PREFIX + "tls_certificate_end_seconds",
            "End of its TLS certificate, seconds since 1970; -1 without TLS.", value=status.tls_expires_s,
        )
        yield GaugeMetricFamily(_PREFIX + "uptime_seconds", "Seconds since its start.", value=status.uptime_s)
        for name, text in BROKER_COUNTERS:
            yield CounterMetricFamily(f"{_PREFIX}{name}_total", text, value=float(getattr(status, name)))
        yield from _by_others(status)
        measures = self._measures()
        if measures is not None:
            yield from _measured(measures)
            yield from exporter_metrics(status, measures)

    def describe(self) -> Iterator[Metric]:
        """Nothing in advance: the broker may not have started."""
        return iter(())


def _by_others(status: BrokerStatus) -> Iterator[Metric]:
    refusals = CounterMetricFamily(
        _PREFIX + "refusals_total", "Requests refused, by request code and code of the answer.",
        labels=("request", "code"),
    )
    for pair, times in status.refusals.items():
        request, _, code = pair.partition(":")
        refusals.add_metric((request, code), float(times))
    yield refusals
    slaves = GaugeMetricFamily(
        _PREFIX + "slave_lag_bytes", "Bytes that a slave has not reported as held.", labels=("slave",)
    )
    for slave in status.slaves:
        slaves.add_metric((slave.address,), float(slave.gap_bytes))
    yield slaves
    lags = GaugeMetricFamily(
        _PREFIX + "consumer_lag_messages", "Messages stored, and not committed as consumed.",
        labels=("group", "topic"),
    )
    for lag in status.lags[:GROUPS_MEASURED]:
        lags.add_metric((lag.group, lag.topic), float(lag.messages))
    yield lags
    info = InfoMetricFamily(_PREFIX + "build", "Version of the software, role and kind of log.")
    info.add_metric((), {"version": dledger.__version__, "role": status.role, "log": status.log})
    yield info


def _measured(measures: BrokerMeasures) -> Iterator[Metric]:
    yield histogram_family(
        _PREFIX + "put_duration_seconds", "From a put to the answer of its producers.", (), (), measures.puts
    )
    yield histogram_family(
        _PREFIX + "get_duration_seconds", "Looks for messages of pulls, without the wait for them.",
        (), (), measures.gets,
    )
    for name, text, number in MEASURED_GAUGES:
        yield GaugeMetricFamily(_PREFIX + name, text, value=float(number(measures)))
    for name, text, key in MEASURED_COUNTERS:
        yield CounterMetricFamily(f"{_PREFIX}{name}_total", text, value=float(measures.totals[key]))
    changes = float(measures.role_changes)
    yield CounterMetricFamily(_PREFIX + "role_changes_total", "Changes of master and slave.", value=changes)
    delayed = GaugeMetricFamily(_PREFIX + "delayed_messages", "Messages that wait.", labels=("level",))
    for level, count in measures.waiting.delayed.items():
        delayed.add_metric((str(level),), float(count))
    yield delayed
    dead = GaugeMetricFamily(
        _PREFIX + "dead_letters", "Messages that no consumer takes any more.", labels=("group",)
    )
    for group, count in measures.dead_letters.items():
        dead.add_metric((group,), float(count))
    yield dead
    cut = GaugeMetricFamily(_PREFIX + "series_cut", "Names without metrics of their own.", labels=("of",))
    for what, count in measures.cut.items():
        cut.add_metric((what,), float(count))
    yield cut
    yield from _by_topic(measures)


def _by_topic(measures: BrokerMeasures) -> Iterator[Metric]:
    stored = CounterMetricFamily(
        _PREFIX + "topic_messages_total", "Messages that a topic has ever had.", labels=("topic",)
    )
    kept = GaugeMetricFamily(
        _PREFIX + "topic_kept_messages", "Those that are still there.", labels=("topic",)
    )
    for topic in measures.topics:
        stored.add_metric((topic.topic,), float(topic.stored))
        kept.add_metric((topic.topic,), float(topic.kept))
    yield from (stored, kept)
    worst = GaugeMetricFamily(
        _PREFIX + "worst_queue_lag_messages", "The lag in the queue where it is largest.",
        labels=("group", "topic"),
    )
    members = GaugeMetricFamily(
        _PREFIX + "consumers", "Consumers of a group that are connected.", labels=("group",)
    )
    known: set[str] = set()
    for group in measures.groups:
        worst.add_metric((group.group, group.topic), float(group.worst_lag))
        if group.group not in known:
            known.add(group.group)
            members.add_metric((group.group,), float(group.members))
    yield from (worst, members)
