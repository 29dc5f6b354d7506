"""The systemd unit: checked by systemd, and what the server tells the manager of such a unit."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documented_scripts import ROOT

UNIT = ROOT / "deploy/systemd/penstock.service"
TIMEOUT_S = 20.0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", sys.executable))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    about_it = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    assert (checked.returncode, about_it) == (0, [])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_exposes_little() -> None:
    checked = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(UNIT)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


def test_the_manager_gets_every_state_of_a_server(tmp_path: Path) -> None:
    conf = tmp_path / "nats.conf"
    conf.write_text('listen: "127.0.0.1:-1"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_S)

        def notified() -> dict[str, str]:
            while True:
                lines = manager.recv(4096).decode().split("\n")
                found = dict(line.split("=", 1) for line in lines)
                if "WATCHDOG" not in found:
                    return found
                pings.append(found)

        pings: list[dict[str, str]] = []
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "200000",
        }
        words = [sys.executable, "-m", "penstock", "serve", "--config", str(conf)]
        with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                ready = notified()
                assert ready["READY"] == "1"
                port = int(ready["STATUS"].rpartition(":")[2])
                socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S).close()
                process.send_signal(signal.SIGHUP)
                assert notified()["RELOADING"] == "1"
                assert notified() == {"READY": "1", "STATUS": "reloaded"}
                conf.write_text("prot: 1\n")
                process.send_signal(signal.SIGHUP)
                assert notified()["RELOADING"] == "1"
                assert "reload refused" in notified()["STATUS"]
                process.send_signal(signal.SIGTERM)
                assert notified()["STOPPING"] == "1"
                assert process.wait(TIMEOUT_S) == 0
            finally:
                process.kill()
        assert pings
