"""The directive `web` of nats.conf, the flag `--web`, and where the page is served."""

from __future__ import annotations

import pytest

from penstock.cli import flags
from penstock.cli.flag_options import options_of as options_of_flags
from penstock.errors import ConfigError
from penstock.server.config import conf_parser
from penstock.server.config.directives import options_of
from penstock.server.config.server_options import ServerOptions, WebOptions

pytestmark = pytest.mark.feature("monitoring.web")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("port: 1", None),
        ("web: true", WebOptions()),
        ("web: false", None),
        ("web {}", WebOptions()),
        ("web { allow_writes: true }", WebOptions(allow_writes=True)),
        ("web { allow_writes: false, allow_anonymous: true }", WebOptions(allow_anonymous=True)),
    ],
)
def test_the_directive_sets_the_options(text: str, options: WebOptions | None) -> None:
    assert options_of(conf_parser.parse(text)).web == options


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("web: 1", "must be a map"),
        ("web: yes_please", "must be true or false"),
        ("web { allow_writes: 1 }", "allow_writes"),
        ("web { allow_everything: true }", "allow_everything"),
    ],
)
def test_a_wrong_directive_is_refused_with_its_place(text: str, reported: str) -> None:
    with pytest.raises(ConfigError, match=reported):
        options_of(conf_parser.parse(text))


def test_the_flag_switches_the_page_on_and_off() -> None:
    assert options_of_flags(flags.parse(["--web"])).web == WebOptions()
    assert options_of_flags(flags.parse([])).web is None


def test_without_a_port_of_its_own_monitoring_listens_on_this_machine_only() -> None:
    assert ServerOptions().monitoring_address() is None
    assert ServerOptions(web=WebOptions()).monitoring_address() == ("127.0.0.1", 8222)
    assert ServerOptions(web=WebOptions(), http_port=-1).monitoring_address() == ("0.0.0.0", 0)
    assert ServerOptions(http_host="10.0.0.1", http_port=80).monitoring_address() == ("10.0.0.1", 80)
