"""Fuzzes nats.conf: `python fuzz/fuzz_conf.py -max_total_time=60`.

Whatever the text, it becomes options or a ConfigError that names a place.
"""

from __future__ import annotations

import time
from contextlib import suppress

import instrumented  # noqa: F401  # before everything of penstock
from mutations import mutate
from seeded import fuzz

from penstock.errors import ConfigError
from penstock.server.config import conf_parser
from penstock.server.config.directives import options_of
from tests.support.file_probes import DIRECTIVES, NESTED, WORDS_OF_CONF
from tests.support.probes import CONF

SLOW_S = 5.0
ENVIRON = {"NUMBER": "5", "BLOCK": "{a: 1}", "LOOP": "$LOOP"}
SEEDS = [
    CONF.encode().replace(b"%s", b"x"),
    *(name.encode() + b": " + value for name in DIRECTIVES for value in (b"1", b'"x"', b"[x]", b"{a: 1}")),
    *(place.encode().replace(b"%s", b"[{user: a, password: b}]") for place in NESTED.values()),
    *(b"x: " + word for word in WORDS_OF_CONF.values()),
    b"a: {b: $NUMBER}\nport: $LOOP\n# c\n// d\nmax_payload: 1KB; ping_interval: '2m'\n",
]


def open_file(path: str) -> str:
    """Files that include themselves and each other."""
    if "none" in path:
        raise FileNotFoundError(2, "No such file or directory", path)
    return "max_payload: 5\n" + ("include 'x'\n" if "loop" in path else "")


def test_one_input(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    start = time.thread_time()
    with suppress(ConfigError):
        options_of(conf_parser.parse(text, "nats.conf", environ=ENVIRON, open_file=open_file))
    if (took := time.thread_time() - start) > SLOW_S:
        raise AssertionError(f"it took {took:.1f} s")


if __name__ == "__main__":
    fuzz(SEEDS, test_one_input, mutate)
