# -*- test-case-name: tests.core.test_group -*-
"""Three cores over a bad network, at random; the simulator does this with disks and crashes as well."""

from __future__ import annotations

import random

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replica import DLedgerCore
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.recovered import RecoveredState
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import HeartBeatRequest, VoteRequest
from tests.core.helpers import Bench, ListLedger, make_config, sent


@attrs.define
class Group:
    """Three cores and a network that loses, delays and reorders between pairs, but not within one."""

    rng: random.Random
    benches: dict[str, Bench]
    wires: dict[tuple[str, str], list[fx.SendRequest | tuple[int, str, object]]] = attrs.Factory(dict)
    leaders: dict[int, str] = attrs.Factory(dict)
    committed: dict[int, tuple[int, bytes]] = attrs.Factory(dict)
    answered: int = 0

    @classmethod
    def make(cls, seed: int) -> Group:
        """A fresh group."""
        rng = random.Random(seed)
        benches = {}
        for self_id in ("n0", "n1", "n2"):
            ledger, config = ListLedger(), make_config(self_id)
            core = DLedgerCore(
                config=config, view=ledger, rng=random.Random(rng.random()), recovered=RecoveredState(),
            )
            benches[self_id] = Bench(core, ledger, config)
        group = cls(rng, benches)
        for self_id in benches:
            group.feed(self_id, ev.Started())
        return group

    def feed(self, self_id: str, happened: ev.Input) -> None:
        """One step of one member; its messages go on the wires."""
        for effect in self.benches[self_id].step(happened):
            if isinstance(effect, fx.SendRequest):
                self.wires.setdefault((self_id, effect.peer_id), []).append(effect)
            elif isinstance(effect, fx.Reply):
                peer_id, request_id = self._asked.pop((self_id, effect.token))
                self.wires.setdefault((self_id, peer_id), []).append((request_id, self_id, effect.response))
            elif isinstance(effect, fx.AnswerAppend):
                self.answered += effect.code is ResponseCode.SUCCESS
        self.check(self_id)

    _asked: dict[tuple[str, int], tuple[str, int]] = attrs.Factory(dict)

    def check(self, self_id: str) -> None:
        """One leader a term, and what is committed is the same everywhere, for ever."""
        bench = self.benches[self_id]
        status = bench.core.status()
        if status.role == "leader":
            assert self.leaders.setdefault(status.term, self_id) == self_id, f"two leaders in {status.term}"
        for index in range(status.committed_index, -1, -1):
            entry = bench.ledger.entries[index]
            if index in self.committed:
                assert self.committed[index] == entry, f"index {index} was committed as something else"
                break
            self.committed[index] = entry

    def deliver(self) -> None:
        """The next message of some wire arrives, or is lost."""
        ends = self.rng.choice(sorted(self.wires))
        message = self.wires[ends].pop(0)
        if not self.wires[ends]:
            del self.wires[ends]
        sender, receiver = ends
        if self.rng.random() < 0.1:
            return
        if isinstance(message, fx.SendRequest):
            token = self.benches[receiver].next_token()
            self._asked[receiver, token] = (sender, message.request_id)
            self.feed(receiver, ev.RequestReceived(token=token, request=message.request))
        else:
            request_id, peer_id, response = message
            self.feed(receiver, ev.ResponseReceived(
                peer_id=peer_id, request_id=request_id, response=response  # type: ignore[arg-type]
            ))

    def run(self, steps: int, cut: str | None = None) -> None:
        """Let things happen at random; C{cut} neither sends nor receives."""
        for step in range(steps):
            if cut is not None:
                for ends in [ends for ends in self.wires if cut in ends]:
                    del self.wires[ends]
            roll = self.rng.random()
            if self.wires and roll < 0.85:
                self.deliver()
            elif roll < 0.97:
                for self_id, bench in self.benches.items():
                    bench.now_ms += 20
                    self.feed(self_id, ev.Ticked())
            else:
                self_id = self.rng.choice(sorted(self.benches))
                bench = self.benches[self_id]
                body = f"{self_id} {step}".encode()
                self.feed(self_id, ev.AppendProposed((
                    ev.Proposal(token=bench.next_token(), bodies=(body,)),
                )))


class GroupTests(SynchronousTestCase):
    """Three cores over a bad network."""

    def test_agree_whatever_happens(self) -> None:
        """Never two leaders in a term nor two entries at a committed index; and appends get through."""
        answered = 0
        for seed in range(6):
            group = Group.make(seed)
            for cut in (None, "n0", None, "n1", "n2", None):
                group.run(1_500, cut)
            answered += group.answered
            self.assertGreater(len(group.leaders), 0)
        self.assertGreater(answered, 100)

    def test_messages_are_of_the_wire(self) -> None:
        """The first rounds."""
        group = Group.make(1)
        group.run(400)
        seen = [effect for bench in group.benches.values() for effect in bench.seen]
        self.assertTrue(sent(seen, VoteRequest) and sent(seen, HeartBeatRequest))
