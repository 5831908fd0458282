# -*- test-case-name: tests.test_walks -*-
"""
The stations of the walks in docs/, and the order in which a real run calls them.

A page lists stations with numbers; each begins with the dotted name of a function. L{Calls} remembers the
calls of a run; L{problem_of} compares both.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from tests.import_graph import ROOT

_STATION = re.compile(r"^\d+\. `((?:dledger|protocols)\.[\w.]+)`", re.MULTILINE)
_CHECKS = tuple(
    f"{ROOT}/dledger/testing/{name}"
    for name in ("group/checks/", "group/watching/words.py", "brokers/invariants.py")
)
_OURS = tuple(f"{ROOT}/{folder}/" for folder in ("dledger", "protocols"))


#: The function in which the simulator of brokers looks at its logs; others of that module make puts.
_LOOKS_AT_LOGS = (f"{ROOT}/dledger/testing/brokers/replicated_logs.py", "_happened")


def _is_check(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_CHECKS) or (code.co_filename, code.co_name) == _LOOKS_AT_LOGS:
            return True
        frame = frame.f_back
    return False


class Calls:
    """
    A context manager that remembers calls of our functions, but those of a simulator's checks.

    @ivar codes: of the functions, in the order of the calls, in all threads that begin meanwhile.
    @ivar answered: number of them when the caller had its answer; -1: at the end.
    """

    def __init__(self) -> None:
        self.codes: list[CodeType] = []
        self.answered = -1

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            if (name.startswith(_OURS) or name.startswith("<attrs")) and not _is_check(frame):
                self.codes.append(frame.f_code)

    def note_answer(self) -> None:
        """The caller has its answer."""
        self.answered = len(self.codes)

    def __enter__(self) -> Calls:
        self._before = sys.getprofile()
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(self._before)
        threading.setprofile(None)  # type: ignore[arg-type]


def code_of(name: str) -> CodeType:
    """
    The code of a function by its dotted name; of a class, that which makes an instance.

    @raise LookupError: it names neither.
    """
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = inspect.getattr_static(found, part)
        if isinstance(found, type):
            found = found.__init__  # type: ignore[misc]
        found = getattr(found, "fget", None) or getattr(found, "__func__", found)
        code = getattr(found, "__code__", None)
        if isinstance(code, CodeType):
            return code
        break
    raise LookupError(f"{name} is no function")


def stations(page: Path, heading: str) -> list[str]:
    """The names of the stations in the section with this heading, in the order of its list."""
    _before, found, rest = page.read_text("utf-8").partition(f"\n## {heading}\n")
    if not found:
        raise LookupError(f"{page.name}: no section {heading!r}")
    return _STATION.findall(rest.split("\n## ")[0])


def problem_of(names: Sequence[str], calls: Sequence[CodeType]) -> str:
    """
    Compare the order of stations with that of the first calls since the first station.

    A station that occurs twice is looked for after the one before it.

    @return: the first difference; empty if there is none.
    """
    begin = at = -1
    seen: set[str] = set()
    for number, name in enumerate(names, 1):
        code = code_of(name)
        first = (at if name in seen else begin) + 1
        where = next((place for place in range(first, len(calls)) if calls[place] is code), None)
        if where is None:
            return f"{number}: {name} is not called"
        if where < at:
            return f"{number}: {name} is called before {names[number - 2]}"
        seen.add(name)
        at = where
        if begin < 0:
            begin = where
    return ""
