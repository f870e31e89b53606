"""Health, metrics and the description of the API."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema_rs
import msgspec
import pytest
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from shoal.api.glossary import BODIES
from shoal.api.health import OTHER_SPACES, SPACES_LABELLED_MAX, Backlog, Metered, Metrics
from shoal.api.route import Route
from shoal.api.routes import ROUTES
from shoal.api.server import create_app
from shoal.config import Config
from shoal.errors import ReadOnly
from shoal.logs.lines import request_id
from shoal.protocol.requests import Add, ClusterView, ConditionsView, ReadCounter, StandingCondition

ALONE = ClusterView("shoal", 1, 1, [], "", 0, [], 0)
NOTHING = ConditionsView("ab12", "n1:7400", [], [])
Served = Any  # Of conftest.py.
Serve = Callable[..., Awaitable[Any]]


async def get(http: aiohttp.ClientSession, served: Served, path: str) -> tuple[int, Any]:
    async with http.get(served.url + path) as response:
        return response.status, await response.json(content_type=None)


# ── ids of requests ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/healthz", "/v1/spaces/s/counters/c", "/nowhere"])
async def test_an_answer_has_its_requests_id(http: aiohttp.ClientSession, served: Served, path: str) -> None:
    async with http.get(served.url + path, headers={"X-Request-Id": "trace/7-a"}) as named:
        assert named.headers["X-Request-Id"] == "trace/7-a"
    made = set()
    for given in ({}, {"X-Request-Id": "two words"}, {"X-Request-Id": "x" * 129}, {"X-Request-Id": '"quoted"'}):
        async with http.get(served.url + path, headers=given) as answer:
            made.add(answer.headers["X-Request-Id"])
    assert len(made - {"two words", "x" * 129, '"quoted"'}) == 4


async def test_log_lines_of_a_request_have_its_id(
    http: aiohttp.ClientSession, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def write(request: Any) -> Any:
        seen.append(request_id())
        raise RuntimeError("a bug")

    monkeypatch.setattr(served.session, "_write", write)
    async with http.post(f"{served.url}/v1/spaces/s/counters/c", json={"add": 1}, headers={"X-Request-Id": "t-1"}) as answer:
        assert (answer.status, answer.headers["X-Request-Id"]) == (500, "t-1")
    assert seen == ["t-1"]
    assert request_id() == ""


# ── health ────────────────────────────────────────────────────────────────────


async def test_a_ready_node_is_alive_and_ready(http: aiohttp.ClientSession, served: Served) -> None:
    assert await get(http, served, "/healthz") == (200, {"status": "alive"})
    assert await get(http, served, "/readyz") == (200, {"status": "ready", "node": "ab12"})


async def test_a_node_that_is_ready_and_counts_in_no_quorum_says_why(http: aiohttp.ClientSession, served: Served) -> None:
    served.session.status = msgspec.structs.replace(served.session.status, reason="learning: n2:7400: not heard yet")
    assert (await get(http, served, "/readyz"))[1]["reason"] == "learning: n2:7400: not heard yet"


@pytest.mark.parametrize(
    ("state", "code"), [("read-only", "read-only"), ("refilling", "catching-up"), ("stopping", "shutting-down")]
)
async def test_a_node_that_is_not_ready_says_why_and_is_alive(
    http: aiohttp.ClientSession, served: Served, state: str, code: str
) -> None:
    served.session.status = msgspec.structs.replace(served.session.status, state=state, reason="the disk is full.")
    status, problem = await get(http, served, "/readyz")
    assert (status, problem["code"], problem["state"]) == (503, code, state)
    assert "the disk is full" in problem["detail"]
    assert (await get(http, served, "/healthz"))[0] == 200


@pytest.mark.parametrize(("state", "code"), [("ready", 200), ("read-only", 503)])
async def test_readiness_names_conditions_and_tells_nothing_of_them(
    http: aiohttp.ClientSession, served: Served, state: str, code: int
) -> None:
    """Whoever asks for it needs no token."""
    stands = StandingCondition("tokens-end", "ticket", "ann's ends", "", "", "", 1, "ann")
    served.session.status = msgspec.structs.replace(served.session.status, state=state, conditions=[stands])
    status, told = await get(http, served, "/readyz")
    assert (status, told["conditions"]) == (code, ["tokens-end"])
    assert "ann" not in json.dumps(told)


async def test_a_node_that_is_no_member_says_what_to_do(http: aiohttp.ClientSession, served: Served) -> None:
    reason = "this node serves nothing: `shoal cluster add n4:7400` adds it"
    served.session.status = msgspec.structs.replace(served.session.status, state="read-only", serves=False, reason=reason)
    status, problem = await get(http, served, "/readyz")
    assert (status, problem["code"], problem["state"]) == (503, "not-a-member", "no-member")
    assert reason in problem["detail"]


async def test_the_process_is_alive_whatever_the_node_answers(http: aiohttp.ClientSession, served: Served) -> None:
    served.session.failure = KeyError("bug")
    assert (await get(http, served, "/healthz"))[0] == 200
    assert (await get(http, served, "/readyz"))[0] == 500


async def test_the_cluster_is_described_with_its_members(http: aiohttp.ClientSession, served: Served) -> None:
    status, cluster = await get(http, served, "/v1/cluster")
    assert status == 200
    node = cluster["node"]
    assert (node["node"], node["state"], node["bytes_on_disk"]) == ("ab12", "ready", 2)
    assert cluster["disagreements"] == ["n2:7400 has other members"]
    assert (cluster["digest"], cluster["members"][0]["name"], cluster["members"][0]["vector"]) == ("d1", "n1:7400", {"aa": 3})


# ── metrics ───────────────────────────────────────────────────────────────────


def sample(text: str, name: str, **labels: str) -> float | None:
    """The value of a sample, by its exact labels."""
    wanted = ",".join(f'{label}="{value}"' for label, value in labels.items())
    found = re.search(rf"^{name}{re.escape('{' + wanted + '}') if wanted else ''} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


async def test_two_nodes_of_a_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.count(Add("s", "c", 1), "ok", 0.0)
    assert one.registry.get_sample_value("shoal_requests_total", {"kind": "add", "outcome": "ok"}) == 1
    assert other.registry.get_sample_value("shoal_requests_total", {"kind": "add", "outcome": "ok"}) is None


async def test_peers_are_measured(http: aiohttp.ClientSession, served: Served) -> None:
    async with http.get(served.url + "/metrics") as response:
        text = await response.text()
    assert sample(text, "shoal_peer_linked", peer="n2:7400") == 1
    assert sample(text, "shoal_peer_lacks_operations", peer="n2:7400") == 2
    assert sample(text, "shoal_peer_lag_seconds", peer="n2:7400") == 0.5
    assert sample(text, "shoal_early_operations") == 4
    assert sample(text, "shoal_clock_ahead_seconds") == 1.5


async def test_figures_of_a_peer_that_told_nothing_are_not_shown(http: aiohttp.ClientSession, served: Served) -> None:
    served.session.peer_told = False
    _, cluster = await get(http, served, "/v1/cluster")
    assert [cluster["members"][1][name] for name in ("operations", "lacks", "ahead", "lag_ms")] == [None] * 4
    async with http.get(served.url + "/metrics") as response:
        text = await response.text()
    assert sample(text, "shoal_peer_linked", peer="n2:7400") == 1
    assert "shoal_peer_lacks_operations{" not in text
    assert "shoal_peer_lag_seconds{" not in text


async def test_requests_are_counted_by_kind_and_outcome_at_every_door(http: aiohttp.ClientSession, served: Served) -> None:
    link = await served.link()
    await link.call(Add("s", "c", 1))
    await http.post(served.url + "/v1/spaces/s/counters/c", json={"add": 1})
    served.session.failure = ReadOnly("full")
    await http.post(served.url + "/v1/spaces/s/counters/c", json={"add": 1})
    async with http.get(served.url + "/metrics") as response:
        assert response.content_type == "text/plain"
        text = await response.text()
    assert sample(text, "shoal_requests_total", kind="add", outcome="ok") == 2
    assert sample(text, "shoal_requests_total", kind="add", outcome="read-only") == 1
    assert sample(text, "shoal_request_duration_seconds_count", kind="add") == 3
    assert sample(text, "shoal_space_requests_total", space="s") == 2
    assert sample(text, "shoal_sessions") == 1
    assert sample(text, "shoal_group_commits_total") == 4
    assert sample(text, "shoal_storage_bytes") == 2
    assert (sample(text, "shoal_received_bytes_total") or 0) > 0
    assert (sample(text, "shoal_sent_bytes_total") or 0) > 0


def faults(family: Metric) -> Iterator[str]:
    """What `promtool check metrics` would say of one."""
    name = family.name
    if not family.documentation:
        yield "has no help"
    if not re.fullmatch(r"(shoal|process)_[a-z0-9_]*[a-z0-9]", name):
        yield "is not in snake case, or of another namespace"
    if re.search(r"_(gauge|counter|histogram|summary|total|count|sum|bucket)$", name):
        yield "has a suffix of a type, or of a sample"
    if re.search(r"_(ms|milliseconds|minutes|hours|days|us|ns|kib|kb|mib|mb|percent)(_|$)", name):
        yield "has a unit that is no base unit"
    if family.type == "histogram" and not name.endswith(("_seconds", "_bytes")):
        yield "is a histogram without a unit"
    for sample in family.samples:
        if family.type == "counter" and sample.name != f"{name}_total":
            yield f"is a counter whose sample is {sample.name}"
        if family.type == "gauge" and sample.name != name:
            yield f"is a gauge whose sample is {sample.name}"
        if family.type == "unknown":
            yield "has no type"
        if set(sample.labels) - {"le"} - {"kind", "outcome", "space", "peer", "reason", "version", "python", "condition"}:
            yield f"has other labels: {sample.labels}"


async def test_metrics_follow_the_conventions_of_prometheus(http: aiohttp.ClientSession, served: Served) -> None:
    await http.post(served.url + "/v1/spaces/s/counters/c", json={"add": 1})
    async with http.get(served.url + "/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(await response.text())}
    assert {name: list(faults(family)) for name, family in families.items() if list(faults(family))} == {}
    kinds = {name: family.type for name, family in families.items()}
    counters = {"requests", "space_requests", "received_bytes", "sent_bytes", "group_commits", "operations", "died_changes"}
    counters |= {"repaired_rows", "failed_repairs", "replaced_objects", "peer_dropped_messages", "quota_refusals"}
    counters |= {"unshown_logs", "refused_tokens", "retention_pruned_checkpoints", "retention_pruned_events"}
    counters |= {"retention_deleted_threads", "retention_freed_bytes", "condition_begun", "redaction_replaced"}
    counters |= {"redaction_refused", "tiering_moved_bytes", "tiering_fetched_objects", "tiering_fetched_bytes"}
    counters |= {"tiering_failed_fetches"}
    assert counters == {name.removeprefix("shoal_") for name, kind in kinds.items() if kind == "counter"} - {
        "process_cpu_seconds"
    }
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"} <= set(
        kinds
    )
    [build] = families["shoal_build_info"].samples
    assert (build.value, build.labels["version"]) == (1, "0.1.0")


async def test_labels_of_spaces_are_bounded(served: Served) -> None:
    metrics = Metrics()
    metered = Metered(served.session, metrics)
    for n in range(SPACES_LABELLED_MAX + 10):
        await metered.call(ReadCounter(f"s{n}", "c"))
    text = metrics.scrape(served.session.status, ALONE, NOTHING).decode()
    assert text.count("shoal_space_requests_total{") == SPACES_LABELLED_MAX + 1
    assert sample(text, "shoal_space_requests_total", space=OTHER_SPACES) == 10


async def test_a_refused_request_labels_no_space(served: Served) -> None:
    metrics = Metrics()
    served.session.failure = ReadOnly("full")
    with pytest.raises(ReadOnly):
        await Metered(served.session, metrics).call(ReadCounter("x" * 5000, "c"))
    assert "xxx" not in metrics.scrape(served.session.status, ALONE, NOTHING).decode()


async def test_requests_are_timed_by_the_clock_that_is_given(served: Served) -> None:
    metrics, ticks = Metrics(), iter([10.0, 10.5])
    await Metered(served.session, metrics, monotonic=lambda: next(ticks)).call(ReadCounter("s", "c"))
    text = metrics.scrape(served.session.status, ALONE, NOTHING).decode()
    assert sample(text, "shoal_request_duration_seconds_sum", kind="read-counter") == 0.5


async def test_the_backlog_is_asked_at_each_scrape(served: Served) -> None:
    metrics = Metrics(lambda: Backlog(7, 0.25))
    text = metrics.scrape(served.session.status, ALONE, NOTHING).decode()
    assert sample(text, "shoal_writes_pending") == 7
    assert sample(text, "shoal_durable_lag_seconds") == 0.25
    assert sample(text, "shoal_ready") == 1


# ── the description ───────────────────────────────────────────────────────────


@pytest.fixture
async def description(http: aiohttp.ClientSession, served: Served) -> dict[str, Any]:
    if not _described:  # It is the same of all nodes, and large.
        async with http.get(served.url + "/v1/openapi.json") as response:
            assert response.content_type == "application/json"
            _described.append(json.loads(await response.read()))
    return _described[0]


_described: list[dict[str, Any]] = []


def served_routes(app: web.Application) -> set[tuple[str, str]]:
    """HEAD goes with every GET, and is not described."""
    routes = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None}
    assert {path for method, path in routes if method == "GET"} == {path for method, path in routes if method == "HEAD"}
    return {(method, path) for method, path in routes if method != "HEAD"}


async def test_each_route_is_described_and_each_description_has_its_route(served: Served, description: dict[str, Any]) -> None:
    app = create_app(served.session.open, config=Config(), node="ab", version="1", now_s=time.time)
    described = {(method.upper(), path) for path, methods in description["paths"].items() for method in methods}
    assert described == served_routes(app)
    assert len(described) > 20


async def test_every_reference_resolves_and_every_id_is_used_once(description: dict[str, Any]) -> None:
    assert description["openapi"].startswith("3.1.")
    schemas = description["components"]["schemas"]
    for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(description)):
        assert reference in schemas
    ids = [operation["operationId"] for methods in description["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)


async def test_every_part_of_a_path_is_a_parameter(description: dict[str, Any]) -> None:
    for path, methods in description["paths"].items():
        for operation in methods.values():
            named = [p["name"] for p in operation.get("parameters", []) if p["in"] == "path"]
            assert named == re.findall(r"{(\w+)}", path)


def test_the_description_is_as_the_schema_of_openapi_says(description: dict[str, Any]) -> None:
    found = find_spec("openapi_spec_validator")
    assert found is not None
    assert found.origin is not None
    schema = json.loads((Path(found.origin).parent / "resources" / "schemas" / "v3.1" / "schema.json").read_text())
    jsonschema_rs.validator_for(schema).validate(description)


@pytest.mark.thorough
def test_operations_are_grouped_by_what_they_are_on(description: dict[str, Any]) -> None:
    """Generated clients have a module for each group."""
    groups = {tag["name"]: tag["description"] for tag in description["tags"]}
    assert groups["counter"] == "Counters that every node can add to."
    assert {"document", "items", "lease", "set", "streams", "thread", "worklist", "yjs"} <= groups.keys()
    assert not {"requests", "flows", "handler", "door", "headers"} & groups.keys()
    [add] = description["paths"]["/v1/spaces/{space}/counters/{counter}"]["post"]["tags"]
    assert add == "counter"


def test_no_schema_is_a_boolean_where_generators_read_one(description: dict[str, Any]) -> None:
    def arrays(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            if part.get("type") == "array":
                yield part
            part = list(part.values())
        if isinstance(part, list):
            for each in part:
                yield from arrays(each)

    found = list(arrays(description))
    assert any("prefixItems" in each for each in found)
    for each in found:
        assert isinstance(each["items"], dict)
        assert "prefixItems" not in each or each["maxItems"] == len(each["prefixItems"])


def test_the_description_is_valid_openapi(description: dict[str, Any]) -> None:
    import openapi_spec_validator

    openapi_spec_validator.validate(description)


def test_every_operation_parameter_and_field_is_explained(description: dict[str, Any]) -> None:
    operations = [operation for methods in description["paths"].values() for operation in methods.values()]
    tags = {tag["name"]: tag["description"] for tag in description["tags"]}
    for operation in operations:
        assert all(tags[tag] for tag in operation["tags"])
        assert operation["tags"]
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (operation["operationId"], parameter["name"])
        for media in operation.get("requestBody", {}).get("content", {}).values():
            assert "example" in media or media is operation["requestBody"]["content"].get("application/msgpack")
    for name, schema in description["components"]["schemas"].items():
        assert schema.get("description"), name
        for field, meaning in schema.get("properties", {}).items():
            assert meaning.get("description"), (name, field)


def test_generators_get_what_they_make_usable_clients_of(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    for name, schema in schemas.items():
        for field, shown in schema.get("properties", {}).items():
            # openapi-typescript makes a field that must be given of one with a default.
            assert "default" not in shown, (name, field)
            # openapi-python-client leaves out a schema with an array of nothing.
            assert shown.get("type") != "array" or "items" in shown, (name, field)
    assert schemas["SaveBody"].get("required", []) == []
    assert schemas["SaveBody"]["properties"]["branch"]["description"].endswith('Default: `"main"`.')
    for response in description["components"]["responses"].values():
        assert response["content"]["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
        assert response["x-codes"]


def test_fields_that_are_always_in_an_answer_are_required(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    for route in ROUTES:
        if isinstance(route.reply, type) and issubclass(route.reply, msgspec.Struct):
            always = not route.reply.__struct_config__.omit_defaults
            schema = schemas[route.reply.__name__]
            assert not always or set(schema["required"]) == set(schema["properties"]), route.reply


async def test_the_latest_checkpoint_is_described_and_served(
    http: aiohttp.ClientSession, served: Served, description: dict[str, Any]
) -> None:
    path = "/v1/spaces/{space}/threads/{thread}/checkpoints/latest"
    shown = description["paths"][path]["get"]
    assert {"branch", "as_of", "label"} <= {parameter["name"] for parameter in shown["parameters"]}
    status, problem = await get(http, served, path.format(space="crew", thread="nobody"))
    assert (status, problem["code"]) == (404, "not-found")


def test_every_operation_lists_the_errors_that_it_can_end_with(description: dict[str, Any]) -> None:
    put = description["paths"]["/v1/spaces/{space}/items/{namespace}/{key}"]["put"]["responses"]
    described = description["components"]["responses"]
    named = {status: described[put[status]["$ref"].rpartition("/")[2]] for status in put if "$ref" in put[status]}
    assert {"400", "403", "412", "413", "415", "422", "429", "431", "500", "503", "504", "507"} <= set(named)
    assert "`item-changed`: `expect` is not the item's version" in named["412"]["description"]
    for response in described.values():
        assert not re.search(r"`: (;|$)", response["description"]), "each has its meaning"


@pytest.mark.parametrize("route", [route for route in ROUTES if route.body is not None], ids=lambda route: route.summary)
def test_examples_are_bodies_that_are_taken(route: Route) -> None:
    example = msgspec.json.encode(BODIES[route.body])
    msgspec.json.decode(example, type=route.body)


async def test_figures_tell_latencies_and_outcomes(http: aiohttp.ClientSession, served: Served) -> None:
    for _ in range(3):
        assert (await http.get(served.url + "/v1/spaces/crew/counters/c")).status == 200
    assert (await http.get(served.url + "/v1/spaces/crew/threads/none/checkpoints/latest")).status == 404
    status, told = await get(http, served, "/v1/cluster/figures")
    assert status == 200
    kinds = {each["kind"]: each for each in told["kinds"]}
    assert kinds["read-counter"]["outcomes"] == {"ok": 3}
    assert kinds["load"]["outcomes"]["not-found"] == 1
    assert 0 < kinds["read-counter"]["ms"]["p50"] <= kinds["read-counter"]["ms"]["p99"] <= kinds["read-counter"]["ms"]["p999"]
    assert told["spaces"] == {"crew": 3}
    assert (told["writes_pending"], told["durable_lag_s"]) == (0, 0)
    assert told["late_ms"]["p50"] >= 0


# ── pages for people ──────────────────────────────────────────────────────────


async def test_the_root_says_what_this_is(http: aiohttp.ClientSession, served: Served) -> None:
    status, told = await get(http, served, "/")
    assert (status, told["name"], told["version"], told["node"]) == (200, "shoal", "0.1.0", "ab12")
    for link in ("docs", "openapi", "health", "ready", "metrics", "cluster", "spaces"):
        assert (await http.get(served.url + told[link])).status == 200
    async with http.get(served.url, headers={"Accept": "text/html,*/*"}) as response:
        assert response.content_type == "text/html"
        assert 'src="ui/app.js"' in await response.text()


async def test_the_pages_ask_no_other_host(http: aiohttp.ClientSession, served: Served) -> None:
    for path in ("/", "/docs"):
        async with http.get(served.url + path, headers={"Accept": "text/html"}) as response:
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert not re.search(r"https?://", await response.text())


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_the_viewer_is_served_in_the_encoding_that_is_asked(
    http: aiohttp.ClientSession, served: Served, encoding: str
) -> None:
    async with http.get(served.url + "/docs/rapidoc.js", headers={"Accept-Encoding": encoding}) as response:
        assert response.headers.get("Content-Encoding", "identity") == encoding
        assert b"RapiDoc" in (await response.read())[:100]


async def test_writes_describe_key_durability_and_body(description: dict[str, Any]) -> None:
    save = description["paths"]["/v1/spaces/{space}/threads/{thread}/checkpoints"]["post"]
    names = {parameter["name"] for parameter in save["parameters"]}
    assert {"Idempotency-Key", "durability"} <= names
    body = description["components"]["schemas"]["SaveBody"]
    assert {"state", "update", "append", "remove"} <= set(body["properties"])
    assert body["additionalProperties"] is False
    assert {"201", "412", "default"} <= set(save["responses"])
