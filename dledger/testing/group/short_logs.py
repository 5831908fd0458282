# -*- test-case-name: tests.sim.test_machines -*-
"""Schedules of members that run a state machine, drop their log after snapshots, and lose directories."""

from __future__ import annotations

import attrs

from dledger.testing.group.schedule import SECONDS, Focus, ScheduleOutcome, run_schedule

#: Small files and snapshots, a small quota, and faults that make members lack entries.
SHORT_LOGS = Focus(
    settings={
        "flush_disk_type": "sync", "mapped_file_size_for_entry_data": 1024,
        "machine_snapshot_entries": 10,
        "machine_keep_entries": 1, "peer_push_quota": 6000, "retention_bytes": 0,
        "enable_disk_force_clean": False, "file_reserved_hours": 0,
    },
    faults=(
        "isolate", "kill", "kill", "wipe", "wipe", "lose_power_inside", "kill_inside", "change_members",
        "pause",
    ),
    pace_s=2.0,
    load={
        "clients": 3, "think_us": 100_000, "appends": 0.5, "submits": 0.5, "queries": 0.2, "poison": 0.01,
        "body_bytes_max": 100,
    },
    group={"has_machines": True, "is_native": True, "hides_wire_version": False},
)

#: The same where acknowledged entries may not be on stable storage, and the power fails: of a minority, or of
#: all machines. (No members change then, so that all may be in doubt at once.)
LOST_POWER = attrs.evolve(
    SHORT_LOGS, settings={**SHORT_LOGS.settings, "flush_disk_type": "async", "flush_file_interval": 400},
    faults=(
        "isolate", "isolate", "kill", "kill", "wipe", "wipe", "cut_power", "cut_power", "cut_power",
        "cut_power", "black_out", "kill_inside", "kill_inside", "pause",
    ),
)


#: Members that come back too late for the log: their machines begin with snapshots of others.
LATE = attrs.evolve(
    SHORT_LOGS,
    settings={
        **SHORT_LOGS.settings, "peer_push_quota": 40_000, "check_point_interval": 1000,
    },
    faults=("outlast", "outlast", "outlast", "wipe_late", "wipe_late", "kill", "transfer", "isolate",
            "change_members", "kill_inside"),
    pace_s=3.0, load={**SHORT_LOGS.load, "think_us": 50_000, "body_bytes_max": 60},
)


def run_machine_schedule(
    seed: int, *, seconds: float = SECONDS, members: int | None = None, wants_all_lines: bool = False
) -> ScheduleOutcome:
    """Run one seed, see L{run_schedule}: two of three flush before they acknowledge, the third does not."""
    focus = LOST_POWER if seed % 3 == 0 else SHORT_LOGS
    return run_schedule(seed, seconds=seconds, members=members, wants_all_lines=wants_all_lines, focus=focus)
