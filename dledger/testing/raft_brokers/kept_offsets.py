# -*- test-case-name: tests.sim.test_raft_clients -*-
"""
What the offsets of consumers may be at a master, by what clients have set and were answered.

B19. On a raft log, a master knows the offset of a group that was set last with success, by a commit or by a
reset, whichever master took it; or one that was set at the same time, or later, or without an answer.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.testing.brokers.rig.accounts import require_pair
from dledger.testing.brokers.rig.states import OffsetKey


@attrs.define(eq=False)
class _Setting:
    """A request that sets an offset. @ivar ended: what was set with success since it began, itself too."""

    offset: int
    ended: list[int]


@attrs.define(eq=False)
class _Kept:
    """
    One offset.

    @ivar may_be: its values, if no request is under way; empty until one was set with success: any.
    @ivar open: requests that are under way.
    @ivar doubtful: values of requests without an answer. They may come at any later time.
    """

    may_be: set[int] = attrs.Factory(set)
    open: list[_Setting] = attrs.Factory(list)
    doubtful: set[int] = attrs.Factory(set)

    def allowed(self) -> set[int]:
        return self.may_be | self.doubtful | {one.offset for one in self.open}


class KeptOffsets:
    """Those of all groups."""

    def __init__(self) -> None:
        self._kept: dict[OffsetKey, _Kept] = {}

    def setting(self, key: OffsetKey, offset: int) -> Callable[[bool], None]:
        """
        An offset is about to be set.

        @return: called once with whether a master has said that it is set; False: nobody knows.
        """
        kept = self._kept.setdefault(key, _Kept())
        setting = _Setting(offset, [])
        kept.open.append(setting)

        def ended(is_done: bool) -> None:
            kept.open.remove(setting)
            if not is_done:
                kept.doubtful.add(offset)
                return
            for one in kept.open:
                one.ended.append(offset)
            kept.may_be = {offset, *setting.ended}

        return ended

    def asking(self, key: OffsetKey) -> Callable[[int], None]:
        """A master is asked for an offset. @return: called with its answer. B19."""
        kept = self._kept.setdefault(key, _Kept())
        if not kept.may_be:
            return lambda offset: None
        before = kept.allowed()
        setting = _Setting(-1, [])  # notes what is set meanwhile
        kept.open.append(setting)

        def ended(offset: int) -> None:
            kept.open.remove(setting)
            allowed = before | kept.allowed() | set(setting.ended)
            require_pair(offset in allowed, 19,
                         f"the offset of {key} is {offset}, and may be {sorted(allowed)}")

        return ended
