# -*- test-case-name: tests.sim.test_mutants -*-
"""
Faults of this product that trials with real disks and real strangers found, put back; docs/history.md names
this module. Of the mutated packages this module knows only their text.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants.patching import Patch

_SCRUBS: Mapping[str, object] = {
    "flush_disk_type": "sync", "mapped_file_size_for_entry_data": 1024,
    "scrub_bytes_per_s": 200_000, "scrub_pause_ms": 50,
}
_MUCH: Mapping[str, object] = {"clients": 3, "think_us": 80_000, "appends": 0.9}
_OURS: Mapping[str, object] = {"is_native": True, "hides_wire_version": False}

TRIAL_MUTANTS: tuple[tuple[str, str, tuple[Patch, ...], Mapping[str, object]], ...] = (
    ("sector-ends-member", "a member ends when it cannot read a sector of an old segment", (
        Patch("dledger.base.disk.unreadable", "    return error.errno in _ERRORS\n", "    return False\n"),
    ), {"settings": _SCRUBS, "faults": ("rot", "rot", "kill"), "pace_s": 0.8, "load": _MUCH, "group": _OURS}),
    ("full-in-place-ends-member", "a member ends when there is no room to write its mark in place", (
        Patch("dledger.storage.start.open_ledger",
              "            if not is_no_room(error):\n                raise guard.fail(",
              "            if error is not None:\n                raise guard.fail("),
    ), {"faults": ("fill_disk", "fill_disk", "transfer", "kill"), "pace_s": 0.8, "load": _MUCH}),
    ("unit-without-room-ends-member", "a member ends when there is no room to mend an index unit", (
        Patch("dledger.storage.store.hole_finder",
              "            if not is_no_room(error):\n                raise\n            return None\n",
              "            raise\n"),
    ), {"settings": _SCRUBS, "faults": ("rot_beside", "rot_beside", "rot_beside", "fill_disk"), "pace_s": 0.8,
        "load": _MUCH, "group": _OURS}),
    ("rot-of-units-unseen", "the scrub does not compare the index", (
        Patch("dledger.storage.store.scrub", "        if stored == wanted:\n",
              "        if stored or wanted:\n"),
    ), {"settings": _SCRUBS, "faults": ("rot_beside", "rot_beside", "kill"), "pace_s": 0.8, "load": _MUCH,
        "group": _OURS}),
    ("begin-by-one-word", "a leader alone says that the log begins later, and a member sets its own aside", (
        Patch("dledger.core.replication.witnesses",
              "return leader_id is not None and member.membership.is_quorum(counted | {leader_id})",
              "return leader_id is not None"),
    ), {"script": "one_witness"}),
    ("dry-order-is-obeyed", "a change of the members is made though it was only asked about", (
        Patch("dledger.core.election.changes", "            if request.is_dry:\n", "            if False:\n"),
    ), {"faults": ("order", "order", "order", "kill"), "pace_s": 0.4, "group": _OURS}),
    ("backup-not-listed", "a backup ends well, and its manifest does not list the new pieces", (
        Patch("dledger.storage.backups.archive", "pieces=(*kept, piece),", "pieces=before.pieces,"),
    ), {"test": "tests.storage.test_backup.TakeTests.test_a_backup_has_all_committed_entries"}),
)
