# -*- test-case-name: tests.namesrv.test_service,tests.admin.test_name_server -*-
"""The state of a name server at one moment, for its pages."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class LiveBrokerStatus:
    """One registered address. @ivar heard_s: seconds since it was heard."""

    cluster: str
    names: tuple[str, ...]
    broker_ids: tuple[int, ...]
    address: str
    ha_address: str
    heard_s: float


@attrs.frozen(kw_only=True)
class NameServerStatus:
    """
    See docs/namesrv.md for the numbers.

    @ivar problem: the reason why it does not serve; empty if it serves.
    @ivar tls_expires_s: the end of its certificate, seconds since 1970; -1 without TLS.
    @ivar refusals: C{request code:code of the answer} to number of requests.
    """

    address: str
    answers_as: str
    problem: str
    uptime_s: float
    connections: int
    brokers: int
    broker_names: int
    clusters: int
    topics: int
    routes: int
    topic_bytes: int
    kv_entries: int
    kv_bytes: int
    answers_held_bytes: int
    unfinished_frame_bytes: int
    requests: int
    registrations: int
    brokers_expired: int
    brokers_lost: int
    overtaken: int
    overtaking_refused: int
    unknown_requests: int
    failed_requests: int
    wire_errors: int
    connections_refused: int
    connections_replaced: int
    tls_expires_s: float
    refusals: Mapping[str, int]
