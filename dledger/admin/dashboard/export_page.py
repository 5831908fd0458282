# -*- test-case-name: tests.admin.test_exports -*-
"""The dashboard of an export that follows a log."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.admin.dashboard.curves import Curves, curves
from dledger.admin.dashboard.frame import facts_of, framed_page, size_text, span_text, utc_text
from dledger.values.exports import ExportStatus

_LINKS = ("status", "metrics")


def export_page(status: ExportStatus, failure: str, *, at_s: float) -> bytes:
    """
    The page.

    @param failure: why the export has failed for good; empty: it has not.
    @param at_s: seconds since 1970.
    """
    gauges: Curves = {"Lag in time": (status.lag_s, "s")}
    if status.lag_entries is not None:
        gauges["Lag in entries"] = (status.lag_entries, "entries")
    if status.lag_bytes is not None:
        gauges["Lag in bytes"] = (status.lag_bytes, "B")
    return framed_page(
        title="export", heading="Export that follows a log", problem="; ".join(_problems(status, failure)),
        good="The export is in order.", links=_LINKS,
        live=[facts_of("This export", _facts(status))],
        # (A time of start is not known; a run that begins anew has no rows.)
        numbers=curves(at_s, status.rows, gauges, {"Rows": (status.rows, "rows/s")}),
    )


def _problems(status: ExportStatus, failure: str) -> Iterable[str]:
    if failure:
        return (f"it has failed: {failure}",)
    return status.problems


def _facts(status: ExportStatus) -> Iterable[tuple[str, str]]:
    missing = [] if status.lag_entries is None else [f"{status.lag_entries:,} entries"]
    missing += [] if status.lag_bytes is None else [size_text(status.lag_bytes)]
    yield "Exported", "nothing yet" if status.next is None else f"all before offset {status.next:,}"
    yield "Committed in the log", f"all before offset {status.end:,}"
    yield "Not exported", ", ".join(missing) or "not known"
    yield "The oldest of it", f"{span_text(status.lag_s)} old" if status.lag_s else "nothing waits"
    yield "In this run", f"{status.rows:,} rows, {status.commits:,} commits"
    if status.last_commit_s is None:
        yield "Last commit", "none in this run"
    else:
        version = f", version {status.version}" if status.version else ""
        offset = "" if status.last_offset is None else f", up to {status.last_offset:,}"
        yield "Last commit", f"{utc_text(status.last_commit_s)} UTC{offset}{version}"
    yield "Looked at the log", "not yet" if status.silent_s < 0 else f"{span_text(status.silent_s)} ago"
    yield "Errors", f"{status.errors:,}; the last: {status.error}" if status.errors else "none"
