"""Faults at call sites: which calls our code makes while it works, and one of them made to raise.

A call site is a place in the product's Python code that calls a Python function of the product or a kernel,
or a function of the product that a kernel or the event loop calls. They are found by watching a run
(`sys.setprofile`), so code that is added tomorrow is covered. A fault is raised in place of the call: the
product is wrapped by the interpreter, not edited.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from penstock import faults

# Raising there says nothing about containment: this is the mechanism itself, and what only starts a server.
_LEFT_OUT = ("/faults.py", "/testing/", "/client/", "/cli/", "/spark/")
_KERNELS = "penstock.kernels"


class Site(NamedTuple):
    """Where the call stands, and what is called."""

    caller: str
    line: int
    callee: str


class InjectedError(Exception):
    """The fault."""


def _file(frame: FrameType) -> str:
    return _file_of(frame.f_code.co_filename)


@functools.cache
def _file_of(name: str) -> str:
    """The product's file of this name, "" when it is none."""
    at = name.rfind("/penstock/")
    if at < 0 or "/src/" not in name or any(part in name for part in _LEFT_OUT):
        return ""
    return name[at + len("/penstock/") :]


def _site(frame: FrameType, event: str, arg: Any) -> Site | None:
    if event == "call":
        if frame.f_code is _KERNEL_CALL:
            caller = frame.f_back
            callee = frame.f_locals["function"].__qualname__
        else:
            if not _file(frame):
                return None
            caller, callee = frame.f_back, frame.f_code.co_qualname
        inside = _file(caller) if caller is not None else ""
        if caller is None or not inside:
            return None if frame.f_code is _KERNEL_CALL else Site("", 0, f"{_file(frame)} {callee}")
        return Site(inside, caller.f_lineno, callee)
    if event == "c_call":
        owner = type(getattr(arg, "__self__", None))
        inside = _file(frame)
        if inside and owner.__module__.startswith(_KERNELS):
            return Site(inside, frame.f_lineno, f"{owner.__name__}.{arg.__name__}")
    return None


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def kernel_call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return kernel_call


_KERNEL_CALL = _wrapped(len).__code__


@contextmanager
def visible_kernels() -> Iterator[None]:
    """The profiler doesn't see calls of compiled functions: modules of the product call them by wrappers."""
    changed: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if not name.startswith("penstock.") or name.startswith(_KERNELS):
            continue
        for key, value in list(vars(module).items()):
            if type(value).__name__ == "cython_function_or_method":
                changed.append((module, key, value))
                setattr(module, key, _wrapped(value))
    try:
        yield
    finally:
        for module, key, value in changed:
            setattr(module, key, value)


@contextmanager
def recorded(sites: dict[Site, None]) -> Iterator[None]:
    """Adds the call sites that are passed."""

    def look(frame: FrameType, event: str, arg: Any) -> None:
        site = _site(frame, event, arg)
        if site is not None:
            sites[site] = None

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


class Injection:
    """Raises at one site: once, or (`always`) each time that what is worked on is the victim's.

    is_victims, is_bystanders: of a value that some function on the stack works with. Work for a bystander is
    spared: that it is not served would be right.
    """

    def __init__(
        self,
        site: Site,
        *,
        always: bool,
        is_victims: Callable[[Any], bool],
        is_bystanders: Callable[[Any], bool],
    ) -> None:
        self.raised = 0
        self._site = site
        self._name = site.callee.rpartition(".")[2].rpartition(" ")[2]
        self._always = always
        self._is_victims = is_victims
        self._is_bystanders = is_bystanders
        self._is_over = False

    @contextmanager
    def armed(self) -> Iterator[Injection]:
        """The fault is raised from now on."""
        with faults.watch(lambda where, error: self.rearm()):
            self.rearm()
            try:
                yield self
            finally:
                self._is_over = True
                sys.setprofile(None)

    def rearm(self) -> None:
        """An exception takes the profiler away; a boundary gives it back, and so does the scenario."""
        if not self._is_over and (self._always or not self.raised):
            sys.setprofile(self._look)

    def _look(self, frame: FrameType, event: str, arg: Any) -> None:
        # This runs at every call there is, nearly always for nothing.
        if event == "call":
            code = frame.f_code
            if code.co_name != self._name and code is not _KERNEL_CALL:
                return
        elif event != "c_call" or arg.__name__ != self._name:
            return
        if _site(frame, event, arg) == self._site and self._is_meant(frame):
            self.raised += 1
            raise InjectedError(f"{self._site}")

    def _is_meant(self, frame: FrameType) -> bool:
        values = list(_values_of(frame))
        if any(map(self._is_bystanders, values)):
            return False
        return not self._always or any(map(self._is_victims, values))


def _values_of(frame: FrameType | None) -> Iterator[Any]:
    """What the functions on the stack were given. (Other variables may be left of a loop that is over.)"""
    while frame is not None:
        if _file(frame):
            code, found = frame.f_code, frame.f_locals
            given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] + code.co_freevars
            yield from (found[name] for name in given if name in found)
        frame = frame.f_back
