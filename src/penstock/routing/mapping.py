"""Mappings of an account: publishes from clients change their subject before permissions and routing.

`SubjectMapping` is what a configuration says, `Mappings` is what a server makes of all of them.

A mapping has weighted destinations; what is missing to 100 goes to the source unchanged. Where the source
itself is among the destinations (of any cluster), its weight is what was meant, and the rest of the
messages is dropped. Destinations with a cluster's name replace the others on servers of that cluster; they
have a rest of their own.

Invariants: the first mapping whose source matches decides, and what it decides is not mapped again. The
weights of one list add up to at most 100.

Rejected: compiling mappings into the subject index. The order of mappings decides, not how well they
match, and the kernel's SubjectMapper remembers what was decided of a subject.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.protocol.subjects import is_valid_filter
from penstock.protocol.transforms import Below, FirstMatch, Transform

WEIGHT_MAX = 100
DROPPED = b""
"""The subject of a message that no destination gets: nobody can subscribe to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One of the subjects a mapping leads to."""

    subject: str
    """The destination, functions allowed. Directive `destination`, `dest`."""
    weight: int = WEIGHT_MAX
    """Percent of the messages, 0..100. Default 100. `weight`."""
    cluster: str = ""
    """On servers of this cluster only; "" (default) = where no destination names the cluster. `cluster`."""


@dataclass(frozen=True, slots=True)
class SubjectMapping:
    """What becomes of publishes to the subjects of a filter.

    Raises ConfigError, with the official server's texts, when the source is no filter, a destination is
    not valid or comes twice, or the weights of one list are more than 100.
    """

    source: str
    """Filter of the subjects that change."""
    destinations: tuple[Destination, ...]
    """Where they lead; none = they stay as they are."""

    @classmethod
    def to(cls, source: str, destination: str) -> SubjectMapping:
        """The plain form: all messages to one destination."""
        return cls(source, (Destination(subject=destination),))

    def __post_init__(self) -> None:
        if not is_valid_filter(self.source):
            raise ConfigError(f'Subject "{self.source}" is not a valid subject')
        seen: set[str] = set()
        totals: dict[str, int] = {}
        for destination in self.destinations:
            if destination.subject in seen:
                raise ConfigError(f'duplicate entry for "{destination.subject}"')
            seen.add(destination.subject)
            if not 0 <= destination.weight <= WEIGHT_MAX:
                raise ConfigError(f"Invalid weight {destination.weight} for mapping destination")
            total = totals.get(destination.cluster, 0) + destination.weight
            if total > WEIGHT_MAX:
                raise ConfigError(f"total weight needs to be <= {WEIGHT_MAX}")
            totals[destination.cluster] = total
            Transform(self.source, destination.subject)


@dataclass(frozen=True, slots=True)
class MappingOutcome:
    """What can become of a message: `transform`, or with None stays as it is; or it is dropped."""

    transform: Transform | None = None
    dropped: bool = False

    def subject(self, subject: bytes, below: Below) -> bytes:
        """The subject to route; DROPPED when there is none."""
        if self.dropped:
            return DROPPED
        return subject if self.transform is None else self.transform.apply(subject, below)

    @property
    def is_random(self) -> bool:
        return self.transform is not None and self.transform.is_random


class WeightedChoice:
    """A mapping as one server sees it: which outcome a number from 0..99 means.

    Args:
        mapping: the mapping.
        cluster: name of the server's cluster, "" when it stands alone.
    """

    def __init__(self, mapping: SubjectMapping, cluster: str = "") -> None:
        scoped = [d for d in mapping.destinations if cluster and d.cluster == cluster]
        chosen = scoped or [d for d in mapping.destinations if not d.cluster]
        shares = [(d.weight, MappingOutcome(Transform(mapping.source, d.subject))) for d in chosen]
        rest = WEIGHT_MAX - sum(d.weight for d in chosen)
        source_is_listed = any(d.subject == mapping.source for d in mapping.destinations)
        shares.append((rest, MappingOutcome(dropped=source_is_listed)))
        self._shares: list[
            tuple[int, MappingOutcome]
        ] = []  # (first percent that is not its own any more, outcome)
        end = 0
        for weight, outcome in shares:
            if weight:
                end += weight
                self._shares.append((end, outcome))

    def choose(self, percent: int) -> MappingOutcome:
        """The outcome for a number that is drawn evenly from 0..99."""
        for end, outcome in self._shares:
            if percent < end:
                return outcome
        raise AssertionError(f"{percent} is not from 0..{WEIGHT_MAX - 1}")

    @property
    def is_random(self) -> bool:
        """May the same subject become another one next time?"""
        return len(self._shares) > 1 or self._shares[0][1].is_random


class Mappings:
    """All mappings of an account, in order. A source given again replaces the mapping it had before.

    Args:
        mappings: as configured.
        cluster: name of the server's cluster, "" when it stands alone.
    """

    def __init__(self, mappings: Iterable[SubjectMapping], cluster: str = "") -> None:
        by_source = {mapping.source: mapping for mapping in mappings}
        self._mappings = list(by_source.values())
        self._cluster = cluster
        # Made when they are asked for first: thousands of them take longer than a reload may hold up clients.
        self._choices: dict[int, WeightedChoice] = {}
        self._first = FirstMatch(by_source)

    def decide(self, subject: bytes, below: Below) -> tuple[bytes, bool]:
        """What becomes of a publish.

        Args:
            subject: what the client published to.
            below: `below(n)` draws evenly from 0..n-1; asked only where chance decides.

        Returns:
            The subject to route, DROPPED for none; and whether it is always this one.
        """
        place = self._first.find(subject)
        if place is None:
            return subject, True
        choice = self._choices.get(place)
        if choice is None:
            choice = self._choices[place] = WeightedChoice(self._mappings[place], self._cluster)
        outcome = choice.choose(below(WEIGHT_MAX) if choice.is_random else 0)
        return outcome.subject(subject, below), not choice.is_random
