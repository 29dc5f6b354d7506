"""Completion by bash, and man pages checked by groff."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.cli.offline.manuals import write_manuals

pytestmark = pytest.mark.feature("cli.commands")


def test_bash_completes_by_the_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    program = tmp_path / "penstock"
    body = "import sys; from penstock.cli.main import main; sys.exit(main())"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{body}' \"$@\"\n")
    program.chmod(0o755)
    ask = 'COMP_WORDS=(penstock stream pu); COMP_CWORD=2; _penstock; echo "${COMPREPLY[@]}"'
    line = f"PATH={tmp_path}:$PATH\n{script}\n{ask}"
    done = subprocess.run([bash, "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "purge"


def test_man_pages_have_no_warnings(tmp_path: Path) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no groff")
    pages = [str(file) for file in write_manuals(tmp_path)]
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-z", *pages], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
