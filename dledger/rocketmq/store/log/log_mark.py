# -*- test-case-name: tests.broker.store.test_log_mark -*-
"""
The log mark: a small file of ours beside RocketMQ's that records how much of a commit log is known to be
good.

RocketMQ finds the end of its log by parsing, with a checksum that covers bodies only; a record whose
properties were cut by a crash passes, and a slave that resumes after it differs from its master for
ever. So this file records the end of the last record that reached stable storage.

A slave that found records by parsing after a crash leaves the mark before them until they are compared with
the master's: no checksum covers all of a record.

Two slots, see L{dledger.base.disk.two_slots}.

Rule: the mark is trusted only if no other program has opened the store since. RocketMQ rewrites
C{checkpoint} when it closes a store, so the mark holds the checksum of our last checkpoint (and, as the two
files cannot change atomically, of the one before).
"""

from __future__ import annotations

import attrs
from construct import Int32sb, Int64sb, Struct

from dledger.base.disk.two_slots import SlotFile, SlotForm
from protocols.wire.checksums import crc32

LOG_MARK_NAME = "commitlogmark"

LOG_MARK_DECLARATION = Struct(
    "magic" / Int32sb,
    "version" / Int32sb,
    "generation" / Int64sb,  # grows with every write
    "end_offset" / Int64sb,  # end of a record; every byte before it is on stable storage
    "dispatched_offset" / Int64sb,  # consume queue units of all records before it are on stable storage
    "log_file_size" / Int64sb,
    "queue_file_size" / Int64sb,
    "checkpoint_crc" / Int64sb,  # CRC-32 of the checkpoint that was or will be written; -1: none
    "previous_checkpoint_crc" / Int64sb,  # of the one before
    "clean" / Int32sb,  # 1: closed in order, nothing was written since
    "begin_offset" / Int64sb,  # the log begins here or, if an expiry was cut short, in an earlier file
)


@attrs.frozen(kw_only=True)
class LogMark:
    """The content of a slot; fields as in the declaration. A C{begin_offset} of -1 is not known."""

    end_offset: int = 0
    dispatched_offset: int = 0
    log_file_size: int
    queue_file_size: int
    checkpoint_crc: int = -1
    previous_checkpoint_crc: int = -1
    clean: bool = False
    begin_offset: int = -1

    def fits(self, checkpoint: bytes | None, *, is_aborted: bool) -> bool:
        """
        Whether no other program has opened the store since the mark was written.

        @param checkpoint: content of the file, None if it is absent.
        @param is_aborted: the abort file exists.
        """
        # We keep the abort file while a store is open: if it is gone, another program has removed it.
        if not self.clean and not is_aborted:
            return False
        found = -1 if checkpoint is None else crc32(checkpoint)
        return found in (self.checkpoint_crc, self.previous_checkpoint_crc)


_FORM = SlotForm(
    LogMark, LOG_MARK_DECLARATION, magic=0x444C484D, version=1,  # "DLHM"
    unsound="neither slot of the log mark is sound, so it is not known how far this commit log was "
    "good. Remove this one file to open the store as RocketMQ would: by parsing, which does not "
    "notice damage in topics and properties",
)
encode_log_mark = _FORM.encode
decode_log_mark = _FORM.decode
read_log_mark = _FORM.read
log_mark_damage = _FORM.damage


class LogMarkFile(SlotFile[LogMark]):
    """The open file."""

    form = _FORM
