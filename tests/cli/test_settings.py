"""Settings: which source wins, and what every refusal says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.main import get_command

from shoal.cli.main import app
from shoal.cli.settings import OPTIONS, Given, given_listen, given_setting, load, unknown_variables
from shoal.config import GROUPS, Config, MiB, checked, group_of
from shoal.errors import InvalidConfig

DOCUMENT = Path(__file__).parents[2] / "docs" / "CONFIGURATION.md"


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "shoal.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_sources_the_defaults_hold() -> None:
    assert load(environment={}) == Config()


def test_file_beats_default_environment_beats_file_flag_beats_environment(tmp_path: Path) -> None:
    file = written(tmp_path, "[requests]\nbatch_writes_max = 1\n[sessions]\nsessions_max = 1\n[listener]\nlisten_port = 1")
    environment = {"SHOAL_SESSIONS_MAX": "2", "SHOAL_LISTEN_PORT": "2"}
    config = load(flags=given_listen("h:3"), environment=environment, file=file)
    assert (config.batch_writes_max, config.sessions_max, config.listen_port) == (1, 2, 3)


def test_environment_names_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "[sessions]\nsessions_max = 5")
    assert load(environment={"SHOAL_CONFIG": str(file)}).sessions_max == 5


def test_config_flag_beats_the_file_of_the_environment(tmp_path: Path) -> None:
    assert load(environment={"SHOAL_CONFIG": "/nowhere"}, file=written(tmp_path, "")) == Config()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4194304", 4 * MiB),
        ("4MiB", 4 * MiB),
        ("4 MiB", 4 * MiB),
        ("4096KiB", 4 * MiB),
        ("1_048_576B", MiB),
        ("1GiB", 1024 * MiB),
    ],
)
def test_sizes_are_bytes_or_have_a_unit(text: str, size: int) -> None:
    assert load(environment={"SHOAL_MEMTABLE_BYTES": text}).memtable_bytes == size


@pytest.mark.parametrize("text", ["64MB", "1.5MiB", "-1MiB", "MiB", "", "64mib", "²KiB"])
def test_other_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r'SHOAL_MEMTABLE_BYTES: memtable_bytes must be a size: .*"64MiB"'):
        load(environment={"SHOAL_MEMTABLE_BYTES": text})


def test_a_unit_on_a_field_that_is_no_size_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="sessions_max must be a whole number; it is '1KiB'"):
        load(environment={"SHOAL_SESSIONS_MAX": "1KiB"})


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "soon", ""])
def test_a_duration_that_is_not_a_finite_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="SHOAL_HEARTBEAT_S: heartbeat_s must be a number"):
        load(environment={"SHOAL_HEARTBEAT_S": text})


@pytest.mark.parametrize("value", ["true", '"x"', "2.5", "[1]", "{a = 1}", "nan", "2024-01-01"])
def test_a_wrong_type_in_the_file_names_file_and_key(tmp_path: Path, value: str) -> None:
    file = written(tmp_path, f"[sessions]\nsessions_max = {value}")
    with pytest.raises(InvalidConfig, match=re.escape(f"{file}:sessions.sessions_max: sessions_max must be a whole number")):
        load(environment={}, file=file)


def test_a_number_for_a_text_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="listen_host must be text; it is 7"):
        load(environment={}, file=written(tmp_path, "[listener]\nlisten_host = 7"))


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("SESSIONS_MAX", "0", "greater than 0"),
        ("HEARTBEAT_S", "-1", "greater than 0"),
        ("LISTEN_PORT", "65536", "0 to 65535"),
        ("MEMTABLE_BYTES", "1KiB", "at least 1048576"),
        ("LISTEN_HOST", "", "not be empty"),
        ("STREAM_TTL_S", "0.5", "1 to 3600, as every lease"),
    ],
)
def test_a_value_out_of_range_names_its_source_and_what_is_allowed(name: str, text: str, allowed: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^SHOAL_{name}: {name.lower()} must .*{allowed}") as caught:
        load(environment={f"SHOAL_{name}": text})
    assert caught.value.detail == {"field": name.lower(), "source": f"SHOAL_{name}"}


def test_an_unknown_key_of_the_file_is_refused_and_the_near_one_named(tmp_path: Path) -> None:
    file = written(tmp_path, "[sessions]\nsession_max = 1")
    with pytest.raises(
        InvalidConfig,
        match=re.escape(f"{file}:sessions.session_max: there is no setting 'session_max'; did you mean sessions_max?"),
    ):
        load(environment={}, file=file)


def test_a_setting_outside_of_its_table_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "memtable_bytes = 1048576")
    with pytest.raises(InvalidConfig, match=re.escape("stands outside of a table. Write it below a line with [storage]")):
        load(environment={}, file=file)
    file = written(tmp_path, "[log]\nmemtable_bytes = 1048576")
    with pytest.raises(InvalidConfig, match=re.escape("memtable_bytes belongs in the table [storage]")):
        load(environment={}, file=file)


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=re.escape("there is no table [storages]; did you mean storage?")):
        load(environment={}, file=written(tmp_path, "[storages]\nmemtable_bytes = 1048576"))


def test_a_bound_that_is_a_constant_is_no_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"there is no setting 'turn_slice_s'.* A bound that is not there is a constant"):
        load(environment={}, file=written(tmp_path, "[requests]\nturn_slice_s = 1"))
    with pytest.raises(InvalidConfig, match="there is no setting 'turn_slice_s'"):
        given_setting("turn_slice_s=1")


def test_there_are_at_most_120_settings() -> None:
    assert len(Config.__struct_fields__) <= 120


def test_every_group_of_settings_has_its_table() -> None:
    groups = [group_of(name) for name in Config.__struct_fields__]
    assert list(dict.fromkeys(groups)) == list(GROUPS)
    titles = re.findall(r"^## \[(\w+)\]$|^\| `(\w+)` \| `", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    table, documented = "", []
    for title, name in titles:
        table = title or table
        documented += [(name, table)] if name else []
    assert documented == list(zip(Config.__struct_fields__, groups, strict=True))


def test_an_unknown_environment_variable_is_a_warning() -> None:
    environment = {"SHOAL_COLOUR": "red", "SHOAL_MEMTABLE_BYTE": "1MiB", "SHOAL_TOKEN_FIL": "t", "SHOAL_HEARTBEAT_S": "3"}
    assert load(environment=environment) == Config(heartbeat_s=3.0)
    assert unknown_variables(environment) == [
        "the environment variable SHOAL_COLOUR is not a setting, and is ignored; docs/CONFIGURATION.md lists all settings. "
        "A bound that is not there is a constant: leave it out.",
        "the environment variable SHOAL_MEMTABLE_BYTE is not a setting, and is ignored; did you mean SHOAL_MEMTABLE_BYTES?",
        "the environment variable SHOAL_TOKEN_FIL is not a setting, and is ignored; did you mean SHOAL_TOKEN_FILE?",
    ]


# What Kubernetes injects beside a Service of each name; "shoal-listen" has a variable with the name of a setting.
@pytest.mark.parametrize("service", ["shoal", "shoal-http", "shoal-listen", "shoal-wait"])
def test_links_to_services_are_no_settings(service: str) -> None:
    prefix = service.upper().replace("-", "_")
    environment = {
        f"{prefix}_SERVICE_HOST": "10.96.0.7",
        f"{prefix}_SERVICE_PORT": "7400",
        f"{prefix}_SERVICE_PORT_HTTP": "7400",
        f"{prefix}_PORT": "tcp://10.96.0.7:7400",
        f"{prefix}_PORT_7400_TCP": "tcp://10.96.0.7:7400",
        f"{prefix}_PORT_7400_TCP_PROTO": "tcp",
        f"{prefix}_PORT_7400_TCP_PORT": "7400",
        f"{prefix}_PORT_7400_TCP_ADDR": "10.96.0.7",
    }
    assert load(environment=environment) == Config()
    assert unknown_variables(environment) == []


def test_the_variables_of_the_commands_are_no_settings() -> None:
    environment = {f"SHOAL_{name}": "x" for name in ("DATA", "URL", "SPACE", "AUTHOR")}
    assert load(environment=environment) == Config()
    assert unknown_variables(environment) == []


def test_every_variable_that_an_option_reads_is_no_setting() -> None:
    told = {
        name for option in options(get_command(app)) for name in re.findall(r"SHOAL_[A-Z_]+", f"{option.envvar} {option.help}")
    }
    assert "SHOAL_AUTHOR" in told
    # These are settings of the same name and meaning.
    assert told - {"SHOAL_TLS_CA", "SHOAL_ENCRYPTION_KEY"} <= OPTIONS


def options(command: Any) -> Iterator[Any]:
    for inner in getattr(command, "commands", {}).values():
        yield from options(inner)
    yield from (parameter for parameter in command.params if parameter.param_type_name == "option")


@pytest.mark.parametrize("level", ["verbose", "warn", ""])
def test_an_unknown_log_level_is_refused_with_those_there_are(level: str) -> None:
    with pytest.raises(InvalidConfig, match=r"--log-level: log_level must be one of debug, info, warning, error"):
        load(flags=[Given("log_level", level, "--log-level")], environment={})


def test_a_bad_value_is_refused_even_where_a_flag_hides_it() -> None:
    with pytest.raises(InvalidConfig, match="SHOAL_LISTEN_PORT"):
        load(flags=given_listen("h:3"), environment={"SHOAL_LISTEN_PORT": "x"})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"cannot read .*absent\.toml: No such file"):
        load(environment={}, file=tmp_path / "absent.toml")


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="is not TOML"):
        load(environment={}, file=written(tmp_path, "sessions_max: 1"))


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "shoal.toml"
    file.write_bytes(b"listen_host = '\xff'")
    with pytest.raises(InvalidConfig, match="is not TOML"):
        load(environment={}, file=file)


@pytest.mark.parametrize(("text", "host", "port"), [("0.0.0.0:7400", "0.0.0.0", "7400"), ("[::1]:0", "::1", "0")])
def test_listen_is_host_and_port(text: str, host: str, port: str) -> None:
    assert given_listen(text) == [Given("listen_host", host, "--listen"), Given("listen_port", port, "--listen")]


@pytest.mark.parametrize("text", ["7400", "host:", ":7400", "host:http", "host:-1", ""])
def test_another_listen_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"--listen must be HOST:PORT, for example 127\.0\.0\.1:7400"):
        given_listen(text)


def test_set_names_a_field_and_a_value() -> None:
    config = load(flags=[given_setting("heartbeat_s=2.5")], environment={"SHOAL_HEARTBEAT_S": "3"})
    assert config.heartbeat_s == 2.5


@pytest.mark.parametrize(("text", "said"), [("heartbeat_s", "must be FIELD=VALUE"), ("heart=1", "there is no setting 'heart'")])
def test_another_set_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        given_setting(text)


def test_the_document_lists_every_field_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))
    documented = {
        name: getattr(load(flags=[Given(name, text.strip('"'), "document")], environment={}), name)
        for name, text in rows.items()
    }
    fields = {name: getattr(Config(), name) for name in get_type_hints(Config) if not name.startswith("_")}
    assert documented == fields


@pytest.mark.parametrize("key", ["secret", "a" * 64, "0123456789abcdef012", "abcabcabcabcabcabcabcabc"])
def test_a_weak_cluster_key_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InvalidConfig, match=r"too weak.*openssl rand") as caught:
        load(environment={"SHOAL_CLUSTER_KEY": key})
    assert key not in caught.value.message
    assert load(environment={"SHOAL_CLUSTER_KEY": "9c1f04be77a25d3360e8"}).cluster_key


@pytest.mark.parametrize("name", ["cluster_key", "encryption_key"])
def test_no_error_shows_a_secret(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfig, match="must be text") as caught:
        load(environment={}, file=written(tmp_path, f"[{group_of(name)}]\n{name} = 7318273645"))
    assert "7318273645" not in caught.value.message
    with pytest.raises(InvalidConfig, match="must be text") as caught:
        checked(Config(**{name: b"7318273645"}))  # type: ignore[arg-type]
    assert "7318273645" not in caught.value.message
