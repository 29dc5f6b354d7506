"""The extras of the distribution: the modules of each, and the errors for a part that can't be used here: its
extra is not installed, or this Python is too old for it.

`penstock-nats` alone is the client. A part that needs more calls `need` before it imports what it needs, so
that the error names the extra to install, and not the first module that happened to be imported. Parts that
must start quickly call `need` only when they start.

Rejected: `except ImportError` around each import. It reports one module of several, hides errors inside an
installed package, and each new import needs one more (docs/decisions/0020-extras-and-wheels.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from penstock.errors import MissingExtraError, UnsupportedPythonError

_CLI = ("rich", "typer")
_SPARK = ("pandas", "pyarrow", "pyspark")

EXTRAS: dict[str, tuple[str, ...]] = {
    "server": (
        "bcrypt",
        "cryptography",
        "h11",
        "nacl",
        "prometheus_client",
        "starlette",
        "uvicorn",
        "wsproto",
        "zstandard",
    ),
    "nkeys": ("cryptography",),
    "websocket": ("wsproto",),
    "arrow": ("pyarrow",),
    "otel": ("opentelemetry",),
    "cli": _CLI,
    "spark": _SPARK,
    "executor": ("pandas", "pyarrow"),
    "avro": ("fastavro",),
    "protobuf": ("google.protobuf",),
    "pipelines": ("matplotlib", *_CLI, *_SPARK),
}
"""Import names by extra, as pyproject.toml has the distributions.

uvloop is in the extra `server` and not here: a server runs on asyncio's own event loop where it has no wheel.
"""


def need(part: str, *extras: str) -> None:
    """Checks that the extras a part needs are installed; the part's name begins the error.

    Raises:
        MissingExtraError: a module of these extras can't be found; it says what to install.
    """
    missing = {extra: lacking for extra in extras if (lacking := _lacking(EXTRAS[extra]))}
    if missing:
        modules = sorted({name for names in missing.values() for name in names})
        raise MissingExtraError(
            f"{part} needs {', '.join(modules)}: pip install 'penstock-nats[{','.join(missing)}]'",
            name=modules[0],
        )


def need_python(part: str, minimum: tuple[int, int] = (3, 11)) -> None:
    """Checks that this Python is new enough for a part; the part's name begins the error.

    Python 3.10 has the Spark source and sink only, since Spark 4.0 to 4.2 run on it, in their own images too.

    Raises:
        UnsupportedPythonError: it is older; the error says which version to use.
    """
    if sys.version_info < minimum:
        found, wanted = (".".join(map(str, version[:2])) for version in (sys.version_info, minimum))
        raise UnsupportedPythonError(
            f"{part} needs Python {wanted} or later, this is {found}, on which penstock has only the Spark "
            "source and sink (penstock.spark)"
        )


def _lacking(modules: tuple[str, ...]) -> list[str]:
    unknown = [name for name in modules if sys.modules.get(name) is None]
    if not unknown:
        return []
    from importlib.util import find_spec

    return [name for name in unknown if not _is_found(find_spec, name)]


def _is_found(find_spec: Callable[[str], object], name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # `google.protobuf` where no package has the namespace `google`
        return False
