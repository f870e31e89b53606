"""deploy/helm/shoal: what Helm makes of it is sound, and docs/operate/kubernetes.md runs on nodes started as its pods."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import shoal
from shoal.cli import settings
from shoal.config import Config
from shoal.errors import ShoalError
from tests.deploy import charts
from tests.deploy.charts import CHART, NAMES, RENDERED, ROOT, VALUES, digest, documents
from tests.deploy.conftest import Image
from tests.deploy.kubelet import PATIENCE_S, Kubernetes, Wrong, expanded, stateful

PAGE = ROOT / "docs" / "operate" / "kubernetes.md"
SCHEMAS = ("1.27", "1.30", "1.33", "1.37")
HEADINGS = ("Upgrade, restart", "From three nodes to five, and back", "A larger disk", "A lost machine, a lost volume")
OTHERS = {"Certificate", "ServiceMonitor"}
"""Kinds that operators bring: their schemas are not Kubernetes' own."""


def commands(heading: str) -> list[str]:
    """The commands of one section of the page."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert section is not None, heading
    blocks = re.findall(r"^```sh\n(.*?)^```$", section[1], re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in documents(name) if each["kind"] == kind]


def pod_of(name: str) -> Any:
    return stateful(name)["spec"]["template"]["spec"]


# ── the rendered files ────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_a_rendered_file_is_of_this_chart(name: str) -> None:
    assert f"# {digest(name)}\n" in (RENDERED / f"{name}.yaml").read_text(), "run: make chart"


@pytest.mark.parametrize("name", NAMES)
def test_helm_makes_the_rendered_file(name: str) -> None:
    pytest.importorskip("helm_python", reason="the extra `charts` is not installed")
    assert charts.written(name) == (RENDERED / f"{name}.yaml").read_text(), "run: make chart"


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    helm = pytest.importorskip("helm_python", reason="the extra `charts` is not installed")
    found = helm.lint(str(CHART))
    assert (found["errors"], [each["error"] for each in found["messages"]]) == ([], ["icon is recommended"])


@pytest.mark.parametrize(
    ("values", "about"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": "three"}, "replicas"),
        ({"replicas": 2}, "below founders"),
        ({"replicas": 7}, "above replicasMax"),
        ({"tokens": {"enabled": False}}, "insecure"),
        ({"tls": {"enabled": False}}, "insecure"),
        ({"settings": {"shoal_log_keep_s": "1"}}, "shoal_log_keep_s"),
        ({"settings": {"SHOAL_LOG_KEEP_S": 1}}, "SHOAL_LOG_KEEP_S"),
        ({"image": {"repository": "x", "digest": "latest"}}, "digest"),
        ({"stop": {"leave": 0}}, "leave"),
        ({"traces": {"endpoint": "collector:4318"}}, "endpoint"),
        ({"traces": {"ratio": "2"}}, "ratio"),
        ({"traces": {"names": "some"}}, "names"),
        ({"antiAffinity": "never"}, "antiAffinity"),
        ({"storage": {"size": "20"}}, "size"),
    ],
)
def test_values_that_cannot_be_are_refused(values: dict[str, Any], about: str) -> None:
    helm = pytest.importorskip("helm_python", reason="the extra `charts` is not installed")
    with pytest.raises(helm.HelmError, match=about):
        charts.render(values)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", SCHEMAS)
def test_kubernetes_schemas_admit_every_object(name: str, version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="the extra `charts` is not installed")
    for each in documents(name):
        if each["kind"] not in OTHERS:
            schemas.validate(each, version, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_pods_variables_are_settings(name: str, image: Image) -> None:
    [container] = pod_of(name)["containers"]
    told = {each["name"]: expanded(each.get("value", "shoal-1"), {"POD_NAME": "shoal-1"}) for each in container["env"]}
    assert container["env"][0]["name"] == "POD_NAME"
    assert "$" not in str(told)
    assert settings.unknown_variables(told) == []
    config = settings.load(environment={**image.settings, **told})
    assert config.advertise == "shoal-1.shoal-peers:7400"
    assert config.advertise in config.join.split(",")
    assert pod_of(name)["enableServiceLinks"] is False


@pytest.mark.parametrize("name", NAMES)
def test_the_headless_service_names_pods_that_are_not_ready(name: str) -> None:
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(name, "Service")}
    headless, clients = services["shoal-peers"], services["shoal"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert "publishNotReadyAddresses" not in clients
    assert stateful(name)["spec"]["serviceName"] == "shoal-peers"
    labels = stateful(name)["spec"]["template"]["metadata"]["labels"]
    for each in services.values():
        assert each["selector"].items() <= labels.items()


@pytest.mark.parametrize("name", NAMES)
def test_the_grace_period_has_room_for_the_whole_stop(name: str) -> None:
    pod = pod_of(name)
    [container] = pod["containers"]
    [command] = container["lifecycle"]["preStop"]["exec"]["command"][2:]
    leave, within = map(int, re.findall(r"\d+", command))
    told = {each["name"]: each.get("value", "") for each in container["env"]}
    assert pod["terminationGracePeriodSeconds"] >= leave + within + int(told["SHOAL_STOP_TIMEOUT_S"]) + Config().stop_timeout_s


@pytest.mark.parametrize("name", NAMES)
def test_probes_speak_what_the_node_speaks(name: str) -> None:
    [container] = pod_of(name)["containers"]
    told = {each["name"] for each in container["env"]}
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {
            "path": path,
            "port": "shoal",
            "scheme": "HTTPS" if "SHOAL_TLS_CERT" in told else "HTTP",
        }


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_has_no_right_beyond_its_volumes(name: str, image: Image) -> None:
    pod = pod_of(name)
    [container] = pod["containers"]
    user = int(image.last("USER").arguments.split(":")[0])
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (user, user)
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for volume in pod["volumes"]:
        for kind in ("secret", "projected"):
            assert volume.get(kind, {"defaultMode": 0o440})["defaultMode"] == 0o440


def test_each_pod_has_a_certificate_that_names_its_address() -> None:
    found = {each["spec"]["secretName"]: each["spec"] for each in of_kind("cert-manager", "Certificate")}
    sources = next(volume for volume in pod_of("cert-manager")["volumes"] if volume["name"] == "tls")["projected"]["sources"]
    assert {each["secret"]["name"] for each in sources} == found.keys() == {f"shoal-{number}-tls" for number in range(5)}
    for name, spec in found.items():
        pod = name.removesuffix("-tls")
        assert f"{pod}.shoal-peers" in spec["dnsNames"]
        assert not any(f"{other}.shoal-peers" in spec["dnsNames"] for other in {f"shoal-{n}" for n in range(5)} - {pod})


def test_the_budget_lets_one_pod_go_at_a_time() -> None:
    [budget] = of_kind("secrets", "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def test_the_monitor_scrapes_each_pod_once() -> None:
    [monitor] = of_kind("cert-manager", "ServiceMonitor")
    found = [each["metadata"] for each in of_kind("cert-manager", "Service")]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    [without] = [each["key"] for each in monitor["spec"]["selector"]["matchExpressions"]]
    assert [each["name"] for each in found if wanted <= each["labels"].items() and without not in each["labels"]] == [
        "shoal-peers"
    ]


def test_every_value_of_the_page_exists() -> None:
    known = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = PAGE.read_text().split("| value |")[1].split("## ")[0].splitlines()
    for name in [name for row in rows[2:] for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]:
        group, _, field = name.partition(".")
        assert group in known, name
        assert field in ("", "*") or field in known[group], name


def test_values_files_are_those_that_are_rendered() -> None:
    assert {file.stem for file in VALUES.iterdir()} == {file.stem for file in RENDERED.iterdir()}


@pytest.mark.parametrize(
    ("text", "told"),
    [("$(A)-b", "1-b"), ("$(B)", "$(B)"), ("$$(A)", "$(A)"), ("$(hostname)", "$(hostname)"), ("$A", "$A")],
)
def test_variables_are_filled_in_as_kubernetes_does(text: str, told: str) -> None:
    assert expanded(text, {"A": "1"}) == told


# ── the page, on nodes ────────────────────────────────────────────────────────


@pytest.fixture
def kubernetes(image: Image, tmp_path: Path) -> Iterator[Kubernetes]:
    cluster = Kubernetes(tmp_path, image.settings, image.last("CMD").words())
    cluster.serve()
    try:
        yield cluster
    finally:
        cluster.close()


def install(kubernetes: Kubernetes) -> None:
    """The first section of the page. A certificate names the address to which a pod's name is mapped here, too."""
    lines = commands("Install")
    for line in lines:
        kubernetes.run(line.replace("shoal-$n.shoal-peers,", "shoal-$n.shoal-peers,127.77.0.$((n + 1)),"))
    kubernetes.run("shoal token create ./tokens writer --allow '*:write,read' --lasts 1d --out writer.token")


class Writers:
    """They add to counters through a quorum, each add once, and read in the end what all have added."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes
        self.acknowledged = 0
        self.told: Counter[str] = Counter()
        self._stopped = threading.Event()

    async def _write(self, number: int) -> None:
        directory = self._kubernetes.directory
        urls = [f"https://{self._kubernetes.address(each)}:{self._kubernetes._port}" for each in range(3)]
        token, ca = (directory / "writer.token").read_text().strip(), str(directory / "tls" / "ca.pem")
        async with shoal.connect(urls, durability="quorum", tls_ca=ca, token=token, wait=30) as store:
            counter = store.space("crew").counter(f"n{number}")
            while not self._stopped.is_set():
                try:
                    await counter.add(1)
                    self.acknowledged += 1
                except ShoalError as error:
                    self.told[error.code] += 1
                await asyncio.sleep(0.02)

    async def total(self) -> int:
        """What one node has after the writers have ended."""
        directory = self._kubernetes.directory
        token, ca = (directory / "writer.token").read_text().strip(), str(directory / "tls" / "ca.pem")
        url = f"https://{self._kubernetes.address(1)}:{self._kubernetes._port}"
        async with shoal.connect(url, tls_ca=ca, token=token, wait=30) as store:
            return sum([await store.space("crew").counter(f"n{number}").value() for number in range(3)])

    @contextmanager
    def writing(self) -> Iterator[None]:
        def work() -> None:
            async def all_of_them() -> None:
                await asyncio.gather(*map(self._write, range(3)))

            asyncio.run(all_of_them())

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(PATIENCE_S)


def test_three_pods_become_ready_together_and_stop_within_their_grace(kubernetes: Kubernetes) -> None:
    install(kubernetes)
    assert [kubernetes.is_ready(name) for name in sorted(kubernetes.pods)] == [True] * 3
    writers = Writers(kubernetes)
    with writers.writing():
        kubernetes.stop("shoal-2")
        said = (kubernetes.directory / "shoal-2.hook").read_text()
        assert re.fullmatch(r"0\nall 3 members hold what \S+ held: one of them may be stopped\n", said)
        kubernetes.start("shoal-2")
        kubernetes.until(lambda: kubernetes.is_ready("shoal-2"), "shoal-2 is back")
    assert writers.acknowledged > 0
    assert (writers.told, asyncio.run(writers.total())) == (Counter(), writers.acknowledged)


def test_a_pod_without_its_certificate_says_which_file_is_missing(kubernetes: Kubernetes) -> None:
    install(kubernetes)
    (kubernetes.directory / "secrets" / "shoal-3-tls").rename(kubernetes.directory / "secrets" / "away")
    kubernetes.start("shoal-3")
    kubernetes.until(lambda: "shoal-3/tls.crt" in kubernetes.log("shoal-3"), "it says so")


def test_a_command_that_kubernetes_does_not_know_fails(kubernetes: Kubernetes) -> None:
    with pytest.raises(Wrong, match="not known here: kubectl frobnicate"):
        kubernetes.run("kubectl frobnicate")


@pytest.mark.chaos
@pytest.mark.parametrize("heading", HEADINGS)
def test_every_command_of_the_page_runs_while_clients_write(heading: str, kubernetes: Kubernetes) -> None:
    install(kubernetes)
    writers = Writers(kubernetes)
    with writers.writing():
        for line in commands(heading):
            kubernetes.run(line)
        kubernetes.until(lambda: all(map(kubernetes.is_ready, kubernetes.pods)), heading)
        assert sorted(kubernetes.pods) == ["shoal-0", "shoal-1", "shoal-2"]
    assert (writers.told, asyncio.run(writers.total())) == (Counter(), writers.acknowledged)
    longest_s = max((seconds for _, seconds in kubernetes.stops), default=0.0)
    assert longest_s < pod_of("secrets")["terminationGracePeriodSeconds"]
