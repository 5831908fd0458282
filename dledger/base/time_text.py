# -*- test-case-name: tests.base.test_time_text -*-
"""Moments as people and programs write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

#: The end of the year 9999, milliseconds since 1970.
MOMENT_MS_MAX = 253_402_300_799_999
_SECONDS = re.compile(r"[0-9]{9,11}(\.[0-9]{0,9})?")
_MILLISECONDS = re.compile(r"[0-9]{12,15}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_ms(text: str) -> int:
    """
    Milliseconds since 1970 of C{2026-01-31T12:00:00} (UTC), C{2026-01-31T12:00:00+02:00}, or of a number: of
    seconds (9 to 11 digits) or of milliseconds (12 to 15 digits).

    @raise ValueError: it is something else, or not from 1970 to 9999; the text says what is allowed.
    """
    try:
        if _SECONDS.fullmatch(text):
            time_ms = round(float(text) * 1000)
        elif _MILLISECONDS.fullmatch(text):
            time_ms = int(text)
        else:
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            time_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:64]!r} is not a time: write 2026-01-31T12:00:00 (UTC), 2026-01-31T12:00:00+02:00, or "
            "the time since 1970 in seconds (9 to 11 digits) or milliseconds (12 to 15 digits)"
        ) from None
    if not 0 <= time_ms <= MOMENT_MS_MAX:
        raise ValueError(f"{text[:64]!r} is not from 1970 to 9999")
    return time_ms


def time_text(time_ms: int) -> str:
    """C{2026-01-31 12:00:00.123} in UTC; the number itself if it is no moment from 1970 to 9999."""
    if not 0 <= time_ms <= MOMENT_MS_MAX:
        return str(time_ms)
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03}"
