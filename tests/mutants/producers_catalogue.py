# -*- test-case-name: tests.sim.test_mutants -*-
"""
Mutants of what a group knows beside its entries: each makes an entry come twice, go, belong to another
producer, or be reported too early, or a state count that is not that of the log. Of the mutated packages this
module knows only their text.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants.patching import Patch

_STATE = "dledger.values.ledger.group_state"
_ORIGINS = "dledger.core.replication.appends"
_APPENDS = "dledger.core.replication.appends"
_RECORDS = "dledger.storage.files.records"
_FILE = "dledger.storage.files.state_file"
_KEEPER = "dledger.storage.store.state_keeper"
_FETCH = "dledger.node.requests.group_states"
_OWN = "protocols.wire.ledger.own.own_entries"
_FOLDS = "tests.base.test_group_state"
_UNFIT = f"{_FOLDS}.ProducerTests.test_what_does_not_fit_is_refused_whole"
_KEEPING = "tests.storage.test_state_keeper"
_WORD = "tests.core.test_machine_claims"
_TAKING = "tests.core.test_origins.OriginTests"
_FETCHING = "tests.node.test_group_states"
_DIGESTS = "dledger.node.work.state_digests"
_DIGESTING = "tests.node.test_state_digests"

_EXACT: Mapping[str, object] = {"exact": 1.0, "appends": 0.9, "bodies_max": 3, "think_us": 200_000}
_DIGITS = Patch(_STATE, "        if (producer.last + 1 ^ marked.channel) & DIGITS_MASK:\n",
                "        if False:\n")

PRODUCER_MUTANTS: tuple[tuple[str, str, tuple[Patch, ...], Mapping[str, object]], ...] = (
    ("share-of-an-owner", "one account or address takes the room of all producers", (
        Patch(_STATE, "            is_over = self._ahead.held_bytes(owner) + begun[1]",
              "            is_over = 0 * self._ahead.held_bytes(owner) + begun[1]"),
    ), {"test": "tests.base.test_group_state.AgeTests.test_bytes_of_each_owner"}),
    ("share-within-a-write", "producers that begin in one write do not count for a share", (
        Patch("dledger.core.replication.appends", "            self._begun_bytes += cost\n", ""),
        Patch("dledger.core.replication.appends", "self._begun.get(origin.owner, 0) + cost\n", "0\n"),
    ), {"test": "tests.core.test_origins.OriginTests.test_a_share_of_the_table"}),
    ("sequence-of-another-account", "an account is reported the sequences of another one", (
        Patch("dledger.node.work.reads", "        if known is not None and not may_use(",
              "        if False and not may_use("),
    ), {"test": "tests.node.test_reads.SequenceTests.test_of_another_account"}),
    ("never-for-forgotten", "a producer that may be forgotten is reported as one that never was", (
        Patch("dledger.node.work.reads", "        elif known is None and group.state.has_forgotten:\n",
              "        elif False:\n"),
    ), {"test": "tests.node.test_reads.SequenceTests.test_never_and_forgotten"}),
    ("producers-not-read-at-start", "a start does not fold the entries after the state of the file", (
        Patch(_KEEPER, "                fold.take(marks)\n                fold.commit(",
              "                fold.commit("),
    ), {
        "load": {**_EXACT, "patience_us": 20_000_000},
        "faults": ("cut_power_everywhere", "break_late", "kill"),
        "settings": {"flush_disk_type": "sync"}, "pace_s": 0.8,
    }),
    ("pushed-producers-not-noted", "a follower does not fold the entries of its leader", (
        Patch(_RECORDS, " if found.chain_crc else (),", " if False else (),"),
        Patch(_RECORDS, "        if channel else (),\n", "        if False else (),\n"),
        Patch(_RECORDS, "        if channel and chain_crc:\n            add_mark(marked, ",
              "        if False:\n            add_mark(marked, "),
    ), {"load": _EXACT, "faults": ("cut_client", "transfer", "break_late")}),
    ("repeat-reported-before-commit", "an entry that is not committed is the answer to a repeated append", (
        Patch(_ORIGINS, "        if index + found - 1 > member.committed_index:\n", "        if False:\n"),
    ), {"load": _EXACT, "faults": ("isolate", "cut_client", "split", "kill")}),
    ("repeats-taken-as-new", "a leader does not look for the body of a producer in its log", (
        Patch(_ORIGINS, "        if verdict.known is Known.NEW:\n",
              "        if verdict.known in (Known.NEW, Known.REPEATED):\n"), _DIGITS,
    ), {"load": _EXACT, "faults": ("cut_client", "break_late")}),
    ("gaps-taken", "a body of a producer is taken though the one before is missing", (
        Patch(_STATE, "Known.NEW if number == last + 1 else Known.GAP", "Known.NEW"),
    ), {"test": f"{_FOLDS}.ProducerTests.test_each_number_is_taken_once"}),
    ("another-body-acknowledged", "a number is acknowledged that another body has", (
        Patch(_ORIGINS, "        if any(one != other for one, other in zip(",
              "        if False and any(() in zip("),
    ), {"load": {"numbered": 0.9, "appends": 0.9, "think_us": 100_000}, "faults": ("kill", "isolate")}),
    ("another-time-is-another-body", "the time in an envelope makes another body of a retry", (
        Patch(_ORIGINS, "zip(map(without_time, proposal.bodies), there", "zip(proposal.bodies, there"),
    ), {"test": f"{_TAKING}.test_another_body_is_refused"}),
    ("expired-body-acknowledged", "a number is acknowledged whose entry nobody can compare any more", (
        Patch(_ORIGINS, "        if index < view.ends.begin_index:\n", "        if False:\n"),
    ), {"test": f"{_TAKING}.test_an_expired_body"}),
    ("own-entries-in-conflict", "an entry of the log's own makes an append with an expected end fail", (
        Patch(_APPENDS, "end_index if bodies else member.view.last_program_index", "end_index"),
    ), {"test": f"{_TAKING}.test_own_entries_are_no_conflict"}),
    ("numbers-without-a-state", "a leader that does not know its producers takes the bodies of one", (
        Patch(_ORIGINS,
              "            return self._answer(proposal, ResponseCode.LEADER_NOT_READY)\n        session",
              "            return None\n        session"),
    ), {"test": f"{_TAKING}.test_nothing_is_taken_while_the_state_is_not_known"}),
    ("stands-first-without-producers", "a member that does not know its producers stands as soon as others", (
        Patch("dledger.core.state.member_state", " or self.view.group is None", ""),
    ), {"test": f"{_WORD}.FollowerTests.test_a_member_without_producers_is_a_candidate_last"}),
    ("foreign-producer-taken", "an account appends with the id of a producer of another one", (
        Patch(_STATE, "        if not may_use(producer.owner, owner):\n", "        if False:\n"),
    ), {"test": f"{_TAKING}.test_an_id_belongs_to_its_account"}),

    # -- the fold
    ("second-session", "a session entry binds a slot, or a producer, that has a session", (
        Patch(_STATE, "            if self.in_slot(slot) is not None or self.producer(name) is not None:\n",
              "            if False:\n"),
    ), {"test": _UNFIT}),
    ("sessions-of-one-slot", "one session entry binds two producers to one slot", (
        Patch(_STATE, "        if len(slots) < len(sessions) or len(names) < len(sessions):\n",
              "        if False:\n"),
    ), {"test": _UNFIT}),
    ("digits-not-checked", "the digits of a number are not compared with the next number", (
        _DIGITS,
    ), {"test": _UNFIT}),
    ("later-kinds-passed", "an entry of the log's own of a later kind is left out of the fold", (
        Patch(_STATE, "    if channel not in OWN_KINDS:\n", "    if False:\n"),
    ), {"test": _UNFIT}),
    ("unfit-write-half-taken", "of a write that does not fit, the first entries are in the fold", (
        Patch(_STATE, "                self.cut(marks[0].first_index)\n", "                pass\n"),
    ), {"test": _UNFIT}),
    ("cut-numbers-stay", "numbers whose entries were cut count", (
        Patch(_KEEPER, "        if self.fold is not None:\n            self.fold.cut(first_gone)\n", ""),
    ), {"load": _EXACT, "faults": ("isolate", "cut_client", "split", "kill", "break_late")}),
    ("run-committed-whole", "a run of which a part is committed counts whole", (
        Patch(_STATE, "            if rest > 0:\n", "            if False:\n"),
    ), {"settings": {"flush_disk_type": "sync", "max_batch_push_count": 2, "max_inflight_pushes": 2},
        "faults": ("depose", "depose", "stop", "stop", "isolate"), "pace_s": 2.0,
        "load": {"clients": 3, "think_us": 80_000, "appends": 0.9, "exact": 0.7, "bodies_max": 12},
        "group": {"is_native": True, "hides_wire_version": False, "flush_us": 500_000}}),
    ("old-runs-guessed", "a number before those that are remembered one by one has a place", (
        Patch(_STATE, "        return Verdict(Known.FORGOTTEN, last=last)\n",
              "        return Verdict(Known.REPEATED, producer.runs[0].first_index, 1, last)\n"),
    ), {"test": f"{_FOLDS}.ProducerTests.test_old_runs_have_no_place"}),
    ("marked-in-columns-by-the-first", "of entries of one size all are of the producer of the first one", (
        Patch(_RECORDS, "        if channels[end : end + size] == tuple(range(base | following, "
              "(base | following) + size)):\n", "        if channels[end] > 0:\n"),
    ), {"test": "tests.storage.test_marks.AlikeTests"}),
    ("java-entry-numbered", "an entry that a Java leader wrote counts as one of a producer", (
        Patch(_RECORDS, "        if channel and chain_crc:\n            add_mark(marks, ",
              "        if channel:\n            add_mark(marks, "),
    ), {"test": "tests.storage.test_marks.AlikeTests.test_of_java_nothing_is_marked"}),
    ("java-entry-hidden", "an entry that a Java leader wrote is left out by readers", (
        Patch(_OWN, "    return chain_crc != 0 and (channel < 0 or channel >= HIDDEN)\n",
              "    return channel < 0 or channel >= HIDDEN\n"),
    ), {"test": "tests.wire.test_own_entries.RuleTests.test_of_java"}),
    ("sink-markers-shown", "readers are shown what a producer wrote for itself", (
        Patch(_OWN, "(channel < 0 or channel >= HIDDEN)", "channel < 0"),
    ), {"test": "tests.wire.test_own_entries.RuleTests.test_channels"}),

    # -- forgetting
    ("full-table-takes-more", "the table of producers has no bound", (
        Patch(_STATE, "            if self._ahead.producer_bytes + begun[0] + more > PRODUCER_BYTES_MAX:\n",
              "            if False:\n"),
    ), {"test": f"{_FOLDS}.ProducerTests.test_full_is_a_refusal_and_pushes_nobody_out"}),
    ("age-falls", "a clock that was set back makes the group younger", (
        Patch(_STATE, "min(max(entry.clock_ms - self.clock_ms, 0), AGE_STEP_MS)",
              "min(entry.clock_ms - self.clock_ms, AGE_STEP_MS)"),
    ), {"test": f"{_FOLDS}.AgeTests.test_one_entry_counts_an_hour_at_most"}),
    ("age-clock-falls", "leaders whose clocks differ make producers old by turns", (
        Patch(_STATE, "        self.clock_ms = max(self.clock_ms, entry.clock_ms)\n",
              "        self.clock_ms = entry.clock_ms\n"),
    ), {"test": f"{_FOLDS}.AgeTests.test_one_entry_counts_an_hour_at_most"}),
    ("age-jumps", "a clock that jumps ahead makes all producers old", (
        Patch(_STATE, "min(max(entry.clock_ms - self.clock_ms, 0), AGE_STEP_MS)",
              "max(entry.clock_ms - self.clock_ms, 0)"),
    ), {"test": f"{_FOLDS}.AgeTests.test_one_entry_counts_an_hour_at_most"}),
    ("used-producers-go", "producers are forgotten by the age of their session", (
        Patch(_STATE, "        return producer.wrote(marked.first_index, marked.entries, self.age_ms)\n",
              "        return producer.wrote(marked.first_index, marked.entries, producer.used_ms)\n"),
    ), {"test": f"{_FOLDS}.AgeTests.test_the_quiet_ones_go"}),
    ("forgotten-called-never-seen", "a producer that may have been forgotten is said to be unknown", (
        Patch(_STATE, "                is_sure = not self._ahead.has_forgotten\n",
              "                is_sure = True\n"),
    ), {"test": f"{_FOLDS}.AgeTests.test_the_quiet_ones_go"}),
    ("may-have-forgotten-nobody", "it is said that nobody was forgotten", (
        Patch(_STATE, "        return self._ahead.has_forgotten and self._ahead.producer(name) is None\n",
              "        return False\n"),
    ), {"test": f"{_FOLDS}.AgeTests.test_the_quiet_ones_go"}),
    ("aged-at-each-look", "a leader writes age entries all the time", (
        Patch("dledger.node.requests.aging", "clock_ms - group.clock_ms < AGE_STEP_MS", "False"),
    ), {"test": "tests.node.test_aging.AgingTests.test_an_entry_an_hour"}),

    # -- the file
    ("state-of-another-log", "a state counts that names another entry of this place", (
        Patch(_KEEPER, "ledger.end_index and place == self._place_of(place.entry_index)", "ledger.end_index"),
    ), {"test": f"{_KEEPING}.StartTests.test_a_file_of_another_directory_is_void"}),
    ("state-before-another-begin", "a state counts before an entry that does not follow it", (
        Patch(_KEEPER,
              "        return decode_header(head).chain_crc in (0, chain_of(head, place.chain_crc))\n",
              "        return True\n"),
    ), {"test": f"{_KEEPING}.InstallTests.test_a_state_of_another_log_is_refused"}),
    ("void-state-counts", "a void state of the file counts as one of the two that let the log go", (
        Patch(_KEEPER, "                    self._file.void(one.generation)\n", "                    pass\n"),
    ), {"test": f"{_KEEPING}.ExpiryTests.test_a_void_state_keeps_the_log"}),
    ("state-beyond-the-disk", "a state is written for an entry that is not on stable storage", (
        Patch(_KEEPER, "captured is not None and captured[1].entry_index <= self._marks.durable.index",
              "captured is not None"),
    ), {"test": f"{_KEEPING}.ExpiryTests.test_a_state_waits_for_the_disk"}),
    ("state-beyond-the-commit", "a state counts entries that are not committed", (
        Patch("dledger.storage.store.file_store", "                fold.commit(committed_index)\n",
              "                fold.commit(ledger.end_index)\n"),
    ), {"load": _EXACT, "faults": ("isolate", "cut_client", "split", "kill", "break_late")}),
    ("log-goes-before-the-state", "the log is deleted though the file has no later state", (
        Patch(_KEEPER, "        return not self._is_wanted\n", "        return True\n"),
    ), {"test": f"{_KEEPING}.ExpiryTests.test_without_a_state_nothing_expires"}),
    ("one-state-is-enough", "the log is deleted though one slot of the file alone has a later state", (
        Patch(_FILE, "        return min(self._indexes)\n", "        return max(self._indexes)\n"),
    ), {"test": f"{_KEEPING}.ExpiryTests.test_either_state_is_enough"}),
    ("newer-state-overwritten", "a state is written in the place of the newer one", (
        Patch(_FILE, "slot = int(self._generations[1] < self._generations[0])",
              "slot = int(self._generations[1] > self._generations[0])"),
    ), {"test": "tests.storage.test_state_file.FileTests.test_the_last_two_are_there"}),

    # -- states of others
    ("state-taken-up-early", "a state counts whose entry is not known to be committed here", (
        Patch(_KEEPER, "        if place.entry_index > ledger.committed_index:\n", "        if False:\n"),
    ), {"test": f"{_KEEPING}.InstallTests.test_a_state_of_this_log_counts"}),
    ("state-taken-up-and-lost", "a state of another member is not written to the disk", (
        Patch(_KEEPER, "        self._is_wanted = True  # (Members",
              "        self._is_wanted = False  # (Members"),
    ), {"test": f"{_KEEPING}.InstallTests.test_it_is_soon_on_the_disk"}),
    ("no-state-is-an-empty-one", "a log that begins later begins with an empty state", (
        Patch(_KEEPER, "        elif begin_index > 0:\n", "        elif False:\n"),
    ), {"load": {**_EXACT, "body_bytes_max": 100},
        "settings": {"mapped_file_size_for_entry_data": 1024, "retention_bytes": 3072},
        "faults": ("wipe_late", "wipe_late", "outlast", "transfer"), "pace_s": 1.0}),
    ("transfer-begins-anew", "a state that is longer than the quota never comes", (
        Patch(_FETCH, "        elif self._whole is not None:\n            self._ask_next()\n", ""),
    ), {"test": f"{_FETCHING}.FetchTests.test_a_quota_that_is_smaller_than_the_state"}),
    ("pieces-of-two-states", "the next piece is one of a newer state", (
        Patch(_FETCH, "self._newest() if request.index < 0 else", "self._newest() if True else"),
    ), {"test": f"{_FETCHING}.OfferTests.test_pieces_are_of_one_state"}),
    ("piece-not-compared", "a piece of a state that was damaged on its way is taken", (
        Patch(_FETCH, " or crc32(answer.data) != answer.crc or (", " or ("),
    ), {"test": f"{_FETCHING}.FetchTests.test_damage_on_the_way_is_noticed"}),
    ("state-unknown-for-ever", "the state stays unknown though the hole after it is mended", (
        Patch(_KEEPER, "        if self._ledger.holes.end_index < self._folds_from:\n",
              "        if False:\n"),
    ), {"test": f"{_KEEPING}.HoleTests.test_a_hole_that_may_name_producers"}),
    ("fold-of-what-rots", "the state is folded from records that nobody has checked", (
        Patch(_KEEPER, "read_range(index, end_index=self", "read_unchecked(index, end_index=self"),
    ), {"test": f"{_KEEPING}.HoleTests.test_damage_that_only_the_fold_meets"}),
    # -- large states, digests, and the order to begin anew
    ("captured-page-changes", "a page of producers changes though a capture has it", (
        Patch(_STATE, "        if page is None or number in self._captured:\n", "        if page is None:\n"),
    ), {"test": f"{_FOLDS}.CaptureTests.test_a_capture_does_not_change"}),
    ("state-encoded-at-once", "a large state becomes bytes in one turn", (
        Patch(_FILE, "            if done >= STEP_BYTES:\n                return False\n", ""),
    ), {"test": f"{_FETCHING}.OfferTests.test_no_turn_does_much"}),
    ("state-decoded-at-once", "the producers of a large state are read in one turn", (
        Patch(_FILE, "        at = runs_end\n        if at >= step_end:\n",
              "        at = runs_end\n        if False:\n"),
    ), {"test": f"{_FETCHING}.OfferTests.test_no_turn_does_much"}),
    ("digest-of-a-minority", "a digest is in the log though no majority has it", (
        Patch(_DIGESTS, "            if count >= needed:\n", "            if True:\n"),
    ), {"test": f"{_DIGESTING}.LeaderTests.test_a_minority_confirms_nothing"}),
    ("wrong-state-kept", "a member whose state differs goes on with it", (
        Patch(_DIGESTS, "        self._void(why)\n", ""),
    ), {"test": f"{_DIGESTING}.MemberTests.test_a_follower_that_differs"}),
    ("wrong-leader-stays", "a leader that has dropped its state does not hand over", (
        Patch(_DIGESTS, "            self._hand_over(heir)\n", "            pass\n"),
    ), {"test": f"{_DIGESTING}.MemberTests.test_a_leader_that_differs"}),
    ("wrong-file-stays", "a state that was dropped is found again by the next start", (
        Patch(_KEEPER, "            self._is_void = True  # (The",
              "            self._is_void = False  # (The"),
    ), {"test": f"{_KEEPING}.VoidTests.test_a_flush_brings_it_back_to_nobody"}),
    ("state-lost-by-an-order", "the state begins anew though another member has it", (
        Patch("dledger.node.requests.state_orders", "                if await _knows(asking):\n",
              "                if False:\n"),
    ), {"test": "tests.node.test_state_orders.OrderTests.test_another_member_has_it"}),
    ("begins-anew-by-a-cut-order", "an order to begin anew counts though it was cut", (
        Patch(_KEEPER, "        if self._anew >= first_gone:\n", "        if False:\n"),
    ), {"test": f"{_KEEPING}.BeginAnewTests.test_a_cut_takes_it_back"}),
    ("begins-anew-with-new-ones", "after an order to begin anew a producer is said to be certainly new", (
        Patch(_STATE, "        self.producer_bytes = 0\n        self.has_forgotten = True\n",
              "        self.producer_bytes = 0\n"),
    ), {"test": f"{_FOLDS}.BeginAnewTests.test_nobody_is_certainly_new"}),
)
