# -*- test-case-name: tests.sim.test_mutants -*-
"""Mutants of the changes of members. Of the mutated packages this module knows only their text."""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants.patching import Patch

_MEMBERSHIP = "dledger.values.ledger.membership"
_CHANGES = "dledger.core.election.changes"
_MEMBER = "dledger.core.state.member_state"
_BELIEFS = "dledger.core.state.beliefs"
_ELECTOR = "dledger.core.election.elector"
_LEADERSHIP = "dledger.core.leadership"
_STORE = "dledger.storage.store.file_store"
_LISTED = "dledger.storage.start.configurations"

#: Changes at a quick pace, under faults of links and processes.
_CHANGING: Mapping[str, object] = {
    "faults": ("change_members", "change_members", "isolate", "kill", "transfer"), "pace_s": 0.7,
}
_CRASHING: Mapping[str, object] = {
    "faults": ("change_members", "change_members", "kill_inside"), "pace_s": 0.7,
}

MEMBER_MUTANTS: tuple[tuple[str, str, tuple[Patch, ...], Mapping[str, object]], ...] = (
    ("learner-counts", "the copies of a learner help to commit", (
        Patch(_MEMBERSHIP, "[marks[one] if one in marks else absent for one in self.voters]",
              "[marks.get(one, absent) for one in self.addresses]"),
    ), _CHANGING),
    ("two-changes-at-once", "a change is written before the last one is committed", (
        Patch(_CHANGES, "if self._pending is not None or member.membership.index > member.committed_index:",
              "if False:"),
    ), _CHANGING),
    ("change-before-own-term", "a new leader changes the members before an entry of its term is committed", (
        Patch(_CHANGES, "if member.committed_index < quorum.term_start_index and not request.is_dry:",
              "if False:"),
    ), _CHANGING),
    ("quorum-of-the-old-list", "a leader counts by the members that the group had when it was elected", (
        Patch(_LEADERSHIP, "            self.quorum.membership = member.membership\n", ""),
    ), _CHANGING),
    ("learner-stands", "a member that does not count is a candidate", (
        Patch(_MEMBER, "            and self.is_voter and self.repair_end_index < 0",
              "            and self.repair_end_index < 0"),
    ), _CHANGING),
    ("learner-elects", "the votes of learners count", (
        Patch(_ELECTOR, "        for peer_id in self.member.voter_ids:\n",
              "        for peer_id in self.member.peer_ids:\n"),
        Patch(_ELECTOR, "            for peer_id in member.voter_ids:\n",
              "            for peer_id in member.peer_ids:\n"),
        Patch(_ELECTOR, "self.member.membership.is_quorum(self._granted)",
              "len(self._granted) >= self.member.membership.quorum"),
    ), _CHANGING),
    ("cut-change-stays", "a change that is cut from the log is still in force", (
        Patch(_LISTED, "        if self.current is not None and self.current.index >= first_gone:",
              "        if False:"),
    ), _CHANGING),
    ("change-listed-late", "a configuration entry is in the log before the list of members has it", (
        Patch(_STORE, "            self._members.note(listed)\n", "            pass\n"),
        Patch(_STORE, "        if listed:\n            self._flush.sync()\n",
              "        if listed:\n            self._members.note(listed)\n            self._flush.sync()\n"),
    ), _CRASHING),
    ("change-not-durable", "with async flushing a loss of power takes a change of the members", (
        Patch(_STORE, "        if listed:\n            self._flush.sync()\n", ""),
    ), {"test": "tests.storage.test_configurations.EntryTests.test_durable_with_async"}),
    ("change-listed-without-room", "a change that the disk has no room for is listed", (
        Patch(_STORE, "            self._room.make(first, layout)\n            if marked:",
              "            if marked:"),
        Patch(_STORE, "                self._room.write(first, layout)\n            except DLedgerError:\n"
              "                self._members.cut(first)\n",
              "                self._room.make(first, layout)\n"
              "                self._room.write(first, layout)\n            except OSError:\n"),
    ), {"test": "tests.storage.test_configurations.EntryTests.test_a_full_disk_lists_nothing"}),
    ("lost-list", "a member that has lost its list of members counts those of --peers", (
        Patch(_LISTED, "                    self._record_listed(True)\n", ""),
    ), {"test": "tests.storage.test_configurations.LostTests.test_a_lost_list_stops_the_start"}),
    ("start-list-by-peers", "after a first change is cut, a member counts any --peers", (
        Patch(_LISTED, "                    self._record_listed(False)\n", ""),
    ), {"test": "tests.storage.test_configurations.LostTests.test_a_crash_leaves_a_sound_list"}),
    ("dismissed-for-ever", "a member that was removed and added again takes itself for removed", (
        Patch("dledger.core.election.dismissal", "for one in committed[-1:]:", "for one in committed[:1]:"),
    ), {"test": "tests.core.test_dismissal.DismissalTests.test_a_member_added_again_is_not_dismissed"}),
    ("introduced-for-ever", "a member that others named may speak after it was removed", (
        Patch(_BELIEFS, "            if reported.membership.index <= own.index or not (",
              "            if not ("),
    ), {"test": "tests.core.test_changes.RemoveTests.test_introduced_no_longer"}),
    ("joins-by-the-past", "a member that joins believes only members of the past, which may all be gone", (
        Patch(_BELIEFS, "listed if self.self_id in listed else {**self.start_list, **listed}",
              "listed or self.start_list"),
    ), {"test": "tests.core.test_member_state.PastTests.test_all_of_the_past_are_gone"}),
    ("reporter-forgotten", "a list counts no longer when a list of the past lacks the member that sent it", (
        Patch(_BELIEFS, "reported.was_trusted or reporter_id in first or", "reporter_id in first or"),
    ), {"test": "tests.core.test_member_state.PastTests.test_reporter_leaves_and_comes_back"}),
    ("introduced-without-bound", "a member that lies about the members fills the tables of others", (
        Patch(_BELIEFS, " and len(found) < INTRODUCED_MAX:", ":"),
    ), {"test": "tests.core.test_changes.RemoveTests.test_a_false_list_hides_no_true_one"}),
    ("promoted-behind", "a learner becomes a voter before it has the entries", (
        Patch(_CHANGES, "        if request.change == PROMOTE and target not in close:", "        if False:"),
    ), {"test": "tests.core.test_changes.PromoteTests.test_only_when_caught_up"}),
    ("removed-leader-stays", "a leader writes its own removal", (
        Patch(_CHANGES, "            if is_own:\n                self._hand_over(dispatchers)\n", ""),
    ), {"test": "tests.core.test_changes.RemoveTests.test_leader_hands_over"}),
    ("java-end-not-asked", "a member asks a Java leader for its end only while it has no entry", (
        Patch("dledger.core.replication.leader_claims", "        elif response.wire_version < 1 and not",
              "        elif response.wire_version < 1 and member.ledger_end_index < 0 and not"),
    ), {"test": "tests.core.test_unsure.WordTests.test_java_leader_under_load"}),
    ("changes-beside-java", "a group with a Java member changes its members", (
        Patch(_CHANGES, "        if incapable:\n", "        if False:\n"),
    ), {"test": "tests.core.test_changes.RefusalTests.test_a_java_member_cannot_be_added"}),
    ("forgotten-quorum", "a change is made that leaves no quorum of live members", (
        Patch(_CHANGES, "        if not wanted.is_quorum(alive):", "        if False:"),
    ), {"test": "tests.core.test_changes.RefusalTests.test_no_live_quorum"}),
)
