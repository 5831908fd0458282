# -*- test-case-name: tests.broker.sending.test_plain_sends -*-
"""
The short road of what RocketMQ's Java producers send most: one message, to a queue of a topic that is there,
with nothing in it that a broker acts on.

Requests are read by what they have in common (L{protocols.wire.rocketmq.send_request}), stored by what they
have in common (L{dledger.broker.store.plain_records}), and answered from a form. Whatever is not plain, or
is wrong in any way, goes the long road: L{dledger.broker.sending.sends.Sends}, which says the same of a
plain request, byte for byte.

Rule 1: messages are stored in the order of their requests. Rule 2: what was found out about requests of one
shape holds until the topics change.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.broker.common.config import BrokerConfig
from dledger.broker.ha.put_status import PutStatus
from dledger.broker.metadata.files import Metadata
from dledger.broker.metadata.tables import Topics
from dledger.broker.sending.plain_topics import PlainTopics
from dledger.broker.sending.puts import NotPut, PutPipeline
from dledger.broker.sending.send_properties import cluster_property
from dledger.broker.sending.sends import Sends, host_of, told_of
from dledger.broker.store.plain_records import PlainForm, PlainMessage
from dledger.broker.store.records import NewMessage
from dledger.broker.store.store_config import RECORD_OVERHEAD_MAX
from protocols.rocketmq.broker import BrokerConnection
from protocols.rocketmq.commands import VERSION
from protocols.wire.remoting import FLAG_RESPONSE, RemotingCommand, decode_command, encode_command
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX, TRANSACTION_MASK
from protocols.wire.rocketmq.message import Host
from protocols.wire.rocketmq.send_request import SendRequest, SendShape, SentAnswers

_INT_MAX = 2**31 - 1
_WAIT, _WAITS = b"WAIT\x01", b"WAIT\x01true"


@attrs.frozen
class _Plan:
    """
    What holds for requests of one shape.

    @ivar version: of the topics that it was made by.
    @ivar form: None: they are not plain.
    """

    version: object
    form: PlainForm | None = None
    queues: int = 0


def plain_properties(raw: bytes, added: bytes) -> bytes | None:
    """
    What is stored of a message's properties.

    @param added: what the broker adds.
    @return: None where something stands in them that has to be looked at closely, or its producer does not
        wait.
    """
    if (
        b"DELAY\x01" in raw or b"TRAN_MSG\x01" in raw or b"CLUSTER\x01" in raw or b"\0" in raw
        or b"TIMER_D" in raw
    ):  # fmt: skip
        return None
    at = raw.find(_WAIT)
    if at >= 0:
        end = at + len(_WAITS)
        if (
            not raw.startswith(_WAITS, at) or (at and raw[at - 1] != 2)
            or (end < len(raw) and raw[end] != 2) or raw.find(_WAIT, end) >= 0
        ):  # fmt: skip
            return None
        raw = raw[:at] + raw[end + 1 :]
    if len(raw) + len(added) >= PROPERTIES_BYTES_MAX:
        return None
    if raw and raw[-1] != 2:
        return raw + b"\x02" + added
    return raw + added


class PlainSends:
    """
    A L{SendSink}: takes the requests that look plain before anybody else.
    """

    log = Logger()

    def __init__(
        self, sends: Sends, pipeline: PutPipeline, metadata: Metadata, config: BrokerConfig, *,
        store_host: Host,
    ) -> None:
        """
        @param sends: the long road.
        """
        self._sends = sends
        self._pipeline = pipeline
        self._topics: Topics = metadata.topics
        self._plain_topics = PlainTopics(metadata.topics)
        self._cluster = cluster_property(config.broker_cluster_name)
        self._body_max = min(
            config.store.max_message_size, config.store.mapped_file_size_commit_log - RECORD_OVERHEAD_MAX
        )
        self._told = {"MSG_REGION": config.region_id, "TRACE_ON": str(config.trace_on).lower()}
        self._answers = SentAnswers(self._told, language="PYTHON", version=VERSION)
        self._id_start = (store_host.address + store_host.port.to_bytes(4, "big")).hex().upper().encode()
        self._store_host = store_host

    def sends_received(self, connection: BrokerConnection, requests: Sequence[SendRequest]) -> None:
        """See L{SendSink.sends_received}."""
        try:
            self._received(connection, requests)
        except Exception:
            # Some of them may have been answered: only the end of the connection answers the rest.
            self.log.failure("a send of {address} failed", Failure(), address=connection.address)
            connection.abort("a send failed in an unforeseen way")

    def _received(self, connection: BrokerConnection, requests: Sequence[SendRequest]) -> None:
        version, body_max, cluster = self._topics.version, self._body_max, self._cluster
        messages: list[PlainMessage] = []
        plain: list[SendRequest] = []
        rest: list[RemotingCommand] = []
        for request in requests:
            shape, frame, _, queue_id, born_timestamp, properties, body = request
            plan = shape.note
            if not isinstance(plan, _Plan) or plan.version is not version:
                plan = shape.note = self._plan(shape, connection)
            stored = plain_properties(properties, cluster)
            if plan.form is None or stored is None or queue_id >= plan.queues or len(body) > body_max:
                if plain:
                    self._put(connection, plain, messages)
                    plain, messages = [], []
                rest.append(decode_command(frame))
                continue
            if rest:
                self._sends.received(connection, rest)
                rest = []
            messages.append(PlainMessage(plan.form, queue_id, born_timestamp, stored, body))
            plain.append(request)
        if plain:
            self._put(connection, plain, messages)
        if rest:
            self._sends.received(connection, rest)

    def _plan(self, shape: SendShape, connection: BrokerConnection) -> _Plan:
        """What holds for requests of this shape as the topics are now."""
        version = self._topics.version
        get = shape.command.ext_fields.get
        sys_flag, flag = int(get("f", "0")), int(get("h", "0"))
        queues = self._plain_topics.queues_of(get("b", ""))
        if (
            not queues or sys_flag & TRANSACTION_MASK
            or not 0 <= sys_flag <= _INT_MAX or not 0 <= flag <= _INT_MAX
            or get("j", "0") != "0" or get("k", "false") != "false" or get("m", "false") != "false"
        ):  # fmt: skip
            return _Plan(version)
        like = NewMessage(
            topic=get("b", ""), queue_id=0, body=b"", properties_data=b"", flag=flag, sys_flag=sys_flag,
            born_timestamp=0, born_host=host_of(connection), store_host=self._store_host,
        )
        return _Plan(version, PlainForm(like), queues)

    def _put(
        self, connection: BrokerConnection, requests: Sequence[SendRequest], messages: Sequence[PlainMessage]
    ) -> None:
        # What waits for slaves keeps this, and not the requests with their bodies.
        asked = [(request.opaque, request.queue_id) for request in requests]
        body_bytes = sum([len(request.body) for request in requests])
        try:
            (offsets, queue_offsets, _, _), done = self._pipeline.put_plain(messages)
        except NotPut as error:
            connection.answer_sends(self._refusals(asked, *told_of(error)), body_bytes)
            return

        def stored(code: int) -> list[bytes]:
            frame, start = self._answers.frame, self._id_start
            places = zip(asked, offsets, queue_offsets, strict=True)
            return [
                frame(opaque, code, start, offset, queue_id, queue_offset)
                for (opaque, queue_id), offset, queue_offset in places
            ]

        # While slaves or the disk are at work there is time to make the answers that will be wanted.
        ready = None if done.called else stored(PutStatus.PUT_OK.remoting_code)

        def answer(status: PutStatus) -> None:
            if not status.is_stored:
                frames = self._refusals(asked, status.remoting_code, status.name)
            elif ready is not None and status is PutStatus.PUT_OK:
                frames = ready
            else:
                frames = stored(status.remoting_code)
            connection.answer_sends(frames, body_bytes)

        done.addCallback(answer)

    def _refusals(self, asked: Sequence[tuple[int, int]], code: int, remark: str) -> list[bytes]:
        return [
            encode_command(RemotingCommand(
                code=code, opaque=opaque, flag=FLAG_RESPONSE, version=VERSION, remark=remark,
                ext_fields=self._told,
            ))
            for opaque, _ in asked
        ]  # fmt: skip
