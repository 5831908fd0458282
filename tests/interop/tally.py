# -*- test-case-name: tests.interop.test_tally -*-
"""
Counts the events of scenarios; a plan says only which ones were meant to happen.

Pushes are counted by words in the remoting frames that pass (members of ours exchange native frames, which
are not counted); a word that is cut by the edge between two pieces is not counted, so the numbers are lower
bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from protocols.wire.ledger.entry import BLANK_MAGIC, ENTRY_HEADER, ENTRY_HEADER_SIZE
from tests.interop.mixed import JAVA, OURS

_WORDS = {
    b'"type":"TRUNCATE"': "TRUNCATE",
    b'"type":"COMPARE"': "COMPARE",
    b'"batch":true': "batch of entries",
    b'"batch":false,"batchEntry":[],"code":200,"commitIndex"': "other push",
}
_KINDS = ((JAVA, OURS), (OURS, JAVA))

#: Events that twenty scenarios must have, each at least once.
NEEDED = (
    *(f"{deed} a {role} of kind {kind}" for deed in ("SIGKILL and restart of", "SIGSTOP of")
      for role in ("leader", "follower") for kind in (JAVA, OURS)),
    "SIGKILL and restart of all",
    *(f"transfer from {source} to {target}" for source, target in _KINDS),
    *(f"bytes lost from {source} to {target}" for source, target in _KINDS),
    "preferred leader leads again",
    *(f"appends acknowledged under a leader of kind {kind}" for kind in (JAVA, OURS)),
    *(f"{word} from {source} to {target}" for source, target in _KINDS
      for word in ("COMPARE", "other push")),
    f"batch of entries from {JAVA} to {OURS}",
    "group whose Java members push in batches", "group whose Java members push one by one",
    "data file after the first", "blank at the end of a data file", "index file after the first",
)


class Tally:
    """Counters by event, a text for people."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, what: str, times: int = 1) -> None:
        """Count an event C{times} more."""
        self.counts[what] += times

    def tap(self, kinds: Mapping[str, str]) -> Callable[
        [str, str], tuple[Callable[[bytes], None], Callable[[bytes], None]]
    ]:
        """
        Counts pushes between members of these kinds; see L{tests.interop.links.Tap}.

        @param kinds: by member id; read when bytes pass.
        """
        def tapped(source: str, target: str) -> tuple[Callable[[bytes], None], Callable[[bytes], None]]:
            def sent(data: bytes) -> None:
                for word, name in _WORDS.items():
                    if times := data.count(word):
                        self.counts[f"{name} from {kinds[source]} to {kinds[target]}"] += times

            return sent, lambda _data: None

        return tapped

    def add_files(self, ledger: Path) -> None:
        """Count the files of a directory, and the blanks in them."""
        self.add("data file after the first", _files(ledger / "data") - 1)
        self.add("index file after the first", _files(ledger / "index") - 1)
        self.add("blank at the end of a data file", sum(map(_ends_blank, (ledger / "data").iterdir())))

    def missing(self) -> list[str]:
        """The events of L{NEEDED} that never happened."""
        return [what for what in NEEDED if not self.counts[what]]

    def table(self) -> str:
        """One line for each event, the needed ones first."""
        names = [*NEEDED, *sorted(set(self.counts) - set(NEEDED))]
        return "".join(f"  {self.counts[name]:9d}  {name}\n" for name in names)


def _files(directory: Path) -> int:
    return sum(path.name.isdecimal() for path in directory.iterdir())


def _ends_blank(path: Path) -> bool:
    data, at = path.read_bytes(), 0
    while len(data) - at >= ENTRY_HEADER_SIZE:
        magic, size = ENTRY_HEADER.unpack_from(data, at)[:2]
        if magic == BLANK_MAGIC or size < ENTRY_HEADER_SIZE:
            break
        at += size
    return data[at : at + 4] == b"\xff\xff\xff\xff"
