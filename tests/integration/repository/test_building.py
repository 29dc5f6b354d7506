"""Kernels are built on all cores; wheels are tested where there is no compiler, for every Python found."""

from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from setuptools.dist import Distribution

ROOT = Path(__file__).parents[3]


def loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    return loaded("tools/wheels.py")


def test_kernels_are_compiled_on_all_cores_unless_a_number_is_given() -> None:
    setup = loaded("setup.py")
    for given, expected in ((None, len(os.sched_getaffinity(0))), ("3", 3)):
        command = setup.BuildInParallel(Distribution({"name": "penstock-nats"}))
        command.parallel = given
        command.ensure_finalized()
        assert command.parallel == expected


def test_wheels_are_built_for_every_python_that_is_supported(wheels: ModuleType) -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert required == f">={wheels.versions()[0]}"
    makefile = (ROOT / "Makefile").read_text()
    complete = [version for version in wheels.versions() if version not in wheels.SPARK_ONLY]
    assert complete
    assert all(f"python{version}" in makefile for version in complete)  # what it is developed with


@pytest.mark.parametrize(
    "name", "cc c++ c99 gcc gcc-12 g++-12 x86_64-linux-gnu-gcc-12 clang clang++-16 cpp as ld ld.gold".split()
)
def test_a_path_without_compilers_has_none_of_these(name: str, wheels: ModuleType) -> None:
    assert wheels.COMPILER.fullmatch(name)


@pytest.mark.parametrize("name", ["bash", "cat", "java", "ps", "ldd", "ccat", "asa", "env", "gccgo-docs"])
def test_a_path_without_compilers_has_everything_else(name: str, wheels: ModuleType) -> None:
    assert not wheels.COMPILER.fullmatch(name)


def test_a_python_without_headers_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheels: ModuleType
) -> None:
    bare = tmp_path / "python3.11"
    bare.write_text("#!/bin/sh\necho 'it has no Python.h' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(wheels, "USUAL_PLACES", ())
    found, reason = wheels.interpreter("3.11")
    assert found is None
    assert re.fullmatch(r".*/python3.11 can't be used: it has no Python.h", reason)
    assert wheels.interpreter("3.12") == (None, "no python3.12 on PATH or in a usual place")
