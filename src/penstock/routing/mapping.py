"""Subject mappings of an account: client publishes change their subject before permissions and routing.

`SubjectMapping` is the configuration of one mapping; `Mappings` applies all mappings of an account.

A mapping has weighted destinations. If the weights add up to less than 100, the remaining messages keep
their subject. If the source itself is a destination (of any cluster), the remaining messages are dropped
instead. Destinations with a cluster name replace the others on servers of that cluster, and their weights
are added up separately.

Invariants: the first mapping whose source matches decides, and its result is not mapped again. The weights
of one list add up to at most 100.

Rejected: compiling mappings into the subject index. Their order decides, not the best match, and the
kernel's SubjectMapper caches each decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from penstock.errors import ConfigError
from penstock.protocol.subjects import is_valid_filter
from penstock.protocol.transforms import Below, FirstMatch, Transform

WEIGHT_MAX = 100
DROPPED = b""
"""The subject of a dropped message: no subscription can match the empty subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One destination of a mapping."""

    subject: str
    """Destination subject; transform functions allowed. Directive `destination`, `dest`."""
    weight: int = WEIGHT_MAX
    """Percent of the messages, 0..100. Default 100. `weight`."""
    cluster: str = ""
    """Only on servers of this cluster; "" (default) = where no destination names the cluster. `cluster`."""


@dataclass(frozen=True, slots=True)
class SubjectMapping:
    """Maps client publishes that match a filter.

    Raises:
        ConfigError: invalid source filter, invalid or repeated destination, or weights above 100, with the
            official server's texts.
    """

    source: str
    """Filter of the subjects to map."""
    destinations: tuple[Destination, ...]
    """Destinations; empty = subjects do not change."""

    @classmethod
    def to(cls, source: str, destination: str) -> SubjectMapping:
        """A mapping of all messages to one destination."""
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
    """Result of a mapping: a transform, None for an unchanged subject, or a dropped message."""

    transform: Transform | None = None
    dropped: bool = False

    def subject(self, subject: bytes, below: Below) -> bytes:
        """The subject to route, or DROPPED."""
        if self.dropped:
            return DROPPED
        return subject if self.transform is None else self.transform.apply(subject, below)

    @property
    def is_random(self) -> bool:
        return self.transform is not None and self.transform.is_random


class WeightedChoice:
    """A mapping as applied by one server: an outcome for each number in 0..99.

    Args:
        mapping: the mapping.
        cluster: name of the server's cluster; "" without clustering.
    """

    def __init__(self, mapping: SubjectMapping, cluster: str = "") -> None:
        scoped = [d for d in mapping.destinations if cluster and d.cluster == cluster]
        chosen = scoped or [d for d in mapping.destinations if not d.cluster]
        shares = [(d.weight, MappingOutcome(Transform(mapping.source, d.subject))) for d in chosen]
        rest = WEIGHT_MAX - sum(d.weight for d in chosen)
        source_is_listed = any(d.subject == mapping.source for d in mapping.destinations)
        shares.append((rest, MappingOutcome(dropped=source_is_listed)))
        self._shares: list[tuple[int, MappingOutcome]] = []  # (end of its percents, outcome)
        end = 0
        for weight, outcome in shares:
            if weight:
                end += weight
                self._shares.append((end, outcome))

    def choose(self, percent: int) -> MappingOutcome:
        """The outcome for a uniformly distributed number in 0..99."""
        for end, outcome in self._shares:
            if percent < end:
                return outcome
        raise AssertionError(f"{percent} is not from 0..{WEIGHT_MAX - 1}")

    @property
    def is_random(self) -> bool:
        """Whether the same subject can map to different subjects."""
        return len(self._shares) > 1 or self._shares[0][1].is_random


class Mappings:
    """All mappings of an account, in order. A repeated source replaces the earlier mapping in its place.

    Args:
        mappings: as configured.
        cluster: name of the server's cluster; "" without clustering.
    """

    def __init__(self, mappings: Iterable[SubjectMapping], cluster: str = "") -> None:
        by_source = {mapping.source: mapping for mapping in mappings}
        self._mappings = list(by_source.values())
        self._cluster = cluster
        # Built on first use, like `_first`: thousands of them at once would block clients during a reload.
        self._choices: dict[int, WeightedChoice] = {}
        self.prefix = _literal_prefix(by_source)
        """What every subject begins with that a mapping changes."""
        self.sources = tuple(source.encode() for source in by_source)

    @cached_property
    def _first(self) -> FirstMatch:
        return FirstMatch(mapping.source for mapping in self._mappings)

    def decide(self, subject: bytes, below: Below) -> tuple[bytes, bool]:
        """Maps the subject of a publish.

        Args:
            subject: the published subject.
            below: `below(n)` returns a uniformly distributed integer in [0, n); for weighted choices only.

        Returns:
            The subject to route (or DROPPED), and whether the result is always the same for this subject.
        """
        place = self._first.find(subject)
        if place is None:
            return subject, True
        choice = self._choices.get(place)
        if choice is None:
            choice = self._choices[place] = WeightedChoice(self._mappings[place], self._cluster)
        outcome = choice.choose(below(WEIGHT_MAX) if choice.is_random else 0)
        return outcome.subject(subject, below), not choice.is_random


def _literal_prefix(sources: Iterable[str]) -> bytes:
    """What the literal tokens that the filters begin with have in common."""
    heads = [".".join(takewhile(lambda token: token not in ("*", ">"), s.split("."))) for s in sources]
    pairs = zip(min(heads, default=""), max(heads, default=""), strict=False)
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)).encode()
