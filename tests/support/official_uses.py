"""Daily uses of the official command line, and what they print without what differs from run to run."""

from __future__ import annotations

import re

USES = """
stream add ORDERS --subjects orders.> --storage memory --defaults --json
pub orders.new first
pub orders.new second --header Region:eu
pub orders.old third --count 3
pub orders.jet fourth --jetstream
stream ls --json
stream ls --names
stream info ORDERS --json
stream state ORDERS --json
stream subjects ORDERS --json
stream subjects ORDERS
stream get ORDERS 2
stream get ORDERS --last-for orders.new --json
stream rmm ORDERS 3 --force
stream gaps ORDERS --force --no-progress
stream edit ORDERS --max-msgs 100 --force --json
stream copy ORDERS COPY --subjects copy.> --json
stream find --empty --names
stream report
stream seal COPY --force
stream rm COPY --force
consumer add ORDERS work --pull --defaults
consumer add ORDERS push --target out.orders --ack none --deliver all --replay instant --defaults
consumer ls ORDERS --json
consumer ls ORDERS --names
consumer info ORDERS work --json
consumer state ORDERS work --json
consumer next ORDERS work --count 2 --raw
consumer edit ORDERS work --max-deliver 7 --force
consumer copy ORDERS work other
consumer report ORDERS
consumer pause ORDERS other 1h --force
consumer resume ORDERS other --force
consumer find ORDERS --push
consumer rm ORDERS other --force
sub orders.> --stream ORDERS --all --count 5 --raw
stream purge ORDERS --force --json
stream rm ORDERS --force
kv add B --history 3
kv put B k one
kv create B new two
kv update B k three 1
kv get B k --raw
kv history B k
kv ls B
kv ls B --verbose --display-value
kv revert B k 1 --force
kv info B
kv del B k --force
kv purge B new --force
kv compact B --force
kv edit B --history 5
kv rm B --force
object add O
object put O {home}/file.txt --name file --no-progress --force
object ls O
object info O file
object get O file --output {home}/copy.txt --force --no-progress
object seal O --force
object rm O --force
stream add COUNTS --subjects counts.> --allow-counter --allow-direct --defaults
counter incr counts.a 5
counter get counts.a
stream rm COUNTS --force
rtt 2
account info
schema info io.nats.jetstream.api.v1.stream_create_request
errors lookup 10059
server check connection
server check stream --stream MISSING => 2
stream info MISSING => 1
consumer next MISSING c => 1
kv get B k => 1
request missing.service hello
"""
"""Command lines without `nats`, in order, with `=> STATUS` behind those that fail."""

_CHANGING = (
    (r"nats://127\.0\.0\.1:\d+|127\.0\.0\.1:\d+", "<address>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|UTC|[+-]\d\d:?\d\d))?", "<time>"),
    (r"\b\d\d:\d\d:\d\d(\.\d+)?", "<time>"),
    (r"\b(\d+[hm])*\d+(\.\d+)?(ns|µs|ms|s)\b", "<duration>"),
    (r"\b\d+\.\d+ms\b|\b\d+\.\d+s\b", "<duration>"),
    (r"N[A-Z2-7]{55}", "<server>"),
    (r"\b[0-9A-Za-z]{22}\b", "<id>"),
    (r"_INBOX\.\S+", "<inbox>"),
    (r'"(pause_remaining|active|rtt)": \d+', '"<duration>"'),
    (r"rtt=\S+|time=\S+", "<duration>"),
    (r"Client ID: \d+", "<client>"),
    (r"[─-╿]+|-{3,}", "<rule>"),
    (r"[ \t\xa0]+", " "),  # differences of configurations have either kind of space, at random
)


def without_changing(text: str) -> str:
    """What was printed, without times, durations, ids, addresses, and the widths of columns."""
    for pattern, name in _CHANGING:
        text = re.sub(pattern, name, text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())
