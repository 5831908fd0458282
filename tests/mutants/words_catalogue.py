# -*- test-case-name: tests.sim.test_mutants -*-
"""
Mutants that do no harm, or seldom, and are noticed by what members say, answer and record. Of the mutated
packages this module knows only their text.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants.patching import Patch

_OURS: Mapping[str, object] = {"is_native": True, "hides_wire_version": False}
_CROWDED: Mapping[str, object] = {
    "load": {"clients": 8, "think_us": 150_000, "appends": 0.9, "bodies_max": 4},
    "group": {**_OURS, "turn_us": 60_000},
}

WORD_MUTANTS: tuple[tuple[str, str, tuple[Patch, ...], Mapping[str, object]], ...] = (
    ("woken-an-entry-late", "a reader that waits for an entry is woken by the commit of the next one", (
        Patch("dledger.node.work.reads", "lambda waiter: waiter.index <= committed_index)",
              "lambda waiter: waiter.index < committed_index)"),
    ), {"load": {"follows": 2.0, "think_us": 200_000}}),
    ("position-of-one-body", "the answer to an append that follows a batch names another position", (
        Patch("dledger.node.requests.appends", "pos += size + ENTRY_HEADER_SIZE * bodies",
              "pos += size + ENTRY_HEADER_SIZE"),
    ), _CROWDED),
    ("id-of-an-earlier-term", "a member records the id of its group under the term of the last record", (
        Patch("dledger.storage.start.identity",
              "            self._now, group_id=name.id, group_term=name.term,",
              "            self._now, group_id=name.id, group_term=self._now.group_term,"),
    ), {"group": _OURS}),
    ("commit-of-the-mark-behind", "the mark says that one entry less is committed than is", (
        Patch("dledger.storage.start.open_ledger",
              "committed_index=min(ledger.committed_index, durable.index)",
              "committed_index=min(ledger.committed_index, durable.index) - 1"),
    ), {"load": {"think_us": 1_000_000}}),
    ("won-and-said-lost", "a member that took over says that it did not", (
        Patch("dledger.core.election.elector", "self.roles.take_leadership_ended(ResponseCode.SUCCESS)",
              "self.roles.take_leadership_ended(ResponseCode.TAKE_LEADERSHIP_FAILED)"),
    ), {"faults": ("transfer", "kill"), "pace_s": 1.0}),
    ("change-at-the-cut-stays", "a change of the members stays though it is the first entry that is cut",
     (Patch("dledger.storage.start.configurations", "self.current.index >= first_gone:",
            "self.current.index > first_gone:"),
      ), {"faults": ("change_apart", "change_apart", "change_members", "kill"), "pace_s": 2.0,
          "load": {"clients": 1, "think_us": 1_500_000}, "group": {**_OURS, "members": 3}}),
    ("starts-not-counted", "a start is not counted in the directory", (
        Patch("dledger.storage.start.identity", "starts=self._now.starts + 1)",
              "starts=max(self._now.starts, 1))"),
    ), {"group": _OURS}),
    ("proposal-of-an-earlier-term", "a follower takes up an id that a leader of an earlier term proposed", (
        Patch("dledger.core.election.naming", "reported.term == member.term)",
              "reported.term <= member.term)"),
    ), {"group": _OURS}),
    ("holders-of-any-term", "a leader counts who took up the id in an earlier term", (
        Patch("dledger.core.election.naming", "if (reported.id, reported.term) == (name.id, name.term)}",
              "if reported.id}"),
    ), {"group": _OURS}),
    ("first-list-for-the-former", "while its list may be cut, a member believes those of the first list", (
        Patch("dledger.core.state.member_state", "return before[-1] if before", "return before[0] if before"),
    ), {"faults": ("change_members", "change_apart", "change_members", "kill"), "pace_s": 1.0,
        "load": {"clients": 1, "think_us": 1_500_000}, "group": {**_OURS, "members": 3}}),
)
