# -*- test-case-name: tests.client.test_version -*-
"""
The version of this package, with the commit that it was made of where that is known: in a source tree by its
C{.git}, in an installation by its metadata, which setup.py writes.

Runs no program, so a version costs some small reads.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

#: The release; with C{.dev0} the one that this source becomes. (setup.py reads this line.)
VERSION = "0.2.0"
_DIGITS = frozenset("0123456789abcdef")
#: Digits of a commit that are shown.
_SHOWN = 12


def version_of(root: Path) -> str:
    """
    The version of the package in C{root}.

    @param root: the directory that has the package C{dledger}.
    """
    commit = commit_of(root)
    if commit:
        return f"{VERSION}+g{commit[:_SHOWN]}"
    try:
        installed = distribution("dledger")
        if Path(str(installed.locate_file("dledger"))).resolve() == (root / "dledger").resolve():
            named = "".join(installed.metadata.get_all("Keywords", [])).partition("commit-")[2]
            return installed.version + (f"+g{named[:_SHOWN]}" if named else "")
    except (PackageNotFoundError, OSError):
        pass  # (A copy of the source.)
    return VERSION


def commit_of(root: Path) -> str:
    """The commit of the work tree C{root}; empty if it is none, or its files are of another form."""
    try:
        place = root / ".git"
        if place.is_file():  # a further work tree
            place = (root / place.read_text("utf-8").removeprefix("gitdir:").strip()).resolve()
        head = (place / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref:"):
            return _checked(head)
        name = head.removeprefix("ref:").strip()
        common = place / "commondir"
        shared = (place / common.read_text("utf-8").strip()).resolve() if common.exists() else place
        for directory in (place, shared):
            if (directory / name).is_file():
                return _checked((directory / name).read_text("utf-8").strip())
        for line in (shared / "packed-refs").read_text("utf-8").splitlines():
            commit, _, packed = line.partition(" ")
            if packed == name:
                return _checked(commit)
    except (OSError, ValueError):
        pass
    return ""


def _checked(commit: str) -> str:
    return commit if len(commit) in (40, 64) and set(commit) <= _DIGITS else ""
