# -*- test-case-name: tests.test_site -*-
"""The site of the documents."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest
from importlib.util import find_spec
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests import site

#: What a browser loads by itself.
_LOADED = re.compile(
    r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"(https?:|//)|@import|url\([\"']?(?:https?:|//)")


@unittest.skipUnless(find_spec("sphinx"), "Sphinx is not installed: pip install '.[docs]'")
class SiteTests(SynchronousTestCase):
    """The real site, and small ones."""

    def made(self, pages: dict[str, str]) -> tuple[int, Path]:
        """The status, and the place, of a site."""
        place = Path(self.mktemp()).absolute()
        return site.build(pages, place / "pages", place / "site"), place / "site"

    def test_all(self) -> None:
        """No link is wrong, every page is in the table, and a browser needs nothing from the network."""
        pages = site.sources()
        status, place = self.made(pages)
        self.assertEqual(status, 0)
        first = (place / "index.html").read_text("utf-8")
        for name in pages:
            self.assertIn(f'href="{"#" if name == "index.md" else name[:-3] + ".html"}"', first)
        loaded = [path.name for path in place.rglob("*") if path.suffix in (".html", ".css")
                  and _LOADED.search(path.read_text("utf-8"))]
        self.assertEqual(loaded, [])

    def test_wrong_link(self) -> None:
        """A link to no page, or to no heading, is an error."""
        for link in ("other.md", "#no-heading"):
            self.assertEqual(self.made({"index.md": f"# One\n\n[there]({link})\n"})[0], 1, link)
        self.assertEqual(self.made({"index.md": "# One\n\n[there](#one)\n"})[0], 0)


@unittest.skipUnless(find_spec("pydoctor"), "pydoctor is not installed: pip install '.[dev]'")
class DocstringTests(SynchronousTestCase):
    """The docstrings, from which the pages of the API are made."""

    def problems(self, *places: str | Path) -> list[str]:
        """What the program prints."""
        done = subprocess.run([sys.executable, "-m", "tests.docstrings", *places], cwd=site.ROOT, text=True,
                              capture_output=True, check=True, timeout=120)
        return done.stdout.splitlines()

    def test_epytext(self) -> None:
        """Each is sound: an indented block, for one, comes after two colons."""
        wrong = self.problems("dledger", "protocols")
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_unsound(self) -> None:
        """The line and the problem of one that is not."""
        place = Path(self.mktemp()).absolute()
        place.mkdir()
        for before, count in (("a:", 1), ("a::", 0)):
            (place / "one.py").write_text(f'def f():\n    """\n    {before}\n\n        b\n    """\n')
            found = self.problems(place)
            self.assertEqual(len(found), count, found)
            self.assertTrue(all(line.startswith(f"{place}/one.py:2: ") for line in found), found)


class SourcesTests(SynchronousTestCase):
    """The pages of the site."""

    def test_parts(self) -> None:
        """A page that is in no part is an error that names it."""
        parts = {**site.PARTS, "Tutorials": ["tutorial"]}
        self.patch(site, "PARTS", parts)
        error = self.assertRaises(ValueError, site.sources)
        self.assertIn("broker-tutorial.md", str(error))

    def test_reference(self) -> None:
        """The tables are there, and links into the tree are words."""
        pages = site.sources()
        self.assertTrue("| `heart_beat_time_interval_ms` |" in pages["reference.md"])
        self.assertFalse("*(table: " in pages["reference.md"])
        self.assertFalse([name for name, text in pages.items() if "](../" in text])
