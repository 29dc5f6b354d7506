"""User information: `$SYS.REQ.USER.INFO`, and token and key fields of connz and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.config.option_checks import NS
from penstock.server.config.server_options import GLOBAL_ACCOUNT
from penstock.server.monitoring.pages.page_options import Page

if TYPE_CHECKING:
    from penstock.routing.permissions import Permissions, SubjectPermission
    from penstock.server.auth.authenticator import Identity
    from penstock.server.monitoring.monitored_server import MonitoredServer
    from penstock.server.session import Session


def user_info(server: MonitoredServer, identity: Identity) -> Page:
    """Account, permissions and remaining time, for the client itself."""
    page: Page = {
        "user": identity.user,
        "account": identity.account,
        "account_name": server.accounts.shown_name(identity.account),
    }
    if identity.claims is not None and identity.claims.name:
        page["user_name"] = identity.claims.name
    if identity.permissions is not None:
        page["permissions"] = permissions(identity.permissions)
    if identity.expires_ns:
        page["expires"] = max(0, (identity.expires_ns - server.context.clock()) // NS) * NS
    return page


def permissions(found: Permissions) -> Page:
    """Permissions in the official format."""
    page: Page = {"publish": _lists(found.publish), "subscribe": _lists(found.subscribe)}
    if found.responses is not None:
        page["responses"] = {"max": found.responses.max_msgs, "ttl": found.responses.expires_ns}
    return page


def _lists(found: SubjectPermission) -> Page:
    lists = {
        "allow": [str(entry) for entry in found.allow or ()],
        "deny": [str(entry) for entry in found.deny],
    }
    return {name: entries for name, entries in lists.items() if entries}


def token_of(session: Session, *, for_strangers: bool) -> Page:
    """Token and key fields of a client; "" when unknown.

    for_strangers: omit a bearer token, which would suffice to log in.
    """
    identity = session.identity
    account = identity.account if identity is not None else GLOBAL_ACCOUNT
    page: Page = {"name_tag": session.ports.accounts.shown_name(account)}
    if identity is not None:
        page["issuer_key"] = identity.issuer_key
        if identity.claims is not None:
            is_secret = for_strangers and identity.claims.nats.bearer_token
            token = "" if is_secret else session.options.jwt
            page |= {"jwt": token, "tags": list(identity.claims.nats.tags)}
    return page
