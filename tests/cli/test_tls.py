"""`shoal tls`, and `shoal serve` and the other commands with what it makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.support import forked


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tls", *arguments])


def test_init_makes_a_ca_and_what_each_node_needs(tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    result = run("init", str(directory), "--node", "n1,10.0.0.5", "--node", "n2")
    assert result.exit_code == 0
    assert "10.0.0.5" in result.stdout
    assert f"shoal serve --tls {directory / 'n1'}" in result.stderr
    assert sorted(path.name for path in directory.iterdir()) == ["authority", "ca.pem", "n1", "n2"]


def test_a_wrong_name_makes_nothing(tmp_path: Path) -> None:
    result = run("init", str(tmp_path / "tls"), "--node", "n1", "--node", "n2:7400")
    assert result.exit_code == 1
    assert "Nothing was written" in result.stderr
    assert not (tmp_path / "tls").exists()


def test_show_lists_who_and_until_when(tmp_path: Path) -> None:
    run("init", str(tmp_path), "--node", "n1")
    assert run("node", str(tmp_path), "n2,n2.example.com", "--days", "30").exit_code == 0
    listed = [json.loads(line) for line in run("show", str(tmp_path), "--json").stdout.splitlines()]
    assert [(each["name"], each["trouble"]) for each in listed] == [("ca", ""), ("n1", ""), ("n2", "")]
    assert "n2.example.com" in listed[2]["names"]
    assert "n2.example.com" in run("show", str(tmp_path)).stdout


def test_show_fails_if_a_certificate_cannot_be_used(tmp_path: Path) -> None:
    run("init", str(tmp_path / "a"), "--node", "n1")
    run("init", str(tmp_path / "b"))
    (tmp_path / "a" / "ca.pem").write_bytes((tmp_path / "b" / "ca.pem").read_bytes())
    result = run("show", str(tmp_path / "a"))
    assert result.exit_code == 1
    assert "not signed by" in result.stdout


@pytest.mark.answers("open-nodes-need-tls")
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.5", "n1.example.com"])
def test_a_node_that_other_machines_can_reach_is_not_started_without_tls(tmp_path: Path, host: str) -> None:
    state = tmp_path / "state"
    arguments = ["serve", "--data", str(state), "--listen", f"{host}:7400"]
    result = CliRunner().invoke(app, arguments, env={"SHOAL_DATA": None, "SHOAL_CONFIG": None})
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Nothing was started" in result.stderr
    assert "shoal tls init ./tls --node NAME,ADDRESS" in result.stderr
    assert "shoal token init ./tokens" in result.stderr
    assert f"shoal serve --listen {host}:7400 --tls ./tls/NAME --token-keys ./tokens/keys.json" in result.stderr
    assert not state.exists()


@pytest.mark.answers("open-nodes-need-tls")
def test_with_tls_alone_it_is_told_how_to_make_tokens(tmp_path: Path) -> None:
    run("init", str(tmp_path / "tls"), "--node", "n1")
    arguments = ["serve", "--data", str(tmp_path / "state"), "--listen", "0.0.0.0:0", "--tls", str(tmp_path / "tls" / "n1")]
    result = CliRunner().invoke(app, arguments, env={"SHOAL_CONFIG": None})
    assert result.exit_code == 1
    assert "without tokens" in result.stderr
    assert "shoal token init ./tokens" in result.stderr
    assert "shoal tls init" not in result.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.answers("open-nodes-need-tls")
@pytest.mark.parametrize(("options", "variables"), [(["--insecure"], {}), ([], {"SHOAL_INSECURE": "1"})])
def test_it_is_started_without_tls_if_that_is_asked_for(tmp_path: Path, options: list[str], variables: dict[str, str]) -> None:
    with served(tmp_path / "state", "--listen", "0.0.0.0:0", *options, config=variables) as (_, url):
        assert url.startswith("http://0.0.0.0:")


def test_with_tls_and_tokens_it_is_started(tmp_path: Path) -> None:
    run("init", str(tmp_path / "tls"), "--node", "n1")
    CliRunner().invoke(app, ["token", "init", str(tmp_path / "tokens")])
    options = ["--tls", str(tmp_path / "tls" / "n1"), "--token-keys", str(tmp_path / "tokens" / "keys.json")]
    with served(tmp_path / "state", "--listen", "0.0.0.0:0", *options) as (_, url):
        assert url.startswith("https://0.0.0.0:")


@pytest.mark.answers("tls-is-checked")
def test_a_node_is_served_and_asked_over_tls(tmp_path: Path) -> None:
    run("init", str(tmp_path / "tls"), "--node", "n1")
    ca = str(tmp_path / "tls" / "ca.pem")
    with served(tmp_path / "state", "--tls", str(tmp_path / "tls" / "n1")) as (_, url):
        assert url.startswith("https://")
        for options, variables in ((["--tls-ca", ca], {}), ([], {"SHOAL_TLS_CA": ca})):
            command = ["-m", "shoal", *options, "status", "--url", url, "--json"]
            ended = forked.run(command, {**clean_environment(), **variables}, timeout=PATIENCE_S)
            assert ended.returncode == 0, ended.stderr
            assert json.loads(ended.stdout)["state"] == "ready"


def test_serve_refuses_files_that_do_not_belong_together_before_anything_is_made(tmp_path: Path) -> None:
    run("init", str(tmp_path / "tls"), "--node", "n1", "--node", "n2")
    one, other = tmp_path / "tls" / "n1", tmp_path / "tls" / "n2"
    arguments = ["serve", "--data", str(tmp_path / "state"), "--tls", str(one), "--tls-key", str(other / "key.pem")]
    result = CliRunner().invoke(app, arguments, env={"SHOAL_DATA": None, "SHOAL_CONFIG": None})
    assert (result.exit_code, result.stdout) == (1, "")
    assert "does not belong to the certificate" in result.stderr
    assert not (tmp_path / "state").exists()
