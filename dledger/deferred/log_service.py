# -*- test-case-name: tests.client.test_twisted_service -*-
"""
A group's log as a service of a Twisted application.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Unpack

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from dledger.base.sending.bodies import BytesLike
from dledger.base.serving.endpoints import EndpointFor
from dledger.client.answers.values import Appended, Entry, LastSequence, MemberInfo
from dledger.client.calls.enveloping import Headers
from dledger.client.client import LogClient
from dledger.client.links.connect_options import AppendLimits, DoorKeywords, checked_keywords
from dledger.client.reading.places import Place
from dledger.client.reading.readers import NamedReader
from dledger.client.reading.tail import BatchTail, Tail
from dledger.values.addresses import DEFAULT_MEMBERS
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.readers import ReaderInfo


class LogService(Service):
    """
    The log of a group, open while the service runs. It may be stopped and started again.

    Invariant: C{_client} is None unless the service runs.
    """

    def __init__(
        self,
        peers: str | Mapping[str, str] = DEFAULT_MEMBERS,
        group: str = "default",
        timeout: float = 10.0,
        wire: str = "auto",
        limits: AppendLimits | None = None,
        *,
        reactor: IReactorTime | None = None,
        endpoint_for: EndpointFor | None = None,
        **options: Unpack[DoorKeywords],
    ) -> None:
        """
        @param peers: C{n0-host:port;n1-host:port}; some of the members are enough. Default: the group of one
            that C{twistd dledger} starts without options, C{n0-127.0.0.1:20911}.
        @param timeout: seconds in which a call has an outcome, retries included.
        @param limits: bounds of appends; by default, a call beyond them waits.
        @param reactor: by default, the global one.
        @param endpoint_for: see L{LogClient}.
        @param wire, options: C{answer_timeout_s}, C{is_ordered}, C{exactly_once}, C{envelope}, C{tls},
            C{token}: see L{ConnectOptions<dledger.client.links.connect_options.ConnectOptions>}.
        """
        if reactor is None:
            from twisted.internet import reactor as global_reactor

            reactor = global_reactor
        self.group = group
        self._peers = peers
        self._timeout_s = timeout
        self._wire = wire
        self._limits = limits or AppendLimits(when_full="wait")
        self._reactor = reactor
        self._endpoint_for = endpoint_for
        self._options = checked_keywords(options)
        self._client: LogClient | None = None

    def startService(self) -> None:
        """
        See L{IService.startService}. No connection is made before it is needed.

        @raise ValueError: the peers are malformed, or a file of C{tls} is not sound.
        """
        super().startService()
        self._client = LogClient(
            self._peers, reactor=self._reactor, endpoint_for=self._endpoint_for, group=self.group,
            timeout_s=self._timeout_s, wire=self._wire, limits=self._limits, **self._options,
        )

    def stopService(self) -> None:
        """See L{IService.stopService}. Calls that wait fail; appends without an answer are unknown."""
        super().stopService()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @property
    def client(self) -> LogClient:
        """The client that does the work. @raise RuntimeError: the service does not run."""
        if self._client is None:
            raise RuntimeError("the LogService does not run: set its parent, or call startService()")
        return self._client

    def append(
        self, body: BytesLike, *, expected_end: int | None = None, producer: str | None = None,
        sequence: int | None = None, headers: Headers = None, key: BytesLike | None = None,
    ) -> Deferred[Appended]:
        """Append one entry; see L{LogClient.append}."""
        return self.client.append(
            body, expected_end=expected_end, producer=producer, sequence=sequence, headers=headers, key=key
        )

    def append_many(
        self, bodies: Sequence[BytesLike], *, producer: str | None = None, sequence: int | None = None,
        headers: Headers = None, key: BytesLike | None = None,
    ) -> Deferred[tuple[Appended, ...]]:
        """Append bodies in order; see L{LogClient.append_many}."""
        return self.client.append_many(
            bodies, producer=producer, sequence=sequence, headers=headers, key=key
        )

    def submit(
        self, command: BytesLike, *, producer: str | None = None, sequence: int | None = None
    ) -> Deferred[bytes]:
        """Append a command for the state machine of the group; see L{LogClient.submit_command}."""
        return self.client.submit_command(command, producer=producer, sequence=sequence)

    def query(self, query: BytesLike, *, max_age: float | None = None) -> Deferred[bytes]:
        """Ask the state machine of the group; see L{LogClient.query}. C{max_age} is in seconds."""
        return self.client.query(query, max_age_s=max_age)

    def get(
        self, index: int, consistency: Consistency | str = Consistency.LINEARIZABLE
    ) -> Deferred[Entry]:
        """Read one entry; see L{LogClient.get}."""
        return self.client.get(index, consistency)

    def tail(
        self, from_index: int = 0, follow: bool = True, timeout: float | None = None, *,
        control: bool = False,
    ) -> Tail:
        """Committed entries from C{from_index} on, for C{async for}; see L{LogClient.tail}."""
        return self.client.tail(from_index, follow, timeout_s=timeout, control=control)

    def tail_batches(
        self, from_index: int = 0, follow: bool = True, timeout: float | None = None, *,
        control: bool = False,
    ) -> BatchTail:
        """As L{tail}, many entries at a time; see L{LogClient.tail_batches}."""
        return self.client.tail_batches(from_index, follow, timeout_s=timeout, control=control)

    def reader(
        self, name: str, *, begin: Place = 0, share: int = 0, lease_s: float = 10.0, follow: bool = True,
        timeout: float | None = None, holder: str = "",
    ) -> NamedReader:
        """A named reader, for C{async for}; see L{LogClient.reader}. C{timeout} is in seconds."""
        return self.client.reader(
            name, begin=begin, share=share, lease_s=lease_s, follow=follow, timeout_s=timeout, holder=holder
        )

    def readers(self) -> Deferred[tuple[ReaderInfo, ...]]:
        """The named readers of the group and their lag; see L{LogClient.readers}."""
        return self.client.readers()

    def last_sequence(self, producer: str) -> Deferred[LastSequence | None]:
        """The last sequence of a producer; None: it never had one; see L{LogClient.last_sequence}."""
        return self.client.last_sequence(producer)

    def find_time(self, moment: datetime) -> Deferred[int]:
        """Find the entries of a time; see L{LogClient.find_time}."""
        return self.client.find_time(moment)

    def move_reader(self, name: str, index: Place) -> Deferred[int]:
        """Put a named reader to an entry; see L{LogClient.move_reader}."""
        return self.client.move_reader(name, index)

    def forget_reader(self, name: str) -> Deferred[None]:
        """Forget a named reader; see L{LogClient.forget_reader}."""
        return self.client.forget_reader(name)

    def status(self) -> Deferred[tuple[MemberInfo, ...]]:
        """The status of each member; see L{LogClient.status}."""
        return self.client.status()

    def metadata(self) -> Deferred[MemberInfo]:
        """The leader's own status; see L{LogClient.metadata}."""
        return self.client.metadata()

    def transfer(self, to: str, term: int | None = None) -> Deferred[int]:
        """Hand leadership over to member C{to}; see L{LogClient.transfer}."""
        return self.client.transfer(to, term=term)
