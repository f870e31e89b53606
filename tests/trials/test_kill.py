"""Promise 1, with real processes: what was acknowledged or shown survives `kill -9`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from chaos.trials.kill_trial import kill_servers, kill_workers
from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.transport.session import RemoteSession, SessionContext


@pytest.mark.answers("acknowledged-writes-survive")
@pytest.mark.parametrize(("rounds", "seed"), [(2, 2), pytest.param(3, 5, marks=pytest.mark.thorough)])
async def test_an_embedded_store_survives_kills(tmp_path: Path, rounds: int, seed: int) -> None:
    # The seeds give kills at work; 2 gives one while opening, too.
    tally = await kill_workers(tmp_path, rounds=rounds, random=Random(seed), acknowledgements_max=100)
    assert tally.crashes == rounds
    assert tally.acknowledged > 0


@pytest.mark.thorough
async def test_a_served_store_survives_kills_and_its_clients_learn_every_outcome(tmp_path: Path) -> None:
    environment = system_environment()

    def connect(url: str) -> RemoteSession:
        config = Config(reconnect_delay_s_max=0.1)
        return RemoteSession(url, config=config, context=SessionContext(environment.now_ms, environment.entropy), wait_s=30.0)

    tally = await kill_servers(tmp_path, rounds=2, random=Random(2), connect=connect, acknowledgements_max=100)
    environment.close()
    assert tally.acknowledged > 0
    assert tally.unknown == 0
