# -*- test-case-name: tests.node.test_changing -*-
"""
The options of a member that change while it runs: retention, limits of what others may hold, the pace of the
scrub. Rule: the others count from the start on.
"""

from __future__ import annotations

import attrs

from dledger.values.ledger.config import DLedgerConfig

#: What is kept on the disk, and when it is full.
RETENTION = frozenset({
    "file_reserved_hours", "delete_when", "retention_bytes", "disk_full_ratio", "enable_disk_force_clean",
})
LIMITS = frozenset({"max_connections"})
SCRUB = frozenset({"scrub_bytes_per_s"})
RUN_TIME_OPTIONS = RETENTION | LIMITS | SCRUB


def with_changes(config: DLedgerConfig, wanted: DLedgerConfig) -> tuple[DLedgerConfig, frozenset[str]]:
    """
    The options of a running member with those of C{wanted} that may change, and the names of these.

    @raise ValueError: they do not fit together with the others.
    """
    changes = {
        name: getattr(wanted, name) for name in RUN_TIME_OPTIONS
        if getattr(wanted, name) != getattr(config, name)
    }
    return attrs.evolve(config, **changes), frozenset(changes)
