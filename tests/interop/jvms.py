# -*- test-case-name: tests.interop.test_jvms -*-
"""
Archives of the classes that brokers and clients of RocketMQ load.

    python -m tests.interop.jvms

plays a short story with each version, keeps the names of the classes that its JVMs loaded, and makes an
archive of them, unless there is one. A JVM maps it instead of parsing jars, a third of a broker's start. It
ignores an archive of another JVM, or of other jars. Source: class-data sharing, C{-Xshare:dump}, of JDK 17.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.interop.java import JARS, JavaMissing
from tests.processes.children import Child, ChildError, free_triple

VERSIONS = ("4.9.8", "5.3.3")
_SECONDS = 120


def archive_of(jars: str) -> Path:
    """Where the archive of a class path, for this machine's JVM, is or would be."""
    java = os.path.realpath(shutil.which("java") or "java")
    age = int(os.stat(java).st_mtime) if os.path.exists(java) else 0
    digest = hashlib.sha256(f"{java} {age} {jars}".encode()).hexdigest()
    return JARS / f"archive-{digest[:12]}.jsa"


def options(jars: str) -> list[str]:
    """For a JVM whose class path begins with these jars."""
    found = archive_of(jars)
    return [f"-XX:SharedArchiveFile={found}", "-Xlog:cds=off"] if found.exists() else []


def names_in(lists: Iterable[str]) -> list[str]:
    """
    The names of classes in what JVMs wrote of the classes that they loaded, in order.

    Left out are those of loaders of their own, and the remarks about lambdas: the archive knows neither.
    """
    names: dict[str, None] = {}
    for text in lists:
        for line in text.splitlines():
            if line and not line.startswith(("@", "#")) and "source:" not in line:
                names.setdefault(line.split(" ")[0])
    return list(names)


def _play(version: str, home: Path) -> None:
    """A name server, a broker, a producer, a consumer and a command, all of which end in order."""
    from tests.interop.name_servers import OurNameServer, mqadmin
    from tests.interop.rocketmq import Messages, Server

    server = OurNameServer(home)
    broker_home = home / "broker"
    broker_home.mkdir()
    store = broker_home / "store"
    broker = Server("broker", "broker.BrokerStartup", {
        "brokerName": "a", "listenPort": free_triple(), "brokerIP1": "127.0.0.1",
        "namesrvAddr": server.address, "storePathRootDir": store, "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 1000, "maxHashSlotNum": 1000,
        "maxIndexNum": 4000, "diskMaxUsedSpaceRatio": 95, "timerWheelEnable": False,
    }, broker_home, version)
    messages = Messages(server.address, home, version)
    children: list[Child] = [server, broker, messages]
    try:
        for child in (server, broker):
            child.start()
            child.wait_started()
        messages.start()
        messages.wait_started(seconds=_SECONDS)
        messages.produce(0, 8)
        messages.received(8)
        mqadmin(version, broker_home, server.address, "clusterList")
        for child in reversed(children):
            child.stop(seconds=_SECONDS)
    finally:
        for child in children:
            child.kill()


def make(version: str) -> None:
    """
    Make the archive of a version.

    @raise ChildError, JavaMissing, subprocess.SubprocessError: tests run without an archive, slower.
    """
    from tests.interop.rocketmq import jars_of

    jars = jars_of(version)
    found = archive_of(jars)
    if found.exists():
        return
    fresh = found.with_name(f"{found.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        home = Path(name)
        os.environ["JDK_JAVA_OPTIONS"] = f"-XX:DumpLoadedClassList={home}/%p.names"
        try:
            _play(version, home)
        finally:
            del os.environ["JDK_JAVA_OPTIONS"]
        names = home / "names"
        found_names = names_in(path.read_text() for path in sorted(home.glob("*.names")))
        names.write_text("\n".join(found_names) + "\n")
        subprocess.run(
            ["java", "-XX:+UseSerialGC", "-Xshare:dump", f"-XX:SharedClassListFile={names}",
             f"-XX:SharedArchiveFile={fresh}", "-Xlog:disable", "-Xlog:all=off", "-cp", jars],
            check=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )
    fresh.rename(found)


def main() -> int:
    """@return: exit status; tests run without archives, too."""
    status = 0
    for version in VERSIONS:
        try:
            make(version)
        except (ChildError, JavaMissing, OSError, subprocess.SubprocessError) as error:
            sys.stdout.write(f"no archive of classes for {version}: {error}\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
