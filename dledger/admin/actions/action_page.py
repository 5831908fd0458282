# -*- test-case-name: tests.admin.test_actions -*-
"""The page of what a person can let a server do, as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from dledger.admin.actions.effects import Effects
from dledger.admin.actions.table import WHICH, Action, ActionValue
from dledger.admin.dashboard.frame import still_page

_LINKS = (".", "browse", "status", "config")


def action_page(
    name: str, whose: str, actions: Iterable[Action], effects: Effects | None, problem: str = ""
) -> bytes:
    """
    The page with a form for each action, and with the effects of one of them.

    @param name: of the server, for the title.
    @param whose: of the server, for the heading.
    @param actions: those without a title have no form.
    @param effects: of the action that a form asked about; None: the page has the forms alone.
    @param problem: why there are no effects.
    """
    said = problem or "Choose an action. What it would do is shown first; doing it needs a token."
    live = ["".join(_form(one) for one in actions if one.title)]
    if effects is not None:
        said = f"{effects.action} would be refused now: {effects.problem}." if effects.problem else (
            f"Nothing has been done yet: {effects.action} needs your word."
        )
        live.insert(0, _effects(effects))
    return still_page(
        title=f"Actions of {name}", heading=f"Actions of {whose}", said=said,
        live=live, links=_LINKS, is_problem=bool(problem or (effects is not None and effects.problem)),
    )


def _effects(effects: Effects) -> str:
    sentences = "".join(f"<li>{escape(one)}</li>" for one in effects.effects)
    button = "" if effects.problem else (
        f'<form class="search" id="do" action="{escape(effects.target)}" method="post">'
        f"<button>Do it: {escape(effects.action)}</button></form>"
    )
    return (
        '<section aria-labelledby="effects-title"><h2 id="effects-title">What it would do</h2>'
        f"<ul>{sentences}</ul>{button}</section>"
    )


def _form(action: Action) -> str:
    name = action.name
    inputs = "".join(
        f'<span><label for="{name}-{one.name}">{one.label}</label> {_input(name, one)}</span> '
        for one in action.values if one.is_seen
    )
    return (
        f'<section aria-labelledby="{name}-title"><h2 id="{name}-title">{action.title}</h2>'
        '<form class="search" action="effects" method="get">'
        f'<input type="hidden" name="{WHICH}" value="{name}">'
        f"{inputs}<button>Show what it would do</button></form></section>"
    )


def _input(action: str, value: ActionValue) -> str:
    named = f'id="{action}-{value.name}" name="{value.name}"'
    if not value.choices:
        return f"<input {named}>"
    options = "".join(f"<option>{one}</option>" for one in value.choices)
    return f"<select {named}>{options}</select>"
