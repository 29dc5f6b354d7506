"""docs/deploying-spark.md, word by word: a cluster whose Pythons have no penstock gets it in each of the ways
that the page names.

Master and worker are processes of their own, whose Python has what PySpark needs and nothing else. The page's
program and commands run as they stand there, but for addresses and the memory that the machine has.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.nats_servers import running_server
from tests.support.spark import SRC, Feed
from tests.support.spark_cluster import connect_server, standalone_cluster
from tests.support.spark_executors import bare_python, cluster_environment

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.feature("spark.sessions")]

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "deploying-spark.md"
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
LISTINGS = [(re.match(r"# (\S+\.py)\n", text), text) for kind, text in BLOCKS if kind == "python"]
PROGRAMS = {match[1]: text for match, text in LISTINGS if match is not None}
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.replace("\\\n", " ").splitlines()]
TIMEOUT_S = 240.0
# A Python with pyspark[connect], for the client of Spark Connect.
CONNECT = os.environ.get("SPARK_CONNECT_PYTHON")
WORKERS = int(os.environ.get("SPARK_WORKERS", "1"))
COUNT = 500
# The worker of the test has one core and little memory; and what keeps it quick.
SMALL = (
    "--conf spark.executor.memory=512m --conf spark.executor.cores=1 --conf spark.ui.enabled=false "
    "--conf spark.driver.host=127.0.0.1 --conf spark.sql.shuffle.partitions=1 "
    "--conf spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 "
    "--conf spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1"
)


@dataclass
class DeployedCluster:
    """folder: where the user is, with the page's files. environment: of a shell on the cluster."""

    folder: Path
    master: str
    feed: Feed
    environment: dict[str, str]

    def give_address(self, program: Path) -> None:
        """Let a program of the page use the test's server."""
        program.write_text(
            program.read_text().replace("nats://nats:4222", f"nats://127.0.0.1:{self.feed.port}")
        )

    def run(self, line: str, **more: str) -> str:
        """What a command of the page prints."""
        words = shlex.split(line.replace("spark://master:7077", self.master))
        if words[0] == "spark-submit":
            words[:1] = [f"{self.environment['SPARK_HOME']}/bin/spark-submit", *shlex.split(SMALL)]
        elif words[:2] == ["python", "-m"]:  # on a machine where penstock is installed
            words[0] = sys.executable
            more = {"PYTHONPATH": str(SRC), **more}
        ran = subprocess.run(
            words,
            cwd=self.folder,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        said = [one for one in ran.stderr.splitlines() if "\tat " not in one and " INFO " not in one]
        assert ran.returncode == 0, "\n".join([line, ran.stdout, *said])
        return ran.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedCluster]:
    folder = tmp_path_factory.mktemp("deploying")
    for name in ("tmp", "elsewhere"):
        (folder / name).mkdir()
    environment = {**cluster_environment(bare_python(folder / "python")), "TMPDIR": str(folder / "tmp")}
    # As on a machine of its own: what the driver unpacks, executors do not find.
    elsewhere = {**environment, "TMPDIR": str(folder / "elsewhere")}
    with (
        running_server("penstock", folder / "store") as server,
        standalone_cluster(folder, workers=WORKERS, environment=elsewhere) as master,
    ):
        feed = Feed(server.port)
        feed.create("ORDERS", ["orders.>"])
        feed.create("COPY", ["copy.>"])
        feed.publish((f"orders.{i % 4}", b"%d" % i) for i in range(COUNT))
        made = DeployedCluster(folder, master, feed, environment)
        for name, text in PROGRAMS.items():
            (folder / name).write_text(text)
            made.give_address(folder / name)
        (line,) = (line for line in COMMANDS if "executor_archive" in line)
        assert "penstock-spark.zip: " in made.run(line)
        yield made
        feed.close()


def the_command(part: str) -> str:
    (line,) = (line for line in COMMANDS if part in line and line.startswith("spark-submit"))
    return line


@pytest.mark.share(3)
def test_py_files_bring_penstock_to_driver_and_executors(cluster: DeployedCluster) -> None:
    said = cluster.run(the_command("--py-files"))
    assert f"{COUNT} orders, {COUNT} copied" in said
    for place in ("tmp", "elsewhere"):
        assert len(list((cluster.folder / place).glob("penstock-spark-*/*/lib/penstock"))) == 1


@pytest.mark.share(3)
def test_archives_bring_penstock_to_executors(cluster: DeployedCluster) -> None:
    """The driver has penstock installed, here the checkout and the msgspec beside it."""
    import msgspec

    site = Path(str(msgspec.__file__)).parents[1]
    said = cluster.run(
        the_command("--archives"),
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYTHONPATH=f"{SRC}{os.pathsep}{site}",
    )
    assert f"{COUNT} orders, " in said


@pytest.mark.share(3)
def test_an_artifact_brings_penstock_to_a_session(cluster: DeployedCluster) -> None:
    assert f"{COUNT} orders" in cluster.run(the_command("artifact.py"))


@pytest.mark.skipif(not CONNECT, reason="SPARK_CONNECT_PYTHON names no Python with pyspark[connect]")
def test_an_artifact_brings_penstock_to_a_server_of_spark_connect(cluster: DeployedCluster) -> None:
    before = cluster.feed.api("STREAM.INFO.COPY")["state"]["messages"]
    with connect_server(cluster.folder, cluster.environment) as port:
        program = cluster.folder / "client.py"
        program.write_text(PROGRAMS["client.py"].replace("spark:15002", f"127.0.0.1:{port}"))
        cluster.give_address(program)
        (line,) = (line for line in COMMANDS if line == "python client.py")
        said = cluster.run(line.replace("python", str(CONNECT), 1), PYTHONPATH=str(SRC))
    assert f"{COUNT - 10} orders" in said
    assert cluster.feed.api("STREAM.INFO.COPY")["state"]["messages"] == before + COUNT


def test_every_program_of_the_page_is_run() -> None:
    named = {name for line in COMMANDS for name in PROGRAMS if name in line}
    assert named == PROGRAMS.keys()
