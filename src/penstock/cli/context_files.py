"""Writing context files, which the official command line shares (ADR-21).

<folder>/context/NAME.json       the settings
<folder>/context.txt             the name of the selected context
<folder>/previous-context.txt    the name of the one selected before
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.framework.cli_contexts import CliContext, context_path, contexts_folder, selected_context
from penstock.cli.private_files import write_private

# The fields in the order of the official command line, which writes all of them.
CONTEXT_FIELDS: dict[str, Any] = {
    "description": "",
    "url": "",
    "socks_proxy": "",
    "token": "",
    "user": "",
    "password": "",
    "creds": "",
    "nkey": "",
    "cert": "",
    "key": "",
    "ca": "",
    "nsc": "",
    "jetstream_domain": "",
    "jetstream_api_prefix": "",
    "jetstream_event_prefix": "",
    "inbox_prefix": "",
    "user_jwt": "",
    "user_seed": "",
    "color_scheme": "",
    "tls_first": False,
}


def save_context(context: CliContext, environment: Mapping[str, str]) -> Path:
    """Write a context's file. Fields that are not known here are kept. Returns the path. Raises ConfigError
    for a name that cannot be a file's, OSError."""
    path = context_path(context.name, environment)
    fields = {**CONTEXT_FIELDS, **context.fields}
    write_private(path, msgspec.json.format(msgspec.json.encode(fields), indent=2).decode() + "\n")
    return path


def remove_context(name: str, environment: Mapping[str, str]) -> None:
    """Remove a context, and its selection. Raises ConfigError, OSError."""
    path = context_path(name, environment)
    if selected_context(environment) == name:
        select_context("", environment)
    path.unlink()


def select_context(name: str, environment: Mapping[str, str]) -> None:
    """Select a context for commands that name none; "" selects none. Raises OSError."""
    folder = contexts_folder(environment)
    before = selected_context(environment)
    if before and before != name:
        write_private(folder / "previous-context.txt", before)
    if name:
        write_private(folder / "context.txt", name)
    else:
        (folder / "context.txt").unlink(missing_ok=True)


def previous_context(environment: Mapping[str, str]) -> str:
    """Name of the context that was selected before; "" if there is none."""
    try:
        return (contexts_folder(environment) / "previous-context.txt").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
