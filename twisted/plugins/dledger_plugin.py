# -*- test-case-name: tests.node.test_tap -*-
"""C{twistd dledger}."""

from twisted.application.service import ServiceMaker

dledger = ServiceMaker("DLedger", "dledger.tap", "A member of a replicated log.", "dledger")
