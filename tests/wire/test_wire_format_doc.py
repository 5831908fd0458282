# -*- test-case-name: tests.wire.test_wire_format_doc -*-
"""docs/wire-format.md agrees with the declarations and constants."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from construct import Struct
from twisted.trial.unittest import SynchronousTestCase

from dledger.raft_broker.checkpoints import DISPATCHED_DECLARATION
from dledger.rocketmq.metadata.tables_mark import TABLES_MARK_DECLARATION
from dledger.rocketmq.store.index.index_file import ENTRY_DECLARATION, HEADER_DECLARATION
from dledger.rocketmq.store.index.index_mark import INDEX_MARK_DECLARATION
from dledger.rocketmq.store.log.log_mark import LOG_MARK_DECLARATION
from dledger.rocketmq.store.queues.queue_files import UNIT_DECLARATION
from dledger.rocketmq.store.records.checkpoint import CHECKPOINT_DECLARATION
from dledger.storage.files.chunk_rows import CHUNK_ROW_DECLARATION
from dledger.storage.files.commit_mark import COMMIT_MARK_DECLARATION
from dledger.storage.files.snapshot_file import SNAPSHOT_HEADER_DECLARATION, SNAPSHOT_PIECE_DECLARATION
from dledger.storage.files.state_file import (
    STATE_DECLARATION,
    STATE_FIXED_DECLARATION,
    STATE_PRODUCER_DECLARATION,
    STATE_READER_DECLARATION,
)
from dledger.storage.start.configurations import MEMBERS_DECLARATION
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.entry import BLANK_DECLARATION, ENTRY_HEADER_DECLARATION, INDEX_UNIT_DECLARATION
from protocols.wire.ledger.envelopes import ENVELOPE_DECLARATION, ENVELOPE_HEADER_DECLARATION
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.own.age_entries import AGE_ENTRY_DECLARATION
from protocols.wire.ledger.own.configuration import CONFIGURATION_DECLARATION
from protocols.wire.ledger.own.machine_entries import MACHINE_ENTRY_DECLARATION
from protocols.wire.ledger.own.session_entries import SESSION_DECLARATION, SESSION_ENTRY_DECLARATION
from protocols.wire.ledger.own.state_entries import STATE_ENTRY_DECLARATION
from protocols.wire.ledger.own.time_entries import TIME_ENTRY_DECLARATION, TIME_RESET_DECLARATION
from protocols.wire.ledger.producers import NUMBERED_RUN_DECLARATION
from protocols.wire.ledger.push_layout import (
    CHUNK_SUMS_DECLARATION,
    KINDS,
    METADATA_REQUEST_DECLARATION,
    PEER_DECLARATION,
    REQUEST_DECLARATIONS,
    RESPONSE_DECLARATIONS,
)
from protocols.wire.ledger.readers import READER_ENTRY_DECLARATION, READER_PART_DECLARATION
from protocols.wire.native import (
    FRAME_HEADER_DECLARATION,
    FRAME_HEADER_SIZE,
    FRAME_VERSION,
    NATIVE_FIRST_BYTE,
)
from protocols.wire.remoting import BINARY_HEADER_DECLARATION, FRAME_START_DECLARATION, LANGUAGES
from protocols.wire.rocketmq.broker_layout import (
    BROKER_ANSWER_DECLARATIONS,
    BROKER_REQUEST_DECLARATIONS,
    BROKER_WIRE_VERSION,
    CHALLENGE_CODE,
    CHALLENGE_FIELD,
    WIRE_VERSION_CODE,
    WIRE_VERSION_FIELD,
    BrokerKind,
)
from protocols.wire.rocketmq.layout import BATCH_ITEM_DECLARATION, HEAD_DECLARATION, MIDDLE_DECLARATIONS
from tests.wire.test_json_bodies import OURS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire-format.md"

Field = tuple[str, int, int]


def fields_of(declaration: Struct) -> list[Field]:
    """Name, offset and size of each field."""
    fields, at = [], 0
    for subcon in declaration.subcons:
        fields.append((subcon.name, at, subcon.sizeof()))
        at += subcon.sizeof()
    return fields


#: What every message's fixed part begins with.
BASE = fields_of(METADATA_REQUEST_DECLARATION)

#: Heading to the fields that its list must have.
DECLARED = {
    "Remoting": fields_of(FRAME_START_DECLARATION),
    "ROCKETMQ header": fields_of(BINARY_HEADER_DECLARATION),
    "Header": fields_of(FRAME_HEADER_DECLARATION),
    "Base": BASE,
    "One member": fields_of(PEER_DECLARATION),
    "Records": fields_of(ENTRY_HEADER_DECLARATION),
    "Blank": fields_of(BLANK_DECLARATION),
    "Configuration entries": fields_of(CONFIGURATION_DECLARATION),
    "List of members": fields_of(MEMBERS_DECLARATION),
    "Session entries": fields_of(SESSION_ENTRY_DECLARATION),
    "Sessions": fields_of(SESSION_DECLARATION),
    "Age entries": fields_of(AGE_ENTRY_DECLARATION),
    "Reader entries": fields_of(READER_ENTRY_DECLARATION),
    "Machine entries": fields_of(MACHINE_ENTRY_DECLARATION),
    "State entries": fields_of(STATE_ENTRY_DECLARATION),
    "Time entries": fields_of(TIME_ENTRY_DECLARATION),
    "Resets of times": fields_of(TIME_RESET_DECLARATION),
    "Parts of a reader": fields_of(READER_PART_DECLARATION),
    "Envelopes": fields_of(ENVELOPE_DECLARATION),
    "Headers of an envelope": fields_of(ENVELOPE_HEADER_DECLARATION),
    "State of a group": fields_of(STATE_DECLARATION),
    "Content of a state": fields_of(STATE_FIXED_DECLARATION),
    "Producers of a state": fields_of(STATE_PRODUCER_DECLARATION),
    "Runs of a producer": fields_of(NUMBERED_RUN_DECLARATION),
    "Readers of a state": fields_of(STATE_READER_DECLARATION),
    "Index units": fields_of(INDEX_UNIT_DECLARATION),
    "Commit mark": fields_of(COMMIT_MARK_DECLARATION),
    "Mark of the tables": fields_of(TABLES_MARK_DECLARATION),
    "Dispatched": fields_of(DISPATCHED_DECLARATION),
    "Chunks": fields_of(CHUNK_ROW_DECLARATION),
    "Sums of a chunk": fields_of(CHUNK_SUMS_DECLARATION),
    "Snapshots of a machine": fields_of(SNAPSHOT_HEADER_DECLARATION),
    "Pieces of a snapshot": fields_of(SNAPSHOT_PIECE_DECLARATION),
    "Message head": fields_of(HEAD_DECLARATION),
    "Message middle": fields_of(MIDDLE_DECLARATIONS[False, False]),
    "Message in a batch request": fields_of(BATCH_ITEM_DECLARATION),
    "Consume queue units": fields_of(UNIT_DECLARATION),
    "Index files": fields_of(HEADER_DECLARATION),
    "Index entries": fields_of(ENTRY_DECLARATION),
    "Index mark": fields_of(INDEX_MARK_DECLARATION),
    "Checkpoint": fields_of(CHECKPOINT_DECLARATION),
    "Log mark": fields_of(LOG_MARK_DECLARATION),
    **{
        f"{kind.name} {word}": fields_of(declarations[kind])[len(BASE) :]
        for word, declarations in (("request", REQUEST_DECLARATIONS), ("answer", RESPONSE_DECLARATIONS))
        for kind in KINDS
    },
    **{
        f"Broker: {kind.name} {word}": fields_of(declarations[kind])
        for word, declarations in (
            ("request", BROKER_REQUEST_DECLARATIONS), ("answer", BROKER_ANSWER_DECLARATIONS)
        )
        for kind in BrokerKind
    },
}


def sections() -> dict[str, list[str]]:
    """Heading to the lines below it, up to the next heading of any level."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("#"):
            lines = found.setdefault(line.lstrip("# "), [])
            assert not lines, f"two headings {line}"
        else:
            lines.append(line)
    return found


def layout(lines: list[str]) -> list[tuple[str, int, int, str]]:
    """Name, offset, size and meaning of each field in a section."""
    found = (re.fullmatch(r"\* `(\w+)` \((\d+), (\d+)\): (.+)", line) for line in lines)
    return [(one[1], int(one[2]), int(one[3]), one[4]) for one in found if one]


def keys_of_ours() -> list[tuple[str, str, str]]:
    """Message, key and default of each item below "Keys of ours"."""
    found, message = [], ""
    for line in sections()["Keys of ours"]:
        if heading := re.fullmatch(r"([A-Z_]+ (?:request|answer)|every one):", line):
            message = heading[1]
        elif line.startswith("* "):
            item = re.match(r"\* `(\w+)` \((.+?)\): .", line)
            assert item, line
            found.append((message, item[1], item[2].strip("`")))
    return found


class TablesTests(SynchronousTestCase):
    """Each list has the fields of its declaration, in their order."""

    def setUp(self) -> None:
        """Read the page."""
        self.sections = sections()

    def test_declarations(self) -> None:
        """Names, offsets, sizes."""
        for heading, declared in DECLARED.items():
            shown = [(name, offset, size) for name, offset, size, _ in layout(self.sections[heading])]
            self.assertEqual(shown, declared, heading)

    def test_nothing_else_is_declared(self) -> None:
        """Fields whose declaration is gone are noticed."""
        described = {heading for heading, lines in self.sections.items() if layout(lines)}
        self.assertEqual(described, {heading for heading, declared in DECLARED.items() if declared})

    def test_every_message_begins_with_the_base(self) -> None:
        """Which is why the lists of messages leave it out."""
        for declarations in (REQUEST_DECLARATIONS, RESPONSE_DECLARATIONS):
            for kind, declaration in declarations.items():
                self.assertEqual(fields_of(declaration)[: len(BASE)], BASE, kind.name)

    def test_sizes_of_fixed_parts(self) -> None:
        """The sentence below each list counts the bytes."""
        for word, declarations in (("request", REQUEST_DECLARATIONS), ("answer", RESPONSE_DECLARATIONS)):
            for kind, declaration in declarations.items():
                heading = f"{kind.name} {word}"
                sentence = f"{declaration.sizeof()} bytes, then: "
                found = [line for line in self.sections[heading] if line.startswith(sentence)]
                self.assertEqual(len(found), 1, f"{heading}: no line {sentence!r}")
        for word, of_broker in (
            ("request", BROKER_REQUEST_DECLARATIONS), ("answer", BROKER_ANSWER_DECLARATIONS)
        ):
            for number, declaration in of_broker.items():
                lines = self.sections[f"Broker: {number.name} {word}"]
                sentence = f"{declaration.sizeof()} bytes, then: "
                self.assertEqual(len([line for line in lines if line.startswith(sentence)]), 1, number.name)
        self.assertEqual(FRAME_HEADER_DECLARATION.sizeof(), FRAME_HEADER_SIZE)

    def test_numbers_of_a_brokers_messages(self) -> None:
        """Kinds, and how a broker is asked whether it knows them."""
        text = " ".join(self.sections["A broker's native frames"])
        self.assertIn(", ".join(f"{kind.name} {int(kind)}" for kind in BrokerKind), text)
        self.assertIn(f"remoting command {WIRE_VERSION_CODE}", text)
        self.assertIn(f"extField `{WIRE_VERSION_FIELD}`, {BROKER_WIRE_VERSION};", text)
        self.assertIn(f"command {CHALLENGE_CODE}.", text)
        self.assertIn(f"extField `{CHALLENGE_FIELD}`, ", text)

    def test_numbers_of_messages(self) -> None:
        """Code and kind."""
        lines = "\n".join(self.sections["Messages and their numbers"])
        items = re.findall(r"^\* (\w+): (\d+), (\d+)$", lines, re.MULTILINE)
        shown = [(name, int(code), int(kind)) for name, code, kind in items]
        self.assertEqual(shown, [(kind.name, int(kind), number) for kind, number in KINDS.items()])

    def test_limits(self) -> None:
        """Each constant has the value that is shown."""
        items = re.findall(r"^\* `([\w.]+)`, (\d+): .", "\n".join(self.sections["Limits"]), re.MULTILINE)
        self.assertGreater(len(items), 20)
        for name, value in items:
            module, _, constant = name.rpartition(".")
            self.assertEqual(getattr(importlib.import_module(module), constant), int(value), name)

    def test_first_bytes(self) -> None:
        """The native one, its version, our language."""
        self.assertTrue(any(
            line.startswith(f"* `0x{NATIVE_FIRST_BYTE:X}`: ") for line in self.sections["A connection"]
        ))
        header = {name: meaning for name, *_, meaning in layout(self.sections["Header"])}
        self.assertEqual(header["first_byte"], f"0x{NATIVE_FIRST_BYTE:X}")
        self.assertEqual(header["version"], str(FRAME_VERSION))
        binary = {name: meaning for name, *_, meaning in layout(self.sections["ROCKETMQ header"])}
        self.assertIn(f"{LANGUAGES.index('PYTHON')} is PYTHON", binary["language"])


class KeysTests(SynchronousTestCase):
    """The keys that Java does not know."""

    def test_keys_of_ours(self) -> None:
        """All of them, and no other."""
        shown = [(message, key) for message, key, _ in keys_of_ours()]
        expected = {("every one", "wireVersion")} | {
            (f"{kind.name} {'answer' if is_answer else 'request'}", key)
            for (kind, is_answer), keys in OURS.items()
            for key in keys
        }
        self.assertEqual(len(shown), len(expected))
        self.assertEqual(set(shown), expected)

    def test_defaults(self) -> None:
        """What is not written is the default of the field."""
        for message, key, default in keys_of_ours():
            kind, _, word = message.partition(" ")
            requests = MESSAGES[RequestCode.METADATA if kind == "every" else RequestCode[kind]]
            field = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
            one = requests[word == "answer"]()
            value = bool(one.hidden) if field == "is_hidden" else getattr(
                one, field if hasattr(one, field) else {"body": "bodies"}[field]
            )
            shown = "empty" if value == "" else str(value).lower() if isinstance(value, bool) else str(value)
            self.assertEqual(default, shown, f"{message} {key}")
