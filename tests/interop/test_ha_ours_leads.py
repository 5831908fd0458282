# -*- test-case-name: tests.interop.test_ha_ours_leads -*-
"""A Java slave follows our master."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tests.interop.ha_story import Story


class OursLeadsTests(Story):
    """A Java slave of each version copies the log of our master."""

    master, slave = "ours", "java"

    def test_4_9_8(self) -> None:
        """The last of the releases before 5."""
        self.play("4.9.8")

    def test_5_3_3(self) -> None:
        """The present release."""
        self.play("5.3.3")


class ShortStoryTests(Story):
    """What C{make test} has of it: copied, acknowledged, and each side killed once."""

    master, slave = "ours", "java"
    kills: ClassVar[dict[str, int]] = {"master": 1, "slave": 1}

    def parts(self) -> list[Callable[[], None]]:
        """The parts without directories that change hands."""
        return [self.replicate_asynchronously, self.replicate_synchronously, self.lose_master,
                self.compare_metadata, self.lose_slave]

    def test_5_3_3(self) -> None:
        """The present release."""
        self.play("5.3.3")
