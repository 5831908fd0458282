# -*- test-case-name: tests.commands.test_times -*-
"""C{dledger times}: the times that leaders give the entries, see docs/times.md."""

from __future__ import annotations

import click

from dledger.cli.console.command import show_result
from dledger.cli.console.target import Target


@click.command("times")
@click.option("--reset", is_flag=True, required=True,
              help="Let times go on from what the clocks of a majority show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def times(target: Target, reset: bool, as_json: bool) -> None:
    """
    Bring back true times to a log whose times are ahead.

    The order is written into the log. From then on entries before it are shown with its time if theirs is
    later, and entries after it have true times. Start programs again that have read later times. The order is
    refused unless the last time is further ahead of the clocks of a majority than entry_times_ahead_ms.
    """
    with target.open() as log:
        index = log.reset_times()
    show_result({"order_index": index}, f"times go on from the clocks of a majority, by the order at {index}",
                as_json=as_json)
