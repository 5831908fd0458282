# -*- test-case-name: tests.namesrv.test_config -*-
"""Options of a name server: spellings, limits, refusals."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.namesrv.config import (
    NameServerConfig,
    java_spelling,
    name_server_from_mapping,
    properties_text,
)
from dledger.values.option_values import read_properties
from tests.test_docs import DOCS

#: What getNamesrvConfig of 5.3.3 shows, in part, as a file.
ORDINARY = """
bindAddress=0.0.0.0
clientRequestThreadPoolNums=8
clusterTest=false
listenPort=19871
needWaitForService=false
orderMessageEnable=true
serverChannelMaxIdleTimeSeconds=120
supportActingMaster=false
waitSecondsForService=45
"""


class ConfigTests(SynchronousTestCase):
    """From names and values to options."""

    def refused(self, **values: object) -> str:
        """The reason."""
        return str(self.assertRaises(ValueError, name_server_from_mapping, values).args[0])

    def test_file_of_rocketmq(self) -> None:
        """It works; what has no meaning here is named."""
        config = name_server_from_mapping(read_properties(ORDINARY))
        self.assertEqual((config.listen_port, config.order_message_enable), (19871, True))
        self.assertIn("clientRequestThreadPoolNums", config.ignored)

    def test_refused(self) -> None:
        """What is wrong, and what is allowed."""
        self.assertIn("did you mean 'listen_port'", self.refused(listen_prot=1))
        self.assertIn("only false is possible", self.refused(supportActingMaster="true"))
        self.assertIn("must be <= 65535", self.refused(listenPort=65536))
        self.assertIn("write a whole number", self.refused(listenPort="x"))
        self.assertIn("given twice", self.refused(listenPort=1, listen_port=2))
        self.assertIn("write an IP address", self.refused(bindAddress="a.b"))
        self.assertIn("write the path of a file", self.refused(kvConfigPath="d/"))
        self.assertIn("must be in", self.refused(answersAs="5.0"))

    def test_shown(self) -> None:
        """The properties that are shown are read again."""
        config = name_server_from_mapping({"orderMessageEnable": "true", "kv": "x"})
        self.assertEqual(name_server_from_mapping(read_properties(properties_text(config))), config)

    def test_documented(self) -> None:
        """docs/namesrv.md has an item for each option."""
        rows = re.findall(r"^\* `(\w+)`", (DOCS / "namesrv.md").read_text("utf-8"), re.MULTILINE)
        names = [java_spelling(name) for name in NameServerConfig.__annotations__ if name != "ignored"]
        self.assertEqual([name for name in names if name not in rows], [])
