# -*- test-case-name: tests.sim.test_lateness -*-
"""
Moments of members that come seldom, and after which a member may have forgotten something.

A fault of the schedule may follow them: what a process still knows, and the disk does not have, shows at its
next start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs

#: A log begins anew with a later entry; a snapshot of another member has come, or was taken up; a cut went
#: below entries that could not be read.
ANEW, RECEIVED, INSTALLED, CUT_BELOW_HOLE = "anew", "received", "installed", "cut below a hole"
#: A piece of the state of the group has come from another member; a state is known again.
STATE_PIECE, STATE_TAKEN = "a piece of the state", "state taken up"


@attrs.define
class Moments:
    """
    The moments of one group.

    @ivar listener: is called with the id of the member, and the kind of the moment; None: nobody is.
    @ivar seen: number of moments by kind.
    """

    listener: Callable[[str, str], None] | None = None
    seen: Counter[str] = attrs.Factory(Counter)

    def came(self, member_id: str, kind: str) -> None:
        """A moment has come to a member, within a step of it."""
        self.seen[kind] += 1
        if self.listener is not None:
            self.listener(member_id, kind)
