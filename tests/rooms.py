# -*- test-case-name: tests.test_rooms -*-
"""
The picture and the table of the rooms in docs/, made from L{tests.layering}.

    python -m tests.rooms            say whether docs/ is current
    python -m tests.rooms --write    bring it up to date

A room is a row of the layering table, which docs/rooms.md shows whole. The picture is for people: a box has
the rooms of one idea. An arrow is an import that exists; arrows that follow from longer ways are left out, in
the table, too. A box is drawn one row above the highest box that it imports.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from tests.import_graph import ROOT, imports_of
from tests.layer_checks import rooms_of
from tests.layering import LAYERS, Layer

PICTURE = ROOT / "docs" / "rooms.svg"
PAGE = ROOT / "docs" / "rooms.md"
BEGIN, END = "<!-- rooms -->", "<!-- end of rooms -->"

#: Each product, with the colours of its boxes (light, dark).
PRODUCTS = (
    ("both", "#dcdcdc", "#4a4a4a"),
    ("the ledger", "#c5dcf3", "#1d4a78"),
    ("RocketMQ", "#f6d9b8", "#7a4a14"),
    ("above both", "#cfe6cf", "#2f5f2f"),
)
#: The boxes of the picture, few enough for people: the number of the product, and the rooms in the box.
BOXES: dict[str, tuple[int, tuple[str, ...]]] = {
    "wire formats": (0, ("wire", "wire of the ledger", "wire of RocketMQ")),
    "protocols": (0, ("protocols", "protocols of the ledger", "protocols of RocketMQ")),
    "values and base": (0, ("values", "values of the ledger", "base", "base disk", "base TLS")),
    "core": (1, ("core",)),
    "storage": (1, ("storage",)),
    "node": (1, ("node", "node connections")),
    "state machines": (1, ("state machines",)),
    "clients": (1, ("client", "package")),
    "brokers, name server": (2, (
        "RocketMQ", "RocketMQ answers", "name server", "broker", "broker client", "broker metadata",
        "broker replication", "broker store", "broker verification",
    )),
    "raft broker": (3, ("raft broker",)),
    "Spark": (3, ("spark", "spark export", "spark by name")),
    "admin pages": (3, ("admin pages",)),
    "commands, daemons": (3, (
        "command line", "commands, console", "commands for data", "commands for tools",
        "commands of RocketMQ", "commands of the ledger", "daemons", "daemons, settings", "daemons for data",
        "daemons, tracing", "daemons of RocketMQ", "daemons of the ledger", "plugin",
    )),
    "simulators": (3, (
        "crashes", "search", "simulated brokers", "simulated computer", "simulated group",
        "simulated raft brokers", "simulators by name",
    )),
}
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 148, 34, 14, 46, 16
PER_ROW = 7


def box_of(room: str) -> str:
    """@raise KeyError: the room is in no box."""
    for box, (_product, rooms) in BOXES.items():
        if room in rooms:
            return box
    raise KeyError(f"{room}: no box of the picture has this room; add it to BOXES")


def boxes_of(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Every box, and the other boxes that its rooms import."""
    boxes: dict[str, set[str]] = {}
    for room, targets in graph.items():
        boxes.setdefault(box_of(room), set()).update(box_of(target) for target in targets)
    return {box: targets - {box} for box, targets in boxes.items()}


def floor_of(box: str) -> int:
    """The number of the product that a box is of."""
    return BOXES[box][0]


def ranks(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Longest way down from each room; 0 for a room that imports none."""
    found: dict[str, int] = {}

    def rank(room: str) -> int:
        if room not in found:
            found[room] = max((rank(target) + 1 for target in graph[room]), default=0)
        return found[room]

    for room in graph:
        rank(room)
    return found


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that do not follow from longer ways."""

    def reach(room: str) -> set[str]:
        seen: set[str] = set()
        todo = list(graph[room])
        while todo:
            target = todo.pop()
            if target not in seen:
                seen.add(target)
                todo += graph[target]
        return seen

    reached = {room: reach(room) for room in graph}
    return {
        room: {one for one in targets if not any(one in reached[other] for other in targets - {one})}
        for room, targets in graph.items()
    }


def placed(graph: Mapping[str, set[str]]) -> dict[str, tuple[int, int]]:
    """Column and row of each box, row 0 at the top; a rank with many boxes takes several rows."""
    rank = ranks(graph)
    places: dict[str, tuple[int, int]] = {}
    row = 0
    for level in range(max(rank.values()), -1, -1):
        rooms = sorted((room for room in graph if rank[room] == level), key=lambda one: (floor_of(one), one))
        for start in range(0, len(rooms), PER_ROW):
            for column, room in enumerate(rooms[start : start + PER_ROW]):
                places[room] = (column, row)
            row += 1
    return places


def picture(graph: Mapping[str, set[str]]) -> str:
    """The boxes as an SVG document."""
    places = placed(graph)
    wide = max(sum(1 for place in places.values() if place[1] == row) for _column, row in places.values())
    width = 2 * MARGIN + wide * (BOX_WIDTH + GAP_X) - GAP_X
    rows = 1 + max(row for _column, row in places.values())
    height = 2 * MARGIN + rows * (BOX_HEIGHT + GAP_Y) - GAP_Y + 34
    count = {row: sum(1 for place in places.values() if place[1] == row) for row in range(rows)}

    def corner(room: str) -> tuple[int, int]:
        column, row = places[room]
        indent = (width - (count[row] * (BOX_WIDTH + GAP_X) - GAP_X)) // 2
        return indent + column * (BOX_WIDTH + GAP_X), MARGIN + row * (BOX_HEIGHT + GAP_Y)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="sans-serif" font-size="12">',
        "<title>The parts of dledger, and which part imports which</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#888888"/></marker></defs>',
    ]
    for room, targets in sorted(reduced(graph).items()):
        x, y = corner(room)
        for target in sorted(targets):
            to_x, to_y = corner(target)
            lines.append(
                f'<path d="M{x + BOX_WIDTH // 2} {y + BOX_HEIGHT}L{to_x + BOX_WIDTH // 2} {to_y}" '
                'stroke="#888888" fill="none" marker-end="url(#a)"/>'
            )
    for room in sorted(places):
        x, y = corner(room)
        _name, fill, ink = PRODUCTS[floor_of(room)]
        lines.append(
            f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" fill="{fill}" '
            f'stroke="{ink}"/><text x="{x + BOX_WIDTH // 2}" y="{y + 21}" text-anchor="middle">'
            f"{escape(room)}</text>"
        )
    for number, (name, fill, ink) in enumerate(PRODUCTS):
        x, y = MARGIN + number * 170, height - MARGIN - 14
        lines.append(
            f'<rect x="{x}" y="{y}" width="14" height="14" fill="{fill}" stroke="{ink}"/>'
            f'<text x="{x + 20}" y="{y + 11}">{escape(name)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def _third(layer: Layer) -> str:
    names = [name for name in layer.third if name not in ("attr", "zope.interface", "werkzeug")]
    return ", ".join(names) or "nothing else"


def table(graph: Mapping[str, set[str]]) -> str:
    """The rooms as a Markdown list, in the order of the layers."""
    graph = reduced(graph)
    lines = []
    for layer in LAYERS:
        rooms = ", ".join(sorted(graph.get(layer.name, ()))) or "no room"
        lines.append(f"* {layer.name} ({_names(layer.covers)}): {rooms}; {_third(layer)}")
    return "\n".join(lines)


def page(text: str, graph: Mapping[str, set[str]]) -> str:
    """
    The text with the current table between its two marks.

    @raise ValueError: the marks are missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _old, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name}: {BEGIN} and {END} must stand around the table")
    return f"{before}{BEGIN}\n{table(graph)}\n{END}{after}"


def wanted() -> dict[Path, str]:
    """Each file in docs/ that is made here, and the text that it should have."""
    graph = rooms_of(imports_of())
    return {PICTURE: picture(boxes_of(graph)), PAGE: page(PAGE.read_text(encoding="utf-8"), graph)}


def main(arguments: Sequence[str]) -> int:
    """@return: the exit status: 0 if docs/ is current."""
    stale = [
        (path, text) for path, text in wanted().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if "--write" in arguments:
            path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'written' if '--write' in arguments else 'stale'}\n")
    return 1 if stale and "--write" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
