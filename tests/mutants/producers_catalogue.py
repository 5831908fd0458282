# -*- test-case-name: tests.sim.test_mutants -*-
"""
Mutants of appends that are in the log once: each makes an entry come twice, go, or be reported too early. Of
the mutated packages this module knows only their text.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants.patching import Patch

_TABLE = "dledger.ledger.producers"
_ORIGINS = "dledger.core.replication.origins"
_LIST = "dledger.storage.store.producer_list"

_EXACT: Mapping[str, object] = {"exact": 1.0, "appends": 0.9, "bodies_max": 3, "think_us": 200_000}

PRODUCER_MUTANTS: tuple[tuple[str, str, tuple[Patch, ...], Mapping[str, object]], ...] = (
    ("producers-not-read-at-start", "a start does not read the producer entries of the log", (
        Patch(_LIST, "            while index <= ledger.end_index:\n", "            while False:\n"),
    ), {
        "load": {**_EXACT, "patience_us": 20_000_000},
        "faults": ("cut_power_everywhere", "break_late", "kill"),
        "settings": {"flush_disk_type": "sync"}, "pace_s": 0.8,
    }),
    ("pushed-producers-not-noted", "a follower does not notice the producer entries of its leader", (
        Patch(_LIST, "term, told in announced}\n", "term, told in announced[:0]}\n"),
    ), {"load": _EXACT, "faults": ("cut_client", "transfer", "break_late")}),
    ("repeat-told-before-commit", "an entry that is not committed is the answer to a repeated append", (
        Patch(_ORIGINS, "        if index + found - 1 > member.committed_index:\n", "        if False:\n"),
    ), {"load": _EXACT, "faults": ("isolate", "cut_client", "split", "kill")}),
    ("entries-of-another-term-counted", "a run of a producer goes on where a later leader wrote", (
        Patch(_LIST, "                table.superseded(index)\n", "                pass\n"),
    ), {"load": _EXACT, "faults": ("isolate", "cut_client", "split", "kill", "break_late")}),
    ("announced-forgotten-at-cut", "a cut forgets what the producer entry before it announces", (
        Patch(_TABLE, "runs.told_at and runs.told_at[-1] >= first_gone",
              "runs.indexes and runs.indexes[-1] >= first_gone"),
    ), {"test": "tests.base.test_producers.JudgeTests.test_cut"}),
    ("newest-producers-forgotten", "a start puts the producers of the file after those of the log", (
        Patch(_LIST, "        for run in saved:\n", "        for run in ():\n"),
        Patch(_LIST, "        self.table = table\n",
              "        for run in saved:\n            if run.producer not in table._runs:\n"
              "                table.note(run)\n        self.table = table\n"),
    ), {"test": "tests.storage.test_producer_list.StartTests.test_histories_depend_on_the_log"}),
    ("cut-producers-not-recalled", "a cut does not bring back whom the cut entries made the table forget", (
        Patch(_TABLE, "        while len(self.spare) > len(uncommitted):\n", "        while self.spare:\n"),
    ), {"test": "tests.base.test_producers.JudgeTests.test_cut_recalls"}),
    ("repeats-taken-as-new", "a leader does not look for the body of a producer in its log", (
        Patch(_ORIGINS, "        if known is Known.NEW:\n",
              "        if known in (Known.NEW, Known.REPEATED):\n"),
    ), {"load": _EXACT, "faults": ("cut_client", "break_late")}),
    ("open-run-not-ended", "a body without a producer comes into the open run of one", (
        Patch(_ORIGINS, "        self.is_continued = False\n        if self.at < 0", "        if False"),
    ), {"load": {**_EXACT, "exact": 0.6}, "faults": ("cut_client", "transfer")}),
    ("open-run-outlives-members", "an open run goes on after a configuration entry", (
        Patch(_LIST, "sorted({*changes, *entries, *listed})", "sorted({*changes, *entries})"),
    ), {"test": "tests.storage.test_producer_list.StartTests.test_histories_depend_on_the_log"}),
    ("open-run-closed-in-file", "a start knows an open run only as far as the file has it", (
        Patch(_TABLE, "run = run._replace(entries=OPEN_ENTRIES)", "run = run._replace(entries=end_index)"),
    ), {"test": "tests.base.test_producers.OpenTests.test_in_the_file"}),
    ("gaps-taken", "a body of a producer is taken though the one before is missing", (
        Patch(_TABLE, "Known.NEW if sequence == last + 1 else Known.GAP", "Known.NEW"),
    ), {"test": "tests.base.test_producers.JudgeTests.test_gap"}),
)
