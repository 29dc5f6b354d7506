"""Exports and imports of accounts: their configuration and its validation.

A *stream* export lets other accounts receive messages; a *service* export lets them send requests and
receive the replies. An import takes one export, under a subject of its own.

`check` validates all accounts together, with the official server's rules, order and texts: exports first,
then stream imports, then service imports, each step only if the one before found no error. Imports must not
form a cycle, because a message would then be routed for ever.

Invariants: configurations are frozen; `plan` accepts every import that `check` accepts.

Rejected: validating each account alone. Whether an import is valid depends on the exporting account.
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
    """How many replies a request to an exported service gets. The values are those of accountz."""

    SINGLETON = "Singleton"
    """One reply."""
    STREAMED = "Streamed"
    """Any number, until an empty message arrives or the response threshold passes without one."""
    CHUNKED = "Chunked"
    """The parts of one reply; handled as STREAMED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latency measurement of an exported service. Block `latency`."""

    subject: str
    """Subject of the measurements, in the exporting account. `subject`."""
    sampling: int = SAMPLING_MAX
    """Percent of the requests measured, 1..100 (default); 0 = requests with tracing headers (`headers`).
    `sampling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Fields of both kinds of exports."""

    subject: str
    """Filter of what is exported. `stream` or `service`."""
    accounts: tuple[str, ...] | None = None
    """Names of the accounts that may import it. Default None = all accounts. `accounts`."""
    account_token_position: int = 0
    """Number (from 1) of the `*` in `subject` that must be the importing account's name. Default 0 = none.
    `account_token_position`."""
    token_required: bool = False
    """Whether an import needs an activation token. Default off. (Account JWTs only.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamExport(Export):
    """Subjects whose messages other accounts may receive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceExport(Export):
    """Subjects to which other accounts may send requests."""

    response: ResponseType = ResponseType.SINGLETON
    """How many replies a request gets. Default one. `response_type`, `response`."""
    response_threshold_ns: int = RESPONSE_THRESHOLD_NS
    """How long to wait for a reply, ns. Default 2 minutes. `response_threshold`, `threshold`,
    `response_max_time`, `response_time`."""
    latency: Latency | None = None
    """Latency measurements. Default None = none. `latency`."""
    allow_trace: bool = False
    """Whether message traces continue in this account. Default off. `allow_trace`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamImport:
    """Receives messages that another account exports."""

    account: str
    """The exporting account. `stream.account`."""
    subject: str
    """Filter of its subjects. `stream.subject`."""
    to: str = ""
    """Local subject; wildcards as `*` in order or as `$n`. Default: as `subject`. `to`; with `prefix`
    it is the prefix, a dot and the subject."""
    allow_trace: bool = False
    """Whether message traces continue in this account. Default off. `allow_trace`."""
    activated: bool = False
    """Whether an activation token of the exporting account was verified. (Account JWTs only.)"""

    @property
    def local(self) -> str:
        """The local subject, as configured."""
        return self.to or self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceImport:
    """Sends requests to a service of another account."""

    account: str
    """The exporting account. `service.account`."""
    subject: str
    """Filter of its subjects. `service.subject`."""
    to: str = ""
    """Local subject of requests. Default: the same as `subject`. `to`."""
    share: bool = False
    """Whether the service receives details about the requesting client. Default off. `share`."""
    activated: bool = False
    """Whether an activation token of the exporting account was verified. (Account JWTs only.)"""

    @property
    def local(self) -> str:
        """The local subject, as configured."""
        return self.to or self.subject


AnyExport = StreamExport | ServiceExport
AnyImport = StreamImport | ServiceImport


class AccountSharing(Protocol):
    """The account options that validation reads."""

    @property
    def name(self) -> str: ...
    @property
    def exports(self) -> Sequence[AnyExport]: ...
    @property
    def imports(self) -> Sequence[AnyImport]: ...


# -- subjects


def tokenized(subject: str) -> str:
    """Replaces each `*` by the `$n` of its position: `a.*.*` becomes `a.$1.$2`."""
    tokens = subject.split(".")
    n = 0
    for i, token in enumerate(tokens):
        if token == "*":
            n += 1
            tokens[i] = f"${n}"
    return ".".join(tokens)


def untokenized(subject: str) -> str:
    """Replaces each `$n` by `*`: the filter that covers the destination's subjects."""
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
    """An import ready to be built: `local` subjects of the importing account map to `remote` subjects.

    `local_tokens` and `remote_tokens` are the same filters as tokens. A wildcard token is an integer, equal
    on both sides. A remote filter without wildcards receives the messages of all local subjects.
    """

    local: str
    remote: str
    local_tokens: tuple[str | int, ...]
    remote_tokens: tuple[str | int, ...]

    @property
    def renames(self) -> bool:
        """Whether local and remote subjects differ. Filters that swap wildcards look alike but differ."""
        return self.local_tokens != self.remote_tokens


def plan(entry: AnyImport) -> ImportPlan:
    """The subject translation of an import. Raises ConfigError when the subjects do not fit together."""
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


# -- authorization of imports


def approving(exports: Iterable[AnyExport], entry: AnyImport) -> list[AnyExport]:
    """The exports that decide about an import: those with exactly its subject, else the first covering it."""
    kind = StreamExport if isinstance(entry, StreamImport) else ServiceExport
    same_kind = [export for export in exports if isinstance(export, kind)]
    exact = [export for export in same_kind if export.subject == entry.subject]
    if exact:
        return list(exact)
    return [export for export in same_kind if is_subset(entry.subject, export.subject)][:1]


def is_authorized(importer: str, exports: Iterable[AnyExport], entry: AnyImport) -> bool:
    """Whether the account may import this entry."""
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
    """The export that serves an import of this subject; of several with one subject, the last."""
    services = [export for export in exports if isinstance(export, ServiceExport)]
    exact = [export for export in services if export.subject == subject]
    covering = [export for export in services if is_subset(subject, export.subject)]
    return exact[-1] if exact else covering[0] if covering else None


# -- validation of all accounts


def check(accounts: Mapping[str, AccountSharing]) -> Iterator[tuple[AnyExport | AnyImport, str]]:
    """Yields (export or import, error text) for each invalid export and import of these accounts."""
    for kind in (StreamExport, ServiceExport):
        for account in accounts.values():
            for export in account.exports:
                if isinstance(export, kind):
                    error = _export_error(export, account, accounts)
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
    """The first error text of `check`; "" when everything is valid."""
    return next((text for _, text in check(accounts)), "")


def _export_error(export: AnyExport, account: AccountSharing, accounts: Mapping[str, AccountSharing]) -> str:
    kind = "stream" if isinstance(export, StreamExport) else "service"
    for name in export.accounts or ():
        if name not in accounts:
            return f'"{name}" account not defined for {kind} export'
    place, tokens = export.account_token_position, export.subject.split(".")
    if place and (place > len(tokens) or tokens[place - 1] != "*"):
        return f'Error adding {kind} export "{export.subject}": sublist: invalid subject'
    if isinstance(export, StreamExport) or export.latency is None:
        return ""
    why = _latency_error(export, export.latency, account)
    if not why:
        return ""
    return (
        f'Error adding service latency sampling for "{export.subject}" on subject'
        f' "{export.latency.subject}": {why}'
    )


def _latency_error(export: ServiceExport, latency: Latency, account: AccountSharing) -> str:
    if not is_valid_subject(latency.subject):
        return "invalid publish subject"
    if service_export_of(account.exports, latency.subject) is not None:
        return "invalid publish subject"
    return "bad service response type" if export.response is not ResponseType.SINGLETON else ""


class _Imports:
    """The imports accepted so far."""

    def __init__(self, accounts: Mapping[str, AccountSharing]) -> None:
        self._accounts = accounts
        self._streams: dict[str, list[tuple[StreamImport, ImportPlan]]] = {name: [] for name in accounts}
        self._services: dict[str, list[tuple[ServiceImport, ImportPlan]]] = {name: [] for name in accounts}

    def add(self, importer: str, entry: AnyImport) -> str:
        """The error of an import; "" when it is valid, and then it counts in later checks."""
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
        """Raises when messages imported under this subject would come back to an account they passed."""
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
