# -*- test-case-name: tests.core.test_config -*-
"""
Configuration of a member: frozen, validated, in plain units, with errors that name the remedy.

Names are DLedger's in snake_case; L{from_mapping} also accepts Java's and RocketMQ's spellings.
Validators touch neither disk nor network. Most defaults are Java's, except election timing.

Source: DLedgerConfig.java (0.3.1.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

import attrs
from attrs.validators import in_

from dledger.values.addresses import DEFAULT_MEMBERS, checked_members
from dledger.values.hosts import ChangeHosts, networks_of
from dledger.values.option_fields import (
    FIXED,
    flag_option,
    is_fixed,
    number_option,
    options_of,
    path_option,
    share_option,
    text_option,
)
from dledger.values.option_values import (
    check_type,
    converted,
    findings_of,
    listed,
    made_of,
    our_name,
    raise_findings,
    unknown_option,
)
from dledger.values.tls_files import TlsFiles, check_admin_options, tls_files
from protocols.wire.ledger.entry import (
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    MAX_RECORD_BYTES,
    MIN_BLANK_SIZE,
)

#: A Java follower gives up its leader after 3 missed heartbeats of 2000 ms; used for a leader that
#: does not advertise its interval.
JAVA_HEART_BEAT_TIME_INTERVAL_MS = 2000
JAVA_MAX_HEART_BEAT_LEAK = 3

#: Longest id of a member, in bytes of UTF-8: the record of a vote holds it.
ID_BYTES_MAX = 255
#: Longest name of a group, likewise, as for RocketMQ's groups: the identity of a directory holds it.
GROUP_BYTES_MAX = 127

#: Bytes that readers keep where only the age of segments is bounded.
READER_BYTES_HELD = 8 * 1024 * 1024 * 1024

FLUSH_ASYNC = "async"
FLUSH_SYNC = "sync"


def _ids(value: str | tuple[str, ...] | list[str] | None) -> tuple[str, ...]:
    if not value:
        return ()
    return listed(value) if isinstance(value, str) else tuple(value)


@attrs.frozen(kw_only=True)
class DLedgerConfig:
    """
    All options of a member; the table in the reference is made of this text, which is for operators. Values
    that are fixed are no options: tests alone set them.

    Nothing is deleted unless C{file_reserved_hours}, C{retention_bytes}, C{machine_keep_entries} or
    C{enable_disk_force_clean} is set.

    @ivar ignored: names that were given, in any spelling, of values that are fixed here.
    @ivar group: name of the group; messages of another group are refused (400). It is not part of any path
    @ivar self_id: this member's id, a key of C{peers}; C{--node-id}
    @ivar peers: every member, C{id-host:port;id-host:port}; the same everywhere
    @ivar store_base_dir: the files are in `<store_base_dir>/dledger-<self_id>`; C{--store}
    @ivar data_store_path: directory of the data files, if it is another one
    @ivar flush_disk_type: C{sync}: an append is answered after a majority has fsynced it; C{async}: after a
        majority has written it; the fsync follows. With C{async} a loss of power on a majority at once can
        lose answered appends; on fewer machines it loses none, see [Loss of
        power](operations.md#loss-of-power-with-async)
    @ivar accept_unclean_start: an operator's word after a loss of power with C{async}: this member votes as
        usual although it may lack answered appends, as no other member has more, see [Loss of
        power](operations.md#loss-of-power-with-async)
    @ivar bootstrap: C{--bootstrap}: this member's empty directory begins a new group, see [Starting a
        group](operations.md#starting-a-group)
    @ivar join: this empty directory joins a group that has a leader, see [Changing the
        members](operations.md#changing-the-members-of-a-running-group); C{peers} only says where its members
        are. Harmless at later starts
    @ivar accept_new_members: an operator's word that C{peers} are the new members of the group, see [Who
        belongs to a group](operations.md#who-belongs-to-a-group)
    @ivar wire: C{auto}: native frames to peers that advertise them; C{remoting}: never; C{binary}: always
    @ivar term_start_entry: write an empty entry when a term begins and earlier entries are not known to be
        committed. C{false} for RocketMQ brokers, which do not expect one: then earlier entries commit with
        the first append of the term, and linearizable reads wait for that append
    @ivar never_lead: vote and store, but never be a candidate; only when a candidate lacks entries of this
        member and there is no leader, it leads, without taking appends, until that one has them
    @ivar admin_hosts: (names, C{;} between them) further host names by which browsers may call the
        administration; C{*} for any. IP addresses, localhost, this host's name and the hosts in C{peers} are
        allowed anyhow
    @ivar max_connections: incoming connections, see [Limits](#limits); 0: as many as the limit of descriptors
        allows, at most 4096
    @ivar tls_certificate: PEM file of this member's certificate. With it and the next two, every connection
        is mutual TLS, see [Security](security.md). In a TOML file also a table C{[tls]} with C{certificate},
        C{key}, C{authority}, C{plain_hosts}, C{plain_members}
    @ivar tls_key: PEM file of its key, without a password
    @ivar tls_authority: PEM file of the authorities that the member believes
    @ivar tls_plain_hosts: (addresses, C{;} between them) IP addresses or networks whose connections may do
        without TLS, with all rights: Java members, or all members while a group changes over. Only with the
        three files above
    @ivar tls_plain_members: (ids, C{;} between them) members to which this one connects without TLS. Only
        with the three files above
    @ivar change_hosts: (addresses, C{;} between them) IP addresses or networks that may change the group (its
        members, its leader) where neither TLS nor C{client_token_file} names the caller, besides the loopback
        interface; C{*} for all, C{none} also without the loopback interface. The same name as of brokers
        (C{changeHosts}) and name servers, see [Security](security.md#who-may-change-what)
    @ivar admin_tls: the admin pages are by TLS, with the three files above; callers show no certificate
    @ivar client_token_file: hashes of [tokens of clients](security.md#tokens-for-clients) with their roles
        and groups; then who shows neither a token nor a certificate may ask METADATA only (without TLS: or
        says that it is a member, as everybody can there). Without TLS the member listens on the loopback
        interface only, unless C{insecure}
    @ivar admin_token_file: hashes of the tokens of those who may change something by the admin pages, made by
        C{dledger token}; empty: nobody may, see [Admin pages](#admin-pages)
    @ivar admin_token_reads: reading the admin pages needs a token, too; C{/healthz}, C{/readyz} and C{/},
        without numbers, stay open
    @ivar insecure: C{--insecure}: the admin pages may listen beyond the loopback interface without TLS and a
        token, and the log does not warn of a port without TLS
    @ivar tracing: hand spans of appends to OpenTelemetry, see [Tracing](#tracing); needs the extra C{tracing}
    @ivar scrub_bytes_per_s: (bytes/s) closed segments are read again at this rate so that damage is found
        while other members still have the entries, see [Scrub](operations.md#scrub); 0: never
    @ivar preferred_leader_ids: (ids, C{;} between them) members that get leadership once they have caught up
    @ivar heart_beat_time_interval_ms: (ms) interval between a leader's heartbeats (Java: 2000)
    @ivar max_heart_beat_leak: (beats) a follower's patience ends after this many missed beats, plus up to
        half of that time at random (Java: 3, nothing at random)
    @ivar max_vote_interval_ms: (ms) longest random wait between election rounds; more than 100
    @ivar scrub_pause_ms: (ms) between two passes over all closed segments, and before the first
    @ivar peer_push_throttle_point: (bytes) a peer that is further behind than this is throttled
    @ivar peer_push_quota: (bytes/s) rate for a throttled peer
    @ivar max_wait_ack_time_ms: (ms) an append that is not committed within this time is answered 502: outcome
        unknown
    @ivar push_chunk_bytes: (bytes) a follower that is far behind is pushed
        [chunks](operations.md#catching-up) of about this size, records and index units; at most 8388608; 0:
        none, and no checksums for them are made
    @ivar mapped_file_size_for_entry_data: (bytes) size of one data file. The same on every member, and never
        changed: the positions of records depend on it
    @ivar mapped_file_size_for_entry_index: (bytes) size of one index file; a multiple of 32
    @ivar file_reserved_hours: (hours) older segments are deleted in the hour of C{delete_when}; 0: no segment
        is deleted for its age. Also C{retention_hours}
    @ivar delete_when: (hours, C{;} between them) local hours of the day in which old segments are deleted
    @ivar retention_bytes: (bytes) keep at most this much of segments; 0: no limit
    @ivar machine_keep_entries: (entries) segments that end at least this many entries before the last one in
        the oldest snapshot are deleted; 0: none. Also C{keep_entries}. See
        [machines](machines.md#the-log-after-snapshots)
    @ivar expire_only_archived: a segment is deleted, for whatever reason, only if an archive has it: see
        [Archive](operations.md#archive)
    @ivar disk_full_ratio: (share) if more is in use, appends are refused (415)
    @ivar enable_disk_force_clean: delete the oldest segments, at any age, when the disk is 85 % full
    @ivar producers_expire_hours: (hours) the group forgets a producer that has appended nothing in that time;
        0: never. See [exactly once](exactly-once.md#how-long-the-log-remembers)
    @ivar entry_times_ms: (ms) the leader notes in the log when it writes entries, as exactly as this; 0: it
        does not. 100 costs one entry in 100 ms at most. See [times](times.md)
    @ivar entry_times_ahead_ms: (ms) a leader whose clock is further ahead of what a majority of the voters
        say notes their time
    @ivar machine_snapshot_entries: (entries) a snapshot of the state machine is taken after this number of
        entries; 0: not by entries. See [machines](machines.md)
    @ivar machine_snapshot_bytes: (bytes) the same, after this many bytes of bodies; 0: not by bytes
    """

    group: str = text_option("default")
    self_id: str = text_option("n0")
    peers: dict[str, str] = attrs.field(default=DEFAULT_MEMBERS, converter=checked_members)
    store_base_dir: str = path_option("./dledger-data")
    data_store_path: str = path_option("")
    flush_disk_type: str = attrs.field(default=FLUSH_ASYNC, validator=in_((FLUSH_ASYNC, FLUSH_SYNC)))
    wire: str = attrs.field(default="auto", validator=in_(("auto", "remoting", "binary")))

    accept_unclean_start: bool = flag_option(False)
    bootstrap: bool = flag_option(False)
    join: bool = flag_option(False)
    accept_new_members: bool = flag_option(False)
    term_start_entry: bool = flag_option(True)
    never_lead: bool = flag_option(False)
    preferred_leader_ids: tuple[str, ...] = attrs.field(default=(), converter=_ids)
    admin_hosts: tuple[str, ...] = attrs.field(default=(), converter=_ids)
    max_connections: int = number_option(0, 0)
    tls_certificate: str = path_option("")
    tls_key: str = path_option("")
    tls_authority: str = path_option("")
    tls_plain_hosts: tuple[str, ...] = attrs.field(default=(), converter=_ids)
    tls_plain_members: tuple[str, ...] = attrs.field(default=(), converter=_ids)
    change_hosts: tuple[str, ...] = attrs.field(default=(), converter=_ids)
    tracing: bool = flag_option(False)
    admin_tls: bool = flag_option(False)
    client_token_file: str = path_option("")
    admin_token_file: str = path_option("")
    admin_token_reads: bool = flag_option(False)
    insecure: bool = flag_option(False)

    heart_beat_time_interval_ms: int = number_option(200, 1)
    max_heart_beat_leak: int = number_option(5, 1)
    max_vote_interval_ms: int = number_option(400, 1)
    scrub_bytes_per_s: int = number_option(1024 * 1024, 0)
    scrub_pause_ms: int = number_option(600_000, 1)

    peer_push_quota: int = number_option(20 * 1024 * 1024, 1)
    peer_push_throttle_point: int = number_option(300 * 1024 * 1024, 0)
    push_chunk_bytes: int = number_option(1024 * 1024, 0)
    max_wait_ack_time_ms: int = number_option(2500, 1)

    mapped_file_size_for_entry_data: int = number_option(1024 * 1024 * 1024, 1024)
    mapped_file_size_for_entry_index: int = number_option(32 * 5 * 1024 * 1024, 32)

    # What is deleted.
    file_reserved_hours: int = number_option(0, 0)
    delete_when: str = text_option("04")
    disk_full_ratio: float = share_option(0.90)
    enable_disk_force_clean: bool = flag_option(False)
    retention_bytes: int = number_option(0, 0)
    producers_expire_hours: int = number_option(168, 0)
    machine_keep_entries: int = number_option(0, 0)
    expire_only_archived: bool = flag_option(False)

    entry_times_ms: int = number_option(0, 0, 3_600_000)
    entry_times_ahead_ms: int = number_option(3_600_000, 1000, 86_400_000)
    machine_snapshot_entries: int = number_option(100_000, 0)
    machine_snapshot_bytes: int = number_option(256 * 1024 * 1024, 0)

    ignored: tuple[str, ...] = attrs.field(default=(), metadata=FIXED)

    # Fixed: tests alone set these.
    tick_ms: int = number_option(20, 1, is_fixed=True)
    rpc_time_out_ms: int = number_option(3000, 1, is_fixed=True)
    min_vote_interval_ms: int = number_option(100, 0, is_fixed=True)
    slow_flush_hand_over_ms: int = number_option(100, 0, is_fixed=True)
    max_pending_requests_num: int = number_option(10_000, 1, is_fixed=True)
    readers_hold_bytes: int = number_option(-1, -1, is_fixed=True)
    leadership_transfer_wait_timeout: int = number_option(1000, 1, is_fixed=True)
    max_leadership_transfer_wait_index: int = number_option(1000, 0, is_fixed=True)
    min_take_leadership_vote_interval_ms: int = number_option(30, 0, is_fixed=True)
    max_take_leadership_vote_interval_ms: int = number_option(100, 1, is_fixed=True)
    max_pending_reads: int = number_option(10_000, 1, is_fixed=True)
    max_push_time_out_ms: int = number_option(1000, 1, is_fixed=True)
    enable_batch_push: bool = flag_option(True, is_fixed=True)
    max_batch_push_bytes: int = number_option(1024 * 1024, 1, is_fixed=True)
    max_batch_push_count: int = number_option(4096, 1, is_fixed=True)
    max_inflight_push_bytes: int = number_option(8 * 1024 * 1024, 1, is_fixed=True)
    max_inflight_pushes: int = number_option(64, 1, is_fixed=True)
    push_chunk_behind_bytes: int = number_option(2 * 1024 * 1024, 0, is_fixed=True)
    max_queued_pushes: int = number_option(1024, 1, is_fixed=True)
    flush_file_interval: int = number_option(10, 1, is_fixed=True)
    check_point_interval: int = number_option(3000, 1, is_fixed=True)
    pre_vote: bool = flag_option(True, is_fixed=True)
    max_answer_bytes: int = number_option(48 * 1024 * 1024, 16 * 1024 * 1024, is_fixed=True)
    max_unfinished_bytes: int = number_option(64 * 1024 * 1024, 4 * 1024 * 1024, is_fixed=True)
    connections_share: int = number_option(50, 1, 100, is_fixed=True)
    healthy_lag_entries: int = number_option(100_000, 0, is_fixed=True)
    max_pending_bytes: int = number_option(64 * 1024 * 1024, 1, is_fixed=True)
    disk_space_ratio_to_check_expired: float = share_option(0.70, is_fixed=True)
    disk_space_ratio_to_force_clean: float = share_option(0.85, is_fixed=True)

    @property
    def reader_bytes_held(self) -> int:
        """Bytes at the end of the log that a reader keeps from expiry at most; 0: no bound."""
        if self.readers_hold_bytes >= 0:
            return self.readers_hold_bytes
        return 2 * self.retention_bytes or READER_BYTES_HELD

    @peers.validator
    def _self_is_a_peer(self, _attribute: object, value: dict[str, str]) -> None:
        if self.self_id not in value:
            raise ValueError(
                f"self_id={self.self_id!r} is not among the peers {sorted(value)}: "
                "add it to peers, or correct --node-id"
            )

    @peers.validator
    def _ids_fit_a_vote(self, _attribute: object, value: dict[str, str]) -> None:
        for peer_id in value:
            if len(peer_id.encode()) > ID_BYTES_MAX:
                raise ValueError(f"peers: member id {peer_id[:40]!r}... has more than {ID_BYTES_MAX} bytes: "
                                 "shorten it, the record of a vote must hold it")

    @group.validator
    def _group_fits_the_identity(self, _attribute: object, value: str) -> None:
        if len(value.encode()) > GROUP_BYTES_MAX:
            raise ValueError(f"group={value[:40]!r}... has more than {GROUP_BYTES_MAX} bytes: shorten it")

    @self_id.validator
    def _id_is_plain(self, _attribute: object, value: str) -> None:
        if not value or re.search(r"[-;/\s]", value):
            raise ValueError(f"self_id={value!r} must not be empty or contain '-', ';', '/' or blanks")

    @group.validator
    def _group_is_plain(self, _attribute: object, value: str) -> None:
        if not value or re.search(r"[/\s\x00-\x1f]", value):
            raise ValueError(
                f"group={value!r} must not be empty or contain '/', blanks or control characters"
            )

    @tick_ms.validator
    def _ticks_within_beats(self, _attribute: object, value: int) -> None:
        if value > self.heart_beat_time_interval_ms:
            raise ValueError(
                f"tick_ms={value} must not exceed heart_beat_time_interval_ms="
                f"{self.heart_beat_time_interval_ms}: heartbeats are sent by ticks"
            )

    @rpc_time_out_ms.validator
    def _answers_have_time(self, _attribute: object, value: int) -> None:
        if value <= self.tick_ms:
            raise ValueError(
                f"rpc_time_out_ms={value} must exceed tick_ms={self.tick_ms}: no peer could answer in time"
            )

    @push_chunk_bytes.validator
    def _chunk_fits_a_frame(self, _attribute: object, value: int) -> None:
        if value > 8 * 1024 * 1024:
            raise ValueError(f"push_chunk_bytes={value} exceeds 8388608: a chunk must fit a frame of 16 MiB")

    @max_vote_interval_ms.validator
    def _vote_window_is_open(self, _attribute: object, value: int) -> None:
        if value <= self.min_vote_interval_ms:
            raise ValueError(
                f"max_vote_interval_ms={value} must exceed min_vote_interval_ms="
                f"{self.min_vote_interval_ms}: candidates with equal waits split every vote"
            )

    @mapped_file_size_for_entry_data.validator
    def _data_size_is_java_sized(self, _attribute: object, value: int) -> None:
        if value > 1024 * 1024 * 1024:
            raise ValueError(
                f"mapped_file_size_for_entry_data={value} exceeds 1073741824 (1 GiB): "
                "positions in a file are 32 bit in Java"
            )

    @mapped_file_size_for_entry_index.validator
    def _index_size_holds_whole_units(self, _attribute: object, value: int) -> None:
        if value % INDEX_UNIT_SIZE:
            raise ValueError(
                f"mapped_file_size_for_entry_index={value} must be a multiple of {INDEX_UNIT_SIZE}"
            )

    @enable_disk_force_clean.validator
    def _cleaned_before_full(self, _attribute: object, value: bool) -> None:
        if value and self.disk_full_ratio < self.disk_space_ratio_to_force_clean:
            raise ValueError(
                f"disk_full_ratio={self.disk_full_ratio} is below disk_space_ratio_to_force_clean="
                f"{self.disk_space_ratio_to_force_clean}: appends would be refused before files are deleted"
            )
        if value and self.disk_space_ratio_to_force_clean < self.disk_space_ratio_to_check_expired:
            raise ValueError(
                f"disk_space_ratio_to_force_clean={self.disk_space_ratio_to_force_clean} is below "
                f"disk_space_ratio_to_check_expired={self.disk_space_ratio_to_check_expired}: young files "
                "would be deleted before old ones are looked for"
            )

    @join.validator
    def _joins_or_begins(self, _attribute: object, value: bool) -> None:
        if value and self.bootstrap:
            raise ValueError("bootstrap=true begins a new group, join=true joins one: give one of them")

    @max_wait_ack_time_ms.validator
    def _acks_have_time(self, _attribute: object, value: int) -> None:
        if value <= self.tick_ms:
            raise ValueError(
                f"max_wait_ack_time_ms={value} must exceed tick_ms={self.tick_ms}: every append would end "
                "as unknown (502)"
            )

    @max_push_time_out_ms.validator
    def _pushes_have_time(self, _attribute: object, value: int) -> None:
        if value <= self.tick_ms:
            raise ValueError(
                f"max_push_time_out_ms={value} must exceed tick_ms={self.tick_ms}: no follower could answer "
                "a push in time"
            )

    @delete_when.validator
    def _hours_are_hours(self, _attribute: object, value: str) -> None:
        for hour in value.split(";"):
            if not (hour.strip().isdecimal() and 0 <= int(hour) <= 23):
                raise ValueError(f"delete_when={value!r}: write hours 00 to 23, separated by ';'")

    @preferred_leader_ids.validator
    def _preferred_are_peers(self, _attribute: object, value: tuple[str, ...]) -> None:
        for peer_id in value:
            if peer_id not in self.peers:
                raise ValueError(f"preferred_leader_ids: {peer_id!r} is not among {sorted(self.peers)}")
        if self.never_lead and self.self_id in value:
            raise ValueError(f"preferred_leader_ids names this member, {self.self_id!r}, which has "
                             "never_lead=true: give one of them")

    @tls_authority.validator
    def _tls_is_whole(self, _attribute: object, value: str) -> None:
        tls_files(certificate=self.tls_certificate, key=self.tls_key, authority=value)

    @tls_plain_members.validator
    def _plain_are_peers(self, _attribute: object, value: tuple[str, ...]) -> None:
        for peer_id in value:
            if peer_id not in self.peers:
                raise ValueError(f"tls_plain_members: {peer_id!r} is not among {sorted(self.peers)}")

    @change_hosts.validator
    def _changers_are_hosts(self, attribute: attrs.Attribute[object], value: tuple[str, ...]) -> None:
        ChangeHosts(value, attribute.name)

    @tls_plain_hosts.validator
    def _plain_are_hosts(self, attribute: attrs.Attribute[object], value: tuple[str, ...]) -> None:
        networks_of(value, attribute.name)
        if (value or self.tls_plain_members) and not self.tls_certificate:
            raise ValueError(
                "tls_plain_hosts and tls_plain_members name exceptions from TLS, and this member has no TLS: "
                "give tls_certificate, tls_key and tls_authority, too"
            )

    @admin_tls.validator
    def _admin_has_keys(self, _attribute: object, value: bool) -> None:
        check_admin_options(
            admin_tls=value, has_keys=bool(self.tls_certificate), token_file=self.admin_token_file,
            token_reads=self.admin_token_reads,
        )

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files of this member's TLS identity; None without TLS."""
        return tls_files(certificate=self.tls_certificate, key=self.tls_key, authority=self.tls_authority)

    @property
    def body_bytes_max(self) -> int:
        """Largest body in bytes: it must fit Java's encode buffer, and one data file with its blank."""
        room = min(MAX_RECORD_BYTES, self.mapped_file_size_for_entry_data - MIN_BLANK_SIZE)
        return room - ENTRY_HEADER_SIZE

    @cached_property
    def is_sync(self) -> bool:
        """Whether acks wait for fsync."""
        return self.flush_disk_type == FLUSH_SYNC

    @property
    def self_path(self) -> str:
        """Directory of this member's files."""
        return f"{self.store_base_dir}/dledger-{self.self_id}"


#: Spellings of Java DLedger and RocketMQ that are not the camel case of our own names.
ALIASES: Mapping[str, str] = {
    "dLegerGroup": "group",
    "dLegerPeers": "peers",
    "dLegerSelfId": "self_id",
    "selfId": "self_id",
    "nodeId": "self_id",
    "node_id": "self_id",
    "preferredLeaderId": "preferred_leader_ids",
    "isEnableBatchPush": "enable_batch_push",
    "maxBatchPushSize": "max_batch_push_bytes",
    "storePathRootDir": "store_base_dir",
    "store": "store_base_dir",
    "fileReservedTime": "file_reserved_hours",
    "keep_entries": "machine_keep_entries",
    "retention_hours": "file_reserved_hours",
    "retentionHours": "file_reserved_hours",
}

#: Names that only RocketMQ's brokers have for the options of their log.
BROKER_NAMES = ("dLegerGroup", "dLegerPeers", "dLegerSelfId")

#: Options whose converters take several types.
_OWN_TYPES = (
    "peers", "preferred_leader_ids", "admin_hosts", "tls_plain_hosts", "tls_plain_members", "change_hosts",
)

#: Java's defaults for options whose defaults are safer here. They apply to a Java-style file of properties.
JAVA_FILE_DEFAULTS: Mapping[str, object] = {"file_reserved_hours": 72, "enable_disk_force_clean": True}


def read_java_file(text: str) -> dict[str, object]:
    """
    The options in a Java-style file: lines C{name=value}, comments with C{#} or C{!}. For those that it does
    not name, L{JAVA_FILE_DEFAULTS} hold.

    @raise ValueError: another line, or a name twice.
    """
    found: dict[str, object] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ValueError(f"line {number}: {line[:60]!r} is not name=value")
        if name in found:
            raise ValueError(f"line {number}: {name} is given twice")
        found[name] = value.strip()
    return found

#: Options of Java that mean nothing here: they are ignored, like those of fixed values.
_JAVA_ONLY = frozenset(("store_type",))

_FLUSH_NAMES = {"SYNC_FLUSH": FLUSH_SYNC, "ASYNC_FLUSH": FLUSH_ASYNC}


def from_mapping(values: Mapping[str, object]) -> DLedgerConfig:
    """
    Build a configuration from names in our, Java's or RocketMQ's spelling.

    @param values: option name to value; strings are converted to the option's type. Those of fixed values are
        ignored, and listed in the result.
    @raise ValueError: unknown names (the text names the nearest known one), invalid values, or one option
        under two spellings; the text has a line for each finding.
    """
    fields, options = attrs.fields_dict(DLedgerConfig), options_of(DLedgerConfig)
    known: dict[str, object] = {}
    findings: list[str] = []
    ignored: list[str] = []
    unread: set[str] = set()
    for name, value in values.items():
        target = our_name(name, ALIASES, fields)
        try:
            is_value = target in fields and is_fixed(fields[target]) and target != "ignored"
            if is_value or target in _JAVA_ONLY:
                ignored.append(name)
                continue
            if target not in options:
                raise unknown_option(name, target, options)
            if target in known:
                raise ValueError(f"option {target!r} is given twice, once as {name!r}")
            known[target] = _value(target, value, fields[target].default)
        except ValueError as error:
            findings.append(str(error))
            unread.add(target)
    known["ignored"] = tuple(ignored)
    findings += findings_of(DLedgerConfig, known, unread)
    raise_findings(findings)
    return made_of(DLedgerConfig, known)


def broker_warning(values: Mapping[str, object], config: DLedgerConfig) -> str:
    """
    What to say about a member that seems to stand beside brokers of RocketMQ, and may lead them.

    @param values: the options that were given, in any spelling.
    @param config: made of them.
    @return: a sentence; empty: nothing.
    """
    names = [name for name in BROKER_NAMES if name in values]
    is_reported = any(our_name(name, ALIASES, ()) == "never_lead" for name in values)
    if not names or is_reported or config.never_lead:
        return ""
    return (
        f"{names[0]} is a name of RocketMQ's brokers, and never_lead is not given: this member may become "
        "the leader, and then the group has no master broker, takes no message, and gets an entry that is no "
        "message, after which brokers of RocketMQ come to no end of their queues. Beside brokers write "
        "never_lead=true; without any, never_lead=false"
    )


def _value(name: str, value: object, default: object) -> object:
    if name == "flush_disk_type" and isinstance(value, str):
        return _FLUSH_NAMES.get(value, value.lower())
    if name == "wire" and isinstance(value, str):
        return value.lower()
    value = converted(name, value, default)
    if name not in _OWN_TYPES:
        check_type(name, value, default)
    elif name != "peers" and not (isinstance(value, str) or _is_list_of_text(value)):
        raise ValueError(f"{name}={value!r}: write names, separated by ';', or a list of names")
    return value


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)
