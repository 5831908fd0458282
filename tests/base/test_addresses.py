# -*- test-case-name: tests.base.test_addresses -*-
"""Addresses: the parser, and every option, argument and answer that goes through it."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib.util import find_spec

import click
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.endpoints import tcp_endpoints
from dledger.cli.rocketmq.ha import broker_address as broker_option
from dledger.client.client import LogClient
from dledger.client.members import Members
from dledger.rocketmq.broker.options.config import broker_from_mapping as broker_config
from dledger.rocketmq.client.blocking import Broker
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.ledger.members import MemberConnection, Trouble, parse_bootstrap
from dledger.values.addresses import Address, checked_members, parse_address, parse_members
from dledger.values.ledger.config import DLedgerConfig, from_mapping


def _export_source(text: str) -> object:
    from dledger.spark.export.engine import source_options  # needs Arrow

    return source_options(f"n0-{text}", "g")


#: Text, host, port.
GOOD = (
    ("h:1", "h", 1),
    ("127.0.0.1:10911", "127.0.0.1", 10911),
    ("broker-a-0.local:20911", "broker-a-0.local", 20911),
    ("under_score:00080", "under_score", 80),
    ("h:65535", "h", 65535),
    ("[::1]:65535", "::1", 65535),
    ("[fe80::1%eth0]:9", "fe80::1%eth0", 9),
    ("fe80::1:9", "fe80::1", 9),
)
BAD = (
    "", "h", "h:", ":", ":1", "[]:1", "h:0", "h:00000", "h:65536", "h:000080", "h:x", "h:-1", "h:+1", "h:1_0",
    "h: 1", "h:1.0", "h:\u0661\u0662", "h:\uff11", "h:\u00b9", "h:" + "1" * 5000, "a b:1",
    "a/b:1", "a:b:1", "[h]:1", "[::1:9", "::1]:9", "[::1]]:9", "[[::1]]:9", "[::1]x:9", "[::g]:9",
    "http://h:1", "[::1]",
)

_REFUSALS = (ValueError, OptionError, click.UsageError)


def _to_members(text: str) -> None:
    Members({"n0": text}, group="g", clock=Clock(), endpoint_for=tcp_endpoints(Clock(), 1.0),
            rng=random.Random(1))


def _to_broker(text: str) -> None:
    Broker(text).close()


def _to_config(option: str, text: str) -> None:
    # An empty option is allowed: it names no address.
    broker_config({"store": "s", "role": "slave", "brokerId": "1", option: text or ":"})


#: Every way in, as a call with one C{host:port}.
ENTRIES: dict[str, Callable[[str], object]] = {
    "parse_address": parse_address,
    "parse_members": lambda text: parse_members(f"n0-{text}"),
    "checked_members": lambda text: checked_members({"n0": text}),
    "endpoints": lambda text: tcp_endpoints(Clock(), 1.0)(text),
    "peers of a member": lambda text: from_mapping({"peers": f"n0-{text}"}),
    "peers as a mapping": lambda text: DLedgerConfig(peers={"n0": text}),  # type: ignore[arg-type]
    "peers of a client": lambda text: LogClient(f"n0-{text}", reactor=Clock()),
    "members of a client": _to_members,
    "bootstrap": lambda text: parse_bootstrap(f"n0-{text}"),
    **({"export SOURCE": _export_source} if find_spec("pyarrow") else {}),
    "--broker, --namesrv": lambda text: broker_option(None, None, text),  # type: ignore[arg-type]
    "namesrv_addr": lambda text: _to_config("namesrv_addr", text),
    "master_address": lambda text: _to_config("master_address", text),
    "ha_master_address": lambda text: _to_config("ha_master_address", text),
    "client of a broker": _to_broker,
}


class EntryTests(SynchronousTestCase):
    """All ways in agree."""

    def test_good(self) -> None:
        """Every entry takes every good address."""
        for name, entry in ENTRIES.items():
            for text, _, _ in GOOD:
                with self.subTest(entry=name, text=text):
                    entry(text)

    def test_bad(self) -> None:
        """Every entry refuses every bad address, shows it, and says what is allowed."""
        for name, entry in ENTRIES.items():
            for text in BAD:
                with self.subTest(entry=name, text=text[:20]):
                    error = self.assertRaises(_REFUSALS, entry, text)
                    self.assertIn("host:port", str(error))
                    self.assertIn("1 to 65535", str(error))
                    self.assertIn(repr(text)[1:-1], str(error))

    def test_learnt(self) -> None:
        """
        A malformed address that another member reported is trouble with one member, not the end of a scan.
        """
        for text in BAD:
            error = self.assertRaises(Trouble, MemberConnection, "n0", text, "g", 1.0)
            self.assertIn(repr(text), str(error))


class AddressTests(SynchronousTestCase):
    """C{host:port}."""

    def test_parts(self) -> None:
        """The host has no brackets, the port is a number."""
        for text, host, port in GOOD:
            self.assertEqual(parse_address(text), (host, port))

    def test_written(self) -> None:
        """An address as text: an IPv6 host has brackets."""
        self.assertEqual(str(Address("h", 1)), "h:1")
        self.assertEqual(str(Address("::1", 1)), "[::1]:1")
        for text, host, port in GOOD:
            self.assertEqual(parse_address(str(parse_address(text))), (host, port), text)


class MembersTests(SynchronousTestCase):
    """The peers in Java's spelling."""

    def test_three(self) -> None:
        """Id, dash, host, colon, port."""
        self.assertEqual(
            parse_members("n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"),
            {"n0": "127.0.0.1:20911", "n1": "127.0.0.1:20912", "n2": "127.0.0.1:20913"},
        )

    def test_dash_in_the_host(self) -> None:
        """The id ends at the first dash."""
        self.assertEqual(parse_members("n0-broker-a-0.local:20911"), {"n0": "broker-a-0.local:20911"})

    def test_blanks_and_empty_parts(self) -> None:
        """A final separator and blanks around it do no harm; commas separate like semicolons."""
        for text in (" n0-a:1 ; n1-b:2 ;", "n0-a:1,n1-b:2", "n0-a:1, n1-b:2;"):
            self.assertEqual(parse_members(text), {"n0": "a:1", "n1": "b:2"})

    def test_address_of_version_six(self) -> None:
        """The port is what follows the last colon."""
        self.assertEqual(parse_members("n0-[::1]:20911"), {"n0": "[::1]:20911"})

    def test_not_a_member(self) -> None:
        """The part that is wrong is shown, and how it should look."""
        for text in ("n0", "n0-h", "n0-h:", "n0-:1", "-h:1", "n0-h:x", "n0-h:65536", "n0-h:-1",
                     "n 0-h:1", "./n0-h:1"):
            error = self.assertRaises(ValueError, parse_members, text)
            self.assertIn(repr(text), str(error))
            self.assertIn("n0-127.0.0.1:20911", str(error))

    def test_twice(self) -> None:
        """One id, one address."""
        self.assertIn("'n0'", str(self.assertRaises(ValueError, parse_members, "n0-a:1;n0-b:1")))
        for text in ("n0-a:1;n1-a:1", "n0-127.0.0.1:1;n1-localhost:1", "n0-Localhost:1;n1-localhost:1"):
            self.assertIn("one address", str(self.assertRaises(ValueError, parse_members, text)))
        self.assertEqual(len(parse_members("n0-127.0.0.1:1;n1-127.0.0.2:1;n2-localhost:2")), 3)

    def test_nobody(self) -> None:
        """A group has a member."""
        for text in ("", " ; "):
            self.assertIn("no member", str(self.assertRaises(ValueError, parse_members, text)))
