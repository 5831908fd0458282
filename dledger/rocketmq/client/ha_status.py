# -*- test-case-name: tests.broker.client.test_ha_status -*-
"""
Replication status, requested from brokers, RocketMQ's or ours, and from name servers that know them::

    106  GET_BROKER_CLUSTER_INFO, of a name server: its brokers
    907  GET_BROKER_HA_STATUS, of a broker: its slaves, or its master
    28   GET_BROKER_RUNTIME_INFO, of a broker older than 5.0, which does not know 907: the end of its log
    26   GET_BROKER_CONFIG, of a broker that no name server has named: its name

Rule: brokers are asked independently; a broker that does not answer is reported as such.

Source: HAStatusSubCommand, HARuntimeInfo, ClusterInfo (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferTimeoutError
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from dledger.base.serving.endpoints import EndpointFor, connect_with
from dledger.values.errors import DLedgerError
from protocols.rocketmq.commands import CommandConnection, NotAsked, OnlyAsking
from protocols.rocketmq.signing import Credentials
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.documents import list_in, long_in, object_in, words_in
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import JsonObject, read_object, shown
from protocols.wire.remoting import REQUEST_CODE_NOT_SUPPORTED, RemotingCommand

GET_BROKER_CONFIG = 26
GET_BROKER_RUNTIME_INFO = 28
GET_BROKER_CLUSTER_INFO = 106
GET_BROKER_HA_STATUS = 907

#: Maximum number of brokers in one answer of a name server.
BROKERS_MAX = 10_000

#: Sends a request to C{host:port}; fails if no answer comes.
Ask = Callable[[str, RemotingCommand], "Deferred[RemotingCommand]"]


@attrs.frozen(kw_only=True)
class HASlave:
    """
    A slave, as its master sees it.

    @ivar address: address of its end of the connection.
    @ivar ack_offset: the highest offset that it has reported, its claimed offset; -1 before any report.
    @ivar lack_bytes: bytes of the master's log that it lacks.
    @ivar transfer_offset: next offset to send.
    """

    address: str
    ack_offset: int
    lack_bytes: int
    is_in_sync: bool
    bytes_per_second: int
    transfer_offset: int


@attrs.frozen(kw_only=True)
class HAReport:
    """
    Report of one broker. Numbers that it does not report are -1, and times that are not known 0.

    @ivar cluster, broker_name, broker_id: names and id from a name server, or else from the broker.
    @ivar has_ha_status: whether it knows 907; of other brokers only the version and the
        begin and end of the log are known.
    @ivar is_master: whether it is a master; None: not reported.
    @ivar max_offset: end of its log.
    @ivar slaves: slaves of a master.
    @ivar master: for a slave, the address of its master.
    @ivar is_connected: for a slave, whether it is connected to its master; None: not reported.
    @ivar last_read_ms, last_write_ms: for a slave, the time of the last bytes from its master, and of its
        last report, in ms since 1970; 0: never.
    @ivar lack_bytes: for a slave, the distance from its log's end to its master's, from separate requests.
    @ivar trouble: why its replication is not in order, as our brokers report; empty if it is, or not
        reported.
    @ivar is_stopped: whether only an operator can start its replication again; see C{dledger ha-resolve}.
    @ivar problem: reason why nothing is known; empty if the broker answered.
    """

    address: str
    cluster: str = ""
    broker_name: str = ""
    broker_id: int = -1
    version: str = ""
    has_ha_status: bool = False
    is_master: bool | None = None
    min_offset: int = -1
    max_offset: int = -1
    in_sync_slaves: int = -1
    slaves: tuple[HASlave, ...] = ()
    master: str = ""
    is_connected: bool | None = None
    bytes_per_second: int = -1
    last_read_ms: int = 0
    last_write_ms: int = 0
    master_flush_offset: int = -1
    lack_bytes: int = -1
    trouble: str = ""
    is_stopped: bool = False
    problem: str = ""


def read_ha_info(address: str, body: bytes) -> HAReport:
    """
    Read the answer to 907.

    @raise BodyError: the answer is malformed.
    """
    document = read_object(body)
    if not document.get("master"):
        info = object_in(document, "haClientRuntimeInfo")
        activated = info.get("activated")
        return HAReport(
            address=address, has_ha_status=True, is_master=False, master=words_in(info, "masterAddr"),
            max_offset=long_in(info, "maxOffset"), bytes_per_second=long_in(info, "transferredByteInSecond"),
            last_read_ms=long_in(info, "lastReadTimestamp", 0),
            last_write_ms=long_in(info, "lastWriteTimestamp", 0),
            master_flush_offset=long_in(info, "masterFlushOffset"),
            # Java never sets the field, so False means nothing; only our brokers report the next offset.
            is_connected=activated is True if activated is True or "masterNextOffset" in info else None,
            trouble=words_in(info, "problem"), is_stopped=info.get("stopped") is True,
        )
    slaves = []
    for one in list_in(document, "haConnectionInfo"):
        if not isinstance(one, dict):
            raise BodyError(f"haConnectionInfo: {shown(one)} is not an object")
        slaves.append(HASlave(
            address=words_in(one, "addr"), ack_offset=long_in(one, "slaveAckOffset"),
            lack_bytes=long_in(one, "diff"), is_in_sync=one.get("inSync") is True,
            bytes_per_second=long_in(one, "transferredByteInSecond", 0),
            transfer_offset=long_in(one, "transferFromWhere"),
        ))
    return HAReport(
        address=address, has_ha_status=True, is_master=True,
        max_offset=long_in(document, "masterCommitLogMaxOffset"),
        in_sync_slaves=long_in(document, "inSyncSlaveNums"), slaves=tuple(slaves), trouble=_refused(document),
    )


def _refused(document: JsonObject) -> str:
    """The slaves that a master of ours has refused lately, in words."""
    found = [
        f"slave {words_in(one, 'addr')} refused {long_in(one, 'count', 1)} times: {words_in(one, 'reason')}"
        for one in list_in(document, "refusedSlaves") if isinstance(one, dict)
    ]
    return "; ".join(found)


def read_runtime_info(address: str, body: bytes) -> HAReport:
    """
    Read the answer to 28.

    @raise BodyError: the answer is malformed.
    """
    table = object_in(read_object(body), "table")
    return HAReport(
        address=address, version=words_in(table, "brokerVersionDesc"),
        min_offset=long_in(table, "commitLogMinOffset"), max_offset=long_in(table, "commitLogMaxOffset"),
    )


def read_config(address: str, body: bytes) -> HAReport:
    """
    Read the answer to 26: one property per line.

    @raise BodyError: the answer is malformed.
    """
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError as error:
        raise BodyError(f"the configuration is not UTF-8: {error}") from None
    values = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    return HAReport(
        address=address, cluster=values.get("brokerClusterName", ""),
        broker_name=values.get("brokerName", ""), broker_id=long_in(values, "brokerId"),
    )


def read_cluster_info(body: bytes) -> list[HAReport]:
    """
    Read the answer to 106: every broker, without status; masters before their slaves.

    @raise BodyError: the answer is malformed.
    """
    found = []
    for name, one in sorted(object_in(read_object(body), "brokerAddrTable").items()):
        if not isinstance(one, dict):
            raise BodyError(f"brokerAddrTable: {shown(one)} is not an object")
        addresses = {
            long_in({"id": key}, "id"): value for key, value in object_in(one, "brokerAddrs").items()
        }
        for broker_id, address in sorted(addresses.items()):
            if not isinstance(address, str):
                raise BodyError(f"brokerAddrs: {shown(address)} is not an address")
            found.append(HAReport(
                address=address, cluster=words_in(one, "cluster"), broker_name=name, broker_id=broker_id
            ))
    if len(found) > BROKERS_MAX:
        raise BodyError(f"{len(found)} brokers; at most {BROKERS_MAX} are allowed")
    return found


async def brokers_of(ask: Ask, name_server: str, cluster: str = "") -> list[HAReport]:
    """
    Every broker that a name server knows.

    @param cluster: only brokers of this cluster; empty for any.
    @raise DLedgerError: the name server does not answer, or knows no such cluster.
    """
    try:
        answer = await ask(name_server, RemotingCommand(code=GET_BROKER_CLUSTER_INFO, opaque=0))
        if answer.code:
            raise BodyError(f"it answers with {answer.code}: {answer.remark}")
        found = read_cluster_info(answer.body)
    except Exception as error:
        reason = f"name server {name_server}: {sentence(error)}"
        raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=reason) from error
    wanted = [one for one in found if not cluster or one.cluster == cluster]
    if not wanted:
        known = ", ".join(sorted({one.cluster for one in found})) or "none"
        what = f"no cluster {cluster!r}; its clusters are: {known}" if cluster else "no broker"
        reason = f"name server {name_server} knows {what}"
        raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=reason)
    return wanted


async def report_of(ask: Ask, known: HAReport) -> HAReport:
    """The report of a broker; never fails."""
    address = known.address
    try:
        answer = await ask(address, RemotingCommand(code=GET_BROKER_HA_STATUS, opaque=0))
        if answer.code == REQUEST_CODE_NOT_SUPPORTED:
            answer = await ask(address, RemotingCommand(code=GET_BROKER_RUNTIME_INFO, opaque=0))
            found = _checked(answer, address, read_runtime_info)
        else:
            found = _checked(answer, address, read_ha_info)
    except Exception as error:  # any error: the other brokers are still asked
        return attrs.evolve(known, problem=sentence(error))
    if not known.broker_name:
        known = await _named(ask, known)
    is_master = found.is_master
    if is_master is None and known.broker_id >= 0:
        is_master = known.broker_id == 0
    return attrs.evolve(
        found, cluster=known.cluster, broker_name=known.broker_name, broker_id=known.broker_id,
        is_master=is_master,
    )


async def _named(ask: Ask, known: HAReport) -> HAReport:
    """C{known} with the broker's name, if it reports it; its replication status is valid without a name."""
    try:
        answer = await ask(known.address, RemotingCommand(code=GET_BROKER_CONFIG, opaque=0))
        return _checked(answer, known.address, read_config)
    except Exception:  # any error: the report only lacks a name
        return known


def _checked(
    answer: RemotingCommand, address: str, read: Callable[[str, bytes], HAReport]
) -> HAReport:
    if answer.code:
        raise BodyError(f"it answers with {answer.code}: {answer.remark}")
    return read(address, answer.body)


def with_lack(reports: Sequence[HAReport]) -> list[HAReport]:
    """Add C{lack_bytes} to the slaves whose master's end is known."""
    ends = {(one.cluster, one.broker_name): one.max_offset for one in reports
            if one.is_master and one.broker_name and one.max_offset >= 0}
    found = []
    for one in reports:
        end = ends.get((one.cluster, one.broker_name), -1)
        if one.is_master is False and one.max_offset >= 0 and end >= 0:
            one = attrs.evolve(one, lack_bytes=max(end - one.max_offset, 0))
        found.append(one)
    return found


def sentence(error: BaseException) -> str:
    """The reason for a missing answer."""
    if isinstance(error, DLedgerError):
        return str(error.facts.get("reason", error))
    if isinstance(error, ConnectError | NotAsked):
        return Failure(error).getErrorMessage() or type(error).__name__
    if isinstance(error, DeferTimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


class BrokerAsker(OnlyAsking):
    """Sends each request over its own connection."""

    def __init__(
        self, clock: IReactorTime, endpoint_for: EndpointFor, timeout_s: float,
        credentials: Credentials | None = None,
    ) -> None:
        """
        @param timeout_s: seconds for connecting and the answer together.
        @param credentials: of an account of the brokers.
        """
        self._credentials = credentials
        self._clock = clock
        self._endpoint_for = endpoint_for
        self._timeout_s = timeout_s
        self.turn = Turn(clock, lambda failure: failure.raiseException())

    def ask(self, address: str, command: RemotingCommand) -> Deferred[RemotingCommand]:
        """See L{Ask}."""
        asking = Deferred.fromCoroutine(self._ask(address, command))
        return asking.addTimeout(self._timeout_s, self._clock)

    async def _ask(self, address: str, command: RemotingCommand) -> RemotingCommand:
        connection = CommandConnection(self, self.turn, credentials=self._credentials)
        await connect_with(self._endpoint_for(address), connection)
        try:
            return await connection.ask(command)
        except NotAsked as error:
            raise NotAsked(f"{error} Perhaps one end wants TLS, and the other does not.") from None
        finally:
            connection.close()
