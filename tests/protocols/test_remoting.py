# -*- test-case-name: tests.protocols.test_remoting -*-
"""Messages in remoting frames, and the one answer without a body that we ever give."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from protocols.ledger.connection import KNOWN_CODES, RemotingDialect, not_supported
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.java.json_bodies import decode_request, decode_response
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import GetRequest, GetResponse
from protocols.wire.remoting import decode_command


class RemotingDialectTests(SynchronousTestCase):
    """Frames as Java reads them."""

    dialect = RemotingDialect()

    def test_request(self) -> None:
        """The code is that of the request, the opaque ours, no flag is set."""
        request = GetRequest(group="g", remote_id="n0", begin_index=7)
        command = decode_command(b"".join(self.dialect.request_parts(request, 41))[4:])
        self.assertEqual((command.code, command.opaque, command.flag), (50002, 41, 0))
        self.assertEqual(decode_request(RequestCode.GET, command.body), request)

    def test_every_answer_has_a_body_and_code_200(self) -> None:
        """Whatever became of the request, Java must find a body: it waits for ever without one."""
        for kind, (_, response_class) in MESSAGES.items():
            response = response_class(code=ResponseCode.INTERNAL_ERROR, group="g")
            command = decode_command(b"".join(self.dialect.response_parts(response, -3))[4:])
            self.assertEqual((command.code, command.opaque, command.flag), (200, -3, 1))
            self.assertEqual(decode_response(kind, command.body).code, ResponseCode.INTERNAL_ERROR)

    def test_not_native(self) -> None:
        """Nobody takes these for binary frames."""
        self.assertEqual(b"".join(self.dialect.response_parts(GetResponse(), 1))[0], 0)

    def test_not_supported(self) -> None:
        """As Java says it, leading blank included."""
        command = decode_command(not_supported(9, 12345)[4:])
        self.assertEqual((command.code, command.opaque, command.flag), (3, 9, 1))
        self.assertEqual(command.remark, " request type 12345 not supported")
        self.assertEqual(command.body, b"")

    def test_known_codes(self) -> None:
        """Every request code of ours is answered by us."""
        self.assertEqual(KNOWN_CODES, {int(code): code for code in MESSAGES})
