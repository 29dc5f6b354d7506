"""Options and texts that key-value buckets and object stores have in common."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Any

from penstock.cli.framework.command_run import CommandRun, is_interactive
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.command_values import CommandValues
from penstock.cli.framework.value_kinds import count, pair, seconds, size
from penstock.cli.framework.value_texts import ago_text, time_text
from penstock.client import Placement
from penstock.client.config import StreamInfo
from penstock.errors import MisuseError

FORCE = Option(names=("--force", "-f"), convert=bool, help="Act without confirmation")
COUNT = Option(names=("--count",), convert=count, help="End after so many", metavar="NUMBER")
NAMES = Option(names=("--names", "-n"), convert=bool, help="Show just the names")
PROGRESS = Option(names=("--progress",), convert=bool, negatable=True, help="Show a progress bar")


def bucket(*, required: bool = True) -> Argument:
    """The argument that names a bucket."""
    return Argument(name="bucket", help="The bucket to act on", required=required)


# The settings that an edit may change as well; storage cannot be changed.
SETTINGS: tuple[Option, ...] = (
    Option(names=("--ttl",), convert=seconds, help="How long to keep values"),
    Option(names=("--replicas",), convert=count, help="How many replicas of the data to store"),
    Option(names=("--max-bucket-size",), convert=size, help="Maximum size of the bucket"),
    Option(names=("--description",), metavar="TEXT", help="A description of the bucket"),
    Option(
        names=("--tags",), repeated=True, commas=True, metavar="TAG", help="Place it on servers with tags"
    ),
    Option(names=("--cluster",), metavar="NAME", help="Place it in a cluster"),
    Option(names=("--metadata",), convert=pair, repeated=True, help="Add metadata"),
    Option(names=("--compress",), convert=bool, negatable=True, help="Compress the data"),
)
STORAGE = Option(
    names=("--storage",), choices=("file", "f", "memory", "m"), default="file",
    help="Storage backend (file, memory)",
)  # fmt: skip
_SETTING_OF = {
    "ttl": "ttl",
    "replicas": "replicas",
    "max-bucket-size": "max_bytes",
    "description": "description",
    "metadata": "metadata",
    "compress": "compression",
}


def settings_of(values: CommandValues, old: Placement | None = None) -> dict[str, Any]:
    """The settings that the user gave, by the names of KeyValueConfig and ObjectStoreConfig.

    old: the placement that single flags change.
    """
    found = {ours: values.value(name) for name, ours in _SETTING_OF.items() if values.given(name)}
    if "metadata" in found:
        found["metadata"] = values.pairs("metadata")
    if values.any_given("tags", "cluster"):
        found["placement"] = Placement(
            cluster=values.text("cluster") or (old.cluster if old else ""),
            tags=values.texts("tags") or (old.tags if old else []),
        )
    return found


def storage_of(values: CommandValues) -> str:
    """`file` or `memory`."""
    return "memory" if values.text("storage").startswith("m") else "file"


def value_or_stdin(run: CommandRun, name: str) -> bytes:
    """The value of an argument, or all of stdin. Raises MisuseError if stdin is a terminal."""
    found = run.values.value(name)
    if found is not None:
        return str(found).encode("utf-8", "surrogateescape")
    if is_interactive():
        raise MisuseError(f"{name} is missing: give it as an argument, or on stdin")
    return sys.stdin.buffer.read()


def printable(value: bytes) -> str:
    """A value as text; base64 if it is not printable."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
    return (
        text if all(one.isprintable() or one in "\n\t" for one in text) else base64.b64encode(value).decode()
    )


def shortened(text: str, width: int = 40) -> str:
    """A text for a cell of a table: its ends if it is long."""
    if len(text) <= width:
        return text
    half = (width - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def cluster_rows(info: StreamInfo) -> list[tuple[str, object]]:
    """Leader and replicas of a stream, for a page of information."""
    cluster = info.cluster
    if cluster is None or not cluster.name:
        return []
    rows: list[tuple[str, object]] = [("Name", cluster.name), ("Leader", cluster.leader or "none")]
    for replica in cluster.replicas:
        state = "current" if replica.current else "outdated"
        state += ", offline" if replica.offline else ""
        state += f", {replica.lag} operations behind" if replica.lag else ""
        rows.append(("Replica", f"{replica.name}, {state}, seen {replica.active / 1e9:.2f}s ago"))
    return rows


def bucket_row(name: str, info: StreamInfo, values: Sequence[object]) -> tuple[object, ...]:
    """A row of a list of buckets: name, description, time, the given values, age of the last update."""
    updated = ago_text(info.state.last_ts)
    return (name, info.config.description, time_text(info.created), *values, updated)
