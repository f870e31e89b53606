"""docker-compose.yml: three nodes that differ in their name only, and that share what is written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from typer.testing import CliRunner

from shoal.cli import settings
from shoal.cli.main import app
from shoal.config import Config
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.deploy.conftest import (
    COMPOSE,
    NODES,
    ROOT,
    SERVICES,
    Image,
    Started,
    composed,
    free_addresses,
    running,
    shared_by_all,
)


def config_of(node: Any, image: Image) -> Config:
    return settings.load(environment={**image.settings, **node["environment"]})


def test_there_are_three_nodes_and_no_variable_has_to_be_set() -> None:
    assert sorted(NODES) == ["n1", "n2", "n3"]
    assert "$" not in str(composed(COMPOSE, {}))


def test_every_service_runs_one_image_that_one_of_them_builds() -> None:
    assert {(service["image"], service["pull_policy"]) for service in SERVICES.values()} == {("shoal:local", "never")}
    assert [name for name, service in SERVICES.items() if "build" in service] == ["certificates"]


@pytest.mark.parametrize("name", NODES)
def test_a_node_is_reached_where_the_list_of_peers_has_it(name: str, image: Image) -> None:
    config = config_of(NODES[name], image)
    assert config.advertise == f"{name}:{config.listen_port}"
    assert config.join.split(",") == [f"{each}:{config.listen_port}" for each in NODES]


@pytest.mark.parametrize("name", NODES)
def test_a_node_keeps_its_data_in_a_volume_of_its_own(name: str, image: Image) -> None:
    assert NODES[name]["volumes"] == [f"{name}:{image.last('VOLUME').arguments}", "tls:/tls:ro"]
    assert name in composed(COMPOSE, {})["volumes"]


def test_nodes_are_published_to_this_machine_only_each_on_its_own_port(image: Image) -> None:
    published = [re.fullmatch(r"127\.0\.0\.1:(\d+):(\d+)", port) for node in NODES.values() for port in node["ports"]]
    ports = {match[1] for match in published if match is not None}
    assert len(ports) == len(published) == 3
    assert {match[2] for match in published if match is not None} == {image.last("EXPOSE").arguments}


def test_the_cluster_key_comes_from_the_environment_and_is_the_same_for_all(image: Image) -> None:
    keyed = composed(COMPOSE, {"SHOAL_CLUSTER_KEY": "a secret of the nodes alone"})["services"]
    assert {config_of(keyed[name], image).cluster_key for name in NODES} == {"a secret of the nodes alone"}
    assert {config_of(NODES[name], image).cluster_key for name in NODES} == {""}


@pytest.mark.parametrize("name", NODES)
def test_the_health_check_is_the_images(name: str, image: Image) -> None:
    health = NODES[name]["healthcheck"]
    kind, *command = health["test"]
    assert (kind, command) == ("CMD", image.health_command)
    options = image.last("HEALTHCHECK").arguments
    for option, key in (
        ("interval", "interval"),
        ("timeout", "timeout"),
        ("start-period", "start_period"),
        ("start-interval", "start_interval"),
        ("retries", "retries"),
    ):
        assert f"--{option}={health[key]} " in options


@pytest.mark.parametrize("name", NODES)
def test_a_stop_has_time_to_finish_and_to_close(name: str, image: Image) -> None:
    grace_s = float(NODES[name]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= 2 * config_of(NODES[name], image).stop_timeout_s


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_can_write_to_its_volume_and_nothing_else(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"], service["tmpfs"]) == (True, ["ALL"], ["/tmp"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "user", "network_mode", "pid"} & set(service)


def test_a_fourth_node_differs_from_the_first_in_its_name_and_in_the_members_that_it_knows() -> None:
    variables = {"SHOAL_CLUSTER_KEY": "a secret of the nodes alone"}
    grown = composed((ROOT / "deploy" / "grow.yml").read_text(), variables)
    n4, n1 = grown["services"]["n4"], composed(COMPOSE, variables)["services"]["n1"]
    own = {"SHOAL_TLS_CERT": "/tls/n4/cert.pem", "SHOAL_TLS_KEY": "/tls/n4/key.pem"}
    named = {"environment": {**n1["environment"], **own, "SHOAL_ADVERTISE": "n4:7400", "SHOAL_JOIN": "n1:7400"}}
    published = {"ports": ["127.0.0.1:7430:7400"], "volumes": ["n4:/data", "tls:/tls:ro"]}
    assert n4 == {name: part for name, part in n1.items() if name != "build"} | named | published
    assert "n4" in grown["volumes"]
    assert not any(port in str(SERVICES) for port in n4["ports"])


def token_in(directory: Path) -> str:
    """The token that the service makes."""
    return (directory / "tls" / "client.token").read_text().strip()


def make_certificates(directory: Path) -> None:
    """Run the service that makes them."""
    (script,) = SERVICES["certificates"]["command"]
    assert (SERVICES["certificates"]["entrypoint"], SERVICES["certificates"]["volumes"]) == (["sh", "-c"], ["tls:/tls"])
    script = script.replace("/tls", f"{directory}/tls").replace("shoal ", f"{sys.executable} -m shoal.cli ")
    subprocess.run(["sh", "-c", script], env=clean_environment(), check=True, capture_output=True, timeout=PATIENCE_S)


def test_certificates_are_made_once_and_a_token_at_each_start(tmp_path: Path) -> None:
    def made() -> dict[str, bytes]:
        make_certificates(tmp_path)
        files = [file for file in (tmp_path / "tls").rglob("*") if file.is_file()]
        return {str(file.relative_to(tmp_path / "tls")): file.read_bytes() for file in files}

    first, again = made(), made()
    changed = {name for name in again if again[name] != first.get(name)}
    assert "client.token" in changed
    assert not {name for name in changed if name.endswith(".pem") or name == "tokens/keys.json"}
    assert token_in(tmp_path)
    assert {f"n{number}/key.pem" for number in (1, 2, 3)} < set(first)


def test_what_is_fetched_for_clients_stays_out_of_the_repository() -> None:
    for name in ("client.token", "ca.pem"):
        ignored = subprocess.run(["git", "check-ignore", "--quiet", name], cwd=ROOT, check=False)
        assert ignored.returncode == 0


@pytest.mark.parametrize("name", NODES)
def test_a_node_waits_for_its_certificate_and_peers_and_clients_trust_its_ca(name: str, image: Image) -> None:
    assert NODES[name]["depends_on"] == {"certificates": {"condition": "service_completed_successfully"}}
    config = config_of(NODES[name], image)
    assert (config.tls_cert, config.tls_key) == (f"/tls/{name}/cert.pem", f"/tls/{name}/key.pem")
    assert config.tls_ca == NODES[name]["environment"]["SSL_CERT_FILE"] == "/tls/ca.pem"
    assert config.token_keys == "/tls/tokens/keys.json"


def started(image: Image, directory: Path, variables: dict[str, str]) -> list[Started]:
    """The nodes' commands with each container's address and volume mapped to this machine's.

    The commands of the service that makes certificates are run, too, but in this process.
    """
    (script,) = SERVICES["certificates"]["command"]
    for command in re.findall(r"\bshoal ((?:tls|token) .*?)(?:\)| &&)", script.replace("/tls", f"{directory}/tls")):
        done = CliRunner().invoke(app, shlex.split(command))
        assert done.exit_code == 0, done.output
    (directory / "tls" / "client.new").rename(directory / "tls" / "client.token")
    services = composed(COMPOSE, variables)["services"]
    mapped = dict(zip((NODES[name]["environment"]["SHOAL_ADVERTISE"] for name in NODES), free_addresses(3), strict=True))
    commands = []
    for name in NODES:
        environment = {**image.settings, **services[name]["environment"]}
        address = mapped[environment["SHOAL_ADVERTISE"]]
        for inside, outside in mapped.items():
            environment = {key: value.replace(inside, outside) for key, value in environment.items()}
        environment = {key: value.replace("/tls/", f"{directory}/tls/") for key, value in environment.items()}
        environment["SHOAL_LISTEN_HOST"], environment["SHOAL_LISTEN_PORT"] = address.split(":")
        arguments = [word.replace("/data", str(directory / name)) for word in image.last("CMD").words()]
        commands.append(Started(arguments, environment))
    return commands


def test_the_three_nodes_share_what_each_of_them_is_told(image: Image, tmp_path: Path) -> None:
    with running(started(image, tmp_path, {"SHOAL_CLUSTER_KEY": "a secret of the nodes alone"}), tmp_path) as urls:
        assert shared_by_all(urls, token=token_in(tmp_path)) == [111, 111, 111]
        with pytest.raises(HTTPError, match="401"):
            shared_by_all(urls)
