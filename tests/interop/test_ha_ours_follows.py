# -*- test-case-name: tests.interop.test_ha_ours_follows -*-
"""Our slave follows a Java master."""

from __future__ import annotations

from tests.interop.ha_story import Story


class OursFollowsTests(Story):
    """Our slave copies the log of a Java master, of each version."""

    master, slave = "java", "ours"

    def test_4_9_8(self) -> None:
        """The last of the releases before 5."""
        self.play("4.9.8")

    def test_5_3_3(self) -> None:
        """The present release."""
        self.play("5.3.3")
