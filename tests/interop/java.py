# -*- test-case-name: tests.interop.test_java_group -*-
"""
Java DLedger (0.3.1.2 unless said otherwise) as a peer: jars, members and client as child processes.

The jars come from Maven Central through C{mvn}, once; their class path and our two small compiled classes
(C{tests/interop/java}) are kept in C{.jars/} at the root of the repository. Members end with the program that
started them: the kernel kills them, and they also end with their standard input.

Source of the option names: DLedgerConfig.java (every setter).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.processes.children import ChildError, TalkingChild, peers_text, wait_until

DLEDGER_VERSION = "0.3.1.2"
#: Versions whose parent POM is not on Maven Central, so that Maven cannot resolve them: the jar is fetched
#: alone and runs with the dependencies of the other version.
ORPHANS = {"0.3.1.3": "0.3.1.2"}
ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".jars"
SOURCES = Path(__file__).resolve().parent / "java"

#: JDK 17 hides the classes with which DLedger unmaps its files; without these options a truncation fails.
ADD_OPENS = tuple(
    f"--add-opens={package}=ALL-UNNAMED"
    for package in ("java.base/java.nio", "java.base/jdk.internal.ref", "java.base/sun.nio.ch")
)

#: Published jars need no verification of their classes: a JVM without it takes a quarter less to start.
NO_VERIFYING = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")


def _pom(version: str) -> str:
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dledger.tests</groupId><artifactId>java-peer</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>io.openmessaging.storage</groupId><artifactId>dledger</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


class JavaMissing(Exception):
    """There is no Java peer on this machine; the message says what is missing."""


def class_path(version: str = DLEDGER_VERSION) -> str:
    """
    The class path of the peer and of our two classes; fetched and compiled on the first call.

    @raise JavaMissing: no JDK, no Maven, or Maven could not fetch the jars.
    """
    return class_path_of(_pom(ORPHANS.get(version, version)), SOURCES, orphan=version)


def class_path_of(pom: str, sources: Path, *, orphan: str = "") -> str:
    """
    The class path of a POM's dependencies, and after them of the compiled classes of a folder.

    @param orphan: a version of DLedger; if it is one of L{ORPHANS}, its jar comes first.
    @raise JavaMissing: no JDK, no Maven, or Maven could not fetch the jars.
    """
    jars = jars_of_pom(pom, orphan=orphan)
    with _locked():
        return f"{jars}{os.pathsep}{_compiled(jars, sources)}"


def jars_of_pom(pom: str, *, orphan: str = "") -> str:
    """The class path of a POM's dependencies alone, see L{class_path_of}."""
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            raise JavaMissing(f"no {tool} on the path; install a JDK (17 is known to work)")
    JARS.mkdir(exist_ok=True)
    with _locked():
        jars = _fetched(pom)
        return f"{_fetched_alone(orphan)}{os.pathsep}{jars}" if orphan in ORPHANS else jars


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    with open(JARS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetched(pom: str) -> str:
    kept = JARS / f"class-path-{hashlib.sha256(pom.encode()).hexdigest()[:12]}"
    if kept.exists():
        jars = kept.read_text().strip()
        if all(Path(jar).exists() for jar in jars.split(os.pathsep)):
            return jars
    (JARS / "pom.xml").write_text(pom)
    fresh = kept.with_suffix(".new")
    _maven("-f", str(JARS / "pom.xml"), "dependency:build-classpath", f"-Dmdep.outputFile={fresh}")
    if not fresh.exists():
        raise JavaMissing(f"mvn ended well without writing {fresh}")
    fresh.rename(kept)
    return kept.read_text().strip()


def _fetched_alone(version: str) -> Path:
    """The jar of DLedger without its dependencies."""
    jar = JARS / f"dledger-{version}.jar"
    if not jar.exists():
        _maven(
            "dependency:copy", f"-Dartifact=io.openmessaging.storage:dledger:{version}",
            f"-DoutputDirectory={JARS}",
        )
    if not jar.exists():
        raise JavaMissing(f"mvn ended well without copying {jar}")
    return jar


def _maven(*words: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaMissing("no mvn on the path; install Maven: the jars come from Maven Central")
    try:
        done = subprocess.run(
            [maven, "-q", "-B", *words], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise JavaMissing("mvn did not fetch the jars within 300 s") from None
    if done.returncode:
        raise JavaMissing("mvn could not fetch the jars: " + (done.stdout + done.stderr)[-800:])


def _compiled(jars: str, folder: Path) -> Path:
    sources = sorted(folder.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources) + jars.encode())
    classes = JARS / f"classes-{digest.hexdigest()[:12]}"
    if not classes.exists():
        fresh = JARS / "classes.new"
        shutil.rmtree(fresh, ignore_errors=True)
        done = subprocess.run(
            ["javac", "-nowarn", "-d", str(fresh), "-cp", jars, *map(str, sources)],
            capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise JavaMissing("javac: " + done.stderr[-800:])
        fresh.rename(classes)
    return classes


def remove_unmade_files(root: Path) -> None:
    """
    Remove empty files, as an operator must: Java leaves one if it is killed while it makes it, and then
    no member starts, nor a broker of 4.9 ("length not matched").
    """
    for path in root.rglob("*"):
        if path.name.isdecimal() and path.is_file() and path.stat().st_size == 0:
            path.unlink()


def remove_queues(store: Path) -> None:
    """
    Have a killed broker of RocketMQ 5 in DLedger mode build its queues from its log, as an operator must.

    After C{abort} it cuts its queues too low (48 bytes for each entry of the last file), and dispatches from
    the highest place that they reach then. A queue whose every unit was cut says that it reaches the cut,
    which is within a record: what is between the cut and the end of the log is in no queue then, with
    C{recheckReputOffsetFromCq} too. With C{abort} but without queues it dispatches what is not committed,
    and does not take it back. Without both it dispatches what is committed, from the beginning of its log.
    """
    abort = store / "abort"
    if abort.exists():
        shutil.rmtree(store / "consumequeue", ignore_errors=True)
        abort.unlink()


class JavaChild(TalkingChild):
    """A Java process; its first line is C{started}."""

    def __init__(
        self, name: str, main: str, arguments: list[str], *, log_path: Path, heap: str = "512m",
        version: str = DLEDGER_VERSION,
    ) -> None:
        command = [
            "java", *ADD_OPENS, *NO_VERIFYING, f"-Xmx{heap}", "-XX:+UseG1GC",
            f"-Duser.home={log_path.parent}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp", class_path(version), main, *arguments,
        ]
        super().__init__(name, command, log_path=log_path)


class JavaMember(JavaChild):
    """
    One member of a group.

    @ivar directory: its C{storeBaseDir}; the ledger is in C{dledger-<self_id>} there.
    @ivar tidies: it starts after L{remove_unmade_files}.
    """

    tidies = True

    def __init__(
        self, self_id: str, peers: Mapping[str, str], directory: Path, *, group: str = "default",
        options: Mapping[str, object] | None = None, version: str = DLEDGER_VERSION,
    ) -> None:
        """@param options: further options by the names of the setters (C{mappedFileSizeForEntryData})."""
        self.self_id = self_id
        self.address = peers[self_id]
        self.directory = directory
        values: dict[str, object] = {
            "group": group, "selfId": self_id, "storeBaseDir": directory, "peers": peers_text(peers),
            **(options or {}),
        }
        arguments = [
            f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in values.items()
        ]
        super().__init__(f"java {self_id}", "Member", arguments, log_path=directory / f"{self_id}.log",
                         version=version)

    def start(self) -> None:
        """See L{TalkingChild.start}, and C{tidies}."""
        if self.tidies:
            remove_unmade_files(self.directory / f"dledger-{self.self_id}")
        super().start()

    def status(self) -> dict[str, str]:
        """C{role}, C{term}, C{leader}, C{begin}, C{end}, C{committed}, as text."""
        return dict(part.split("=", 1) for part in self.ask("status").split(" "))


class JavaClient(JavaChild):
    """Java's C{DLedgerClient}."""

    def __init__(self, peers: Mapping[str, str], directory: Path, *, group: str = "default") -> None:
        """@param peers: the members that it knows first; it learns of others by METADATA."""
        super().__init__(
            "java client", "Client", [group, peers_text(peers)], log_path=directory / "java-client.log",
            heap="256m",
        )

    def append(self, body: bytes) -> tuple[int, int]:
        """@return: response code, index."""
        code, index = self.ask(f"append {base64.b64encode(body).decode()}").split(" ")
        return int(code), int(index)

    def get(self, index: int) -> tuple[int, bytes]:
        """@return: response code, body."""
        code, _term, body = self.ask(f"get {index}").split(" ")
        return int(code), base64.b64decode(body)

    def metadata(self, peer_id: str, address: str) -> tuple[int, str, int]:
        """@return: response code, leader, number of peers."""
        code, leader_id, count = self._in_time(f"metadata {peer_id} {address}").split(" ")
        return int(code), leader_id, int(count)

    def transfer(self, from_id: str, to_id: str, term: int) -> int:
        """@return: response code."""
        return int(self.ask(f"transfer {from_id} {to_id} {term}", seconds=25.0))

    def at(self, group: str, peer_id: str, address: str, words: str) -> tuple[int, str]:
        """
        Send one request to the member at this address, leader or not.

        @param words: C{append BASE64}, C{get INDEX} or C{transfer FROM TO TERM}.
        @return: response code, and the leader that the answer names.
        """
        code, leader_id = self._in_time(f"at {group} {peer_id} {address} {words}").split(" ")
        return int(code), leader_id

    def _in_time(self, words: str) -> str:
        """An answer within Java's time limit; on a busy machine the request is repeated."""
        for _attempt in range(20):
            said = self.ask(words, seconds=60.0)
            if said != "late":
                return said
        raise ChildError(f"Java's client: every answer to {words!r:.60} was late")

    def flood(
        self, peer_id: str, address: str, *, count: int, refused: int = 1, seconds: float = 30.0
    ) -> dict[str, int]:
        """
        Send appends of 20 bytes, all in flight at once.

        @param refused: its log says when this many were answered LEADER_PENDING_FULL.
        @return: the number of appends by code (C{none}: without an answer), and as C{indexes} the number of
            different indexes of the accepted ones.
        @raise ChildError: some never ended.
        """
        words = f"flood {peer_id} {address} {count} 20 {int(seconds * 1000)} {refused}"
        said = self.ask(words, seconds=seconds + 15)
        ended, *counts = said.split(" ")
        if ended != "all":
            raise ChildError(f"appends of Java's client that never ended: {said}")
        return {code: int(number) for code, number in (part.split("=") for part in counts)}


def wait_leader(members: Mapping[str, JavaMember], *, seconds: float = 30.0) -> str:
    """
    The id of the leader that all running members follow.

    @raise ChildError: no agreement in time.
    """
    found: list[str] = []

    def agreed() -> bool:
        states = [member.status() for member in members.values() if member.is_running]
        leaders = {state["leader"] for state in states}
        if len(leaders) == 1 and "null" not in leaders and any(state["role"] == "LEADER" for state in states):
            found.append(leaders.pop())
        return bool(found)

    wait_until(agreed, seconds=seconds, what="one leader of the Java members", every=0.1)
    return found[0]
