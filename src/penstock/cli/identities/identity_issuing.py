"""Making, changing and signing operators, accounts and users.

    issuing = IdentityIssuing(IdentityStore(root), now_s=time, new_seed=os.urandom)
    issuing.add_operator("ACME")                     # with its system account SYSTEM
    issuing.add_account("ACME", "ORDERS")
    issuing.add_user("ACME", "ORDERS", "bob")

The time and the random bytes of keys come in as arguments. Every change signs a new token; a token is stored
before the key that it names is used anywhere else, and keys before the tokens that name them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from penstock.cli.identities.identity_store import IdentityError, IdentityStore, SignedIdentity
from penstock.errors import MisuseError
from penstock.protocol.claims import (
    NO_LIMIT,
    UNLIMITED,
    AccountClaims,
    AccountFields,
    Operator,
    OperatorClaims,
    ScopeClaim,
    TemplateClaim,
    UserClaims,
    UserFields,
)
from penstock.protocol.jwt import encode
from penstock.protocol.nkeys import KEY_BYTES, KeyPair, Prefix, is_public

SYSTEM_ACCOUNT = "SYSTEM"
replace = msgspec.structs.replace


class IdentityIssuing:
    """Changes the identities of a store.

    Args:
        store: the files.
        now_s: returns the seconds since 1970.
        new_seed: returns as many random bytes as it is asked for.
    """

    def __init__(
        self, store: IdentityStore, now_s: Callable[[], int], new_seed: Callable[[int], bytes]
    ) -> None:
        self.store = store
        self._now_s = now_s
        self._new_seed = new_seed

    def new_key(self, prefix: Prefix) -> KeyPair:
        """A new key pair, which is not stored."""
        return KeyPair.from_bytes(prefix, self._new_seed(KEY_BYTES))

    def _stored_key(self, prefix: Prefix) -> KeyPair:
        pair = self.new_key(prefix)
        self.store.save_key(pair)
        return pair

    # --- operators -----------------------------------------------------------------------------

    def add_operator(
        self,
        name: str,
        *,
        signing_key: bool = False,
        account_server: str = "",
        services: Iterable[str] = (),
        tags: Iterable[str] = (),
    ) -> SignedIdentity[OperatorClaims]:
        """Create an operator with a system account. signing_key: also create a signing key.

        Raises IdentityError if it exists.
        """
        if name in self.store.operators():
            raise IdentityError(f"operator {name!r} exists already")
        pair = self._stored_key(Prefix.OPERATOR)
        system = self._stored_key(Prefix.ACCOUNT)
        signing = (self._stored_key(Prefix.OPERATOR).public,) if signing_key else ()
        fields = Operator(
            system_account=system.public,
            signing_keys=signing,
            account_server_url=account_server,
            operator_service_urls=tuple(services),
            tags=tuple(tag.lower() for tag in tags),
        )
        self._sign_operator(name, OperatorClaims(name=name, subject=pair.public, nats=fields))
        limits = AccountFields(limits=UNLIMITED)
        self._sign_account(name, AccountClaims(name=SYSTEM_ACCOUNT, subject=system.public, nats=limits))
        return self.store.operator(name)

    def edit_operator(self, name: str, **changes: Any) -> SignedIdentity[OperatorClaims]:
        """Change fields of `Operator`. Raises IdentityError."""
        found = self.store.operator(name)
        self._sign_operator(name, replace(found.claims, nats=replace(found.claims.nats, **changes)))
        return self.store.operator(name)

    def add_operator_key(self, name: str) -> str:
        """Create a signing key of an operator, and return its public key."""
        found = self.store.operator(name)
        public = self._stored_key(Prefix.OPERATOR).public
        self.edit_operator(name, signing_keys=(*found.claims.nats.signing_keys, public))
        return public

    def remove_operator_key(self, name: str, public: str) -> None:
        """Remove a signing key. Tokens that it signed stop being valid. Raises IdentityError."""
        keys = self.store.operator(name).claims.nats.signing_keys
        if public not in keys:
            raise IdentityError(f"operator {name!r} has no signing key {public!r}")
        self.edit_operator(name, signing_keys=tuple(key for key in keys if key != public))
        self.store.key_path(public).unlink(missing_ok=True)

    def _sign_operator(self, name: str, claims: OperatorClaims) -> None:
        _check(claims.problems(), f"operator {name!r}")
        pair = self.store.key(claims.subject)
        self.store.save_operator(name, encode(claims, pair, now_s=self._now_s()))

    def _operator_key(self, operator: str, public: str = "") -> KeyPair:
        """The key that signs accounts: the given one, or a signing key, or the operator's own."""
        claims = self.store.operator(operator).claims
        trusted = claims.trusted_keys()
        if public:
            if public not in trusted:
                raise IdentityError(f"{public!r} is not a key of operator {operator!r}")
            return self.store.key(public)
        for key in (*claims.nats.signing_keys, *trusted):
            if self.store.has_key(key):
                return self.store.key(key)
        raise IdentityError(f"no key of operator {operator!r} is here that could sign accounts")

    # --- accounts ------------------------------------------------------------------------------

    def add_account(
        self, operator: str, name: str, *, key: str = "", expires_s: int = 0, **changes: Any
    ) -> SignedIdentity[AccountClaims]:
        """Create an account without limits and without JetStream, unless `changes` say otherwise.

        key: public key of the operator that signs. expires_s: s since 1970, 0 = never. changes: fields of
        AccountFields. Raises IdentityError if it exists.
        """
        self.store.operator(operator)
        if name in self.store.accounts(operator):
            raise IdentityError(f"account {name!r} of operator {operator!r} exists already")
        pair = self._stored_key(Prefix.ACCOUNT)
        fields = replace(AccountFields(limits=UNLIMITED), **changes)
        claims = AccountClaims(name=name, subject=pair.public, expires=expires_s, nats=fields)
        self._sign_account(operator, claims, key)
        return self.store.account(operator, name)

    def edit_account(
        self, operator: str, name: str, *, expires_s: int | None = None, **changes: Any
    ) -> SignedIdentity[AccountClaims]:
        """Change fields of AccountFields. Raises IdentityError."""
        claims = self.store.account(operator, name).claims
        if expires_s is not None:
            claims = replace(claims, expires=expires_s)
        self._sign_account(operator, replace(claims, nats=replace(claims.nats, **changes)))
        return self.store.account(operator, name)

    def add_account_key(
        self, operator: str, name: str, role: str = "", template: TemplateClaim | None = None,
        description: str = "",
    ) -> str:  # fmt: skip
        """Create a signing key of an account, and return its public key.

        template: limits that all users get which the key signs; None: an unscoped key. Raises IdentityError
        if the role is in use.
        """
        found = self.store.account(operator, name).claims.nats
        if role and any(scope is not None and scope.role == role for scope in found.scopes.values()):
            raise IdentityError(f"account {name!r} has a signing key with the role {role!r} already")
        public = self._stored_key(Prefix.ACCOUNT).public
        made: str | ScopeClaim = public
        if template is not None:
            made = ScopeClaim(key=public, role=role, template=template, description=description)
        self.edit_account(operator, name, signing_keys=(*found.signing_keys, made))
        return public

    def remove_account_key(self, operator: str, name: str, key: str) -> None:
        """Remove a signing key by its role or public key. Users that it signed can no longer log in."""
        claims = self.store.account(operator, name).claims
        public = self.account_key(claims, key)
        kept = tuple(one for one in claims.nats.signing_keys
                     if public != (one if isinstance(one, str) else one.key))  # fmt: skip
        self.edit_account(operator, name, signing_keys=kept)
        self.store.key_path(public).unlink(missing_ok=True)

    def revoke(self, operator: str, name: str, user: str) -> None:
        """Revoke the tokens that were issued to a user's public key up to now, or to all ("*")."""
        found = self.store.account(operator, name).claims.nats
        self.edit_account(operator, name, revocations={**found.revocations, user: self._now_s()})

    @staticmethod
    def account_key(claims: AccountClaims, key: str) -> str:
        """The public key of a signing key, by role or public key; "": the account's own."""
        if not key or key == claims.subject:
            return claims.subject
        for public, scope in claims.nats.scopes.items():
            if key == public or (scope is not None and scope.role == key):
                return public
        raise IdentityError(f"account {claims.name!r} has no signing key or role {key!r}")

    def _sign_account(self, operator: str, claims: AccountClaims, key: str = "") -> None:
        _check(claims.problems(), f"account {claims.name!r}")
        pair = self._operator_key(operator, key)
        self.store.save_account(operator, claims.name, encode(claims, pair, now_s=self._now_s()))

    # --- users ---------------------------------------------------------------------------------

    def add_user(
        self, operator: str, account: str, name: str, *, key: str = "", expires_s: int = 0, **changes: Any
    ) -> SignedIdentity[UserClaims]:
        """Create a user. key: role or public key of the account's signing key; "": the account's own key.

        changes: fields of UserFields; none with a scoped key, whose template sets them. Raises IdentityError.
        """
        if name in self.store.users(operator, account):
            raise IdentityError(f"user {name!r} of account {account!r} exists already")
        owner = self.store.account(operator, account).claims
        signer = self.account_key(owner, key)
        if owner.nats.scopes.get(signer) is not None:
            if changes:
                raise IdentityError(
                    f"users of the scoped key {key!r} have the limits of its template; leave out "
                    f"{', '.join(sorted(changes))}"
                )
            fields = UserFields()
        else:
            unlimited = UserFields(subs=NO_LIMIT, data=NO_LIMIT, payload=NO_LIMIT)
            fields = replace(unlimited, **changes)
        pair = self._stored_key(Prefix.USER)
        claims = UserClaims(name=name, subject=pair.public, expires=expires_s, nats=fields)
        self._sign_user(operator, account, claims, signer)
        return self.store.user(operator, account, name)

    def edit_user(
        self, operator: str, account: str, name: str, *, expires_s: int | None = None, **changes: Any
    ) -> SignedIdentity[UserClaims]:
        """Change fields of UserFields, and sign again with the same key. Raises IdentityError."""
        claims = self.store.user(operator, account, name).claims
        owner = self.store.account(operator, account).claims
        if changes and owner.nats.scopes.get(claims.issuer) is not None:
            raise IdentityError(f"user {name!r} has the limits of its scoped key; edit that one")
        if expires_s is not None:
            claims = replace(claims, expires=expires_s)
        claims = replace(claims, nats=replace(claims.nats, **changes))
        self._sign_user(operator, account, claims, claims.issuer)
        return self.store.user(operator, account, name)

    def _sign_user(self, operator: str, account: str, claims: UserClaims, signer: str) -> None:
        owner = self.store.account(operator, account).subject
        issuer_account = "" if signer == owner else owner
        claims = replace(claims, nats=replace(claims.nats, issuer_account=issuer_account))
        _check(claims.problems(), f"user {claims.name!r}")
        token = encode(claims, self.store.key(signer), now_s=self._now_s())
        self.store.save_user(operator, account, claims.name, token)

    def credentials(self, operator: str, account: str, name: str, *, expires_s: int = 0) -> str:
        """The text of a user's credentials file. expires_s: another expiry than the stored token's, 0 = the
        same. Raises IdentityError."""
        found = self.store.user(operator, account, name)
        if expires_s:
            claims = replace(found.claims, expires=expires_s)
            token = encode(claims, self.store.key(claims.issuer), now_s=self._now_s())
            found = replace_token(found, token, claims)
        return self.store.credentials(found)

    # --- servers -------------------------------------------------------------------------------

    def server_config(self, operator: str, *, resolver_dir: str = "") -> str:
        """A configuration that makes servers trust an operator, with the tokens of all its accounts.

        resolver_dir: directory in which servers keep tokens that are pushed to them; "": they keep none.
        """
        found = self.store.operator(operator)
        lines = [f"operator: {found.token}"]
        if found.claims.nats.system_account:
            lines.append(f"system_account: {found.claims.nats.system_account}")
        kept = f'{{ type: full, dir: "{resolver_dir}" }}' if resolver_dir else "MEMORY"
        lines += [f"resolver: {kept}", "resolver_preload: {"]
        for name in self.store.accounts(operator):
            account = self.store.account(operator, name)
            lines += [f"  # {name}", f"  {account.subject}: {account.token}"]
        return "\n".join([*lines, "}", ""])


def replace_token(
    found: SignedIdentity[UserClaims], token: str, claims: UserClaims
) -> SignedIdentity[UserClaims]:
    """The user with another token."""
    return SignedIdentity(found.name, token, claims)


def _check(problems: list[str], what: str) -> None:
    if problems:
        raise IdentityError(f"{what}: {'; '.join(problems)}")


def read_key(text: str) -> KeyPair:
    """A key pair from a seed, or from the content of a file with one. Raises IdentityError."""
    for line in text.splitlines():
        if line.strip().startswith("S"):
            try:
                return KeyPair(line.strip())
            except MisuseError as error:
                raise IdentityError(str(error)) from error
    raise IdentityError("there is no seed: seeds begin with S and the letter of their kind, as SU...")


def public_of(text: str) -> str:
    """The public key in a text: a public key, or that of a seed. Raises IdentityError."""
    for line in text.splitlines():
        if is_public(line.strip()):
            return line.strip()
    return read_key(text).public
