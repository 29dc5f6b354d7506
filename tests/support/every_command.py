"""A script of command lines that uses every command which talks to a server, and what they print.

What differs from one run to the next is left out, so that kinds of servers can be compared.

    [admin]     in front of a line: as a user of the system account; else as one of the account APP
    &SUBJECT    in front: in the background until `wait`; the next line waits until SUBJECT is subscribed to
    ~           in front: what it prints is about the server itself, and not compared
    < text      behind: on stdin
    => 1        behind: the exit status, if it is not 0
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.framework.command_table import Command, CommandGroup
from penstock.cli.registry import REGISTRY, find_registered
from tests.support.command_runs import CommandShell

CONF = """
server_name: s1
accounts {
  $SYS { users: [{user: admin, password: pw}] }
  APP { jetstream: enabled, users: [{user: app, password: pw}] }
}
"""
WAIT_S = 60

SCRIPT = """
stream add ORDERS --subjects orders.> --storage memory --allow-direct --defaults
stream info ORDERS
stream ls
stream edit ORDERS --max-msgs 1000 --force
pub orders.new first --jetstream
pub orders.new second --jetstream --header Region:eu
pub orders.old third --count 3 --jetstream
stream state ORDERS
stream subjects ORDERS
stream get ORDERS 2
stream get ORDERS --last-for orders.new
stream view ORDERS 2 --raw
stream rmm ORDERS 3 --force
stream gaps ORDERS
stream find --consumers 1
stream report
stream graph ORDERS --max-refresh 1
stream copy ORDERS COPY --subjects copy.>
~stream backup ORDERS {home}/backup --no-progress
stream rm ORDERS --force
~stream restore {home}/backup --no-progress
stream seal COPY --force
stream rm COPY --force

consumer add ORDERS work --pull --defaults
consumer info ORDERS work
consumer ls ORDERS
consumer edit ORDERS work --max-deliver 7 --force
consumer copy ORDERS work other
consumer next ORDERS work --count 2 --raw
consumer state ORDERS work
consumer report ORDERS
consumer find ORDERS --pull
consumer graph ORDERS work --max-refresh 1
consumer pause ORDERS other 1h --force
consumer resume ORDERS other --force
consumer reset ORDERS other --force
consumer sub ORDERS other --count 1 --raw
consumer rm ORDERS other --force
consumer add ORDERS pinned --pull --pinned-groups jobs --pinned-ttl 1m --defaults
consumer unpin ORDERS pinned jobs --force
stream purge ORDERS --force

sub orders.> --stream ORDERS --wait 100ms
&questions reply questions answer --count 1
req questions why
wait
&echo.echo service serve echo --count 1
service list
service info echo
service stats echo
service ping echo
service request echo echo hello
wait
~rtt 2

kv add B --history 3
kv put B k one
kv create B new two
kv update B k three 1
kv get B k
kv history B k
kv ls B
kv info B
kv edit B --history 5
kv watch B --count 2
kv revert B k 1 --force
kv del B k --force
kv purge B new --force
kv compact B --force --older-than 0
kv put B k again

object add O
object put O {home}/file.txt --name file --no-progress
object ls O
object info O file
object get O file --output {home}/copy.txt --force --no-progress
object watch O --count 1
object edit O --description files
object del O file --force
object seal O --force

stream add COUNTS --subjects counts.> --allow-counter --allow-direct --defaults
counter increment counts.a 5
counter decrement counts.a 2
counter get counts.a
counter list --stream COUNTS
counter view counts.a

~bench pub b --msgs 100
&b bench sub b --msgs 100
~bench pub b --msgs 100 --sleep 1ms
wait
&s bench service serve s --msgs 10
~bench service request s --msgs 10
wait
~bench js pub sync bench.a --create --msgs 50
~bench js pub async bench.a --msgs 50
~bench js pub atomic bench.a --msgs 50
~bench js pub fast bench.a --msgs 50
~bench js get sync --msgs 50
~bench js get batch --msgs 50
~bench js fetch --msgs 50
~bench js consume --msgs 50 --purge
~bench js ordered --msgs 50
~bench kv put --msgs 50
~bench kv get --msgs 50

~account info
account report connections
~account report statistics
stream rm benchstream --force
stream rm KV_benchbucket --force
~account backup {home}/account --force
stream rm ORDERS --force
stream rm COUNTS --force
stream rm KV_B --force
stream rm OBJ_O --force
~account restore {home}/account
~backup stream ORDERS {home}/again
stream rm ORDERS --force
~backup restore stream {home}/again
~backup account {home}/all
stream rm ORDERS --force
stream rm COUNTS --force
stream rm KV_B --force
stream rm OBJ_O --force
~backup restore account {home}/all
stream ls --names --all

~server check connection
server check request --subject $JS.API.STREAM.NAMES --match-payload ORDERS
server check stream --stream ORDERS
server check consumer --stream ORDERS --consumer work
server check message --stream KV_B --subject $KV.B.k
server check kv --bucket B
~server check jetstream
[admin] ~server check server --name s1
[admin] server check meta => 2
[admin] ~server list
[admin] ~server ping
[admin] ~server info
[admin] ~server graph s1 --max-refresh 1
[admin] ~server request accounts
[admin] ~server request connections
[admin] ~server request gateways
[admin] ~server request ipqueue
[admin] ~server request jetstream-health
[admin] ~server request jetstream
[admin] ~server request leafnodes
[admin] ~server request raft
[admin] ~server request routes
[admin] ~server request subscriptions
[admin] ~server request variables
[admin] ~server report connections
[admin] ~server report accounts
[admin] ~server report jetstream
[admin] ~server report health
[admin] ~server report cpu
[admin] ~server report mem
[admin] server report routes
[admin] server report leafnodes
[admin] server report gateways
[admin] ~server watch servers --max-refresh 1
[admin] ~server watch accounts --max-refresh 1
[admin] ~server watch jetstream --max-refresh 1
server watch api requests --max-refresh 1 --interval 100ms
[admin] ~server account info APP
[admin] ~top --max-refresh 1
~trace orders.new
~latency --server-b {url} --duration 100ms
schema request $JS.API.STREAM.NAMES {{}}
&$JS.EVENT.ADVISORY.A events --no-srv-advisory --js-advisory --count 1
consumer add ORDERS last --pull --defaults
wait

~context add here --server {url} --user app --password pw --description mine
~context info here
~context copy here there
~context validate here
"""

ELSEWHERE = {
    "auth account push": "test_auth_commands: it needs a server that takes accounts from operators",
    "auth account query": "test_auth_commands: it needs a server that takes accounts from operators",
    "server request kick": "test_server_commands: it needs the id of a connection",
    "server request profile": "test_server_commands: penstock refuses it, and says what takes profiles",
    "server reload": "test_clustered_commands: a server in the test's process has no file",
    "server config reload": "test_clustered_commands: a server in the test's process has no file",
    "server account purge": "test_clustered_commands: clusters have it",
    "server cluster step-down": "test_clustered_commands",
    "server cluster peer-remove": "test_clustered_commands",
    "server cluster evacuate": "test_clustered_commands",
    "server cluster balance": "test_clustered_commands",
    "stream cluster step-down": "test_clustered_commands",
    "stream cluster peer-remove": "test_clustered_commands",
    "stream cluster evacuate": "test_clustered_commands",
    "stream cluster cancel-move": "test_clustered_commands",
    "stream cluster balance": "test_clustered_commands",
    "consumer cluster step-down": "test_clustered_commands",
    "consumer cluster peer-remove": "test_clustered_commands",
    "consumer cluster balance": "test_clustered_commands",
}
"""Commands that the script can't run, and the module of tests/integration/cli that runs them."""


@dataclass(frozen=True)
class ScriptLine:
    """A line of the script."""

    text: str
    words: tuple[str, ...]
    is_admin: bool
    awaited: str
    is_compared: bool
    stdin: bytes
    status: int


def script_lines() -> Iterator[ScriptLine]:
    """The lines of SCRIPT."""
    for line in SCRIPT.strip().splitlines():
        if not line:
            continue
        text, _, status = line.partition(" => ")
        text, _, stdin = text.partition(" < ")
        is_admin = text.startswith("[admin] ")
        text = text.removeprefix("[admin] ")
        awaited = ""
        if text.startswith("&"):
            awaited, _, text = text[1:].partition(" ")
        yield ScriptLine(
            line,
            tuple(shlex.split(text.lstrip("~"))),
            is_admin,
            awaited,
            not text.startswith("~"),
            stdin.encode(),
            int(status or 0),
        )


def command_of(words: tuple[str, ...]) -> str:
    """The command that the words name, without aliases."""
    found = find_registered(words[0])
    assert found is not None, words
    member: Command | CommandGroup | None = found.load()
    path = [found.name]
    for word in words[1:]:
        if not isinstance(member, CommandGroup):
            break
        member = member.find(word)
        assert member is not None, words
        path.append(member.name)
    assert isinstance(member, Command), words
    return " ".join(path)


def connecting_commands() -> dict[str, Command]:
    """Every command that connects to a server, by its words."""
    found: dict[str, Command] = {}

    def add(member: Command | CommandGroup, path: str) -> None:
        if isinstance(member, CommandGroup):
            for one in member.members.values():
                add(one, f"{path} {one.name}")
        elif member.connects:
            found[path] = member

    for registered in REGISTRY:
        if not registered.takes_words:
            add(registered.load(), registered.name)
    return found


class ScriptRun:
    """Runs the script against one server. printed: what each compared line printed, normalised."""

    def __init__(self, home: Path, port: int) -> None:
        self._url = f"nats://127.0.0.1:{port}"
        self._home = home
        (home / "file.txt").write_text("contents of a file\n")
        self._shells = {
            user: CommandShell(home, self._url, ("--user", user, "--password", "pw"))
            for user in ("app", "admin")
        }
        self._background: subprocess.Popen[bytes] | None = None
        self.printed: list[tuple[str, Any]] = []

    def run(self) -> None:
        """Run every line. Fails at the first with another exit status."""
        try:
            for line in script_lines():
                if line.words == ("wait",):
                    self._wait()
                else:
                    self._run(line)
        finally:
            if self._background is not None:
                self._background.kill()
                self._background.communicate()

    def _run(self, line: ScriptLine) -> None:
        words = [word.format(home=self._home, url=self._url) for word in line.words]
        shell = self._shells["admin" if line.is_admin else "app"]
        if words[0] == "context":
            shell = CommandShell(self._home)
        if line.awaited:
            self._background = shell.start(*words)
            self._await_subscription(line.awaited)
            return
        ran = shell.run(*words, "--json", stdin=line.stdin)
        assert ran.status == line.status, f"{line.text}: {ran.status}\n{ran.err}{ran.text}"
        if line.is_compared:
            self.printed.append((line.text, normalised(ran.text)))

    def _await_subscription(self, subject: str) -> None:
        deadline = time.monotonic() + WAIT_S
        words = ("server", "request", "subscriptions", "--filter-account", "APP", "--detail", "--json")
        while True:
            (page,) = self._shells["admin"].ok(*words, "--filter-subject", subject).json
            if any("_INBOX" not in one["subject"] for one in page["data"].get("subscriptions_list") or []):
                return
            assert time.monotonic() < deadline, f"nothing subscribes to {subject}"

    def _wait(self) -> None:
        process, self._background = self._background, None
        assert process is not None
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err.decode() + out.decode()


CHANGING = re.compile(
    r"created|started|time|timestamp|ts|now|last_update|last_active|last_activity|idle|start|stop|mtime|delta"
    r"|seconds|pause_until|pause_remaining|.*_ts|.*_time|.*rtt.*|.*uptime|id|cid|.*nuid|server_id|ip|port|kind|type"
    r"|lang|version|metadata|file|perf_data|pending_bytes"
)
"""Names of fields whose values differ from one run to the next."""


def normalised(text: str) -> Any:
    """What a command printed, without times, ids and the like. JSON as values."""
    try:
        return _masked(json.loads(text))
    except json.JSONDecodeError:
        pass
    try:
        return [_masked(json.loads(line)) for line in text.splitlines()]
    except json.JSONDecodeError:
        return text


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "*" if CHANGING.fullmatch(key) else _masked(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_masked(one) for one in value]
    return "_INBOX" if isinstance(value, str) and value.startswith("_INBOX.") else value
