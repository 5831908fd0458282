# -*- test-case-name: tests.broker.test_name_server -*-
"""
Registers this broker and its topics with every name server::

    103  REGISTER_BROKER: at the start, every 30 s, when the topics have changed, when a connection was lost
    104  UNREGISTER_BROKER: at the end

A name server forgets a broker when the connection that carried its registration closes, or 120 s after the
last registration. So connections are kept, and a lost connection is opened again within a second or two.

Rule 1: at most one registration is under way to each name server, and it has a deadline. Changes during a
registration cause another one.
Rule 2: a failure at one name server does not delay the others. The registration is repeated after a pause
that grows to the usual interval; the problem is logged when it begins and when it ends.
Rule 3: the answer to a slave names its master; C{learned} is called once for every new pair of addresses.
Rule 4: a name server of 5.x refuses a new broker with exactly one topic, so we never register exactly one.
Rule 5: a new role is reported at once, and again every few seconds for a while: the master of before, in a
group of brokers, may report its old role after it, and its new one later, which leaves the name server no
master.

Source: BrokerOuterAPI.registerBrokerAll, BrokerController.start (4.9.8); RouteInfoManager (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from attrs.validators import ge, instance_of
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.answering.java_json import DataVersion, wire_json
from dledger.rocketmq.broker.command_client import CommandClient
from dledger.rocketmq.broker.replication import Follows
from dledger.rocketmq.metadata.tables import PERM_READ, PERM_WRITE, TopicConfig, Topics
from protocols.rocketmq.commands import SUCCESS
from protocols.wire.checksums import crc32
from protocols.wire.fastjson import JsonObject, as_int, as_object
from protocols.wire.remoting import RemotingCommand

REGISTER_BROKER = 103
UNREGISTER_BROKER = 104

#: As registerNameServerPeriod, and its limits.
INTERVAL_S, INTERVAL_MIN_S, INTERVAL_MAX_S = 30.0, 10.0, 60.0
TIMEOUT_S = 6.0
UNREGISTER_TIMEOUT_S = 3.0
#: Seconds between two registrations of a slave that does not know its master.
SEEK_S = 2.0
#: Seconds after a change of role in which it is informed again every L{SEEK_S}.
UNSETTLED_S = 20.0
TICK_S = 1.0
#: More ticks at once than these are logged: the reactor was busy elsewhere.
STALL_TICKS = 3

#: Registered beside a topic that would be the only one (rule 4). It is not writable.
_COMPANY = TopicConfig(topic_name="SELF_TEST_TOPIC", read_queue_nums=1, write_queue_nums=1, perm=PERM_READ)


def _name() -> str:
    value: str = attrs.field(validator=instance_of(str))
    return value


@attrs.frozen(kw_only=True)
class BrokerIdentity:
    """
    The identity of a broker for name servers and clients.

    @ivar broker_id: 0 for a master, another number for each of its slaves.
    @ivar broker_addr: C{host:port} for clients.
    @ivar ha_server_addr: C{host:port} for slaves.
    @ivar permission: sum of L{PERM_READ} and L{PERM_WRITE}; no topic has more.
    """

    cluster_name: str = _name()
    broker_name: str = _name()
    broker_id: int = attrs.field(validator=[instance_of(int), ge(0)])
    broker_addr: str = _name()
    ha_server_addr: str = _name()
    permission: int = PERM_READ | PERM_WRITE


@attrs.define
class _Server:
    """
    The state of one name server. Times are seconds of the clock.

    @ivar reported: version of the topics that it knows; None if we are not registered there.
    @ivar due_s: time of the next registration, even without changes.
    @ivar failed: failures since its last answer.
    @ivar problem: the logged reason why we are not registered there; empty if we are.
    @ivar other: the broker that was seen there last under our name and id; empty: none was.
    """

    address: str
    reported: DataVersion | None = None
    due_s: float = 0.0
    failed: int = 0
    problem: str = ""
    other: str = ""
    asking: Deferred[RemotingCommand] | None = None


class NameServerRegistrar:
    """
    Keeps this broker registered with its name servers.

    Invariant: a server's C{asking} is the registration that is under way, or None.

    @ivar overtaken: times that another broker had our name and id at a name server.
    """

    log = Logger()

    def __init__(
        self, addresses: Sequence[str], asker: CommandClient, identity: Callable[[], BrokerIdentity],
        topics: Topics, *,
        clock: IReactorTime, interval_s: float = INTERVAL_S, timeout_s: float = TIMEOUT_S,
        following: Follows | None = None,
    ) -> None:
        """
        @param addresses: C{host:port} of each name server; may be empty.
        @param identity: called for each registration, only after L{start}.
        @param interval_s: limited to L{INTERVAL_MIN_S}..L{INTERVAL_MAX_S}.
        @param timeout_s: seconds that a name server may take to answer.
        @param following: learns of the master when its addresses are new. While it seeks one, this broker
            registers again every L{SEEK_S}.
        """
        self._servers = [_Server(address) for address in addresses]
        self._asker = asker
        self._topics = topics
        self._clock = clock
        self._interval_s = min(max(interval_s, INTERVAL_MIN_S), INTERVAL_MAX_S)
        self._timeout_s = timeout_s
        self._following = following
        self._master: tuple[str | None, str | None] = (None, None)
        self._looping = LoopingCall.withCount(self._tick)
        self._looping.clock = clock
        self._is_stopped = False
        self.overtaken = 0
        self._unsettled_until_s = 0.0
        self._identity = identity

    def start(self) -> None:
        """Register now, and then regularly."""
        self._looping.start(TICK_S).addErrback(self._loop_failed)

    def topics_changed(self) -> None:
        """Register now instead of at the next tick, as a client waits for its topic."""
        if self._looping.running and not self._is_stopped:
            self._tick()

    def role_changed(self) -> None:
        """Register under the new id now: producers and slaves wait for it."""
        self._master = (None, None)
        self._unsettled_until_s = self._clock.seconds() + UNSETTLED_S
        if self._looping.running and not self._is_stopped:
            for server in self._servers:
                server.due_s = 0.0
                # It reports the old role; a name server answers in order, so the next one counts.
                asking, server.asking, server.failed = server.asking, None, 0
                if asking is not None:
                    asking.cancel()
            self._tick()

    @property
    def problems(self) -> dict[str, str]:
        """Name servers at which we are not registered, with the reason."""
        return {server.address: server.problem for server in self._servers if server.problem}

    def stop(self) -> Deferred[None]:
        """
        Begin no more registrations; unregister.

        @return: fires when every name server that knows us has answered, or after
            L{UNREGISTER_TIMEOUT_S}. Never fails.
        """
        self._is_stopped = True
        if self._looping.running:
            self._looping.stop()
        asked = []
        for server in self._servers:
            # A registration that is under way may have arrived, answered or not.
            knows_us = server.reported is not None or server.asking is not None
            if server.asking is not None:
                server.asking.cancel()
            if knows_us and self._asker.is_connected(server.address):
                asked.append(self._asker.ask(server.address, self._unregistration(),
                                             timeout_s=UNREGISTER_TIMEOUT_S))
        return DeferredList(asked, consumeErrors=True).addCallback(lambda _: None)

    # -- due registrations -----------------------------------------------------------------------

    def _tick(self, count: int = 1) -> None:
        if count > STALL_TICKS:
            self.log.warn(
                "reactor stalled for {seconds} s: no registration was sent", seconds=count * TICK_S
            )
            # The role may have gone to another broker meanwhile; this one hears of it in its next turns.
            return
        now_s = self._clock.seconds()
        for server in self._servers:
            if server.asking is None and self._is_due(server, now_s):
                self._register(server)

    def _is_due(self, server: _Server, now_s: float) -> bool:
        if now_s >= server.due_s:
            return True
        if server.failed:
            return False  # its pause has not ended
        changed = server.reported is None or not server.reported.is_same(self._topics.version)
        return changed or not self._asker.is_connected(server.address)

    def _loop_failed(self, failure: Failure) -> None:
        self.log.failure("registration with name servers has stopped", failure)

    # -- one registration ------------------------------------------------------------------------

    def _register(self, server: _Server) -> None:
        version = self._topics.version
        asking = self._asker.ask(server.address, self._registration(), timeout_s=self._timeout_s)
        server.asking = asking
        asking.addCallbacks(
            self._answered, self._not_answered, callbackArgs=(server, asking, version),
            errbackArgs=(server, asking),
        )
        asking.addErrback(lambda failure: self.log.failure("handling a name server's answer failed", failure))

    def _fields(self) -> dict[str, str]:
        mine = self._identity()
        return {
            "brokerName": mine.broker_name, "brokerAddr": mine.broker_addr,
            "clusterName": mine.cluster_name, "brokerId": str(mine.broker_id),
        }

    def _registration(self) -> RemotingCommand:
        wrapper = self._topics.wire_document()
        table = as_object(wrapper["topicConfigTable"])
        if len(table) == 1:
            name = _COMPANY.topic_name
            company: JsonObject = {name: {**_COMPANY.document(), "attributes": {}}, **table}
            table = wrapper["topicConfigTable"] = {} if name in table else company
        permission = self._identity().permission
        if permission & PERM_READ == 0 or permission & PERM_WRITE == 0:
            for topic in map(as_object, table.values()):
                topic["perm"] = as_int(topic["perm"]) & permission
        body = wire_json({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
        fields = {
            **self._fields(), "haServerAddr": self._identity().ha_server_addr, "compressed": "false",
            "bodyCrc32": str(crc32(body) & 0x7FFFFFFF),
        }
        return RemotingCommand(code=REGISTER_BROKER, opaque=0, ext_fields=fields, body=body)

    def _unregistration(self) -> RemotingCommand:
        return RemotingCommand(code=UNREGISTER_BROKER, opaque=0, ext_fields=self._fields())

    def _answered(
        self, answer: RemotingCommand, server: _Server, asking: Deferred[RemotingCommand],
        version: DataVersion,
    ) -> None:
        if server.asking is not asking:
            return  # the role has changed meanwhile
        if answer.code != SUCCESS:
            self._failed(server, f"it answered {answer.code}: {answer.remark or 'no reason given'}")
            return
        server.asking = None
        server.reported = version
        server.failed = 0
        server.due_s = self._clock.seconds() + self._interval_s
        if server.problem:
            server.problem = ""
            self.log.info("name server {address}: registered again", address=server.address)
        self._look_at_other(server, answer.ext_fields.get("otherBrokerAddr", ""))
        following = self._following
        found = (answer.ext_fields.get("masterAddr") or None, answer.ext_fields.get("haServerAddr") or None)
        if found != (None, None) and found != self._master and not self._is_stopped:
            self._master = found
            if following is not None:
                following.learned(*found)
        is_sought = following is not None and following.seeks_master()
        if is_sought or self._clock.seconds() < self._unsettled_until_s:
            server.due_s = self._clock.seconds() + SEEK_S

    def _look_at_other(self, server: _Server, other: str) -> None:
        """C{other}: the broker that had our name and id there until now; empty: nobody else."""
        if self._clock.seconds() < self._unsettled_until_s:
            return  # the master before this one
        self.overtaken += bool(other)
        if other and other != server.other:
            mine = self._identity()
            self.log.warn(
                "name server {address}: {other} had our place as broker {name} id {broker_id}; it is ours "
                "now. Two brokers have one name and id, or somebody wants the messages of our producers",
                address=server.address, other=other, name=mine.broker_name, broker_id=mine.broker_id,
            )
        server.other = other

    def _not_answered(self, failure: Failure, server: _Server, asking: Deferred[RemotingCommand]) -> None:
        if server.asking is not asking:
            return
        self._failed(server, failure.getErrorMessage() or type(failure.value).__name__)

    def _failed(self, server: _Server, reason: str) -> None:
        server.asking = None
        server.reported = None
        if self._is_stopped:
            return
        pause_s = min(2.0**server.failed, self._interval_s)
        server.failed = min(server.failed + 1, 16)
        server.due_s = self._clock.seconds() + pause_s
        if not server.problem:
            self.log.warn(
                "name server {address} does not know us: {reason}", address=server.address, reason=reason
            )
        server.problem = reason
