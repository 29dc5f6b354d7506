"""Who gets a message across accounts: every step by hand, no index, no cache, no sinks."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.reference.subscription_index import matches


@dataclass
class Import:
    """`local` here is `remote` in the other account; both as tokens, a number is a wildcard."""

    account: str
    local: list[str | int]
    remote: list[str | int]


@dataclass
class Deliveries:
    """subscriptions -- account: [(filter, queue, name)]."""

    subscriptions: dict[str, list[tuple[str, str, int]]]
    services: dict[str, list[Import]] = field(default_factory=dict)
    streams: dict[str, list[Import]] = field(default_factory=dict)

    def publish(self, account: str, subject: str) -> tuple[list[tuple[int, str]], list[set[tuple[int, str]]]]:
        """Who gets it for certain, and the groups of which one member gets it: (name, subject it sees)."""
        plain: list[tuple[int, str]] = []
        groups: list[set[tuple[int, str]]] = []
        self._publish(account, subject, plain, groups, [])
        return plain, groups

    def _publish(
        self,
        account: str,
        subject: str,
        plain: list[tuple[int, str]],
        groups: list[set[tuple[int, str]]],
        way: list[Import],
    ) -> None:
        interested = [
            (queue, name, subject) for f, queue, name in self.subscriptions[account] if matches(f, subject)
        ]
        if not way:
            interested += self._elsewhere(account, subject)
        plain += [(name, seen) for queue, name, seen in interested if not queue]
        for queue in sorted({queue for queue, _, _ in interested if queue}):
            groups.append({(name, seen) for q, name, seen in interested if q == queue})
        for service in self.services.get(account, []):
            other = renamed(subject, service.local, service.remote)
            if other is not None and service not in way:
                self._publish(service.account, other, plain, groups, [*way, service])

    def _elsewhere(self, account: str, subject: str) -> list[tuple[str, int, str]]:
        """Subscriptions of accounts that import what is published here."""
        found = []
        for importer, streams in self.streams.items():
            for stream in streams:
                local = renamed(subject, stream.remote, stream.local)
                if stream.account == account and local is not None:
                    own = self.subscriptions[importer]
                    found += [(queue, name, local) for f, queue, name in own if matches(f, local)]
        return found


def renamed(subject: str, source: list[str | int], destination: list[str | int]) -> str | None:
    """What a subject becomes; None when the source doesn't match it."""
    tokens = subject.split(".")
    values: dict[str | int, str] = {}  # of wildcards
    for i, token in enumerate(source):
        if token == ">":
            values[">"] = ".".join(tokens[i:])
            tokens = tokens[:i] if i < len(tokens) else []
            source = source[:i]
            if not values[">"]:
                return None
            break
        if i >= len(tokens) or (isinstance(token, str) and token != tokens[i]):
            return None
        if isinstance(token, int):
            values[token] = tokens[i]
    if len(tokens) != len(source):
        return None
    return ".".join(
        values.get(token, str(token)) if isinstance(token, int) or token == ">" else token
        for token in destination
    )
