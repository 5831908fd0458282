# -*- test-case-name: tests.namesrv.test_answers -*-
"""Text in answers: the escapes of Java's fastjson, as measured with the name servers 4.9.7 and 5.3.3."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.pieces import at_once
from dledger.rocketmq.namesrv.answers import member_group_body, route_body, topics_body
from dledger.rocketmq.namesrv.registrations import TopicQueues
from dledger.rocketmq.namesrv.routes import BrokerGroup, TopicRoute

STRANGE = "ü/<('\"\\\x01\x7f\u2028😀é\x1f&\t"


class EscapeTests(SynchronousTestCase):
    """Two ways to write a text."""

    def test_usual(self) -> None:
        """Only control characters and separators of lines are escaped."""
        self.assertEqual(at_once(topics_body([STRANGE])), (
            '{"topicList":["ü/<(\'\\"\\\\\\u0001\\u007F\\u2028😀é\\u001F&\\t"]}'.encode()
        ))

    def test_strict(self) -> None:
        """Everything beyond ASCII is escaped, and the slash."""
        group = BrokerGroup(cluster="C", name=STRANGE, addresses={0: "a"})
        route = TopicRoute(queues={STRANGE: TopicQueues()}, groups=(group,), filter_servers={"a": ("f",)})
        body = at_once(route_body(route, order_conf=None, is_strict=True, is_5=False))
        self.assertIn(
            b'"brokerName":"\\u00FC\\/<(\'\\"\\\\\\u0001\\u007F\\u2028\\uD83D\\uDE00\\u00E9\\u001F&\\t"', body
        )
        self.assertEqual(json.loads(body)["brokerDatas"][0]["brokerName"], STRANGE)
        self.assertIn(b'"filterServerTable":{"a":["f"]}', body)

    def test_zone(self) -> None:
        """Of 5.x, if a broker named one."""
        group = BrokerGroup(cluster="C", name="b", addresses={-1: "a"}, zone="z", acting=True)
        route = TopicRoute(queues={"b": TopicQueues()}, groups=(group,), filter_servers={})
        self.assertIn(b'{-1:"a"},"brokerName":"b","cluster":"C","enableActingMaster":true,"zoneName":"z"}',
                      at_once(route_body(route, order_conf=None, is_strict=False, is_5=True)))

    def test_no_members(self) -> None:
        """Fields that the request lacks are not in the answer."""
        self.assertEqual(member_group_body(None, None, {}), b'{"brokerMemberGroup":{"brokerAddrs":{}}}')
