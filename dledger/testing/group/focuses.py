# -*- test-case-name: tests.sim.test_focuses -*-
"""
Schedules with a bias: each focus has faults and a load that meet in one corner of the product.

Half of the seeds of a run draw one, by weight; the others keep the seed's own mix, which comes to each corner
seldom. A focus overrides a few of the seed's options; the others stay drawn.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import attrs

from dledger.testing.group.schedule import (
    EVERYTHING,
    SECONDS,
    Focus,
    ScheduleOutcome,
    run_schedule,
)
from dledger.testing.group.short_logs import LATE, LOST_POWER, SHORT_LOGS

#: Share of the seeds that draw a focus.
FOCUSED = 0.5
#: Share of all seeds that draw L{LAST}, before that: so the draws of the other ones are those without it.
LAST_FOCUSED, LAST = 0.04, "wiped-members-and-many-producers"

_ASYNC: Mapping[str, object] = {"flush_disk_type": "async"}
_SYNC: Mapping[str, object] = {"flush_disk_type": "sync"}
_MUCH: Mapping[str, object] = {"clients": 3, "think_us": 80_000, "appends": 0.9}
_OURS: Mapping[str, object] = {"is_native": True, "hides_wire_version": False}

#: Weight and focus by name.
FOCUSES: Mapping[str, tuple[float, Focus]] = {
    "elections-without-a-minority": (3, Focus(
        faults=("isolate", "split", "split", "heal_slowly", "depose", "transfer"), pace_s=1.0,
    )),
    "former-leaders-of-five": (3, Focus(
        settings=_ASYNC, faults=("isolate", "heal_slowly", "kill", "pause", "break_late"), pace_s=1.2,
        load=_MUCH, group={"members": 5},
    )),
    "groups-of-seven": (1, Focus(
        faults=("split", "split", "isolate", "kill", "kill_all", "transfer"), pace_s=1.2,
        group={"members": 7},
    )),
    "changes-of-members-given-again": (3, Focus(
        faults=("change_members", "change_members", "change_members", "isolate", "cut_client", "kill"),
        pace_s=0.8, load={"wander": 0.3}, group=_OURS,
    )),
    "changes-of-members-without-a-leader": (2, Focus(
        faults=("change_members", "change_members", "transfer", "depose", "heal_slowly"), pace_s=0.6,
        group=_OURS,
    )),
    "changes-of-members-that-are-cut": (2, Focus(
        faults=("change_apart", "change_apart", "change_members", "kill"), pace_s=2.0,
        load={"clients": 1, "think_us": 1_500_000}, group={**_OURS, "members": 3},
    )),
    "appends-that-share-a-turn": (2, Focus(
        faults=("transfer", "isolate", "pause", "kill"), pace_s=2.0,
        load={"clients": 8, "think_us": 150_000, "appends": 0.9, "bodies_max": 4},
        group={**_OURS, "turn_us": 60_000},
    )),
    "repeats-over-a-change-of-leader": (3, Focus(
        faults=("transfer", "transfer", "kill", "cut_client", "break_late", "twice"), pace_s=0.7,
        load={**_MUCH, "exact": 1.0, "single": 0.3, "bodies_max": 12},
    )),
    "conditions-over-a-change-of-leader": (2, Focus(
        faults=("transfer", "kill", "cut_client", "isolate", "twice"), pace_s=0.8,
        load={**_MUCH, "conditions": 1.0, "bodies_max": 1},
    )),
    "conditions-among-producers": (1, Focus(
        faults=("transfer", "kill", "cut_client", "isolate", "slow_disk"), pace_s=1.0,
        load={**_MUCH, "clients": 5, "think_us": 20_000, "exact": 0.6, "single": 0.2, "conditions": 0.6,
              "bodies_max": 1},
    )),
    "power-between-writes": (3, Focus(
        settings=_SYNC, faults=("lose_power_inside", "lose_power_inside", "kill_inside", "cut_power",
                                "cut_power_everywhere"), pace_s=0.8, load=_MUCH,
    )),
    "power-of-a-minority": (2, Focus(
        settings={**_ASYNC, "flush_file_interval": 400},
        faults=("cut_power", "cut_power", "kill_inside", "isolate", "transfer"), pace_s=1.0, load=_MUCH,
    )),
    "kills-between-writes": (2, Focus(
        faults=("kill_inside", "kill_inside", "kill_all", "stop", "use_disk"), pace_s=0.7, load=_MUCH,
    )),
    "late-and-repeated-frames": (3, Focus(
        faults=("break_late", "break_late", "twice", "spikes", "break", "heal_slowly"), pace_s=0.5,
        load=_MUCH,
    )),
    "pushes-out-of-order": (3, Focus(
        settings={"max_batch_push_count": 2, "max_inflight_pushes": 64, "max_queued_pushes": 8},
        faults=("jumble", "jumble", "jumble", "isolate", "transfer", "kill", "pause"), pace_s=0.6, load=_MUCH,
    )),
    "frames-by-hand": (2, Focus(
        faults=("speak", "speak", "transfer", "break", "isolate"), pace_s=0.6, group=_OURS,
    )),
    "reads-before-the-leader-is-ready": (3, Focus(
        faults=("transfer", "kill", "depose", "isolate", "cut_power"), pace_s=0.7,
        load={"clients": 3, "think_us": 60_000, "appends": 0.4, "gets": 2.0, "wander": 0.5},
        settings=_ASYNC,
    )),
    "requests-of-strangers": (2, Focus(
        faults=("ask", "ask", "ask", "speak", "transfer", "kill", "isolate"), pace_s=0.3, load=_MUCH,
    )),
    "crowds": (1, Focus(
        settings={"max_connections": 8, "max_pending_reads": 8, "mapped_file_size_for_entry_data": 1024},
        faults=("crowd", "crowd", "crowd", "transfer", "kill", "isolate", "cut_client"), pace_s=0.7,
        load={"clients": 3, "think_us": 200_000, "follows": 0.5}, group=_OURS,
    )),
    "programs-inside-members": (2, Focus(
        faults=("call_inside", "call_inside", "call_inside", "call_inside", "call_inside", "transfer", "kill",
                "isolate", "pause"),
        pace_s=0.2, load=_MUCH,
    )),
    "slow-disks": (2, Focus(
        settings=_SYNC, faults=("slow_disk", "slow_disk", "hang_fsync", "disk_error", "transfer"), pace_s=1.0,
        load=_MUCH, group={"flush_us": 20_000},
    )),
    "cuts-during-slow-flushes": (5, Focus(
        settings={**_SYNC, "max_batch_push_count": 2, "max_inflight_pushes": 2},
        faults=("depose", "depose", "depose", "stop", "stop", "isolate"), pace_s=2.0,
        load={**_MUCH, "exact": 0.7, "single": 0.3, "bodies_max": 12}, group={**_OURS, "flush_us": 500_000},
    )),
    "full-disks": (2, Focus(
        faults=("fill_disk", "fill_disk", "use_disk", "kill", "transfer", "few_descriptors"), pace_s=1.0,
        load=_MUCH,
    )),
    "long-batches": (2, Focus(
        settings={"push_chunk_bytes": 200, "push_chunk_behind_bytes": 0, "max_batch_push_count": 1000},
        faults=("isolate", "pause", "break", "kill", "transfer"), pace_s=1.0,
        load={**_MUCH, "bodies_max": 40}, group=_OURS,
    )),
    "clocks-and-pauses": (2, Focus(
        faults=("jump_clock", "suspend", "suspend", "pause", "starve"), pace_s=0.8,
        load={"gets": 1.0, "wander": 0.3},
    )),
    "rot-and-repair": (3, Focus(
        settings={"scrub_bytes_per_s": 200_000, "scrub_pause_ms": 50},
        faults=("rot", "rot", "damage", "kill", "isolate", "stop"), pace_s=0.8,
    )),
    "retention": (2, Focus(
        settings={"mapped_file_size_for_entry_data": 1024, "retention_bytes": 4096},
        faults=("pause", "isolate", "kill", "jump_clock", "wipe"), pace_s=1.0,
        load={**_MUCH, "body_bytes_max": 100},
    )),
    "lost-directories": (2, Focus(
        settings=_SYNC, faults=("wipe", "exchange", "copy_back", "misconfigure", "kill", "limp"), pace_s=1.5,
    )),
    "copies-of-a-running-group": (2, Focus(
        settings={**_SYNC, "mapped_file_size_for_entry_data": 1024},
        faults=("keep", "keep", "keep", "restore", "kill", "isolate", "stop", "transfer", "rot"), pace_s=0.6,
        load={**_MUCH, "bodies_max": 3},
    )),
    "copies-and-slips": (2, Focus(
        settings={**_SYNC, "mapped_file_size_for_entry_data": 1024},
        faults=("keep", "keep", "keep", "misplace", "misplace", "spoil", "spoil", "survive", "order", "order",
                "kill", "isolate", "transfer"),
        pace_s=0.3, load={**_MUCH, "bodies_max": 3}, group=_OURS,
    )),
    "orders-that-change-nothing": (1, Focus(
        faults=("order", "order", "order", "change_members", "transfer", "isolate", "kill", "pause"),
        pace_s=0.4, group=_OURS,
    )),
    "copies-of-an-expiring-log": (2, Focus(
        settings={**_ASYNC, "mapped_file_size_for_entry_data": 1024, "retention_bytes": 4096},
        faults=("keep", "keep", "keep", "restore", "black_out", "cut_power", "kill", "pause", "transfer"),
        pace_s=0.6, load={**_MUCH, "bodies_max": 3},
    )),
    "machines-and-short-logs": (3, SHORT_LOGS),
    "machines-and-lost-power": (2, LOST_POWER),
    "machines-of-late-members": (3, LATE),
    "machines-in-bad-moods": (2, attrs.evolve(
        LATE, settings={**LATE.settings, "push_chunk_bytes": 0},
        faults=(
            "upset", "upset", "upset", "question", "question", "rot_snapshot", "outlast", "wipe_late",
            "kill", "stop_late", "stop_late", "transfer", "kill_inside", "ask", "ask", "call_inside",
            "hang_machine",
        ),
        pace_s=0.8,
    )),
    "machines-that-differ": (2, attrs.evolve(
        LATE, faults=("differ", "differ", "upgrade", "unmake", "unmake", "rot_head", "rot_head", "rot_head",
                      "skip_wrongly", "outlast", "wipe_late", "kill", "stop_late", "transfer"),
        pace_s=0.8,
    )),
    "machines-in-narrow-bounds": (1, attrs.evolve(
        LATE, settings={
            **LATE.settings, "max_pending_requests_num": 3, "max_pending_reads": 2, "tracing": True,
            "max_wait_ack_time_ms": 400, "peer_push_quota": 3000,
        },
        faults=("hang_machine", "kill", "transfer", "outlast", "outlast", "wipe_late", "stop_late",
                "stop_late", "rot_snapshot", "rot_snapshot", "rot_head", "slow_disk", "call_inside",
                "call_inside", "call_inside", "use_disk"),
        pace_s=0.8, load={**SHORT_LOGS.load, "clients": 5, "think_us": 80_000, "poison": 0.02},
    )),
    "members-that-never-lead": (2, Focus(
        settings=_ASYNC, faults=("bury", "bury", "cut_client"), pace_s=1.5,
        load=_MUCH, group={**_OURS, "members": 3, "member_settings": {"n2": {"never_lead": True}}},
    )),
    "traced-members": (1, attrs.evolve(
        SHORT_LOGS, settings={**SHORT_LOGS.settings, "tracing": True},
        faults=("kill", "stop", "stop", "isolate", "transfer", "fill_disk", "disk_error", "pause"),
    )),
    "named-readers": (3, Focus(
        faults=("kill", "transfer", "isolate", "pause", "cut_client", "kill_client"), pace_s=0.9,
        readers={"processes": 3, "lease_s": 0.5, "orders": 0.3}, group=_OURS,
    )),
    "readers-of-an-expiring-log": (1, Focus(
        settings={
            "mapped_file_size_for_entry_data": 1024, "retention_bytes": 4096, "readers_hold_bytes": 3000,
        },
        faults=("kill", "transfer", "pause", "kill_client"), pace_s=1.5,
        load={**_MUCH, "body_bytes_max": 100},
        readers={"processes": 2, "lease_s": 0.5, "orders": 0.1, "share": 0},
        # (GET does not say where the log begins: with it a reader leaves out one entry at a time.)
        group={**_OURS, "clients_wire": "binary"},
    )),
    "times-and-clocks": (2, Focus(
        settings={"entry_times_ms": 50, "entry_times_ahead_ms": 60_000},
        faults=("jump_clock", "jump_clock", "jump_clock", "reset_times", "transfer", "kill", "isolate",
                "change_members", "wipe"),
        pace_s=0.8, load={"exact": 0.5}, group=_OURS,
    )),
    "java-like-peers": (2, Focus(
        faults=("kill", "isolate", "transfer", "break", "pause", "depose"), pace_s=1.0, load=_MUCH,
        group={"is_native": False, "hides_wire_version": True},
    )),
    "java-like-peers-in-doubt": (2, Focus(
        settings=_ASYNC, faults=("cut_power", "cut_power", "cut_power", "isolate", "transfer", "pause"),
        pace_s=1.0, load=_MUCH, group={"is_native": False, "hides_wire_version": True},
    )),
    "java-like-peers-that-expire": (1, Focus(
        settings={**_ASYNC, "mapped_file_size_for_entry_data": 1024, "retention_bytes": 4096},
        faults=("outlast", "outlast", "kill", "isolate", "transfer", "cut_power"), pace_s=1.2,
        load={**_MUCH, "body_bytes_max": 100}, group={"is_native": False, "hides_wire_version": True},
    )),
    "holes-of-leaders": (2, Focus(
        settings={**_SYNC, "mapped_file_size_for_entry_data": 1024, "scrub_bytes_per_s": 200_000,
                  "scrub_pause_ms": 50},
        faults=("rot_ahead", "rot_ahead", "rot_ahead", "rot", "isolate", "kill", "transfer", "slow_disk"),
        pace_s=1.5, load=_MUCH, group=_OURS,
    )),
    "catching-up-under-load": (2, Focus(
        settings={
            **_ASYNC, "push_chunk_bytes": 1500, "push_chunk_behind_bytes": 400, "max_batch_push_count": 4,
            "max_inflight_pushes": 4, "peer_push_throttle_point": 1, "peer_push_quota": 20_000,
        },
        faults=("isolate", "pause", "kill", "outlast", "break"), pace_s=2.0,
        load={"clients": 4, "think_us": 20_000, "appends": 0.95, "bodies_max": 3, "body_bytes_max": 100},
        group=_OURS,
    )),
    "rot-of-entries-that-are-cut": (8, Focus(
        settings=_SYNC, faults=("rot_apart", "rot_apart", "isolate", "transfer"), pace_s=3.0, load=_MUCH,
        group=_OURS,
    )),
    "rot-beside-records": (2, Focus(
        settings={**_SYNC, "mapped_file_size_for_entry_data": 1024, "scrub_bytes_per_s": 200_000,
                  "scrub_pause_ms": 50},
        faults=("rot_beside", "rot_beside", "rot_beside", "rot", "kill", "isolate", "fill_disk"), pace_s=0.8,
        load=_MUCH, group=_OURS,
    )),
    "readers-and-strangers": (1, Focus(
        faults=("ask", "ask", "ask", "kill", "transfer", "isolate", "cut_client", "kill_client"), pace_s=0.3,
        readers={"processes": 3, "lease_s": 0.5, "orders": 0.5}, group=_OURS,
    )),
    "narrow-bounds": (2, Focus(
        settings={
            "max_pending_requests_num": 4, "max_pending_reads": 2, "max_pending_bytes": 1500,
            "max_inflight_push_bytes": 1000, "max_queued_pushes": 2, "max_batch_push_count": 2,
            "max_inflight_pushes": 8,
        },
        faults=("jumble", "isolate", "pause", "transfer", "slow_disk", "hang_fsync", "kill", "call_inside",
                "call_inside", "ask"),
        pace_s=0.4, group=_OURS,
        load={"clients": 4, "think_us": 40_000, "appends": 0.6, "gets": 2.0, "bodies_max": 12},
    )),
    "older-copies-of-directories": (2, Focus(
        settings=_SYNC,
        faults=("roll_back", "roll_back", "roll_back", "stop", "stop", "stop", "transfer", "cut_link"),
        pace_s=0.7, load=_MUCH, group=_OURS,
    )),
    "looks-at-damaged-files": (1, Focus(
        settings={**_SYNC, "mapped_file_size_for_entry_data": 1024},
        faults=("look_at_files", "look_at_files", "look_at_files", "keep", "look_at_copies", "look_at_copies",
                "kill", "isolate", "transfer"),
        pace_s=0.7, load={"clients": 2, "think_us": 400_000, "bodies_max": 3}, group=_OURS,
    )),
    "options-that-change": (1, Focus(
        faults=("reconfigure", "reconfigure", "stop", "kill_all", "change_members"), pace_s=1.2, group=_OURS,
    )),
    # Members get the state of the group from others, in pieces, while its producers come and are forgotten.
    LAST: (0, Focus(
        settings={
            **_SYNC, "mapped_file_size_for_entry_data": 1024, "retention_bytes": 3072,
            "check_point_interval": 1000, "peer_push_quota": 8000, "readers_hold_bytes": 3000,
            "producers_expire_hours": 3,
        },
        faults=("wipe_late", "wipe_late", "wipe_late", "wipe_late", "wipe_late", "wipe", "outlast", "outlast",
                "kill", "kill_inside", "jump_clock", "jump_clock", "jump_clock", "transfer", "isolate"),
        pace_s=1.0,
        load={**_MUCH, "clients": 3, "think_us": 50_000, "exact": 1.0, "single": 0.7, "numbered": 0.2,
              "body_bytes_max": 60},
        readers={"names": 1, "processes": 1, "lease_s": 0.5, "orders": 0.05, "share": 0},
        group={**_OURS, "clients_wire": "binary"},
    )),
}


def focus_name_of(seed: int) -> str:
    """The focus that a seed draws; empty: the seed's own mix."""
    if random.Random(f"{seed} last focus").random() < LAST_FOCUSED:
        return LAST
    rng = random.Random(f"{seed} focus")
    if rng.random() >= FOCUSED:
        return ""
    return rng.choices(list(FOCUSES), [weight for weight, _ in FOCUSES.values()])[0]


def run_drawn_schedule(
    seed: int, *, seconds: float = SECONDS, members: int | None = None, wants_all_lines: bool = False,
    focus_name: str = "drawn",
) -> ScheduleOutcome:
    """
    Run one seed, see L{run_schedule}.

    @param focus_name: one of L{FOCUSES}; C{drawn}: the one of the seed; empty: none.
    """
    name = focus_name_of(seed) if focus_name == "drawn" else focus_name
    focus = FOCUSES[name][1] if name else EVERYTHING
    return run_schedule(seed, seconds=seconds, members=members, wants_all_lines=wants_all_lines, focus=focus)
