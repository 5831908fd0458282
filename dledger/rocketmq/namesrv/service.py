# -*- test-case-name: tests.namesrv.test_service -*-
"""
The life of a name server as a Twisted service::

    startService   KV configuration -> port
    stopService    port -> the write that is under way -> connections -> admin pages

Rule: the process ends with exit status 1 when the KV configuration cannot be read or the port cannot be had.

Source: NamesrvController, NamesrvStartup (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IStreamServerEndpoint
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.descriptors import connections_allowed
from dledger.base.disk.disk import Disk, File
from dledger.base.histogram import Histogram
from dledger.base.reactor import Reactor
from dledger.base.threads import DiskRunner, DiskThreads
from dledger.base.tls.key_watch import KeyWatch
from dledger.base.tls.ports import secured_port
from dledger.base.tls.securing import Securing, secured
from dledger.rocketmq.answering.answering import AnsweringSide
from dledger.rocketmq.namesrv.changes import ChangeableConfig
from dledger.rocketmq.namesrv.commands import NameServerCommands
from dledger.rocketmq.namesrv.config import NameServerConfig
from dledger.rocketmq.namesrv.key_values import KeyValues
from dledger.rocketmq.namesrv.routes import RouteTable
from dledger.rocketmq.namesrv.status import LiveBrokerStatus, NameServerStatus
from dledger.values.addresses import is_loopback
from dledger.values.errors import DirectoryError
from protocols.rocketmq.commands import CommandConnection
from protocols.turn import Turn
from protocols.wire.remoting import RemotingCommand

TICK_S = 0.5
#: Upper bounds of the times of requests: a route is answered in some tens of microseconds.
REQUEST_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
#: More ticks at once than these are logged: the reactor was busy elsewhere, or the process was frozen.
STALL_TICKS = 6
#: Seconds between two looks at the files of TLS.
KEYS_S = 10.0
#: Seconds that connections may take to send their last output.
CLOSE_TIME_OUT_S = 1.0


class NameServerSide(AnsweringSide):
    """
    The listening side.

    @ivar requests: requests received. C{by_code}: the same of each code that has a handler.
    @ivar request_s: seconds from the handling of each request with such a code to its answer; a change that
        is written first is answered later.
    """

    def __init__(
        self, turn: Turn, commands: NameServerCommands, config: NameServerConfig, *,
        seconds: Callable[[], float],
    ) -> None:
        """@param seconds: a monotonic clock."""
        super().__init__(
            turn, [commands], gate=commands.gate,
            connections_max=connections_allowed(config.connections_max),
            share_percent=config.connections_share,
        )
        self._idle_s = float(config.server_channel_max_idle_time_seconds)
        self.requests = 0
        self.by_code = dict.fromkeys(self.codes, 0)
        self.request_s = Histogram(bounds=REQUEST_BUCKETS_S)
        self._seconds = seconds

    def _make_connection(self) -> CommandConnection:
        return CommandConnection(self, self._turn, idle_s=self._idle_s, budgets=self.budgets)

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        self.requests += len(commands)
        for command in commands:
            if command.code in self.by_code:
                self.by_code[command.code] += 1
        super().commands_received(connection, commands)

    def _handle(self, connection: CommandConnection, command: RemotingCommand) -> None:
        began_s = self._seconds()
        super()._handle(connection, command)
        if command.code in self.by_code:
            self.request_s.observe(self._seconds() - began_s)


class NameServerService(Service):
    """
    One name server.

    @ivar options: its options; some change while it runs.
    @ivar routes: its tables. @ivar values: its KV configuration. @ivar side: its connections.
    """

    log = Logger()

    def __init__(
        self, config: NameServerConfig, reactor: Reactor, listen: IStreamServerEndpoint, *, disk: Disk,
        failed: Callable[[str], None], wall_s: Callable[[], float], threads: DiskRunner | None = None,
        make_admin: Callable[[NameServerService], IService] | None = None,
        serving: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param reactor: its clock should be monotonic.
        @param failed: called with the reason when the server cannot start or continue.
        @param serving: called when it listens.
        @param make_admin: makes the service of its pages; None: it has none. May raise C{ValueError}.
        @param wall_s: seconds since 1970.
        """
        self.options = ChangeableConfig(config)
        self._reactor = reactor
        self._endpoint = listen
        self._disk = disk
        self._notify_failed = failed
        self._notify_serving = serving
        self._threads = threads or DiskThreads(reactor, name="dledger-namesrv")
        self.routes = RouteTable(config.limits, is_5=config.is_5)
        self.values = KeyValues(
            disk, config.kv_config_path, self._threads.run,
            entries_max=config.kv_entries_max, bytes_max=config.kv_bytes_max,
        )
        self.commands = NameServerCommands(self.options, self.routes, self.values, clock=reactor)
        self.side = NameServerSide(
            Turn(reactor, self._turn_failed), self.commands, config, seconds=reactor.seconds
        )
        #: For TLS; None: without, or not started.
        self.keys: Securing | None = None
        self._wall_s = wall_s
        self._key_watch = KeyWatch(None, "name server")
        self._make_admin = make_admin
        self._admin: IService | None = None
        self._ticking = LoopingCall.withCount(self._tick)
        self._ticking.clock = reactor
        self._expire_s = 0.0
        self._next_keys_s = 0.0
        self._was_stalled = False
        self._started_s = reactor.seconds()
        self._port: IListeningPort | None = None
        self._lock: File | None = None
        self._problem = "it has not started yet"

    @property
    def port(self) -> int:
        """The port on which it listens; 0 before."""
        return 0 if self._port is None else int(getattr(self._port.getHost(), "port", 0))

    # -- up --------------------------------------------------------------------------------------

    def startService(self) -> None:
        """See L{IService.startService}. Failures are reported to C{failed}."""
        super().startService()
        self._threads.start()
        config = self.options.config
        if config.ignored:
            self.log.info("ignored options: {names}", names=", ".join(config.ignored))
        try:
            self.keys = secured(config.tls_files)
            self._key_watch = KeyWatch(self.keys, "name server")
            if self.keys is not None and config.is_for_known_only:
                keys = self.keys
                self.commands.uris_of = lambda connection: keys.uris_of(connection.transport)
        except ValueError as error:
            self._give_up(f"cannot start with TLS: {error}")
            return
        try:
            self._admin = None if self._make_admin is None else self._make_admin(self)
        except ValueError as error:
            self._give_up(f"cannot start the administration: {error}")
            return
        try:
            self.values.load()
            self._lock = self._locked(f"{config.kv_config_path}.lock")
        except DirectoryError as error:
            self._give_up(str(error))
            return
        if self._admin is not None:
            self._admin.startService()
        self._ticking.start(TICK_S, now=False).addErrback(self._tick_failed)
        Deferred.fromCoroutine(self._listen()).addErrback(self._start_failed)

    def _locked(self, path: str) -> File:
        try:
            return self._disk.lock(path)
        except BlockingIOError:
            raise DirectoryError(
                f"{path} is locked: another name server uses this KV configuration; give each its own "
                "--kv"
            ) from None
        except OSError as error:
            raise DirectoryError(f"{path}: {error.strerror or error}") from error

    async def _listen(self) -> None:
        options = self.options.config
        endpoint = secured_port(
            self._endpoint, self.keys, options.tls_mode, clock=self._reactor,
            demands_certificate=options.tls_client_auth == "require",
        )
        port = await endpoint.listen(self.side)
        if not self.running:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped
            return
        self._port = port
        self._problem = ""
        if options.tls_mode == "disabled" and not (
            options.insecure or is_loopback(getattr(port.getHost(), "host", "localhost"))
        ):
            self.log.warn(
                "name server listens without TLS: everybody who reaches it can register brokers; see "
                "docs/security.md, or say insecure=true"
            )
        config = self.options.config
        self.log.info(
            "name server listens on port {port}, answers as RocketMQ {version}, KV configuration in {path} "
            "with {entries} entries", port=self.port, version=config.answers_as, path=config.kv_config_path,
            entries=self.values.entries,
        )
        self._notify_serving()

    def _tick(self, count: int) -> None:
        is_stalled, was_stalled = count > STALL_TICKS, self._was_stalled
        self._was_stalled = is_stalled
        if is_stalled:
            self.log.warn("reactor stalled for {seconds} s", seconds=count * TICK_S)
            if not was_stalled:
                # What brokers sent meanwhile is not read yet: their silence is judged at the next search.
                self._expire_s = 0.0
                return
        now_s = self._reactor.seconds()
        self._check_keys(now_s)
        self.side.sweep(now_s)
        self.commands.sweep(now_s)
        self._expire_s += count * TICK_S
        if self._expire_s * 1000 >= self.options.config.scan_not_active_broker_interval:
            self._expire_s = 0.0
            self.commands.expire()

    def _check_keys(self, now_s: float) -> None:
        if now_s >= self._next_keys_s:
            self._next_keys_s = now_s + KEYS_S
            self._key_watch.check(self._wall_s())

    # -- the end ---------------------------------------------------------------------------------

    def _turn_failed(self, failure: Failure) -> None:
        self.log.failure("work of the name server failed", failure)
        self._give_up(f"work of the name server: {failure.getErrorMessage()}")

    def _tick_failed(self, failure: Failure) -> None:
        self.log.failure("tick of the name server failed", failure)
        self._give_up(f"tick of the name server: {failure.getErrorMessage()}")

    def _start_failed(self, failure: Failure) -> None:
        if not hasattr(failure.value, "socketError"):
            self.log.failure("start of the name server failed", failure)
        self._give_up(f"cannot listen: {failure.getErrorMessage()}")

    def _give_up(self, reason: str) -> None:
        self._problem = reason
        self.log.critical("name server: {reason}", reason=reason)
        self._notify_failed(reason)

    def stopService(self) -> Deferred[None]:
        """See L{IService.stopService}: in order, and bounded in time."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        self._problem = self._problem or "it stops"
        if self._ticking.running:
            self._ticking.stop()
        if self._port is not None:
            stopped = self._port.stopListening()
            if stopped is not None:
                await stopped
        await self.values.close()
        self.side.close_all()
        waited_s = 0.0
        while self.side.connections and waited_s < CLOSE_TIME_OUT_S:
            await deferLater(self._reactor, 0.02, lambda: None)
            waited_s += 0.02
        self.side.abort_all("the name server has stopped")
        if self._admin is not None and self._admin.running:
            ended = self._admin.stopService()
            if ended is not None:
                await ended
        self._threads.stop()
        if self._lock is not None:
            self._lock.close()
        self.log.info("name server stopped")

    def reread(self, wanted: NameServerConfig) -> frozenset[str]:
        """Take those options that may change while it runs, and look at its keys at once: their names."""
        taken = self.options.reread(wanted)
        config = self.options.config
        self.side.limit(connections_allowed(config.connections_max), config.connections_share)
        self._key_watch.check(self._wall_s())
        return taken

    # -- facts ----------------------------------------------------------------------------------

    def status(self) -> NameServerStatus:
        """The present state."""
        routes, side, values = self.routes, self.side, self.values
        counts = side.refusals.counts
        host = None if self._port is None else self._port.getHost()
        return NameServerStatus(
            address="" if host is None else f"{getattr(host, 'host', host)}:{self.port}",
            answers_as=self.options.config.answers_as, problem=self._problem,
            uptime_s=self._reactor.seconds() - self._started_s, connections=side.connections,
            brokers=len(routes.live), broker_names=len(routes.groups), clusters=len(routes.clusters),
            topics=len(routes.topics), routes=routes.routes, topic_bytes=routes.topic_bytes,
            kv_entries=values.entries, kv_bytes=values.bytes,
            answers_held_bytes=side.budgets.answers.held,
            unfinished_frame_bytes=side.budgets.unfinished.held, requests=side.requests,
            registrations=self.commands.registrations, brokers_expired=self.commands.brokers_expired,
            brokers_lost=self.commands.brokers_lost, overtaken=self.commands.overtaken,
            overtaking_refused=self.commands.overtaking_refused, unknown_requests=side.unknown,
            failed_requests=side.failures, wire_errors=side.wire_errors,
            connections_refused=side.connections_refused, connections_replaced=side.connections_replaced,
            tls_expires_s=self._key_watch.expires_s,
            refusals={f"{code}:{answer}": number for (code, answer), number in sorted(counts.items())},
        )

    def requests(self) -> dict[int, int]:
        """The number of requests with each code that it answers."""
        return dict(self.side.by_code)

    def request_times(self) -> Histogram:
        """See L{NameServerSide.request_s}."""
        return self.side.request_s.status()

    def brokers(self) -> Iterator[LiveBrokerStatus]:
        """The brokers that live, each as it is when it is asked for."""
        routes, now_s = self.routes, self._reactor.seconds()
        for cluster, address in sorted(routes.live):
            live = routes.live.get((cluster, address))
            if live is None:
                continue
            groups = [routes.groups[name] for name in sorted(live.names) if name in routes.groups]
            yield LiveBrokerStatus(
                cluster=cluster, names=tuple(group.name for group in groups), address=address,
                broker_ids=tuple(group.ids[address] for group in groups if address in group.ids),
                ha_address=live.ha_address, heard_s=now_s - live.heard_s,
            )
