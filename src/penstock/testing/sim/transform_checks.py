"""Checks subject transforms and republished messages.

The mapping is implemented a second time here, by hand for a few transforms. Every message stored under a
subject that matches `republish` is sent once, in the order of sequences, after it was written, with headers
that describe it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from penstock.protocol import headers
from penstock.protocol.api import ApiStreamConfig
from penstock.protocol.subjects import matches
from penstock.testing.sim import Violation, require
from penstock.testing.sim.feature_checks import Feature
from penstock.testing.sim.stream_checks import Held, StreamRecord

PREFIX = "rp"

Tokens = list[str]


class Rule(NamedTuple):
    """A transform without the stream's name, which is the first token of all subjects."""

    src: str
    dest: str
    rename: Callable[[Tokens], Tokens]


def _partition(tokens: Tokens) -> Tokens:
    digest = 2166136261
    for byte in tokens[0].encode():
        digest = (digest ^ byte) * 16777619 & 0xFFFFFFFF
    return [str(digest % 3), tokens[0]]


RULES = (
    Rule("z.*", "t.{{wildcard(1)}}", lambda tokens: ["t", tokens[1]]),
    Rule(">", "t.>", lambda tokens: ["t", *tokens]),
    Rule("*", "{{partition(3,1)}}.{{wildcard(1)}}", _partition),
    Rule("*.*", "{{wildcard(2)}}.{{wildcard(1)}}", lambda tokens: [tokens[1], tokens[0]]),
    Rule("x", "y", lambda tokens: ["y"]),
)


def renaming_config(name: str, random: Random) -> dict[str, Any]:
    """The transform settings of a configuration."""
    config: dict[str, Any] = {}
    if random.random() < 0.25:
        rule = random.choice(RULES)
        config["subject_transform"] = {"src": f"{name}.{rule.src}", "dest": f"{name}.{rule.dest}"}
    if random.random() < 0.25:
        config["republish"] = random.choice(
            [
                {"src": ">", "dest": f"{PREFIX}.>"},
                {"src": f"{name}.z.*", "dest": f"{PREFIX}.{name}.{{{{wildcard(1)}}}}"},
                {"src": f"{name}.>", "dest": f"{PREFIX}.{name}.>", "headers_only": True},
            ]
        )
    return config


def stored_subject(config: ApiStreamConfig, subject: str) -> str:
    """The subject under which a message is stored."""
    transform = config.subject_transform
    if transform is None or not matches(transform.src, subject):
        return subject
    known = (transform.src.partition(".")[2], transform.dest.partition(".")[2])
    [rule] = [rule for rule in RULES if rule[:2] == known]
    name, *tokens = subject.split(".")
    return ".".join([name, *rule.rename(tokens)])


def republished_subject(config: ApiStreamConfig, subject: str) -> str | None:
    """The subject under which a stored message is republished, or None."""
    republish = config.republish
    if republish is None or not matches(republish.src, subject):
        return None
    if republish.dest.endswith(".>"):
        return f"{PREFIX}.{subject}"
    name, *tokens = subject.split(".")
    return f"{PREFIX}.{name}.{tokens[-1]}"


class Republished(Feature):
    """The republished messages of one stream."""

    def __init__(self, record: StreamRecord) -> None:
        super().__init__(record)
        self._last = 0  # the last sequence received
        # stored, but not received: the possible subjects; None: maybe not sent
        self._due: dict[int, set[str | None]] = {}

    def looked(self, before: dict[int, Held], fresh: dict[int, Held], now: int) -> None:
        """Decides what is republished when messages are stored; in the tick of an update, by either
        configuration. Sending may have to wait for a failing disk."""
        configs = (self.record.config_before, self.record.config)
        for seq, held in fresh.items():
            wanted = {republished_subject(config, held.subject) for config in configs}
            if seq > self._last and wanted != {None}:
                self._due[seq] = wanted

    def arrived(self, subject: str, header: bytes, payload: bytes, *, looked: bool) -> None:
        """Checks a republished message. looked: the record has seen everything that was written."""
        record = self.record
        about = {name: (headers.value_of(header, name) or b"").decode() for name in _ABOUT}
        seq = int(about[headers.SEQUENCE])
        where = f"{record.name} {seq} as {subject}"
        require(seq > self._last, "republish", f"{where}: came after {self._last}")
        require(
            not looked or seq <= record.kept.last_seq, "republish", f"{where}: came before it was written"
        )
        self._last = seq
        due = self._due.pop(seq, set())
        held = record.live.get(seq)
        if held is None:  # came and went within the tick
            require(about[headers.SUBJECT] != "", "republish", where)
            return
        right = about[headers.SUBJECT] == held.subject and subject in due
        require(right, "republish", f"{where}: is {held}, {due} was expected")
        if payload:
            require(payload == held.payload, "republish", f"{where}: is {held}")
        else:
            size = headers.value_of(header, headers.MSG_SIZE)
            require(size is not None or not held.tag, "republish", f"{where}: is empty, {header!r}")
        older = [one.seq for one in record.live.values() if one.subject == held.subject and one.seq < seq]
        said = int(about[headers.LAST_SEQUENCE])
        if not max(older, default=0) <= said < seq:
            raise Violation("republish", f"{where}: the last before was {max(older, default=0)}, not {said}")

    def end_tick(self, now: int, *, faulty: bool) -> None:
        if faulty:
            return  # unwritten messages are sent once they are written
        due, self._due = self._due, {}
        left = [seq for seq, wanted in due.items() if None not in wanted]
        require(not left, "republish", f"{self.record.name}: {left} did not go out again")

    def recovered(self, now: int, *, power: bool, damaged: bool) -> None:
        """Messages that recovery stores (markers, scheduled messages) are republished too, and no others."""
        self._last = 0
        record = self.record
        self._due = {
            seq: {republished_subject(record.config, held.subject), None}
            for seq, held in record.live.items()
            if damaged or seq > record.base.last_seq
        }


_ABOUT = (headers.SEQUENCE, headers.SUBJECT, headers.LAST_SEQUENCE)
