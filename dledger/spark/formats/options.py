# -*- test-case-name: tests.spark.test_options -*-
"""
The options of the source: names as in Kafka's source if it has the option; case does not matter.

L{OPTIONS} is the table of docs/spark-reference.md; a test compares them. Rule: an unknown name, or a name
that makes no sense in its place, is an error that names the nearest known one or the reason.

Knows nothing of files, sockets and Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

import attrs

from dledger.spark.formats.option_texts import (
    OptionError,
    as_duration_ms,
    as_facts,
    as_flag,
    as_moment_ms,
    as_offset,
    as_reader_name,
    as_text,
    as_texts,
    one_of,
    whole_number,
)
from dledger.values.option_values import made_of
from dledger.values.tls_files import TlsFiles, tls_files
from protocols.wire.fastjson import JsonObject

DLEDGER, ROCKETMQ = "dledger", "rocketmq"
#: A batch is one allocation in the JVM, and several are in use at a time; larger ones are not faster.
FETCH_BYTES_MAX = 64 * 1024 * 1024


_MANY = 2**62


@attrs.frozen(kw_only=True)
class Option:
    """
    One line of the table.

    @ivar field: the attribute of L{ScanOptions}.
    @ivar default: as docs/spark-reference.md shows it.
    """

    name: str
    field: str
    read: Callable[[str, str], object]
    default: str


def option_values(
    given: Mapping[str, str], known: Mapping[str, Option], unknown: Callable[[str, str], OptionError]
) -> JsonObject:
    """
    The fields of the options given.

    @param known: by name in lower case.
    @raise OptionError: C{unknown} made it, or a value makes no sense.
    """
    values: JsonObject = {}
    for name, text in given.items():
        option = known.get(name.lower())
        if option is None:
            raise unknown(name, str(text))
        values[option.field] = option.read(option.name, str(text))
    return values


def check_tls_options(
    files: Mapping[str, str], plain_members: tuple[str, ...], *, has_token: bool = False
) -> None:
    """
    @param files: the three options and their values.
    @param has_token: then the last of them will do.
    @raise OptionError: some of the three are given, but not all; or members without TLS, and no file.
    """
    missing = [name for name, path in files.items() if not path]
    if has_token and missing == list(files)[:2]:
        missing = []
    if 0 < len(missing) < len(files):
        raise OptionError(f"TLS needs three files; missing: {', '.join(missing)}")
    if plain_members and missing:
        raise OptionError("option tlsPlainMembers names the members that do without TLS: it needs "
                          "tlsCertificate, tlsKey and tlsAuthority for the others")


OPTIONS: tuple[Option, ...] = (
    Option(name="path", field="path", read=as_text, default="-"),
    Option(name="dataPath", field="data_path", read=as_text, default="`data` in `path`"),
    Option(name="bootstrap", field="bootstrap", read=as_text, default="-"),
    Option(name="archive", field="archive", read=as_text, default="-"),
    Option(name="archiveOptions", field="archive_options", read=as_facts, default="-"),
    Option(name="group", field="group", read=as_text, default="`default`"),
    Option(name="format", field="format", read=one_of(DLEDGER, ROCKETMQ), default="`dledger`"),
    Option(name="startingOffsets", field="starting", read=as_offset,
           default="batch `earliest`, stream `latest`"),
    Option(name="startingTimestamp", field="starting_timestamp", read=as_moment_ms, default="-"),
    Option(name="endingOffsets", field="ending", read=as_offset, default="`latest`"),
    Option(name="failOnDataLoss", field="fail_on_data_loss", read=as_flag, default="`true`"),
    Option(name="failOnDamage", field="fail_on_damage", read=as_flag, default="`true`"),
    Option(name="verifyCrc", field="verify_crc", read=as_flag, default="`false`"),
    Option(name="decompress", field="decompress", read=as_flag, default="`true`"),
    Option(name="topics", field="topics", read=as_texts, default="-"),
    Option(name="tags", field="tags", read=as_texts, default="-"),
    Option(name="keys", field="keys", read=as_texts, default="-"),
    Option(name="storedFrom", field="stored_from", read=whole_number(0, _MANY), default="-"),
    Option(name="storedBefore", field="stored_before", read=whole_number(0, _MANY), default="-"),
    Option(name="clockBackMs", field="clock_back_ms", read=whole_number(0, _MANY), default="-"),
    Option(name="byQueues", field="by_queues", read=as_flag, default="`false`"),
    Option(name="includeInternal", field="include_internal", read=as_flag, default="`false`"),
    Option(name="includeControl", field="include_control", read=as_flag, default="`false`"),
    Option(name="includeMarkers", field="include_markers", read=as_flag, default="`false`"),
    Option(name="envelopes", field="envelopes", read=as_flag, default="`false`"),
    Option(name="times", field="times", read=as_flag, default="`false`"),
    Option(name="bodyText", field="body_text", read=as_flag, default="`false`"),
    Option(name="maxOffsetsPerTrigger", field="max_offsets_per_trigger", read=whole_number(1, _MANY),
           default="-"),
    Option(name="maxBytesPerTrigger", field="max_bytes_per_trigger", read=whole_number(1, _MANY),
           default="-"),
    Option(name="minOffsetsPerTrigger", field="min_offsets_per_trigger", read=whole_number(1, _MANY),
           default="-"),
    Option(name="maxTriggerDelay", field="max_trigger_delay_ms", read=as_duration_ms, default="`15m`"),
    Option(name="minPartitions", field="min_partitions", read=whole_number(1, 100_000), default="processors"),
    Option(name="maxRecordsPerPartition", field="max_records_per_partition", read=whole_number(1, _MANY),
           default="-"),
    Option(name="partitionBytes", field="partition_bytes", read=whole_number(1, _MANY),
           default="`134217728`"),
    Option(name="fetchBytes", field="fetch_bytes", read=whole_number(1, FETCH_BYTES_MAX),
           default="`4194304`"),
    Option(name="readFrom", field="read_from", read=one_of("follower", "leader", "any"),
           default="`follower`"),
    Option(name="reader", field="reader", read=as_reader_name, default="-"),
    Option(name="requestTimeoutMs", field="request_timeout_ms", read=whole_number(1, 86_400_000),
           default="`30000`"),
    Option(name="tlsCertificate", field="tls_certificate", read=as_text, default="-"),
    Option(name="tlsKey", field="tls_key", read=as_text, default="-"),
    Option(name="tlsAuthority", field="tls_authority", read=as_text, default="-"),
    Option(name="tlsPlainMembers", field="tls_plain_members", read=as_texts, default="-"),
    Option(name="tokenFile", field="token_file", read=as_text, default="-"),
)
_BY_NAME: Mapping[str, Option] = {option.name.lower(): option for option in OPTIONS}


def option_named(name: str) -> Option:
    """The option C{name}, which exists."""
    return _BY_NAME[name.lower()]


@attrs.frozen(kw_only=True)
class ScanOptions:
    """
    The options of a scan, see docs/spark-reference.md. Exactly one of C{path} and C{bootstrap} is set.

    @ivar archive: a directory or a URL with older entries of the same log.
    @ivar archive_options: of the store, as fsspec's.
    @ivar starting, ending: C{earliest}, C{latest}, a number, or group to number; None: not given.
    @ivar starting_timestamp: milliseconds since 1970, in the place of C{starting}.
    @ivar topics, tags, keys: only messages with one of them; empty: all.
    @ivar stored_from, stored_before: milliseconds of the broker's clock, the second exclusive.
    @ivar clock_back_ms: the broker's clock has not gone back by more; None: it may have.
    @ivar by_queues: whether the messages of C{topics} are found by the consume queues beside the log.
    @ivar envelopes: whether times and headers are columns, and bodies are without their envelopes.
    @ivar times: whether the times of leaders are a column.
    @ivar max_offsets_per_trigger, max_bytes_per_trigger, max_records_per_partition: 0 for no limit.
    @ivar min_offsets_per_trigger: 0: a batch may have one.
    @ivar min_partitions: 0: one for each of C{processors}, which is not an option, but none below a mebibyte.
    @ivar tls_certificate, tls_key, tls_authority: PEM files, all or none.
    @ivar tls_plain_members: ids of members that do without TLS.
    @ivar token_file: with the token of this reader; empty: none.
    @ivar reader: name under which the group keeps the place of a stream; empty: it does not.
    """

    path: str = ""
    data_path: str = ""
    bootstrap: str = ""
    archive: str = ""
    archive_options: JsonObject | None = attrs.field(default=None, repr=False)
    group: str = "default"
    format: str = DLEDGER
    starting: str | int | dict[str, int] | None = None
    starting_timestamp: int | None = None
    ending: str | int | dict[str, int] | None = None
    fail_on_data_loss: bool = True
    fail_on_damage: bool = True
    verify_crc: bool = False
    decompress: bool = True
    topics: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    stored_from: int | None = None
    stored_before: int | None = None
    clock_back_ms: int | None = None
    by_queues: bool = False
    include_internal: bool = False
    include_control: bool = False
    include_markers: bool = False
    envelopes: bool = False
    times: bool = False
    body_text: bool = False
    max_offsets_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    min_offsets_per_trigger: int = 0
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int = 0
    processors: int = 1
    max_records_per_partition: int = 0
    partition_bytes: int = 128 * 1024 * 1024
    fetch_bytes: int = 4 * 1024 * 1024
    read_from: str = "follower"
    request_timeout_ms: int = 30_000
    tls_certificate: str = ""
    tls_key: str = ""
    tls_authority: str = ""
    tls_plain_members: tuple[str, ...] = ()
    token_file: str = ""
    reader: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_stream: bool | None = False) -> ScanOptions:
        """
        Read the options of C{spark.read} or C{spark.readStream}.

        @param given: names in any case.
        @param is_stream: None: not known; then options of both are allowed.
        @raise OptionError: see the rule of this module.
        """
        found = made_of(cls, option_values(given, _BY_NAME, _unknown))
        found._check(is_stream)
        return found

    def _check(self, is_stream: bool | None) -> None:
        if bool(self.path) == bool(self.bootstrap):
            have = "both are" if self.path else "neither is"
            raise OptionError(
                "option path (a member's directory or an archive; or load(DIR)) or option bootstrap "
                f"(addresses of members) is needed, and {have} given"
            )
        if self.data_path and not self.path:
            raise OptionError("option dataPath belongs to path: a member's directory whose data is elsewhere")
        if self.include_markers and self.format == ROCKETMQ:
            raise OptionError("option includeMarkers shows entries of the sink, which are no messages: it "
                              "needs format=dledger")
        if self.include_control and self.format == ROCKETMQ:
            raise OptionError("option includeControl shows the log's own entries, which are no messages: it "
                              "needs format=dledger; includeInternal shows what is not a message")
        if self.envelopes and self.format == ROCKETMQ:
            raise OptionError("option envelopes shows times and headers of entries, and messages have their "
                              "own: it needs format=dledger")
        if self.times and self.format == ROCKETMQ:
            raise OptionError("option times shows when entries were written, and messages have storeTime: it "
                              "needs format=dledger")
        if self.body_text and self.format == ROCKETMQ:
            raise OptionError("option bodyText shows bodies of entries as text: it needs format=dledger")
        if self.clock_back_ms is not None and self.stored_from is None and self.stored_before is None:
            raise OptionError("option clockBackMs leaves out files by time: it needs storedFrom or "
                              "storedBefore")
        if self.by_queues and not self.topics:
            raise OptionError("option byQueues finds the messages of some topics: it needs option topics")
        self._check_starting()
        self._check_archive()
        self._check_choice()
        self._check_tls()
        self._check_stream(is_stream)
        for name, value in (("startingOffsets", self.starting), ("endingOffsets", self.ending)):
            if isinstance(value, dict) and self.group not in value:
                raise OptionError(f"option {name} names group {next(iter(value))!r}, "
                                  f"but option group is {self.group!r}")

    def _check_stream(self, is_stream: bool | None) -> None:
        if is_stream and self.ending is not None:
            raise OptionError("option endingOffsets is for batches; a stream has no end")
        if self.reader and (is_stream is False or not self.bootstrap):
            raise OptionError("option reader lets a group keep the place of a stream: it needs readStream "
                              "and option bootstrap")
        if is_stream is False and self.min_offsets_per_trigger:
            raise OptionError("option minOffsetsPerTrigger is for streams")
        if 0 < self.max_offsets_per_trigger < self.min_offsets_per_trigger:
            raise OptionError(f"option minOffsetsPerTrigger={self.min_offsets_per_trigger} is more than "
                              f"maxOffsetsPerTrigger={self.max_offsets_per_trigger}")
        if is_stream is False and (self.max_offsets_per_trigger or self.max_bytes_per_trigger):
            raise OptionError("options maxOffsetsPerTrigger and maxBytesPerTrigger are for streams; "
                              "endingOffsets ends a batch")

    def _check_starting(self) -> None:
        if self.starting_timestamp is None:
            return
        if self.format == ROCKETMQ:
            raise OptionError(_BY_TIME.format(name="startingTimestamp", chooses="storedFrom"))
        if not self.envelopes and not self.times:
            raise OptionError("option startingTimestamp needs times=true, for the times of leaders, or "
                              "envelopes=true, for those of clients that were opened with envelope=True")
        if self.starting is not None:
            raise OptionError("options startingOffsets and startingTimestamp both name the begin: take one")

    def _check_archive(self) -> None:
        if "://" in self.path and (self.data_path or self.archive):
            name = "archive" if self.archive else "dataPath"
            raise OptionError(f"option path={self.path!r} is an archive itself: option {name} belongs to a "
                              "member's directory, or leave it out")
        if self.archive_options and not (self.archive or "://" in self.path):
            raise OptionError("option archiveOptions has the options of a store: it needs option archive, or "
                              "a URL in path")

    def _check_choice(self) -> None:
        given = [name for name, value in (
            ("topics", self.topics), ("tags", self.tags), ("keys", self.keys),
            ("storedFrom", self.stored_from), ("storedBefore", self.stored_before),
        ) if value not in ((), None)]
        if given and self.format != ROCKETMQ:
            raise OptionError(f"option {given[0]} chooses messages: it needs format=rocketmq")
        if given and self.include_internal:
            raise OptionError(f"option {given[0]} chooses messages, and includeInternal=true adds entries "
                              "without one: take one of the two")
        if None not in (self.stored_from, self.stored_before) and (
                (self.stored_from or 0) >= (self.stored_before or 0)):
            raise OptionError(f"options storedFrom={self.stored_from} and storedBefore={self.stored_before} "
                              "leave no time between them: the first must be lower")

    def _check_tls(self) -> None:
        files = {"tlsCertificate": self.tls_certificate, "tlsKey": self.tls_key,
                 "tlsAuthority": self.tls_authority}
        given = [name for name, path in {**files, "tokenFile": self.token_file}.items() if path]
        if given and self.path:
            raise OptionError(f"option {given[0]} belongs to bootstrap: a directory is read without a member")
        check_tls_options(files, self.tls_plain_members, has_token=bool(self.token_file))

    @property
    def tls(self) -> TlsFiles | None:
        """The keys of this reader; None: without TLS."""
        return tls_files(certificate=self.tls_certificate, key=self.tls_key, authority=self.tls_authority,
                         is_client_with_token=bool(self.token_file))

    def with_paths(self, absolute: Callable[[str], str]) -> ScanOptions:
        """These options with the files of keys and token named by C{absolute}."""
        named = if_named(absolute)
        return attrs.evolve(
            self, tls_certificate=named(self.tls_certificate), tls_key=named(self.tls_key),
            tls_authority=named(self.tls_authority), token_file=named(self.token_file),
        )

    @property
    def source(self) -> str:
        """The log, for messages."""
        return self.path or f"group {self.group!r} ({self.bootstrap})"

    def number_of(self, value: str | int | dict[str, int] | None) -> str | int | None:
        """The value of an offset option without the name of the group."""
        return value[self.group] if isinstance(value, dict) else value


def if_named(absolute: Callable[[str], str]) -> Callable[[str], str]:
    """C{absolute} for options that name a file; those that name none stay empty."""
    return lambda path: absolute(path) if path else ""


def options_of_tls(files: TlsFiles) -> dict[str, str]:
    """The options for these files."""
    found = {"tlsCertificate": files.certificate, "tlsKey": files.key, "tlsAuthority": files.authority}
    return {name: path for name, path in found.items() if path}


_BY_TIME = ("entries have no index by time, so option {name} does not exist here; messages of RocketMQ have "
            "one: with format=rocketmq, startingOffsets=earliest and {chooses}, in milliseconds since 1970, "
            "choose them by it wherever they are in the log, because a broker's clock may go back")
#: Options of Kafka's source that cannot be had here: the reason, and what to use. Names in lower case.
_REFUSED: Mapping[str, str] = {
    "endingtimestamp": _BY_TIME.format(name="endingTimestamp", chooses="storedBefore"),
    "startingoffsetsbytimestamp": _BY_TIME.format(name="startingOffsetsByTimestamp", chooses="storedFrom"),
    "endingoffsetsbytimestamp": _BY_TIME.format(name="endingOffsetsByTimestamp", chooses="storedBefore"),
    **{name.lower(): f"option {name} does not exist: a source reads one group, which option group names; "
       "union() puts the sources of several groups into one query"
       for name in ("subscribe", "subscribePattern", "assign")},
}


def _unknown(name: str, text: str) -> OptionError:
    if name.lower() == "paths":
        return OptionError(f"load() was given several directories ({text}): read one member's directory; "
                           "all members of a group hold the same entries")
    # What Spark gives for a table of its own catalog.
    if name.lower() in ("owner", "provider") or name.lower().startswith("option."):
        return OptionError("CREATE TABLE ... USING dledger cannot work: Spark gives a source in Python no "
                           "options when the table is read. Use CREATE TEMPORARY VIEW ... USING dledger "
                           "OPTIONS (path '...'), or org.dledger.spark.LogCatalog")
    if name.lower() in _REFUSED:
        return OptionError(_REFUSED[name.lower()])
    # An entry is an offset; the letters alone would lead to another option.
    known = name.lower().replace("entries", "offsets").replace("messages", "offsets")
    near = difflib.get_close_matches(known, _BY_NAME, n=1, cutoff=0.5)
    hint = f" (did you mean {_BY_NAME[near[0]].name}?)" if near else ""
    return OptionError(f"unknown option {name}{hint}; known are {', '.join(o.name for o in OPTIONS)}")
