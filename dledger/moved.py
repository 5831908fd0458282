# -*- test-case-name: tests.test_moved -*-
"""
Modules by their names of 0.1: a program that imports one gets the module itself, and a C{DeprecationWarning}.

The modules went into folders whose names say more. Old names work in 0.2, and go with 0.3.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

# (Not at run time: it loads C{tempfile} and more, which took half of the time of C{import dledger}.)

#: Packages that moved with all below them.
PACKAGES = {
    "dledger.base.commands": "dledger.rocketmq.answering",
    "dledger.broker": "dledger.rocketmq.broker",
    "dledger.namesrv": "dledger.rocketmq.namesrv",
    "dledger.commands": "dledger.cli",
    "dledger.twistd": "dledger.daemons",
    "dledger.twisted": "dledger.deferred",
}
#: Old package, new package, and the modules that went from one to the other; C{old=new} for a new name.
MODULES = (
    ("dledger.base", "dledger.values", (
        "addresses client_token errors hosts option_values quorum rights tls_files"
    )),
    ("dledger.base", "dledger.ledger", (
        "append_refusals chunks group_name holes lineage membership producers"
    )),
    ("dledger.base", "dledger.base.process", (
        "descriptors forks group_flush in_turn keeper log_lines reactor reactor_thread "
        "threads time_search time_text timing tuning waiters"
    )),
    ("dledger.base", "dledger.base.serving", (
        "accept_lines admin_ports client_places endpoints folding listening tokens"
    )),
    ("dledger.base", "dledger.base.sending", "ahead arguments bodies send_queue sender"),
    ("dledger.storage", "dledger.storage.manifests", (
        "archive_commit archive_manifest archive_place archive_retention archived_note "
        "backup_manifest part_file"
    )),
    ("dledger.storage", "dledger.storage.files", (
        "body_stamps chunk_checks commit_mark hole_list met_members properties reader "
        "reader_table recent records runs term_file verify"
    )),
    ("dledger.storage", "dledger.storage.start", (
        "configurations directory identity mark_writer open_ledger recovery resync"
    )),
    ("dledger.storage", "dledger.storage.backups", "archive backup backup_reader group_setup restore"),
    ("dledger.storage", "dledger.storage.store", (
        "chunk_sums file_store hole_finder hole_mending memory_store producer_list "
        "record_writer scrub store_flush store_reads store_room"
    )),
    ("dledger.broker", "dledger.rocketmq.broker.door", "gate request_rights router tls_ports"),
    ("dledger.broker.common", "dledger.rocketmq.broker.basics", "events role"),
    ("dledger.broker.store", "dledger.rocketmq.broker.store.records", (
        "bad_records body_check checkpoint equal_bodies key_hash message_log "
        "plain_records records set_aside store_config"
    )),
    ("dledger.broker.store", "dledger.rocketmq.broker.store.log", (
        "commit_log log_flush log_mark log_mending log_recovery log_start mark_fit "
        "open_log record_mending scrub"
    )),
    ("dledger.broker.store", "dledger.rocketmq.broker.store.queues", (
        "consume_queue consume_queues queue_begins queue_list reput unit_check "
        "unit_mending"
    )),
    ("dledger.broker.store", "dledger.rocketmq.broker.store.index", "index_file indexing key_index"),
    ("dledger.broker.sending", "dledger.rocketmq.broker.puts", (
        "answers halves puts rules send_properties topic_checks unique_ids"
    )),
    ("dledger.broker.sending", "dledger.rocketmq.broker.delays", (
        "recall_handle recalls schedule timed timers"
    )),
    ("dledger.node", "dledger.node.connections", "door greeting lineages peers server"),
    ("dledger.node", "dledger.node.reporting", "event_kinds health reports status"),
    ("dledger.node", "dledger.node.requests", (
        "appends merging reader_rules readers router seats snapshots"
    )),
    ("dledger.node", "dledger.machine", "hosting=requests machine_watch=watch"),
    ("dledger.node", "dledger.node.run", (
        "aside_watch contacts flush keeping reads scrubbing store tracing"
    )),
    ("dledger.node", "dledger.driver", "driver"),
    ("protocols", "protocols.wire", "framing"),
    ("dledger.node", "dledger.node", "embedding=broker_hooks"),
    ("dledger.core", "dledger.core.state", (
        "effects flush_pace inputs machine_word member_state mute ports quorum quota "
        "undecided"
    )),
    ("dledger.core", "dledger.core.replication", (
        "appends catch_up dispatcher flusher handler hole_repair leaders_word origins "
        "proofs reads witnesses"
    )),
    ("dledger.core", "dledger.core.election", "admission changes dismissal elector naming transfer"),
    ("dledger.client", "dledger.client.answers", "errors summaries values"),
    ("dledger.client", "dledger.client.links", "chain_marks connection members rivals"),
    ("dledger.client", "dledger.client.calls", (
        "appender changes command_calls enveloping lone_appends machines numbered_appends "
        "numbered_feed"
    )),
    ("dledger.client", "dledger.client.reading", "blocking_reader readers tail"),
    ("dledger.commands", "dledger.cli.basics", "administration common contexts since store_options target"),
    ("dledger.commands", "dledger.cli.data", "archive backup export"),
    ("dledger.commands", "dledger.cli.ledger", "bench dashboard group machine member readers status watch"),
    ("dledger.commands", "dledger.cli.rocketmq", "broker files ha ha_resolve log_copy rocketmq"),
    ("dledger.commands", "dledger.cli.tools", "assisting certs config context"),
    ("dledger.spark", "dledger.spark.basics", "bodies envelopes log options proof record_headers"),
    ("dledger.spark", "dledger.spark.ledger", (
        "archive archive_files columns directory ends member_connection member_tls "
        "members own_rows seam"
    )),
    ("dledger.spark", "dledger.spark.rocketmq", "choice commit_log messages properties queue_ends"),
    ("dledger.spark", "dledger.spark.scans", "arrival executor scan"),
    ("dledger.testing", "dledger.testing.world", (
        "bugs clock disk machine=host platter process running streams trace"
    )),
    ("dledger.testing.group", "dledger.testing.group.checks", (
        "apart chunks history invariants machines mirror producer_folds"
    )),
    ("dledger.testing.group", "dledger.testing.group.watching", "watched"),
    ("dledger.testing.group", "dledger.testing.group.members", "cluster member network"),
    ("dledger.testing.group", "dledger.testing.group.injection", (
        "damage faults frames injector lies machine_faults misfortunes strangers"
    )),
    ("dledger.twistd", "dledger.daemons.basics", "common logs"),
    ("dledger.twistd", "dledger.daemons.ledger", "member"),
    ("dledger.twistd", "dledger.daemons.tracing", "tracing=opentelemetry_spans"),
    ("dledger.twistd", "dledger.daemons.rocketmq", "broker namesrv"),
    ("dledger.twistd", "dledger.daemons.data", "export"),
    ("dledger.machine", "dledger.machine.files", "fetching offering snapshots"),
    ("dledger.machine", "dledger.storage.files", "snapshot_file"),
    ("dledger.admin", "dledger.admin.basics", "asking cluster guard pages site"),
    ("dledger", "dledger.ledger", "config"),
    ("protocols.wire.ledger", "protocols.wire.ledger.own", (
        "configuration machine_entries own_entries producer_entries"
    )),
)


def _moves() -> dict[str, str]:
    found = {}
    for before, after, names in MODULES:
        for name in names.split():
            old, _, new = name.partition("=")
            found[f"{before}.{old}"] = f"{after}.{new or old}"
    return found


_MOVES = _moves()


def new_name(name: str) -> str:
    """The name that a module has now; the same for one that did not move."""
    if name in _MOVES:
        return _MOVES[name]
    for before, after in PACKAGES.items():
        if name == before or name.startswith(before + "."):
            return after + name[len(before):]
    return name


class _OldName:
    """Gives the module of the new name out for the old one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        # The import system writes the old name's spec into the module: see exec_module.
        self._kept = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._kept

    def get_code(self, _name: str) -> CodeType | None:
        """What C{python -m} runs; the module must not be imported for that."""
        spec = find_spec(self._name)
        loader = None if spec is None else spec.loader
        get_code = getattr(loader, "get_code", None)
        return None if get_code is None else cast("CodeType | None", get_code(self._name))


class OldNames:
    """Finds modules by their old names. It has to be asked first: an old folder may still be there, empty."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """@return: None for a name that is not an old one, and for one that no module has now."""
        new = new_name(name)
        # As for any name, the packages above are imported for this, and the module is not.
        if new == name or (new not in sys.modules and find_spec(new) is None):
            return None
        warnings.warn(
            f"{name} is now {new}; the old name goes with dledger 0.3", DeprecationWarning, stacklevel=2
        )
        return ModuleSpec(name, cast("Loader", _OldName(new)), is_package=name in PACKAGES)


def install() -> None:
    """From now on old names can be imported; a second call does nothing."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())
