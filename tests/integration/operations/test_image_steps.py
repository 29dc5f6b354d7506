"""The steps of the Dockerfile, without Docker: its RUN instructions below a folder, then what it starts.

`make image-steps` runs it, and no other command does: it compiles all kernels. Packages of the distribution
are asked for, and not installed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.dockerfiles import BuildStage, stages_of
from tests.support.documented_scripts import ROOT
from tests.support.nats_servers import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # compiling takes a quarter of an hour on a busy machine
    pytest.mark.skipif(not os.environ.get("PENSTOCK_IMAGE_STEPS"), reason="`make image-steps` runs it"),
]
START_S = 60.0


class Image:
    """The folder in which the steps run. Paths of the image are below it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        base = getattr(sys, "_base_executable", sys.executable)
        (folder / "bin/python").symlink_to(base)
        self.work = folder
        self.port, self.http_port = free_port(), free_port()

    def moved(self, text: str) -> str:
        text = re.sub(r"(?<![\w/])/(opt/penstock|etc/penstock|var/lib/penstock)", rf"{self.folder}/\1", text)
        return text.replace("4222", str(self.port)).replace("8222", str(self.http_port))

    def copy(self, words: list[str]) -> None:
        *sources, target = words
        place = Path(self.moved(target)) if target.startswith("/") else self.work
        for source in sources:
            path = ROOT / source
            if path.is_dir():
                ignored = shutil.ignore_patterns("*.so", "*.c", "*.cpp", "__pycache__", "*.egg-info")
                shutil.copytree(path, self.work / target, ignore=ignored, dirs_exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                into = place / path.name if place.is_dir() else place
                into.write_text(self.moved(path.read_text()))

    def run(self, text: str) -> None:
        for command in (one.strip() for one in text.split("&&")):
            words = shlex.split(command)
            if words[0] == "apt-get" and "install" in words:
                words.insert(1, "--simulate")
            elif words[0] in ("apt-get", "useradd") or words[:2] == ["rm", "-rf"]:
                continue  # of the machine, not of a folder
            self.call([self.moved(word) for word in words], 3000)

    def call(self, words: list[str], limit_s: float) -> None:
        ended = subprocess.run(
            words, cwd=self.work, env=self.environment(), capture_output=True, text=True, timeout=limit_s,
            check=False,
        )  # fmt: skip
        assert ended.returncode == 0, f"{shlex.join(words)}\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return kept | {"PATH": f"{self.folder}/opt/penstock/bin:{self.folder}/bin:{os.environ['PATH']}"}


def follow(image: Image, stage: BuildStage) -> None:
    """Runs the steps of a stage."""
    for step in stage.instructions:
        if step.name == "WORKDIR":
            image.work = image.folder / step.text.lstrip("/")
            image.work.mkdir(parents=True, exist_ok=True)
        elif step.name == "COPY" and not step.text.startswith("--from="):
            image.copy(step.text.split())
        elif step.name == "RUN":
            image.run(step.text)


def test_the_steps_of_the_image_make_a_server_that_is_healthy_and_stops(tmp_path: Path) -> None:
    image = Image(tmp_path)
    stages = stages_of((ROOT / "deploy/docker/Dockerfile").read_text())
    for stage in stages:
        follow(image, stage)
    last = stages[-1]
    words = [*json.loads(last.all("ENTRYPOINT")[0].text), *json.loads(last.all("CMD")[0].text)]
    health = json.loads(last.all("HEALTHCHECK")[0].text.partition("CMD ")[2])
    with (tmp_path / "log").open("w") as log:
        # The image's own command, by its path: the one of this environment comes first for Popen.
        words[0] = shutil.which(words[0], path=image.environment()["PATH"]) or words[0]
        assert words[0].startswith(str(tmp_path))
        server = subprocess.Popen(
            [image.moved(word) for word in words],
            env=image.environment(),
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
        try:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    image.call([image.moved(word) for word in health], START_S)
                    break
                except AssertionError:
                    assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            server.send_signal(signal.Signals[last.all("STOPSIGNAL")[0].text])
            assert server.wait(START_S) == 0
        finally:
            server.kill()
