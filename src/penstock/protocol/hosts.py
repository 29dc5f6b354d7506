"""Addresses that other servers announce: any text may be in them.

A bad one must cost neither the connection that it came by, nor the attempts to dial others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.protocol.numbers import natural

PORT_MAX = 65535


def announced_address(text: str) -> tuple[str, int] | None:
    """Host and port of `host:port` or `[v6]:port`; None for anything else."""
    host, _, digits = text.rpartition(":")
    port = natural(digits)
    if not host or port is None or port > PORT_MAX:
        return None
    return host.strip("[]"), port


@contextmanager
def host_checked(host: str) -> Iterator[None]:
    """Around a look-up of a host: raises OSError for a text that is no host name.

    Sockets and event loops raise UnicodeError for an empty label and for one of more than 63 bytes, and some
    of them ValueError for a NUL."""
    if "\0" in host:
        raise OSError(f"{host!r} is no host name: it has a NUL")
    try:
        yield
    except UnicodeError as error:
        raise OSError(f"{host!r} is no host name: {error}") from error
