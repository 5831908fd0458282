# -*- test-case-name: tests.base.test_spans -*-
"""Spans that are remembered, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import attrs

from dledger.base.tracing.spans import SpanContext


@attrs.define(eq=False)
class Reported:
    """A span. @ivar number: the how-manieth it is, from 1 on."""

    name: str
    parent: object | None
    facts: dict[str, int | str]
    links: tuple[SpanContext, ...]
    number: int
    ends: int = 0

    @property
    def context(self) -> SpanContext:
        """Where it is."""
        return SpanContext(7, self.number, 1)


class ReportedSpans:
    """
    Remembers spans, in the order in which they began. @ivar records: whether they have contexts.

    Implements L{dledger.base.tracing.spans.Spans}.
    """

    def __init__(self) -> None:
        self.all: list[Reported] = []
        self.records = True

    def begin(
        self, name: str, facts: Mapping[str, int | str], parent: object | None,
        links: Sequence[SpanContext] = (),
    ) -> object:
        self.all.append(Reported(name, parent, dict(facts), tuple(links), len(self.all) + 1))
        return self.all[-1]

    def end(self, span: object, facts: Mapping[str, int | str]) -> None:
        reported = cast(Reported, span)
        reported.facts |= facts
        reported.ends += 1

    def context_of(self, span: object) -> SpanContext | None:
        return cast(Reported, span).context if self.records else None

    def named(self, *names: str) -> list[Reported]:
        """Those of these names."""
        return [one for one in self.all if one.name in names]

    def shown(self) -> list[str]:
        """Name, parent and result."""
        return [f"{one.name} {_name(one.parent)} {one.facts.get('result', 'open')}" for one in self.all]


def _name(parent: object | None) -> str:
    if isinstance(parent, Reported):
        return parent.name
    return "-" if parent is None else "remote"
