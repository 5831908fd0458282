# -*- test-case-name: tests.sim.test_mutants -*-
"""Mutants of times, and of what makes a group one. Of the mutated packages it knows only their text."""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants.patching import Patch

_TIMES = "dledger.node.requests.entry_times"
_CLOCK = "dledger.node.requests.group_clock"
_ORDERS = "dledger.node.requests.time_orders"
_VALUES = "dledger.client.values"
_BACK = "dledger.client.look_back"
_FOCUS: Mapping[str, object] = {
    "settings": {"entry_times_ms": 50}, "faults": ("jump_clock", "transfer", "kill", "isolate"),
    "group": {"is_native": True, "hides_wire_version": False}, "pace_s": 0.8,
}

TIME_MUTANTS: tuple[tuple[str, str, tuple[Patch, ...], Mapping[str, object]], ...] = (
    ("times-fall", "a leader whose clock is behind notes an earlier time than the last leader", (
        Patch(_TIMES, "now_ms = max(now_ms, last_ms)", "now_ms = max(now_ms, 0)"),
    ), _FOCUS),
    ("clock-of-the-leader-alone", "a leader whose clock is days ahead is believed", (
        Patch(_CLOCK, "own_ms - said_ms <= self.ahead_max_ms", "own_ms >= 0"),
    ), {**_FOCUS, "settings": {"entry_times_ms": 50, "entry_times_ahead_ms": 60_000}}),
    ("time-without-a-majority", "a leader notes its clock before a majority has said theirs", (
        Patch(_CLOCK, "return own_ms if said_ms >= 0 else -1", "return own_ms"),
    ), {"test": "tests.node.test_group_clock.GroupClockTests."
                "test_without_the_clocks_of_a_majority_there_is_no_time"}),
    ("clocks-outlive-their-term", "what a clock showed in an earlier term counts", (
        Patch("dledger.core.state.member_state", "        self.peers.clocks.forget()\n", ""),
    ), {"test": "tests.core.test_peer_clocks.ClockTests.test_a_term_begins_without_clocks"}),
    ("reset-of-sound-times", "an order falls back to the time of the clocks though times are right", (
        Patch(_ORDERS, "ahead_ms <= self._clock.ahead_max_ms", "False"),
    ), {"test": "tests.node.test_time_orders.TimeOrderTests.test_refusals"}),
    ("times-before-a-reset", "entries before a reset are shown with their times that are ahead", (
        Patch("protocols.wire.ledger.own.time_entries", "return min(time_ms, reset.time_ms)",
              "return time_ms"),
    ), {"test": "tests.wire.test_time_entries.ResetTests.test_shown_times_never_fall"}),
    ("resets-forgotten", "the time entries after a reset do not list it", (
        Patch(_TIMES, "last.resets if last is not None else ()", "()"),
    ), {"test": "tests.node.test_time_orders.TimeOrderTests."
                "test_a_log_whose_times_are_ahead_goes_on_with_true_ones"}),
    ("no-time-in-a-new-term", "a leader goes on with the time entry of the leader before", (
        Patch(_TIMES, "last.term == leading.term and self._ledger.end_position", "self._ledger.end_position"),
    ), {"test": "tests.node.test_entry_times.DueTests.test_each_term_begins_with_a_time"}),
    ("time-outlives-its-term", "entries of another leader get the time of the last time entry", (
        Patch(_VALUES, "        if term != term_before:\n            time_ms = None\n", ""),
    ), {"test": "tests.client.test_values.TimeTests.test_times_count_in_their_term"}),
    ("names-of-the-wiped", "a member that lost the id of the group counts for another one", (
        Patch("dledger.core.election.naming",
              "best.is_known or member.membership.is_quorum(named)\n"
              "                    or member.membership.is_all(reported)",
              "best.is_known or member.membership.is_quorum(reported)"),
    ), {"test": "tests.core.test_naming.NamingTests.test_a_lost_directory_makes_no_second_id"}),
    ("start-list-of-a-joined-group", "a member that joined refuses one that comes back with the start list", (
        Patch("dledger.core.state.member_state", "bool(known) and known[0].may_follow(ids.split(\";\"))",
              "False"),
    ), {"test": "tests.core.test_membership.FormerTests.test_a_joined_member_learns_the_start_list"}),
    ("look-back-over-a-term", "who looks back takes the time entry of an earlier term", (
        Patch(_BACK, "        elif found.term == last.term:\n", "        else:\n"),
    ), {"test": "tests.client.test_look_back.BeforeTests.test_any_log_gives_its_times"}),
)
