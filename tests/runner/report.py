# -*- test-case-name: tests.runner.test_report -*-
"""
The report of a run, for machines: C{build/test-report.json}, or C{build/test-all-report.json}.

It names the git tree that was tested: the working copy as it would be committed. A run of some stages on the
same tree replaces these stages in the report and leaves the others; on another tree it begins a new report.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from tests.runner.counts import test_seconds
from tests.runner.playing import Result
from tests.runner.stages import ROOT

#: Number of the slowest tests of a stage that are named.
SLOWEST = 10


def tested_tree(root: Path = ROOT) -> str:
    """
    The git tree of the working copy, new files included and ignored ones not; empty without git.

    The index of the repository is left as it is.
    """
    with tempfile.TemporaryDirectory() as temporary:
        index = Path(temporary) / "index"

        def git(*words: str) -> str:
            done = subprocess.run(
                ["git", *words], cwd=root, env={**os.environ, "GIT_INDEX_FILE": str(index)}, check=True,
                capture_output=True, text=True, stdin=subprocess.DEVNULL,
            )
            return done.stdout.strip()

        try:
            real = root / git("rev-parse", "--git-path", "index")
            if real.exists():
                shutil.copyfile(real, index)  # so that git need not read the files that did not change
            git("add", "--all")
            return git("write-tree")
        except (OSError, subprocess.CalledProcessError):
            return ""


def _java_version() -> str:
    """The first line that java prints about itself; empty without java."""
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line for line in done.stderr.splitlines() if "version" in line]
    return lines[0] if lines else ""


def described(result: Result) -> dict[str, object]:
    """One stage, as it is in the report."""
    took = sorted(test_seconds(result.output).items(), key=lambda item: -item[1])[:SLOWEST]
    return {
        "name": result.stage.name,
        "passed": result.count.passed,
        "failed": result.count.failed,
        "skipped": result.count.skipped,
        "unsteady": list(result.unsteady),
        "failed_tests": result.failures,
        "seconds": round(result.seconds, 1),
        "budget_s": result.stage.budget_s,
        "note": result.note,
        "slowest": [{"test": name, "seconds": seconds} for name, seconds in took],
    }


@attrs.define
class Report:
    """
    Invariant: every stage in it was run on the same tree.

    @ivar path: the file.
    @ivar tree: as L{tested_tree}; without one, nothing of an older report is used.
    @ivar names: of all stages of a whole run, in order.
    """

    path: Path
    tree: str
    names: Sequence[str]
    _stages: dict[str, Mapping[str, object]] = attrs.field(factory=dict, init=False)

    def load(self) -> None:
        """Take over the stages of the report in the file, if it is of the same tree."""
        try:
            older = json.loads(self.path.read_text("utf-8"))
            if self.tree and older["tree"] == self.tree:
                self._stages = {stage["name"]: stage for stage in older["stages"]}
        except (OSError, ValueError, KeyError, TypeError):
            self._stages = {}  # no report, or none of ours

    def is_green(self, name: str) -> bool:
        """Whether this stage passed on this tree."""
        stage = self._stages.get(name)
        return stage is not None and stage["failed"] == 0

    def add(self, result: Result) -> None:
        """Put the result of a stage in the place of an older one."""
        self._stages[result.stage.name] = described(result)

    def write(self, *, seconds: float, slowness: float) -> None:
        """Write the file; a run that is ended half-way has the stages up to there."""
        stages = [self._stages[name] for name in self.names if name in self._stages]
        constraints = ROOT / "constraints.txt"
        sums = {key: sum(int(str(stage[key])) for stage in stages) for key in ("passed", "failed", "skipped")}
        text = json.dumps({
            "tree": self.tree,
            "is_complete": len(stages) == len(self.names),
            **sums,
            "python": platform.python_version(),
            "java": _java_version(),
            "constraints_sha256": hashlib.sha256(constraints.read_bytes()).hexdigest(),
            "processors": os.cpu_count(),
            "slowness": slowness,
            "seconds": round(seconds, 1),
            "stages": stages,
        }, indent=1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(text + "\n", "utf-8")
        part.replace(self.path)
