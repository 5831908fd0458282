# -*- test-case-name: tests.spark.test_export_engine -*-
"""
The options of an export, and its report. C{dledger export}, its C{--follow}, C{twistd dledger-export} and
jobs of Spark have their options from this table; L{dledger.spark.export.engine} runs all of them.

Needs neither Arrow nor Spark, so that a command line can show its help without them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs

#: The largest number of bytes, and of seconds.
_WHOLE_MAX = 2**63 - 1
_SECONDS_MAX = 1e9

#: The line about a part that has become visible.
PART_REPORTED = "exported {first} to {last}: {rows} rows"


@attrs.frozen(kw_only=True)
class ExportOption:
    """
    One option.

    @ivar name: without its dashes.
    @ivar read: from a text to its value. @raise ValueError: it is none; the sentence says what is allowed.
    @ivar default: as a text; None: not given.
    @ivar kind: what the text is, for help.
    @ivar is_repeated: each time it is given counts.
    @ivar is_flag: it has no text on a command line.
    @ivar once: belongs to an export that ends.
    """

    name: str
    read: Callable[[str], object]
    help: str
    default: str | None = None
    kind: str = ""
    is_repeated: bool = False
    is_flag: bool = False
    once: bool = False

    @property
    def key(self) -> str:
        """In the values of L{read_options}."""
        return self.name.replace("-", "_")


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return read


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not least <= value <= _WHOLE_MAX:
            raise ValueError(f"{text} must be at least {least}, of 64 bits")
        return value

    return read


def _seconds(least: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not least <= value <= _SECONDS_MAX:
            raise ValueError(f"{text} must be at least {least:g}, and at most {_SECONDS_MAX:g}")
        return value

    return read


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _table(text: str) -> str:
    if "." not in text or not all(text.split(".")):
        raise ValueError(f"{text!r}: write namespace.name")
    return text


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"{text!r}: write name=value")
    return name.strip(), value.strip()


#: About L{store_option}, for archives, backups and exports.
STORE_OPTION_HELP = (
    "An option of fsspec for this kind of store, such as endpoint_url=http://host:9000; may be repeated. No "
    "secrets here: other users of this machine can see them."
)


def store_option(text: str) -> tuple[str, object]:
    """
    An option of a store; its value is JSON where it can be: C{anon=true}.

    @raise ValueError: it is none.
    """
    name, value = _pair(text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
def _fields(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for piece in _names(text):
        name, _, kind = piece.rpartition("=")
        if not name or not kind:
            raise ValueError(f"{piece!r}: write name=TYPE")
        found.append((name, kind.upper()))
    return tuple(found)


EXPORT_OPTIONS = (
    ExportOption(name="format", read=_one_of("parquet", "jsonl"), default="parquet",
                 help="Of the files: parquet or jsonl."),
    ExportOption(name="to", read=_one_of("delta", "iceberg"), kind="TABLE",
                 help="Into a table in the directory: delta, or iceberg with its catalog; else files alone."),
    ExportOption(name="table-per", read=_one_of("topic"), kind="topic",
                 help="With -o format=rocketmq: a table, or folder of files, for each topic."),
    ExportOption(name="decode", read=_one_of("json"), kind="json",
                 help="Of bodies that are JSON objects: each field is a column; the rest is in _rescued."),
    ExportOption(name="field", read=_fields, kind="NAME=TYPE,...", default="", is_repeated=True,
                 help="With --decode: columns from the start; BIGINT, DOUBLE, BOOLEAN, STRING or JSON."),
    ExportOption(name="columns", read=_names, kind="NAME,...", default="", is_repeated=True,
                 help="Columns, in this order; not given: all."),
    ExportOption(name="partition-by", read=_names, kind="NAME,...", default="", is_repeated=True,
                 help="One folder for each value of these columns, as in Hive."),
    ExportOption(name="compression", read=_one_of("snappy", "zstd", "gzip", "none"), default="snappy",
                 help="Of Parquet: snappy, zstd, gzip or none."),
    ExportOption(name="part-bytes", read=_whole(1), default=str(128 * 1024 * 1024), kind="BYTES",
                 help="Approximate maximum of log bytes in one file."),
    ExportOption(name="from", read=_whole(0), kind="INDEX",
                 help="First index of a new export; not given: the first one of the log."),
    ExportOption(name="option", read=_pair, kind="NAME=VALUE", is_repeated=True,
                 help="Any option of the Spark source, such as verifyCrc=true; see docs/spark-reference.md."),
    ExportOption(name="store-option", read=store_option, kind="NAME=VALUE", is_repeated=True,
                 help=f"With a URL as target: {STORE_OPTION_HELP[0].lower()}{STORE_OPTION_HELP[1:]}"),
    ExportOption(name="catalog", read=str, kind="URI",
                 help="With --to iceberg: a catalog that others use, too: sqlite:///..., "
                      "postgresql+psycopg2://..., http://... (REST), or its name in PyIceberg's "
                      "configuration, which is the place for secrets. OUT is the place of the table then."),
    ExportOption(name="table", read=_table, kind="NAMESPACE.NAME",
                 help="With --catalog: the table; not given: dledger.log."),
    ExportOption(name="catalog-option", read=_pair, kind="NAME=VALUE", is_repeated=True,
                 help="With --catalog: a property of PyIceberg's catalog; may be repeated. No secrets here."),
    ExportOption(name="interval", read=_seconds(0.001), default="1", kind="SECONDS",
                 help="Seconds between two reads of a log that is followed."),
    ExportOption(name="max-delay", read=_seconds(0), default="60", kind="SECONDS",
                 help="Seconds after which a file of a log that is followed ends even if it is not full; "
                      "0: only where it is full, or its segment ends."),
    ExportOption(name="compact", read=bool, is_flag=True,
                 help="With --to: write small files of the table together, afterwards, or each hour of a log "
                      "that is followed."),
    ExportOption(name="expire-snapshots", read=_whole(1), kind="DAYS",
                 help="With --to: forget older versions of the table, and delete files that only they need, "
                      "afterwards, or each day."),
    ExportOption(name="max-lag", read=_seconds(0), kind="SECONDS",
                 help="/readyz is 503 while the oldest entry that is not exported is older; not given: 600, "
                      "and ten times --max-delay if that is more; 0: however old."),
    ExportOption(name="admin", read=str, kind="ENDPOINT",
                 help="HTTP pages of an export that follows: a port, or an endpoint such as "
                      "tcp:8080:interface=127.0.0.1."),
    ExportOption(name="admin-hosts", read=str, kind="NAMES",
                 help="Further host names by which the pages may be called: a;b, or * for any."),
    ExportOption(name="insecure", read=bool, is_flag=True,
                 help="The pages may listen beyond the loopback interface; they have no TLS and no token."),
    ExportOption(name="engine", read=_one_of("arrow", "spark"), default="arrow", once=True,
                 help="arrow: in this process; spark: as jobs of a Spark session."),
    ExportOption(name="master", read=str, kind="URL", once=True,
                 help="With --engine spark: the Spark master; not given: local[*]."),
    ExportOption(name="conf", read=_pair, kind="NAME=VALUE", is_repeated=True, once=True,
                 help="With --engine spark: Spark's settings."),
)


def read_options(given: Mapping[str, Iterable[str]]) -> dict[str, object]:
    """
    The value of each option, by its key: of a repeated one a tuple, of others one value or None.

    @param given: key to the texts on the command line; what is missing has its default.
    @raise ValueError: a text is not allowed; the sentence names the option.
    """
    found: dict[str, object] = {}
    for option in EXPORT_OPTIONS:
        texts = tuple(given.get(option.key, ())) or (() if option.default is None else (option.default,))
        try:
            values = tuple(option.read(text) for text in texts)
        except ValueError as error:
            raise ValueError(f"--{option.name}: {error}") from None
        found[option.key] = values if option.is_repeated else values[-1] if values else None
    return found


@attrs.frozen(kw_only=True)
class ExportProgress:
    """
    How far this run is.

    @ivar begin, next, end: offsets: the first of this run, the next to read, and the end when last looked at.
    @ivar rows, log_bytes: written in this run, visible or not; bytes of the log.
    @ivar visible: offsets before it are exported; None: nothing was begun.
    @ivar lag_bytes: of the log, from there to C{end}; None: not known.
    @ivar oldest_ms: time of the first entry that was read and is not visible, by the log, since 1970; None:
        there is none, or no time of it.
    @ivar are_bytes: offsets are bytes, not entries.
    """

    begin: int
    next: int
    end: int
    rows: int
    log_bytes: int
    visible: int | None = None
    lag_bytes: int | None = None
    oldest_ms: int | None = None
    are_bytes: bool = False


@attrs.frozen(kw_only=True)
class ExportStatus:
    """
    How far an export that follows a log is.

    @ivar next, end: offset after what is exported, None: nothing was begun; and the committed end of the log.
    @ivar lag_entries, lag_bytes: between the two; None: not known.
    @ivar lag_s: age of the oldest committed entry that is not exported.
    @ivar commits, rows: of this run.
    @ivar last_commit_s, last_offset, version: of the last commit of this run: seconds since 1970, the last
        offset in it, and the table's version or snapshot; None, and empty without a table.
    @ivar errors, error: in this run, and the last one.
    @ivar failing_s: nothing could be exported for so long.
    @ivar silent_s: since the export last looked at the log; -1: it has not yet.
    @ivar problems: why the export is not in order; empty: it is.
    """

    next: int | None = None
    end: int = 0
    lag_entries: int | None = None
    lag_bytes: int | None = None
    lag_s: float = 0.0
    commits: int = 0
    rows: int = 0
    last_commit_s: float | None = None
    last_offset: int | None = None
    version: str = ""
    errors: int = 0
    error: str = ""
    failing_s: float = 0.0
    silent_s: float = -1.0
    problems: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class ExportReport:
    """
    What a run has done.

    @ivar rows, log_bytes, begin, end: as of L{ExportProgress}.
    @ivar next: where the next run continues; None: nothing was begun.
    @ivar total_rows: in the directory.
    @ivar maintained: a sentence about a table; empty: nothing was asked for.
    """

    out: str
    rows: int
    log_bytes: int
    seconds: float
    begin: int
    next: int | None
    end: int
    total_rows: int
    maintained: str = ""

    @property
    def document(self) -> dict[str, object]:
        """For programs."""
        return attrs.asdict(self, filter=lambda field, _: field.name not in ("out", "maintained"))

    @property
    def sentence(self) -> str:
        """For people."""
        last = (self.next or 0) - 1
        if not self.rows:
            return f"nothing new: {self.out} holds {self.total_rows:,} rows, up to offset {last}"
        rate = self.log_bytes / max(self.seconds, 1e-9) / 1e6
        return (
            f"exported {self.rows:,} rows in {self.seconds:.1f} s ({rate:,.1f} MB/s of log); "
            f"{self.out} holds {self.total_rows:,}, up to offset {last}"
        )


def pages_refused(endpoint: str) -> str:
    """The sentence about pages that others than this machine could ask for."""
    return (f"--admin {endpoint!r}: other machines can reach it, and the pages of an export have neither TLS "
            "nor a token; give a loopback address such as tcp:8080:interface=127.0.0.1, or say --insecure")


class RunningExport(Protocol):
    """
    An open export, as its callers see it: L{dledger.spark.export.engine.ExportRun}, whose packages may be
    missing.

    @ivar on_progress: called after every batch.
    @ivar on_part: called with the first and the last index, and the rows, of every part that is visible now.
    @ivar on_trouble: called with the error, and the milliseconds until the next attempt.
    @ivar on_maintained: called with a sentence about a table that was maintained.
    @ivar should_stop: asked before every batch.
    """

    on_progress: Callable[[ExportProgress], None]
    on_part: Callable[[int, int, int], None]
    on_trouble: Callable[[Exception, int], None]
    on_maintained: Callable[[str], None]
    should_stop: Callable[[], bool]

    def turn(self, now_ms: int) -> int | None:
        """Export what is committed now. @return: milliseconds until the next turn; None: there is none."""

    def end(self) -> None:
        """Make visible what was read of a log that is followed."""

    def report(self, seconds: float) -> ExportReport:
        """@param seconds: since the run began."""

    def status(self, now_ms: int) -> ExportStatus:
        """May be called in any thread. @param now_ms: as for L{turn}."""

    def close(self) -> None:
        """Release the directory; the visible files remain."""


class PlannedExport(Protocol):
    """
    An export that can be opened: L{dledger.spark.export.engine.ExportPlan}.

    @ivar admin, admin_hosts, insecure: where its pages are, empty: nowhere; and who may ask for them.
    """

    @property
    def admin(self) -> str:
        """See the class."""

    @property
    def admin_hosts(self) -> str:
        """See the class."""

    @property
    def insecure(self) -> bool:
        """See the class."""

    def open(self) -> RunningExport:
        """Lock the directory, and read the begin of the log."""
