# -*- test-case-name: tests.broker.access.test_yaml_text -*-
"""
Reads files of accounts: YAML whose values are text as it is written, as Java's beans take them. So C{0123} is
no octal number, and C{2026-01-02} no date.

Rule 1: nothing of the file is in an error, except names: a value may be a secret.
Rule 2: whatever the bytes are, the answer is a value or L{ValueError}, in time and memory that the length of
the bytes bounds: it works by events, without recursion.

Stricter than Java: a name that is given twice is an error (the first of two lists of accounts would be lost
in silence), and so are tags.

Source: YAML 1.1.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from protocols.wire.fastjson import shown

#: Lists and mappings within each other; a file of accounts has four.
DEPTH_MAX = 16
_DEPTH_WORDS = f"more than {DEPTH_MAX} lists within each other"
#: Part of the error with which libyaml refuses about a thousand lists, before their events (PyYAML 6.0.4).
_TOO_DEEP = "nesting depth"
_NULLS = ("", "~", "null", "Null", "NULL")


def read_yaml(data: bytes) -> object:
    """
    @return: text, None, lists of these, and dicts from text to these.
    @raise ValueError: it is not YAML, or more than lists, names and values; the text names the line.
    @raise ImportError: the package is missing.
    """
    import yaml

    tree = _Tree()
    try:
        # (That of C is 20 times as fast; the package may be without it.)
        for event in yaml.parse(data, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            try:
                tree.add(event, type(event).__name__)
            except ValueError as error:
                raise ValueError(f"{_place(event.start_mark)}{error}") from None
    except yaml.YAMLError as error:
        place = _place(getattr(error, "problem_mark", None))
        if _TOO_DEEP in str(getattr(error, "problem", "")):
            raise ValueError(f"{place}{_DEPTH_WORDS}") from None
        raise ValueError(
            f"{place}no YAML: put values with other characters than letters and digits between '...'"
        ) from None
    except UnicodeDecodeError:
        raise ValueError("no YAML: it is not UTF-8") from None
    return tree.value


class _Mark(Protocol):
    """A place in the text, as the package has it."""

    line: int


def _place(mark: _Mark | None) -> str:
    return f"line {mark.line + 1}: " if mark is not None else ""


@attrs.define
class _Open:
    """A list or mapping that has begun. @ivar name: of the next value of a mapping; None: a name is next."""

    made: list[object] | dict[str, object]
    anchor: str | None
    name: str | None = None


class _Tree:
    """Makes one value of events. @ivar value: None before it has ended."""

    def __init__(self) -> None:
        self.value: object = None
        self._documents = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, object] = {}

    def add(self, event: object, kind: str) -> None:
        """
        @param kind: the name of the event's class, whose package may be missing.
        @raise ValueError: it does not belong into a file of accounts.
        """
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise ValueError("a second document begins: one is allowed")
        anchor: str | None = getattr(event, "anchor", None)
        if getattr(event, "tag", None) is not None:
            raise ValueError("a value begins with '!': put it between '...'")
        if kind in ("SequenceStartEvent", "MappingStartEvent"):
            if len(self._open) >= DEPTH_MAX:
                raise ValueError(_DEPTH_WORDS)
            self._open.append(_Open([] if kind == "SequenceStartEvent" else {}, anchor))
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            done = self._open.pop()
            self._put(done.made, done.anchor)
        elif kind == "ScalarEvent":
            text: str = getattr(event, "value", "")
            is_plain, _ = getattr(event, "implicit", (False, False))
            self._put(None if is_plain and text in _NULLS else text, anchor)
        elif kind == "AliasEvent":
            if anchor is None or anchor not in self._anchors:
                raise ValueError("a value begins with '*': put it between '...'")
            self._put(self._anchors[anchor], None)

    def _put(self, value: object, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = value
        if not self._open:
            self.value = value
            return
        inner = self._open[-1]
        if isinstance(inner.made, list):
            inner.made.append(value)
        elif inner.name is not None:
            inner.made[inner.name] = value
            inner.name = None
        elif not isinstance(value, str):
            raise ValueError("a name must be text")
        elif value in inner.made:
            raise ValueError(f"{shown(value)} is given twice")
        else:
            inner.name = value
