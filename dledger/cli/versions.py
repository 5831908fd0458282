# -*- test-case-name: tests.commands.test_main -*-
"""C{dledger version}."""

from __future__ import annotations

import platform

import click
import twisted

import dledger
from dledger.cli.console.command import write_json
from protocols.wire.ledger.codes import WIRE_VERSION


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Show versions."""
    if as_json:
        write_json({
            "dledger": dledger.__version__, "native_wire": WIRE_VERSION, "twisted": twisted.__version__,
            "python": platform.python_version(),
        })
    else:
        click.echo(versions())


def versions() -> str:
    """All of them in one line."""
    return (
        f"dledger {dledger.__version__} (native wire {WIRE_VERSION}), "
        f"Twisted {twisted.__version__}, Python {platform.python_version()}"
    )
