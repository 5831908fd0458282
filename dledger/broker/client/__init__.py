# -*- test-case-name: tests.client.test_front_door -*-
"""
Clients of one RocketMQ broker, Java's or ours: put messages, read the log, ask for the replication status.

L{Broker} is for programs without a reactor; the others are its parts, for programs with one.
"""

from dledger.base.errors import DLedgerError
from dledger.broker.client.blocking import Broker, PutSummary
from dledger.broker.client.link import BrokerLink
from dledger.broker.client.native_tail import NativeTail
from dledger.broker.client.producer import BrokerProducer, PutLimits
from dledger.broker.client.pull_tail import PullTail
from dledger.broker.client.values import LogOffsets, LogRecords, PutError, PutRefused, PutUnknown, Stored
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
