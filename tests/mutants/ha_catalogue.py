# -*- test-case-name: tests.sim.test_mutants -*-
"""
Mutants of master/slave replication, as rows: name, what is wrong, patches, settings, faults.

Their schedules have no clients: settings are those of L{dledger.testing.brokers.replicated_logs.BareOptions}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tests.mutants.patching import Patch

ACKS = "dledger.rocketmq.replication.acks"
CLIENT = "dledger.rocketmq.replication.slave"
FOLLOWER = "dledger.rocketmq.replication.slave_session"
LOG = "dledger.rocketmq.store.log.commit_log"
MENDING = "dledger.rocketmq.store.log.log_mending"
JOB = "dledger.base.disk.flush_job"
TRANSFER = "dledger.rocketmq.replication.group_transfer"
MASTER = "dledger.rocketmq.replication.master"
SERVICE = "dledger.rocketmq.replication.service"
VIEW = "dledger.rocketmq.replication.master"
STATUS = "dledger.rocketmq.replication.put_status"

Row: TypeAlias = tuple[str, str, tuple[Patch, ...], Mapping[str, object], tuple[str, ...]]

SYNC = {"broker_role": "SYNC_MASTER", "flush_disk_type": "ASYNC_FLUSH", "sync_rule": "any_slave"}
TWO_SLAVES = {"broker_role": "SYNC_MASTER", "flush_disk_type": "ASYNC_FLUSH", "sync_rule": "in_sync_replicas",
              "in_sync_replicas": 3, "min_in_sync_replicas": 1, "enable_auto_in_sync_replicas": False}
POWER = ("lose_power", "lose_power_in_write")

HA_MUTANTS: tuple[Row, ...] = (
    ("ha-any-report-believed", "a report beyond a slave's possible end counts as an acknowledgement", (
        Patch(VIEW, "            if offset > end:\n", "            if False:\n"),
        Patch(VIEW, "        elif offset > self.transfer_offset:\n", "        elif False:\n"),
        Patch(VIEW, "proved = offset if offset > self.request_offset else min(offset, self.vouched_offset)",
              "proved = offset"),
        # Since a slave that returns is young, this guard alone would hide the others.
        Patch(ACKS, "if offset > max(vouched_offset, self.proved(serial)):",
              "if False:"),
    ), {"master": SYNC}, ("stray", "cut_brokers", "slow_links")),
    ("ha-first-report-vouches", "bytes that a slave had before its master's crash acknowledge later ones", (
        Patch(VIEW, "proved = offset if offset > self.request_offset else min(offset, self.vouched_offset)",
              "proved = offset"),
    ), {"master": {**SYNC, "ha_transfer_flushed_only": False, "ha_flush_interval": 2000},
        "slave": {"ha_verify_size": 1, "ha_verify_size_at_start": 1}, "put_us": 60_000, "slaves": 1,
        "body_max": 20, "pace_s": 0.7}, ("lose_power", "stray")),
    ("ha-not-compared", "a slave takes its bytes for its master's without comparing", (
        Patch(FOLLOWER, "                self._compare(offset, data[:held])\n", "                pass\n"),
    ), {"master": {"ha_transfer_flushed_only": False}}, POWER),
    ("ha-found-and-kept", "a slave that takes its master's log does not cut its own", (
        Patch(CLIENT, "await self._commit_log.set_aside(offset)", "'nothing'"),
    ), {"master": {"ha_transfer_flushed_only": False}}, POWER),
    ("ha-cuts-reported", "a slave cuts bytes that it reported as held, as its master has others", (
        Patch(FOLLOWER, "if not master_problem and self._was_never_reported(common_end, our_problem):",
              "if not master_problem:"),
    ), {"master": {"ha_transfer_flushed_only": False}}, (*POWER, "empty_master", "older_master")),
    ("ha-not-set-aside", "what an operator gives up is deleted, not kept", (
        Patch(LOG, "        self._cut_at(end, aside=directory)\n", "        self._cut_at(end)\n"),
    ), {"master": {"ha_transfer_flushed_only": False}}, (*POWER, "empty_master")),
    ("ha-takes-rot", "a slave stores a body without its checksum", (
        Patch(LOG, "        bodies.feed(data)\n", ""),
    ), {"slave": {"ha_full_history": True}}, ("flip_master", "kill", "break", "cut_brokers")),
    ("ha-rot-wins", "a slave gives up its sound bytes for a master's that are not", (
        Patch(FOLLOWER, "if not master_problem and self._was_never_reported(common_end, our_problem):",
              "if self._was_never_reported(common_end, our_problem) or master_problem:"),
    ), {"master": {"ha_transfer_flushed_only": False}},
     ("flip_master", "kill", "break", "cut_brokers")),
    ("ha-mended-in-the-cache", "a mended record is not brought to stable storage", (
        Patch(MENDING, "await self._run_in_thread(lambda: segments.sync_file(offset))", "pass"),
    ), {"master": {"flush_disk_type": "SYNC_FLUSH"}}, ("flip_master", "lose_power")),
    ("ha-reports-all-it-holds", "a slave reports bytes that it has not compared yet", (
        Patch(FOLLOWER, "held = min(held, self.log.end_offset)", "held = self.log.end_offset"),
    ), {"master": {**SYNC, "ha_transfer_flushed_only": False}}, ("lose_power", "kill")),
    ("ha-reports-unflushed", "a slave with SYNC_FLUSH reports bytes in its page cache", (
        Patch(FOLLOWER, "            held = min(held, self.log.flushed_offset)\n", "            pass\n"),
    ), {"master": SYNC, "slave": {"flush_disk_type": "SYNC_FLUSH"}}, POWER),
    ("ha-ships-unflushed", "a master that must ship flushed bytes only ships everything", (
        Patch(MASTER, "if self._config.ha_transfer_flushed_only:", "if False:"),
    ), {"master": {"ha_transfer_flushed_only": True, "ha_flush_interval": 1000}}, ("lose_power",)),
    ("ha-one-slave-twice", "two connections of one slave count as two slaves", (
        Patch(ACKS, "if count < self._slaves_per_host:", "if True:"),
    ), {"master": TWO_SLAVES, "slaves": 2}, ("half_open", "cut_brokers", "slow_links")),
    ("ha-one-is-enough", "a put that needs two slaves is answered when one has it", (
        Patch(ACKS, "return held_by(marks, needed) if len(marks) >= needed else -1",
              "return held_by(marks, 1) if marks else -1"),
    ), {"master": TWO_SLAVES, "slaves": 2}, ()),
    ("ha-begins-behind", "a slave that began with the last file acknowledges bytes before it", (
        Patch(ACKS, "        if offset:\n            self._young",
              "        if False:\n            self._young"),
    ), {"master": TWO_SLAVES, "slaves": 2, "slave": {"ha_full_history": False}, "put_us": 60_000,
        "body_max": 900, "burst_max": 8}, ("slow_disk",)),
    ("ha-young-for-a-moment", "a slave that begins a little after a put that waits acknowledges it", (
        Patch(ACKS, "if offset >= lowest}", "if offset > lowest + 1000}"),
    ), {}, ()),
    ("ha-starts-at-the-end", "an empty slave is sent the next bytes, not a file from its beginning", (
        Patch(VIEW, "return max(log.end_offset - log.end_offset % log.file_size, log.begin_offset)",
              "return log.end_offset"),
    ), {}, ()),
    ("ha-frame-lost", "bytes that a congested connection refused are counted as sent", (
        Patch(MASTER, "            connection.transfer(offset, data,",
              "            if not (connection.is_congested or size > 8000):\n"
              "                connection.transfer(offset, data,"),
    ), {}, ()),
    ("ha-never-expires", "puts wait for slaves for ever", (
        Patch(MASTER, "        self.transfers.expire(now_ms)\n", ""),
    ), {"master": SYNC}, ("cut_brokers", "darken", "slow_links")),
    ("ha-slave-keeps-dark-link", "a slave never gives up a master that has fallen silent", (
        Patch(CLIENT, "        if now_ms - self._heard_ms > limit_ms:\n", "        if False:\n"),
    ), {}, ("darken",)),
    ("ha-master-keeps-dark-link", "a master keeps the connection of a slave that is gone", (
        Patch(MASTER, "            if view.is_silent(now_ms, self._config.ha_housekeeping_interval):\n",
              "            if False:\n"),
    ), {}, ("half_open", "darken")),
    ("ha-disk-alone-counts", "with SYNC_FLUSH a put is answered when the disk has it", (
        Patch(STATUS, "return flushed if replicated is PutStatus.PUT_OK else replicated", "return flushed"),
    ), {"master": {**SYNC, "flush_disk_type": "SYNC_FLUSH"}}, ()),
    ("ha-disk-not-waited-for", "with SYNC_FLUSH a put is answered when a slave has it", (
        Patch(SERVICE, "        return combined(flushed, replicated)\n", "        return replicated\n"),
    ), {"master": {**SYNC, "flush_disk_type": "SYNC_FLUSH"}}, ()),
    ("ha-failed-fsync-ignored", "with SYNC_FLUSH an fsync that failed counts as done", (
        Patch(JOB, "        for step in self._steps:\n            step()\n",
              "        for step in self._steps:\n            try:\n                step()\n"
              "            except OSError:\n                pass\n"),
    ), {"master": {**SYNC, "flush_disk_type": "SYNC_FLUSH"}}, ("disk_error", *POWER)),
)
