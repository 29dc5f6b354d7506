"""Contexts: files with the settings of a connection, shared with the official command line (ADR-21).

A context NAME is `$XDG_CONFIG_HOME/nats/context/NAME.json` (default `~/.config`), and `nats/context.txt`
holds the name of the selected one. Unknown fields are kept as they are when a file is written again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.framework.suggestions import suggestion
from penstock.errors import ConfigError


def contexts_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder `nats` of the user's configuration."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", "~"), ".config")
    return Path(base).expanduser() / "nats"


def context_path(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The file of a context. Raises ConfigError for a name that is no file name."""
    if not name or "/" in name or "\\" in name or name.startswith(".") or ".." in name:
        raise ConfigError(f"{name!r} is not a name of a context: it may not be empty or contain / or ..")
    return contexts_folder(environment) / "context" / f"{name}.json"


def context_names(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names of all contexts, sorted."""
    folder = contexts_folder(environment) / "context"
    return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []


def selected_context(environment: Mapping[str, str] = os.environ) -> str:
    """Name of the selected context; empty if none is."""
    try:
        return (contexts_folder(environment) / "context.txt").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(frozen=True, slots=True)
class CliContext:
    """A context. fields: as in its file, by their names there (`url`, `creds`, `jetstream_domain`, ...)."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def text(self, key: str) -> str:
        """A field as text; empty if it is missing."""
        found = self.fields.get(key)
        return found if isinstance(found, str) else ""

    def flag(self, key: str) -> bool:
        """Whether a boolean field is set."""
        return self.fields.get(key) is True


def load_context(name: str, environment: Mapping[str, str] = os.environ) -> CliContext:
    """Read a context. Raises ConfigError if there is none of this name or its file is damaged."""
    path = context_path(name, environment)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        names = context_names(environment)
        near = suggestion(name, names) or (f"; there are {', '.join(names)}" if names else "; there is none")
        raise ConfigError(f"there is no context {name!r} in {path.parent}{near}") from None
    except OSError as error:
        raise ConfigError(f"context {name!r}: {error}") from None
    try:
        return CliContext(name, msgspec.json.decode(data, type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise ConfigError(f"context {name!r}: {path} is not a JSON object: {error}") from None
