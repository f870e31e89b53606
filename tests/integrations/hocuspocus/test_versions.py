"""Hocuspocus's providers of three major versions, with a token and without, edit a document and are told when it ends."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PATIENCE_S, clean_environment, served

NODE = shutil.which("node") or shutil.which("nodejs") or "node"
PROGRAM = """
import * as Y from 'yjs'
import WebSocket from 'ws'
const [, , version, url, name, token] = process.argv
const { HocuspocusProvider, HocuspocusProviderWebsocket } = await import(version)
const document = new Y.Doc()
const at = url.replace('http', 'ws') + '/v1/hocuspocus/crew'
const websocketProvider = new HocuspocusProviderWebsocket({ url: at, WebSocketPolyfill: WebSocket })
const ended = new Promise(resolve => {
  const provider = new HocuspocusProvider({ websocketProvider, name, document, token: token || null,
    onAuthenticationFailed: ({ reason }) => resolve(['authenticationFailed', reason]),
    onClose: ({ event }) => resolve(['close', event.reason]) })
  provider.attach?.()
  globalThis.provider = provider
})
const until = async holds => { while (!holds()) await new Promise(resolve => setTimeout(resolve, 20)) }
await until(() => provider.synced)
document.getText('t').insert(0, version)
await until(() => !provider.hasUnsyncedChanges)
const path = `${url}/v1/spaces/crew/documents/${name}`
const shown = await (await fetch(path)).json()
await fetch(path, { method: 'DELETE' })
console.log(JSON.stringify({ shown, ended: await ended }))
process.exit(0)
"""


async def ran(*arguments: str) -> Any:
    """What the program shows."""
    program = Path(sys.prefix) / "shoal-versions.mjs"  # Beside the packages.
    program.write_text(PROGRAM)
    process = await asyncio.create_subprocess_exec(
        *(NODE, str(program), *arguments),
        cwd=sys.prefix,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment(),
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, errors.decode()
    return json.loads(out)


@pytest.mark.parametrize("token", ["", "any"], ids=["without", "with"])
@pytest.mark.parametrize("version", ["provider-2", "provider-3", "provider-4"])
async def test_a_provider_of_every_version_is_served(tmp_path: Path, version: str, token: str) -> None:
    with served(tmp_path / "state") as (_, url):
        found = await ran(version, url, "plan", token)
    assert found["shown"] == {"t": version}
    event, reason = found["ended"]
    assert event == ("close" if version == "provider-4" else "authenticationFailed")
    assert "was deleted" in reason


@pytest.mark.parametrize("version", ["provider-2", "provider-3", "provider-4"])
async def test_a_provider_that_lacks_a_token_is_told_so(tmp_path: Path, version: str) -> None:
    keys = tmp_path / "tokens"
    shoal = (sys.executable, "-m", "shoal", "token", "init", str(keys))
    made = await asyncio.create_subprocess_exec(*shoal, env=clean_environment(), stdout=asyncio.subprocess.DEVNULL)
    assert await made.wait() == 0
    program = PROGRAM.replace("await until(() => provider.synced)", "console.log(JSON.stringify(await ended)); process.exit(0)")
    with served(tmp_path / "state", "--token-keys", str(keys / "keys.json")) as (_, url):
        place = Path(sys.prefix) / "shoal-refused.mjs"
        place.write_text(program)
        process = await asyncio.create_subprocess_exec(
            *(NODE, place, version, url, "plan"), cwd=sys.prefix, stdout=asyncio.subprocess.PIPE, env=clean_environment()
        )
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    event, reason = json.loads(out)
    assert event == "authenticationFailed"
    assert "token" in reason
