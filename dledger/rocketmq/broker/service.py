# -*- test-case-name: tests.broker.test_service -*-
"""
The life of a broker as a Twisted service: a master that takes messages, or a slave that follows one::

    startService   directory -> store, metadata -> dispatch old records -> ports -> replication ->
                   name servers
    stopService    name servers -> refuse messages, answer waiting puts -> ports -> replication ->
                   connections -> metadata -> store

Rule 1: a failure of the store ends the broker: its files stay unchanged, and the next start recovers them.
The process ends with exit status 1, also when the directory or a port is not available.
Rule 2: the ports open when the store is ready; the broker registers with name servers after that.
Rule 3: a broker that stops answers the puts that it accepted: it waits for slaves and disk, at most
C{stop_timeout}.

Source: BrokerController, BrokerStartup (4.9.8).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

import attrs
from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import IListeningPort, IStreamClientEndpoint, IStreamServerEndpoint
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.disk.disk import Disk
from dledger.base.reactor import Reactor
from dledger.base.threads import DiskRunner, DiskThreads
from dledger.base.timing import within
from dledger.base.tls.key_watch import KeyWatch
from dledger.base.tls.securing import Securing
from dledger.base.tracing.spans import Spans
from dledger.rocketmq.broker.access.tls_ports import BrokerTls
from dledger.rocketmq.broker.admin.log_acts import LogActs
from dledger.rocketmq.broker.describing import describe
from dledger.rocketmq.broker.measuring import measure
from dledger.rocketmq.broker.options.config import BrokerConfig, run_time_options
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.producing.tracing import MessageTrace
from dledger.rocketmq.broker.replication import LogKind
from dledger.rocketmq.broker.showing.browsing import MessageBrowser
from dledger.rocketmq.broker.showing.status import BrokerMeasures, BrokerStatus
from dledger.rocketmq.broker.surroundings import BrokerSurroundings
from dledger.values.addresses import is_loopback, parse_address
from dledger.values.errors import StoreError

TICK_S = 1.0
#: More ticks at once than these are logged: the reactor was busy elsewhere.
STALL_TICKS = 3
#: Ticks between two looks at the files of TLS.
KEYS_TICKS = 10
#: Seconds that connections may take to send their last output.
CLOSE_TIME_OUT_S = 1.0
CONNECT_TIME_OUT_S = 3.0
#: Flushes of the log, checkpoints and metadata wait for the disk at the same time.
THREADS = 3


@attrs.frozen(kw_only=True)
class BrokerPorts:
    """
    The endpoints on which a broker listens.

    @ivar clients: for clients.
    @ivar fast: where a slave of RocketMQ asks for topics; None: not offered.
    @ivar slaves: for replication; None: not offered.
    """

    clients: IStreamServerEndpoint
    fast: IStreamServerEndpoint | None = None
    slaves: IStreamServerEndpoint | None = None


@attrs.frozen(kw_only=True)
class BrokerProcess:
    """
    The process in which a broker runs, and the machine below it.

    @ivar reactor: its clock should be monotonic.
    @ivar wall_s: seconds since 1970.
    @ivar failed: called with the reason when the broker cannot start or continue; the process should end
        then.
    @ivar threads: for the disk; None: threads of its own.
    @ivar serving: called when the broker listens.
    @ivar endpoint_of: from C{host:port} to the endpoint of that address; None: resolves host names.
    """

    reactor: Reactor
    disk: Disk
    rng: random.Random
    wall_s: Callable[[], float]
    failed: Callable[[str], None]
    threads: DiskRunner | None = None
    serving: Callable[[], None] = lambda: None
    endpoint_of: Callable[[str], IStreamClientEndpoint] | None = None


class BrokerService(Service):
    """
    One broker.

    @ivar broker: all its parts; None until L{startService} has opened the store, then never replaced.
    @ivar keys: its TLS keys; None without TLS, and before L{startService}.
    @ivar around: clock, threads, connections and trace of its parts.
    """

    log = Logger()

    def __init__(
        self, config: BrokerConfig, process: BrokerProcess, ports: BrokerPorts, *,
        kind: LogKind | None = None, make_admin: Callable[[BrokerService], IService] | None = None,
    ) -> None:
        """
        @param config: with C{broker_ip1}.
        @param kind: see L{BrokerParts}.
        @param make_admin: makes the service of its pages; None: it has none. May raise C{ValueError}.
        """
        self.keys: Securing | None = None
        self._make_admin = make_admin
        self._admin: IService | None = None
        self.config = config
        self.broker: BrokerParts | None = None
        self._kind = kind
        self._reactor = reactor = process.reactor
        self._ports = ports
        self._notify_failed = process.failed
        self._notify_serving = process.serving
        threads = process.threads or DiskThreads(reactor, name="dledger-broker", most=THREADS)
        self._threads: DiskRunner = threads
        self.around = BrokerSurroundings(
            reactor=reactor, disk=process.disk, rng=process.rng, wall_s=process.wall_s,
            run_in_thread=threads.run, endpoint_of=process.endpoint_of or self._hostname_endpoint,
            failed=self._give_up, ha_listen=ports.slaves,
        )
        self._key_watch = KeyWatch(None, self.role)
        self._ticks = 0
        self._began_s = reactor.seconds()
        self._ticking = LoopingCall.withCount(self._tick)
        self._ticking.clock = reactor
        self._listening: list[IListeningPort] = []
        self._has_failed = False

    def trace_with(self, spans: Spans) -> None:
        """Make spans of its messages. Called before L{startService}."""
        self.around = attrs.evolve(self.around, trace=MessageTrace(spans))

    @property
    def role(self) -> str:
        """Role and name, for log messages."""
        return f"{self.config.role.name} {self.config.broker_name}"

    def status(self) -> BrokerStatus:
        """The present state, for its pages."""
        return describe(
            self.broker, self.config, problem=self._problem(), tls_expires_s=self._key_watch.expires_s,
            uptime_s=self._reactor.seconds() - self._began_s,
        )

    def reread(self, wanted: Mapping[str, object]) -> frozenset[str]:
        """
        Take those options that may change while the broker runs, and look at its keys at once.

        @param wanted: options that are another now in the configuration, by our names.
        @return: the names of those that are taken.
        @raise ValueError: they do not fit together; none is taken.
        """
        may_change = run_time_options(self.config)
        values = {name: value for name, value in wanted.items() if name in may_change}
        self._key_watch.check(self.around.wall_s())
        return self.broker.reread(values) if self.broker is not None and values else frozenset()

    def measures(self) -> BrokerMeasures | None:
        """Its further figures, for C{/metrics}; None while its store is not open."""
        broker = self.broker
        return measure(broker) if broker is not None and self.running and not self._has_failed else None

    @property
    def browser(self) -> MessageBrowser | None:
        """Reads its messages, for its pages; None while its store is not open."""
        broker = self.broker
        return broker.browser if broker is not None and self.running and not self._has_failed else None

    @property
    def acts(self) -> LogActs | None:
        """
        What its pages can do with its commit log; None while its store is not open, and with a raft log.
        """
        broker = self.broker
        if broker is None or not self.running or self._has_failed:
            return None
        return broker.replication.acts

    def _problem(self) -> str:
        if self._has_failed:
            return "it has failed; its log says why"
        if not self.running:
            return "it does not run"
        if self.broker is None or not self.broker.store.is_ready or not self._listening:
            return "it starts"
        return ""

    def _hostname_endpoint(self, address: str) -> IStreamClientEndpoint:
        host, port = parse_address(address)
        return HostnameEndpoint(self._reactor, host, port, timeout=CONNECT_TIME_OUT_S)

    # -- up --------------------------------------------------------------------------------------

    def startService(self) -> None:
        """See C{IService.startService}. Failures are reported to C{failed}."""
        super().startService()
        self._threads.start()
        if self.config.ignored:
            self.log.info("ignored options: {names}", names=", ".join(self.config.ignored))
        try:
            self._secure()
        except ValueError as error:
            self._give_up(f"cannot start with TLS: {error}")
            return
        try:
            self._admin = None if self._make_admin is None else self._make_admin(self)
        except ValueError as error:
            self._give_up(f"cannot start the administration: {error}")
            return
        if self._admin is not None:
            self._admin.startService()
        try:
            broker = self.broker = BrokerParts(self.config, self.around, self._kind)
        except ValueError as error:
            self._give_up(f"cannot start with access control: {error}")
            return
        except (StoreError, OSError) as error:
            self._give_up(f"cannot open the store: {error}")
            return
        self._ticking.start(TICK_S, now=False).addErrback(self._tick_failed)
        Deferred.fromCoroutine(self._start(broker)).addErrback(self._start_failed)

    def _secure(self) -> None:
        """@raise ValueError: a file of keys is missing or not sound."""
        tls = BrokerTls.of(self.config, self._reactor)
        ports, around = self._ports, self.around
        self.keys = tls.keys
        self._key_watch = KeyWatch(tls.keys, self.role)
        clients = tls.port(ports.clients)
        assert clients is not None
        self._ports = attrs.evolve(ports, clients=clients, fast=tls.port(ports.fast))
        self.around = attrs.evolve(
            around, endpoint_of=tls.endpoint_of(around.endpoint_of),
            ha_listen=tls.port(around.ha_listen, for_slaves=True),
        )

    async def _start(self, broker: BrokerParts) -> None:
        behind = broker.store.reput.behind_bytes
        if behind:
            self.log.info("{role}: dispatching {bytes} bytes of messages of the last run",
                          role=self.role, bytes=behind)
        await broker.store.start()
        broker.lost_topics.restore()
        for endpoint in (self._ports.clients, self._ports.fast):
            if endpoint is not None and self._is_usable():
                await self._listen(broker, endpoint)
        if not self._is_usable():
            return
        broker.replication.start()
        if not self._is_usable():
            return
        broker.begin()
        self.log.info(
            "{role} of {cluster} listens at {address} on ports {ports}, for slaves on {ha_port}; "
            "its log ends at {offset}, files in {path}",
            role=self.role, cluster=self.config.broker_cluster_name, address=broker.own.text,
            ports=", ".join(str(getattr(port.getHost(), "port", port)) for port in self._listening),
            ha_port="none" if self.config.role.is_slave else self.config.ha_port,
            offset=broker.store.log.end_offset, path=self.config.store.store_path_root_dir,
        )
        self._notify_serving()

    def _is_usable(self) -> bool:
        return bool(self.running) and not self._has_failed

    async def _listen(self, broker: BrokerParts, endpoint: IStreamServerEndpoint) -> None:
        port = await endpoint.listen(broker.router)
        self._listening.append(port)
        is_open = self.config.tls_mode == "disabled" and not self.config.insecure
        if is_open and len(self._listening) == 1 and not is_loopback(
            getattr(port.getHost(), "host", "localhost")
        ):
            self.log.warn(
                "{role} listens without TLS: everybody who {what}; see docs/security.md", role=self.role,
                what="hears a request can send it again" if self.config.acl_enable else
                "reaches it can read and send, unless aclEnable=true",
            )
        if not broker.own.text:
            # With port 0, the port that the system assigned.
            number = getattr(port.getHost(), "port", self.config.listen_port)
            broker.own.bind(self.config.broker_ip1, number)

    def _tick(self, count: int) -> None:
        if count > STALL_TICKS:
            self.log.warn("reactor stalled for {seconds} s", seconds=count * TICK_S)
        assert self.broker is not None, "ticks begin after the broker was made"
        self.broker.tick()
        self._ticks += 1
        if self._ticks % KEYS_TICKS == 0:
            self._key_watch.check(self.around.wall_s())

    # -- the end ---------------------------------------------------------------------------------

    def _tick_failed(self, failure: Failure) -> None:
        self.log.failure("tick of the broker failed", failure)
        self._give_up(f"tick of the broker: {failure.getErrorMessage()}")

    def _start_failed(self, failure: Failure) -> None:
        if failure.check(StoreError, OSError) is None and not hasattr(failure.value, "socketError"):
            self.log.failure("start of the broker failed", failure)
        self._give_up(f"cannot start: {failure.getErrorMessage()}")

    def _give_up(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self.log.critical("{role}: {reason}", role=self.role, reason=reason)
            if self.broker is not None:
                self.broker.cease(reason)
            self._notify_failed(reason)

    def stopService(self) -> Deferred[None]:
        """See C{IService.stopService}: in order, and bounded in time."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        if self._ticking.running:
            self._ticking.stop()
        if self.broker is not None:
            await self._stop_broker(self.broker)
        if self._admin is not None and self._admin.running:
            await cast("Deferred[None]", maybeDeferred(self._admin.stopService))
        self._threads.stop()

    async def _stop_broker(self, broker: BrokerParts) -> None:
        await broker.registrar.stop()
        broker.cease("the broker stops")
        if not self._has_failed:
            await within(broker.pipeline.when_idle(), self.config.stop_timeout / 1000, self._reactor)
        for port in self._listening:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped
        broker.end()
        await broker.replication.stop()
        broker.router.close_all()
        waited_s = 0.0
        while broker.router.connections and waited_s < CLOSE_TIME_OUT_S:
            await _pause(self._reactor, 0.02)
            waited_s += 0.02
        broker.router.abort_all("the broker has stopped")
        broker.client.close()
        if self.around.trace is not None:
            self.around.trace.stop()
        await broker.saver.close()
        await self._close_files(broker)

    async def _close_files(self, broker: BrokerParts) -> None:
        store = broker.store
        if self._has_failed:
            store.abandon()
            return
        try:
            was_ready = store.is_ready  # else the next start needs the file of topics as it is
            is_dispatched = await within(
                store.reput.caught_up(), self.config.stop_timeout / 1000, self._reactor
            )
            if was_ready:
                await broker.metadata.save(self._threads.run)
            if not is_dispatched:
                self.log.warn("{bytes} bytes are not dispatched; the next start dispatches them",
                              bytes=store.reput.behind_bytes)
                await store.checkpoint()
                await store.log.idle()
                store.abandon()
                return
            await store.close()
            self.log.info("{role} stopped", role=self.role)
        except (StoreError, OSError) as error:
            store.abandon()
            self._give_up(f"the store did not close cleanly: {error}")


def _pause(reactor: Reactor, seconds: float) -> Awaitable[None]:
    return deferLater(reactor, seconds, lambda: None)
