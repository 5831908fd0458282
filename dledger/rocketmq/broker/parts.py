# -*- test-case-name: tests.broker.test_parts -*-
"""
All parts of one broker, constructed together when its store is opened, and the order in which they receive
events::

    store, metadata          files and tables
    replication, pipeline, sending    storing messages, replicating them
    consuming, admin         delivering messages, administrating the broker
    router                   selects the part that answers a request
    registrar                the name servers

Invariant: a part is whole when it is made: nothing is added to it later, and no part is replaced. A part
that emits events receives the broker, as L{BrokerEvents}, at its construction; no event occurs before the
constructor has returned.

L{dledger.rocketmq.broker.service.BrokerService} knows the order in which ports and files are opened and
closed.

Source: BrokerController (4.9.8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.descriptors import connections_allowed
from dledger.rocketmq.answering.answering import CONNECTIONS_MAX
from dledger.rocketmq.answering.changes import ChangeGate
from dledger.rocketmq.answering.refusals import CommandGroup, RefusalCounts
from dledger.rocketmq.broker.access.accounts import read_credentials
from dledger.rocketmq.broker.access.gate import AccessGate, GuardedNatives, broker_change
from dledger.rocketmq.broker.access.router import CommandRouter, SendHandlers
from dledger.rocketmq.broker.access.stored_topics import stored_topics
from dledger.rocketmq.broker.admin.cleaning import Cleaning
from dledger.rocketmq.broker.admin.client_queries import ClientQueries
from dledger.rocketmq.broker.admin.commands import AdminCommands, AdminParts
from dledger.rocketmq.broker.admin.queue_queries import QueueQueries
from dledger.rocketmq.broker.admin.refused import RefusedCommands
from dledger.rocketmq.broker.admin.reset_offsets import ResetOffsets
from dledger.rocketmq.broker.admin.run_time_options import change_by_configuration, restore_options
from dledger.rocketmq.broker.admin.stats import StatsCommands, TableCommands
from dledger.rocketmq.broker.command_client import CommandClient
from dledger.rocketmq.broker.consuming.assignments import Assignments
from dledger.rocketmq.broker.consuming.commits import CommitJudge
from dledger.rocketmq.broker.consuming.consumers import ConsumerCommands, ConsumerTable
from dledger.rocketmq.broker.consuming.key_queries import KeyQueries
from dledger.rocketmq.broker.consuming.offset_bounds import OffsetBounds
from dledger.rocketmq.broker.consuming.offset_commands import OffsetCommands
from dledger.rocketmq.broker.consuming.popping.acks import PopAcks
from dledger.rocketmq.broker.consuming.popping.check_points import popped_places
from dledger.rocketmq.broker.consuming.popping.giving import PopGiving
from dledger.rocketmq.broker.consuming.popping.group_end import GroupEnds
from dledger.rocketmq.broker.consuming.popping.in_order import InOrder
from dledger.rocketmq.broker.consuming.popping.pop_requests import PopReading
from dledger.rocketmq.broker.consuming.popping.pops import PopCommands
from dledger.rocketmq.broker.consuming.popping.retries import RetryTopics
from dledger.rocketmq.broker.consuming.popping.revive import ReviveService
from dledger.rocketmq.broker.consuming.popping.taking import PopTaking
from dledger.rocketmq.broker.consuming.producers import ProducerTable
from dledger.rocketmq.broker.consuming.pull_reading import PullReading
from dledger.rocketmq.broker.consuming.pulls import PullCommands, usual_slow_bytes
from dledger.rocketmq.broker.consuming.queue_locks import QueueLocks
from dledger.rocketmq.broker.consuming.visible import all_visible
from dledger.rocketmq.broker.lost_topics import LostTopics
from dledger.rocketmq.broker.name_server import BrokerIdentity, NameServerRegistrar
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.options.own_address import OwnAddress, bracketed
from dledger.rocketmq.broker.options.system_topics import add_system_topics
from dledger.rocketmq.broker.producing.answers import SendAnswers
from dledger.rocketmq.broker.producing.delays.recalls import RecallCommands
from dledger.rocketmq.broker.producing.delays.schedule import ScheduleMessageService
from dledger.rocketmq.broker.producing.delays.timers import TimerService
from dledger.rocketmq.broker.producing.puts import Put, PutPipeline
from dledger.rocketmq.broker.producing.rules import PutRules
from dledger.rocketmq.broker.producing.sending.native import NativeCommands
from dledger.rocketmq.broker.producing.sending.send_back import SendBack
from dledger.rocketmq.broker.producing.sending.sends import LongSends, PlainSends, Sends, UniqueIds
from dledger.rocketmq.broker.producing.topic_checks import TopicChecks
from dledger.rocketmq.broker.producing.tracing import traced
from dledger.rocketmq.broker.producing.transactions.check import TransactionCheckService
from dledger.rocketmq.broker.producing.transactions.commands import TransactionCommands
from dledger.rocketmq.broker.producing.transactions.ends import TransactionEnds
from dledger.rocketmq.broker.producing.transactions.half_judge import HalfJudge
from dledger.rocketmq.broker.producing.transactions.half_progress import HalfProgress
from dledger.rocketmq.broker.producing.transactions.questions import ProducerQuestions
from dledger.rocketmq.broker.replication import CommitLogKind, LogKind
from dledger.rocketmq.broker.replies import ReplyCommands
from dledger.rocketmq.broker.route_questions import RouteQuestions
from dledger.rocketmq.broker.showing.browsing import MessageBrowser
from dledger.rocketmq.broker.surroundings import BrokerSurroundings, ReplicationNeeds
from dledger.rocketmq.broker.upkeep import MetadataSaver
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.metadata.tables_mark import FollowedLog
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.deleted_topics import deletion_note
from dledger.rocketmq.store.log_reads import LogReads
from dledger.rocketmq.store.queues.consume_queues import open_queues_max
from dledger.rocketmq.store.records.events import Arrived, BrokerEvents
from dledger.values.hosts import ChangeHosts
from protocols.turn import Turn
from protocols.wire.rocketmq.layout import DELETED_TOPIC
from protocols.wire.rocketmq.message import Message

#: Ticks (seconds) between two checks of the free disk space; as cleanResourceInterval.
MAINTENANCE_TICKS = 10
#: Seconds that a name server may take to answer.
REGISTER_TIMEOUT_S = 6


class BrokerParts(BrokerEvents):
    """
    One broker; the L{BrokerEvents} of its parts.

    @ivar deleted: knows which topics were deleted, and where in the log.
    @ivar lost_topics: adds the topics that the table lacks.
    @ivar inside: what its parts share.
    @ivar replication: stores and replicates the log.
    @ivar browser: reads messages for its pages.
    """

    log = Logger()

    def __init__(
        self, config: BrokerConfig, around: BrokerSurroundings, kind: LogKind | None = None
    ) -> None:
        """
        @param config: with C{broker_ip1}.
        @param kind: how the log is stored and replicated; None: as a L{CommitLogKind}.
        @raise StoreError: the store or the metadata cannot be opened; both are released.
        @raise OSError: reading them failed; both are released.
        @raise ValueError: a file of accounts is missing or not sound; nothing is opened.
        """
        clock = around.reactor
        self.config = config
        self.own = OwnAddress()
        self._around = around
        self._ticks = 0
        self._has_ceased = False
        self.refusals = RefusalCounts()
        self.turn = Turn(clock, self._turn_failed)
        self.gate = AccessGate(
            config.acl_file, topics_at=lambda offset: stored_topics(self.store, offset),
            retries_in=self._retries_in,
            reply_topic=f"{config.broker_cluster_name}_REPLY_TOPIC",
        ) if config.acl_enable else None
        own = config.acl_credentials_file
        self.client = CommandClient(
            clock=clock, turn=self.turn, endpoint_of=around.endpoint_of,
            credentials=read_credentials(own) if own else None,
        )
        kind = kind or CommitLogKind()
        self.store = kind.open_store(
            config, around, failed=self._store_failed, events=self,
            is_awaited=lambda: bool(self.pulls.held.by_key or self.pops.polls.by_key),
        )
        self.metadata = self._metadata(kind.followed(self.store))
        self.inside = BrokerInside(
            config=config, store=self.store, metadata=self.metadata, clock=clock, wall_ms=self.wall_ms,
            own=self.own,
        )
        self.lost_topics = LostTopics(self.inside, changed=self.topics_changed)
        self.saver = MetadataSaver(self.metadata, around.run_in_thread)
        self.replication = kind.replicate(self.store, ReplicationNeeds(
            inside=self.inside, around=around, client=self.client, events=self, turn=self.turn,
            kept_topics=self.store.deleted.kept,
        ))
        self.pipeline = PutPipeline(
            traced(self.replication.writer, around.trace), wall_ms=self.wall_ms, seconds=clock.seconds,
            failed=around.failed,
        )
        self.checks = TopicChecks(self.inside, events=self)
        self.browser = MessageBrowser(self.inside)
        self.reads = LogReads(
            self.store.log, clock=clock, turn=self.turn, bad=self.store.bad_records
        )
        self._make_sending()
        self._make_consuming()
        self.router = self._router()
        self.registrar = NameServerRegistrar(
            config.name_servers, self.client, self.identity, self.metadata.topics, clock=clock,
            interval_s=config.register_name_server_period / 1000,
            timeout_s=REGISTER_TIMEOUT_S,
            following=self.replication.following,
        )

    # -- parts -----------------------------------------------------------------------------------

    def _metadata(self, followed: FollowedLog | None) -> Metadata:
        config, now_ms = self.config, self.wall_ms()
        metadata = Metadata(
            self._around.disk, config.store.config_path, now_ms=now_ms, place_of=self.store.deleted.place_of,
            flush_log=lambda: self.store.log.flush().addCallback(lambda _: None), followed=followed,
        )
        try:
            metadata.load()
        except BaseException:
            self.store.abandon()
            raise
        restore_options(config, metadata.changed_options)
        for path in metadata.restored:
            self.log.warn("{path} was restored from its .bak", path=path)
        if not config.role.is_slave:
            add_system_topics(metadata, config, now_ms)
        return metadata

    def _make_sending(self) -> None:
        inside, pipeline, config = self.inside, self.pipeline, self.config
        rules = PutRules(self.checks, config)
        ids = UniqueIds(self.own, wall_ms=self.wall_ms, rng=self._around.rng)
        self.timers = TimerService(inside, pipeline, topic_of=self.lost_topics.found)
        self._long_sends = LongSends(inside, rules, ids=ids, may_time=self.timers.may_wait)
        self._answers = SendAnswers(inside, self.refusals)
        plain_sends = PlainSends(
            inside, rules, ids=ids, record_max=self.replication.writer.together_bytes_max
        )
        self.sends = Sends(pipeline, plain_sends, self._long_sends, self._answers, self.turn)
        self.native = NativeCommands(inside, pipeline, rules, self.reads)
        self.send_back = SendBack(inside, pipeline, rules, rng=self._around.rng, is_over=self._is_over)
        self.schedule = ScheduleMessageService(
            inside, pipeline, topic_of=self.lost_topics.found, is_over=self.store.deleted.is_over
        )

    def _make_consuming(self) -> None:
        self.consumer_table = ConsumerTable()
        self.producer_table = ProducerTable()
        self._make_reading()
        self._make_taking()

    def _make_reading(self) -> None:
        """Parts that give messages, and keep offsets."""
        inside, slow_bytes, gate = self.inside, usual_slow_bytes(), self.gate
        visible = all_visible if gate is None else gate.visible
        commits = CommitJudge(inside)
        reading = PullReading(
            inside, self.consumer_table, commits, visible=visible, retries_of=self.store.deleted.retries_of
        )
        self.pulls = PullCommands(inside, reading, trace=self._around.trace, slow_bytes=slow_bytes)
        self.key_queries = KeyQueries(inside, visible=visible)
        self.locks = QueueLocks(steady_ms=self._around.steady_clock())
        self.offset_bounds = OffsetBounds(inside)
        self.offsets = OffsetCommands(
            inside, commits, slow_bytes=slow_bytes, settled=self.replication.settled
        )

    def _make_taking(self) -> None:
        """Parts that end what was given: acks, ends of transactions, administrators."""
        inside, pipeline, gate = self.inside, self.pipeline, self.gate
        self.consumers = ConsumerCommands(
            inside, self.consumer_table, self.producer_table, steady_ms=self._around.steady_clock(),
            rights=gate,
        )
        self.replies = ReplyCommands(inside, pipeline, self._long_sends, self.producer_table, rights=gate)
        ends = TransactionEnds()
        self.transactions = TransactionCommands(
            inside, pipeline, ends=ends, topic_of=self.lost_topics.found
        )
        self.checks_of_halves = TransactionCheckService(
            inside, pipeline, ends, HalfProgress(inside), HalfJudge(inside, pipeline, ends),
            ProducerQuestions(inside, self.producer_table, rights=gate),
        )
        self.revive = ReviveService(inside, pipeline, self.checks)
        in_order, retries = InOrder(inside), RetryTopics(inside)
        taking = PopTaking(inside, self.revive, in_order, retries)
        giving = PopGiving(
            inside, pipeline, taking, self.revive, in_order, progress=self.pulls.progress
        )
        self.pops = PopCommands(
            inside, PopReading(inside, pipeline, retries), taking, giving, in_order, retries
        )
        self.pop_acks = PopAcks(
            inside, pipeline, self.revive, in_order, freed=self.pops.freed, settled=self.replication.settled
        )
        self.admin = AdminCommands(inside, AdminParts(
            disk=self._around.disk, pulls=self.pulls, save=self._save_and_settle, keep=self._save,
            topics_changed=self.topics_changed, note_deletion=self.note_deletion,
            popped_by=GroupEnds(inside, pipeline, self.revive).of,
            ha_status=self.replication.status, stored=self._stored, refused=lambda: str(self.refusals),
        ))

    def _router(self) -> CommandRouter:
        config, inside, table = self.config, self.inside, self.consumer_table
        groups: tuple[CommandGroup, ...] = (
            self.pulls, self.consumers, self.offsets, self.key_queries, self.locks, self.admin,
            RecallCommands(inside, self.timers, self._answers), *self._queries(), RefusedCommands(),
            Assignments(
                inside, table, route_of=RouteQuestions(config.name_servers, self.client).ask,
                save=self._save_and_settle,
            ), ResetOffsets(inside, table, settled=self.replication.settled), TableCommands(self.metadata),
            self.send_back, self.transactions, self.replies, self.pops, self.pop_acks, self.native,
            *self.replication.commands(),
        )
        gate = self.gate
        if gate is not None:
            groups = (*groups, gate)
        return CommandRouter(
            self.turn, groups, SendHandlers(
                together=self.sends, plain=self.sends if gate is None else None,
                native=self.native if gate is None else GuardedNatives(gate, self.native),
            ),
            refusals=self.refusals,
            gate=gate or ChangeGate(ChangeHosts(config.change_hosts, "changeHosts"), broker_change),
            connections_max=connections_allowed(CONNECTIONS_MAX, files=open_queues_max()),
            share_percent=config.connections_share, show=self.store.reput.show,
        )

    def _queries(self) -> tuple[CommandGroup, ...]:
        """What administrators ask about topics, queues and clients."""
        inside, table, progress = self.inside, self.consumer_table, self.pulls.progress
        stats = StatsCommands(inside, table, progress=progress)
        return (
            stats, QueueQueries(inside, table, stats, progress=progress),
            ClientQueries(inside, table, self.producer_table),
            Cleaning(inside, maintain=lambda: self.replication.maintain(at_any_hour=True)),
        )

    # -- events: see dledger.rocketmq.store.records.events -------------------------------------------------

    def grown(self) -> None:
        defers = self.replication.grown()
        self.reads.grown()
        self.store.reput.wake(defers=defers)

    def cut(self, end_offset: int) -> None:
        self.replication.cut(end_offset)
        self.store.deleted.forget()
        self.offset_bounds.cut()

    def arrived(self, arrived: Arrived) -> None:
        self.pulls.arrived(arrived)
        self.pops.arrived(arrived)
        self.schedule.arrived(arrived)
        self.timers.arrived(arrived)

    def acknowledged(self) -> None:
        self.store.reput.release()

    def metadata_logged(self, record: bytes, offset: int, term: int, *, is_kept: bool) -> None:
        self.replication.metadata_logged(record, offset, term, is_kept=is_kept)

    def _save(self) -> Deferred[None]:
        return self.metadata.save(self._around.run_in_thread)

    def _save_and_settle(self) -> Deferred[None]:
        """An administrator has changed metadata: bring them to stable storage, and to the next master."""
        return self._save().addCallback(lambda _: self.replication.settled())

    def topics_changed(self) -> None:
        # The next tick saves the table. A crash before that loses no topic, see LostTopics.
        self.registrar.topics_changed()

    # -- life cycle, except files and ports ----------------------------------------------------------

    def begin(self) -> None:
        """The broker listens: follow the master, register with name servers, deliver delayed messages."""
        if self.replication.following is not None:
            self.replication.following.follow()
        self.registrar.start()
        if not self.config.role.is_slave:
            self._start_delivering()

    def _start_delivering(self) -> None:
        """A master delivers delayed messages and popped ones, and asks about half messages."""
        self.offset_bounds.start()
        self.schedule.start()
        self.timers.start()
        self.revive.start()
        self.checks_of_halves.start()

    def _stop_delivering(self) -> None:
        self.offset_bounds.stop()
        self.schedule.stop()
        self.timers.stop()
        self.revive.stop()
        self.checks_of_halves.stop()

    def role_changed(self) -> None:
        self._stop_delivering()
        self.store.deleted.forget()
        if not self.config.role.is_slave:
            add_system_topics(self.metadata, self.config, self.wall_ms())
            self.lost_topics.restore()
            self._start_delivering()
        self.registrar.role_changed()

    def reread(self, values: Mapping[str, object]) -> frozenset[str]:
        """See L{change_by_configuration}. Name servers hear of it, and the tables are saved."""
        taken = change_by_configuration(self.config, self.metadata, values, self.wall_ms())
        is_reported = not taken.isdisjoint({"auto_create_topic_enable", "broker_permission"})
        if is_reported and not self.config.role.is_slave:
            self.topics_changed()
        if self.store.is_ready:
            self.saver.save()
        return taken

    def tick(self) -> None:
        """Do the periodic work. Called once a second, also before L{begin}."""
        self._ticks += 1
        now_s = self._around.reactor.seconds()
        self.router.sweep(now_s)
        self.router.keep_share(self.config.connections_share)
        self.client.sweep(now_s)
        if self.gate is not None and self.gate.tick():
            # Requests that wait for messages were allowed by the accounts of before.
            self.pulls.answer_held("the accounts of this broker have changed")
            self.pops.answer_waiting()
            self.reads.answer_waiting()
        for group in (
            self.pulls, self.pops, self.revive, self.timers, self.consumers, self.locks, self.admin
        ):
            group.sweep()
        metadata = self.metadata
        period = max(1, round(self.config.flush_consumer_offset_interval / 1000))
        is_due = metadata.topics.is_dirty or metadata.groups.is_dirty or self._ticks % period == 0
        if is_due and self.store.is_ready:
            self.saver.save()
        if not self._has_ceased:
            self.replication.tick()
            if self._ticks % MAINTENANCE_TICKS == 0:
                self.replication.maintain()

    def cease(self, reason: str) -> None:
        """The broker has failed or stops: refuse messages, begin no work on files. Waiting puts continue."""
        self._has_ceased = True
        self.pipeline.close(reason)
        self.saver.close()

    def end(self) -> None:
        """Answer the requests that wait for messages; stop following and delivering."""
        if self.replication.following is not None:
            self.replication.following.unfollow()
        self.pulls.stop()
        self.pops.stop()
        self.key_queries.stop()
        self._stop_delivering()
        self.reads.answer_waiting()

    def note_deletion(self, topic: str) -> Put:
        """Note in the log that a topic is deleted; see L{AdminParts}."""
        now_ms, pipeline = self.wall_ms(), self.pipeline
        if self.metadata.topics.get(DELETED_TOPIC) is None:
            self.metadata.topics.put(TopicConfig(
                topic_name=DELETED_TOPIC, read_queue_nums=1, write_queue_nums=1
            ), now_ms)
        self.sends.put_together()  # they came before the deletion
        end = self.store.written_end
        put = pipeline.put(pipeline.checked([deletion_note(topic, self.own.host, now_ms)]))
        # At once: a delayed message must not make the topic again before the note is committed.
        self.store.deleted.note(topic, end)

        def ended(status: PutStatus) -> PutStatus:
            if status.is_stored:
                self.store.deleted.note(topic, put.placed.offsets[0])
            else:
                self.store.deleted.forget()
            return status

        put.done.addCallback(ended)
        return put

    def _is_over(self, message: Message) -> bool:
        """Whether a stored message is of a topic that was deleted since. @raise OSError: reading failed."""
        deleted = self.store.deleted
        return message.physical_offset < deleted.place_of(message.topic) or deleted.is_over(message)

    # -- facts ----------------------------------------------------------------------------------

    def _retries_in(self, topic: str) -> Iterable[tuple[str, str]]:
        groups, topics = self.metadata.groups.entries, self.metadata.topics.entries
        return popped_places(topic, groups=groups, topics=topics)

    def wall_ms(self) -> int:
        """Ms since 1970."""
        return int(self._around.wall_s() * 1000)

    def identity(self) -> BrokerIdentity:
        """The identity that name servers receive. Called only when the broker listens."""
        config, port = self.config, self.replication.port
        return BrokerIdentity(
            cluster_name=config.broker_cluster_name, broker_name=config.broker_name,
            broker_id=config.role.broker_id, broker_addr=self.own.text,
            ha_server_addr=f"{bracketed(config.broker_ip2 or config.broker_ip1)}:{port}",
            permission=config.broker_permission,
        )

    def _stored(self) -> int:
        return self.pipeline.stored

    def _store_failed(self, failure: Failure) -> None:
        self._around.failed(f"the store has failed: {failure.getErrorMessage()}")

    def _turn_failed(self, failure: Failure) -> None:
        self.log.failure("work of the broker failed", failure)
        self._around.failed(f"work of the broker: {failure.getErrorMessage()}")
