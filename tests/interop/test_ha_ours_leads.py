# -*- test-case-name: tests.interop.test_ha_ours_leads -*-
"""A Java slave follows our master."""

from __future__ import annotations

from tests.interop.ha_story import Story


class OursLeadsTests(Story):
    """See L{Story.play}."""

    master, slave = "ours", "java"

    def test_4_9_8(self) -> None:
        """The last of the releases before 5."""
        self.play("4.9.8")

    def test_5_3_3(self) -> None:
        """The present release."""
        self.play("5.3.3")
