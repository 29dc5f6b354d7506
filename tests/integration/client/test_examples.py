"""The client's examples run, on both servers, and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.feature("client.jetstream-context")

EXAMPLES = Path(__file__).parents[3] / "examples"
OUTPUT = {
    "client_atomic_user.py": """\
joe lives in Springfield
joe lives in Seaside
refused: somebody was faster
nothing of it is stored: True
""",
    "client_bulk_load.py": """\
100,001 messages stored, the last as 100,001
{"sensor":1,"celsius":16}
""",
    "client_core.py": """\
greet.joe: hello
greet.pam: hello
greet.sue: hello
noon in rome (precision: poor)
no responders on 'weather.rome': this subject has no subscriber
""",
    "client_jetstream.py": """\
stored as 1, and again: duplicate=True
wrong last sequence: 2
4999 more are stored
two pears is message 1 of EXAMPLE_ORDERS
worked off 5000 more; 0 left
order 1 is in messages [1, 2]; the latest says 'three pears'
""",
}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("client_*.py")))
def test_the_example_prints_what_it_promises(url: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (OUTPUT[name], "", 0)
