# -*- test-case-name: tests.commands.test_numbers -*-
"""Options with numbers that nothing can take."""

from __future__ import annotations

from collections.abc import Iterator

import click
from twisted.trial.unittest import SynchronousTestCase

from dledger.cli.console.command import loaded
from dledger.cli.console.numbers import RealRange, WholeRange
from dledger.cli.main import cli

_NUMBERS = (click.types.IntParamType, click.types.FloatParamType)


def parameters(command: click.Command) -> Iterator[click.Parameter]:
    """The options and arguments of a command and of all below it."""
    command = loaded(command)
    yield from command.params
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from parameters(below)


class NumberTests(SynchronousTestCase):
    """All commands."""

    def test_no_number_is_without_a_bound(self) -> None:
        """A number that no index, size or time can have is refused as an error of the command line."""
        found = 0
        for one in parameters(cli):
            if not isinstance(one.type, _NUMBERS):
                continue
            found += 1
            is_whole = isinstance(one.type, click.types.IntParamType)
            for value in (str(2**63), "-" + str(2**63)) if is_whole else ("1e300", "inf", "-inf", "nan"):
                with self.assertRaises(click.BadParameter):
                    one.type.convert(value, one, None)
        self.assertGreater(found, 20)

    def test_bounds_are_said_in_words(self) -> None:
        """What is within the bounds is taken as it is."""
        self.assertEqual((WholeRange(min=0).convert("7", None, None), RealRange().convert("0.5", None, None)),
                         (7, 0.5))
        with self.assertRaisesRegex(click.BadParameter, "9223372036854775808 is beyond 64 bits"):
            WholeRange(min=0).convert(str(2**63), None, None)
        with self.assertRaisesRegex(click.BadParameter, "nan is not a number up to 1e"):
            RealRange(min=0).convert("nan", None, None)
