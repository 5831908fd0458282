# -*- test-case-name: tests.sim.test_search -*-
"""
Visits every state of a small group of real cores::

    python -m dledger.testing.search --states 10000000
    python -m dledger.testing.search --sync --crashes 1 --breaks 1

See docs/model.md. The exit status is 1 if an invariant is broken; the way to it is printed.
"""

from __future__ import annotations

import sys
import time

import click

from dledger.testing.search.explore import SearchResult, explore
from dledger.testing.search.group import Bounds


@click.command()
@click.option("--states", default=1_000_000, show_default=True, help="Stop after this number of states.")
@click.option("--terms", default=3, show_default=True, help="Last term that a member stands for.")
@click.option("--entries", default=4, show_default=True, help="Entries of a ledger.")
@click.option("--messages", default=4, show_default=True, help="Messages on the way at a time.")
@click.option("--crashes", default=1, show_default=True, help="Processes that end, and start again.")
@click.option("--breaks", default=0, show_default=True, help="Connections that break.")
@click.option("--late", default=1, show_default=True, help="Answers to pushes that are late.")
@click.option("--twice", default=1, show_default=True, help="Messages that are delivered twice.")
@click.option("--changes", default=0, show_default=True, help="Changes of the members of the group.")
@click.option("--pushes", default=1, show_default=True, help="Unanswered pushes to a follower.")
@click.option("--atomic", is_flag=True, help="An answer comes at once or never: deeper, and less of it.")
@click.option("--sync", is_flag=True, help="Acknowledge after fsync; a crash is a loss of power.")
@click.option("--term-start", is_flag=True, help="A leader begins its term with an empty entry.")
def main(
    states: int, terms: int, entries: int, messages: int, crashes: int, breaks: int, late: int, twice: int,
    changes: int, pushes: int, atomic: bool, sync: bool, term_start: bool,
) -> None:
    """Visit every state of three members within these bounds, and check the invariants in each."""
    bounds = Bounds(
        terms_max=terms, entries_max=entries, messages_max=messages, crashes=crashes, breaks=breaks,
        late=late, twice=twice, changes=changes, pushes=pushes, is_atomic=atomic, is_sync=sync,
        term_start_entry=term_start,
    )
    began = time.process_time()

    def notify(found: SearchResult) -> None:
        click.echo(f"depth {found.depth:3}: {found.states:9} states, {found.moves:10} moves, "
                   f"{found.member_states:6} states of a member, {found.steps:6} steps of a core, "
                   f"{time.process_time() - began:6.0f} s", err=True)

    found = explore(bounds, states_max=states, progress=notify)
    extent = "all within the bounds" if found.is_complete else "not all"
    click.echo(f"{found.states} states ({extent}), {found.moves} moves, depth {found.depth}, "
               f"{found.member_states} states of a member, {found.steps} steps of a core, "
               f"{time.process_time() - began:.0f} CPU seconds")
    if found.broken:
        click.echo(f"BROKEN {found.broken}")
        for number, move in enumerate(found.way, 1):
            click.echo(f"  {number:3} {move}")
    click.echo(f"{found.states - bool(found.broken)} states passed, {int(bool(found.broken))} failed")
    sys.exit(1 if found.broken else 0)


if __name__ == "__main__":
    main(prog_name="python -m dledger.testing.search")
