"""JetStream across a leaf node link: which subjects stay on which side.

Each side has a JetStream of its own, or none. Requests on `$JS.API.>` mean the JetStream of the side that the
client is on, so they must not pass, or two servers would answer. Requests for the other side name its domain:
`$JS.<domain>.API.>`.

The rules are those of the official server. `$O.>` (data of object stores) passes, because a stream of the
other side may be mirrored; so does everything else that is not JetStream's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CLIENT_SUBJECTS = ("$JS.API.>", "$KV.>", "$OBJ.>")
SYSTEM_SUBJECTS = ("$JSC.>", "$NRG.>", *CLIENT_SUBJECTS)
WILL_EXTEND = "will_extend"


class Denied(NamedTuple):
    """Filters that do not pass a link: in either direction, and those that do not leave."""

    both: tuple[str, ...] = ()
    out: tuple[str, ...] = ()


def denied(
    *,
    account: str,
    system_account: str,
    domain: str,
    remote_domain: str,
    has_jetstream: bool,
    hint: str,
    defaults: Mapping[str, str],
) -> Denied:
    """The filters for a link.

    Args:
        account: of this side.
        system_account: "" = there is none.
        domain, remote_domain: of both sides; "" = none.
        has_jetstream: whether this server has it.
        hint: `extension_hint`.
        defaults: `default_js_domain`: domain by account. An empty domain of an account lifts its denials, for
            installations from before there were domains.
    """
    is_system = bool(system_account) and account == system_account
    if not is_system and defaults.get(account) == "":
        return Denied()
    extends = domain == remote_domain and (has_jetstream or bool(domain) or hint == WILL_EXTEND)
    if is_system and "" in defaults.values():
        extends = False
    out = (f"$JS.{domain}.API.>",) if domain and has_jetstream else ()
    if not extends or not system_account:
        return Denied(SYSTEM_SUBJECTS if is_system else CLIENT_SUBJECTS, out)
    # The same domain on both sides: the official server then runs one JetStream for both, over the system
    # account.
    return Denied() if is_system else Denied(CLIENT_SUBJECTS)
