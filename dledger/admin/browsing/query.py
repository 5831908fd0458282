# -*- test-case-name: tests.admin.test_browsing -*-
"""The query of a page that shows what is stored, and the previews of bodies."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping

import attrs
from twisted.web.iweb import IRequest

from dledger.admin.dashboard.frame import send_html, wants_html
from dledger.admin.sites.pages import json_page
from dledger.base.time_text import moment_ms

#: Entries or messages of a page.
COUNT_DEFAULT, COUNT_MAX = 20, 100
#: Bytes of the records that are read for a page; it shows at least one.
PAGE_BYTES_MAX = 256 * 1024
#: Bytes of a body that a page shows, and characters of other values.
PREVIEW_BYTES = 400
PREVIEW_CHARS = 200
#: How bodies are shown: as text, or in hexadecimal where they are none; always so; as JSON with its lines.
STYLES = ("", "hex", "json")
#: The longest body that is read as JSON, bytes, and characters that are shown of it.
JSON_BYTES_MAX = 64 * 1024
JSON_CHARS = 4 * PREVIEW_BYTES
#: Longest value of a query.
VALUE_CHARS_MAX = 1000
#: The first index is after every index.
LAST = "last"
INDEX_MAX = (1 << 63) - 1


class QueryProblem(ValueError):
    """
    The query is wrong, or asks for something that is not there.

    @ivar status: of HTTP.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@attrs.frozen
class Query:
    """The values of a query, each with a name that the page knows."""

    values: Mapping[str, str]

    def text(self, name: str) -> str:
        """A value; empty without it."""
        return self.values.get(name, "")

    def number(self, name: str, default: int, most: int = INDEX_MAX) -> int:
        """
        A whole number from 0 on.

        @raise QueryProblem: the value is something else.
        """
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
            raise QueryProblem(400, f"{name}={text[:40]!r} is not a whole number from 0 to {most}")
        return int(text)

    def count(self) -> int:
        """
        How many are shown.

        @raise QueryProblem: the value is not from 1 to L{COUNT_MAX}.
        """
        count = self.number("count", COUNT_DEFAULT, COUNT_MAX)
        if count == 0:
            raise QueryProblem(400, f"count=0 is not from 1 to {COUNT_MAX}")
        return count

    def first(self, begin: int, end: int, count: int) -> int:
        """
        The first place to show: C{from}, or the last page without it.

        @param begin, end: the first place, and the one after the last.
        @raise QueryProblem: the value is not a number and not L{LAST}.
        """
        if self.text("from") in ("", LAST):
            return max(begin, end - count)
        return self.number("from", begin)

    def style(self) -> str:
        """
        C{as}: how bodies are shown.

        @raise QueryProblem: it is none of L{STYLES}.
        """
        text = self.text("as")
        if text not in STYLES:
            raise QueryProblem(400, f"as={text[:40]!r} is none of {', '.join(filter(None, STYLES))}")
        return text

    def moment_ms(self) -> int | None:
        """
        C{time} in milliseconds since 1970; None without it.

        @raise QueryProblem: the value is not a time.
        """
        text = self.text("time")
        if not text:
            return None
        try:
            return moment_ms(text)
        except ValueError as error:
            raise QueryProblem(400, f"time: {error}") from None


def shown_as(query: Query) -> dict[str, str]:
    """The style of bodies, for links to other pages of the same search."""
    return {"as": query.style()} if query.style() else {}


def query_of(request: IRequest, names: Collection[str]) -> Query:
    """
    Read the query of a request.

    @param names: the values that the page knows.
    @raise QueryProblem: the page does not know a name; or a value is given twice, too long, or no UTF-8.
    """
    values: dict[str, str] = {}
    for raw_name, given in (request.args or {}).items():
        name = raw_name.decode("utf-8", "replace")
        if name not in names:
            raise QueryProblem(400, f"{name[:40]!r} is unknown here; known: {', '.join(sorted(names))}")
        if len(given) != 1:
            raise QueryProblem(400, f"{name} is given {len(given)} times")
        if len(given[0]) > VALUE_CHARS_MAX:
            raise QueryProblem(400, f"{name} is longer than {VALUE_CHARS_MAX} bytes")
        try:
            values[name] = given[0].decode("utf-8").strip()
        except UnicodeDecodeError:
            raise QueryProblem(400, f"{name} is not UTF-8") from None
    return Query(values)


def problem_page(request: IRequest, problem: QueryProblem, page: Callable[[str], bytes]) -> bytes:
    """
    Answer with a problem, in JSON or for browsers.

    @param page: from the words of the problem to the page for browsers.
    """
    if not wants_html(request):
        return json_page(request, problem.status, {"error": str(problem)})
    request.setResponseCode(problem.status)
    return send_html(request, page(str(problem)))


def preview_of(body: bytes, style: str = "") -> tuple[str, bool]:
    """
    The beginning of a body for people.

    @param style: one of L{STYLES}; C{json} is the text where the body is not whole JSON of a moderate size.
    @return: its text, and true; or its bytes in hexadecimal, and false, if it has others than of text.
    """
    cut = body[:PREVIEW_BYTES]
    if style == "hex":
        return cut.hex(" ", 4), False
    if style == "json" and len(body) <= JSON_BYTES_MAX:
        try:
            return json.dumps(json.loads(body), indent=1, ensure_ascii=False)[:JSON_CHARS], True
        except (ValueError, RecursionError):
            pass
    # A letter of up to four bytes may be cut at the end.
    for drop in range(4 if len(cut) < len(body) else 1):
        try:
            text = cut[: len(cut) - drop].decode("utf-8")
        except UnicodeDecodeError:
            continue
        if all(letter.isprintable() or letter in "\t\r\n" for letter in text):
            return text, True
        break
    return cut.hex(" ", 4), False


def short(text: str) -> str:
    """The beginning of a text."""
    return text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "..."
