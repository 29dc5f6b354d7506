"""A hundred typical mistakes on the command line, and the page docs/mistakes.md with what is answered.

`python -m tests.support.mistakes` writes the page; a test compares it with the answers of today.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from penstock.cli.main import main

INTRODUCTION = (
    "Typical mistakes on the [command line](command-line.md), with the answers. "
    "They are on stderr; the exit status is 2 unless another is given."
)
PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"

MISTAKES: dict[str, str] = {
    "Commands": """
steam ls
streams
consmer info ORDERS NEW
publsh orders.new hello
subscibe orders.new
kvv get b k
rttt
ls
stream lst
stream infos ORDERS
stream ad ORDERS
stream delet ORDERS
stream pruge ORDERS
stream cluster stepdwn ORDERS
consumer nxet ORDERS NEW
consumer lists ORDERS
consumer pasue ORDERS NEW 1h
bench publish test
bench js pub asinc test
schema inof x
--server localhost stream ls
-s localhost stream ls
""",
    "Options": """
stream ls --naems
stream add ORDERS --subject orders.new
stream add ORDERS --subjects orders.new --max-ages 1h
stream add ORDERS --subjects orders.new --replica 3
stream add ORDERS --subjects orders.new --retension limits
stream add ORDERS --subjects orders.new --no-storage
stream rm ORDERS --forced
stream rm ORDERS -x
stream view ORDERS --form 3
stream purge ORDERS --sequence 3
stream ls -q
consumer add ORDERS NEW --filters orders.new
consumer add ORDERS NEW --max-delivery 3
consumer add ORDERS NEW --ackk none
consumer next ORDERS NEW --number 3
consumer next ORDERS NEW --noack
consumer edit ORDERS NEW --ack none
pub orders.new hello --headers A:1
pub orders.new hello --cuont 3
pub orders.new hello --js
sub orders.new --queue-group q
req time --time-out 3s
rtt --sever localhost
stream ls --tls-ca ca.pem
""",
    "Values": """
stream add ORDERS --subjects orders.new --storage disk
stream add ORDERS --subjects orders.new --retention worker
stream add ORDERS --subjects orders.new --discard oldest
stream add ORDERS --subjects orders.new --max-age 3600
stream add ORDERS --subjects orders.new --max-age 1hour
stream add ORDERS --subjects orders.new --max-bytes ten
stream add ORDERS --subjects orders.new --max-msgs many
stream add ORDERS --subjects orders.new --replicas 0
stream add ORDERS --subjects orders.new --compression gzip
stream add ORDERS --subjects orders.new --metadata team
stream add ORDERS --subjects orders.new --ack=maybe
stream add ORDERS --subjects orders.new --dupe-window 2
stream view ORDERS ten
stream view ORDERS --since yesterday
stream get ORDERS first
stream purge ORDERS --keep some
consumer add ORDERS NEW --ack sometimes
consumer add ORDERS NEW --replay slow
consumer add ORDERS NEW --wait 30
consumer add ORDERS NEW --sample half
consumer add ORDERS NEW --backoff exponential
consumer add ORDERS NEW --pause tomorrow
consumer next ORDERS NEW --count 0
consumer next ORDERS NEW --wait 5
pub orders.new hello --count 0
pub orders.new hello --header A
pub orders.new hello --sleep 1
pub orders.new hello --batch big
pub orders.new --input nowhere.txt
sub orders.new --count few
sub orders.new --since 1x
req time now --replies all
rtt ten
rtt --timeout 5
bench pub test --msgs 1e6
bench pub test --clients 0
bench js fetch --acks maybe
completion powershell
schema ls (
stream ls --color blue
""",
    "Missing or too much": """
pub
req
reply time
sub
stream copy ORDERS
stream restore
stream seal
consumer next ORDERS
consumer copy ORDERS NEW
bench pub
schema info
mapping foo.*
completion
man
stream ls ORDERS
stream info ORDERS NEW
stream add ORDERS orders.new
pub orders.new hello world
req time now please
stream add ORDERS --subjects
pub orders.new hello --count
rtt 3 4
stream get ORDERS 3 4
""",
    "Contradictions": """
pub orders.new hello --send-on end
pub orders.new hello --schedule-at 1h
pub orders.new hello --schedule-ttl 1h
pub orders.new hello --schedule-after 1h --schedule-every 1h --schedule-dest a
reply time now --echo
reply echo
sub orders.new --all --new
sub orders.new --last --since 1h
consumer next ORDERS NEW --nak --term
stream get ORDERS
stream get ORDERS 3 --last-for orders.new
bench pub test --duration 10s
stream add
""",
    "Connections": """
rtt --context nowhere
rtt --context ../secrets
rtt --tlscert cert.pem
rtt --tlskey key.pem
rtt --tlsca nowhere.pem
rtt --jwt user.jwt
rtt --js-domain hub --js-api-prefix JS.hub
rtt --server http://localhost:4222
rtt --server nats://
rtt --server localhost:port
rtt --timeout 0
rtt --user ann --token secret
""",
    "Servers, subjects and mappings": """
serve --prot 4222
serve --port many
serve start
schema info io.nats.jetstream.advisory.v1.max_delivery
schema validate io.nats.jetstream.advisory.v1.nak nowhere.json
mapping foo.* bar.{{wildcard(2)}} foo.x
mapping foo.* bar.$1 baz.x
mapping foo..x bar baz
""",
}


def answers() -> Iterator[tuple[str, str, int, str]]:
    """Yield section, command line, exit status and answer of every mistake."""
    for section, lines in MISTAKES.items():
        for line in lines.strip().split("\n"):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(shlex.split(line))
            yield section, line, status, err.getvalue()


def page() -> str:
    """The page with all mistakes and answers."""
    lines = [
        "# Mistakes and answers",
        "",
        "<!-- Generated by `python -m tests.support.mistakes`. Change the list there. -->",
        "",
        INTRODUCTION,
    ]
    before = ""
    for section, line, status, answer in answers():
        if section != before:
            lines += ["", f"## {section}"]
            before = section
        note = "" if status == 2 else f"    (exit status {status})\n"
        text = "".join(f"    {one}\n" for one in answer.strip().split("\n"))
        lines += ["", f"    $ penstock {line}\n{text}{note}".rstrip("\n")]
    return "\n".join(lines) + "\n"


def in_empty_environment() -> None:
    """No contexts and variables of the user, so that the answers are the same for all."""
    for name in [name for name in os.environ if name.startswith("NATS_")]:
        del os.environ[name]
    os.environ["XDG_CONFIG_HOME"] = "/nowhere"


if __name__ == "__main__":
    in_empty_environment()
    sys.stdin = io.StringIO()
    PAGE.write_text(page(), encoding="utf-8")
