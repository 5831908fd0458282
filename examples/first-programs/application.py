"""
A server that appends the lines of its clients and answers each with its place, with Twisted.

    twistd --nodaemon --python application.py
    (echo one; echo two; sleep 1) | nc localhost 8007
"""

import os

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Application
from twisted.internet import endpoints, reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.protocols.basic import LineOnlyReceiver

import dledger
from dledger import LogClient


class Lines(LineOnlyReceiver):
    """One client. Its lines are appended in order, each without waiting for the one before it."""

    delimiter = b"\n"

    def __init__(self, log: LogClient) -> None:
        self.log = log

    def lineReceived(self, line: bytes) -> None:
        """Append a line."""
        Deferred.fromCoroutine(self.append(line))

    async def append(self, line: bytes) -> None:
        """Answer with the index of the line, or with what happened to it."""
        try:
            answer = str((await self.log.append(line)).index)
        except dledger.AppendFailed as error:
            answer = f"refused: {error}"
        except dledger.UnknownOutcome as error:
            answer = f"unknown: {error}"
        self.sendLine(answer.encode())


class LinesFactory(Factory):
    """Makes a protocol for each client."""

    def __init__(self, log: LogClient) -> None:
        self.log = log

    def buildProtocol(self, addr: object) -> Protocol:
        """See IProtocolFactory."""
        return Lines(self.log)


application = Application("lines")
log = LogClient(os.environ["DLEDGER_PEERS"], reactor=reactor)
reactor.addSystemEventTrigger("during", "shutdown", log.close)
listen = os.environ.get("LINES_ENDPOINT", "tcp:8007:interface=127.0.0.1")
endpoint = endpoints.serverFromString(reactor, listen)
StreamServerEndpointService(endpoint, LinesFactory(log)).setServiceParent(application)
