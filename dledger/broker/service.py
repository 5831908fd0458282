# -*- test-case-name: tests.broker.test_service -*-
"""
A broker as a Twisted service: a master that takes messages, or a slave that follows one::

    startService   directory -> store, metadata -> what was there is dispatched -> ports -> replication ->
                   names
    stopService    names -> nothing new, what waits is answered -> ports -> connections -> replication ->
                   metadata -> store

Rule 1: what breaks the store ends the broker: its files are left as they are, the next start recovers them.
The process then ends with exit status 1, and so it does when a port or the directory cannot be had.
Rule 2: clients and slaves are let in when the store is ready, and name servers hear of it after that.
Rule 3: a broker that stops has answered what it took: it stays until slaves and disk have spoken, or until
their time is over.

Source: BrokerController, BrokerStartup (4.9.8).
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import IListeningPort, IStreamClientEndpoint, IStreamServerEndpoint
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.addresses import parse_address
from dledger.base.disk.disk import Disk
from dledger.base.errors import StoreError
from dledger.base.threads import DiskThreads
from dledger.broker.assembly import Assembly, Parts, assemble
from dledger.broker.command_client import CommandClient
from dledger.broker.common.config import BrokerConfig
from dledger.broker.following import Following
from dledger.broker.ha.service import HAService
from dledger.broker.metadata.files import Metadata
from dledger.broker.metadata.tables import AUTO_CREATE_TOPIC, PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig
from dledger.broker.name_server import BrokerIdentity, NameServerRegistrar
from dledger.broker.router import CommandRouter
from dledger.broker.sending.puts import PutPipeline
from dledger.broker.sending.sends import SEND_CODES
from dledger.broker.sending.topic_checks import TopicChecks
from dledger.broker.store.reput import Arrived
from dledger.broker.store.store import MessageStore
from protocols.turn import Turn
from protocols.wire.rocketmq.message import Host

TICK_S = 1.0
#: How often the room on the disk is looked at, ticks; as cleanResourceInterval.
HOUSE_KEEPING_TICKS = 10
#: How long connections may take to send what was said on them, seconds.
CLOSE_TIME_OUT_S = 1.0
CONNECT_TIME_OUT_S = 3.0
#: The disk is waited for by flushes of the log, by checkpoints, by metadata.
THREADS = 3


class BrokerService(Service):
    """
    One broker.

    @ivar store, metadata, ha, router, registrar: None until they are there.
    @ivar following: of a slave: whom it follows.
    @ivar address: C{host:port} as name servers are told; empty before it listens.
    """

    log = Logger()

    def __init__(
        self, config: BrokerConfig, reactor: Any, *, disk: Disk, rng: random.Random,
        failed: Callable[[str], None], wall_s: Callable[[], float],
        listen: IStreamServerEndpoint, fast_listen: IStreamServerEndpoint | None = None,
        ha_listen: IStreamServerEndpoint | None = None, threads: DiskThreads | None = None,
        endpoint_of: Callable[[str], IStreamClientEndpoint] | None = None,
    ) -> None:
        """
        @param config: with C{broker_ip1}.
        @param reactor: its clock should be monotonic.
        @param failed: told the reason when the broker cannot start or go on; the process should end.
        @param wall_s: seconds since 1970.
        @param listen: for clients.
        @param fast_listen: where a slave of RocketMQ asks for topics; None for nowhere.
        @param ha_listen: for slaves; None for nowhere.
        @param endpoint_of: from C{host:port} to where that is reached.
        """
        self.config = config
        self.store: MessageStore | None = None
        self.metadata: Metadata | None = None
        self.ha: HAService | None = None
        self.router: CommandRouter | None = None
        self.registrar: NameServerRegistrar | None = None
        self.following: Following | None = None
        self.address = ""
        self._reactor = reactor
        self._disk = disk
        self._rng = rng
        self._tell_failed = failed
        self._wall_s = wall_s
        self._listens = (listen, fast_listen)
        self._ha_listen = ha_listen
        self._threads = threads or DiskThreads(reactor, name="dledger-broker", most=THREADS)
        self._endpoint_of = endpoint_of or self._hostname_endpoint
        self._turn = Turn(reactor, self._turn_failed)
        self._client: CommandClient | None = None
        self._pipeline: PutPipeline | None = None
        self._assembly: Assembly | None = None
        self._ports: list[IListeningPort] = []
        self._ticking: LoopingCall | None = None
        self._saving: Deferred[None] = succeed(None)
        self._is_saving = False
        self._ticks = 0
        self._has_failed = False
        self._save_problem = ""

    @property
    def role(self) -> str:
        """For messages."""
        return f"{self.config.ha.broker_role} {self.config.broker_name}"

    def wall_ms(self) -> int:
        """Ms since 1970."""
        return int(self._wall_s() * 1000)

    def _hostname_endpoint(self, address: str) -> IStreamClientEndpoint:
        host, port = parse_address(address)
        return HostnameEndpoint(self._reactor, host, port, timeout=CONNECT_TIME_OUT_S)

    # -- up --------------------------------------------------------------------------------------

    def startService(self) -> None:
        """See L{IService.startService}. What goes wrong is told to C{failed}."""
        super().startService()
        self._threads.start()
        try:
            self._open()
        except (StoreError, OSError) as error:
            self._give_up(f"cannot open the store: {error}")
            return
        self._ticking = LoopingCall.withCount(self._tick)
        self._ticking.clock = self._reactor
        self._ticking.start(TICK_S, now=False).addErrback(self._tick_failed)
        Deferred.fromCoroutine(self._start()).addErrback(self._start_failed)

    def _open(self) -> None:
        config = self.config
        if config.ignored:
            self.log.info("options without a meaning here: {names}", names=", ".join(config.ignored))
        self.store = MessageStore.open(
            config.store, self._disk, is_slave=config.is_slave, clock=self._reactor,
            run_in_thread=self._threads.run, failed=self._store_failed,
        )  # fmt: skip
        self.metadata = metadata = Metadata(self._disk, config.store.config_path, now_ms=self.wall_ms())
        metadata.load()
        for path in metadata.restored:
            self.log.warn("{path} was restored from its .bak", path=path)
        if not config.is_slave:
            add_system_topics(metadata, config, self.wall_ms())
        self._client = CommandClient(clock=self._reactor, turn=self._turn, endpoint_of=self._endpoint_of)
        self.ha = HAService(
            config.ha, self.store.log, self._reactor, rng=self._rng, failed=self._give_up,
            listen=self._ha_listen, master_begin=self._master_begin,
        )
        self._pipeline = PutPipeline(self.store, self.ha, wall_ms=self.wall_ms, failed=self._give_up)

    async def _start(self) -> None:
        assert self.store is not None and self.ha is not None
        behind = self.store.reput.behind_bytes
        if behind:
            self.log.info("{role}: dispatching {bytes} bytes of messages that were there before",
                          role=self.role, bytes=behind)  # fmt: skip
        await self.store.start()
        if not self._is_usable():
            return
        self.router = CommandRouter(self._turn)
        await self._bind(self.router)
        if not self._is_usable():
            return
        self._assemble()
        self.ha.startService()
        if not self._is_usable():
            return
        self._register()
        assert self._assembly is not None
        for started in self._assembly.started:
            started()
        self.log.info(
            "{role} of {cluster} listens at {address} on ports {ports}, for slaves on {ha_port}; "
            "its log ends at {offset}, files in {path}",
            role=self.role, cluster=self.config.broker_cluster_name, address=self.address,
            ports=", ".join(str(getattr(port.getHost(), "port", port)) for port in self._ports),
            ha_port="none" if self.config.is_slave else self.config.ha_port,
            offset=self.store.log.end_offset, path=self.config.store.store_path_root_dir,
        )

    def _is_usable(self) -> bool:
        return bool(self.running) and not self._has_failed

    async def _bind(self, router: CommandRouter) -> None:
        for endpoint in self._listens:
            if endpoint is not None and self._is_usable():
                self._ports.append(await endpoint.listen(router))
        # Of an endpoint that chose its port by itself, the one that it has chosen.
        port = getattr(self._ports[0].getHost(), "port", self.config.listen_port)
        self.address = f"{_bracketed(self.config.broker_ip1)}:{port}"

    def _assemble(self) -> None:
        store, metadata, ha, pipeline, router = (
            self.store, self.metadata, self.ha, self._pipeline, self.router
        )
        assert store and metadata and ha and pipeline is not None and router
        host, port = parse_address(self.address)
        checks = TopicChecks(metadata, self.config, wall_ms=self.wall_ms, on_created=self.topics_changed)
        made = self._assembly = assemble(Parts(
            config=self.config, address=self.address, store_host=Host.of(host, port), store=store,
            metadata=metadata, ha=ha, pipeline=pipeline, checks=checks, clock=self._reactor, turn=self._turn,
            wall_ms=self.wall_ms, disk=self._disk, rng=self._rng,
            save=lambda: metadata.save(self._threads.run),
        ))  # fmt: skip
        router.add_together(SEND_CODES, made.sends.received)
        router.add_metadata(metadata)
        for group in made.groups:
            router.add(group)
        router.native, router.sends = made.native, made.plain_sends
        store.on_arrived = self._arrived
        store.on_grown = self._grown

    def _register(self) -> None:
        config, metadata, client = self.config, self.metadata, self._client
        assert metadata is not None and client is not None and self.ha is not None
        if config.is_slave:
            self.following = Following(
                config, self.ha, metadata, client, own_address=self.address, clock=self._reactor,
                run_in_thread=self._threads.run, endpoint_of=self._endpoint_of,
            )
            self.following.start()
        ha_port = config.ha_port
        if self.ha.port is not None:
            ha_port = getattr(self.ha.port.getHost(), "port", ha_port)
        ha_host = _bracketed(config.broker_ip2 or config.broker_ip1)
        identity = BrokerIdentity(
            cluster_name=config.broker_cluster_name, broker_name=config.broker_name,
            broker_id=config.broker_id, broker_addr=self.address, ha_server_addr=f"{ha_host}:{ha_port}",
        )
        learned = (lambda master, ha: None) if self.following is None else self.following.learned
        self.registrar = NameServerRegistrar(
            config.name_servers, client, identity, metadata.topics, clock=self._reactor,
            interval_s=config.register_name_server_period / 1000,
            timeout_s=config.register_broker_timeout_mills / 1000, learned=learned,
        )
        self.registrar.start()

    async def _master_begin(self) -> int:
        assert self.following is not None
        return await self.following.master_begin()

    # -- in between ------------------------------------------------------------------------------

    def topics_changed(self) -> None:
        """The topics have changed: they are written, and name servers hear of it, at once."""
        if self.registrar is not None:
            self.registrar.topics_changed()
        self._save()

    def _arrived(self, arrived: Arrived) -> None:
        assert self._assembly is not None
        for told in self._assembly.arrived:
            told(arrived)

    def _grown(self) -> None:
        assert self._assembly is not None
        for told in self._assembly.grown:
            told()

    def _tick(self, count: int) -> None:
        if count > 3:
            self.log.warn("reactor stalled for {seconds} s", seconds=count * TICK_S)
        self._ticks += 1
        now_s = self._reactor.seconds()
        if self.router is not None:
            self.router.sweep(now_s)
        if self._client is not None:
            self._client.sweep(now_s)
        if self._assembly is not None:
            for sweep in self._assembly.sweeps:
                sweep()
        metadata, period = self.metadata, max(1, round(self.config.flush_consumer_offset_interval / 1000))
        assert metadata is not None
        if metadata.topics.is_dirty or metadata.groups.is_dirty or self._ticks % period == 0:
            self._save()
        if self._ticks % HOUSE_KEEPING_TICKS == 0 and self.store is not None and not self._has_failed:
            self._keep_house(self.store)

    def _tick_failed(self, failure: Failure) -> None:
        self.log.failure("tick of the broker failed", failure)
        self._give_up(f"tick of the broker: {failure.getErrorMessage()}")

    def _turn_failed(self, failure: Failure) -> None:
        self.log.failure("work of the broker failed", failure)
        self._give_up(f"work of the broker: {failure.getErrorMessage()}")

    def _keep_house(self, store: MessageStore) -> None:
        now_s = self._wall_s()
        hour = time.localtime(now_s).tm_hour
        keep_from = store.log.end_offset
        if self.ha is not None:
            keep_from = min([keep_from, *(one.ack_offset for one in self.ha.status().slaves
                                          if one.ack_offset >= 0)])  # fmt: skip
        was_full = store.why_full
        try:
            gone = store.house_keeping(now_s, hour, keep_from=keep_from)
        except StoreError as error:
            self._give_up(f"house-keeping: {error}")
            return
        if gone:
            self.log.info("deleted {count} old files of the log; it begins at {offset} now",
                          count=len(gone), offset=store.log.begin_offset)  # fmt: skip
        if store.why_full != was_full:
            if store.why_full:
                self.log.warn("messages are refused: {reason}", reason=store.why_full)
            else:
                self.log.info("there is room on the disk again; messages are taken")

    def _save(self) -> None:
        if not self._is_saving and self.metadata is not None and self._is_usable():
            self._is_saving = True
            self._saving = self.metadata.save(self._threads.run).addCallbacks(self._saved, self._not_saved)

    def _saved(self, _: None) -> None:
        self._is_saving = False
        if self._save_problem:
            self._save_problem = ""
            self.log.info("metadata can be written again")

    def _not_saved(self, failure: Failure) -> None:
        """The next tick tries again."""
        self._is_saving = False
        problem = failure.getErrorMessage()
        if problem != self._save_problem:
            self._save_problem = problem
            self.log.failure("metadata cannot be written", failure)

    # -- the end ---------------------------------------------------------------------------------

    def _start_failed(self, failure: Failure) -> None:
        if failure.check(StoreError, OSError) is None and not hasattr(failure.value, "socketError"):
            self.log.failure("start of the broker failed", failure)
        self._give_up(f"cannot start: {failure.getErrorMessage()}")

    def _store_failed(self, failure: Failure) -> None:
        self._give_up(f"the store cannot go on: {failure.getErrorMessage()}")

    def _give_up(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self.log.critical("{role}: {reason}", role=self.role, reason=reason)
            if self._pipeline is not None:
                self._pipeline.close(reason)
            self._tell_failed(reason)

    def stopService(self) -> Deferred[None]:
        """See L{IService.stopService}: orderly, and bounded in time."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        if self._ticking is not None and self._ticking.running:
            self._ticking.stop()
        if self.registrar is not None:
            await self.registrar.stop()
        if self._pipeline is not None:
            self._pipeline.close("the broker stops")
        await self._cease()
        if self._client is not None:
            self._client.close()
        await self._saving
        await self._close_files()
        self._threads.stop()

    async def _cease(self) -> None:
        """Answer what waits, let nobody in, end replication."""
        if self._pipeline is not None and not self._has_failed:
            await within(self._pipeline.when_idle(), self.config.stop_timeout / 1000, self._reactor)
        for port in self._ports:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped
        if self.following is not None:
            self.following.stop()
        if self._assembly is not None:
            for stop in self._assembly.stops:
                stop()
        if self.ha is not None and self.ha.running:
            await self.ha.stopService()
        if self.router is not None:
            self.router.close_all()
            waited_s = 0.0
            while self.router.connections and waited_s < CLOSE_TIME_OUT_S:
                await _pause(self._reactor, 0.02)
                waited_s += 0.02
            self.router.abort_all("the broker has stopped")

    async def _close_files(self) -> None:
        store, metadata = self.store, self.metadata
        if store is None:
            return
        if self._has_failed or metadata is None:
            store.abandon()
            return
        try:
            await metadata.save(self._threads.run)
            if not await within(store.reput.caught_up(), self.config.stop_timeout / 1000, self._reactor):
                self.log.warn("{bytes} bytes are not dispatched; the next start does that",
                              bytes=store.reput.behind_bytes)  # fmt: skip
                await store.checkpoint()
                await store.log.idle()
                store.abandon()
                return
            await store.close()
            self.log.info("{role} stopped", role=self.role)
        except (StoreError, OSError) as error:
            store.abandon()
            self._give_up(f"the store did not close cleanly: {error}")


def add_system_topics(metadata: Metadata, config: BrokerConfig, now_ms: int) -> None:
    """The topics that a master has from its start, as its options say."""
    topics = metadata.topics
    topics.add_system_topics(cluster=config.broker_cluster_name, broker=config.broker_name, now_ms=now_ms)
    for name, queues, may_send in (
        (AUTO_CREATE_TOPIC, config.default_topic_queue_nums, True),
        (config.broker_cluster_name, 16, config.cluster_topic_enable),
        (config.broker_name, 1, config.broker_topic_enable),
    ):  # fmt: skip
        perm = PERM_INHERIT | (PERM_READ | PERM_WRITE if may_send else 0)
        topics.put(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm), now_ms
        )
    if not config.auto_create_topic_enable:
        topics.delete(AUTO_CREATE_TOPIC, now_ms)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def within(ended: Deferred[None], seconds: float, reactor: Any) -> Deferred[bool]:
    """Fires with whether C{ended} fired in time; it is cancelled otherwise."""
    in_time: Deferred[bool] = Deferred()

    def tell(_: object) -> None:
        if not in_time.called:
            if time_out.active():
                time_out.cancel()
            in_time.callback(True)

    def too_late() -> None:
        in_time.callback(False)
        ended.cancel()

    time_out = reactor.callLater(seconds, too_late)
    ended.addBoth(tell)
    return in_time


def _pause(reactor: Any, seconds: float) -> Awaitable[None]:
    return deferLater(reactor, seconds, lambda: None)
