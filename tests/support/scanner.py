"""Finds input that makes the server work too long, or that something of ours does not stand.

A probe is an input on a server that has streams and consumers. Its steps are sent one after the other, each
followed by what it causes; time is moved on in between. Noted are the CPU time that the loop worked at a
stretch, what escaped, and whether the server still answers others.

What is above the bound is tried again, with all that came before it, on fresh servers: the least of the
times counts, because caches and neighbours only ever make it longer. The bound grows on machines that are
slow at a piece of work of known length, which is measured again beside each time that is above it.
"""

from __future__ import annotations

import gc
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from penstock.server.config.directives import load
from tests.support.rawnats import RawNats
from tests.support.scanned import ScannedServer

BOUND_MS = 50.0
REFERENCE_MS = 25.0  # what `reference_ms` is on the machine that the bound was set on
TRIES = 3
PROBES_PER_SERVER = 60
LATER_S = 3.0


class Probe(NamedTuple):
    """kind: what part of the server it is for. setup: which server. run: sends it."""

    kind: str
    shape: str
    setup: str
    run: Callable[[Session], None]


class Finding(NamedTuple):
    """what: "slow", "escaped" or "gone"; step: of the probe."""

    probe: Probe
    step: str
    what: str
    ms: float
    text: str = ""

    def __str__(self) -> str:
        where = f"{self.probe.kind}: {self.probe.shape} [{self.step}]"
        return f"{self.what:8} {self.ms:8.1f} ms  {where} {self.text}"


def password_login(port: int, user: str) -> RawNats:
    """A connection of a user whose password is its name."""
    return RawNats(port, 60.0, user=user, **{"pass": user})


class Setup(NamedTuple):
    """A kind of server. conf: its configuration, given a directory. furnish: makes what probes meet.
    login: a connection of a user to a port; there are users "a" and "b"."""

    conf: Callable[[str], str]
    furnish: Callable[[Session], None]
    login: Callable[[int, str], RawNats] = password_login


class Session:
    """The server of some probes, and a connection to it.

    Attributes:
        longest: the longest work of each step of the current probe, ms.
        errors: what went wrong in which step.
    """

    def __init__(self, setup: Setup) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-scan-")
        self._setup = setup
        self.directory = self._folder.name
        self.conf = Path(self.directory, "nats.conf")
        self.conf.write_text(setup.conf(self.directory), encoding="utf-8")
        self.longest: dict[str, float] = {}
        self.errors: list[tuple[str, str]] = []
        self._clients: dict[str, RawNats] = {}
        self._start()
        setup.furnish(self)
        self.begin()

    def _start(self, shift_s: float = 0.0) -> None:
        options = load(str(self.conf))
        self.server = ScannedServer(replace(options, host="127.0.0.1", port=-1), shift_s)
        self.port = self.server.call(lambda server: server.port)

    def restart(self) -> None:
        """Stops and starts the server on what it stored; a start delays no client, so that it is not
        measured. Raises what the start raises."""
        self.step("before the start")
        self._drop_clients()
        self.server.stop()
        self.errors += [("stop", text) for text in self.server.take_errors()]
        self._start(self.server.shift_s)
        self.server.take_longest_ms()

    def close(self) -> None:
        self._drop_clients()
        self.server.stop()
        self._folder.cleanup()

    def _drop_clients(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    # -- steps

    def begin(self) -> None:
        """What is measured from now on belongs to the next probe."""
        self.server.settle()
        self.server.take_longest_ms()
        self.server.take_errors()
        self.longest, self.errors = {}, []

    def step(self, name: str, seconds: float = 0.0) -> None:
        """What has been sent is done with, and what it causes within these seconds."""
        self.server.settle(seconds)
        self.longest[name] = max(self.longest.get(name, 0.0), self.server.take_longest_ms())
        self.errors += [(name, text) for text in self.server.take_errors()]

    # -- what probes send

    def client(self, user: str) -> RawNats:
        """The connection of a user; made again when the server closed it."""
        client = self._clients.get(user)
        if client is None:
            client = self._clients[user] = self._setup.login(self.port, user)
            client.send(b"SUB _R.> 1\r\n")
        return client

    def send(self, data: bytes, user: str = "a") -> None:
        """Protocol bytes; returns when they were read, or the connection is closed."""
        client = self.client(user)
        try:
            client.send(data + b"PING\r\n")
            _drain(client)
        except OSError:
            client.close()
            del self._clients[user]

    def publish(self, subject: str | bytes, payload: bytes = b"", header: bytes = b"", *, reply: str = "_R.x",
                user: str = "a") -> None:  # fmt: skip
        """One message, with a reply subject."""
        self.send(frame(subject, payload, header, reply), user)

    def raw(self, port: int, data: bytes) -> None:
        """Bytes to a port, on a connection of their own; returns when the server closed it or is quiet."""
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as sock:
            try:
                sock.sendall(data)
                sock.settimeout(0.2)
                while sock.recv(1 << 16):
                    pass
            except OSError:
                pass

    def serves_others(self) -> bool:
        """Does a new client get in and get its own message?"""
        try:
            other = self._setup.login(self.port, "b")
            other.send(b"SUB w 1\r\nPUB w 2\r\nok\r\n")
            served = other.message().payload == b"ok"
            other.close()
        except OSError:
            return False
        return served


def frame(subject: str | bytes, payload: bytes = b"", header: bytes = b"", reply: str | bytes = "") -> bytes:
    """PUB or HPUB."""
    subject = subject.encode() if isinstance(subject, str) else subject
    reply = reply.encode() if isinstance(reply, str) else reply
    words = b" ".join(word for word in (subject, reply) if word)
    if header:
        return b"HPUB %s %d %d\r\n%s%s\r\n" % (
            words,
            len(header),
            len(header) + len(payload),
            header,
            payload,
        )
    return b"PUB %s %d\r\n%s\r\n" % (words, len(payload), payload)


def _drain(client: RawNats) -> None:
    """Reads up to the PONG."""
    while (line := client.line()) != b"PONG":
        words = line.split()
        if words and words[0] in (b"MSG", b"HMSG"):
            client.exactly(int(words[-1]) + 2)
        elif line == b"PING":
            client.send(b"PONG\r\n")


# -- scanning


class Scanner:
    """Runs probes, and keeps what they found.

    bound: measures how long, in ms, the loop may work at a stretch.

    Attributes:
        counts: probes by kind.
        longest: by kind, the longest work of any probe (ms, and which).
        findings: what was found.
    """

    def __init__(
        self, setups: dict[str, Setup], bound: Callable[[], float], report: Callable[[str], None]
    ) -> None:
        self._setups = setups
        self._bound = bound
        self._bound_ms = bound()
        self._report = report
        self._sessions: dict[str, Session] = {}
        self._history: dict[str, list[Probe]] = {}
        self.counts: Counter[str] = Counter()
        self.longest: dict[str, tuple[float, str]] = {}
        self.findings: list[Finding] = []

    def run(self, probe: Probe) -> None:
        session = self._session(probe.setup)
        history = self._history[probe.setup]
        history.append(probe)
        found = self._run(session, probe)
        slow = [one for one in found if one.what == "slow"]
        if slow:
            found = [one for one in found if one.what != "slow"] + self._again(probe, history, slow)
            self._drop(probe.setup)
        elif found:
            self._drop(probe.setup)
        ms, step = max(((ms, step) for step, ms in session.longest.items()), default=(0.0, ""))
        ms = max([one.ms for one in found if one.what == "slow"], default=min(ms, self._bound_ms))
        if ms > self.longest.get(probe.kind, (0.0, ""))[0]:
            self.longest[probe.kind] = (ms, f"{probe.shape} [{step}]")
        self.counts[probe.kind] += 1
        self.findings += found
        for finding in found:
            self._report(str(finding))

    def close(self) -> None:
        for setup in tuple(self._sessions):
            self._drop(setup)

    def _again(self, probe: Probe, history: list[Probe], slow: list[Finding]) -> list[Finding]:
        """The same on fresh servers: after all that came before it, and alone."""
        least = {one.step: one for one in slow}
        for before in [*[history[:-1]] * (TRIES - 2), []]:
            session = Session(self._setups[probe.setup])
            try:
                for one in before:
                    session.begin()
                    one.run(session)
                again = {one.step: one for one in self._run(session, probe) if one.what == "slow"}
            finally:
                _close(session)
            if before or not history[:-1]:
                least = {step: min(one, again[step], key=_ms) for step, one in least.items() if step in again}
            else:  # alone: it may need the others, but where it does not, this is its time
                least |= {step: min(one, again.get(step, one), key=_ms) for step, one in least.items()}
            if not least:
                break
        return list(least.values())

    def _run(self, session: Session, probe: Probe) -> list[Finding]:
        found = []
        try:
            session.begin()
            probe.run(session)
            session.step("end")
            if not session.server.is_alive:
                found.append(Finding(probe, "end", "gone", 0.0, "the server ended"))
            elif not session.serves_others():
                found.append(Finding(probe, "end", "gone", 0.0, "the server does not serve others"))
        except Exception as error:  # noqa: BLE001  # that is what is looked for
            found.append(Finding(probe, "end", "gone", 0.0, f"{type(error).__name__}: {error}"))
        found += [Finding(probe, step, "escaped", 0.0, text) for step, text in session.errors]
        longest = max(session.longest.values(), default=0.0)
        if longest > self._bound_ms:  # is the machine slower than when the bound was last measured?
            bound_ms = max(self._bound_ms, self._bound())
            found += [
                Finding(probe, step, "slow", ms) for step, ms in session.longest.items() if ms > bound_ms
            ]
        return found

    def _session(self, setup: str) -> Session:
        if len(self._history.get(setup, ())) >= PROBES_PER_SERVER:
            self._drop(setup)
        if setup not in self._sessions:
            self._sessions[setup] = Session(self._setups[setup])
            self._history[setup] = []
        return self._sessions[setup]

    def _drop(self, setup: str) -> None:
        _close(self._sessions.pop(setup))
        del self._history[setup]


def _ms(finding: Finding) -> float:
    return finding.ms


def _close(session: Session) -> None:
    """A server that failed may not be able to stop any more."""
    try:
        session.close()
    except Exception as error:  # noqa: BLE001
        print(f"closing a server: {error!r}", file=sys.stderr)


def reference_ms() -> float:
    """CPU time of a piece of work of known length: loops, dicts, JSON."""
    best = float("inf")
    for _ in range(5):
        start = time.thread_time_ns()
        table = {str(n): [n, str(n)] for n in range(20_000)}
        text = json.dumps(table)
        assert len(json.loads(text)) == len(table)
        best = min(best, (time.thread_time_ns() - start) / 1e6)
    return best


def set_aside() -> None:
    """What there is already is no business of the garbage collector, as in a server that has started: probes
    by the ten thousands would make each of its passes longer."""
    gc.collect()
    gc.freeze()


def bound_ms() -> float:
    """The bound on this machine."""
    return BOUND_MS * max(1.0, reference_ms() / REFERENCE_MS)


def random_share(probes: list[Probe], seconds: float, seed: int, scan: Callable[[Probe], None]) -> int:
    """Runs probes drawn at random until the time is over; returns how many. Kinds have equal chances: some
    have a hundred times as many probes as others."""
    rng = random.Random(seed)
    by_kind: dict[str, list[Probe]] = {}
    for probe in probes:
        by_kind.setdefault(probe.kind, []).append(probe)
    kinds = sorted(by_kind)
    deadline, count = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        scan(rng.choice(by_kind[kinds[count % len(kinds)]]))
        count += 1
    return count
