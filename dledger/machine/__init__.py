"""State machines in the member: their calls, their runner, their snapshots."""

from dledger.machine.state_machine import RefusedCommand as Refused
from dledger.machine.state_machine import StateMachine

__all__ = ("Refused", "StateMachine")
