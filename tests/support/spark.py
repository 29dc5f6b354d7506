"""What the Spark tests share: servers to run against, a publisher that waits for its acks, a session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.jvm import ensure_java
from penstock.spark.spark_home import ensure_compiled_spark
from tests.support.rawnats import RawNats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SRC = Path(__file__).parents[2] / "src"


class Feed:
    """Streams and messages by raw frames; every publish is acked before `publish` returns."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.nats = RawNats(port)
        self.acks = RawNats(port)
        self.acks.subscribe("_ACKS", 1)
        self.acks.flush()

    def api(self, endpoint: str, body: object = None) -> dict[str, Any]:
        answer = self.nats.request(f"$JS.API.{endpoint}", body)
        assert "error" not in answer, answer
        return answer

    def create(self, stream: str, subjects: list[str], **config: object) -> None:
        settings = {"name": stream, "subjects": subjects, "storage": "memory", "num_replicas": 1, **config}
        self.api(f"STREAM.CREATE.{stream}", settings)

    def publish(self, messages: Iterable[tuple[str, bytes] | tuple[str, bytes, bytes]]) -> None:
        """(subject, payload[, header block]); in order, acked."""
        frames = []
        for subject, payload, *header in messages:
            block = header[0] if header else b""
            if block:
                sizes = b"%d %d" % (len(block), len(block) + len(payload))
                frames.append(b"HPUB %s _ACKS %s\r\n%s%s\r\n" % (subject.encode(), sizes, block, payload))
            else:
                frames.append(b"PUB %s _ACKS %d\r\n%s\r\n" % (subject.encode(), len(payload), payload))
        for at in range(0, len(frames), 500):
            chunk = frames[at : at + 500]
            self.nats.send(b"".join(chunk))
            for _ in chunk:
                answer = self.acks.message()
                assert b'"seq"' in answer.payload, answer

    def consumers(self, stream: str) -> int:
        return int(self.api(f"STREAM.INFO.{stream}")["state"]["consumer_count"])

    def close(self) -> None:
        self.nats.close()
        self.acks.close()


def spark_environment() -> dict[str, str]:
    """What a process needs so that its Spark runs this Python, compiled, and finds penstock."""
    ensure_java()
    ensure_compiled_spark()
    paths = [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "JAVA_HOME": os.environ["JAVA_HOME"],
        **({"SPARK_HOME": os.environ["SPARK_HOME"]} if "SPARK_HOME" in os.environ else {}),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def start_spark(folder: Path) -> SparkSession:
    """A small local session. Two cores, tasks may fail three times (as everywhere but in plain local
    mode), no UI, one shuffle partition, the quick compiler only."""
    os.environ.update(spark_environment())
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("penstock tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -Duser.timezone=UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
