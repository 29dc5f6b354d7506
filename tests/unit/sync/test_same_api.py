"""The API of `penstock.sync` is that of `penstock.client`: names, parameters, types and docstrings."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import penstock.client
import penstock.sync
from penstock.client.connection_listener import ConnectionListener
from penstock.client.queue import MessageQueue

pytestmark = pytest.mark.feature("client.sync")

ROOT = Path(__file__).resolve().parents[3]

# What an asyncio program needs and another one has no use for.
ONLY_ASYNC = {
    "Client": {"loop", "open"},
    "Consume": {"start"},
    "KeyLease": {"call_when_lost", "error"},
    "KeyValue": {"last_entry", "last_entries"},
    "Fetch": {"ended"},
    "OrderedConsumer": {"handed_out", "renew"},
    "OrderedPushSubscription": {"renew"},
    "PendingAck": {"is_seen"},
    "PushSubscription": {"follow"},
    "Service": {"attach"},
    "Stream": {"session"},
    "Subscription": {"start_callback"},
}
WRAPPED = sorted(
    name
    for name in penstock.client.__all__
    if name not in ("Connecting", "connect", "ConnectOptions")
    and getattr(penstock.client, name) is not getattr(penstock.sync, name)
)


def is_internal(value: Any) -> bool:
    text = (value.fget if isinstance(value, property) else value).__doc__ or ""
    return "internal" in text.lower()


def public_members(kind: type) -> dict[str, Any]:
    found = {}
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        if name.startswith("_") or isinstance(value, classmethod) or hasattr(ConnectionListener, name):
            continue
        if hasattr(MessageQueue, name) and not isinstance(value, property):
            continue
        if (inspect.isfunction(value) or isinstance(value, property)) and not is_internal(value):
            found[name] = value
    return found


def expected_members(name: str) -> dict[str, Any]:
    kind = getattr(penstock.client, name)
    left_out = set().union(*(ONLY_ASYNC.get(base.__name__, set()) for base in kind.__mro__))
    return {member: value for member, value in public_members(kind).items() if member not in left_out}


def without_async(text: str) -> str:
    """An annotation as the sync client writes it."""
    text = re.sub(r"\bAsyncIterator\b", "Iterator", text).replace('"', "'")
    return re.sub(r"(?<!\[)'([A-Za-z_ |]+)'", r"\1", text)


def words(text: str | None) -> list[str]:
    """The words of a docstring that are not about asynchronous calls."""
    plain = re.sub(r"\b(async|await|Await\w*|coroutine|asynchronous)\b", "", text or "")
    return re.findall(r"[A-Za-z_]{4,}", plain)


def test_the_packages_export_the_same_names() -> None:
    assert sorted(penstock.sync.__all__) == sorted(set(penstock.client.__all__) - {"Connecting"})
    assert penstock.sync.__all__ == sorted(penstock.sync.__all__)


def test_every_class_with_something_to_await_has_a_counterpart() -> None:
    def waits(kind: type) -> bool:
        return any(
            inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)
            for value in vars(kind).values()
        )

    waiting = {
        name
        for name in penstock.client.__all__
        if inspect.isclass(kind := getattr(penstock.client, name)) and waits(kind)
    }
    assert waiting - {"Connecting"} <= set(WRAPPED)


@pytest.mark.parametrize("name", WRAPPED)
def test_a_class_has_the_same_public_members(name: str) -> None:
    ours = set(public_members(getattr(penstock.sync, name)))
    attributes = {member for member in ours - set(expected_members(name)) if member != "wait"}
    assert set(expected_members(name)) <= ours
    source = inspect.getsource(inspect.getmodule(getattr(penstock.client, name)) or penstock.client)
    bases = "".join(inspect.getsource(base) for base in getattr(penstock.client, name).__mro__[1:-1]
                    if base.__module__.startswith("penstock"))  # fmt: skip
    assert all(re.search(rf"self\.{member}\b", source + bases) for member in attributes), attributes


@pytest.mark.parametrize("name", WRAPPED)
def test_methods_have_the_same_parameters_and_types(name: str) -> None:
    for member in expected_members(name):
        check_types(name, member)


def check_types(name: str, member: str) -> None:
    theirs = expected_members(name)[member]
    ours = inspect.getattr_static(getattr(penstock.sync, name), member)
    assert isinstance(ours, property) == isinstance(theirs, property)
    if isinstance(theirs, property):
        theirs, ours = theirs.fget, ours.fget
    assert not inspect.iscoroutinefunction(ours)
    assert not inspect.isasyncgenfunction(ours)
    expected, found = inspect.signature(theirs), inspect.signature(ours)
    assert [(one.name, one.kind, one.default) for one in found.parameters.values()] == [
        (one.name, one.kind, one.default) for one in expected.parameters.values()
    ]
    assert [without_async(str(one.annotation)) for one in found.parameters.values()] == [
        without_async(str(one.annotation)) for one in expected.parameters.values()
    ]
    returns = without_async(str(expected.return_annotation))
    generic = {"T": r"\w+", "list[T]": r"list\[\w+\]"}
    assert re.fullmatch(generic.get(returns, re.escape(returns)), str(found.return_annotation))


@pytest.mark.parametrize("name", WRAPPED)
def test_methods_have_the_same_docstrings(name: str) -> None:
    for member in expected_members(name):
        check_docstring(name, member)


def check_docstring(name: str, member: str) -> None:
    theirs = expected_members(name)[member]
    ours = inspect.getattr_static(getattr(penstock.sync, name), member)
    expected, found = words(theirs.__doc__), words(ours.__doc__)
    assert bool(expected) == bool(found)
    # Sentences about awaiting are worded otherwise; nothing else is missing.
    assert len(set(expected) - set(found)) <= len(set(expected)) / 4
    assert "await" not in (ours.__doc__ or "")
    assert "async " not in (ours.__doc__ or "")


def test_the_options_of_connect_are_the_same() -> None:
    expected = penstock.client.ConnectOptions.__annotations__
    found = penstock.sync.ConnectOptions.__annotations__
    assert list(found) == list(expected)
    theirs = inspect.signature(penstock.client.connect)
    ours = inspect.signature(penstock.sync.connect)
    assert str(ours.parameters["servers"]) == str(theirs.parameters["servers"])
    assert ours.return_annotation == "Client"


def test_no_annotation_of_the_sync_client_names_an_async_type() -> None:
    asynchronous = re.compile(r"\b(Async\w+|Awaitable|Coroutine)\b")
    for name, member in [(one, member) for one in WRAPPED for member in expected_members(one)]:
        value = inspect.getattr_static(getattr(penstock.sync, name), member)
        function = value.fget if isinstance(value, property) else value
        for text in function.__annotations__.values():
            assert not asynchronous.search(str(text)), (name, member, text)
