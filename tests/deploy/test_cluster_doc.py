"""What docs/CLUSTER.md shows runs, and what it names exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from shoal import errors
from shoal.cli.main import app
from shoal.cli.settings import OPTIONS
from shoal.config import Config
from tests.deploy.conftest import NODES, ROOT, Started, free_addresses, running, shared_by_all

DOCS = ROOT / "docs"
TEXT = (DOCS / "CLUSTER.md").read_text()
LINES = [line for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE) for line in block.splitlines()]
BY_HAND = [line for line in LINES if line.startswith("shoal serve")]


def test_the_three_commands_make_a_cluster(tmp_path: Path) -> None:
    written = re.findall(r"--listen (\S+)", "\n".join(BY_HAND))
    assert len(written) == 3
    text = "\n".join(BY_HAND)
    for address, free in zip(written, free_addresses(3), strict=True):
        text = text.replace(address, free)
    with running([Started(shlex.split(line)[1:], {}) for line in text.splitlines()], tmp_path) as urls:
        assert shared_by_all(urls) == [111, 111, 111]


def test_every_setting_exists() -> None:
    settings = {name.lower() for name in re.findall(r"SHOAL_([A-Z_]+)", TEXT)}
    settings |= set(re.findall(r"`([a-z_]+_s)`", TEXT))
    assert len(settings) >= 6
    options = {name.removeprefix("SHOAL_").lower() for name in OPTIONS}
    assert settings - set(Config.__struct_fields__) - options == set()


def test_every_error_exists() -> None:
    names = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", TEXT))
    assert len(names) >= 6
    assert [name for name in names if not hasattr(errors, name)] == []


def test_every_reason_to_refuse_a_peer_is_explained() -> None:
    _, *reasons = re.findall(r'"(\w+)"', errors.PeerRefused.__doc__ or "")  # The first is the detail's name.
    assert "clone" in reasons
    assert [reason for reason in reasons if f"`{reason}`" not in TEXT] == []


def test_every_command_exists() -> None:
    help = CliRunner().invoke(app, ["--help"]).stdout
    commands = set(re.findall(r"\bshoal ([a-z]+)\b", "\n".join(LINES) + " ".join(re.findall(r"`(shoal [^`]+)`", TEXT))))
    assert {"serve", "status", "verify"} <= commands
    assert [command for command in commands if not re.search(rf"\b{command}\b", help)] == []


def test_the_ports_of_compose_are_those_that_the_page_names() -> None:
    (sentence,) = re.findall(r"From this machine the nodes are ([^;]+);", TEXT)
    published = [node["ports"][0].split(":")[1] for node in NODES.values()]
    assert re.findall(r":(\d+)`", sentence) == published


def test_every_link_leads_somewhere() -> None:
    linked = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert linked
    assert [link for link in linked if not (DOCS / link.partition("#")[0]).exists()] == []
