# -*- test-case-name: tests.sim.test_raft_clients -*-
"""Brokers on raft logs: the real broker with the real member."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dledger.node.broker_hooks import Embedding
from dledger.node.member_process import MemberEndpoints, MemberExtras, MemberProcess
from dledger.node.node import Node
from dledger.node.service import MemberService
from dledger.node.threads import MemberThreads
from dledger.raft_broker.service import RaftBrokerService
from dledger.rocketmq.broker.options.config import broker_from_mapping
from dledger.rocketmq.broker.service import BrokerPorts, BrokerProcess
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, MarkFile
from dledger.testing.brokers.rig.machine import CLIENT_PORT, SMALL, BrokerMachine, MadeBroker, ProcessParts
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.option_values import with_values

#: Options of every member: an election takes seconds, as a turn of the simulation costs.
TIMING: Mapping[str, object] = {
    "tick_ms": 100, "heart_beat_time_interval_ms": 400, "max_heart_beat_leak": 4, "min_vote_interval_ms": 200,
    "max_vote_interval_ms": 900, "rpc_time_out_ms": 2000, "max_push_time_out_ms": 1500,
    "check_point_interval": 2000, "mapped_file_size_for_entry_index": 32 * 64,
}
SCRUB: Mapping[str, object] = {"scrub_bytes_per_s": 200_000, "scrub_pause_ms": 500}


@attrs.frozen
class MakeRaftBroker:
    """
    A L{dledger.testing.brokers.rig.machine.MakeBroker}.

    @ivar ids: of all members; they are names of machines.
    @ivar options: of every broker, by RocketMQ's names.
    @ivar scrubs: members look for damage all the time, and not once in ten minutes.
    """

    ids: tuple[str, ...]
    options: Mapping[str, object]
    scrubs: bool = False

    def __call__(self, machine: BrokerMachine, parts: ProcessParts) -> MadeBroker:
        """See L{dledger.testing.brokers.rig.machine.MakeBroker}."""
        is_sync, process, rng = machine.world.is_sync, parts.process, parts.rng
        config = broker_from_mapping({
            **SMALL, "brokerIP1": "10.0.0.1", "enableDLegerCommitLog": True, "dLegerSelfId": machine.name,
            "dLegerPeers": ";".join(f"{one}-{one}.sim:20911" for one in self.ids),
            "flushDiskType": "SYNC_FLUSH" if is_sync else "ASYNC_FLUSH", **self.options,
        })
        boot_id = f"boot {machine.disk.power_cuts}"

        def make_member(of_member: DLedgerConfig, embedding: Embedding) -> MemberService:
            return MemberService(
                with_values(of_member, {**TIMING, **(SCRUB if self.scrubs else {})}),
                MemberProcess(
                    reactor=parts.reactor, disk=machine.disk, rng=rng, failed=machine.failed,
                    boot_id=boot_id, wall_clock=lambda: (machine.wall_s(), 12),
                    threads=MemberThreads.of(parts.reactor, flush=parts.thread()),
                ),
                MemberEndpoints(
                    listen=machine.server(process),
                    dial=lambda peer_id, _: machine.client(process, peer_id),
                ),
                MemberExtras(embedding=embedding),
            )

        service = RaftBrokerService(
            config, BrokerProcess(
                reactor=parts.reactor, disk=machine.disk, rng=rng, wall_s=machine.wall_s,
                failed=machine.failed, threads=parts.thread(),
            ), BrokerPorts(clients=machine.server(process, CLIENT_PORT)), make_member=make_member,
        )
        return MadeBroker(service=service, broker=service.broker)


def node_of(machine: BrokerMachine) -> Node | None:
    """The member of its running process."""
    service = machine.made.service if machine.is_up and hasattr(machine, "made") else None
    return service.member.node if isinstance(service, RaftBrokerService) else None


def is_ledger_closed(machine: BrokerMachine) -> bool:
    """Whether a member, which closes its ledger after its broker has ended, says that it has done so."""
    path = f"/store/dledger-{machine.name}"
    mark = MarkFile.form.newest(machine.disk.files_below(path).get(f"{path}/{COMMIT_MARK_NAME}", b""))
    return mark is not None and mark[1].clean


def hand_over(machine: BrokerMachine, name: str) -> None:
    """Let the member of a broker, if it leads, hand over. @param name: of the other one's machine."""
    node = node_of(machine)
    if node is not None and node.is_running and node.is_leader:
        node.transfer(name).addErrback(lambda _: None)
