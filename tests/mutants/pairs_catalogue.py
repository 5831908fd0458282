# -*- test-case-name: tests.sim.test_mutants -*-
"""
Mutants of whole brokers, which their clients notice, as rows: name, what is wrong, patches, settings, faults.
They break the promises B1 to B27, or bring back a bug that the schedules found.

Settings and faults of masters and slaves are those of
L{dledger.testing.brokers.pair_schedule.PairFocus}; brokers on raft logs have faults only.
"""

from __future__ import annotations

from tests.mutants.ha_catalogue import Row
from tests.mutants.patching import Patch

BROKER = "dledger.rocketmq.broker"
COPY = "dledger.rocketmq.metadata.slave_synchronize"
ENDS = f"{BROKER}.producing.transactions.ends"
EXPIRY = "dledger.base.disk.expiry"
FILES = "dledger.rocketmq.store.queues.queue_files"
LOCKS = f"{BROKER}.consuming.queue_locks"
INDEX = "dledger.rocketmq.store.index.key_index"
OFFSETS = "dledger.rocketmq.metadata.offsets"
TABLE_FILES = "dledger.rocketmq.metadata.files"
TABLES_MARK = "dledger.rocketmq.metadata.tables_mark"
METADATA_LOG = "dledger.raft_broker.metadata_log"
POPPED = f"{BROKER}.consuming.popping.popped"
PULLS = f"{BROKER}.consuming.pull_reading"
LOSSES = "dledger.rocketmq.store.queues.queue_losses"
QUEUE = "dledger.rocketmq.store.queues.consume_queue"
QUEUES = "dledger.rocketmq.store.queues.consume_queues"
REVIVE = f"{BROKER}.consuming.popping.revive"
SCHEDULE = f"{BROKER}.producing.delays.schedule"
SERVICE = "dledger.rocketmq.replication.service"
DELETED = "dledger.rocketmq.store.deleted_topics"
UNITS = "dledger.rocketmq.store.queues.unit_mending"
WRITER = "dledger.raft_broker.replication"

_NOTHING = ("nothing",)
_SYNC = {"role": "SYNC_MASTER"}
_GROUPS = {"groups": True}

PAIR_MUTANTS: tuple[Row, ...] = (
    ("pair-filter-open", "a consumer gets messages that its filter excludes", (
        Patch(PULLS, "group=group, key=(topic, queue_id), codes=subscription.codes,",
              "group=group, key=(topic, queue_id), codes=None,"),
    ), {}, _NOTHING),
    ("pair-too-early", "a delayed message comes at once", (
        Patch(SCHEDULE, "            if due_ms > now_ms:\n", "            if False:\n"),
    ), {}, _NOTHING),
    ("pair-ended-twice", "a transaction that was rolled back is committed", (
        Patch(ENDS, "        if before is not None:\n", "        if False:\n"),
    ), {}, _NOTHING),
    ("pair-topic-not-over", "messages of a deleted topic come up in the new one", (
        Patch(DELETED, "        return self._places.get(topic, 0)", "        return 0"),
    ), {}, _NOTHING),
    ("pair-ack-of-a-retry", "an ack of a message that is being stored again is answered with success", (
        Patch(POPPED, ".difference(self.reviving)", ""),
    ), _SYNC, ("cut_brokers", "darken")),
    ("pair-never-again", "what is not acknowledged is not delivered again", (
        Patch(REVIVE, "due = self.table.due(self._wall_ms(), TURN_MESSAGES)",
              "due = self.table.due(0, TURN_MESSAGES)"),
    ), {}, _NOTHING),
    ("pair-short-queue-file", "a file of a queue that found no room takes units", (
        Patch(FILES, """        except OSError:
            file.close()
            # If it cannot be deleted either: a start takes a short file for one without units.
            with suppress(OSError):
                self._disk.unlink(path)
            raise
""", """        except OSError:
            self.offsets.append(offset)
            self.handles[offset] = file
            self.dirty[offset] = file
            raise
"""),
    ), {}, ("fill_disk", "kill")),
    ("pair-groups-not-copied", "a slave does not take its master's groups over", (
        Patch(COPY, "        changed = table.adopt(", "        changed = code != 201 and table.adopt("),
    ), {}, _NOTHING),
    ("pair-commits-forgotten", "a slave takes offsets of its master for higher ones of consumers", (
        Patch(OFFSETS, "            offset = max(offset, ahead)\n", "            pass\n"),
    ), {}, _NOTHING),
    ("pair-without-keys", "the first message of each step is not put into the index", (
        Patch(INDEX, "        while keys:\n", "        keys = keys[2:]\n        while keys:\n"),
    ), {}, _NOTHING),
    ("pair-unheld-acknowledged", "a put is answered without a slave that has it", (
        Patch(SERVICE, "            return replicated\n", "            return done(PutStatus.PUT_OK)\n"),
        Patch(SERVICE, "        return combined(flushed, replicated)\n", "        return flushed\n"),
    ), _SYNC, ("cut_brokers", "kill", "slow_links")),
    ("pair-flush-never-ends", "a flush of queues that finds no room is never over", (
        Patch(QUEUES, "            self._closed = closed\n            self._end_flush(has_failed=True)\n",
              ""),
    ), {}, ("fill_disk",)),
    ("pair-young-files-go", "files of a log go before their time", (
        Patch(EXPIRY, "        if age_s < rules.reserved_hours * _HOUR_S:\n", "        if False:\n"),
    ), {}, ("age",)),
    ("pair-gap-closed", "records go to lower places of a queue than their own after earlier ones expired", (
        Patch(QUEUE, "elif index != self.next_index and self.is_empty:",
              "elif index > self.next_index == 0:"),
    ), {}, ("age", "lose_power")),
    ("pair-first-files-unmissed", "first files of a queue that are lost are taken for expired ones", (
        Patch(LOSSES, "offsets[0] > first * UNIT_SIZE and _is_in_log(disk, directory, offsets[0], log_begin)",
              "False"),
    ), {}, ("lose_files",)),
    ("pair-older-copy-unmissed", "units that an older copy of a file does not have are not missed", (
        Patch(LOSSES, "        if not _has_unit(", "        if False and not _has_unit("),
    ), {}, ("lose_files",)),
    ("pair-comes-too-often", "a popped message comes again more often than its group says", (
        Patch(REVIVE, "forms[int(message.reconsume_times >= tries_max) :]:",
              "forms[int(message.reconsume_times > tries_max) :]:"),
    ), _GROUPS, _NOTHING),
    ("pair-lent-twice", "a queue is lent to two clients of a group", (
        Patch(LOCKS, "if found.client_id != client_id and now_ms - found.asked_ms <= EXPIRED_MS:",
              "if found.client_id != client_id and now_ms - found.asked_ms > EXPIRED_MS:"),
    ), _GROUPS, _NOTHING),
    ("pair-option-forgotten", "an option that was changed has its old value after the next start", (
        Patch(f"{BROKER}.parts", "        restore_options(config, metadata.changed_options)\n", ""),
    ), _GROUPS, ("stop",)),
    ("pair-search-one-later", "a search by time passes over the message of that time", (
        Patch("dledger.rocketmq.store.queries", "stored_ms(store, unit) < timestamp_ms:",
              "stored_ms(store, unit) <= timestamp_ms:"),
    ), {}, _NOTHING),
    ("pair-end-too-low", "an answer to a pull says that its queue ends one message earlier", (
        Patch(f"{BROKER}.consuming.pulls", '"maxOffset": str(got.end_offset),\n        })',
              '"maxOffset": str(got.end_offset - 1),\n        })'),
    ), {}, _NOTHING),
    ("pair-native-by-its-queue", "a delayed native message waits in the queue of its topic's number", (
        Patch(f"{BROKER}.producing.sending.native",
              "like.form, like.queue_id, like", "like.form, queue_id, like"),
    ), {}, _NOTHING),
    ("pair-gone-member-counts", "a group keeps the subscriptions of a member that has left", (
        Patch(f"{BROKER}.consuming.consumers", "        group.left(gone)\n", ""),
    ), {}, _NOTHING),
    ("pair-slave-commits-pulls", "a slave commits the offset that a pull brings", (
        Patch(f"{BROKER}.consuming.pulls", "commit >= 0 and not self._config.role.is_slave\n",
              "commit >= 0\n"),
    ), {}, _NOTHING),
    ("pair-numbers-go-on", "a topic that is made again goes on with the numbers of the deleted one", (
        Patch("dledger.rocketmq.store.store",
              "            del self.log.queue_offsets[key]", "            pass"),
    ), {}, _NOTHING),
    ("pair-index-not-cut", "the index by key keeps its place when the log is cut", (
        Patch("dledger.rocketmq.store.commit_log_store",
              "        if self.indexing is not None:\n            self.indexing.log_was_cut(end)\n", ""),
    ), _SYNC, ("lose_power", "lose_power_in_write", "promote")),
    ("pair-resets-not-copied", "an offset of a slave does not go back when its master's was reset", (
        Patch(OFFSETS, "            offset = max(offset, ahead)\n",
              "            offset = max(offset, ahead, ours.get(queue_id, 0))\n"),
    ), {}, _NOTHING),
    ("pair-loan-not-renewed", "a queue is lent for a minute after the first request of its holder", (
        Patch(LOCKS, "        found.asked_ms = now_ms\n", ""),
    ), {}, _NOTHING),
    ("pair-no-former-table", "the former content of a table's file is not kept", (
        Patch("dledger.rocketmq.metadata.files",
              '                disk.write_file(path + ".bak", old)\n',
              "                del old\n"),
    ), {}, _NOTHING),
    ("pair-ahead-forgotten", "an offset that was committed at a slave is kept for one round alone", (
        Patch(OFFSETS, "            if offset >= ahead:\n", "            if True:\n"),
    ), {}, _NOTHING),
    ("pair-end-not-written", "a stop writes no checkpoint", (
        Patch("dledger.rocketmq.store.store",
              "        await self.checkpoint()\n        await self.log.idle()",
              "        self._is_checkpointed = True\n        await self.log.idle()"),
    ), {}, ("stop",)),
    ("pair-note-too-soon", "the note of a recall goes while the message may be read again", (
        Patch(f"{BROKER}.producing.delays.timers", "last = self._read_at - 1\n", "last = first - 1\n"),
    ), {}, _NOTHING),
    ("pair-end-without-copy", "the end of a transaction does not report its newest copy", (
        Patch(f"{BROKER}.producing.transactions.commands",
              "offsets = {half.queue_offset, half.queue_offset if copy is None else copy}",
              "offsets = {half.queue_offset}"),
    ), {}, _NOTHING),
    ("pair-order-time-forgotten", "after a start a message in order has the time of its pop again", (
        Patch("dledger.rocketmq.metadata.order_info", 'visible_ms=_numbers(document.get("ot"), "ot"), tries',
              "visible_ms={}, tries"),
    ), {}, _NOTHING),
    ("pair-lost-units-passed", "units of a queue that cannot be read are passed over", (
        Patch(UNITS, "found.units.get(at, _GONE)", "_GONE"),
        Patch(UNITS, "sorted(found.units)", "()"),
    ), {}, ("spoil_queue",)),
)

#: Of brokers on raft logs.
RAFT_MUTANTS: tuple[Row, ...] = (
    ("raft-offset-not-committed", "a change of metadata is answered before it is committed", (
        Patch(METADATA_LOG, """        waiter = _Waiter(self._written, failures, Deferred())
        self._waiters.append(waiter)
        self._notify()
        return waiter.done
""", "        return succeed(None)\n"),
    ), {}, ("cut_off", "kill", "hand_over")),
    ("raft-unknown-acknowledged", "a message that may not be stored is answered with success", (
        Patch(WRITER, "_NOT_STORED.get(error.code, PutStatus.UNKNOWN_ERROR)",
              "_NOT_STORED.get(error.code, PutStatus.PUT_OK)"),
    ), {}, ("cut_off", "kill", "hand_over")),
    ("raft-stored-somewhere", "a message that may not be stored is answered like one that may be lost", (
        Patch(WRITER, "_NOT_STORED.get(error.code, PutStatus.UNKNOWN_ERROR)",
              "_NOT_STORED.get(error.code, PutStatus.FLUSH_SLAVE_TIMEOUT)"),
    ), {}, ("cut_off", "kill", "hand_over")),
    ("raft-topic-after-its-message", "a new topic is written into the log after its first message", (
        Patch(METADATA_LOG, "        if topics.changed and self.is_open:\n", "        if False:\n"),
    ), {}, _NOTHING),
    ("raft-mark-without-tables", "a mark says that tables are saved that could not be written", (
        Patch(TABLE_FILES, "encode_tables_mark(self._held, sums)", "encode_tables_mark(place, sums)"),
    ), {}, ("fail_saves", "kill")),
    ("raft-tables-of-another-time", "tables that are gone, or older, are taken for those of the mark", (
        Patch(TABLES_MARK, "else NO_FILE) not in sums[name]:\n", "else NO_FILE) < 0:\n"),
    ), {}, ("put_back", "hand_over")),
    ("raft-entry-left-out", "a new master leaves an entry out when it writes its tables", (
        Patch(METADATA_LOG, "        keys = []\n        while self._backlog and",
              "        keys = []\n        self._backlog.pop()\n        while self._backlog and"),
    ), {}, ("hand_over", "kill")),
    ("raft-refused-change-forgotten", "a change that the log has refused is not written again", (
        Patch(METADATA_LOG, "            table.changed.update(dict.fromkeys(keys))\n", ""),
    ), {}, ("hand_over_in_vain",)),
    ("raft-begin-of-entries-lost", "entries whose records expire are not written again", (
        Patch(METADATA_LOG, "if self._begin_offset < begin_offset:", "if False:"),
    ), {}, ("age",)),
)
