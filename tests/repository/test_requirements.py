"""What the package accepts of others: no version with a published advisory; what is installed for development
is written down exactly."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FIXED = {
    "starlette": "1.3.1",
    "h11": "0.16",
    "cryptography": "50",
    "pynacl": "1.6.2",
    "pyarrow": "23.0.1",
    "setuptools": "83",
    "aiohttp": "3.14.3",
}
"""The first version without an advisory that was published by 2026-11; raise these, never lower them."""


GROUPS = ("deploy", "fuzz", "wheel", "docs", "pyright")


def requirements() -> list[Requirement]:
    project = PROJECT["project"]
    texts = [*PROJECT["build-system"]["requires"], *project["dependencies"]]
    texts += [text for extra in project["optional-dependencies"].values() for text in extra]
    texts += [text for group in GROUPS for text in PROJECT["dependency-groups"][group]]
    return [found for found in map(Requirement, texts) if found.name != project["name"]]


def pinned() -> dict[str, Version]:
    lines = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if not line.startswith("#"))
    return {name: Version(version) for name, version in pins}


@pytest.mark.parametrize("name", FIXED)
def test_no_version_with_an_advisory_is_accepted(name: str) -> None:
    found = [requirement for requirement in requirements() if requirement.name == name]
    assert found
    for requirement in found:
        bounds = [Version(spec.version) for spec in requirement.specifier if spec.operator == ">="]
        assert bounds
        assert max(bounds) >= Version(FIXED[name]), requirement


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_what_development_needs_is_pinned_to_a_version_that_is_accepted(requirement: Requirement) -> None:
    version = pinned()[requirement.name.lower()]
    assert version in requirement.specifier


def test_setup_installs_nothing_that_is_not_pinned() -> None:
    # Environments with other versions of Spark have constraints of their own, without it.
    installs = [
        line
        for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
        if "pip install" in line and "$(SPARK_VENVS)" not in line
    ]
    assert len(installs) == 3
    assert all("--constraint $(PINNED)" in line for line in installs)
    assert {"pip", "setuptools", "cython"} <= pinned().keys()
