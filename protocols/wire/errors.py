# -*- test-case-name: tests.wire.test_remoting -*-
"""What is raised when bytes are not what the format says."""

from __future__ import annotations


class WireError(Exception):
    """
    The peer broke the format: the connection it came on cannot be trusted any further.

    The message names the field, the value and what is allowed.
    """


class BodyError(WireError):
    """
    The frame is sound but the body in it is not the message it should be.

    Framing is intact, so the request can be answered (411) and the connection kept.
    """


class IncompatibleError(BodyError):
    """
    The body is one of another version of the protocol, whose members cannot share a group with ours.

    Nothing was damaged on the way: the other end will say the same again.
    """
