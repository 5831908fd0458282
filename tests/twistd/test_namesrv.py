# -*- test-case-name: tests.twistd.test_namesrv -*-
"""Options of C{twistd dledger-namesrv}, and of a broker with a name server of its own."""

from __future__ import annotations

from typing import Any

from twisted.application.service import IServiceMaker, Service
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.plugin import getPlugins
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from dledger.daemons.rocketmq import broker
from dledger.daemons.rocketmq.broker import BrokerWithNameServer
from dledger.daemons.rocketmq.namesrv import Options, make_service


def parsed(*words: str) -> Options:
    """What these words describe."""
    options = Options()
    options.parseOptions(words)
    return options


class OptionTests(SynchronousTestCase):
    """From words to a configuration."""

    def test_none(self) -> None:
        """RocketMQ's port on all interfaces."""
        options = parsed()
        self.assertEqual((options["listen"], options["admin"]), ("tcp:9876", None))
        self.assertEqual(options.name_server.kv_config_path, "./dledger-namesrv-data/kvConfig.json")

    def test_all(self) -> None:
        """The command line is above the file."""
        path = self.mktemp()
        with open(path, "w") as file:
            file.write("listenPort=1\nkvConfigPath=a\norderMessageEnable=true\nbindAddress=::1\n")
        options = parsed("--config", path, "--kv", "b", "--set", "answersAs=4.9", "--admin", "8080")
        config = options.name_server
        self.assertEqual((options["listen"], options["admin"]), ("tcp6:1:interface=\\:\\:1", "tcp:8080"))
        self.assertEqual((config.kv_config_path, config.answers_as), ("b", "4.9"))
        self.assertTrue(config.order_message_enable)
        options = parsed("--listen", "tcp:7:interface=127.0.0.1")
        self.assertEqual(options["listen"], "tcp:7:interface=127.0.0.1")
        self.assertEqual(options.name_server.listen_port, 7)
        toml = self.mktemp() + ".toml"
        with open(toml, "w") as file:
            file.write("topics_max = 5\n")
        self.assertEqual(parsed("-c", toml).name_server.topics_max, 5)

    def test_own_table(self) -> None:
        """In a file for several services; endpoints may be there, too."""
        path = self.mktemp() + ".toml"
        with open(path, "w") as file:
            file.write('[member]\nx = 1\n'
                       '[namesrv]\ntopics_max = 5\nlisten = 7\nadmin = 8\nadminHosts = "a"\n')
        options = parsed("--config", path)
        self.assertEqual((options["listen"], options["admin"]), ("tcp:7", "tcp:8"))
        self.assertEqual((options.name_server.listen_port, options.name_server.topics_max), (7, 5))
        found = {one.name: (one.value, one.origin) for one in options.in_force}
        self.assertEqual((found["listen_port"], found["admin_hosts"]), ((7, "file"), ("a", "file")))
        self.assertEqual(parsed("--config", path, "--listen", "9").name_server.listen_port, 9)
        error = self.assertRaises(UsageError, parsed, "--config", path, "--set", "listenPort=9")
        self.assertIn("both name a port", str(error))

    def test_refused(self) -> None:
        """One line each."""
        for words, reason in (
            (["--listen", "x"], "write a port"), (["--listen", "65536"], "write a port"),
            (["--set", "listenPrt=1"], "did you mean 'listen_port'"),
            (["--config", "/no/file"], "No such file"),
            (["--set", "bindAddress=10.0.0.1", "--listen", "1"], "give one of them"),
            (["--admin", "9876"], "has the port of the name server"), (["--admin", "tcp:x:y"], "no endpoint"),
            (["--admin", "tcp:1:interface=0.0.0.0"], "or say --insecure"),
            (["--set", "tlsMode=enforcing"], "needs tls_certificate"),
            (["--set", "admin_token_reads=true"], "needs admin_token_file"),
            (["more"], "is not an option"), (["--set", "topics_max=0"], "a number of at least 1"),
            (["--set", "answersAs=6"], "write one of '4.9', '5.3'"),
        ):
            self.assertIn(reason, str(self.assertRaises(UsageError, parsed, *words)))

    def test_insecure(self) -> None:
        """The operator's word, in three places."""
        path = self.mktemp()
        with open(path, "w") as file:
            file.write("insecure=true\n")
        for words in (("--insecure",), ("--set", "insecure=true"), ("--config", path)):
            self.assertTrue(parsed("--admin", "tcp:1:interface=0.0.0.0", *words).name_server.insecure)

    def test_plugin(self) -> None:
        """twistd finds it; making the service touches nothing."""
        found = {maker.tapname: maker.module for maker in getPlugins(IServiceMaker)}
        self.assertEqual(found["dledger-namesrv"], "dledger.daemons.rocketmq.namesrv")
        clock: Any = Clock()
        self.assertFalse(make_service(parsed("--admin", "0"), clock).running)


KEYS = ("--set", "tls_certificate=c", "--set", "tls_key=k", "--set", "tls_authority=a")


class TogetherTests(SynchronousTestCase):
    """twistd dledger-broker --with-namesrv."""

    def options(self, *words: str) -> broker.Options:
        """Parsed."""
        options = broker.Options()
        options.parseOptions(list(words))
        return options

    def test_registers(self) -> None:
        """At its own name server first; the KV configuration is in the store."""
        options = self.options("--with-namesrv", "--listen", "tcp:1234:interface=127.0.0.1", "--store", "d",
                               "--namesrv", "n:1")
        self.assertEqual(options.broker.name_servers, ("127.0.0.1:9876", "n:1"))
        assert options.name_server is not None
        self.assertEqual(options.name_server.kv_config_path, "d/namesrv/kvConfig.json")
        self.assertEqual(options["namesrv-listen"], "tcp:9876:interface=127.0.0.1")
        self.assertIsNone(self.options().name_server)

    def test_change_hosts(self) -> None:
        """Of both."""
        options = self.options("--with-namesrv", "--set", "changeHosts=10.0.0.7;10.0.1.0/24")
        assert options.name_server is not None
        for config in (options.broker, options.name_server):
            self.assertEqual(config.change_hosts, ("10.0.0.7", "10.0.1.0/24"))
        error = self.assertRaises(UsageError, self.options, "--set", "changeHosts=localhost")
        self.assertIn("changeHosts: 'localhost' is neither an IP address nor a network", str(error))

    def test_refused(self) -> None:
        """A port that the broker has, none, and an option without the other."""
        for words, reason in (
            (("--with-namesrv", "--namesrv-listen", "10911"), "the broker itself has the ports"),
            (("--with-namesrv", "--namesrv-listen", "0"), "write a port"),
            (("--with-namesrv", *KEYS, "--set", "tls_mode=enforcing"), "so say tls_namesrv_enable=true"),
            (("--namesrv-listen", "1"), "belongs to --with-namesrv"),
        ):
            self.assertIn(reason, str(self.assertRaises(UsageError, self.options, *words)))

    def test_tls(self) -> None:
        """The name server has the mode and the keys of the broker."""
        for mode, words in (("permissive", ()), ("enforcing", ("--set", "tls_namesrv_enable=true"))):
            options = self.options("--with-namesrv", *KEYS, "--set", f"tls_mode={mode}", *words)
            assert options.name_server is not None
            self.assertEqual(options.name_server.tls_mode, mode)
            self.assertEqual(options.name_server.tls_files, options.broker.tls_files)
        options = self.options("--with-namesrv", *KEYS, "--set", "tls_enable=true")
        assert options.name_server is not None
        self.assertIsNone(options.name_server.tls_files)

    def test_order(self) -> None:
        """The name server ends when the broker has."""
        ended: list[str] = []
        waits: Deferred[None] = Deferred()

        class Part(Service):
            def stopService(self) -> Any:
                super().stopService()
                ended.append(self.name or "")
                return waits if self.name == "broker" else None

        name_server, one = Part(), Part()
        name_server.setName("namesrv")
        one.setName("broker")
        both = BrokerWithNameServer(name_server, one)
        both.startService()
        self.assertTrue(name_server.running and one.running)
        stopped = both.stopService()
        self.assertEqual(ended, ["broker"])
        waits.callback(None)
        self.successResultOf(stopped)
        self.assertEqual(ended, ["broker", "namesrv"])
