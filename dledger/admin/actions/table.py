# -*- test-case-name: tests.admin.test_actions -*-
"""
Every action that a person can ask for by the pages, in one table: its form, its description for programs and
the check of its query are made from it.

Rule: a query that has something else than the values of its action is refused: a slip must not do anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
from twisted.web.iweb import IRequest

from dledger.admin.browsing.query import Query, QueryProblem, query_of
from dledger.base.log_lines import LEVELS, ROOM_CHARS_MAX
from protocols.wire.fastjson import JsonObject

#: Longest name of a member that is looked at.
_ID_CHARS_MAX = 255
#: The value of the page C{effects} that names an action.
WHICH = "do"


@attrs.frozen(kw_only=True)
class ActionValue:
    """
    A value of an action's query.

    @ivar label: for the form. @ivar meaning: for programs. @ivar is_place: a whole number from 0 on.
    @ivar choices: its possible values; empty: any text. @ivar is_seen: the form asks for it.
    """

    name: str
    label: str
    meaning: str
    is_needed: bool = True
    is_place: bool = False
    choices: tuple[str, ...] = ()
    chars_max: int = _ID_CHARS_MAX
    is_seen: bool = True

    @property
    def schema(self) -> JsonObject:
        """For OpenAPI."""
        if self.is_place:
            return {"type": "integer", "minimum": 0}
        return {"enum": list(self.choices)} if self.choices else {
            "type": "string", "minLength": 1, "maxLength": self.chars_max,
        }


@attrs.frozen(kw_only=True)
class Action:
    """
    Something that a page does, by POST.

    @ivar name: of the page. @ivar title: of the form; empty: it has none, and its effects are not shown.
    """

    name: str
    title: str = ""
    values: tuple[ActionValue, ...] = ()

    @property
    def usage(self) -> str:
        """The page with its query."""
        said = "&".join(f"{one.name}={one.name.upper()}" for one in self.values)
        return f"/{self.name}{said and '?'}{said}"

    def checked(self, query: Query) -> Query:
        """
        @raise QueryProblem: the action has no such value, one that it needs is missing, or one is wrong.
        """
        known = {one.name: one for one in self.values}
        for name in query.values:
            if name not in known:
                takes = ", ".join(known) or "no values"
                raise QueryProblem(
                    400, f"write {self.usage}: {name[:40]!r} is unknown here; {self.name} takes {takes}"
                )
        for one in self.values:
            text = query.text(one.name)
            if not text and (one.is_needed or one.name in query.values):
                raise QueryProblem(400, f"write {self.usage}: {one.name} is {one.meaning}")
            if text and one.choices and text not in one.choices:
                raise QueryProblem(400, f"write {self.usage}: {one.name} is {', '.join(one.choices)}")
            if len(text) > one.chars_max:
                raise QueryProblem(400, f"write {self.usage}: {one.name} is longer than {one.chars_max}")
            if one.is_place:
                try:
                    query.number(one.name, 0)
                except QueryProblem as problem:
                    raise QueryProblem(400, f"write {self.usage}: {problem}") from None
        return query


TRANSFER = Action(name="transfer", title="Hand leadership over", values=(
    ActionValue(name="to", label="To member", meaning="the id of the member that shall lead"),
))
FLUSH = Action(name="flush", title="Put the log on stable storage")
SKIP = Action(name="skip", title="Let the state machine pass over an entry", values=(
    ActionValue(name="index", label="Index", is_place=True,
                meaning="the index of the entry at which the state machine has failed"),
))
SNAPSHOT = Action(name="snapshot", title="Let the state machine of this member take a snapshot")
LOG_LEVEL = Action(name="log-level", values=(
    ActionValue(name="level", label="Level", meaning="the least that is written", choices=tuple(LEVELS)),
    ActionValue(name="room", label="Room", is_needed=False, chars_max=ROOM_CHARS_MAX, meaning=(
        "a module or the beginning of its name, such as dledger.node; without it: all that have no level of "
        "their own"
    )),
))
RESOLVE = Action(name="resolve", title="Decide how a slave goes on whose replication has stopped", values=(
    ActionValue(name="how", label="How", choices=("try-again", "take-master"),
                meaning="try-again: compare once more; take-master: move its own files away, and follow"),
    ActionValue(name="common_end", label="", is_needed=False, is_place=True, is_seen=False,
                meaning="with take-master: the end of the common part, as the effects show it"),
    ActionValue(name="our_end", label="", is_needed=False, is_place=True, is_seen=False,
                meaning="with take-master: the end of the slave's log, as the effects show it"),
))
#: By the name of the page: what a broker does with its commit log, and one with a raft log.
LOG_ACTIONS: Mapping[str, Action] = {one.name: one for one in (FLUSH, RESOLVE)}
RAFT_ACTIONS: Mapping[str, Action] = {TRANSFER.name: TRANSFER}
#: By the name of the page: what a member does.
MEMBER_ACTIONS: Mapping[str, Action] = {one.name: one for one in (
    TRANSFER, FLUSH, SNAPSHOT, SKIP, LOG_LEVEL,
)}


def asked(request: IRequest, action: Action) -> Query:
    """
    The query of a request for an action.

    @raise QueryProblem: see L{Action.checked}; or a value is given twice, too long, or no UTF-8.
    """
    names = {raw.decode("utf-8", "replace") for raw in request.args or {}}
    try:
        query = query_of(request, names)
    except QueryProblem as problem:
        raise QueryProblem(problem.status, f"write {action.usage}: {problem}") from None
    return action.checked(query)


def asked_effects(request: IRequest, actions: Mapping[str, Action]) -> tuple[Action, Query]:
    """
    Of whose effects the page C{effects} asks.

    @raise QueryProblem: there is no such action, or see L{asked}.
    """
    query = query_of(request, names_of(actions.values()))
    action = actions.get(query.text(WHICH))
    if action is None or not action.title:
        shown = ", ".join(one.name for one in actions.values() if one.title)
        raise QueryProblem(400, f"write ?{WHICH}= with one of {shown}")
    return action, action.checked(Query({
        name: value for name, value in query.values.items() if name != WHICH
    }))


def names_of(actions: Iterable[Action]) -> set[str]:
    """All values that the page C{effects} knows."""
    return {WHICH, *(value.name for one in actions for value in one.values)}
