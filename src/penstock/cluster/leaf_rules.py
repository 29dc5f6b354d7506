"""What may pass a leaf node link, in each direction.

The hub's user for the leaf node has permissions: `publish` for what the leaf node sends, `subscribe` for what
it receives. Both sides enforce them; the hub tells the leaf node. Deny lists of the leaf node's
configuration, and those that keep JetStream domains apart, are added on the side that has them.

A subscription that is wider than what is allowed passes: the hub sends those of its messages that are
allowed.

Rejected: two classes, one for each side. Both send and announce; only the sources of the lists differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import ConfigError, ProtocolError
from penstock.protocol.subjects import has_wildcard
from penstock.routing.permissions import PermissionEntry, PermissionList, Permissions, SubjectPermission

LOOP_PREFIX = b"$LDS."
_FREE = (LOOP_PREFIX, b"_GR_.", b"$GR.")  # interest that servers need for themselves
_ANSWERS = (b"_R_.", b"$JS.ACK.", b"_GR_.")  # messages that belong to an exchange that was allowed

Check = Callable[[bytes], bool]


class Direction:
    """Subjects that may pass in one direction.

    Args:
        permission: of the user; None = everything.
        denied: filters that are denied as well.
    """

    def __init__(self, permission: SubjectPermission | None, denied: Sequence[str] = ()) -> None:
        permission = permission or SubjectPermission()
        self.allow = None if permission.allow is None else PermissionList(permission.allow)
        entries = [*permission.deny, *(PermissionEntry(filter_) for filter_ in denied)]
        self.deny = PermissionList(entries)
        self.is_open = self.allow is None and not entries

    def lets_message(self, subject: bytes) -> bool:
        """Whether a message with this subject may pass."""
        if self.allow is not None and not self.allow.matches_message(subject):
            return False
        return not self.deny.matches_message(subject)

    def lets_interest(self, filter_: bytes) -> bool:
        """Whether interest in this filter may be announced, which draws messages in this direction."""
        if self.allow is not None and not self.allow.matches(filter_):
            wide = has_wildcard(filter_.decode("utf-8", "surrogateescape"))
            if not (wide and self.allow.has_entry_within(filter_)):
                return False
        return not self.deny.matches(filter_)


class LeafRules:
    """The rules of one link.

    Args:
        out: messages of this server to the other one.
        into: messages of the other server to this one, as far as this server asks for them.
        taken: those that it takes, whatever it asked for.
    """

    def __init__(self, out: Direction, into: Direction, taken: Direction) -> None:
        self._out, self._into, self._taken = out, into, taken

    @property
    def may_send(self) -> Check | None:
        """Messages to the other server."""
        return None if self._out.is_open else self._out.lets_message

    @property
    def may_announce(self) -> Check | None:
        """Interest of this server."""
        return None if self._into.is_open else self._announces

    @property
    def may_take(self) -> Check | None:
        """Messages from the other server."""
        return None if self._taken.is_open else self._takes

    @property
    def may_accept(self) -> Check | None:
        """Interest of the other server. Wide interest is accepted: messages are checked one by one."""
        return None if self._out.is_open else self._accepts

    def _announces(self, filter_: bytes) -> bool:
        return filter_.startswith(_FREE) or self._into.lets_interest(filter_)

    def _takes(self, subject: bytes) -> bool:
        return subject.startswith(_ANSWERS) or self._taken.lets_message(subject)

    def _accepts(self, filter_: bytes) -> bool:
        if filter_.startswith(_FREE) or has_wildcard(filter_.decode("utf-8", "surrogateescape")):
            return True
        return self._out.lets_message(filter_)


def rules_of_hub(
    user: Permissions | None, denied_out: Sequence[str], denied_both: Sequence[str]
) -> LeafRules:
    """The rules of a hub for a leaf node.

    Args:
        user: of the user that the leaf node logged in as. denied_out: what the leaf node does not want, and
        other filters that must not leave. denied_both: filters for JetStream. The leaf node's own requests
        pass: they are addressed to this server.
    """
    publish = None if user is None else user.publish
    subscribe = None if user is None else user.subscribe
    return LeafRules(
        Direction(subscribe, (*denied_out, *denied_both)),
        Direction(publish, denied_both),
        Direction(publish),
    )


def rules_of_leaf(
    imports: Any,
    exports: Any,
    *,
    deny_imports: Sequence[str],
    deny_exports: Sequence[str],
    denied_out: Sequence[str],
    denied_both: Sequence[str],
) -> LeafRules:
    """The rules of a leaf node.

    Args:
        imports: `import` of the hub's INFO: what this server may receive.
        exports: `export`: what it may send.
        deny_imports, deny_exports: of the configuration.
        denied_out, denied_both: filters for JetStream.

    Raises:
        ProtocolError: the hub's lists are not readable.
    """
    into = Direction(permission_of(imports), (*deny_imports, *denied_both))
    out = Direction(permission_of(exports), (*deny_exports, *denied_out, *denied_both))
    return LeafRules(out, into, into)


def permission_of(shown: Any) -> SubjectPermission | None:
    """The lists of `import` or `export` in INFO. Raises ProtocolError."""
    if shown is None:
        return None
    try:
        allow, deny = shown.get("allow"), shown.get("deny") or ()
        return SubjectPermission(
            allow=None
            if allow is None
            else tuple(PermissionEntry.parse(text, queues=True) for text in allow),
            deny=tuple(PermissionEntry.parse(text, queues=True) for text in deny),
        )
    except (AttributeError, TypeError, ConfigError) as error:
        raise ProtocolError(f"INFO of a leaf node has unreadable permissions: {error}") from error


def shown_permission(permission: SubjectPermission | None) -> dict[str, list[str]] | None:
    """The lists as INFO shows them; None = everything is allowed."""
    if permission is None or (permission.allow is None and not permission.deny):
        return None
    lists = {"allow": permission.allow, "deny": permission.deny or None}
    return {name: [str(entry) for entry in entries] for name, entries in lists.items() if entries is not None}
