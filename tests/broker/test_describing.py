# -*- test-case-name: tests.broker.test_describing -*-
"""The status of a broker for its pages."""

from __future__ import annotations

from dledger.rocketmq.broker.describing import consumer_lags
from dledger.rocketmq.broker.showing.status import ConsumerLag
from tests.broker.send_support import send_of
from tests.broker.test_service import WALL_S, ServiceCase


class StatusTests(ServiceCase):
    """Of a broker before, while, and after it runs."""

    def test_life(self) -> None:
        """It starts, serves, and does not run any more; numbers are those of its parts."""
        service = self.make()
        status = service.status()
        self.assertEqual((status.problem, status.end_offset), ("it does not run", -1))
        service.startService()
        self.assertEqual(service.status().problem, "it starts")
        self.settle()
        self.ask(send_of(b"one", opaque=1), send_of(b"two", opaque=2))
        self.pull()
        status = service.status()
        self.assertEqual((status.problem, status.name, status.role, status.log),
                         ("", "b", "ASYNC_MASTER", "commit log"))
        self.assertEqual((status.stored, status.delivered, status.address), (2, 2, "10.0.0.1:10911"))
        self.assertEqual(status.end_offset, self.broker.store.log.end_offset)
        self.assertGreater(status.uptime_s, 0)
        self.stop()
        self.assertEqual(service.status().problem, "it does not run")

    def test_failed(self) -> None:
        """A broker that could not start says so."""
        service = self.make()
        self.endpoints[0].fails = OSError("in use")
        service.startService()
        self.settle()
        self.assertEqual(service.status().problem, "it has failed; its log says why")
        self.stop()

    def test_lags(self) -> None:
        """Messages that a group has not committed; the largest lag first; bounded by queues."""
        self.start()
        self.ask(send_of(b"one", opaque=1), send_of(b"two", opaque=2), send_of(b"three", opaque=3))
        offsets, now_ms = self.broker.metadata.consumer_offsets, int(WALL_S * 1000)
        offsets.commit("slow", "T1", 0, 1, now_ms)
        offsets.commit("quick", "T1", 0, 3, now_ms)
        offsets.commit("gone", "no such topic", 5, 7, now_ms)
        self.assertEqual(consumer_lags(self.broker), ((
            ConsumerLag(group="slow", topic="T1", queues=1, messages=2),
            ConsumerLag(group="gone", topic="no such topic", queues=1, messages=0),
            ConsumerLag(group="quick", topic="T1", queues=1, messages=0),
        ), True))
        used: list[object] = []
        self.patch(self.broker.store.queues, "_touch", lambda key, queue: used.append(key))
        lags, are_whole = consumer_lags(self.broker, queues_max=1)
        self.assertEqual(used, [])  # a page must not close the files of queues in use
        self.assertEqual((len(lags), are_whole), (1, False))
        self.stop()

    def test_reread(self) -> None:
        """Options that may change are taken while it runs, and count; before the store is open none is."""
        service = self.make()
        wanted = {"file_reserved_time_h": 5, "connections_share": 20, "listen_port": 7}
        self.assertEqual(service.reread(wanted), frozenset())
        service.startService()
        self.settle()
        self.assertEqual(service.reread(wanted), {"file_reserved_time_h", "connections_share"})
        self.assertEqual(self.broker.config.store.expiry_rules.reserved_hours, 5)
        self.settle(1.1)
        self.assertEqual(self.broker.router.clients.share_percent, 20)
        self.stop()

    def test_pages(self) -> None:
        """They begin before the store is open, so that they can say that it starts, and end last."""
        reported = []

        class Pages:
            running = False

            def startService(self) -> None:
                """See IService."""
                self.running = True
                reported.append(service.status().problem)

            def stopService(self) -> None:
                """See IService."""
                reported.append(service.status().problem)

        self.make_admin = lambda _: Pages()  # type: ignore[assignment, return-value]
        service = self.make()
        service.startService()
        self.settle()
        self.stop()
        self.assertEqual(reported, ["it starts", "it does not run"])

    def test_no_pages(self) -> None:
        """Tokens that are not sound stop the start."""

        def fails(_: object) -> None:
            raise ValueError("admin_token_file=x: no such file")

        self.make_admin = fails  # type: ignore[assignment]
        service = self.make()
        service.startService()
        self.assertIn("cannot start the administration: admin_token_file=x", self.reasons[0])
        self.stop()
