"""
An HTTP face of the key-value store::

    python web.py "n0-127.0.0.1:20911;n1-127.0.0.1:20912" tcp:8000:interface=127.0.0.1

    GET    /key                    the value; 404 without one
    GET    /key?max_age_s=2          the same, of a state that is at most 2 s old
    PUT    /key                    the body is the value
    PUT    /key?expected=old       if the value is that one; 409 if it is another one
    PUT    /key?expected_none=1    if there is no such key; 409 if there is
    DELETE /key                    404 without one

503: certainly not done, try again. 504: it may be done, now or later. There is no password: listen on the
loopback interface.
"""

from __future__ import annotations

import json
import sys

from store import command
from twisted.internet import endpoints, reactor
from twisted.internet.defer import Deferred
from twisted.web.http import Request
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from dledger import LogClient, UnknownOutcome
from dledger.values.errors import DLedgerError

#: Bytes of a value, at most.
VALUE_BYTES_MAX = 1 << 20


class Pairs(Resource):
    """All keys."""

    isLeaf = True

    def __init__(self, log: LogClient) -> None:
        super().__init__()
        self._log = log

    def render(self, request: Request) -> int:
        """Answer, later."""
        gone = []
        request.notifyFinish().addErrback(gone.append)
        Deferred.fromCoroutine(self._answer(request)).addCallbacks(
            lambda answer: gone or self._send(request, *answer),
            lambda failure: gone or self._send(request, 500, failure.getErrorMessage()),
        )
        return NOT_DONE_YET

    def _send(self, request: Request, code: int, text: str) -> None:
        request.setResponseCode(code)
        request.setHeader(b"content-type", b"text/plain; charset=utf-8")
        request.write(text.encode())
        request.finish()

    async def _answer(self, request: Request) -> tuple[int, str]:
        """The code and the text."""
        key = request.path[1:].decode("utf-8", "replace")
        options = {name.decode(): values[0].decode() for name, values in request.args.items()}
        if not key:
            return 400, "write a key after the slash"
        try:
            if request.method == b"GET":
                age = float(options["max_age"]) if "max_age" in options else None
                found = json.loads(await self._log.query(key.encode(), max_age_s=age))
                return (404, "no such key") if found is None else (200, found["value"])
            if request.method == b"DELETE":
                return self._reported(await self._log.submit_command(command("delete", key)), 404)
            if request.method != b"PUT":
                return 405, "GET, PUT and DELETE are allowed"
            value = request.content.read(VALUE_BYTES_MAX + 1)
            if len(value) > VALUE_BYTES_MAX:
                return 413, f"a value has at most {VALUE_BYTES_MAX} bytes"
            more: dict[str, object] = {"value": value.decode()}
            does = "put"
            if "expected" in options or "expected_none" in options:
                does, more["expected"] = "set_if", options.get("expected")
            return self._reported(await self._log.submit_command(command(does, key, **more)), 409)
        except ValueError as error:
            return 400, str(error)
        except UnknownOutcome as error:
            return 504, str(error)
        except DLedgerError as error:
            return 503, str(error)

    def _reported(self, result: bytes, refused: int) -> tuple[int, str]:
        reported = json.loads(result)
        return (200, str(reported["index"])) if reported["done"] else (refused, reported["reason"])


def main() -> None:
    """Serve until the process ends."""
    log = LogClient(sys.argv[1], reactor=reactor)
    site = Site(Pairs(log))
    listening = endpoints.serverFromString(reactor, sys.argv[2]).listen(site)
    listening.addCallback(lambda port: print(f"listens on {port.getHost().port}", flush=True))
    listening.addErrback(lambda failure: (print(failure.getErrorMessage(), file=sys.stderr), reactor.stop()))
    reactor.run()


if __name__ == "__main__":
    main()
