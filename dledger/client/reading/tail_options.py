# -*- test-case-name: tests.client.test_tail -*-
"""Which entries a tail gives, and how long it waits for them."""

from __future__ import annotations

import attrs

from dledger.base.sending.arguments import INDEX_MAX, patience, whole
from dledger.client.links.connect_options import ConnectOptions


@attrs.frozen(kw_only=True)
class TailOptions:
    """
    The entries that a L{Tail} gives, and how long it waits for them.

    @ivar from_index: first index; a negative one counts back from the committed end.
    @ivar follow: read for ever; else end at the committed index of the start.
    @ivar timeout_s: give up after that many seconds without a serving member; None: never.
    @ivar answer_timeout_s: a member that has not answered by then is left.
    @ivar batch_bytes_max: of the records in one answer, but at least one record.
    @ivar wait_ms: a member without a new entry waits that long for one before it answers.
    @ivar control: also show the log's own entries (C{Entry.is_control}).
    @ivar looks_back: find the time of the first entries, see L{dledger.client.reading.look_back}.
    """

    from_index: int
    follow: bool
    timeout_s: float | None
    answer_timeout_s: float
    batch_bytes_max: int = 1 << 20
    wait_ms: int = 1_000
    control: bool = False
    looks_back: bool = True


def checked_options(
    known: ConnectOptions, from_index: int, follow: bool, *, timeout_s: float | None, batch_bytes_max: int,
    control: bool, looks_back: bool = True,
) -> TailOptions:
    """
    The options of a tail, by the arguments of L{LogClient.tail<dledger.client.client.LogClient.tail>}.

    @param known: of the client: the time-outs.
    @raise TypeError, ValueError: a number is none, or out of range.
    """
    timeout_s = patience("timeout_s", timeout_s)
    return TailOptions(
        from_index=whole("from_index", from_index, -INDEX_MAX), follow=follow,
        timeout_s=known.timeout_s if timeout_s is None and not follow else timeout_s,
        answer_timeout_s=min(known.answer_timeout_s, 2.0), control=control, looks_back=looks_back,
        batch_bytes_max=whole("batch_bytes_max", batch_bytes_max, 1, (1 << 31) - 1),
    )
