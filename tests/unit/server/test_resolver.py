"""Directories of account tokens: what is kept, what goes, what is found after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError, MisuseError
from penstock.server.auth.resolver import DirectoryResolver, MemoryResolver, Resolver, resolver_of
from penstock.server.config.option_checks import NS
from penstock.server.config.server_options import ResolverOptions
from tests.support.keys import account_token, key

pytestmark = pytest.mark.feature("security.resolver")

A, B, C = (key("account", name).public for name in "ABC")
TOKENS = {name: account_token(name, head={"issued_at": 1}) for name in "ABC"}
NOW = 1000 * NS


def made(directory: Path, kind: str = "full", **settings: object) -> Resolver:
    options = ResolverOptions(type=kind, directory=str(directory / "d"), **settings)  # type: ignore[arg-type]
    return resolver_of(options, NOW)


@pytest.mark.parametrize("kind", ["memory", "full", "cache"])
def test_what_is_stored_is_found_until_it_is_deleted(kind: str, tmp_path: Path) -> None:
    resolver = made(tmp_path, kind)
    assert resolver.fetch(A) is None
    resolver.store(A, TOKENS["A"], NOW)
    resolver.store(B, TOKENS["B"], NOW)
    assert resolver.fetch(A) == TOKENS["A"]
    assert sorted(resolver.pairs()) == sorted([(A, TOKENS["A"]), (B, TOKENS["B"])])
    resolver.delete(A)
    resolver.delete(A)
    assert resolver.fetch(A) is None
    assert [account for account, _ in resolver.pairs()] == [B]


@pytest.mark.parametrize("kind", ["full", "cache"])
def test_files_are_there_after_a_restart(kind: str, tmp_path: Path) -> None:
    before = made(tmp_path, kind)
    before.store(A, TOKENS["A"], NOW)
    after = made(tmp_path, kind)
    assert after.fetch(A) == TOKENS["A"]
    assert after.hash() == before.hash() != bytes(32)


def test_the_hash_depends_on_what_is_kept_alone() -> None:
    one, other = MemoryResolver(), MemoryResolver()
    for resolver, order in ((one, "AB"), (other, "BA")):
        for name in order:
            resolver.store(key("account", name).public, TOKENS[name], NOW)
    assert one.hash() == other.hash()
    one.delete(B)
    assert one.hash() != other.hash()


def test_a_full_directory_refuses_and_a_cache_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    full = made(tmp_path, "full", limit=1)
    full.store(A, TOKENS["A"], NOW)
    with pytest.raises(MisuseError, match="jwt store is full"):
        full.store(B, TOKENS["B"], NOW)
    full.store(A, account_token("A"), NOW)
    cache = made(tmp_path / "cache", "cache", limit=2)
    for name, account in (("A", A), ("B", B)):
        cache.store(account, TOKENS[name], NOW)
    cache.fetch(A)
    cache.store(C, TOKENS["C"], NOW)
    assert cache.fetch(B) is None
    assert {account for account, _ in cache.pairs()} == {A, C}


def test_what_has_expired_goes(tmp_path: Path) -> None:
    full = made(tmp_path)
    full.store(A, account_token("A", head={"expires": 1010}), NOW)
    full.store(B, TOKENS["B"], NOW)
    full.expire(NOW + 9 * NS)
    assert full.fetch(A) is not None
    full.expire(NOW + 10 * NS)
    assert full.fetch(A) is None
    assert full.fetch(B) is not None
    cache = made(tmp_path / "cache", "cache", ttl_ns=5 * NS)
    cache.store(B, TOKENS["B"], NOW)
    cache.expire(NOW + 5 * NS)
    assert cache.fetch(B) is None


def test_nothing_is_kept_under_a_name_that_is_no_account(tmp_path: Path) -> None:
    resolver = made(tmp_path)
    with pytest.raises(MisuseError, match="invalid public key"):
        resolver.store("../../etc/passwd", TOKENS["A"], NOW)
    assert resolver.fetch("../../etc/passwd") is None
    assert resolver.fetch(key("user", "joe").public) is None


def test_deleted_files_are_renamed_or_removed(tmp_path: Path) -> None:
    for hard, left in ((False, [f"{A}.jwt.deleted"]), (True, [])):
        resolver = made(tmp_path / str(hard), allow_delete=True, hard_delete=hard)
        resolver.store(A, TOKENS["A"], NOW)
        resolver.delete(A)
        assert [path.name for path in (tmp_path / str(hard) / "d").iterdir()] == left


def test_a_directory_that_can_not_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("a file")
    with pytest.raises(ConfigError, match=r"resolver\.dir"):
        made(tmp_path)
    with pytest.raises(ConfigError):
        DirectoryResolver(ResolverOptions(type="full", directory=str(tmp_path / "d" / "below")), NOW)
