# -*- test-case-name: tests.admin.test_actions -*-
"""The page of what a person can let a server do, as HTML."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from dledger.admin.actions.effects import Effects
from dledger.admin.actions.table import WHICH, Action, ActionValue
from dledger.admin.dashboard.frame import still_page, together

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
    live = [together(_form(one) for one in actions if one.title)]
    if effects is not None:
        said = f"{effects.action} would be refused now: {effects.problem}." if effects.problem else (
            f"Nothing has been done yet: {effects.action} needs your word."
        )
        live.insert(0, _effects(effects))
    return still_page(
        title=f"Actions of {name}", heading=f"Actions of {whose}", said=said,
        live=live, links=_LINKS, is_problem=bool(problem or (effects is not None and effects.problem)),
    )


def _effects(effects: Effects) -> Markup:
    sentences = together(Markup("<li>{}</li>").format(one) for one in effects.effects)
    button = Markup("" if effects.problem else (
        '<form class="search" id="do" action="{}" method="post"><button>Do it: {}</button></form>'
    )).format(effects.target, effects.action)
    return Markup(
        '<section aria-labelledby="effects-title"><h2 id="effects-title">What it would do</h2>'
        "<ul>{}</ul>{}</section>"
    ).format(sentences, button)


def _form(action: Action) -> Markup:
    inputs = together(
        Markup('<span><label for="{}-{}">{}</label> {}</span> ').format(
            action.name, one.name, one.label, _input(action.name, one)
        )
        for one in action.values if one.is_seen
    )
    return Markup(
        '<section aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
        '<form class="search" action="effects" method="get">'
        '<input type="hidden" name="{which}" value="{name}">'
        "{inputs}<button>Show what it would do</button></form></section>"
    ).format(name=action.name, title=action.title, which=WHICH, inputs=inputs)


def _input(action: str, value: ActionValue) -> Markup:
    named = Markup('id="{}-{}" name="{}"').format(action, value.name, value.name)
    if not value.choices:
        return Markup("<input {}>").format(named)
    options = together(Markup("<option>{}</option>").format(one) for one in value.choices)
    return Markup("<select {}>{}</select>").format(named, options)
