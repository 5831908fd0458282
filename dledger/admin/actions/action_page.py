# -*- test-case-name: tests.admin.test_actions -*-
"""The page of what a person can let a member do, as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from dledger.admin.actions.effects import Effects
from dledger.admin.dashboard.frame import still_page

_LINKS = (".", "browse", "status", "config")
#: By the name of an action: its title, and the values that it needs with their labels.
_FORMS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("transfer", "Hand leadership over", (("to", "To member"),)),
    ("flush", "Put the ledger on stable storage", ()),
    ("skip", "Let the state machine pass over an entry", (("index", "Index"),)),
)


def action_page(group: str, self_id: str, effects: Effects | None, problem: str = "") -> bytes:
    """
    The page.

    @param effects: of the action that was asked for; None: the forms alone.
    @param problem: why there are none.
    """
    said = problem or "Choose an action. What it would do is shown first; doing it needs a token."
    live = [_forms()]
    if effects is not None:
        said = f"{effects.action} would be refused now: {effects.problem}." if effects.problem else (
            f"Nothing has been done yet: {effects.action} needs your word."
        )
        live.insert(0, _effects(effects))
    return still_page(
        title=f"Actions of {self_id}", heading=f"Actions of member {self_id} of group {group}", said=said,
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


def _forms() -> str:
    return "".join(_form(name, title, fields) for name, title, fields in _FORMS)


def _form(name: str, title: str, fields: Iterable[tuple[str, str]]) -> str:
    inputs = "".join(
        f'<span><label for="{name}-{field}">{label}</label> '
        f'<input id="{name}-{field}" name="{field}"></span> '
        for field, label in fields
    )
    return (
        f'<section aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
        f'<form class="search" action="effects" method="get"><input type="hidden" name="do" value="{name}">'
        f"{inputs}<button>Show what it would do</button></form></section>"
    )
