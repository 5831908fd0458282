# -*- test-case-name: tests.client.test_enveloping -*-
"""
The bodies of a client in their envelopes, see docs/envelopes.md.

Rule 1: a client puts a body into an envelope if it was asked to report times, if the call has headers, or if
the body begins as an envelope does: a reader then takes it out, and has the bytes of the program.
Rule 2: what is wrong with a time or with headers is reported before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from dledger.base.sending.bodies import BytesLike, as_bodies, misfit, total_bytes
from dledger.client.errors import AppendFailed
from dledger.client.lone_appends import BODY_BYTES_MAX, checked_body
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.envelopes import KEY_HEADER, envelope_head, guarded, headers_problem, time_problem

#: Headers of the bodies of one call; None: none.
Headers = Mapping[str, bytes] | None


def keyed(headers: Headers, key: BytesLike) -> Headers:
    """
    The headers of a call with its key.

    @param key: what the entry is about.
    @raise TypeError: the key is not bytes.
    @raise ValueError: the headers have another one.
    """
    try:
        raw = bytes(memoryview(key))
    except TypeError:
        raise TypeError(f"key={key!r}: write bytes, not {type(key).__name__}") from None
    if headers is not None and headers.get(KEY_HEADER, raw) != raw:
        raise ValueError(f"key={raw!r}, and the header {KEY_HEADER!r} is {headers[KEY_HEADER]!r}: give one")
    return {KEY_HEADER: raw, **(headers or {})}


def checked_headers(headers: Headers) -> Headers:
    """@return: a copy. @raise AppendFailed: UNEXPECTED_ARGUMENT: they are malformed."""
    problem = "" if headers is None else headers_problem(headers)
    if problem:
        raise AppendFailed(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)
    return None if headers is None else dict(headers)


@attrs.frozen(kw_only=True)
class Enveloping:
    """
    How one client makes envelopes.

    @ivar is_timed: each entry has a time.
    @ivar wall_s: seconds since 1970.
    """

    is_timed: bool
    wall_s: Callable[[], float]

    def enclose(self, bodies: Sequence[bytes], headers: Headers) -> tuple[Sequence[bytes], str]:
        """@return: bodies to send; the reason why they cannot be sent, or empty."""
        problem = "" if headers is None else headers_problem(headers)
        time_ms = int(self.wall_s() * 1000) if self.is_timed else None
        if not problem and time_ms is not None:
            problem = time_problem(time_ms)
        if problem:
            return bodies, problem
        head = envelope_head(time_ms, headers or {})
        if time_ms is None and not headers:
            enclosed = [guarded(one) for one in bodies]
        else:
            enclosed = [head + one for one in bodies]
        if (longest := max(map(len, enclosed))) > BODY_BYTES_MAX:
            problem = (f"a body has {longest} bytes with its envelope of {len(head)}; at most "
                       f"{BODY_BYTES_MAX} can be stored")
        return enclosed, problem

    def enclose_all(self, bodies: Sequence[BytesLike], headers: Headers) -> Sequence[bytes]:
        """
        As L{enclose}, for bodies that are not checked yet, one at least.

        @raise AppendError: UNEXPECTED_ARGUMENT: one cannot be sent.
        """
        kept = as_bodies(bodies)
        problem = misfit(kept, total_bytes(kept), BODY_BYTES_MAX)
        if not problem:
            kept, problem = self.enclose(kept, headers)
        if problem:
            raise AppendFailed(ResponseCode.UNEXPECTED_ARGUMENT, failed=len(bodies), reason=problem)
        return kept

    def enclose_one(self, body: BytesLike, headers: Headers) -> bytes:
        """
        As L{enclose}, for a body that is not checked yet.

        @raise AppendError: UNEXPECTED_ARGUMENT: it cannot be sent.
        """
        sent = checked_body(body)
        (enclosed,), problem = self.enclose((sent,), headers)
        return checked_body(sent, problem) if problem else enclosed
