"""The small files a running server leaves for others: its process id, and where it listens."""

from __future__ import annotations

import os

import msgspec

from penstock.errors import ServerError


def write_pid(path: str) -> None:
    """Writes this process's id, digits only. An empty path does nothing. Raises ServerError."""
    if path:
        _write(path, str(os.getpid()))


def write_ports(directory: str, urls: dict[str, list[str]]) -> None:
    """Writes `nats-server_<pid>.ports`, JSON. An empty directory does nothing. Raises ServerError."""
    if directory:
        _write(_ports_path(directory), msgspec.json.encode(urls).decode())


def remove_ports(directory: str) -> None:
    """Removes what write_ports wrote, if it is there."""
    if directory:
        remove(_ports_path(directory))


def remove(path: str) -> None:
    """Removes a file, if it is there. An empty path does nothing."""
    if path:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def _ports_path(directory: str) -> str:
    # Always under the official program's name: suites look for it, and a shim of that name that runs
    # `penstock serve` leaves no trace of its own.
    return os.path.join(directory, f"nats-server_{os.getpid()}.ports")


def _write(path: str, text: str) -> None:
    """Replaces the file in one step: who polls for it never reads half of it."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise ServerError(f"can not write {path}: {error.strerror}") from error
