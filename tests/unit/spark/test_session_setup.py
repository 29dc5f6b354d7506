"""Which Python a session runs, and which source it has, for those who said nothing and those who did."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark import session_setup, source
from penstock.spark.session_setup import ensure_spark, is_discovered, run_this_python
from penstock.spark.source import JetStreamSource, register

pytestmark = pytest.mark.feature("spark.sessions")


class FakeSession:
    """A classic session: what `register` asks it, and what it did to it."""

    def __init__(self, *, master: str = "local[2]", discovered: object = True, **settings: str) -> None:
        self.settings = settings
        self.conf = SimpleNamespace(set=self.settings.__setitem__)
        self.sparkContext: Any = SimpleNamespace(
            master=master, pythonExec="python3", environment={}, getConf=lambda: self.settings
        )
        self.registered: list[type] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)
        self.discovered = discovered
        manager = SimpleNamespace(dataSourceExists=self.exists)
        state = SimpleNamespace(dataSourceManager=lambda: manager)
        self._jsparkSession = SimpleNamespace(sessionState=lambda: state)

    def exists(self, name: str) -> object:
        assert name == "jetstream"
        if isinstance(self.discovered, Exception):
            raise self.discovered
        return self.discovered


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"):
        monkeypatch.setenv(name, "")  # and put back afterwards


def test_a_source_that_spark_found_is_not_registered_again() -> None:
    session = FakeSession()
    register(session)  # type: ignore[arg-type]
    assert session.registered == []
    assert session.settings["spark.sql.python.filterPushdown.enabled"] == "true"


def test_spark_takes_a_reader_for_one_without_pushdown_until_it_calls_it() -> None:
    """As Spark's planning process looks at it; with the setting on another process calls the method."""
    from pyspark.sql.datasource import DataSourceReader, EqualTo
    from pyspark.sql.types import StructType

    def reader(**options: str) -> Any:
        made = JetStreamSource({"stream": "S", **options})
        return made.reader(made.schema() if not options else StructType([]))  # type: ignore[arg-type]

    wanted = EqualTo(("stream",), "S")
    plain = reader()
    assert getattr(plain.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    assert list(plain.pushFilters([wanted])) == []
    assert plain.pushed is not None
    without = reader(pushFilters="false")
    assert list(without.pushFilters([wanted])) == [wanted]
    assert without.pushed is None
    insisting = reader(pushFilters="true")
    assert insisting.pushFilters.__func__ is not DataSourceReader.pushFilters


def test_a_source_that_spark_did_not_find_is_registered() -> None:
    session = FakeSession(discovered=False)
    register(session)  # type: ignore[arg-type]
    assert session.registered == [JetStreamSource]


def test_where_the_platform_forbids_the_question_the_source_is_registered() -> None:
    from py4j.protocol import Py4JError

    session = FakeSession(discovered=Py4JError("not allowed"))
    assert not is_discovered(session, "jetstream")  # type: ignore[arg-type]
    register(session)  # type: ignore[arg-type]
    assert session.registered == [JetStreamSource]


def test_a_session_of_spark_connect_has_no_context_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession()
    del session.sparkContext, session._jsparkSession
    monkeypatch.setattr(source, "is_connect", lambda spark: True)
    register(session)  # type: ignore[arg-type]
    assert session.registered == [JetStreamSource]


def test_a_local_session_runs_this_python_unless_one_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def python(session: FakeSession) -> str:
        run_this_python(session)  # type: ignore[arg-type]
        return str(session.sparkContext.pythonExec)

    assert python(FakeSession()) == sys.executable
    assert python(FakeSession(master="spark://host:7077")) == "python3"
    assert python(FakeSession(**{"spark.pyspark.python": "/other"})) == "python3"
    monkeypatch.setenv("PYSPARK_PYTHON", "/other")
    assert python(FakeSession()) == "python3"


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    monkeypatch.setattr(session_setup, "ensure_java", lambda cache: done.append("java"))
    monkeypatch.setattr(session_setup, "ensure_compiled_spark", lambda cache: done.append("modules"))
    return done


def test_a_local_session_gets_java_compiled_modules_and_this_python(
    prepared: list[str], tmp_path: Path
) -> None:
    ensure_spark(tmp_path)
    assert prepared == ["java", "modules"]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_chosen_python_is_kept(prepared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/other/python")
    ensure_spark()
    assert os.environ["PYSPARK_PYTHON"] == "/other/python"


@pytest.mark.parametrize("variable", ["PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"])
def test_where_the_jvm_is_there_already_nothing_is_changed(
    prepared: list[str], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    ensure_spark()
    assert prepared == []
    assert not os.environ["PYSPARK_PYTHON"]
