# -*- test-case-name: tests.sim.test_process -*-
"""
The disk of a machine whose processes die inside calls.

L{dledger.testing.disk.SimDisk} raises what no code catches. A whole service runs on this one, with Deferreds
that catch everything: so the call that kills the process fails with an C{OSError}, as do all changes after
it, and the machine ends the process when the present event is over.
"""

from __future__ import annotations

import errno
import random

from dledger.testing.disk import MemberDied, SimDisk


class MachineDisk(SimDisk):
    """
    A disk that remembers that its process has died.

    @ivar death: how the process died; None while it lives.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.death: MemberDied | None = None

    def before_change(self, path: str, kind: str) -> None:
        """See L{SimDisk.before_change}."""
        if self.death is None:
            try:
                super().before_change(path, kind)
            except MemberDied as death:
                self.death = death
        if self.death is not None:
            self.is_armed = True  # so that every later change comes here
            raise OSError(errno.EIO, f"the process has died {self.death}", path)

    def wipe(self, path: str) -> None:
        """Lose a directory with all that is in it, durably. No process has it open."""
        for known in list(self._directories):
            if known == path or known.startswith(f"{path}/"):
                del self._directories[known]

    def end_process(self) -> None:
        """See L{SimDisk.end_process}."""
        self.death = None
        super().end_process()

    def lose_power(self) -> None:
        """See L{SimDisk.lose_power}."""
        self.death = None
        super().lose_power()
