# -*- test-case-name: tests.sim.test_mutants -*-
"""
Mutants of whole masters and slaves, which their clients notice, as rows: name, what is wrong, patches,
settings, faults. They break the promises B1 to B16, or bring back a bug that the schedules found.

Settings and faults are those of L{dledger.testing.brokers.pair_schedule.PairFocus}.
"""

from __future__ import annotations

from tests.mutants.ha_catalogue import Row
from tests.mutants.patching import Patch

BROKER = "dledger.rocketmq.broker"
COPY = f"{BROKER}.metadata.slave_synchronize"
ENDS = f"{BROKER}.transactions.ends"
FILES = f"{BROKER}.store.queues.queue_files"
INDEX = f"{BROKER}.store.index.key_index"
OFFSETS = f"{BROKER}.metadata.offsets"
POPPED = f"{BROKER}.popping.popped"
PULLS = f"{BROKER}.consuming.pull_reading"
QUEUES = f"{BROKER}.store.queues.consume_queues"
REVIVE = f"{BROKER}.popping.revive"
SCHEDULE = f"{BROKER}.delays.schedule"
SERVICE = f"{BROKER}.ha.service"
TABLES = f"{BROKER}.metadata.tables"

_NOTHING = ("nothing",)
_SYNC = {"role": "SYNC_MASTER"}

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
        Patch(TABLES, "at = self.log_end(entry.name) if before is None else before.begins_at", "at = 0"),
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
)
