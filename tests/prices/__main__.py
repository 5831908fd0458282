# -*- test-case-name: tests.prices.test_prices -*-
"""
Compares the costs of every request with its price, with a state as large as servers have.

    python -m tests.prices                       compare all with tests/prices/prices.txt
    python -m tests.prices --only "broker 34"    some of them; each case is shown
    python -m tests.prices --write               keep what is measured now
"""

from __future__ import annotations

import gc
import sys

import click

from dledger.base.tuning import keep_freed_memory
from tests.prices.servers import SERVERS
from tests.prices.table import TABLE, TOGETHER_US, Price, costs_of, parsed, price_of, too_dear, unpriced

#: Connections that ask at the same time.
TOGETHER = 64


@click.command()
@click.option("--scale", default=1.0, help="size of the state")
@click.option("--only", default="", help="a part of the names")
@click.option("--write", is_flag=True)
def main(scale: float, only: str, write: bool) -> None:
    """Compare costs with prices."""
    keep_freed_memory()
    known = parsed(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    now: dict[str, Price] = {}
    complaints: list[str] = []
    for name, make in SERVERS.items():
        server = make(scale)
        gc.collect()
        gc.freeze()
        for request, costs in costs_of(server, only).items():
            now[request] = price_of(costs)
            price = known.get(request)
            for number, (what, cost, size) in enumerate(costs):
                if only:
                    click.echo(f"{request}, {what}: {cost}")
                if price is not None:
                    complaints.append(price.complaint(request, what, cost, size, is_small=number == 0))
            together = max(costs, key=lambda one: one[1].turn_s)[0]
            data = dict(server.cases[request.removeprefix(f"{name} ")])[together]
            span_us = min(server.ask(data, TOGETHER).turn_s for _ in range(2)) * 1e6
            if span_us > max(TOGETHER_US, 2 * (price or now[request]).turn_us):
                complaints.append(f"{request}, {together}: {TOGETHER} connections take {span_us:.0f} us")
        if not only:
            complaints += unpriced(now if write else known, now)
        gc.unfreeze()
    complaints = [*filter(None, complaints), *too_dear(now if write else known)]
    if write:
        lines = {**known, **now} if only else now
        TABLE.write_text("".join(f"{name}: {price}\n" for name, price in lines.items()), "utf-8")
    for complaint in complaints:
        click.echo(complaint)
    click.echo(f"{len(now)} requests, {len(complaints)} complaints")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
