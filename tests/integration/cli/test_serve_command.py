"""`penstock serve` as a process: flags, files, log lines, signals, exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.support.rawnats import RawNats
from tests.support.wire import Wire, wait_until

pytestmark = pytest.mark.feature("cli.serve", "operations.signals")

TIMEOUT_S = 20.0
LISTENING = re.compile(r"\[INF\] Listening for client connections on (\S+):(\d+)\n")


class Process:
    """A served server. `log` grows with what it writes to stderr."""

    def __init__(self, arguments: tuple[str, ...], log: Path, program: list[str]) -> None:
        self.log_path = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*program, *arguments], stderr=stderr, stdout=subprocess.DEVNULL, env=ENVIRONMENT
            )
        wait_until(
            lambda: "Server is ready" in self.log or self.process.poll() is not None, "the server", TIMEOUT_S
        )
        assert self.process.poll() is None, self.log

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def port(self) -> int:
        match = LISTENING.search(self.log)
        assert match is not None, self.log
        return int(match[2])

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)


# The package may be used from the source tree without being installed.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parent.parent)}
SERVE = [sys.executable, "-m", "penstock", "serve"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def run(*arguments: str, program: list[str] | None = None) -> Process:
        process = Process(
            ("-a", "127.0.0.1", "-p", "-1", *arguments), tmp_path / f"{len(started)}.log", program or SERVE
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.process.kill()
        process.process.wait()


def run(*arguments: str, program: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(program or SERVE), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=ENVIRONMENT,
    )


def test_it_tells_where_it_listens_and_that_it_is_ready(start: Callable[..., Process]) -> None:
    process = start()
    lines = process.log.splitlines()
    assert re.fullmatch(
        rf"\[{process.process.pid}\] \d{{4}}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{{6}} \[INF\] "
        rf"Starting penstock {re.escape(penstock.__version__)}, which speaks NATS 2\.\d+\.\d+",
        lines[0],
    )
    assert f"Listening for client connections on 127.0.0.1:{process.port}" in process.log
    assert lines[-1].endswith("[INF] Server is ready")
    with Wire(process.port) as wire:
        wire.connect()
        assert wire.info["port"] == process.port


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupt")])
def test_signals_end_it_cleanly(start: Callable[..., Process], number: int, name: str) -> None:
    process = start()
    with Wire(process.port) as wire:
        wire.connect()
        assert process.end(number) == 0
        assert wire.rest() == b""
    assert f'Trapped "{name}" signal' in process.log
    assert "Initiating Shutdown..." in process.log
    assert process.log.endswith("[INF] Server Exiting..\n")
    assert "Traceback" not in process.log


def test_flags_win_over_the_configuration_file(start: Callable[..., Process], tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("port: 1\nserver_name: from_file\nmax_payload: 1234\ndebug: true\n")
    process = start("-c", str(config), "--name", "from_flag", "--debug=false")
    with Wire(process.port) as wire:
        assert (wire.info["server_name"], wire.info["max_payload"]) == ("from_flag", 1234)
    assert f"Using configuration file: {config} (sha256:" in process.log
    assert "[DBG]" not in process.log


def test_the_configuration_file_has_what_flags_do_not_say(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(
        f"authorization {{ user: a, password: b }}\njetstream {{ store_dir: '{tmp_path}/js' }}\n"
    )
    process = start(f"--config={config}")
    with Wire(process.port) as wire:
        assert wire.info["auth_required"] is True
        assert wire.info["jetstream"] is True
    assert f'Store Directory: "{tmp_path}/js/jetstream"' in process.log


def test_credentials_from_flags(start: Callable[..., Process]) -> None:
    process = start("--user", "a", "--pass", "b")
    with Wire(process.port) as wire:
        wire.connect(user="a", **{"pass": "b"})
    token = start("--auth", "s3cr3t")
    with Wire(token.port) as wire:
        wire.connect(auth_token="s3cr3t")


def test_pid_log_and_ports_files(start: Callable[..., Process], tmp_path: Path) -> None:
    pid_file, log_file = tmp_path / "x.pid", tmp_path / "x.log"
    command = (*SERVE, "-a", "127.0.0.1", "-p", "-1", "-m", "-1", "-DV")
    files = ("-P", str(pid_file), "-l", str(log_file), "--ports_file_dir", str(tmp_path))
    process = subprocess.Popen([*command, *files], stderr=subprocess.PIPE, env=ENVIRONMENT)
    try:
        wait_until(lambda: log_file.exists() and "Server is ready" in log_file.read_text(), "the log file")
        assert pid_file.read_text() == str(process.pid)
        (ports_file,) = tmp_path.glob(f"nats-server_{process.pid}.ports")
        ports = json.loads(ports_file.read_text())
        assert re.fullmatch(r"nats://127\.0\.0\.1:\d+", ports["nats"][0])
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", ports["monitoring"][0])
        port = int(ports["nats"][0].rsplit(":", 1)[1])
        with Wire(port) as wire:
            wire.connect(name="me", lang="test", version="1", **{"pass": "hidden"})
            wire.ask(b"SUB foo 1\r\n")
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
        log = log_file.read_text()
        assert "[TRC]" in log
        assert "[SUB foo 1]" in log
        assert '"v1:test:me"' in log
        assert "hidden" not in log
        assert "Client connection closed: Client Closed" in log
        assert not pid_file.exists()
        assert not ports_file.exists()
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_what_was_stored_is_there_after_a_restart(start: Callable[..., Process], tmp_path: Path) -> None:
    flags = ("-js", "-sd", str(tmp_path / "store"))
    first = start(*flags)
    nats = RawNats(first.port)
    created = nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    assert "error" not in created
    for n in range(1, 101):
        assert nats.request("s", n) == {"stream": "S", "seq": n}
    nats.publish("s", b"unacked, but received before the end")
    nats.flush()
    nats.close()
    assert first.end() == 0
    second = start(*flags)
    nats = RawNats(second.port)
    state = nats.request("$JS.API.STREAM.INFO.S")["state"]
    assert (state["first_seq"], state["last_seq"]) == (1, 101)
    nats.close()


def test_version_and_help() -> None:
    assert re.fullmatch(r"nats-server: v\d+\.\d+\.\d+\n", run("-v").stdout)
    assert run("--version").stdout == run("-v").stdout
    shown = run("--help")
    assert shown.returncode == 0
    assert "--store_dir" in shown.stdout


def test_a_launcher_named_nats_server_needs_no_command(tmp_path: Path) -> None:
    launcher = tmp_path / "nats-server"
    launcher.write_text(
        f"#!{sys.executable}\nimport sys\nfrom penstock.cli.main import main\nsys.exit(main())\n"
    )
    launcher.chmod(0o755)
    assert run("-v", program=[str(launcher)]).stdout.startswith("nats-server: v")


@pytest.mark.parametrize("words", [["serve", "--version"], ["version"]])
def test_only_a_server_ends_its_process_without_finalizing_the_interpreter(words: list[str]) -> None:
    code = (
        "import atexit, sys\n"
        "from penstock.cli.main import main\n"
        "atexit.register(print, 'finalized')\n"
        f"sys.argv = ['penstock', *{words}]\n"
        "sys.exit(main())\n"
    )
    ended = run("-c", code, program=[sys.executable])
    assert ended.returncode == 0
    assert "v2." in ended.stdout or "NATS 2." in ended.stdout
    assert ("finalized" in ended.stdout) == (words == ["version"])


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("--foo",), "flag provided but not defined: -foo"),
        (("-p", "abc"), 'invalid value "abc" for flag -p'),
        (("-p",), "flag needs an argument: -p"),
        (("-p", "70000"), "port is 70000; it must be from -1 to 65535"),
        (("-c", "/nope.conf"), "open /nope.conf: no such file or directory"),
        (("extra",), "unrecognized command: 'extra'"),
        (("--debug=maybe",), 'invalid boolean value "maybe" for -debug'),
        (("-l", "/nope/x.log"), "open /nope/x.log: no such file or directory"),
    ],
)
def test_what_can_not_be_used_is_reported_in_one_line(arguments: tuple[str, ...], reported: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 1
    assert ended.stderr.startswith("nats-server: ")
    assert reported in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.feature("operations.configuration")
def test_a_bad_configuration_file_is_reported_with_its_place(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("port: 4222\nfoo: bar\n")
    ended = run("-c", str(config))
    assert (ended.returncode, ended.stderr) == (1, f'nats-server: {config}:2:1: unknown field "foo"\n')


@pytest.mark.feature("operations.configuration")
def test_a_configuration_can_be_tested_without_starting(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("port: 4222\n")
    ended = run("-t", "-c", str(config))
    assert ended.returncode == 0
    assert ended.stderr.startswith(f"nats-server: configuration file {config} is valid (sha256:")


def test_a_port_in_use_is_fatal(start: Callable[..., Process]) -> None:
    port = str(start().port)
    ended = run("-a", "127.0.0.1", "-p", port)
    assert ended.returncode == 1
    assert f"[FTL] Error listening on port: 127.0.0.1:{port}" in ended.stderr


def test_a_store_in_use_is_fatal(start: Callable[..., Process], tmp_path: Path) -> None:
    flags = ("-js", "-sd", str(tmp_path / "store"))
    start(*flags)
    ended = run("-a", "127.0.0.1", "-p", "-1", *flags)
    assert ended.returncode == 1
    assert "[FTL] can not start JetStream" in ended.stderr


def test_an_unknown_command_says_where_the_commands_are() -> None:
    ended = run("nope", program=[sys.executable, "-m", "penstock"])
    assert ended.returncode == 2
    assert "unknown command 'nope'" in ended.stderr
    assert "penstock --help" in ended.stderr


def test_nothing_heavy_is_imported_before_it_listens() -> None:
    code = (
        "import sys\n"
        "import penstock.cli.main, penstock.cli.serve, penstock.server.server\n"
        "heavy = {'starlette', 'uvicorn', 'typer', 'rich', 'pyspark', 'pyarrow', 'pandas', 'cryptography'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    ended = run("-c", code, program=[sys.executable])
    assert (ended.stdout.strip(), ended.stderr) == ("[]", "")


# -- monitoring


@pytest.fixture
def monitored(start: Callable[..., Process], tmp_path: Path) -> tuple[Process, str]:
    process = start("-m", "-1", "-js", "-sd", str(tmp_path / "store"), "-n", "one")
    match = re.search(r"Starting http monitor on (\S+)", process.log)
    assert match is not None
    return process, f"http://{match[1]}"


def page(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        return json.loads(answer.read())


def test_monitoring_pages(monitored: tuple[Process, str]) -> None:
    process, url = monitored
    nats = RawNats(process.port, name="tester", lang="raw", version="1")
    nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    nats.subscribe("x.*", 7)
    nats.publish("x.1", b"12345")
    assert nats.message().payload == b"12345"
    general = page(f"{url}/varz")
    assert general["server_name"] == "one"
    assert general["port"] == process.port
    assert general["connections"] == 1
    assert general["in_msgs"] == 2
    assert general["jetstream"]["stats"]["api"]["total"] == 1
    assert general["http_req_stats"] == {"/varz": 1}
    connections = page(f"{url}/connz?subs=1")
    (entry,) = connections["connections"]
    assert (entry["name"], entry["lang"], entry["subscriptions_list"]) == ("tester", "raw", ["x.*"])
    detail = page(f"{url}/connz?subs=detail&cid={entry['cid']}")["connections"][0]
    assert detail["subscriptions_list_detail"][0]["sid"] == "7"
    assert page(f"{url}/subsz")["num_subscriptions"] >= 2
    streams = page(f"{url}/jsz?streams=true&config=true")
    assert streams["streams"] == 1
    assert streams["account_details"][0]["stream_detail"][0]["config"]["subjects"] == ["s.>"]
    assert page(f"{url}/healthz") == {"status": "ok"}
    assert page(f"{url}/healthz?account=$G&stream=S") == {"status": "ok"}
    nats.close()
    wait_until(lambda: page(f"{url}/connz?state=closed")["total"] == 1, "the connection to be gone")
    (gone,) = page(f"{url}/connz?state=closed")["connections"]
    assert (gone["reason"], gone["name"]) == ("Client Closed", "tester")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nope", 404),
        ("/connz?sort=zz", 400),
        ("/connz?limit=x", 400),
        ("/connz?sort=stop", 400),
        ("/healthz?account=$G&stream=missing", 404),
        ("/healthz?consumer=x", 400),
        ("/jsz?streams=maybe", 400),
    ],
)
def test_bad_queries_have_their_status(monitored: tuple[Process, str], path: str, status: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        page(monitored[1] + path)
    assert caught.value.code == status
    caught.value.close()


# -- other signals


def test_a_log_file_that_was_moved_is_opened_again(start: Callable[..., Process], tmp_path: Path) -> None:
    log_file = tmp_path / "server.log"
    command = [*SERVE, "-a", "127.0.0.1", "-p", "-1", "-l", str(log_file)]
    process = subprocess.Popen(command, env=ENVIRONMENT)
    try:
        wait_until(lambda: log_file.exists() and "Server is ready" in log_file.read_text(), "the server")
        log_file.rename(tmp_path / "old.log")
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: log_file.exists() and "File log re-opened" in log_file.read_text(), "the new file")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "Reloaded server configuration" in log_file.read_text(), "the answer to SIGHUP")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_lame_duck_ends_a_server_without_clients(start: Callable[..., Process]) -> None:
    process = start()
    ended = run("--signal", f"ldm={process.process.pid}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert process.process.wait(TIMEOUT_S) == 0
    assert "Entering lame duck mode" in process.log


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-js", "-sd", "{file}"], "storage directory is not a directory"),
        (["-c", "{file}"], "Parse error on line 3"),
        (["-p", "{port}", "-a", "127.0.0.1"], "Error listening on port: 127.0.0.1:{port}"),
    ],
)
def test_start_up_errors_have_the_words_that_scripts_look_for(
    arguments: list[str], text: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("port: -1\nb {\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {"file": file, "port": taken.getsockname()[1]}
        given = [word.format(**names) for word in arguments]
        if "-p" not in given:
            given += ["-p", "-1"]
        ended = run(*given, program=SERVE)
    assert ended.returncode == 1
    assert text.format(**names) in ended.stderr
