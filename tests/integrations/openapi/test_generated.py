"""Clients that common generators make of the description, with their defaults: they are typed, and they work."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.cli.conftest import clean_environment, served

NODE = shutil.which("node") or shutil.which("nodejs") or "node"
BIN = Path(sys.prefix) / "apart" / "bin"
MODULES = Path(sys.prefix) / "node_modules"

# Only what a user would write: nothing is cast, no field that may be left out is given.
PYTHON = """
import sys

from shoal_client import Client
from shoal_client.api.counter import post_spaces_space_counters_counter
from shoal_client.api.thread import (
    get_spaces_space_threads_thread_checkpoints_latest as latest,
    post_spaces_space_threads_thread_checkpoints as save,
)
from shoal_client.models import AddBody, AddedView, CheckpointView, CheckpointViewState, Problem
from shoal_client.models import SaveBody, SaveBodyStateType0, SavedView

with Client(base_url=sys.argv[1]) as client:
    state = SaveBodyStateType0.from_dict({"n": 1, "messages": ["hello"]})
    saved = save.sync("crew", "planner", client=client, body=SaveBody(state=state))
    assert isinstance(saved, SavedView), saved
    found = latest.sync("crew", "planner", client=client)
    assert isinstance(found, CheckpointView), found
    assert found.id == saved.id
    assert isinstance(found.state, CheckpointViewState)
    assert found.state.to_dict() == state.to_dict()
    added = post_spaces_space_counters_counter.sync("crew", "n", client=client, body=AddBody(add=3))
    assert isinstance(added, AddedView), added
    assert added.value == 3
    absent = latest.sync("crew", "nobody", client=client)
    assert isinstance(absent, Problem), absent
    assert (absent.status, absent.code, absent.written) == (404, "not-found", "no")
"""

TYPESCRIPT = """
import createClient from 'openapi-fetch'
import type { components, paths } from './api.js'

const client = createClient<paths>({ baseUrl: process.argv[2] ?? '' })
const path = { space: 'crew', thread: 'planner' }
const state: components['schemas']['SaveBody']['state'] = { n: 1, messages: ['hello'] }
const saved = await client.POST('/v1/spaces/{space}/threads/{thread}/checkpoints', { params: { path }, body: { state } })
if (saved.data === undefined) throw new Error(saved.error.detail)
const found = await client.GET('/v1/spaces/{space}/threads/{thread}/checkpoints/latest', { params: { path } })
if (found.data?.id !== saved.data.id || found.data.state?.n !== 1) throw new Error(JSON.stringify(found))
const added = await client.POST('/v1/spaces/{space}/counters/{counter}', {
  params: { path: { space: 'crew', counter: 'n' } }, body: { add: 3 },
})
if (added.data?.value !== 3) throw new Error(JSON.stringify(added))
const absent = await client.GET('/v1/spaces/{space}/threads/{thread}/checkpoints/latest', {
  params: { path: { ...path, thread: 'nobody' } },
})
if (absent.error?.code !== 'not-found') throw new Error(JSON.stringify(absent))
"""

# Strict, and the generated file is checked too.
TSCONFIG = """{"compilerOptions": {"strict": true, "exactOptionalPropertyTypes": true, "noUncheckedIndexedAccess": true,
"module": "nodenext", "target": "es2022", "outDir": "out", "types": ["node"]}, "files": ["program.ts", "api.ts"]}"""


async def ran(*command: str | Path, within: Path) -> str:
    """What a command said; that it succeeded is asserted here."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=within,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**clean_environment(), "PATH": f"{BIN}:{clean_environment().get('PATH', '')}"},
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


@asynccontextmanager
async def node(tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a node; its description is `tmp_path / "api.json"`."""
    with served(tmp_path / "state") as (_, url):
        async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/openapi.json") as response:
            (tmp_path / "api.json").write_bytes(await response.read())
        yield url


async def test_a_generated_python_client_is_typed_and_works(tmp_path: Path) -> None:
    async with node(tmp_path) as url:
        generate = ("generate", "--path", "api.json", "--output-path", "made", "--meta", "none")
        said = await ran(BIN / "openapi-python-client", *generate, within=tmp_path)
        assert "removal of" not in said, "a schema was left out"
        (tmp_path / "made").rename(tmp_path / "shoal_client")
        (tmp_path / "program.py").write_text(PYTHON)
        await ran(BIN / "python", "-m", "mypy", "--strict", "--follow-imports=silent", "program.py", within=tmp_path)
        await ran(BIN / "python", "program.py", url, within=tmp_path)


async def test_a_generated_typescript_client_is_typed_and_works(tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(MODULES)
    async with node(tmp_path) as url:
        await ran(NODE, MODULES / "openapi-typescript" / "bin" / "cli.js", "api.json", "-o", "api.ts", within=tmp_path)
        (tmp_path / "program.ts").write_text(TYPESCRIPT)
        (tmp_path / "package.json").write_text('{"type": "module"}')
        (tmp_path / "tsconfig.json").write_text(TSCONFIG)
        await ran(NODE, MODULES / "typescript" / "bin" / "tsc", within=tmp_path)
        await ran(NODE, "out/program.js", url, within=tmp_path)
