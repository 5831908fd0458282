# -*- test-case-name: tests.interop.test_tally -*-
"""The counts of events in scenarios."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.entry import MAGIC, EntryHeader, encode_header
from protocols.wire.ledger.java.json_bodies import encode_request
from protocols.wire.ledger.messages import PushEntryRequest
from tests.interop.mixed import JAVA, OURS
from tests.interop.tally import NEEDED, Tally


def push(type: PushType, count: int) -> bytes:
    """The body of a push as a leader of ours writes it, byte for byte as Java's."""
    records = b"".join(
        encode_header(EntryHeader(
            magic=MAGIC, size=49, index=index, term=1, pos=49 * index, channel=0, chain_crc=0, body_crc=0,
            body_length=1,
        )) + b"x"
        for index in range(count)
    )
    return encode_request(PushEntryRequest(
        group="g", remote_id="n1", local_id="n0", leader_id="n0", term=1, type=type, commit_index=-1,
        entries=EntryBatch(first_index=0, count=count, term=1, records=records), is_batch=count > 1,
    ))


class TallyTests(SynchronousTestCase):
    """Counts of pushes and of files."""

    def test_pushes(self) -> None:
        """Each push is recognised by its words, and counted by the kinds of sender and receiver."""
        tally = Tally()
        sent, answered = tally.tap({"n0": JAVA, "n1": OURS})("n0", "n1")
        for type, count in (
            (PushType.COMPARE, 1), (PushType.TRUNCATE, 1), (PushType.APPEND, 1), (PushType.APPEND, 3)
        ):
            sent(push(type, count))
            answered(push(type, count))
        self.assertEqual(dict(tally.counts), {
            "COMPARE from java to ours": 1, "TRUNCATE from java to ours": 1,
            "batch of entries from java to ours": 1, "other push from java to ours": 3,
        })

    def test_files(self) -> None:
        """Files after the first, and blanks at the ends of full files."""
        path = self.mktemp()
        config = DLedgerConfig(
            peers={"n0": "127.0.0.1:1"}, self_id="n0", store_base_dir=path,
            mapped_file_size_for_entry_data=4096, mapped_file_size_for_entry_index=320,
        )
        store = FileStore.open(config, OsDisk())
        for _entry in range(25):
            store.append_bodies((b"x" * 400,), 1)
        store.clean_close()
        tally = Tally()
        tally.add_files(Path(path) / "dledger-n0")
        # 9 records of 448 bytes in a file, 64 bytes of blank after them; 10 units in an index file.
        self.assertEqual(dict(tally.counts), {
            "data file after the first": 2, "index file after the first": 2,
            "blank at the end of a data file": 2,
        })

    def test_missing(self) -> None:
        """A needed event that did not happen is named; the table has it with 0."""
        tally = Tally()
        for what in NEEDED[1:]:
            tally.add(what)
        self.assertEqual(tally.missing(), [NEEDED[0]])
        self.assertIn(f"        0  {NEEDED[0]}\n", tally.table())
