# -*- test-case-name: tests.sim.test_mutants -*-
"""
Bugs that other products had, put back into ours; docs/history.md has their stories.

A name begins with the product and the number of the issue. Where an ordinary mutant is the same bug, there is
none here, and docs/history.md names that one. A row is name, sentence, patches and the other fields of
L{tests.mutants.catalogue.Mutant}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tests.mutants.patching import Patch

HANDLER = "dledger.core.replication.handler"
MEMBER = "dledger.core.state.member_state"
REPLICA = "dledger.core.replica"
DISPATCHER = "dledger.core.replication.dispatcher"
SEGMENT = "dledger.base.disk.segment"
VIEW = "dledger.rocketmq.replication.master"

HistoryRow: TypeAlias = tuple[str, str, tuple[Patch, ...], Mapping[str, object]]

HISTORY_MUTANTS: tuple[HistoryRow, ...] = (
    ("dledger-52", "the term of the last entry is the member's own, as soon as it has written one", (
        Patch(MEMBER, "        self.ledger_end_term = ends.end_term\n",
              "        self.ledger_end_term = ends.end_term\n"
              "        if self.out.now_ms and self.ledger_end_term >= 0:\n"
              "            self.ledger_end_term = self.term\n"),
    ), {"script": "dledger_52_end_term"}),
    ("dledger-61", "an idle leader does not compare a follower that is back", (
        Patch(HANDLER, "ResponseCode.SUCCESS if self._is_in_step_here else ResponseCode.INCONSISTENT_STATE",
              "ResponseCode.SUCCESS"),
        Patch("dledger.core.leadership", "            dispatcher.reconnected()\n", "            pass\n"),
        Patch(DISPATCHER,
              "        if request_id in self._inflight:\n            self._is_unreachable = True\n",
              "        self._inflight.pop(request_id, None)\n"
              "        if False:\n            self._is_unreachable = True\n"),
        Patch(DISPATCHER, "        if self.member.out.now_ms - oldest.sent_ms >= patience:\n",
              "        if oldest.type is PushType.COMMIT:\n            self._forget_inflight()\n"
              "        elif self.member.out.now_ms - oldest.sent_ms >= patience:\n"),
    ), {"script": "dledger_61_idle_leader"}),
    ("dledger-282", "a push that finds the table of waiting ones full waits for ever", (
        Patch(HANDLER, "elif len(self._answers) >= self._durable.capacity:\n            self._answer("
              "token, request, ResponseCode.PUSH_REQUEST_IS_FULL)\n",
              "elif len(self._answers) >= self._durable.capacity:\n            pass\n"),
    ), {"settings": {"flush_disk_type": "sync", "max_queued_pushes": 2, "max_batch_push_count": 1},
        "group": {"flush_us": 50_000}, "load": {"think_us": 100_000}}),
    ("dledger-316", "a TRUNCATE of the leader cuts committed entries", (
        Patch(HANDLER, "        if cuts_committed or index < self.matched_index:\n", "        if False:\n"),
        Patch("dledger.storage.store.store_cuts", "        if first_gone <= committed:\n",
              "        if False:\n"),
    ), {"script": "w14_truncate_below_commit"}),
    ("dledger-325", "a leader takes no term from an answer: who is ahead in term stays outside", (
        Patch(REPLICA, "            self._pass_term_gate(response.term, type(response).__name__)\n",
              "            pass\n"),
    ), {"script": "dledger_325_isolated"}),
    ("dledger-331", "a push whose answer was lost is repeated for ever, and refused as repeated", (
        Patch(DISPATCHER, "setbacks=self._setbacks, match_index=self.match_index)\n        self.restart()\n",
              "setbacks=self._setbacks, match_index=self.match_index)\n"
              "        if self.state is not DispatcherState.APPEND:\n            return self.restart()\n"
              "        self._forget_inflight()\n        self.write_index = self.match_index + 1\n"),
        Patch(HANDLER, "if entries.last_index <= self.matched_index and self._holds_all(entries):",
              "if False:"),
    ), {"script": "dledger_331_lost_answer"}),
    ("rocketmq-3015", "any number that a slave reports counts as an acknowledgement", (
        Patch(VIEW, "            if offset > end:\n", "            if False:\n"),
        Patch(VIEW, "        elif offset > self.transfer_offset:\n", "        elif False:\n"),
    ), {"test": "tests.broker.ha.test_master"}),
    ("rocketmq-3388", "a slave whose next offset the master does not hold is sent heartbeats for ever", (
        Patch(VIEW, "            if offset > end:\n", "            if False:\n"),
        Patch(VIEW, "            if 0 < offset < begin:\n", "            if False:\n"),
        Patch(VIEW, "if self.transfer_offset >= 0 and not begin_offset <= ",
              "if False and not begin_offset <= "),
    ), {"test": "tests.broker.ha.test_slave_view"}),
    ("rocketmq-10666", "a slave that cuts its log leaves the bytes after the cut", (
        Patch(SEGMENT, "self.zero(position, end if written_end is None else min(end, written_end))", "pass"),
    ), {"test": "tests.broker.store.test_log_recovery"}),
    ("pysyncobj-overlap", "a push of known entries cuts the entries after them", (
        Patch(HANDLER, "        elif entries.first_index < next_index:\n"
              "            self._answer_known(token, request, entries)\n",
              "        elif entries.first_index < next_index:\n"
              "            self._writing = (token, request)\n"
              "            self.member.out.write(fx.TruncateLedger(entries=entries))\n"),
    ), {"search": {"is_atomic": True, "messages_max": 2, "crashes": 0, "late": 0, "twice": 1, "terms_max": 1,
                   "entries_max": 4, "pushes": 2}}),
)
