# -*- test-case-name: tests.admin.test_dashboard -*-
"""
The frame of a dashboard, and of a page that stays as it is: HTML that needs nothing from elsewhere.

Rule 1: a page is made of C{Markup}, which escapes every text that is put into it; a page runs its own script
only, and loads nothing (see L{POLICY}).
Rule 2: without JavaScript the page is tables, and the browser loads it again every L{RELOAD_S} seconds. The
script asks for the page C{live}, takes its tables, and draws curves of its numbers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup
from twisted.web.iweb import IRequest

from protocols.wire.fastjson import JsonObject

HTML_TYPE = "text/html; charset=utf-8"
#: Seconds between two loads of the page without JavaScript.
RELOAD_S = 5

_HERE = Path(__file__).parent
_STYLE = Markup((_HERE / "page.css").read_text("utf-8"))
_SCRIPT = Markup((_HERE / "page.js").read_text("utf-8"))
_STILL_SCRIPT = Markup((_HERE / "still.js").read_text("utf-8"))


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") + "'"


#: The header Content-Security-Policy.
POLICY = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)} {_hash(_STILL_SCRIPT)}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

_FRAME = Markup("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
{reload}</head>
<body>
<header><h1>{heading}</h1><nav aria-label="Pages">{links}</nav></header>
<main>
<p id="state" class="{state_class}" role="status">{state}</p>
<p id="stale" role="alert" hidden></p>
<form id="ask" hidden><label for="token">Token</label> <input id="token" type="password" autocomplete="off">
<button>Show</button></form>
<div id="findings">{findings}</div>
<section id="curves" aria-labelledby="curves-title" hidden><h2 id="curves-title">The last five minutes</h2>
<div id="plots"></div></section>
<div id="live">{live}</div>
</main>
{numbers}<script>{script}</script>
</body>
</html>
""")
#: Links whose address is not their name.
_NAMES = {".": "dashboard"}
_RELOAD = Markup('<noscript><meta http-equiv="refresh" content="{}"></noscript>\n').format(RELOAD_S)
_LINES = Markup("\n")
_TOGETHER = Markup("")


def framed_page(
    *, title: str, heading: str, problem: str, good: str, live: Iterable[Markup], numbers: JsonObject,
    links: Iterable[str], findings: Markup | str = "",
) -> bytes:
    """
    A whole page.

    @param problem: what is wrong; empty: the page says C{good}.
    @param live: sections. @param numbers: for the curves.
    @param links: pages for programs.
    @param findings: a section that comes before the curves.
    """
    at_s = numbers["at_s"]
    assert isinstance(at_s, int | float), at_s
    at = Markup('<p class="soft">As of {} UTC.</p>').format(utc_text(at_s))
    # In a script element only "</" and "<!--" mean something, whatever the escape says in JSON.
    embedded = Markup(json.dumps(numbers).replace("<", "\\u003c"))
    return _FRAME.format(
        title=f"{'PROBLEM: ' if problem else ''}{title} - dledger", heading=heading,
        links=_linked(links), style=_STYLE, script=_SCRIPT, reload=_RELOAD,
        state_class="bad" if problem else "good", state=problem or good, live=_LINES.join((*live, at)),
        findings=findings,
        numbers=Markup('<script id="numbers" type="application/json">{}</script>\n').format(embedded),
    ).encode("utf-8")


def empty_frame(links: Iterable[str]) -> bytes:
    """The page without a number; its script asks for the contents, with a token."""
    return _FRAME.format(
        title="dledger", heading="dledger", links=_linked(links), style=_STYLE, script=_SCRIPT, reload="",
        state_class="", state="The numbers need a token, and JavaScript.", live="", findings="", numbers="",
    ).encode("utf-8")


def still_page(
    *, title: str, heading: str, said: str, live: Iterable[Markup], links: Iterable[str],
    is_problem: bool = False,
) -> bytes:
    """
    A page that stays as it is. On the page C{browse} its script shows the target of each link and form in
    place, with the token that the person has given.

    @param said: what the page shows, or why it does not. @param live: sections.
    """
    return _FRAME.format(
        title=f"{title} - dledger", heading=heading, links=_linked(links), style=_STYLE,
        script=_STILL_SCRIPT, reload="", state_class="bad" if is_problem else "good", state=said,
        live=_LINES.join(live), findings="", numbers="",
    ).encode("utf-8")


def together(parts: Iterable[Markup]) -> Markup:
    """The parts without anything between them."""
    return _TOGETHER.join(parts)


def search_form(action: str, fields: Iterable[tuple[str, str, str]]) -> Markup:
    """
    A form of words. @param action: the page that takes them. @param fields: name, label, value.
    """
    inputs = together(
        Markup(
            '<span><label for="{action}-{name}">{label}</label> '
            '<input id="{action}-{name}" name="{name}" value="{value}"></span> '
        ).format(action=action, name=name, label=label, value=value)
        for name, label, value in fields
    )
    return Markup('<form class="search" action="{}" method="get">{}<button>Show</button></form>').format(
        action, inputs
    )


def _linked(links: Iterable[str]) -> Markup:
    return Markup(" ").join(Markup('<a href="{}">{}</a>').format(one, _NAMES.get(one, one)) for one in links)


def wants_html(request: IRequest) -> bool:
    """Whether a browser asks for a page that programs get as JSON."""
    request.setHeader(b"vary", b"Accept")
    return "text/html" in (request.getHeader("accept") or "")


def send_html(request: IRequest, content: bytes) -> bytes:
    """Answer with a page of this module."""
    for name, value in (
        ("content-type", HTML_TYPE), ("content-security-policy", POLICY), ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"),
    ):
        request.setHeader(name.encode("ascii"), value.encode("ascii"))
    return content


def facts_of(title: str, facts: Iterable[tuple[str, str]]) -> Markup:
    """A section of named values."""
    cells = together(
        Markup('<li><span class="soft">{}</span> {}</li>').format(name, said) for name, said in facts
    )
    return Markup(
        '<section aria-labelledby="facts-title"><h2 id="facts-title">{}</h2>'
        '<ul class="facts">{}</ul></section>'
    ).format(title, cells)


def table_section(
    title: str, name: str, columns: Iterable[tuple[str, bool]], rows: Iterable[Iterable[Markup]], *,
    without: str = "",
) -> Markup:
    """
    A section with a table.

    @param columns: of each its heading, and whether it has numbers.
    @param rows: cells. @param without: a sentence in the place of a table without rows.
    """
    rows = list(rows)
    if without and not rows:
        return Markup(
            '<section aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
            '<p class="soft">{without}</p></section>'
        ).format(name=name, title=title, without=without)
    heads = together(
        Markup('<th scope="col"{}>{}</th>').format(Markup(" class=number" if is_number else ""), heading)
        for heading, is_number in columns
    )
    body = together(Markup("<tr>{}</tr>").format(together(row)) for row in rows)
    return Markup(
        '<section aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
        '<div class="scroll" role="region" aria-labelledby="{name}-title" tabindex="0"><table>'
        "<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div></section>"
    ).format(name=name, title=title, heads=heads, body=body)


def text_cell(value: object, kind: str = "") -> Markup:
    """A cell with words. @param kind: its class."""
    return Markup("<td{}>{}</td>").format(Markup(" class={}").format(kind) if kind else "", str(value))


def number_cell(value: int, least: int = -1) -> Markup:
    """A cell with a number, or an index: -1 is none. @param least: what is less is not known."""
    if value < max(least, 0):
        return Markup('<td class="number soft">{}</td>').format("unknown" if value < least else "none")
    return Markup("<td class=number>{:,}</td>").format(value)


def utc_text(at_s: float) -> str:
    """@param at_s: seconds since 1970."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"


def span_text(seconds: float) -> str:
    """Days, hours, minutes and seconds. @param seconds: -1: not known."""
    if seconds < 0:
        return "unknown"
    days, rest = divmod(int(seconds), 86400)
    return (f"{days} d " if days else "") + f"{rest // 3600}:{rest % 3600 // 60:02}:{rest % 60:02}"


def size_text(count: int) -> str:
    """Bytes for people."""
    if count < 0:
        return "unknown"
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
