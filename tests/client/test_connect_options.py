# -*- test-case-name: tests.client.test_connect_options -*-
"""One table of options for all clients of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.client.aio import AsyncLog
from dledger.client.client import LogClient
from dledger.client.connect_options import ConnectKeywords, ConnectOptions, LogKeywords
from dledger.values.client_token import ClientToken

PEERS = "n0-127.0.0.1:1"
#: Another value than the default for each keyword; without files there is no TLS.
OTHERS: dict[str, Any] = {
    "answer_timeout_s": 3.0, "is_ordered": False, "exactly_once": True, "envelope": True, "token": "word",
}
FIRST: dict[str, Any] = {"group": "g", "timeout": 7.0, "wire": "remoting"}


def _blocking(**options: Any) -> LogClient:
    with dledger.connect(PEERS, **options) as log:
        return log._client


def _asyncio(**options: Any) -> LogClient:
    async def opened() -> LogClient:
        async with AsyncLog(PEERS, **options) as log:
            return log._client

    return asyncio.run(opened())


CLIENTS: tuple[Callable[..., LogClient], ...] = (_blocking, _asyncio)


class DoorOptionsTests(SynchronousTestCase):
    """The blocking client, and that of asyncio."""

    def test_all_pass_on(self) -> None:
        """Every client takes every option, and converts a token."""
        self.assertEqual({*OTHERS, "tls"}, LogKeywords.__annotations__.keys())
        for one in CLIENTS:
            chosen = one(**FIRST, **OTHERS).options
            self.assertEqual((chosen.group, chosen.timeout_s, chosen.wire), tuple(FIRST.values()))
            found = {name: getattr(chosen, name) for name in OTHERS}
            self.assertEqual(found, {**OTHERS, "token": ClientToken("word")}, one.__name__)
            self.assertEqual(chosen.limits.when_full, "wait")

    def test_all_doors_have_the_same_defaults(self) -> None:
        """Without options, all clients connect alike; only L{LogClient} refuses beyond the limits."""
        first, *others = [one().options for one in CLIENTS]
        self.assertEqual(others, [first])
        bare = LogClient(PEERS, reactor=Clock()).options
        self.assertEqual(attrs.evolve(bare, limits=first.limits), first)
        self.assertEqual(bare.limits.when_full, "fail")

    def test_an_unknown_option_is_refused(self) -> None:
        """A keyword that no client has is refused at once, with those that there are."""
        for open_access in (dledger.connect, AsyncLog):
            error = self.assertRaises(TypeError, open_access, PEERS, time_out=3)
            self.assertIn("unexpected keyword argument 'time_out': write one of answer_timeout_s", str(error))
        self.assertRaises(TypeError, LogClient, PEERS, reactor=Clock(), time_out=3)

    def test_keywords_are_fields(self) -> None:
        """The table for type checkers is that of the class."""
        fields = [one.name for one in attrs.fields(ConnectOptions)]
        self.assertEqual(sorted(ConnectKeywords.__annotations__), sorted(fields))

    def test_a_bad_value_is_refused(self) -> None:
        """A value is refused where it is given, with its name."""
        for name, value, kind in (
            ("timeout_s", 0, ValueError), ("answer_timeout_s", "4", TypeError),
            ("token", "two words", ValueError),
        ):
            error = self.assertRaises(kind, ConnectOptions, **{name: value})
            self.assertIn(name, str(error))
