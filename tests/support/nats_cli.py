"""The `nats` command line of the official project, found or built.

Where it is neither on PATH nor named in PENSTOCK_NATS_CLI, it is built from its source with `go install`:
the binary stays in the user's cache. Without Go, or when its proxy can't be reached, tests that need it are
left out; a raw connection that does what the command does shows the same on both servers.
"""

from __future__ import annotations

import subprocess

import pytest
from tools.go_programs import NATS_CLI, GoProgramError, found

VERSION = NATS_CLI.version
RUN_TIMEOUT_S = 60


def nats_cli() -> str:
    """Path of the binary. Skips the test where there is none and none can be built."""
    try:
        return str(found(NATS_CLI))
    except GoProgramError as error:
        pytest.skip(str(error))


def run_nats(url: str, *arguments: str) -> str:
    """Runs the command against a server; what it wrote. Fails the test when it fails."""
    command = [nats_cli(), "--server", url, "--no-context", "--timeout", "10s", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, f"nats {' '.join(arguments)} ended with {done.returncode}:\n{text[-2000:]}"
    return text
