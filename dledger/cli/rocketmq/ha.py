# -*- test-case-name: tests.commands.test_ha -*-
"""
C{dledger ha-status}: replication between RocketMQ brokers, Java's or ours, in mqadmin's shape and as JSON.

Source: HAStatusSubCommand (5.3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import attrs
import click
from click.core import ParameterSource
from twisted.internet.defer import Deferred, gatherResults

from dledger.base.reactor import Reactor
from dledger.base.reactor_thread import ReactorThread
from dledger.cli.console.command import EXIT_FAILED, write_json
from dledger.cli.console.contexts import FromContext
from dledger.cli.console.failures import complain, remark
from dledger.cli.console.target import Target
from dledger.rocketmq.client.ha_status import (
    Ask,
    BrokerAsker,
    HAReport,
    brokers_of,
    report_of,
    sentence,
    with_lack,
)
from dledger.rocketmq.client.link import broker_endpoints
from dledger.values.addresses import parse_address

#: mqadmin's own widths.
_SLAVE_HEADER = "%-32s  %-16s %16s %16s %16s %16s"
_SLAVE_ROW = "%-32s  %-16d %16d %16.2f %16s %16d"


def broker_address(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Check C{host:port}, or several separated by semicolons."""
    if value is None:
        return None
    for one in value.split(";"):
        try:
            parse_address(one.strip())
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


@click.command("ha-status")
@click.option("--namesrv", cls=FromContext, key="namesrv", callback=broker_address, envvar="NAMESRV_ADDR",
              metavar="HOST:PORT", help="Ask every broker that this name server knows. [env NAMESRV_ADDR]")
@click.option("--broker", cls=FromContext, key="broker", unless="namesrv", callback=broker_address,
              metavar="HOST:PORT", help="Ask this broker; several with ';'.")
@click.option("--cluster", default="", help="With --namesrv: only brokers of this cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def ha_status(
    context: click.Context, broker: str | None, namesrv: str | None, cluster: str, as_json: bool
) -> None:
    """
    Show how far slaves have replicated their masters' logs.

    RocketMQ brokers before 5.0 do not report their slaves: for these, show where their logs end.
    Exit status 1 if a broker does not answer, or reports that its replication is not in order.
    """
    if broker is not None and context.get_parameter_source("namesrv") is ParameterSource.ENVIRONMENT:
        namesrv = None
    if broker is not None and (namesrv is not None or cluster):
        raise click.UsageError("give either --broker, or --namesrv with or without --cluster")
    if broker is None and namesrv is None:
        raise click.UsageError("no brokers named: give --broker host:port or --namesrv host:port")
    reports = _fetch(broker, namesrv or "", cluster, context.obj)
    if as_json:
        write_json([attrs.asdict(report) for report in reports])
    else:
        for report in reports:
            click.echo("\n".join(["", *_lines(report)]))
    for report in reports:
        wrong = report.problem or report.trouble
        if wrong:
            complain(f"broker {report.address}: {wrong}")
    if any(report.problem or report.trouble for report in reports):
        context.exit(EXIT_FAILED)


def asker_of(reactor: Reactor, target: Target, timeout_s: float) -> BrokerAsker:
    """Asks brokers with the keys of C{target}. @raise UsageError: a file of TLS is not sound."""
    try:
        endpoints = broker_endpoints(reactor, timeout_s, target.tls)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return BrokerAsker(reactor, endpoints, timeout_s, target.credentials)


def _fetch(broker: str | None, namesrv: str, cluster: str, target: Target) -> list[HAReport]:
    thread = ReactorThread("dledger-ha-status")
    try:
        asker = asker_of(thread.reactor, target, target.timeout)
        addresses = None if broker is None else _split(broker)
        return thread.wait(
            lambda: Deferred.fromCoroutine(fetch_reports(asker.ask, addresses, _split(namesrv), cluster))
        )
    finally:
        thread.stop(lambda: None)


def _split(addresses: str) -> list[str]:
    return [one.strip() for one in addresses.split(";") if one.strip()]


async def fetch_reports(
    ask: Ask, brokers: Sequence[str] | None, name_servers: Sequence[str], cluster: str
) -> list[HAReport]:
    """
    Reports of the named brokers, or of the brokers that the first answering name server knows.

    @raise DLedgerError: no name server answers, or none knows the cluster.
    """
    if brokers is not None:
        known = [HAReport(address=address) for address in brokers]
    else:
        for number, name_server in enumerate(name_servers, 1):
            try:
                known = await brokers_of(ask, name_server, cluster)
                break
            except Exception as error:
                if number == len(name_servers):
                    raise
                remark(f"dledger: {sentence(error)}")
    asked = [Deferred.fromCoroutine(report_of(ask, one)) for one in known]
    return with_lack(await gatherResults(asked))


def _moment(ms: int) -> str:
    """A time in mqadmin's format, in the local time zone."""
    if ms <= 0:
        return "never"
    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S,") + f"{ms % 1000:03d}"


def _lines(report: HAReport) -> list[str]:
    if report.problem:
        return [f"#BrokerAddr\t{report.address}", f"#Problem\t{report.problem}"]
    if not report.has_ha_status:
        return _runtime_lines(report)
    if report.is_master:
        return _master_lines(report)
    lines = [
        f"#MasterAddr\t{report.master}",
        f"#CommitLogMaxOffset\t{report.max_offset}",
        f"#TransferSpeed(KB/s)\t{report.bytes_per_second / 1024:.2f}",
        f"#LastReadTime\t{_moment(report.last_read_ms)}",
        f"#LastWriteTime\t{_moment(report.last_write_ms)}",
        f"#MasterFlushOffset\t{report.master_flush_offset}",
    ]
    if report.is_connected is not None:
        state = "connected" if report.is_connected else "not connected"
        lines.append(f"#State\t{'stopped' if report.is_stopped else state}")
    return [*lines, f"#Trouble\t{report.trouble}"] if report.trouble else lines


def _master_lines(report: HAReport) -> list[str]:
    lines = [
        f"#MasterAddr\t{report.address}",
        f"#MasterCommitLogMaxOffset\t{report.max_offset}",
        f"#SlaveNum\t{len(report.slaves)}",
        f"#InSyncSlaveNum\t{report.in_sync_slaves}",
        _SLAVE_HEADER % ("#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status",
                         "#TransferFromWhere"),
    ]
    for slave in report.slaves:
        lines.append(_SLAVE_ROW % (
            slave.address, slave.ack_offset, slave.lack_bytes, slave.bytes_per_second / 1024,
            "OK" if slave.is_in_sync else "Fall Behind", slave.transfer_offset,
        ))
    return [*lines, f"#Trouble\t{report.trouble}"] if report.trouble else lines


def _runtime_lines(report: HAReport) -> list[str]:
    """Lines of a broker without command 907."""
    role = {True: "master", False: "slave", None: "not reported"}[report.is_master]
    lines = [
        f"#BrokerAddr\t{report.address}",
        f"#Version\t{report.version or 'not reported'}",
        f"#Role\t{role}",
        f"#CommitLogMinOffset\t{report.min_offset}",
        f"#CommitLogMaxOffset\t{report.max_offset}",
    ]
    if report.lack_bytes >= 0:
        lines.append(f"#Diff\t{report.lack_bytes}")
    return lines
