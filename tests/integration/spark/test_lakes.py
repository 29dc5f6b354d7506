"""Parquet, Delta and Iceberg have every message once, however often the writer is killed at each step.

`make spark-lakes` makes an environment with a Spark that both have jars for. SPARK_KILLS says how often.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.nats_servers import running_server
from tests.support.spark import SRC, Feed
from tests.support.spark_kills import kills_wanted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.feature("spark.tables"),
    pytest.mark.skipif(not os.environ.get("SPARK_LAKES_PYTHON"), reason="make spark-lakes runs it"),
]

ROOT = Path(__file__).parents[3]
KILLS = kills_wanted(1)
ROWS = 50
TIMEOUT_S = 400.0


def run(port: int, folder: Path, step: str) -> subprocess.CompletedProcess[str]:
    """In a session of its own, so that driver and JVM die together."""
    left_out = ("SPARK_HOME", "PYSPARK_PYTHON", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    python, packages = os.environ["SPARK_LAKES_PYTHON"], os.environ["SPARK_LAKES_PACKAGES"]
    return subprocess.run(
        [python, "-m", "tests.support.spark_lakes_query", str(port), str(folder), step, packages],
        env={**environment, "PYTHONPATH": f"{SRC}{os.pathsep}{ROOT}", "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        start_new_session=True,
    )


def test_every_way_has_every_message_once_whatever_step_is_killed(tmp_path: Path) -> None:
    published = 0
    with running_server("penstock", tmp_path / "store") as server:
        feed = Feed(server.port)
        feed.create("LAKE", ["lake.>"], storage="file")
        for step in ["before", "after"] * KILLS:
            feed.publish((f"lake.{i % 5}", b"%d" % i) for i in range(published, published + ROWS))
            published += ROWS
            killed = run(server.port, tmp_path, step)
            assert killed.returncode == -signal.SIGKILL, killed.stdout[-4000:] + killed.stderr[-8000:]
        # Before Spark 4.2 the first run after a kill repeats a micro-batch and ends, so there are two.
        for step in ("none", "purge"):
            finished = run(server.port, tmp_path, step)
            assert finished.returncode == 0, finished.stderr[-8000:]
            found = json.loads(finished.stdout.strip().splitlines()[-1])["found"]
            doubled = {way: len(seqs) - len(set(seqs)) for way, seqs in found.items()}
            assert not any(doubled.values()), doubled
        state = feed.api("STREAM.INFO.LAKE")["state"]
        feed.close()
    assert found == {way: list(range(1, published + 1)) for way in found}
    assert len(found) == 12
    assert state["messages"] == 0
