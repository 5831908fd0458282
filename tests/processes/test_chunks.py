# -*- test-case-name: tests.processes.test_chunks -*-
"""Real members: an empty follower catches up by chunks, and both sides are killed meanwhile."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.storage.files.chunk_rows import unpack_rows
from dledger.storage.files.term_file import TermFile
from dledger.storage.start.verify import verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.storage.store.store_flush import LedgerFlush
from dledger.values.ledger.config import DLedgerConfig
from tests.processes.children import wait_until
from tests.processes.ledgers import assert_identical
from tests.processes.members import Group, Member, ended_well

ENTRIES = 200_000
#: Small files and chunks, and a rate at which the catch-up takes some seconds.
OPTIONS: dict[str, int] = {
    "mapped_file_size_for_entry_data": 4 << 20, "mapped_file_size_for_entry_index": 1 << 20,
    "push_chunk_bytes": 64 << 10,
    "peer_push_throttle_point": 1 << 20, "peer_push_quota": 3 << 20,
}


def build(member: Member, peers: str) -> None:
    """Fill the ledger of a member that is down: entries of several sizes and of two terms."""
    path = str(member.directory)
    config = DLedgerConfig(store_base_dir=path, self_id=member.self_id, peers=peers, **OPTIONS)
    store = FileStore.open(config, OsDisk())
    terms = TermFile(OsDisk(), config.self_path, member_ids=config.peers)
    terms.take_up(ledger_end_term=-1)
    terms.save(2, member.self_id)
    for first in range(0, ENTRIES, 1000):
        term = 1 + (first >= ENTRIES // 2)
        bodies = tuple(b"%d" % index * (index % 17) for index in range(first, first + 1000))
        store.append_bodies(bodies, term)
    job = store.prepare_flush()
    assert isinstance(job, LedgerFlush)
    job.run()
    store.finish_flush(job)
    store.record_commit(store.ledger_end_index)
    store.identity.end_unsure()
    store.clean_close()
    terms.close()


def end_of(member: Member) -> int:
    """Its last index; -1 while it does not answer."""
    said = member.metadata(seconds=2.0)
    return -1 if said is None else said.end_index


class ChunkTests(SynchronousTestCase):
    """Two members have 200,000 entries, the third has none."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.group = Group(Path(held.name), options=OPTIONS)
        self.addCleanup(self.group.kill)
        self.full, self.other, self.empty = self.group.members.values()
        build(self.full, self.group.peers_text)
        without = shutil.ignore_patterns("identity")
        shutil.copytree(self.full.ledger_path, self.other.ledger_path, ignore=without)

    def wait_for(self, index: int) -> None:
        """Until the empty one has this entry."""
        wait_until(lambda: end_of(self.empty) >= index, seconds=60, what=f"entry {index}", every=0.02)

    def test_killed_meanwhile(self) -> None:
        """Follower and leader are killed in the middle; at the end all files are equal and sound."""
        for member in (self.full, self.other):
            member.start()
        pair = (self.full.self_id, self.other.self_id)
        leader = self.group.members[self.group.leader(among=pair, seconds=60)]
        self.empty.start()
        self.wait_for(ENTRIES // 10)
        for part in (2, 4):
            self.empty.kill()
            self.empty.start()
            self.wait_for(ENTRIES * part // 10)
        self.assertLess(end_of(self.empty), ENTRIES - 1, "it is not done yet")
        leader.kill()
        leader.start()
        self.wait_for(ENTRIES - 1)
        end_index = self.group.wait_settled()
        statuses = self.group.stop()
        self.assertTrue(all(ended_well(status) for status in statuses.values()), statuses)
        paths = [member.ledger_path for member in self.group.members.values()]
        assert_identical(paths, end_index)
        for path in paths:
            self.assertEqual(verify_directory(OsDisk(), str(path)).findings, [])
        self.assertGreater(self.chunks_of(self.empty), self.chunks_of(self.full) // 2)

    def chunks_of(self, member: Member) -> int:
        """Number of the chunks that it has recorded."""
        files = (member.ledger_path / "chunks").iterdir()
        return sum(len(unpack_rows(path.read_bytes())) for path in files)
