"""A client of `shoal mcp`, or an agent whose state it shows, sends hostile values: a tool answers, and runs nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shoal
from shoal.errors import ShoalError
from shoal.integrations.mcp import memory
from shoal.integrations.mcp.server import STATE_TOOLS
from shoal.integrations.mcp.views import Call, Tool, schema_of
from tests.support.audited import RUNS_CODE, audited
from tests.support.hostile import PLAIN, lying

TOOLS = {tool.name: tool for tool in (*STATE_TOOLS, *memory.TOOLS)}
JSON = [msgspec.json.decode(msgspec.json.encode(each)) for each in PLAIN]


def drawn_arguments(tool: Tool, drawn: random.Random) -> dict[str, Any]:
    """Arguments of the declared names, of any kind of value, mostly of the declared one."""
    schema = schema_of(tool.arguments)
    return {
        name: _of_kind(declared, drawn)
        for name, declared in schema["properties"].items()
        if name in schema.get("required", ()) or drawn.random() < 0.3
    }


def _of_kind(declared: Mapping[str, Any], drawn: random.Random) -> Any:
    kinds = {"string": str, "integer": int, "array": list, "object": dict, "boolean": bool}
    fitting = [each for each in JSON if isinstance(each, kinds.get(str(declared.get("type")), object))]
    return drawn.choice(fitting if fitting and drawn.random() < 0.7 else JSON)


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
@pytest.mark.parametrize("name", TOOLS)
async def test_hostile_calls_run_nothing(name: str, tmp_path: Path) -> None:
    tool = TOOLS[name]
    async with shoal.open(tmp_path / "s") as store:
        liar = lying(store)
        call = Call(store.connection, store.space("s"), "", None)
        for seed in range(-5, 30):
            drawn = random.Random(seed)
            liar.drawn = drawn if seed % 2 else None
            arguments = drawn_arguments(tool, drawn)  # Beforehand: reading a schema evaluates annotations.
            with audited(RUNS_CODE, everywhere=True) as seen:
                try:
                    await tool.run(call, tool.checked(arguments))
                except ShoalError:
                    pass
                except Exception:
                    assert liar.drawn is not None, f"seed {seed}: a client's own arguments are refused with Shoal's errors"
            assert seed < 0 or seen == [], f"seed {seed}"
