"""What messages count towards `bytes` in each storage: both servers say the same."""

from __future__ import annotations

import json
import random

import nats
import pytest

from tests.support.nats_servers import until
from tests.support.same_answers import Step, answer_the_same, api, make, play, pub

pytestmark = [pytest.mark.official, pytest.mark.feature("stream.size-accounting", "stream.storage")]

STORAGES = ["file", "memory"]
INFO = api("STREAM.INFO.S")

# What `hello` on s.1, an empty message with a header block of 18 bytes on s.2, and 1000 bytes on s.3 count.
MESSAGES = [pub("s.1", b"hello"), pub("s.2", b"", A="b"), pub("s.3", b"x" * 1000)]
COUNTED = {"file": [38, 33 + 4 + 18, 1033], "memory": [24, 19 + 18, 1019]}


@pytest.mark.parametrize("storage", STORAGES)
async def test_bytes_are_what_each_message_counts(urls: dict[str, str], storage: str) -> None:
    steps = [make("S", "s.>", storage=storage)]
    for message in MESSAGES:
        steps += [message, INFO]
    steps += [api("INFO"), api("STREAM.MSG.DELETE.S", {"seq": 2}), INFO]
    steps += [api("STREAM.PURGE.S", {"filter": "s.1"}), INFO, api("INFO")]
    await answer_the_same(urls, steps)
    said = [
        answer[0][1]["state"]["bytes"]
        for step, answer in zip(steps, await play(urls["penstock"], steps), strict=True)
        if step is INFO
    ]
    hello, empty, large = COUNTED[storage]
    assert said == [hello, hello + empty, hello + empty + large, hello + large, large]


@pytest.mark.parametrize("storage", STORAGES)
async def test_a_stream_that_discards_new_takes_what_just_fits(urls: dict[str, str], storage: str) -> None:
    await answer_the_same(
        urls,
        [
            make("S", "s.>", storage=storage, discard="new", max_bytes=sum(COUNTED[storage])),
            *MESSAGES[1:],
            pub("s.1", b"hello!"),
            INFO,
            MESSAGES[0],
            INFO,
            pub("s.1", b""),
            INFO,
        ],
    )


@pytest.mark.parametrize("storage", STORAGES)
async def test_a_stream_that_discards_old_keeps_what_just_fits(urls: dict[str, str], storage: str) -> None:
    steps = [make("S", "s.>", storage=storage, max_bytes=3 * COUNTED[storage][0])]
    for _ in range(4):
        steps += [MESSAGES[0], INFO]
    await answer_the_same(urls, [*steps, pub("s.1", b"hello!"), INFO, MESSAGES[1], INFO])


def run_of(storage: str, seed: int) -> list[Step]:
    """A stream near its limit, and everything that makes it smaller."""
    draw = random.Random(seed)
    settings = {
        "storage": storage,
        "max_bytes": draw.choice([300, 600]),
        "discard": draw.choice(["old", "new"]),
        "max_msgs_per_subject": draw.choice([-1, 2]),
        "allow_rollup_hdrs": True,
    }
    steps = [make("S", "s.>", **settings)]
    for _ in range(40):
        size, header = draw.randrange(120), {"Own": "x" * draw.randrange(20)} if draw.random() < 0.4 else {}
        if draw.random() < 0.1:
            header["Nats_Rollup"] = "sub"
        steps += [pub(f"s.{draw.randrange(3)}", b"x" * size, **header), INFO]
        if draw.random() < 0.2:
            steps += [
                api("STREAM.PURGE.S", {"filter": f"s.{draw.randrange(3)}", "keep": draw.randrange(2)}),
                INFO,
            ]
    return steps


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("storage", STORAGES)
async def test_streams_near_their_limit_hold_the_same(urls: dict[str, str], storage: str, seed: int) -> None:
    await answer_the_same(urls, run_of(storage, seed))


@pytest.mark.parametrize("storage", STORAGES)
async def test_an_atomic_batch_fits_by_what_its_messages_count(urls: dict[str, str], storage: str) -> None:
    headers = [
        {
            "Nats_Batch_Id": "b",
            "Nats_Batch_Sequence": str(seq),
            **({"Nats_Batch_Commit": "1"} if seq == 3 else {}),
        }
        for seq in (1, 2, 3)
    ]
    parts = [pub("s.1", b"x", **header) for header in headers]
    fixed = {"file": 34, "memory": 16}[storage]
    whole = sum(
        fixed
        + len("s.1x")
        + len("NATS/1.0\r\n\r\n")
        + sum(len(name) + len(value) + 4 for name, value in one.items())
        for one in headers
    )
    for room in (whole, whole - 1):
        settings = {"storage": storage, "discard": "new", "max_bytes": room, "allow_atomic": True}
        steps = [make("S", "s.>", **settings), *parts, INFO]
        await answer_the_same(urls, steps)
        info = (await play(urls["penstock"], steps))[-1][0][1]
        assert info["state"]["bytes"] == (whole if room == whole else 0)


@pytest.mark.parametrize("storage", STORAGES)
async def test_a_mirror_counts_by_its_own_storage(urls: dict[str, str], storage: str) -> None:
    other = "file" if storage == "memory" else "memory"
    for url in urls.values():
        await play(url, [make("S", "s.>", storage=other), *MESSAGES])
        nc = await nats.connect(url)
        config = {"name": "M", "storage": storage, "mirror": {"name": "S"}}
        await nc.request("$JS.API.STREAM.CREATE.M", json.dumps(config).encode())

        async def state(nc: nats.NATS = nc) -> bool:
            info = json.loads((await nc.request("$JS.API.STREAM.INFO.M", b"")).data)
            return bool(info["state"]["messages"] == 3 and info["state"]["bytes"] == sum(COUNTED[storage]))

        await until(state)
        await nc.close()
