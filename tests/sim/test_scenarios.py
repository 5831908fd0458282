# -*- test-case-name: tests.sim.test_scenarios -*-
"""Every script in tests/scenarios holds, and the script language refuses unknown commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.scenario import Scenario, ScriptFailed

SCRIPTS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))


class ScenarioTests(SynchronousTestCase):
    """One test for each script; its first comment says which promise it shows."""


def _test_of(script: Path) -> Callable[[ScenarioTests], None]:
    def test(self: ScenarioTests) -> None:
        Scenario(script.read_text(), name=script.name).run()

    test.__doc__ = script.read_text().split("\n\n")[0].lstrip("# ").split("\n")[0]
    return test


for _script in SCRIPTS:
    setattr(ScenarioTests, f"test_{_script.stem}", _test_of(_script))


class LanguageTests(SynchronousTestCase):
    """A script that makes no sense, or expects what is not so, fails and names its line."""

    def failing(self, text: str) -> str:
        """The message with which a script fails."""
        with self.assertRaises(ScriptFailed) as caught:
            Scenario(text, name="bad").run()
        return str(caught.exception)

    def test_unknown_command(self) -> None:
        """A command that there is not is refused."""
        self.assertIn("bad, line 2", self.failing("nodes 3\nfly n0"))

    def test_wrong_arguments(self) -> None:
        """Too few words are refused."""
        self.assertIn("advance", self.failing("nodes 3\nadvance"))

    def test_unknown_member(self) -> None:
        """A member that there is not is refused."""
        self.assertIn("'n7'", self.failing("nodes 3\nkill n7"))

    def test_unknown_expectation(self) -> None:
        """An expectation that there is not is refused."""
        self.assertIn("'rain'", self.failing("nodes 3\nexpect rain"))

    def test_no_group(self) -> None:
        """Without 'nodes' there is nothing to talk about."""
        self.assertIn("nodes", self.failing("advance 1"))

    def test_expectation_that_does_not_hold(self) -> None:
        """The message says what was expected and what was found."""
        message = self.failing("nodes 3\nlead n1\nexpect leader n0")
        self.assertIn("expected n0, found n1", message)

    def test_status_is_compared(self) -> None:
        """Other lines than the printed ones are a failure."""
        self.assertIn("status", self.failing("nodes 1\nstatus\n    n0 leader t9 1/1"))

    def test_status_is_rewritten(self) -> None:
        """With rewriting, the script comes back with what status prints now."""
        scenario = Scenario("nodes 1\nstatus\n    nonsense\nadvance 1")
        scenario.run(rewrite=True)
        self.assertEqual(scenario.printed, ["nodes 1", "status", "    n0 follower t0 -1/-1", "advance 1"])
