# -*- test-case-name: tests.broker.test_gate -*-
"""
Decides for each request whether its sender may make it.

Rule 1: every request is checked before its handler sees it: the signature, then the rights of its account to
topics and groups. From a white address everything is allowed.
Rule 2: native frames have no fields for a signature. A connection may send them once its question for the
wire version was signed together with the challenge that this connection was given, with the rights that this
account has at the time of each frame. Without a challenge, a signature that was heard on the network would
open all roads of its account: a signature covers neither the code of a request nor the names of its fields.
Rule 3: a change of the files counts within L{CHECK_TICKS} ticks, also for requests that wait for messages:
they are answered without one then. Files that are not sound change nothing.

Rule 4: a request that no table here names needs an administrator.

Stricter than Java: batches need PUB, locks of queues SUB of their group, a message that is named by its
place in the log SUB of its topic, the end of a transaction PUB of its topic, resets of offsets and decisions
about a slave an administrator (see docs/ha.md). As in Java, other requests need a signature only.

Source: PlainPermissionManager, PlainAccessValidator (4.9.8).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

from twisted.logger import Logger

from dledger.base.commands.refusals import (
    LONG_MAX,
    LONG_MIN,
    Code,
    CommandGroup,
    Fields,
    Handlers,
    Refused,
)
from dledger.broker.access.accounts import RETRY, AccessRight, BrokerAccount, file_names, read_accounts
from dledger.broker.access.address_patterns import host_text
from dledger.broker.consuming.queue_locks import read_queues
from dledger.broker.consuming.subscriptions import read_heartbeat
from dledger.broker.popping.acks import REFUSED, read_batch_names
from dledger.broker.popping.check_points import normal_topic
from protocols.rocketmq.broker import BrokerConnection, NativeRequests, NativeSink, NativeTicket
from protocols.rocketmq.commands import CommandConnection, hosts_of
from protocols.rocketmq.signing import ACCESS_KEY, is_signed
from protocols.wire.fastjson import shown
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.broker_frames import (
    BrokerRequest,
    OffsetsAnswer,
    PutAnswer,
    PutRequest,
    ReadAnswer,
    ReadRequest,
)
from protocols.wire.rocketmq.broker_layout import CHALLENGE_CODE, CHALLENGE_FIELD, WIRE_VERSION_CODE

#: Ticks (seconds) between two looks at the files.
CHECK_TICKS = 5
#: Everybody may send traces to this topic, as in Java.
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

#: Requests for which any signature is enough: they tell tables, offsets and figures, check an expression, ask
#: for native frames, send a reply to a producer that waits for it, or are refused to everybody; and the last
#: two are those of slaves (with C{ha_allowed_hosts}).
SIGNED_CODES = frozenset({
    14, 21, 26, 28, 29, 30, 31, 32, 43, 45, 46, 201, 202, 203, 208, 300, 324, 325, 351, 352, 402, 907,
    *REFUSED, WIRE_VERSION_CODE, CHALLENGE_CODE, 90_908, 90_909,
})
_PUB, _SUB = AccessRight.PUB, AccessRight.SUB
_SEND, _SEND_V2, _SEND_BATCH = 10, 310, 320
_PULL, _QUERY, _UPDATE_OFFSET, _HEART_BEAT = (11, 361), 12, 15, 34
#: POP: messages, acks, invisible times, questions; the batch of acks; and which name the topic of retries.
_POP, _POP_ACKS = (200_050, 200_051, 200_052, 200_053, 200_054, 200_055), 200_151
_OF_POPPED = (200_051, 200_053)
_UNREGISTER, _SEND_BACK, _END_TRANSACTION, _LIST_GROUP, _LOCKS = 35, 36, 37, 38, (41, 42)
#: Requests for the message that begins at the offset in this field, and the right to its topic.
_BY_OFFSET: Mapping[int, tuple[str, AccessRight]] = {
    33: ("offset", _SUB), _SEND_BACK: ("offset", _SUB), _END_TRANSACTION: ("commitLogOffset", _PUB)
}  # fmt: skip
#: Requests whose rights L{needs_of} tells.
_NAMING = frozenset({
    _SEND, _SEND_V2, _SEND_BATCH, *_PULL, _QUERY, _UPDATE_OFFSET, _HEART_BEAT, _UNREGISTER, _SEND_BACK,
    _LIST_GROUP, *_LOCKS, *_BY_OFFSET, *_POP, _POP_ACKS,
})

#: A topic, or a group behind C{%RETRY%}, and the right to it.
_Need = tuple[str, AccessRight]


def needs_of(request: RemotingCommand) -> Iterator[_Need]:
    """
    The rights that a request needs.

    @raise Refused: SYSTEM_ERROR: a field that names topic or group is missing, or the body is malformed.
    """
    code, fields = request.code, Fields(request.ext_fields)
    if code in (_SEND, _SEND_V2, _SEND_BATCH):
        topic = fields.text("topic" if code == _SEND else "b")
        yield topic, _SUB if topic.startswith(RETRY) else _PUB
    elif code in _PULL or code == _UPDATE_OFFSET:
        yield fields.text("topic"), _SUB
        yield RETRY + fields.text("consumerGroup"), _SUB
    elif code == _QUERY:
        yield fields.text("topic"), _SUB
    elif code == _SEND_BACK:
        yield RETRY + fields.text("group"), _SUB
    elif code == _LIST_GROUP:
        yield RETRY + fields.text("consumerGroup"), _SUB
    elif code == _UNREGISTER and (group := fields.text("consumerGroup", "")):
        yield RETRY + group, _SUB
    elif code == _HEART_BEAT:
        for data in read_heartbeat(request.body).consumers:
            yield RETRY + data.group, _SUB
            for topic in data.subscriptions:
                yield topic, _SUB
    elif code in _POP:
        topic, group = fields.text("topic"), fields.text("consumerGroup")
        yield (normal_topic(topic, group) if code in _OF_POPPED else topic), _SUB
        yield RETRY + group, _SUB
    elif code == _POP_ACKS:
        for topic, group in read_batch_names(request.body):
            yield normal_topic(topic, group), _SUB
            yield RETRY + group, _SUB
    elif code in _LOCKS:
        group, _client, _queues = read_queues(request.body)
        yield RETRY + group, _SUB


class AccessGate(CommandGroup):
    """
    The accounts of one broker, and the accounts of its connections.

    Invariant: C{_native} has the access key of each open connection that may send native frames; empty: its
    address is white. C{_challenges} are the last ones of open connections that have not been used.
    """

    log = Logger()
    small_codes = frozenset({CHALLENGE_CODE})

    def __init__(self, path: str, *, topic_at: Callable[[int], str]) -> None:
        """
        @param path: a file of accounts, or a directory of them.
        @param topic_at: from an offset of the log to the topic of the message that begins there; empty: none
            does. Not called before the first request.
        @raise ValueError: a file is missing or not sound.
        """
        self._path = path
        self._topic_at = topic_at
        self._stamps = _stamps(path)
        self._accounts = read_accounts(path)
        self._native: dict[CommandConnection, str] = {}
        self._challenges: dict[CommandConnection, str] = {}
        self._ticks = 0

    def tick(self) -> bool:
        """A second has passed. @return: whether there are other accounts now."""
        self._ticks += 1
        return self._ticks % CHECK_TICKS == 0 and self._refresh()

    def _refresh(self) -> bool:
        stamps = _stamps(self._path)
        if stamps == self._stamps:
            return False
        self._stamps = stamps  # what is not sound is said once
        try:
            self._accounts = read_accounts(self._path)
        except ValueError as error:
            self.log.error("the accounts stay as they were: {reason}", reason=str(error))
            return False
        self.log.info("{count} accounts are in force", count=len(self._accounts.by_key))
        return True

    # -- CommandGroup: hears of connections ---------------------------------------------------------

    def handlers(self) -> Handlers:
        """See L{CommandGroup.handlers}."""
        return {CHALLENGE_CODE: self._challenge}

    def _challenge(self, connection: CommandConnection, request: RemotingCommand) -> None:
        challenge = self._challenges[connection] = secrets.token_hex(16)
        connection.answer(request, ext_fields={CHALLENGE_FIELD: challenge})

    def connection_lost(self, connection: CommandConnection) -> None:
        """See L{CommandGroup.connection_lost}."""
        self._native.pop(connection, None)
        self._challenges.pop(connection, None)

    # -- commands -----------------------------------------------------------------------------------

    def check(self, connection: CommandConnection, request: RemotingCommand) -> None:
        """
        @raise Refused: SYSTEM_ERROR, as in Java: the request is not signed, or its account may not make it.
        """
        host = host_text(hosts_of(connection)[0])
        account = None
        if not self._accounts.is_white(host):
            account = self._account_of(host, request)
            _check_rights(account, request)
            if request.code in _BY_OFFSET:
                name, right = _BY_OFFSET[request.code]
                self._check_message(account, Fields(request.ext_fields), name, right)
        if request.code == WIRE_VERSION_CODE:
            wanted, given = self._challenges.pop(connection, None), request.ext_fields.get(CHALLENGE_FIELD)
            if account is None:
                self._native[connection] = ""
            elif account.is_white(host) or (wanted is not None and wanted == given):
                self._native[connection] = account.access_key

    def _check_message(self, account: BrokerAccount, fields: Fields, name: str, right: AccessRight) -> None:
        topic = self._topic_at(fields.number(name, least=LONG_MIN, most=LONG_MAX))
        if topic and not account.may(topic, right):
            raise Refused(Code.SYSTEM_ERROR, _denied(topic, account))

    def _account_of(self, host: str, request: RemotingCommand) -> BrokerAccount:
        key = request.ext_fields.get(ACCESS_KEY, "")
        if not key:
            raise Refused(Code.SYSTEM_ERROR, "No accessKey is configured: this broker has access control, "
                                             "sign requests with an account of it")
        account = self._accounts.by_key.get(key)
        if account is None:
            raise Refused(Code.SYSTEM_ERROR, f"No acl config for {shown(key)}")
        if not account.is_white(host) and not is_signed(request, account.secret_key):
            raise Refused(Code.SYSTEM_ERROR, f"Check signature failed for accessKey={shown(key)}")
        return account

    # -- native frames --------------------------------------------------------------------------------

    def refusal_of(self, connection: BrokerConnection, request: BrokerRequest) -> str:
        """Why a native request is refused; empty: it may be made."""
        key = self._native.get(connection)
        if key is None:
            return "this broker has access control: sign its challenge when you ask for the wire version"
        if not key:
            is_white = self._accounts.is_white(host_text(hosts_of(connection)[0]))
            return "" if is_white else "the address of this connection needs an account by now"
        account = self._accounts.by_key.get(key)
        if account is None:
            return f"account {shown(key)} does not exist any more"
        if isinstance(request, PutRequest):
            topic = request.topic
            right = _SUB if topic.startswith(RETRY) else _PUB
            if topic != TRACE_TOPIC and not account.may(topic, right):
                return _denied(topic, account)
        elif isinstance(request, ReadRequest) and not account.is_admin:
            return (f"account {shown(key)} is no administrator, and the whole log has the messages of all "
                    "topics: consume topics")
        return ""


def _check_rights(account: BrokerAccount, request: RemotingCommand) -> None:
    if not (account.is_admin or request.code in SIGNED_CODES or request.code in _NAMING):
        raise Refused(Code.SYSTEM_ERROR, f"Need admin permission for request code={request.code}, but "
                                         f"accessKey={shown(account.access_key)} is not")
    for resource, right in needs_of(request):
        if not (resource == TRACE_TOPIC and right is _PUB) and not account.may(resource, right):
            raise Refused(Code.SYSTEM_ERROR, _denied(resource, account))


def _denied(resource: str, account: BrokerAccount) -> str:
    kind, name = ("group", resource[len(RETRY):]) if resource.startswith(RETRY) else ("topic", resource)
    return f"No permission for {kind} {shown(name)}: see account {shown(account.access_key)}"


class GuardedNatives:
    """A L{NativeSink} that passes on the requests that the gate allows, in their order."""

    def __init__(self, gate: AccessGate, inner: NativeSink) -> None:
        self._gate = gate
        self._inner = inner

    def natives_received(self, connection: BrokerConnection, requests: NativeRequests) -> None:
        """See L{NativeSink.natives_received}."""
        allowed: list[tuple[NativeTicket, BrokerRequest]] = []
        for ticket, request in requests:
            reason = self._gate.refusal_of(connection, request)
            if not reason:
                allowed.append((ticket, request))
            elif isinstance(request, PutRequest):
                connection.answer_native(ticket, PutAnswer(code=Code.NO_PERMISSION, remark=reason))
            elif isinstance(request, ReadRequest):
                connection.answer_native(ticket, ReadAnswer(
                    code=Code.SYSTEM_ERROR, log_begin_offset=0, log_end_offset=0,
                    next_offset=request.begin_offset, remark=reason,
                ))
            else:
                connection.answer_native(ticket, OffsetsAnswer(code=Code.NO_PERMISSION, remark=reason))
        if allowed:
            self._inner.natives_received(connection, allowed)


def _stamps(path: str) -> tuple[tuple[str, int, int, int], ...]:
    found = []
    try:
        names: Sequence[str] = file_names(path)
    except OSError:
        names = ()
    for name in names:
        try:
            status = os.stat(name)
            found.append((name, status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append((name, -1, -1, -1))
    return tuple(found)
