# -*- test-case-name: tests.client.test_streams -*-
"""The bodies of one append_many leave no hole that its program does not know of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.client.client import LogClient
from dledger.client.errors import UnknownOutcome
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendRequest
from tests.client.test_blocking import LiveGroup


class StreamTests(SynchronousTestCase):
    """A live group of one program."""

    def setUp(self) -> None:
        self.group = LiveGroup()
        self.log = self.group.open()
        self.addCleanup(self.log.close)

    def test_nothing_follows_an_unknown_body(self) -> None:
        """After an unknown body nothing follows that was not sent with it, however much was pulled."""
        plain, group = self.group["n0"].append, self.group
        is_sent, all_put = threading.Event(), threading.Event()

        def bodies() -> Iterator[bytes]:
            yield b"first"
            is_sent.wait(10.0)
            yield from (b"%d" % number for number in range(300))
            all_put.set()

        seen: list[AppendRequest] = []

        def append(request: AppendRequest, base: dict[str, Any]) -> Any:
            seen.append(request)
            if len(seen) > 1:
                return plain(request, base)
            is_sent.set()
            all_put.wait(10.0)
            group["n0"].refusals.append(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
            answer = plain(request, base)
            group["n0"].refusals.clear()
            return answer

        self.group["n0"].append = append
        error = self.assertRaises(UnknownOutcome, self.log.append_many, bodies(), window=1000)
        self.assertEqual((error.unknown, error.failed, error.facts["acknowledged"]), (1, 300, 0))
        self.assertEqual(len(seen), 1)

    def test_bodies_of_a_call_are_one_stream(self) -> None:
        """The bodies of a call belong together, those of two calls do not."""
        plain, streams = LogClient.submit, []

        def submit(
            client: LogClient, bodies: Any, done: Any, stream: object = None, headers: Any = None
        ) -> None:
            streams.append(stream)
            plain(client, bodies, done, stream, headers)

        self.patch(LogClient, "submit", submit)
        for _ in range(2):
            self.log.append_many([b"x"] * 20, window=2)
        self.assertNotIn(None, streams)
        self.assertEqual(len(set(map(id, streams))), 2)
