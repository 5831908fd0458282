# -*- test-case-name: tests.test_benchmarks -*-
"""
The tables of the documents, and a plot, from the JSON files of C{benchmarks.append}.

    python -m benchmarks.table docs/benchmarks/peers.json                                  # print it
    python -m benchmarks.table docs/benchmarks/peers.json --svg docs/benchmarks/peers.svg  # draw it
    python -m benchmarks.table --write README.md                                            # put tables anew

A document has a table between two comments, of which the first names its file; nobody writes figures there
by hand::

    <!-- benchmark: docs/benchmarks/peers.json -->
    <!-- end of benchmark -->
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import click

from benchmarks.append import load_text
from benchmarks.common import number
from benchmarks.load import ROOT

#: A table of a document: the first comment with the file's name, the table, the last comment.
SECTION = re.compile(
    r"(<!-- benchmark: (?P<path>[\w./-]+) -->\n)(?P<table>.*?)(<!-- end of benchmark -->)", re.DOTALL
)

_Row = Mapping[str, Any]
_Place = tuple[int, int, int]


def _places(rows: Sequence[_Row]) -> list[_Place]:
    return sorted({_place_of(row) for row in rows})


def _place_of(row: _Row) -> _Place:
    return row["body_bytes"], row["links"], row["window"]


def _systems(rows: Sequence[_Row]) -> list[tuple[str, str]]:
    """Names and flush classes: those that promise less first, ours first among equals."""
    found = {(row["system"], row["flush"]) for row in rows}
    return sorted(found, key=lambda one: (one[1], not one[0].startswith("dledger"), one[0]))


def _by_place(rows: Sequence[_Row], system: str, flush: str) -> dict[_Place, _Row]:
    return {
        _place_of(row): row
        for row in rows if (row["system"], row["flush"]) == (system, flush)
    }


def _has_rate(row: _Row | None) -> bool:
    return row is not None and row["throughput_per_s"] == row["throughput_per_s"]


def machine_line(document: Mapping[str, Any]) -> str:
    """The machine, the disk and the versions of a run."""
    machine = document["machine"]
    versions = "".join(f", {name} {version}" for name, version in sorted(document["versions"].items()))
    return (
        f"{machine['processors']} processors ({machine['model']}), {machine['memory_gib']:.0f} GiB, "
        f"{machine['system']}, Python {machine['python']}{versions}; fdatasync of 4 KiB p50 "
        f"{machine['fdatasync_p50_ms']:.2f} ms, p99 {machine['fdatasync_p99_ms']:.2f} ms; load average "
        f"before {machine['load_average']:.1f}"
    )


def markdown(document: Mapping[str, Any]) -> str:
    """The table of a run: a row for each system, medians of the rounds with the least and the most."""
    rows: Sequence[_Row] = document["results"]
    places = _places(rows)
    lines = [f"**{document['note']}**", ""] if document["note"] else []
    lines += [
        "| System | Acknowledged when in | "
        + " | ".join(f"{size} B x {load_text(links, window)}" for size, links, window in places) + " |",
        "|---|---|" + "---:|" * len(places),
    ]
    for system, flush in _systems(rows):
        mine = _by_place(rows, system, flush)
        cells = []
        for place in places:
            row = mine.get(place)
            if row is None or not _has_rate(row):
                cells.append("-")
                continue
            spread = f"{number(row['least_per_s'])}..{number(row['most_per_s'])}"
            cells.append(f"{number(row['throughput_per_s'])} ({spread})")
        durability = next(iter(mine.values()))["durability"]
        lines.append(f"| {system} {flush} | {durability} | " + " | ".join(cells) + " |")
    rounds = max(len(row["rounds_per_s"]) for row in rows)
    what = "one round" if rounds == 1 else f"median of {rounds} rounds (least..most)"
    lines += ["", f"Operations per second, {what}; columns are bytes of a body x operations outstanding "
              "(256x4: on 256 connections, four on each)."]
    operations: dict[str, list[str]] = {}
    for system, flush in _systems(rows):
        operation = next(iter(_by_place(rows, system, flush).values()))["operation"]
        names = operations.setdefault(operation, [])
        if system not in names:
            names.append(system)
    lines += ["One operation is: " + "; ".join(
        f"{operation} ({', '.join(names)})" for operation, names in operations.items()
    ) + ".", f"The machine: {machine_line(document)}."]
    return "\n".join(lines) + "\n"


# -- the plot ---------------------------------------------------------------------------------------

_BAR, _GAP, _LEFT, _WIDTH, _RIGHT = 16, 6, 170, 420, 90


def svg(document: Mapping[str, Any]) -> str:
    """Bars on a logarithmic scale, a panel for each body and window; a whisker from the least to the most."""
    rows = [row for row in document["results"] if _has_rate(row)]
    low = math.floor(math.log10(min(row["least_per_s"] for row in rows)))
    high = math.log10(max(row["most_per_s"] for row in rows))

    def x(rate: float) -> float:
        return round(_LEFT + _WIDTH * (math.log10(rate) - low) / max(high - low, 0.1), 1)

    parts: list[str] = []
    top = 20
    if document["note"]:
        parts.append(f'<text x="4" y="{top}" font-weight="bold">{escape(document["note"])}</text>')
        top += 24
    for size, links, window in _places(rows):
        parts.append(
            f'<text x="4" y="{top}">{size} bytes, {load_text(links, window)} outstanding, per second '
            "(log scale)</text>"
        )
        top += 8
        for system, flush in _systems(rows):
            row = _by_place(rows, system, flush).get((size, links, window))
            if row is None:
                continue
            colour = "#27628f" if system.startswith("dledger") else "#a9a9a9"
            end, middle = x(row["throughput_per_s"]), top + _BAR / 2
            parts += [
                f'<text x="{_LEFT - 6}" y="{top + 12}" text-anchor="end">{escape(system)} {flush}</text>',
                f'<rect x="{_LEFT}" y="{top}" width="{round(end - _LEFT, 1)}" height="{_BAR}" '
                f'fill="{colour}" fill-opacity="{1 if flush == "sync" else 0.7}"/>',
                f'<path d="M{x(row["least_per_s"])} {middle}H{x(row["most_per_s"])}" stroke="#000"/>',
                f'<text x="{x(row["most_per_s"]) + 4}" y="{top + 12}">'
                f'{number(row["throughput_per_s"])}</text>',
            ]
            top += _BAR + _GAP
        top += 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + _RIGHT}" height="{top}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(parts) + "\n</svg>\n"
    )


def written_anew(text: str, root: Path = ROOT) -> str:
    """A document with all its tables as their files have them. Files are named from C{root}."""

    def table(found: re.Match[str]) -> str:
        document = json.loads((root / found["path"]).read_text("utf-8"))
        return f"{found[1]}{markdown(document)}{found[4]}"

    return SECTION.sub(table, text)


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--svg", "svg_path", type=click.Path(dir_okay=False), help="draw the results into this file")
@click.option("--write", is_flag=True, help="the arguments are documents whose tables are put anew")
@click.argument("documents", nargs=-1, type=click.Path(exists=True, dir_okay=False))
def main(results: str | None, svg_path: str | None, write: bool, documents: tuple[str, ...]) -> None:
    """Print the table of RESULTS, or put the tables of documents anew."""
    if results is None:
        raise click.UsageError("name a file of results, or --write and documents")
    if write:
        for name in (results, *documents):
            path = Path(name)
            path.write_text(written_anew(path.read_text("utf-8")), "utf-8")
        return
    document = json.loads(Path(results).read_text("utf-8"))
    if svg_path is not None:
        Path(svg_path).write_text(svg(document), "utf-8")
    else:
        click.echo(markdown(document), nl=False)


if __name__ == "__main__":
    main()
