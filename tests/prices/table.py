# -*- test-case-name: tests.prices.test_prices -*-
"""
The prices of all requests: microseconds of the processor of the smallest, microseconds of the longest turn
that any of them takes, and KiB that one holds beside its own bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import attrs

from tests.prices.meter import Cost, measured
from tests.prices.servers import Server

TABLE = Path(__file__).with_name("prices.txt")

#: What one turn may take for one request, and for those of many connections.
TURN_US, TOGETHER_US = 5000, 50_000

#: Measured costs may exceed their prices by this factor, on a machine with other work; and by this memory.
FACTOR = 4
MORE_KIB = 1024

#: Requests that may take longer in one turn, and why.
BEYOND: Mapping[str, str] = {
    "broker 225": "64 lists of groups end in one save, which encodes all groups in one turn",
    "broker 320": "a batch is one put: up to 4,096 messages",
    "member APPEND in JSON": "5 ms for each MiB of Base64; large bodies belong in native frames",
    "member APPEND_IF in JSON": "as APPEND",
}

_LINE = re.compile(r"(?P<name>.+): (?P<small>\d+) us, (?P<turn>\d+) us, (?P<held>\d+) KiB")


@attrs.frozen
class Price:
    """Of one request. Its text is the end of a line of the table."""

    small_us: int
    turn_us: int
    held_kib: int

    def __str__(self) -> str:
        return f"{self.small_us} us, {self.turn_us} us, {self.held_kib} KiB"

    def complaint(self, name: str, what: str, cost: Cost, size: int, *, is_small: bool) -> str:
        """
        What is wrong with a measured cost; empty: nothing.

        @param what: the case. @param size: bytes of the request.
        """
        most_us = FACTOR * (self.small_us if is_small else self.turn_us)
        held_kib = max(0, cost.peak_bytes - 2 * size) // 1024
        if cost.turn_s * 1e6 > max(most_us, 1000):
            return f"{name}, {what}: a turn takes {cost.turn_s * 1e6:.0f} us; its price is {self}"
        if held_kib > self.held_kib + MORE_KIB:
            return f"{name}, {what}: it holds {held_kib} KiB; its price is {self}"
        return ""


def parsed(text: str) -> dict[str, Price]:
    """Prices by server and request. @raise ValueError: a line is none."""
    found = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"not a price: {line!r}")
        found[match["name"]] = Price(int(match["small"]), int(match["turn"]), int(match["held"]))
    return found


def names_of(server: Server) -> list[str]:
    """What the lines of its requests begin with."""
    return [f"{server.name} {request}" for request in server.requests]


def unpriced(prices: Mapping[str, Price], names: Iterable[str]) -> list[str]:
    """A sentence for each request without a price."""
    return [f"{name} has no price: python -m tests.prices --write" for name in names if name not in prices]


def too_dear(prices: Mapping[str, Price]) -> list[str]:
    """A sentence for each price beyond the bound of a turn."""
    return [
        f"{name}: {price} is more than {TURN_US} us: do it in pieces, or refuse it"
        for name, price in prices.items() if price.turn_us > TURN_US and name not in BEYOND
    ]


def costs_of(server: Server, only: str = "") -> dict[str, list[tuple[str, Cost, int]]]:
    """The costs of all its requests, case by case, with the bytes of each."""
    found: dict[str, list[tuple[str, Cost, int]]] = {}
    for request in server.requests:
        for what, data in server.cases[request]:
            if only and only not in f"{server.name} {request}":
                continue
            cost = measured(partial(server.ask, data, 1))
            found.setdefault(f"{server.name} {request}", []).append((what, cost, len(data)))
    return found


def price_of(costs: list[tuple[str, Cost, int]]) -> Price:
    """What the measured costs are, rounded up."""
    held = max(max(0, cost.peak_bytes - 2 * size) for _, cost, size in costs)
    return Price(
        _rounded(costs[0][1].turn_s * 1e6), _rounded(max(cost.turn_s for _, cost, _ in costs) * 1e6),
        _rounded(held / 1024),
    )


def _rounded(number: float) -> int:
    """The next of 10, 15, 20, 30, 50, 70, 100 and so on: the noise of a machine changes few prices."""
    step = 1
    while True:
        for digits in (10, 15, 20, 30, 50, 70):
            if number <= digits * step:
                return digits * step
        step *= 10
