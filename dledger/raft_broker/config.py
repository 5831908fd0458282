# -*- test-case-name: tests.raft_broker.test_config -*-
"""
The options of the member that has the log of a broker, from the options of the broker.

Source: DLedgerCommitLog's constructor, BrokerStartup (4.9.8, 5.3.3).
"""

from __future__ import annotations

import attrs

from dledger.rocketmq.broker.options.config import FAST_PORT_DISTANCE, BrokerConfig
from dledger.rocketmq.replication.config import SYNC_FLUSH
from dledger.values.addresses import parse_address, parse_members
from dledger.values.ledger.config import DLedgerConfig, from_mapping

_TLS = ("tls_certificate", "tls_key", "tls_authority")


def member_config(broker: BrokerConfig) -> DLedgerConfig:
    """
    The options of the member of a broker.

    @raise ValueError: options do not fit together; the text says which.
    """
    raft, store = broker.raft, broker.store
    peers = parse_members(raft.dleger_peers, "dLegerPeers")
    if raft.dleger_self_id not in peers:
        raise ValueError(f"dLegerSelfId={raft.dleger_self_id} is not one of dLegerPeers={raft.dleger_peers}")
    config = from_mapping({
        "group": raft.dleger_group or broker.broker_name, "self_id": raft.dleger_self_id,
        "peers": raft.dleger_peers, "store_base_dir": store.store_path_root_dir,
        "data_store_path": raft.store_path_dledger_commit_log,
        "mapped_file_size_for_entry_data": store.mapped_file_size_commit_log,
        "flush_disk_type": "sync" if broker.ha.flush_disk_type == SYNC_FLUSH else "async",
        "preferred_leader_ids": raft.preferred_leader_id,
        "change_hosts": broker.change_hosts, "client_token_file": broker.client_token_file,
        "insecure": broker.insecure,
        **({name: getattr(broker, name) for name in _TLS} if broker.tls_members_enable else {}),
        "file_reserved_hours": store.file_reserved_time_h + 1, "delete_when": store.delete_when,
        "disk_full_ratio": store.disk_space_warning_level_ratio,
    })
    config = attrs.evolve(
        config, disk_space_ratio_to_check_expired=store.disk_max_used_space_ratio / 100
    )
    _, port = parse_address(peers[config.self_id])
    ours = {
        broker.listen_port: "listenPort", broker.listen_port - FAST_PORT_DISTANCE: "listenPort - 2",
    }
    if broker.listen_port and port in ours:
        raise ValueError(f"dLegerPeers gives {config.self_id} the port {port}, which is {ours[port]} of the "
                         "broker itself: the member needs a port of its own")
    return config
