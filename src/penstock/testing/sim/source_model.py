"""A second, independent implementation of mirrors and sources: which messages they take, and what a copy
looks like."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from penstock.protocol import headers
from penstock.protocol.api import ApiStreamConfig, StreamSource
from penstock.protocol.durations import format_time, parse_time
from penstock.protocol.subjects import matches
from penstock.testing.sim.stream_checks import Held
from penstock.testing.sim.transform_checks import stored_subject

MIRROR = "M"  # the stream with a mirror
SOURCED = "T"  # the stream with sources
TARGETS = (MIRROR, SOURCED)
SECOND_NS = 1_000_000_000

_LINE = b"Nats-Stream-Source: "


class Source(NamedTuple):
    """The fields of a sourced copy's header. key: its source in the stream; see key_of()."""

    key: str
    seq: int
    subject: str
    ident: str


# --- configurations


def source_config(name: str, target: str, last_seq: int, now: int, random: Random) -> dict[str, Any]:
    """One mirror or source. last_seq: of its origin."""
    config: dict[str, Any] = {"name": name}
    how = random.random()
    if how < 0.2:
        config["filter_subject"] = f"{name}.{random.choice(['x', 'z.>', '*'])}"
    elif how < 0.4:
        config["subject_transforms"] = random.choice(
            [
                [{"src": f"{name}.x", "dest": f"{target}.one"}],
                [{"src": f"{name}.>", "dest": f"{target}.{name}.>"}],
                [{"src": f"{name}.z.*", "dest": f"{target}.{{{{wildcard(1)}}}}.z"}, {"src": f"{name}.y"}],
            ]
        )
    if random.random() < 0.12:
        config["opt_start_seq"] = random.randrange(1, last_seq + 4)
    elif random.random() < 0.1:
        config["opt_start_time"] = format_time(now - random.choice([0, 1, 5]) * SECOND_NS)
    return config


def mirror_config(config: dict[str, Any], origin: dict[str, Any], random: Random) -> dict[str, Any]:
    """The configuration of a mirror, derived from any other one."""
    for useless in ("subjects", "first_seq", "subject_transform", "subject_delete_marker_ttl"):
        config.pop(useless, None)
    return _plainer(config, random) | {"mirror": origin, "allow_atomic": False, "allow_batched": False}


def sourced_config(
    config: dict[str, Any], sources: list[dict[str, Any]], random: Random, *, closed: bool
) -> dict[str, Any]:
    """The configuration of a stream with sources, derived from any other one. closed: it accepts no
    publishes."""
    if closed:
        for useless in ("subjects", "subject_transform"):
            config.pop(useless, None)
        config["allow_atomic"] = config["allow_batched"] = False
    return _plainer(config, random) | {"sources": sources}


def _plainer(config: dict[str, Any], random: Random) -> dict[str, Any]:
    """Removes the limits from most streams, so that all copies stay visible."""
    config["allow_msg_schedules"] = False
    if random.random() < 0.6:
        config |= {"max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1, "max_age": 0}
        config["discard"] = "old"
        for useless in ("discard_new_per_subject", "max_msg_size"):
            config.pop(useless, None)
        if random.random() < 0.6:
            config["retention"], config["allow_rollup_hdrs"] = "limits", False
            config.pop("subject_delete_marker_ttl", None)
    return config


# --- what they mean


def key_of(source: StreamSource) -> str:
    """Identifies a source within its stream: name, filters and destinations."""
    if not source.subject_transforms:
        return f"{source.name} {source.filter_subject or '>'} >"
    sources = "\f".join(one.src or ">" for one in source.subject_transforms)
    return f"{source.name} {sources} " + "\f".join(one.dest or ">" for one in source.subject_transforms)


def takes(source: StreamSource, held: Held) -> bool:
    """Whether the source takes the message."""
    if source.opt_start_seq and held.seq < source.opt_start_seq:
        return False
    if source.opt_start_time and held.ts < parse_time(source.opt_start_time):
        return False
    filters = [one.src for one in source.subject_transforms] or [source.filter_subject]
    return any(not one or matches(one, held.subject) for one in filters)


def renamed(source: StreamSource, config: ApiStreamConfig, subject: str) -> str:
    """The subject of a copy."""
    for one in source.subject_transforms:
        if one.dest and matches(one.src, subject):
            subject = _renamed(one.src, one.dest, subject)
            break
    return stored_subject(config, subject)


def _renamed(src: str, dest: str, subject: str) -> str:
    tokens = subject.split(".")
    pattern = src.split(".")
    stars = [token for token, wanted in zip(tokens, pattern, strict=False) if wanted == "*"]
    for number, token in enumerate(stars, 1):
        dest = dest.replace(f"{{{{wildcard({number})}}}}", token)
    if dest.endswith(".>"):
        dest = ".".join([dest[:-2], *tokens[len(pattern) - 1 :]])
    return dest


def copied_header(source: StreamSource, held: Held, ident: str, *, is_mirror: bool) -> bytes:
    """The header of a copy: without headers that concerned the origin, with its position there."""
    lines = held.header.split(b"\r\n")[:-2] if held.header else []
    dropped = (b"Nats-Expected-", b"Nats-Batch-", *(() if is_mirror else (_LINE,)))
    kept = [line for line in lines if not line.startswith(dropped)]
    if len(kept) == 1 and len(lines) > 1:
        kept = []
    if not is_mirror:
        name, filters, destinations = key_of(source).split(" ")
        line = f"{name} {held.seq} {filters} {destinations} {held.subject} {ident}"
        kept = [*(kept or [b"NATS/1.0"]), _LINE + line.encode()]
    return b"\r\n".join([*kept, b"", b""]) if kept else b""


def source_in(held: Held) -> Source | None:
    """The origin of a message; None when it was published."""
    value = headers.value_of(held.header, headers.STREAM_SOURCE) if held.header else None
    if value is None:
        return None
    name, seq, filters, destinations, subject, ident = value.decode().split(" ")
    return Source(f"{name} {filters} {destinations}", int(seq), subject, ident)
