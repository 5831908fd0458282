# -*- test-case-name: tests.test_site -*-
"""
The site of the documents, by Sphinx: build/site, which needs no server and nothing from the network; in it
the pages of the API, by pydoctor, as pyproject.toml says::

    python -m tests.site

Its sources are made in build/docs: the pages of docs/, two of the root, and the tables of the reference,
printed from the code.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import reference
from tests.import_graph import ROOT

SOURCES = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
#: The parts of the site, each with its pages in order.
PARTS: Mapping[str, Sequence[str]] = {
    "Tutorials": ("tutorial", "broker-tutorial"),
    "How to": ("spark", "exactly-once", "readers", "machines", "envelopes", "times", "ha", "raft-broker",
               "namesrv", "interop", "operations", "security", "slo"),
    "Reference": ("reference", "api", "spark-reference", "events", "compatibility", "wire-format", "glossary",
                  "NEWS"),
    "Explanation": ("architecture", "append-path", "put-path", "walks", "rooms", "membership", "divergence",
                    "trust", "performance", "invariants", "states", "model", "history"),
    "For developers": ("CONTRIBUTING", "hacking", "how-to-debug", "releasing"),
}
#: Pages that are in the root of the tree, not in docs/.
ROOT_PAGES = ("NEWS", "CONTRIBUTING")
#: A link from a page into the tree, which the site does not have.
_INTO_TREE = re.compile(r"\[([^\]]*)\]\((?:\.\./[^)\s]*|LICENSE|\.\w[^)\s]*|README[^)\s]*)\)")


def sources() -> dict[str, str]:
    """The text of each page by the name of its file. @raise ValueError: a page is in no part, or in two."""
    found = {page.name: page.read_text("utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}
    for name in ROOT_PAGES:
        found[f"{name}.md"] = (ROOT / f"{name}.md").read_text("utf-8").replace("](docs/", "](")
    named = sorted(f"{name}.md" for names in PARTS.values() for name in names)
    if named != sorted(found.keys() - {"index.md"}):
        raise ValueError(f"PARTS has {named}, the tree has {sorted(found)}: each page is in one part")
    found[reference.PAGE.name] = reference.page(found[reference.PAGE.name])
    for part, names in PARTS.items():
        pages = "\n".join(names)
        found["index.md"] += f"\n```{{toctree}}\n:hidden:\n:caption: {part}\n\n{pages}\n```\n"
    return {name: _INTO_TREE.sub(r"\1", text) for name, text in found.items()}


def build(pages: Mapping[str, str], place: Path, site: Path) -> int:
    """
    Build a site. Each warning is an error.

    @param place, site: for the pages, and for what is made of them; what is there goes.
    @return: 0 if it is built.
    """
    from sphinx.cmd.build import main as sphinx

    for old in (place, site):
        shutil.rmtree(old, ignore_errors=True)
    place.mkdir(parents=True)
    for name, text in pages.items():
        (place / name).write_text(text, encoding="utf-8")
    for picture in (ROOT / "docs").rglob("*.[sp][vn]g"):
        copy = place / picture.relative_to(ROOT / "docs")
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(picture, copy)
    return sphinx(["-b", "html", "-q", "-W", "--keep-going", "-E", "-d", str(place / ".doctrees"), "-C",
                   *(f"-D{name}={value}" for name, value in SETTINGS.items()), str(place), str(site)])


#: Of Sphinx.
SETTINGS = {
    "project": "dledger", "extensions": "myst_parser", "html_theme": "furo", "myst_heading_anchors": "5",
    "html_title": "dledger", "highlight_language": "none", "html_show_sphinx": "0", "html_copy_source": "0",
    "suppress_warnings": "myst.header",
}


def api(*options: str) -> int:
    """
    Write the pages of the API. Each warning is an error.

    @param options: of C{pydoctor}, more than those of pyproject.toml.
    @return: 0 if they are written.
    """
    from pydoctor import driver
    from pydoctor.epydoc.markup import Field, ParsedDocstring, ParseError, epytext

    parse = epytext.parse_docstring

    def with_each_name(docstring: str, errors: list[ParseError]) -> ParsedDocstring:
        """A field of several names, as in C{@param host, port: of the peer}, is one of each."""
        parsed = parse(docstring, errors)
        parsed.fields = [
            Field(field.tag(), name or None, field.body(), field.lineno)
            for field in parsed.fields for name in (field.arg() or "").split(", ")
        ]
        return parsed

    epytext.parse_docstring = with_each_name
    try:
        return driver.main(options)
    finally:
        epytext.parse_docstring = parse


if __name__ == "__main__":
    sys.exit(build(sources(), SOURCES, SITE) or api())
