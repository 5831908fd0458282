# -*- test-case-name: tests.base.test_descriptors -*-
"""
The file descriptors of a server's process: the limit, and the number of connections that it allows.

A process that cannot open a file cannot write its log. So connections get only the descriptors that the
store, the connections to peers, the administration pages and the process itself do not need.
"""

from __future__ import annotations

import resource

#: The limit is raised to this number, if the system allows it.
WANTED = 65536

#: Descriptors for the files of a store, its connections to peers, the log, and the process itself.
RESERVED = 256

#: A server with fewer cannot even open its store, listen, and hear its peers.
LEAST = 64

#: A server takes at least this many connections.
LEAST_CONNECTIONS = 16

#: Connections to the pages: a part of L{RESERVED}, and at most this fraction of a low limit.
PAGES_MAX = 64
_PAGES_SHARE = 16


def raise_limit() -> int:
    """
    Raise the soft limit of open descriptors to the hard one, at most to L{WANTED}.

    @return: the soft limit that holds now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limit()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        pass  # the system allows less than it says: the old limit holds
    return limit()


def limit() -> int:
    """The soft limit of open descriptors; L{WANTED} if there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def connections_allowed(most: int, *, reserved: int = RESERVED, files: int = 0) -> int:
    """
    Number of connections that a server may take under the present limit.

    @param most: never more than this.
    @param reserved: descriptors for other uses; of a low limit, at most half.
    @param files: descriptors for files whose number already follows from the limit.
    """
    allowed = limit() - files
    return max(LEAST_CONNECTIONS, min(most, allowed - min(reserved, allowed // 2)))


def pages_allowed() -> int:
    """Number of connections that the pages of a server may take under the present limit."""
    return max(1, min(PAGES_MAX, limit() // _PAGES_SHARE))
