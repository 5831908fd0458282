# -*- test-case-name: tests.broker.sending.test_plain_sends -*-
"""
Reads the most frequent requests of RocketMQ's Java producers: one message, to a queue of a topic that exists,
without properties that a broker acts on.

Requests of one shape (L{protocols.wire.rocketmq.send_request}) share a plan: the form of their records
(L{dledger.rocketmq.store.records.plain_records}).
L{dledger.rocketmq.broker.producing.sending.long_sends.LongSends} reads all requests that are not plain or are
malformed; it makes the same message of a plain request.

Rule: a plan holds until the topics change.
"""

from __future__ import annotations

import attrs

from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.options.own_address import OwnAddress
from dledger.rocketmq.broker.producing.rules import PutRules, host_of
from dledger.rocketmq.broker.producing.send_properties import plain_properties
from dledger.rocketmq.broker.producing.unique_ids import UniqueIds, find_unique_key
from dledger.rocketmq.store.records.plain_records import PlainForm, PlainMessage
from dledger.rocketmq.store.records.records import NewMessage
from dledger.rocketmq.store.records.store_config import RECORD_OVERHEAD_MAX
from protocols.rocketmq.broker import BrokerConnection
from protocols.wire.rocketmq.layout import TRANSACTION_MASK
from protocols.wire.rocketmq.send_request import SendMessageRequest, SendShape

_INT_MAX = 2**31 - 1


@attrs.frozen
class _Plan:
    """
    The facts that hold for requests of one shape.

    @ivar version: version of the topics from which it was made.
    @ivar form: form of their records; None: the requests are not plain.
    """

    version: object
    form: PlainForm | None = None
    queues: int = 0


class PlainSends:
    """Reads plain requests, for one broker."""

    def __init__(
        self, rules: PutRules, config: BrokerConfig, *, own: OwnAddress, ids: UniqueIds
    ) -> None:
        self._checks = rules.checks
        self._topics = rules.checks.topics
        self._added = rules.added
        self._ids = ids
        self._own = own
        # A shorter message passes L{CommitLog.check} with any topic and properties.
        self._body_max = min(
            config.store.max_message_size, config.store.mapped_file_size_commit_log - RECORD_OVERHEAD_MAX
        )

    def read(self, connection: BrokerConnection, request: SendMessageRequest) -> PlainMessage | None:
        """The message of a plain request; None: it is not plain."""
        shape, _, _, queue_id, born_timestamp, properties, body = request
        plan = shape.note
        if type(plan) is not _Plan or plan.version is not self._topics.version:
            plan = shape.note = self._plan(shape, connection)
        if plan.form is None or queue_id >= plan.queues or len(body) > self._body_max:
            return None
        stored = plain_properties(properties, self._added)
        if stored is not None and not find_unique_key(properties):
            stored += self._ids.property()
        return None if stored is None else PlainMessage(plan.form, queue_id, born_timestamp, stored, body)

    def _plan(self, shape: SendShape, connection: BrokerConnection) -> _Plan:
        version = self._topics.version
        get = shape.command.ext_fields.get
        sys_flag, flag = int(get("f", "0")), int(get("h", "0"))
        queues = self._checks.plain_queues(get("b", ""))
        if (
            not queues or sys_flag & TRANSACTION_MASK
            or not 0 <= sys_flag <= _INT_MAX or not 0 <= flag <= _INT_MAX
            or get("j", "0") != "0" or get("k", "false") != "false" or get("m", "false") != "false"
        ):
            return _Plan(version)
        like = NewMessage(
            topic=get("b", ""), queue_id=0, body=b"", properties_data=b"", flag=flag, sys_flag=sys_flag,
            born_timestamp=0, born_host=host_of(connection), store_host=self._own.host,
        )
        return _Plan(version, PlainForm(like), queues)
