"""pytest fixtures, available wherever penstock is installed.

`nats_server`: a new server with JetStream in memory per test.
`nats_server_factory`: starts servers with any options; all stop at the end of the test.

Every pytest run in an environment with penstock imports this module, so it imports only pytest until a
fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.embedded import EmbeddedServer


@pytest.fixture
def nats_server_factory() -> Iterator[Callable[..., EmbeddedServer]]:
    """A function that starts a server, with the arguments of `penstock.testing.server`."""
    from penstock.testing import server

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(server(**options))


@pytest.fixture
def nats_server(nats_server_factory: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server with empty in-memory JetStream, stopped after the test: `nats_server.url`."""
    return nats_server_factory(jetstream=True)
