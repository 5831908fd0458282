# -*- test-case-name: tests.test_reference -*-
"""
Words of docs/reference.md that no code needs; L{tests.reference} prints them beside the texts of the code.

A text is Markdown, with links as that page has them.
"""

from __future__ import annotations

from collections.abc import Mapping

_PEER = "the leader's view: a lag that grows, a state other than `append` for a long time"
_INDEX = "`end_index` running away from `committed_index`: no majority"
_MACHINE_LAG = "a lag that grows: the machine is slower than the log"
_READER = ("with a label `reader`, for each [named reader](readers.md): a lag that grows without a lease "
           "means that "
           "nobody reads; it keeps segments from being deleted")

#: By the name of a metric of a member: the values that need a look; nothing for a number that is only load.
METRIC_REMARKS: Mapping[str, str] = {
    "has_leader": "a group without a leader for longer than a moment",
    "is_leader": "several leaders for longer than a moment",
    "is_healthy": "0: `/healthz` and `/status` have the reason",
    "is_repairing": "1",
    "is_diverged": "1",
    "is_disk_full": "1",
    "is_unsure": "1",
    "damaged_entries": "above 0 for more than a minute: no member gives them back",
    "commit_lag_entries": "a follower that does not keep up",
    "build_info": "always 1; its labels `version` and `python` name the software that runs",
    "term": "rising without a reason",
    "leader_changes_total": "rising without a reason",
    "votes_total": "rising without a reason",
    "elections_total": "rising without a reason: `won`, `lost` to another member, `undecided` without a "
                       "majority "
                       "in time",
    "end_index": _INDEX,
    "committed_index": _INDEX,
    "pending_appends": "values near the bound",
    "pending_reads": "values near the bound",
    "pull_waiters": "values near the bound",
    "connections": "values near the bound",
    "peer_connected": _PEER,
    "peer_state": _PEER,
    "peer_match_index": _PEER,
    "peer_lag_entries": _PEER,
    "peer_lag_bytes": _PEER,
    "peer_inflight_pushes": _PEER,
    "peer_last_heard_seconds": _PEER,
    "unsynced_bytes": "fsyncs slower than a heartbeat interval",
    "fsync_duration_seconds": "fsyncs slower than a heartbeat interval; one of half a second or more is "
                              "`slow-fsync` in the log, once a minute at most",
    "append_duration_seconds": "the leader's appends; one observation for each proposal or turn",
    "append_batch_entries": "one observation for each proposal or turn",
    "push_retries_total": "a peer that is asked again and again",
    "fsync_failures_total": "any increase: that member has stopped",
    "disk_free_bytes": "room",
    "disk_total_bytes": "room",
    "retention_deleted_segments_total": "room",
    "tls_certificate_end_seconds": "near the present time: put a new certificate in its place, see "
                                   "[Security](security.md)",
    "set_aside_files": "above 0: data was cut from the ledger and kept, see [Files](#files)",
    "set_aside_bytes": "above 0: data was cut from the ledger and kept, see [Files](#files)",
    "scrubbed_bytes_total": "progress of the [scrub](operations.md#scrub)",
    "scrub_passes_total": "no pass for longer than the log needs at `scrub_bytes_per_s`",
    "reader_lag_entries": _READER,
    "reader_lag_bytes": _READER,
    "reader_next_index": _READER,
    "reader_leases": _READER,
    "readers": "[named readers](readers.md#how-many); the 64 furthest behind have metrics of their own",
    "machine_is_running": "0: the state machine has stopped, takes up its snapshot, or waits for one of "
                          "another "
                          "member; the reason is in `/status`. All these are there only with `--machine`, "
                          "see "
                          "[machines](machines.md)",
    "machine_applied_index": _MACHINE_LAG,
    "machine_lag_entries": _MACHINE_LAG,
    "machine_applied_total": _MACHINE_LAG,
    "machine_busy_seconds": "above 0: a call of the state machine lasts for a second or more; `busy_with` in "
                            "`/status` says which, and at which entry",
    "machine_snapshot_failed": "1: the last snapshot could not be written; the next start takes longer",
    "reactor_stalls_total": "stalls as long as a follower's patience cause elections",
    "reactor_stall_seconds_total": "stalls as long as a follower's patience cause elections",
    "refusals_total": "a code that rises: see [Response codes](#response-codes)",
    "answers_held_bytes": "memory that clients hold, see [Limits](#limits)",
    "unfinished_frame_bytes": "memory that clients hold, see [Limits](#limits)",
    "requests_abandoned_total": "peers or clients that misbehave",
    "connections_refused_total": "peers or clients that misbehave",
    "connections_replaced_total": "peers or clients that misbehave",
    "wire_errors_total": "peers or clients that misbehave",
    "body_errors_total": "peers or clients that misbehave",
    "repairs_total": "any increase is damage",
    "truncations_total": "normal after a change of leader, not otherwise",
    "events_total": "[events](events.md) by name, as in the log",
    "uptime_seconds": "restarts",
}

#: By the whole name of a command: more than its help says.
COMMAND_REMARKS: Mapping[str, str] = {
    "dledger append": "`--header name=value` and `--envelope` give each entry headers and its time, see "
                      "[envelopes](envelopes.md).",
    "dledger get": "By its index, or the first entry of a time (`--at`). `--consistency committed` asks "
                   "any member; the "
                   "default proves leadership first.",
    "dledger tail": "From `--from`, from a time (`--since`, and to a time, `--until`, where entries have "
                    "times) or the "
                    "last `-n`, and with `-f` new ones as they commit. `--headers` shows times and "
                    "headers, `--json` "
                    "always; `--format rocketmq` shows the messages of a RocketMQ broker in DLedger mode; "
                    "`--broker "
                    "host:port` those of a broker, ours or RocketMQ's, master or slave, from "
                    "`--from-offset`.",
    "dledger status": "Of every member: role, term, indexes, lag, leader, or the reason why it does not "
                      "answer; with "
                      "`--admin URL`, from the admin pages.",
    "dledger cluster": "As `status`, with the versions of members whose admin pages can be reached; any "
                       "one member is "
                       "enough.",
    "dledger dashboard": "See [Dashboard](#dashboard).",
    "dledger top": "As `cluster`, every second (`--interval`), until Ctrl-C or `--count`.",
    "dledger events": "From their admin pages, in the order of time; [events](events.md) has the meaning "
                      "of each.",
    "dledger bench": "**It writes to the log**, so it asks, or needs `--yes-write`. It shows the rate and "
                     "the latencies "
                     "p50 and p99.",
    "dledger verify": "Reads every byte of a data directory, ours or Java's. With `--group` the members "
                      "are compared by "
                      "their chained checksums at one entry. That proves the headers and checksums that "
                      "they hold, not "
                      "the bytes of bodies on their disks.",
    "dledger backup": "`--verify` checks one: see [Backup](operations.md#backup).",
    "dledger archive": "Once, or with `--follow` as segments close; `--verify` checks an archive: see "
                       "[Archive](operations.md#archive).",
    "dledger restore": "With `--join`, the directory of a member of the group that has lost its files.",
    "dledger readfile": "Headers, and bodies or RocketMQ messages if asked for.",
    "dledger certs": "See [Security](security.md).",
    "dledger log-level": "In one room or in all; see [The log](operations.md#the-log).",
    "dledger completion": "`--install` writes it to the file that the shell reads; for `bash`, `zsh` and "
                          "`fish`.",
    "dledger help": "For example `dledger help member add`.",
    "dledger export": "To Parquet files or lines of JSON; see [spark](spark-reference.md#export).",
    "dledger ha-status": "Of RocketMQ brokers, Java's or ours: see [its lines](#lines-of-ha-status).",
    "dledger ha-resolve": "See [a slave that has stopped](operations.md#ha-resolve).",
    "dledger member": "See [Changing the members](operations.md#changing-the-members-of-a-running-group).",
    "dledger machine": "See [machines](machines.md).",
    "dledger readers": "Shows their lag, too; see [readers](readers.md).",
    "dledger group": "See [Who belongs to a group](operations.md#who-belongs-to-a-group).",
    "dledger context": "See [Contexts](#contexts).",
    "dledger config": "See [Options](#options).",
}
