"""Runs the scripts of a page of docs/operations, as a reader would: its files and `sh` blocks, in one shell.

A block whose first line is a comment with a path becomes that file when the script comes to it. Addresses and
directories are the test's: each port of the page is a free one, and /etc, /var/lib, /var/log and /var/backups
are below the folder. `console` blocks are for machines that a test does not have.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.nats_servers import free_port

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
PLACES = ("/etc/penstock", "/var/lib/penstock", "/var/log/penstock", "/var/backups")
PORTS = ("4222", "6222", "8222")
TIMEOUT_S = 90.0


def run_documented_scripts(page: Path, folder: Path) -> str:
    """Runs a page. Returns what its commands printed; AssertionError with it when one failed."""
    (folder / "bin").mkdir()
    for name, words in (("penstock", ["-m", "penstock"]), ("python3", [])):
        tool = folder / "bin" / name
        tool.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
        tool.chmod(0o755)
    for place in PLACES:
        (folder / place[1:]).mkdir(parents=True)
    text = _moved("\n".join(_steps(page.read_text(encoding="utf-8"), folder)), folder)
    # Each command is shown before it runs, so that a failure says where.
    script = f"set -eux -o pipefail\n{text}\n"
    output = folder / "output"
    with output.open("w") as written:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=_environment(folder),
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = shell.wait(TIMEOUT_S)
        finally:
            _end(shell.pid)
    assert status == 0, f"{page.name} ends with status {status}:\n{output.read_text()[-6000:]}"
    return output.read_text()


def _steps(text: str, folder: Path) -> list[str]:
    """The page as a script. Files are written where the text has them."""
    steps = []
    for number, (kind, body) in enumerate(BLOCK.findall(text)):
        named = re.match(r"# (/\S+)\n", body)
        if kind == "sh":
            # bash ignores a failure that `!` inverts; a success must fail the page.
            steps.append(re.sub(r"^! (.*)$", r"if \1; then exit 1; fi", body, flags=re.M))
        elif named is not None:
            draft = folder / f"block-{number}"
            draft.write_text(_moved(body, folder))
            steps.append(f"cp {shlex.quote(str(draft))} {named[1]}")
    assert steps, "the page has no script"
    return steps


_ports: dict[Path, dict[str, str]] = {}


def _moved(text: str, folder: Path) -> str:
    """The text with the test's ports and directories."""
    ports = _ports.setdefault(folder, {number: str(free_port()) for number in PORTS})
    for place in PLACES:
        text = re.sub(rf"(?<![\w/]){place}", str(folder / place[1:]), text)
    for number, own in ports.items():
        text = re.sub(rf"\b{number}\b", own, text)
    return text


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "XDG_"))}
    return kept | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(folder),
        "NO_COLOR": "1",
    }


def _end(group: int) -> None:
    """Ends what the script left running."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
