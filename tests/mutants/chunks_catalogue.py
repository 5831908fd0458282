# -*- test-case-name: tests.sim.test_mutants -*-
"""Mutants of the catch-up by chunks. Of the mutated packages this module knows only their text."""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants.patching import Patch

_HANDLER = "dledger.core.replication.handler"
_DISPATCHER = "dledger.core.replication.dispatcher"
_CUTS = "dledger.storage.store.store_cuts"
_SUMS = "dledger.storage.store.chunk_sums"
_CHECKS = "dledger.storage.files.chunk_checks"

_SMALL: Mapping[str, object] = {
    "push_chunk_bytes": 300, "push_chunk_behind_bytes": 0, "mapped_file_size_for_entry_data": 4096,
}
_LAGGING: Mapping[str, object] = {
    "settings": _SMALL, "faults": ("isolate", "kill", "kill", "pause"), "pace_s": 1.0,
    "load": {"clients": 3, "think_us": 100_000, "appends": 0.9, "body_bytes_max": 60},
}

CHUNK_MUTANTS: tuple[tuple[str, str, tuple[Patch, ...], Mapping[str, object]], ...] = (
    ("chunk-not-summed", "a follower believes the bytes of a chunk: rot on the leader's disk spreads", (
        Patch(_CHECKS, "    if crc32(records) != chunk.records_crc or crc32(units) != chunk.units_crc:",
              "    if False:"),
    ), {"test": "tests.storage.test_chunk_sums.TakingTests.test_rotten_at_the_leader"}),
    ("chunk-of-cut-entries", "a truncated leader sends the checksums of the entries that it has lost", (
        Patch(_CUTS, "        self._sums.cut(keep + 1)\n", ""),
        Patch(_SUMS, " or not _is_of(chunk, records, units):", ":"),
    ), {**_LAGGING, "faults": ("isolate", "isolate", "split", "kill")}),
    ("chunk-not-committed", "a leader pushes chunks of entries that may never be committed", (
        Patch(_DISPATCHER, "if chunk is not None and chunk.last_index <= member.committed_index:",
              "if chunk is not None:"),
        Patch(_HANDLER, "elif isinstance(entries, EntryChunk) and entries.last_index > request.commit_index:",
              "elif False:"),
    ), _LAGGING),
    ("chunk-without-compare", "a follower takes a chunk after an end that was not compared", (
        Patch(_HANDLER, "        if not self._is_in_step_here:\n",
              "        if not (self._is_in_step_here or isinstance(entries, EntryChunk)):\n"),
    ), {"test": "tests.core.test_chunks.FollowerTests.test_not_in_step"}),
    ("chunk-with-configuration", "a configuration entry comes in a chunk, and its follower does not notice", (
        Patch(_SUMS, "        if is_listed or len(terms) > 1 or (", "        if len(terms) > 1 or ("),
        Patch(_CHECKS, "    if configurations_in(marks):", "    if False:"),
    ), {**_LAGGING, "faults": ("change_members", "change_members", "isolate", "kill")}),
    ("chunk-acknowledged-early", "with sync flushing a chunk counts before it is on stable storage", (
        Patch(_HANDLER, "elif not self.member.config.is_sync or index <= self.member.flushed_index:",
              "elif not self.member.config.is_sync or index <= self.member.flushed_index or isinstance("
              "request.entries, EntryChunk):"),
    ), {**_LAGGING, "settings": {**_SMALL, "flush_disk_type": "sync"}}),
    ("chunk-row-comes-back", "checksums of a former tail are sent again after a loss of power", (
        Patch(_SUMS, " or not _is_of(chunk, records, units):", ":"),
    ), {"test": "tests.storage.test_chunk_sums.KeepingTests.test_rows_that_come_back"}),
    ("chunk-row-stays-torn", "who verifies a member finds a damaged file for ever after a loss of power", (
        Patch(_SUMS, "(number := torn_row(", "False and (number := torn_row("),
    ), {"test": "tests.storage.test_chunk_sums.KeepingTests.test_a_start_ends_files_before_torn_rows"}),
    ("chunk-row-overlaps", "a row is written after one of a former tail that it overlaps", (
        Patch(_SUMS, "                rows.pop()\n            self._write(base, len(rows)",
              "                break\n            self._write(base, len(rows)"),
    ), {"test": "tests.storage.test_chunk_sums.KeepingTests.test_rows_of_a_former_tail_give_way"}),
    ("chunk-refused-for-ever", "a leader pushes the chunk again that its follower has refused", (
        Patch(_DISPATCHER, "        self._chunks_from = pushed.last_index + 1\n", ""),
    ), {"test": "tests.core.test_chunks.LeaderTests.test_a_refused_chunk_is_pushed_entry_by_entry"}),
    ("chunk-units-unchecked", "a follower believes the index units of a chunk", (
        Patch(_CHECKS, "    _check_units(chunk, position)\n", ""),
    ), {"test": "tests.storage.test_chunk_sums.TakingTests.test_units_must_fit_their_records"}),
)
