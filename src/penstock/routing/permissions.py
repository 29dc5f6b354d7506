"""What a user may publish to and subscribe to, and which of its messages are kept from it.

`Permissions` is what a configuration says; `PermissionRules` is that, ready to be asked, shared by all
connections of a user; `ResponseGrants` is what one connection may answer, one reply at a time.

The rules are the official server's, probed against 2.15:

- An allow list lets through what one of its filters covers; without one everything is allowed. A deny list
  then takes away. An empty list is no list.
- A subscription to a wildcard is compared as a filter: it must lie within an allowed one, and is refused when
  it lies within a denied one. When it only overlaps a denied one it stays, and from then on nothing denied is
  delivered to the connection.
- An entry of subscribe permissions may be "filter queue", with wildcards in the queue's name. Where such
  entries match the subject, they alone decide about subscriptions with a queue.
- Permission to respond denies all publishing that no allow list permits, and lets a reply subject through
  that came with a delivered message, even a denied one.

One deviation, on purpose: `foo.>` does not lie within `foo.*`. The official server lets that subscription
pass and so delivers `foo.a.b` to a user who may only read `foo.*`.

Rejected: the kernel's subscription index for the lists. They are short, and what is asked of them is
remembered where messages pass (the inlet and the delivery guard).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from penstock.errors import ConfigError
from penstock.protocol.subjects import is_valid_filter

NS = 1_000_000_000
RESPONSES_MAX = 4096
"""Replies remembered for one connection; above it those that are used up or expired are forgotten first."""


@dataclass(frozen=True, slots=True)
class PermissionEntry:
    """A filter of a permission list, with a filter of queue names or None."""

    subject: str
    queue: str | None = None

    @classmethod
    def parse(cls, text: str, *, queues: bool) -> PermissionEntry:
        """Reads "filter" or, where `queues`, "filter queue". Raises ConfigError."""
        words = text.split()
        if not words or len(words) > 1 + queues or not all(map(is_valid_filter, words)):
            raise ConfigError(f'subject "{text}" is not a valid subject')
        return cls(words[0], words[1] if len(words) == 2 else None)

    def __str__(self) -> str:
        return self.subject if self.queue is None else f"{self.subject} {self.queue}"


@dataclass(frozen=True, slots=True)
class SubjectPermission:
    """Lists of one direction. `allow` None = everything; an empty tuple = nothing."""

    allow: tuple[PermissionEntry, ...] | None = None
    deny: tuple[PermissionEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponsePermission:
    """How often and how long a received reply subject may be published to."""

    max_msgs: int = 1
    """Messages a reply; negative = no limit. `max`."""
    expires_ns: int = 120 * NS
    """Time from the delivery, ns; negative = no limit. `expires`."""


@dataclass(frozen=True)
class Permissions:
    """What a user may do; the default is everything."""

    publish: SubjectPermission = SubjectPermission()
    subscribe: SubjectPermission = SubjectPermission()
    responses: ResponsePermission | None = None

    @cached_property
    def rules(self) -> PermissionRules:
        """Made once, for all connections."""
        return PermissionRules(self)


def covers(outer: bytes, inner: bytes) -> bool:
    """Does every subject that the filter `inner` matches also match the filter `outer`?"""
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
    """Does the filter match the subject of a message, in which `>` and `*` are tokens like others?"""
    for i, token in enumerate(outer):
        if i >= len(subject):
            return False
        if token == b">":
            return True
        if token not in (b"*", subject[i]):
            return False
    return len(outer) == len(subject)


def overlaps(a: bytes, b: bytes) -> bool:
    """Is there a subject that both filters match?"""
    left, right = a.split(b"."), b.split(b".")
    for x, y in zip(left, right, strict=False):
        if b">" in (x, y):
            return True
        if b"*" not in (x, y) and x != y:
            return False
    return len(left) == len(right)


class PermissionList:
    """Allow or deny entries, ready to be asked."""

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
        """Does an entry cover the subject or filter? With a queue, entries with queues decide if any does."""
        tokens = subject.split(b".")
        if queue:
            queues = [names for outer, names in self._queued if _covers(outer, tokens)]
            if queues:
                wanted = queue.split(b".")
                return any(_covers(names, wanted) for names in queues)
        return any(_covers(outer, tokens) for outer in self._plain)

    def matches_message(self, subject: bytes) -> bool:
        """Does an entry without queue match the subject of a message?"""
        tokens = subject.split(b".")
        return any(_matches_literally(outer, tokens) for outer in self._plain)

    def overlaps(self, subject: bytes) -> bool:
        """Has an entry without queue a subject in common with this filter?"""
        return any(overlaps(b".".join(tokens), subject) for tokens in self._plain)


class PermissionRules:
    """Answers what permissions mean for subjects. It keeps nothing of what it was asked."""

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
        """Ignoring responses. The subject of a message to `p.>` is no filter: its last token is `>`, which
        `p.*` matches, as with the official server, and subscriptions to `p.*` get it."""
        if self._publish_allow is not None and not self._publish_allow.matches_message(subject):
            return False
        return not self._publish_deny.matches_message(subject)

    def may_subscribe(self, subject: bytes, queue: bytes = b"") -> bool:
        if self._subscribe_allow is not None and not self._subscribe_allow.matches(subject, queue):
            return False
        return not self._subscribe_deny.matches(subject, queue)

    def needs_filter(self, subject: bytes) -> bool:
        """Could a subscription to this filter, which was allowed, receive something denied?"""
        return self._subscribe_deny.overlaps(subject)

    def may_receive(self, subject: bytes) -> bool:
        """Is the subject of a message not denied? Entries with queues don't count."""
        return not self._subscribe_deny.matches_message(subject)


class ResponseGrants:
    """The reply subjects one connection may publish to because it received them.

    Args:
        permission: how often and how long.
    """

    def __init__(self, permission: ResponsePermission) -> None:
        self._max_msgs = permission.max_msgs
        self._expires_ns = permission.expires_ns
        self._granted: dict[bytes, tuple[int, int]] = {}  # reply: (when it was received, messages sent to it)

    def __len__(self) -> int:
        return len(self._granted)

    def grant(self, reply: bytes, now: int) -> None:
        """A message with this reply was delivered."""
        if len(self._granted) >= RESPONSES_MAX and reply not in self._granted:
            self._prune(now)
        self._granted.pop(reply, None)
        self._granted[reply] = (now, 0)

    def use(self, reply: bytes, now: int) -> bool:
        """Counts a publish to a reply; False when it was not granted, or not any more."""
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
        """Forgets what is of no more use; if that frees nothing, the oldest."""
        over = [r for r, (since, used) in self._granted.items() if self._is_over(since, used + 1, now)]
        for reply in over or list(self._granted)[: RESPONSES_MAX // 4]:
            del self._granted[reply]
