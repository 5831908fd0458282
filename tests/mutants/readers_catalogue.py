# -*- test-case-name: tests.sim.test_mutants -*-
"""Mutants of named readers. Of the mutated packages this module knows only their text."""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants.patching import Patch

_STATE = "dledger.values.ledger.group_state"
_TABLE = "dledger.values.ledger.reader_table"
_RULES = "dledger.node.requests.reader_rules"
_DESK = "dledger.node.requests.readers"
_CLIENT = "dledger.client.readers"
_PLAYS = "tests.node.test_reader_rules.PlayTests"
_REQUESTS = "tests.node.test_readers"

READER_MUTANTS: tuple[tuple[str, str, tuple[Patch, ...], Mapping[str, object]], ...] = (
    ("void-reader-entry-counts", "a decision about a reader counts though another one came first", (
        Patch(_STATE, "        if known is not None and state.previous != known.entry_index:\n",
              "        if False:\n"),
    ), {"test": "tests.base.test_group_state.ReaderTests.test_of_two_decisions_the_first_counts"}),
    ("reader-beyond-the-room", "a decision that finds no room counts", (
        Patch(_STATE, "        if self.readers.room_for(state) is not Room.FREE:\n", "        if False:\n"),
    ), {"test": f"{_REQUESTS}.RefusalTests.test_readers_that_are_begun_at_once"}),
    ("reader-share-of-all", "one account or address takes the room of all readers", (
        Patch(_TABLE, "        return Room.SHARE_TAKEN if is_over else Room.FREE\n",
              "        return Room.FREE\n"),
    ), {"test": f"{_REQUESTS}.RefusalTests.test_the_readers_of_one_owner_are_bounded"}),
    ("forgotten-readers-for-ever", "readers that were forgotten are remembered without a bound", (
        Patch(_TABLE, "            while self._forgotten_bytes > FORGOTTEN_BYTES_MAX:\n",
              "            while False:\n"),
    ), {"test": "tests.base.test_reader_table.RoomTests.test_all_readers"}),
    ("forgotten-readers-take-room", "readers that were forgotten fill the room of the others", (
        Patch(_TABLE, "            self._forgotten_bytes += cost\n            return\n",
              "            self._forgotten_bytes += cost\n"),
    ), {"test": f"{_REQUESTS}.RefusalTests.test_the_readers_of_all_are_bounded"}),
    ("readers-fill-the-disk", "readers keep entries though the disk is nearly full", (
        Patch(_DESK, "        if is_nearly_full:\n", "        if False:\n"),
    ), {"test": f"{_REQUESTS}.KeepingTests.test_a_nearly_full_disk"}),
    ("reader-moved-from-anywhere", "a stranger moves a reader", (
        Patch("dledger.node.connections.access", "        is_change = moves or NEEDED",
              "        is_change = NEEDED"),
    ), {"test": "tests.node.test_access.AddressTests.test_readers_are_moved_from_here"}),
    ("reader-of-nobody-moved", "an account moves a reader that no account began", (
        Patch(_DESK, "(is_account(self.owner) and state.owner == self.owner)",
              "may_use(state.owner, self.owner)"),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_a_reader_of_nobody_is_moved_by_operators"}),
    ("readers-without-a-state", "a member that does not know the readers begins them anew", (
        Patch(_DESK, "            raise DLedgerError(ResponseCode.LEADER_NOT_READY, "
              "reason=self._ledger.why_group_unknown)\n", "            return {}\n"),
    ), {"test": f"{_REQUESTS}.RefusalTests.test_damaged_entries_stop_readers"}),
    ("lost-readers-keep-everything", "damaged entries that no member has any more stop expiry", (
        Patch(_DESK, "            return self._core.gone_elsewhere_index\n", "            return -1\n"),
    ), {"test": f"{_REQUESTS}.RefusalTests.test_damaged_everywhere_gone"}),
    ("reader-renewed-while-given", "a lease is renewed whose entries are being given to another process", (
        Patch(_DESK, "            return await self._alone(request.name, lambda: self._renew(request))\n",
              "            return self._reported(*self._leased(request))\n"),
    ), {"readers": {"names": 1, "processes": 3, "lease_s": 0.5, "share": 0},
        "group": {"hides_wire_version": False}}),
    ("deposed-leader-renews", "a leader that has been deposed renews leases", (
        Patch(_DESK, "        \"\"\"See rule 5.\"\"\"\n        await self.reads.read_index()\n", ""),
    ), {"test": f"{_REQUESTS}.OrderTests.test_a_deposed_leader_renews_nothing"}),
    ("deposed-leader-refuses", "a leader that has been deposed refuses requests from what it knew", (
        Patch(_DESK, "        if needs_proof:\n", "        if False:\n"),
    ), {"test": f"{_REQUESTS}.OrderTests.test_a_deposed_leader_says_nothing_from_what_it_knew"}),
    ("shares-of-own-entries", "processes that share a reader read each other's commits for ever", (
        Patch(_STATE, "        if not self.has_entries(begin):\n            return begin\n", ""),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_comes_to_rest"}),
    ("shares-count-own-entries", "a share is full of the entries of readers", (
        Patch(_STATE, "if middle - begin - (self.hidden_before(middle) - before) < count:",
              "if middle - begin < count:"),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_shares_count_entries_of_programs"}),
    ("new-share-not-kept", "a share reader that finds nothing leaves out what comes then", (
        Patch(_DESK, "if is_new and decision.state is None else", "if False else"),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_new_share_at_the_end"}),
    ("removed-member-followed", "a reader without native frames follows a member that was removed", (
        Patch("dledger.client.tails", "if answer.leader_id is None and connection",
              "if False and connection"),
    ), {"test": "tests.client.test_tail_losses.RemotingTests.test_cut_off_member_is_left_over_remoting"}),
    ("beats-pile-up", "a peer that hangs is sent heartbeats without bound", (
        Patch("dledger.core.replication.reads", "if unanswered >= BEATS_MAX:", "if False:"),
    ), {"test": "tests.core.test_reads.ReadTests.test_a_peer_that_hangs"}),
    ("forgotten-reader-comes-back", "a decision from before brings a forgotten reader back", (
        Patch(_STATE, "        if known is None and state.previous >= 0:\n", "        if False:\n"),
    ), {"test": "tests.base.test_group_state.ReaderTests.test_a_forgotten_reader_stays_forgotten"}),
    ("commit-without-lease", "a process commits with the token of another lease", (
        Patch(_RULES, "        if part.token == request.token and part.holder and part.proof",
              "        if part.holder and part.proof"),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_a_lost_lease_is_fenced"}),
    ("lease-without-secret", "a process commits with a token that it has read in the log", (
        Patch(_RULES, " and part.proof == proof_of(request.secret):", ":"),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_a_lease_needs_its_secret"}),
    ("reader-of-another-account", "an account commits with a reader of another one", (
        Patch(_DESK, "        return may_use(state.owner, self.owner)\n", "        return True\n"),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_a_reader_belongs_to_its_account"}),
    ("lease-taken-from-the-living", "a part goes to another process before its lease is over", (
        Patch(_RULES, "not is_live(part)), None)", "part.holder != holder), None)"),
        Patch(_RULES, "    if live and (", "    if False and ("),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_a_held_lease_is_waited_for"}),
    ("done-parts-given-again", "a part is given again from its begin, not from what is done", (
        Patch(_RULES, "    done = part._replace(begin=index + 1)\n", "    done = part\n"),
    ), {"test": _PLAYS}),
    ("leases-of-the-last-leader", "a new leader takes leases that it never heard of for over", (
        Patch(_DESK, "            self.noted(name, part, self._now_ms())\n",
              "            self.noted(name, part, -10**9)\n"),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_a_new_leader_goes_on_with_what_is_left"}),
    ("reader-answered-too-early", "a decision that did not count is answered as made", (
        Patch(_DESK, "if known is None or known.entry_index != result.index:", "if known is None:"),
    ), {"test": f"{_REQUESTS}.OrderTests.test_a_void_decision_is_not_answered"}),
    ("decisions-cross", "two decisions about one reader are made from one state", (
        Patch(_DESK, "return await turns.run(lambda: Deferred.fromCoroutine(ask()))", "return await ask()"),
    ), {"test": f"{_REQUESTS}.OrderTests.test_one_at_a_time"}),
    ("leases-begin-anew", "each leader begins with the whole lease of a process that is silent", (
        Patch(_DESK, "left_ms = part.lease_ms - part.silent_ms", "left_ms = part.lease_ms"),
    ), {"test": "tests.sim.test_leases.StormTests.test_leases_of_the_dead_end"}),
    ("silence-in-large-steps", "leaders that last a third of a lease note nothing of it", (
        Patch(_DESK, "not count.is_heard and is_old()", "False"),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_leases_end_under_many_leaders"}),
    ("silence-outlives-a-renewal", "a process that comes back has what was left when it was silent", (
        Patch(_DESK, "if part.silent_ms or request.name in self._leases.doubtful:", "if False:"),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_a_silent_process_that_comes_back_has_its_whole_lease"}),
    ("silence-outlives-a-commit", "a commit that changes nothing leaves the rest of a lease", (
        Patch(_DESK, "if part is not None and (part.silent_ms or (", "if part is not None and (("),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_a_silent_process_that_comes_back_has_its_whole_lease"}),
    ("renewal-before-an-unknown-end", "a renewal is answered though an entry that ends the lease may come", (
        Patch(_DESK, "if error.code not in UNKNOWN_OUTCOMES:", "if True:"),
    ), {"test": f"{_REQUESTS}.LeaseTests.test_a_renewal_outlasts_what_is_not_known"}),
    ("expiry-before-readers", "expiry deletes entries that a reader has not done", (
        Patch("dledger.node.handlers", "self.machine.needed_index, readers, ", "self.machine.needed_index, "),
    ), {"test": f"{_REQUESTS}.KeepingTests.test_entries_that_readers_need_stay"}),
    ("handed-out-without-lease", "a client hands out entries after a pause longer than its lease", (
        Patch(_CLIENT, "        if self._problem is None and self.must_check:\n", "        if False:\n"),
    ), {"test": "tests.client.test_readers.LeaseTests.test_asks_before_it_hands_out"}),
)
