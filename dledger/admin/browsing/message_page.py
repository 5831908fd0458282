# -*- test-case-name: tests.admin.test_browsing -*-
"""The pages of queues and messages as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlencode

from markupsafe import Markup

from dledger.admin.browsing.entry_page import body_cell
from dledger.admin.browsing.query import COUNT_DEFAULT, LAST, Query, preview_of, short, shown_as
from dledger.admin.dashboard.frame import number_cell, search_form, still_page, table_section, text_cell
from dledger.base.time_text import time_text
from dledger.rocketmq.broker.showing.shown import ShownMessage, ShownMessages, ShownQueue

LINKS = (".", "topics", "status", "config")
_COLUMNS = (
    ("Queue", True), ("Offset", True), ("Position", True), ("Stored, UTC", False), ("Unique key", False),
    ("Tags", False), ("Keys", False), ("Properties", False), ("Bytes", True), ("Body", False),
)
_QUEUE_COLUMNS = (("Topic", False), ("Queue", True), ("First", True), ("End", True), ("Messages", True))
#: Properties with columns of their own.
_OWN = ("UNIQ_KEY", "TAGS", "KEYS")


def message_page(broker: str, query: Query, shown: ShownMessages | None, problem: str = "") -> bytes:
    """
    The page.

    @param shown: None: the form alone. @param problem: why nothing is shown.
    """
    sections = [message_form(query)]
    said = problem or "Search by topic and queue, by key, or by position in the log."
    if shown is not None:
        if shown.queue is not None:
            sections.append(_turning(query, shown, shown.queue))
        rows = (_row(one, query.style()) for one in shown.messages)
        sections.append(table_section("Messages", "messages", _COLUMNS, rows))
        said = _range_of(shown)
    return still_page(
        title=f"Messages of {broker}", heading=f"Messages of broker {broker}", said=said, live=sections,
        links=LINKS, is_problem=bool(problem),
    )


def topics_page(
    broker: str, queues: Iterable[ShownQueue], *, is_whole: bool = True, problem: str = ""
) -> bytes:
    """The page of all queues. @param is_whole: whether these are all."""
    rows = list(map(_queue_row, queues))
    said = problem or f"{len(rows):,} queues{'' if is_whole else ', and more: give topic'}."
    return still_page(
        title=f"Topics of {broker}", heading=f"Topics of broker {broker}", said=said, links=LINKS,
        live=(search_form("topics", (("topic", "Topic", ""),)),
              table_section("Queues", "queues", _QUEUE_COLUMNS, rows)),
        is_problem=bool(problem),
    )


def message_form(query: Query) -> Markup:
    """The form of the search."""
    return search_form("messages", tuple((name, label, query.text(name)) for name, label in (
        ("topic", "Topic"), ("queue", "Queue"), ("from", "From offset"), ("time", "Or from time (UTC)"),
        ("key", "Or key"), ("position", "Or position in the log"), ("count", "Number"),
        ("as", "Bodies as: hex or json"),
    )))


def _range_of(shown: ShownMessages) -> str:
    number = len(shown.messages)
    if shown.queue is None:
        return f"{number} messages.{'' if shown.is_whole else ' There may be more.'}"
    queue = shown.queue
    whole = f"queue {queue.queue_id} of {queue.topic} has {queue.begin_offset:,} to {queue.end_offset - 1:,}"
    if queue.end_offset == queue.begin_offset:
        whole = f"queue {queue.queue_id} of {queue.topic} is empty"
    return f"{number} messages from offset {shown.first_offset:,} on; {whole}."


def _turning(query: Query, shown: ShownMessages, queue: ShownQueue) -> Markup:
    """Links to other pages of the queue."""
    count = query.count()

    def link(words: str, first: object) -> Markup:
        more = {**({} if count == COUNT_DEFAULT else {"count": count}), **shown_as(query)}
        asked = urlencode({"topic": queue.topic, "queue": queue.queue_id, "from": first, **more})
        return Markup('<a href="messages?{}">{}</a>').format(asked, words)

    links = [link("first", queue.begin_offset)]
    if shown.first_offset > queue.begin_offset:
        links.append(link("earlier", max(queue.begin_offset, shown.first_offset - count)))
    if shown.first_offset < shown.next_offset < queue.end_offset:
        links.append(link("later", shown.next_offset))
    links.append(link("last", LAST))
    return Markup("<p>{}</p>").format(Markup(" ").join(links))


def _row(message: ShownMessage, style: str) -> Iterable[Markup]:
    preview, is_text = preview_of(message.body, style)
    properties = message.properties
    rest = ", ".join(f"{name}={value}" for name, value in properties.items() if name not in _OWN)
    packed = "" if message.compression == "none" else f", {message.compression}"
    return (
        number_cell(message.queue_id), number_cell(message.queue_offset), number_cell(message.position),
        text_cell(time_text(message.stored_ms)), text_cell(short(message.unique_key)),
        text_cell(short(properties.get("TAGS", ""))), text_cell(short(properties.get("KEYS", ""))),
        text_cell(short(rest), "words"),
        Markup("<td class=number>{:,}{}</td>").format(len(message.body), packed),
        body_cell(preview, is_text, len(message.body), style),
    )


def _queue_row(queue: ShownQueue) -> Iterable[Markup]:
    asked = urlencode({"topic": queue.topic, "queue": queue.queue_id})
    return (
        Markup('<td><a href="messages?{}">{}</a></td>').format(asked, queue.topic),
        number_cell(queue.queue_id),
        number_cell(queue.begin_offset), number_cell(queue.end_offset),
        number_cell(queue.end_offset - queue.begin_offset),
    )
