# -*- test-case-name: tests.commands.test_numbers -*-
"""
Numbers of options and arguments: as click's, and never larger than an index or a span of time can be, so that
a slip is an error of the command line.
"""

from __future__ import annotations

from typing import cast

import click

#: The largest index, size or count: of 64 bits, as on the wire.
WHOLE_MAX = 2**63 - 1
#: The largest number of seconds or days, some 30 years of seconds.
REAL_MAX = 1e9


class WholeRange(click.IntRange):
    """A whole number, at most L{WHOLE_MAX}."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """@raise click.BadParameter: it is no such number."""
        found: int = super().convert(cast("int", value), param, ctx)
        if not -WHOLE_MAX <= found <= WHOLE_MAX:
            self.fail(f"{found} is beyond 64 bits.", param, ctx)
        return found


class RealRange(click.FloatRange):
    """A number, at most L{REAL_MAX}."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """@raise click.BadParameter: it is no such number."""
        found: float = super().convert(cast("float", value), param, ctx)
        if not -REAL_MAX <= found <= REAL_MAX:
            self.fail(f"{found:g} is not a number up to {REAL_MAX:g}.", param, ctx)
        return found
