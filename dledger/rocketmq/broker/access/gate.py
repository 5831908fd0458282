# -*- test-case-name: tests.broker.test_gate -*-
"""
Decides for each request whether its sender may make it: by accounts, or, without them, by the address of
those who ask for changes (L{broker_change}).

Rule 1: every request is checked before its handler sees it: the signature, then the rights of its account to
topics and groups. From a white address everything is allowed.
Rule 2: native frames have no fields for a signature. A connection may send them once its question for the
wire version was signed together with the challenge that this connection was given, with the rights that this
account has at the time of each frame. Without a challenge, a signature that was heard on the network would
open all roads of its account: a signature covers neither the code of a request nor the names of its fields.
Rule 3: a change of the files counts as soon as they were the same at L{QUIET_TICKS} further ticks, also for
requests that wait for messages: they are answered without one then. Until then somebody may still write: the
first half of a list is sound, too, and may lack the very line that denies a topic. Files that are not sound
change nothing.

Rule 4: a request that no table here names needs an administrator. Without accounts it is a change.

Stricter than Java: batches need PUB, locks of queues SUB of their group, a message that is named by its
place in the log SUB of its topic, the end of a transaction PUB of its topic, resets of offsets and decisions
about a slave an administrator (see docs/ha.md). As in Java, other requests need a signature only; the tables
are in L{dledger.rocketmq.broker.access.request_rights}.

Rule 5: a right to a topic holds wherever its messages are: in the topics of the broker itself, which an
account may read only if it lists them, and among the retries and dead letters of a group.
Rule 6: a client id belongs to the account whose client is connected with it. A producer is asked about a
transaction if its account may end it.

Source: PlainPermissionManager, PlainAccessValidator (4.9.8).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from twisted.logger import Logger

from dledger.rocketmq.answering.refusals import (
    LONG_MAX,
    LONG_MIN,
    Code,
    CommandGroup,
    Fields,
    Handlers,
    Refused,
)
from dledger.rocketmq.broker.access.accounts import (
    RETRY,
    AccessRight,
    BrokerAccount,
    file_names,
    read_accounts,
)
from dledger.rocketmq.broker.access.request_rights import (
    ANY_TOPIC,
    BY_OFFSET,
    NAMING,
    OF_GROUPS,
    POP_MESSAGES,
    SIGNED_CODES,
    Client,
    client_of,
    needs_of,
    needs_of_message,
    topics_of,
)
from dledger.rocketmq.broker.admin.ha_resolve import RESOLVE_HA, SHOW
from dledger.rocketmq.broker.consuming.producers import Member
from dledger.rocketmq.broker.consuming.visible import Visible
from dledger.rocketmq.broker.producing.topic_checks import DLQ_PREFIX, is_own
from dledger.values.hosts import host_text
from protocols.rocketmq.broker import BrokerConnection, NativeRequests, NativeSink, NativeTicket
from protocols.rocketmq.commands import CommandConnection, hosts_of
from protocols.rocketmq.signing import ACCESS_KEY, is_signed
from protocols.wire.errors import WireError
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
from protocols.wire.rocketmq.message import decode_message

#: Ticks (seconds) for which changed files have to stay as they are, before they are read.
QUIET_TICKS = 3
#: Name, time of change in ns, bytes and inode of each file.
FileStamps: TypeAlias = tuple[tuple[str, int, int, int], ...]
#: Everybody may send traces to this topic, as in Java.
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

#: From an offset of the log to the topics to which a reader of the message there needs the right; none: no
#: message begins there.
TopicsAt = Callable[[int], tuple[str, ...]]
#: From a topic of retries to the groups and topics whose retries of POP it may hold.
RetriesIn = Callable[[str], Iterable[tuple[str, str]]]


#: What requests change, for the sentence that refuses them.
CHANGES: Mapping[int, str] = {
    17: "to create or change a topic", 18: "to create or change topics", 215: "to delete a topic",
    200: "to create or change a consumer group", 225: "to create or change consumer groups",
    207: "to delete a consumer group", 25: "to change options", 222: "to reset offsets",
    401: "to change how a group consumes", 306: "to delete files of queues", 316: "to delete unused topics",
    309: "to give a consumer a message", 329: "to delete old files of the log",
    RESOLVE_HA: "to decide about a slave",
}


def broker_change(request: RemotingCommand) -> str:
    """What a request changes for all; empty: nothing. The same requests need an administrator's account."""
    code = request.code
    if code in SIGNED_CODES or code in NAMING:
        return ""
    if code == RESOLVE_HA and request.ext_fields.get("action", SHOW) == SHOW:
        return ""  # it needs an administrator, as it shows messages
    return CHANGES.get(code, "what it asks")


class AccessGate(CommandGroup):
    """
    The accounts of one broker, and the accounts of its connections.

    Invariant: C{native} has the access key of each open connection that may send native frames; empty: its
    address is white. C{challenges} are the last ones of open connections that have not been used.
    C{_clients} has client id and access key of each open connection that has one, and C{_owners} for each of
    these ids its access key and the connections that use it.
    """

    log = Logger()
    judges_sends = True
    small_codes = frozenset({CHALLENGE_CODE})

    def __init__(
        self, path: str, *, topics_at: TopicsAt, retries_in: RetriesIn, reply_topic: str
    ) -> None:
        """
        @param path: a file of accounts, or a directory of them.
        @param topics_at, retries_in: not called before the first request.
        @param reply_topic: where the replies of the broker's cluster are stored.
        @raise ValueError: a file is missing or not sound.
        """
        self._path = path
        self._topics_at = topics_at
        self._retries_in = retries_in
        self._reply_topic = reply_topic
        self._stamps = self._seen = _stamps(path)
        self._accounts = read_accounts(path)
        self.native: dict[CommandConnection, str] = {}
        self.challenges: dict[CommandConnection, str] = {}
        self._clients: dict[Member, tuple[str, str]] = {}
        self._owners: dict[str, tuple[str, set[Member]]] = {}
        self._quiet_ticks = 0

    def tick(self) -> bool:
        """A second has passed. @return: whether there are other accounts now."""
        stamps = _stamps(self._path)
        self._quiet_ticks = self._quiet_ticks + 1 if stamps == self._seen else 0
        self._seen = stamps
        return stamps != self._stamps and self._quiet_ticks >= QUIET_TICKS and self._refresh(stamps)

    def _refresh(self, stamps: FileStamps) -> bool:
        self._stamps = stamps  # what is not sound is said once
        try:
            accounts = read_accounts(self._path)
        except ValueError as error:
            self.log.error("the accounts stay as they were: {reason}", reason=str(error))
            return False
        if _stamps(self._path) != stamps:
            return False  # written while it was read: the next ticks see other stamps
        self._accounts = accounts
        self.log.info("{count} accounts are in force", count=len(self._accounts.by_key))
        return True

    # -- CommandGroup: hears of connections ---------------------------------------------------------

    def handlers(self) -> Handlers:
        return {CHALLENGE_CODE: self._challenge}

    def _challenge(self, connection: CommandConnection, request: RemotingCommand) -> None:
        challenge = self.challenges[connection] = secrets.token_hex(16)
        connection.answer(request, ext_fields={CHALLENGE_FIELD: challenge})

    def connection_lost(self, connection: CommandConnection) -> None:
        self.native.pop(connection, None)
        self.challenges.pop(connection, None)
        self._release(connection)

    # -- commands -----------------------------------------------------------------------------------

    def check(self, connection: CommandConnection, request: RemotingCommand) -> None:
        """
        @raise Refused: SYSTEM_ERROR, as in Java: the request is not signed, or its account may not make it.
        """
        host = host_text(hosts_of(connection)[0])
        account = None
        if not self._accounts.is_white(host):
            account = self._account_of(host, request)
            self._check_rights(account, request)
        if client := client_of(request):
            self._claim(connection, client, account)
        if request.code == WIRE_VERSION_CODE:
            wanted, given = self.challenges.pop(connection, None), request.ext_fields.get(CHALLENGE_FIELD)
            if account is None:
                self.native[connection] = ""
            elif account.is_white(host) or (wanted is not None and wanted == given):
                self.native[connection] = account.access_key

    def _check_rights(self, account: BrokerAccount, request: RemotingCommand) -> None:
        if not (account.is_admin or request.code in SIGNED_CODES or request.code in NAMING):
            raise Refused(Code.SYSTEM_ERROR, f"Need admin permission for request code={request.code}, but "
                                             f"accessKey={shown(account.access_key)} is not")
        for resource, right in needs_of(request, reply_topic=self._reply_topic):
            if not self._may(account, resource, right):
                raise Refused(Code.SYSTEM_ERROR, _denied(resource, account))
        fields = Fields(request.ext_fields)
        if request.code in POP_MESSAGES and not account.may_everything:
            topic = fields.text("topic")
            if topic.startswith(OF_GROUPS):
                raise Refused(Code.SYSTEM_ERROR, f"No permission for topic {shown(topic)}: POP gives retries "
                                                 "with their topic, and dead letters can be pulled")
        if request.code in BY_OFFSET:
            name, right = BY_OFFSET[request.code]
            for topic in self._topics_at(fields.number(name, least=LONG_MIN, most=LONG_MAX)):
                if not self._may(account, topic, right):
                    raise Refused(Code.SYSTEM_ERROR, _denied(topic, account))

    def _may(self, account: BrokerAccount, resource: str, right: AccessRight) -> bool:
        """Whether an account has a right to a topic, or to C{%RETRY%} and a group."""
        if resource == ANY_TOPIC:
            return account.may_somewhere(right)
        if resource == TRACE_TOPIC and right is AccessRight.PUB:
            return True
        if account.may_everything or resource in account.perms:
            return account.may(resource, right)
        if is_own(resource) or resource == self._reply_topic:
            return False  # a default was not meant for messages of other topics
        if resource.startswith(DLQ_PREFIX):
            resource = RETRY + resource[len(DLQ_PREFIX):]
        # A default for groups was not meant for the retries of another group, whose topic looks like a group.
        return account.may(resource, right) and (not resource.startswith(RETRY) or all(
            self._may(account, RETRY + group, right) and self._may(account, topic, AccessRight.SUB)
            for group, topic in self._retries_in(resource)
        ))

    def visible(self, connection: CommandConnection, request: RemotingCommand, topic: str) -> Visible | None:
        """
        Which records of a topic the sender of a request may see that L{check} has allowed; None: all.

        Retries and dead letters of a group are of several topics, and not every member of the group has the
        right to each.
        """
        if not topic.startswith(OF_GROUPS) or self._accounts.is_white(host_text(hosts_of(connection)[0])):
            return None
        account = self._accounts.by_key.get(request.ext_fields.get(ACCESS_KEY, ""))
        if account is not None and account.may_everything:
            return None

        def may_see(record: bytes) -> bool:
            try:
                message = decode_message(record, verify_body=False)
            except WireError:
                return False
            return account is not None and all(
                self._may(account, one, AccessRight.SUB)
                for one in topics_of(message.topic, message.properties)
            )

        return may_see

    # -- clients ------------------------------------------------------------------------------------

    def _claim(self, connection: Member, client: Client, account: BrokerAccount | None) -> None:
        """
        @param account: None: the address is white.
        @raise Refused: SYSTEM_ERROR: the id belongs to another account.
        """
        key = "" if account is None else account.access_key
        owner, users = self._owners.get(client.client_id, (key, set()))
        if owner != key:
            raise Refused(Code.SYSTEM_ERROR, f"No permission for client {shown(client.client_id)}: a client "
                                             "of another account is connected with this id, use another one")
        stays = client.consumes or any(_may_produce(account, group) for group in client.producer_groups)
        if stays and self._clients.get(connection) != (client.client_id, key):
            self._release(connection)
            self._clients[connection] = client.client_id, key
            users.add(connection)
            self._owners[client.client_id] = key, users

    def _release(self, connection: Member) -> None:
        client_id, _ = self._clients.pop(connection, ("", ""))
        if client_id:
            _, users = self._owners[client_id]
            users.discard(connection)
            if not users:
                del self._owners[client_id]

    def may_produce(self, member: Member, client_id: str, group: str) -> bool:
        """See L{ProducerRights}."""
        known_id, _ = self._clients.get(member, ("", ""))
        return known_id == client_id and _may_produce(self._of_client(member), group)

    def may_publish(self, member: Member, topic: str) -> bool:
        """See L{ProducerRights}."""
        account = self._of_client(member)
        return account is None or self._may(account, topic, AccessRight.PUB)

    def owner_of(self, member: Member) -> str:
        """See L{ProducerRights}."""
        return self._clients.get(member, ("", ""))[1]

    def _of_client(self, member: Member) -> BrokerAccount | None:
        """The account of a client; None: its address is white. One without an account has L{_NOBODY}."""
        key = self.owner_of(member)
        if key:
            return self._accounts.by_key.get(key, _NOBODY)
        return None if self._accounts.is_white(host_text(member.address.rpartition(":")[0])) else _NOBODY

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
        key = self.native.get(connection)
        if key is None:
            return "this broker has access control: sign its challenge when you ask for the wire version"
        if not key:
            is_white = self._accounts.is_white(host_text(hosts_of(connection)[0]))
            return "" if is_white else "the address of this connection needs an account by now"
        account = self._accounts.by_key.get(key)
        if account is None:
            return f"account {shown(key)} does not exist any more"
        if isinstance(request, PutRequest):
            for resource, right in needs_of_message(request.topic, request.properties):
                if not self._may(account, resource, right):
                    return _denied(resource, account)
        elif isinstance(request, ReadRequest) and not account.may_everything:
            return (f"account {shown(key)} is not an administrator, or one with lists, and the whole log "
                    f"has the "
                    "messages of all topics: consume topics")
        return ""


#: An account that has been removed.
_NOBODY = BrokerAccount(
    access_key="", secret_key="", is_white=lambda address: False, is_admin=False, perms={},
    default_topic=AccessRight.DENY, default_group=AccessRight.DENY,
)


def _may_produce(account: BrokerAccount | None, group: str) -> bool:
    """Whether a client may be a producer of a group: with PUB of any topic, or a right to the group."""
    return account is None or account.may_somewhere(AccessRight.PUB) or account.may(
        RETRY + group, AccessRight.PUB | AccessRight.SUB
    )


def _denied(resource: str, account: BrokerAccount) -> str:
    if resource == ANY_TOPIC:
        return f"No permission for replies: see account {shown(account.access_key)}, it has SUB of no topic"
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


def _stamps(path: str) -> FileStamps:
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
