# -*- test-case-name: tests.admin.test_status_document -*-
"""The flat document of a status: programs of operators read these names, in JSON."""

from __future__ import annotations

import json
import typing

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.status_document import FACTS, status_document, status_kinds
from dledger.base.histogram import HistogramStatus
from dledger.core.status import MemberStatus
from dledger.node.reporting.status import MachineStatus, NodeStatus
from tests.admin.fakes import picture

#: The names as released, in their order.
NAMES = (
    "member listen admin store_path state reason uptime_s why_state_unknown connections connections_refused "
    "connections_replaced answers_held_bytes unfinished_frame_bytes peers_connected peer_addresses "
    "requests requests_abandoned appends append_bytes gets pulls pulled_bytes refusals reports votes "
    "fsync fsync_failures unsynced_bytes stalls stall_s wire_errors body_errors pull_waiters "
    "leader_changes segments_deleted disk_free_bytes disk_total_bytes is_disk_full healthy_lag_entries "
    "begin_moved set_aside_files set_aside_bytes scrubbed_bytes scrub_passes tls_expires_s machine "
    "readers reader_count elections append_s batches peer_lag_bytes"
)


def leaves(kind: type[attrs.AttrsInstance], way: str = "") -> set[str]:
    """The ways to all values of a status that are documents of their own, or plain."""
    found: set[str] = set()
    for name, hint in typing.get_type_hints(kind).items():
        if isinstance(hint, type) and attrs.has(hint) and hint not in (HistogramStatus, MemberStatus):
            found |= leaves(hint, f"{way}{name}.")
        else:
            found.add(way + name)
    return found


class DocumentTests(SynchronousTestCase):
    """The facts of one status."""

    def test_names(self) -> None:
        """As released, in this order."""
        self.assertEqual(" ".join(status_document(picture())), NAMES)
        self.assertEqual(" ".join(status_kinds()), NAMES)

    def test_every_fact(self) -> None:
        """Each value of each part is in the document, once."""
        self.assertEqual(sorted(way for _, way in FACTS), sorted(leaves(NodeStatus)))

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
        self.assertIs(kinds["fsync"], HistogramStatus)
        self.assertEqual(kinds["machine"], MachineStatus | None)
