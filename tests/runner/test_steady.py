# -*- test-case-name: tests.runner.test_steady -*-
"""A stage that is run repeatedly."""

from __future__ import annotations

import io
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.runner.steady import repeat
from tests.runner.test_counts import END, failure
from tests.runner.test_playing import stage


class RepeatTests(SynchronousTestCase):
    """The failures of each test are counted over all runs."""

    def test_counts(self) -> None:
        """A test that fails in one run is named with the number, and so is a stage that names none."""
        seen = str(Path(self.mktemp()).absolute())
        block = failure("FAIL", "1 != 2", "tests.x.y.Tests.test_a") + END + "\n"
        code = (
            f"import pathlib, sys\nat = pathlib.Path({seen!r})\n"
            "at.write_text((at.read_text() if at.exists() else '') + 'x')\n"
            "number = len(at.read_text())\n"
            f"if number == 2: print({block!r})\n"
            "sys.exit(number >= 2)"
        )
        out = io.StringIO()
        self.assertEqual(repeat(stage(code), 3, out), 2)
        lines = out.getvalue().splitlines()
        self.assertEqual(lines[-3:], [
            "  1 of 3 failed: tests.x.y.Tests.test_a", "  1 of 3 failed: stage it", "1 passed, 2 failed",
        ])
        said = [line.split(",")[0] for line in lines if line.startswith("==== ")]
        self.assertEqual(said, [f"==== run {number} of 3: {int(number == 1)} passed" for number in (1, 2, 3)])

    def test_green(self) -> None:
        """Without a failure there is only the last line."""
        out = io.StringIO()
        self.assertEqual(repeat(stage("pass"), 2, out), 0)
        self.assertEqual(out.getvalue().splitlines()[-1], "2 passed, 0 failed")
