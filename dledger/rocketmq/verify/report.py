# -*- test-case-name: tests.broker.verify.test_store_check -*-
"""The result of a verification."""

from __future__ import annotations

from collections.abc import Callable

import attrs

#: Findings beyond this number are counted, not kept.
FINDINGS_MAX = 1000

#: Called repeatedly with the bytes checked and the bytes to check.
Progress = Callable[[int, int], None]


@attrs.frozen(kw_only=True)
class StoreFinding:
    """
    A problem in a store.

    @ivar file: path of the file, or of its directory.
    @ivar offset: byte of the log, or index of a unit; -1 where there is none.
    @ivar sentence: what is wrong. @ivar mend: what mends it.
    """

    file: str
    offset: int = -1
    sentence: str
    mend: str


@attrs.define(kw_only=True)
class StoreReport:
    """
    Result of a verification.

    @ivar log: C{commit log}, or C{raft log}: then the log itself is a member's, and is not read here.
    @ivar findings: at most L{FINDINGS_MAX} findings; C{findings_count} counts all.
    @ivar messages, log_bytes: sound records, and the bytes of the log that were read: without holes of sparse
        files.
    @ivar begin_offset, end_offset: of the log, in bytes; the end is after the last sound record.
    @ivar known_end_offset: records before it are on stable storage, by the mark; -1: not known.
    @ivar queues, units: consume queues, and their units of messages in the log.
    @ivar undispatched: messages at the end of the log that no queue has yet: the next start puts them there.
    @ivar repeated: messages of the log that a queue has at the index of an earlier one; nobody lacks them.
    @ivar index_files, index_entries: of the index by key.
    @ivar damaged: where bytes of the log are damaged, and where that ends; at most L{FINDINGS_MAX}.
    @ivar is_clean_close: whether the store was closed in order: no C{abort} file.
    """

    path: str
    log: str = "commit log"
    findings: list[StoreFinding] = attrs.Factory(list)
    findings_count: int = 0
    messages: int = 0
    log_bytes: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    known_end_offset: int = -1
    queues: int = 0
    units: int = 0
    undispatched: int = 0
    repeated: int = 0
    index_files: int = 0
    index_entries: int = 0
    is_clean_close: bool = True
    damaged: list[tuple[int, int]] = attrs.Factory(list)

    @property
    def is_clean(self) -> bool:
        """Whether there are no findings."""
        return self.findings_count == 0

    def lost(self, begin: int, end: int) -> None:
        """Bytes of the log are damaged."""
        if len(self.damaged) < FINDINGS_MAX:
            self.damaged.append((begin, end))

    def is_lost(self, offset: int) -> bool:
        """Whether an offset of the log is in damage."""
        return any(begin <= offset < end for begin, end in self.damaged)

    def add(self, file: str, sentence: str, mend: str, *, offset: int = -1) -> None:
        """Add a finding."""
        self.findings_count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(StoreFinding(file=file, offset=offset, sentence=sentence, mend=mend))
