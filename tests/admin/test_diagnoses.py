# -*- test-case-name: tests.admin.test_diagnoses -*-
"""What is wrong with a group: each finding, with its meaning and the way to mend it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.sites.details import HOLDERS_MAX, READERS_MAX, MemberDetails, best_informed, details_of
from dledger.admin.sites.diagnoses import (
    FINE,
    LOOK,
    READER_LAG,
    READERS_NAMED,
    WRONG,
    Diagnosis,
    all_diagnoses,
    group_diagnoses,
    member_diagnoses,
    reader_diagnoses,
)
from dledger.admin.sites.reports import MemberReport
from dledger.admin.sites.status_document import FACTS
from protocols.wire.ledger.codes import MEMBERS_MAX

NOW_S = 1_700_000_000.0
_STATUS = tuple(name for name, _ in FACTS if name != "member")
MEMBERS = ("n0", "n1", "n2")


def report(member_id: str, **facts: Any) -> MemberReport:
    """A healthy member."""
    values = {"address": "h:1", "source": "log", "role": "follower", "version": "1", "members": MEMBERS}
    return MemberReport(member_id=member_id, **{**values, **facts})


def group(**facts: Any) -> list[MemberReport]:
    """Three, of which the last has these facts."""
    return [report("n0", role="leader"), report("n1"), report("n2", **facts)]


def details(member_id: str = "n0", **page: Any) -> MemberDetails:
    """What a page with these facts says."""
    return details_of(member_id, {"member": {"self_id": member_id}, **page})


class FindingCase(SynchronousTestCase):
    """Findings."""

    def one(self, found: Iterable[Diagnosis], level: str, *words: str) -> None:
        """Exactly one finding, with a meaning and a way to mend it."""
        (finding,) = found
        self.assertEqual(finding.level, level, finding)
        for word in words:
            self.assertIn(word, finding.found)
        if level != FINE:
            self.assertTrue(finding.means and finding.mend, finding)


class GroupTests(FindingCase):
    """From the log ports."""

    def test_group(self) -> None:
        """Well; silent, ill and old members; no leader; numbers of members that bear less."""
        self.one(group_diagnoses(group()), FINE, "3 members serve")
        self.one(group_diagnoses(group(problem="connection refused")), WRONG, "does not answer at h:1")
        self.one(group_diagnoses(group(health="disk full")), WRONG, "disk full")
        level = [one.level for one in group_diagnoses(group(version="2"))]
        self.assertEqual(level, [LOOK, FINE])
        (no_leader, *_) = group_diagnoses([report("n0"), report("n1"), report("n2")])
        self.assertEqual((no_leader.level, no_leader.found), (WRONG, "no member leads"))
        for members, bears in ((("n0",), "0"), (("n0", "n1"), "0"), (("n0", "n1", "n2", "n3"), "1, as 3")):
            (found, _fine) = group_diagnoses([report("n0", role="leader", members=members)])
            self.assertEqual((found.level, f"the loss of {bears}" in found.means), (LOOK, True), found)


class StatusTests(FindingCase):
    """From the pages."""

    def of(self, page: dict[str, Any]) -> list[Diagnosis]:
        """Of a member whose page says this."""
        return [*member_diagnoses("n0", details(**page), NOW_S)]

    def test_well(self) -> None:
        """Nothing to say; a value of a wrong type is nothing."""
        self.assertEqual(self.of({}), [])
        well = {"disk_free_bytes": 50, "disk_total_bytes": 100, "uptime_s": 1000.0, "stall_s": 1.0,
                "readers": [], "tls_expires_s": NOW_S + 90 * 86400.0,
                "fsync": {"bounds": [0.01, 1.0], "counts": [1000, 1, 0]}}
        self.assertEqual(self.of(well), [])
        for strange in ("x", None, [], {}, [7, {"name": 7, "lag": "x"}], {"bounds": ["x"], "counts": [1]},
                        {"bounds": 7, "counts": "x"}, float("nan"), float("inf"), 10**400, -(10**400)):
            page = dict.fromkeys(_STATUS, strange)
            self.assertEqual(self.of(page), [], strange)

    def test_each(self) -> None:
        """Each has a level."""
        slow = {"bounds": [0.01, 0.05, 0.1, 1.0], "counts": [90, 0, 10, 0, 0]}
        dead = {"bounds": [0.01, 0.1, 1.0], "counts": [0, 0, 0, 3]}
        for page, level, words in (
            ({"disk_free_bytes": 14 << 30, "disk_total_bytes": 100 << 30}, LOOK, "14.0 of 100 GiB"),
            ({"fsync_failures": 2}, WRONG, "2 fsyncs have failed"),
            ({"fsync": slow}, LOOK, "more than 0.05 s"), ({"fsync": dead}, WRONG, "more than 1 s"),
            ({"uptime_s": 100.0, "stall_s": 2.0}, LOOK, "stood still for 2 of 100 s"),
            ({"set_aside_files": 1, "set_aside_bytes": 5}, LOOK, "set aside: 1 (5 bytes)"),
            ({"tls_expires_s": NOW_S + 20 * 86400.0}, LOOK, "ends in 20 days"),
            ({"tls_expires_s": NOW_S + 86400.0}, WRONG, "ends in 1 days"),
            ({"tls_expires_s": NOW_S - 1.0}, WRONG, "has ended"),
            ({"times_ahead_ms": 7_200_000}, WRONG, "7200 s ahead"),
            ({"connections_refused": 3}, LOOK, "3 connections were refused"),
            ({"machine": {"snapshot_problem": "no room"}}, WRONG, "no room"),
            ({"machine": {"log_kept": "a reader needs it"}}, LOOK, "a reader needs it"),
        ):
            self.one(self.of(page), level, words)

    def test_of_another(self) -> None:
        """A page of another member, or of another program, is none."""
        for page, words in (
            ({"member": {"self_id": "n1"}}, "it is member 'n1'"), ({}, "not a status page"),
            ({"member": 7}, "not a status page"),
        ):
            error = self.assertRaises(ValueError, details_of, "n0", page)
            self.assertIn(words, str(error))

    def test_bounds(self) -> None:
        """Whatever a page says, a bounded part of it counts."""
        reader = {"name": "r" * 9999, "next_index": 3, "lag": 2, "holders": ["h" * 9999] * 99}
        found = details(readers=[reader] * 9999, store_path="p" * 9999, reader_count=-7, machine={
            "name": "m" * 9999}, peer_lag_bytes={f"n{number}": 1 for number in range(9999)})
        self.assertEqual((len(found.readers), found.reader_count), (READERS_MAX, READERS_MAX))
        self.assertEqual(len(found.readers[0].holders), HOLDERS_MAX)
        self.assertEqual(len(found.lag_bytes), MEMBERS_MAX)
        assert found.machine is not None
        first = found.readers[0]
        for text in (first.name, first.holders[0], found.store_path, found.machine.name):
            self.assertLess(len(text), 500)


class ReaderTests(FindingCase):
    """Of the whole group, once."""

    def late(self, count: int) -> MemberDetails:
        """A page with these readers, and one that is not late."""
        return details(readers=[{"name": "ok", "lag": READER_LAG}, *(
            {"name": f"r{number}", "lag": READER_LAG + 1 + number} for number in range(count))])

    def test_late(self) -> None:
        """The latest first; a crowd is counted."""
        self.one(reader_diagnoses(self.late(1).readers), LOOK, "the reader r0 lacks 100001 entries")
        found = [one.found for one in reader_diagnoses(self.late(READERS_NAMED + 3).readers)]
        self.assertEqual(len(found), READERS_NAMED + 1)
        self.assertIn("the reader r12 lacks", found[0])
        self.assertIn("3 more readers", found[-1])

    def test_best_informed(self) -> None:
        """The leader of the highest term whose page was read; else the member that has most."""
        pages = {name: details(name) for name in MEMBERS}
        old = report("n0", role="leader", term=3, committed_index=50)
        new = report("n1", role="leader", term=4, committed_index=40)
        ahead = report("n2", term=5, committed_index=90)
        self.assertEqual(best_informed((old, new, ahead), pages), "n1")
        self.assertEqual(best_informed((old, ahead), pages), "n0")
        self.assertEqual(best_informed((old, new, ahead), {"n2": pages["n2"]}), "n2")
        self.assertEqual(best_informed((old, new, ahead), {}), "")

    def test_all(self) -> None:
        """The page of the leader counts for the readers; a page that was not read is a finding."""
        late = self.late(1)
        pages = {"n0": details(), "n1": late}
        self.one(all_diagnoses(group(), pages, NOW_S), FINE)
        found = list(all_diagnoses(group(), {"n1": late}, NOW_S, {"n0": "refused"}))
        self.assertEqual([(one.level, one.about) for one in found],
                         [(FINE, "group"), (LOOK, "n0"), (LOOK, "group")])
        self.assertIn("its page was not read: refused", found[1].found)
