# -*- test-case-name: tests.wire.test_messages -*-
"""Values of the protocol: their defaults."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import Request, Response


class MessagesTests(SynchronousTestCase):
    """The table of messages and the values in it."""

    def test_every_request_code_has_messages(self) -> None:
        """A request and an answer for each code, and each knows its code."""
        self.assertEqual(set(MESSAGES), set(RequestCode))
        for kind, (request, response) in MESSAGES.items():
            self.assertTrue(issubclass(request, Request) and issubclass(response, Response))
            self.assertIs(request.kind, kind)
            self.assertIs(response.kind, kind)

    def test_defaults_are_java_s(self) -> None:
        """What Java writes when nothing was set: term -1, code 200, no ids."""
        for request, response in MESSAGES.values():
            for message in (request(), response()):
                self.assertEqual((message.group, message.remote_id, message.local_id), (None, None, None))
                self.assertEqual((message.leader_id, message.term, message.wire_version), (None, -1, 0))
            self.assertIs(response().code, ResponseCode.SUCCESS)

    def test_last_index(self) -> None:
        """Indexes are inclusive."""
        self.assertEqual(EntryBatch(first_index=7, count=3, term=1, records=b"").last_index, 9)

    def test_roles(self) -> None:
        """Each request says itself which role a client needs."""
        for request, _response in MESSAGES.values():
            self.assertIn("role", vars(request), request)
