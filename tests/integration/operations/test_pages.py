"""docs/operations: the scripts of each page do what the page says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import penstock
from tests.support.documented_scripts import ROOT, run_documented_scripts

PAGES = ROOT / "docs/operations"
TOOLS = ("bash", "curl", "jq", "openssl")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in TOOLS), reason=f"the pages use {', '.join(TOOLS)}"
    ),
]


def test_a_server_runs_as_configured_and_reloads(tmp_path: Path) -> None:
    run_documented_scripts(PAGES / "running.md", tmp_path)
    log = (tmp_path / "var/log/penstock/penstock.log").read_text().splitlines()
    entries = [json.loads(line) for line in log]
    assert entries[0]["text"].startswith(f"Starting penstock {penstock.__version__}, which speaks NATS 2.")
    assert any("max_connections = 2000" in entry["text"] for entry in entries)
    assert entries[-1]["text"] == "Server Exiting.."


def test_what_is_backed_up_is_restored(tmp_path: Path) -> None:
    run_documented_scripts(PAGES / "backup.md", tmp_path)
    assert (tmp_path / "var/backups/nats/today/ORDERS").is_dir()
    assert (tmp_path / "var/backups/store/jetstream").is_dir()


def test_what_a_message_takes_is_measured(tmp_path: Path) -> None:
    output = run_documented_scripts(PAGES / "sizing.md", tmp_path)
    sizes = [float(line) for line in output.splitlines() if line.replace(".", "", 1).isdigit()]
    assert 256 + 20 < sizes[-1] < 256 + 60  # about 30 bytes and the subject beside the payload


def test_a_server_by_the_checklist_refuses_what_it_should(tmp_path: Path) -> None:
    output = run_documented_scripts(PAGES / "checklist.md", tmp_path)
    assert 'penstock_authentication_failures_total{reason="Authentication Failure"}' in output


def test_every_page_has_a_test_or_no_script() -> None:
    tested = {"running.md", "backup.md", "sizing.md", "checklist.md"}
    with_script = {page.name for page in PAGES.glob("*.md") if "```sh\n" in page.read_text()}
    assert with_script == tested
