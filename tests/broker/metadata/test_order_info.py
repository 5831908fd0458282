# -*- test-case-name: tests.broker.metadata.test_order_info -*-
"""What groups hold that pop in order: the table, its file, and its part of a raft log."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.metadata import order_info
from dledger.rocketmq.metadata.order_info import FORGOTTEN_MS, OrderInfo, OrderInfos
from protocols.wire.errors import BodyError

#: As RocketMQ 5.3.3 writes it: of messages 5, 6 and 8 the second is done; the third has another time.
JAVA = b"""{
\t"table":{
\t\t"T@G":{3:{
\t\t\t\t"a":"one",
\t\t\t\t"cm":2,
\t\t\t\t"i":3000,
\t\t\t\t"l":1700000000007,
\t\t\t\t"o":[5,1,3],
\t\t\t\t"oc":{5:2},
\t\t\t\t"ot":{8:1700000009000},
\t\t\t\t"popTime":1700000000000
\t\t\t},4:{"o":[],"popTime":0}
\t\t}
\t}
}"""
INFO = OrderInfo(
    pop_ms=1_700_000_000_000, invisible_ms=3000, offsets=(5, 6, 8), done=frozenset({6}), attempt="one",
    visible_ms={8: 1_700_000_009_000}, tries={5: 2}, last_ms=1_700_000_000_007,
)
PLACE = ("T", "G", 3)


class InfoTests(SynchronousTestCase):
    """One pop."""

    def test_next(self) -> None:
        """The first message that is not done, or the one after the last."""
        self.assertEqual(INFO.next_offset, 5)
        for offsets, done, following in (((5, 6, 8), {5, 6}, 8), ((5,), {5}, 6)):
            info = OrderInfo(pop_ms=0, invisible_ms=0, offsets=offsets, done=frozenset(done))
            self.assertEqual(info.next_offset, following)

    def test_free(self) -> None:
        """The latest time of a message that is not done."""
        self.assertEqual(INFO.free_ms(), 1_700_000_009_000)
        done = OrderInfo(pop_ms=1, invisible_ms=2, offsets=(5, 6), done=frozenset({6}), visible_ms={6: 99})
        self.assertEqual(done.free_ms(), 3)
        self.assertEqual(OrderInfo(pop_ms=1, invisible_ms=2, offsets=(5,), done=frozenset({5})).free_ms(), 0)


class TableTests(SynchronousTestCase):
    """The table."""

    def test_file(self) -> None:
        """RocketMQ's file is read, and ours has the same fields."""
        infos = OrderInfos()
        infos.load(JAVA)
        self.assertEqual((len(infos), infos.get(PLACE), infos.is_dirty), (1, INFO, False))
        again = OrderInfos()
        again.load(infos.file_bytes())
        self.assertEqual(again.get(PLACE), INFO)
        document = json.loads(infos.file_bytes())["table"]["T@G"]["3"]
        self.assertEqual(document, {
            "popTime": 1_700_000_000_000, "i": 3000, "o": [5, 1, 3], "l": 1_700_000_000_007, "cm": 2,
            "ot": {"8": 1_700_000_009_000}, "oc": {"5": 2}, "a": "one",
        })

    def test_malformed(self) -> None:
        """Nothing has changed."""
        infos = OrderInfos()
        infos.put(PLACE, INFO)
        for body in (b"{", b"{}", b'{"table":5}', b'{"table":{"T@G":5}}', b'{"table":{"T@G":{"x":{}}}}',
                     b'{"table":{"T@G":{"1":{"o":[1]}}}}', b'{"table":{"T@G":{"1":{"o":["x"],"popTime":1}}}}',
                     b'{"table":{"T@G":{"1":{"o":[1],"popTime":1,"ot":{"x":1}}}}}'):
            self.assertRaises(BodyError, infos.load, body)
        self.assertEqual(infos.get(PLACE), INFO)

    def test_cleared(self) -> None:
        """Of one queue."""
        infos = OrderInfos()
        infos.put(PLACE, INFO)
        infos.put(("T", "G", 4), INFO)
        infos.clear(PLACE)
        infos.clear(("T", "H", 1))
        self.assertEqual((len(infos), list(infos.of("T", "G"))), (1, [4]))
        infos.clear(("T", "G", 4))
        self.assertEqual((len(infos), infos.names(), list(infos.changed)), (0, [], ["T@G"]))

    def test_deleted(self) -> None:
        """With a topic, or with a group, all its places go."""
        infos = OrderInfos()
        for topic, group in (("T", "G"), ("T", "H"), ("U", "G"), ("U", "H")):
            infos.put((topic, group, 3), INFO)
        infos.delete_topic("T")
        self.assertEqual(infos.names(), ["U@G", "U@H"])
        infos.delete_group("G")
        self.assertEqual((len(infos), infos.names()), (1, ["U@H"]))

    def test_old(self) -> None:
        """A day after its pop an entry goes, and with its topic or group at once."""
        infos = OrderInfos()
        for topic in ("T", "U"):
            infos.put((topic, "G", 3), INFO)
        infos.expire(INFO.last_ms + FORGOTTEN_MS, lambda topic, _: topic == "T")
        self.assertEqual(infos.names(), ["T@G"])
        infos.expire(INFO.last_ms + FORGOTTEN_MS + 1, lambda *_: True)
        self.assertEqual(len(infos), 0)

    def test_bound(self) -> None:
        """Of a full table only known places may be put."""
        self.patch(order_info, "ORDERS_MAX", 1)
        infos = OrderInfos()
        self.assertTrue(infos.has_room(PLACE))
        infos.put(PLACE, INFO)
        self.assertEqual([infos.has_room(PLACE), infos.has_room(("T", "G", 4))], [True, False])

    def test_logged(self) -> None:
        """Another table becomes the same by its changes."""
        ours, theirs = OrderInfos(), OrderInfos()
        ours.put(PLACE, INFO)
        ours.put(("U", "G", 0), INFO)
        self.assertEqual(list(ours.changed), ["T@G", "U@G"])
        for _ in range(2):
            theirs.apply({name: ours.logged(name) for name in ours.changed}, ours.logged_version())
            self.assertEqual((len(theirs), theirs.get(PLACE), theirs.is_dirty), (2, INFO, True))
        ours.clear(PLACE)
        theirs.apply({"T@G": ours.logged("T@G")}, None)
        self.assertEqual((len(theirs), theirs.get(PLACE)), (1, None))
        self.assertRaises(BodyError, theirs.apply, {"U@G": None, "T@G": {"x": 1}}, None)
        self.assertEqual(len(theirs), 1)
