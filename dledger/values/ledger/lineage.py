# -*- test-case-name: tests.base.test_lineage -*-
"""
Which directory a member runs on, and which process runs there: what members say about themselves, and
remember about each other.

A directory has an I{incarnation}: random, made with it, and made anew when it turns out to be an older copy.
It counts its starts. A process has a I{run}, random, too. So a directory that was remade, put back from a
copy, or started twice differs from the one that another member has met before::

    another incarnation, and nobody filled it    it was made anew, and votes as if nothing were lost
    fewer starts                                 it is an older copy
    as many starts, another run                  it was copied, and both copies were started
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

import attrs

from protocols.wire.checksums import crc32

#: Bits of an incarnation and of a run.
LINEAGE_BITS = 63
_STARTS_MAX = (1 << 63) - 1
#: Characters of the longest text.
LINEAGE_TEXT_MAX = 80


class Standing(StrEnum):
    """
    Why a member may trust what its directory holds: C{JOINING}: it may not yet; C{PROVEN}: it was joining in
    this incarnation, and has had all that a leader had; C{TRUSTED}: nobody has proved it: it was there from
    the beginning, or an operator says so.
    """

    JOINING = "joining"
    PROVEN = "proven"
    TRUSTED = "trusted"


class Fault(StrEnum):
    """What is wrong with a directory that was met before."""

    REMADE = "its directory was made anew, and nothing has filled it since"
    OLDER = "its directory is an older copy"
    COPIED = "its directory is a copy of one that was started elsewhere"


@attrs.frozen(kw_only=True)
class Lineage:
    """
    @ivar incarnation, run: C{LINEAGE_BITS} bits.
    @ivar starts: how often the directory was started, this process included; 1 at least.
    """

    incarnation: int
    starts: int
    run: int
    standing: Standing

    def encode(self) -> str:
        """As text, which ends with a checksum: neither JSON nor the file of those met has one."""
        text = f"{self.incarnation:016x}.{self.starts}.{self.run:016x}.{self.standing}"
        return f"{text}.{crc32(text.encode()):08x}"

    @classmethod
    def decode(cls, text: str) -> Self | None:
        """None if C{text} is not a lineage."""
        head, _, checksum = text.rpartition(".")
        parts = head.split(".")
        if len(text) > LINEAGE_TEXT_MAX or f"{crc32(head.encode()):08x}" != checksum or len(parts) != 4:
            return None
        try:
            found = cls(incarnation=int(parts[0], 16), starts=int(parts[1]), run=int(parts[2], 16),
                        standing=Standing(parts[3]))
        except ValueError:
            return None
        is_bounded = not (found.incarnation | found.run) >> LINEAGE_BITS and 1 <= found.starts <= _STARTS_MAX
        return found if is_bounded and found.encode() == text else None

    def fault(self, met: Lineage | None) -> Fault | None:
        """What is wrong with this one, if C{met} is the same member as somebody remembers it."""
        if met is None:
            return None
        if met.incarnation != self.incarnation:
            return Fault.REMADE if self.standing is Standing.TRUSTED else None
        if self.starts < met.starts:
            return Fault.OLDER
        return Fault.COPIED if self.starts == met.starts and self.run != met.run else None
