# -*- test-case-name: tests.twistd.test_member -*-
"""Options of C{twistd dledger}, and what is made of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs
from twisted.application.service import IServiceMaker
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.plugin import getPlugins
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.reactor import make_reactor_monotonic
from dledger.daemons.ledger import member as tap
from dledger.daemons.ledger.member import Options
from dledger.node.service import MemberService
from dledger.rocketmq.namesrv.config import NameServerConfig
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.option_fields import options_of


class OptionsTests(SynchronousTestCase):
    """What may be said, and how."""

    def parse(self, *arguments: str) -> DLedgerConfig:
        """The configuration that the command line describes."""
        options = Options()
        options.parseOptions(list(arguments))
        return options.member

    def refusal(self, *arguments: str) -> str:
        """Why the command line is refused: one line."""
        error = self.assertRaises(UsageError, self.parse, *arguments)
        self.assertNotIn("\n", str(error))
        return str(error)

    def file(self, text: str) -> str:
        """A configuration file."""
        path = self.mktemp()
        with open(path, "w") as file:
            file.write(text)
        return path

    def test_nothing(self) -> None:
        """The defaults: one member on the loopback."""
        self.assertEqual(self.parse(), DLedgerConfig())

    def test_values_of_other_kinds(self) -> None:
        """One line for each, in plain words."""
        for text, words in (
            ("[peers]\nn0 = 5", "peers: member 'n0': 5 is not an address"),
            ("listen = true", "--listen=True: write a port"), ("admin = [1]", "--admin=[1]: write a port"),
            ("admin_hosts = 5", "admin_hosts=5: write names"),
            ("preferred_leader_ids = [1]", "preferred_leader_ids=[1]: write names"),
            ("file_reserved_hours = -5", "file_reserved_hours=-5: write a number of at least 0"),
            ("disk_full_ratio = 1.5", "disk_full_ratio=1.5: write a number of at most 1"),
            ("disk_full_ratio = 0", "disk_full_ratio=0.0: write a number above 0"),
            ("disk_full_ratio = 0.5\nenable_disk_force_clean = true", "is below disk_space_ratio_to_force"),
        ):
            self.assertIn(words, self.refusal("--config", self.file(text)))

    def test_bare_ports(self) -> None:
        """As at a broker."""
        options = Options()
        options.parseOptions(["--listen", "20911", "--admin", "8080"])
        self.assertEqual((options["listen"], options["admin"]), ("tcp:20911", "tcp:8080"))
        options = Options()
        options.parseOptions(["--config", self.file("listen = 20911")])
        self.assertEqual(options["listen"], "tcp:20911")

    def test_own_table(self) -> None:
        """In a file for several services, with tables of its own; endpoints are there, too."""
        path = self.file('[member]\nself_id = "a"\nlisten = 7\n[member.peers]\na = "h:1"\nb = "h:2"\n'
                         '[member.tls]\ncertificate = "c"\nkey = "k"\nauthority = "x"\n[broker]\ny = 1\n')
        config = self.parse("--config", path)
        self.assertEqual((config.self_id, config.peers, config.tls_key), ("a", {"a": "h:1", "b": "h:2"}, "k"))
        options = Options()
        options.parseOptions(["--config", path])
        self.assertEqual(options["listen"], "tcp:7")
        self.assertIn("no table [member], only [broker]", self.refusal("--config", self.file("[broker]\n")))
        self.assertIn("[member.x] is a table", self.refusal("--config", self.file("[member.x]\ny = 1\n")))

    def test_everything(self) -> None:
        """Each option of its own."""
        config = self.parse(
            "--node-id", "n1", "--peers", "n0-h:1;n1-h:2", "--store", "/d", "--group", "g",
            "--flush-disk-type", "sync", "--wire", "binary", "--set", "heartBeatTimeIntervalMs=500",
            "--set", "never_lead=true",
        )
        self.assertEqual(config, DLedgerConfig(
            self_id="n1", peers="n0-h:1;n1-h:2", store_base_dir="/d", group="g", flush_disk_type="sync",
            wire="binary", heart_beat_time_interval_ms=500, never_lead=True,
        ))

    def test_file(self) -> None:
        """In any of the three spellings."""
        path = self.file(
            'dLegerPeers = "n0-h:1;n1-h:2"\nselfId = "n1"\ngroup = "g"\nmax_vote_interval_ms = 900\n'
            'flushDiskType = "SYNC_FLUSH"\ndiskFullRatio = 1\n'
        )
        config = self.parse("--config", path)
        self.assertEqual((config.self_id, config.group, config.max_vote_interval_ms), ("n1", "g", 900))
        self.assertTrue(config.is_sync)

    def test_beside_brokers(self) -> None:
        """The names of RocketMQ's brokers without a word about leading: a warning that says what to write."""
        names = ["--set", "dLegerPeers=n0-h:1;n1-h:2", "--set", "dLegerSelfId=n0"]
        for more, is_warned in (
            ([], True), (["--set", "never_lead=true"], False), (["--set", "neverLead=false"], False),
        ):
            options = Options()
            options.parseOptions([*names, *more])
            self.assertEqual("write never_lead=true" in options.warning, is_warned, more)
        options = Options()
        options.parseOptions(["--peers", "n0-h:1;n1-h:2", "--node-id", "n0"])
        self.assertEqual(options.warning, "")

    def test_java_file(self) -> None:
        """In a file of properties Java's defaults for retention hold; elsewhere nothing is deleted."""
        for name, text, expected in (
            ("a.properties", "# mine\nselfId=n0\n", (72, True)),
            ("a.conf", "fileReservedHours = 5\nenableDiskForceClean=false\n", (5, False)),
            ("a.toml", "fileReservedHours = 5\n", (5, False)),
            ("b.toml", "# none", (0, False)),
        ):
            path = self.mktemp() + name
            with open(path, "w") as file:
                file.write(text)
            member = self.parse("--config", path)
            self.assertEqual((member.file_reserved_hours, member.enable_disk_force_clean), expected, name)
        path = self.mktemp() + ".properties"
        for text in ("selfId\n", "=x\n", "group=a\ngroup=b\n"):
            with open(path, "w") as file:
                file.write(text)
            self.refusal("--config", path)

    def test_peers_as_a_table(self) -> None:
        """Ids and addresses may be written apart."""
        config = self.parse("--config", self.file('self_id = "a"\n[peers]\na = "h:1"\nb = "h:2"\n'))
        self.assertEqual(config.peers, {"a": "h:1", "b": "h:2"})

    def test_which_stands_above(self) -> None:
        """Options, then --set, then the file, whatever the spelling."""
        path = self.file('dLegerPeers = "n0-h:1"\ngroup = "file"\nmaxVoteIntervalMs = 900\n')
        config = self.parse(
            "--config", path, "--peers", "n0-h:2", "--group", "line", "--set", "dLegerGroup=set",
            "--set", "max_vote_interval_ms=800",
        )
        self.assertEqual(config.peers, {"n0": "h:2"})
        self.assertEqual((config.group, config.max_vote_interval_ms), ("line", 800))

    def test_origins(self) -> None:
        """Each option with its value and its place, whatever the spelling."""
        path = self.mktemp() + ".properties"
        with open(path, "w") as file:
            file.write("maxVoteIntervalMs=900\nselfId=n0\nlisten=7\nmaxPushTimeOutMs=9\n")
        options = Options()
        options.parseOptions(
            ["--config", path, "--set", "maxHeartBeatLeak=7", "--node-id", "n0", "--admin", "8080"]
        )
        found = {one.name: (one.value, one.origin) for one in options.in_force}
        self.assertEqual(set(found), set(options_of(DLedgerConfig)) | {
            "listen", "admin", "machine", "log_format", "log_level"})
        for name, expected in (
            ("max_heart_beat_leak", (7, "command line")), ("self_id", ("n0", "command line")),
            ("max_vote_interval_ms", (900, "file")), ("listen", ("tcp:7", "file")),
            ("admin", ("tcp:8080", "command line")), ("wire", ("auto", "default")),
            ("file_reserved_hours", (72, "default of a Java file")),
        ):
            self.assertEqual(found[name], expected, name)
        self.assertEqual(options.member.ignored, ("maxPushTimeOutMs",))

    def test_administration_beyond_loopback(self) -> None:
        """Refused without TLS and token, unless the operator says so, in any of the places."""
        keys = ("--set", "tls_certificate=c", "--set", "tls_key=k", "--set", "tls_authority=a")
        wide = ("--admin", "tcp:8080:interface=0.0.0.0")
        for more, words in (
            ((), "TLS (admin_tls=true"), (("--set", "admin_token_file=t"), "it lacks TLS"),
            ((*keys, "--set", "admin_tls=true"), "it lacks a token"),
            ((*keys, "--set", "admin_token_file=t"), "it lacks TLS"),
        ):
            self.assertIn(words, str(self.assertRaises(UsageError, self.parse, *wide, *more)), more)
        for more in (
            ("--insecure",), ("--set", "insecure=true"), ("--config", self.file("insecure = true\n")),
            (*keys, "--set", "admin_tls=true", "--set", "adminTokenFile=t"),
        ):
            self.parse(*wide, *more)
        path = self.file('admin = "tcp:8080:interface=0.0.0.0"\n')
        self.assertIn("--insecure", str(self.assertRaises(UsageError, self.parse, "--config", path)))

    def test_administration_options(self) -> None:
        """Those that need others."""
        for more, words in (
            ("admin_tls=true", "needs tls_certificate"), ("admin_token_reads=true", "needs admin_token_file"),
        ):
            self.assertIn(words, str(self.assertRaises(UsageError, self.parse, "--set", more)))

    def test_no_option_is_a_secret(self) -> None:
        """All options are shown, so what is secret must be in a file that an option names."""
        for name in attrs.fields_dict(DLedgerConfig) | attrs.fields_dict(NameServerConfig):
            if name not in ("admin_token_file", "admin_token_reads", "client_token_file"):  # paths, a switch
                self.assertNotRegex(name, "secret|password|token")

    def test_all_findings_at_once(self) -> None:
        """One line each, and nothing that only follows from another."""
        error = self.assertRaises(UsageError, self.parse, "--peers", "n0-h:0", "--node-id", "n7",
                                  "--set", "max_heart_beat_leak=x", "--set", "hartbeat=1",
                                  "--listen", "nonsense",
                                  "--set", "max_vote_interval_ms=3", "--group", "x y", "--wire", "morse")
        lines = str(error).split("\n")
        self.assertEqual([line.split("=")[0].split(" ")[0] for line in lines], [
            "--listen", "max_heart_beat_leak", "unknown", "peers:", "group", "wire", "max_vote_interval_ms"])

    def test_relations(self) -> None:
        """Values that are right one by one, and wrong together."""
        for arguments, words in (
            (["bootstrap=true", "join=true"], "give one of them"),
            (["never_lead=true", "preferred_leader_ids=n0"], "never_lead=true: give one of them"),
            (["max_vote_interval_ms=100"], "must exceed min_vote_interval_ms=100"),
            (["enable_disk_force_clean=true", "disk_full_ratio=0.8"], "refused before files are deleted"),
        ):
            settings = [word for one in arguments for word in ("--set", one)]
            self.assertIn(words, self.refusal(*settings))

    def test_endpoints_in_the_file(self) -> None:
        """The place to listen may be there, too; the command line counts before them."""
        options = Options()
        path = self.file('listen = "tcp:1"\nadmin = "tcp:2"\n')
        options.parseOptions(["--config", path, "--admin", "tcp:3"])
        self.assertEqual((options["listen"], options["admin"]), ("tcp:1", "tcp:3"))

    def test_refusals(self) -> None:
        """Each says what is wrong and what would be right."""
        for arguments, words in (
            (["--peers", "n0"], "id-host:port"),
            (["--node-id", "n7"], "not among the peers"),
            (["--admin", "20911"], "the port of the log itself, 20911"),
            (["--listen", "tcp:7", "--admin", "tcp:port=7:interface=127.0.0.1"], "the log itself, 7"),
            (["--set", "hartBeatTimeIntervalMs=5"], "heart_beat_time_interval_ms"),
            (["--set", "max_vote_interval_ms"], "name=value"),
            (["--set", "max_vote_interval_ms=x"], "number"),
            (["--set", "max_vote_interval_ms=0"], "max_vote_interval_ms"),
            (["--set", "max_vote_interval_ms=500", "--set", "max_vote_interval_ms=600"], "twice"),
            (["--wire", "morse"], "wire='morse': write one of 'auto', 'remoting', 'binary'"),
            (["--config", "/nowhere"], "No such file"),
            (["--config", self.file("= nonsense")], "--config"),
            (["--config", self.file("[election]\nx = 1")], "[election]"),
            (["--config", self.file("hartbeat = 1")], "unknown option"),
            (["--config", self.file("max_vote_interval_ms = 'x'")], "number"),
            (["--config", self.file("group = 5")], "group"),
            (["stray"], "stray"),
            (["--machine", "tests.machine.machines:Nobody"], "no function or class 'Nobody': write package"),
            (["--config", self.file("machine = 5")], "machine='5': write package.module:factory"),
            (["--machine", ""], "machine='': write package.module:factory"),
            (["--flush-disk-type", "never"], "flush_disk_type"),
        ):
            self.assertIn(words, self.refusal(*arguments), str(arguments))


class ServiceTests(SynchronousTestCase):
    """From options to a service."""

    def setUp(self) -> None:
        self.reactor: Any = MemoryReactorClock()

    def make(self, *arguments: str) -> MemberService:
        """The service of a command line."""
        options = Options()
        options.parseOptions(list(arguments))
        return tap.make_service(options, self.reactor)

    def test_make(self) -> None:
        """Nothing is opened before it is started."""
        service = self.make("--store", self.mktemp())
        self.assertEqual(service.config.self_id, "n0")
        self.assertEqual(self.reactor.tcpServers, [])

    def test_machine(self) -> None:
        """By the command line or the file; the member runs it, and its snapshots go to a thread."""
        named = "tests.machine.machines:Journal"
        file = self.mktemp()
        Path(file).write_text(f'machine = "{named}"')
        for arguments in (("--machine", named), ("--config", file)):
            service = self.make(*arguments, "--listen", "tcp:4712", "--store", self.mktemp())
            ended: SimpleQueue[Callable[[], None]] = SimpleQueue()
            self.reactor.callFromThread = lambda call, *given, ended=ended: ended.put(lambda: call(*given))
            service.startService()
            self.reactor.pump([0.02] * 100)
            ended.get(timeout=60)()  # it has looked for snapshots
            self.reactor.pump([0.02] * 10)
            assert service.node is not None
            status = service.node.status().machine
            assert status is not None
            self.assertEqual((status.name, status.state), ("journal", "running"))
            stopped = service.stopService()
            self.reactor.pump([0.02] * 200)
            self.successResultOf(stopped)

    def test_listen(self) -> None:
        """Where it is asked to."""
        service = self.make("--listen", "tcp:4711:interface=127.0.0.1", "--store", self.mktemp())
        service.startService()
        self.assertEqual(self.reactor.tcpServers[0][0], 4711)
        stopped = service.stopService()
        self.reactor.pump([0.02] * 200)
        self.successResultOf(stopped)

    def test_bad_endpoint(self) -> None:
        """One line."""
        for option in ("--listen", "--admin"):
            for endpoint in (
                "haproxy:tcp:20911",
                "nonsense", "tcp:x", "tcp", "20911x", "tcp:99999", "tcp:interface=h:port=70000", "ssl:1",
            ):
                error = self.assertRaises(UsageError, Options().parseOptions, [option, endpoint])
                self.assertIn(endpoint, str(error))
                self.assertNotIn("\n", str(error))

    def test_monotonic(self) -> None:
        """A reactor with nothing scheduled gets a clock that nobody sets; another keeps its own."""
        make_reactor_monotonic(self.reactor)
        self.assertIs(self.reactor.seconds, time.monotonic)
        clock: Any = Clock()
        clock.callLater(1, lambda: None)
        make_reactor_monotonic(clock)
        self.assertIsNot(clock.seconds, time.monotonic)


class PluginTests(SynchronousTestCase):
    """What twistd finds."""

    def test_found(self) -> None:
        """Under its name, with its options."""
        makers = [maker for maker in getPlugins(IServiceMaker) if maker.tapname == "dledger"]
        self.assertEqual(len(makers), 1)
        self.assertIs(makers[0].options, Options)
        self.assertIs(makers[0].makeService, tap.makeService)
