"""The image, the compose file and the Kubernetes manifests in deploy/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.server.config.directives import load
from tests.support.dockerfiles import BuildStage, stages_of
from tests.support.documented_scripts import ROOT

DEPLOY = ROOT / "deploy"
KNOWN = frozenset(
    """ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE HEALTHCHECK LABEL RUN SHELL STOPSIGNAL USER VOLUME
    WORKDIR""".split()
)


@pytest.fixture(scope="module")
def stages() -> list[BuildStage]:
    return stages_of((DEPLOY / "docker/Dockerfile").read_text())


def documents(path: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(path.read_text()))


def test_the_image_follows_the_rules_of_images(stages: list[BuildStage]) -> None:
    for stage in stages:
        assert {one.name for one in stage.instructions} <= KNOWN
        assert re.search(r":\d", stage.image), "a version, not the newest"
        for run in stage.all("RUN"):
            if "apt-get install" in run.text:
                assert "--no-install-recommends" in run.text
                assert "rm -rf /var/lib/apt/lists" in run.text
            if "pip install" in run.text:
                assert "--no-cache-dir" in run.text
            assert not re.search(r"\bsudo\b|\bcurl\b.*\|", run.text)
    names = {stage.name for stage in stages}
    for copy in (one for stage in stages for one in stage.all("COPY")):
        *sources, _ = copy.text.split()
        if sources[0].startswith("--from="):
            assert sources[0].removeprefix("--from=") in names
        else:
            assert all((ROOT / source).exists() for source in sources), copy.text


def test_the_server_in_the_image_is_no_root_and_says_whether_it_is_healthy(stages: list[BuildStage]) -> None:
    last = stages[-1]
    assert last.all("USER")[-1].text not in ("root", "0")
    assert last.all("ENTRYPOINT")[0].is_exec_form  # signals reach the server, and no shell
    assert last.all("CMD")[0].is_exec_form
    assert "/healthz" in last.all("HEALTHCHECK")[0].text
    options = load(str(DEPLOY / "docker/nats.conf"))
    exposed = {int(port) for port in last.all("EXPOSE")[0].text.split()}
    assert {options.port, options.http_port} <= exposed
    assert options.jetstream is not None
    assert options.jetstream.store_dir == last.all("VOLUME")[0].text


def test_the_compose_file_has_what_its_services_name() -> None:
    (compose,) = documents(DEPLOY / "docker/compose.yaml")
    services = compose["services"]
    for name, service in services.items():
        assert re.search(r":v?\d", service.get("image", "")) or "build" in service, name
        for needed in service.get("depends_on", ()):
            assert needed in services
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "docker" / source).resolve().is_dir(), source
            else:
                assert source in compose["volumes"]
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "no port is published to other machines"
    build = services["penstock"]["build"]
    assert (DEPLOY / "docker" / build["context"] / build["dockerfile"]).resolve().is_file()


def test_the_manifests_are_valid_for_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    made = documents(DEPLOY / "kubernetes/penstock.yaml")
    for document in made:
        validate.validate(document, "1.31", strict=True)
    broken = {**made[-2], "spec": {**made[-2]["spec"], "replica": 1}}
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, "1.31", strict=True)


def test_the_pod_runs_the_configuration_of_its_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        (one["kind"], one["metadata"]["name"]): one for one in documents(DEPLOY / "kubernetes/penstock.yaml")
    }
    (tmp_path / "nats.conf").write_text(made["ConfigMap", "penstock"]["data"]["nats.conf"])
    monkeypatch.setenv("POD_NAME", "penstock-0")
    options = load(str(tmp_path / "nats.conf"))
    pod = made["StatefulSet", "penstock"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"nats": options.port, "http": options.http_port}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert options.jetstream is not None
    assert {options.jetstream.store_dir, str(Path(options.pid_file).parent), "/etc/penstock"} <= mounts
    leaves_ns = options.lame_duck_duration_ns + options.lame_duck_grace_period_ns
    assert pod["terminationGracePeriodSeconds"] * 10**9 > leaves_ns
    assert container["lifecycle"]["preStop"]["exec"]["command"][-1] == f"ldm={options.pid_file}"
    for service in ("penstock", "penstock-headless"):
        selector = made["Service", service]["spec"]["selector"]
        labels = made["StatefulSet", "penstock"]["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
