# -*- test-case-name: tests.broker.test_describing -*-
"""Makes the L{BrokerStatus} of a broker, without touching its files."""

from __future__ import annotations

from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.showing.status import BrokerStatus, ConsumerLag, SlaveLag
from dledger.rocketmq.replication.service import HAStatus
from dledger.values.option_values import with_values

#: Queues whose consumers are looked at for one status: the reactor does nothing else meanwhile.
QUEUES_MAX = 5_000


def describe(
    broker: BrokerParts | None, config: BrokerConfig, *, problem: str, uptime_s: float, tls_expires_s: float
) -> BrokerStatus:
    """
    @param broker: None before its store is open.
    @param problem: why it does not serve, as its service knows; empty if it serves.
    @param tls_expires_s: end of its certificate, seconds since 1970; -1 without TLS.
    """
    status = BrokerStatus(
        name=config.broker_name, cluster=config.broker_cluster_name, broker_id=config.role.broker_id,
        role=config.role.name, log="raft log" if config.raft.enable_dleger_commit_log else "commit log",
        problem=problem, uptime_s=uptime_s, name_servers=tuple(config.name_servers),
        tls_expires_s=tls_expires_s, address="", connections=0, connections_refused=0, wire_errors=0,
        begin_offset=-1, end_offset=-1, flushed_offset=-1, undispatched_bytes=0, topics=0, groups=0,
        stored=0, delivered=0, pulls_empty=0, waiting_puts=0, waiting_pulls=0, bad_records=0, refusals={},
        overtaken=0, slaves=(), master="", replication_problem="", lags=(), are_lags_whole=True,
    )
    return status if broker is None else with_values(status, _of_parts(broker))


def _of_parts(broker: BrokerParts) -> dict[str, object]:
    store, pulls, router = broker.store, broker.pulls, broker.router
    ha = broker.replication.status()
    lags, are_whole = consumer_lags(broker)
    refusals = {f"{code}:{answer}": times for (code, answer), times in broker.refusals.counts.items()}
    if broker.refusals.others:
        refusals["others"] = broker.refusals.others
    return {
        "address": broker.own.text, "connections": router.connections,
        "connections_refused": router.connections_refused, "wire_errors": router.wire_errors,
        "begin_offset": store.log.begin_offset, "end_offset": store.log.end_offset,
        "flushed_offset": store.log.flushed_offset, "undispatched_bytes": store.reput.behind_bytes,
        "topics": len(broker.metadata.topics.entries), "groups": len(broker.metadata.groups.entries),
        "stored": broker.pipeline.stored, "delivered": pulls.messages, "pulls_empty": pulls.missed,
        "waiting_pulls": len(pulls), "bad_records": store.bad_records.count, "refusals": refusals,
        "overtaken": broker.registrar.overtaken,
        "lags": lags, "are_lags_whole": are_whole, **({} if ha is None else _of_replication(ha)),
    }


def _of_replication(ha: HAStatus) -> dict[str, object]:
    follower = ha.follower
    return {
        "waiting_puts": ha.waiting_puts,
        "slaves": tuple(
            SlaveLag(address=one.address, gap_bytes=one.gap_bytes, is_in_sync=one.is_in_sync)
            for one in ha.slaves
        ),
        "master": "" if follower is None else follower.master,
        "replication_problem": "" if follower is None else follower.problem,
    }


def consumer_lags(
    broker: BrokerParts, queues_max: int = QUEUES_MAX
) -> tuple[tuple[ConsumerLag, ...], bool]:
    """
    The lag of each group in each topic where it has committed, the largest first, and whether these are all.

    @param queues_max: no further topic is looked at after this many queues.
    """
    found: list[ConsumerLag] = []
    looked = 0
    for group, topic, offsets in broker.metadata.consumer_offsets.rows():
        if looked >= queues_max:
            return _sorted(found), False
        looked += len(offsets)
        messages = 0
        for queue_id, offset in offsets.items():
            begin, end = broker.store.queues.bounds(topic, queue_id) or (0, 0)
            messages += max(0, end - max(offset, begin))
        found.append(ConsumerLag(group=group, topic=topic, queues=len(offsets), messages=messages))
    return _sorted(found), True


def _sorted(lags: list[ConsumerLag]) -> tuple[ConsumerLag, ...]:
    return tuple(sorted(lags, key=lambda one: (-one.messages, one.group, one.topic)))
