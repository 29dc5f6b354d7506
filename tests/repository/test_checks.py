"""Repository checks beyond linters: exports, kernels, documents, and words that must not come back."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import io
import re
import subprocess
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

import penstock
import penstock.client

ROOT = Path(__file__).resolve().parents[2]
KERNELS = sorted(
    ".".join(path.relative_to(ROOT / "src/penstock/kernels").with_suffix("").parts)
    for path in (ROOT / "src/penstock/kernels").rglob("*.pyx")
)

# Kernels without a face of their own: what holds the other one against its model holds these too.
TESTED_THROUGH = {
    "consumer.ack_encoding": "consumer.ack_state",
    "log.log_core": "log.stream_log",
    "log.message_block": "log.stream_log",
    "log.subject_chains": "log.filter_cursor",
    "log.subject_state": "log.stream_log",
}


@cache
def committed_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_the_package_exports_exactly_these_names() -> None:
    assert sorted(penstock.__all__) == EXPORTED
    for name in EXPORTED:
        assert getattr(penstock, name) is not None, name


EXPORTED: list[str] = sorted(["Server", "__version__", "connect", "errors"])


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_compiled(kernel: str) -> None:
    module = importlib.import_module(f"penstock.kernels.{kernel}")
    assert module.__file__ is not None
    assert module.__file__.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)), "run `make setup`"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_has_types_and_a_test_that_holds_it_against_a_model(kernel: str) -> None:
    source = ROOT / f"src/penstock/kernels/{kernel.replace('.', '/')}.pyx"
    has_face = re.search(r"^(def|cpdef|class|cdef class) ", source.read_text(), re.MULTILINE) is not None
    assert source.with_suffix(".pyi").exists() == has_face
    tests = [path.read_text() for path in (ROOT / "tests/kernels").rglob("test_*.py")]
    name = TESTED_THROUGH.get(kernel, kernel)
    using = [text for text in tests if re.search(rf"penstock\.kernels\.{re.escape(name)}\b", text)]
    assert using, f"no test in tests/kernels imports penstock.kernels.{name}"
    assert any("hypothesis" in text and "tests.reference" in text for text in using)


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    # Put together here, so that this file does not name one itself.
    patterns = [rf"/{name}/" for name in ("work", "root", "Users")]
    forbidden = re.compile("|".join(rf"(?<![\w.\]*~}}-]){pattern}" for pattern in patterns).encode())
    found = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in committed_files()
        for match in forbidden.finditer(path.read_bytes())
    ]
    assert found == []


def test_no_work_is_left_marked_as_undone() -> None:
    marks = re.compile(rb"\b(T[O]DO|F[I]XME|X[X]X)\b")
    found = [
        str(path.relative_to(ROOT))
        for path in committed_files()
        if path.suffix in (".py", ".pyx", ".pxd", ".pyi") and marks.search(path.read_bytes())
    ]
    assert found == []


def test_no_test_cites_a_row_of_a_table() -> None:
    """Tests name features by markers. Where tables and their rows are the subject, rows have numbers."""
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in committed_files()
        if path.suffix in (".py", ".pyx", ".pxd", ".pyi", ".md")
        if not {"spark", "pipelines"} & set(path.parts)
        for match in re.finditer(r"\b[Rr]ows? \d+", path.read_text())
    ]
    assert found == []


def test_every_make_command_the_readme_names_exists() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)\b", (ROOT / "README.md").read_text(), re.M))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert named
    assert named <= targets


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert broken == []


# Writes to attributes of other objects (`stream.syncing = True`). Lower a number when a change removes some.
FOREIGN_WRITES_MAX = {"jetstream": 0, "server": 4}


def foreign_writes(path: Path) -> list[str]:
    """The assignments of a module to attributes of anything but `self` and `cls`, with their lines."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(one, ast.Attribute) and ast.unparse(one.value) not in ("self", "cls"):
                    found.append(f"{path.relative_to(ROOT)}:{one.lineno}: {ast.unparse(one)}")
    return found


@pytest.mark.parametrize("package", FOREIGN_WRITES_MAX)
def test_objects_change_their_attributes_themselves(package: str) -> None:
    """A write from outside bypasses the invariants of its object: call a method, or construct it complete."""
    modules = (ROOT / "src/penstock" / package).rglob("*.py")
    found = [write for path in sorted(modules) for write in foreign_writes(path)]
    assert len(found) <= FOREIGN_WRITES_MAX[package], "\n".join(found)


# Files of `jetstream` and `server` that use more than REACHED_MAX attributes of one shared object, by the
# name that it has in them; those of its own package do not count. Lower a number when a change removes some.
REACHED_MAX = 5
REACHING_FILES_MAX = {
    ("stream", "jetstream/stream/"): 12,
    ("consumer", "jetstream/consumer/"): 4,
    ("engine", "jetstream/engine.py"): 4,
    ("session", "server/session.py"): 11,
    ("server", "server/server.py"): 5,
    ("context", "server/server_context.py"): 4,
}


# Here `stream` and `consumer` are frozen values, which concern no other file.
VALUES = "jetstream/meta/"


def reached_attributes(source: str, name: str) -> set[str]:
    """The attributes of an object called `name` that a module uses, a parameter or one of its own."""
    return set(re.findall(rf"(?<![\w.])(?:self\._?)?{name}\.([a-z_]\w*)", source))


@pytest.mark.parametrize(("name", "own"), REACHING_FILES_MAX)
def test_few_files_use_many_attributes_of_one_object(name: str, own: str) -> None:
    """What a file needs of an object comes as narrow ports: else a change of the object concerns them all."""
    assert reached_attributes("stream.a.b; self._stream.c; self.stream.d; streams.e", "stream") == set("acd")
    package = ROOT / "src/penstock"
    modules = [*(package / "jetstream").rglob("*.py"), *(package / "server").rglob("*.py")]
    found = {
        str(path.relative_to(package)): len(reached)
        for path in modules
        if not str(path.relative_to(package)).startswith((own, VALUES))
        and len(reached := reached_attributes(path.read_text(), name)) > REACHED_MAX
    }
    assert len(found) <= REACHING_FILES_MAX[name, own], found


def cycles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import each other, directly or not."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            new = imports[waiting.pop()] - found
            found |= new
            waiting += new
        reached[start] = found
    inside = [frozenset(b for b in reached[a] if a in reached[b]) for a in imports if a in reached[a]]
    return [set(one) for one in dict.fromkeys(inside)]


def test_modules_of_the_server_do_not_import_each_other_in_a_circle() -> None:
    """Not behind imports within functions either; those for type checkers do not count."""
    graph = grimp.build_graph("penstock", exclude_type_checking_imports=True, cache_dir=None)
    modules = {name for name in graph.modules if name.startswith("penstock.server.")}
    imports = {name: graph.find_modules_directly_imported_by(name) & modules for name in modules}
    assert cycles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == [{"a", "b"}]
    assert cycles(imports) == []


WORDING = tomllib.loads((Path(__file__).parent / "wording.toml").read_text())

# The same base name or class name twice, with the reason; all others are unique in src.
SHARED_MODULE_NAMES = {
    "__init__": "packages",
    "__main__": "commands of the package and of its simulation",
    "archive": "a kernel for archives of streams, and a Spark pipeline into Parquet",
    "memory": "a kernel that allocates, and the store in memory; a traceback shows .pyx or .py",
}
SHARED_CLASS_NAMES: dict[str, str] = {}


def modules() -> list[Path]:
    """Python modules and kernels below src."""
    return [path for path in committed_files() if "src" in path.parts and path.suffix in (".py", ".pyx")]


def plain_text(path: Path) -> str:
    """A file as running text: comment marks and line breaks are blanks; of the changelog the top section."""
    text = path.read_text()
    if path.name == "CHANGELOG.md":
        text = "".join(re.split(r"^(?=## )", text, flags=re.M)[:2])
    return " ".join(line.strip().lstrip("#: ") for line in text.split("\n"))


def test_the_prose_uses_plain_words() -> None:
    forbidden = re.compile(rf"\b(?:{'|'.join(WORDING['phrases'])})\b", re.I)
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    found = [
        f"{path.relative_to(ROOT)}: {text[max(match.start() - 30, 0) : match.end() + 30]!r}"
        for path in [*(one for one in committed_files() if "src" in one.parts), *pages]
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".md")
        for text in [plain_text(path)]
        for match in forbidden.finditer(text)
    ]
    assert found == [], "the comments in wording.toml name plain words"


def prose_of(path: Path) -> str:
    """The comments and docstrings of a Python file as running text: the payloads of tests are no prose."""
    tokens = [
        token.string.strip("#\"' ")
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.COMMENT
        or (token.type == tokenize.STRING and token.string.startswith('"""'))
    ]
    return " ".join(" ".join(tokens).split())


def test_the_prose_of_tests_and_tools_uses_plain_words() -> None:
    forbidden = re.compile(rf"\b(?:{'|'.join(WORDING['phrases'])})\b", re.I)
    found = [
        f"{path.relative_to(ROOT)}: {text[max(match.start() - 30, 0) : match.end() + 30]!r}"
        for path in committed_files()
        if path.suffix == ".py" and "src" not in path.parts
        if forbidden.search(plain_text(path))  # few files: reading tokens takes long
        for text in [prose_of(path)]
        for match in forbidden.finditer(text)
    ]
    assert found == [], "the comments in wording.toml name plain words"


def names_in(source: str) -> list[str]:
    """Functions and classes, their words separated by blanks: names of tests are sentences."""
    names = re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", source, re.M)
    return [name.replace("_", " ") for name in names]


def test_the_names_of_tests_use_plain_words() -> None:
    assert names_in("async def a_b(c): ...\nclass D:\n    def e(self): ...\nx = 'def f'") == ["a b", "D", "e"]
    forbidden = re.compile(rf"\b(?:{'|'.join(WORDING['phrases'])})\b", re.I)
    found = [
        f"{path.relative_to(ROOT)}: {name!r}"
        for path in committed_files()
        if path.suffix == ".py" and "tests" in path.relative_to(ROOT).parts
        for name in names_in(path.read_text())
        if forbidden.search(name)
    ]
    assert found == [], "the comments in wording.toml name plain words"


def private_names(source: str) -> Iterator[tuple[int, str]]:
    """Names of wording.toml that a source uses as identifiers or in section comments, with their lines."""
    names = WORDING["names"]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string in names:
            yield token.start[0], token.string
        elif token.type == tokenize.COMMENT and token.string.startswith("# --"):
            yield from ((token.start[0], word) for word in re.findall(r"\w+", token.string) if word in names)


def test_no_name_with_a_private_meaning_is_used_again() -> None:
    names = WORDING["names"]
    example = "FEW = few\n# --- wiring ---\n# wiring\nx = 'FEW'\n"
    assert list(private_names(example)) == [(1, "FEW"), (2, "wiring")]
    anywhere = re.compile(rf"\b(?:{'|'.join(names)})\b")
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}, better {names[name]}"
        for path in committed_files()
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd")
        for text in [path.read_text()]
        if anywhere.search(text)
        for line, name in private_names(text)
    ]
    assert found == []


def test_each_module_and_class_of_the_package_has_a_name_of_its_own() -> None:
    """A log line or a traceback then says which one it was."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        if path.stem not in SHARED_MODULE_NAMES:
            places[path.stem].append(str(path.relative_to(ROOT)))
        classes = re.findall(r"^(?:cdef )?class (\w+)", path.read_text(), re.M)
        for name in classes:
            if path.parent.name == "sync" and hasattr(penstock.client, name):
                continue  # those of penstock.sync have the names of the async ones
            if name not in SHARED_CLASS_NAMES:
                places[f"class {name}"].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
