# -*- test-case-name: tests.sim.test_mutants -*-
"""
Faults of brokers, one for each rule of POP, transactions, sends, offsets and deleted topics that a unit test
guards. A row is as in L{tests.mutants.history_catalogue}.
"""

from __future__ import annotations

from tests.mutants.history_catalogue import HistoryRow
from tests.mutants.patching import Patch

ACKS = "dledger.rocketmq.broker.consuming.popping.acks"
ADMIN = "dledger.rocketmq.broker.admin.commands"
COMMITS = "dledger.rocketmq.broker.consuming.commits"
DELETED = "dledger.rocketmq.store.deleted_topics"
OFFSET_TABLE = "dledger.rocketmq.metadata.offsets"
PULLS = "dledger.rocketmq.broker.consuming.pulls"
SCHEDULE = "dledger.rocketmq.broker.producing.delays.schedule"
STORE = "dledger.rocketmq.store.commit_log_store"
BEGINS = "dledger.rocketmq.broker.consuming.popping.first_offsets"
BOUNDS = "dledger.rocketmq.broker.consuming.offset_bounds"
COMMANDS = "dledger.rocketmq.broker.producing.transactions.commands"
COPY = "dledger.rocketmq.metadata.slave_synchronize"
CONSUMERS = "dledger.rocketmq.broker.consuming.consumers"
ENDS = "dledger.rocketmq.broker.producing.transactions.ends"
FILES = "dledger.rocketmq.metadata.files"
HALVES = "dledger.rocketmq.broker.producing.halves"
INDEX = "dledger.rocketmq.store.index.key_index"
JUDGE = "dledger.rocketmq.broker.producing.transactions.half_judge"
LOST = "dledger.rocketmq.broker.lost_topics"
LONG = "dledger.rocketmq.broker.producing.sending.sends"
MASTER = "dledger.rocketmq.replication.master"
IN_ORDER = "dledger.rocketmq.broker.consuming.popping.in_order"
OFFSETS = "dledger.rocketmq.broker.consuming.offset_commands"
ORDER_INFO = "dledger.rocketmq.metadata.order_info"
POPPED = "dledger.rocketmq.broker.consuming.popping.popped"
POPS = "dledger.rocketmq.broker.consuming.popping.pops"
PROPERTIES = "dledger.rocketmq.broker.producing.send_properties"
RETRIES = "dledger.rocketmq.broker.consuming.popping.retries"
REVIVE = "dledger.rocketmq.broker.consuming.popping.revive"
RULES = "dledger.rocketmq.broker.producing.rules"
TAKING = "dledger.rocketmq.broker.consuming.popping.taking"
TIMERS = "dledger.rocketmq.broker.producing.delays.timers"

HINTS = "dledger.base.disk.hints"
QUEUE = "dledger.rocketmq.store.queues.consume_queue"
RESYNC = "dledger.storage.start.resync"
_TABLE_TESTS = {"test": "tests.damage.test_file_table"}
_POP_TESTS = {"test": "tests.broker.popping.test_pops"}
_RETRY_TESTS = {"test": "tests.broker.popping.test_retries"}
_SEND_TESTS = {"test": "tests.broker.sending.test_sends"}
_END_TESTS = {"test": "tests.broker.transactions.test_ends"}
_TIMER_TESTS = {"test": "tests.broker.sending.test_timers"}
_ORDER_TESTS = {"test": "tests.broker.popping.test_in_order"}
_FILES_TESTS = {"test": "tests.broker.test_files_put_together"}
_COMMIT_TESTS = {"test": "tests.broker.consuming.test_commits"}
_AGAIN_TESTS = {"test": "tests.broker.test_topics_made_again"}
_BOUND_TESTS = {"test": "tests.broker.consuming.test_offset_bounds"}

BROKER_MUTANTS: tuple[HistoryRow, ...] = (
    ("index-files-not-counted", "an index that lacks a file before others is believed", (
        Patch("dledger.rocketmq.store.index.key_index",
              "        return sum(mark.first <= name <= mark.file for name in names) == needed\n",
              "        return True\n"),
    ), {"test": "tests.broker.store.test_key_index.EndTests.test_a_file_that_is_missing_before_others"}),
    ("index-without-mark-believed", "an index without a mark is believed though the log begins before it", (
        Patch("dledger.rocketmq.store.index.key_index",
              "                self._lower_to_begin()  # (Nothing says whether a file before it is "
              "missing.)\n",
              "                return\n"),
    ), {"test": "tests.broker.store.test_key_index.EndTests.test_a_file_that_is_missing_before_others"}),
    ("delay-level-of-lost-messages", "a new master passes over what has the numbers of lost messages", (
        Patch("dledger.rocketmq.broker.producing.delays.schedule",
              "            known = index_at(queue, self._bound)\n",
              ""),
    ), {"test": "tests.broker.sending.test_schedule"}),
    ("pop-begins-at-the-end", "a group that asks for the last message passes over a young queue", (
        Patch(BEGINS, "if is_first or self._is_young(queue, begin):", "if is_first:"),
    ), _POP_TESTS),
    ("pop-begin-not-kept", "what comes between the first pops of a group is passed over", (
        Patch(TAKING, "if pop.takes and not kind_of(topic) and firsts <= FIRSTS_MAX:", "if False:"),
    ), _POP_TESTS),
    ("pop-retry-of-anybody", "a group gets the retries of another whose name joins to the same", (
        Patch(RETRIES, "if origin != group and not (origin is None and is_only_ours):", "if False:"),
    ), _RETRY_TESTS),
    ("pop-retry-guessed", "a retry that does not name its group is given to each that may be meant", (
        Patch(RETRIES, "not (origin is None and is_only_ours)", "origin is not None"),
    ), _RETRY_TESTS),
    ("pop-old-acks", "a client that does not know the names with a plus acknowledges nothing", (
        Patch(ACKS, "if receipt.kind == 2:", "if False:"),
    ), _RETRY_TESTS),
    ("pop-unstorable", "a group pops messages whose retries cannot be stored", (
        Patch(RETRIES, "if size <= characters_max:", "if True:"),
    ), _RETRY_TESTS),
    ("pop-no-room", "a retry is stored without room for the receipt", (
        Patch(REVIVE, "if len(copy.properties_data) + RECEIPT_BYTES_MAX > PROPERTIES_BYTES_MAX:",
              "if False:"),
    ), _RETRY_TESTS),
    ("pop-stuck-finished", "a message that can be stored nowhere counts as done", (
        Patch(REVIVE, "ack = Ack(popped.point.key, tuple(sorted(popped.open - stuck)))",
              "ack = Ack(popped.point.key, tuple(sorted(popped.open)))"),
    ), _RETRY_TESTS),
    ("pop-lost-group", "popped messages are dropped if a crash took their group", (
        Patch(REVIVE, "        if self._past.is_over(popped):",
              "        if group is None or self._past.is_over(popped):"),
    ), {"test": "tests.broker.popping.test_revive.ReviveTests.test_a_lost_group_gets_its_messages"}),
    ("pop-filter-waits", "a filter that passes over messages looks on in the next second only", (
        Patch(POPS, "            if is_cut:\n", "            if False:\n"),
    ), _RETRY_TESTS),
    ("timer-note-lost", "the next master delivers again what was delivered at its time", (
        Patch(TIMERS, "        self._done.update(offsets)\n", ""),
    ), _TIMER_TESTS),
    ("timer-passes-over", "the next master begins after a message that waits for its time", (
        Patch(TIMERS, "first = self._places[0] if self._places else self._read_at", "first = self._read_at"),
    ), _TIMER_TESTS),
    ("timer-not-repeated", "a delivery at its time that the log refuses is lost", (
        Patch(TIMERS, """        if not status.is_stored:
            for one in taken:
                heapq.heappush(self._due, one)
""", """        if not status.is_stored:
"""),
    ), _TIMER_TESTS),
    ("recall-too-early", "a message that is recalled before the broker has read it is delivered", (
        Patch(TIMERS, "            if self._recalled.has(key, unit.offset):\n                continue\n", ""),
    ), {"test": "tests.broker.sending.test_recalls"}),
    ("timer-too-far", "a message waits for longer than its file of the log is kept", (
        Patch("dledger.rocketmq.broker.producing.delays.timed", "    if at_ms - now_ms > most_ms:\n",
              "    if False:\n"),
    ), {"test": "tests.broker.sending.test_timed"}),
    ("order-not-kept", "two consumers of a group get messages of a queue in order at a time", (
        Patch(IN_ORDER, "        return now_ms < info.free_ms() and", "        return False and"),
    ), _ORDER_TESTS),
    ("order-attempt-blocked", "an attempt whose answer is lost waits for its own messages", (
        Patch(IN_ORDER, "        if attempt and info.attempt == attempt:\n            return False\n", ""),
    ), _ORDER_TESTS),
    ("order-late-ack", "a receipt of an earlier pop acknowledges", (
        Patch(IN_ORDER, "info.pop_ms == key.pop_ms and offset in info.offsets", "offset in info.offsets"),
    ), _ORDER_TESTS),
    ("order-ack-passes-over", "an ack commits the messages before it, too", (
        Patch(IN_ORDER, "            self._commit(key, info.next_offset)\n",
              "            self._commit(key, offset + 1)\n"),
        Patch(IN_ORDER, "if info.next_offset > self._committed(key):", "if True:"),
    ), _ORDER_TESTS),
    ("index-file-names-others", "a new file of the index names records of the one before, which lacks them", (
        Patch("dledger.rocketmq.store.index.index_file", "HEADER.pack(*IndexHeader()), 0)",
              "HEADER.pack(*header), 0)"),
    ), {"test": "tests.broker.store.test_key_index.EndTests"}),
    ("index-younger-than-checkpoint", "RocketMQ takes an index for younger than the checkpoint", (
        Patch("dledger.rocketmq.store.log_checkpoints",
              "        await self._record(dispatched.ahead(self._times))\n", ""),
    ), {"test": "tests.broker.store.test_checkpoints"}),
    ("begin-before-dispatch", "what was dispatched after a deletion was asked about is shown", (
        Patch("dledger.rocketmq.store.queues.queue_begins",
              "        if found == queue.next_index:\n            return found\n", ""),
    ), {"test": "tests.broker.store.test_consume_queue"}),
    ("unit-beside-bad-page", "the last unit of a queue goes as a bad sector has the topic of its record", (
        Patch("dledger.rocketmq.store.queues.unit_check", "around, needed = len(_UNREAD) - 1, ",
              "around, needed = 0, "),
    ), {"test": "tests.broker.store.test_unit_check"}),
    ("decision-while-closing", "a log is closed in order while an operator's decision cuts it", (
        Patch("dledger.rocketmq.replication.slave",
              "        if not self._is_deciding:\n            return succeed(None)\n",
              "        if True:\n            return succeed(None)\n"),
    ), {"test": "tests.broker.ha.test_slave"}),
    ("decision-after-a-stop", "an operator's decision begins to cut a log that is being closed", (
        Patch("dledger.rocketmq.replication.slave", "        if self._has_stopped:\n", "        if False:\n"),
    ), {"test": "tests.broker.ha.test_slave"}),
    ("torn-filler", "a torn filler is a record of 2 GiB: its queue takes no unit any more", (
        Patch("dledger.rocketmq.store.queues.unit_check",
              "return offset + unit.size > self.log.start", "return False"),
    ), {"test": "tests.broker.store.test_unit_check"}),
    ("pop-room-unheard", "a waiting pop whose connection was not read is answered at the next sweep", (
        Patch("dledger.rocketmq.broker.consuming.popping.pops",
              "            self._clogged[connection] = None\n", ""),
    ), {"test": "tests.broker.popping.test_pops.PollTests"}),
    ("order-freed-unheard", "a request waits on although the last message is acknowledged", (
        Patch(ACKS, "            self._freed(topic, group)\n", "            pass\n"),
    ), _ORDER_TESTS),
    ("order-with-retries", "a question before a pop in order reports retries", (
        Patch(TAKING, "retries = () if pop.in_order else ", "retries = "),
    ), _ORDER_TESTS),
    ("order-forgotten", "the next run of a broker does not know what was given in order", (
        Patch("dledger.rocketmq.metadata.files", "self.changed_options, self.order_info,",
              "self.changed_options,"),
    ), _ORDER_TESTS),
    ("order-info-stays", "a group whose offset is set waits for what it held before", (
        Patch(OFFSETS, "            self._metadata.order_info.clear((topic, group, queue_id))\n", ""),
    ), {"test": "tests.broker.consuming.test_offset_commands"}),
    ("raft-mark-of-another-log", "queues of another log are believed: messages of this one are in none", (
        Patch("dledger.raft_broker.raft_log",
              "place.offset <= self.ledger_end and self.tail_check(place.offset) == place.tail_check",
              "place.offset <= self.ledger_end"),
    ), {"test": "tests.raft_broker.test_store.StoreTests.test_a_mark_of_another_log"}),
    ("raft-tables-of-another-log", "tables are believed that were saved with another log", (
        Patch("dledger.raft_broker.store", "            if log.has(found):\n", "            if True:\n"),
    ), {"test": "tests.raft_broker.test_store.StoreTests.test_tables_of_another_log"}),
    ("raft-offsets-read-again", "the log is read again, and offsets of an earlier life count", (
        Patch("dledger.raft_broker.metadata_log",
              "if table is self._metadata.consumer_offsets:\n", "if False:\n"),
    ), {"test": "tests.raft_broker.test_files_put_together.LostTablesTests"}),
    ("cut-units-come-back", "the zeroes of a cut queue stay in the cache over an orderly end", (
        Patch("dledger.rocketmq.store.queues.queue_files",
              "        self.unsynced.update(self.offsets[-1:])\n", ""),
    ), {"test": "tests.broker.store.test_consume_queue.KilledTests"}),
    ("start-in-a-copy", "a broker begins with an empty log while its own is set aside", (
        Patch("dledger.rocketmq.store.opened_files", 'if disk.exists(f"{root}/{COPY_NAME}"):',
              "if False:"),
    ), {"test": "tests.commands.test_log_copy.KillTests"}),
    ("queues-without-a-word", "queues are complete although nothing says that the last run ended in order", (
        Patch(STORE, "    if seen.mark is None and not seen.crashed and seen.checkpoint is not None:",
              "    if seen.mark is None and not seen.crashed:"),
    ), {"test": "tests.broker.store.test_mark_fit"}),
    ("queues-without-abort", "queues of a killed broker are complete although mark and abort are gone", (
        Patch(STORE, "known = min(log.start_after_crash(safe), end)", "known = end"),
    ), {"test": "tests.broker.store.test_store.LifeTests.test_without_the_marks_of_a_crash"}),
    ("queue-file-without-a-byte", "a file that a crash left empty keeps a broker from starting", (
        Patch("dledger.rocketmq.store.queues.consume_queue",
              "if listing.unfinished_size and not crashed and not is_trusted:",
              "if listing.unfinished and not crashed:"),
    ), {"test": "tests.broker.store.test_store.LifeTests.test_without_the_marks_of_a_crash"}),
    ("offsets-of-a-former-life", "the offsets of a deleted topic are written to the log after its deletion", (
        Patch("dledger.rocketmq.metadata.offsets",
              "        if self._place_of(topic) > self._lives.get(topic, 0):\n", "        if False:\n"),
    ), {"test": "tests.sim.test_logged_tables.SlaveTests.test_offsets_of_a_deleted_topic"}),
    ("recall-too-late", "a message is delivered while the note of its recall is being stored", (
        Patch("dledger.rocketmq.broker.producing.delays.timers",
              "if self._recalled.is_unsure(self._open.key(one[1])):", "if False:"),
    ), {"test": "tests.broker.sending.test_recalls"}),
    ("check-point-of-nobody", "a check point that the former master took for lost gives a message again", (
        Patch("dledger.rocketmq.broker.consuming.popping.popped", "        if self._holders is None:\n",
              "        if True:\n"),
    ), {"test": "tests.broker.popping.test_popped"}),
    ("log-without-abort", "a log whose marks are gone is taken for durable", (
        Patch("dledger.rocketmq.store.log.commit_log", "        segments.touch(offset, offset + 1)\n",
              "        pass\n"),
    ), {"test": "tests.broker.store.test_commit_log.OnSimulatedDisk.test_killed_without_marks"}),
    ("damage-taken-for-a-torn-write", "damage before the end that a mark records ends the log of a master", (
        Patch("dledger.rocketmq.store.log.log_start",
              "            check_damage(segments, found, seen.stored_end)\n", "            pass\n"),
    ), {"test": "tests.broker.store.test_log_recovery.TrustTests"}),
    ("raft-queues-without-abort", "names of queues of a killed raft broker are taken for durable", (
        Patch("dledger.raft_broker.store", "crashed = abort.is_there or mark is None",
              "crashed = abort.is_there"),
    ), {"test": "tests.raft_broker.test_store.StoreTests.test_killed_without_marks"}),
    ("end-of-another-id", "an end of a transaction that names another message's id counts", (
        Patch("dledger.rocketmq.broker.producing.transactions.commands",
              "        if named_id and named_id not in",
              "        if False and named_id not in"),
    ), {"test": "tests.broker.transactions.test_commands"}),
    ("recall-refused-barely", "a refused recall has neither region nor trace switch", (
        Patch("dledger.rocketmq.broker.producing.delays.recalls",
              "            self._answers.refuse(connection, request, error.code, error.remark)\n"
              "            return\n", "            raise\n"),
    ), {"test": "tests.broker.sending.test_recalls"}),
    ("offset-of-nobody", "offsets of a group that does not exist are kept", (
        Patch(OFFSETS, "if self._metadata.groups.get(group) is None and not self._config.role.is_slave:",
              "if False:"),
    ), {"test": "tests.broker.consuming.test_offset_commands"}),
    ("receipt-sent-on", "a message that is sent on keeps the receipt of its delivery", (
        Patch(PROPERTIES, "for name in (*_OF_EVERY_BROKER, *_OF_BROKERS)", "for name in _OF_EVERY_BROKER"),
    ), _SEND_TESTS),
    ("no-room-kept", "a message is taken in without room for what brokers add", (
        Patch(RULES, "(0 if topic.startswith(RETRY_PREFIX) else PROPERTIES_ROOM)", "0"),
    ), _SEND_TESTS),
    ("retry-becomes-half", "a consumer's retry of a committed message waits for its end again", (
        Patch(LONG, "if is_prepared(properties) and not is_retry:", "if is_prepared(properties):"),
    ), _SEND_TESTS),
    ("batch-items-unchecked", "a batch stores half messages and delayed ones at once", (
        Patch(LONG, "            _refuse_in_batch(item.properties_data)\n", ""),
    ), _SEND_TESTS),
    ("torn-commit-open", "a committed message whose op message a crash has taken may be rolled back", (
        Patch("dledger.rocketmq.broker.producing.transactions.ends_reading",
              "        self._end_last()\n", ""),
    ), _END_TESTS),
    ("ended-twice", "a transaction that was rolled back is committed", (
        Patch(ENDS, "        if before is not None:\n", "        if False:\n"),
    ), _END_TESTS),
    ("ends-forgotten", "the next master does not know which transactions have ended", (
        Patch("dledger.rocketmq.broker.producing.transactions.ends_reading",
              "            self._ends.add(self._firsts.get(offset, offset), known)\n",
              "            del known\n"),
    ), _END_TESTS),
    ("late-end", "an end of the first half message leaves its copy open", (
        Patch(ENDS, "        return self._copies.get(first)\n", "        return None\n"),
        Patch(JUDGE, "if self._ends.kind_of(first) is not None:", "if False:"),
    ), _END_TESTS),
    ("age-by-producer", "the clock of the producer decides when it is asked", (
        Patch(HALVES, "if first is not None and is_copy else half.store_timestamp)",
              "if first is not None and is_copy else half.born_timestamp)"),
    ), _END_TESTS),
    ("offset-after-the-end", "a group passes over the messages that come after a loss", (
        Patch(BOUNDS, "        offsets.commit(group, topic, queue_id, end, self._wall_ms())\n", ""),
    ), _BOUND_TESTS),
    ("offset-end-of-now", "an offset is compared with a queue that has new messages", (
        Patch(BOUNDS, "end = index_at(queue, self._bound)", "end = queue.next_index"),
    ), _BOUND_TESTS),
    ("clock-set-back", "a consumer that changes its filter is not believed", (
        Patch(CONSUMERS, "if said.get(topic, own) == own:", "if True:"),
    ), {"test": "tests.broker.consuming.test_consumers"}),
    ("topic-not-over", "messages of a deleted topic come up in the new one", (
        Patch(DELETED, "        return self._places.get(topic, 0)", "        return 0"),
    ), _AGAIN_TESTS),
    ("offsets-of-another-log", "offsets from after a deletion that is not in the log pass over messages", (
        Patch(LOST, "others = self._offsets.forget_other_logs(self._store.log.begin_offset)", "others = []"),
    ), _AGAIN_TESTS),
    ("deletion-of-a-table", "a topic that the table has lost is not shown", (
        Patch(LOST, "        for topic in lost:\n", "        for topic in lost[:0]:\n"),
    ), _FILES_TESTS),
    ("queues-of-a-longer-log", "queues of a longer log lack messages of a topic that was deleted there", (
        Patch(STORE, "and reaches_beyond:", "and False:"),
    ), _FILES_TESTS),
    ("queues-older-than-the-mark", "queues that are older than the mark lack the last messages", (
        Patch(STORE, "not queues.has_lost and reached < known:", "False:"),
    ), _FILES_TESTS),
    ("retry-outlives-topic", "a retry of a deleted topic comes up in the next of its name", (
        Patch(DELETED, "return self._lives if self._places else None", "return None"),
    ), _AGAIN_TESTS),
    ("retry-waits-over-a-deletion", "a retry that waits outlives its topic", (
        Patch(SCHEDULE, "if found is None or (topic.startswith(RETRY_PREFIX) and self._is_over(message)):",
              "if found is None:"),
    ), _AGAIN_TESTS),
    ("hint-raises", "a hint that cannot be written ends the process", (
        Patch(HINTS, "            return False\n        self._hints",
              "            raise\n        self._hints"),
    ), _TABLE_TESTS),
    ("truncated-queue-refused", "a start is refused, as a file of a queue was truncated", (
        Patch(QUEUE, "and not crashed and not is_trusted:\n", "and not crashed:\n"),
    ), _TABLE_TESTS),
    ("unreadable-index-unit", "a unit that the disk does not give back is taken for one", (
        Patch(RESYNC, "        if unit is None:\n            path =",
              "        if False:\n            path ="),
    ), _TABLE_TESTS),
    ("deletion-not-noted", "a topic is deleted although the log does not say so", (
        Patch(ADMIN, "        if not status.is_stored:\n", "        if False:\n"),
    ), {"test": "tests.broker.admin.test_commands"}),
    ("commit-beyond-the-end", "a commit beyond the end of its queue passes over the next messages", (
        Patch(COMMITS, "        if offset > end and not self._config.role.is_slave:\n",
              "        if False:\n"),
    ), _COMMIT_TESTS),
    ("commit-of-a-deleted-topic", "a late commit of a deleted topic counts in the next of its name", (
        Patch(COMMITS, "        if self.is_former(connection, group, topic, queue_id):\n",
              "        if False:\n"),
    ), _COMMIT_TESTS),
    ("pull-of-a-deleted-topic", "a consumer goes on in the middle of the next topic of its name", (
        Patch(PULLS, "        if self.commits.is_former(*reader):\n", "        if False:\n"),
    ), _COMMIT_TESTS),
    ("recall-of-another", "a recall takes the same message with another time", (
        Patch("dledger.rocketmq.broker.producing.delays.timed", "    return topic, key, at_ms\n",
              "    return topic, key, 0\n"),
    ), {"test": "tests.broker.sending.test_recalls"}),
    ("delay-ahead", "a delay that began while the clock was ahead waits for the clock", (
        Patch("dledger.rocketmq.broker.producing.delays.waiting", "return now_ms if delay_ms is not None and",
              "return now_ms if False and"),
    ), _TIMER_TESTS),
    ("query-before-the-index", "a query by key does not see what was stored before it", (
        Patch("dledger.rocketmq.broker.consuming.key_queries", "            if self._lags(query):\n",
              "            query.until_s = -1.0\n            if self._lags(query):\n"),
    ), {"test": "tests.broker.consuming.test_key_queries"}),
    ("full-history-doubted", "an empty slave that asks for everything counts for nothing", (
        Patch(MASTER, "self.acks.proved(connection.serial), FIRST_REPORT_MIN)",
              "self.acks.proved(connection.serial))"),
    ), {"test": "tests.broker.ha.test_master"}),
    ("index-mark-ahead", "a cut of the log records a state of the index that is not on the disk", (
        Patch(INDEX, "            self._lower_mark(self._marked)\n", "            self._write_mark()\n"),
    ), {"test": "tests.broker.store.test_key_index"}),
    ("offsets-of-before", "a slave keeps the offsets of a topic that was made again", (
        Patch(OFFSET_TABLE, "            if life > ours:\n", "            if False:\n"),
    ), {"test": "tests.broker.metadata.test_slave_synchronize"}),
    ("offsets-of-a-stale-answer", "a slave takes the offsets of a deleted topic over after the deletion", (
        Patch(OFFSET_TABLE, "            if life >= ours:\n", "            if True:\n"),
    ), {"test": "tests.broker.metadata.test_slave_synchronize"}),
    ("offsets-before-the-log", "a slave takes offsets over before its log has what they notify of", (
        Patch(COPY, "            await self._own_log.reached()\n", "            pass\n"),
    ), {"test": "tests.broker.metadata.test_slave_synchronize"}),
    ("table-before-the-log", "a table is on the disk before the messages that it notifies of", (
        Patch(FILES, "            await self._flush_log()\n", ""),
    ), {"test": "tests.broker.metadata.test_files"}),
    ("cut-offsets-stay", "a slave keeps offsets in a part of its log that it gave up", (
        Patch(BOUNDS, "                if offset > end:\n", "                if False:\n"),
    ), _BOUND_TESTS),
    ("pop-moves-early", "the table counts a check point whose put still waits", (
        Patch(POPPED, "            if done is None:\n                break\n",
              "            if done is None:\n                continue\n"),
    ), {"test": "tests.broker.popping.test_popped"}),
    ("pop-finished-early", "check points whose puts wait count as finished", (
        Patch(REVIVE, "                reached = min(reached, first - 1)\n", "                pass\n"),
    ), {"test": "tests.broker.popping.test_revive"}),
    ("pop-outlives-topic", "a message of a deleted topic gets another time", (
        Patch(ACKS, "        if revive.is_over(ack.key):", "        if False:"),
    ), _AGAIN_TESTS),
    ("half-copy-outlives-topic", "a copy of a half message is committed into the next topic of its name", (
        Patch(COMMANDS, "first_place(self._store, half))\n            if topic is None:",
              "half.physical_offset)\n            if topic is None:"),
    ), _AGAIN_TESTS),
    ("deleted-topic-lost", "what waits for a topic makes it again after its deletion", (
        Patch(LOST, "        if offset < self._store.deleted.place_of(topic):\n", "        if False:\n"),
    ), _AGAIN_TESTS),
    ("recall-forgotten", "a recall is forgotten at its time, and a restart delivers the message", (
        Patch(TIMERS, "last = self._read_at - 1", "pass"),
        Patch(TIMERS, " or (until_ms and last < 0)", ""),
    ), {"test": "tests.broker.sending.test_recalls"}),
    ("order-outlives-topic", "a receipt of a deleted topic moves the offset in the next of its name", (
        Patch(ADMIN, "        metadata.order_info.delete_topic(name)\n", ""),
    ), _AGAIN_TESTS),
    ("pop-under-way-outlives-topic", "a check point under way moves the offset in the next topic", (
        Patch(REVIVE, "            if self._metadata.topics.get(topic) is None or at < "
              "self._store.deleted.place_of(topic):", "            if False:"),
    ), _AGAIN_TESTS),
    ("silent-connection-kept", "a connection that answers nothing is kept", (
        Patch("dledger.rocketmq.broker.command_client",
              "if connection is not None and peer.answered == answered:", "if False:"),
    ), {"test": "tests.broker.test_command_client"}),
    ("another-log-counted", "a slave that holds another log acknowledges", (
        Patch(MASTER, "            self.acks.doubt(connection.serial)\n", ""),
    ), {"test": "tests.broker.ha.test_master"}),
)
