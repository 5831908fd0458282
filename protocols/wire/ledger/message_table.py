# -*- test-case-name: tests.wire.test_messages -*-
"""All messages by their codes: the classes of the messages are the only list of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from protocols.wire.ledger import machines, messages
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import Request, Response

_Message = TypeVar("_Message", Request, Response)


def _declared(base: type[_Message]) -> Iterator[type[_Message]]:
    for module in (messages, machines):
        for found in vars(module).values():
            is_message = isinstance(found, type) and issubclass(found, base) and found is not base
            if is_message and found.__module__ == module.__name__:
                yield found


_ANSWERS = {answer.kind: answer for answer in _declared(Response)}
#: Request code to the classes of the request and of its answer.
MESSAGES: Mapping[RequestCode, tuple[type[Request], type[Response]]] = {
    request.kind: (request, _ANSWERS[request.kind]) for request in _declared(Request)
}
