# -*- test-case-name: tests.wire.test_remoting -*-
"""Errors for bytes that do not follow the format."""

from __future__ import annotations


class WireError(Exception):
    """
    The peer broke the format: its connection cannot be trusted any more.

    The message names the field, the value and the allowed values.
    """


class BodyError(WireError):
    """
    The frame is valid but its body is malformed.

    Framing is intact, so the request can be answered (411) and the connection kept.
    """


class LooseError(BodyError):
    """The body is not strict JSON. The tolerant parser may accept it, but it is slow."""


class IncompatibleError(BodyError):
    """
    The body is of another version of the protocol, whose members cannot share a group with ours.

    The message was not damaged: the other end will send the same again.
    """
