# -*- test-case-name: tests.broker.admin.test_damaged_records -*-
"""
A master's damaged records, and the sound copies that slaves offer: requests of our own::

    90908   reports the offsets of the damaged records: {"offsets": [...]}, at most L{REPORTED_MAX}
    90909   offers a copy: C{offset}, and the bytes of the whole record as the body

Rule: both are answered only to hosts whose slaves this master accepts (C{ha_allowed_hosts}). Whether a copy
fits is decided by L{dledger.rocketmq.store.log.record_mending}.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.answering.java_json import wire_json
from dledger.rocketmq.answering.refusals import LONG_MAX, Code, CommandGroup, Fields, Handlers, Refused
from dledger.rocketmq.replication.service import HAService
from dledger.rocketmq.store.commit_log_store import CommitLogStore
from dledger.values.errors import DLedgerError, StoreError
from protocols.rocketmq.commands import CommandConnection, hosts_of
from protocols.wire.remoting import RemotingCommand

GET_DAMAGED_RECORDS = 90_908
OFFER_RECORD = 90_909

#: Offsets in one answer.
REPORTED_MAX = 64


class DamagedRecords(CommandGroup):
    """The group of these two commands."""

    log = Logger()

    def __init__(self, ha: HAService, store: CommitLogStore) -> None:
        self._ha = ha
        self._store = store

    def handlers(self) -> Handlers:
        """By request code."""
        return {GET_DAMAGED_RECORDS: self._notify, OFFER_RECORD: self._offered}

    def _check(self, connection: CommandConnection) -> None:
        """@raise Refused: this broker is a slave, or accepts no slaves of that host."""
        master = self._ha.master
        if master is None:
            raise Refused(Code.SYSTEM_ERROR, "this broker is a slave: its master sends it sound records")
        refusal = master.allowed.refusal(*hosts_of(connection))
        if refusal:
            raise Refused(Code.NO_PERMISSION, refusal)

    def _notify(self, connection: CommandConnection, request: RemotingCommand) -> None:
        self._check(connection)
        offsets = self._store.bad_records.offsets()[:REPORTED_MAX]
        connection.answer(request, body=wire_json({"offsets": offsets}))

    def _offered(self, connection: CommandConnection, request: RemotingCommand) -> None:
        self._check(connection)
        offset = Fields(request.ext_fields).number("offset", least=0, most=LONG_MAX)
        taking = self._store.mending.take(offset, bytes(request.body), source=connection.address)

        def failed(failure: Failure) -> None:
            if failure.check(StoreError) or not failure.check(DLedgerError, OSError):
                self.log.failure("a damaged record could not be mended", failure)
            connection.answer(request, code=Code.SYSTEM_ERROR, remark=failure.getErrorMessage())

        Deferred.fromCoroutine(taking).addCallbacks(
            lambda kept: connection.answer(request, body=wire_json({"kept": kept})), failed
        )
