"""What every part of a server may use: its options, log, clock, randomness and identity.

Parts take a `ServerContext` and the few objects they work with instead of the server. So a part can be read,
and tested, without the rest.

Invariant: `options` are those in effect. A reload replaces them, so parts read them on every use.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.server.server_identity import new_curve_key, new_server_id, new_server_key

if TYPE_CHECKING:
    from penstock.server.config.server_options import ServerOptions
    from penstock.server.logging.logs import Log

RANDOM_BYTES = 64


class CoarseRandom:
    """Random numbers in [0, 1) with 8 bits, to spread timers.

    Not those of `random`, whose import costs start-up time. Bytes are taken from the system many at a time: a
    call for each number was a thirtieth of the cost of a connection.
    """

    def __init__(self) -> None:
        self._left = bytearray()

    def __call__(self) -> float:
        if not self._left:
            self._left += os.urandom(RANDOM_BYTES)
        return self._left.pop() / 256


class ServerContext:
    """The surroundings of a server's parts.

    Args:
        options: the options at the start.
        log: log output.
        clock: returns ns since 1970.
        random: returns a random number in [0, 1); None = `CoarseRandom`.
    """

    def __init__(
        self,
        options: ServerOptions,
        log: Log,
        *,
        clock: Callable[[], int] = time.time_ns,
        random: Callable[[], float] | None = None,
    ) -> None:
        self.options = options
        self.log = log
        self.clock = clock
        self.random = random or CoarseRandom()
        signs = options.auth_callout is not None or options.trusts_operators
        self.key = new_server_key() if signs else None
        self.curve_key = new_curve_key() if signs else None
        self.server_id = new_server_id() if self.key is None else self.key.public
        self.server_name = options.server_name or self.server_id

    def use_options(self, options: ServerOptions) -> None:
        """Puts other options in effect. The owner of what was derived from the previous ones renews it."""
        self.options = options
