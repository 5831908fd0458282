# -*- test-case-name: tests.twistd.test_broker -*-
"""Options of C{twistd dledger-broker}: their service, and the errors of those that make no sense."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.plugin import getPlugins
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from dledger.daemons.rocketmq.broker import Options, make_service


def parsed(*words: str) -> Options:
    """What these words describe."""
    options = Options()
    options.parseOptions(words)
    return options


class OptionTests(SynchronousTestCase):
    """From words to a configuration."""

    def test_none(self) -> None:
        """An asynchronous master where RocketMQ's would be."""
        options = parsed()
        self.assertEqual(options.broker.ha.broker_role, "ASYNC_MASTER")
        self.assertEqual((options["listen"], options["ha-listen"]), ("tcp:10911", "tcp:10912"))
        self.assertEqual(options.broker.store.store_path_root_dir, "./dledger-broker-data")
        self.assertTrue(options.broker.broker_name)
        self.assertRegex(options.broker.broker_ip1, r"^[0-9.]+$")

    def test_slave(self) -> None:
        """Everything that has an option of its own."""
        options = parsed(
            "--role", "slave", "--listen", "20911", "--ha-master", "m:10912", "--namesrv", "a:1;b:2",
            "--store", "d", "--name", "x", "--cluster", "c", "--broker-id", "3", "--flush", "sync", "--set",
            "mappedFileSizeCommitLog=1048576", "--set", "ha_full_history=true",
        )
        broker = options.broker
        self.assertTrue(broker.role.is_slave)
        self.assertEqual((broker.listen_port, broker.broker_id, broker.broker_name), (20911, 3, "x"))
        self.assertEqual(broker.master_remoting_address, "m:10911")
        self.assertEqual(broker.name_servers, ("a:1", "b:2"))
        self.assertEqual(broker.store.mapped_file_size_commit_log, 1048576)
        self.assertTrue(broker.ha.waits_for_disk and broker.ha.ha_full_history)

    def test_endpoints(self) -> None:
        """An interface is that of all three ports, and is where we are to be reached."""
        options = parsed("--listen", "tcp:20911:interface=127.0.0.1")
        self.assertEqual(options["ha-listen"], "tcp:20912:interface=127.0.0.1")
        self.assertEqual((options.broker.listen_port, options.broker.ha_port), (20911, 20912))
        self.assertEqual(options.broker.broker_ip1, "127.0.0.1")
        options = parsed("--listen", "tcp:port=20911", "--ha-listen", "7", "--set", "brokerIP1=10.0.0.1")
        self.assertEqual((options["ha-listen"], options.broker.ha_port), ("tcp:7", 7))
        self.assertEqual(options.broker.broker_ip1, "10.0.0.1")

    def test_endpoints_in_files(self) -> None:
        """All that the command line says of endpoints may be in the file; the command line counts first."""
        path = self.mktemp() + ".toml"
        with open(path, "w") as file:
            file.write('[broker]\nlisten = "tcp:7:interface=127.0.0.1"\nha_listen = 9\nadmin = 8090\n'
                       'adminHosts = ["a", "b"]\nwith_namesrv = true\nnamesrv_listen = 99\n[namesrv]\n')
        options = parsed("--config", path)
        self.assertEqual((options["listen"], options["ha-listen"]), ("tcp:7:interface=127.0.0.1", "tcp:9"))
        self.assertEqual((options.broker.listen_port, options.broker.ha_port), (7, 9))
        self.assertEqual((options["admin"], options["admin-hosts"]), ("tcp:8090", "a;b"))
        self.assertEqual(options["namesrv-listen"], "tcp:99")
        self.assertIsNotNone(options.name_server)
        found = {one.name: (one.value, one.origin) for one in options.in_force}
        self.assertEqual(found["listen"], ("tcp:7:interface=127.0.0.1", "file"))
        self.assertEqual(found["listen_port"], (7, "file"))
        self.assertEqual(found["with_namesrv"], (True, "file"))
        options = parsed("--config", path, "--listen", "17", "--set", "admin=8091", "--set",
                         "withNamesrv=false", "--set", "namesrv_listen=")
        self.assertEqual((options.broker.listen_port, options["admin"]), (17, "tcp:8091"))
        self.assertIsNone(options.name_server)
        found = {one.name: (one.value, one.origin) for one in options.in_force}
        self.assertEqual(found["listen"], ("tcp:17", "command line"))
        self.assertEqual(found["listen_port"], (17, "command line"))
        self.assertEqual(found["ha_listen_port"], (9, "file"))
        self.assertEqual(found["with_namesrv"], (False, "command line"))

    def test_file_of_rocketmq(self) -> None:
        """Properties as its brokers have them; the command line counts before them."""
        path = self.mktemp()
        with open(path, "w") as file:
            file.write("brokerName=b\nbrokerRole=SYNC_MASTER\nlistenPort=30911\nstorePathRootDir=there\n")
        options = parsed("--config", path, "--name", "other")
        broker = options.broker
        self.assertEqual((broker.broker_name, broker.ha.broker_role), ("other", "SYNC_MASTER"))
        self.assertEqual((options["listen"], options["ha-listen"]), ("tcp:30911", "tcp:30912"))
        self.assertEqual(broker.store.store_path_root_dir, "there")

    def test_toml(self) -> None:
        """Numbers and words as TOML has them."""
        path = self.mktemp() + ".toml"
        with open(path, "w") as file:
            file.write('broker_name = "b"\nlisten_port = 30911\nauto_create_topic_enable = false\n')
        broker = parsed("--config", path).broker
        self.assertEqual((broker.broker_name, broker.listen_port), ("b", 30911))
        self.assertFalse(broker.auto_create_topic_enable)


class RefusedTests(SynchronousTestCase):
    """One line each."""

    def refused(self, words: str, *given: str) -> None:
        """These options are, with these words."""
        error = str(self.assertRaises(UsageError, parsed, *given))
        self.assertIn(words, error)
        self.assertNotIn("\n", error)

    def test_refused(self) -> None:
        """What is wrong, and what would be right."""
        self.refused("broker_role='leader': write one of 'ASYNC_MASTER'", "--role", "leader")
        self.refused("is not an option", "master")
        self.refused("write --set name=value", "--set", "x")
        self.refused("did you mean 'broker_name'", "--set", "brokerNam=x")
        self.refused("given twice", "--set", "brokerName=x", "--set", "brokerName=y")
        self.refused("write a port", "--listen", "localhost")
        self.refused("write a port", "--listen", "70000")
        self.refused(": no endpoint", "--listen", "tcp:1:nothing=2")
        self.refused("for a slave say", "--ha-master", "m:1")
        self.refused("No such file", "--config", "nowhere")
        self.refused("the name has no address", "--set", "brokerIP1=not..a..host")
        self.refused("write addresses, names, or networks", "--set", "haAllowedHosts=10.0.0.1;300.1.1.1")
        self.refused("topics_max=0: write a number of at least 1", "--set", "topicsMax=0")

    def test_pages(self) -> None:
        """Beyond the loopback interface they need TLS and a token, or a word; the options must fit."""
        wide = "tcp:8090:interface=0.0.0.0"
        self.refused("other machines can reach it", "--admin", wide)
        self.refused("admin_tls=true needs tls_certificate", "--set", "admin_tls=true")
        self.refused("admin_token_reads=true needs admin_token_file", "--set", "admin_token_reads=true")
        self.refused(": no endpoint", "--admin", "tcp:1:nothing=2")
        self.refused("every caller could say", "--admin", "haproxy:tcp:1")
        self.refused("the broker itself has the ports", "--admin", "10911")
        self.assertTrue(parsed("--admin", wide, "--insecure").broker.insecure)
        self.assertEqual(parsed("--admin", "8090")["admin"], "tcp:8090")

    def test_endpoints_in_files(self) -> None:
        """What fits no port, or says a port twice, is refused."""
        for text, words in (
            ("listen = 7\nlisten_port = 7", "listen and listen_port both name a port: write one of them"),
            ("haListen = 7\nhaListenPort = 8", "ha_listen and ha_listen_port both name a port"),
            ("listen = 'x'", "write a port"), ("listen = true", "listen=True: write text, or a port"),
            ("admin = 10911", "the broker itself has the ports"), ("admin = [1]", "admin=[1]: write text"),
            ("with_namesrv = 1", "with_namesrv=1: write true or false"),
            ("haListen = 7\nha_listen = 8", "option 'ha_listen' is given twice, once as 'ha_listen'"),
        ):
            path = self.mktemp() + ".toml"
            with open(path, "w") as file:
                file.write(text)
            self.refused(words, "--config", path)

    def test_bad_files(self) -> None:
        """Neither properties nor TOML; a table."""
        for name, text, words in (("a.conf", "hello", "is not name=value"), ("a.toml", "= 1", "Invalid"),
                                  ("b.toml", "[brokr]\nx=1", "[brokr] is a table"),
                                  ("b.toml", "[broker]\nx=1", "unknown option 'x'"),
                                  ("b.toml", "[broker.ha]\nx=1", "[broker.ha] is a table"),
                                  ("b.toml", "[member]\n", "no table [broker], only [member]")):
            path = self.mktemp() + name
            with open(path, "w") as file:
                file.write(text)
            self.refused(words, "--config", path)


class ServiceTests(SynchronousTestCase):
    """The plugin and its service."""

    def test_plugin(self) -> None:
        """C{twistd} knows it."""
        from twisted.application.service import IServiceMaker

        found = {maker.tapname: maker.module for maker in getPlugins(IServiceMaker)}
        self.assertEqual(found["dledger-broker"], "dledger.daemons.rocketmq.broker")

    def test_made(self) -> None:
        """A service that has not touched anything yet."""
        service = make_service(parsed("--name", "x"), Clock())
        self.assertEqual(service.config.broker_name, "x")
        self.assertFalse(service.running)


class HostNameTests(SynchronousTestCase):
    """Names become addresses at the start."""

    def options(self, *words: str) -> Options:
        """Parsed."""
        options = Options()
        options.parseOptions(list(words))
        return options

    def test_names(self) -> None:
        """The broker's own, and those of its slaves; addresses, networks and * stay."""
        broker = self.options(
            "--set", "brokerIP1=localhost", "--set", "haAllowedHosts=localhost;10.0.0.0/8;*;fd00::1;10.0.0.7"
        ).broker
        self.assertEqual(broker.broker_ip1, "127.0.0.1")
        hosts = broker.ha.ha_allowed_hosts
        self.assertEqual(hosts[0], "127.0.0.1")
        self.assertEqual(hosts[-4:], ("10.0.0.0/8", "*", "fd00::1", "10.0.0.7"))

    def test_unknown(self) -> None:
        """A name without an address is named."""
        for option in ("brokerIP2", "haAllowedHosts"):
            error = self.assertRaises(UsageError, self.options, "--set", f"{option}=no-such-host.invalid")
            self.assertIn("no-such-host.invalid", str(error))
