# -*- test-case-name: tests.test_rooms -*-
"""The picture and the table of the rooms are those of the tree."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.rooms import FLOORS, floor_of, page, picture, placed, ranks, reduced, wanted

GRAPH = {"node": {"core", "wire"}, "core": {"wire"}, "wire": set(), "broker store": {"wire"}}


class CurrentTests(SynchronousTestCase):
    """The files in docs/."""

    def test_current(self) -> None:
        """C{python -m tests.rooms --write} would change nothing."""
        for path, text in wanted().items():
            current = path.read_text(encoding="utf-8")
            self.assertEqual(current, text, f"{path.name}: python -m tests.rooms --write")


class DrawingTests(SynchronousTestCase):
    """The drawing of a small house."""

    def test_ranks(self) -> None:
        """A room is one above the highest room that it imports."""
        self.assertEqual(ranks(GRAPH), {"wire": 0, "core": 1, "broker store": 1, "node": 2})

    def test_places(self) -> None:
        """Higher ranks are drawn above, and no two rooms at one place."""
        places = placed(GRAPH)
        self.assertEqual(len(set(places.values())), len(GRAPH))
        self.assertLess(places["node"][1], places["core"][1])
        self.assertLess(places["core"][1], places["wire"][1])

    def test_reduced(self) -> None:
        """An arrow that follows from a longer way is left out."""
        self.assertEqual(reduced(GRAPH)["node"], {"core"})
        self.assertEqual(reduced(GRAPH)["core"], {"wire"})

    def test_picture(self) -> None:
        """Every room is drawn once."""
        drawn = picture(GRAPH)
        for room in GRAPH:
            self.assertEqual(drawn.count(f">{room}</text>"), 1)

    def test_floors(self) -> None:
        """Names tell the product."""
        names = [FLOORS[floor_of(room)][0] for room in (
            "broker store", "node connections", "base disk", "spark", "client", "protocols of RocketMQ",
            "protocols", "broker client", "twistd member", "command line",
        )]
        self.assertEqual(names, [
            "RocketMQ broker", "ledger", "ground floor", "above both", "ledger", "RocketMQ broker",
            "ground floor", "RocketMQ broker", "ledger", "above both",
        ])

    def test_page_without_marks(self) -> None:
        """A page that lost its marks is not written over."""
        self.assertRaises(ValueError, page, "no marks here", GRAPH)
