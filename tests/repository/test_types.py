"""mypy --strict accepts a program that uses every public call, and refuses planted mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.client import (
    ConsumerConfig,
    ConsumerSettings,
    OrderedConsumerSettings,
    StreamConfig,
    StreamSettings,
)
from penstock.client.config import make_config
from penstock.client.ordered import SETTINGS
from penstock.server.config.server_options import ServerOptions
from tests.typing.mistakes import MISTAKES, SAMPLE, planted, without_async
from tests.unit.sync.test_same_api import WRAPPED, expected_members

pytestmark = pytest.mark.feature("client.types")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of the samples and the planted mistakes.

    One run with a cache that stays: most of its time goes into reading the package and typeshed. In a process
    of its own: within this one, the objects that mypy leaves would make later collections take a second.
    """
    folder = tmp_path_factory.mktemp("types")
    asynchronous = [line for line in MISTAKES if line != "client.publish('a', 5)"]
    files = {
        "sample_async.py": SAMPLE,
        "sample_sync.py": without_async(SAMPLE),
        "wrong_async.py": planted([*asynchronous, "client.publish('a', b'')"]),
        "wrong_sync.py": without_async(planted(list(MISTAKES))),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    configuration = folder / "mypy.ini"
    configuration.write_text(
        f"[mypy]\nstrict = True\nmypy_path = {ROOT / 'src'}\ncache_dir = {ROOT / '.mypy_cache/samples'}\n"
        "local_partial_types = True\nfollow_imports = silent\n"
        "[mypy-pyarrow.*,xxhash.*,opentelemetry.*]\nignore_missing_imports = True\nfollow_imports = skip\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(configuration)]
    done = subprocess.run(
        [*command, *(str(folder / name) for name in files)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return [line.replace(f"{folder}/", "") for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["sample_async.py", "sample_sync.py"])
def test_a_program_with_every_public_call_has_no_type_errors(checked: list[str], name: str) -> None:
    assert [line for line in checked if name in line] == []


@pytest.mark.parametrize("name", ["wrong_async.py", "wrong_sync.py"])
def test_every_planted_mistake_is_refused(checked: list[str], name: str) -> None:
    first = planted([]).count("\n") + 1
    is_sync = name == "wrong_sync.py"
    expected = [pair for pair in MISTAKES.items() if is_sync or pair[0] != "client.publish('a', 5)"]
    if name == "wrong_async.py":
        expected.append(("client.publish('a', b'')", "unused-coroutine"))
    found: dict[int, str] = {}
    for line in checked:
        match = re.search(rf"{name}:(\d+): error: .*\[([a-z-]+)\]", line)
        if match:
            found.setdefault(int(match[1]), "")
            found[int(match[1])] += f" {match[2]}"
    assert [(line, kind in found.get(first + at, "")) for at, (line, kind) in enumerate(expected)] == [
        (line, True) for line, _ in expected
    ]


def test_the_sample_uses_every_public_call() -> None:
    left_out = {"Options", "EndpointStats"}
    missing = {
        f"{name}.{member}"
        for name in WRAPPED
        if name not in left_out
        for member in expected_members(name)
        if not re.search(rf"\.{member}\b", SAMPLE)
    }
    assert missing == set()


@pytest.mark.parametrize(
    ("settings", "config"), [(StreamSettings, StreamConfig), (ConsumerSettings, ConsumerConfig)]
)
def test_settings_have_the_fields_of_their_configuration(settings: type, config: type) -> None:
    assert set(settings.__annotations__) == set(config.__struct_fields__)  # type: ignore[attr-defined]


def test_the_settings_of_an_ordered_consumer_are_those_it_takes() -> None:
    assert set(OrderedConsumerSettings.__annotations__) == set(SETTINGS)


def test_the_settings_of_the_server_are_its_options() -> None:
    source = (ROOT / "src/penstock/server/config/server_settings.py").read_text()
    found = dict(re.findall(r"^    (\w+): (.+)$", source.split("class ServerSettings")[1], re.M))
    expected = {name: str(kind) for name, kind in ServerOptions.__annotations__.items()}
    beside = ("host", "port", "jetstream")  # arguments of their own
    assert found == {name: kind for name, kind in expected.items() if name not in beside}


def test_settings_take_what_their_types_say() -> None:
    made = make_config(StreamConfig, {"name": "S", "max_age": timedelta(hours=1), "storage": "memory"})
    assert (made.max_age, made.storage) == (3600, "memory")


def test_every_setting_that_needs_an_explanation_has_one() -> None:
    source = (ROOT / "src/penstock/client/config.py").read_text()
    for config in (StreamConfig, ConsumerConfig):
        body = source.split(f"class {config.__name__}(")[1].split("\nclass ")[0]
        explained = set(re.findall(r'^    (\w+): .*\n    """', body, re.M))
        plain = {
            "description", "metadata", "placement", "consumer_limits", "storage", "max_bytes",
            "max_consumers", "max_msgs_per_subject", "priority_policy",
        }  # fmt: skip
        assert set(config.__struct_fields__) - explained <= plain
