"""Files of replicas whose group is gone: they go with it, or at the next start after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.replication.group_storage import GroupStorage, StorageFindings
from penstock.store.files import quote_name
from penstock.store.interface import AccountStore
from penstock.store.memory import MemoryStore
from tests.support.engine import EngineHarness
from tests.support.stream_group_servers import ACCOUNT, StreamServers, StreamServerUnderTest, assigned


@pytest.fixture
def store() -> AccountStore:
    return MemoryStore().account(ACCOUNT)


@pytest.fixture
def servers(store: AccountStore) -> StreamServers:
    servers = StreamServers()
    servers["b"].store = store
    servers.begin(assigned())
    return servers


def restart(server: StreamServerUnderTest) -> None:
    server.stop()
    server.start()


def has_states(server: StreamServerUnderTest) -> bool:
    return bool(server.disk.names(Path("/states")))


def take_checkpoint(server: StreamServerUnderTest) -> None:
    server.stream().port.checkpoint()
    server.nodes.settle()
    assert has_states(server)


def test_a_stream_that_was_deleted_while_its_server_was_away_leaves_no_files(
    servers: StreamServers, store: AccountStore
) -> None:
    take_checkpoint(servers["b"])
    restart(servers["b"])
    assert store.stream_names() == ["S"]
    [stored] = servers["b"].groups.unclaimed
    gone: list[list[str]] = []
    servers["b"].groups.remove_unclaimed(stored, lambda: gone.append(store.stream_names()))
    servers.settle()
    assert gone == [[]]
    assert not has_states(servers["b"])


def test_another_stream_of_the_name_keeps_its_files(servers: StreamServers, store: AccountStore) -> None:
    restart(servers["b"])
    [stored] = servers["b"].groups.unclaimed
    servers["b"].assign(assigned(incarnation=8))
    servers["b"].groups.remove_unclaimed(stored, lambda: None)
    servers.settle()
    assert store.stream_names() == ["S"]
    assert servers["b"].replica().failure == ""


def test_a_server_that_crashed_before_it_removed_the_files_removes_them_when_it_starts(
    servers: StreamServers, store: AccountStore
) -> None:
    take_checkpoint(servers["b"])
    servers["b"].node.remove_group(servers["b"].stream().name)
    servers.settle()
    restart(servers["b"])
    assert not has_states(servers["b"])
    assert store.stream_names() == ["S"]
    servers["b"].groups.remove_leftovers(ACCOUNT)
    servers.settle()
    assert store.stream_names() == []


def test_files_of_groups_in_the_log_stay(servers: StreamServers, store: AccountStore) -> None:
    take_checkpoint(servers["b"])
    for step in ("unclaimed", "open", "closing"):
        if step == "unclaimed":
            restart(servers["b"])
        elif step == "open":
            servers["b"].assign(assigned())
        else:
            servers["b"].groups.close(ACCOUNT, "S", remove=False)
        if step != "closing":
            servers.settle()
        servers["b"].groups.remove_leftovers(ACCOUNT)
        assert servers["b"].disk.names(Path("/states")) == [quote_name("S/c/7/$G/S")]
        assert store.stream_names() == ([] if step == "closing" else ["S"])


def test_a_log_that_may_lack_groups_removes_nothing(
    servers: StreamServers, store: AccountStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_checkpoint(servers["b"])
    servers["b"].node.remove_group(servers["b"].stream().name)
    servers.settle()
    servers["b"].stop()
    open_log = GroupStorage.open

    def damaged(*args: Any, **options: Any) -> tuple[GroupStorage, StorageFindings]:
        storage, findings = open_log(*args, **options)
        return storage, findings._replace(may_lack_groups=True)

    monkeypatch.setattr(GroupStorage, "open", damaged)
    servers["b"].start()
    servers["b"].groups.remove_leftovers(ACCOUNT)
    servers.settle()
    assert has_states(servers["b"])
    assert store.stream_names() == ["S"]


def test_a_stream_without_a_group_keeps_its_files(store: AccountStore) -> None:
    alone = EngineHarness(store)
    alone.create("S", "S.>")
    alone.engine.close()
    servers = StreamServers("a")
    servers["a"].store = store
    servers.begin()
    servers["a"].groups.remove_leftovers(ACCOUNT)
    servers["a"].engine.engine.replicated.discard("S")
    servers.settle()
    assert store.stream_names() == ["S"]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_failed_replica_keeps_its_files_until_its_stream_is_deleted(
    servers: StreamServers, store: AccountStore, noted_faults: list[BaseException], is_deleted: bool
) -> None:
    servers["b"].replica()._fail(ValueError("a mistake"), 3)
    servers.request(servers["a"], "S.1", b"x")
    servers["b"].groups.close(ACCOUNT, "S", remove=is_deleted)
    servers.settle()
    assert store.stream_names() == ([] if is_deleted else ["S"])
    noted_faults.clear()
