# -*- test-case-name: tests.spark.test_sink_options -*-
"""
The options of the sink. Those that the source has, too, mean the same.

L{SINK_OPTIONS} is the table of docs/spark-reference.md, section "Sink"; a test compares them.

Knows nothing of Spark, members and logs.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

import attrs

from dledger.spark.formats.option_texts import OptionError, whole_number
from dledger.spark.formats.options import (
    Option,
    ScanOptions,
    check_tls_options,
    if_named,
    option_named,
    option_values,
)
from dledger.spark.sink.markers import is_sink_id
from dledger.values.option_values import made_of
from dledger.values.tls_files import TlsFiles, tls_files

_DAY_MS = 86_400_000
#: Largest request of the sink, in bytes of bodies; members take frames of 16 MiB.
FRAME_BYTES_MAX = 8 * 1024 * 1024
#: Options of Spark's own, which it hands on to the sink of a stream. In lower case.
_OF_SPARK = frozenset(("checkpointlocation", "queryname"))


def _sink_id(name: str, value: str) -> str:
    if not is_sink_id(value.strip()):
        raise OptionError(f"option {name}={value!r}: 1 to 64 letters, digits, dots, dashes and underscores "
                          "are allowed")
    return value.strip()


SINK_OPTIONS: tuple[Option, ...] = (
    option_named("bootstrap"),
    option_named("group"),
    Option(name="sinkId", field="sink_id", read=_sink_id, default="-"),
    Option(name="batchId", field="batch_id", read=whole_number(0, 2**62), default="-"),
    Option(name="frameBytes", field="frame_bytes", read=whole_number(1, FRAME_BYTES_MAX),
           default="`1048576`"),
    Option(name="maxTaskBytes", field="max_task_bytes", read=whole_number(1, 2**30), default="`67108864`"),
    Option(name="timeoutMs", field="timeout_ms", read=whole_number(1, _DAY_MS), default="`60000`"),
    Option(name="requestTimeoutMs", field="request_timeout_ms", read=whole_number(1, _DAY_MS),
           default="`10000`"),
    option_named("failOnDataLoss"),
    option_named("tlsCertificate"),
    option_named("tlsKey"),
    option_named("tlsAuthority"),
    option_named("tlsPlainMembers"),
    option_named("tokenFile"),
)
_BY_NAME: Mapping[str, Option] = {option.name.lower(): option for option in SINK_OPTIONS}


def _unknown(name: str, _text: str) -> OptionError:
    if name.lower() == "path":
        return OptionError("option path (or save(PATH), start(PATH)) belongs to the source: a sink appends "
                           "to the members of a group, which option bootstrap names")
    near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.6)
    hint = f" (did you mean {_BY_NAME[near[0]].name}?)" if near else ""
    known = ", ".join(option.name for option in SINK_OPTIONS)
    return OptionError(f"unknown option {name}{hint}; the sink knows {known}")


@attrs.frozen(kw_only=True)
class SinkOptions:
    """
    The options of a sink; see docs/spark-reference.md for each.

    @ivar sink_id: empty: not given; then nobody else uses the name of the sink.
    @ivar batch_id: -1: not given.
    """

    bootstrap: str = ""
    group: str = "default"
    sink_id: str = ""
    batch_id: int = -1
    frame_bytes: int = 1024 * 1024
    max_task_bytes: int = 64 * 1024 * 1024
    timeout_ms: int = 60_000
    request_timeout_ms: int = 10_000
    fail_on_data_loss: bool = True
    tls_certificate: str = ""
    tls_key: str = ""
    tls_authority: str = ""
    tls_plain_members: tuple[str, ...] = ()
    token_file: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
        """
        Read the options of C{df.write} or C{df.writeStream}.

        @param given: names in any case.
        @raise OptionError: an option does not exist, makes no sense, or is missing.
        """
        ours = {name: text for name, text in given.items()
                if not (is_stream and name.lower() in _OF_SPARK)}
        found = made_of(cls, option_values(ours, _BY_NAME, _unknown))
        found._check(is_stream)
        return found

    def _check(self, is_stream: bool) -> None:
        if not self.bootstrap:
            raise OptionError("option bootstrap is needed: members of the group, n0-host:port;n1-host:port")
        if is_stream and not self.sink_id:
            raise OptionError("option sinkId is needed: a name of this query that no other query uses, and "
                              "that stays when the query is started again; by it the rows of a batch that "
                              "was interrupted are found in the log")
        if is_stream and self.batch_id >= 0:
            raise OptionError("option batchId is for jobs; Spark numbers the batches of a stream")
        if not is_stream and (self.batch_id >= 0) != bool(self.sink_id):
            raise OptionError("options sinkId and batchId belong together: with both, a job that runs again "
                              "appends only what is missing; without, it appends all of its rows")
        check_tls_options({"tlsCertificate": self.tls_certificate, "tlsKey": self.tls_key,
                           "tlsAuthority": self.tls_authority}, self.tls_plain_members,
                          has_token=bool(self.token_file))

    @property
    def tls(self) -> TlsFiles | None:
        """The keys of the sink; None: without TLS."""
        return tls_files(certificate=self.tls_certificate, key=self.tls_key, authority=self.tls_authority,
                         is_client_with_token=bool(self.token_file))

    def with_paths(self, absolute: Callable[[str], str]) -> SinkOptions:
        """These options with the files of keys and token named by C{absolute}."""
        named = if_named(absolute)
        return attrs.evolve(
            self, tls_certificate=named(self.tls_certificate), tls_key=named(self.tls_key),
            tls_authority=named(self.tls_authority), token_file=named(self.token_file),
        )

    @property
    def for_reading(self) -> ScanOptions:
        """The options with which the sink reads its group."""
        return ScanOptions(
            bootstrap=self.bootstrap, group=self.group, read_from="leader", verify_crc=True,
            request_timeout_ms=self.timeout_ms, tls_certificate=self.tls_certificate, tls_key=self.tls_key,
            tls_authority=self.tls_authority, tls_plain_members=self.tls_plain_members,
            token_file=self.token_file,
        )
