# -*- test-case-name: tests.broker.access.test_address_patterns -*-
"""
Patterns of addresses in RocketMQ's lists of accounts: C{*}, C{10.0.0.1}, C{10.0.0.1,10.0.0.2},
C{10.0.0.{1,2}}, C{10.0.1-9.*}, C{fd00::1}.

Source: RemoteAddressStrategyFactory (4.9.8).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from dledger.values.hosts import host_text

_ALLOWED = ("allowed are *, an address, addresses separated by commas, 10.0.0.{1,2}, and 10.0.1-9.* "
            "(IPv4 only)")

#: Whether an address, in the usual form of its text, belongs to a pattern.
AddressPattern = Callable[[str], bool]


def address_pattern(text: str) -> AddressPattern:
    """
    @param text: blank: no address belongs to it.
    @raise ValueError: it has none of these forms.
    """
    text = text.strip()
    if not text:
        return lambda address: False
    if text in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
        return lambda address: True
    if "{" not in text:
        choices = [_one(part.strip(), text) for part in text.split(",")]
        return lambda address: any(choice(address) for choice in choices)
    head, _, braces = text.partition("{")
    if not braces.endswith("}") or "{" in braces or not head.endswith("."):
        raise ValueError(f"address {text!r}: {_ALLOWED}")
    numbers = [_one(head + part.strip(), text) for part in braces[:-1].split(",")]
    return lambda address: any(number(address) for number in numbers)


def _one(text: str, whole: str) -> AddressPattern:
    if "*" not in text and "-" not in text:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise ValueError(f"address {whole!r}: {_ALLOWED}") from None
        wanted = host_text(text)
        return lambda address: address == wanted
    parts = text.split(".")
    if len(parts) != 4:
        raise ValueError(f"address {whole!r}: {_ALLOWED}")
    ranges = [_range(part, whole) for part in parts]

    def matches(address: str) -> bool:
        numbers = address.split(".")
        return len(numbers) == 4 and all(
            number.isdecimal() and least <= int(number) <= most
            for number, (least, most) in zip(numbers, ranges, strict=True)
        )

    return matches


def _range(part: str, whole: str) -> tuple[int, int]:
    if part == "*":
        return 0, 255
    least, dash, most = part.partition("-")
    try:
        found = int(least), int(most if dash else least)
    except ValueError:
        found = -1, -1
    if not (part.replace("-", "", 1).isascii() and 0 <= found[0] <= found[1] <= 255):
        raise ValueError(f"address {whole!r}: {_ALLOWED}")
    return found
