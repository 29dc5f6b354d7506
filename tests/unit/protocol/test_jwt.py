"""JWTs: reading, signing, what is wrong with claims; templates of scoped keys; credentials files."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MisuseError
from penstock.protocol.claims import (
    ENTRIES_MAX,
    AccountClaims,
    AccountFields,
    Activation,
    ActivationClaims,
    AnyClaims,
    ExportClaim,
    GenericClaims,
    ImportClaim,
    OperatorLimits,
    PermissionClaim,
    ScopeClaim,
    TemplateClaim,
    TimeRange,
    UserClaims,
    UserFields,
    WeightedMapping,
    seconds_of,
)
from penstock.protocol.jwt import (
    OBJECTS_MAX,
    REPAIR_MAX,
    decode,
    decode64,
    decode_account,
    decode_operator,
    decode_user,
    encode,
    encode64,
    format_credentials,
    parse_credentials,
    parse_seed,
    parse_token,
)
from penstock.protocol.user_templates import fill
from tests.support.keys import OPERATOR, account_token, key, operator_token, user_token
from tests.support.probes import signed

pytestmark = pytest.mark.feature("security.operators")

# Made by the official tools in 2019: version 1, long before scoped keys and the like.
V1_USER = (
    "eyJ0eXAiOiJqd3QiLCJhbGciOiJlZDI1NTE5In0.eyJqdGkiOiJXTURGT1dHV1JGWkRGRFVSM0dPUkdESEtUTTdDUlZBVDQ1RkRFMllNRUY1N0"
    "VOQ0JBVFFRIiwiaWF0IjoxNTUzODQwOTQ0LCJpc3MiOiJBRDdTRUFOUzZCQ0JGNkZISUI3U1EzVUdKVlBXNTNCWE9BTFA3NVlYSkJCWFFMN0VB"
    "RkI2TkpOQSIsIm5hbWUiOiJmb28tdXNlciIsInN1YiI6IlVDSzVON042Nk9CT0lORlhBWUMyQUNKUVlGU09ENFZZTlU2QVBFSlRBVkZaQjJTVk"
    "hMS0dFVzdMIiwidHlwZSI6InVzZXIiLCJuYXRzIjp7InB1YiI6e30sInN1YiI6e319fQ.Vri09BN561m37GvuSWoGN9L9TSkwQbjC_jIv1BCJc"
    "oxZqNc_Pa7WbR12b3SAS4_Ip2D9-2HCwyYib1JUEIO8Bg"
)
ACCOUNT = key("account", "A")
USER = key("user", "joe")

TOO_MANY = (WeightedMapping(subject="b"), WeightedMapping(subject="c", weight=1))

subjects = st.sampled_from(["a", "a.b", "a.*", ">", "x.>"])
permissions = st.builds(
    PermissionClaim, allow=st.lists(subjects).map(tuple), deny=st.lists(subjects).map(tuple)
)
users = st.builds(
    UserFields,
    pub=permissions,
    sub=permissions,
    src=st.just(()) | st.just(("10.0.0.0/8",)),
    times=st.just(()) | st.just((TimeRange(start="08:00:00", end="17:00:00"),)),
    subs=st.integers(-1, 5),
    payload=st.integers(-1, 5),
    bearer_token=st.booleans(),
    allowed_connection_types=st.just(()) | st.just(("STANDARD",)),
    tags=st.lists(st.sampled_from(["a:1", "b"])).map(tuple),
)
accounts = st.builds(
    AccountFields,
    imports=st.just(()) | st.just((ImportClaim(subject="a", account=ACCOUNT.public, type="stream"),)),
    exports=st.just(()) | st.just((ExportClaim(subject="a.*", type="service", token_req=True),)),
    limits=st.builds(OperatorLimits, conn=st.integers(-1, 5), mem_storage=st.integers(-1, 5)),
    signing_keys=st.just(())
    | st.just((ACCOUNT.public, ScopeClaim(key=ACCOUNT.public, template=TemplateClaim(subs=0)))),
    revocations=st.dictionaries(st.just("*") | st.just(USER.public), st.integers(0, 2**40)),
    default_permissions=st.just(UserFields().limits).map(lambda _: AccountFields().default_permissions),
    mappings=st.just({}) | st.just({"a": (WeightedMapping(subject="b", weight=5),)}),
)


def resigned(token: str, change: Any = None, head: dict[str, str] | None = None) -> str:
    """The token with changed claims or header, signed by the account again."""
    header, body, _ = token.split(".")
    if head is not None:
        header = encode64(json.dumps(head).encode())
    if change is not None:
        claims = json.loads(decode64(body))
        change(claims)
        body = encode64(json.dumps(claims).encode())
    signed = f"{header}.{body}"
    return f"{signed}.{encode64(ACCOUNT.sign(signed.encode()))}"


@given(users)
def test_user_claims_come_back(user: UserFields) -> None:
    claims = UserClaims(subject=USER.public, name="joe", expires=9, nats=user)
    found = decode_user(encode(claims, ACCOUNT, now_s=7))
    assert found == msgspec.structs.replace(claims, issuer=ACCOUNT.public, issued_at=7, id=found.id)
    assert found.account == ACCOUNT.public


@given(accounts)
def test_account_claims_come_back(account: AccountFields) -> None:
    claims = AccountClaims(subject=ACCOUNT.public, nats=account)
    found = decode_account(encode(claims, OPERATOR, now_s=7))
    assert found == msgspec.structs.replace(claims, issuer=OPERATOR.public, issued_at=7, id=found.id)


def test_the_id_tells_claims_apart() -> None:
    first = decode(user_token("A", "joe", head={"issued_at": 1}))
    again = decode(user_token("A", "joe", head={"issued_at": 1}))
    later = decode(user_token("A", "joe", head={"issued_at": 2}))
    assert first.id == again.id != later.id
    assert len(first.id) == 52


def test_a_version_1_token_is_read_and_has_no_limits() -> None:
    claims = decode_user(V1_USER)
    assert (claims.name, claims.nats.version) == ("foo-user", 1)
    assert (claims.nats.subs, claims.nats.payload, claims.nats.issuer_account) == (-1, -1, "")
    assert claims.problems() == []


def test_limits_that_a_version_2_token_leaves_out_are_zero() -> None:
    claims = decode_user(encode(UserClaims(subject=USER.public), ACCOUNT, now_s=1))
    assert (claims.nats.subs, claims.nats.payload) == (0, 0)


@given(st.data())
def test_a_changed_token_is_refused(data: st.DataObject) -> None:
    token = user_token("A", "joe", head={"issued_at": 1_700_000_000})  # the same in every run
    at = data.draw(st.integers(0, len(token) - 2))  # the last character has bits that mean nothing
    wrong = data.draw(st.sampled_from([c for c in "ABCXYZabcxyz019-_." if c != token[at]]))
    with pytest.raises(MisuseError):
        decode(token[:at] + wrong + token[at + 1 :])


@given(st.text(max_size=40))
def test_any_text_is_a_token_or_a_misuse(text: str) -> None:
    with pytest.raises(MisuseError):
        decode(text)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (user_token("A", "joe") + "A" * 1024 * 1024, "exceeds maximum"),
        ("a.b", "expected 3 chunks"),
        (resigned(user_token("A", "joe"), head={"typ": "JWS", "alg": "ed25519-nkey"}), "not supported type"),
        (resigned(user_token("A", "joe"), head={"typ": "JWT", "alg": "none"}), "unexpected 'none' algorithm"),
        (resigned(user_token("A", "joe"), lambda c: c["nats"].update(version=3)), "newer version"),
        (resigned(user_token("A", "joe"), lambda c: c["nats"].update(version=0)), "received 0"),
        (resigned(user_token("A", "joe"), lambda c: c["nats"].update(subs="many")), "bad claims"),
        (resigned(user_token("A", "joe"), lambda c: c.update(iss=OPERATOR.public)), "V2 signature"),
        (user_token("A", "joe").rsplit(".", 1)[0] + ".!", "illegal base64"),
    ],
)
def test_what_is_no_good_token_is_refused(token: str, why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        decode(token)


def test_only_an_account_can_issue_users() -> None:
    with pytest.raises(MisuseError, match="signed with the key of an account"):
        encode(UserClaims(subject=USER.public), OPERATOR, now_s=1)
    forged = resigned(account_token("A", by=ACCOUNT), lambda c: c["nats"].update(type="operator"))
    with pytest.raises(MisuseError, match="expected prefixes"):
        decode(forged)


def test_a_token_of_another_kind_is_refused() -> None:
    with pytest.raises(MisuseError, match="not user claim"):
        decode_user(operator_token())
    with pytest.raises(MisuseError, match="not operator claim"):
        decode_operator(user_token("A", "joe"))


def test_null_counts_as_absent() -> None:
    token = resigned(user_token("A", "joe"), lambda c: c["nats"].update(tags=None, pub={"allow": None}))
    assert decode_user(token).nats.tags == ()


def test_claims_of_unknown_kinds_keep_their_content() -> None:
    claims = GenericClaims(subject=OPERATOR.public, nats={"accounts": ["A"]})
    found = decode(encode(claims, OPERATOR, now_s=1))
    assert isinstance(found, GenericClaims)
    assert found.nats == {"accounts": ["A"]}


# -- what claims mean


def test_claims_have_their_time() -> None:
    claims = UserClaims(expires=10, not_before=5)
    assert claims.time_problem(4) == "claim is not yet valid"
    assert claims.time_problem(5) == claims.time_problem(10) == ""
    assert claims.time_problem(11) == "claim is expired"


def test_revocations_hold_until_the_second_they_name() -> None:
    account = AccountFields(revocations={"*": 5, USER.public: 10})
    assert account.revokes(USER.public, 10)
    assert not account.revokes(USER.public, 11)
    assert account.revokes("somebody else", 5)
    assert not account.revokes("somebody else", 6)


def test_the_operators_own_key_is_not_trusted_when_it_is_strict() -> None:
    signing = key("operator", "signing").public
    assert decode_operator(operator_token(signing_keys=(signing,))).trusted_keys() == (
        OPERATOR.public,
        signing,
    )
    strict = decode_operator(operator_token(signing_keys=(signing,), strict_signing_key_usage=True))
    assert strict.trusted_keys() == (signing,)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        (UserClaims(nats=UserFields(src=("10.0.0.0/40",))), "invalid cidr"),
        (UserClaims(nats=UserFields(src="10.0.0.0/8, nonsense")), "invalid cidr"),
        (UserClaims(nats=UserFields(times=(TimeRange(start="8", end="17:00:00"),))), "start in time range"),
        (UserClaims(nats=UserFields(pub=PermissionClaim(allow=("a q",)))), "not allowed to contain queue"),
        (UserClaims(nats=UserFields(sub=PermissionClaim(allow=("a..b",)))), "consecutive"),
        (UserClaims(nats=UserFields(issuer_account="A")), "not an account public key"),
        (
            AccountClaims(nats=AccountFields(exports=(ExportClaim(subject="a", type="stream"),))),
            "more exports",
        ),
        (AccountClaims(nats=AccountFields(imports=(ImportClaim(subject="a"),))), "account to import from"),
        (AccountClaims(nats=AccountFields(signing_keys=("U",))), "not a valid account signing key"),
        (AccountClaims(nats=AccountFields(mappings={"a": TOO_MANY})), "100%"),
        (ActivationClaims(nats=Activation()), "cannot be empty"),
    ],
)  # fmt: skip
def test_claims_that_make_no_sense_say_why(claims: AnyClaims, why: str) -> None:
    assert any(why in problem for problem in claims.problems()), claims.problems()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("00:00:00", 0), ("23:59:59", 86399), ("8:00:00", 28800), ("24:00:00", None), ("8:0:00", None)],
)
def test_times_of_day(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


# -- templates


def filled(*allow: str, deny: tuple[str, ...] = (), tags: tuple[str, ...] = ()) -> PermissionClaim:
    user = UserClaims(subject="U1", name="joe", nats=UserFields(issuer_account="A1", tags=tags))
    account = AccountClaims(subject="A1", name="acme", nats=AccountFields(tags=("region:eu",)))
    return fill(TemplateClaim(pub=PermissionClaim(allow=allow, deny=deny)), user, account).pub


def test_a_template_knows_the_user_and_the_account() -> None:
    found = filled("{{name()}}.{{ Subject() }}.{{account-name()}}.{{account-subject()}}", "plain")
    assert found.allow == ("joe.U1.acme.A1", "plain")


def test_a_tag_that_comes_twice_makes_two_subjects() -> None:
    found = filled("{{tag(team)}}.{{account-tag(region)}}.>", tags=("team:a", "team:b", "other:c"))
    assert found.allow == ("a.eu.>", "b.eu.>")


def test_an_allow_list_of_which_nothing_is_left_denies_everything() -> None:
    assert filled("{{tag(team)}}") == PermissionClaim(deny=(">",))
    assert filled("{{tag(team)}}", "a").allow == ("a",)


def test_a_deny_entry_without_a_value_is_no_way_around_it() -> None:
    with pytest.raises(MisuseError, match="not defined"):
        filled("a", deny=("{{tag(team)}}",))
    with pytest.raises(MisuseError, match="not defined"):
        filled("{{nonsense()}}")


def test_expansions_are_bounded() -> None:
    tags = tuple(f"n:{i}" for i in range(100))
    with pytest.raises(MisuseError, match="exceeds limit"):
        filled("{{tag(n)}}.{{tag(n)}}", tags=tags)


# -- files


def test_credentials_come_back() -> None:
    token = user_token("A", "joe")
    text = format_credentials(token, USER.seed)
    assert parse_credentials(text) == (token, USER.seed)
    assert parse_credentials(text.replace("\n", "\r\n")) == (token, USER.seed)
    assert parse_token(text) == token
    assert parse_token(f" {token}\n") == token
    assert parse_seed(text) == parse_seed(f"# mine\n {USER.seed}\n") == USER.seed


@pytest.mark.parametrize("text", ["", "-----BEGIN-----\nabc\n-----END-----", format_credentials("x", "y")])
def test_a_file_without_credentials_is_refused(text: str) -> None:
    with pytest.raises(MisuseError):
        parse_credentials(text)


def test_a_file_without_a_seed_is_refused() -> None:
    with pytest.raises(MisuseError, match="no nkey seed"):
        parse_seed("nothing")


def with_claims(head: str, nats: str = "") -> str:
    """A token signed by an account, whose claims begin with this text, then `nats` with that one."""
    user = f'"iss":"{key("account", "A").public}","sub":"{key("user", "joe").public}"'
    body = '"type":"user","version":2' + nats
    return signed((f'{{{head}{user},"nats":{{{body}}}}}').encode(), key("account", "A")).decode()


@pytest.mark.parametrize(
    "head",
    [
        '"x":1e400,',
        f'"x":{"1" * 5000},',
        f'"x":{"[" * 500}{"]" * 500},',
        '"x":[[],{}],',
    ],
)
def test_what_no_claim_holds_is_skipped_whatever_it_is(head: str) -> None:
    assert decode_user(with_claims(head)).subject == key("user", "joe").public


def test_nulls_count_as_absent_in_claims_of_a_bounded_size() -> None:
    assert decode_user(with_claims('"exp":null,', ',"subs":null,"tags":["a",null]')).nats.tags == ("a",)
    with pytest.raises(MisuseError, match="with nulls or of version 1"):
        decode_user(with_claims(f'"exp":null,"x":"{"x" * REPAIR_MAX}",'))


@pytest.mark.parametrize(
    "nats", [',"version":1e400', f',"version":{"1" * 5000}', ',"type":[]', ',"type":null']
)
def test_a_type_or_version_that_is_none_is_refused(nats: str) -> None:
    with pytest.raises(MisuseError):
        decode_user(with_claims("", nats))


@pytest.mark.parametrize("field", ["tags", "src", "allowed_connection_types"])
def test_lists_in_claims_have_a_bounded_number_of_entries(field: str) -> None:
    def claims(count: int) -> str:
        return with_claims("", f',"{field}":{json.dumps(["10.0.0.0/8"] * count)}')

    assert len(getattr(decode_user(claims(ENTRIES_MAX)).nats, field)) == ENTRIES_MAX
    with pytest.raises(MisuseError, match="Expected `array` of length <= 1024"):
        decode_user(claims(ENTRIES_MAX + 1))


def test_claims_of_more_objects_than_any_needs_are_refused_before_they_are_made() -> None:
    def claims(count: int) -> str:
        return with_claims("", f',"tags":[],"x":[{",".join(["{}"] * count)}]')

    assert decode_user(claims(OBJECTS_MAX - 10)).nats.tags == ()
    with pytest.raises(MisuseError, match="objects; the most is"):
        decode_user(claims(OBJECTS_MAX))
    functions = '"pub":{"allow":["' + "{{name()}}" * OBJECTS_MAX + '"]}'
    assert decode_user(with_claims("", f",{functions}")).nats.pub.allow
