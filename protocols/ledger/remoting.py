# -*- test-case-name: tests.protocols.test_remoting -*-
"""
RocketMQ remoting, one of the two dialects of a connection.

Rule: a request with a DLedger code is answered with header code 200 and a body, even if it failed.
Java ignores the header code, and waits for ever for a missing body.

Encodes messages; L{protocols.ledger.connection} decodes them and pairs answers with requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.java.json_bodies import encode_request, encode_response
from protocols.wire.ledger.messages import Request, Response
from protocols.wire.remoting import (
    FLAG_RESPONSE,
    NOT_SUPPORTED_REMARK,
    REQUEST_CODE_NOT_SUPPORTED,
    RemotingCommand,
    encode_answer,
    encode_command,
)

#: The request codes of DLedger, by number.
KNOWN_CODES = {int(code): code for code in RequestCode}


class RemotingDialect:
    """JSON bodies in remoting frames, as in Java. Implements L{protocols.ledger.interfaces.Dialect}."""

    def request_parts(self, request: Request, opaque: int) -> Sequence[bytes]:
        return (
            encode_command(
                RemotingCommand(
                    code=int(request.kind), opaque=opaque, ext_fields={}, body=encode_request(request)
                )
            ),
        )

    def response_parts(self, response: Response, opaque: int) -> Sequence[bytes]:
        return (encode_answer(opaque, encode_response(response)),)


def not_supported(opaque: int, code: int) -> bytes:
    """
    Java's answer to an unknown request code.

    Source: NettyRemotingAbstract.processRequestCommand.
    """
    return encode_command(
        RemotingCommand(
            code=REQUEST_CODE_NOT_SUPPORTED,
            opaque=opaque,
            flag=FLAG_RESPONSE,
            remark=NOT_SUPPORTED_REMARK.format(code),
            ext_fields={},
        )
    )
