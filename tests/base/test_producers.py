# -*- test-case-name: tests.base.test_producers -*-
"""The table of producers against a plain model."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.ledger import producers
from dledger.ledger.producers import OPEN_ENTRIES, RUNS_MAX, Known, NotedRun, SequenceTable, Verdict

#: After all entries.
END = 10**9


def note(table: SequenceTable, producer: str, sequence: int, index: int, entries: int) -> None:
    """Entries right after their producer entry."""
    table.note(NotedRun(producer, sequence, index, entries, index - 1))


class JudgeTests(SynchronousTestCase):
    """What is said about an append."""

    def setUp(self) -> None:
        self.table = SequenceTable()
        note(self.table, "p", 0, 10, 3)  # 0..2 at 10..12
        note(self.table, "p", 3, 20, 2)  # 3, 4 at 20, 21

    def test_new(self) -> None:
        """The next one; the first one of a producer is 0."""
        self.assertEqual(self.table.judge("p", 5, 4, END), Verdict(Known.NEW, last_sequence=4))
        self.assertEqual(self.table.judge("q", 0, 1, END), Verdict(Known.NEW))

    def test_repeated(self) -> None:
        """With the index of the first one, and the number of those that follow it there."""
        self.assertEqual(self.table.judge("p", 0, 3, END), Verdict(Known.REPEATED, 10, 3, 4))
        self.assertEqual(self.table.judge("p", 1, 5, END), Verdict(Known.REPEATED, 11, 2, 4))
        self.assertEqual(self.table.judge("p", 4, 2, END), Verdict(Known.REPEATED, 21, 1, 4))

    def test_gap(self) -> None:
        """One is missing; and a producer that nobody knows does not go on."""
        self.assertEqual(self.table.judge("p", 6, 1, END), Verdict(Known.GAP, last_sequence=4))
        self.assertEqual(self.table.judge("q", 1, 1, END), Verdict(Known.UNKNOWN_PRODUCER))

    def test_forgotten_runs(self) -> None:
        """The indexes of old sequences go; the last sequence stays."""
        for at in range(3 * RUNS_MAX):
            note(self.table, "p", 5 + at, 30 + 2 * at, 1)
            self.table.settle(30 + 2 * at)
        self.assertIs(self.table.judge("p", 0, 1, END).known, Known.FORGOTTEN)
        last = 5 + 3 * RUNS_MAX - 1
        for back in range(RUNS_MAX):
            self.assertEqual(self.table.judge("p", last - back, 1, END).known, Known.REPEATED)
        self.assertIs(self.table.judge("p", last + 1, 1, END).known, Known.NEW)

    def test_forgotten_producers(self) -> None:
        """The one whose last entry is the oldest goes first."""
        table = SequenceTable(producers_max=2)
        for at, name in enumerate("pqpr"):
            note(table, name, 1 if at == 2 else 0, at, 1)
        self.assertIs(table.judge("q", 1, 1, END).known, Known.UNKNOWN_PRODUCER)
        self.assertIs(table.judge("p", 2, 1, END).known, Known.NEW)
        self.assertIs(table.judge("r", 1, 1, END).known, Known.NEW)

    def test_not_come_yet(self) -> None:
        """Announced entries after the end of the ledger are not in it."""
        self.assertEqual(self.table.judge("p", 4, 1, 20), Verdict(Known.NEW, last_sequence=3))
        self.assertEqual(self.table.judge("p", 3, 2, 20), Verdict(Known.REPEATED, 20, 1, 3))
        self.assertEqual(self.table.judge("p", 3, 2, 12), Verdict(Known.NEW, last_sequence=2))
        self.assertEqual(self.table.judge("p", 4, 2, 12), Verdict(Known.GAP, last_sequence=2))
        self.assertEqual(self.table.judge("p", 0, 1, 9), Verdict(Known.NEW))
        self.assertEqual(self.table.judge("p", 1, 1, 9), Verdict(Known.UNKNOWN_PRODUCER))

    def test_cut(self) -> None:
        """After a producer entry that stays, the announced entries may come back."""
        self.table.cut(21)
        self.assertEqual(self.table.judge("p", 4, 1, 20), Verdict(Known.NEW, last_sequence=3))
        self.assertEqual(self.table.judge("p", 4, 1, 21).first_index, 21)
        self.table.cut(20)
        self.assertEqual(self.table.judge("p", 3, 1, 19), Verdict(Known.NEW, last_sequence=2))
        self.assertEqual(self.table.judge("p", 3, 2, 21), Verdict(Known.REPEATED, 20, 2, 4))
        self.table.cut(19)
        self.assertEqual(self.table.judge("p", 3, 1, END), Verdict(Known.NEW, last_sequence=2))
        self.table.cut(9)
        self.assertEqual(len(self.table), 0)

    def test_superseded(self) -> None:
        """Where another term goes on, they do not."""
        self.table.superseded(21)
        self.assertEqual(self.table.judge("p", 4, 1, END), Verdict(Known.NEW, last_sequence=3))
        self.table.superseded(11)
        self.assertEqual(self.table.judge("p", 1, 1, END), Verdict(Known.NEW, last_sequence=0))
        self.table.superseded(10)
        self.assertEqual(len(self.table), 0)

    def test_superseded_and_cut(self) -> None:
        """When the other term goes, what was announced may come after all."""
        self.table.settle(12)
        self.table.superseded(21)
        self.assertEqual(self.table.whole_before(20), 18)
        note(self.table, "q", 0, 30, 1)
        self.table.superseded(11)
        self.assertEqual(self.table.judge("p", 1, 1, END), Verdict(Known.NEW, last_sequence=0))
        self.table.cut(11)
        self.assertEqual(self.table.judge("p", 2, 1, END), Verdict(Known.REPEATED, 12, 1, 2))
        self.assertEqual(self.table.judge("q", 0, 1, END), Verdict(Known.NEW))
        self.assertEqual(self.table.whole_before(10), 8)

    def test_superseded_entry_of_a_run(self) -> None:
        """A run of which one entry came is whole after a cut after it; once that is committed, not."""
        for committed_index, known in ((20, Known.REPEATED), (21, Known.NEW)):
            table = SequenceTable()
            note(table, "p", 0, 20, 2)
            table.superseded(21)
            table.settle(committed_index)
            table.cut(21)
            self.assertEqual(table.judge("p", 1, 1, END).known, known)

    def test_last_runs(self) -> None:
        """Up to a committed entry, but not into a run."""
        note(self.table, "q", 0, 30, 1)
        for end, whole in ((40, 40), (21, 21), (20, 18), (19, 18), (18, 18), (11, 8), (9, 8), (8, 8)):
            self.assertEqual(self.table.whole_before(end), whole, end)
        first, second = NotedRun("p", 0, 10, 3, 9), NotedRun("p", 3, 20, 2, 19)
        self.assertEqual(list(self.table.last_runs(40)), [second, NotedRun("q", 0, 30, 1, 29)])
        self.assertEqual(list(self.table.last_runs(21)), [second])
        self.assertEqual(list(self.table.last_runs(18)), [first])
        self.assertEqual(list(self.table.last_runs(8)), [])

    def test_cut_recalls(self) -> None:
        """A cut recalls whom only the cut entries made the table forget; committed entries stay."""
        table = SequenceTable(producers_max=2)
        for at, name in enumerate("pqrs"):
            note(table, name, 0, 10 * at + 1, 1)
        table.settle(11)  # p and q
        self.assertIs(table.judge("p", 1, 1, END).known, Known.UNKNOWN_PRODUCER)
        self.assertIs(table.judge("p", 0, 1, END).known, Known.NEW)
        table.cut(20)
        self.assertEqual(table.judge("p", 0, 1, END), Verdict(Known.REPEATED, 1, 1, 0))
        self.assertEqual(table.judge("q", 0, 1, END).first_index, 11)
        note(table, "r", 0, 21, 1)
        table.settle(21)
        table.cut(22)
        self.assertIs(table.judge("p", 1, 1, END).known, Known.UNKNOWN_PRODUCER)
        self.assertEqual((len(table), len(table.spare)), (2, 0))

    def test_file_has_one_order(self) -> None:
        """The order of the file is the place in the log up to its entry, not that of entries after it."""
        table = SequenceTable(producers_max=2)
        for at, name in enumerate("pqrp"):
            note(table, name, at // 3, 10 * at + 1, 1)
        self.assertEqual([run.producer for run in table.last_runs(25)], ["q", "r"])
        self.assertEqual([run.producer for run in table.last_runs(31)], ["r", "p"])

    def test_new_life(self) -> None:
        """A producer that was forgotten and began again has its new entries; after a cut, the old ones."""
        table = SequenceTable(producers_max=1)
        note(table, "p", 0, 1, 3)
        note(table, "q", 0, 11, 1)
        note(table, "p", 0, 21, 1)
        self.assertEqual(table.judge("p", 0, 1, END), Verdict(Known.REPEATED, 21, 1, 0))
        self.assertEqual(table.judge("p", 1, 1, END), Verdict(Known.NEW, last_sequence=0))
        table.cut(20)
        self.assertIs(table.judge("p", 1, 1, END).known, Known.UNKNOWN_PRODUCER)
        table.cut(10)
        self.assertEqual(table.judge("p", 2, 1, END), Verdict(Known.REPEATED, 3, 1, 2))

    def test_bounded(self) -> None:
        """Without word of a commit the table does not grow for ever."""
        table = SequenceTable(producers_max=2)
        self.patch(producers, "UNCOMMITTED_MAX", 5)
        for at in range(100):
            note(table, f"p{at}", 0, 10 * at + 1, 1)
            table.settle(-1)
        self.assertEqual((len(table), len(table.spare), len(table.uncommitted)), (2, 5, 5))


class OpenTests(SynchronousTestCase):
    """Runs that go on until they are closed: p has the entries from 10 on, in term 3."""

    def setUp(self) -> None:
        self.table = SequenceTable()
        note(self.table, "q", 0, 5, 1)
        self.table.note(NotedRun("p", 0, 10, OPEN_ENTRIES, 9, 3))

    def last(self, end_index: int = END) -> int:
        """The last sequence of p."""
        return self.table.judge("p", 1 << 40, 1, end_index).last_sequence

    def test_goes_on(self) -> None:
        """With each entry of the ledger."""
        self.assertEqual([self.last(end) for end in (10, 14)], [0, 4])
        self.assertEqual(self.table.judge("p", 5, 1, 14), Verdict(Known.NEW, last_sequence=4))
        self.assertEqual(self.table.judge("p", 3, 5, 14), Verdict(Known.REPEATED, 13, 2, 4))
        self.assertEqual(self.table.open_term, 3)

    def test_closed(self) -> None:
        """By the first entry of a member's own, once."""
        self.table.close(20)
        self.table.close(15)
        self.assertEqual((self.last(), self.table.open_term), (9, -1))
        self.table.superseded(20)
        self.assertEqual(self.last(), 9)
        self.table.superseded(13)
        self.assertEqual(self.last(), 2)

    def test_closed_at_once(self) -> None:
        """Without an entry there is no run."""
        self.table.close(10)
        self.assertEqual(self.table.judge("p", 0, 1, END), Verdict(Known.NEW))
        self.assertEqual(len(self.table), 1)

    def test_superseded(self) -> None:
        """Another term ends it; when that goes, it is open again."""
        self.table.superseded(12)
        self.assertEqual((self.last(), self.table.open_term), (1, -1))
        self.table.cut(11)
        self.assertEqual((self.last(14), self.table.open_term), (4, 3))
        self.table.cut(9)
        self.assertEqual((len(self.table), self.table.open_term), (1, -1))

    def test_settled(self) -> None:
        """Its first entry counts: others are forgotten though it goes on."""
        table = SequenceTable(producers_max=1)
        table.note(NotedRun("q", 0, 5, 1, 4))
        table.note(NotedRun("p", 0, 10, OPEN_ENTRIES, 9, 3))
        table.settle(9)
        self.assertEqual(len(table.spare), 1)
        table.settle(10)
        self.assertEqual(len(table.spare), 0)

    def test_in_the_file(self) -> None:
        """It is open there from its first entry on, also when it was closed or superseded later."""
        for end, whole in ((8, 8), (9, 8), (10, 10), (500, 500)):
            self.assertEqual(self.table.whole_before(end), whole, end)
        run = NotedRun("p", 0, 10, OPEN_ENTRIES, 9, 3)
        self.table.superseded(30)
        self.assertEqual(self.table.whole_before(20), 20)
        self.assertEqual([self.table.last_runs(end)[-1] for end in (20, 29)], [run, run])
        self.assertEqual(self.table.last_runs(30)[-1], run._replace(entries=20))
        again = SequenceTable()
        for one in self.table.last_runs(20):
            again.note(one)
        self.assertEqual(again.judge("p", 15, 1, END), Verdict(Known.REPEATED, 25, 1, END - 10))

    def test_anew(self) -> None:
        """What was committed of it is remembered, and does not go on."""
        self.table.begin_anew(13, 50)
        self.assertEqual(self.table.judge("p", 3, 1, END), Verdict(Known.REPEATED, 13, 1, 3))
        self.assertEqual(self.table.judge("p", 4, 1, END), Verdict(Known.UNKNOWN_PRODUCER))
        self.assertEqual(self.table.open_term, -1)


class ManyTests(SynchronousTestCase):
    """More producers than are remembered, and tables that are made again of a file and the log after it."""

    def fold(self, log: list[NotedRun], bound: int) -> dict[str, NotedRun]:
        """The last runs of the producers that a log is to be remembered for: the plain rule."""
        last: dict[str, NotedRun] = {}
        for run in log:
            last.pop(run.producer, None)
            last[run.producer] = run
            if len(last) > bound:
                del last[next(iter(last))]
        return last

    def check(self, table: SequenceTable, log: list[NotedRun], bound: int, why: str) -> None:
        """The table remembers whom it should, at their places."""
        end = log[-1].first_index + log[-1].entries - 1 if log else -1
        last = self.fold(log, bound)
        self.assertEqual(len(table), len(last), why)
        for name, run in last.items():
            verdict = table.judge(name, run.sequence, 1, end)
            self.assertEqual((verdict.known, verdict.first_index), (Known.REPEATED, run.first_index), why)
        for name in {run.producer for run in log[-3 * bound :]} - last.keys():
            self.assertIs(table.judge(name, 1, 1, end).known, Known.UNKNOWN_PRODUCER, why)

    def test_made_again(self) -> None:
        """Appends, commits, cuts, files and starts, with 3 to 2048 remembered and up to 5,000 seen."""
        for seed, (bound, names, steps) in enumerate([(3, 5, 200), (8, 40, 300)] * 20 + [(2048, 5000, 9000)]):
            rng, why = random.Random(seed), f"seed {seed}"
            log: list[NotedRun] = []
            committed, table = 0, SequenceTable(bound)
            saved: tuple[int, list[NotedRun]] = -1, []
            for step in range(steps):
                chance = rng.random()
                if chance < 0.05 and committed < len(log):
                    del log[rng.randrange(committed, len(log)) :]
                    table.cut(log[-1].first_index + log[-1].entries if log else 0)
                elif chance < 0.06 and committed:
                    end = log[committed - 1].first_index + log[committed - 1].entries - 1
                    self.assertEqual(table.whole_before(end), end, why)
                    saved = end, table.last_runs(end)
                elif chance < 0.07:  # a start: the file, and the log from before or after its entry
                    first = rng.randrange(saved[0] + 2)
                    table = SequenceTable(bound)
                    for run in saved[1]:
                        if run.told_at < first:
                            table.note(run)
                    for run in log:
                        if run.told_at >= first:
                            table.note(run)
                elif chance < 0.2:
                    committed = rng.randrange(committed, len(log) + 1)
                    table.settle(log[committed - 1].first_index + rng.randrange(10) if committed else -1)
                else:
                    name = f"p{rng.randrange(names)}"
                    before = self.fold(log, bound).get(name) if bound < 100 else None
                    sequence = before.sequence + before.entries if before else 0
                    told_at = log[-1].told_at + 20 if log else 0
                    log.append(NotedRun(name, sequence, told_at + 1, rng.randrange(1, 4), told_at))
                    table.note(log[-1])
                if bound < 100 or step % 1000 == 999:
                    self.check(table, log, bound, why)


class ModelTests(SynchronousTestCase):
    """Random appends and cuts against a list of entries."""

    def test_random(self) -> None:
        """Each sequence that the log has is found at its index."""
        for seed in range(60):
            rng = random.Random(seed)
            log: list[tuple[str, int] | None] = []
            table = SequenceTable()
            for _ in range(80):
                if log and rng.random() < 0.2:
                    first_gone = rng.randrange(len(log) + 1)
                    del log[first_gone:]
                    table.cut(first_gone)
                    table.superseded(first_gone)
                    continue
                name = rng.choice("pqr")
                last = max((entry[1] for entry in log if entry and entry[0] == name), default=-1)
                count = rng.randrange(1, 4)
                log.append(None)
                note(table, name, last + 1, len(log), count)
                log += [(name, last + 1 + at) for at in range(count)]
            for index, entry in enumerate(log):
                if entry is not None:
                    verdict = table.judge(*entry, 1, END)
                    found = verdict.known, verdict.first_index
                    self.assertEqual(found, (Known.REPEATED, index), f"seed {seed}")
