# -*- test-case-name: tests.node.test_service,tests.machine.test_service -*-
"""
A member as a Twisted service: opens its store, listens, connects, starts; stops in reverse order::

    startService   store -> node -> listening port -> connections to peers, first input, admin
    stopService    leadership handed over, pending answered (at most STOP_TIME_OUT_S) -> the state
                   machine rests (at most STOP_TIME_OUT_S) -> port ->
                   clients redirected (at most LINGER_S) -> connections -> running fsync -> clean close

Rule 1: a member that stopped because of a failure does not touch its files again: they are recovered
at the next start. The process then ends with exit status 1.
Rule 2: a failure to start (the port is taken, the directory belongs to another member) is one line in
the log, and exit status 1.
"""

from __future__ import annotations

from functools import partial

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.descriptors import connections_allowed
from dledger.base.reactor import Reactor
from dledger.base.serving.endpoints import listening_endpoint
from dledger.base.serving.tokens import ClientTokenFile
from dledger.base.tls.securing import Securing, secured
from dledger.node.changing import with_changes
from dledger.node.connections.peers import Peers
from dledger.node.connections.server import CONNECTIONS_MAX, MemberServer
from dledger.node.endpoints import listen_description, peer_endpoint
from dledger.node.host import MachineHost, MemberHost, NodeFiles
from dledger.node.member_process import MemberEndpoints, MemberExtras, MemberProcess
from dledger.node.node import Node
from dledger.node.reporting.health import UNSURE
from dledger.node.threads import MemberThreads, Rests
from dledger.storage.files.term_file import TermFile, TermVote
from dledger.storage.store.file_store import FileStore
from dledger.values.addresses import is_loopback
from dledger.values.errors import DirectoryError, StoreError
from dledger.values.hosts import ChangeHosts
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.lineage import LINEAGE_BITS
from protocols.budgets import Budgets

#: Seconds within which a member must hand leadership over and answer pending requests.
STOP_TIME_OUT_S = 5.0

#: Seconds for which a stopped member still answers requests with NOT_LEADER, so that clients go elsewhere
#: instead of losing a request with the connection; and seconds without a request of a client after which
#: they have gone.
LINGER_S = 1.0
QUIET_S = 0.1

#: Seconds within which connections must send their last answers.
CLOSE_TIME_OUT_S = 1.0


class MemberService(MultiService):
    """
    One member.

    @ivar extras: what runs in it besides its log.
    @ivar node: None until the store is open.
    @ivar keys: for TLS; None without.
    """

    log = Logger()

    def __init__(
        self, config: DLedgerConfig, process: MemberProcess, endpoints: MemberEndpoints | None = None,
        extras: MemberExtras | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.node: Node | None = None
        self.keys: Securing | None = None
        self._process = process
        self._reactor = process.reactor
        self._threads = process.threads or MemberThreads.of(process.reactor)
        self._endpoints = endpoints or MemberEndpoints()
        self.extras = extras or MemberExtras()
        self._tokens: ClientTokenFile | None = None
        self._store: FileStore | None = None
        self._terms: TermFile | None = None
        self._server: MemberServer | None = None
        self._peers: Peers | None = None
        self._port: IListeningPort | None = None
        self._listening: Deferred[None] = succeed(None)

    def reread(self, wanted: DLedgerConfig) -> frozenset[str]:
        """
        Take those options that may change while the member runs.

        @return: their names.
        @raise ValueError: they do not fit together with the others; none is taken.
        """
        self.config, taken = with_changes(self.config, wanted)
        if isinstance(self._store, FileStore):
            self._store.reread(self.config)
        if self._server is not None:
            self._limit(self._server)
        if self.node is not None:
            self.node.reread(self.config)
        return taken

    def _limit(self, server: MemberServer) -> None:
        limits = self.config
        server.limit(
            connections_allowed(limits.max_connections or CONNECTIONS_MAX), limits.connections_share
        )
        server.budgets.limit(answers=limits.max_answer_bytes, unfinished=limits.max_unfinished_bytes)

    @property
    def store(self) -> FileStore:
        """The ledger; open when C{node} is set."""
        assert self._store is not None, "not started"
        return self._store

    # -- up -----------------------------------------------------------------------------------

    def startService(self) -> None:
        """See C{IService.startService}. Failures are passed to C{failed}."""
        super().startService()
        if self.config.ignored:
            self.log.info("ignored options: {names}", names=", ".join(self.config.ignored))
        try:
            self.keys = secured(self.config.tls_files, self.config.group)
        except ValueError as error:
            self._give_up(f"cannot start with TLS: {error}")
            return
        try:
            path = self.config.client_token_file
            self._tokens = ClientTokenFile(path) if path else None
        except ValueError as error:
            self._give_up(f"cannot start: {error}")
            return
        try:
            node = self._open()
        except StoreError as error:
            self._give_up(f"cannot open the store: {error}")
            return
        except OSError as error:
            self._give_up(f"cannot open the store in {self.config.self_path}: {error}")
            return
        self._threads.flush.start()
        try:
            self._host(node)
        except ValueError as error:
            self._give_up(f"cannot start the state machine: {error}")
            return
        self._server = MemberServer(node.router, node.turn, note=node.note, budgets=Budgets())
        self._limit(self._server)
        dial = self._endpoints.dial or partial(peer_endpoint, self._reactor, node.dialling)
        self._peers = Peers(
            config=self.config, dial=dial, clock=self._reactor, turn=node.turn, rng=self._process.rng,
            feed=node.driver.feed, greeting=node.greeting,
        )
        node.connect(peers=self._peers, server=self._server)
        node.when_ended().addCallback(self._node_ended)
        listen = self._endpoints.listen or listening_endpoint(
            self._reactor, listen_description(self.config.peers[self.config.self_id])
        )
        self._listening = listen.listen(self._secured(self._server, node)).addCallbacks(
            self._is_listening, self._listen_failed
        )

    def _host(self, node: Node) -> None:
        """Make the state machine, if there is to be one."""
        if self.extras.make_machine is not None:
            threads = self._threads
            threads.start_machine()
            node.machine_requests.hosting = self.extras.make_machine(node, MachineHost(
                self_id=self.config.self_id, clock=self._reactor, run_in_thread=threads.snapshots.run,
                run_machine=threads.calls.run, rests=Rests,
            ))

    def _secured(self, server: MemberServer, node: Node) -> ServerFactory:
        """What listens: C{server}, behind TLS if this member has keys."""
        keys, tokens = self.keys, self._tokens
        if keys is None:
            node.router.access.judge_with(
                None, tokens, ChangeHosts(self.config.change_hosts),
                is_closed=self.extras.embedding is not None and self.extras.embedding.is_closed,
            )
            return server
        node.router.access.judge_with(
            lambda connection: keys.rights_of(connection.transport, node.contacts.ids), tokens
        )
        return keys.listen(
            server, plain_hosts=self.config.tls_plain_hosts, clock=self._reactor,
            demands_certificate=tokens is None, asks_certificate=tokens is not None,
        )

    def _open(self) -> Node:
        config = self.config
        self._store = store = FileStore.open(config, self._process.disk, boot_id=self._process.boot_id)
        if self.extras.embedding is not None:
            store.use(self.extras.embedding.stamps)
        if config.accept_new_members and store.identity.is_listed:
            store.abandon()
            raise DirectoryError(
                f"{config.self_path} belongs to a group whose log names its members, so accept_new_members "
                "would do nothing: change them with dledger member, or see dledger group force-new"
            )
        try:
            terms, vote = self._open_terms(store)
            store.identity.begin_run(
                self._process.rng.getrandbits(LINEAGE_BITS), self._process.rng.getrandbits(LINEAGE_BITS)
            )
        except StoreError:
            store.abandon()
            raise
        self.node = Node(
            config=config, files=NodeFiles(store=store, terms=terms, vote=vote),
            host=MemberHost(
                clock=self._reactor, rng=self._process.rng, run_in_thread=self._threads.flush.run,
                wall_clock=self._process.wall_clock,
                disk_space=lambda: self._process.disk.space(config.self_path),
            ),
            keys=self.keys, make_driver=self.extras.make_driver, embedding=self.extras.embedding,
        )
        self.node.about.admin = self.extras.admin
        self.node.about.version = self.extras.version
        if store.identity.is_unsure and len(config.peers) > 1:
            self.log.warn("member {self_id} is {unsure}", self_id=config.self_id, unsure=UNSURE)
        return self.node

    def _open_terms(self, store: FileStore) -> tuple[TermFile, TermVote]:
        ids = {one for known in store.memberships for one in known.addresses} | self.config.peers.keys()
        self._terms = terms = TermFile(self._process.disk, self.config.self_path, member_ids=ids)
        vote = terms.take_up(ledger_end_term=store.ledger_end_term, has_ledger=store.identity.has_terms)
        store.identity.note_terms()
        for warning in terms.warnings:
            self.log.warn("member {self_id}: {reason}", self_id=self.config.self_id, reason=warning)
        return terms, vote

    def _is_listening(self, port: IListeningPort) -> None:
        assert self.node is not None and self._peers is not None
        self._port = port
        if not self.running:
            return
        address = port.getHost()
        host, number = getattr(address, "host", None), getattr(address, "port", None)
        self.node.about.listen = str(address) if host is None else f"{host}:{number}"
        self.log.info(
            "member {self_id} of group {group} listens on {listen}; {members} members, files in {path}",
            self_id=self.config.self_id, group=self.config.group, listen=self.node.about.listen,
            members=len(self.node.contacts.members), path=self.config.self_path,
        )
        is_exposed = self.keys is None and not (self.config.insecure or is_loopback(host or "localhost"))
        if is_exposed and self._tokens is not None:
            self._give_up(
                f"cannot listen on {self.node.about.listen} with client_token_file and without TLS: all on "
                "the way would read the tokens. Give tls_certificate, tls_key and tls_authority, or say "
                "insecure=true"
            )
            return
        if is_exposed:
            self.log.warn(
                "member {self_id} listens on {listen} without TLS: everybody who reaches it can read, append "
                "and speak for members; see docs/security.md, or say insecure=true",
                self_id=self.config.self_id, listen=self.node.about.listen,
            )
        self._peers.start()
        self.node.start()
        machine = self.node.machine_requests.machine
        if machine is not None:
            machine.start()
        if self.extras.make_admin is not None:
            try:
                self.extras.make_admin(self.node).setServiceParent(self)
            except ValueError as error:
                self.node.abort(f"cannot start the administration: {error}")
                return
        self._process.serving()

    def _listen_failed(self, failure: Failure) -> None:
        assert self.node is not None
        self.node.abort(f"cannot listen: {failure.getErrorMessage()}")

    def _give_up(self, reason: str) -> None:
        self.log.critical("member {self_id}: {reason}", self_id=self.config.self_id, reason=reason)
        self._process.failed(reason)

    def _node_ended(self, _: None) -> None:
        assert self.node is not None
        if self.node.state == "failed":
            self._give_up(self.node.reason)

    # -- down ---------------------------------------------------------------------------------

    def stopService(self) -> Deferred[None]:
        """See C{IService.stopService}: an orderly stop within a bounded time."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        children: Deferred[list[object]] | None = super().stopService()
        await self._listening
        if self.node is not None:
            await self._stop_node(self.node)
            machine = self.node.machine_requests.machine
            if machine is not None:
                # (A call of a program that never returns must not keep this member from ending.)
                await _within(machine.stop(), STOP_TIME_OUT_S, self._reactor)
                self._threads.stop_machine()
            await self._stop_connections()
            await self.node.flusher.idle()
            self._close_store(self.node)
            self._threads.flush.stop()
        if children is not None:
            await children

    async def _stop_node(self, node: Node) -> None:
        if not await _within(node.stop(), STOP_TIME_OUT_S, self._reactor):
            node.abort(f"did not stop within {STOP_TIME_OUT_S:g} s")
            await node.when_ended()

    async def _stop_connections(self) -> None:
        assert self._server is not None and self._peers is not None
        if self._port is not None:
            stopped = self._port.stopListening()
            if stopped is not None:
                await stopped
        await self._redirect_clients(self._server)
        self._server.close_all()
        if not await _within(self._peers.stop(), CLOSE_TIME_OUT_S, self._reactor):
            self._peers.abort("the member has stopped")
        waited_s = 0.0
        while self._server.connections and waited_s < CLOSE_TIME_OUT_S:
            await _pause(self._reactor, 0.02)
            waited_s += 0.02
        self._server.abort_all("the member has stopped")

    async def _redirect_clients(self, server: MemberServer) -> None:
        assert self.node is not None
        began_s = quiet_since_s = self._reactor.seconds()
        # (Of clients: the peers of a member that stops go on asking it.)
        requests = self.node.counters.client_requests
        while server.connections and self._reactor.seconds() - began_s < LINGER_S:
            await _pause(self._reactor, QUIET_S / 5)
            now_s = self._reactor.seconds()
            if self.node.counters.client_requests != requests:
                requests, quiet_since_s = self.node.counters.client_requests, now_s
            elif now_s - quiet_since_s >= QUIET_S:
                return

    def _close_store(self, node: Node) -> None:
        assert self._store is not None and self._terms is not None
        if node.state == "failed":
            self._store.abandon()
            self._terms.close()
            return
        try:
            self._store.clean_close()
            self._terms.check_point()
            self.log.info("member {self_id} stopped", self_id=self.config.self_id)
        except (StoreError, OSError) as error:
            self.log.critical(
                "member {self_id}: the store did not close cleanly: {reason}",
                self_id=self.config.self_id, reason=str(error),
            )
            self._store.abandon()
            self._process.failed(str(error))
        self._terms.close()


def _within(ended: Deferred[None], seconds: float, reactor: Reactor) -> Deferred[bool]:
    """@return: fires with whether C{ended} fired within C{seconds}; C{ended} is never cancelled."""
    in_time: Deferred[bool] = Deferred()

    def notify(_: object) -> None:
        if not in_time.called:
            time_out.cancel()
            in_time.callback(True)

    time_out = reactor.callLater(seconds, in_time.callback, False)
    ended.addBoth(notify)
    return in_time


def _pause(reactor: Reactor, seconds: float) -> Deferred[None]:
    passed: Deferred[None] = Deferred()
    reactor.callLater(seconds, passed.callback, None)
    return passed
