# -*- test-case-name: tests.test_packaging -*-
"""The installation has all packages, and the files that describe it agree with each other."""

from __future__ import annotations

import ast
import os
import re
import runpy
import sys
import tomllib
from configparser import ConfigParser
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from unittest import SkipTest

import setuptools
from setuptools import find_packages
from twisted.trial.unittest import SynchronousTestCase

from dledger.version import commit_of
from tests.release_check import wrong_metadata

ROOT = Path(__file__).resolve().parent.parent


def setup_arguments() -> dict[str, str]:
    """The keyword arguments of C{setup}, as source text."""
    tree = ast.parse((ROOT / "setup.py").read_text("utf-8"))
    call = next(
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "setup"
    )
    return {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg}


def plain(name: str) -> str:
    """A package's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    found = re.match(r"[0-9.]+", version)
    assert found is not None, version
    return tuple(int(part) for part in found[0].strip(".").split("."))


def pins() -> dict[str, str]:
    """The versions in constraints.txt, by name."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            found[plain(name)] = version
    return found


class SetupTests(SynchronousTestCase):
    """setup.py and its neighbours."""

    def test_every_directory_is_a_package(self) -> None:
        """A directory of modules without C{__init__.py} would be left out of the installation."""
        packages = set(find_packages(str(ROOT), include=["dledger", "dledger.*", "protocols", "protocols.*"]))
        for top in ("dledger", "protocols"):
            for path in (ROOT / top).rglob("*.py"):
                self.assertIn(".".join(path.parent.relative_to(ROOT).parts), packages)

    def test_description(self) -> None:
        """It has no relative link, with and without a known place of the repository, and names its commit."""
        given: dict[str, Any] = {}
        self.patch(setuptools, "setup", given.update)
        for url in ("", "https://example.org/dledger"):
            self.patch(os, "environ", {**os.environ, "DLEDGER_URL": url})
            runpy.run_path(str(ROOT / "setup.py"))
            text = "Version: {version}\nKeywords: {words}\n\n{long_description}".format(
                words=",".join(given["keywords"]), **given)
            self.assertEqual([*wrong_metadata(text, commit_of(ROOT))], [])
            self.assertIn("](http", given["long_description"] + "](http" * (not url))
            self.assertEqual(bool(given["project_urls"]), bool(url))
        self.assertIn(f"]({url}/blob/main/docs/spark.md)", given["long_description"])

    def test_plugin_directory_is_not_a_package(self) -> None:
        """An C{__init__.py} beside the plugin would hide Twisted's own."""
        self.assertFalse((ROOT / "twisted" / "__init__.py").exists())
        self.assertFalse((ROOT / "twisted" / "plugins" / "__init__.py").exists())
        self.assertIn("PLUGINS", setup_arguments()["packages"])

    def test_editable_installation_shows_the_plugin(self) -> None:
        """Twisted looks for plugins along C{sys.path}, where an import hook is not seen."""
        config = ConfigParser()
        config.read(ROOT / "setup.cfg")
        self.assertEqual(config["editable_wheel"]["mode"], "compat")

    def test_constraints(self) -> None:
        """constraints.txt pins every package that we need, at versions that setup.py allows."""
        source = (ROOT / "setup.py").read_text("utf-8")
        needed = dict(re.findall(r'"([A-Za-z_.0-9-]+)(?:\[[a-z0-9]+\])?>=([0-9.]+)"', source))
        self.assertIn("moto", needed)
        pinned = pins()
        for name, least in needed.items():
            with self.subTest(name=name):
                version = pinned[plain(name)]
                self.assertGreaterEqual(numbers(version), numbers(least), f"{name} {version}")

    def test_constraints_are_complete(self) -> None:
        """What is installed beside us in C{.venv} is what constraints.txt names, at the same versions."""
        if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
            raise SkipTest("this is not the environment that make installs")
        installed = {plain(each.name): each.version for each in distributions()}
        for name in ("dledger", "pip", "setuptools", "wheel"):
            installed.pop(name, None)
        pinned = pins()
        self.assertEqual(installed, {name: pinned.get(name) for name in installed})

    def test_everything_is_pinned(self) -> None:
        """What make and tox install for tests are the versions of constraints.txt."""
        make = (ROOT / "Makefile").read_text("utf-8")
        installing = [line for line in make.splitlines() if "pip install" in line]
        self.assertGreater(len(installing), 2)
        for line in installing:
            self.assertTrue("--constraint constraints.txt" in line or "# unpinned" in line, line)
        tox = ConfigParser()
        tox.read(ROOT / "tox.ini")
        self.assertEqual(tox["testenv"]["constraints"], "constraints.txt")

    def test_extras(self) -> None:
        """README has each extra for users, the Makefile has the others; a page or message names no third."""
        given: dict[str, Any] = {}
        self.patch(setuptools, "setup", given.update)
        runpy.run_path(str(ROOT / "setup.py"))
        extras = {*given["extras_require"]}
        readme = (ROOT / "README.md").read_text("utf-8")
        listed = re.search(r"\nExtras of `pip install [^`]*`:(.*?)\n\n", readme, re.S)
        make = (ROOT / "Makefile").read_text("utf-8")
        checks = re.search(r"^CHECKS := (.*)\nEVERYTHING := \$\(CHECKS\),(.*)$", make, re.M)
        assert listed is not None and checks is not None
        users = set(re.findall(r"`([a-z0-9-]+)`", listed[1]))
        self.assertEqual(users | set(",".join(checks.groups()).split(",")), extras)
        pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*")]
        for path in [*pages, *(ROOT / "dledger").rglob("*.py")]:
            text = path.read_text("utf-8") if path.is_file() else ""
            for names in re.findall(r"pip install[^\n\[]*\[([a-z0-9,-]+)\]", text):
                self.assertLessEqual(set(names.split(",")), extras, path)

    def test_command(self) -> None:
        """The command has its name and its function."""
        self.assertIn("dledger = dledger.cli.entry:main", setup_arguments()["entry_points"])

    def test_tox_and_make_agree(self) -> None:
        """Every environment of tox is described; every target of make that is listed is phony."""
        tox = (ROOT / "tox.ini").read_text("utf-8")
        environments = re.findall(r"^\[testenv", tox, re.M)
        self.assertEqual(len(environments), len(re.findall(r"^description", tox, re.M)))
        make = (ROOT / "Makefile").read_text("utf-8")
        phony = re.search(r"^\.PHONY: (.*)$", make, re.M)
        assert phony is not None
        self.assertEqual(sorted(re.findall(r"^([a-z-]+):.*## ", make, re.M)), sorted(phony[1].split()))

    def test_news_fragments(self) -> None:
        """A fragment is C{+<change>.<kind>}, of a kind that towncrier knows, in one line."""
        config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
        kinds = [kind["directory"] for kind in config["type"]]
        for path in (ROOT / config["directory"]).iterdir():
            if path.name != ".gitignore":
                self.assertRegex(path.name, rf"^\+[a-z0-9-]+\.({'|'.join(kinds)})$")
                self.assertEqual(len(path.read_text("utf-8").strip().splitlines()), 1, path.name)
