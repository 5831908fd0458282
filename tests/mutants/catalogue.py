# -*- test-case-name: tests.sim.test_mutants -*-
"""
Every mutant: the guard that it breaks, how, and the schedules that should notice.

Some guards are in two places on purpose ("asserts come in pairs"); such a mutant breaks both.
Of the mutated packages this module knows only their text.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tests.mutants.brokers_catalogue import BROKER_MUTANTS
from tests.mutants.chunks_catalogue import CHUNK_MUTANTS
from tests.mutants.ha_catalogue import HA_MUTANTS
from tests.mutants.history_catalogue import HISTORY_MUTANTS
from tests.mutants.machines_catalogue import MACHINE_MUTANTS
from tests.mutants.members_catalogue import MEMBER_MUTANTS
from tests.mutants.pairs_catalogue import PAIR_MUTANTS, RAFT_MUTANTS
from tests.mutants.patching import Patch
from tests.mutants.producers_catalogue import PRODUCER_MUTANTS
from tests.mutants.readers_catalogue import READER_MUTANTS
from tests.mutants.times_catalogue import TIME_MUTANTS
from tests.mutants.trials_catalogue import TRIAL_MUTANTS
from tests.mutants.words_catalogue import WORD_MUTANTS

ELECTOR = "dledger.core.election.elector"
VOTER = "dledger.core.election.voter"
HANDLER = "dledger.core.replication.handler"
MEMBER = "dledger.core.state.member_state"
BELIEFS = "dledger.core.state.beliefs"
JUDGE = "dledger.core.election.vote_judge"
REPLICA = "dledger.core.replica"
LEADERSHIP = "dledger.core.leadership"
DISPATCHER = "dledger.core.replication.dispatcher"
QUORUM = "dledger.core.replication.appends"
READS = "dledger.core.replication.reads"
APPENDS = "dledger.core.replication.appends"
UNDECIDED = "dledger.core.state.undecided"
WAITERS = "dledger.base.waiters"
FLUSHER = "dledger.core.replication.flusher"
DRIVER = "dledger.core.driver"
CUTS = "dledger.storage.store.store_cuts"
FLUSH = "dledger.storage.store.store_flush"
JOB = "dledger.base.disk.flush_job"
SCANNER = "dledger.storage.start.scanner"
RECORDS = "dledger.storage.files.records"
SEGMENT = "dledger.base.disk.segment"
DIRECTORY = "dledger.storage.start.directory"
TERMS = "dledger.storage.files.term_file"
SERVER = "dledger.node.connections.server"
NODE_READS = "dledger.node.work.reads"
NODE_APPENDS = "dledger.node.requests.appends"
CLIENT_APPENDER = "dledger.client.appender"
DAMAGE = "dledger.testing.group.injection.damage"

ASYNC: Mapping[str, object] = {"flush_disk_type": "async", "flush_file_interval": 3000}
SYNC: Mapping[str, object] = {"flush_disk_type": "sync"}
ELECTIONS = ("kill", "isolate", "split", "pause", "transfer")
READING: Mapping[str, object] = {
    "gets": 2.0, "clients": 8, "think_us": 400_000, "wander": 0.3, "patience_us": 700_000,
}
LINKS = ("isolate", "split", "cut_link", "break_late", "spikes")
POWER = ("cut_power", "cut_power_everywhere", "lose_power_inside")

#: A second connection of a peer is taken at once, and the first one stays.
OLD_KEPT = (
    Patch(SERVER, "            if self._lives(peer_id, current, now_s):\n", "            if False:\n"),
    Patch(SERVER, '            current.abort(f"{peer_id} opened a newer connection")\n', ""),
)


@attrs.frozen
class Mutant:
    """
    One way to break the system.

    @ivar says: what is wrong, in a sentence.
    @ivar settings, faults, load, group, pace_s, readers: see L{dledger.testing.group.schedule.Focus}.
    @ivar is_pair: a mutant of masters and slaves; faults and settings are those of
        L{dledger.testing.brokers.pair_schedule.PairFocus}.
    @ivar is_raft: a mutant of brokers on raft logs with the same clients.
    @ivar script: name of the scenario that fails, instead of schedules.
    @ivar test: name of the unit test that fails, instead of schedules.
    @ivar search: bounds of the exhaustive search that finds it, instead of schedules, see
        L{dledger.testing.search.group.Bounds}.
    """

    name: str
    says: str
    patches: tuple[Patch, ...]
    settings: Mapping[str, object] = attrs.Factory(dict)
    faults: tuple[str, ...] = ()
    load: Mapping[str, object] = attrs.Factory(dict)
    group: Mapping[str, object] = attrs.Factory(dict)
    pace_s: float = 0.0
    readers: Mapping[str, object] | None = None
    is_pair: bool = False
    is_raft: bool = False
    script: str = ""
    test: str = ""
    search: Mapping[str, object] | None = None

    @property
    def is_certain(self) -> bool:
        """Whether it names what notices it; all others are hunted by schedules, and have a pin."""
        return bool(self.script or self.test) or self.search is not None


_ELECTIONS = (
    Mutant("double-vote", "a member votes for every candidate of a term", (
        Patch(JUDGE, "if member.voted_for is not None and member.voted_for != candidate:", "if False:"),
        Patch(JUDGE, "if member.leader_id is not None and member.leader_id != candidate:", "if False:"),
        Patch(MEMBER, 'assert self.voted_for in (None, candidate_id), "one vote in a term"', "pass"),
        Patch(MEMBER, "        if self.voted_for is None:\n", "        if True:\n"),
    ), faults=ELECTIONS, pace_s=1.0),
    Mutant("vote-forgotten", "a restarted member has forgotten its vote", (
        Patch(REPLICA, "term=term, voted_for=voted_for,\n", "term=term, voted_for=None,\n"),
    ), faults=("kill", "kill_all", "isolate"), pace_s=1.0),
    Mutant("persist-skipped", "term and vote are not written to the disk", (
        Patch(DRIVER, "self._terms.save(effect.term, effect.voted_for)", "pass"),
    )),
    Mutant("term-file-not-synced", "term and vote are written without waiting for the disk", (
        Patch(TERMS, "twin.write_durably(", "twin.write("),
        Patch(TERMS, "self._disk.write_file(self._path, self._owed)",
              "file = self._disk.open(self._path, create=not self._disk.exists(self._path)); "
              "file.pwrite(self._owed, 0)"),
    ), settings=SYNC, faults=POWER),
    Mutant("term-file-believed", "a damaged term file is read as far as possible, its twin is ignored", (
        Patch(DAMAGE, " if rng.random() < 0.4}", "}"),
        Patch(DAMAGE, "name, decode = self._rng.choice(list(_SLOTS.items()))",
              "name, decode = TERM_FILE_NAME, None"),
        Patch(DAMAGE, "at = int(self._rng.random() * size)\n        self._spoil(member, path, at, 1)",
              "at = int(self._rng.random() * 10)\n        self._spoil(member, path, at, 1)"),
        Patch(TERMS, "    if is_sealed(data) is False:\n        return None\n", ""),
        Patch(TERMS, 'if len(pairs) != 2 or set(found) != {"voteLeader", "currTerm"}:',
              'found = {"voteLeader": "", **found}\n    if "currTerm" not in found:'),
        Patch(TERMS, "return found if twin is None else self._agreed(found, twin)", "return found"),
    ), settings={"pre_vote": False, "min_vote_interval_ms": 100, "max_vote_interval_ms": 300},
       faults=("damage", "damage", "kill_all", "kill"), pace_s=0.7),
    Mutant("log-not-compared", "a vote is given to a candidate with an older log", (
        Patch(JUDGE, "if request.ledger_end_term < member.ledger_end_term:", "if False:"),
        Patch(JUDGE, "request.ledger_end_index < member.ledger_end_index", "False"),
    ), faults=ELECTIONS, pace_s=1.5),
    Mutant("term-gate-removed", "a request of a higher term does not raise the member's own", (
        Patch(REPLICA, "self._pass_term_gate(request.term, type(request).__name__)", "pass"),
    )),
    Mutant("repairing-member-votes", "a member that lost acknowledged entries gives its vote", (
        Patch(JUDGE, "if member.repair_end_index >= 0:\n            # This log may lack entries",
              "if False:\n            # This log may lack entries"),
    ), settings={**SYNC, "check_point_interval": 1000}, faults=("damage", "kill", "kill_all")),
    Mutant("unsure-vote-counts", "a member that may have lost acknowledged entries votes as usual", (
        Patch(VOTER, "if result is VoteResult.ACCEPT and member.is_unsure:", "if False:"),
        Patch("dledger.testing.group.checks.invariants", "require(not member.ledger.identity.is_unsure, 6,",
              "require(True, 6,"),
        Patch(ELECTOR, "(self._unsure if self.member.is_unsure else self._granted).add(",
              "self._granted.add("),
    ), settings=ASYNC, faults=("cut_power", "cut_power", "isolate", "kill"), pace_s=1.0),
    Mutant("sure-too-early", "it takes the first push of any leader for the leader's whole ledger", (
        Patch("dledger.core.replication.leader_claims",
              "has_all = self._term == member.term and matched_index >= self.end_index >= -1",
              "has_all = matched_index >= 0"),
    ), test="tests.core.test_unsure"),  # (the simulator notices it, too, but only once in 140 s)
    Mutant("forgotten-terms-known", "a member with a new disk is sure at the first entry of any term", (
        Patch(REPLICA, "start_term=TERM_MAX if recovered.forgot_terms else term", "start_term=term"),
    ), test="tests.core.test_unsure"),
    Mutant("forgotten-term-obeys", "a member with a new disk follows a leader that its vote has deposed", (
        Patch(ELECTOR, "if not self._witnesses.confirm(leader_id):", "if False:"),
    ), script="forgotten_term"),
    Mutant("vote-of-a-lost-process", "a vote counts although the connection of the voter has ended since", (
        Patch(ELECTOR, "        self._granted.discard(peer_id)\n", ""),
    ), script="lost_voter"),
    Mutant("vote-of-a-lost-process-comes", "a vote counts that comes after its voter's end", (
        Patch(ELECTOR, "            self.on_request_failed(peer_id, request_id, \"disconnected\")\n",
              "            pass\n"),
    ), test="tests.core.test_campaign.CampaignTests.test_a_vote_of_a_process_that_ended"),
    Mutant("forgetful-witnesses", "a member with a new disk believes others with new disks", (
        Patch("dledger.core.election.term_witnesses", "(self._unsure if is_unsure else self._sure).add(",
              "self._sure.add("),
    ), test="tests.core.test_term_witnesses"),
    Mutant("witnesses-of-any-term", "a member with a new disk believes voters that are in another term", (
        Patch("dledger.core.election.term_witnesses", "if response.term == self.member.term == self._term:",
              "if True:"),
    ), test="tests.core.test_term_witnesses"),
    Mutant("sure-before-flush", "with sync, a member with a new disk is sure of unflushed entries", (
        Patch("dledger.core.replication.leader_claims",
              "if not self.member.config.is_sync or self.member.flushed_index >= index:", "if True:"),
    ), test="tests.core.test_unsure"),
    Mutant("any-group-id", "any text that a member sends is recorded as the id of the group", (
        Patch("dledger.core.election.naming", "if response.group_id and not is_group_id(response.group_id):",
              "if False:"),
    ), test="tests.core.test_naming"),
    Mutant("group-id-at-once", "an id of the group is believed when it is reported once", (
        Patch("dledger.core.election.naming", "if self._heard.get(peer_id) != reported:", "if False:"),
    ), test="tests.core.test_naming"),
    Mutant("lone-term", "a leader never raises its term for a peer far above it", (
        Patch("dledger.core.election.admission", "if member.is_leader and not isinstance(message, Response):",
              "if member.is_leader:"),
    ), test="tests.core.test_admission"),
    Mutant("swallowed-answers", "a frame that never ends keeps a connection alive", (
        Patch("protocols.ledger.connection",
              "if self._was_heard and not (self._buffer.kept_bytes and serial == self._swept_serial):",
              "if self._was_heard:"),
    ), test="tests.protocols.test_client_connection.ClientBoundTests"),
    Mutant("java-taken-for-ours", "a Java member in the place of one of ours is asked in our way for ever", (
        Patch(BELIEFS, "        self.wire_versions.pop(peer_id, None)\n", ""),
    ), test="tests.core.test_campaign"),
    Mutant("quorum-of-fewer", "half of an even majority is enough", (
        Patch("dledger.values.ledger.membership", "return len(self.voters) // 2 + 1",
              "return len(self.voters) // 2"),
    ), faults=LINKS),
)

_REPLICATION = (
    Mutant("old-term-commit", "copies of an entry of an earlier term are counted (Raft figure 8)", (
        Patch(QUORUM, "if index < self.term_start_index or index <=", "if index <="),
    ), settings={"term_start_entry": False}, faults=ELECTIONS, pace_s=1.5),
    Mutant("marks-of-other-terms", "watermarks count entries of earlier terms that are not committed", (
        Patch(LEADERSHIP, "term_start_index=member.ledger_end_index + 1",
              "term_start_index=member.committed_index + 1"),
    ), settings={"term_start_entry": False}, faults=ELECTIONS, pace_s=1.5),
    Mutant("ack-before-write", "a follower acknowledges an append before it has written it", (
        Patch(HANDLER, "            member.out.write(fx.WriteEntries(entries=entries))",
              "            self._answer(token, request, ResponseCode.SUCCESS)\n"
              "            member.out.write(fx.WriteEntries(entries=entries))"),
    ), faults=("disk_error", "fill_disk", "kill_inside")),
    Mutant("not-mute", "A member without room for its term and vote speaks of them", (
        Patch(DRIVER, "if self.why_mute and type(effect) in _HELD_BACK:", "if False:"),
    ), faults=("fill_disk", "isolate"), settings={**SYNC, "check_point_interval": 600}),
    Mutant("ack-before-flush", "with sync flushing a follower acknowledges unflushed entries", (
        Patch(HANDLER, "if not self.member.config.is_sync or index <= self.member.flushed_index:",
              "if True:"),
    ), settings=SYNC, faults=POWER),
    Mutant("leader-counts-unflushed", "with sync flushing a leader counts its unflushed entries", (
        Patch(LEADERSHIP, "        if not member.config.is_sync:\n            self.holds",
              "        if True:\n            self.holds"),
    ), settings=SYNC, faults=POWER, group={"flush_us": 20_000, "delay_us": 100, "spread_us": 100}),
    Mutant("compare-not-highest", "TRUNCATE goes to a common index, not to the highest one", (
        Patch(DISPATCHER, "elif asked == member.ledger_end_index or search.differs == asked + 1:",
              "elif True:"),
        Patch(HANDLER, "if cuts_committed or index < self.matched_index:", "if False:"),
        Patch(CUTS, "if first_gone <= committed:", "if False:"),
    ), faults=LINKS, load={"bodies_max": 12, "think_us": 300_000}),
    Mutant("truncate-below-commit", "a late TRUNCATE cuts committed entries: old connections stay open, "
           "entries that were found equal are not spared, nor are committed ones", (
        *OLD_KEPT,
        Patch(HANDLER, "if cuts_committed or index < self.matched_index:", "if False:"),
        Patch(CUTS, "if first_gone <= committed:", "if False:"),
    ), faults=("heal_slowly",), pace_s=4.0, load={"think_us": 300_000, "bodies_max": 3}),
    Mutant("old-connection-kept", "requests that arrive late on a given-up connection are obeyed", (
        *OLD_KEPT,
        Patch(HANDLER, "if cuts_committed or index < self.matched_index:", "if cuts_committed:"),
        Patch(HANDLER, "self.is_in_step and channel == self._matched_channel",
              "self.is_in_step"),
    ), faults=("heal_slowly",), pace_s=3.0, load={"think_us": 300_000, "bodies_max": 3}),
    Mutant("append-without-match", "a COMPARE is answered by the index alone, an APPEND taken at any end", (
        Patch(HANDLER, "is_equal = 0 <= begin_index <= index <= end_index and member.view.holds(entries)",
              "is_equal = 0 <= begin_index <= index <= end_index"),
        Patch(HANDLER, "        if not self._is_in_step_here:\n", "        if False:\n"),
    ), faults=ELECTIONS, pace_s=1.5),
    Mutant("commit-beyond-match", "a follower commits up to its end, even if that is not the leader's", (
        Patch(HANDLER, "    self.member.commit(min(request.commit_index, self.matched_index))",
              "    self.member.commit(min(request.commit_index, self.member.ledger_end_index))"),
    ), faults=ELECTIONS, pace_s=1.5),
    Mutant("stale-answer-counts", "answers to pushes of an earlier attempt count", (
        Patch(DISPATCHER, "    def _forget_inflight(self) -> None:\n        self._inflight.clear()\n",
              "    def _forget_inflight(self) -> None:\n"),
        Patch(DISPATCHER, "        if asked != search.index:\n            return\n", ""),
    ), faults=("break_late", "spikes", "cut_link", "kill"), pace_s=1.5),
    Mutant("diverged-beginning-kept", "the follower keeps its entries below the leader's beginning, "
           "equal or not", (
        Patch(HANDLER, "anew = not holds and index - 1 > known_index", "anew = False"),
    ), script="diverged_beginning"),
    Mutant("refused-write-acknowledged", "a write that the store refused is answered as done", (
        Patch(HANDLER, "self._answer(token, request, answer)\n        self._purge()\n",
              "self._answer(token, request, ResponseCode.SUCCESS)\n        self._purge()\n"),
    ), faults=("fill_disk", "isolate"), settings={"mapped_file_size_for_entry_data": 1024}),
    Mutant("flush-outlives-truncation", "an fsync that began before a truncation counts for later entries", (
        Patch(FLUSHER, "if self._is_void or proved <=", "if proved <="),
        Patch(FLUSH, "self.job.end_index = min(self.job.end_index, end.index)\n", "pass\n"),
    ), settings=SYNC, faults=("depose",), pace_s=4.0,
       group={"flush_us": 700_000}, load={"think_us": 200_000}),
)

_CLIENTS = (
    Mutant("read-without-read-index", "a leader answers reads without proving that it leads", (
        Patch(READS, "                self._read_index[token] = member.committed_index\n"
              "                self._waiting.add(token, threshold=beats.last_round + 1,"
              " deadline_ms=deadline_ms)\n        if beats is not None:",
              "                member.out.emit(fx.AnswerRead(token=token, code=ResponseCode.SUCCESS,"
              " read_index=member.committed_index))\n        if beats is not None:"),
    ), faults=("depose",), load=READING, pace_s=6.0),
    Mutant("leads-without-quorum", "a leader proves its leadership to itself, and never steps down", (
        Patch(READS, "proved = self.member.membership.held(marks, 0)", "proved = max(marks.values())"),
    ), faults=("pause", "isolate", "split"), load=READING),
    Mutant("read-before-ready", "a new leader answers reads from an old commit index", (
        Patch(READS, "            elif not is_ready:\n", "            elif False:\n"),
    ), faults=("kill", "isolate", "transfer"), pace_s=1.5,
       load=READING),
    Mutant("condition-not-checked", "an append that expects an end is taken wherever the log ends", (
        Patch(APPENDS, "                if not last_index <= proposal.expected_end <= end_index:",
              "                if False:"),
    ), load={"conditions": 0.8, "bodies_max": 1, "clients": 3}),
    Mutant("unknown-called-refused", "an append that may still commit is answered as not in the log", (
        Patch(APPENDS, "            self._by_token = {}\n            self._waiting.take_all()\n",
              "            self._waiting.take_all()\n"
              "            for token in [*self._by_token]:\n"
              "                self._end(token, ResponseCode.NOT_LEADER)\n"
              "            self.undecided.pop()\n"),
    ), faults=ELECTIONS, load={"think_us": 300_000}),
    Mutant("other-entry-taken-for-own", "an append takes the next leader's entry for its own", (
        Patch(UNDECIDED, "        if term == self.term:\n", "        if term:\n"),
    ), faults=ELECTIONS, load={"think_us": 300_000}),
    Mutant("decided-before-commit", "the outcome of an append is judged by an entry that is not committed", (
        Patch(APPENDS, "ended.decide(member.view, member.committed_index)",
              "ended.decide(member.view, member.ledger_end_index)"),
    ), faults=ELECTIONS, load={"think_us": 300_000}),
    Mutant("answered-twice", "an append that timed out is answered again when it commits", (
        Patch(WAITERS, "            if found is not None and found[1] == deadline_ms:\n"
              "                del self._waiting[token]\n",
              "            if found is not None and found[1] == deadline_ms:\n"),
        Patch(APPENDS, "self._by_token.pop(token)", "self._by_token[token]"),
    ), settings={"max_wait_ack_time_ms": 250}, faults=("cut_link", "spikes", "slow_disk"),
       group={"delay_us": 100_000, "spread_us": 100_000}),
    Mutant("append-never-answered", "appends are forgotten when leadership ends", (
        Patch(APPENDS, "            self.undecided.append(UndecidedAppends(\n",
              "            str(UndecidedAppends(\n"),
    ), faults=("isolate", "kill")),
)

_STORAGE = (
    Mutant("tail-not-zeroed", "a truncation leaves the bytes after the cut", (
        Patch(SEGMENT, "self.zero(position, end if written_end is None else min(end, written_end))", "pass"),
    ), faults=("isolate", "split", "kill"), load={"think_us": 300_000, "bodies_max": 3}, pace_s=1.5,
       settings={"enable_batch_push": False}),
    Mutant("crc-not-checked", "damaged records are read as if they were sound", (
        Patch(RECORDS, "if body_crc and (crc32(view[body_at:end]) ^ 0x8000_0000) - 0x8000_0000 != body_crc:"
              '\n            what = "body', 'if False:\n            what = "body'),
        Patch(RECORDS, "((crc32(view[offset + 40 : body_at], seed) or 1) ^ 0x8000_0000) - 0x8000_0000"
              ' != chain_crc:\n                what, is', 'False:\n                what, is'),
    ), faults=("damage", "damage", "kill"), settings={"check_point_interval": 1000}),
    Mutant("repair-mark-dropped", "a member that lost recorded entries comes up as if it were whole", (
        Patch(DIRECTORY, "        repair_end = max(repair_end, recorded, indexed, held)\n", "        pass\n"),
    ), settings={**SYNC, "check_point_interval": 1000}, pace_s=1.0,
       faults=("damage", "damage", "kill", "kill_all", "isolate")),
    Mutant("sound-rest-cut", "a damaged record costs all records after it", (
        Patch(SCANNER, "        if index > self._settled_index:\n            return False\n",
              "        return False\n"),
    ), settings={**SYNC, "check_point_interval": 1000}, faults=("rot", "rot", "kill", "kill_all")),
    Mutant("holes-never-mended", "no peer is asked for damaged entries", (
        Patch("dledger.core.replication.hole_repair", "        self._ask(hole)\n", "        pass\n"),
    ), settings={**SYNC, "check_point_interval": 1000}, faults=("rot", "kill", "kill_all")),
    Mutant("flush-does-nothing", "a flush reports success without waiting for the disk", (
        Patch(JOB, "        for step in self._steps:\n            step()\n", "        pass\n"),
    ), settings=SYNC, faults=POWER),
    Mutant("new-file-not-in-directory", "a new file is flushed, its name is not", (
        Patch(SEGMENT, "            steps.append(self.sync_directory)\n", "            pass\n"),
    ), settings={**SYNC, "mapped_file_size_for_entry_data": 1024}, faults=POWER),
    Mutant("recovered-not-synced", "writes of a killed process count as durable after its restart", (
        Patch(DIRECTORY, "    if not untouched:  # names", "    if False:  # names"),
    ), settings=SYNC, faults=("kill_inside", "kill", *POWER), group={"flush_us": 20_000}),
    Mutant("failed-fsync-ignored", "an fsync that failed counts as done", (
        Patch(JOB, "        for step in self._steps:\n            step()\n",
              "        for step in self._steps:\n            try:\n                step()\n"
              "            except OSError:\n                pass\n"),
    ), settings=SYNC, faults=("disk_error", *POWER)),
    Mutant("repaired-too-early", "a damaged member counts as whole after any entry from a leader", (
        Patch("dledger.core.replication.leader_claims",
              "held >= member.repair_end_index or member.ledger_end_term > member.start_term\n",
              "True\n"),
    ), settings={**SYNC, "check_point_interval": 1000, "max_batch_push_count": 1, "max_inflight_pushes": 1},
       faults=("damage", "kill", "isolate", "cut_link"), pace_s=0.8,
       group={"delay_us": 50_000, "spread_us": 50_000}, load={"think_us": 300_000, "bodies_max": 3}),
)

_CONNECTIONS = (
    Mutant("read-index-ignored", "a get shows entries that are not known to be committed", (
        Patch(NODE_READS, "        self._check_index(index, read_index)\n        entries =",
              "        self._check_index(index, self._store.ledger_end_index)\n        entries ="),
    ), load=READING),
    Mutant("pull-beyond-commit", "a reader that follows is sent entries that are not committed", (
        Patch(NODE_READS, "end_index = min(read_index, store.ledger_end_index)",
              "end_index = store.ledger_end_index"),
    ), load={"follows": 2.0, "think_us": 200_000}),
    Mutant("callers-share-an-index", "callers that share a proposal get the same index", (
        Patch(NODE_APPENDS, "            index += bodies\n            pos += size",
              "            pos += size"),
    ), load={"clients": 8, "think_us": 50_000}, group={"turn_us": 20_000}),
    Mutant("lost-append-repeated", "an append on a connection that was lost is sent again", (
        Patch(CLIENT_APPENDER, "self._unknown(frame, DLedgerError(ResponseCode.NETWORK_ERROR,"
              " reason=str(result)))",
              "self._refused(frame, DLedgerError(ResponseCode.LEADER_NOT_READY))"),
    ), load={"think_us": 200_000}),
    Mutant("lost-append-called-refused", "an append on a connection that was lost counts as refused", (
        Patch(CLIENT_APPENDER, "self._unknown(frame, DLedgerError(ResponseCode.NETWORK_ERROR,"
              " reason=str(result)))",
              "self.sender.settle_failed(frame, DLedgerError(ResponseCode.NETWORK_ERROR))"),
    ), load={"think_us": 200_000}),
)

_HA = tuple(
    Mutant(name, says, patches, settings={"bare": True, "settings": settings}, faults=faults, is_pair=True)
    for name, says, patches, settings, faults in HA_MUTANTS
)

_PAIRS = tuple(
    Mutant(name, says, patches, settings=settings, faults=faults, is_pair=True)
    for name, says, patches, settings, faults in PAIR_MUTANTS
)

_RAFT = tuple(
    Mutant(name, says, patches, settings=settings, faults=faults, is_raft=True)
    for name, says, patches, settings, faults in RAFT_MUTANTS
)

_HISTORY = tuple(
    Mutant(name, says, patches, **fields)  # type: ignore[arg-type]
    for name, says, patches, fields in (*HISTORY_MUTANTS, *BROKER_MUTANTS)
)

_MEMBERS = tuple(
    Mutant(name, says, patches, **fields)  # type: ignore[arg-type]
    for name, says, patches, fields in (
        *MEMBER_MUTANTS, *CHUNK_MUTANTS, *PRODUCER_MUTANTS, *MACHINE_MUTANTS,
        *READER_MUTANTS, *TIME_MUTANTS, *TRIAL_MUTANTS, *WORD_MUTANTS,
    )
)

MUTANTS: tuple[Mutant, ...] = (
    _ELECTIONS + _REPLICATION + _CLIENTS + _STORAGE + _CONNECTIONS + _HA + _PAIRS + _RAFT + _HISTORY
    + _MEMBERS
)
