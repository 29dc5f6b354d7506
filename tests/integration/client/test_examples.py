"""The client's examples run, on both servers, and print what they promise; those without async the same."""

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
refused: another client was faster
nothing of it is stored: True
""",
    "client_bulk_load.py": """\
100,001 messages stored, the last as 100,001
{"sensor":1,"celsius":16}
""",
    "client_connection.py": """\
connecting, 1 server in the pool
connected: hello from before
hello again
sent 2, received 2, reconnects 1
closed
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
    "client_key_value.py": """\
db.url exists at revision 1
expected revision 1, found 3
['postgres://one', 'postgres://two']
{'db.url': 'postgres://two', 'db.pool': '10'}
['db.pool', 'db.url']
starting with 2 settings
db.pool: PUT 20
db.url: DEL
2 settings stored together
""",
    "client_websocket.py": """\
over WebSocket
connected by ws
""",
    "client_push.py": """\
['apple', 'pear', 'plum', 'quince']
audit: acked up to message 4, 0 left
4 jobs done by 2 members
""",
    "client_service.py": """\
fruit 1.0.0: fruit.price, fruit.names
apple: 30
pear: 45
404: no plum here
3 requests, 1 of them failed
""",
    "client_object_store.py": """\
report.txt: 3600000 bytes in 28 chunks
the last line is 'line 299999'
sent 3600000 of 3600000 bytes
watched: report.txt, 5 bytes
'short' by way of a link
nothing is left: True
""",
}


WITHOUT_TLS = "Websocket not configured with TLS. DO NOT USE IN PRODUCTION!\n"  # the server's warning
WITHOUT_ASYNC = [name.replace("client_", "sync_") for name in OUTPUT if name not in (
    "client_atomic_user.py", "client_bulk_load.py")]  # fmt: skip


def test_each_example_has_an_output_and_a_version_without_async() -> None:
    assert {path.name for path in EXAMPLES.glob("client_*.py")} == set(OUTPUT)
    assert {path.name for path in EXAMPLES.glob("sync_*.py")} == set(WITHOUT_ASYNC)


@pytest.mark.parametrize("name", sorted([*OUTPUT, *WITHOUT_ASYNC]))
def test_the_example_prints_what_it_promises(url: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), url], capture_output=True, text=True, timeout=60, check=False
    )
    output = OUTPUT[name.replace("sync_", "client_")]
    assert (done.stdout, done.stderr.replace(WITHOUT_TLS, ""), done.returncode) == (output, "", 0)
