# -*- test-case-name: tests.commands.test_sequence -*-
"""C{dledger sequence}: the last sequence of a producer, see docs/exactly-once.md."""

from __future__ import annotations

import click

from dledger.cli.console.command import show_result
from dledger.cli.console.target import Target


@click.command("sequence")
@click.argument("producer")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def sequence(target: Target, producer: str, as_json: bool) -> None:
    """
    Show the last sequence that the log has of PRODUCER.

    Fails if the log does not know the producer, and may have forgotten it.
    """
    with target.open() as log:
        last = log.last_sequence(producer)
    number, index = (-1, -1) if last is None else (last.sequence, last.index)
    said = f"{producer} is new: its first sequence is 0"
    if last is not None:
        said = f"the last sequence of {producer} is {number}, the entry {index}"
    show_result({"producer": producer, "last_sequence": number, "index": index}, said, as_json=as_json)
