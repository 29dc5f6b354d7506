"""The same requests to several servers: steps, their answers, and what of those may differ."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import nats.errors

SECOND = 1_000_000_000
REMOVALS_TRIES = 50
Step = tuple[str, Any, dict[str, str]]


def api(subject: str, body: Any = b"", **header: str) -> Step:
    return "$JS.API." + subject, body, {name.replace("_", "-"): value for name, value in header.items()}


def pub(subject: str, body: Any = b"x", **header: str) -> Step:
    return subject, body, {name.replace("_", "-"): value for name, value in header.items()}


def make(name: str, *subjects: str, **settings: Any) -> Step:
    return api(f"STREAM.CREATE.{name}", {"name": name, "subjects": list(subjects) or [name], **settings})


def change(name: str, *subjects: str, **settings: Any) -> Step:
    return api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": list(subjects) or [name], **settings})


async def answer_the_same(urls: dict[str, str], steps: list[Step]) -> None:
    """Asserts that both servers give the same answers to every step."""
    official, ours = await asyncio.gather(*(play(urls[kind], steps) for kind in ("official", "penstock")))
    for step, expected, found in zip(steps, official, ours, strict=True):
        assert found == expected, f"{step[0]} {step[1]!r:.200} {step[2]!r:.200}"


async def play(url: str, steps: list[Step]) -> list[Any]:
    """The answers to every step, on a server without streams."""
    nc = await nats.connect(url, max_reconnect_attempts=0)
    try:
        for name in json.loads((await nc.request("$JS.API.STREAM.NAMES", timeout=5)).data)["streams"] or []:
            await nc.request(f"$JS.API.STREAM.DELETE.{name}", timeout=5)
        return [await settled(nc, step) for step in steps]
    finally:
        await nc.close()


async def settled(nc: Any, step: Step) -> Any:
    """The answer; asked again while the official server still removes files of a deleted stream."""
    for _ in range(REMOVALS_TRIES):
        answers = await ask(nc, *step)
        if "error creating store for stream" not in str(answers):
            break
        await asyncio.sleep(0.05)
    return answers


async def ask(nc: Any, subject: str, body: Any, header: dict[str, str]) -> Any:
    """What a request is answered with, all messages of a batch, without what may differ."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    await nc.publish(subject, payload, reply=inbox, headers=header or None)
    answers: list[Any] = []
    is_batch = isinstance(body, dict) and ("batch" in body or "multi_last" in body) and ".DIRECT." in subject
    while True:
        message = await subscription.next_msg(timeout=5)
        headers = {
            str(getattr(name, "value", name)): value for name, value in (message.headers or {}).items()
        }
        headers.pop("Nats-Time-Stamp", None)
        answers.append((headers, comparable(message.data)))
        if not is_batch or "Status" in headers:
            break
    await subscription.unsubscribe()
    return answers


def comparable(data: bytes) -> Any:
    try:
        answer = json.loads(data)
    except ValueError:
        return data
    if not isinstance(answer, dict):
        return answer
    for name in ("created", "ts", "cluster", "api"):
        answer.pop(name, None)
    without_times(answer)
    if isinstance(answer.get("streams"), list):  # of STREAM.LIST
        for info in answer["streams"]:
            if isinstance(info, dict):
                without_times(info)
    error = answer.get("error")
    if error is not None:
        if error["err_code"] == 10025:
            error["description"] = "invalid JSON"
        # The official server adds the empty fields of the answer there would have been.
        return {name: answer[name] for name in ("type", "error", "stream", "seq") if name in answer}
    return answer


def without_times(info: dict[str, Any]) -> None:
    for name in ("created", "ts"):
        info.pop(name, None)
    for name in ("first_ts", "last_ts"):
        if not info.get("state", {}).get(name, "0001").startswith("0001"):
            info["state"][name] = "some time"
    if "time" in info.get("message", {}):
        info["message"]["time"] = "some time"
    metadata = info.get("config", {}).get("metadata", {})
    for name in ("_nats.ver", "_nats.level"):
        metadata.pop(name, None)
