# -*- test-case-name: tests.sim.test_machines -*-
"""Schedules of members that run a state machine, drop their log behind snapshots, and lose directories."""

from __future__ import annotations

from dledger.testing.group.schedule import Focus

#: Small files and snapshots, a small quota, and faults that make members lack entries.
SHORT_LOGS = Focus(
    settings={
        "store_type": "file", "flush_disk_type": "sync", "mapped_file_size_for_entry_data": 1024,
        "machine_snapshot_entries": 10,
        "machine_keep_entries": 1, "peer_push_quota": 6000, "retention_bytes": 0,
        "enable_disk_force_clean": False, "file_reserved_hours": 0,
    },
    faults=(
        "isolate", "kill", "kill", "wipe", "wipe", "lose_power_inside", "kill_inside", "change_members",
        "pause",
    ),
    pace_s=2.0,
    load={"clients": 3, "think_us": 100_000, "appends": 0.9, "body_bytes_max": 100},
    group={"has_machines": True, "is_native": True, "hides_wire_version": False},
)
