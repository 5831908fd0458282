# -*- test-case-name: tests.test_reference -*-
"""
The options of a member: the unit and the meaning of each, for operators.

The table in the reference is made of this one (L{tests.reference}). A text is Markdown, with
links as that page has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class OptionHelp(NamedTuple):
    """
    @ivar unit: of a number, or what a text names, such as C{path}; empty for a name, a choice or a flag.
    @ivar meaning: for operators; the first sentence says what the option does.
    """

    unit: str
    meaning: str


#: By the name of the field of L{dledger.values.ledger.config.DLedgerConfig}.
OPTION_HELP: Mapping[str, OptionHelp] = {
    "group": OptionHelp(
        "",
        "name of the group; messages of another group are refused (400). It is not part of any path",
    ),
    "self_id": OptionHelp("", "this member's id, a key of `peers`; `--node-id`"),
    "peers": OptionHelp("", "every member, `id-host:port;id-host:port`; the same everywhere"),
    "store_base_dir": OptionHelp("path", "the files are in `<store_base_dir>/dledger-<self_id>`; `--store`"),
    "data_store_path": OptionHelp("path", "directory of the data files, if it is another one"),
    "flush_disk_type": OptionHelp(
        "",
        "`sync`: an append is answered after a majority has fsynced it; `async`: after a majority has "
        "written it; the fsync follows. With `async` a loss of power on a majority at once can lose "
        "answered appends; on fewer machines it loses none, see [Loss of "
        "power](operations.md#loss-of-power-with-async)",
    ),
    "accept_unclean_start": OptionHelp(
        "",
        "an operator's word after a loss of power with `async`: this member votes as usual although it may "
        "lack answered appends, as no other member has more, see [Loss of "
        "power](operations.md#loss-of-power-with-async)",
    ),
    "bootstrap": OptionHelp(
        "",
        "`--bootstrap`: this member's empty directory begins a new group, see [Starting a "
        "group](operations.md#starting-a-group)",
    ),
    "join": OptionHelp(
        "",
        "this empty directory joins a group that has a leader, see [Changing the "
        "members](operations.md#changing-the-members-of-a-running-group); `peers` only says where its "
        "members are. Harmless at later starts",
    ),
    "accept_new_members": OptionHelp(
        "",
        "an operator's word that `peers` are the new members of the group, see [Who belongs to a "
        "group](operations.md#who-belongs-to-a-group)",
    ),
    "wire": OptionHelp(
        "",
        "`auto`: native frames to peers that advertise them; `remoting`: never; `binary`: always",
    ),
    "term_start_entry": OptionHelp(
        "",
        "write an empty entry when a term begins and earlier entries are not known to be committed. `false` "
        "for RocketMQ brokers, which do not expect one: then earlier entries commit with the first append "
        "of the term, and linearizable reads wait for that append",
    ),
    "never_lead": OptionHelp(
        "",
        "vote and store, but never be a candidate; only when a candidate lacks entries of this member and "
        "there is no leader, it leads, without taking appends, until that one has them",
    ),
    "admin_hosts": OptionHelp(
        "names, `;`",
        "further host names by which browsers may call the administration; `*` for any. IP addresses, "
        "localhost, this host's name and the hosts in `peers` are allowed anyhow",
    ),
    "max_connections": OptionHelp(
        "",
        "incoming connections, see [Limits](#limits); 0: as many as the limit of descriptors allows, at "
        "most 4096",
    ),
    "tls_certificate": OptionHelp(
        "path",
        "PEM file of this member's certificate. With it and the next two, every connection is mutual TLS, "
        "see [Security](security.md). In a TOML file also a table `[tls]` with `certificate`, `key`, "
        "`authority`, `plain_hosts`, `plain_members`",
    ),
    "tls_key": OptionHelp("path", "PEM file of its key, without a password"),
    "tls_authority": OptionHelp("path", "PEM file of the authorities that the member believes"),
    "tls_plain_hosts": OptionHelp(
        "addresses, `;`",
        "IP addresses or networks whose connections may do without TLS, with all rights: Java members, or "
        "all members while a group changes over. Only with the three files above",
    ),
    "tls_plain_members": OptionHelp(
        "ids, `;`",
        "members to which this one connects without TLS. Only with the three files above",
    ),
    "change_hosts": OptionHelp(
        "addresses, `;`",
        "IP addresses or networks that may change the group (its members, its leader) where neither TLS nor "
        "`client_token_file` shows who asks, besides the loopback interface; `*` for all. The same name as "
        "of brokers (`changeHosts`) and name servers, see [Security](security.md#who-may-change-what)",
    ),
    "admin_tls": OptionHelp(
        "",
        "the admin pages are by TLS, with the three files above; callers show no certificate",
    ),
    "client_token_file": OptionHelp(
        "path",
        "hashes of [tokens of clients](security.md#tokens-for-clients) with their roles and groups; then "
        "who shows neither a token nor a certificate may ask METADATA only (without TLS: or says that it is "
        "a member, as everybody can there). Without TLS the member listens on the loopback interface only, "
        "unless `insecure`",
    ),
    "admin_token_file": OptionHelp(
        "path",
        "hashes of the tokens of those who may change something by the admin pages, made by `dledger "
        "token`; empty: nobody may, see [Admin pages](#admin-pages)",
    ),
    "admin_token_reads": OptionHelp(
        "",
        "reading the admin pages needs a token, too; `/healthz`, `/readyz` and `/`, without numbers, stay "
        "open",
    ),
    "insecure": OptionHelp(
        "",
        "`--insecure`: the admin pages may listen beyond the loopback interface without TLS and a token, "
        "and the log does not warn of a port without TLS",
    ),
    "tracing": OptionHelp(
        "",
        "hand spans of appends to OpenTelemetry, see [Tracing](#tracing); needs the extra `tracing`",
    ),
    "scrub_bytes_per_s": OptionHelp(
        "bytes/s",
        "closed segments are read again at this rate so that damage is found while other members still have "
        "the entries, see [Scrub](operations.md#scrub); 0: never",
    ),
    "preferred_leader_ids": OptionHelp("ids, `;`", "members that get leadership once they have caught up"),
    "heart_beat_time_interval_ms": OptionHelp("ms", "interval between a leader's heartbeats (Java: 2000)"),
    "max_heart_beat_leak": OptionHelp(
        "beats",
        "a follower's patience ends after this many missed beats, plus up to half of that time at random "
        "(Java: 3, nothing at random)",
    ),
    "max_vote_interval_ms": OptionHelp("ms", "longest random wait between election rounds; more than 100"),
    "scrub_pause_ms": OptionHelp("ms", "between two passes over all closed segments, and before the first"),
    "peer_push_throttle_point": OptionHelp("bytes", "a peer that is further behind than this is throttled"),
    "peer_push_quota": OptionHelp("bytes/s", "rate for a throttled peer"),
    "max_wait_ack_time_ms": OptionHelp(
        "ms",
        "an append that is not committed within this time is answered 502: outcome unknown",
    ),
    "push_chunk_bytes": OptionHelp(
        "bytes",
        "a follower that is far behind is pushed [chunks](operations.md#catching-up) of about this size, "
        "records and index units; at most 8388608; 0: none, and no checksums for them are made",
    ),
    "mapped_file_size_for_entry_data": OptionHelp(
        "bytes",
        "size of one data file. The same on every member, and never changed: the positions of records "
        "depend on it",
    ),
    "mapped_file_size_for_entry_index": OptionHelp("bytes", "size of one index file; a multiple of 32"),
    # Retention, up to C{enable_disk_force_clean}: no other option decides which segments are deleted.
    "file_reserved_hours": OptionHelp(
        "hours",
        "older segments are deleted in the hour of `delete_when`; 0: no segment is deleted for its age. "
        "Also `retention_hours`",
    ),
    "delete_when": OptionHelp("hours, `;`", "local hours of the day in which old segments are deleted"),
    "retention_bytes": OptionHelp("bytes", "keep at most this much of segments; 0: no limit"),
    "machine_keep_entries": OptionHelp(
        "entries",
        "segments that end at least this many entries before the last one in the oldest snapshot are "
        "deleted; 0: none. Also `keep_entries`. See [machines](machines.md#the-log-after-snapshots)",
    ),
    "expire_only_archived": OptionHelp(
        "",
        "a segment is deleted, for whatever reason, only if an archive has it: see "
        "[Archive](operations.md#archive)",
    ),
    "disk_full_ratio": OptionHelp("share", "if more is in use, appends are refused (415)"),
    "enable_disk_force_clean": OptionHelp(
        "", "delete the oldest segments, at any age, when the disk is 85 % full"
    ),
    "producers_expire_hours": OptionHelp(
        "hours",
        "the group forgets a producer that has appended nothing in that time; 0: never. See "
        "[exactly once](exactly-once.md#how-long-the-log-remembers)",
    ),
    "entry_times_ms": OptionHelp(
        "ms",
        "the leader notes in the log when it writes entries, as exactly as this; 0: it does not. 100 costs "
        "one entry in 100 ms at most. See [times](times.md)",
    ),
    "machine_snapshot_entries": OptionHelp(
        "entries",
        "a snapshot of the state machine is taken after this number of entries; 0: not by entries. See "
        "[machines](machines.md)",
    ),
    "machine_snapshot_bytes": OptionHelp(
        "bytes",
        "the same, after this many bytes of bodies; 0: not by bytes",
    ),
}
