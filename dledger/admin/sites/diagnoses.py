# -*- test-case-name: tests.admin.test_diagnoses -*-
"""What is wrong with a group, as its members report it: what that means, and the command that mends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from dledger.admin.sites.details import MemberDetails, best_informed
from dledger.admin.sites.reports import MemberReport, group_problems
from protocols.wire.ledger.readers import ReaderInfo

#: Levels of findings: it must be mended; somebody should look; all is well.
LEVELS = WRONG, LOOK, FINE = ("wrong", "look", "fine")
#: Part of a disk that should be free, as the alert rules have it.
FREE_PART = 0.15
#: Seconds of an fsync, of a hundredth of them, that somebody should look at, and that are wrong.
FSYNC_LOOK_S, FSYNC_WRONG_S = 0.05, 0.25
#: Days before the end of a certificate.
TLS_LOOK_DAYS, TLS_WRONG_DAYS = 30, 7
#: Part of the time that the reactor of a member may stand still.
STALLED_PART = 0.01
#: Seconds by which times of entries may be ahead.
TIMES_AHEAD_S = 3600
#: Entries that a reader may lack.
READER_LAG = 100_000
#: Of them, those with a finding of their own.
READERS_NAMED = 10


@attrs.frozen(kw_only=True)
class Diagnosis:
    """
    @ivar level: L{WRONG}, L{LOOK} or L{FINE}.
    @ivar about: the member, directory or target.
    @ivar found: what was seen. @ivar means: what that means; empty if nothing.
    @ivar mend: a command or a page for it; empty if nothing is to be done.
    """

    level: str
    about: str
    found: str
    means: str = ""
    mend: str = ""


def group_diagnoses(reports: Iterable[MemberReport]) -> Iterator[Diagnosis]:
    """Findings about a group from the reports of its members."""
    reports = tuple(reports)
    for problem in group_problems(reports):
        yield Diagnosis(level=WRONG, about="group", found=problem,
                      means="appends fail without one leader that a majority follows",
                      mend="start the members that do not answer; see dledger cluster")
    for one in reports:
        if one.problem:
            yield Diagnosis(
                level=WRONG, about=one.member_id, found=f"it does not answer at {one.address}: {one.problem}",
                means="the group bears one loss less",
                mend="read the end of its log, start it; docs/operations.md, A lost member",
            )
        elif one.health:
            yield Diagnosis(level=WRONG, about=one.member_id, found=one.health, means="it does not serve",
                          mend="docs/operations.md, Reading the status")
    versions = {one.version for one in reports if one.version}
    if len(versions) > 1:
        named = ", ".join(f"{one.member_id} {one.version}" for one in reports if one.version)
        yield Diagnosis(level=LOOK, about="group", found=f"the members run different versions: {named}",
                      means="an upgrade has not ended", mend="docs/operations.md, Upgrade")
    members = max((len(one.members) for one in reports), default=0)
    if members and (members == 1 or members % 2 == 0):
        bears = (members - 1) // 2
        yield Diagnosis(
            level=LOOK, about="group", found=f"it has {members} members",
            means=f"it bears the loss of {bears}" + (f", as {members - 1} members do" if bears else ""),
            mend="dledger member add",
        )
    if members and not any(one.problem or one.health for one in reports):
        yield Diagnosis(level=FINE, about="group", found=f"{members} members serve")


def member_diagnoses(member_id: str, details: MemberDetails, now_s: float) -> Iterator[Diagnosis]:
    """Findings about a member from its page. @param now_s: seconds since 1970."""
    def finding(level: str, found: str, means: str, mend: str) -> Diagnosis:
        return Diagnosis(level=level, about=member_id, found=found, means=means, mend=mend)

    free, total = details.disk_free_bytes, details.disk_total_bytes
    if total > 0 and 0 <= free < FREE_PART * total:
        yield finding(LOOK, f"{free / 2**30:.1f} of {total / 2**30:.0f} GiB are free on its disk",
                      "a full disk takes no entries", "docs/operations.md, Disk full")
    if details.fsync_failures > 0:
        yield finding(WRONG, f"{details.fsync_failures} fsyncs have failed since its start",
                      "the disk may be dying", f"look at the kernel's log; replace the disk, then {_LOST}")
    if details.slow_fsync_s >= FSYNC_LOOK_S:
        yield finding(WRONG if details.slow_fsync_s >= FSYNC_WRONG_S else LOOK,
                      f"one fsync of a hundred takes more than {details.slow_fsync_s:g} s",
                      "appends with flush_disk_type=sync wait for it; a leader with a slow disk hands over",
                      "give the log a disk of its own")
    if details.uptime_s > 60 and details.stall_s > STALLED_PART * details.uptime_s:
        yield finding(LOOK,
                      f"its reactor stood still for {details.stall_s:.0f} of {details.uptime_s:.0f} s",
                      "the machine has too few processors, or swaps", "look at top and vmstat on its machine")
    if details.set_aside_files > 0:
        yield finding(LOOK, f"files set aside: {details.set_aside_files} ({details.set_aside_bytes} bytes)",
                      "entries were cut that may be the only copy",
                      f"dledger readfile on them below {details.store_path}, then delete them")
    days = (details.tls_expires_s - now_s) / _DAY_S
    if details.tls_expires_s >= 0 and days < TLS_LOOK_DAYS:
        said = f"its certificate ends in {days:.0f} days" if days >= 0 else "its certificate has ended"
        yield finding(WRONG if days < TLS_WRONG_DAYS else LOOK, said,
                      "then nobody connects to it", "dledger certs; docs/security.md, New certificates")
    ahead_s = details.times_ahead_ms / 1000
    if ahead_s > TIMES_AHEAD_S:
        yield finding(WRONG, f"times in the log are {ahead_s:.0f} s ahead of the clocks of a majority",
                      "new entries have the time of the last one, until the clocks get there",
                      "dledger times --reset; docs/times.md")
    if details.connections_refused > 0:
        yield finding(LOOK, f"{details.connections_refused} connections were refused since its start",
                      "its limit of connections or descriptors is reached",
                      "raise max_connections and LimitNOFILE, or close idle clients")
    machine = details.machine
    if machine is not None and machine.snapshot_problem:
        yield finding(WRONG, f"its state machine writes no snapshot: {machine.snapshot_problem}",
                      "the log is kept, and a restart takes longer", "dledger machine snapshot")
    if machine is not None and machine.log_kept:
        yield finding(LOOK, machine.log_kept, "the log after the snapshots stays", "dledger machine status")


def reader_diagnoses(readers: Iterable[ReaderInfo]) -> Iterator[Diagnosis]:
    """Findings about the readers of a group; of those that are late, the first L{READERS_NAMED} by lag."""
    late = sorted((one for one in readers if one.lag > READER_LAG), key=lambda one: (-one.lag, one.name))
    found = [f"the reader {one.name} lacks {one.lag} entries" for one in late[:READERS_NAMED]]
    if len(late) > READERS_NAMED:
        found.append(f"{len(late) - READERS_NAMED} more readers lack more than {READER_LAG} entries")
    for sentence in found:
        yield Diagnosis(level=LOOK, about="group", found=sentence,
                        means="retention keeps what it has not read",
                        mend="start its program, or: dledger readers forget NAME")


def all_diagnoses(
    reports: Sequence[MemberReport], details: Mapping[str, MemberDetails], now_s: float,
    unread: Mapping[str, str] | None = None,
) -> Iterator[Diagnosis]:
    """
    Findings about a group, and about the members whose pages were read.

    @param details: by member id. @param now_s: seconds since 1970.
    @param unread: member id to why the page of a member that answers was not read.
    """
    yield from group_diagnoses(reports)
    for member_id, one in details.items():
        yield from member_diagnoses(member_id, one, now_s)
    for member_id, why in (unread or {}).items():
        yield Diagnosis(
            level=LOOK, about=member_id, found=f"its page was not read: {why}",
            means="nothing is known of its disk, certificate, readers and state machine",
            mend="run this on its machine, or name the page with --admin; a token with --admin-token-file",
        )
    informed = best_informed(reports, details)
    yield from reader_diagnoses(details[informed].readers if informed else ())


_LOST = "docs/operations.md, A lost member"
_DAY_S = 86_400
