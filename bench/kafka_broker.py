"""A Kafka broker for the benchmark, from the jars of Maven's registry.

One process in KRaft mode, combined broker and controller, on loopback, with its log in a given folder.
Spark's own resolver finds the jars by their coordinates (and keeps them where Spark keeps packages), so a
machine needs Java, pyspark and, the first time, the network. The broker runs with the JVM flags of Kafka's
start scripts and a bounded heap.

The connector of the installed Spark is preferred; where the registry has none, the first one of CONNECTORS
that can be had is used, and the figures name it.

Invariant: a broker ends with the process that started it, however that one ends.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from load import LoadError
from servers import START_TIMEOUT_S, free_port, last_lines

from penstock.errors import ConfigError
from penstock.spark import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KAFKA_VERSION = "3.9.2"
SCALA = "2.13"
BROKER = f"org.apache.kafka:kafka_{SCALA}:{KAFKA_VERSION}"
CONNECTORS = ("4.2.0",)  # versions to try if there is none of the installed Spark's
# What the broker needs and Spark's resolver leaves out, as Spark has it: the Scala library, and a logger.
FROM_SPARK = (
    "scala-library-",
    "slf4j-api-",
    "log4j-slf4j2-impl-",
    "log4j-api-",
    "log4j-core-",
    "log4j-1.2-api-",
)
HEAP = "1g"
JVM_FLAGS = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.apache.logging.log4j.level=WARN",
)
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
log.segment.delete.delay.ms=1000
"""
# The broker ends with the process that started it, also if that one is killed: its standard input ends then.
# SIGKILL: what it has stored is deleted anyway, and a clean stop takes seconds.
UNTIL_INPUT_ENDS = '"$@" </dev/null >&2 & echo $!; read -r _; kill -KILL $!; wait'
STOP_TIMEOUT_S = 20.0


class MissingError(RuntimeError):
    """What the benchmark needs and this machine cannot get. One line."""


def resolved_jars(coordinates: str) -> list[Path]:
    """The jar of these Maven coordinates and of its dependencies, as Spark resolves `spark.jars.packages`.

    Raises MissingError without a Java or if the registry does not have the jar or is not reached.
    """
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    try:
        ensure_java()
    except ConfigError as error:
        raise MissingError(str(error)) from None
    conf = SparkConf(loadDefaults=False).set("spark.jars.packages", coordinates)
    with tempfile.TemporaryFile() as log:
        try:
            gateway: Any = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})
        except PySparkRuntimeError:
            log.seek(0)
            text = log.read().decode(errors="replace")
            found = re.findall(r"unresolved dependency: [^]]*|(?:Exception|Error): .*", text)
            reason = found[-1] if found else "Spark's resolver failed"
            raise MissingError(f"no jars for {coordinates} ({reason}): is there a network?") from None
        jars: str | None = gateway.jvm.java.lang.System.getProperty("spark.jars")
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    return [Path(jar.removeprefix("file:")) for jar in (jars or "").split(",") if jar]


@dataclass(frozen=True)
class Jars:
    """The class path of a broker, and the connector with its dependencies."""

    broker: list[Path]
    connector: list[Path]
    version: str  # of the connector
    spark: str  # version


def found_jars() -> Jars:
    """Raises MissingError."""
    import pyspark

    # Spark's come first: its logger needs the newer slf4j.
    folder = Path(pyspark.__file__).parent / "jars"
    broker = [jar for name in FROM_SPARK for jar in sorted(folder.glob(f"{name}*.jar"))]
    broker += resolved_jars(BROKER)
    missing: MissingError | None = None
    for version in dict.fromkeys((pyspark.__version__, *CONNECTORS)):
        try:
            connector = resolved_jars(f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{version}")
            return Jars(broker, connector, version, pyspark.__version__)
        except MissingError as error:
            missing = missing or error
    assert missing is not None
    raise missing


@dataclass
class KafkaBroker:
    """A broker process, and the shell that started it and ends it."""

    port: int
    pid: int
    shell: subprocess.Popen[bytes]
    jars: list[Path]  # its class path

    def stop(self) -> None:
        assert self.shell.stdin is not None
        with suppress(OSError):
            self.shell.stdin.close()
        try:
            self.shell.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.shell.kill()
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.shell.wait()


def java_command(jars: list[Path], heap: str = HEAP) -> list[str]:
    """The start of a command that runs a class of these jars."""
    return [
        str(ensure_java() / "bin" / "java"),
        f"-Xms{heap}",
        f"-Xmx{heap}",
        *JVM_FLAGS,
        "-cp",
        os.pathsep.join(map(str, jars)),
    ]


def _runs(pid: int) -> bool:
    """Whether a process has not ended; the shell reaps its child only later."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _await_port(broker: KafkaBroker, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if not _runs(broker.pid):
            raise LoadError(f"Kafka ended:\n{last_lines(log)}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", broker.port), timeout=5):
            return
        time.sleep(0.1)
    raise LoadError(f"Kafka did not listen within {START_TIMEOUT_S:.0f} s:\n{last_lines(log)}")


@contextmanager
def running_broker(folder: Path, jars: list[Path]) -> Iterator[KafkaBroker]:
    """A new, empty broker; raises LoadError if it does not start."""
    port, controller = free_port(), free_port()
    settings = folder / "kafka.properties"
    settings.write_text(SETTINGS.format(port=port, controller=controller, folder=folder / "kafka-logs"))
    java = java_command(jars)
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
    log = folder / "kafka.log"
    with log.open("ab") as out:
        formatting = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        if subprocess.run(formatting, stdout=out, stderr=out, check=False).returncode:
            raise LoadError(f"Kafka's storage tool failed:\n{last_lines(log)}")
        shell = subprocess.Popen(
            ["sh", "-c", UNTIL_INPUT_ENDS, "broker", *java, "kafka.Kafka", str(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            start_new_session=True,  # an interrupt of the terminal must not end the shell alone
        )
    assert shell.stdout is not None
    broker = KafkaBroker(port, int(shell.stdout.readline()), shell, jars)
    try:
        _await_port(broker, log)
        yield broker
    finally:
        broker.stop()


class Topics:
    """Kafka's admin client, in the JVM of a session that has the connector."""

    def __init__(self, spark: SparkSession, servers: str) -> None:
        self._jvm: Any = spark._jvm
        properties = self._jvm.java.util.Properties()
        properties.setProperty("bootstrap.servers", servers)
        self._admin: Any = self._jvm.org.apache.kafka.clients.admin.Admin.create(properties)

    def create(self, name: str, partitions: int) -> None:
        topic = self._jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, 1)
        self._admin.createTopics(self._jvm.java.util.List.of(topic)).all().get()

    def delete(self, name: str) -> None:
        self._admin.deleteTopics(self._jvm.java.util.List.of(name)).all().get()

    def stored(self, name: str, partitions: int) -> int:
        """The number of rows in a topic."""
        asked = self._jvm.java.util.HashMap()
        latest = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
        for partition in range(partitions):
            asked[self._jvm.org.apache.kafka.common.TopicPartition(name, partition)] = latest
        found = self._admin.listOffsets(asked).all().get()
        return sum(found[each].offset() for each in asked)

    def close(self) -> None:
        self._admin.close()


@contextmanager
def new_topics(spark: SparkSession, servers: str) -> Iterator[Topics]:
    topics = Topics(spark, servers)
    try:
        yield topics
    finally:
        topics.close()
