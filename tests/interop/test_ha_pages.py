# -*- test-case-name: tests.interop.test_ha_pages -*-
"""The commands of docs/ha.md for a pair with RocketMQ, as they are printed there, with RocketMQ's brokers."""

from __future__ import annotations

import re
import shlex

from tests.interop.ha import CLUSTER, FILE_SIZE, OurBroker
from tests.interop.ha_story import TOPIC, Story
from tests.processes.pages import commands, programs


class PrintedCase(Story):
    """
    A pair whose broker of ours is started by a command of the page.

    @cvar title: of the section.
    """

    title = ""

    def play_printed(self) -> None:
        """The slave has what the master has, and the producer is answered SEND_OK."""
        (command,) = commands("ha.md", self.title)

        def become(broker: OurBroker, _role: str, **_more: object) -> None:
            others = {"DefaultCluster": CLUSTER, "127.0.0.1:9876": self.pair.name_server_address}
            others |= {printed: str(broker.store) for printed in re.findall(r"--store (\S+)", command)}
            words = [others.get(word, word) for word in shlex.split(command)]
            self.assertEqual([text for text in others if text not in command], [])
            # (The last one counts: --listen 20911 is for a machine without other brokers.)
            words += ["--listen", str(broker.port), "--ha-listen", str(broker.port + 1), "--set",
                      f"mappedFileSizeCommitLog={FILE_SIZE}", "--set", "brokerIP1=127.0.0.1"]
            broker.command = ["env", f"PATH={programs(self.pair.directory)['PATH']}", *words]

        self.patch(OurBroker, "become", become)
        self.start_all("5.3.3")
        self.pair.wait(lambda: self.pair.send(TOPIC, 1) == ["SEND_OK"], "a slave that acknowledges")
        self.assertEqual(self.pair.send(TOPIC, 20), ["SEND_OK"] * 20)
        self.check_equal()


class SlaveTests(PrintedCase):
    """Our slave, RocketMQ's master."""

    master, slave, title = "java", "ours", "Master of RocketMQ, slave of ours"

    def test_slave(self) -> None:
        """See L{PrintedCase.play_printed}."""
        self.play_printed()


class MasterTests(PrintedCase):
    """Our master, RocketMQ's slave."""

    master, slave, title = "ours", "java", "Master of ours, slave of RocketMQ"

    def test_master(self) -> None:
        """See L{PrintedCase.play_printed}."""
        self.play_printed()
