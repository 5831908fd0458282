# -*- test-case-name: tests.broker.common.test_raft_options -*-
"""
The options of a broker whose log is a raft group, with RocketMQ's names in snake_case.

Source: MessageStoreConfig.java, BrokerStartup.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import re

import attrs

from dledger.values.option_fields import flag_option, path_option, text_option

#: As BrokerStartup reads it: C{selfId.substring(1)} is a number.
_SELF_ID = re.compile(r"[A-Za-z]([0-9]{1,4})")


@attrs.frozen(kw_only=True)
class RaftOptions:
    """
    @ivar enable_dleger_commit_log: the log is a raft group's.
    @ivar dleger_group: name of the group; empty: the name of the broker.
    @ivar dleger_peers: members as C{n0-host:port;n1-host:port}; the ports are the members', not the brokers'.
    @ivar dleger_self_id: id of this member, a letter and digits. The digits plus 1 are its broker id while it
        follows.
    @ivar store_path_dledger_commit_log: directory of the entries; empty: below the store's.
    @ivar preferred_leader_id: members that should lead, separated by semicolons; empty for none.
    """

    enable_dleger_commit_log: bool = flag_option(False)
    dleger_group: str = text_option("")
    dleger_peers: str = text_option("")
    dleger_self_id: str = text_option("")
    store_path_dledger_commit_log: str = path_option("")
    preferred_leader_id: str = text_option("")

    def __attrs_post_init__(self) -> None:
        if not self.enable_dleger_commit_log:
            said = [name for name, value in (
                ("dLegerPeers", self.dleger_peers), ("dLegerSelfId", self.dleger_self_id),
            ) if value]
            if said:
                raise ValueError(f"{said[0]} is given, but enableDLegerCommitLog is false: the log would not "
                                 "be replicated by raft; write true, or leave it out")
            return
        if not self.dleger_peers:
            raise ValueError("enableDLegerCommitLog=true needs dLegerPeers: n0-host:port;n1-host:port;...")
        if not _SELF_ID.fullmatch(self.dleger_self_id):
            raise ValueError(f"dLegerSelfId={self.dleger_self_id!r}: write a letter and a number, as n0, one "
                             "of dLegerPeers; the number makes the broker's id")

    @property
    def slave_id(self) -> int:
        """The broker id of this member while it follows, as RocketMQ's brokers count."""
        return int(self.dleger_self_id[1:]) + 1
