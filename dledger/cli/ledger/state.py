# -*- test-case-name: tests.commands.test_state -*-
"""C{dledger state}: what a group knows of its producers and readers, see docs/exactly-once.md."""

from __future__ import annotations

import click

from dledger.cli.console.command import show_result
from dledger.cli.console.target import Target


@click.group("state")
def state() -> None:
    """Begin the state of a group anew: its table of producers and readers."""


@state.command("begin-anew")
@click.option("--lose-state", is_flag=True,
              help="Also if a member has the state: the group forgets all producers and readers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def begin_anew(target: Target, lose_state: bool, as_json: bool) -> None:
    """
    Begin with no producer and no reader, in a group of which no member knows the state any more.

    The order is written into the log, and all members follow it. From then on producers and readers are
    served again. A producer must not begin with sequence 0 under its old id: its earlier entries may be in
    the log. It is refused while the leader, or another member that answers, has the state.
    """
    with target.open() as log:
        index = log.begin_state(insists=lose_state)
    said = f"the state of the group begins anew, by the order at {index}"
    show_result({"order_index": index}, said, as_json=as_json)
