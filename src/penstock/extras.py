"""The extras of the distribution: the modules of each, and the error for a part whose extra is not installed.

`penstock-nats` alone is the client. A part that needs more calls `need` before it imports what it needs, so
that the error names the extra to install, and not the first module that happened to be imported. Parts that
must start quickly call `need` only when they start.

Rejected: `except ImportError` around each import. It reports one module of several, hides errors inside an
installed package, and each new import needs one more (docs/decisions/0020-extras-and-wheels.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from penstock.errors import MissingExtraError

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
