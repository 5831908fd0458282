# -*- test-case-name: tests.broker.transactions.test_check -*-
"""
Asks producers about half messages that nobody has ended (CHECK_TRANSACTION_STATE, 39).

A round begins every C{transaction_check_interval}. It reads the op messages, then walks through the half
messages from the first that has not ended::

    ended, or gone from the log         the next
    asked C{transaction_check_max} times, or older than the log's files are kept
                                        copied to L{DISCARDED_TOPIC}
    younger than its immunity           the round ends; one with an immunity of its own is copied to the end
                                        of the queue, so that others after it are asked about
    else                                copied to the end of the queue; its producer is asked about the copy

A copy counts as the end of the earlier half message, and names the first one. L{HalfProgress} knows how far
that is done, L{HalfJudge} judges one half message, L{ProducerQuestions} asks; this module has the rounds,
their turns, and the puts of copies.

Rule 1: only a master asks. Rule 2: work is bounded in each turn of the reactor, and so is memory.
Rule 3: nothing is passed before its copy is stored.
Rule 4: when a master begins it reads which transactions have ended
(L{dledger.rocketmq.broker.producing.transactions.ends}), before the first round.

Source: TransactionalMessageServiceImpl.check, AbstractTransactionalMessageCheckListener (4.9.8, 5.3.3).
"""

from __future__ import annotations

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.halves import (
    DISCARDED_TOPIC,
    HALF_QUEUE,
    HALF_TOPIC,
    first_of,
)
from dledger.rocketmq.broker.producing.puts import NotPut, Put, PutPipeline
from dledger.rocketmq.broker.producing.transactions.ends import TransactionEnds
from dledger.rocketmq.broker.producing.transactions.ends_reading import EndsReading
from dledger.rocketmq.broker.producing.transactions.half_judge import HalfCopy, HalfJudge
from dledger.rocketmq.broker.producing.transactions.half_progress import HalfProgress
from dledger.rocketmq.broker.producing.transactions.questions import ProducerQuestions
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.values.errors import StoreError

#: The most half messages, and bytes of copies, of one turn.
TURN_HALVES = 128
TURN_BYTES = 1024 * 1024
#: Pause between two looks whether all messages are in their queues.
LOOK_S = 0.1
#: Pause after a failure that nobody has thought of: one message must not end all rounds.
UNEXPECTED_S = 60.0


class TransactionCheckService:
    """
    Invariant: C{_call} is the scheduled turn, or None: it does not run, or a put is under way.

    @ivar progress: how far the half messages are examined.
    @ivar asked, discarded: numbers of half messages so far.
    """

    log = Logger()

    def __init__(
        self, inside: BrokerInside, pipeline: PutPipeline, ends: TransactionEnds, progress: HalfProgress,
        judge: HalfJudge, questions: ProducerQuestions,
    ) -> None:
        self._config = inside.config
        self._store = inside.store
        self._pipeline = pipeline
        self._ends = ends
        self.progress = progress
        self._judge = judge
        self._questions = questions
        self._clock = inside.clock
        self._round_end = 0
        self._call: IDelayedCall | None = None
        self._is_running = False
        self._runs = 0
        self._problem = ""
        self.asked = self.discarded = 0

    @property
    def waiting(self) -> int:
        """See L{HalfProgress.waiting}."""
        return self.progress.waiting

    def start(self) -> None:
        """This broker is a master: ask from now on."""
        self._is_running = True
        self._runs += 1
        self.progress.forget()
        self._round_end = 0
        self._reading = EndsReading(self._store, self._ends)
        self._call = self._clock.callLater(0, self._load)

    def stop(self) -> None:
        """Ask no more."""
        self._is_running = False
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _load(self) -> None:
        """Read some of the ends of before."""
        self._call = None
        try:
            if not self._reading.is_begun:
                if not self._store.has_dispatched(self._reading.bound):
                    self._call = self._clock.callLater(LOOK_S, self._load)
                    return
                self.progress.find_begin()
                self._reading.begin(self.progress.half_at, self.progress.op_at)
            if self._ends.is_loaded or self._reading.go_on():
                if self._reading.lacking:
                    self._end_last(self._reading.lacking)
                else:
                    self._next_round()
                return
        except (NotPut, StoreError, OSError) as error:
            self.log.warn("the ends of transactions cannot be read: {reason}", reason=str(error))
            self._call = self._clock.callLater(LOOK_S, self._load)
            return
        except Exception:
            self._call = self._clock.callLater(UNEXPECTED_S, self._load)
            raise
        self._call = self._clock.callLater(0, self._load)

    def _end_last(self, offsets: list[int]) -> None:
        """Store the op messages of the last committed message. @raise NotPut: it is not possible now."""
        self.progress.keep_topics()
        put, run = self._pipeline.put(self._judge.ops(offsets)), self._runs

        def stored(status: PutStatus) -> None:
            if not self._is_running or run != self._runs:
                return
            if status.is_stored:
                self._reading.lacking = []
            self._call = self._clock.callLater(0 if status.is_stored else LOOK_S, self._load)

        put.done.addCallback(stored)

    def _next_round(self) -> None:
        self._call = self._clock.callLater(self._config.transaction_check_interval / 1000, self._round)

    def _round(self) -> None:
        self._round_end = self.progress.bounds(HALF_TOPIC)[1]  # what is stored from here on has time
        self._turn()

    def _turn(self) -> None:
        self._call = None
        if self._pipeline.is_closed:
            return
        try:
            self.progress.find_begin()
            if self.progress.read_ops():
                self._call = self._clock.callLater(0, self._turn)
                return
            following, copies, is_over = self._walk()
            if copies:
                self._put(following, copies, is_over)
            else:
                self._passed(following, is_over)
        except (NotPut, StoreError, OSError, ValueError) as error:
            self._failed(str(error))
        except Exception:
            if self._call is None:
                self._call = self._clock.callLater(UNEXPECTED_S, self._round)
            raise

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self.log.warn("half messages have to wait: {reason}", reason=problem)
        if self._is_running:
            self._next_round()

    def _passed(self, following: int, is_over: bool) -> None:
        """All half messages before C{following} have ended, or have a copy."""
        self.progress.passed(following)
        if self._problem:
            self._problem = ""
            self.log.info("half messages are examined again")
        if is_over:
            self._next_round()
        else:
            self._call = self._clock.callLater(0, self._turn)

    # -- half messages ---------------------------------------------------------------------------

    def _walk(self) -> tuple[int, list[HalfCopy], bool]:
        """
        Examine some half messages.

        @return: offset after them, the copies to store before it is passed, and whether the round is over.
        """
        queue = self._store.queues.get(HALF_TOPIC, HALF_QUEUE)
        copies: list[HalfCopy] = []
        progress, at, size = self.progress, self.progress.half_at, 0
        progress.reached = reached = []
        if queue is None or at >= self._round_end:
            return at, [], True
        for unit in queue.read(at, min(TURN_HALVES, self._round_end - at)):
            if unit.queue_offset in progress.ended:
                reached.append(unit.queue_offset)
                at = unit.queue_offset + 1
                continue
            if copies and size + unit.size > TURN_BYTES:
                return at, copies, False
            half = progress.read(unit)
            if half is not None:
                found = self._judge.examined(half, reached)
                if found is None:
                    return at, copies, True
                if isinstance(found, HalfCopy):
                    copies.append(found)
                    size += unit.size
            at = unit.queue_offset + 1
        return at, copies, at >= self._round_end

    def _put(self, following: int, copies: list[HalfCopy], is_over: bool) -> None:
        self.progress.keep_topics()
        put = self._pipeline.put([one.plain for one in copies])
        put.done.addCallback(self._stored, put, following, copies, is_over, self._runs)

    def _stored(
        self, status: PutStatus, put: Put, following: int, copies: list[HalfCopy], is_over: bool, run: int
    ) -> None:
        if not self._is_running or run != self._runs:
            return
        if not status.is_stored:
            self._failed(status.name)
            return
        for one, offset, queue_offset in zip(
            copies, put.placed.offsets, put.placed.queue_offsets, strict=True
        ):
            first = first_of(one.half)
            if one.message.topic == HALF_TOPIC:
                self._ends.copied(first, queue_offset)
            if one.asks:
                if self._ends.kind_of(first) is None:
                    self.asked += 1
                    self._questions.ask(one, offset, queue_offset)
            elif one.message.topic == DISCARDED_TOPIC:
                self._ends.given_up(first)
                self.discarded += 1
                self.log.warn("the half message at {offset} has no end; it is kept in {topic}",
                              offset=one.half.physical_offset, topic=DISCARDED_TOPIC)
        self._passed(following, is_over)
