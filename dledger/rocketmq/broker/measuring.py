# -*- test-case-name: tests.broker.test_measuring -*-
"""
Makes the L{BrokerMeasures} of a broker, from counters and tables in memory; of the disk only the free space.

Rule: the figures are bounded: L{MEASURED_MAX} topics, groups in topics, and groups with dead letters, of at
most L{QUEUES_MAX} queues each. What is left out is counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.rocketmq.broker.admin.topic_rates import QUEUES_MAX, TopicCount, topic_counts
from dledger.rocketmq.broker.consuming.subscriptions import BROADCASTING
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.producing.topic_checks import DLQ_PREFIX
from dledger.rocketmq.broker.showing.status import BrokerMeasures, GroupMeasure, TopicMeasure, Waiting

#: Topics, groups in topics, and groups with dead letters that have metrics of their own.
MEASURED_MAX = 500

_STATS = ("put", "found", "missed", "got")


def measure(broker: BrokerParts) -> BrokerMeasures:
    """The present figures."""
    counts, queues_cut = topic_counts(broker.store.queues)
    dead = _largest({
        topic[len(DLQ_PREFIX):]: one.kept for topic, one in counts.items() if topic.startswith(DLQ_PREFIX)
    })
    groups, groups_cut = _groups(broker)
    topics = _topics(broker, counts)
    stats, space = broker.admin.stats, broker.admin.space()
    return BrokerMeasures(
        puts=broker.pipeline.put_s.status(), gets=broker.pulls.get_s.status(),
        topics=topics[:MEASURED_MAX], groups=groups[:MEASURED_MAX], dead_letters=dict(dead[:MEASURED_MAX]),
        cut={
            "topics": len(topics[MEASURED_MAX:]), "groups": len(groups[MEASURED_MAX:]) + groups_cut,
            "dead_letters": len(dead[MEASURED_MAX:]), "queues": queues_cut,
        },
        waiting=_waiting(broker), totals=_totals(broker),
        rates={name: stats.per_second(name) for name in _STATS},
        mornings={name: stats.totals(name) for name in ("put", "got")},
        disk_free_bytes=-1 if space is None else space.usable,
        disk_total_bytes=-1 if space is None else space.total,
        role_changes=broker.config.role.changes, boot_ms=stats.boot_ms,
    )


def _largest(numbers: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(numbers.items(), key=lambda one: (-one[1], one[0]))


def _topics(broker: BrokerParts, counts: Mapping[str, TopicCount]) -> tuple[TopicMeasure, ...]:
    ordered = _largest({topic: one.stored for topic, one in counts.items()})
    return tuple(
        TopicMeasure(
            topic=topic, stored=stored, kept=counts[topic].kept,
            per_second=broker.admin.topic_rates.per_second(topic),
        )
        for topic, stored in ordered
    )


def _groups(broker: BrokerParts) -> tuple[tuple[GroupMeasure, ...], int]:
    """The groups in topics, the largest lag first; and the number of those that were not looked at."""
    found: list[GroupMeasure] = []
    looked = cut = 0
    for group, topic, offsets in broker.metadata.consumer_offsets.rows():
        if looked >= QUEUES_MAX:
            cut += 1
            continue
        looked += len(offsets)
        lags = []
        for queue_id, offset in offsets.items():
            begin, end = broker.store.queues.bounds(topic, queue_id) or (0, 0)
            lags.append(max(0, end - max(offset, begin)))
        data = broker.consumer_table.data_of(group)
        found.append(GroupMeasure(
            group=group, topic=topic, consumed=sum(offsets.values()), lag=sum(lags),
            worst_lag=max(lags, default=0), members=broker.consumer_table.count_of(group),
            per_second=broker.pulls.progress.rates.per_second((group, topic)),
            is_broadcasting=data is not None and data.message_model == BROADCASTING,
        ))
    return tuple(sorted(found, key=lambda one: (-one.lag, one.group, one.topic))), cut


def _waiting(broker: BrokerParts) -> Waiting:
    return Waiting(
        delayed=broker.schedule.waiting, timed=len(broker.timers), halves=broker.checks_of_halves.waiting,
        popped=broker.revive.table.held(), popped_in_order=broker.metadata.order_info.held(),
    )


def _totals(broker: BrokerParts) -> dict[str, int]:
    return {
        "delayed_delivered": broker.schedule.delivered + broker.timers.delivered,
        "delayed_skipped": broker.schedule.passed_over + broker.timers.passed_over,
        "halves_asked": broker.checks_of_halves.asked, "halves_discarded": broker.checks_of_halves.discarded,
        "popped_again": broker.revive.revived, "popped_dead": broker.revive.dead,
        "pulls_found": broker.pulls.found,
    }
