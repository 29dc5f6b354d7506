"""A fault in any call that a start makes for one stream costs that stream alone, until the next start.

The call sites are found by watching a start (tests/support/fault_sites.py).
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.store.file import FileStore
from tests.support.engine import EngineHarness
from tests.support.fault_sites import Injection, Site, recorded, visible_kernels

pytestmark = pytest.mark.feature("operations.fault-containment")

SHARE_S = 5.0


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of faults are logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def make_store(path: Path) -> None:
    """Streams with everything that a start looks at. B is the bystander."""
    store = FileStore(path, block_size=400)
    js = EngineHarness(store.account("$G"))
    for name, settings in (
        ("A", {"allow_msg_ttl": True, "allow_msg_schedules": True, "allow_rollup_hdrs": True}),
        ("B", {}),
        ("C", {"retention": "interest", "subject_transform": {"src": "C.>", "dest": "C.x.>"}}),
        ("D", {"retention": "workqueue", "first_seq": 5, "max_msgs": 2}),
    ):
        js.create(name, f"{name}.>", storage="file", **settings)
        for consumer, config in (
            ("pull", {"ack_policy": "explicit"}),
            ("push", {"deliver_subject": f"to.{name}", "filter_subjects": [f"{name}.x.a", f"{name}.a"]}),
        ):
            if name == "D" and consumer == "push":
                continue
            body = {"stream_name": name, "config": {"durable_name": consumer, **config}}
            js.api(f"CONSUMER.CREATE.{name}.{consumer}", body)
        for n in range(12):
            header = b"NATS/1.0\r\nNats-Msg-Id: %d\r\nNats-TTL: 1h\r\n\r\n" % n if name == "A" else b""
            js.messages(f"{name}.a", b"message %d" % n, header)
        js.messages(f"$JS.API.CONSUMER.MSG.NEXT.{name}.pull", {"batch": 3})
        js.messages(f"$JS.ACK.{name}.pull.1.1.1.1.0", b"+ACK")
    header = b"NATS/1.0\r\nNats-Schedule: @every 1h\r\nNats-Schedule-Target: A.made\r\n\r\n"
    js.messages("A.sched", b"x", header)
    js.create("S", storage="file", sources=[{"name": "A"}, {"name": "D"}], subjects=["S.>"])
    js.api("STREAM.CREATE.M", {"name": "M", "storage": "file", "mirror": {"name": "C"}})
    for _ in range(5):
        js.tick()
    js.engine.close()
    store.close()


def start(path: Path) -> tuple[FileStore, EngineHarness]:
    store = FileStore(path, block_size=400)
    return store, EngineHarness(store.account("$G"))


def of(value: Any, names: str) -> bool:
    if isinstance(value, ConsumerReplica):
        value = getattr(value, "stream", None)  # it may not be whole yet
    if isinstance(value, StreamReplica):
        config = getattr(value, "config", None)
        return config is not None and config.name in names
    return isinstance(value, str) and len(value) == 1 and value in names


def pictures(js: EngineHarness) -> dict[str, Any]:
    return {name: js.state(name) | {"consumer_count": 0} for name in "ABCDSM"}


def test_a_fault_in_any_call_of_a_start_costs_one_asset_until_the_next_start(
    tmp_path: Path, noted_faults: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("PENSTOCK_FAULTS_SEED", time.time_ns() % 1_000_000))
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    made, used = base / f"penstock-{os.getpid()}-made", base / f"penstock-{os.getpid()}-used"
    make_store(made)
    sites: dict[Site, None] = {}
    tried = raised = 0
    try:
        with visible_kernels():
            shutil.copytree(made, used)
            store, js = start(used)
            whole = pictures(js)
            js.engine.close()
            store.close()
            store = FileStore(used, block_size=400)
            with recorded(sites):
                js = EngineHarness(store.account("$G"))
            store.close()
            order = sorted(sites)
            Random(seed).shuffle(order)
            end = time.monotonic() + float(os.environ.get("PENSTOCK_FAULTS_S", SHARE_S))
            for site in order:
                if time.monotonic() > end:
                    break
                shutil.rmtree(used)
                shutil.copytree(made, used)
                tried += 1
                raised += _start_with_fault(site, used, whole)
                noted_faults.clear()
    finally:
        for path in (made, used):
            shutil.rmtree(path, ignore_errors=True)
    with capsys.disabled():
        print(f"\nfaults, recovery, seed {seed}: {tried} of {len(sites)} call sites tried, {raised} raised")


def _start_with_fault(site: Site, path: Path, whole: dict[str, Any]) -> bool:
    """Starts with the fault, then without."""
    injection = Injection(
        site,
        always=True,
        is_victims=lambda value: of(value, "ACD"),
        is_bystanders=lambda value: of(value, "B"),
    )
    store = FileStore(path, block_size=400)
    account = store.account("$G")
    with injection.armed():
        js = EngineHarness(account)
    assert "B" in js.engine.streams, f"{site}: the bystander is offline: {js.engine.offline}"
    assert js.request("B.a", b"x")["seq"] == 13, site
    (message,) = js.messages("$JS.API.CONSUMER.MSG.NEXT.B.pull", {"batch": 1, "no_wait": True})
    assert message[2].startswith(b"message "), site
    for name, why in js.engine.offline.items():
        assert "internal error" in why, (site, name, why)
    store.abandon()
    store, js = start(path)
    assert not js.engine.offline and not js.engine.containment.problems(), site
    found = pictures(js)
    for name in "ACD":
        assert found[name] == whole[name], f"{site}: {name} lost something: {found[name]} for {whole[name]}"
    js.engine.close()
    store.close()
    return injection.raised > 0
