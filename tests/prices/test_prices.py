# -*- test-case-name: tests.prices.test_prices -*-
"""
Every request of every server has a price, within what one turn may take, and costs no more. This is a sample:
small states, the smallest and the dearest case of each request; C{python -m tests.prices} looks at all.
"""

from __future__ import annotations

import gc

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.tuning import keep_freed_memory
from protocols.turn import READS_S
from tests.prices.meter import Cost
from tests.prices.servers import SERVERS
from tests.prices.table import BEYOND, FACTOR, TABLE, Price, names_of, parsed, too_dear, unpriced

#: Of the sample: the size of the state, and connections that ask together.
SCALE, TOGETHER = 0.004, 64


class PriceTests(SynchronousTestCase):
    """The table, and a sample of costs; the collector of garbage does not count."""

    def setUp(self) -> None:
        keep_freed_memory()  # as servers do; else each large buffer costs a fault for each of its pages
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)

    def test_sample(self) -> None:
        """Each request has a price; its smallest and its first large case cost no more."""
        prices = parsed(TABLE.read_text("utf-8"))
        names: list[str] = []
        for make in SERVERS.values():
            server = make(SCALE)
            self.assertEqual(set(server.cases), set(server.requests), "a request has no cases")
            names += names_of(server)
            self.assertEqual(unpriced(prices, names), [])
            complaints, answered = [], 0
            for request in server.requests:
                for number, (what, data) in enumerate((server.cases[request][0], server.cases[request][-1])):
                    cost = min((server.ask(data, 1) for _ in range(3)), key=lambda one: one.turn_s)
                    answered += cost.is_answered
                    name = f"{server.name} {request}"
                    complaints.append(
                        prices[name].complaint(name, what, cost, len(data), is_small=not number)
                    )
            self.assertEqual(list(filter(None, complaints)), [])
            self.assertGreater(answered, 1.5 * len(server.requests), server.name)
        self.assertEqual(sorted(prices), sorted(names), "the table has requests that nobody answers")
        self.assertEqual(too_dear(prices), [])
        self.assertLessEqual(set(BEYOND), set(names))

    def test_together(self) -> None:
        """Many connections with long requests hold a server for little longer than one."""
        for name, request, what in (
            ("name server", "103", "packed 1"), ("name server", "103", "a bomb"), ("broker", "34", "topics"),
            ("broker", "202", "with fields"),
        ):
            server = SERVERS[name](SCALE)
            data = dict(server.cases[request])[what]
            cost = min((server.ask(data, TOGETHER) for _ in range(2)), key=lambda one: one.turn_s)
            self.assertTrue(cost.is_answered, name)
            self.assertLess(cost.turn_s, FACTOR * 2 * READS_S, name)


class TableTests(SynchronousTestCase):
    """What is a complaint."""

    def test_complaints(self) -> None:
        """Of time and of memory, beyond what the noise of a machine explains."""
        price = Price(500, 4000, 100)
        cost = Cost(turn_s=0.015, all_s=1.0, turns=9, sent_bytes=1, is_answered=True, peak_bytes=1 << 20)
        self.assertEqual(price.complaint("a", "b", cost, 1000, is_small=False), "")
        self.assertIn("a turn takes 15000 us", price.complaint("a", "b", cost, 1000, is_small=True))
        large = Cost(turn_s=0.001, all_s=1.0, turns=9, sent_bytes=1, is_answered=True, peak_bytes=3 << 20)
        self.assertIn("it holds", price.complaint("a", "b", large, 1000, is_small=False))
        self.assertEqual(price.complaint("a", "b", large, 1 << 20, is_small=False), "")

    def test_rules(self) -> None:
        """No price is beyond a turn without a reason, no request without a price."""
        prices = parsed("a 1: 10 us, 5000 us, 7 KiB\na 2: 10 us, 7000 us, 7 KiB\n")
        self.assertEqual(len(too_dear(prices)), 1)
        self.assertEqual(too_dear({next(iter(BEYOND)): prices["a 2"]}), [])
        self.assertEqual(len(unpriced(prices, ["a 1", "a 3"])), 1)
        self.assertRaises(ValueError, parsed, "a 1: 10 us\n")
        self.assertEqual(str(prices["a 1"]), "10 us, 5000 us, 7 KiB")
