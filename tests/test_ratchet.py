# -*- test-case-name: tests.test_ratchet -*-
"""The sizes of the parts of the product only fall; and the measure, on parts that are too big."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests import ratchet
from tests.ratchet import TABLE, beyond, complaints, lowered, measured, read_table, table_text

_CLASS = """
@attrs.define
class Bag:
    one: int
    two: int = 1
    _limit: ClassVar[int] = 3

    def set(self):
        self.two = self.three = 3
        other.four = 4

class Made:
    limit = 5

    def __init__(self, a, *, b, c=1):
        self.a = a
        self._b: int = b
        if a:
            for one in b:
                pass

    def choose(self, a):
        def inner():
            while a: pass
        try:
            match a:
                case 1: return 1
                case _: return 2
        except E: pass
        except F: pass
"""


class TreeTests(SynchronousTestCase):
    """The tree as it is."""

    def test_product(self) -> None:
        """No part is bigger than its limit, except those of the table, which are as big as it says."""
        figures = ratchet.figures_of_the_product()
        self.assertGreater(len(figures), 5000)
        text = TABLE.read_text(encoding="utf-8")
        wrong = list(complaints(beyond(figures), read_table(text)))
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        self.assertEqual(text, table_text(read_table(text)))


class MeasureTests(SynchronousTestCase):
    """Parts that are counted by hand."""

    def test_measured(self) -> None:
        """Lines, own fields, arguments of written constructors, branches without inner functions."""
        found = measured("m", _CLASS)
        self.assertEqual(found["lines", "m"], _CLASS.count("\n"))
        self.assertEqual(found["fields", "m.Bag"], 3)
        self.assertEqual(found["fields", "m.Made"], 2)
        self.assertEqual(found["arguments", "m.Made"], 3)
        self.assertNotIn(("arguments", "m.Bag"), found)
        self.assertEqual(found["branches", "m.Made.__init__"], 2)
        self.assertEqual(found["branches", "m.Made.choose"], 4)
        self.assertEqual(found["branches", "m.Made.choose.inner"], 1)

    def test_private_reads(self) -> None:
        """Attributes with an underscore count, read or set, except own ones and those of named tuples."""
        source = "a._b = c.d._e\nself._f = self._g.h\ncls._i()\nj._replace(k=1).__class__\nself.l._m\n"
        self.assertEqual(ratchet.private_reads(source), 3)

    def test_beyond(self) -> None:
        """The limit itself is allowed; formats and options have as many fields as they need."""
        for kind, limit in ratchet.LIMITS.items():
            found = beyond({(kind, "dledger.m.A"): limit, (kind, "dledger.m.B"): limit + 1})
            self.assertEqual(found, {(kind, "dledger.m.B"): limit + 1})
        for module in (
            "dledger.ledger.config", "dledger.rocketmq.namesrv.config", "protocols.wire.ledger.messages"
        ):
            self.assertEqual(beyond({("fields", f"{module}.A"): 99}), {}, module)
            self.assertEqual(len(beyond({("arguments", f"{module}.A"): 99})), 1, module)
        self.assertEqual(len(beyond({("fields", "dledger.configured.A"): 99})), 1)


class ComplaintTests(SynchronousTestCase):
    """What is said of a difference from the table."""

    def say(self, found: int | None, known: int | None) -> str:
        """The complaints about one module with C{found} lines, of which C{known} are known."""
        key = ("lines", "m")
        return " ".join(complaints(
            {} if found is None else {key: found}, {} if known is None else {key: known}
        ))

    def test_equal(self) -> None:
        """Nothing."""
        self.assertEqual(self.say(500, 500), "")
        self.assertEqual(self.say(None, None), "")

    def test_different(self) -> None:
        """A new one, one that rose, one that fell, and one that is small now."""
        self.assertIn("cut it by idea", self.say(451, None))
        self.assertIn("may only fall", self.say(501, 500))
        self.assertIn("write that down", self.say(490, 500))
        self.assertEqual(self.say(491, 500), "")
        self.assertIn("take it off", self.say(None, 500))

    def test_lowered(self) -> None:
        """Writing lowers figures and removes lines; it raises none, and adds none."""
        found = {("lines", "a"): 500, ("lines", "b"): 600, ("lines", "new"): 460}
        table = {("lines", "a"): 510, ("lines", "b"): 590, ("lines", "small"): 470}
        self.assertEqual(lowered(found, table), {("lines", "a"): 500, ("lines", "b"): 590})

    def test_text(self) -> None:
        """A table is read as it was written."""
        table = {("lines", "m"): 500, ("fields", "m.A"): 21}
        self.assertEqual(read_table(table_text(table)), table)
