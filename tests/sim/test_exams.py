# -*- test-case-name: tests.sim.test_exams -*-
"""The exam of a healthy master: sound code passes, and each small fault of it comes out."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

from dledger.rocketmq.broker.admin import reset_offsets
from dledger.rocketmq.broker.consuming import key_queries, offset_commands, queue_locks
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.popping.in_order import InOrder
from dledger.rocketmq.broker.consuming.popping.popped import PoppedTable
from dledger.rocketmq.broker.consuming.pulls import PullCommands
from dledger.rocketmq.broker.consuming.queue_locks import QueueLocks
from dledger.rocketmq.broker.producing.sending import send_back, sends
from dledger.rocketmq.broker.producing.transactions import half_judge
from dledger.rocketmq.broker.producing.transactions.ends import TransactionEnds
from dledger.rocketmq.metadata.offsets import ConsumerOffsets
from dledger.rocketmq.metadata.order_info import OrderInfos
from dledger.rocketmq.store import log_reads
from dledger.rocketmq.store.log_reads import LogReads, read_records
from dledger.rocketmq.store.queries import offset_at
from dledger.rocketmq.store.store import MessageStore
from dledger.testing.brokers.exams import memory_papers
from dledger.testing.brokers.exams.exam import LAST_PAPERS, PAPERS, Exam, examine
from dledger.testing.brokers.exams.examiner import Examiner
from dledger.testing.brokers.exams.lasting_papers import Loan
from dledger.testing.brokers.pair_schedule import PairFocus
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.world.host import MachineDisk
from protocols.wire.rocketmq.message import encode_properties
from tests.sim.test_pairs import PairCase, calm_world

CALM = PairFocus(faults=("nothing",), role="SYNC_MASTER")


class ExamTests(PairCase):
    """B25, in a calm world."""

    def failure(self, *papers: str, **broken: Any) -> str:
        """
        What the exam finds.

        @param papers: their names; none: all.
        @param broken: C{what} and C{name}: of an object and what is changed in it; C{by}: what is there then.
        """
        world = calm_world(CALM, 2)
        with ExitStack() as changed:
            if broken:
                changed.enter_context(mock.patch.object(broken["what"], broken["name"], broken["by"]))
            changed.enter_context(world.bugs.listening())
            try:
                examine(world, papers or (*PAPERS, *LAST_PAPERS))
            except AssertionError as error:
                return str(error)
        return ""

    def assertFound(self, paper: str, said: str, what: Any, name: str, by: Any) -> None:
        """A paper finds a fault."""
        failure = self.failure(paper, what=what, name=name, by=by)
        self.assertTrue(failure.startswith("B25: "), failure)
        self.assertIn(said, failure)

    def test_sound_code_passes(self) -> None:
        """All papers."""
        self.assertEqual(self.failure(), "")

    def test_wrong_reading_is_found(self) -> None:
        """A search that finds the next message, an index without times, a pull that is not woken."""
        self.assertFound("read_paper", "a search for", offset_commands, "offset_at",
                         lambda *arguments: offset_at(*arguments) + 1)
        self.assertFound("read_paper", "the index of", key_queries, "hash_of_key", lambda topic, key: 1)
        self.assertFound("read_paper", "a pull that waits", PullCommands, "arrived",
                         lambda self, arrived: None)

    def test_wrong_places_are_found(self) -> None:
        """A queue that is lent to everybody."""
        self.assertFound("place_paper", "two asks", QueueLocks, "_take", lambda *arguments: True)

    def test_missing_refusal_is_found(self) -> None:
        """A batch with a delayed message is taken."""
        self.assertFound("refusal_paper", "is taken", sends, "_refuse_in_batch", lambda properties: None)

    def test_wrong_pops_are_found(self) -> None:
        """A receipt that counts too long, and a queue in order that is given twice."""
        self.assertFound("pop_paper", "counts after", PoppedTable, "settle", lambda self, ack, **named: True)
        self.assertFound("order_paper", "twice", InOrder, "blocks", lambda self, place, attempt: False)
        self.assertFound("back_paper", "came back", send_back, "encode_properties",
                         lambda named: encode_properties({**named, "n": "9"}))

    def test_wrong_times_are_found(self) -> None:
        """A message that does not wait, and a question that has been asked more often."""
        self.assertFound("delay_paper", "was due", sends, "timed",
                         lambda message, config, now_ms: message)
        self.assertFound("end_paper", "question 1", half_judge, "number_in", lambda text: 1)
        self.assertFound("end_paper", "reports", TransactionEnds, "copy_of", lambda self, first: None)

    def test_wrong_native_answers_are_found(self) -> None:
        """A reader that is never woken, and one that gets more than it asked for."""
        self.assertFound("native_paper", "what a reader waits for", LogReads, "grown", lambda self: None)
        self.assertFound("native_paper", "a byte from", log_reads, "read_records",
                         lambda log, bad, offset, most: read_records(log, bad, offset, 1 << 20))

    def test_what_is_not_over_is_found(self) -> None:
        """Numbers of a deleted topic, a member that has left, an offset that a pop sets back."""
        self.assertFound("remade_paper", "the first message of a new topic", MessageStore, "forget_topic",
                         lambda self, topic: None)
        self.assertFound("member_paper", "has the members", ConsumerTable, "unregister",
                         lambda self, member, name, **named: None)
        self.assertFound("reset_paper", "a reset of", reset_offsets, "offset_at", lambda *arguments: 1)

    def test_wrong_copies_are_found(self) -> None:
        """A slave whose offsets never go back; a table without its former content beside it."""
        self.assertFound("table_paper", "and the copy", ConsumerOffsets, "_merge",
                         lambda self, key, queues, life: self._table.setdefault(key, queues) is None)
        self.assertFound("table_paper", "after two rounds", ConsumerOffsets, "_merge",
                         lambda self, key, queues, life: self._table.update({key: queues}) is None)

        sound = MachineDisk.write_file

        def write_file(disk: MachineDisk, path: str, data: bytes) -> None:
            if not path.endswith(".bak"):
                sound(disk, path, data)

        self.assertFound("file_paper", "the former topics", MachineDisk, "write_file", write_file)

    def test_short_loan_is_found(self) -> None:
        """A queue is lent for a minute after the last request of its holder."""
        world = calm_world(CALM, 2)
        client = ClientMachine("10.0.1.8", clock=world.clock, network=world.network, rng=world.rng,
                               wrong=world.bugs.note)
        loan = Loan(world, client)
        with world.bugs.listening():
            client.begin(loan.play())
            world.clock.run_until(world.clock.now_us + 20_000_000)
            self.assertEqual((loan.is_renewed, loan.may_be_renewed), (False, True))
            with mock.patch.object(Examiner, "waits", lambda exam: True):
                examine(world, ("loan_paper",), loan)
            self.assertTrue(loan.is_renewed)
            with mock.patch.object(queue_locks, "EXPIRED_MS", 1000):
                error = self.assertRaises(AssertionError, examine, world, ("loan_paper",), loan)
        self.assertIn("another one gets it", str(error))

    def test_wrong_slaves_are_found(self) -> None:
        """A slave that corrects offsets like a master."""
        self.assertFound("copy_paper", "is answered by", PullCommands, "_is_lenient", False)

    def test_forgetful_starts_are_found(self) -> None:
        """A master that does not read what is held in order, or not its offsets."""
        with mock.patch.object(Examiner, "restarts", lambda exam: True):
            self.assertEqual(self.failure("memory_paper"), "")
            self.assertFound("memory_paper", "in order is given twice", OrderInfos, "load",
                             lambda self, data: None)
            self.assertFound("memory_paper", "an offset was 3", ConsumerOffsets, "load",
                             lambda self, data: None)

    def test_what_is_due_before_a_kill(self) -> None:
        """It may come twice then, and not after an orderly end."""
        def kill(exam: Examiner) -> bool:
            exam._world.master_machine.kill()
            return is_ordered

        with mock.patch.object(Examiner, "restarts", lambda exam: True), \
                mock.patch.object(Examiner, "restart", kill), \
                mock.patch.object(memory_papers, "KEPT_S", 5.0):
            is_ordered = False
            self.assertEqual(self.failure("memory_paper"), "")
            is_ordered = True
            self.assertIn("after a restart ['klevel', 'klevel'", self.failure("memory_paper"))

    def test_new_master_voids_a_paper(self) -> None:
        """Another master has other answers."""
        world = calm_world(CALM, 2)
        examiner = Examiner(world, *(ClientMachine(
            name, clock=world.clock, network=world.network, rng=world.rng, wrong=world.bugs.note,
        ) for name in ("10.0.1.8", "10.0.1.7")))
        with world.bugs.listening(), mock.patch.object(QueueLocks, "_take", lambda *arguments: True):
            exam = Exam(examiner, ("place_paper",))
            numbers = iter(range(1 << 30))
            with mock.patch.object(world, "reign", lambda: next(numbers)):
                exam.begin()
                world.clock.run_until(world.clock.now_us + 5_000_000)
        self.assertEqual((exam.open, exam.void), (set(), {"place_paper"}))
