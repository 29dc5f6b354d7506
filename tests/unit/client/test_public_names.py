"""The public names of the client: a name that goes, or comes, is a decision and not an accident."""

from __future__ import annotations

import enum
import inspect
import typing
from pathlib import Path

import penstock.client
from penstock.client.connection_listener import ConnectionListener

PINNED = Path(__file__).with_name("public_names.txt")
PLAIN = (object, Exception, dict, str, list, tuple, enum.Enum, typing.Generic)
WITHOUT = {name for kind in PLAIN for name in dir(kind)} | {"nats_py_names"}


def is_internal(value: object) -> bool:
    """Whether the docstring says so, as in the reference."""
    text = (value.fget if isinstance(value, property) else value).__doc__ or ""
    return "internal" in text.lower()


def public_names() -> list[str]:
    """Each name, and those of its fields, methods and properties; functions with their parameters."""
    found = []
    for name in penstock.client.__all__:
        kind = getattr(penstock.client, name)
        found.append(name)
        if not inspect.isclass(kind):
            continue
        keys = set(dir(kind)) | set(kind.__annotations__ if typing.is_typeddict(kind) else ())
        listens = set(dir(ConnectionListener)) if issubclass(kind, ConnectionListener) else set()
        for key in sorted(keys - WITHOUT - listens):
            value = inspect.getattr_static(kind, key, None)
            if key.startswith("_") or is_internal(value):
                continue
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            found.append(f"{name}.{key}")
            if inspect.isfunction(function):
                found[-1] += "({})".format(", ".join(inspect.signature(function).parameters))
    return found


def test_the_public_names_are_the_pinned_ones() -> None:
    found = "\n".join(public_names()) + "\n"
    assert found == PINNED.read_text(), f"when it is on purpose, change {PINNED.name} and the changelog"
