# -*- test-case-name: tests.broker.admin.test_refused -*-
"""
Requests of RocketMQ's tools for parts that this broker does not have: each is refused with the name of the
part, and what to do instead.

Source: RequestCode (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dledger.rocketmq.answering.refusals import Code, CommandGroup, Handlers, Refused
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand

_ACL = "the accounts are in files: edit acl_file, the broker reads it again"
_COLD = "there is no flow control of cold data: reads of old messages are served as those of new ones"
_ROCKSDB = "the store has RocketMQ's files, and no RocksDB"
_CONTROLLER = "there is no controller: a raft group gives the roles (enableDLegerCommitLog), or broker_role"
_STATIC = "there are no static topics: a queue stays on its broker"

#: By request code: RocketMQ's name, and the reason.
ABSENT: Mapping[int, tuple[str, str]] = {
    50: ("UPDATE_AND_CREATE_ACL_CONFIG", _ACL), 51: ("DELETE_ACL_CONFIG", _ACL),
    52: ("GET_BROKER_CLUSTER_ACL_INFO", _ACL), 53: ("UPDATE_GLOBAL_WHITE_ADDRS_CONFIG", _ACL),
    354: ("CHECK_ROCKSDB_CQ_WRITE_PROGRESS", _ROCKSDB), 355: ("EXPORT_ROCKSDB_CONFIG_TO_JSON", _ROCKSDB),
    513: ("UPDATE_AND_CREATE_STATIC_TOPIC", _STATIC),
    908: ("RESET_MASTER_FLUSH_OFFSET", "a master's own log says how far it is flushed"),
    1007: ("GET_BROKER_EPOCH_CACHE", _CONTROLLER), 1008: ("NOTIFY_BROKER_ROLE_CHANGED", _CONTROLLER),
    2001: ("UPDATE_COLD_DATA_FLOW_CTR_CONFIG", _COLD), 2002: ("REMOVE_COLD_DATA_FLOW_CTR_CONFIG", _COLD),
    2003: ("GET_COLD_DATA_FLOW_CTR_INFO", _COLD),
    2004: ("SET_COMMITLOG_READ_MODE", "the kernel decides how far it reads ahead"),
    3001: ("AUTH_CREATE_USER", _ACL), 3002: ("AUTH_UPDATE_USER", _ACL), 3003: ("AUTH_DELETE_USER", _ACL),
    3004: ("AUTH_GET_USER", _ACL), 3005: ("AUTH_LIST_USER", _ACL), 3006: ("AUTH_CREATE_ACL", _ACL),
    3007: ("AUTH_UPDATE_ACL", _ACL), 3008: ("AUTH_DELETE_ACL", _ACL), 3009: ("AUTH_GET_ACL", _ACL),
    3010: ("AUTH_LIST_ACL", _ACL),
}


class RefusedCommands(CommandGroup):
    """The group of commands."""

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            code: partial(_refuse, f"{name} is not supported: {why}") for code, (name, why) in ABSENT.items()
        }


def _refuse(remark: str, connection: CommandConnection, request: RemotingCommand) -> None:
    raise Refused(Code.REQUEST_CODE_NOT_SUPPORTED, remark)
