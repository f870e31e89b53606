"""A small Kubernetes: pods are processes of this machine, each with an address of its own on the loopback network.

Laws:
- A pod's command, arguments, variables, probes and hooks are those of the manifest. `$(NAME)` is filled in as Kubernetes does,
  from variables before it alone; nothing else is expanded, because no shell runs.
- Only places are mapped: a pod's DNS name and its own addresses to its loopback address, mounted paths to directories. A path
  below no mount stays as it is.
- A Secret's file has the mode and the name that its volume says. A volume that needs a Secret that is not there starts no pod.
- A stop runs the hook first, then sends SIGTERM, and fails if the grace period is over.
- `kubectl` and `helm` of the documentation are stand-ins that ask this; what they do not know is an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socketserver
import ssl
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import yaml

from chaos.ports import free_ports
from tests.cli.conftest import clean_environment
from tests.deploy.charts import RENDERED, ROOT
from tests.support.forked import Forked

PATIENCE_S = 120.0
_POLL_S = 0.1
_TRUSTING = ssl.create_default_context()  # As a kubelet's probe.
_TRUSTING.check_hostname = False
_TRUSTING.verify_mode = ssl.CERT_NONE


class Wrong(Exception):
    """What Kubernetes would refuse, or what did not come to be in time."""


def expanded(text: str, earlier: Mapping[str, str]) -> str:
    """`$(NAME)` filled in; `$$` is a dollar sign, and a name that is not known stays as it is."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else earlier.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_]\w*)\)", value, text)


class Pod:
    """One pod of a StatefulSet."""

    def __init__(self, name: str, manifest: Mapping[str, Any], *, directory: Path, address: str, port: int) -> None:
        self.name = name
        self.address = address
        self.port = port
        self.spec = manifest["spec"]["template"]["spec"]
        [self.container] = self.spec["containers"]
        self.directory = directory
        self.process: Forked | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}:{self.port}"

    @property
    def scheme(self) -> str:
        return str(self.container["readinessProbe"]["httpGet"]["scheme"]).lower()

    def environment(self, image: Mapping[str, str], secrets: Path, mapped: Callable[[str], str]) -> dict[str, str]:
        """The container's variables; those of the image come first."""
        found = dict(image)
        for source in self.container.get("envFrom", ()):
            found |= {file.name: file.read_text() for file in (secrets / source["secretRef"]["name"]).iterdir()}
        told: dict[str, str] = {}
        for each in self.container["env"]:
            if "valueFrom" in each:
                assert each["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}, each
                told[each["name"]] = self.name
            else:
                told[each["name"]] = expanded(each["value"], found | told)
        return {name: mapped(value) for name, value in (found | told).items()}

    def probe(self, name: str) -> bool:
        """Whether the node passes this probe, asked as a kubelet asks: by its address, whatever its certificate says."""
        asked = self.container[name]["httpGet"]
        [port] = [each["containerPort"] for each in self.container["ports"] if each["name"] == asked["port"]]
        assert port == 7400
        try:
            with urllib.request.urlopen(
                f"{asked['scheme'].lower()}://{self.address}:{self.port}{asked['path']}",
                timeout=self.container[name]["timeoutSeconds"],
                context=_TRUSTING,
            ) as answer:
                return bool(200 <= answer.status < 400)
        except (urllib.error.URLError, OSError):
            return False


class Kubernetes:
    """One namespace with one StatefulSet, and what `kubectl` and `helm` ask for."""

    def __init__(self, directory: Path, image: Mapping[str, str], command: Sequence[str]) -> None:
        self.directory = directory
        self.pods: dict[str, Pod] = {}
        self.stops: list[tuple[str, float]] = []  # Each pod that was stopped, and how long that took.
        self.deployed: dict[str, Any] | None = None
        self._image, self._command = image, command
        self._port = free_ports(1)[0]
        self._readers: list[threading.Thread] = []
        self._server: socketserver.UnixStreamServer | None = None
        for place in ("secrets", "bin", "volumes"):
            (directory / place).mkdir()

    # ── pods ──────────────────────────────────────────────────────────────────

    def address(self, number: int) -> str:
        return f"127.77.0.{number + 1}"

    def mapped(self, pod: Pod) -> Callable[[str], str]:
        """What turns a text of the manifest into one for this machine."""
        peers = self.spec["serviceName"]
        mounts = {each["mountPath"]: str(pod.directory / each["name"]) for each in pod.container["volumeMounts"]}
        longest = "|".join(sorted(map(re.escape, mounts), key=len, reverse=True))

        def inner(text: str) -> str:
            text = re.sub(rf"\b(?:[a-z]+)-(\d+)\.{peers}:7400", lambda m: f"{self.address(int(m[1]))}:{self._port}", text)
            text = text.replace("127.0.0.1:7400", f"{pod.address}:{self._port}")
            if text == "0.0.0.0":
                return pod.address
            if text == "7400":
                return str(self._port)
            return re.sub(rf"(?<![\w/.])({longest})(?=/|$)", lambda m: mounts[m[1]], text)

        return inner

    @property
    def spec(self) -> dict[str, Any]:
        assert self.deployed is not None
        spec: dict[str, Any] = self.deployed["spec"]
        return spec

    def start(self, name: str) -> None:
        """Make a pod, with its volumes, and begin its container."""
        assert self.deployed is not None
        number, directory = int(name.rpartition("-")[2]), self.directory / "pods" / name
        pod = Pod(name, self.deployed, directory=directory, address=self.address(number), port=self._port)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for volume in pod.spec["volumes"]:
            self._mount(volume, directory / volume["name"])
        for claim in self.spec["volumeClaimTemplates"]:
            place = self.directory / "volumes" / f"{claim['metadata']['name']}-{name}"
            place.mkdir(exist_ok=True)
            (directory / claim["metadata"]["name"]).symlink_to(place)
        for mount in pod.container["volumeMounts"]:
            if not (directory / mount["name"]).exists():
                raise Wrong(f"{mount['name']} is mounted, and no volume")
        mapped = self.mapped(pod)
        arguments = [mapped(each) for each in pod.container.get("args", self._command)]
        environment = {**clean_environment(), **pod.environment(self._image, self.directory / "secrets", mapped)}
        (directory / "environment.json").write_text(json.dumps(environment))
        pod.process = Forked(["-m", "shoal", *arguments], environment, directory=directory)
        self._follow(pod)
        self.pods[name] = pod

    def _follow(self, pod: Pod) -> None:
        """Keep what it prints, as a container's log."""
        assert pod.process is not None

        def read(pipe: IO[str]) -> None:
            with pipe, (self.directory / f"{pod.name}.log").open("a") as log, suppress(ValueError, OSError):
                for line in pipe:
                    log.write(line)
                    log.flush()

        for pipe in (pod.process.stdout, pod.process.stderr):
            reader = threading.Thread(target=read, args=(pipe,), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _mount(self, volume: Mapping[str, Any], place: Path) -> None:
        place.mkdir()
        if "emptyDir" in volume:
            return
        kind = "projected" if "projected" in volume else "secret"
        sources = volume[kind].get("sources") or [{"secret": {"name": volume[kind]["secretName"]}}]
        mode = volume[kind]["defaultMode"]
        for source in (each["secret"] for each in sources):
            secret = self.directory / "secrets" / source["name"]
            if not secret.exists():
                if source.get("optional"):
                    continue
                raise Wrong(f"secret {source['name']} not found")
            items = source.get("items") or [{"key": file.name, "path": file.name} for file in secret.iterdir()]
            for item in items:
                target = place / item["path"]
                target.parent.mkdir(exist_ok=True)
                target.write_bytes((secret / item["key"]).read_bytes())
                target.chmod(mode)
        assert stat.S_IMODE(mode) & 0o007 == 0

    def stop(self, name: str) -> None:
        """Run the hook, send SIGTERM, and wait, all within the grace period."""
        pod = self.pods[name]
        assert pod.process is not None
        began_s, grace_s = time.monotonic(), pod.spec["terminationGracePeriodSeconds"]
        hook = [self.mapped(pod)(each) for each in pod.container["lifecycle"]["preStop"]["exec"]["command"]]
        said = subprocess.run(hook, env=self.within(name), capture_output=True, text=True, timeout=grace_s, check=False)
        pod.process.send_signal(signal.SIGTERM)
        code = pod.process.wait(max(1.0, grace_s - (time.monotonic() - began_s)))
        (self.directory / f"{name}.hook").write_text(f"{said.returncode}\n{said.stdout}{said.stderr}")
        self.stops.append((name, time.monotonic() - began_s))
        del self.pods[name]
        if code != 0:
            raise Wrong(f"{name} ended with {code}: {self.log(name)}")

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()[-2000:]

    def within(self, name: str) -> dict[str, str]:
        """The environment of a command that is run in a pod's container."""
        kept: dict[str, str] = json.loads((self.directory / "pods" / name / "environment.json").read_text())
        return kept | {"PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"}

    def until(self, holds: Callable[[], bool], what: str) -> None:
        ends_at = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > ends_at:
                raise Wrong(f"not in time: {what}; {[(name, self.log(name)[-600:]) for name in self.pods]}")
            time.sleep(_POLL_S)

    def is_ready(self, name: str) -> bool:
        return all(self.pods[name].probe(each) for each in ("startupProbe", "livenessProbe", "readinessProbe"))

    # ── what is asked for ─────────────────────────────────────────────────────

    def deploy(self, manifest: dict[str, Any]) -> None:
        """Take over a StatefulSet, and start the pods that it lacks; a changed template replaces the pods."""
        changed = self.deployed is not None and manifest["spec"]["template"] != self.spec["template"]
        if self.deployed is not None and manifest["spec"]["volumeClaimTemplates"] != self.spec["volumeClaimTemplates"]:
            raise Wrong("updates to statefulset spec for fields other than replicas and template are forbidden")
        self.deployed = manifest
        if changed:
            self.roll()
        self.scale(manifest["spec"]["replicas"])

    def scale(self, replicas: int) -> None:
        self.spec["replicas"] = replicas
        assert self.spec["podManagementPolicy"] == "Parallel"
        wanted = [f"shoal-{number}" for number in range(replicas)]
        for name in sorted(set(self.pods) - set(wanted), reverse=True):
            self.stop(name)
        for name in wanted:
            if name not in self.pods:
                self.start(name)

    def roll(self) -> None:
        """Replace all pods, from the last to the first, each once the one before has been ready for long enough."""
        for name in sorted(self.pods, reverse=True):
            self.stop(name)
            self.start(name)
            self.until(lambda name=name: self.is_ready(name), f"{name} is ready")  # type: ignore[misc]
            time.sleep(self.spec["minReadySeconds"])
            if not self.is_ready(name):
                raise Wrong(f"{name} did not stay ready")

    def lose(self, name: str) -> None:
        """A pod is deleted, and made again; with an empty volume, if its claim was deleted."""
        self.stop(name)
        if (self.directory / "volumes" / f"data-{name}.gone").exists():
            shutil.rmtree(self.directory / "volumes" / f"data-{name}")
            (self.directory / "volumes" / f"data-{name}.gone").unlink()
        self.start(name)

    def kubectl(self, words: Sequence[str]) -> str:
        """What `kubectl` would print.

        Raises:
            Wrong: it would refuse, or it is not known here.
        """
        match list(words):
            case ["create", "namespace", _] | ["config", "set-context", *_]:
                return ""
            case ["create", "secret", "generic", name, *files]:
                place = self.directory / "secrets" / name
                place.mkdir()
                for each in files:
                    key, _, path = each.removeprefix("--from-file=").partition("=")
                    shutil.copyfile(self.directory / path, place / key)
                return f"secret/{name} created"
            case ["rollout", "status", "statefulset/shoal", *_]:
                self.until(lambda: all(map(self.is_ready, self.pods)), "all pods are ready")
                return ""
            case ["rollout", "restart", "statefulset/shoal"]:
                self.roll()
                return ""
            case ["scale", "statefulset", "shoal", "--replicas", number]:
                self.scale(int(number))
                return ""
            case ["delete", "pod", name]:
                self.lose(name)
                return ""
            case ["delete", "pvc", *names]:
                for name in names:
                    self._forget(name)
                return ""
            case ["patch", "pvc", _, "--patch", patch]:
                assert list(json.loads(patch)["spec"]["resources"]["requests"]) == ["storage"]
                return ""
            case ["delete", "statefulset", "shoal", "--cascade=orphan"]:
                self._orphaned, self.deployed = self.deployed, None
                return ""
        raise Wrong(f"not known here: kubectl {' '.join(words)}")

    def _forget(self, claim: str) -> None:
        if claim.startswith("--"):
            return
        place = self.directory / "volumes" / claim
        if claim.removeprefix("data-") in self.pods:
            place.with_suffix(".gone").touch()  # In use: it goes with the pod.
        else:
            shutil.rmtree(place)

    def helm(self, words: Sequence[str]) -> str:
        """What `helm` would do: the rendered file stands for the chart, with what `--set` says of it."""
        match list(words):
            case ["install", "shoal", "deploy/helm/shoal", "--values", values]:
                self.deploy(stateful(Path(values).stem))
            case ["upgrade", "shoal", "deploy/helm/shoal", "--reuse-values", "--set", assignment]:
                self._upgrade(*assignment.split("="))
            case _:
                raise Wrong(f"not known here: helm {' '.join(words)}")
        return ""

    def _upgrade(self, name: str, value: str) -> None:
        adopted = self.deployed is None
        manifest: dict[str, Any] = json.loads(json.dumps(self._orphaned if adopted else self.deployed))
        match name:
            case "image.tag":
                [container] = manifest["spec"]["template"]["spec"]["containers"]
                container["image"] = f"shoal:{value}"
            case "storage.size":
                [claim] = manifest["spec"]["volumeClaimTemplates"]
                claim["spec"]["resources"]["requests"]["storage"] = value
            case _:
                raise Wrong(f"not known here: --set {name}")
        self.deploy(manifest)

    # ── the commands of the page ──────────────────────────────────────────────

    def serve(self) -> None:
        """Let `kubectl` and `helm` be commands, which ask this process."""
        kubernetes = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                name, *words = json.loads(self.rfile.readline())
                try:
                    answer = [0, (kubernetes.kubectl if name == "kubectl" else kubernetes.helm)(words)]
                except Exception as error:
                    answer = [1, f"{type(error).__name__}: {error}"]
                self.wfile.write(json.dumps(answer).encode())

        self._server = socketserver.UnixStreamServer(str(self.directory / "api"), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        for name in ("kubectl", "helm"):
            (self.directory / "bin" / name).write_text(_STAND_IN.format(python=sys.executable, directory=str(self.directory)))
            (self.directory / "bin" / name).chmod(0o755)
        (self.directory / "deploy").symlink_to(ROOT / "deploy")

    def run(self, line: str) -> str:
        """Run a line of the page in a shell, and return what it printed."""
        path = f"{self.directory / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-ec", line],
            cwd=self.directory,
            env={**clean_environment(), "PATH": path},
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise Wrong(f"{line}: {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        return done.stdout

    def close(self) -> None:
        """End all processes."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        for pod in self.pods.values():
            if pod.process is not None:
                pod.process.kill()
                pod.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)


_STAND_IN = """#!{python}
import json, os, re, socket, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "kubectl" and words[:1] == ["exec"]:
    pod, dashes, *command = words[1:]
    assert dashes == "--", words
    environment = json.load(open("{directory}/pods/" + pod + "/environment.json"))
    environment["PATH"] = os.environ["PATH"]
    def place(found):
        return "127.77.0.%d:%s" % (int(found[1]) + 1, environment["SHOAL_LISTEN_PORT"])
    command = [re.sub(r"shoal-(\\d)[.]shoal-peers:7400", place, each) for each in command]
    os.execvpe(command[0], command, environment)
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect("{directory}/api")
    asking.sendall(json.dumps([name, *words]).encode() + b"\\n")
    code, text = json.loads(b"".join(iter(lambda: asking.recv(65536), b"")))
print(text, file=sys.stderr if code else sys.stdout)
sys.exit(code)
"""


def stateful(name: str) -> dict[str, Any]:
    """The StatefulSet of a rendered file."""
    documents = yaml.safe_load_all((RENDERED / f"{name}.yaml").read_text())
    [found] = [each for each in documents if each and each["kind"] == "StatefulSet"]
    manifest: dict[str, Any] = found
    return manifest
