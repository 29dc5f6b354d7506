"""Permissions of a user: what it may publish, subscribe to and receive.

`Permissions` is the configuration. `PermissionRules` evaluates it and is shared by all connections of a
user. `ResponseGrants` holds the reply subjects to which one connection may publish.

The rules are those of the official server (2.15):
- An allow list permits what one of its filters covers; without a list everything is permitted. A deny list
  then excludes subjects. An empty list counts as no list.
- A wildcard subscription is compared as a filter: it must lie within an allowed filter, and is refused when
  it lies within a denied one. If it only overlaps a denied filter, it is accepted, and messages on denied
  subjects are not delivered to it.
- An entry of subscribe permissions may be "filter queue", with wildcards in the queue name. If such entries
  match the subject, they alone decide about queue subscriptions.
- `allow_responses` denies all publishing that no allow list permits, and permits the reply subject of a
  delivered message, even a denied one.

One intended deviation: `foo.>` does not lie within `foo.*`. The official server accepts that subscription
and so delivers `foo.a.b` to a user who may only read `foo.*`.

Rejected: the kernel's subscription index for the lists. Lists are short, and the hot paths (ingress and
delivery guard) cache the answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from penstock.errors import ConfigError
from penstock.protocol.subjects import is_valid_filter

NS = 1_000_000_000
RESPONSES_MAX = 4096
"""Replies remembered per connection. Above it, used and expired grants are dropped first."""


@dataclass(frozen=True, slots=True)
class PermissionEntry:
    """A subject filter of a permission list, with a queue name filter or None."""

    subject: str
    queue: str | None = None

    @classmethod
    def parse(cls, text: str, *, queues: bool) -> PermissionEntry:
        """Parses "filter" or, if `queues`, "filter queue". Raises ConfigError."""
        words = text.split()
        if not words or len(words) > 1 + queues or not all(map(is_valid_filter, words)):
            raise ConfigError(f'subject "{text}" is not a valid subject')
        return cls(words[0], words[1] if len(words) == 2 else None)

    def __str__(self) -> str:
        return self.subject if self.queue is None else f"{self.subject} {self.queue}"


@dataclass(frozen=True, slots=True)
class SubjectPermission:
    """Allow and deny lists of one direction. `allow` None = everything; an empty tuple = nothing."""

    allow: tuple[PermissionEntry, ...] | None = None
    deny: tuple[PermissionEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponsePermission:
    """How many messages may be sent to a received reply subject, and for how long."""

    max_msgs: int = 1
    """Messages per reply subject; negative = no limit. `max`."""
    expires_ns: int = 120 * NS
    """Time since delivery, ns; negative = no limit. `expires`."""


@dataclass(frozen=True)
class Permissions:
    """Permissions of a user. The default permits everything."""

    publish: SubjectPermission = SubjectPermission()
    subscribe: SubjectPermission = SubjectPermission()
    responses: ResponsePermission | None = None

    @cached_property
    def rules(self) -> PermissionRules:
        """The compiled rules, built once and shared by all connections."""
        return PermissionRules(self)


def covers(outer: bytes, inner: bytes) -> bool:
    """Whether every subject that matches the filter `inner` also matches the filter `outer`."""
    return _covers(outer.split(b"."), inner.split(b"."))


def _covers(outer: list[bytes], inner: list[bytes]) -> bool:
    for i, token in enumerate(outer):
        if i >= len(inner):
            return False
        if token == b">":
            return True
        if inner[i] == b">" or token not in (b"*", inner[i]):
            return False
    return len(outer) == len(inner)


def _matches_literally(outer: list[bytes], subject: list[bytes]) -> bool:
    """Whether the filter matches the subject of a message, in which `>` and `*` are ordinary tokens."""
    for i, token in enumerate(outer):
        if i >= len(subject):
            return False
        if token == b">":
            return True
        if token not in (b"*", subject[i]):
            return False
    return len(outer) == len(subject)


def overlaps(a: bytes, b: bytes) -> bool:
    """Whether some subject matches both filters."""
    left, right = a.split(b"."), b.split(b".")
    for x, y in zip(left, right, strict=False):
        if b">" in (x, y):
            return True
        if b"*" not in (x, y) and x != y:
            return False
    return len(left) == len(right)


class PermissionList:
    """A compiled allow or deny list."""

    def __init__(self, entries: Iterable[PermissionEntry]) -> None:
        self._plain: list[list[bytes]] = []
        self._queued: list[tuple[list[bytes], list[bytes]]] = []
        for entry in entries:
            tokens = entry.subject.encode().split(b".")
            if entry.queue is None:
                self._plain.append(tokens)
            else:
                self._queued.append((tokens, entry.queue.encode().split(b".")))

    def matches(self, subject: bytes, queue: bytes = b"") -> bool:
        """Whether an entry covers the subject or filter. For a queue, matching queue entries decide."""
        tokens = subject.split(b".")
        if queue:
            queues = [names for outer, names in self._queued if _covers(outer, tokens)]
            if queues:
                wanted = queue.split(b".")
                return any(_covers(names, wanted) for names in queues)
        return any(_covers(outer, tokens) for outer in self._plain)

    def matches_message(self, subject: bytes) -> bool:
        """Whether an entry without queue matches the subject of a message."""
        tokens = subject.split(b".")
        return any(_matches_literally(outer, tokens) for outer in self._plain)

    def has_entry_within(self, filter_: bytes) -> bool:
        """Whether the filter covers an entry without queue."""
        return any(covers(filter_, b".".join(tokens)) for tokens in self._plain)

    def overlaps(self, subject: bytes) -> bool:
        """Whether an entry without queue overlaps this filter."""
        return any(overlaps(b".".join(tokens), subject) for tokens in self._plain)


class PermissionRules:
    """Evaluates permissions. Keeps no state between calls."""

    def __init__(self, permissions: Permissions) -> None:
        publish, subscribe = permissions.publish, permissions.subscribe
        allow = publish.allow
        if permissions.responses is not None and allow is None:
            allow = ()
        self.restricts_publish = allow is not None or bool(publish.deny)
        self._publish_allow = None if allow is None else PermissionList(allow)
        self._publish_deny = PermissionList(publish.deny)
        self._subscribe_allow = None if subscribe.allow is None else PermissionList(subscribe.allow)
        self._subscribe_deny = PermissionList(subscribe.deny)

    def may_publish(self, subject: bytes) -> bool:
        """Whether publishing is permitted, without reply grants. The subject is no filter: a message to
        `p.>` has the last token `>`, which `p.*` matches, as in the official server."""
        if self._publish_allow is not None and not self._publish_allow.matches_message(subject):
            return False
        return not self._publish_deny.matches_message(subject)

    def may_subscribe(self, subject: bytes, queue: bytes = b"") -> bool:
        if self._subscribe_allow is not None and not self._subscribe_allow.matches(subject, queue):
            return False
        return not self._subscribe_deny.matches(subject, queue)

    def needs_filter(self, subject: bytes) -> bool:
        """Whether a permitted subscription to this filter could match denied subjects."""
        return self._subscribe_deny.overlaps(subject)

    def may_receive(self, subject: bytes) -> bool:
        """Whether the subject of a message is not denied. Entries with queues do not count."""
        return not self._subscribe_deny.matches_message(subject)


class ResponseGrants:
    """Reply subjects to which one connection may publish because it received them.

    Args:
        permission: number of messages and time for each reply.
    """

    def __init__(self, permission: ResponsePermission) -> None:
        self._max_msgs = permission.max_msgs
        self._expires_ns = permission.expires_ns
        self._granted: dict[bytes, tuple[int, int]] = {}  # reply: (received at, messages sent)

    def __len__(self) -> int:
        return len(self._granted)

    def grant(self, reply: bytes, now: int) -> None:
        """Grants the reply subject of a delivered message. `now` in ns."""
        if len(self._granted) >= RESPONSES_MAX and reply not in self._granted:
            self._prune(now)
        self._granted.pop(reply, None)
        self._granted[reply] = (now, 0)

    def use(self, reply: bytes, now: int) -> bool:
        """Counts a publish to a reply subject; False when there is no valid grant. `now` in ns."""
        found = self._granted.get(reply)
        if found is None:
            return False
        since, used = found
        used += 1
        if self._is_over(since, used, now):
            del self._granted[reply]
            return False
        self._granted[reply] = (since, used)
        return True

    def _is_over(self, since: int, used: int, now: int) -> bool:
        return 0 <= self._max_msgs < used or 0 <= self._expires_ns < now - since

    def _prune(self, now: int) -> None:
        """Drops used and expired grants; if there are none, the oldest."""
        over = [r for r, (since, used) in self._granted.items() if self._is_over(since, used + 1, now)]
        for reply in over or list(self._granted)[: RESPONSES_MAX // 4]:
            del self._granted[reply]
