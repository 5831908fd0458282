# -*- test-case-name: tests.protocols -*-
"""The type of a stream transport."""

from __future__ import annotations

from twisted.internet.interfaces import IConsumer, IProtocol, IPushProducer, ISystemHandle, ITCPTransport
from zope.interface import Attribute


class StreamTransport(ITCPTransport, IConsumer, IPushProducer, ISystemHandle):
    """
    A connection by TCP, or by TLS over it, as our protocols use it. For the transport of a protocol Twisted
    declares only C{ITransport}.
    """

    protocol: IProtocol = Attribute("The receiver of what is read.")
    bufferSize: int = Attribute("Bytes that are read at once.")
