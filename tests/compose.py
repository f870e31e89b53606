"""Run docker-compose.yml on a container engine of the trial's own, as docs/CLUSTER.md says: `make compose`.

    python -m tests.compose            # in SHOAL_COMPOSE_WORKDIR, or /tmp/shoal-compose
    python -m tests.compose DIRECTORY

Laws:
- What the page, deploy/grow.yml and deploy/alias.yml say is run as it is written, in a checkout named shoal. A command that
  was not run is a failure.
- Writers write while nodes are killed, emptied, cut off, added and replaced, each through a quorum. In the end, what was
  acknowledged is on every node, and what was refused with nothing written is on none.
- Where no engine can be, the last line says why, and the exit code is 0. Whatever fails on an engine is a failure.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

import shoal
from chaos import engine as engines
from chaos.engine import CommandFailed, Engine, Skipped
from chaos.faults import OF_LOST_DISKS
from chaos.judge import TO_BE_EXPECTED
from chaos.ledger import JOBS, WORK, Deed, broken_anywhere, broken_by, hold
from shoal.config import Config
from shoal.errors import ShoalError

ROOT = Path(__file__).parent.parent
PORTS = {"n1": 7400, "n2": 7410, "n3": 7420, "n4": 7430}
FIRST = ("n1", "n2", "n3")
OF_A_NODE = ["ca.pem", "cert.pem", "client.token", "key.pem", "keys.json"]
"""What a node's container can read below /tls."""
WRITERS = 6
BITS = 40  # Adds to one counter.
IDLE_S = 60.0
SETTLED_S_MAX = 180.0
DEMO_S_MAX = 600.0
_DOWN_S = 8.0
_PAUSE_S = 0.1
_POLL_S = 0.5


class Broken(Exception):
    """What was promised and does not hold."""


# ── what the documentation says ───────────────────────────────────────────────


def said_by(page: str, heads: str) -> list[str]:
    """The commands for compose: those of the page's section, in blocks and within sentences, and those of the files' heads."""
    section = re.search(r"^## With compose\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    if section is None:
        raise Broken("docs/CLUSTER.md has no section 'With compose'")
    blocks = re.findall(r"^```sh\n(.*?)^```$", section[1], re.DOTALL | re.MULTILINE)
    written = [re.split(r" +# ", line)[0] for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```sh\n.*?^```$", "", section[1], flags=re.DOTALL | re.MULTILINE)
    written += re.findall(r"`(docker [^`]+)`", prose)
    written += re.findall(r"^# +(docker .*)$", heads, re.MULTILINE)
    return list(dict.fromkeys(written))


# ── writers ───────────────────────────────────────────────────────────────────


class Ledger:
    """What the writers did, and how long the slowest acknowledgement took."""

    def __init__(self) -> None:
        self.deeds: list[Deed] = []
        self.slowest_s = 0.0

    def count(self, outcome: str) -> int:
        return sum(deed.outcome == outcome for deed in self.deeds)

    def strange(self) -> Counter[str]:
        """Errors that nothing in the trial explains."""
        return Counter(deed.code for deed in self.deeds if deed.code and deed.code not in TO_BE_EXPECTED | OF_LOST_DISKS)


async def write(ledger: Ledger, number: int, stopped: asyncio.Event) -> None:
    """Put a job and add a bit, again and again, through one client after another."""
    urls = [f"https://127.0.0.1:{PORTS[name]}" for name in (*FIRST[number % 3 :], *FIRST[: number % 3])]
    name, turn = f"writer-{number}", 0
    while not stopped.is_set():
        config = Config(request_timeout_s=10.0)
        async with shoal.connect(urls, durability="quorum", in_order=True, wait=30, config=config) as store:
            space, works = store.space(WORK), True
            while works and not stopped.is_set():
                turn += 1
                key, counter, bit = f"job-{turn}", f"{name}-{turn // BITS}", 1 << turn % BITS
                put = space.thread(name).worklist(JOBS).add([key])
                works = await _do(ledger, Deed("put", name, key), put)
                works &= await _do(ledger, Deed("add", counter, value=bit), space.counter(counter).add(bit))
                await asyncio.sleep(_PAUSE_S)


async def _do(ledger: Ledger, deed: Deed, done: Awaitable[object]) -> bool:
    began_s, outcome, code = time.monotonic(), "yes", ""
    try:
        await done
        ledger.slowest_s = max(ledger.slowest_s, time.monotonic() - began_s)
    except ShoalError as error:
        outcome, code = "no" if error.written == "no" else "unknown", error.code
    ledger.deeds.append(Deed(deed.kind, deed.name, deed.key, deed.value, outcome, code))  # type: ignore[arg-type]
    return outcome == "yes"


@asynccontextmanager
async def writing(ledger: Ledger) -> AsyncIterator[None]:
    stopped = asyncio.Event()
    writers = [asyncio.create_task(write(ledger, number, stopped)) for number in range(WRITERS)]
    try:
        yield
        stopped.set()
        await asyncio.gather(*writers)
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


# ── the trial ─────────────────────────────────────────────────────────────────


class Trial:
    """`figures` become the last line."""

    def __init__(self, engine: Engine, shop: Path, say: Callable[[str], None]) -> None:
        self.engine = engine
        self.shop = shop
        self.say = say
        self.figures: list[str] = []
        self.ledger = Ledger()
        heads = "\n".join((ROOT / "deploy" / name).read_text() for name in ("grow.yml", "alias.yml"))
        self._untried = said_by((ROOT / "docs" / "CLUSTER.md").read_text(), heads)

    async def as_written(self, beginning: str) -> str:
        """Run the command of the documentation that begins so, as a user would in a shell."""
        command = self.written(beginning)
        self.say(f"$ {command}")
        return await self.shell(command)

    def written(self, beginning: str) -> str:
        """That command, which counts as tried."""
        found = [command for command in self._untried if command.startswith(beginning)]
        if not found:
            raise Broken(f"the documentation has no command (any more) that begins with: {beginning}")
        self._untried.remove(found[0])
        return found[0]

    @property
    def untried(self) -> list[str]:
        return self._untried

    async def shell(self, command: str) -> str:
        return await self.engine.run("sh", "-c", command, cwd=self.shop, env={"COMPOSE_PROGRESS": "plain"})

    async def containers(self) -> list[str]:
        """The ids of the first three nodes."""
        return (await self.shell(f"docker compose ps --all --quiet {' '.join(FIRST)}")).split()

    async def inspected(self, what: str, *containers: str) -> list[str]:
        return (await self.engine.run("docker", "inspect", "--format", what, *containers)).split()

    async def asked(self, name: str, path: str, *, token: bool = True) -> tuple[int, Any]:
        """Status and document of a node's answer, by its published port; the certificate is checked."""
        trusting = ssl.create_default_context(cafile=str(self.shop / "ca.pem"))
        shown = {"Authorization": f"Bearer {(self.shop / 'client.token').read_text().strip()}"} if token else {}
        url, limit = f"https://127.0.0.1:{PORTS[name]}{path}", aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=limit) as http, http.get(url, headers=shown, ssl=trusting) as answer:
            return answer.status, await answer.json()

    async def settled(self, *names: str) -> None:
        """Return once each of these nodes serves, is no learner, and is linked to all others."""
        ends_at, last = time.monotonic() + SETTLED_S_MAX, ""
        for name in names:
            while last := await self._unsettled(name):
                if time.monotonic() > ends_at:
                    raise Broken(f"{name} is not as it should be after {SETTLED_S_MAX:g} s: {last}")
                await asyncio.sleep(_POLL_S)

    async def _unsettled(self, name: str) -> str:
        try:
            status, told = await self.asked(name, "/readyz")
            _, view = await self.asked(name, "/v1/cluster")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        if status != 200 or view["learning"]:
            return f"{status} {told} {view['learning']}"
        return ", ".join(
            f"{member['name']}: {member['state']}" for member in view["members"][1:] if member["state"] != "linked"
        )


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


async def first_start(trial: Trial) -> None:
    """The cluster comes up, twice, and is the same; a client and REST reach it with the token, and not without."""
    await trial.shell("docker image rm --force shoal:local")  # As for somebody who has only cloned; what the build kept stays.
    await trial.as_written('echo "SHOAL_CLUSTER_KEY')
    up, began_s = trial.written("docker compose up --build --detach --wait"), time.monotonic()
    trial.say(f"$ {up}")
    said = await trial.shell(up)
    expect("Pulling" not in said, f"an image is looked for in a registry, which has none: {said[:500]}")
    trial.figures.append(f"first up with the image's build {time.monotonic() - began_s:.0f} s")
    before = await trial.containers()
    for again in ("docker compose up --detach", up):
        await trial.shell(again)
        expect(await trial.containers() == before, f"a second '{again}' that changes nothing made new containers")
    await keys_of_nodes(trial, *FIRST)
    await trial.as_written("docker compose cp n1:/tls/ca.pem .")
    await trial.as_written("docker compose cp n1:/tls/client.token .")
    await trial.settled(*FIRST)
    status = await trial.as_written("docker compose exec n1 shoal status")
    expect(
        len(re.findall(r"^n[123]:7400 +(self|linked)", status, re.MULTILINE)) == 3,
        f"status does not show three nodes: {status}",
    )
    for name in FIRST:
        expect((await trial.asked(name, "/v1/cluster"))[0] == 200, f"{name} does not take the token")
        expect((await trial.asked(name, "/v1/cluster", token=False))[0] == 401, f"{name} answers without a token")
    os.environ |= {"SSL_CERT_FILE": str(trial.shop / "ca.pem"), "SHOAL_TOKEN_FILE": str(trial.shop / "client.token")}


async def rights(trial: Trial) -> None:
    """Within a container nothing can be written but the volume, and nobody has a right beyond a user's."""
    only = (
        "[ $(id -u) = 10001 ]",
        "! touch /x 2>/dev/null",
        "grep -q 'CapEff:.0*$' /proc/1/status",
        "touch /data/.w",
        "rm /data/.w",
    )
    for name in FIRST:
        try:
            await trial.engine.run("docker", "compose", "exec", "-T", name, "sh", "-c", " && ".join(only), cwd=trial.shop)
        except CommandFailed:
            raise Broken(f"{name} runs as root, can write to /, has capabilities, or cannot write to /data") from None


async def keys_of_nodes(trial: Trial, *names: str) -> None:
    """A node's container holds its own key and no other: none of a peer, of the CA, or of those that sign tokens."""
    compose = "docker compose -f docker-compose.yml -f deploy/grow.yml"
    signing = "ls /tls/authority/ca-key.pem /tls/tokens/signing/*.pem"  # Where they are, and so could be mounted from.
    await trial.shell(f"docker compose run --rm certificates '{signing}'")
    held = "for file in $(find /tls -type f); do echo ${file#/tls/}; done; ! ls -d /tls/*/ /nodes/*/* 2>/dev/null"
    for name in names:
        files = sorted((await trial.shell(f"{compose} exec -T {name} sh -c '{held}'")).split())
        expect(files == OF_A_NODE, f"{name} can read {files} below /tls, and was to read {OF_A_NODE}")
        mounts = await trial.inspected("{{range .Mounts}}{{println .Name}}{{end}}", f"shoal-{name}-1")
        expect(set(mounts) == {f"shoal_{name}", f"shoal_{name}-tls"}, f"{name} mounts {mounts}")
    keys = [await trial.shell(f"{compose} exec -T {name} cat /tls/key.pem") for name in names]
    expect(len(set(keys)) == len(names), "two nodes have one key")


async def idle(trial: Trial) -> None:
    """What a container costs while nobody asks it anything, its health check included."""
    before = [await _used_s(trial, each) for each in await trial.containers()]
    await asyncio.sleep(IDLE_S)
    after = [await _used_s(trial, each) for each in await trial.containers()]
    shares = [100 * (late - early) / IDLE_S for early, late in zip(before, after, strict=True)]
    trial.figures.append(f"idle container {min(shares):.2f} to {max(shares):.2f} % of a core")


async def _used_s(trial: Trial, container: str) -> float:
    """The processor time of a container's processes, ended ones included."""
    [full] = await trial.inspected("{{.Id}}", container)
    first, second = (f"/sys/fs/cgroup/{where}" for where in (f"cpuacct/docker/{full}/cpuacct.usage", f"docker/{full}/cpu.stat"))
    text = await trial.engine.run("sh", "-c", f"cat {first} 2>/dev/null || cat {second}")
    micros = re.search(r"^usage_usec (\d+)", text, re.MULTILINE)
    return int(micros[1]) / 1e6 if micros else int(text) / 1e9


async def demo(trial: Trial) -> None:
    """Nine agents, and a node that is killed in the middle; no container is made anew for it."""
    before, log = await trial.containers(), trial.engine.workdir / "demo.log"
    log.unlink(missing_ok=True)
    command = trial.written("docker compose run --rm demo")
    trial.say(f"$ {command}")
    running = await trial.engine.begin("sh", "-c", command, cwd=trial.shop, log=log)
    ends_at = time.monotonic() + DEMO_S_MAX
    while running.returncode is None and not re.search(r"^[1-9]\d* of \d+ modules", log.read_text(), re.MULTILINE):
        expect(time.monotonic() < ends_at, f"the demo surveys nothing: {log.read_text()[-1000:]}")
        await asyncio.sleep(_POLL_S)
    await trial.as_written("docker compose kill n2")
    await asyncio.sleep(_DOWN_S)
    await trial.as_written("docker compose start n2")
    code = await asyncio.wait_for(running.wait(), DEMO_S_MAX)
    text = log.read_text()
    expect(code == 0 and "agreed:" in text, f"the demo ended with {code}: {text[-1000:]}")
    trial.say(text.strip().splitlines()[-1])
    expect(await trial.containers() == before, "the demo made new containers of the nodes")
    await trial.settled(*FIRST)


async def lost_volume(trial: Trial) -> None:
    """A node comes back with an empty volume, and is filled."""
    await trial.shell("docker compose rm --stop --force n3 && docker volume rm shoal_n3")
    began_s = time.monotonic()
    await trial.shell("docker compose up --detach --no-deps --wait n3")
    await trial.settled(*FIRST)
    trial.figures.append(f"empty volume filled after {time.monotonic() - began_s:.0f} s")


async def cut(trial: Trial) -> None:
    """A node is cut off, and found again by its name."""
    await trial.as_written("docker network disconnect")
    await asyncio.sleep(_DOWN_S)
    await trial.as_written("docker network connect --alias n2")
    await trial.settled(*FIRST)


async def fourth(trial: Trial) -> None:
    """A node is added while clients write."""
    for beginning in ("docker compose -f", "docker compose exec n1 shoal cluster add"):
        await trial.as_written(beginning)
    await trial.settled(*PORTS)
    await keys_of_nodes(trial, *PORTS)


async def new_image(trial: Trial) -> None:
    """A new image replaces the nodes one after the other."""
    before = await trial.containers()
    with (trial.shop / "Dockerfile").open("a") as file:
        file.write('LABEL trial="second"\n')
    await trial.as_written("docker compose build")
    seen, began_s = len(trial.ledger.deeds), time.monotonic()
    await trial.as_written("(for node in")
    refused = sum(deed.outcome != "yes" for deed in trial.ledger.deeds[seen:])
    trial.figures.append(f"three nodes upgraded in {time.monotonic() - began_s:.0f} s with {refused} writes not acknowledged")
    labels = await trial.inspected('{{index .Config.Labels "trial"}}', *await trial.containers())
    expect(labels == ["second"] * 3, f"not every node runs the new image: {labels}")
    expect(not set(before) & set(await trial.containers()), "a node was not replaced")
    await trial.settled(*PORTS)
    await trial.as_written("docker compose run --rm certificates")
    await trial.shell("docker compose cp n1:/tls/client.token .")


async def renewed(trial: Trial) -> None:
    """A node takes a renewed certificate while it runs."""
    shown = "docker compose exec -T n2 cat /tls/key.pem"
    before = await trial.shell(shown)
    await trial.as_written('docker compose run --rm certificates "')
    expect(await trial.shell(shown) == before, "a key was handed out before anybody asked for it")
    await trial.shell("docker compose run --rm certificates")
    expect(await trial.shell(shown) != before, "the renewed key was not handed to its node")
    ends_at = time.monotonic() + SETTLED_S_MAX
    while "the TLS files are loaded" not in await trial.shell("docker compose logs --no-color n2"):
        expect(time.monotonic() < ends_at, "n2 has not loaded its renewed certificate")
        await asyncio.sleep(_POLL_S)
    await trial.settled(*PORTS)


async def nothing_lost(trial: Trial) -> None:
    """Every node holds what was acknowledged, and nothing that was refused; all hold the same."""
    holdings, ledger = {}, trial.ledger
    for name, port in PORTS.items():
        async with shoal.connect(f"https://127.0.0.1:{port}", wait=30) as store:
            holdings[name] = await hold(store, ledger.deeds)
    broken = [f"{name}: {each}" for name, held in holdings.items() for each in broken_by(ledger.deeds, held)]
    broken += [str(each) for each in broken_anywhere(ledger.deeds, holdings)]
    expect(not broken, f"{len(broken)} promises are broken: {broken[:5]}")
    expect(not ledger.strange(), f"errors that nothing explains: {dict(ledger.strange())}")


async def stop(trial: Trial) -> None:
    """All stop of themselves, and come up as they were."""
    began_s = time.monotonic()
    await trial.as_written("docker compose stop")
    trial.figures.append(f"stop {time.monotonic() - began_s:.1f} s")
    codes = await trial.inspected("{{.State.ExitCode}}", *await trial.containers())
    expect(codes == ["0"] * 3, f"a stop ended with {codes}")
    await trial.shell("docker compose up --detach --wait")
    await trial.settled(*PORTS)
    await nothing_lost(trial)
    await trial.shell("docker compose --profile demo -f docker-compose.yml -f deploy/grow.yml down --volumes")


async def one_name(trial: Trial) -> None:
    """Nodes that share an alias, as pods share a headless service, find each other by it; clients need no other name."""
    began_s, files = time.monotonic(), "docker compose -f docker-compose.yml -f deploy/alias.yml"
    await trial.as_written(f"{files} up")
    for name in ("ca.pem", "client.token"):
        await trial.shell(f"docker compose cp n1:/tls/{name} .")
    await trial.settled(*FIRST)
    trial.figures.append(f"three nodes by one name after {time.monotonic() - began_s:.0f} s")
    _, view = await trial.asked("n1", "/v1/cluster")
    expect({member["name"] for member in view["members"]} == {f"{name}:7400" for name in FIRST}, f"not the members: {view}")

    async def led_to() -> set[str]:
        look = "import socket; print(*{found[4][0] for found in socket.getaddrinfo('shoal', 7400)})"
        return set((await trial.shell(f'{files} exec -T n1 python -c "{look}"')).split())

    async def add() -> str:
        said = "shoal --durability quorum counter add n 1 --space crew --url https://shoal:7400"
        return (await trial.shell(f"{files} run --rm --no-deps --entrypoint sh demo -c '{said}'")).strip()

    expect(len(await led_to()) == 3, "the name does not lead to all three")
    counts = [await add()]
    for name in FIRST[1:]:
        await trial.shell(f"docker compose kill {name}")
        expect(len(await led_to()) == 2, "the name leads to a node that is gone")
        counts += [await add(), await add()]
        await trial.shell(f"docker compose start {name}")
        await trial.settled(*FIRST)
    expect([each.split()[-1] for each in counts] == list("12345"), f"a client of the name was not served: {counts}")
    await trial.shell("docker compose --profile demo -f docker-compose.yml -f deploy/alias.yml down --volumes")


async def alone(trial: Trial) -> None:
    """The image by itself is one node."""
    command = trial.written("docker run")
    trial.say(f"$ {command}")
    log = trial.engine.workdir / "alone.log"
    running = await trial.engine.begin("sh", "-c", command, cwd=trial.shop, log=log)
    ends_at, url = time.monotonic() + SETTLED_S_MAX, f"http://127.0.0.1:{PORTS['n1']}"
    async with aiohttp.ClientSession() as http:
        while True:
            with suppress(aiohttp.ClientError, OSError):
                async with http.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        break
            expect(time.monotonic() < ends_at and running.returncode is None, f"no node: {log.read_text()[-1000:]}")
            await asyncio.sleep(_POLL_S)
    await trial.shell("docker ps --quiet --filter ancestor=shoal:local | xargs docker stop")
    expect(await asyncio.wait_for(running.wait(), SETTLED_S_MAX) == 0, f"it did not stop well: {log.read_text()[-1000:]}")


class Part(NamedTuple):
    name: str
    do: Callable[[Trial], Awaitable[None]]


WHILE_WRITING = (
    Part("rights within the containers", rights),
    Part("the demo, with a node killed", demo),
    Part("a lost volume", lost_volume),
    Part("a node cut off", cut),
    Part("a fourth node", fourth),
    Part("a new image", new_image),
    Part("a renewed certificate", renewed),
)


ALONE = Part("one name for all nodes", one_name), Part("the image by itself", alone)


async def go(trial: Trial) -> None:
    for part in (Part("the first start", first_start), Part("idle", idle)):
        trial.say(part.name)
        await part.do(trial)
    async with writing(trial.ledger):
        for part in WHILE_WRITING:
            trial.say(part.name)
            await part.do(trial)
    for part in (Part("nothing is lost", nothing_lost), Part("a stop", stop), *ALONE):
        trial.say(part.name)
        await part.do(trial)
    expect(not trial.untried, f"said by the documentation, and not tried: {trial.untried}")
    ledger, [size] = trial.ledger, await trial.inspected("{{.Size}}", "shoal:local")
    slow, refused = f"{ledger.slowest_s:.1f} s at most", len(ledger.deeds) - ledger.count("yes")
    trial.figures.insert(0, f"{ledger.count('yes'):,} writes acknowledged, {slow}, none lost; {refused} not acknowledged")
    trial.figures.append(f"image {int(size) / 1e6:.0f} MB, base included")


async def run(workdir: Path) -> str:
    """The last line.

    Raises:
        Broken, CommandFailed, ShoalError: something does not hold.
        Skipped: no engine can be here.
    """
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {text}", flush=True)

    async with engines.running(workdir, say=say) as engine:
        trial = Trial(engine, engine.lay(ROOT, "shoal"), say)
        with engine.network():
            try:
                await go(trial)
            except BaseException:
                with suppress(CommandFailed):
                    print(await trial.shell("docker compose logs --no-color --tail 20"), flush=True)
                raise
    return f"compose: passed ({'; '.join([f'{time.monotonic() - began_s:.0f} s', *trial.figures])})"


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    workdir = Path(arguments[0]) if arguments else engines.WORKDIR
    try:
        print(asyncio.run(run(workdir)))
    except Skipped as skipped:
        print(f"compose: skipped: {skipped}")
    except (Broken, CommandFailed, ShoalError) as error:
        print(f"compose: FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
