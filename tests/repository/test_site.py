"""The pages of the documentation site that are made from the code, and its menu; `make docs` checks links."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock.client
import penstock.errors
from penstock.client import (
    ConnectOptions,
    ConsumerSettings,
    KeyValueSettings,
    ObjectStoreSettings,
    StreamSettings,
)
from penstock.client.options import Options

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "tools/site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(page: str, title: str) -> dict[str, list[str]]:
    """First column of the table below a heading -> its other cells."""
    section = re.split(rf"^## {re.escape(title)}\n", page, flags=re.M)[1].split("\n## ")[0]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return {one[0].strip(" `"): [text.strip() for text in one[1:]] for one in cells}


@pytest.mark.parametrize(
    ("title", "settings"),
    [
        ("connect", ConnectOptions),
        ("Streams", StreamSettings),
        ("Consumers", ConsumerSettings),
        ("Key-value buckets", KeyValueSettings),
        ("Object stores", ObjectStoreSettings),
    ],
)
def test_every_keyword_of_a_call_is_a_row_of_its_option_table(
    site: ModuleType, title: str, settings: Any
) -> None:
    table = rows(site.pages()["options-client.md"], title)
    assert set(settings.__annotations__) <= set(table)


def test_a_row_has_the_type_the_default_and_the_text_of_the_code(site: ModuleType) -> None:
    table = rows(site.pages()["options-client.md"], "connect")
    assert set(table) == set(ConnectOptions.__annotations__)
    defaults = {name: parameter.default for name, parameter in inspect.signature(Options).parameters.items()}
    assert {name: eval(cells[1].strip("`")) for name, cells in table.items()} == defaults
    assert table["nkey_seed"][0] == r"`str \| None`"
    assert table["connect_timeout"][2] == "Per server, for TCP, TLS and the NATS handshake together."


def test_the_server_s_tables_have_text_for_every_option(site: ModuleType) -> None:
    for options in site.SERVER_OPTIONS:
        assert [one.name for one in site.fields(options.module, options.name) if not one.text] == []


def test_every_error_and_every_number_is_in_the_list_of_errors(site: ModuleType) -> None:
    page = site.pages()["errors.md"]
    kinds = [
        kind
        for kind in vars(penstock.errors).values()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    ]
    listed = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (.*) \|$", page, re.M))
    assert set(listed) == {kind.__name__ for kind in kinds}
    assert [name for name, text in listed.items() if not text] == []
    numbers = {error["err_code"] for error in json.loads((ROOT / "schemas/errors.json").read_text())}
    assert {int(number) for number in re.findall(r"^\| (\d{5}) \|", page, re.M)} == numbers


def test_every_public_name_of_the_client_is_on_one_page_of_the_reference(site: ModuleType) -> None:
    names = [name for _, listed in site.CLIENT_NAMES.values() for name in listed]
    assert sorted(names) == penstock.client.__all__


def test_the_reference_names_what_the_other_modules_export(site: ModuleType) -> None:
    for _, module, chosen in site.OTHER_MODULES.values():
        exported = site.exported(module)
        assert exported
        assert set(chosen or ()) <= set(exported)


def test_every_page_is_in_the_menu(site: ModuleType) -> None:
    menu = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1])
    folders = (DOCS, DOCS / "operations")
    documents = [str(page.relative_to(DOCS)) for folder in folders for page in folder.glob("*.md")]
    hooks = (ROOT / "tools/site_hooks.py").read_text()
    at_root = re.findall(r'"[A-Z]+\.md": "(.+)",', hooks)
    assert sorted(menu) == sorted([*documents, *site.pages(), *at_root, "decisions/README.md"])
