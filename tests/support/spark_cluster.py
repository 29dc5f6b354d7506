"""A standalone Spark cluster: a master and two workers as processes, from the pyspark package."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.nats_servers import free_port
from tests.support.spark import spark_environment

TIMEOUT_S = 120.0
WORKERS = 2


def _spark_class() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent / "bin" / "spark-class")


def _start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **spark_environment(),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with log.open("wb") as file:
        return subprocess.Popen(
            [_spark_class(), *arguments], env=environment, stdout=file, stderr=file, start_new_session=True
        )


def _wait_for(pattern: str, log: Path, times: int = 1) -> str:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        found = re.findall(pattern, log.read_text())
        if len(found) >= times:
            return str(found[0])
        time.sleep(0.05)
    raise TimeoutError(f"no {pattern!r} in:\n{log.read_text()}")


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """The master's address; its workers have registered. One core and one executor each."""
    port, processes = free_port(), []
    try:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        processes.append(_start([*master, "--webui-port", "0"], folder / "master.log"))
        address = _wait_for(r"Starting Spark master at (spark://\S+)", folder / "master.log")
        for i in range(WORKERS):
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
            size = ["--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"work{i}")]
            processes.append(_start([*worker, *size, address], folder / f"worker{i}.log"))
        _wait_for("Registering worker", folder / "master.log", WORKERS)
        yield address
    finally:
        for process in reversed(processes):
            # A worker's executors are in its session.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
