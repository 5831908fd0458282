# -*- test-case-name: tests.client.test_connect_options -*-
"""
The options of a connection to a group: one table for the blocking client, asyncio and Deferreds.

Every client (L{Log<dledger.client.blocking.Log>}, L{AsyncLog<dledger.client.aio.AsyncLog>}) takes the first
five in its own order, and passes the others on.

Source: our own; Spark has its options as texts (dledger.spark.formats.options).
"""

from __future__ import annotations

from typing import TypedDict

import attrs

from dledger.base.sending.arguments import seconds
from dledger.base.sending.send_queue import SendLimits
from dledger.values.client_token import ClientToken, as_client_token
from dledger.values.tls_files import TlsFiles


@attrs.frozen(kw_only=True)
class AppendLimits(SendLimits):
    """
    Bounds of one client's appends.

    @ivar remoting_in_flight_max: remoting frames, of one body each, without an answer, to a member of ours.
    @ivar in_flight_bytes_max: bytes of bodies in frames without an answer.
    """

    remoting_in_flight_max: int = 1_024
    in_flight_bytes_max: int = 16 * 1024 * 1024


class LogKeywords(TypedDict, total=False):
    """The keywords that every client passes on, see L{ConnectOptions}."""

    answer_timeout_s: float
    is_ordered: bool
    exactly_once: bool
    envelope: bool
    tls: TlsFiles | None
    token: str | ClientToken | None


class ConnectKeywords(LogKeywords, total=False):
    """All keywords of L{ConnectOptions}."""

    group: str
    timeout_s: float
    wire: str
    limits: AppendLimits | None


def checked_keywords(given: LogKeywords) -> LogKeywords:
    """The same. @raise TypeError: one of them is not known."""
    known = LogKeywords.__annotations__.keys()
    unknown = sorted(given.keys() - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}: write one of {names}")
    return given


def _time_out(value: float) -> float:
    return seconds("timeout_s", value)


def _answer_time_out(value: float) -> float:
    return seconds("answer_timeout_s", value)


def _limits(given: AppendLimits | None) -> AppendLimits:
    return given or AppendLimits()


@attrs.frozen(kw_only=True)
class ConnectOptions:
    """
    What a program may choose about its connection to a group, besides the members.

    @ivar group: name of the group.
    @ivar timeout_s: seconds in which a call has an outcome, retries included.
    @ivar wire: C{auto}: native frames go to members that understand them; C{remoting}: to none; C{binary}:
        to all.
    @ivar limits: bounds of appends.
    @ivar answer_timeout_s: seconds without an answer after which a connection is given up; sooner if another
        member leads by then (L{dledger.client.rivals}). Must exceed C{max_wait_ack_time_ms} of the
        members, else a slow commit counts as a lost one.
    @ivar is_ordered: send one append at a time to Java members, which take them in any order.
    @ivar exactly_once: number all bodies of this client, so that one whose outcome is unknown is sent again,
        and is in the log once all the same (docs/exactly-once.md). Not with a Java leader.
    @ivar envelope: each entry reports its time, by the clock of this machine (docs/envelopes.md).
    @ivar tls: own certificate; each member must prove its id. None: no TLS.
    @ivar token: shown to the members, by TLS or on this machine (docs/security.md); a text will do.
    @raise TypeError: a time is not a number. @raise ValueError: it is out of range, or the token can be none.
    """

    group: str = "default"
    timeout_s: float = attrs.field(default=10.0, converter=_time_out)
    wire: str = "auto"
    limits: AppendLimits = attrs.field(default=None, converter=_limits)
    answer_timeout_s: float = attrs.field(default=4.0, converter=_answer_time_out)
    is_ordered: bool = True
    exactly_once: bool = False
    envelope: bool = False
    tls: TlsFiles | None = None
    token: ClientToken | None = attrs.field(default=None, converter=as_client_token)
