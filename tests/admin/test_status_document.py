# -*- test-case-name: tests.admin.test_status_document -*-
"""The flat document of a status: programs of operators read these names, in JSON."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.sites.status_document import FACTS, status_document, status_kinds
from dledger.base.histogram import Histogram
from dledger.node.reporting.status import MachineStatus
from tests.admin.fakes import picture

#: The names, sorted.
NAMES = (
    "admin answers_held_bytes append_bytes append_s appends batches begin_moved body_errors client_requests "
    "connections connections_refused connections_replaced disk_free_bytes disk_total_bytes elections fsync "
    "fsync_failures gets healthy_lag_entries is_disk_full leader_changes listen machine member "
    "peer_addresses peer_lag_bytes peers_connected pull_waiters pulled_bytes pulls reader_count readers "
    "reason refusals reports requests requests_abandoned scrub_passes scrubbed_bytes segments_deleted "
    "set_aside_bytes set_aside_files stall_s stalls state store_path times_ahead_ms "
    "tls_expires_s unfinished_frame_bytes unsynced_bytes uptime_s votes why_state_unknown wire_errors"
)


class DocumentTests(SynchronousTestCase):
    """The facts of one status."""

    def test_names(self) -> None:
        """They are known to programs of operators, and each is of one value."""
        self.assertEqual(" ".join(sorted(status_document(picture()))), NAMES)
        self.assertEqual(" ".join(sorted(status_kinds())), NAMES)
        self.assertEqual(len(dict(FACTS)), len(FACTS))

    def test_values(self) -> None:
        """Plain ones, from all parts, as they are written in JSON."""
        document = json.loads(json.dumps(status_document(picture(machine=None, gets=7))))
        self.assertEqual(document["member"]["term"], 7)
        self.assertEqual((document["gets"], document["unsynced_bytes"], document["connections"]), (7, 77, 4))
        self.assertEqual(document["elections"], {"won": 2, "lost": 1})
        self.assertEqual(document["fsync"]["counts"][0], 1)
        self.assertIs(document["machine"], None)

    def test_kinds(self) -> None:
        """Those of the parts."""
        kinds = status_kinds()
        self.assertIs(kinds["gets"], int)
        self.assertIs(kinds["fsync"], Histogram)
        self.assertEqual(kinds["machine"], MachineStatus | None)
