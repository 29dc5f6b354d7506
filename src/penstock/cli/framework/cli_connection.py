"""Options of a connection, which every command has, and the client they make.

Precedence, as in the official command line: options, environment variables, the context (`--context`,
$NATS_CONTEXT, or the selected one), defaults.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.framework.cli_contexts import CliContext, load_context, selected_context
from penstock.cli.framework.command_table import Option
from penstock.cli.framework.command_values import CommandValues
from penstock.cli.framework.value_kinds import seconds
from penstock.errors import ConfigError, MisuseError

if TYPE_CHECKING:
    from penstock.client import ConnectOptions

DEFAULT_URL = "nats://127.0.0.1:4222"
DEFAULT_TIMEOUT_S = 5.0

CONNECTION_OPTIONS = (
    Option(
        names=("--server", "-s"),
        metavar="URL",
        env="NATS_URL",
        help="URL of a server, or of several with commas between",
    ),
    Option(names=("--user",), env="NATS_USER", help="User name; without a password, a token"),
    Option(names=("--password",), env="NATS_PASSWORD", help="Password"),
    Option(names=("--token",), env="NATS_TOKEN", help="Token"),
    Option(names=("--creds",), metavar="FILE", env="NATS_CREDS", help="Credentials file of a user"),
    Option(names=("--nkey",), metavar="FILE", env="NATS_NKEY", help="File with the seed of a user's nkey"),
    Option(names=("--jwt",), metavar="FILE", env="NATS_JWT", help="File with a user's JWT; needs --seed"),
    Option(names=("--seed",), metavar="FILE", env="NATS_SEED", help="File with the seed that proves the JWT"),
    Option(names=("--tlscert",), metavar="FILE", env="NATS_CERT", help="Client certificate"),
    Option(names=("--tlskey",), metavar="FILE", env="NATS_KEY", help="Private key of the certificate"),
    Option(names=("--tlsca",), metavar="FILE", env="NATS_CA", help="Certificate authorities to trust"),
    Option(
        names=("--tlsfirst",), convert=bool, negatable=True, help="Start TLS before the server's greeting"
    ),
    Option(
        names=("--timeout",),
        convert=seconds,
        env="NATS_TIMEOUT",
        help="How long to wait for each answer (default: 5s)",
    ),
    Option(names=("--js-domain", "--domain"), metavar="DOMAIN", help="JetStream domain"),
    Option(names=("--js-api-prefix",), metavar="PREFIX", help="Subject prefix of the JetStream API"),
    Option(
        names=("--js-event-prefix",),
        metavar="PREFIX",
        help="Subject prefix of JetStream events and advisories",
    ),
    Option(names=("--inbox-prefix",), metavar="PREFIX", help="Subject prefix of inboxes"),
    Option(
        names=("--connection-name",),
        metavar="NAME",
        help="Name of the connection, shown by the server (default: the command)",
    ),
    Option(names=("--context",), metavar="NAME", env="NATS_CONTEXT", help="Context with these settings"),
    Option(names=("--no-context",), convert=bool, help="Use no context, not even the selected one"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Settings of a connection, resolved from options, environment and context."""

    url: str = DEFAULT_URL
    context: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""
    jwt: str = ""
    seed: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    tls_first: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    js_domain: str = ""
    js_api_prefix: str = ""
    js_event_prefix: str = ""
    inbox_prefix: str = ""
    name: str = ""

    def js_keywords(self) -> dict[str, Any]:
        """Keyword arguments for `Client.jetstream`."""
        return {
            "domain": self.js_domain or None,
            "prefix": self.js_api_prefix or None,
            "timeout": self.timeout_s,
        }

    def client_options(self, name: str) -> ConnectOptions:
        """Keyword arguments for `penstock.client.connect`. name: of the connection, unless the user gave one.

        Raises MisuseError for options that don't go together, ConfigError for unusable TLS files.
        """
        options: ConnectOptions = {
            "name": self.name or name,
            "request_timeout": self.timeout_s,
            "connect_timeout": self.timeout_s,
            "tls_handshake_first": self.tls_first,
            "tls": self._tls(),
        }
        if self.inbox_prefix:
            options["inbox_prefix"] = self.inbox_prefix
        if self.user and self.token:
            raise MisuseError("--user and --token are both given; a server takes one of them")
        if self.user and self.password:
            options["user"], options["password"] = self.user, self.password
        elif self.user or self.token:
            options["token"] = self.token or self.user
        if self.jwt or self.seed:
            if not (self.jwt and self.seed):
                raise MisuseError("--jwt and --seed belong together; one of them is missing")
            options["credentials"] = (_read("--jwt", self.jwt), _read("--seed", self.seed))
        elif self.creds:
            options["credentials"] = self.creds
        elif self.nkey:
            options["nkey_seed_file"] = self.nkey
        return options

    def _tls(self) -> ssl.SSLContext | None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise MisuseError("--tlscert and --tlskey belong together; one of them is missing")
        if not (self.tls_cert or self.tls_ca):
            return None
        try:
            made = ssl.create_default_context(cafile=_expanded(self.tls_ca) or None)
            if self.tls_cert:
                made.load_cert_chain(_expanded(self.tls_cert), _expanded(self.tls_key))
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(one for one in (self.tls_cert, self.tls_key, self.tls_ca) if one)
            raise ConfigError(f"TLS files {files}: {error}") from None
        return made


def _expanded(path: str) -> str:
    return os.path.expanduser(path)


def _read(option: str, path: str) -> str:
    if path.startswith(("eyJ", "SU")):  # contexts may hold the value itself
        return path
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path!r} can not be read: {error}") from None


_FROM_CONTEXT = {
    "url": "url",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "jwt": "user_jwt",
    "seed": "user_seed",
    "tls_cert": "cert",
    "tls_key": "key",
    "tls_ca": "ca",
    "js_domain": "jetstream_domain",
    "js_api_prefix": "jetstream_api_prefix",
    "js_event_prefix": "jetstream_event_prefix",
    "inbox_prefix": "inbox_prefix",
}
_FROM_OPTIONS = {
    "url": "server",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "jwt": "jwt",
    "seed": "seed",
    "tls_cert": "tlscert",
    "tls_key": "tlskey",
    "tls_ca": "tlsca",
    "js_domain": "js-domain",
    "js_api_prefix": "js-api-prefix",
    "js_event_prefix": "js-event-prefix",
    "inbox_prefix": "inbox-prefix",
    "name": "connection-name",
}
_LOGINS = ("user", "password", "token", "creds", "nkey", "jwt", "seed")


def resolve(values: CommandValues, environment: Mapping[str, str] = os.environ) -> ConnectionSettings:
    """The settings of a command's connection.

    Raises ConfigError for a context that does not exist, is damaged, or needs what penstock does not have.
    """
    context = _context(values, environment)
    found: dict[str, Any] = {ours: context.text(theirs) for ours, theirs in _FROM_CONTEXT.items()}
    found["tls_first"] = context.flag("tls_first")
    if context.text("socks_proxy"):
        raise ConfigError(f"context {context.name!r} has a socks_proxy, and penstock has no SOCKS proxies")
    given = {ours: values.text(theirs) for ours, theirs in _FROM_OPTIONS.items() if values.text(theirs)}
    if any(key in given for key in _LOGINS):  # who logs in otherwise does not use the context's login
        found |= dict.fromkeys(_LOGINS, "")
    if "js_domain" in given or "js_api_prefix" in given:
        found["js_domain"] = found["js_api_prefix"] = ""
    found |= given
    if found["js_domain"] and found["js_api_prefix"]:
        raise MisuseError(
            "--js-domain and --js-api-prefix are given; a domain is a prefix, so give one of them"
        )
    found["url"] = found["url"] or DEFAULT_URL
    return ConnectionSettings(
        **{key: value for key, value in found.items() if key != "tls_first"},
        tls_first=values.flag("tlsfirst", default=bool(found["tls_first"])),
        timeout_s=_timeout(values.seconds("timeout", DEFAULT_TIMEOUT_S)),
        context=context.name,
    )


def _timeout(given_s: float) -> float:
    if given_s <= 0:
        raise MisuseError(f"--timeout is {given_s:g} s; it must be above 0")
    return given_s


def _context(values: CommandValues, environment: Mapping[str, str]) -> CliContext:
    if values.flag("no-context"):
        return CliContext("")
    name = values.text("context") or selected_context(environment)
    return load_context(name, environment) if name else CliContext("")
