# -*- test-case-name: tests.sim.test_search -*-
"""
Visits every state of a group within some bounds, breadth first, so that a broken invariant comes with one of
the shortest ways to it.

States that differ only in the names of the members count as one. A visited state is remembered by 64 bits of
it: among ten million states the chance that one is taken for another is below one in 300,000.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import intern

import attrs

from dledger.testing.search.group import Bounds, Broken, SearchedGroup, SearchedState
from dledger.testing.search.local import MEMBER_IDS

#: A way: the way before the last move, and that move in words; None at the beginning.
Way = tuple["Way", str] | None


@attrs.define
class SearchResult:
    """
    Result of a search.

    @ivar states: different states; C{moves}: moves that were tried from them.
    @ivar depth: moves from the beginning to the last state.
    @ivar member_states, steps: different states of a member, and steps of the real core.
    @ivar is_complete: every state within the bounds was visited.
    @ivar broken: the invariant that does not hold; empty if all do.
    @ivar way: the moves to the broken one.
    """

    states: int = 0
    moves: int = 0
    depth: int = 0
    member_states: int = 0
    steps: int = 0
    is_complete: bool = False
    broken: str = ""
    way: list[str] = attrs.Factory(list)


def _in_words(way: Way) -> list[str]:
    words: list[str] = []
    while way is not None:
        way, last = way
        words.append(last)
    return words[::-1]


def explore(
    bounds: Bounds, *, states_max: int, progress: Callable[[SearchResult], None] | None = None
) -> SearchResult:
    """
    Search.

    @param states_max: stop after this number of states.
    @param progress: called after each depth.
    """
    group, found = SearchedGroup(bounds), SearchResult(states=1)
    first = group.first()
    seen = {group.key(first)}
    level: list[tuple[SearchedState, Way]] = [(first, None)]
    while level and not found.broken and len(seen) < states_max:
        level = _next_level(group, level, seen, found, states_max)
        found.states = len(seen)
        found.depth += 1
        found.member_states = len(group.table.states)
        found.steps = group.table.steps_made
        if progress is not None:
            progress(found)
    found.is_complete = not level and not found.broken
    return found


def _next_level(
    group: SearchedGroup, level: list[tuple[SearchedState, Way]], seen: set[int], found: SearchResult,
    states_max: int,
) -> list[tuple[SearchedState, Way]]:
    """The new states one move after those of C{level}."""
    following: list[tuple[SearchedState, Way]] = []
    level.reverse()
    while level:
        state, way = level.pop()  # its memory is free then
        for move in group.moves(state):
            found.moves += 1
            words = intern(move.what if move.event is None else f"{MEMBER_IDS[move.member]}: {move.what}")
            try:
                after = group.after(state, move)
            except Broken as broken:
                found.broken = str(broken)
                found.way = [*_in_words(way), words]
                return []
            key = group.key(after)
            if key not in seen:
                seen.add(key)
                following.append((after, (way, words)))
        if len(seen) >= states_max:
            return following
    return following
