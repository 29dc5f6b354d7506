"""Builds the compiled kernels; everything else about the package is in pyproject.toml.

PENSTOCK_DEBUG_KERNELS=1 builds with bounds checks and assertions on.
PENSTOCK_SANITIZE=1 builds with assertions and the address and undefined-behaviour sanitizers, without bounds
checks: the sanitizers must see what a release would do. `make asan` does it, into a directory of its own.
PENSTOCK_KERNELS=frames,subjects builds only those (used by `make kernel K=...`); `none` builds none, so that
pip can install the package and `make setup` builds the kernels, in parallel and only what changed.
"""

import compileall
import os
from pathlib import Path
from py_compile import PycInvalidationMode

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
DEBUG = os.environ.get("PENSTOCK_DEBUG_KERNELS") == "1"
SANITIZE = os.environ.get("PENSTOCK_SANITIZE") == "1"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
QUIET = ["-Wno-unused-variable", "-Wno-unused-function"]  # of the C that Cython writes
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
ONLY = set(filter(None, os.environ.get("PENSTOCK_KERNELS", "").split(",")))


def compiler_flags() -> list[str]:
    if SANITIZE:
        return ["-O1", "-g", *SANITIZERS]
    return ["-O1", "-g"] if DEBUG else ["-O3", "-g0"]


def kernels() -> list[Extension]:
    sources = sorted((ROOT / "src/penstock/kernels").rglob("*.pyx"))
    return [
        Extension(
            ".".join(source.relative_to(ROOT / "src").with_suffix("").parts),
            [str(source.relative_to(ROOT))],
            extra_compile_args=[*compiler_flags(), *QUIET],
            extra_link_args=SANITIZERS if SANITIZE else [],
            define_macros=[] if DEBUG or SANITIZE else [("CYTHON_WITHOUT_ASSERTIONS", "1")],
        )
        for source in sources
        if not ONLY or source.stem in ONLY
    ]


class BuildInParallel(build_ext):
    """Compiles on all cores unless `--parallel` says otherwise; setuptools uses one."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = CORES


class BuildWithBytecode(build_py):
    """A wheel has its bytecode in it: not every installer writes it, and without it a server's start takes
    twice as long.

    It holds as long as the sources have the hash they had here; their times change with the installation.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            compileall.compile_dir(
                self.build_lib,
                quiet=1,
                stripdir=self.build_lib,
                invalidation_mode=PycInvalidationMode.CHECKED_HASH,
            )


if __name__ == "__main__":  # where processes are spawned, those that run Cython import this file
    setup(
        cmdclass={"build_ext": BuildInParallel, "build_py": BuildWithBytecode},
        ext_modules=cythonize(
            kernels(),
            language_level=3,
            annotate=False,
            nthreads=CORES,
            build_dir="build/cython",
            compiler_directives={
                "boundscheck": DEBUG,
                "wraparound": False,  # kernels never index from the end, in either build
                "cdivision": not DEBUG,
                "initializedcheck": DEBUG,
                "embedsignature": True,
                "freethreading_compatible": False,
            },
        ),
    )
