# -*- test-case-name: tests.interop.test_pop -*-
"""
RocketMQ's proxy in cluster mode, and its client of 5.x, which speaks gRPC with it.

Source of the names of options: ProxyConfig (5.3.3).
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.interop.java import SOURCES, class_path_of
from tests.interop.rocketmq import PATIENCE, StartedChild, java_of
from tests.processes.children import ChildError, TalkingChild, free_ports, wait_until

PROXY_VERSION = "5.3.3"
CLIENT_VERSION = "5.0.7"


def _pom(artifact: str, version: str) -> str:
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dledger.tests</groupId><artifactId>{artifact}-peer</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>{artifact}</artifactId>
    <version>{version}</version></dependency>
  </dependencies>
</project>
"""


def proxy_class_path() -> str:
    """@raise JavaMissing: no JDK, no Maven, or Maven could not fetch the jars."""
    return class_path_of(_pom("rocketmq-proxy", PROXY_VERSION), SOURCES / "rocketmq5")


def client_class_path() -> str:
    """@raise JavaMissing: no JDK, no Maven, or Maven could not fetch the jars."""
    return class_path_of(_pom("rocketmq-client-java", CLIENT_VERSION), SOURCES / "rocketmqgrpc")


class Proxy(StartedChild):
    """
    A proxy.

    @ivar address: where its clients of gRPC ask.
    """

    def __init__(self, home: Path, *, name_server: str, cluster: str) -> None:
        grpc, remoting = free_ports(2)
        self.address = f"127.0.0.1:{grpc}"
        home.mkdir(parents=True, exist_ok=True)
        configuration = home / "rmq-proxy.json"
        configuration.write_text(json.dumps({
            "rocketMQClusterName": cluster, "proxyClusterName": cluster, "namesrvAddr": name_server,
            "proxyMode": "CLUSTER", "grpcServerPort": grpc, "remotingListenPort": remoting,
            "localServeAddr": "127.0.0.1", "minInvisibleTimeMillsForRecv": 1000,
            "enableProxyAutoRenew": False, "grpcClientConsumerMinLongPollingTimeoutMillis": 1000,
        }))
        command = java_of(proxy_class_path(), home, "384m", "org.apache.rocketmq.proxy.ProxyStartup",
                          "-pc", str(configuration))
        super().__init__("proxy", command, log_path=home / "proxy.log",
                         environment={"ROCKETMQ_HOME": str(home), "RMQ_PROXY_HOME": str(home)})

    def wait_started(self) -> None:
        """@raise ChildError: it ended, or did not run in time."""

        def is_up() -> bool:
            if not self.is_running:
                raise ChildError(f"the proxy ended at its start\n{self.log_tail(30)}")
            return "startup successfully" in self.log_path.read_text(errors="replace")

        wait_until(is_up, seconds=PATIENCE, what="the proxy runs", every=0.1, notify=self.stuck)


class GrpcClient(TalkingChild):
    """C{Pops.java}."""

    def __init__(self, proxy: str, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        command = java_of(client_class_path(), home, "192m", "Pops", proxy)
        super().__init__("grpc-client", command, log_path=home / "grpc-client.log")

    def produce(self, topic: str, *bodies: str, tag: str = "any") -> None:
        """@raise ChildError: not all are sent in time."""
        self._produce(f"send {topic} {tag} {' '.join(bodies)}", len(bodies))

    def produce_in_order(self, topic: str, group: str, *bodies: str) -> None:
        """@param group: of messages, not of consumers. @raise ChildError: not all are sent in time."""
        self._produce(f"group {topic} {group} {' '.join(bodies)}", len(bodies))

    def produce_later(self, topic: str, seconds: int, *bodies: str) -> None:
        """@param seconds: until they are delivered. @raise ChildError: not all are sent in time."""
        self._produce(f"later {topic} {seconds} {' '.join(bodies)}", len(bodies))

    def transact(self, topic: str, end: str, *bodies: str) -> None:
        """@param end: C{commit} or C{rollback}. @raise ChildError: not all are sent in time."""
        self._produce(f"transact {topic} {end} {' '.join(bodies)}", len(bodies))

    def _produce(self, line: str, count: int) -> None:
        said: list[str] = []

        def is_sent() -> bool:
            said[:] = [self.ask(line, seconds=PATIENCE)]
            return said[0] == f"sent {count}"

        wait_until(is_sent, seconds=PATIENCE, what=f"{line}: {said}", every=0.5)

    def receive(
        self, group: str, topic: str, *, seconds: int, expression: str = "*", count: int = 16
    ) -> dict[str, int]:
        """
        One request for messages.

        @param seconds: they are invisible for so long.
        @return: number of the delivery by body.
        @raise ChildError: it is refused.
        """
        said = self.ask(f"receive {group} {topic} {expression} {count} {seconds}", seconds=PATIENCE)
        word, *rest = said.split(" ")
        if word != "received":
            raise ChildError(f"receive: {said}")
        return {body: int(times) for body, _, times in (part.rpartition("/") for part in rest)}

    def acknowledge(self, *bodies: str) -> None:
        """@raise ChildError: it is refused."""
        self._reported("acknowledged", f"ack {' '.join(bodies)}")

    def change(self, body: str, seconds: int) -> None:
        """Make a message invisible for so long from now. @raise ChildError: it is refused."""
        self._reported("changed", f"change {body} {seconds}")

    def _reported(self, wanted: str, line: str) -> None:
        said = self.ask(line, seconds=PATIENCE)
        if said != wanted:
            raise ChildError(f"{line}: {said}")
