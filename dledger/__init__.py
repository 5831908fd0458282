"""
dledger: a replicated commit log.

C{connect} opens a log for a client; everything else is imported from its own package.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("dledger")
except PackageNotFoundError:  # the source tree is not installed
    __version__ = "0.0.0+tree"


def connect(
    peers: str | Mapping[str, str], group: str = "default", timeout: float = 10.0, **options: Any
) -> Any:
    """
    Open the log of a group: a L{Log <dledger.client.blocking.Log>}, for programs without a reactor.

    @param peers: C{n0-host:port;n1-host:port}; some of the members are enough.
    @param timeout: seconds in which a call has an outcome, retries included.
    @param options: see L{dledger.client.blocking.connect}.
    """
    # A late import: a program that uses the core alone must not load Twisted.
    from dledger.client.blocking import connect as open_log

    return open_log(peers, group=group, timeout=timeout, **options)
