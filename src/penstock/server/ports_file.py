"""Files of a running server: the process id, and the ports file."""

from __future__ import annotations

import os

import msgspec

from penstock.errors import ServerError


def write_pid(path: str) -> None:
    """Writes the process id in decimal. Does nothing for an empty path. Raises ServerError."""
    if path:
        _write(path, str(os.getpid()))


def write_ports(directory: str, urls: dict[str, list[str]]) -> None:
    """Writes `nats-server_<pid>.ports`, JSON. Does nothing for an empty directory. Raises ServerError."""
    if directory:
        _write(_ports_path(directory), msgspec.json.encode(urls).decode())


def remove_ports(directory: str) -> None:
    """Removes the ports file if it exists."""
    if directory:
        remove(_ports_path(directory))


def remove(path: str) -> None:
    """Removes a file if it exists. Does nothing for an empty path."""
    if path:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def _ports_path(directory: str) -> str:
    # Always with the official program's name, which test suites look for, even if the process is called
    # `penstock serve`.
    return os.path.join(directory, f"nats-server_{os.getpid()}.ports")


def _write(path: str, text: str) -> None:
    """Replaces the file atomically: a reader never sees half of it."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise ServerError(f"can not write {path}: {error.strerror}") from error
