# -*- test-case-name: tests.sim.test_corpus -*-
"""Lines of schedules, and the file that keeps those with new states."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.corpus import Corpus, CorpusEntry, CorpusError, PlayedLine
from dledger.testing.group.schedule import SECONDS

_SECOND_US = 1_000_000
#: The corpus of C{make sim}.
_OURS = Path(__file__).parent / "schedules.txt"


def _reached(*kinds: int, second: int = 1) -> dict[int, int]:
    return dict.fromkeys(kinds, second * _SECOND_US)


class PlayedLineTests(SynchronousTestCase):
    """A schedule in one line of text."""

    def test_text_and_back(self) -> None:
        """What is written is read."""
        for text in ("7 -", "412 named-readers", "412 named-readers 12034567:3 20000000:65535"):
            self.assertEqual(str(PlayedLine.parse(text)), text)

    def test_line_that_does_not_parse(self) -> None:
        """A line that is none is an error that says what is wrong."""
        for text, reported in (
            ("", "is no focus"),
            ("x -", "the seed is 'x'"),
            ("-1 -", "the seed is '-1'"),
            ("7", "is no focus"),
            ("7 nonsense", "'nonsense' is no focus"),
            ("7 - 12", "'12' is not TIME:SALT"),
            ("7 - 12:x", "a salt is 'x'"),
            ("7 - 12:65536", "a salt is '65536'"),
            ("7 - 99999999999999:1", "the time of a turn"),
            ("7 - 12:1 12:2", "is not after the one before"),
            ("7 - " + " ".join(f"{at}:1" for at in range(7)), "7 turns, at most 6"),
        ):
            self.assertIn(reported, str(self.assertRaises(CorpusError, PlayedLine.parse, text)))

    def test_turn_replaces_later_ones(self) -> None:
        """A turn before others takes their place: they would not come as they came."""
        line = PlayedLine(7, "", ((10, 1), (20, 2)))
        self.assertEqual(line.turned(15, 3).turns, ((10, 1), (15, 3)))
        self.assertEqual(line.turned(30, 3).turns, ((10, 1), (20, 2), (30, 3)))


class CorpusTests(SynchronousTestCase):
    """The entries, and their file."""

    def setUp(self) -> None:
        self.corpus = Corpus(40.0)
        self.path = Path(self.mktemp())

    def test_new_kinds_make_an_entry(self) -> None:
        """A schedule is kept for its new kinds alone, and one without any is not."""
        self.assertTrue(self.corpus.add(PlayedLine(1), _reached(1, 2, 3)))
        self.assertFalse(self.corpus.add(PlayedLine(2), _reached(2, 3)))
        self.assertTrue(self.corpus.add(PlayedLine(3), _reached(2, 3, 4)))
        self.assertEqual(self.corpus.entries[PlayedLine(3)].kinds, frozenset({4}))
        self.assertEqual(self.corpus.kinds, 4)

    def test_entry_that_another_covers(self) -> None:
        """A schedule with all kinds of an entry, and more, takes its place."""
        self.corpus.add(PlayedLine(1), _reached(1, 2))
        self.corpus.add(PlayedLine(2), _reached(3))
        self.corpus.add(PlayedLine(3), _reached(1, 2, 4))
        self.assertEqual([*self.corpus.entries], [PlayedLine(2), PlayedLine(3)])
        self.assertEqual(self.corpus.entries[PlayedLine(3)].kinds, frozenset({1, 2, 4}))
        self.assertEqual(self.corpus.kinds, 4)

    def test_kinds_after_the_faults(self) -> None:
        """A kind that is reached when the faults are over counts for nothing."""
        self.assertFalse(self.corpus.add(PlayedLine(1), _reached(1, second=40)))
        self.corpus.add(PlayedLine(1), {1: 39 * _SECOND_US, 2: 41 * _SECOND_US})
        self.assertEqual(self.corpus.entries[PlayedLine(1)].kinds, frozenset({1}))

    def test_file_and_back(self) -> None:
        """What is saved is loaded, kinds of all sizes included."""
        self.corpus.add(PlayedLine(1, "retention", ((5, 6),)), {0: 7, 63: 8, (1 << 18) - 1: 9, 4096: 10})
        self.corpus.add(PlayedLine(2), _reached(77))
        self.corpus.save(self.path)
        loaded = Corpus.load(self.path, 40.0)
        self.assertEqual(loaded.entries, self.corpus.entries)
        self.assertEqual(loaded.text(), self.corpus.text())
        self.assertFalse(loaded.add(PlayedLine(3), _reached(77)))
        self.assertEqual(len([*self.path.parent.glob(f"{self.path.name}*")]), 1)

    def test_file_of_this_repository(self) -> None:
        """It is small, and each of its entries has kinds that no other one has."""
        self.assertLess(_OURS.stat().st_size, 100_000)
        ours = Corpus.load(_OURS, SECONDS)
        self.assertEqual(ours.text(), _OURS.read_text())
        self.assertEqual(ours.kinds, sum(len(entry.kinds) for entry in ours.entries.values()))
        self.assertGreater(len(ours.entries), 50)

    def test_file_that_is_missing(self) -> None:
        """Without a file there is nothing yet."""
        self.assertEqual(Corpus.load(self.path, 40.0).kinds, 0)

    def test_line_that_does_not_parse(self) -> None:
        """A line that is no entry is an error with its number; so is another head."""
        good = CorpusEntry(PlayedLine(1), (5,), frozenset({5}))
        for line, reported in (
            ("1 -", "line 3: 1 parts"),
            ("1 - | 5 | AA", "line 3: the kinds are not"),
            ("1 - | 5 | AA!", "line 3: the kinds are not"),
            ("1 - | 5 |", "line 3: the kinds are not"),
            ("1 - | | AAA", "line 3: 0 places"),
            ("1 - | 1 2 3 4 | AAA", "line 3: 4 places"),
            ("1 - | x | AAA", "line 3: a place is 'x'"),
            ("1 nonsense | 5 | AAA", "line 3: 'nonsense' is no focus"),
        ):
            self.path.write_text(f"{Corpus(40.0).text()}{good}\n{line}\n")
            self.assertIn(reported, str(self.assertRaises(CorpusError, Corpus.load, self.path, 40.0)))
        self.path.write_text(f"{Corpus(5.0).text()}{good}\n")
        self.assertIn("line 1: ", str(self.assertRaises(CorpusError, Corpus.load, self.path, 40.0)))
        self.path.write_bytes(b"\xff\xfe")
        self.assertIn("line 1: ", str(self.assertRaises(CorpusError, Corpus.load, self.path, 40.0)))

    def test_file_keeps_its_bound(self) -> None:
        """A file that would be too long loses the entries with the fewest kinds, and is loaded again."""
        for seed in range(50):
            self.corpus.add(PlayedLine(seed), _reached(*range(100 * seed, 100 * seed + 1 + seed % 10)))
        with mock.patch("dledger.testing.group.corpus.FILE_BYTES_MAX", 1000):
            self.corpus.save(self.path)
            self.assertLessEqual(self.path.stat().st_size, 1000)
            loaded = Corpus.load(self.path, 40.0)
            self.path.write_text("x" * 1001)
            self.assertRaises(CorpusError, Corpus.load, self.path, 40.0)
        self.assertGreater(len(loaded.entries), 10)
        self.assertGreaterEqual(min(len(entry.kinds) for entry in loaded.entries.values()), 6)

    def test_drawn_line_can_turn(self) -> None:
        """Only schedules with room for another turn are drawn, at one of their places."""
        self.assertIsNone(self.corpus.drawn(random.Random(1)))
        self.corpus.add(PlayedLine(1, "", tuple((at, 1) for at in range(6))), _reached(1))
        self.assertIsNone(self.corpus.drawn(random.Random(1)))
        self.corpus.add(PlayedLine(2), {2: 10, 3: 20, 4: 30, 5: 30})
        rng = random.Random(1)
        self.assertEqual({self.corpus.drawn(rng) for _ in range(50)},
                         {(PlayedLine(2), 11), (PlayedLine(2), 21), (PlayedLine(2), 31)})
