"""Source and sink on a standalone Spark cluster: executors in processes of their own, both servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.nats_servers import find_official_server, running_server
from tests.support.spark import Feed, spark_environment
from tests.support.spark_cluster import standalone_cluster

pytestmark = pytest.mark.feature("spark.sessions")

ROOT = Path(__file__).parents[3]
COUNT = 2_000


@pytest.mark.slow
def test_executors_of_a_cluster_read_and_write_streams_of_both_servers_exactly_once(tmp_path: Path) -> None:
    kinds = ["penstock", "official"] if find_official_server() else ["penstock"]
    with ExitStack() as stack:
        ports = []
        for kind in kinds:
            server = stack.enter_context(running_server(kind, tmp_path / f"store-{kind}"))
            feed = Feed(server.port)
            feed.create("EVENTS", ["events.>"])
            feed.publish((f"events.{i % 4}", b"%d" % i) for i in range(1, COUNT + 1))
            feed.create("COPY", ["copy.>"])
            feed.close()
            ports.append(str(server.port))
        master = stack.enter_context(standalone_cluster(tmp_path))
        module = "tests.support.spark_cluster_query"
        ran = subprocess.run(
            [sys.executable, "-m", module, master, str(tmp_path), *ports],
            cwd=ROOT,
            env={**os.environ, **spark_environment()},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-5000:]
    found = json.loads((tmp_path / "found.json").read_text())
    rows = [[i, str(i)] for i in range(1, COUNT + 1)]
    copy = [[i, f"copy.{i % 4}"] for i in range(1, COUNT + 1)]
    for port in ports:
        assert found[port]["batch"] == rows
        assert found[port]["streamed"] == rows
        assert found[port]["written"] == [COUNT, COUNT - 1500], "the last micro-batch did not run twice"
        assert found[port]["copy"] == copy
        assert found[port]["pushed"] == COUNT // 4 - 3
        assert len(found[port]["executors"]) == 2, found[port]["executors"]
