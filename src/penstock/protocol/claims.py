"""Claims of NATS JWTs, version 2: operators, accounts, users and activations.

The structs match the JSON of the official jwt library, which omits unset fields. Limits follow it as well:
-1 = no limit, and an absent limit is 0, which permits nothing. Only claims converted from version 1 and the
template of a scoped key default to -1.

`problems` lists errors that do not depend on the time; `time_problem` compares the claims with a clock.
`ISSUERS` lists which keys may sign which claims. `jwt` reads and signs tokens.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal

import msgspec

from penstock.protocol.nkeys import Prefix, is_public

VERSION = 2
NO_LIMIT = -1
ENTRIES_MAX = 1024  # per list: each entry costs microseconds of the event loop at every login
ALL = "*"
"""Key of a revocation that applies to every user."""

ExportKind = Literal["stream", "service"]
_Bounded = msgspec.Meta(max_length=ENTRIES_MAX)
Name = Annotated[str, _Bounded]
Texts = Annotated[tuple[str, ...], _Bounded]


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all parts of claims."""


# -- users


class PermissionClaim(_Part, frozen=True):
    """Filters of one direction. No `allow` permits everything. `sub` entries may be "filter queue"."""

    allow: Texts = ()
    deny: Texts = ()


class ResponsePermissionClaim(_Part, frozen=True, omit_defaults=False):
    """max: messages per reply; ttl: ns. 0 = default, negative = no limit."""

    max: int = 0
    ttl: int = 0


class PermissionsClaim(_Part, frozen=True):
    """Subjects that may be published and subscribed to."""

    pub: PermissionClaim = PermissionClaim()
    sub: PermissionClaim = PermissionClaim()
    resp: ResponsePermissionClaim | None = None

    @property
    def is_empty(self) -> bool:
        return self.pub == PermissionClaim() and self.sub == PermissionClaim() and self.resp is None


class TimeRange(_Part, frozen=True):
    """A time of day range from `start` to `end`, both "15:04:05"; it may cross midnight."""

    start: str = ""
    end: str = ""


class UserLimits(PermissionsClaim, frozen=True):
    """Permissions and limits of a user, or of all users of a scoped key."""

    src: Texts | Annotated[str, msgspec.Meta(max_length=8 * ENTRIES_MAX)] = ()
    """Allowed client networks (CIDR), as a list or comma-separated; empty = all."""
    times: Annotated[tuple[TimeRange, ...], _Bounded] = ()
    """Times of day at which it may be connected; empty = always."""
    times_location: str = ""
    """The IANA time zone of `times`; "" = the server's."""
    subs: int = 0
    data: int = 0
    payload: int = 0
    bearer_token: bool = False
    """The token is sufficient; the user need not sign the nonce."""
    proxy_required: bool = False
    allowed_connection_types: Texts = ()

    @property
    def networks(self) -> tuple[str, ...]:
        """`src` as a list."""
        if isinstance(self.src, str):
            return tuple(part.strip() for part in self.src.lower().split(",") if part.strip())
        return self.src


class UserFields(UserLimits, frozen=True):
    """The `nats` object of user claims."""

    issuer_account: str = ""
    """The account, if one of its signing keys is the issuer."""
    tags: Texts = ()
    type: Literal["user"] | msgspec.UnsetType = "user"
    version: int = VERSION

    @property
    def limits(self) -> UserLimits:
        """The limits without the other fields."""
        names = UserLimits.__struct_fields__
        return UserLimits(**{name: getattr(self, name) for name in names})


# -- accounts


class ServiceLatency(_Part, frozen=True, omit_defaults=False):
    """sampling: percent, or "headers"; results: subject of the measurements."""

    sampling: int | str = 0
    results: str = ""


class ExportClaim(_Part, frozen=True):
    """An export: a subject that other accounts may import."""

    name: str = ""
    subject: str = ""
    type: ExportKind | msgspec.UnsetType = msgspec.UNSET
    token_req: bool = False
    """Imports need an activation token."""
    revocations: dict[str, int] = {}
    response_type: str = ""
    response_threshold: int = 0
    service_latency: ServiceLatency | None = None
    account_token_position: int = 0
    advertise: bool = False
    allow_trace: bool = False
    description: str = ""
    info_url: str = ""


class ImportClaim(_Part, frozen=True):
    """An import from another account."""

    name: str = ""
    subject: str = ""
    account: str = ""
    token: str = ""
    to: str = ""
    local_subject: str = ""
    type: ExportKind | msgspec.UnsetType = msgspec.UNSET
    share: bool = False
    allow_trace: bool = False


class JetStreamLimits(_Part, frozen=True):
    """JetStream limits of an account or of one tier. No storage of either kind means no JetStream."""

    mem_storage: int = 0
    disk_storage: int = 0
    streams: int = 0
    consumer: int = 0
    max_ack_pending: int = 0
    mem_max_stream_bytes: int = 0
    disk_max_stream_bytes: int = 0
    max_bytes_required: bool = False


class OperatorLimits(JetStreamLimits, frozen=True):
    """Account limits set by the operator."""

    subs: int = 0
    data: int = 0
    payload: int = 0
    imports: int = 0
    exports: int = 0
    wildcards: bool = False
    disallow_bearer: bool = False
    conn: int = 0
    leaf: int = 0
    tiered_limits: dict[str, JetStreamLimits] = {}
    """By replicas (`R1`, `R3`). If set, the limits without a tier have no meaning."""

    @property
    def has_jetstream(self) -> bool:
        tiers = tuple(self.tiered_limits.values()) or (self,)
        return any(tier.mem_storage or tier.disk_storage for tier in tiers)


UNLIMITED = OperatorLimits(
    subs=NO_LIMIT, data=NO_LIMIT, payload=NO_LIMIT, imports=NO_LIMIT, exports=NO_LIMIT, wildcards=True,
    conn=NO_LIMIT, leaf=NO_LIMIT,
)  # fmt: skip
"""No limits, but without JetStream."""


class TemplateClaim(UserLimits, frozen=True):
    """Limits of all users of a scoped key. Subjects may contain templates such as `{{name()}}`."""

    subs: int = NO_LIMIT
    data: int = NO_LIMIT
    payload: int = NO_LIMIT


class ScopeClaim(_Part, frozen=True, omit_defaults=False):
    """A signing key whose users all get the limits of its template."""

    kind: Literal["user_scope"] = "user_scope"
    key: str = ""
    role: str = ""
    template: TemplateClaim = TemplateClaim()
    description: str = ""


class WeightedMapping(_Part, frozen=True, omit_defaults=False):
    """A mapping destination; weight 0 = 100 percent."""

    subject: str
    weight: int = 0
    cluster: str = ""


class ExternalAuthorization(_Part, frozen=True):
    """Auth callout: a service authenticates the users of this account."""

    auth_users: Texts = ()
    allowed_accounts: Texts = ()
    xkey: str = ""


class TraceClaim(_Part, frozen=True):
    dest: str = ""
    sampling: int = 0


class AccountFields(_Part, frozen=True):
    """The `nats` object of account claims."""

    imports: Annotated[tuple[ImportClaim, ...], _Bounded] = ()
    exports: Annotated[tuple[ExportClaim, ...], _Bounded] = ()
    limits: OperatorLimits = OperatorLimits()
    signing_keys: Annotated[tuple[str | ScopeClaim, ...], _Bounded] = ()
    revocations: dict[str, int] = {}
    """User key or `*` -> time (s since 1970); tokens issued up to that time are invalid."""
    default_permissions: PermissionsClaim = PermissionsClaim()
    mappings: Annotated[dict[str, Annotated[tuple[WeightedMapping, ...], _Bounded]], _Bounded] = {}
    authorization: ExternalAuthorization = ExternalAuthorization()
    trace: TraceClaim | None = None
    cluster_traffic: str = ""
    description: str = ""
    info_url: str = ""
    tags: Texts = ()
    type: Literal["account"] | msgspec.UnsetType = "account"
    version: int = VERSION

    @property
    def scopes(self) -> dict[str, ScopeClaim | None]:
        """The signing keys and their scopes; None for a key without scope."""
        return {one if isinstance(one, str) else one.key: None if isinstance(one, str) else one
                for one in self.signing_keys}  # fmt: skip

    def revokes(self, user: str, issued_at: int) -> bool:
        """Whether a token issued to this user at that time (s) is revoked."""
        return any(issued_at <= self.revocations[who] for who in (ALL, user) if who in self.revocations)


# -- operators, activations


class Operator(_Part, frozen=True):
    """The `nats` object of operator claims."""

    signing_keys: Texts = ()
    account_server_url: str = ""
    operator_service_urls: Texts = ()
    system_account: str = ""
    assert_server_version: str = ""
    strict_signing_key_usage: bool = False
    """The operator's identity key may sign nothing but the operator's own token."""
    tags: Texts = ()
    type: Literal["operator"] | msgspec.UnsetType = "operator"
    version: int = VERSION


class Activation(_Part, frozen=True):
    """The `nats` object of an activation, which permits an import."""

    subject: str = ""
    kind: ExportKind | msgspec.UnsetType = msgspec.UNSET
    issuer_account: str = ""
    tags: Texts = ()
    type: Literal["activation"] | msgspec.UnsetType = "activation"
    version: int = VERSION


# -- complete claims


class Claims(_Part, frozen=True):
    """Registered claims of a JWT. Times are s since 1970; 0 = unset."""

    audience: str = msgspec.field(default="", name="aud")
    expires: int = msgspec.field(default=0, name="exp")
    id: str = msgspec.field(default="", name="jti")
    issued_at: int = msgspec.field(default=0, name="iat")
    issuer: Name = msgspec.field(default="", name="iss")
    name: str = ""
    not_before: int = msgspec.field(default=0, name="nbf")
    subject: Name = msgspec.field(default="", name="sub")

    def time_problem(self, now_s: int) -> str:
        """Why these claims are not valid at this time; "" when they are."""
        if 0 < self.expires < now_s:
            return "claim is expired"
        return "claim is not yet valid" if self.not_before > now_s else ""


class OperatorClaims(Claims, frozen=True):
    """Claims of an operator, signed by itself."""

    nats: Operator = Operator()

    def trusted_keys(self) -> tuple[str, ...]:
        """The keys whose signatures on account claims are trusted."""
        own = () if self.nats.strict_signing_key_usage else (self.subject,)
        return own + self.nats.signing_keys

    def problems(self) -> list[str]:
        """Errors that make the claims unusable."""
        found = [f"{key} is not an operator public key" for key in self.nats.signing_keys
                 if not is_public(key, Prefix.OPERATOR)]  # fmt: skip
        system = self.nats.system_account
        if system and not is_public(system, Prefix.ACCOUNT):
            found.append(f"{system} is not an account public key")
        return found


class AccountClaims(Claims, frozen=True):
    """Claims of an account, signed by an operator."""

    nats: AccountFields = AccountFields()

    def problems(self) -> list[str]:
        """Errors that make the claims unusable."""
        account, limits = self.nats, self.nats.limits
        found = permission_problems(account.default_permissions)
        for one in account.imports:
            found += _import_problems(one)
        for export in account.exports:
            found += subject_problems(export.subject)
            if export.type is msgspec.UNSET:
                found.append('invalid export type: "unknown"')
        if limits.imports != NO_LIMIT and len(account.imports) > limits.imports:
            found.append("the account contains more imports than allowed by the operator")
        if limits.exports != NO_LIMIT:
            if len(account.exports) > limits.exports:
                found.append("the account contains more exports than allowed by the operator")
            if not limits.wildcards and any(has_wildcards(export.subject) for export in account.exports):
                found.append("the account contains wildcard exports that are not allowed by the operator")
        found += [f"{key!r} is not a valid account signing key" for key in account.scopes
                  if not is_public(key, Prefix.ACCOUNT)]  # fmt: skip
        return found + _mapping_problems(account.mappings) + _callout_problems(account.authorization)


class UserClaims(Claims, frozen=True):
    """Claims of a user, signed by an account."""

    nats: UserFields = UserFields()

    @property
    def account(self) -> str:
        """The account of the user."""
        return self.nats.issuer_account or self.issuer

    def problems(self) -> list[str]:
        """Errors that make the claims unusable."""
        user = self.nats
        found = limit_problems(user)
        if user.issuer_account and not is_public(user.issuer_account, Prefix.ACCOUNT):
            found.append("account_id is not an account public key")
        return found


class ActivationClaims(Claims, frozen=True):
    """Claims by which an exporting account permits another account's import."""

    nats: Activation = Activation()

    def problems(self) -> list[str]:
        """Errors that make the claims unusable."""
        return subject_problems(self.nats.subject)


class GenericClaims(Claims, frozen=True):
    """Claims of any other type; `nats` is a free map."""

    nats: dict[str, object] = {}

    def problems(self) -> list[str]:
        """Always empty: the type is unknown."""
        return []


AnyClaims = OperatorClaims | AccountClaims | UserClaims | ActivationClaims | GenericClaims
KINDS: dict[str, type[AnyClaims]] = {
    "operator": OperatorClaims,
    "account": AccountClaims,
    "user": UserClaims,
    "activation": ActivationClaims,
}
ISSUERS: dict[type[AnyClaims], tuple[Prefix, ...]] = {
    OperatorClaims: (Prefix.OPERATOR,),
    AccountClaims: (Prefix.ACCOUNT, Prefix.OPERATOR),
    UserClaims: (Prefix.ACCOUNT,),
    ActivationClaims: (Prefix.ACCOUNT, Prefix.OPERATOR),
    GenericClaims: (),
}
"""The kinds of keys that may sign each type of claims; empty = any."""


# -- validation


def limit_problems(limits: UserLimits) -> list[str]:
    """Errors in permissions, networks and times."""
    found = permission_problems(limits)
    for network in limits.networks:
        try:
            ip_network(network, strict=False)
        except ValueError:
            found.append(f'invalid cidr "{network}" in user src limits')
    for one in limits.times:
        for which in ("start", "end"):
            text = getattr(one, which)
            if not text:
                found.append(f"time ranges {which} must contain a {which}")
            elif seconds_of(text) is None:
                found.append(f'{which} in time range is invalid "{text}"')
    return found


def permission_problems(permissions: PermissionsClaim) -> list[str]:
    """Errors in permission filters."""
    found: list[str] = []
    for permission, queues in ((permissions.sub, True), (permissions.pub, False)):
        for entry in permission.allow + permission.deny:
            words = entry.split(" ")
            if len(words) > 2:
                found.append(f'Permission Subject "{entry}" contains too many spaces')
                continue
            for word in words:
                found += subject_problems(word)
            if len(words) == 2 and not queues:
                found.append(f'Permission Subject "{entry}" is not allowed to contain queue')
    return found


def subject_problems(subject: str) -> list[str]:
    """Errors in a subject. Templates are accepted."""
    if not subject:
        return ["subject cannot be empty"]
    found = []
    if " " in subject:
        found.append(f'subject "{subject}" cannot have spaces')
    if subject[0] == "." or subject[-1] == ".":
        found.append(f'subject "{subject}" cannot start or end with a `.`')
    if ".." in subject:
        found.append(f'subject "{subject}" cannot contain consecutive `.`')
    return found


def has_wildcards(subject: str) -> bool:
    """Whether a token is a wildcard."""
    tokens = subject.split(".")
    return "*" in tokens or tokens[-1] == ">"


def seconds_of(text: str) -> int | None:
    """Seconds since midnight of "15:04:05"; None when malformed."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() and 1 <= len(part) <= 2 for part in parts):
        return None
    hour, minute, second = map(int, parts)
    if len(parts[1]) != 2 or len(parts[2]) != 2 or hour > 23 or minute > 59 or second > 59:
        return None
    return hour * 3600 + minute * 60 + second


def _import_problems(one: ImportClaim) -> list[str]:
    found = subject_problems(one.subject)
    if one.type is msgspec.UNSET:
        found.append('invalid import type: "unknown"')
    if one.type == "service" and one.allow_trace:
        found.append("AllowTrace only valid for stream import")
    if not one.account:
        found.append("account to import from is not specified")
    if one.type == "service" and has_wildcards(one.subject) and one.to and not one.local_subject:
        found += subject_problems(one.to)
    if one.local_subject and one.to:
        found.append("Local Subject replaces To")
    if one.share and one.type != "service":
        found.append(
            f"sharing information (for latency tracking) is only valid for services: {one.subject!r}"
        )
    return found


def _mapping_problems(mappings: dict[str, tuple[WeightedMapping, ...]]) -> list[str]:
    found: list[str] = []
    for source, destinations in mappings.items():
        found += subject_problems(source)
        totals: dict[str, int] = {}
        for one in destinations:
            found += subject_problems(one.subject)
            totals[one.cluster] = totals.get(one.cluster, 0) + (one.weight or 100)
        if any(total > 100 for total in totals.values()):
            found.append(f"Mapping {source!r} exceeds 100% among all of it's weighted to mappings")
    return found


def _callout_problems(callout: ExternalAuthorization) -> list[str]:
    found = []
    if callout.allowed_accounts and not callout.auth_users:
        found.append("External authorization cannot have accounts without users specified")
    found += [f"AuthUser {user!r} is not a valid user public key" for user in callout.auth_users
              if not is_public(user, Prefix.USER)]  # fmt: skip
    found += [f"Account {name!r} is not a valid account public key" for name in callout.allowed_accounts
              if name != ALL and not is_public(name, Prefix.ACCOUNT)]  # fmt: skip
    if callout.xkey and not is_public(callout.xkey, Prefix.CURVE):
        found.append(f"XKey {callout.xkey!r} is not a valid public xkey")
    return found


def seconds_left(ranges: tuple[TimeRange, ...], second_of_day: float) -> float | None:
    """Seconds until the last of the ranges that contain the time ends; None when no range contains it."""
    found = None
    for one in ranges:
        start, end = seconds_of(one.start), seconds_of(one.end)
        if start is None or end is None:
            continue
        left = None
        if start < second_of_day < end or (start > end and second_of_day < end):
            left = end - second_of_day
        elif end < start < second_of_day:
            left = end + 86400 - second_of_day
        if left is not None and (found is None or left > found):
            found = left
    return found
