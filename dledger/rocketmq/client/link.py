# -*- test-case-name: tests.broker.client.test_link -*-
"""
The link to one broker: at most one connection, made on demand, and the broker's wire version.

Rule 1: a connection is handed out only after the broker has said whether it knows our native frames; Java
brokers do not.
Rule 2: a connection attempt has a deadline, and a caller that stops waiting does not disturb the others.
Rule 3: when a connection ends, every request on it has failed before C{lost} is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferTimeoutError
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.keeper import Keeper
from dledger.base.reactor import Reactor
from dledger.base.serving.endpoints import EndpointFor, connect_with, tcp_endpoints
from dledger.base.tls.securing import dialling
from dledger.values.errors import DLedgerError
from dledger.values.tls_files import TlsFiles
from protocols.rocketmq.broker import AnswerLost, BrokerConnection
from protocols.rocketmq.commands import CommandConnection, NotAsked, OnlyAsking
from protocols.rocketmq.signing import Credentials
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.remoting import REQUEST_CODE_NOT_SUPPORTED, RemotingCommand
from protocols.wire.rocketmq.broker_frames import BrokerAnswer, BrokerRequest
from protocols.wire.rocketmq.broker_layout import (
    CHALLENGE_CODE,
    CHALLENGE_FIELD,
    WIRE_VERSION_CODE,
    WIRE_VERSION_FIELD,
)


def broker_endpoints(reactor: Reactor, timeout_s: float, tls: TlsFiles | None) -> EndpointFor:
    """
    From C{host:port} of a broker to its endpoint.

    @param tls: connect by TLS; the broker must show a certificate of the authority, with any name.
    @raise ValueError: a package or a file is missing, or a file is not sound.
    """
    plain, keys = tcp_endpoints(reactor, timeout_s), dialling(tls)
    return plain if keys is None else lambda address: keys.dial(plain(address), None)


class BrokerLink(OnlyAsking):
    """
    The link to one broker.

    @ivar address: C{host:port}, for error messages.
    @ivar wire_version: version of native frames that the broker knows; 0: none (Java); -1: not known.
    @ivar lost: called with the reason when C{connection} has ended.
    """

    log = Logger()

    def __init__(
        self, address: str, endpoint: IStreamClientEndpoint, *, clock: IReactorTime,
        answer_timeout_s: float = 3.0, credentials: Credentials | None = None,
    ) -> None:
        """
        @param credentials: of an account of the broker; None: without one.
        @param answer_timeout_s: seconds for connecting, and again for the first answer.
        """
        self.address = address
        self.wire_version = -1
        self.lost: Callable[[str], None] = lambda _: None
        self.turn = Turn(clock, self._failed)
        self._endpoint = endpoint
        self._clock = clock
        self._answer_timeout_s = answer_timeout_s
        self._credentials = credentials
        self._probed: BrokerConnection | None = None
        self._keeper: Keeper[BrokerConnection] = Keeper(self._attempt)

    @property
    def connection(self) -> BrokerConnection | None:
        """The connection, once the broker has reported its wire version; None without one."""
        return self._keeper.connection

    def ready(self) -> Deferred[BrokerConnection]:
        """
        @return: fires with the connection. Fails with L{DLedgerError} NETWORK_ERROR if none can be made.
            Cancelling stops the wait only.
        """
        return self._keeper.ready()

    def _attempt(self) -> Deferred[BrokerConnection]:
        return Deferred.fromCoroutine(self._connect()).addErrback(self._connect_failed)

    async def _connect(self) -> BrokerConnection:
        connecting: Deferred[BrokerConnection] = connect_with(
            self._endpoint, BrokerConnection(self, self.turn, credentials=self._credentials)
        )
        connection = await connecting.addTimeout(self._answer_timeout_s, self._clock)
        self._probed = connection
        proof: dict[str, str] = {}
        if self._credentials is not None:
            challenge = (await self._probe(connection, CHALLENGE_CODE)).get(CHALLENGE_FIELD)
            proof = {CHALLENGE_FIELD: challenge} if challenge is not None else {}
        said = (await self._probe(connection, WIRE_VERSION_CODE, proof)).get(WIRE_VERSION_FIELD, "")
        self._probed = None
        self.wire_version = int(said) if said.isascii() and said.isdecimal() and len(said) < 9 else 0
        return connection

    async def _probe(
        self, connection: BrokerConnection, code: int, fields: Mapping[str, str] | None = None
    ) -> Mapping[str, str]:
        """The fields of the answer to a request; none if the broker does not know the request."""
        asked = connection.ask(RemotingCommand(code=code, opaque=0, ext_fields=fields or {}))
        answer = await asked.addTimeout(self._answer_timeout_s, self._clock)
        if answer.code == REQUEST_CODE_NOT_SUPPORTED:
            return {}
        if answer.code != 0:
            self._probed = None
            connection.abort("the broker could not be probed")
            raise DLedgerError(ResponseCode.NETWORK_ERROR,
                               reason=f"it answers with {answer.code}: {answer.remark}")
        return answer.ext_fields

    def _connect_failed(self, failure: Failure) -> BrokerConnection:
        probed, self._probed = self._probed, None
        if probed is not None:
            probed.abort("the broker does not answer")
        raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"{self.address}: {self._sentence(failure)}")

    def _sentence(self, failure: Failure) -> str:
        error = failure.value
        if isinstance(error, DLedgerError):
            return str(error.facts.get("reason"))
        if isinstance(error, ConnectError | NotAsked):
            return failure.getErrorMessage() or type(error).__name__
        if isinstance(error, DeferTimeoutError):
            return f"no answer within {self._answer_timeout_s:g} s"
        return f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """End the connection. Requests on it, waiting callers and later calls fail."""
        self._keeper.close(DLedgerError(ResponseCode.NETWORK_ERROR, reason="the client is closed"))
        if self.connection is not None:
            self.connection.abort("closed by us")

    def _failed(self, failure: Failure) -> None:
        self.log.failure("output to {address} failed", failure, address=self.address)

    # -- CommandSink -----------------------------------------------------------------------------

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        """Log the error; the connection ends afterwards."""
        self.log.warn("{address} broke the format: {reason}", address=self.address, reason=str(error))

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        """Forget the connection; the next caller of L{ready} gets a new one."""
        if isinstance(connection, BrokerConnection) and self._keeper.lost(connection):
            self.lost(reason)


def ask_native(
    connection: BrokerConnection, request: BrokerRequest, *, clock: IReactorTime, timeout_s: float,
    address: str,
) -> Deferred[BrokerAnswer]:
    """
    Send one native request.

    @return: fires with the answer. Fails with L{DLedgerError}: NETWORK_ERROR (not sent, or the answer was
        lost), TIMEOUT. Cancelling discards the answer.
    """
    done: Deferred[BrokerAnswer] = Deferred(lambda _: connection.forget_native(number))

    def answered(result: BrokerAnswer | Exception) -> None:
        if done.called:
            return
        if isinstance(result, NotAsked | AnswerLost):
            done.errback(DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"{address}: {result}"))
        elif isinstance(result, Exception):
            done.errback(result)
        else:
            done.callback(result)

    def too_late(_: object, seconds: float) -> BrokerAnswer:
        reason = f"{address} did not answer {request.kind.name} within {seconds:g} s"
        raise DLedgerError(ResponseCode.TIMEOUT, reason=reason)

    number = 0
    number = connection.request(request, answered)
    return done.addTimeout(timeout_s, clock, onTimeoutCancel=too_late)
