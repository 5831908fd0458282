# -*- test-case-name: tests.test_security_page -*-
"""Every line that docs/security.md says about who can do what names a test that exists."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from tests.test_docs import DOCS, exists

_TEST = re.compile(r"`(tests(?:\.\w+)+)`")
_FULL = re.compile(r"tests(?:\.\w+)+\.\w*Tests\.test_\w+")
_BEGIN, _END = "## Who can do what\n", "### What no test can show\n"


def lines_of(text: str) -> list[str]:
    """The items of the lists that say who can do what, each in one line."""
    part = text[text.index(_BEGIN) : text.index(_END)]
    items = re.findall(r"^\* .*\n(?:  .*\n)*", part, re.MULTILINE)
    return [" ".join(item.split()) for item in items]


def unshown(item: str) -> str:
    """What is wrong with the tests of an item, in parentheses at its end; empty: nothing."""
    named = _TEST.findall(item.rpartition(" (")[2])
    if not named:
        return "it names no test"
    for name in named:
        if not _FULL.fullmatch(name) or not exists(name):
            return f"{name} is no test"
    return ""


class SecurityPageTests(SynchronousTestCase):
    """The page, and the check."""

    def test_every_line_is_shown(self) -> None:
        """No line without a test, no test that is not there."""
        rows = lines_of((DOCS / "security.md").read_text("utf-8"))
        self.assertGreater(len(rows), 25)
        wrong = [f"{row[:90]}: {why}" for row in rows if (why := unshown(row))]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_who(self) -> None:
        """Strangers, clients, accounts and members that lie, each with its powers and their limits."""
        text = (DOCS / "security.md").read_text("utf-8")
        part = text[text.index(_BEGIN) : text.index(_END)]
        for who in (
            "stranger, without TLS", "stranger, with TLS", "client with", "account of", "member that lies",
        ):
            self.assertRegex(part, f"### An? {who}.*\n\n\\* .*\\bcan")

    def test_the_check(self) -> None:
        """A line without a test, or with one that is not there, is found."""
        here = "tests.test_security_page.SecurityPageTests.test_the_check"
        self.assertEqual(unshown(f"* a: can b; cannot c (`{here}`)"), "")
        for tests in (
            "", f"`{here}x`", f"`{here}`, `tests.nowhere.Tests.test_x`", "`tests.test_security_page`",
        ):
            self.assertNotEqual(unshown(f"* a: can `{here}` ({tests})"), "", tests)
