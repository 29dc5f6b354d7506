"""The client's keys, tokens and credentials files, against both servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.client
from penstock.errors import AuthorizationError, ConfigError, CredentialsError, MisuseError
from penstock.protocol.jwt import format_credentials
from penstock.spark.source_options import SourceOptions
from penstock.spark.wire import BlockingConnection
from tests.integration.auth.test_operators import TOKENS, A, conf
from tests.support.conf_servers import running_conf
from tests.support.keys import key, now_s, user_token
from tests.support.nats_servers import KINDS

pytestmark = pytest.mark.feature("client.credentials", "security.nkeys", "security.operators")

JOE = key("user", "joe")
NKEYS = f"authorization {{ users: [ {{ nkey: {JOE.public} }} ] }}"
EXPIRED = user_token("A", "joe", head={"expires": now_s() - 5, "issued_at": now_s() - 10})


@pytest.fixture(scope="module", params=KINDS)
def nkeys_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_conf(request.param, NKEYS, tmp_path_factory.mktemp(request.param)) as port:
        yield f"nats://127.0.0.1:{port}"


@pytest.fixture(scope="module", params=KINDS)
def tokens_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_conf(request.param, conf(TOKENS), tmp_path_factory.mktemp(request.param)) as port:
        yield f"nats://127.0.0.1:{port}"


async def who_am_i(url: str, **options: Any) -> tuple[str, str]:
    """(user, account) that the server takes the client for."""
    import msgspec

    async with penstock.connect(url, **options) as client:
        data = msgspec.json.decode((await client.request("$SYS.REQ.USER.INFO")).data)["data"]
        return data["user"], data["account"]


async def test_a_seed_signs(nkeys_url: str, tmp_path: Path) -> None:
    path = tmp_path / "joe.nk"
    path.write_text(f"# mine\n{JOE.seed}\n")
    assert (await who_am_i(nkeys_url, nkey_seed=JOE.seed + "\n"))[0] == JOE.public
    assert (await who_am_i(nkeys_url, nkey_seed_file=path))[0] == JOE.public


async def test_the_seed_of_another_user_is_refused_by_the_server(nkeys_url: str) -> None:
    with pytest.raises(AuthorizationError):
        await who_am_i(nkeys_url, nkey_seed=key("user", "ann").seed)


async def test_credentials_prove_the_user_of_a_token(tokens_url: str, tmp_path: Path) -> None:
    token = user_token("A", "joe")
    path = tmp_path / "joe.creds"
    path.write_text(format_credentials(token, JOE.seed))
    for credentials in (path, str(path), (token, JOE.seed)):
        assert await who_am_i(tokens_url, credentials=credentials) == (JOE.public, A)
    text = path.read_text()
    assert await who_am_i(tokens_url, credentials_text=text) == (JOE.public, A)
    with pytest.raises(CredentialsError, match="credentials_text: "):
        await who_am_i(tokens_url, credentials_text="nothing of the kind")


async def test_callbacks_prove_it_too(tokens_url: str) -> None:
    token, nonces = user_token("A", "joe"), []

    def sign(nonce: str) -> bytes:
        nonces.append(nonce)
        return JOE.sign(nonce.encode())

    async def tell() -> str:
        return token

    async def sign_later(nonce: str) -> bytes:
        return sign(nonce)

    assert (await who_am_i(tokens_url, user_jwt_cb=lambda: token, signature_cb=sign))[0] == JOE.public
    assert (await who_am_i(tokens_url, user_jwt_cb=tell, signature_cb=sign_later))[0] == JOE.public
    assert len(set(nonces)) == 2
    bearer = user_token("BEARER", "joe", bearer_token=True)
    assert (await who_am_i(tokens_url, user_jwt_cb=lambda: bearer))[0] == JOE.public


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reconnect_signs_again_with_what_the_file_says_now(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "user.creds"
    path.write_text(format_credentials(user_token("A", "joe", head={"expires": now_s() + 2}), JOE.seed))
    reconnected = asyncio.Event()
    with running_conf(kind, conf(TOKENS), tmp_path / "server") as port:
        async with penstock.connect(
            f"nats://127.0.0.1:{port}",
            credentials=path,
            reconnect_wait=0.01,
            on_reconnected=lambda _: reconnected.set(),
        ) as client:
            path.write_text(format_credentials(user_token("A", "ann"), key("user", "ann").seed))
            async with asyncio.timeout(10):  # until the token of the first connection has expired
                await asyncio.wait_for(reconnected.wait(), 10)
            answer = await client.request("$SYS.REQ.USER.INFO")
            assert key("user", "ann").public.encode() in answer.data


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nkey_seed": "SUA"}, "nkey_seed: this is no nkey seed"),
        ({"nkey_seed": "nonsense"}, "nkey_seed: no nkey seed found"),
        ({"nkey_seed": key("account", "A").seed}, "this is the seed of an account; a user's begins with SU"),
        ({"nkey_seed_file": "/nowhere/joe.nk"}, "/nowhere/joe.nk: can not be read"),
        ({"credentials": "/nowhere/joe.creds"}, "/nowhere/joe.creds: can not be read"),
        ({"credentials": ("x.y", JOE.seed)}, "credentials: expected 3 chunks"),
        ({"credentials": (user_token("A", "ann"), JOE.seed)}, "the JWT is not that of the seed"),
        (
            {"credentials": (EXPIRED, JOE.seed)},
            "the JWT of user 'joe' expired at 2",
        ),
        (
            {"user_jwt_cb": lambda: EXPIRED},
            "user_jwt_cb: the JWT of user 'joe' expired",
        ),
    ],
)
async def test_what_can_not_be_used_is_an_error_before_a_server_is_asked(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(CredentialsError) as caught:
        await penstock.connect("nats://127.0.0.1:1", **options)
    assert why in str(caught.value)
    assert JOE.seed not in str(caught.value)


async def test_a_file_that_may_not_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(CredentialsError, match="this user may not read it"):
        await penstock.connect("nats://127.0.0.1:1", credentials=tmp_path / "joe.creds")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_without_nkeys_asks_for_no_signature(kind: str, tmp_path: Path) -> None:
    with running_conf(kind, "", tmp_path) as port:
        url = f"nats://127.0.0.1:{port}"
        with pytest.raises(CredentialsError, match="asks for no signature"):
            await penstock.connect(url, nkey_seed=JOE.seed)
        async with penstock.connect(url, credentials=(user_token("A", "joe"), JOE.seed)) as client:
            await client.flush()


@pytest.mark.parametrize(
    "options",
    [
        {"nkey_seed": JOE.seed, "credentials": "joe.creds"},
        {"nkey_seed": JOE.seed, "nkey_seed_file": "joe.nk"},
        {"signature_cb": lambda nonce: b""},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(MisuseError):
        penstock.connect("nats://127.0.0.1:1", **options)


def test_the_spark_source_signs_too(nkeys_url: str, tokens_url: str, tmp_path: Path) -> None:
    creds, seed = tmp_path / "joe.creds", tmp_path / "joe.nk"
    creds.write_text(format_credentials(user_token("A", "joe"), JOE.seed))
    seed.write_text(JOE.seed)
    for url, given in ((tokens_url, {"credentials": str(creds)}), (nkeys_url, {"nkey": str(seed)})):
        options = SourceOptions.parse({"servers": url, "stream": "S", **given}).connection
        with BlockingConnection.open(options) as connection:
            assert connection.info.nonce
    options = SourceOptions.parse({"stream": "S", "servers": nkeys_url, "nkey": str(creds) + "x"}).connection
    with pytest.raises(CredentialsError, match="option 'nkey'"):
        BlockingConnection.open(options)
    with pytest.raises(ConfigError, match="contradict"):
        SourceOptions.parse({"stream": "S", "nkey": "a", "credentials": "b"})


def test_options_show_no_secrets() -> None:
    options = penstock.client.Options(nkey_seed=JOE.seed)
    assert JOE.seed not in repr(options)
