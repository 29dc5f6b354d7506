"""A standalone Spark cluster: a master and two workers as processes, from the pyspark package."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.nats_servers import free_port
from tests.support.spark import spark_environment

TIMEOUT_S = 120.0
WORKERS = 2


def _spark_class() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent / "bin" / "spark-class")


def _start(arguments: list[str], log: Path, given: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        **given,
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
def standalone_cluster(
    folder: Path, *, workers: int = WORKERS, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The master's address; its workers have registered. One core and one executor each.

    environment: of master and workers, and so of executors; default one in which they find penstock.
    """
    port, processes = free_port(), []
    given = {**os.environ, **spark_environment()} if environment is None else environment
    try:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        processes.append(_start([*master, "--webui-port", "0"], folder / "master.log", given))
        address = _wait_for(r"Starting Spark master at (spark://\S+)", folder / "master.log")
        for i in range(workers):
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
            size = ["--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"work{i}")]
            processes.append(_start([*worker, *size, address], folder / f"worker{i}.log", given))
        _wait_for("Registering worker", folder / "master.log", workers)
        yield address
    finally:
        for process in reversed(processes):
            # A worker's executors are in its session.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def connect_server(folder: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """The port of a server of Spark Connect with a local master, run in an environment of a cluster."""
    port, log = free_port(), folder / "connect.log"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    command = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[1]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    process = _start([*command, "spark-internal"], log, {**environment, "SPARK_DAEMON_MEMORY": "768m"})
    try:
        _wait_for("Spark Connect server started", log)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
