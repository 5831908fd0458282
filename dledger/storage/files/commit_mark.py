# -*- test-case-name: tests.storage.test_commit_mark -*-
"""
The commit mark: a small file beside Java's files that records how far the ledger is known to be good.

It has two slots, see L{dledger.base.disk.two_slots}. This module knows nothing of ledgers. An absent file
(Java's directory) is no error; damage in both slots is.
"""

from __future__ import annotations

import attrs
from construct import Int32sb, Int64sb, Struct

from dledger.base.disk.two_slots import SlotFile, SlotForm

COMMIT_MARK_NAME = "commitmark"

COMMIT_MARK_DECLARATION = Struct(
    "magic" / Int32sb,
    "version" / Int32sb,
    "generation" / Int64sb,  # grows with every write
    "committed_index" / Int64sb,  # never above end_index
    "end_index" / Int64sb,  # last entry known to be on stable storage
    "end_term" / Int64sb,
    "end_position" / Int64sb,  # stream offset after that entry
    "begin_position" / Int64sb,  # stream offset of the first data file; -1: not recorded
    "begin_crc" / Int64sb,  # CRC-32 of the 48-byte header of the first record
    "index_end_position" / Int64sb,  # index units of records below this offset are on stable storage
    "repair_end_index" / Int64sb,  # -1: healthy
    "damaged_index" / Int64sb,  # an entry that a read found damaged; -1: none
    "data_file_size" / Int64sb,
    "index_file_size" / Int64sb,
    "clean" / Int32sb,  # 1: closed in order, and nothing was written since
)


@attrs.frozen(kw_only=True)
class CommitMark:
    """Content of a slot; fields as in the declaration. Indexes are inclusive, -1 for none."""

    committed_index: int = -1
    end_index: int = -1
    end_term: int = -1
    end_position: int = 0
    begin_position: int = -1
    begin_crc: int = 0
    index_end_position: int = 0
    repair_end_index: int = -1
    damaged_index: int = -1
    data_file_size: int
    index_file_size: int
    clean: bool = False

    @property
    def recorded_end_index(self) -> int:
        """The ledger must reach this index; if it does not, entries were lost."""
        return max(self.end_index, self.committed_index)

    @property
    def settled_position(self) -> int:
        """
        The files must reach this stream offset; 0 if no entry is recorded. (Then C{end_position} is where a
        ledger begins that starts anew, and files of the old one may still be before it.)
        """
        return self.end_position if self.end_index >= 0 else 0


_FORM = SlotForm(
    CommitMark, COMMIT_MARK_DECLARATION, magic=0x444C434D, version=1,  # "DLCM"
    unsound="neither slot of the commit mark is sound, so it is unknown how far this member's "
    "ledger was good. Restore the member from its peers (empty its directory except currterm); or "
    "remove this one file to open the ledger as it is, accepting that a lost tail goes unnoticed",
)
encode_mark = _FORM.encode
decode_mark = _FORM.decode
read_mark = _FORM.read
mark_damage = _FORM.damage


def is_superseded(mark: CommitMark, checkpoint: tuple[int, int] | None) -> bool:
    """
    Whether another program (Java) has used the directory since: we closed it in order, and the
    checkpoint differs from the one that we wrote then.

    @param checkpoint: C{committedIndex} and C{endIndex} (-2 if absent); None without a checkpoint.
    """
    if not mark.clean or checkpoint is None or checkpoint[1] == -2:
        return False
    return checkpoint != (mark.committed_index, mark.end_index)


class MarkFile(SlotFile[CommitMark]):
    """The open commit mark."""

    form = _FORM
