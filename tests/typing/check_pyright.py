"""Checks by pyright what tests/unit/client/test_types.py checks by mypy: `make pyright`.

The sample program has no errors, with and without async, and each planted mistake is one. The checker is
basedpyright in pyright's standard mode: the package of pyright itself loads its code when it runs first.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.typing.mistakes import MISTAKES, SAMPLE, planted, without_async

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_AWAIT = "client.publish('a', b'')"


def errors_of(files: dict[str, str]) -> dict[str, dict[int, str]]:
    """File -> line, from 1 -> what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        configuration = {
            "extraPaths": [str(ROOT / "src")],
            "pythonVersion": "3.11",
            "typeCheckingMode": "standard",
            "reportMissingModuleSource": False,
            "reportMissingImports": False,  # of extras that are not installed
        }
        Path(folder, "pyrightconfig.json").write_text(json.dumps(configuration))
        checker = Path(sys.executable).with_name("basedpyright")
        command = [str(checker), "-p", folder, "--outputjson", "--pythonpath", sys.executable]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, dict[int, str]] = {name: {} for name in files}
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files), report["summary"]
    for one in report["generalDiagnostics"]:
        if one["severity"] == "error":
            found[Path(one["file"]).name][one["range"]["start"]["line"] + 1] = one["message"]
    return found


def main() -> int:
    asynchronous = [line for line in MISTAKES if line != "client.publish('a', 5)"]
    wrong = {
        "wrong_async.py": [*asynchronous, WITHOUT_AWAIT],
        "wrong_sync.py": [without_async(line) for line in MISTAKES],
    }
    found = errors_of(
        {
            "sample_async.py": SAMPLE,
            "sample_sync.py": without_async(SAMPLE),
            "wrong_async.py": planted(wrong["wrong_async.py"]),
            "wrong_sync.py": without_async(planted(list(MISTAKES))),
        }
    )
    faults = [
        f"{name}:{line}: {text}"
        for name in ("sample_async.py", "sample_sync.py")
        for line, text in sorted(found[name].items())
    ]
    first = planted([]).count("\n") + 1
    for name, lines in wrong.items():
        faults += [
            f"{name}: accepted: {line}" for at, line in enumerate(lines, first) if at not in found[name]
        ]
    print("\n".join(faults) or f"{sum(map(len, wrong.values()))} mistakes refused, two samples accepted")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
