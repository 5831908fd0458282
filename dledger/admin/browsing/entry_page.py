# -*- test-case-name: tests.admin.test_browsing -*-
"""The page of entries as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlencode

from markupsafe import Markup

from dledger.admin.browsing.entries import ShownEntries, ShownEntry
from dledger.admin.browsing.query import COUNT_DEFAULT, JSON_CHARS, LAST, Query, shown_as
from dledger.admin.dashboard.frame import number_cell, search_form, still_page, table_section, text_cell
from dledger.base.time_text import time_text

#: To the dashboard, and to the same page for programs.
LINKS = (".", "status", "config")
_COLUMNS = (
    ("Index", True), ("Term", True), ("Position", True), ("Kind", False), ("Time, UTC", False),
    ("Headers", False), ("Bytes", True), ("Body", False),
)


def entry_page(group: str, query: Query, shown: ShownEntries | None, problem: str = "") -> bytes:
    """
    The page.

    @param shown: None: the form alone.
    @param problem: why nothing is shown.
    """
    sections = [entry_form(query)]
    said = problem or "Search by index or time; without either, the last entries are shown."
    if shown is not None:
        rows = (_row(one, query.style()) for one in shown.entries)
        table = table_section("Entries", "entries", _COLUMNS, rows)
        sections += [_turning(query, shown), table]
        said = _range_of(shown)
    return still_page(
        title=f"Entries of {group}", heading=f"Entries of group {group}", said=said, live=sections,
        links=LINKS, is_problem=bool(problem),
    )


def entry_form(query: Query) -> Markup:
    """The form of the search."""
    return search_form("entries", (
        ("from", "From index", query.text("from")), ("time", "Or from time (UTC)", query.text("time")),
        ("count", "Number", query.text("count")), ("as", "Bodies as: hex or json", query.text("as")),
    ))


def _range_of(shown: ShownEntries) -> str:
    log = f"the log has {shown.begin_index:,} to {shown.committed_index:,}"
    if not shown.entries:
        return f"No entry from {shown.first_index:,} on; {log}."
    return f"Entries {shown.first_index:,} to {shown.next_index - 1:,}; {log}."


def _turning(query: Query, shown: ShownEntries) -> Markup:
    """Links to other pages."""
    count = query.count()

    def link(words: str, first: object) -> Markup:
        more = {**({} if count == COUNT_DEFAULT else {"count": count}), **shown_as(query)}
        return Markup('<a href="entries?{}">{}</a>').format(urlencode({"from": first, **more}), words)

    links = [link("first", shown.begin_index)]
    if shown.first_index > shown.begin_index:
        links.append(link("earlier", max(shown.begin_index, shown.first_index - count)))
    if shown.next_index <= shown.committed_index:
        links.append(link("later", shown.next_index))
    links.append(link("last", LAST))
    return Markup("<p>{}</p>").format(Markup(" ").join(links))


def _row(entry: ShownEntry, style: str) -> Iterable[Markup]:
    headers = ", ".join(f"{name}: {value}" for name, value in entry.headers.items())
    at = time_text(entry.time_ms) if entry.time_ms is not None else ""
    return (
        number_cell(entry.index), number_cell(entry.term), number_cell(entry.position), text_cell(entry.kind),
        text_cell(at), text_cell(headers, "words"), number_cell(entry.body_bytes),
        body_cell(entry.body, entry.is_text, entry.body_bytes, style),
    )


def body_cell(preview: str, is_text: bool, body_bytes: int, style: str = "") -> Markup:
    """A cell with the beginning of a body, see L{dledger.admin.browsing.query.preview_of}."""
    if style == "json" and is_text:
        cut = "..." if len(preview) >= JSON_CHARS else ""
        return Markup("<td class=words><code>{}{}</code></td>").format(preview, cut)
    shown_bytes = len(preview.encode("utf-8")) if is_text else len(preview.replace(" ", "")) // 2
    more = "..." if shown_bytes < body_bytes else ""
    kind = Markup("" if is_text or not body_bytes else '<span class="soft">hex</span> ')
    return Markup("<td class=words>{}<code>{}{}</code></td>").format(kind, preview, more)
