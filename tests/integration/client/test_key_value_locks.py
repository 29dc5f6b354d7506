"""Locks, leases and elections on keys, on both servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import penstock.client
from penstock.client import Client, JetStream, KeyLease, KeyValue, LeaderElection
from penstock.errors import (
    BucketNotFoundError,
    InvalidKeyError,
    KeyTtlNotEnabledError,
    LockLostError,
    LockNotAcquiredError,
    MisuseError,
)
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.nats_servers import AnyServer, until

pytestmark = [pytest.mark.feature("key-value.client"), pytest.mark.feature("key-value.locks")]

FAST = {"reconnect_wait": 0.01, "reconnect_wait_max": 0.02, "on_error": lambda *_: None}


@pytest.fixture
async def kv(js: JetStream) -> AsyncIterator[KeyValue]:
    yield await js.create_key_value("L", storage="memory", limit_marker_ttl=1)
    for name in await js.key_value_names():
        await js.delete_key_value(name)


@pytest.fixture
async def other(url: str, kv: KeyValue) -> AsyncIterator[KeyValue]:
    """The bucket through another connection."""
    async with penstock.client.connect(url, **FAST) as client:
        yield await client.jetstream(timeout=10).key_value("L")


async def renewed(lease: KeyLease, times: int = 3) -> None:
    """Wait until the lease was renewed some times."""
    for _ in range(times):
        before = lease._revision
        await until(lambda before=before: lease._revision > before or not lease.is_held)  # type: ignore[misc]
    lease.check()


async def test_one_client_at_a_time_has_a_lock(kv: KeyValue, other: KeyValue) -> None:
    order: list[str] = []

    async def second() -> int:
        async with other.lock("report", ttl=30, holder="second") as lease:
            order.append("second")
            return lease.token

    async with kv.lock("report", ttl=30, holder="first") as lease:
        waiting = asyncio.create_task(second())
        with pytest.raises(
            LockNotAcquiredError, match="'report' of bucket 'L' stayed with 'first'"
        ) as raised:
            await other.lease("report", ttl=30, timeout=0)
        assert (raised.value.bucket, raised.value.key, raised.value.holder) == ("L", "report", "first")
        assert isinstance(raised.value, TimeoutError)
        with pytest.raises(LockNotAcquiredError, match=r"for 0\.05 s"):
            await other.lease("report", ttl=30, timeout=0.05)
        assert lease.is_held
        order.append("first")
    assert not lease.is_held
    async with asyncio.timeout(20):
        assert await waiting > lease.token
    assert order == ["first", "second"]
    assert await kv.last_entry("report") is not None
    assert [key async for key in kv.keys(">")] == []


async def test_a_lease_is_renewed_beyond_its_ttl(kv: KeyValue, other: KeyValue) -> None:
    async with await kv.lease("x", ttl=2, holder="joe") as lease:
        await renewed(lease, 4)
        with pytest.raises(LockNotAcquiredError):
            await other.lease("x", ttl=2, timeout=0)
        assert (lease.is_held, lease.lost, lease.holder) == (True, "", "joe")
    with pytest.raises(LockLostError, match="it was released"):
        lease.check()
    await lease.release()
    async with await other.lease("x", ttl=1, timeout=0) as next_lease:
        assert next_lease.token > lease.token


async def test_a_holder_that_is_gone_loses_the_key_with_its_ttl(url: str, kv: KeyValue) -> None:
    async with penstock.client.connect(url, **FAST) as gone:
        lease = await (await gone.jetstream().key_value("L")).lease("x", ttl=1, holder="gone")
    async with await kv.lease("x", ttl=1, timeout=20) as mine:
        assert mine.token > lease.token


async def test_a_lost_lock_cancels_its_block_and_says_so(kv: KeyValue, other: KeyValue) -> None:
    reached = False
    with pytest.raises(LockLostError, match=r"'x' of bucket 'L'.*by 'joe': another client") as raised:  # noqa: PT012
        async with kv.lock("x", ttl=3, holder="joe") as lease:
            await other.put("x", b"mine now")
            await asyncio.Event().wait()
            reached = True
    assert not reached
    assert not lease.is_held
    assert (raised.value.bucket, raised.value.key) == ("L", "x")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert (await other.get("x")).value == b"mine now"


async def test_what_a_block_raises_and_cancellation_from_outside_pass_through(kv: KeyValue) -> None:
    with pytest.raises(ZeroDivisionError):
        async with kv.lock("x", ttl=30):
            raise ZeroDivisionError

    async def stay_locked() -> None:
        async with kv.lock("x", ttl=30):
            await asyncio.Event().wait()

    holding = asyncio.create_task(stay_locked())

    async def is_held() -> bool:
        return bool(await kv.get_many(["x"]))

    await until(is_held)
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert not await is_held()
    async with kv.lock("x", ttl=30, timeout=0):
        pass


async def test_a_lock_without_connection_is_lost_before_its_ttl_ends_on_the_server(
    server: AnyServer, kv: KeyValue
) -> None:
    async with cutting_proxy(server.port) as proxy, penstock.client.connect(proxy.url, **FAST) as client:
        mine = await client.jetstream(timeout=10).key_value("L")
        with pytest.raises(LockLostError, match="no renewal was confirmed within its TTL"):  # noqa: PT012
            async with mine.lock("x", ttl=1):
                proxy.refuse()
                await asyncio.Event().wait()
        async with kv.lock("x", ttl=1, timeout=20):
            pass


async def test_a_lease_survives_a_cut_at_every_step(server: AnyServer, kv: KeyValue) -> None:
    """Also of a write whose answer is lost: it is recognised by the id in the value."""
    async with cutting_proxy(server.port) as proxy:
        for step in range(1, 5):  # two renewals: each is a read of the client's and one of the server's
            async with penstock.client.connect(proxy.url, **FAST) as client:
                await hold_while_cut(client, proxy, step)
            async with await kv.lease("x", ttl=3, timeout=0):
                pass
        assert proxy.cuts == 4


async def hold_while_cut(client: Client, proxy: CuttingProxy, step: int) -> None:
    mine = await client.jetstream(timeout=5).key_value("L")
    async with mine.lock("x", ttl=2) as lease:
        proxy.cut_at(step)
        await renewed(lease, 2)
        proxy.cut_at(0)
        await client.flush(10)


async def test_the_bucket_must_allow_ttls_that_are_kept(js: JetStream, kv: KeyValue) -> None:
    plain = await js.create_key_value("P", storage="memory")
    with pytest.raises(KeyTtlNotEnabledError, match="limit_marker_ttl"):
        await plain.lease("x", ttl=30)
    old = await js.create_key_value("H", storage="memory", history=5, limit_marker_ttl=60)
    with pytest.raises(MisuseError, match="ttl is 30 s, which servers raise to limit_marker_ttl"):
        old.lock("x", ttl=30)
    async with old.lock("x", ttl=60):
        pass
    for ttl in (0, 0.5, -1):
        with pytest.raises(MisuseError, match="whole number of seconds"):
            kv.lock("x", ttl=ttl)
    with pytest.raises(InvalidKeyError):
        kv.elect("a b", "me", ttl=1)
    await js.delete_key_value("P")
    for call in (plain.lease("x", ttl=1), plain.elect("x", "me", ttl=1).__aenter__()):
        with pytest.raises(BucketNotFoundError):
            await call


async def test_one_candidate_leads_until_it_leaves(kv: KeyValue, other: KeyValue) -> None:
    seen: list[str | None] = []

    async def follow(election: LeaderElection) -> None:
        async for leader in election.leaders():
            seen.append(leader)

    async with other.elect("leader", "two", ttl=30) as second:
        first_lease = await second.until_leader()
        following = asyncio.create_task(follow(second))
        async with kv.elect("leader", "one", ttl=30) as first:
            assert (second.is_leader, first.is_leader, first.lease) == (True, False, None)
            assert await first.leader() == "two"
            await until(lambda: seen == ["two"])
            await second.__aexit__()
            lease = await asyncio.wait_for(first.until_leader(), 20)
            assert (first.is_leader, second.is_leader, first.lease) == (True, False, lease)
            assert lease.token > first_lease.token
            await until(lambda: seen[-1] == "one")
        await until(lambda: seen[-1] is None)
        assert await second.leader() is None
        following.cancel()
    assert [name for name in seen if name] == ["two", "one"]


async def test_a_leader_that_was_replaced_campaigns_again(kv: KeyValue, other: KeyValue) -> None:
    async with kv.elect("leader", "one", ttl=1) as election:
        first = await election.until_leader()
        await other.put("leader", b"a coup")
        await asyncio.wait_for(first.until_ended(), 20)
        assert await election.leader() == ""
        await other.delete("leader")
        again = await asyncio.wait_for(election.until_leader(), 20)
        assert again.token > first.token
