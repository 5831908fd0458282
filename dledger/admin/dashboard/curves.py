# -*- test-case-name: tests.admin.test_dashboard -*-
"""The numbers that a dashboard draws as curves."""

from __future__ import annotations

from protocols.wire.fastjson import JsonObject

#: Title of a curve to its present value and the unit of that.
Curves = dict[str, tuple[float, str]]


def curves(
    at_s: float, uptime_s: float, gauges: Curves, counters: Curves, times: JsonObject | None = None
) -> JsonObject:
    """
    The numbers of the curves of a page. Of those the script draws:

    @param gauges: as they are. The unit C{B} is shown as KiB and so on.
    @param counters: their rise per second, in this unit: they only rise.
    @param times: p50 and p99 between two looks, in seconds: bounds of buckets, and the count of each.
    @param at_s: seconds since 1970. @param uptime_s: counters begin anew when it falls.
    """
    return {"at_s": at_s, "uptime_s": uptime_s, "gauges": {**gauges}, "counters": {**counters},
            "times": times or {}}
