"""Fixtures for pytest, there wherever penstock is installed.

`nats_server`: a fresh server with JetStream in memory for each test that asks for it.
`nats_server_factory`: starts as many as a test wants, with any options; all stop with the test.

This module is imported by every pytest run of an environment with penstock in it, so it imports nothing
but pytest until a fixture is used.
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
    """A server with JetStream, nothing stored, gone after the test: `nats_server.url`."""
    return nats_server_factory(jetstream=True)
