# -*- test-case-name: tests.processes.test_raft_broker -*-
"""
Three brokers of ours on a raft log, as an operator runs them: killed, frozen, stopped under load.

    DLEDGER_RAFT_BROKER_ROUNDS=100 DLEDGER_RAFT_BROKER_SEED=7 make processes

play more rounds, with other choices.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

import dledger
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendRequest
from tests.processes.asking import ask
from tests.processes.brokers import Remoting
from tests.processes.children import ChildError, free_ports, wait_until
from tests.processes.members import Member, ended_well
from tests.processes.raft_brokers import FILE_BYTES, GROUP, PATIENCE_S, Kept, RaftMember, RaftTrio
from tests.processes.raft_writers import QUEUES, STORED, UNKNOWN, WINDOW, RaftWriter, Reported, body_of

ROUNDS = int(os.environ.get("DLEDGER_RAFT_BROKER_ROUNDS", "9"))
SEED = int(os.environ.get("DLEDGER_RAFT_BROKER_SEED", "1"))
TOPIC = "Numbers"
UPDATE_OFFSET, CREATE_TOPIC, PUT_GROUP = 15, 17, 200
ALL_TOPICS, ALL_GROUPS, ALL_OFFSETS = 21, 201, 43
WRITERS = 2


class RaftCase(SynchronousTestCase):
    """A group that ends with the test."""

    def trio(self, **more: Any) -> RaftTrio:
        """A group, not started."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        group = RaftTrio(Path(held.name), **more)
        self.addCleanup(group.kill)
        return group

    def connect(self, broker: RaftMember) -> Remoting:
        """A connection that is closed after the test."""
        connection = broker.connect()
        self.addCleanup(connection.close)
        return connection


class ChaosTests(RaftCase):
    """Producers at a window of 32, while leaders go."""

    def test_nothing_acknowledged_is_lost(self) -> None:
        """
        What was acknowledged is on all members at the place in its producer's answer, once; what was
        refused is nowhere; no code says that a message may be lost; unknown outcomes are bounded.
        """
        self.group = self.trio()
        self.group.start()
        chance = random.Random(SEED)
        self.writers = [RaftWriter(self.group, number, TOPIC) for number in range(WRITERS)]
        for writer in self.writers:
            writer.start()
        self.wait_taken(time.monotonic())
        actions: list[Callable[[random.Random], None]] = [
            self.kill_leader, self.stop_leader, self.hand_over, self.freeze_leader, self.kill_follower,
            self.kill_two_leaders, self.freeze_follower, self.kill_all, self.stop_and_kill,
        ]
        played = [actions[number % len(actions)] for number in range(ROUNDS)]
        chance.shuffle(played)
        for action in played:
            action(chance)
            time.sleep(chance.uniform(0.1, 0.6))
        for writer in self.writers:
            writer.end()
        queues = self.group.wait_same(TOPIC)
        for writer in self.writers:
            self.assertEqual(writer.judge(queues), [])
            self.assertLess(len(writer.unknown), 3 * WINDOW * ROUNDS)
            self.assertGreater(len(writer.acknowledged), 50 * ROUNDS)
        for peer_id, status in self.group.stop().items():
            self.assertTrue(ended_well(status), f"{peer_id} ended with {status}")
        for peer_id, broker in self.group.brokers.items():
            text = broker.log_path.read_text()
            self.assertNotIn("Traceback", text, peer_id)
            self.assertNotIn("skipping the ", text, peer_id)

    def wait_taken(self, after_s: float) -> None:
        """Wait until each producer had a message acknowledged that it sent after a moment."""
        try:
            wait_until(lambda: all(writer.last_ok_s > after_s for writer in self.writers),
                       seconds=PATIENCE_S, what="acknowledged messages")
        except ChildError as error:
            raise ChildError(f"{error}\nroute {self.group.route()}\n{self.group.tails(30)}") from None

    def leader(self) -> str:
        """The master of the moment."""
        return self.group.wait_master()

    def follower(self, chance: random.Random) -> str:
        """A member that is not the master."""
        leader_id = self.leader()
        return chance.choice([peer_id for peer_id in self.group.brokers if peer_id != leader_id])

    def kill_leader(self, chance: random.Random) -> None:
        """SIGKILL, and a start when the others have continued."""
        self._kill(self.leader())

    def kill_follower(self, chance: random.Random) -> None:
        """SIGKILL of a follower."""
        self._kill(self.follower(chance))

    def _kill(self, victim: str) -> None:
        self.group.brokers[victim].kill()
        self.wait_taken(time.monotonic())
        self.group.brokers[victim].start()
        self.wait_taken(time.monotonic())

    def kill_two_leaders(self, chance: random.Random) -> None:
        """The next leader is killed as soon as it is master; then the first is there again."""
        first = self.leader()
        self.group.brokers[first].kill()
        second = self.group.wait_master(other_than=[first])
        self.group.brokers[first].start()
        self.group.brokers[second].kill()
        self.wait_taken(time.monotonic())
        self.group.brokers[second].start()

    def kill_all(self, chance: random.Random) -> None:
        """SIGKILL of all, one right after the other."""
        for broker in self.group.brokers.values():
            broker.kill()
        for broker in self.group.brokers.values():
            broker.start()
        self.wait_taken(time.monotonic())

    def stop_leader(self, chance: random.Random) -> None:
        """SIGTERM: it hands over, and ends cleanly."""
        victim = self.leader()
        self.assertTrue(ended_well(self.group.brokers[victim].stop(seconds=30)))
        self.wait_taken(time.monotonic())
        self.group.brokers[victim].start()

    def stop_and_kill(self, chance: random.Random) -> None:
        """SIGTERM to the leader, and SIGKILL before it has ended."""
        victim = self.leader()
        self.group.brokers[victim].send(signal.SIGTERM)
        time.sleep(chance.uniform(0.0, 0.3))
        self.group.brokers[victim].kill()
        self.wait_taken(time.monotonic())
        self.group.brokers[victim].start()

    def freeze_leader(self, chance: random.Random) -> None:
        """SIGSTOP until another leads; thawed, it takes nothing as the master that it was."""
        self._freeze(self.leader(), chance)

    def freeze_follower(self, chance: random.Random) -> None:
        """SIGSTOP of a follower for a while."""
        self._freeze(self.follower(chance), chance)

    def _freeze(self, victim: str, chance: random.Random) -> None:
        broker = self.group.brokers[victim]
        broker.pause()
        try:
            self.wait_taken(time.monotonic())
            time.sleep(chance.uniform(0.0, 1.0))
        finally:
            broker.resume()
        self.wait_taken(time.monotonic())

    def hand_over(self, chance: random.Random) -> None:
        """LEADERSHIP_TRANSFER under load: the taker becomes the master."""
        leader_id = self.leader()
        taker_id = self.follower(chance)
        if leader_id != taker_id and self.group.hand_over(leader_id, taker_id):
            self.group.wait_master(other_than=[leader_id])
        self.wait_taken(time.monotonic())


class JudgeTests(SynchronousTestCase):
    """The judge of the producers notices what must not be."""

    def setUp(self) -> None:
        """Message 0 is acknowledged, 1 refused, 2 unknown; the queues have the first alone."""
        self.writer = RaftWriter(RaftTrio(Path(self.mktemp())), 0, TOPIC)
        self.writer.acknowledged[0] = Reported(0, 0, 48)
        self.writer.refused.append(1)
        self.writer.unknown.append(2)
        self.writer.codes.update({STORED: 1, 14: 1, UNKNOWN: 1})
        self.queues = [[Kept(0, 48, body_of(0, 0))], []]

    def test_good(self) -> None:
        """An unknown message is there once, or not at all."""
        self.assertEqual(self.writer.judge(self.queues), [])
        self.queues[1].append(Kept(0, 100, body_of(0, 2)))
        self.assertEqual(self.writer.judge(self.queues), [])

    def test_wrong(self) -> None:
        """Lost, elsewhere in the queue or the log, twice, stored though refused; a code that is none."""
        self.writer.codes[11] = 1
        there, again = self.queues[0][0], Kept(0, 100, body_of(0, 2))
        for queues, words in (
            ([[], []], "acknowledged 0/0"), ([[], [there]], "acknowledged 0/0"),
            ([[there._replace(physical_offset=50)], []], "acknowledged 0/0"),
            ([[there, there], []], "acknowledged 0/0"),
            ([[there], [Kept(0, 100, body_of(0, 1))]], "refused 0/1 is stored"),
            ([[there], [again, again]], "0/2 was sent once and is stored twice"),
        ):
            wrong = self.writer.judge(queues)
            self.assertEqual(len(wrong), 2, wrong)
            self.assertIn("code 11", wrong[0])
            self.assertIn(words, wrong[1])


class FailOverTests(RaftCase):
    """What a new master knows."""

    def test_delayed_messages(self) -> None:
        """Messages that were waiting for their time when their master died are delivered by the next."""
        group = self.trio(options={"messageDelayLevel": "1s 4s"})
        first = group.start()
        connection = self.connect(group.brokers[first])
        for number in range(20):
            connection.put(TOPIC, number % QUEUES, body_of(0, number), DELAY="2")
        self.assertEqual([connection.next().code for _ in range(20)], [STORED] * 20)
        group.brokers[first].kill()
        second = group.wait_master(other_than=[first])
        bodies = {body_of(0, number) for number in range(20)}

        def delivered() -> bool:
            found = [one.body for number in range(QUEUES) for one in group.queue_at(second, TOPIC, number)]
            self.assertLessEqual(len(found), 40, "delivered many times")
            return set(found) == bodies

        wait_until(delivered, seconds=PATIENCE_S, what="delayed messages", every=0.2)
        group.brokers[first].start()
        group.wait_same(TOPIC)

    def test_metadata(self) -> None:
        """What was acknowledged a moment before, every later master knows: a topic, a group, an offset."""
        group = self.trio()
        master = group.start()
        for number in range(3):
            topic, name = f"Made{number}", f"readers{number}"
            connection = self.connect(group.brokers[master])
            end = 7 * number + 1
            for code, fields, body in (
                (CREATE_TOPIC, {
                    "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(number + 3), "perm": "6",
                    "writeQueueNums": str(number + 3), "topicFilterType": "SINGLE_TAG",
                }, {}),
                (PUT_GROUP, {}, {"groupName": name, "retryMaxTimes": number + 1}),
            ):
                answer = connection.ask(code, fields, json.dumps(body).encode() if body else b"")
                self.assertEqual(answer.code, 0, answer.remark)
            for _ in range(end):
                connection.put(topic, 0, b"x")
            self.assertEqual([connection.next().code for _ in range(end)], [STORED] * end)
            answer = connection.ask(UPDATE_OFFSET, {
                "consumerGroup": name, "topic": topic, "queueId": "0", "commitOffset": str(end),
            }, b"")
            self.assertEqual(answer.code, 0, answer.remark)
            group.brokers[master].kill()
            last, master = master, group.wait_master(other_than=[master])
            tables = [
                json.loads(self.connect(group.brokers[master]).ask(code, {}).body)
                for code in (ALL_TOPICS, ALL_GROUPS, ALL_OFFSETS)
            ]
            for known in range(number + 1):
                topic, name = f"Made{known}", f"readers{known}"
                self.assertEqual(tables[0]["topicConfigTable"][topic]["readQueueNums"], known + 3)
                self.assertEqual(tables[1]["subscriptionGroupTable"][name]["retryMaxTimes"], known + 1)
                self.assertEqual(tables[2]["offsetTable"][f"{topic}@{name}"]["0"], 7 * known + 1)
            group.brokers[last].start()

    def test_sends_to_a_follower(self) -> None:
        """A follower refuses a send with code 14, and the connection goes on."""
        group = self.trio()
        first = group.start()
        follower = next(peer_id for peer_id in group.brokers if peer_id != first)
        wait_until(lambda: len(group.route()) == 3, seconds=PATIENCE_S, what="all are registered")
        connection = self.connect(group.brokers[follower])
        for _ in range(2):
            connection.put(TOPIC, 0, b"x")
            answer = connection.next()
            self.assertEqual(answer.code, 14, answer.remark)
            self.assertIn("slave", answer.remark)


class DamageTests(RaftCase):
    """Files that are lost, and requests that a broker's member must not take."""

    def put(self, master: str, first: int, count: int = 40) -> None:
        """Numbered messages, all acknowledged, one after the other."""
        connection = self.connect(self.group.brokers[master])
        for number in range(first, first + count):
            connection.put(TOPIC, number % QUEUES, body_of(0, number))
            self.assertEqual(connection.next().code, STORED)

    def lead(self, taker_id: str) -> None:
        """This member becomes the master."""

        def leads() -> bool:
            leader_id = self.group.wait_master()
            return leader_id == taker_id or not self.group.hand_over(leader_id, taker_id)

        wait_until(lambda: leads() and self.group.master() == taker_id, seconds=PATIENCE_S,
                   what=f"{taker_id} leads", every=0.2)

    def test_lost_files(self) -> None:
        """
        A follower without its queues, without the record of how far they are complete, or without any file,
        after a stop or a kill: it has all messages again, and as a leader it continues the queues.
        """
        self.group = self.trio()
        first = self.group.start()
        self.put(first, 0)
        victim = self.group.brokers[next(peer_id for peer_id in self.group.brokers if peer_id != first)]
        count = 40
        for lost, ends in (
            ("consumequeue", True), ("consumequeue/Numbers/2", True), ("dispatched", False),
            ("consumequeue", False), (".", False),
        ):
            if ends:
                self.assertTrue(ended_well(victim.stop(seconds=30)))
            else:
                victim.kill()
            path = victim.store / lost
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            self.put(self.group.wait_master(other_than=[victim.name]), count)
            victim.start()
            self.group.wait_same(TOPIC)
            self.lead(victim.name)
            self.put(victim.name, count + 40)
            count += 80
            queues = self.group.wait_same(TOPIC)
            self.assertEqual([len(queue) for queue in queues], [count // QUEUES] * QUEUES, lost)

    def test_foreign_appends(self) -> None:
        """
        A client of DLedger that appends at the member's port is refused; what a member wrote before it was
        a broker's is passed over, and messages after it have their places.
        """
        self.group = self.trio(size=1)
        self.group.start()
        self.put("n0", 0, 8)
        request = AppendRequest(group=GROUP, remote_id="n0", bodies=(b"no message",))
        for native in (False, True):
            answer = ask(self.group.peers["n0"], request, native=native)
            self.assertEqual(answer.code, ResponseCode.UNSUPPORTED)
        self.assertTrue(ended_well(self.group.stop()["n0"]))
        member = Member("n0", self.group.peers, self.group.brokers["n0"].store, group=GROUP, options={
            "mapped_file_size_for_entry_data": FILE_BYTES,
        })
        self.addCleanup(member.kill)
        member.start()
        with dledger.connect(f"n0-{self.group.peers['n0']}", timeout=30, group=GROUP) as log:
            for body in (b"", b"hello", bytes(91), b"x" * 5000):
                log.append(body)
        self.assertTrue(ended_well(member.stop()))
        self.group.start()
        self.put("n0", 8, 8)
        self.assertEqual([len(queue) for queue in self.group.wait_same(TOPIC)], [4] * QUEUES)


class WrongOptionsTests(RaftCase):
    """A wrong configuration ends the process at its start, with one line that says what is wrong."""

    def assert_refused(self, expected: str, broker: RaftMember) -> None:
        """It ends by itself, with another status than 0; one line of its output has the reason."""
        self.addCleanup(broker.kill)
        broker.start()
        self.assertNotEqual(broker.wait(seconds=60), 0)
        text = broker.log_path.read_text()
        self.assertNotIn("Traceback", text)
        lines = [line for line in text.splitlines() if expected in line]
        self.assertEqual(len(lines), 1, f"{expected!r} in one line of:\n{text}")

    def test_wrong_options(self) -> None:
        """Options that do not fit together."""
        group = self.trio()
        (port,) = free_ports(1)
        wrong: list[tuple[str, dict[str, object]]] = [
            ("dLegerSelfId=n7 is not one of dLegerPeers", {"dLegerSelfId": "n7"}),
            ("dLegerSelfId='node': write a letter and a number", {"dLegerSelfId": "node"}),
            ("dLegerSelfId='0': write a letter and a number", {"dLegerSelfId": "0"}),
            ("broker_role=SLAVE with enableDLegerCommitLog=true", {"brokerRole": "SLAVE", "brokerId": 1}),
            ("dLegerPeers is given, but enableDLegerCommitLog is false", {"enableDLegerCommitLog": False}),
            ("enableDLegerCommitLog=true needs dLegerPeers", {"dLegerPeers": ""}),
            ("dLegerPeers: 'n0' is not id-host:port", {"dLegerPeers": "n0"}),
            ("dLegerPeers: member 'n0' is given twice", {
                "dLegerPeers": f"n0-127.0.0.1:{port};n0-127.0.0.1:{port + 1}",
            }),
        ]
        for expected, options in wrong:
            broker = group.made("n0", **options)
            broker.log_path.unlink(missing_ok=True)
            self.assert_refused(expected, broker)

    def test_port_of_the_broker(self) -> None:
        """The member's port cannot be one of the broker's."""
        group = self.trio(size=1)
        port = group.brokers["n0"].port
        for member_port, name in ((port, "listenPort of"), (port - 2, "listenPort - 2 of")):
            peers = f"n0-127.0.0.1:{member_port}"
            broker = RaftMember("n0", group.directory, {
                "brokerName": GROUP, "enableDLegerCommitLog": True, "dLegerPeers": peers,
                "dLegerSelfId": "n0", "namesrvAddr": group.name_server_address,
            }, port=port)
            broker.log_path.unlink(missing_ok=True)
            self.assert_refused(f"which is {name}", broker)

    def test_two_brokers_on_one_directory(self) -> None:
        """The second one ends; the first one does not notice."""
        group = self.trio(size=1)
        group.start()
        second = RaftMember("second", group.directory, {
            "brokerName": GROUP, "enableDLegerCommitLog": True, "dLegerSelfId": "n0",
            "dLegerPeers": f"n0-127.0.0.1:{free_ports(1)[0]}", "brokerIP1": "127.0.0.1",
            "mappedFileSizeCommitLog": FILE_BYTES,
        }, port=group.brokers["n0"].port + 7)
        conf = second.configuration.read_text().replace(str(second.store), str(group.brokers["n0"].store))
        second.configuration.write_text(conf)
        self.assert_refused("in use", second)
        connection = self.connect(group.brokers["n0"])
        connection.put(TOPIC, 0, b"still here")
        self.assertEqual(connection.next().code, STORED)
