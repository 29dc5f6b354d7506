"""The client needs msgspec only; other parts say which extra to install when theirs is missing."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement

import penstock
from penstock.errors import MissingExtraError, UnsupportedPythonError
from penstock.extras import EXTRAS, need, need_python
from penstock.spark.executor_archive import MODULES, PACKAGES
from tests.support.processes import ENVIRONMENT

pytestmark = pytest.mark.feature("embedding.extras")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = PROJECT["optional-dependencies"]
IMPORT_NAMES = {
    "opentelemetry-api": "opentelemetry",
    "prometheus-client": "prometheus_client",
    "protobuf": "google.protobuf",
    "pynacl": "nacl",
}
TIMEOUT_S = 60.0
# What publishing, subscribing and JetStream requests take; kernels of the server are none of them.
CLIENT_KERNELS = {"base", "base.memory", "wire", "wire.frames", "wire.output"}


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """The environment of a child that finds the standard library, penstock and msgspec, run with -S."""
    assert msgspec.__file__ is not None
    (tmp_path / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    path = os.pathsep.join([str(Path(penstock.__file__).parents[1]), str(tmp_path)])
    return {**os.environ, "PYTHONPATH": path}


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def modules_of(extra: str) -> set[str]:
    """The import names of what pyproject.toml has for an extra, those of its other extras included."""
    found: set[str] = set()
    for one in map(Requirement, OPTIONAL[extra]):
        if one.name == PROJECT["name"]:
            found |= {name for inner in one.extras for name in modules_of(inner)}
        elif one.marker is None:  # what is not for every platform is not needed either
            found.add(IMPORT_NAMES.get(one.name, one.name))
    return found


def test_penstock_alone_depends_on_msgspec_only() -> None:
    assert [Requirement(one).name for one in PROJECT["dependencies"]] == ["msgspec"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_modules_of_an_extra_are_those_of_its_requirements(extra: str) -> None:
    assert set(EXTRAS[extra]) == modules_of(extra)


def test_all_has_every_extra_and_development_has_all() -> None:
    assert OPTIONAL.keys() == {*EXTRAS, "all", "dev"}
    assert Requirement(OPTIONAL["all"][0]).extras == EXTRAS.keys()
    assert f"{PROJECT['name']}[all]" in OPTIONAL["dev"]


def test_the_client_is_imported_with_msgspec_and_the_wire_kernels_only(alone: dict[str, str]) -> None:
    code = (
        "import sys; import penstock.client, penstock.protocol, penstock.errors\n"
        "assert penstock.connect is penstock.client.connect\n"
        "print(*(name for name in sys.modules if name.startswith('penstock.')))"
    )
    ended = run(code, alone)
    assert ended.returncode == 0, ended.stderr
    names = ended.stdout.split()
    assert {name.split(".")[1] for name in names} == {"client", "errors", "extras", "kernels", "protocol"}
    loaded = {name for name in names if name.startswith("penstock.kernels.")}
    assert loaded == {f"penstock.kernels.{name}" for name in CLIENT_KERNELS}


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import penstock; penstock.Server", "server"),
        ("from penstock import Server", "server"),
        ("import penstock.testing; penstock.testing.server()", "server"),
        ("from penstock.spark import register", "spark"),
        ("from penstock.protocol.nkeys import KeyPair; KeyPair('SU')", "nkeys"),
        ("from penstock.client.servers import ServerPool; ServerPool('wss://h')", "websocket"),
        ("from penstock.client.otel import OpenTelemetry; OpenTelemetry()", "otel"),
        ("from penstock.protocol.nkeys import verify; verify('U', b'', b'')", "nkeys"),
    ],
)
def test_a_part_without_its_extra_names_the_extra(code: str, extra: str, alone: dict[str, str]) -> None:
    ended = run(code, alone)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("penstock.errors.MissingExtraError: ")
    assert last.endswith(f": pip install 'penstock-nats[{extra}]'")
    assert all(name in last for name in modules_of(extra))


@pytest.mark.parametrize(
    ("command", "extras"),
    [
        ("serve -p -1", "server"),
        ("pub subject text", "cli"),
        ("store check .", "cli,server"),
        ("pipeline archive S path", "pipelines"),
    ],
)
def test_a_command_without_its_extra_names_the_extra(
    command: str, extras: str, alone: dict[str, str]
) -> None:
    ended = run(f"from penstock.cli.main import main; raise SystemExit(main({command.split()}))", alone)
    assert ended.returncode == 2
    assert ended.stdout == ""
    words = " ".join(command.split()[:1])
    assert re.fullmatch(
        rf"penstock {words} needs [\w, ]+: pip install 'penstock-nats\[{extras}\]'\n", ended.stderr
    )


@pytest.mark.parametrize("command", ["version", "help"])
def test_commands_that_need_no_extra_work_without_any(command: str, alone: dict[str, str]) -> None:
    ended = run(f"from penstock.cli.main import main; raise SystemExit(main([{command!r}]))", alone)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "penstock" in ended.stdout


def test_a_client_with_a_key_says_that_nkeys_are_missing_before_a_server_is_asked(
    alone: dict[str, str],
) -> None:
    code = (
        "import asyncio, penstock\n"
        "async def main():\n"
        "    await penstock.connect('nats://127.0.0.1:1', nkey_seed='SU')\n"
        "asyncio.run(main())"
    )
    assert run(code, alone).stderr.endswith("needs cryptography: pip install 'penstock-nats[nkeys]'\n")


def test_the_pytest_plugin_loads_without_the_server(alone: dict[str, str]) -> None:
    # pytest itself is given: each pytest run of an environment with penstock imports the plugin.
    given = "import sys, types; sys.modules['pytest'] = fake = types.ModuleType('pytest')\n"
    code = f"{given}fake.fixture = lambda made: made\nimport penstock.testing.plugin as p\n"
    assert run(code, alone).returncode == 0
    ended = run(f"{code}next(p.nats_server_factory())", alone)
    assert "pip install 'penstock-nats[server]'" in ended.stderr.splitlines()[-1]


def test_only_extras_with_something_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    need("a part", "cli", "avro")
    monkeypatch.setitem(sys.modules, "fastavro", None)  # as if it could not be found
    with pytest.raises(ImportError, match=r"^a part needs fastavro: pip install 'penstock-nats\[avro\]'$"):
        need("a part", "cli", "avro")


def test_a_missing_extra_is_an_import_error_with_the_name_of_a_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(MissingExtraError) as caught:
        need("a part", "cli")
    assert caught.value.name == "typer"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.name) == (str(caught.value), "typer")


def test_a_part_that_this_python_is_too_old_for_names_the_version() -> None:
    need_python("a part", sys.version_info[:2])
    with pytest.raises(
        UnsupportedPythonError, match=r"^a part needs Python 3\.99 or later, this is 3\.1\d, "
    ) as caught:
        need_python("a part", (3, 99))
    assert isinstance(caught.value, ImportError)


def test_what_spark_imports_needs_python_3_10_only() -> None:
    """vermin knows the standard library of each version. tools/wheels.py runs a wheel on 3.10."""
    root = Path(penstock.__file__).parent
    files = [root / name for name in MODULES]
    files += [
        file
        for package in PACKAGES
        for file in (root / package).rglob("*.py")
        if "pipelines" not in file.parts  # commands, which need a later version as a whole
    ]
    found = subprocess.run(
        [sys.executable, "-c", "import vermin; vermin.main()", "--target=3.10-", "--violations", *files],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert found.returncode == 0, found.stdout


def test_looking_for_a_module_does_not_import_it() -> None:
    code = (
        "import sys; from penstock.extras import need; need('it', 'avro'); print('fastavro' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert ended.stdout == "False\n"
