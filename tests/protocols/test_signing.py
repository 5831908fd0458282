# -*- test-case-name: tests.protocols.test_signing -*-
"""Signatures of requests, as RocketMQ's clients make them."""

from __future__ import annotations

import base64
import hashlib
import hmac

import attrs
from twisted.trial.unittest import SynchronousTestCase

from protocols.rocketmq.signing import Credentials, is_signed, signed
from protocols.wire.remoting import RemotingCommand

KEYS = Credentials("rocketmq", "12345678")


class SigningTests(SynchronousTestCase):
    """One request."""

    def setUp(self) -> None:
        self.request = RemotingCommand(
            code=10, opaque=1, ext_fields={"topic": "hello", "z": "b1"}, body=b"body"
        )

    def test_content(self) -> None:
        """The values of the fields, in the order of their names, then the body."""
        found = signed(self.request, KEYS)
        self.assertEqual(dict(found.ext_fields), {
            "topic": "hello", "z": "b1", "AccessKey": "rocketmq", "Signature": "oncj9tStJOXR4vjhpq7uCTViuO0=",
        })
        self.assertTrue(is_signed(found, "12345678"))

    def test_any_change(self) -> None:
        """Each field, the body, the secret."""
        found = signed(self.request, KEYS)
        fields = dict(found.ext_fields)
        for name in fields:
            other = attrs.evolve(found, ext_fields={**fields, name: fields[name] + "x"})
            self.assertFalse(is_signed(other, "12345678"), name)
        for less in ("Signature", "topic"):
            other = attrs.evolve(found, ext_fields={name: fields[name] for name in fields if name != less})
            self.assertFalse(is_signed(other, "12345678"), less)
        self.assertFalse(is_signed(attrs.evolve(found, body=b"bodz"), "12345678"))
        self.assertFalse(is_signed(attrs.evolve(found, ext_fields={**fields, "more": "1"}), "12345678"))
        self.assertFalse(is_signed(found, "12345679"))

    def test_signed_again(self) -> None:
        """A request that is sent a second time has one signature."""
        once = signed(self.request, KEYS)
        self.assertEqual(signed(once, KEYS), once)
        other = signed(once, Credentials("another", "87654321"))
        self.assertTrue(is_signed(other, "87654321"))

    def test_unique_key_query(self) -> None:
        """4.9.8's client signs this field, its broker does not: both count."""
        fields = {"topic": "t", "_UNIQUE_KEY_QUERY": "true", "AccessKey": "rocketmq"}
        for content in (b"rocketmqtruet", b"rocketmqt"):
            made = base64.b64encode(hmac.new(b"12345678", content, hashlib.sha1).digest()).decode()
            request = RemotingCommand(code=12, opaque=1, ext_fields={**fields, "Signature": made})
            self.assertTrue(is_signed(request, "12345678"), content)
        request = RemotingCommand(code=12, opaque=1, ext_fields={**fields, "Signature": "no"})
        self.assertFalse(is_signed(request, "12345678"))

    def test_strange_text(self) -> None:
        """Text outside ASCII, and half of a pair, end nothing."""
        for text in ("käse", "\ud800", "\U0001f600"):
            request = attrs.evolve(self.request, ext_fields={"topic": text, text: "1", "Signature": text})
            self.assertFalse(is_signed(request, "12345678"))
            self.assertTrue(is_signed(signed(request, KEYS), "12345678"))

    def test_short_keys(self) -> None:
        """As in Java, more than six characters."""
        self.assertRaises(ValueError, Credentials, "rocket", "12345678")
        error = self.assertRaises(ValueError, Credentials, "rocketmq", "123456")
        self.assertEqual(str(error), "secret_key has 6 characters: at least 7 are needed")
        self.assertNotIn("12345678", repr(KEYS))
