# -*- test-case-name: tests.base.test_key_watch -*-
"""New keys are taken, an end that comes near is said."""

from __future__ import annotations

from typing import Any

from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.tls.key_watch import SAY_AGAIN_S, SOON_S, KeyWatch
from dledger.values.tls_files import TlsFiles
from tests.node.rig import Rig


class FakeKeys:
    """Keys that do as they are asked."""

    files = TlsFiles(certificate="n0.pem", key="n0.key", authority="authority.pem")

    def __init__(self) -> None:
        self.expires_s = 1e9
        self.names = {"n0"}
        self.outcomes: list[Any] = []

    def refresh(self) -> bool:
        """The next of C{outcomes}."""
        outcome = self.outcomes.pop(0) if self.outcomes else False
        if isinstance(outcome, Exception):
            raise outcome
        return bool(outcome)


class KeyWatchTests(SynchronousTestCase):
    """What an operator reads."""

    def setUp(self) -> None:
        self.keys = FakeKeys()
        self.said: list[str] = []

        def observe(event: Any) -> None:
            self.said.append(event["log_format"].format(**event))

        globalLogPublisher.addObserver(observe)
        self.addCleanup(globalLogPublisher.removeObserver, observe)
        self.watch = KeyWatch(self.keys, "member n0", member_id="n0")  # type: ignore[arg-type]

    def said_at(self, now_s: float) -> list[str]:
        """What is said then."""
        self.said.clear()
        self.watch.check(now_s)
        return list(self.said)

    def test_ends(self) -> None:
        """From 30 days before the end, once a day; also when it is over."""
        self.assertEqual(self.said_at(1e9 - SOON_S), [])
        (sentence,) = self.said_at(1e9 - SOON_S + 1)
        self.assertIn("its TLS certificate ends in 30 days (n0.pem)", sentence)
        self.assertEqual(self.said_at(1e9 - SOON_S + SAY_AGAIN_S), [])
        self.assertEqual(len(self.said_at(1e9 - SOON_S + 1 + SAY_AGAIN_S)), 1)
        (sentence,) = self.said_at(1e9 + 1)
        self.assertIn("has ended, peers refuse it", sentence)

    def test_new_keys(self) -> None:
        """Are in use; those that are not sound are not, and the reason is said."""
        self.keys.outcomes = [True, ValueError("tls_key=n0.key: half"), False]
        self.assertIn("new TLS keys are in use", self.said_at(0)[0])
        (sentence,) = self.said_at(10)
        self.assertIn("goes on with its old TLS keys", sentence)
        self.assertIn("the new ones are not sound: tls_key=n0.key: half", sentence)
        self.assertEqual(self.said_at(20), [])

    def test_of_another_member(self) -> None:
        """Is said at the start, and when such a certificate takes the place of a right one."""
        self.assertEqual(self.said, [])
        for names, reported in (({"n1", "x.org"}, "n1, x.org"), (set[str](), "none")):
            self.keys.names, self.keys.outcomes = names, [True]
            _, sentence = self.said_at(0)
            self.assertIn(f"(n0.pem) has no DNS name n0, only {reported}: members and clients refuse",
                          sentence)
        self.assertEqual(self.said_at(10), [])
        KeyWatch(self.keys, "broker b")  # type: ignore[arg-type]
        self.assertEqual(self.said, [])
        KeyWatch(self.keys, "member n0", member_id="n0")  # type: ignore[arg-type]
        self.assertEqual(len(self.said), 1)

    def test_without(self) -> None:
        """A member without TLS has no end."""
        watch = KeyWatch(None, "member n0", member_id="n0")
        watch.check(1e12)
        self.assertEqual(watch.expires_s, -1.0)

    def test_status(self) -> None:
        """The end is in the status."""
        self.assertEqual(Rig().node.status().tls_expires_s, -1.0)
