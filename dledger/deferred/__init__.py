# -*- test-case-name: tests.client.test_twisted_service -*-
"""
The client for Twisted programs::

    log = dledger.deferred.LogService("n0-host:20911;n1-host:20911;n2-host:20911")
    log.setServiceParent(application)

    index = (yield log.append(b"hello")).index  # or await
    async for entry in log.tail(index):
        ...
"""

from __future__ import annotations

from dledger.deferred.log_service import LogService

__all__ = ("LogService",)
