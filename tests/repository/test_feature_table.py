"""The table of features: what the generator reads in tests, what it refuses, and ids that do not exist."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENTRY = '[areas]\na = "A"\n\n[a.b]\ntitle = "T"\ndescribed = "ADR-1"\n'


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("feature_table", ROOT / "tools/feature_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_document_is_what_the_table_and_the_tests_give(table: ModuleType) -> None:
    areas, features = table.read_table((ROOT / "docs/features.toml").read_text())
    text = table.generate(areas, features, table.read_tests(ROOT / "tests"))
    assert (ROOT / "docs/features.md").read_text() == text, "run make features"


def test_markers_of_modules_classes_and_functions_are_read(table: ModuleType) -> None:
    source = (
        "pytestmark = [pytest.mark.slow, pytest.mark.feature('a.module')]\n"
        "@pytest.mark.feature('a.one', 'a.two')\n"
        "@pytest.mark.feature('a.three')\n"
        "async def test_function(): ...\n"
        "@pytest.mark.feature('a.class')\n"
        "class TestClass:\n"
        "    @pytest.mark.feature('a.method')\n"
        "    def test_method(self): ...\n"
        "    def helper(self): ...\n"
        "TestMachine = Machine.TestCase\n"
        "@pytest.mark.feature('a.none')\n"
        "def helper(): ...\n"
    )
    assert [*table.marked(source)] == [
        {"a.module", "a.one", "a.two", "a.three"},
        {"a.module", "a.class", "a.method"},
        {"a.module"},
    ]


def test_a_name_that_is_computed_is_refused(table: ModuleType) -> None:
    with pytest.raises(SystemExit, match="name features by texts"):
        [*table.marked("@pytest.mark.feature(NAME)\ndef test_it(): ...\n")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('status = "wrong"', "a.b has status wrong"),
        ('status = "stricter"', "a.b is stricter, and no note says how or why"),
        ('status = "same"\nwhere = "x"', "a.b has the unknown field where"),
        ("", "a.b has no status"),
        ('status = "same"\n[c.d]\ntitle = "T"', "has no title for c"),
    ],
)
def test_an_entry_that_can_not_be_used_is_named(table: ModuleType, line: str, text: str) -> None:
    with pytest.raises(SystemExit, match=text):
        table.read_table(ENTRY + line + "\n")


def test_a_feature_that_no_test_names_shows_in_the_document(table: ModuleType) -> None:
    areas, features = table.read_table(ENTRY + 'status = "same"\n')
    untested = table.generate(areas, features, {})
    assert "0 of 1 features" in untested
    assert "| T<br>`a.b` | ADR-1 | **same** | no test |" in untested
    tested = table.generate(areas, features, {"a.b": {ROOT / "tests/unit/test_x.py": 2}})
    assert "| 2: [unit/x](../tests/unit/test_x.py) |" in tested


class Marked:
    """What the hook needs of a collected test."""

    nodeid = "tests/test_it.py::test_it"

    def __init__(self, *features: str) -> None:
        self._features = features

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [getattr(pytest.mark, name)(*self._features).mark]


def test_a_test_of_an_unknown_feature_is_refused_by_the_table_and_by_pytest(
    table: ModuleType, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(SystemExit, match=r"names a\.c, which is not in features\.toml"):
        table.generate(*table.read_table(ENTRY + 'status = "same"\n'), {"a.c": {ROOT / "tests/test_x.py": 1}})
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    assert conftest is not None
    with pytest.raises(pytest.UsageError, match=r"'core\.nothing', which docs/features\.toml does not have"):
        conftest.pytest_itemcollected(Marked("core.messages", "core.nothing"))
    conftest.pytest_itemcollected(Marked("core.messages"))
