# -*- test-case-name: tests.base.test_hints,tests.damage.test_file_table -*-
"""
The table of all files of our directories, and the worth of each, which decides the outcome of its failures.

L{Worth} has three columns. L{dledger.base.disk.hints} writes and reads every hint, and takes no file of
another column. The page docs/reference.md has the table; L{dledger.storage.start.verify} and
L{dledger.rocketmq.verify.store_check} have a check for each row, and tests.damage plays every fault.

Names have parts in angle brackets: C{position}, C{index}, C{term} and C{time} are digits, others any name.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cached_property

import attrs

_DIGITS = frozenset(("position", "index", "term", "time", "number", "queue", "entry"))


class Worth(Enum):
    """
    What a file is worth. The value is the sentence of the page.

    A write means any change of a file: write, rename, fsync.
    """

    TRUTH = (
        "nothing else has it. If it is damaged or cannot be read, the start, or what needs it, is refused "
        "with a sentence that names the file and the way out. After a failed write nothing that needs it "
        "succeeds: the process ends, or refuses and tries again; without room it refuses"
    )
    COPY = (
        "the same is elsewhere. If one of both is lost or damaged, the other is used, and the lost one made "
        "again from it. A failed write is one of the truth"
    )
    HINT = (
        "it is made again, and nothing is lost with it. No failure ends a process or refuses a start: the "
        "log has a line (`hint`), and it is written again later, at the latest by the next start"
    )


@attrs.frozen
class FileRow:
    """
    A row of the table.

    @ivar name: path below the directory.
    @ivar holds: what is in it, for people.
    @ivar without: the way out without it: what a hint is made from, where the second copy is, what to do.
    @ivar is_java: Java's member, or RocketMQ, has it, too.
    @ivar unproved: the part in which a flipped bit is not noticed, as RocketMQ's format has no checksum of
        it; empty: each is found.
    """

    name: str
    worth: Worth
    holds: str
    without: str
    is_java: bool = attrs.field(default=False, kw_only=True)
    unproved: str = attrs.field(default="", kw_only=True)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = re.split(r"<([a-z-]+)>", self.name)
        return re.compile("".join(
            re.escape(part) if not number % 2 else r"\d+" if part in _DIGITS else r"[^/]+"
            for number, part in enumerate(parts)
        ))

    def covers(self, name: str) -> bool:
        """Whether this is the row of a file, by its path below the directory."""
        return self._pattern.fullmatch(name) is not None


def row_of(table: tuple[FileRow, ...], name: str) -> FileRow | None:
    """The row of a file; None: the table has none. C{.tmp} of a file is the start of its next content."""
    return next((row for row in table if row.covers(name.removesuffix(".tmp"))), None)


LEDGER_CHECKPOINT = FileRow(
    "checkpoint", Worth.HINT, "committed index, end", "`commitmark` has both", is_java=True)
HOLES = FileRow(
    "holes", Worth.HINT, "damaged entries between sound ones; see [Repairing](operations.md#repairing)",
    "the next start looks at every record")
CHUNKS = FileRow(
    "chunks/<position>", Worth.HINT,
    "[checksums](wire-format.md#chunks) of the parts of a data file", "entries are pushed one by one")
MET = FileRow(
    "met", Worth.HINT, "incarnations of the other members", "they are met again")
ARCHIVED = FileRow(
    "archived", Worth.HINT, "[how far](operations.md#archive) the log is archived",
    "nothing counts as archived until the next run writes it")

MEMBER_FILES = (
    FileRow("data/<position>", Worth.TRUTH,
            "the records; the name is the log offset of the first byte, the length always "
            "`mapped_file_size_for_entry_data`. Sparse: copy with `cp --sparse=always`",
            "a damaged entry is fetched [from another member](operations.md#repairing); a missing file "
            "refuses the start", is_java=True),
    FileRow("index/<position>", Worth.COPY, "32 bytes for each index; sparse", "made from `data`",
            is_java=True),
    FileRow("termvote", Worth.TRUTH, "term and vote with checksums; see [W4](divergence.md)", "`currterm`"),
    FileRow("currterm", Worth.COPY, "term and vote", "`termvote`", is_java=True),
    FileRow("commitmark", Worth.TRUTH,
            "the end known to be on stable storage, committed index, file sizes, repairing mark, clean flag; "
            "in two slots", "remove it to open the ledger as it is: a lost tail goes unnoticed"),
    FileRow("identity", Worth.TRUTH,
            "group, member id, [start list and id of the group](operations.md#who-belongs-to-a-group), boot, "
            "[unsure](operations.md#loss-of-power-with-async), [incarnation, starts]"
            "(operations.md#directories-that-were-remade-put-back-or-copied); in two slots. Another group, "
            "member or list is refused",
            "remove it: a directory with a ledger is adopted"),
    FileRow("members", Worth.TRUTH,
            "the members that the log shows, once they "
            "[changed](operations.md#changing-the-members-of-a-running-group), or with `join=true`",
            "`members.copy`; without both the start is refused"),
    FileRow("members.copy", Worth.COPY, "the same", "`members`"),
    FileRow("groupstate", Worth.COPY, "producers and readers; in two slots",
            "the log from entry 0, or another member"),
    FileRow("machine/snapshot-<index>-<term>", Worth.COPY,
            "the last two [snapshots](machines.md#snapshots)", "another snapshot, the log, another member"),
    FileRow("machine/skipping-<index>-<term>", Worth.TRUTH,
            "an [ordered skip](machines.md#an-entry-that-no-machine-can-apply), with the snapshot before it; "
            "empty", "the skip is ordered again"),
    FileRow("machine/unfinished", Worth.HINT, "a snapshot that is being written",
            "removed by the next start"),
    FileRow("machine/incoming", Worth.HINT, "a snapshot that is received", "removed by the next start"),
    LEDGER_CHECKPOINT, HOLES, CHUNKS, MET, ARCHIVED,
    FileRow("data.set-aside/<name>", Worth.TRUTH,
            "`<name>.set-aside-<term>`: data files, and copies of parts "
            "(`<name>.from-<offset>.set-aside-<term>`), that left the ledger", "nobody reads it but you"),
    FileRow("lock", Worth.TRUTH, "held by the running member; empty", "made by the next start"),
)

BROKER_CHECKPOINT = FileRow(
    "checkpoint", Worth.HINT, "times up to which log, queues and index are on stable storage",
    "the log is read from its begin, or by `commitlogmark`", is_java=True,
    unproved="the times, with a raft log")
QUEUE_LIST = FileRow(
    "consumequeue.list", Worth.HINT, "the consume queues, to notice lost ones",
    "written anew at the next flush")
INDEXED = FileRow(
    "indexed", Worth.HINT, "up to where `index` is on stable storage", "`index` itself says where it ends")
TABLES_APPLIED = FileRow(
    "applied", Worth.HINT, "with a raft log: up to where `config` holds its metadata, and checksums of "
    "its files", "all metadata in the log are read again")
DISPATCHED = FileRow(
    "dispatched", Worth.HINT, "with a raft log: up to where the queues are complete",
    "all queues are built again")

_STORE_FILES = (
    FileRow("consumequeue/<topic>/<queue>/<position>", Worth.COPY, "20 bytes for each message",
            "made from the log", is_java=True),
    FileRow("index/<time>", Worth.HINT, "the index by key", "made from the log", is_java=True,
            unproved="the first entry, which is not used"),
    BROKER_CHECKPOINT, QUEUE_LIST, INDEXED,
    FileRow("config/<table>.json", Worth.TRUTH,
            "topics, groups, offsets, changed options. A failed write is tried again",
            "its `.bak`; a slave, the master or a backup; or remove both to begin without", is_java=True,
            unproved="names and numbers, without a raft log"),
    FileRow("config/<table>.json.bak", Worth.COPY, "its content before", "its file", is_java=True,
            unproved="names and numbers"),
    FileRow("abort", Worth.TRUTH, "the store is open, or was when its process ended",
            "made by the next start", is_java=True),
    FileRow("lock", Worth.TRUTH, "held by the running broker; empty", "made by the next start", is_java=True),
)

BROKER_FILES = (
    FileRow("commitlog/<position>", Worth.TRUTH, "the messages",
            "a damaged record is fetched from the [other broker](ha.md); a missing file refuses the start",
            is_java=True, unproved="all but the bodies"),
    FileRow("commitlog.set-aside-<number>/<name>", Worth.TRUTH, "files that left the log",
            "nobody reads it but you"),
    FileRow("commitlogmark", Worth.TRUTH, "the end known to be on stable storage; in two slots",
            "remove it to open the store as RocketMQ would"),
    *_STORE_FILES,
)

RAFT_BROKER_FILES = (
    DISPATCHED, attrs.evolve(TABLES_APPLIED, name=f"config/{TABLES_APPLIED.name}"), *_STORE_FILES,
)

NAME_SERVER_FILES = (
    FileRow("kvConfig.json", Worth.TRUTH, "the KV configuration (`kv_config_path`)",
            "put a copy there, or remove it to begin without", is_java=True, unproved="names and values"),
)
