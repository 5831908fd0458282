# -*- test-case-name: tests.test_deploy,tests.processes.test_deploy -*-
"""
C{deploy/}: the services of systemd and the image fit the programs that they start, and each other.

Neither systemd nor a container engine runs here: the words of each command go through the parsers that read
them in the end.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import yaml
from twisted.scripts.twistd import ServerOptions
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.base.descriptors import WANTED
from dledger.node.service import CLOSE_TIME_OUT_S, LINGER_S, STOP_TIME_OUT_S
from dledger.rocketmq.broker.options.config import broker_from_mapping
from dledger.rocketmq.broker.service import CLOSE_TIME_OUT_S as BROKER_CLOSE_S
from dledger.rocketmq.namesrv.service import CLOSE_TIME_OUT_S as NAME_SERVER_CLOSE_S
from dledger.values.addresses import parse_members

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"

#: Unit to the name of its service for twistd, and the instance to look at.
UNITS = {
    "dledger@.service": ("dledger", "n0"), "dledger-broker@.service": ("dledger-broker", "a"),
    "dledger-namesrv.service": ("dledger-namesrv", "namesrv"),
}
#: It has no file of options, as the others have.
EXPORT_UNIT = "dledger-export@.service"
MEMBER_STOP_S = STOP_TIME_OUT_S + LINGER_S + 2 * CLOSE_TIME_OUT_S
BROKER_STOP_S = broker_from_mapping({"store": "x"}).stop_timeout / 1000 + BROKER_CLOSE_S
#: Seconds that an orderly stop may take, without the disk; a broker's log may be a member's.
STOPS_S = {
    "dledger": MEMBER_STOP_S, "dledger-broker": BROKER_STOP_S + MEMBER_STOP_S,
    "dledger-namesrv": NAME_SERVER_CLOSE_S,
}
TWISTD = "/opt/dledger/bin/twistd"


def unit(name: str, instance: str) -> dict[str, list[str]]:
    """The settings of a unit, each with all its values; specifiers are replaced."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / name).read_text("utf-8").splitlines():
        if line and line[0] not in "#[":
            setting, equals, value = line.partition("=")
            assert equals, line
            found.setdefault(setting, []).append(value.replace("%i", instance))
    return found


def words_of(start: str, configuration: Path, options: str = "") -> list[str]:
    """
    The words after C{twistd} of a unit's command.

    @param configuration: the file that is read instead of the one below C{/etc}.
    @param options: the value of C{DLEDGER_OPTIONS}.
    """
    words = shlex.split(start.replace("$DLEDGER_OPTIONS", options))
    assert words[0] == TWISTD, start
    return [str(configuration) if word.startswith("/etc/dledger/") else word for word in words[1:]]


def accepted(words: Iterable[str]) -> ServerOptions:
    """What twistd makes of these words. @raise SystemExit: one of its services refuses them."""
    options = ServerOptions()
    options.parseOptions(list(words))
    return options


def compose() -> Any:
    """The document of the three members."""
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))


def containerfile() -> list[str]:
    """Its instructions, one in each string."""
    text = (DEPLOY / "Containerfile").read_text("utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def instruction(name: str) -> str:
    """The argument of the last instruction of this name."""
    return next(line for line in reversed(containerfile()) if line.startswith(f"{name} ")).partition(" ")[2]


class SystemdTests(SynchronousTestCase):
    """The three units."""

    def test_systemd_reads_them(self) -> None:
        """systemd itself finds nothing to complain of, where it is installed."""
        verify = shutil.which("systemd-analyze")
        if verify is None:
            raise SkipTest("no systemd-analyze")
        directory = Path(self.mktemp())
        directory.mkdir()
        program = directory.absolute() / "twistd"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        for name in (*UNITS, EXPORT_UNIT):
            text = (DEPLOY / "systemd" / name).read_text("utf-8")
            (directory / name).write_text(text.replace(TWISTD, str(program)))
            done = subprocess.run(
                [verify, "verify", "--man=no", str(directory / name)], capture_output=True, text=True,
                timeout=60, env={**os.environ, "SYSTEMD_LOG_LEVEL": "notice"},
            )
            complaints = [line for line in done.stderr.splitlines() if name.partition(".")[0] in line]
            self.assertEqual((done.returncode, complaints), (0, []), done.stderr)

    def test_commands(self) -> None:
        """twistd stays in the foreground, writes no other file, and finds its service and its options."""
        for name, (service, instance) in UNITS.items():
            settings = unit(name, instance)
            configuration = Path(self.mktemp() + ".toml")
            configuration.write_text("insecure = true\n")
            for options in ("", "--insecure"):
                found = accepted(words_of(*settings["ExecStart"], configuration, options))
                self.assertEqual((found.subCommand, found["nodaemon"]), (service, True))
                self.assertEqual((found["pidfile"], found["logfile"]), ("", None))
                self.assertEqual(found.subOptions["config"], str(configuration))
            self.assertEqual((settings["Type"], settings["TimeoutStartSec"]), (["notify"], ["infinity"]))
            self.patch(sys, "stderr", io.StringIO())
            self.assertRaises(SystemExit, accepted, words_of(*settings["ExecStart"], configuration, "--nt"))

    def test_example(self) -> None:
        """The example has a table for each, whose lines in comments are options, too."""
        text = (DEPLOY / "example.toml").read_text("utf-8")
        for shown in (text, re.sub(r"^# (\[|\w+ = )", r"\1", text, flags=re.M)):
            configuration = Path(self.mktemp() + ".toml")
            configuration.write_text(shown)
            for name, (_service, instance) in UNITS.items():
                options = accepted(words_of(*unit(name, instance)["ExecStart"], configuration)).subOptions
                self.assertIn("interface=127.0.0.1", options["admin"])
                self.assertGreater(sum(one.origin == "file" for one in options.in_force), 2)
        self.assertNotEqual(text, shown)

    def test_paths(self) -> None:
        """Options are read where they are expected, and what is written is in the state directory."""
        users = re.findall(r"^u (\w+) ", (DEPLOY / "systemd" / "dledger.sysusers").read_text("utf-8"), re.M)
        for name, (_service, instance) in UNITS.items():
            settings = unit(name, instance)
            state, etc = f"/var/lib/dledger/{instance}", f"/etc/dledger/{instance}"
            self.assertEqual(settings["StateDirectory"], [f"dledger/{instance}"])
            for setting in ("WorkingDirectory", "RequiresMountsFor"):
                self.assertEqual(settings[setting], [state])
            self.assertEqual(settings["AssertPathExists"], [f"{etc}.toml"])
            self.assertEqual(settings["EnvironmentFile"], [f"-{etc}.env"])
            self.assertEqual(settings["Environment"], ["DLEDGER_OPTIONS="])
            self.assertIn(f" --config {etc}.toml ", settings["ExecStart"][0])
            self.assertEqual((settings["User"], settings["Group"]), (users, users))
            configuration = Path(self.mktemp() + ".toml")
            configuration.write_text("# none")
            made = accepted(words_of(*settings["ExecStart"], configuration)).subOptions
            for attribute, field in (("member", "store_base_dir"), ("name_server", "kv_config_path")):
                config = getattr(made, attribute, None)
                if config is not None:
                    self.assertTrue(getattr(config, field).startswith("./"), field)

    def test_limits(self) -> None:
        """An orderly stop has time enough for its own steps, and as much again for the disk."""
        for name, (service, instance) in UNITS.items():
            settings = unit(name, instance)
            self.assertGreaterEqual(int(settings["TimeoutStopSec"][0]), 2 * STOPS_S[service])
            self.assertEqual(settings["LimitNOFILE"], [str(WANTED)])
            self.assertEqual(settings["Restart"], ["on-failure"])
            self.assertEqual((settings["StandardOutput"], settings["StandardError"]), (["journal"],) * 2)

    def test_export(self) -> None:
        """The export takes the options of the comment, may write there, and starts after its member."""
        settings = unit(EXPORT_UNIT, "n0")
        text = (DEPLOY / "systemd" / EXPORT_UNIT).read_text("utf-8")
        given = dict(line[6:].split("=", 1) for line in text.splitlines() if line.startswith("#     "))
        self.assertEqual(sorted(given), ["DLEDGER_OPTIONS", "OUT", "SOURCE"])
        (start,) = settings["ExecStart"]
        for name, value in given.items():
            start = start.replace(f"${{{name}}}", value).replace(f"${name}", value)
        words = [word if word != given["SOURCE"] else self.mktemp() for word in shlex.split(start)]
        self.assertEqual(words[0], TWISTD)
        os.mkdir(words[words.index("--source") + 1])
        found = accepted(words[1:])
        self.assertEqual((found.subCommand, found["nodaemon"]), ("dledger-export", True))
        plan = found.subOptions.plan
        self.assertEqual((plan.out, plan.settings.to), (given["OUT"], "delta"))
        state = settings["StateDirectory"][0]
        self.assertTrue(given["OUT"].startswith(f"/var/lib/{state}/"))
        member = unit("dledger@.service", "n0")
        self.assertTrue(given["SOURCE"].startswith(member["WorkingDirectory"][0]))
        self.assertEqual(settings["User"], member["User"])
        self.assertIn("dledger@n0.service", settings["After"][0])
        self.assertEqual((settings["Type"], settings["Restart"]), (["notify"], ["on-failure"]))

    def test_rights(self) -> None:
        """Whatever one service may not do, the others may not."""
        rights = {
            path.read_text("utf-8").partition("# It needs files")[2]
            for path in (DEPLOY / "systemd").glob("*.service")
        }
        self.assertEqual(len(rights), 1)
        for line in ("ProtectSystem=strict", "NoNewPrivileges=true", "CapabilityBoundingSet="):
            self.assertIn(f"\n{line}\n", next(iter(rights)))


class ImageTests(SynchronousTestCase):
    """The image and its layers."""

    def test_sources(self) -> None:
        """Each source exists, the builder may see it, and the packages of an installation are among them."""
        allowed = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text("utf-8"), re.M)
        copied = [
            source for line in containerfile() if line.startswith("COPY ") and "--from" not in line
            for source in line.split()[1:-1]
        ]
        self.assertEqual(sorted(copied), sorted(allowed))
        for source in copied:
            self.assertTrue((ROOT / source).exists(), source)
        for package in ("dledger", "protocols", "pyspark_dledger", "twisted"):
            self.assertIn(package, copied)

    def test_base(self) -> None:
        """A Python that we support, twice the same: an environment does not move to another one."""
        bases = {line.split()[1] for line in containerfile() if line.startswith("FROM ")}
        self.assertEqual(bases, {"python:3.12-slim"})
        self.assertIn("Programming Language :: Python :: 3.12", (ROOT / "setup.py").read_text("utf-8"))
        extras = re.findall(r"'\.\[(.*)\]'", (DEPLOY / "Containerfile").read_text("utf-8"))
        for extra in extras[0].split(","):
            self.assertIn(f'"{extra}":', (ROOT / "setup.py").read_text("utf-8"))

    def test_start(self) -> None:
        """It runs as nobody in particular, in its volume; alone it is a log of one member."""
        self.assertRegex(instruction("USER"), r"^[1-9]\d+:[1-9]\d+$")
        self.assertEqual(instruction("WORKDIR"), instruction("VOLUME"))
        entry, words = json.loads(instruction("ENTRYPOINT")), json.loads(instruction("CMD"))
        found = accepted([*entry[1:], *words])
        self.assertEqual((entry[0], found.subCommand, found["nodaemon"]), ("twistd", "dledger", True))
        self.assertTrue(found.subOptions.member.store_base_dir.startswith("./"))


class ComposeTests(SynchronousTestCase):
    """The group of three."""

    def test_members(self) -> None:
        """Each has its own id, name and volume, and all have the same list, as their command line has it."""
        document = compose()
        entry = json.loads(instruction("ENTRYPOINT"))
        peers = parse_members(document["x-peers"])
        self.assertEqual(sorted(document["services"]), sorted(peers))
        for name, service in document["services"].items():
            member = accepted([*entry[1:], *service["command"]]).subOptions.member
            self.assertEqual((member.self_id, member.peers), (name, peers))
            self.assertEqual(member.peers[name].partition(":")[0], name)
            self.assertEqual(member.store_base_dir, instruction("VOLUME"))
            self.assertEqual(service["volumes"], [f"{name}:{instruction('VOLUME')}"])
            self.assertIn(name, document["volumes"])
            self.assertEqual(service["environment"]["DLEDGER_PEERS"], document["x-peers"])
            self.assertNotIn("ports", service)
        self.assertEqual(len({tuple(service["command"]) for service in document["services"].values()}), 3)

    def test_common(self) -> None:
        """The image is the one beside it; a stop has its time; no rights, and no file but the volume's."""
        for service in compose()["services"].values():
            build = service["build"]
            self.assertEqual((DEPLOY / build["context"]).resolve(), ROOT)
            self.assertTrue((ROOT / build["dockerfile"]).exists())
            self.assertGreaterEqual(int(service["stop_grace_period"].removesuffix("s")), 2 * MEMBER_STOP_S)
            self.assertEqual(service["ulimits"]["nofile"], {"soft": WANTED, "hard": WANTED})
            self.assertEqual((service["cap_drop"], service["read_only"]), (["ALL"], True))
            self.assertNotIn("user", service)
            self.assertNotIn("privileged", service)

    def test_health(self) -> None:
        """The check is a program of the image, and asks the page of the member's own port."""
        for service in compose()["services"].values():
            check = service["healthcheck"]
            self.assertEqual(check["test"][:3], ["CMD", "python", "-c"])
            compile(check["test"][3], "compose.yaml", "exec")
            admin = accepted(service["command"]).subOptions["admin"]
            port = admin.split(":")[1]
            self.assertIn("interface=127.0.0.1", admin)
            self.assertIn(f'"http://127.0.0.1:{port}/healthz", timeout=4', check["test"][3])
            self.assertEqual(check["timeout"], "5s")


class MonitoringTests(SynchronousTestCase):
    """Prometheus and Grafana beside the group of three."""

    def setUp(self) -> None:
        place = DEPLOY / "monitoring"
        self.services = yaml.safe_load((place / "compose.yaml").read_text("utf-8"))["services"]
        self.sources = yaml.safe_load((place / "grafana-sources.yaml").read_text("utf-8"))
        self.folders = yaml.safe_load((place / "grafana-folders.yaml").read_text("utf-8"))

    def test_members(self) -> None:
        """The members are those of the other file, except their pages, which Prometheus asks by name."""
        scraped = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yaml").read_text("utf-8"))
        targets = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
        self.assertEqual(targets, [f"{name}:8080" for name in compose()["services"]])
        for name, service in compose()["services"].items():
            options = accepted(self.services[name]["command"]).subOptions
            self.assertEqual(options["admin"], "tcp:8080:interface=0.0.0.0")
            plain = attrs.evolve(options.member, insecure=False)
            self.assertEqual(plain, accepted(service["command"]).subOptions.member)

    def test_files(self) -> None:
        """Each file that a container sees is there, and is named where its program looks; ports are local."""
        seen = {}
        for name in ("prometheus", "grafana"):
            for volume in self.services[name]["volumes"]:
                source, target, *_ = volume.split(":")
                if source.startswith("./"):
                    self.assertTrue((DEPLOY / source).is_file(), source)
                    seen[target] = name
            for port in self.services[name]["ports"]:
                self.assertTrue(port.startswith("127.0.0.1:"), port)
            self.assertEqual(self.services[name]["networks"], compose()["services"]["n0"]["networks"])
            self.assertRegex(self.services[name]["image"], r":v?\d+\.\d+\.\d+$")
        config = self.services["prometheus"]["command"][0].partition("=")[2]
        self.assertEqual(seen[config], "prometheus")
        folder = self.folders["providers"][0]["options"]["path"]
        self.assertEqual(len([target for target in seen if target.startswith(f"{folder}/")]), 2)
        source = self.sources["datasources"][0]
        self.assertEqual((source["url"], source["isDefault"]), ("http://prometheus:9090", True))


class DistributionTests(SynchronousTestCase):
    """The source distribution."""

    def test_it_is_whole(self) -> None:
        """It has every file that git has, so it can be tested, read and deployed."""
        if not (ROOT / ".git").exists() or shutil.which("git") is None:
            raise SkipTest("no repository")
        listed = subprocess.run(  # (the files may belong to another user than the one who tests)
            ["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True,
            check=True, timeout=60,
        )
        directory = Path(self.mktemp())
        directory.mkdir()
        subprocess.run(
            [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(directory.absolute())], cwd=ROOT,
            capture_output=True, check=True, timeout=120,
        )
        packed = set((directory / "dledger.egg-info" / "SOURCES.txt").read_text("utf-8").splitlines())
        missing = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()} - packed
        self.assertEqual(missing - {".gitignore"}, set())
        self.assertEqual([name for name in packed if name.endswith(".pyc") or name.startswith(".jars")], [])
