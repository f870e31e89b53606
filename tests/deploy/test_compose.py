"""docker-compose.yml: three nodes that differ in their name only, and that share what is written."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from typer.testing import CliRunner

from chaos.ports import free_ports
from shoal.cli import settings
from shoal.cli.main import app
from shoal.config import Config
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.compose import OF_A_NODE
from tests.deploy.conftest import (
    COMPOSE,
    NODES,
    ROOT,
    SERVICES,
    Image,
    Started,
    asked,
    composed,
    free_addresses,
    ready,
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
    assert NODES[name]["volumes"] == [f"{name}:{image.last('VOLUME').arguments}", f"{name}-tls:/tls:ro"]
    assert {name, f"{name}-tls"} <= composed(COMPOSE, {})["volumes"].keys()


def test_only_the_service_that_signs_mounts_the_keys_that_sign() -> None:
    mounts = {name: [volume.split(":")[0] for volume in service["volumes"]] for name, service in SERVICES.items()}
    assert [name for name, volumes in mounts.items() if "tls" in volumes] == ["certificates"]
    for name in NODES:
        assert [each for each, volumes in mounts.items() if f"{name}-tls" in volumes] == ["certificates", name]


def test_each_volume_of_certificates_has_a_directory_in_the_image(image: Image) -> None:
    (made,) = [run.arguments for run in image.all("RUN") if "/nodes/" in run.arguments]
    assert "install --directory --owner=shoal --group=shoal --mode=0700 $(seq --format /nodes/n%g 9) /nodes/client" in made
    handed = [volume.split(":")[1] for volume in SERVICES["certificates"]["volumes"]]
    assert {f"/nodes/{name}" for name in (*NODES, "client")} < set(handed)


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
    named = {"environment": {**n1["environment"], "SHOAL_ADVERTISE": "n4:7400", "SHOAL_JOIN": "n1:7400"}}
    published = {"ports": ["127.0.0.1:7430:7400"], "volumes": ["n4:/data", "n4-tls:/tls:ro"]}
    assert n4 == {name: part for name, part in n1.items() if name != "build"} | named | published
    assert {"n4", "n4-tls"} <= grown["volumes"].keys()
    assert grown["services"]["certificates"] == {"volumes": ["n4-tls:/nodes/n4"]}
    assert not any(port in str(SERVICES) for port in n4["ports"])


def token_in(directory: Path) -> str:
    """The token that the service makes."""
    return (directory / "nodes" / "client" / "client.token").read_text().strip()


def make_certificates(directory: Path, *more: str, **environment: str) -> None:
    """Run the service that makes them, with the volumes of the three nodes and of `more`."""
    assert (SERVICES["certificates"]["entrypoint"], SERVICES["certificates"]["command"]) == (
        ["sh", "-c"],
        ["sh /certificates.sh"],
    )
    assert "./deploy/certificates.sh:/certificates.sh:ro" in SERVICES["certificates"]["volumes"]
    (directory / "tls").mkdir(exist_ok=True)
    for name in (*NODES, "client", *more):
        (directory / "nodes" / name).mkdir(parents=True, exist_ok=True)
    script = (ROOT / "deploy" / "certificates.sh").read_text()
    for place in ("tls", "nodes"):
        script = re.sub(rf"(?<![\w$}}])/{place}\b", f"{directory}/{place}", script)
    script = script.replace("shoal t", f"{sys.executable} -m shoal t")
    told = {**clean_environment(), **environment}
    subprocess.run(["sh", "-c", script], env=told, check=True, capture_output=True, timeout=PATIENCE_S)


def files_in(directory: Path) -> dict[str, tuple[bytes, int]]:
    files = [file for file in directory.rglob("*") if file.is_file()]
    return {str(file.relative_to(directory)): (file.read_bytes(), file.stat().st_ino) for file in files}


def test_certificates_are_made_once_and_a_token_at_each_start(tmp_path: Path) -> None:
    def made() -> dict[str, tuple[bytes, int]]:
        make_certificates(tmp_path)
        return files_in(tmp_path)

    first, again = made(), made()
    changed = {name for name in again if again[name] != first.get(name)}
    tokens = {"tls/client.token", *(f"nodes/{name}/client.token" for name in (*NODES, "client"))}
    assert changed == {*tokens, "tls/tokens/issued.jsonl"}
    assert token_in(tmp_path)


def test_a_node_is_handed_its_own_key_and_none_that_signs(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    handed = {name: files_in(tmp_path / "nodes" / name) for name in (*NODES, "client")}
    assert handed.pop("client").keys() == {"ca.pem", "client.token"}
    for held in handed.values():
        assert sorted(held) == OF_A_NODE
        assert b"PRIVATE" not in b"".join(data for name, (data, _) in held.items() if name != "key.pem")
    assert len({held["key.pem"][0] for held in handed.values()}) == len(NODES)
    assert all((tmp_path / "nodes" / name / "key.pem").stat().st_mode & 0o777 == 0o600 for name in NODES)


def test_a_renewed_certificate_is_handed_to_its_node(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    before = files_in(tmp_path / "nodes")
    done = CliRunner().invoke(app, ["tls", "node", str(tmp_path / "tls"), "n2", "--renew"])
    assert done.exit_code == 0, done.output
    make_certificates(tmp_path)
    after = files_in(tmp_path / "nodes")
    changed = {name for name in after if after[name] != before[name] and not name.endswith(".token")}
    assert changed == {"n2/cert.pem", "n2/key.pem"}


def test_a_fourth_volume_gets_a_certificate_of_its_own(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    make_certificates(tmp_path, "n4")
    assert sorted(files_in(tmp_path / "nodes" / "n4")) == OF_A_NODE


def test_files_fetched_for_clients_stay_out_of_the_repository() -> None:
    for name in ("client.token", "ca.pem"):
        ignored = subprocess.run(["git", "check-ignore", "--quiet", name], cwd=ROOT, check=False)
        assert ignored.returncode == 0


@pytest.mark.parametrize("name", NODES)
def test_a_node_waits_for_its_certificate_and_peers_and_clients_trust_its_ca(name: str, image: Image) -> None:
    assert NODES[name]["depends_on"] == {"certificates": {"condition": "service_completed_successfully"}}
    config = config_of(NODES[name], image)
    assert (config.tls_cert, config.tls_key) == ("/tls/cert.pem", "/tls/key.pem")
    assert config.tls_ca == NODES[name]["environment"]["SSL_CERT_FILE"] == "/tls/ca.pem"
    assert config.token_keys == "/tls/keys.json"


def started(image: Image, directory: Path, variables: dict[str, str]) -> list[Started]:
    """The nodes' commands with each container's address and volumes mapped to this machine's."""
    make_certificates(directory)
    services = composed(COMPOSE, variables)["services"]
    mapped = dict(zip((NODES[name]["environment"]["SHOAL_ADVERTISE"] for name in NODES), free_addresses(3), strict=True))
    commands = []
    for name in NODES:
        environment = {**image.settings, **services[name]["environment"]}
        address = mapped[environment["SHOAL_ADVERTISE"]]
        for inside, outside in mapped.items():
            environment = {key: value.replace(inside, outside) for key, value in environment.items()}
        environment = {key: value.replace("/tls/", f"{directory}/nodes/{name}/") for key, value in environment.items()}
        environment["SHOAL_LISTEN_HOST"], environment["SHOAL_LISTEN_PORT"] = address.split(":")
        arguments = [word.replace("/data", str(directory / name)) for word in image.last("CMD").words()]
        commands.append(Started(arguments, environment))
    return commands


# ── one name for all nodes ────────────────────────────────────────────────────


ALIASED = composed((ROOT / "deploy" / "alias.yml").read_text(), {})
APART = ["unshare", "--mount", "--propagation", "private"]


def layered(below: Any, above: Any) -> Any:
    """Two compose files, the second above the first, in what these files have: maps are merged, all else is replaced."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {name: layered(below.get(name), part) for name, part in above.items()}


def test_the_name_leads_to_each_node_and_is_in_its_certificate(image: Image) -> None:
    services = layered(composed(COMPOSE, {}), ALIASED)["services"]
    assert services.keys() == SERVICES.keys()
    for name in NODES:
        assert services[name]["networks"]["default"]["aliases"] == ["shoal"]
        config = config_of(services[name], image)
        assert (config.join, config.cluster_size) == (f"shoal:{config.listen_port}", len(NODES))
        assert config.advertise == config_of(NODES[name], image).advertise
        assert config.tls_peer_names == "own"
    assert services["certificates"]["environment"] == {"ALIAS": "shoal"}


@pytest.fixture
def apart(tmp_path: Path) -> list[str]:
    """Before a command: it sees the names of the containers, of which one leads to all, as a container engine's DNS does."""
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mounts of one's own here")
    hosts = tmp_path / "hosts"
    lines = [f"127.78.0.{number} {name}\n127.78.0.{number} shoal\n" for number, name in enumerate(NODES, 1)]
    hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
    return [*APART, "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]


def test_nodes_that_share_a_name_find_each_other_and_clients_need_no_other(
    image: Image, tmp_path: Path, apart: list[str]
) -> None:
    services = layered(composed(COMPOSE, {"SHOAL_CLUSTER_KEY": "a secret of the nodes alone"}), ALIASED)["services"]
    make_certificates(tmp_path, **services["certificates"]["environment"])
    [port] = free_ports(1)

    def here(text: str, name: str) -> str:
        return text.replace(":7400", f":{port}").replace("/tls/", f"{tmp_path}/nodes/{name}/")

    def begun(name: str, number: int) -> subprocess.Popen[str]:
        told = {key: here(text, name) for key, text in {**image.settings, **services[name]["environment"]}.items()}
        # Nodes that other machines cannot reach answer for no other name.
        told |= {"SHOAL_ALLOWED_HOSTS": "shoal", "SHOAL_LISTEN_HOST": f"127.78.0.{number}", "SHOAL_LISTEN_PORT": str(port)}
        words = [word.replace("/data", str(tmp_path / name)) for word in image.last("CMD").words()]
        command = [*apart, sys.executable, "-m", "shoal", *words]
        return subprocess.Popen(command, env={**clean_environment(), **told}, stdout=subprocess.PIPE, text=True)

    def add() -> str:
        told = {"SSL_CERT_FILE": here("/tls/ca.pem", "client"), "SHOAL_TOKEN_FILE": here("/tls/client.token", "client")}
        words = ["--durability", "quorum", "counter", "add", "n", "--space", "crew", "--url", f"https://shoal:{port}"]
        command = [*apart, sys.executable, "-m", "shoal", *words]
        environment = {**clean_environment(), **told}
        added = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert added.returncode == 0, added.stderr
        return added.stdout.strip()

    with ExitStack() as processes:
        nodes = [processes.enter_context(begun(name, number)) for number, name in enumerate(NODES, 1)]
        for node in nodes:
            processes.callback(node.kill)
        for number, node in enumerate(nodes, 1):
            assert node.stdout is not None
            assert node.stdout.readline(), "it listens"
            ready(f"https://127.78.0.{number}:{port}")
        counts = [add()]
        nodes[0].kill()  # A client that is led to one that is gone goes on to the next.
        counts.append(add())
        view = asked(f"https://127.78.0.3:{port}/v1/cluster", token=token_in(tmp_path))
    assert counts == ["1", "2"]
    assert {member["name"] for member in view["members"]} == {f"{name}:{port}" for name in NODES}


def test_the_three_nodes_share_what_each_of_them_is_told(image: Image, tmp_path: Path) -> None:
    with running(started(image, tmp_path, {"SHOAL_CLUSTER_KEY": "a secret of the nodes alone"}), tmp_path) as urls:
        assert shared_by_all(urls, token=token_in(tmp_path)) == [111, 111, 111]
        with pytest.raises(HTTPError, match="401"):
            shared_by_all(urls)
