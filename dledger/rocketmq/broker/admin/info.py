# -*- test-case-name: tests.broker.admin.test_info -*-
"""
The status of a broker in RocketMQ's form: its options by RocketMQ's names, and a table of texts.

Source: BrokerController.getRuntimeInfo, AdminBrokerProcessor.prepareRuntimeInfo, DefaultMessageStore,
Configuration.getAllConfigsFormatString (4.9.8, 5.3.3).
"""

from __future__ import annotations

from dledger.base.disk.disk import Disk, DiskSpace
from dledger.base.disk.expiry import used_ratio
from dledger.rocketmq.broker.admin.runtime_stats import RuntimeStats
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.replication.service import HAStatus
from dledger.rocketmq.store.records.records import store_timestamp_of
from dledger.rocketmq.store.store import MessageStore
from dledger.values.option_fields import options_of
from protocols.rocketmq.commands import VERSION

#: The name of L{VERSION}.
VERSION_NAME = "V5_3_3"

#: Options whose name in RocketMQ is not the camel case of ours.
_NAMES = {
    "broker_ip1": "brokerIP1",
    "broker_ip2": "brokerIP2",
    "enable_dleger_commit_log": "enableDLegerCommitLog",
    "dleger_group": "dLegerGroup",
    "dleger_peers": "dLegerPeers",
    "dleger_self_id": "dLegerSelfId",
    "store_path_dledger_commit_log": "storePathDLedgerCommitLog",
    "file_reserved_time_h": "fileReservedTime",
    "ha_max_gap_not_in_sync": "haMaxGapNotInSync",
}


def java_name(name: str) -> str:
    """RocketMQ's name of an option: C{broker_name} is C{brokerName}."""
    head, *words = name.split("_")
    return _NAMES.get(name) or head + "".join(word.title() for word in words)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ";".join(map(str, value)) if isinstance(value, tuple) else str(value)


#: Options that mqadmin exportConfigs needs, and that say what we do.
_FIXED_OPTIONS = {
    "filterServerNums": "0", "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC", "traceTopicEnable": "false",
    "useTLS": "false",
}


def broker_options(config: BrokerConfig) -> dict[str, str]:
    """Every option by RocketMQ's name."""
    found: dict[str, str] = {}
    for part in (config.store, config.ha, config.raft, config):
        for name in options_of(type(part)):
            if name not in ("store", "ha", "raft", "ignored", "role"):
                found[java_name(name)] = _text(getattr(part, name))
    role = {"brokerRole": config.role.name, "brokerId": str(config.role.broker_id)}
    return {**_FIXED_OPTIONS, **found, **role}


def runtime_info(
    config: BrokerConfig, store: MessageStore, metadata: Metadata, disk: Disk, stats: RuntimeStats, *,
    held: int, ha: HAStatus | None, refused: str = "",
) -> dict[str, str]:
    """
    The table that mqadmin brokerStatus shows, and clusterList reads.

    @param held: number of held pulls.
    @param refused: numbers of refused requests, as text.
    """
    log = store.log
    table: dict[str, object] = {
        "brokerVersion": VERSION, "brokerVersionDesc": VERSION_NAME, "brokerRole": config.role.name,
        "brokerActive": _text(store.is_ready), "bootTimestamp": stats.boot_ms, "runtime": stats.running,
        "commitLogMinOffset": log.begin_offset, "commitLogMaxOffset": log.end_offset,
        "commitLogFlushedOffset": log.flushed_offset, "dispatchBehindBytes": store.reput.behind_bytes,
        "badRecords": store.bad_records.count, **store.facts(), "refusedRequests": refused,
        "remainHowManyDataToFlush": f"{log.end_offset - log.flushed_offset} B",
        "earliestMessageTimeStamp": earliest_ms(store), "topicCount": len(metadata.topics.entries),
        "putTps": stats.rates("put"), "getFoundTps": stats.rates("found"),
        "getMissTps": stats.rates("missed"), "getTotalTps": stats.rates("found", "missed"),
        "getTransferedTps": stats.rates("got"), "getTransferredTps": stats.rates("got"),
        "pullThreadPoolQueueSize": 0, "pullThreadPoolQueueHeadWaitTimeMills": 0, "heldPulls": held,
        "sendThreadPoolQueueSize": 0 if ha is None else ha.waiting_puts,
        "sendThreadPoolQueueHeadWaitTimeMills": 0, "pageCacheLockTimeMills": 0,
    }
    for name, words in (("put", "msgPutTotal"), ("got", "msgGetTotal")):
        for moment, total in zip(("YesterdayMorning", "TodayMorning", "TodayNow"), stats.totals(name),
                                 strict=True):
            table[words + moment] = total
    table.update(_room(config, disk))
    return {name: str(value) for name, value in table.items()}


def _room(config: BrokerConfig, disk: Disk) -> dict[str, object]:
    log, root = _log_paths(config)
    return {"commitLogDiskRatio": _used(disk, log, root), "consumeQueueDiskRatio": _used(disk, root)}


def _log_paths(config: BrokerConfig) -> tuple[str, str]:
    """The directory of the log, which has none before its first message; and that of the store."""
    root, log = config.store.store_path_root_dir, config.store.commit_log_path
    if config.raft.enable_dleger_commit_log:
        log = config.raft.store_path_dledger_commit_log or root
    return log, root


def log_space(config: BrokerConfig, disk: Disk) -> DiskSpace | None:
    """That of the file system with the log; None: it cannot be asked."""
    for path in _log_paths(config):
        try:
            return disk.space(path)
        except OSError:
            continue  # a log has no directory before its first message
    return None


def _used(disk: Disk, *paths: str) -> str:
    """Share of a disk that is used: of the first path that there is; C{-1}: there is none."""
    for path in paths:
        try:
            return f"{used_ratio(disk.space(path)):.4f}"
        except OSError:
            continue  # a log has no directory before its first message
    return "-1"


def earliest_ms(store: MessageStore) -> int:
    """Store timestamp of the first message of the log, ms since 1970; -1 if it cannot be read."""
    log = store.log
    if log.begin_offset >= log.record_end:
        return -1
    try:
        return store_timestamp_of(log.read(log.begin_offset, 128)) or -1
    except OSError:
        return -1
