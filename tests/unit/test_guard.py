"""The guard that keeps unit tests inside of their process."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.no_sockets import GUARD, OutsideError


@pytest.mark.parametrize(
    ("reach_out", "refused"),
    [
        (socket.socket, "a socket of family AF_INET"),
        (lambda: socket.create_connection(("::1", 4222)), "a socket of family AF_INET6"),
        (lambda: subprocess.run(["java", "-version"], check=False), "the program java"),
    ],
)
def test_a_unit_test_that_reaches_outside_is_refused(reach_out: Callable[[], object], refused: str) -> None:
    with pytest.raises(OutsideError, match=f"a unit test opens {refused}: move it to tests/integration"):
        reach_out()
    assert GUARD[0].stop() == [refused]  # else this test would fail when it ends


def test_pairs_of_sockets_and_other_pythons_are_allowed() -> None:
    for one in socket.socketpair():
        one.close()
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
