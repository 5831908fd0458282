# -*- test-case-name: tests.commands.test_config -*-
"""C{dledger config}: the complaints of a start."""

from __future__ import annotations

import json
import socket

from tests.commands.fakes import CliCase


class ConfigTests(CliCase):
    """Checks and shows."""

    def file(self, text: str, end: str = ".toml") -> str:
        """A configuration file."""
        path = self.mktemp() + end
        with open(path, "w") as file:
            file.write(text)
        return path

    def test_right(self) -> None:
        """Exit status 0."""
        path = self.file("max_heart_beat_leak = 30\nfile_reserved_hours = 5\n")
        self.assertExit(self.run_cli("config", "check", path), 0, "nothing is wrong; 2 of ")
        self.assertExit(self.run_cli("config", "check", path, "--group", "g"), 0, "wrong; 3 of ")
        document = json.loads(self.run_cli("config", "check", path, "--json").stdout)
        self.assertEqual(document, {"is_right": True, "findings": [], "warnings": []})

    def test_surroundings(self) -> None:
        """A directory that cannot be made is wrong; a host without an address may get one: a warning."""
        shown = self.run_cli("config", "check", "--store", "/proc/x/y")
        self.assertExit(shown, 64, "store_base_dir='/proc/x/y': nothing can be made in /proc")

        def unknown(host: str, _port: object) -> None:
            if host == "elsewhere":
                raise OSError(-2, "Name or service not known")

        self.patch(socket, "getaddrinfo", unknown)
        words = ("config", "check", "--store", self.mktemp(), "--peers", "n0-here:1;n1-elsewhere:1")
        self.assertExit(self.run_cli(*words), 0, "warning: peers: n1: the host 'elsewhere' has no address",
                        "nothing is wrong")
        self.assertEqual(len(json.loads(self.run_cli(*words, "--json").stdout)["warnings"]), 1)

    def test_wrong(self) -> None:
        """All findings, exit status 64."""
        path = self.file('max_heart_beat_leak = "x"\nhartbeat = 1\nlisten = "tcp:7"\nadmin = "tcp:x"\n')
        result = self.run_cli("config", "check", path)
        self.assertExit(result, 64, "max_heart_beat_leak='x': write a whole number",
                        "unknown option 'hartbeat'", "--admin 'tcp:x': no endpoint")
        self.assertEqual(result.stdout, "")
        document = json.loads(self.run_cli("config", "check", path, "--json").stdout)
        self.assertEqual((document["is_right"], len(document["findings"])), (False, 3))
        self.assertExit(self.run_cli("config", "show", path), 64, "hartbeat")
        self.assertExit(self.run_cli("config", "check", "/no/file"), 64, "No such file")

    def test_other_servers(self) -> None:
        """A broker and a name server, likewise with all findings."""
        path = self.file("listenPort=x\nhaListenPrt=5\nbrokerId=-5\n", ".properties")
        self.assertExit(self.run_cli("config", "check", "--of", "broker", path), 64,
                        "listen_port='x': write a whole number", "'haListenPrt'; did you mean")
        path = self.file("listenPort=10912\nhaListenPort=10910\n", ".properties")
        self.assertExit(self.run_cli("config", "check", "--of", "broker", path), 64,
                        "ha_listen_port=10910: clients have listen_port=10912 and the port 2 below")
        path = self.file("listenPort=x\ntopicsMax=0\n", ".properties")
        self.assertExit(self.run_cli("config", "check", "--of", "namesrv", path), 64,
                        "listen_port='x'", "topics_max=0: write a number of at least 1")
        path = self.file("listenPort=10911\n", ".properties")
        for kind in ("broker", "namesrv"):
            self.assertExit(self.run_cli("config", "check", "--of", kind, path), 0, "nothing is wrong")

    def test_tables(self) -> None:
        """Each table is looked at, and says whose findings they are; one alone may have further options."""
        path = self.file('[member]\ntik_ms = 1\n[broker]\nlisten = "x"\n[namesrv]\ntopics_max = 5\n')
        result = self.run_cli("config", "check", path)
        self.assertExit(result, 64, "[member] unknown option 'tik_ms'", "[broker] --listen 'x': write a port")
        self.assertExit(self.run_cli("config", "check", path, "--of", "namesrv"), 0, "nothing is wrong; 1 of")
        self.assertExit(self.run_cli("config", "check", path, "--of", "broker"), 64, "dledger: --listen 'x'")
        self.assertExit(self.run_cli("config", "check", path, "--tick", "5"), 64,
                        "--tick: whose option is this? The file is for member, broker, namesrv: say --of")
        self.assertExit(self.run_cli("config", "check", self.file("x = 1\n[member]\n[brokr]\n")), 64,
                        "'x' is outside of all tables", "unknown table [brokr]")
        path = self.file("[member]\nmax_heart_beat_leak = 30\n[namesrv]\ntopics_max = 5\n")
        self.assertExit(self.run_cli("config", "check", "--config", path), 0,
                        "[member] nothing is wrong; 1 of ", "[namesrv] nothing is wrong; 1 of ")
        self.assertExit(self.run_cli("config", "check", path, "--of", "broker"), 64, "no table [broker]")
        result = self.run_cli("config", "show", "--given", path)
        self.assertEqual(result.stdout, "member.max_heart_beat_leak\t30\tfile\nnamesrv.topics_max\t5\tfile\n")
        document = json.loads(self.run_cli("config", "show", "--json", "--given", path).stdout)
        self.assertEqual(document, {"member": {"max_heart_beat_leak": {"value": 30, "origin": "file"}},
                                    "namesrv": {"topics_max": {"value": 5, "origin": "file"}}})
        one = self.file("[member]\nmax_heart_beat_leak = 30\n")
        self.assertExit(self.run_cli("config", "check", one, "--group", "g"), 0, "[member] nothing", "; 2 of")

    def test_show(self) -> None:
        """Name, value and place."""
        path = self.file("max_heart_beat_leak = 30\n")
        result = self.run_cli("config", "show", "--given", path, "--wire", "binary")
        self.assertEqual(result.stdout, "wire\tbinary\tcommand line\nmax_heart_beat_leak\t30\tfile\n")
        self.assertIn("\nbootstrap\tfalse\tdefault\n", self.run_cli("config", "show", path).stdout)
        document = json.loads(self.run_cli("config", "show", "--json", path).stdout)
        self.assertEqual(document["max_heart_beat_leak"], {"value": 30, "origin": "file"})
        self.assertEqual(document["wire"], {"value": "auto", "origin": "default"})
        result = self.run_cli("config", "show", "--of", "broker", "--given", "--listen", "10915")
        self.assertIn("listen_port\t10915\tcommand line", result.stdout)
