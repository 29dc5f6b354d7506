"""Services of the client, with both servers, nats-py and the `nats` command line."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import nats.micro
import nats.micro.request
import pytest

import penstock
from penstock.client import (
    Client,
    EndpointSchema,
    EndpointStats,
    Msg,
    ServiceMsg,
    Services,
)
from penstock.errors import (
    ClientError,
    ConnectionClosedError,
    DisconnectedError,
    InvalidSubjectError,
    MisuseError,
    NoRespondersError,
    PermissionsError,
    RequestTimeoutError,
    ServiceError,
)
from tests.support.client_fakes import ScriptedPeer, scripted_server
from tests.support.frame_proxy import frame_proxy
from tests.support.nats_cli import nats_cli, run_nats
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.services")

NO_PAYLOAD = (
    "a payload is bytes, bytearray, memoryview or str, not int; encode it first, for example "
    "json.dumps(value).encode()"
)
FAST: dict[str, Any] = {"reconnect_wait": 0.01, "reconnect_wait_max": 0.05}


@pytest.fixture
async def other(url: str) -> AsyncIterator[Client]:
    """A second client, which sends the requests."""
    async with penstock.connect(url, request_timeout=10) as client:
        yield client


async def upper(request: ServiceMsg) -> bytes:
    return request.data.upper()


# --- endpoints and answers -----------------------------------------------------------------------


async def test_a_handlers_result_is_the_answer(client: Client, other: Client) -> None:
    async with await client.add_service("text", "1.0.0") as service:
        await service.add_endpoint("upper", upper)

        @service.endpoint()
        def length(request: ServiceMsg) -> str:
            return str(len(request.data))

        @service.endpoint("own", subject="own.*")
        async def answers_itself(request: ServiceMsg) -> None:
            await request.respond(request.subject, headers={"A": "b"})

        await client.flush()
        assert (await other.request("upper", b"abc")).data == b"ABC"
        assert (await other.request("length", b"abc")).data == b"3"
        answer = await other.request("own.7")
        assert (answer.data, answer.headers["A"]) == (b"own.7", "b")


async def test_groups_begin_the_subjects_of_their_endpoints(client: Client, other: Client) -> None:
    async with await client.add_service("text", "1.0.0", queue="team") as service:
        v1 = service.group("v1")
        nested = v1.group("text", queue="special")
        await v1.add_endpoint("upper", upper, subject="up")
        await nested.add_endpoint("upper", upper)
        await nested.add_endpoint("all", upper, queue="")
        await service.group("").add_endpoint("bare", upper)
        await client.flush()
        for subject in ("v1.up", "v1.text.upper", "v1.text.all", "bare"):
            assert (await other.request(subject, b"x")).data == b"X"
        endpoints = service.info().endpoints
        assert endpoints is not None
        assert [(one.name, one.subject, one.queue_group) for one in endpoints] == [
            ("upper", "v1.up", "team"),
            ("upper", "v1.text.upper", "special"),
            ("all", "v1.text.all", ""),
            ("bare", "bare", "team"),
        ]


async def test_instances_share_requests_unless_they_have_no_queue_group(
    client: Client, other: Client
) -> None:
    counts = [0, 0, 0, 0]

    def count(place: int) -> Any:
        async def handler(request: ServiceMsg) -> bytes:
            counts[place] += 1
            return b""

        return handler

    async with (
        await client.add_service("a", "1.0.0") as one,
        await client.add_service("a", "1.0.0") as two,
    ):
        await one.add_endpoint("shared", count(0))
        await two.add_endpoint("shared", count(1))
        await one.add_endpoint("all", count(2), queue="")
        await two.add_endpoint("all", count(3), queue="")
        await client.flush()
        for _ in range(40):
            await other.request("shared")
            await other.request("all")
        await until(lambda: counts[2] == counts[3] == 40)
        assert counts[0] + counts[1] == 40
        assert all(counts)


async def test_errors_reach_the_requester_and_are_counted(client: Client, other: Client) -> None:
    reported: list[Exception] = []

    async def fail(request: ServiceMsg) -> bytes | None:
        what = request.data.decode()
        if what == "own":
            await request.respond_error(409, "it\r\nexists", b"17", headers={"A": "b"})
        elif what == "raised":
            raise ServiceError(404, "no such order", data=b"data")
        elif what == "late":
            await request.respond(b"fine")
            raise ValueError("after the answer")
        elif what == "bug":
            return {}["no key"]  # type: ignore[index]
        elif what == "type":
            wrong: Any = 5
            return wrong  # type: ignore[no-any-return]
        return b"fine"

    services = other.services()
    async with penstock.connect(
        str(client.connected_url), on_error=lambda _, error: reported.append(error)
    ) as owner:
        service = await owner.add_service("errors", "1.0.0")
        endpoint = await service.add_endpoint("fail", fail)
        await owner.flush()
        expected = {
            "own": (409, "it exists", b"17"),
            "raised": (404, "no such order", b"data"),
            "bug": (500, "KeyError: 'no key'", b""),
            "type": (
                500,
                f"TypeError: {NO_PAYLOAD}",
                b"",
            ),
        }
        for what, (code, description, data) in expected.items():
            with pytest.raises(ServiceError) as caught:
                await services.request("fail", what)
            assert (caught.value.code, caught.value.description) == (code, description)
            assert caught.value.data == data
        raw = await other.request("fail", "raised")
        assert raw.headers["Nats-Service-Error-Code"] == "404"
        assert (await services.request("fail", "late")).data == b"fine"
        assert (await services.request("fail", "well")).data == b"fine"
        twice = [msg.data async for msg in other.request_many("fail", "late", stall=0.05)]
        assert twice == [b"fine"]  # no error after the answer
        await until(lambda: endpoint.stats().num_requests == 8)
        stats = endpoint.stats()
        assert (stats.num_errors, stats.last_error) == (7, "500:ValueError: after the answer")
        assert stats.processing_time_ns > 0
        assert stats.average_processing_time_ns == stats.processing_time_ns // 8
        assert [type(error) for error in reported] == [KeyError, TypeError, ValueError, ValueError]
        service.reset()
        assert endpoint.stats() == EndpointStats(name="fail", subject="fail", queue_group="q")


async def test_an_endpoint_handles_as_many_requests_at_a_time_as_it_may(
    client: Client, other: Client
) -> None:
    running = most = 0
    release = asyncio.Event()

    async def slow(request: ServiceMsg) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.wait_for(release.wait(), 10)
        running -= 1
        return b""

    async with await client.add_service("slow", "1.0.0") as service:
        await service.add_endpoint("slow", slow, concurrency=3)
        await client.flush()
        requests = [asyncio.ensure_future(other.request("slow")) for _ in range(10)]
        await until(lambda: running == 3)
        release.set()
        await asyncio.gather(*requests)
    assert most == 3


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"name": "a.b"}, InvalidSubjectError),
        ({"subject": "a b"}, InvalidSubjectError),
        ({"queue": "a b"}, InvalidSubjectError),
        ({"metadata": {"a": 1}}, TypeError),
        ({"concurrency": 0}, MisuseError),
    ],
    ids=str,
)
async def test_wrong_endpoints_are_refused(
    client: Client, settings: dict[str, Any], error: type[Exception]
) -> None:
    async with await client.add_service("a", "1.0.0") as service:
        with pytest.raises(error):
            await service.add_endpoint(**{"name": "e", "handler": upper, **settings})
        assert service.info().endpoints == []
    with pytest.raises(MisuseError, match="is stopped"):
        await service.add_endpoint("e", upper)
    for name, version in (("a b", "1.0.0"), ("a", "1")):
        with pytest.raises(MisuseError):
            await client.add_service(name, version)


# --- discovery -----------------------------------------------------------------------------------


async def test_services_are_discovered_by_name_and_instance(client: Client, other: Client) -> None:
    def stats_handler(endpoint: EndpointStats) -> dict[str, str]:
        return {"of": endpoint.name}

    async with (
        await client.add_service(
            "text",
            "1.0.0",
            description="letters",
            metadata={"region": "eu"},
            stats_handler=stats_handler,
        ) as text,
        await client.add_service("text", "1.1.0") as newer,
        await client.add_service("numbers", "2.0.0"),
    ):
        schema = EndpointSchema("text", "TEXT")
        await text.add_endpoint("upper", upper, metadata={"a": "b"}, schema=schema)
        await client.flush()
        services = other.services()
        pings = [one async for one in services.ping()]
        assert sorted((one.name, one.version) for one in pings) == [
            ("numbers", "2.0.0"),
            ("text", "1.0.0"),
            ("text", "1.1.0"),
        ]
        assert {one.id async for one in services.ping("text")} == {text.id, newer.id}
        [info] = [one async for one in services.info("text", text.id)]
        assert info == text.info()
        assert (info.description, info.metadata) == ("letters", {"region": "eu"})
        assert info.endpoints is not None
        assert (info.endpoints[0].metadata, info.endpoints[0].schema) == ({"a": "b"}, schema)
        await other.request("upper", b"x")
        await until(lambda: text.stats().endpoints[0].num_requests == 1)  # type: ignore[index]
        [stats] = [one async for one in services.stats("text", text.id)]
        assert stats == text.stats()
        assert stats.endpoints is not None
        assert (stats.endpoints[0].num_requests, stats.endpoints[0].data) == (1, {"of": "upper"})
        assert [one async for one in services.ping("unknown")] == []
        with pytest.raises(MisuseError):
            await anext(services.ping(id="x"))


async def test_a_prefix_moves_the_discovery_to_other_subjects(client: Client, other: Client) -> None:
    async with await client.add_service("hidden", "1.0.0", prefix="acc.SRV"):
        await client.flush()
        assert [one.name async for one in other.services(prefix="acc.SRV").ping()] == ["hidden"]
        assert [one async for one in other.services().ping("hidden")] == []


async def test_a_stats_handler_that_raises_is_an_error_of_the_answer(url: str, other: Client) -> None:
    reported: list[Exception] = []
    async with penstock.connect(url, on_error=lambda _, error: reported.append(error)) as owner:
        service = await owner.add_service("bad", "1.0.0", stats_handler=lambda _: 1 / 0)
        await service.add_endpoint("e", upper)
        await owner.flush()
        with pytest.raises(ServiceError, match="ZeroDivisionError in the stats handler"):
            await anext(other.services().stats("bad", service.id))
        assert [type(error) for error in reported] == [ZeroDivisionError]
        assert [one.name async for one in other.services().ping("bad", service.id)] == ["bad"]


# --- ending --------------------------------------------------------------------------------------


async def test_stopping_handles_what_has_arrived_and_nothing_more(client: Client, other: Client) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(request: ServiceMsg) -> bytes:
        entered.set()
        await asyncio.wait_for(release.wait(), 10)
        return request.data

    service = await client.add_service("slow", "1.0.0")
    await service.add_endpoint("slow", slow)
    await client.flush()
    requests = [asyncio.ensure_future(other.request("slow", b"%d" % number)) for number in range(5)]
    await other.flush()
    await asyncio.wait_for(entered.wait(), 10)
    stopping = asyncio.ensure_future(service.stop())
    await client.flush()
    assert not service.is_stopped
    release.set()
    assert await service.done() is None
    await stopping
    assert [(await request).data for request in requests] == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(NoRespondersError):
        await other.request("slow")
    assert [one async for one in other.services().ping("slow")] == []
    await service.stop()


async def test_a_drained_client_ends_its_services_first(url: str, other: Client) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(request: ServiceMsg) -> bytes:
        entered.set()
        await asyncio.wait_for(release.wait(), 10)
        return b"done"

    owner = await penstock.connect(url)
    service = await owner.add_service("slow", "1.0.0")
    await service.add_endpoint("slow", slow)
    await owner.flush()
    request = asyncio.ensure_future(other.request("slow"))
    await asyncio.wait_for(entered.wait(), 10)
    draining = asyncio.ensure_future(owner.drain())
    await asyncio.sleep(0)
    release.set()
    await draining
    assert service.is_stopped
    assert (await request).data == b"done"


async def test_draining_unsubscribes_once_and_handles_what_the_server_sent_before() -> None:
    unsubscribed: list[bytes] = []
    answered = asyncio.Event()

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        while line := await peer.line():
            if line.startswith(b"UNSUB"):
                unsubscribed.append(line)
            if line == b"PING":
                if unsubscribed and not answered.is_set():
                    peer.send(b"MSG upper 10 answer 3\r\nabc\r\n")
                peer.send(b"PONG\r\n")
            if line == b"PUB answer 3":
                assert await peer.line() == b"ABC"
                answered.set()

    async with scripted_server(script) as url:
        owner = await penstock.connect(url)
        service = await owner.add_service("text", "1.0.0")
        await service.add_endpoint("upper", upper)
        await owner.drain()
        assert answered.is_set()
    assert sorted(unsubscribed) == sorted(b"UNSUB %d" % sid for sid in range(1, 11))


async def test_a_service_ends_with_its_client(url: str) -> None:
    owner = await penstock.connect(url)
    service = await owner.add_service("a", "1.0.0")
    await owner.close()
    assert await service.done() is None
    with pytest.raises(ConnectionClosedError):
        await owner.add_service("a", "1.0.0")


async def test_a_service_whose_subject_is_denied_ends_with_the_reason() -> None:
    denied = b'-ERR \'Permissions Violation for Subscription to "secret" using queue "q"\'\r\n'

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        while line := await peer.line():
            if line.startswith(b"SUB secret"):
                peer.send(denied)
            if line == b"PING":
                peer.send(b"PONG\r\n")

    async with scripted_server(script) as url, penstock.connect(url, on_error=lambda *_: None) as owner:
        service = await owner.add_service("a", "1.0.0")
        await service.add_endpoint("secret", upper)
        assert isinstance(await service.done(), PermissionsError)


async def test_a_handler_may_stop_its_service(client: Client, other: Client) -> None:
    service = await client.add_service("once", "1.0.0")

    @service.endpoint()
    async def once(request: ServiceMsg) -> bytes:
        await service.stop()
        return b"the last one"

    await client.flush()
    assert (await other.request("once")).data == b"the last one"
    assert await service.done() is None


async def test_handlers_that_do_not_end_are_cancelled_and_reported(url: str, other: Client) -> None:
    reported: list[Exception] = []
    entered = asyncio.Event()

    async def never(request: ServiceMsg) -> None:
        entered.set()
        await asyncio.Event().wait()

    async with penstock.connect(
        url, drain_timeout=0.05, on_error=lambda _, error: reported.append(error)
    ) as owner:
        service = await owner.add_service("never", "1.0.0")
        await service.add_endpoint("never", never)
        await owner.flush()  # the server knows the subscription before the other client publishes
        await other.publish("never")
        await asyncio.wait_for(entered.wait(), 5)
        await service.stop(error=ValueError("why"))
        assert str(await service.done()) == "why"
        assert [str(error) for error in reported] == ["service 'never': 1 handlers did not end within 0.05 s"]


# --- many answers --------------------------------------------------------------------------------


@pytest.mark.feature("client.request-many")
async def test_a_sentinel_ends_the_answers_and_is_not_one_of_them(client: Client, other: Client) -> None:
    async def count(msg: Msg) -> None:
        for number in range(3):
            await msg.respond(b"%d" % number)
        await msg.respond(b"")
        await msg.respond(b"too late")

    await client.subscribe("count", callback=count)
    await client.flush()
    started = other.loop.time()
    answers = other.request_many("count", sentinel=True, timeout=60)
    assert [msg.data async for msg in answers] == [b"0", b"1", b"2"]
    answers = other.request_many("count", sentinel=lambda msg: msg.data == b"1", timeout=60)
    assert [msg.data async for msg in answers] == [b"0"]
    answers = other.request_many("count", max_messages=2, timeout=60)
    assert [msg.data async for msg in answers] == [b"0", b"1"]
    answers = other.request_many("count", stall=0.05, timeout=60)
    assert len([msg async for msg in answers]) == 5
    answers = other.request_many("count", timeout=0.05, stall=0.05)
    assert len([msg async for msg in answers]) == 5
    assert other.loop.time() - started < 60
    assert not [one for one in other._session._subscriptions.values() if not one.is_internal]


@pytest.mark.feature("client.request-many")
async def test_a_lost_connection_ends_the_answers_with_an_error(client: Client, url: str) -> None:
    async def one(msg: Msg) -> None:
        await msg.respond(b"one")

    await client.subscribe("one", callback=one)
    await client.flush()
    async with penstock.connect(url, **FAST) as asking:
        answers = asking.request_many("one", timeout=60)
        assert (await anext(answers)).data == b"one"
        await asking.force_reconnect()
        with pytest.raises(DisconnectedError, match="'one' waited for answers"):
            await anext(answers)


# --- other clients -------------------------------------------------------------------------------


async def test_nats_py_finds_and_uses_our_service(client: Client, url: str) -> None:
    theirs = await nats.connect(url)
    try:
        async with await client.add_service("ours", "1.0.0", metadata={"a": "b"}) as service:
            await service.group("g").add_endpoint("upper", upper)

            @service.endpoint()
            async def fail(request: ServiceMsg) -> None:
                raise ServiceError(404, "gone")

            await client.flush()
            assert (await theirs.request("g.upper", b"abc")).data == b"ABC"
            failed = (await theirs.request("fail")).headers
            assert failed == {"Nats-Service-Error": "gone", "Nats-Service-Error-Code": "404"}
            from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

            answers: dict[str, Any] = {}
            for verb, kind in (("PING", ServicePing), ("INFO", ServiceInfo), ("STATS", ServiceStats)):
                msg = await theirs.request(f"$SRV.{verb}.ours")
                answers[verb] = kind.from_dict(json.loads(msg.data))
            assert answers["PING"].id == answers["INFO"].id == service.id
            assert [one.subject for one in answers["INFO"].endpoints] == ["g.upper", "fail"]
            assert [one.num_errors for one in answers["STATS"].endpoints] == [0, 1]
    finally:
        await theirs.close()


async def test_we_find_and_use_a_service_of_nats_py(client: Client, url: str) -> None:
    theirs = await nats.connect(url)
    try:
        service = await nats.micro.add_service(theirs, name="theirs", version="1.2.3", description="d")

        async def handler(request: nats.micro.request.Request) -> None:
            if request.data == b"bad":
                raise nats.micro.request.ServiceError("400", "bad request")
            await request.respond(request.data * 2)

        await service.add_endpoint(name="double", handler=handler, metadata={"a": "b"})
        # nats-py writes the PING of a flush before what waits for its flusher, here the endpoint's SUB:
        # the second PING comes after it.
        await theirs.flush()
        await theirs.flush()
        services = client.services()
        assert (await services.request("double", b"ab")).data == b"abab"
        with pytest.raises(ServiceError) as caught:
            await services.request("double", b"bad")
        assert (caught.value.code, caught.value.description) == (400, "bad request")
        [info] = [one async for one in services.info("theirs")]
        assert (info.version, info.description, info.endpoints[0].metadata) == ("1.2.3", "d", {"a": "b"})  # type: ignore[index]
        [stats] = [one async for one in services.stats("theirs", service.id)]
        assert (stats.endpoints[0].num_requests, stats.endpoints[0].num_errors) == (2, 1)  # type: ignore[index]
        await service.stop()
    finally:
        await theirs.close()


async def test_the_nats_command_finds_and_uses_our_service(client: Client, url: str) -> None:
    nats_cli()
    async with await client.add_service("ours", "1.0.0", description="letters") as service:
        await service.add_endpoint("upper", upper, metadata={"region": "eu"})
        await client.flush()

        async def run(*arguments: str) -> str:
            return await asyncio.to_thread(run_nats, url, "service", *arguments)

        assert "ABC" in await run("request", "ours", "upper", "abc")
        listed = await run("list")
        assert "ours" in listed
        assert service.id in listed
        info = await run("info", "ours", service.id)
        assert "letters" in info
        assert "upper" in info
        assert "ours" in await run("stats", "ours")


async def test_we_find_and_use_a_service_of_the_nats_command(client: Client, url: str) -> None:
    command = [nats_cli(), "--server", url, "--no-context", "service", "serve", "theirs"]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    try:
        services = client.services()

        async def is_there() -> bool:
            return bool([one async for one in services.ping("theirs", stall=0.01)])

        await until(is_there)
        [info] = [one async for one in services.info("theirs")]
        assert info.endpoints
        answer = await services.request(info.endpoints[0].subject, b"abc")
        assert answer.data
        [stats] = [one async for one in services.stats("theirs", info.id)]
        assert stats.endpoints
        assert sum(one.num_requests for one in stats.endpoints) == 1
    finally:
        process.kill()
        await asyncio.wait_for(process.wait(), 10)


# --- lost connections ----------------------------------------------------------------------------


async def request_until_answered(services: Services) -> list[ClientError]:
    """Repeats a request until it is answered; the errors before."""
    errors: list[ClientError] = []
    while True:
        try:
            assert (await services.request("upper", b"abc", timeout=0.2)).data == b"ABC"
        except (DisconnectedError, NoRespondersError, RequestTimeoutError) as error:
            errors.append(error)
            assert len(errors) < 100
            await asyncio.sleep(0.01)
        else:
            return errors


async def one_run(url: str, *, through: str, cut_after: int) -> list[str]:
    """A service and a request to it, one of their connections through a proxy; the frames it forwarded."""
    async with frame_proxy(url, cut_after) as (proxy, proxy_url):
        options = {**FAST, "retry_on_failed_connect": True, "on_error": lambda *_: None}
        async with (
            penstock.connect(proxy_url if through == "service" else url, **options) as owner,
            await owner.add_service("text", "1.0.0") as service,
        ):
            await service.add_endpoint("upper", upper)
            async with penstock.connect(proxy_url if through == "requester" else url, **options) as asking:
                services = asking.services()
                await request_until_answered(services)
                await request_until_answered(services)
                try:
                    found = [one.id async for one in services.ping("text", timeout=0.5, stall=0.05)]
                except DisconnectedError:  # cut right then; what asks many once is not asked again
                    assert proxy.was_cut
                else:
                    assert found in ([service.id], [])
                await until(lambda: proxy.connections == 1 + proxy.was_cut)  # once, also after the last frame
                frames = list(proxy.frames)
            counts = service.stats().endpoints
            assert counts is not None
            assert counts[0].num_requests >= 2
            assert counts[0].num_errors == 0
        return frames


@pytest.mark.parametrize("through", ["service", "requester"])
async def test_a_request_is_answered_whatever_step_a_connection_is_cut_at(url: str, through: str) -> None:
    # Timers decide how many frames a run has: the steps end with the first run that was over before its cut.
    for cut_after in itertools.count(1):
        frames = await one_run(url, through=through, cut_after=cut_after)
        if len(frames) < cut_after:
            break
    assert frames[:4] == ["< INFO", "> CONNECT", "> PING", "< PONG"]
    assert len([frame for frame in frames if frame.endswith("PUB")]) >= 2  # requests, or their answers
