# -*- test-case-name: tests.sim.test_pairs -*-
"""Masters and slaves of RocketMQ's kind: the real broker service, with the options of its role."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dledger.rocketmq.broker.options.config import BrokerConfig, broker_from_mapping
from dledger.rocketmq.broker.replication import HAReplication
from dledger.rocketmq.broker.service import BrokerPorts, BrokerProcess, BrokerService
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.slave import HAFollower
from dledger.testing.brokers.rig.machine import (
    CLIENT_PORT,
    SLAVE_PORT,
    SMALL,
    BrokerMachine,
    MadeBroker,
    ProcessParts,
)
from dledger.values.option_fields import is_fixed
from dledger.values.option_values import with_values

#: No wait is longer than a part of a schedule.
TIMING: Mapping[str, object] = {
    "ha_send_heartbeat_interval": 500, "ha_housekeeping_interval": 2500, "slaveTimeout": 1500,
    "sync_flush_timeout": 2500, "ha_reconnect_min": 50, "ha_reconnect_max": 1000,
    "flushConsumerOffsetInterval": 1000, "transactionCheckInterval": 2000, "transactionTimeOut": 2000,
    "transactionCheckMax": 1000, "messageDelayLevel": "1s 2s 4s 5s", "stop_timeout": 2000,
}


def broker_of(values: Mapping[str, object]) -> BrokerConfig:
    """Of options by any of their names, and of values that are fixed for operators, by ours."""
    names = (one.name for one in attrs.fields(HAConfig) if is_fixed(one))
    fixed = {name: values[name] for name in names if name in values}
    config = broker_from_mapping({name: value for name, value in values.items() if name not in fixed})
    return with_values(config, {"ha": with_values(config.ha, fixed)})


@attrs.frozen(kw_only=True)
class MakePlainBroker:
    """
    A L{dledger.testing.brokers.rig.machine.MakeBroker}.

    @ivar role: SYNC_MASTER, ASYNC_MASTER or SLAVE.
    @ivar master: a slave's: the name of the machine that it follows; else empty.
    @ivar options: by RocketMQ's names.
    """

    role: str
    master: str = ""
    options: Mapping[str, object]

    def config(self, machine: BrokerMachine) -> BrokerConfig:
        """Its configuration on this machine."""
        follows = {"haMasterAddress": f"{self.master}:{SLAVE_PORT}"} if self.master else {}
        return broker_of({
            **SMALL, **TIMING, "brokerIP1": machine.name, "listen_port": CLIENT_PORT, "brokerRole": self.role,
            "haAllowedHosts": "*", "changeHosts": "*", **follows,
            "flushDiskType": "SYNC_FLUSH" if machine.world.is_sync else "ASYNC_FLUSH", **self.options,
        })

    def __call__(self, machine: BrokerMachine, parts: ProcessParts) -> MadeBroker:
        """See L{dledger.testing.brokers.rig.machine.MakeBroker}."""
        process = parts.process
        service = BrokerService(
            self.config(machine), BrokerProcess(
                reactor=parts.reactor, disk=machine.disk, rng=parts.rng, wall_s=machine.wall_s,
                failed=machine.failed, threads=parts.thread(),
                endpoint_of=lambda address: machine.client(process, address),
            ), BrokerPorts(
                clients=machine.server(process, CLIENT_PORT), slaves=machine.server(process, SLAVE_PORT),
            ),
        )
        return MadeBroker(service=service, broker=service)


def follower_of(machine: BrokerMachine) -> HAFollower | None:
    """The part of a slave's running process that copies the log."""
    replication = machine.parts.replication if machine.parts is not None else None
    return replication.ha.slave if isinstance(replication, HAReplication) else None
