# -*- test-case-name: tests.client.test_top_level -*-
"""
Clients of one RocketMQ broker, Java's or ours: put messages, read the log, ask for the replication status.

L{Broker} is for programs without a reactor; the others are its parts, for programs with one.
"""

from dledger.rocketmq.client.blocking import Broker, PutSummary
from dledger.rocketmq.client.link import BrokerLink
from dledger.rocketmq.client.native_tail import NativeTail
from dledger.rocketmq.client.producer import BrokerProducer, PutLimits
from dledger.rocketmq.client.pull_tail import PullTail
from dledger.rocketmq.client.values import (
    LogOffsets,
    LogRecords,
    PutError,
    PutRefused,
    PutUnknown,
    Stored,
)
from dledger.values.errors import DLedgerError
from protocols.rocketmq.signing import Credentials

__all__ = (
    "Broker",
    "BrokerLink",
    "BrokerProducer",
    "Credentials",
    "DLedgerError",
    "LogOffsets",
    "LogRecords",
    "NativeTail",
    "PullTail",
    "PutError",
    "PutLimits",
    "PutRefused",
    "PutSummary",
    "PutUnknown",
    "Stored",
)
