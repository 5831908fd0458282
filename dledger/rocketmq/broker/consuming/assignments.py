# -*- test-case-name: tests.broker.consuming.test_assignments -*-
"""
The queues of a consumer that lets a broker share them out (C{clientRebalance=false})::

    400  QUERY_ASSIGNMENT             401  SET_MESSAGE_REQUEST_MODE

An administrator says for a topic and a group whether its consumers pull or pop. Consumers that pull divide
the queues of all brokers, by one of RocketMQ's two rules; those that pop may share them: with
C{popShareQueueNum} of 0, or of as many as there are other consumers, each pops from all queues of all brokers
(queue -1).

Rule 1: the queues of a topic are those that a name server shows, of all brokers. Without an answer the
assignment is empty, which a consumer passes over: it keeps its queues.
Rule 2: a route is believed for L{ROUTE_S}; at most L{ROUTES_MAX} are kept, and at most L{ASKED_MAX} questions
wait for a name server.

Source: QueryAssignmentProcessor, MessageRequestModeManager, AllocateMessageQueueAveragely(ByCircle),
MQClientInstance.topicRouteData2TopicSubscribeInfo (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.answering.java_json import read_document, read_request, to_long, wire_json
from dledger.rocketmq.answering.refusals import Code, CommandGroup, Handlers, Refused
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.subscriptions import BROADCASTING
from dledger.rocketmq.broker.options.groups import find_group
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.metadata.tables import PERM_READ, RETRY_PREFIX
from protocols.rocketmq.commands import SUCCESS, CommandConnection
from protocols.wire.documents import name_in, to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import shown, shown_bare
from protocols.wire.remoting import RemotingCommand

QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE = 400, 401

PULL, POP = "PULL", "POP"
#: RocketMQ's rules by which consumers divide queues.
AVERAGELY, BY_CIRCLE = "AVG", "AVG_BY_CIRCLE"

#: Seconds for which a route is believed, and the most of them; the oldest go.
ROUTE_S = 10.0
ROUTES_MAX = 4_096
#: Questions that wait for a name server.
ASKED_MAX = 256
#: Queues of one topic on all brokers.
QUEUES_MAX = 65_536

#: Name of a broker, and number of a queue; -1: all of them, for consumers that pop.
_Queue = tuple[str, int]


class AssignmentQuestion(NamedTuple):
    """A question for an assignment."""

    topic: str
    group: str
    client_id: str
    rule: str
    model: str


class Assignments(CommandGroup):
    """The group of commands."""

    log = Logger()

    def __init__(
        self, inside: BrokerInside, table: ConsumerTable, *,
        route_of: Callable[[str], Deferred[RemotingCommand]], save: Callable[[], Deferred[None]],
    ) -> None:
        """
        @param route_of: asks a name server for the route of a topic.
        @param save: brings changed tables to stable storage, and to the next master.
        """
        self._config = inside.config
        self._metadata = inside.metadata
        self._table = table
        self._route_of = route_of
        self._seconds = inside.clock.seconds
        self._wall_ms = inside.wall_ms
        self._save = save
        self._asking = 0
        self._routes: dict[str, tuple[float, list[_Queue]]] = {}

    def handlers(self) -> Handlers:
        """By request code."""
        return {QUERY_ASSIGNMENT: self._query, SET_MESSAGE_REQUEST_MODE: self._set}

    # -- modes -----------------------------------------------------------------------------------

    def _set(self, connection: CommandConnection, request: RemotingCommand) -> None:
        if self._config.role.is_slave:
            raise Refused(Code.SLAVE_NOT_AVAILABLE, "a slave has the request modes of its master: ask it")
        document, (topic, group) = _document(request.body, "topic", "consumerGroup")
        mode, share = document.get("mode") or PULL, document.get("popShareQueueNum") or 0
        if mode not in (PULL, POP) or not isinstance(share, int) or isinstance(share, bool):
            raise Refused(Code.SYSTEM_ERROR, f"mode={shown(mode)}, popShareQueueNum={shown(share)}: write "
                                             f"{PULL} or {POP}, and a number")
        if topic.startswith(RETRY_PREFIX):
            raise Refused(Code.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._metadata.topics.get(topic) is None:
            raise Refused(Code.TOPIC_NOT_EXIST, f"topic[{shown_bare(topic)}] not exist")
        if find_group(self._metadata, self._config, group, self._wall_ms()) is None:
            raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        self._metadata.request_modes.put(topic, group, {
            "consumerGroup": group, "mode": mode, "popShareQueueNum": share, "topic": topic,
        })
        self.log.info("consumers of {group} use {mode} for {topic} from now on: {address} says so",
                      group=group, mode=mode, topic=topic, address=connection.address)
        self._save().addCallbacks(
            lambda _: connection.answer(request),
            lambda failure: connection.answer(
                request, code=Code.SYSTEM_ERROR, remark=failure.getErrorMessage()
            ),
        )

    # -- assignments -----------------------------------------------------------------------------

    def _query(self, connection: CommandConnection, request: RemotingCommand) -> None:
        _, names = _document(
            request.body, "topic", "consumerGroup", "clientId", "strategyName", "messageModel"
        )
        asked = AssignmentQuestion(*names)
        known = self._routes.get(asked.topic)
        if known is not None and self._seconds() - known[0] < ROUTE_S:
            self._answer(connection, request, asked, known[1])
            return

        if self._asking >= ASKED_MAX:
            self._answer(connection, request, asked, None)
            return
        self._asking += 1

        def found(answer: RemotingCommand) -> None:
            self._asking -= 1
            queues = None if answer.code != SUCCESS else self._kept(asked.topic, answer.body)
            self._answer(connection, request, asked, queues)

        def failed(failure: Failure) -> None:
            self._asking -= 1
            self._answer(connection, request, asked, None)

        self._route_of(asked.topic).addCallbacks(found, failed)

    def _kept(self, topic: str, body: bytes) -> list[_Queue] | None:
        try:
            queues = queues_of_route(body)
        except BodyError as error:
            self.log.warn("the route of {topic} cannot be read: {reason}", topic=topic, reason=str(error))
            return None
        if len(self._routes) >= ROUTES_MAX and topic not in self._routes:
            del self._routes[next(iter(self._routes))]
        self._routes[topic] = self._seconds(), queues
        return queues

    def _answer(
        self, connection: CommandConnection, request: RemotingCommand, asked: AssignmentQuestion,
        queues: list[_Queue] | None,
    ) -> None:
        """@param queues: of all brokers; None: they are not known."""
        mode, share = self._mode_of(asked)
        given = None if queues is None else self._share(asked, queues, mode, share)
        body: dict[str, object] = {}
        if given is not None:
            body["messageQueueAssignments"] = [
                {"messageQueue": {"brokerName": name, "queueId": number, "topic": asked.topic}, "mode": mode}
                for name, number in given
            ]
        connection.answer(request, body=wire_json(body))

    def _mode_of(self, asked: AssignmentQuestion) -> tuple[str, int]:
        found = self._metadata.request_modes.get(asked.topic, asked.group)
        if found is None:
            return PULL, 0
        share = found.get("popShareQueueNum")
        return (POP if found.get("mode") == POP else PULL), share if isinstance(share, int) else 0

    def _share(
        self, asked: AssignmentQuestion, queues: list[_Queue], mode: str, share: int
    ) -> list[_Queue] | None:
        """Those of this consumer; None: it keeps its queues."""
        if asked.model == BROADCASTING:
            return queues
        clients = sorted(member.client_id for member in self._table.members_of(asked.group))
        if not clients or asked.rule not in (AVERAGELY, BY_CIRCLE):
            return None
        if mode == POP:
            return shared_for_pop(queues, clients, asked.client_id, asked.rule, share)
        return divided(queues, clients, asked.client_id, asked.rule)


def queues_of_route(body: bytes) -> list[_Queue]:
    """
    The queues of a topic that may be read, in RocketMQ's order.

    @param body: a name server's answer.
    @raise BodyError: it is malformed, or there are more than L{QUEUES_MAX}.
    """
    listed = read_document(body).get("queueDatas")
    if not isinstance(listed, list):
        raise BodyError("queueDatas is not an array")
    found: list[_Queue] = []
    for one in (to_object(item, "item of queueDatas") for item in listed):
        name, count = one.get("brokerName"), to_long(one.get("readQueueNums"), "readQueueNums")
        if not isinstance(name, str) or not 0 <= count <= QUEUES_MAX - len(found):
            raise BodyError(f"a broker has no name, or the topic more than {QUEUES_MAX} queues")
        if to_long(one.get("perm"), "perm") & PERM_READ:
            found += [(name, queue_id) for queue_id in range(count)]
    return sorted(found)


def divided(queues: Sequence[_Queue], clients: Sequence[str], client_id: str, rule: str) -> list[_Queue]:
    """
    The queues of one client of several.

    @param rule: L{AVERAGELY}: a piece of the list; L{BY_CIRCLE}: in turn.
    """
    if client_id not in clients or not queues:
        return []
    index, count = list(clients).index(client_id), len(clients)
    if rule == BY_CIRCLE:
        return list(queues[index::count])
    size, rest = divmod(len(queues), count)
    begin = index * size + min(index, rest)
    return list(queues[begin : begin + size + (index < rest)])


def shared_for_pop(
    queues: Sequence[_Queue], clients: Sequence[str], client_id: str, rule: str, share: int
) -> list[_Queue]:
    """
    The queues from which one client of several pops.

    @param share: number of clients after it, in their order, whose queues it has, too; 0: all queues.
    """
    if share <= 0 or share >= len(clients) - 1:
        return sorted({(name, -1) for name, _ in queues})
    if client_id not in clients or not queues:
        return []
    index = list(clients).index(client_id)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]]
    after = (clients[(index + step) % len(clients)] for step in range(share + 1))
    return sorted({queue for one in after for queue in divided(queues, clients, one, rule)})


def read_group(body: bytes) -> str:
    """The group of a question for an assignment. @raise Refused: it is malformed."""
    _, (group,) = _document(body, "consumerGroup")
    return group


def _document(body: bytes, *names: str) -> tuple[dict[str, object], list[str]]:
    """A request, and its names. @raise Refused: it is malformed."""
    try:
        document = read_request(body)
        return document, [name_in(document, name) for name in names]
    except BodyError as error:
        raise Refused(Code.SYSTEM_ERROR, str(error)) from error
