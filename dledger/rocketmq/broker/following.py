# -*- test-case-name: tests.broker.test_service -*-
"""
The master that a slave follows: the address of its log, and the address for requests.

Options take precedence; a name server supplies the addresses that they leave out. A slave keeps a master
that the name server no longer knows: the connection shows whether it lives.

Source: BrokerController.doRegisterBrokerAll, HAService.updateMasterAddress (4.9.8); differs: options count in
5.x, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.task import deferLater
from twisted.logger import Logger

from dledger.rocketmq.answering.java_json import to_long
from dledger.rocketmq.broker.admin.damaged_records import GET_DAMAGED_RECORDS, OFFER_RECORD
from dledger.rocketmq.broker.command_client import CommandClient
from dledger.rocketmq.broker.surroundings import ReplicationNeeds
from dledger.rocketmq.metadata.slave_synchronize import OwnLog, SlaveSynchronize
from dledger.rocketmq.replication.offers import OfferRefused, RecordOffers
from dledger.rocketmq.replication.ports import LogPort
from dledger.rocketmq.replication.service import HAService
from dledger.rocketmq.replication.slave import LogRange
from dledger.values.errors import DLedgerError
from protocols.rocketmq.commands import SUCCESS
from protocols.wire.codes import ResponseCode
from protocols.wire.documents import list_in, object_in
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import read_object
from protocols.wire.remoting import RemotingCommand

GET_BROKER_RUNTIME_INFO = 28
TIMEOUT_S = 3.0
#: The longest wait for our log before offsets are adopted, and the pause between two looks.
REACHED_S, LOOK_S = 5.0, 0.05


class _Handler:
    """See L{RecordsOfMaster}: requests L{GET_DAMAGED_RECORDS} and L{OFFER_RECORD}."""

    def __init__(self, client: CommandClient, master_address: Callable[[], str]) -> None:
        self._client = client
        self._master_address = master_address

    async def _ask(self, command: RemotingCommand) -> RemotingCommand:
        return await self._client.ask(self._master_address(), command, timeout_s=TIMEOUT_S)

    async def damaged(self) -> Sequence[int] | None:
        """See L{RecordsOfMaster.damaged}."""
        answer = await self._ask(RemotingCommand(code=GET_DAMAGED_RECORDS, opaque=0))
        if answer.code != SUCCESS:
            return None
        try:
            document = read_object(answer.body)
            if "offsets" not in document:
                raise BodyError("offsets is missing")
            return [to_long(one, "item of offsets") for one in list_in(document, "offsets")]
        except BodyError as error:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"no offsets: {error!r}") from None

    async def offer(self, offset: int, record: bytes) -> None:
        """See L{RecordsOfMaster.offer}."""
        answer = await self._ask(RemotingCommand(
            code=OFFER_RECORD, opaque=0, ext_fields={"offset": str(offset)}, body=record
        ))
        if answer.code != SUCCESS:
            raise OfferRefused(answer.remark or f"answered {answer.code}")


class Following:
    """
    Implements L{dledger.rocketmq.broker.replication.Follows}.

    @ivar synchronize: copies the master's metadata.
    @ivar offers: offers the master sound copies of its damaged records.
    @ivar ha_address: C{host:port} from which the log is copied; empty if unknown.
    """

    log = Logger()

    def __init__(
        self, needs: ReplicationNeeds, ha: HAService, log: LogPort
    ) -> None:
        """@param log: our own."""
        around, inside = needs.around, needs.inside
        own = inside.own
        self._config = inside.config
        self._ha = ha
        self._client = needs.client
        self._own = own
        self._endpoint_of = around.endpoint_of
        self._log = log
        self._clock = around.reactor
        self.ha_address = ""
        self.offers: RecordOffers | None = None
        if ha.slave is not None:
            self.offers = RecordOffers(log, ha.slave, _Handler(needs.client, self._master_address))
        self.synchronize = SlaveSynchronize(
            inside.metadata, needs.client, own_address=lambda: own.text, clock=around.reactor,
            run_in_thread=around.run_in_thread, own_log=OwnLog(
                local_topics=needs.kept_topics, reached=self.reached,
                is_stopped=lambda: ha.slave is not None and ha.slave.is_stopped,
            ),
        )

    def follow(self) -> None:
        """Follow the master that the options name; without one, wait for a name server's answer."""
        self.synchronize.master_address = self._config.master_remoting_address
        self.synchronize.start()
        if self._config.ha_master_address:
            self._follow(self._config.ha_master_address)
        elif not self._config.name_servers:
            self.log.warn("no master to follow: set ha_master_address or namesrv_addr")

    def seeks_master(self) -> bool:
        """
        Whether an address, for the log or the metadata, is not known. A slave that knows a master keeps to it
        until an operator changes it.
        """
        return not self.ha_address or self.synchronize.master_address is None

    def unfollow(self) -> None:
        """Stop copying metadata."""
        self.synchronize.stop()

    def learned(self, master: str | None, ha_address: str | None) -> None:
        """Follow the master in a name server's answer, except where the options name one."""
        if master and master != self._own.text and not self._config.master_address:
            if self.synchronize.master_address != master:
                self.log.info("the master is at {address}", address=master)
            self.synchronize.master_address = master
        if ha_address and not self._config.ha_master_address:
            self._follow(ha_address)

    def _follow(self, address: str) -> None:
        try:
            endpoint = self._endpoint_of(address)
        except ValueError as error:
            self.log.warn("cannot follow the master: {reason}", reason=str(error))
            return
        if address != self.ha_address:
            self.log.info("the master's log comes from {address}", address=address)
        self.ha_address = address
        self._ha.follow(endpoint, address)

    def _master_address(self) -> str:
        """@raise DLedgerError: the master is unknown."""
        master = self.synchronize.master_address
        if master is None or master == self._own.text:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason="the master's address is not known")
        return master

    async def reached(self) -> None:
        """
        Wait until our log has reached the present end of the master's.

        @raise DLedgerError: it does not, within L{REACHED_S}; or the master does not say its end.
        """
        end = (await self.master_range()).end_offset
        until_s = self._clock.seconds() + REACHED_S
        while self._log.end_offset < end:
            if self._clock.seconds() >= until_s:
                reason = "they wait until our log has reached the end of the master's"
                raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=reason)
            await deferLater(self._clock, LOOK_S, lambda: None)

    async def master_range(self) -> LogRange:
        """
        Ask the master for the bounds of its log.

        @raise DLedgerError: the master is unknown, or its answer has no such offsets.
        """
        master = self._master_address()
        request = RemotingCommand(code=GET_BROKER_RUNTIME_INFO, opaque=0)
        answer = await self._client.ask(master, request, timeout_s=TIMEOUT_S)
        if answer.code != SUCCESS:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, answered=answer.code, remark=answer.remark)
        try:
            table = object_in(read_object(answer.body), "table")
            first, end = "commitLogMinOffset", "commitLogMaxOffset"
            return LogRange(
                begin_offset=to_long(table.get(first), first), end_offset=to_long(table.get(end), end)
            )
        except BodyError as error:
            reason = f"no commitLogMinOffset and commitLogMaxOffset: {error!r}"
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=reason) from None
