"""What accounts share: the exports and imports of a configuration, and whether they may be.

A *stream* export lets others receive what is published in the account; a *service* export lets others
publish requests into it and receive the answers. An import takes one export, under a subject of its own.

`check` holds all accounts against each other with the official server's rules, order and texts: exports
first, then stream imports, then service imports, each only if those before it were right. Imports must not
form a cycle, so that a message ends somewhere.

Invariants: configurations are frozen; an import whose check was silent can be built (`plans`).

Rejected: letting each account check itself. An import is right or wrong together with another account.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from penstock.errors import ConfigError
from penstock.protocol.numbers import natural
from penstock.protocol.subjects import has_wildcard, is_subset, is_valid_filter, is_valid_subject, overlaps
from penstock.protocol.transforms import Transform

NS = 1_000_000_000
RESPONSE_THRESHOLD_NS = 120 * NS
SAMPLING_MAX = 100
CYCLE_DEPTH_MAX = 1024


class ResponseType(Enum):
    """How many answers a request to an exported service gets; the values are what accountz shows."""

    SINGLETON = "Singleton"
    """One."""
    STREAMED = "Streamed"
    """Any number, until an empty message or until none came for the response threshold."""
    CHUNKED = "Chunked"
    """The parts of one answer: as STREAMED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Measuring an exported service. Block `latency`."""

    subject: str
    """Where measurements are published, in the exporting account. `subject`."""
    sampling: int = SAMPLING_MAX
    """Percent of the requests measured, 1..100 (default); 0 = those whose headers ask for it (`headers`).
    `sampling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What both kinds of exports have."""

    subject: str
    """Filter of what is exported. `stream` or `service`."""
    accounts: tuple[str, ...] | None = None
    """Names of the accounts that may import it. Default None = all. `accounts`."""
    account_token_position: int = 0
    """Number (from 1) of the `*` in `subject` that must be the importing account's name. Default 0 = none.
    `account_token_position`."""
    token_required: bool = False
    """Whether an import must be `activated`. Default off. (Account JWTs only.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamExport(Export):
    """Others may receive these subjects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceExport(Export):
    """Others may publish requests to these subjects."""

    response: ResponseType = ResponseType.SINGLETON
    """How many answers a request gets. Default one. `response_type`, `response`."""
    response_threshold_ns: int = RESPONSE_THRESHOLD_NS
    """How long an answer is waited for, ns. Default 2 minutes. `response_threshold`, `threshold`,
    `response_max_time`, `response_time`."""
    latency: Latency | None = None
    """Measurements; None (default) = none. `latency`."""
    allow_trace: bool = False
    """Whether message traces go on in this account. Default off. `allow_trace`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamImport:
    """Receive what another account exports."""

    account: str
    """The exporting account. `stream.account`."""
    subject: str
    """Filter of its subjects. `stream.subject`."""
    to: str = ""
    """What they are called here; wildcards as `*` in order or as `$n`. Default: the same. `to`; with `prefix`
    it is the prefix, a dot and the subject."""
    allow_trace: bool = False
    """Whether message traces go on in this account. Default off. `allow_trace`."""
    activated: bool = False
    """Was a token of the exporting account shown and verified? (Account JWTs only.)"""

    @property
    def local(self) -> str:
        """What it is called here, as configured."""
        return self.to or self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceImport:
    """Send requests to another account."""

    account: str
    """The exporting account. `service.account`."""
    subject: str
    """Filter of its subjects. `service.subject`."""
    to: str = ""
    """What requests are published to here. Default: the same. `to`."""
    share: bool = False
    """Whether the service learns who asks. Default off. `share`."""
    activated: bool = False
    """Was a token of the exporting account shown and verified? (Account JWTs only.)"""

    @property
    def local(self) -> str:
        """What it is called here, as configured."""
        return self.to or self.subject


AnyExport = StreamExport | ServiceExport
AnyImport = StreamImport | ServiceImport


class AccountSharing(Protocol):
    """What is needed of an account's options."""

    @property
    def name(self) -> str: ...
    @property
    def exports(self) -> Sequence[AnyExport]: ...
    @property
    def imports(self) -> Sequence[AnyImport]: ...


# -- subjects


def tokenized(subject: str) -> str:
    """Each `*` as the `$n` of its place: `a.*.*` is `a.$1.$2`."""
    tokens = subject.split(".")
    n = 0
    for i, token in enumerate(tokens):
        if token == "*":
            n += 1
            tokens[i] = f"${n}"
    return ".".join(tokens)


def untokenized(subject: str) -> str:
    """Each `$n` as a `*`: the filter of what such a destination makes."""
    return ".".join("*" if wildcard_of(token) else token for token in subject.split("."))


def wildcard_of(token: str) -> int:
    """n of a token `$n` or `{{wildcard(n)}}`; 0 for any other token."""
    if token.startswith("$"):
        return natural(token[1:]) or 0
    if token.startswith("{{") and token.endswith("}}"):
        name, _, argument = token[2:-2].strip().partition("(")
        number = argument.strip().removesuffix(")").strip()
        if name.strip().lower() == "wildcard":
            return natural(number) or 0
    return 0


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """One import, ready to be built: subjects of `local` in the importing account are those of `remote`.

    `local_tokens` and `remote_tokens`: the same filters as tokens; a `*` is its number, the same one in both.
    A remote that has no wildcards stands for all subjects of local.
    """

    local: str
    remote: str
    local_tokens: tuple[str | int, ...]
    remote_tokens: tuple[str | int, ...]

    @property
    def renames(self) -> bool:
        """Are subjects called differently here and there? Filters that swap their wildcards look the same."""
        return self.local_tokens != self.remote_tokens


def plan(entry: AnyImport) -> ImportPlan:
    """How subjects here and there belong together. Raises ConfigError when they can't."""
    remote, local = entry.subject, entry.local
    if not has_wildcard(remote) or remote == local:
        return ImportPlan(local, remote, _numbered(tokenized(local)), _numbered(tokenized(remote)))
    destination = tokenized(local)
    if isinstance(entry, ServiceImport):
        remote = untokenized(remote)
    try:
        Transform(remote, destination, strict=True)
    except ConfigError as error:
        kind, one, other = ("service", local, remote) if isinstance(entry, ServiceImport) else (
            "stream", remote, local)  # fmt: skip
        raise ConfigError(
            f'failed to create mapping transform for {kind} import subject from "{one}" to "{other}":'
            f" {error.message}"
        ) from error
    return ImportPlan(untokenized(local), remote, _numbered(destination), _numbered(tokenized(remote)))


def _numbered(subject: str) -> tuple[str | int, ...]:
    return tuple(wildcard_of(token) or token for token in subject.split("."))


# -- who may import what


def approving(exports: Iterable[AnyExport], entry: AnyImport) -> list[AnyExport]:
    """The exports that decide about an import: those of just its subject, else the first that covers it."""
    kind = StreamExport if isinstance(entry, StreamImport) else ServiceExport
    same_kind = [export for export in exports if isinstance(export, kind)]
    exact = [export for export in same_kind if export.subject == entry.subject]
    if exact:
        return list(exact)
    return [export for export in same_kind if is_subset(entry.subject, export.subject)][:1]


def is_authorized(importer: str, exports: Iterable[AnyExport], entry: AnyImport) -> bool:
    """May the account import this?"""
    if not is_valid_filter(entry.subject):
        return False
    return any(_approves(export, importer, entry) for export in approving(exports, entry))


def _approves(export: AnyExport, importer: str, entry: AnyImport) -> bool:
    place = export.account_token_position
    if place:
        tokens = entry.subject.split(".")
        return export.subject != entry.subject and place <= len(tokens) and tokens[place - 1] == importer
    if export.token_required:
        return entry.activated
    return export.accounts is None or importer in export.accounts


def service_export_of(exports: Iterable[AnyExport], subject: str) -> ServiceExport | None:
    """The export that an import of this subject takes part in; the last one of a subject holds."""
    services = [export for export in exports if isinstance(export, ServiceExport)]
    exact = [export for export in services if export.subject == subject]
    covering = [export for export in services if is_subset(subject, export.subject)]
    return exact[-1] if exact else covering[0] if covering else None


# -- all accounts together


def check(accounts: Mapping[str, AccountSharing]) -> Iterator[tuple[AnyExport | AnyImport, str]]:
    """What is wrong with the exports and imports of these accounts: (the entry itself, the text)."""
    for kind in (StreamExport, ServiceExport):
        for account in accounts.values():
            for export in account.exports:
                if isinstance(export, kind):
                    error = _wrong_with_export(export, account, accounts)
                    if error:
                        yield export, error
    checker = _Imports(accounts)
    for stream in (True, False):
        for account in accounts.values():
            for entry in account.imports:
                if isinstance(entry, StreamImport) is stream:
                    error = checker.add(account.name, entry)
                    if error:
                        yield entry, error


def first_error(accounts: Mapping[str, AccountSharing]) -> str:
    """The first text of `check`; "" when everything is right."""
    return next((text for _, text in check(accounts)), "")


def _wrong_with_export(
    export: AnyExport, account: AccountSharing, accounts: Mapping[str, AccountSharing]
) -> str:
    kind = "stream" if isinstance(export, StreamExport) else "service"
    for name in export.accounts or ():
        if name not in accounts:
            return f'"{name}" account not defined for {kind} export'
    place, tokens = export.account_token_position, export.subject.split(".")
    if place and (place > len(tokens) or tokens[place - 1] != "*"):
        return f'Error adding {kind} export "{export.subject}": sublist: invalid subject'
    if isinstance(export, StreamExport) or export.latency is None:
        return ""
    why = _wrong_with_latency(export, export.latency, account)
    if not why:
        return ""
    return (
        f'Error adding service latency sampling for "{export.subject}" on subject'
        f' "{export.latency.subject}": {why}'
    )


def _wrong_with_latency(export: ServiceExport, latency: Latency, account: AccountSharing) -> str:
    if not is_valid_subject(latency.subject):
        return "invalid publish subject"
    if service_export_of(account.exports, latency.subject) is not None:
        return "invalid publish subject"
    return "bad service response type" if export.response is not ResponseType.SINGLETON else ""


class _Imports:
    """The imports that were found right so far."""

    def __init__(self, accounts: Mapping[str, AccountSharing]) -> None:
        self._accounts = accounts
        self._streams: dict[str, list[tuple[StreamImport, ImportPlan]]] = {name: [] for name in accounts}
        self._services: dict[str, list[tuple[ServiceImport, ImportPlan]]] = {name: [] for name in accounts}

    def add(self, importer: str, entry: AnyImport) -> str:
        """What is wrong with it; "" when it is right, and from now on counts for others."""
        kind = "stream" if isinstance(entry, StreamImport) else "service"
        if entry.account not in self._accounts:
            return f'"{entry.account}" account not defined for {kind} import'
        try:
            if isinstance(entry, StreamImport):
                self._add_stream(importer, entry)
            else:
                self._add_service(importer, entry)
        except ConfigError as error:
            return f'Error adding {kind} import "{entry.subject}": {error.message}'
        return ""

    def _add_stream(self, importer: str, entry: StreamImport) -> None:
        if not is_authorized(importer, self._accounts[entry.account].exports, entry):
            raise ConfigError("stream import not authorized")
        for subject in (entry.local, entry.subject):
            self._follow_streams(entry.account, subject, {importer})
        made = plan(entry)
        own = self._streams[importer]
        if any(o.account == entry.account and o.subject == entry.subject for o, _ in own):
            raise ConfigError("stream import already exists")
        if not is_valid_filter(made.local):
            raise ConfigError("sublist: invalid subject")
        own.append((entry, made))

    def _add_service(self, importer: str, entry: ServiceImport) -> None:
        if not is_valid_filter(entry.local) or not is_valid_filter(entry.subject):
            raise ConfigError("sublist: invalid subject")
        if not is_authorized(importer, self._accounts[entry.account].exports, entry):
            raise ConfigError("service import not authorized")
        local = untokenized(entry.local) if has_wildcard(entry.subject) else entry.local
        self._follow_services(entry.account, local, {importer})
        made = plan(entry)
        own = self._services[importer]
        for other, its in own:
            if other.account == entry.account and its.local == made.local:
                raise ConfigError(
                    f'duplicate service import subject "{made.local}", previously used in import for'
                    f' account "{other.account}", subject "{its.remote}"'
                )
        own.append((entry, made))

    def _follow_streams(self, account: str, subject: str, visited: set[str]) -> None:
        """Would what is imported as this subject come back to an account it came from?"""
        self._visit(visited)
        exports = [e for e in self._accounts[account].exports if isinstance(e, StreamExport)]
        if not any(is_subset(subject, export.subject) for export in exports):
            return
        for entry, its in self._streams[account]:
            if overlaps(subject, its.local):
                if entry.account in visited:
                    raise ConfigError("import forms a cycle")
                visited.add(account)
                narrower = its.local if is_subset(its.local, subject) else subject
                self._follow_streams(entry.account, narrower, visited)

    def _follow_services(self, account: str, subject: str, visited: set[str]) -> None:
        self._visit(visited)
        for entry, its in self._services[account]:
            if overlaps(subject, its.remote):
                if entry.account in visited:
                    raise ConfigError("import forms a cycle")
                visited.add(account)
                narrower = its.local if is_subset(its.local, subject) else subject
                self._follow_services(entry.account, narrower, visited)

    @staticmethod
    def _visit(visited: set[str]) -> None:
        if len(visited) >= CYCLE_DEPTH_MAX:
            raise ConfigError("search cycle depth exhausted")
