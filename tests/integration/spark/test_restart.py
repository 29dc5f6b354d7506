"""A streaming query is killed with SIGKILL, driver and JVM, and started again on its checkpoint."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.nats_servers import KINDS, running_server
from tests.support.spark import Feed, spark_environment
from tests.support.spark_copy import DELIVERIES, make_copy
from tests.support.spark_kills import kills_wanted

pytestmark = [pytest.mark.spark, pytest.mark.feature("spark.recovery")]

ROOT = Path(__file__).parents[3]
KILLS = kills_wanted(1)
TIMEOUT_S = 120.0


def start(mode: str, port: int, folder: Path, sink: str) -> subprocess.Popen[bytes]:
    """In a session of its own, so that driver and JVM die together; Spark's workers follow their JVM."""
    command = [sys.executable, "-m", "tests.support.spark_query", mode, str(port), "EVENTS", str(folder)]
    command.append(sink)
    environment = {**os.environ, **spark_environment()}
    with (folder / f"{mode}.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def committed(folder: Path) -> int:
    """Micro-batches Spark has written off as done."""
    return len([path for path in (folder / "checkpoint" / "commits").glob("*") if path.name.isdigit()])


# A restart costs the start of a JVM, so both servers only where many kills are asked for.
@pytest.mark.parametrize("sink", ["parquet", *DELIVERIES] if KILLS > 1 else ["publish"])
@pytest.mark.parametrize("kind", KINDS if KILLS > 1 else ["penstock"])
def test_a_query_killed_mid_way_and_restarted_writes_every_sequence_exactly_once(
    kind: str, sink: str, tmp_path: Path
) -> None:
    chance = random.Random(20_260)
    published = 0
    with running_server(kind, tmp_path / "store") as server:
        feed = Feed(server.port)
        feed.create("EVENTS", ["events.>"], storage="file")
        make_copy(server.port)

        def publish(count: int) -> None:
            nonlocal published
            feed.publish((f"events.{i % 5}", b"%d" % i) for i in range(published + 1, published + count + 1))
            published += count

        publish(2_500)
        for _ in range(KILLS):
            before = committed(tmp_path)
            query = start("follow", server.port, tmp_path, sink)
            deadline = time.monotonic() + TIMEOUT_S
            while committed(tmp_path) < before + 3:
                assert query.poll() is None, (tmp_path / "follow.log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "follow.log").read_text()
                publish(10)
                time.sleep(0.05)
            time.sleep(chance.random() * 0.3)  # anywhere within a micro-batch
            os.killpg(query.pid, signal.SIGKILL)
            query.wait()
            publish(1_000)
        finish = start("finish", server.port, tmp_path, sink)
        assert finish.wait(TIMEOUT_S) == 0, (tmp_path / "finish.log").read_text()
        feed.close()
    found = json.loads((tmp_path / "sequences.json").read_text())
    assert sorted(found) == list(range(1, published + 1))
