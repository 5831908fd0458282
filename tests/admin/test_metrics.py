# -*- test-case-name: tests.admin.test_metrics -*-
"""What Prometheus reads."""

from __future__ import annotations

import platform
import re
from typing import Any

import attrs
from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.admin.metrics import (
    COUNTERS,
    GAUGES,
    MACHINE_COUNTERS,
    MACHINE_GAUGES,
    TABLES,
    exposition,
    make_registry,
)
from dledger.values.ledger.holes import Hole
from protocols.wire.ledger.readers import ReaderInfo
from tests.admin.fakes import MACHINE, picture
from tests.reference import PRINTED


def samples(**facts: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Name and labels to value; the two labels that everything has are checked and left out."""
    status = picture(**facts)
    found = {}
    for family in text_string_to_metric_families(exposition(make_registry(lambda: status)).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            if sample.name.startswith("process_"):
                found[sample.name, ()] = sample.value
                continue
            assert (labels.pop("group"), labels.pop("self_id")) == ("g", "n0"), sample
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


class MetricsTests(SynchronousTestCase):
    """One picture, as text."""

    def test_numbers(self) -> None:
        """Each has the value of the picture."""
        found = samples()
        for name, value in (
            ("has_leader", 1), ("is_leader", 1), ("is_repairing", 0), ("term", 7), ("begin_index", 5),
            ("end_index", 100), ("committed_index", 99), ("flushed_index", 98), ("pending_appends", 3),
            ("unsynced_bytes", 77), ("disk_free_bytes", 1000), ("appends_total", 50),
            ("append_bytes_total", 5000), ("leader_changes_total", 2), ("repairs_total", 1),
            ("truncations_total", 0), ("retention_deleted_segments_total", 3), ("fsync_failures_total", 0),
            ("reactor_stall_seconds_total", 0.25), ("wire_errors_total", 1), ("uptime_seconds", 12.5),
        ):
            self.assertEqual(found[f"dledger_{name}", ()], value, name)

    def test_names(self) -> None:
        """Base units; C{_total} for what only rises, and for nothing else; each name once."""
        counters = [name for name, *_ in (*COUNTERS, *TABLES, *MACHINE_COUNTERS)]
        gauges = [name for name, *_ in (*GAUGES, *MACHINE_GAUGES)]
        self.assertTrue(all(name.endswith("_total") for name in counters))
        self.assertFalse(any(name.endswith("_total") for name in gauges))
        self.assertEqual(len({*counters, *gauges}), len(counters) + len(gauges))
        for name in (*counters, *gauges):
            self.assertFalse(any(unit in name for unit in ("_ms", "_millis", "_kb")), name)

    def test_what_operators_alert_on(self) -> None:
        """Version, elections, durations and sizes of appends, lag in bytes, and the process."""
        found = samples(reports={"push-set-back": 3})
        version = (("python", platform.python_version()), ("version", dledger.__version__))
        for name, labels, value in (
            ("dledger_build_info", version, 1), ("dledger_elections_total", (("result", "won"),), 2),
            ("dledger_append_duration_seconds_count", (), 4), ("dledger_push_retries_total", (), 3),
            ("dledger_append_batch_entries_sum", (), 20),
            ("dledger_append_batch_entries_bucket", (("le", "16.0"),), 0),
            ("dledger_append_batch_entries_bucket", (("le", "64.0"),), 1),
            ("dledger_peer_lag_bytes", (("remote_id", "n1"),), 640),
            ("dledger_peer_lag_bytes", (("remote_id", "n2"),), -1),
        ):
            self.assertEqual(found[name, labels], value, name)
        self.assertGreater(found["process_open_fds", ()], 0)
        self.assertGreater(found["process_resident_memory_bytes", ()], 0)

    def test_without_leader(self) -> None:
        """Zeros, and nothing of peers but their connections."""
        found = samples(role="follower", leader_id=None)
        self.assertEqual((found["dledger_has_leader", ()], found["dledger_is_leader", ()]), (0, 0))
        self.assertEqual(found["dledger_peer_connected", (("remote_id", "n2"),)], 0)
        self.assertFalse([name for name, _labels in found if name == "dledger_peer_match_index"])

    def test_repairing(self) -> None:
        """To be alerted on."""
        self.assertEqual(samples(repair_end_index=200)["dledger_is_repairing", ()], 1)
        found = samples(holes=(Hole(first_index=7, last_index=9, position=0, end_position=9),))
        self.assertEqual((found["dledger_is_repairing", ()], found["dledger_damaged_entries", ()]), (1, 3))

    def test_peers(self) -> None:
        """A leader's view of each."""
        found = samples()
        n1, n2 = (("remote_id", "n1"),), (("remote_id", "n2"),)
        self.assertEqual(found["dledger_peer_match_index", n1], 90)
        self.assertEqual(found["dledger_peer_lag_entries", n1], 10)
        self.assertEqual(found["dledger_peer_last_heard_seconds", n1], 0.05)
        self.assertEqual(found["dledger_peer_last_heard_seconds", n2], -1)
        self.assertEqual(found["dledger_peer_state", (("remote_id", "n2"), ("state", "compare"))], 1)
        self.assertEqual(found["dledger_peer_state", (("remote_id", "n2"), ("state", "append"))], 0)

    def test_machine(self) -> None:
        """Of a state machine, with its name; nothing without one."""
        found = samples(machine=MACHINE)
        who = (("machine", "kv"),)
        for name, value in (
            ("is_running", 1), ("applied_index", 90), ("lag_entries", 9), ("snapshot_index", 70),
            ("snapshot_failed", 0), ("applied_total", 80), ("snapshots_total", 3),
        ):
            self.assertEqual(found[f"dledger_machine_{name}", who], value, name)
        broken = attrs.evolve(MACHINE, state="failed", snapshot_problem="no room")
        found = samples(machine=broken)
        self.assertEqual(found["dledger_machine_is_running", who], 0)
        self.assertEqual(found["dledger_machine_snapshot_failed", who], 1)
        self.assertEqual(found["dledger_is_healthy", ()], 0)
        self.assertFalse([name for name, _ in samples() if "machine" in name])

    def test_readers(self) -> None:
        """Each by its name, and the number of all."""
        billing, idle = ReaderInfo("billing", 40, 7, ("p1", "p2"), 70), ReaderInfo("idle", 0, 47, ())
        found = samples(readers=(billing, idle), reader_count=300)
        self.assertEqual(found["dledger_readers", ()], 300)
        who = (("reader", "billing"),)
        for name, value in (("lag_entries", 7), ("lag_bytes", 70), ("next_index", 40), ("leases", 2)):
            self.assertEqual(found[f"dledger_reader_{name}", who], value, name)
        self.assertEqual(found["dledger_reader_leases", (("reader", "idle"),)], 0)
        self.assertEqual([name for name, _ in samples() if "reader" in name], ["dledger_readers"])

    def test_tables(self) -> None:
        """Counters by code, event and result."""
        found = samples()
        self.assertEqual(found["dledger_refusals_total", (("code", "NOT_LEADER"),)], 4)
        self.assertEqual(found["dledger_events_total", (("event", "role-changed"),)], 2)
        self.assertEqual(found["dledger_votes_total", (("result", "ACCEPT"),)], 1)

    def test_histogram(self) -> None:
        """Cumulative, with the sum; what is above all bounds is counted, too."""
        found = samples()
        name = "dledger_fsync_duration_seconds"
        self.assertEqual(found[f"{name}_bucket", (("le", "0.0005"),)], 1)
        self.assertEqual(found[f"{name}_bucket", (("le", "0.0025"),)], 3)
        self.assertEqual(found[f"{name}_bucket", (("le", "5.0"),)], 3)
        self.assertEqual(found[f"{name}_bucket", (("le", "+Inf"),)], 4)
        self.assertEqual(found[f"{name}_count", ()], 4)
        self.assertAlmostEqual(found[f"{name}_sum", ()], 9.0041)

    def test_registries_are_private(self) -> None:
        """Two nodes in one process do not meet."""
        make_registry(picture)
        make_registry(picture)

    def test_all_are_documented(self) -> None:
        """In the reference, each of them and no other."""
        section = PRINTED["member metrics"]()
        rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        documented = re.findall(r"`(\w+)`", "".join(rows))
        registry = make_registry(lambda: picture(machine=MACHINE))
        families = {family.name: family.type for family in registry.collect()}
        named = {name + ("_total" if kind == "counter" else "") for name, kind in families.items()}
        ours = [name.removeprefix("dledger_") for name in named if not name.startswith("process_")]
        self.assertEqual(sorted(documented), sorted(ours))
