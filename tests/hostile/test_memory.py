# -*- test-case-name: tests.hostile.test_memory -*-
"""No stranger makes a member large: unread answers, half frames, waiting reads."""

from __future__ import annotations

import socket
import struct
import time

import dledger
from protocols.wire.codes import ResponseCode
from protocols.wire.framing import FrameBuffer
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.messages import GetRequest, PullRequest, PullResponse, Request
from protocols.wire.ledger.push import decode_frame
from tests.hostile.target import (
    MIB,
    HostileCase,
    frames,
    highest_resident_mib,
    notify,
    resident_mib,
    send_slowly,
)
from tests.processes.children import peers_text

#: Resident memory that a member may have beyond its calm state, in MiB: the budgets of answers and frames.
ALLOWED_MIB = 400


class UnreadAnswerTests(HostileCase):
    """Requests of 55 bytes whose answers have megabytes."""

    def fill(self) -> None:
        """Entries of 1 MiB."""
        with dledger.connect(peers_text(self.peers), timeout=20.0) as log:
            self.first = log.append(b"x" * MIB).index
            for _ in range(7):
                log.append(b"x" * MIB)

    def test_pipelined_reads(self) -> None:
        """
        41 KB of pipelined GETs and PULLs, committed and linearizable, on many connections, of which nothing
        is read.
        """
        self.fill()
        leader = self.wait_for_leader()
        before = resident_mib(self.members[leader].pid)
        base = {"group": "default", "remote_id": leader}

        def attack() -> None:
            for number in range(24):
                connection = self.introduced(leader)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                kind = number % 3
                if kind == 0:
                    request: Request = GetRequest(
                        begin_index=self.first, consistency=Consistency.COMMITTED, **base
                    )
                elif kind == 1:
                    request = GetRequest(begin_index=self.first, **base)
                else:
                    request = PullRequest(begin_index=self.first, max_bytes=1 << 30, **base)
                send_slowly(connection, frames(*[request] * 760))
            time.sleep(4)

        self.serve_through(attack)
        grown = highest_resident_mib(self.members[leader].pid) - before
        notify(f"resident memory grew by {grown:.0f} MiB")
        self.assertLess(grown, ALLOWED_MIB)
        self.assert_all_alive()
        self.assertEqual(self.wait_for_leader(), leader)

    def test_all_answers_come(self) -> None:
        """A client that asks for a lot and reads it gets everything, in bounded memory."""
        self.fill()
        leader = self.wait_for_leader()
        connection = self.introduced(leader)
        before = resident_mib(self.members[leader].pid)
        request = GetRequest(
            group="default", remote_id=leader, begin_index=self.first, consistency=Consistency.COMMITTED
        )
        connection.sendall(frames(*[request] * 300))
        buffer, answers = FrameBuffer(), 0
        while answers < 300:
            data = connection.recv(1 << 20)
            self.assertTrue(data, "the member ended the connection")
            answers += len(buffer.feed(data))
        grown = highest_resident_mib(self.members[leader].pid) - before
        notify(f"resident memory grew by {grown:.0f} MiB for 300 MiB of answers")
        self.assertLess(grown, 100)


class HalfFrameTests(HostileCase):
    """Frames that never end."""

    def test_half_frames(self) -> None:
        """A hundred connections send 4 MiB each of a frame of 16 MiB."""
        leader = self.wait_for_leader()
        before = resident_mib(self.members[leader].pid)
        head = struct.pack(">ii", 16 * MIB - 4, 100)

        def attack() -> None:
            for _ in range(100):
                connection = self.connect(leader)
                send_slowly(connection, head + b"x" * (4 * MIB), seconds=0.5)

        self.serve_through(attack, share=0.3)
        grown = highest_resident_mib(self.members[leader].pid) - before
        notify(f"resident memory grew by {grown:.0f} MiB")
        self.assertLess(grown, 150)
        self.assert_all_alive()


class WaitingTests(HostileCase):
    """Reads that wait for entries."""

    def test_one_connection_does_not_take_all_places(self) -> None:
        """16,000 waiting PULLs of one connection; another reader waits and is served."""
        leader = self.wait_for_leader()
        base = {"group": "default", "remote_id": leader}
        greedy = self.introduced(leader)
        pull = PullRequest(begin_index=1 << 40, wait_ms=30_000, **base)
        send_slowly(greedy, frames(*[pull] * 16_000))
        with dledger.connect(peers_text(self.peers), timeout=20.0) as log:
            end = log.append(b"one").index
            reader = self.introduced(leader)
            reader.sendall(frames(PullRequest(begin_index=end + 1, wait_ms=10_000, **base)))
            time.sleep(0.5)
            log.append(b"two")
        reader.settimeout(10)
        buffer = FrameBuffer()
        found = []
        while not found:
            found = buffer.feed(reader.recv(65536))
        _, answer = decode_frame(found[0].data)
        assert isinstance(answer, PullResponse)
        self.assertIs(answer.code, ResponseCode.SUCCESS)
        assert answer.entries is not None
        self.assertEqual(answer.entries.first_index, end + 1)
        self.assert_all_alive()
