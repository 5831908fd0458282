# -*- test-case-name: tests.storage.test_met_members -*-
"""
C{met}: the other members as this one met them last, so that it notices a directory that was remade, put back
or copied (L{dledger.values.ledger.lineage}).

A text file with a line for each, the id and the lineage; a line that begins with a tab is of an incarnation
that the same member had before. The last line is a seal (L{sealed}), as a damaged line could name another
member. The file is replaced, durably, when one changes. It is a hint: by a file that is not sound nobody was
met, what cannot be written is met again.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.base.disk.file_table import MET
from dledger.base.disk.hints import HintFile, Hints
from dledger.storage.files.properties import is_sealed, sealed
from dledger.values.ledger.lineage import Lineage

#: At most this many members are remembered; the one met first is forgotten.
MET_MAX = 256
#: Earlier incarnations of one member that are remembered, the last ones.
PAST_MAX = 16

_PAST = "\t"


def decode_met(data: bytes) -> dict[str, Lineage]:
    """Member id to lineage; lines that are not sound are left out."""
    met = {}
    for line in data.decode(errors="replace").splitlines():
        member_id, _, text = line.rpartition(" ")
        lineage = Lineage.decode(text)
        if member_id and lineage is not None and not member_id.startswith(_PAST):
            met[member_id] = lineage
    return met


def decode_past(data: bytes) -> dict[str, tuple[Lineage, ...]]:
    """Member id to the last lineage of each incarnation before the present one."""
    past: dict[str, tuple[Lineage, ...]] = {}
    for line in data.decode(errors="replace").splitlines():
        member_id, _, text = line.rpartition(" ")
        lineage = Lineage.decode(text)
        if member_id[1:] and lineage is not None and member_id.startswith(_PAST):
            past[member_id[1:]] = (*past.get(member_id[1:], ()), lineage)[-PAST_MAX:]
    return past


class MetMembers:
    """The file, and what is in it."""

    def __init__(self, hints: Hints, directory: str) -> None:
        """@param directory: of the file, which need not exist."""
        self._file = HintFile(hints, MET, directory)
        data = self._file.read(lambda found: found if is_sealed(found) else None) or b""
        self._met = decode_met(data)
        self._past = decode_past(data)

    @property
    def met(self) -> Mapping[str, Lineage]:
        """Member id to the lineage that it reported last."""
        return self._met

    def was_before(self, member_id: str, incarnation: int) -> bool:
        """Whether the member had this incarnation before the one that it reported last."""
        now = self._met.get(member_id)
        return now is not None and now.incarnation != incarnation and any(
            one.incarnation == incarnation for one in self._past.get(member_id, ())
        )

    def meet(self, member_id: str, lineage: Lineage) -> None:
        """Remember, durably if the disk lets it."""
        before = self._met.get(member_id)
        if before == lineage:
            return
        if before is not None and before.incarnation != lineage.incarnation:
            self._past[member_id] = (*self._past.get(member_id, ()), before)[-PAST_MAX:]
        self._met.pop(member_id, None)
        self._met[member_id] = lineage
        while len(self._met) > MET_MAX:
            forgotten = next(iter(self._met))
            del self._met[forgotten]
            self._past.pop(forgotten, None)
        lines = [f"{one} {lineage.encode()}\n" for one, lineage in self._met.items()]
        lines += [f"{_PAST}{one} {was.encode()}\n" for one, past in self._past.items() for was in past]
        self._file.write(sealed("".join(lines).encode()))
