# -*- test-case-name: tests.base.test_log_lines -*-
"""
The lines of a service's log: as text or JSON, from a level on that each room may have for itself.

A room is the name of a module, such as C{dledger.node.node}, or the beginning of one, such as
C{dledger.node}: Twisted's loggers carry it. The level of the longest name that fits counts.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import IO

from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, formatEventAsClassicLogText
from zope.interface import implementer

#: From the least to the most important.
LEVELS = tuple(level.name for level in LogLevel.iterconstants())
#: Rooms that have a level of their own, at most, and characters of the name of one.
ROOMS_MAX = 64
ROOM_CHARS_MAX = 100
#: The key of events that say what an operator has just asked for.
ANSWERS_OPERATOR = "log_answers_operator"
#: Characters of one value, and of a text or a traceback: another party may have chosen a part of them.
VALUE_CHARS_MAX = 1000
TEXT_CHARS_MAX = 16_384

_ROOM = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*", re.ASCII)
_CACHED_MAX = 1000
#: Twisted writes two lines at this level for each connection that its HTTP client makes.
_QUIET = {"Starting factory {factory!r}": 0, "Stopping factory {factory!r}": 0}
#: Priorities of syslog, by which the journal sorts lines that begin with one.
_PRIORITIES = {"debug": 7, "info": 6, "warn": 4, "error": 3, "critical": 2}
#: Keys of events that are no facts.
_NO_FACTS = frozenset({
    "event", "facts", "failure", "format", "isError", "level", "message", "self", "system", "time", "why",
})


class LogLevels:
    """The level from which on lines are written, in all rooms and in some."""

    def __init__(self, text: str = "info") -> None:
        """
        @param text: C{LEVEL}, or C{LEVEL,ROOM=LEVEL,...}.
        @raise ValueError: it is malformed.
        """
        self._general, self._rooms = _parsed(text)
        self._cached: dict[str, int] = {}

    @property
    def text(self) -> str:
        """As it is written: C{info,dledger.node=debug}."""
        rooms = (f"{room}={LEVELS[level]}" for room, level in sorted(self._rooms.items()))
        return ",".join((LEVELS[self._general], *rooms))

    def replace(self, text: str) -> None:
        """Forget all levels, and take these. @raise ValueError: malformed, and nothing has changed."""
        self._general, self._rooms = _parsed(text)
        self._cached.clear()

    def set(self, level: str, room: str = "") -> None:
        """
        Change the level of one room; empty: of all that have none of their own.

        @raise ValueError: there is no such level, it is not a name of a room, or there are too many.
        """
        _number(level)
        if room and (len(room) > ROOM_CHARS_MAX or not _ROOM.fullmatch(room)):
            raise ValueError(f"{room[:ROOM_CHARS_MAX]!r} is not a name of a room, such as dledger.node")
        changed = {name: LEVELS[number] for name, number in self._rooms.items()}
        if room:
            changed[room] = level
        general = LEVELS[self._general] if room else level
        self.replace(",".join((general, *(f"{name}={one}" for name, one in changed.items()))))

    def shows(self, event: LogEvent) -> bool:
        """Whether a line is written for an event; one that answers an operator is, at any level."""
        if event.get(ANSWERS_OPERATOR):
            return True
        room, level = event.get("log_namespace") or "", event.get("log_level")
        number = LEVELS.index(level.name) if level is not None else 1
        if number == 1:
            number = _QUIET.get(event.get("log_format") or "", 1)
        least = self._cached.get(room)
        if least is None:
            least = self._least(room)
            if len(self._cached) < _CACHED_MAX:
                self._cached[room] = least
        return number >= least

    def _least(self, room: str) -> int:
        name = room
        while name:
            if name in self._rooms:
                return self._rooms[name]
            name = name.rpartition(".")[0]
        return self._general


def _parsed(text: str) -> tuple[int, dict[str, int]]:
    general, *others = (one.strip() for one in text.split(","))
    rooms: dict[str, int] = {}
    for one in others:
        room, equals, level = one.partition("=")
        if not equals or len(room) > ROOM_CHARS_MAX or not _ROOM.fullmatch(room):
            raise ValueError(f"{one[:ROOM_CHARS_MAX]!r} is not a ROOM=LEVEL, such as dledger.node=debug")
        if room in rooms:
            raise ValueError(f"the room {room} has two levels")
        rooms[room] = _number(level)
    if len(rooms) > ROOMS_MAX:
        raise ValueError(f"{len(rooms)} rooms have levels; {ROOMS_MAX} are allowed")
    return _number(general), rooms


def _number(level: str) -> int:
    try:
        return LEVELS.index(level)
    except ValueError:
        raise ValueError(f"the level {level[:ROOM_CHARS_MAX]!r} is not one of {', '.join(LEVELS)}") from None


def text_line(event: LogEvent) -> str:
    """As twistd writes it; empty if there is nothing to say."""
    return formatEventAsClassicLogText(event) or ""


def json_line(event: LogEvent) -> str:
    """
    One JSON object: C{time} (UTC), C{level}, C{room}, C{event} if the line has the name of one, C{text},
    C{facts}, and C{traceback} of a failure.
    """
    level, failure = event.get("log_level"), event.get("log_failure")
    found: dict[str, object] = {
        "time": datetime.fromtimestamp(event.get("log_time") or 0, UTC).isoformat(timespec="milliseconds"),
        "level": level.name if level is not None else "info", "room": event.get("log_namespace") or "",
    }
    if isinstance(event.get("event"), str):
        found["event"] = event["event"]
    found["text"] = formatEvent(event)[:TEXT_CHARS_MAX]
    facts = {
        name: _plain(value) for name, value in event.items()
        if not name.startswith("log_") and name not in _NO_FACTS
    }
    if facts:
        found["facts"] = facts
    if failure is not None:
        found["traceback"] = failure.getTraceback()[-TEXT_CHARS_MAX:]
    return json.dumps(found, ensure_ascii=False) + "\n"


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)[:VALUE_CHARS_MAX]


FORMATS: Mapping[str, Callable[[LogEvent], str]] = {"text": text_line, "json": json_line}


def is_journal(stream: IO[str], environment: Mapping[str, str]) -> bool:
    """Whether the journal of systemd reads a stream."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


@implementer(ILogObserver)
class LineWriter:
    """Writes the lines of the events that are shown."""

    def __init__(
        self, stream: IO[str], line_of: Callable[[LogEvent], str], levels: LogLevels, *, has_priorities: bool
    ) -> None:
        """@param has_priorities: each line begins with its priority, as the journal wants it."""
        self._stream = stream
        self._line_of = line_of
        self._levels = levels
        self._has_priorities = has_priorities

    def __call__(self, event: LogEvent) -> None:
        text = self._line_of(event) if self._levels.shows(event) else ""
        if not text:
            return
        if self._has_priorities:
            level = event.get("log_level")
            mark = f"<{_PRIORITIES[level.name if level is not None else 'info']}>"
            text = "".join(mark + line for line in text.splitlines(keepends=True))
        self._stream.write(text)
        self._stream.flush()
