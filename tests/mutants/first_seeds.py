# -*- test-case-name: tests.sim.test_mutants -*-
"""
The first schedule of mutants whose search takes long: one that is known to notice it.

When the draws of the schedules move, a mutant may be noticed later, or not within its seconds; then search
from another seed on, and write the one that was found here.
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST_SEEDS: Mapping[str, int] = {
    "chunk-of-cut-entries": 1036,
    "cut-change-stays": 12,
    "entries-of-another-term-counted": 37,
    "flush-outlives-truncation": 32,
    "ha-first-report-vouches": 56,
    "ha-mended-in-the-cache": 24,
    "ha-reports-all-it-holds": 8,
    "old-connection-kept": 1008,
    "other-entry-taken-for-own": 18,
    "producers-not-read-at-start": 20,
    "quorum-of-the-old-list": 32,
    "read-index-ignored": 28,
    "repeat-told-before-commit": 7,
    "snapshot-index-of-later-state": 3,
    "tail-not-zeroed": 1025,
    "term-file-believed": 11,
    "truncate-below-commit": 12,
    "two-changes-at-once": 20,
    "vote-forgotten": 11,
}
