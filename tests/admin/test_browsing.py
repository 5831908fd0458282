# -*- test-case-name: tests.admin.test_browsing -*-
"""The pages that show what is stored: of a member, and of a broker."""

from __future__ import annotations

from typing import Any

import treq
from markupsafe import escape
from treq.testing import StubTreq
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.broker import BrokerPages
from dledger.admin.browsing import entries
from dledger.admin.browsing.query import COUNT_MAX, JSON_CHARS, PREVIEW_BYTES, preview_of
from dledger.admin.dashboard.frame import POLICY
from dledger.values.ledger.holes import Hole
from protocols.wire.ledger.envelopes import envelope_head
from protocols.wire.ledger.own.own_entries import SESSION_CHANNEL, TIME_CHANNEL
from protocols.wire.ledger.own.time_entries import TimeReset, encode_time_entry
from tests.admin import test_broker, test_resource
from tests.admin.fakes import picture

HTML = {"accept": ["text/html,*/*"]}
TIME_MS = 1_700_000_000_000


class PreviewTests(SynchronousTestCase):
    """The beginning of a body for people."""

    def test_text(self) -> None:
        """Text stays text; a letter that is cut at the end does not make it bytes."""
        self.assertEqual(preview_of("a\tb\nKöln".encode()), ("a\tb\nKöln", True))
        self.assertEqual(preview_of(b""), ("", True))
        for letter in ("ö", "€", "😀"):
            size = len(letter.encode())
            for shift in range(size):
                body = b"x" * shift + letter.encode() * PREVIEW_BYTES
                text, is_text = preview_of(body)
                self.assertTrue(is_text, (letter, shift))
                self.assertEqual(text, "x" * shift + letter * ((PREVIEW_BYTES - shift) // size))

    def test_bytes(self) -> None:
        """Others are shown in hexadecimal: control characters, and bytes that are no UTF-8."""
        self.assertEqual(preview_of(b"\x00\x01\xff\xfe\xfd"), ("00 01fffefd", False))
        for body in (b"a\x1b[31m", b"\xff" * 500, b"ok\x7f", b"text \xf0\x9f"):
            shown, is_text = preview_of(body)
            self.assertFalse(is_text, body)
            self.assertEqual(bytes.fromhex(shown), body[:PREVIEW_BYTES])


    def test_styles(self) -> None:
        """Always in hexadecimal; as JSON with its lines, where it is some, and not too long."""
        self.assertEqual(preview_of(b"ab", "hex"), ("6162", False))
        self.assertEqual(preview_of(b'{"a":[1]}', "json"), ('{\n "a": [\n  1\n ]\n}', True))
        self.assertEqual(preview_of(b"no json", "json"), ("no json", True))
        self.assertEqual(preview_of(b"\xff", "json"), ("ff", False))
        deep = b"[" * 100_000
        self.assertEqual(preview_of(deep, "json"), ("[" * PREVIEW_BYTES, True))
        self.assertEqual(preview_of(b"[" * 60_000, "json"), ("[" * PREVIEW_BYTES, True))
        self.assertEqual(len(preview_of(b"[" + b"1," * 2000 + b"1]", "json")[0]), JSON_CHARS)


class EntryTests(test_resource.PageCase):
    """Entries 5 to 99 of a member, of which each tenth has a time."""

    def setUp(self) -> None:
        super().setUp()
        self.node.stored = {index: self.body(index) for index in range(5, 100)}
        self.node.channels = {7: SESSION_CHANNEL}

    def body(self, index: int) -> bytes:
        """One entry a second."""
        text = f"entry {index} <b>".encode()
        return envelope_head(TIME_MS + index * 1000, {"kind": b"a&b"}) + text if index % 10 == 0 else text

    def ask_all(self, path: str, html: bool = False) -> Any:
        """The response, after as many turns as it takes."""
        asked = self.treq.get(f"http://admin.test{path}", headers=HTML if html else {})
        for _ in range(600):
            self.clock.advance(0)
            self.treq.flush()
        return self.successResultOf(asked)

    def shown(self, path: str, status: int = 200) -> Any:
        """The JSON of a page."""
        response = self.ask_all(path)
        self.assertEqual(response.code, status, path)
        return self.successResultOf(treq.json_content(response))

    def indexes(self, path: str) -> list[int]:
        """The entries of a page."""
        return [one["index"] for one in self.shown(path)["entries"]]

    def html(self, path: str) -> str:
        """The page for browsers."""
        response = self.ask_all(path, html=True)
        text: str = self.successResultOf(response.text())
        return text

    def test_pages(self) -> None:
        """The last ones, those from an index on, and none after the last."""
        self.assertEqual(self.indexes("/entries"), list(range(80, 100)))
        self.assertEqual(self.indexes("/entries?from=last&count=2"), [98, 99])
        self.assertEqual(self.indexes("/entries?from=5&count=3"), [5, 6, 7])
        self.assertEqual(self.indexes(f"/entries?from=5&count={COUNT_MAX}"), list(range(5, 100)))
        document = self.shown("/entries?from=100")
        self.assertEqual((document["entries"], document["next_index"]), ([], 100))
        self.assertEqual((document["begin_index"], document["committed_index"]), (5, 99))

    def test_entry(self) -> None:
        """Everything of one: its envelope is opened, and a control entry is marked as such."""
        one, = self.shown("/entries?from=10&count=1")["entries"]
        self.assertEqual(one, {
            "index": 10, "term": 7, "position": 10_000, "kind": "body", "time_ms": TIME_MS + 10_000,
            "headers": {"kind": "a&b"}, "body_bytes": 12, "body": "entry 10 <b>", "is_text": True,
        })
        one, = self.shown("/entries?from=7&count=1")["entries"]
        self.assertEqual((one["kind"], one["time_ms"], one["headers"]), ("control", None, {}))

    def test_bounds(self) -> None:
        """A page reads its bound of bytes, whatever is asked for, and at least one entry."""
        self.node.stored[50] = b"\xff" * 300_000
        self.assertEqual(self.indexes("/entries?from=50"), [50])
        one, = self.shown("/entries?from=50")["entries"]
        self.assertEqual((one["body_bytes"], len(one["body"].replace(" ", ""))), (300_000, 2 * PREVIEW_BYTES))
        self.assertEqual({size for _, size in self.node.reads}, {256 * 1024})

    def test_uncommitted(self) -> None:
        """What is not committed is not shown."""
        self.node.picture = picture(committed_index=60)
        self.assertEqual(self.indexes("/entries?count=2"), [59, 60])
        self.assertIn("entry 62 is not committed: the last one is 60",
                      self.shown("/entries?from=62", 404)["error"])

    def test_time(self) -> None:
        """After the last entry that is known to be earlier; from the begin if none is."""
        for second, first in ((-5, 5), (0, 5), (10, 5), (11, 11), (50, 41), (90, 81), (91, 91), (999, 91)):
            path = f"/entries?time={TIME_MS + second * 1000}&count=1"
            self.assertEqual(self.shown(path)["first_index"], first, second)
        self.assertEqual(self.shown("/entries?time=2023-11-14T22:14:00&count=1")["first_index"], 31)

    def note_times(self) -> None:
        """A leader has noted a time after each tenth entry; its clock goes by a second each time."""
        self.node.has_times = True
        for number in range(9):
            index = 11 + 10 * number
            self.node.stored[index] = encode_time_entry(TIME_MS + 1000 * number)
            self.node.channels[index] = TIME_CHANNEL

    def test_times_of_leaders(self) -> None:
        """They are shown, wherever a page begins, and a search goes by them, exactly."""
        self.note_times()
        shown = self.shown("/entries?from=25&count=10")["entries"]
        self.assertEqual([entry["time_ms"] for entry in shown], [TIME_MS + 1000] * 6 + [TIME_MS + 2000] * 4)
        for ms, first in ((1000, 21), (7500, 91), (8000, 91)):
            self.assertEqual(self.indexes(f"/entries?time={TIME_MS + ms}")[0], first, ms)
        self.assertEqual(self.indexes(f"/entries?time={TIME_MS + 8001}"), [])

    def test_times_before_a_reset(self) -> None:
        """None is shown as later than the reset, and a search goes by that."""
        self.note_times()
        self.node.time_resets = (TimeReset(61, TIME_MS + 2500),)
        shown = self.shown("/entries?from=25&count=40")["entries"]
        self.assertEqual([entry["time_ms"] - TIME_MS for entry in shown],
                         [1000] * 6 + [2000] * 10 + [2500] * 20 + [5000] * 4)
        for ms, first in ((2000, 31), (2001, 41), (2500, 41), (2501, 61), (4500, 61)):
            self.assertEqual(self.indexes(f"/entries?time={TIME_MS + ms}")[0], first, ms)

    def test_much_in_a_minute(self) -> None:
        """A search that would take too many looks says where to go on, and shows nothing of before."""
        self.patch(entries, "LOOKS_MAX", 10)
        self.patch(entries, "PAGE_BYTES_MAX", 100)
        for index in range(5, 100):
            self.node.stored[index] = envelope_head(TIME_MS + index * 1000, {}) + b"timed"
        error = self.shown(f"/entries?time={TIME_MS + 90_000}", 503)["error"]
        self.assertRegex(error, "ask for a later time, or from=[0-9]+$")

    def test_many_without_times(self) -> None:
        """A page of entries without a time ends the search: they may be of the time."""
        self.patch(entries, "PAGE_BYTES_MAX", 1)
        self.assertEqual(self.shown(f"/entries?time={TIME_MS + 80_500}&count=1")["first_index"], 21)

    def test_no_times(self) -> None:
        """The error says what gives entries a time; an empty log is empty."""
        self.node.stored = {index: b"x" for index in range(5, 100)}
        self.assertIn("envelope=True", self.shown("/entries?time=1700000000", 404)["error"])
        self.node.picture = picture(committed_index=-1, ledger_begin_index=-1)
        self.assertEqual(self.shown("/entries?time=1700000000")["entries"], [])
        self.assertEqual(self.shown("/entries")["entries"], [])

    def test_search_is_bounded(self) -> None:
        """A search takes one look in a turn of the reactor, and searches and pages follow one another."""
        asked = [self.treq.get(f"http://admin.test/entries?time={TIME_MS}") for _ in range(2)]
        asked.append(self.treq.get("http://admin.test/entries"))
        self.treq.flush()
        self.assertEqual(self.node.reads, [])
        self.clock.advance(0)  # (It goes on until nothing is scheduled any more.)
        self.treq.flush()
        self.assertEqual(self.node.reads[0], (52, entries.LOOK_BYTES))
        for one in asked:
            self.assertEqual(self.successResultOf(one).code, 200)
        *searches, page = self.node.reads
        half = len(searches) // 2
        self.assertEqual(searches[:half], searches[half:])
        self.assertEqual(page[0], 80)

    def test_wrong(self) -> None:
        """What was wrong, and what is allowed."""
        for query, words in (
            ("from=x", "not a whole number"), ("from=-1", "not a whole number"),
            ("from=" + "9" * 20, "not a whole number"),
            ("from=%D9%A3", "not a whole number"), ("count=0", "1 to 100"), ("count=101", "0 to 100"),
            ("form=1", "known: as, count, from, time"), ("as=xml", "none of hex, json"),
            ("from=1&from=2", "2 times"), ("from=%FF", "not UTF-8"),
            ("time=now", "2026-01-31T12:00:00"), ("time=1700000000&from=1", "not both"),
            ("time=" + "1" * 2000, "longer than"),
        ):
            self.assertIn(words, self.shown(f"/entries?{query}", 400)["error"], query)
            self.assertIn("dledger", self.html(f"/entries?{query}"))
        self.assertIn("deleted: the log begins at 5", self.shown("/entries?from=4", 404)["error"])

    def test_damaged(self) -> None:
        """An entry that cannot be read is reported, in both forms, and the next request works."""
        self.node.picture = picture(holes=(Hole(first_index=7, last_index=8, position=0, end_position=9),))
        self.assertIn("entry 80 is damaged", self.shown("/entries", 503)["error"])
        self.assertIn("entry 80 is damaged", self.html("/entries"))
        self.node.picture = picture()
        self.assertEqual(len(self.indexes("/entries")), 20)

    def test_html(self) -> None:
        """A table with links to the other pages, and a form that keeps what was asked; all escaped."""
        page = self.html("/entries?from=40&count=20")
        self.assertIn("Entries 40 to 59; the log has 5 to 99.", page)
        self.assertIn('href="entries?from=60"', page)
        self.assertIn('href="entries?from=20"', page)
        self.assertIn("entry 41 &lt;b&gt;", page)
        self.assertIn("kind: a&amp;b", page)
        self.assertIn("2023-11-14 22:14:10.000", page)
        self.assertIn('name="from" value="40"', page)
        self.assertNotIn("<b>", page)
        self.assertNotIn(">later<", self.html("/entries"))
        self.assertNotIn(">earlier<", self.html("/entries?from=5"))
        self.assertIn("from=8&amp;count=3", self.html("/entries?from=5&count=3"))

    def test_style(self) -> None:
        """Bodies as they are asked for, and so on the next page."""
        page = self.html("/entries?from=40&count=20&as=hex")
        self.assertIn("hex</span>", page)
        self.assertIn("as=hex", page[page.index(">first<") - 40 :])
        self.assertFalse(self.shown("/entries?from=40&as=hex")["entries"][0]["is_text"])

    def test_form(self) -> None:
        """The form alone shows nothing that is stored."""
        page = self.html("/browse")
        self.assertIn('action="entries"', page)
        self.assertNotIn("entry 9", page)
        self.assertEqual(self.node.reads, [])


class MessageTests(SynchronousTestCase):
    """The pages of a broker with one queue."""

    def setUp(self) -> None:
        self.broker = test_broker.FakeBroker()
        pages = BrokerPages(self.broker, Clock().seconds, wall_s=lambda: 1_700_000_000.0)
        self.stub = StubTreq(pages.app.resource())
        self.asked = self.broker.messages.asked

    def shown(self, path: str, status: int = 200) -> Any:
        """The JSON of a page."""
        response = self.successResultOf(self.stub.get(f"http://admin.test{path}"))
        self.assertEqual(response.code, status, path)
        return self.successResultOf(treq.json_content(response))

    def html(self, path: str) -> str:
        """The page for browsers."""
        response = self.successResultOf(self.stub.get(f"http://admin.test{path}", headers=HTML))
        text: str = self.successResultOf(response.text())
        return text

    def test_queue(self) -> None:
        """From an offset, from a time, or the last ones."""
        for query, first in (("", 40), ("&from=5", 5), ("&from=last&count=7", 53), ("&time=1700000000", 40)):
            document = self.shown(f"/messages?topic=orders{query}")
            self.assertEqual(document["first_offset"], first, query)
            self.assertEqual(document["messages"][0]["queue_offset"], first)
        self.assertIn(("orders", 0, 1_700_000_000_000), self.asked)
        one = document["messages"][0]
        self.assertEqual((one["body"], one["body_bytes"], one["is_text"]), ("{}", 2, True))
        self.assertEqual(one["properties"]["city"], "Köln")
        self.assertEqual(self.shown("/messages?topic=orders&as=hex")["messages"][0]["body"], "7b7d")
        self.assertIn("<code>{}</code>", self.html("/messages?topic=orders&as=json"))

    def test_key_and_position(self) -> None:
        """By key, and by the place in the log."""
        document = self.shown("/messages?topic=orders&key=k%201&count=5")
        self.assertEqual(self.asked, [("orders", "k 1", 5)])
        self.assertEqual((document["queue"], document["is_whole"]), (None, False))
        self.shown("/messages?position=4096")
        self.assertEqual(self.asked[1:], [(4096,)])

    def test_wrong(self) -> None:
        """What was wrong, and what is allowed."""
        for path, status, words in (
            ("/messages", 400, "give topic"), ("/messages?topic=orders&as=xml", 400, "none of hex, json"),
            ("/messages?topic=none", 404, "no queue 0"),
            ("/messages?topic=orders&queue=9", 404, "no queue 9"),
            ("/messages?topic=orders&queue=x", 400, "not a whole number"),
            ("/messages?topic=orders&key=k&from=3", 400, "either from or key"),
            ("/messages?topic=orders&position=x", 400, "position='x'"),
            ("/topics?queue=1", 400, "known: topic"),
        ):
            self.assertIn(words, self.shown(path, status)["error"], path)
            self.assertIn(escape(words), self.html(path))
        self.broker.picture = test_broker.picture(problem="it starts")
        for path in ("/messages?topic=orders", "/topics"):
            self.assertIn("not open", self.shown(path, 503)["error"])

    def test_html(self) -> None:
        """Tables with links; all escaped."""
        page = self.html("/topics")
        self.assertIn('href="messages?topic=orders&amp;queue=0"', page)
        self.assertIn("1 queues.", page)
        page = self.html("/messages?topic=orders&from=5")
        self.assertIn("20 messages from offset 5 on; queue 0 of orders has 3 to 59.", page)
        self.assertIn('from=25"', page)
        self.assertIn("city=Köln", page)
        self.assertIn("2023-11-14 22:13:20.001", page)
        self.assertNotIn(test_broker.NASTY, page)
        self.assertIn("There may be more.", self.html("/messages?topic=orders&key=k"))
        self.assertIn('action="messages"', self.html("/browse"))


class StillPageTests(SynchronousTestCase):
    """What every page of these needs."""

    def test_policy(self) -> None:
        """The scripts that the pages have are those that they allow; forms go to the same server."""
        self.assertIn("form-action 'self'", POLICY)
        self.assertEqual(POLICY.count("sha256-"), 3)
