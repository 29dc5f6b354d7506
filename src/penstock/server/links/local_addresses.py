"""The addresses of this machine.

The official server reads the interfaces. Python's standard library cannot (getifaddrs is not in `socket`), so
the addresses come from the host name and from the source addresses that the kernel would use for other
networks.
"""

from __future__ import annotations

import socket

_PROBES = (
    (socket.AF_INET, "192.0.2.1"),  # RFC 5737, RFC 3849: networks for documentation; nothing is sent
    (socket.AF_INET6, "2001:db8::1"),
)
_PORT = 9


def addresses() -> list[str]:
    """The addresses other than loopback, IPv4 first; empty without a network."""
    found: dict[str, None] = {}
    for family, target in _PROBES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, _PORT))
                found[probe.getsockname()[0]] = None
        except OSError:  # no route to such networks
            continue
    try:
        for _, _, _, _, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            found[str(address[0])] = None
    except OSError:  # the host name is not known to the resolver
        pass
    return [one for one in found if not one.startswith(("127.", "fe80:", "::1", "0."))]


def reachable(host: str) -> list[str]:
    """The addresses at which clients elsewhere reach a server that listens on `host`."""
    if host not in ("", "0.0.0.0", "::"):
        return [host]
    return addresses() or ["127.0.0.1"]


def is_own(host: str) -> bool:
    """Whether the literal address belongs to this machine."""
    return host.startswith("127.") or host == "::1" or host in addresses()
