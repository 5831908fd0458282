# -*- test-case-name: tests.sim.test_mutants -*-
"""Mutants of state machines. Of the mutated packages this module knows only their text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.mutants.patching import Patch

_FILE = "dledger.storage.files.snapshot_file"
_DIRECTORY = "dledger.machine.files.snapshots"
_RUNNER = "dledger.machine.runner"
_GUARD = "dledger.machine.guarded"
_REACH = "dledger.machine.log_reach"
_DESK = "dledger.machine.requests"
_CLIENT = "dledger.client.commands"
_SKIPS = "tests.machine.test_skips"
_COMMANDS = "dledger.client.commands"
_CLIENT_TESTS = "tests.client.test_machines.SubmitTests"
_REQUESTS = "tests.machine.test_requests"

#: The fields of dledger.testing.group.short_logs.SHORT_LOGS; a test compares them.
SHORT_LOGS: Mapping[str, Any] = {
    "settings": {
        "flush_disk_type": "sync", "mapped_file_size_for_entry_data": 1024,
        "machine_snapshot_entries": 10,
        "machine_keep_entries": 1, "peer_push_quota": 6000, "retention_bytes": 0,
        "enable_disk_force_clean": False, "file_reserved_hours": 0,
    },
    "faults": (
        "isolate", "kill", "kill", "wipe", "wipe", "lose_power_inside", "kill_inside", "change_members",
        "pause",
    ),
    "pace_s": 2.0,
    "load": {
        "clients": 3, "think_us": 100_000, "appends": 0.5, "submits": 0.5, "queries": 0.2, "poison": 0.01,
        "body_bytes_max": 100,
    },
    "group": {"has_machines": True, "is_native": True, "hides_wire_version": False},
}
_FETCH = "dledger.machine.files.fetching"
_SNAPSHOT_DESK = "dledger.node.requests.snapshots"
_INSTALLS = "tests.machine.test_fetching"
_DROPS = "tests.node.test_snapshots.DropTests"

MACHINE_MUTANTS: tuple[tuple[str, str, tuple[Patch, ...], Mapping[str, object]], ...] = (
    ("snapshot-named-too-early", "a snapshot gets its name before it is on stable storage", (
        Patch(_FILE, "        file.datasync()\n        return at", "        return at"),
    ), {"test": "tests.machine.test_snapshots.CrashTests"}),
    ("snapshot-end-not-checked", "a snapshot that is cut between two pieces is taken for a whole one", (
        Patch(_FILE, "    if (reported, all_bytes) != (crc, total):", "    if False:"),
    ), {"test": "tests.machine.test_snapshots.SnapshotTests.test_every_cut_and_bit"}),
    ("snapshot-of-any-log", "a snapshot of another log is taken up", (
        Patch(_REACH, "    if (entry.term, chain_crc) != (", "    if False and (entry.term, chain_crc) != ("),
    ), {"test": "tests.machine.test_runner.SnapshotTests"}),
    ("refused-snapshot-replaced", "a snapshot that was refused is overwritten", (
        Patch(_DIRECTORY, "            disk.rename(path, f\"{path}.refused-{number}\")",
              "            disk.unlink(path)"),
    ), {"test": "tests.machine.test_snapshots.SnapshotTests.test_a_refused_snapshot_keeps_the_older"}),
    ("half-restored-machine", "a machine that could not restore a snapshot goes on with half of it", (
        Patch(_RUNNER, "                    break\n                self._renew()\n",
              "                    break\n                self._kept = KeptResults()\n"),
    ), {"test": "tests.machine.test_runner.SnapshotTests.test_each_try_has_a_new_machine"}),
    ("exit-is-no-failure", "a machine that raises what is no Exception passes the guard", (
        Patch(_GUARD, "except BaseException as error:\n                raise _failed_at(entry.index",
              "except Exception as error:\n                raise _failed_at(entry.index"),
    ), {"test": "tests.machine.test_runner.FailureTests.test_any_exception_is_a_failure"}),
    ("failed-entry-is-applied", "the entries of a batch after one that failed count as applied", (
        Patch(_RUNNER, "if one[0].index < failed_index]", "if failed_index]"),
    ), {"test": "tests.machine.test_runner.FailureTests.test_any_exception_is_a_failure"}),
    ("snapshot-of-failed-machine", "a snapshot is finished though the machine has failed", (
        Patch(_RUNNER, "        return self.in_doubt if self.state == \"running\" else",
              "        return self.in_doubt if self.state != \"stopped\" else"),
    ), {"test": "tests.machine.test_runner.FailureTests.test_any_exception_is_a_failure"}),
    ("cut-snapshot-restored", "a machine that catches an error of its snapshot goes on with half of it", (
        Patch(_GUARD, "        walk.finish()", "        pass"),
    ), {"test": "tests.machine.test_runner.SnapshotTests.test_a_swallowed_error_stops_the_machine"}),
    ("snapshot-before-its-log", "a snapshot gets its name before the log is on stable storage", (
        Patch("dledger.machine.writing", "self._entries.members.flushed_index < last.index:", "False:"),
    ), {"test": "tests.machine.test_runner.SnapshotTests.test_name_waits_for_the_log"}),
    ("snapshot-ahead-of-log", "a snapshot is taken up before the log has come to its last entry", (
        Patch(_RUNNER, "        while not is_reached(self._entries, head):\n            if",
              "        while False:\n            if"),
    ), {"test": "tests.machine.test_runner.SnapshotTests.test_waits_for_the_log"}),
    ("lost-log-waited-for", "a snapshot of entries that are lost for good is waited for", (
        Patch(_RUNNER, "            if self._entries.members.is_settled and", "            if False and"),
    ), {"test": "tests.machine.test_runner.SnapshotTests.test_ahead_of_the_log"}),
    ("expiry-before-snapshot", "expiry deletes entries that are in no snapshot", (
        Patch("dledger.node.handlers", "(reads, self.machine.needed_index, readers, ", "(reads, readers, "),
    ), {"test": "tests.machine.test_runner.SnapshotTests.test_two_snapshots_are_kept"}),
    ("install-older-than-committed", "a snapshot older than what is committed is installed", (
        Patch(_FETCH, "        if answer.index < lowest_index:", "        if False:"),
    ), {"test": f"{_INSTALLS}.FetchTests"}),
    ("install-before-the-log", "a snapshot is shown before the log has come so far", (
        Patch(_RUNNER, " and not is_reached(self._entries, head):", " and False:"),
    ), {"test": f"{_INSTALLS}.FetchTests.test_waits_for_the_log"}),
    ("snapshot-index-of-later-state", "the index of a snapshot is that of its begin, its state a later one", (
        Patch("dledger.machine.writing", "            pieces = await chunks()\n",
              "            await self._run_in_thread(lambda: None)\n"
              "            pieces = await chunks()\n"),
    ), SHORT_LOGS),
    ("applied-twice-after-restart", "a machine that took up a snapshot applies its last entry again", (
        Patch(_RUNNER, "        self.applied_index = head.index\n",
              "        self.applied_index = head.index - 1\n"),
    ), SHORT_LOGS),
    ("entry-behind-snapshot-skipped", "a machine that took up a snapshot skips the next entry", (
        Patch(_RUNNER, "        self.applied_index = head.index\n",
              "        self.applied_index = head.index + 1\n"),
    ), SHORT_LOGS),
    ("piece-not-checked", "a damaged piece of a snapshot is written", (
        Patch(_FETCH, "    if crc32(data) != answer.crc:", "    if False:"),
    ), {"test": f"{_INSTALLS}.FetchTests.test_a_damaged_piece_is_refused"}),
    ("incoming-named-too-early", "a snapshot that was sent gets its name before it is on stable storage", (
        Patch(_DIRECTORY, "            file.datasync()\n", "            pass\n"),
    ), {"test": f"{_INSTALLS}.CrashTests"}),
    ("sent-snapshot-removed", "a snapshot is removed while it is sent", (
        Patch(_DIRECTORY, "            if old.index not in self.held and", "            if"),
    ), {"test": f"{_INSTALLS}.OfferTests.test_a_snapshot_stays_while_it_is_sent"}),
    ("drop-behind-newest", "the log goes after a snapshot that was not read again", (
        Patch(_DIRECTORY, "                self._checked(self._path_of(oldest), oldest.index, oldest.term)\n",
              "                pass\n"),
    ), {"test": f"{_INSTALLS}.ProvenTests"}),
    ("drop-without-snapshots", "the log is shortened though a member takes no snapshots", (
        Patch(_SNAPSHOT_DESK, "        if problems:", "        if False:"),
    ), {"test": f"{_DROPS}.test_a_java_member_prevents_dropping"}),
    ("drop-before-leader", "a follower drops what its leader still has", (
        Patch(_SNAPSHOT_DESK, "            index = min(index, self._leader_begin(status) - 1)",
              "            pass"),
    ), {"test": f"{_DROPS}.test_a_follower_drops_with_its_leader"}),
    ("snapshot-not-throttled", "snapshots are sent without a bound", (
        Patch(_SNAPSHOT_DESK, "        quota.spend(len(piece.data))\n", ""),
    ), {"test": "tests.node.test_snapshots.AnswerTests.test_the_quota_throttles_pieces"}),
    ("query-before-apply", "a linearizable query does not wait for the machine", (
        Patch(_DESK, "await machine.when_applied(await self._around.read_index())",
              "await self._around.read_index()"),
    ), {"test": f"{_REQUESTS}.QueryTests"}),
    ("young-followers", "a follower forgets that its leader may lead nobody", (
        Patch(_DESK, "- leader_committed_ms + self._patience_ms", "- leader_committed_ms"),
    ), {"test": f"{_REQUESTS}.AgeTests"}),
    ("machine-hogs-the-reactor", "a slow machine never gives way", (
        Patch(_RUNNER, "if self._clock.seconds() - began_s >= TURN_S:", "if False:"),
    ), {"test": "tests.machine.test_runner.FollowTests.test_a_slow_machine_gives_way"}),
    ("forgotten-result-awaited", "a repeated command whose result is not kept is answered as unknown", (
        Patch(_DESK,
              "            if appended.is_repeated and appended.index <= self._machine.applied_index:\n",
              "            if False:\n"),
    ), {"test": f"{_REQUESTS}.OnceTests.test_a_forgotten_result_is_not_made_again"}),
    ("forgotten-command-again", "a command that the log may have forgotten is appended again", (
        Patch(_DESK, "        group = self._around.group() if request.is_again else None",
              "        group = None"),
    ), {"test": f"{_REQUESTS}.OnceTests.test_a_doubtful_command_is_not_appended"}),
    ("late-wait-for-result", "a command shares its proposal, and waits after its entry was applied", (
        Patch("dledger.node.requests.appends",
              "self._propose_alone(None, None, (body,), None, origin, waiter)",
              "self._take(_Claim(None, None, waiter, 1, self._bodies.append(body) or len(body)))"),
    ), {"test": "tests.node.test_appends.CommandTests"}),
    ("lost-command-not-repeated", "a command whose answer was lost is not sent again", (
        Patch(_COMMANDS, "            was_lost = True\n            return True\n",
              "            return False\n"),
    ), {"test": f"{_CLIENT_TESTS}.test_a_program_repeats_its_command"}),
    ("lost-command-not-marked", "a leader does not learn that a command may be in the log", (
        Patch(_COMMANDS, "is_again=self.sender.is_maybe(frame)", "is_again=False"),
    ), {"test": f"{_CLIENT_TESTS}.test_a_command_is_applied_once"}),
    ("commands-beyond-memory", "more commands are under way than the group remembers", (
        Patch(_COMMANDS, "COMMANDS_MAX = RUNS_MAX\n", "COMMANDS_MAX = 2 * RUNS_MAX\n"),
    ), {"test": f"{_CLIENT_TESTS}.test_as_many_as_are_remembered"}),
    ("results-not-in-snapshot", "a snapshot has no results of clients", (
        Patch(_RUNNER, "self.machine, self._kept.encode(",
              "self.machine, KeptResults().encode("),
    ), {"test": "tests.machine.test_runner.SnapshotTests.test_results_are_in_the_snapshot"}),
    ("results-of-java", "an entry that a Java leader wrote counts as one of a producer", (
        Patch("dledger.machine.kept_results", "header.channel > 0 and header.chain_crc and",
              "header.channel > 0 and"),
    ), {"test": "tests.machine.test_kept_results.KeptTests.test_numbered_results_are_kept"}),
    ("refusal-stops-the-machine", "a command that a machine refuses stops it", (
        Patch(_GUARD, "            except RefusedCommand as refused:\n                results",
              "            except _Nothing as refused:\n                results"),
        Patch(_GUARD, "class _Walk:", "class _Nothing(Exception):\n    pass\n\n\nclass _Walk:"),
    ), {"test": f"{_SKIPS}.RefusedTests.test_a_raised_refusal_is_the_answer"}),
    ("refusal-is-a-result", "a client gets the reason of a refusal as a result", (
        Patch(_DESK, "machine.is_refusal(result):", "False:"),
    ), {"test": f"{_SKIPS}.RefusedTests.test_a_client_gets_the_refusal_again"}),
    ("skip-anything", "an entry is skipped at which no machine has failed", (
        Patch(_DESK, "        if failed_index != index:", "        if False:"),
    ), {"test": f"{_SKIPS}.SkipTests.test_a_skip_needs_a_failed_machine"}),
    ("skip-for-some", "a member whose state has a skipped entry keeps that state", (
        Patch("dledger.machine.skips",
              "                if index <= applied_index and index not in self.left_out:",
              "                if False:"),
    ), {"test": f"{_SKIPS}.SkipTests.test_an_applied_entry_is_taken_back"}),
    ("skip-not-in-snapshot", "a snapshot does not say that it was made without an entry", (
        Patch("dledger.machine.skips", "        self.left_out = passed.union(left_out)\n",
              "        self.left_out = passed\n"),
    ), {"test": f"{_SKIPS}.SkipTests.test_a_snapshot_says_what_it_skipped"}),
    ("skip-again", "a second order for the same entry makes a state anew that does not have it", (
        Patch("dledger.machine.skips", "                self._has_passed = True\n",
              "                self._has_passed = not self.left_out.discard(order_of(header, body))\n"),
    ), {"test": f"{_SKIPS}.SkipTests.test_a_second_order_changes_nothing"}),
    ("no-snapshot-behind-order", "no member has a snapshot after an order for those that need one", (
        Patch("dledger.machine.writing", "(self._is_wanted and bool(self._due_entries or self._due_bytes))",
              "False"),
    ), {"test": f"{_SKIPS}.SkipTests.test_behind_an_order"}),
    ("snapshot-with-skipped-entry", "a snapshot that has a skipped entry is taken up again and again", (
        Patch("dledger.machine.skips", "            if index <= last_index < order_index < UNSEEN and",
              "            if False and"),
    ), {"test": f"{_SKIPS}.SkipTests.test_snapshots_of_others"}),
    ("leads-without-state", "a leader whose machine has failed goes on", (
        Patch("dledger.core.election.transfer",
              "or member.peers.seeks_java_leader or member.peers.machine.is_unfit\n",
              "or member.peers.seeks_java_leader\n"),
    ), {"test": "tests.core.test_machine_claims.LeaderTests"}),
    ("leads-to-anybody", "a leader whose machine has failed hands over to any member", (
        Patch("dledger.core.state.beliefs", "if not is_needed or one in self._running)", "if one)"),
    ), {"test": "tests.core.test_machine_claims.LeaderTests"}),
    ("stands-first-without-state", "a member whose machine has failed stands as soon as others", (
        Patch("dledger.core.state.member_state", " or self.peers.machine.is_unfit or", " or"),
    ), {"test": "tests.core.test_machine_claims.FollowerTests"}),
    ("any-older-snapshot", "a snapshot of a version that the machine does not take is used", (
        Patch(_DIRECTORY, "        if not self.oldest_version <= head.machine_version <=",
              "        if not head.machine_version <="),
    ), {"test": "tests.machine.test_snapshots.SnapshotTests.test_foreign_snapshots_are_refused"}),
    ("old-version-answers", "a member with a lower version of the machine answers queries", (
        Patch(_DESK, "            if self._watch.outdated:\n", "            if False:\n"),
    ), {"test": f"{_REQUESTS}.WordTests"}),
    ("machine-in-the-reactor", "the machine runs in the reactor's thread", (
        Patch("dledger.machine.calls", "execute(run) if self._run is None else self._run(run)",
              "execute(run)"),
    ), {"test": "tests.machine.test_calls.ThreadTests.test_log_goes_on"}),
    ("two-batches-at-once", "a batch is handed over while the machine works on another", (
        # (Twice, not as often as there are batches: a batch stays the next one until it is done.)
        Patch(_RUNNER, "while self.state == \"running\" and not self.is_applying and "
                       "(self._ahead or self._read()):",
              "for _ in range(2 if self.state == \"running\" and (self._ahead or self._read()) else 0):"),
        Patch(_RUNNER, "self._call is None and not self.is_applying and", "self._call is None and"),
    ), {"test": "tests.machine.test_calls.ThreadTests.test_log_goes_on"}),
    ("query-of-half-a-state", "a query after a batch that failed is answered", (
        Patch(_GUARD, "        if self.failure:\n            raise DLedgerError(",
              "        if False:\n            raise DLedgerError("),
    ), {"test": "tests.machine.test_calls.ThreadTests.test_a_failure_answers_no_query"}),
    ("hang-not-reported", "nobody is informed of a call that lasts", (
        Patch(_RUNNER, "        self.calls.watch(self.machine)\n", ""),
    ), {"test": "tests.machine.test_calls.ThreadTests.test_a_long_call_is_reported"}),
    ("digests-not-compared", "members with different states do not notice", (
        Patch("dledger.machine.watch", "        if len(groups) == 1:\n", "        if True:\n"),
    ), {"test": "tests.machine.test_watch.WatchTests.test_different_digests_raise_doubt"}),
    ("machines-not-asked", "members never learn of the machines of others", (
        Patch(_SNAPSHOT_DESK, "        self._machines[peer_id] = answer.machine\n", "        pass\n"),
    ), {"test": "tests.node.test_snapshots.MachinesTests"}),
    ("majority-in-doubt", "the majority is in doubt as the minority is", (
        Patch("dledger.machine.watch",
              "        if 2 * len(mine) <= len(reported):\n", "        if True:\n"),
    ), {"test": "tests.machine.test_watch.WatchTests.test_different_digests_raise_doubt"}),
    ("snapshots-of-doubt", "a member whose state may be wrong finishes snapshots", (
        Patch(_RUNNER, "        return self.in_doubt if self.state", "        return \"\" if self.state"),
    ), {"test": "tests.machine.test_asked_snapshots.AskedTests"}),
    ("late-command-refused", "a command in the log without a result counts as refused", (
        Patch("dledger.machine.waiting",
              "    return DLedgerError(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, reason=reason)",
              "    return DLedgerError(ResponseCode.MACHINE_STOPPED, reason=reason)"),
    ), {"test": f"{_REQUESTS}.SubmitTests"}),
    ("exit-of-a-query", "a query that raises what is no Exception passes the guard", (
        Patch(_GUARD, "except BaseException as error:\n            reason = f\"query() raised",
              "except Exception as error:\n            reason = f\"query() raised"),
    ), {"test": "tests.machine.test_runner.FailureTests.test_a_failed_query_is_its_answer"}),
    ("batch-for-any-function", "a function that is not a generator gets many entries in one call", (
        Patch(_GUARD, "if self._takes_many else (entries[begin],)", "if True else (entries[begin],)"),
    ), {"test": "tests.machine.test_skips.RefusedTests.test_a_raised_refusal_is_the_answer"}),
    ("too-many-results", "more results than entries are taken", (
        Patch(_GUARD, "        self._end(walk, entries, results)\n", ""),
    ), {"test": "tests.machine.test_runner.FailureTests"}),
    ("long-result", "a result may have any length", (
        Patch(_GUARD, "    if len(result) > RESULT_BYTES_MAX:", "    if False:"),
    ), {"test": "tests.machine.test_runner.FailureTests"}),
    ("results-without-bound", "results of producers that are quiet for long are kept", (
        Patch("dledger.machine.kept_results", "        if self.held_bytes > RESULT_BYTES_IN_ALL:",
              "        if False:"),
    ), {"test": "tests.machine.test_kept_results.KeptTests.test_kept_results_are_bounded"}),
    ("clients-without-bound", "all producers that ever were are kept", (
        Patch("dledger.machine.kept_results", "        while len(self.slots) > SLOTS_MAX:",
              "        while False:"),
    ), {"test": "tests.machine.test_kept_results.KeptTests.test_kept_results_are_bounded"}),
    ("snapshot-at-any-place", "snapshots are not after the same entries at each member", (
        Patch("dledger.machine.writing", "return due - (applied_index + 1) % due if due > 0 else 1 << 62",
              "return 1 << 62"),
    ), {"test": "tests.machine.test_runner.SnapshotTests.test_members_snapshot_at_the_same_entries"}),
    ("hang-is-healthy", "a member whose machine hangs is healthy", (
        Patch("dledger.node.reporting.health", "status.machine.busy_s >= MACHINE_HANGS_S:", "False:"),
    ), {"test": "tests.machine.test_calls.ThreadTests.test_a_long_call_is_reported"}),
    ("failed-is-healthy", "a member whose machine has failed is healthy", (
        Patch("dledger.node.reporting.health", "status.machine.state == \"failed\":", "False:"),
    ), {"test": "tests.node.test_health"}),
    ("stop-waits-for-a-program", "a member whose machine never gives a snapshot cannot be stopped", (
        Patch("dledger.node.service", "await _within(machine.stop(), STOP_TIME_OUT_S, self._reactor)",
              "await machine.stop()"),
    ), {"test": "tests.machine.test_service.HostingTests.test_end_does_not_wait_for_ever"}),
    ("poison-applied", "an order to skip an entry is no order", (
        Patch("dledger.machine.skips", "    return index if index < header.index else -1\n",
              "    return -1\n"),
    ), SHORT_LOGS),
    ("last-state-dropped", "a member forgets the last state before an entry that it ordered to skip", (
        Patch(_DIRECTORY, "and old.index not in before:", ":"),
    ), {"test": f"{_SKIPS}.SkipTests.test_the_last_state_without_the_entry_is_kept"}),
    ("refused-counts-as-done", "the entry after one that is refused is not applied", (
        Patch(_GUARD, "                begin = len(results)\n",
              "                begin = len(results) + bool(results and results[-1] == b\"one in seven\")\n"),
    ), SHORT_LOGS),
    ("query-of-an-older-state", "a leader answers queries without making sure that it leads", (
        Patch(_DESK, "await machine.when_applied(await self._around.read_index())",
              "await machine.when_applied(status.committed_index)"),
    ), {**SHORT_LOGS, "faults": ("depose", "depose", "isolate", "pause"),
        "load": {**SHORT_LOGS["load"], "queries": 2.0, "think_us": 50_000}}),
    ("late-push-counts-as-new", "a push that waited for a process that was stopped counts as new", (
        Patch("dledger.core.replication.handler", "member.peers.leader_committed_ms = member.awake_ms",
              "member.peers.leader_committed_ms = member.out.now_ms"),
    ), {"test": "tests.core.test_handler"}),
    ("joiner-has-no-way", "a member that joins asks nobody, and never begins under a second leader", (
        Patch("dledger.core.replication.handler", " or not member.membership.voters:", ":"),
    ), {"test": "tests.core.test_witnesses.WitnessTests.test_no_voters_known"}),
    ("members-behind-the-end", "a list of members that comes by TRUNCATE is not followed", (
        Patch("dledger.storage.store.store_cuts",
              "            self._write(keep + 1, last_term, layout)\n            return",
              "            self._write(keep + 1, last_term, layout, lists=False)\n            return"),
    ), {"test": "tests.storage.test_configurations.CutTests.test_just_behind_the_end"}),
    ("machine-not-asked-for", "a leader without a machine is sent commands", (
        Patch(_CLIENT, "    if not member.has_machine:", "    if False:"),
    ), {"test": "tests.client.test_machines.SubmitTests.test_a_missing_machine_is_reported"}),
)
