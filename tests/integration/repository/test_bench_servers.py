"""The servers of the benchmark: what an error shows when one does not start."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    spec = importlib.util.spec_from_file_location("bench_servers", BENCH / "servers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_servers", module)
    spec.loader.exec_module(module)
    return module


def test_a_server_that_ends_at_its_start_is_quoted(servers: ModuleType, tmp_path: Path) -> None:
    code = "import sys; print('\\n'.join(f'line {n}' for n in range(50))); sys.exit('no store here')"
    server = servers.ServerProcess("one", [sys.executable, "-c", code], tmp_path / "store")
    with pytest.raises(servers.LoadError) as caught:
        server.start()
    lines = str(caught.value).splitlines()
    assert lines[0] == "one ended with 1:"
    assert "    line 49" in lines
    assert "    no store here" in lines
    assert "    line 5" not in lines
