# -*- test-case-name: tests.test_rooms -*-
"""The picture and the table of the rooms are those of the tree."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.layering import LAYERS
from tests.rooms import BOXES, box_of, boxes_of, page, picture, placed, ranks, reduced, wanted

GRAPH = {
    "node": {"core", "wire formats"}, "core": {"wire formats"}, "wire formats": set(),
    "storage": {"wire formats"},
}


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
        """A box is one above the highest box that it imports."""
        self.assertEqual(ranks(GRAPH), {"wire formats": 0, "core": 1, "storage": 1, "node": 2})

    def test_places(self) -> None:
        """Higher ranks are drawn above, and no two boxes at one place."""
        places = placed(GRAPH)
        self.assertEqual(len(set(places.values())), len(GRAPH))
        self.assertLess(places["node"][1], places["core"][1])
        self.assertLess(places["core"][1], places["wire formats"][1])

    def test_reduced(self) -> None:
        """An arrow that follows from a longer way is left out."""
        self.assertEqual(reduced(GRAPH)["node"], {"core"})
        self.assertEqual(reduced(GRAPH)["core"], {"wire formats"})

    def test_picture(self) -> None:
        """Every box is drawn once."""
        drawn = picture(GRAPH)
        for room in GRAPH:
            self.assertEqual(drawn.count(f">{room}</text>"), 1)

    def test_boxes(self) -> None:
        """Every room is in one box, no box names a room that is gone, and people can take the picture in."""
        named = [room for _product, rooms in BOXES.values() for room in rooms]
        self.assertEqual(sorted(named), sorted(layer.name for layer in LAYERS))
        self.assertLessEqual(len(BOXES), 14)
        self.assertEqual(
            boxes_of({"node": {"node connections", "core"}, "core": set(), "node connections": {"base"}}),
            {"node": {"core", "values and base"}, "core": set()},
        )
        self.assertRaises(KeyError, box_of, "a new room")

    def test_page_without_marks(self) -> None:
        """A page that lost its marks is not written over."""
        self.assertRaises(ValueError, page, "no marks here", GRAPH)
