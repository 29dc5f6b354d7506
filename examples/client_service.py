"""A service with two endpoints, found and used by another client.

    python examples/client_service.py [nats://127.0.0.1:4222]

It needs a server: `penstock serve`, or any other NATS server.
"""

import asyncio
import sys

import penstock.client
from penstock.client import ServiceMsg
from penstock.errors import ServiceError

PRICES = {"apple": 30, "pear": 45}


async def main(url: str) -> None:
    async with (
        penstock.client.connect(url) as client,
        await client.add_service("fruit", "1.0.0", description="prices of fruit") as fruit,
    ):
        prices = fruit.group("fruit")

        @prices.endpoint(metadata={"currency": "cent"})
        async def price(request: ServiceMsg) -> str:
            name = request.data.decode()
            if name not in PRICES:
                raise ServiceError(404, f"no {name} here")
            return str(PRICES[name])

        @prices.endpoint("names", queue="")
        async def names_of_all(request: ServiceMsg) -> None:
            for name in PRICES:
                await request.respond(name)
            await request.respond()

        await client.flush()
        async with penstock.client.connect(url) as buyer:
            services = buyer.services()
            async for instance in services.info("fruit"):
                subjects = [endpoint.subject for endpoint in instance.endpoints or ()]
                print(f"{instance.name} {instance.version}: {', '.join(subjects)}")
            answers = buyer.request_many("fruit.names", sentinel=True)
            async for name in answers:
                answer = await services.request("fruit.price", name.data)
                print(f"{name.data.decode()}: {answer.data.decode()}")
            try:
                await services.request("fruit.price", "plum")
            except ServiceError as error:
                print(f"{error.code}: {error.description}")
        [counts, _] = fruit.stats().endpoints or ()
        print(f"{counts.num_requests} requests, {counts.num_errors} of them failed")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
