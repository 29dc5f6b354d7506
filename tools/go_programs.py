"""Programs of the official project that tests and benchmarks compare with, built by `go install`.

Each is built once at a fixed version and stays in the user's cache. Several processes may need one at the
same time, such as the workers of a test run: the first one builds, and the others wait for it.

`python -m tools.go_programs` builds those that are not found anywhere. `make test` does that first: a build
takes longer on a busy machine than a test may.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

BUILD_TIMEOUT_S = 900


class GoProgram(NamedTuple):
    """name: of the binary. module: Go import path of its main package. version: with its "v". variable: of
    the environment, which may name the binary."""

    name: str
    module: str
    version: str
    variable: str = ""


NATS_SERVER = GoProgram("nats-server", "github.com/nats-io/nats-server/v2", "v2.15.2", "PENSTOCK_NATS_SERVER")
NATS_CLI = GoProgram("nats", "github.com/nats-io/natscli/nats", "v0.5.1", "PENSTOCK_NATS_CLI")


class GoProgramError(Exception):
    """There is no `go`, or it could not build the program; the text says which and what to do."""


def main() -> None:
    """Builds the programs, and says why one cannot be built: the tests that need it are left out then."""
    for program in (NATS_SERVER, NATS_CLI):
        try:
            found(program)
        except GoProgramError as error:
            print(error)


def found(program: GoProgram) -> Path:
    """Path of the program: named by its variable, on PATH, where Go installs it, or else `installed`.

    Raises GoProgramError.
    """
    named = os.environ.get(program.variable) or shutil.which(program.name)
    if named:
        return Path(named)
    by_go = Path.home() / "go" / "bin" / program.name
    return by_go if by_go.exists() else installed(program)


def installed(program: GoProgram) -> Path:
    """Path of the program in the user's cache, where it is built if it is missing (minutes of CPU time).

    Raises GoProgramError.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = home / "penstock" / "go" / f"{program.name}-{program.version}"
    binary = directory / program.name
    if binary.exists():
        return binary
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():  # no other process built it meanwhile
            _build(program, directory)
    return binary


def _build(program: GoProgram, directory: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise GoProgramError(f"no `{program.name}` and no `go` to build it: put one of them on PATH")
    # `go` renames the finished binary into place: there is never a half written one.
    environment = {**os.environ, "GOBIN": str(directory), "GOFLAGS": "-buildvcs=false"}
    package = f"{program.module}@{program.version}"
    try:
        done = subprocess.run(
            [go, "install", package],
            env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise GoProgramError(f"`go install {package}` took more than {BUILD_TIMEOUT_S} s") from error
    if done.returncode:
        raise GoProgramError(f"`go install {package}` failed: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    main()
