"""The `nats` command line of the official project, found or built.

Where it is neither on PATH nor named in PENSTOCK_NATS_CLI, it is built from its source with `go install`:
the binary stays in the user's cache. Without Go, or when its proxy can't be reached, tests that need it are
left out; a raw connection that does what the command does shows the same on both servers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MODULE = "github.com/nats-io/natscli/nats"
VERSION = "v0.5.1"
BUILD_TIMEOUT_S = 900
RUN_TIMEOUT_S = 60


def nats_cli() -> str:
    """Path of the binary. Skips the test where there is none and none can be built."""
    found = os.environ.get("PENSTOCK_NATS_CLI") or shutil.which("nats")
    if found:
        return found
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = home / "penstock-tests" / f"natscli-{VERSION}"
    binary = directory / "nats"
    if not binary.exists():
        build(directory)
    return str(binary)


def build(directory: Path) -> None:
    """Builds it into a directory. Skips the test when that does not work."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no `nats` command line and no `go` to build it: put one of them on PATH")
    directory.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOBIN": str(directory), "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(
        [go, "install", f"{MODULE}@{VERSION}"],
        env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"`go install {MODULE}@{VERSION}` failed: {done.stderr.strip()[-500:]}")


def run_nats(url: str, *arguments: str) -> str:
    """Runs the command against a server; what it wrote. Fails the test when it fails."""
    command = [nats_cli(), "--server", url, "--no-context", "--timeout", "10s", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, f"nats {' '.join(arguments)} ended with {done.returncode}:\n{text[-2000:]}"
    return text
