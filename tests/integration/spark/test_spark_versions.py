"""The source and the sink on every supported version of Spark, each in an environment of its own.

`make spark-versions` makes the environments (SPARK_VENVS, a folder of them named by version) and runs this.
The default suite runs the version it has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_servers import running_server
from tests.support.spark import SRC, Feed

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.feature("spark.sessions")]

ROOT = Path(__file__).parents[3]
COUNT = 100
TIMEOUT_S = 300.0
VENVS = Path(os.environ["SPARK_VENVS"]) if os.environ.get("SPARK_VENVS") else None
PYTHONS = (
    {path.name: path / "bin" / "python" for path in sorted(VENVS.iterdir()) if path.is_dir()} if VENVS else {}
)


def run(python: Path, port: int, folder: Path) -> dict[str, Any]:
    left_out = ("SPARK_HOME", "PYSPARK_PYTHON", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    ran = subprocess.run(
        [python, "-m", "tests.support.spark_versions_query", str(port), str(folder)],
        env={**environment, "PYTHONPATH": f"{SRC}{os.pathsep}{ROOT}", "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-8000:]
    assert "replaced" not in ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("version", PYTHONS or ["installed"])
def test_a_version_of_spark_reads_and_writes_as_far_as_it_can(version: str, tmp_path: Path) -> None:
    with running_server("penstock", tmp_path / "store") as server:
        feed = Feed(server.port)
        feed.create("VERSIONS", ["versions.>"])
        feed.create("COPY", ["copy.>"])
        published = [(f"versions.{i % 4}", b"%d" % i) for i in range(1, COUNT)]
        feed.publish([("versions.json", b'{"n": 7}', b"NATS/1.0\r\nK: v\r\n\r\n"), *published])
        feed.close()
        found = run(PYTHONS.get(version, Path(sys.executable)), server.port, tmp_path)
    print(found["version"])
    if version in PYTHONS:
        assert found["version"].startswith(version)
    assert found["columns"] == ["subject", "seq", "time", "headers", "data", "stream"]
    expected = [[1, "versions.json", '{"n": 7}']]
    expected += [[i + 2, subject, data.decode()] for i, (subject, data) in enumerate(published)]
    assert found["rows"] == expected
    assert found["headers"] == {"K": ["v"]}
    assert found["json"] == 7
    assert found["filtered"] == [row[0] for row in expected if row[1] == "versions.1" and int(row[0]) > 90]
    assert (found["first"], found["second"]) == ([COUNT], [5])
    if tuple(map(int, found["version"].split(".")[:2])) < (4, 2):
        assert f"needs Spark 4.2 or later, this is {found['version']}" in found["limited"]
        assert found["copied"] == COUNT + 5
    else:
        assert found["limited"] == ""
        assert found["batches"] == [60, 45]
    assert "stream 'NONE': stream not found; there are COPY, " in found["missing"]
