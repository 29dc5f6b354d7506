"""Checks options with operators: what excludes each other, and the tokens and keys themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigError, MisuseError
from penstock.protocol.claims import UserLimits
from penstock.protocol.jwt import decode_operator, decode_user
from penstock.protocol.nkeys import Prefix, is_public
from penstock.server.config.option_checks import SYSTEM_ACCOUNT
from penstock.server.server_identity import VERSION

if TYPE_CHECKING:
    from penstock.server.config.server_options import ServerOptions


def check(options: ServerOptions) -> None:
    """Validates options with operators. Raises ConfigError."""
    if options.resolver is None:
        raise ConfigError("operators require an account resolver to be configured")
    if options.accounts:
        raise ConfigError("operators do not allow Accounts to be configured directly")
    if options.users:
        raise ConfigError("operators do not allow users to be configured directly")
    if options.auth_callout is not None:
        raise ConfigError("operators do not allow authorization callouts to be configured directly")
    if options.default_sentinel:
        _check_sentinel(options.default_sentinel)
    if options.operators and options.trusted_keys:
        raise ConfigError("conflicting options for 'TrustedKeys' and 'TrustedOperators'")
    claims = [decode_operator(token) for token in options.operators]
    systems = {one.nats.system_account for one in claims} - {""}
    if options.system_account != SYSTEM_ACCOUNT:
        if systems and options.system_account not in systems:
            raise ConfigError("system_account in config and operator JWT must be identical")
    elif options.resolver.type != "memory":
        raise ConfigError(
            "using nats based account resolver - the system account needs to be specified in configuration or"
            " the operator jwt"
        )
    for one in claims:
        _check_version(one.subject, one.nats.assert_server_version)
    for key in options.resolver_pinned_accounts:
        if not is_public(key, Prefix.ACCOUNT):
            raise ConfigError(f'pinned account key "{key}" is not a valid public account nkey')


def _check_sentinel(token: str) -> None:
    try:
        user = decode_user(token).nats
    except MisuseError as error:
        raise ConfigError("default sentinel JWT not valid") from error
    may_be_scoped = bool(user.issuer_account) and user.limits == UserLimits()
    if not user.bearer_token and not may_be_scoped:
        raise ConfigError("default sentinel must be a bearer token")


def _check_version(operator: str, wanted: str) -> None:
    if not wanted:
        return
    try:
        numbers = [int(part) for part in wanted.split(".")]
    except ValueError:
        numbers = []
    if len(numbers) != 3:
        raise ConfigError(
            f"operator {operator} expects version {wanted} got error instead: asserted server version must be"
            " of the form <major>.<minor>.<update>"
        )
    if numbers > [int(part) for part in VERSION.split(".")]:
        raise ConfigError(f"operator {operator} expected version {wanted} > server version {VERSION}")
