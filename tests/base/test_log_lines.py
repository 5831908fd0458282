# -*- test-case-name: tests.base.test_log_lines -*-
"""Lines of the log: levels of rooms, text, JSON, priorities."""

from __future__ import annotations

import io
import json
import os
from typing import Any

from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.base import log_lines
from dledger.base.log_lines import LineWriter, LogLevels, is_journal, json_line, text_line


def event(
    room: str = "dledger.node.node.Node", level: LogLevel = LogLevel.info, **facts: Any
) -> dict[str, Any]:
    """As a logger makes it."""
    found: list[dict[str, Any]] = []
    facts.setdefault("format", "{event} {facts}")
    Logger(namespace=room, observer=found.append).emit(level, **facts)
    found[0]["log_time"] = 1_700_000_000.1234
    return found[0]


class LevelsTests(SynchronousTestCase):
    """Which lines are written."""

    def shown(self, levels: LogLevels, room: str) -> list[str]:
        """The levels at which lines of a room are written."""
        return [one.name for one in LogLevel.iterconstants() if levels.shows(event(room, one))]

    def test_rooms(self) -> None:
        """The longest name that fits counts; parts of names are no rooms."""
        levels = LogLevels("warn, dledger.node=debug,dledger.node.connections.peers=error")
        for room, count in (
            ("dledger.node", 5), ("dledger.node.node.Node", 5), ("dledger.node.connections.peers.Peer", 2),
            ("dledger.nodes", 3), ("dledger", 3), ("", 3),
        ):
            self.assertEqual(len(self.shown(levels, room)), count, room)
        self.assertEqual(LogLevels(levels.text).text, levels.text)

    def test_changed(self) -> None:
        """At once, for rooms that were asked for before, too."""
        levels = LogLevels()
        self.assertEqual(len(self.shown(levels, "dledger.node")), 4)
        levels.set("debug", "dledger")
        self.assertEqual(len(self.shown(levels, "dledger.node")), 5)
        levels.set("critical")
        self.assertEqual((len(self.shown(levels, "dledger.node")), len(self.shown(levels, "a"))), (5, 1))
        self.assertEqual(levels.text, "critical,dledger=debug")

    def test_refused(self) -> None:
        """Nothing changes, and the error says what is allowed."""
        levels = LogLevels("info,a=warn")
        for level, room in (
            ("loud", ""), ("info,b=debug", ""), ("", ""), ("info", "a b"), ("info", "a=debug,b"),
            ("info", "a" * 101), ("INFO", "a"),
        ):
            self.assertRaises(ValueError, levels.set, level, room)
        for text in ("", "info,", "info,a", "info,=debug", "info,a.=debug", "a=info",
                     "info,a=debug,a=error"):
            self.assertRaises(ValueError, levels.replace, text)
        self.assertRaises(ValueError, LogLevels, "info" + "".join(f",a{at}=info" for at in range(65)))
        with self.assertRaisesRegex(ValueError, "'loud' is not one of debug, info, warn, error, critical"):
            levels.set("loud")
        self.assertEqual(levels.text, "info,a=warn")

    def test_bounded(self) -> None:
        """What is remembered of rooms does not grow."""
        self.patch(log_lines, "_CACHED_MAX", 3)
        levels = LogLevels("info,r7=debug")
        for at in range(10):
            self.assertEqual(len(self.shown(levels, f"r{at}")), 5 if at == 7 else 4)
        self.assertEqual(len(levels._cached), 3)

    def test_noise(self) -> None:
        """Twisted's lines about each connection of its HTTP client count as debug."""
        line = event("twisted.web.client", format="Starting factory {factory!r}", factory=1)
        self.assertEqual([LogLevels(one).shows(line) for one in ("info", "debug")], [False, True])


class LinesTests(SynchronousTestCase):
    """What a line has."""

    def test_json(self) -> None:
        """One object; what JSON has no form for is text; a long value is cut."""
        line = json_line(event(
            event="role-changed", facts="role=leader", role="leader", term=7, share=0.5, lost=float("nan"),
            peers=("n1", "n2"), said="x" * 2000, none=None, text2="a\nb\u2028",
        ))
        self.assertEqual(line.count("\n"), 1)
        found = json.loads(line)
        facts = found.pop("facts")
        self.assertEqual(found, {
            "time": "2023-11-14T22:13:20.123+00:00", "level": "info", "room": "dledger.node.node.Node",
            "event": "role-changed", "text": "role-changed role=leader",
        })
        self.assertEqual(facts, {
            "role": "leader", "term": 7, "share": 0.5, "lost": "nan", "peers": "('n1', 'n2')", "none": None,
            "said": "x" * 1000, "text2": "a\nb\u2028",
        })

    def test_failure(self) -> None:
        """With its traceback, in one line."""
        try:
            raise ZeroDivisionError("no")
        except ZeroDivisionError:
            failure = Failure()
        line = json_line(event(level=LogLevel.critical, format="it failed", log_failure=failure))
        self.assertIn("ZeroDivisionError", json.loads(line)["traceback"])
        self.assertEqual((line.count("\n"), json.loads(line)["text"]), (1, "it failed"))
        self.assertIn("Traceback", text_line(event(format="it failed", log_failure=failure)))

    def test_priorities(self) -> None:
        """On each line, for the journal alone."""
        for has_priorities, marks in ((True, ["<4>", "<4>", "<4>"]), (False, ["2", "\t", "\t"])):
            stream = io.StringIO()
            writer = LineWriter(stream, text_line, LogLevels(), has_priorities=has_priorities)
            writer(event(level=LogLevel.debug))
            writer(event(level=LogLevel.warn, format="a\nb\nc"))
            lines = stream.getvalue().splitlines()
            self.assertEqual([line[: len(mark)] for line, mark in zip(lines, marks, strict=True)], marks)

    def test_journal(self) -> None:
        """The stream is the one that the journal reads."""
        with open(self.mktemp(), "w", encoding="ascii") as file:
            seen = os.fstat(file.fileno())
            reported = {"JOURNAL_STREAM": f"{seen.st_dev}:{seen.st_ino}"}
            self.assertTrue(is_journal(file, reported))
            self.assertFalse(is_journal(file, {"JOURNAL_STREAM": f"{seen.st_dev}:{seen.st_ino + 1}"}))
            self.assertFalse(is_journal(file, {}))
        self.assertFalse(is_journal(file, reported))
        self.assertFalse(is_journal(io.StringIO(), reported))
