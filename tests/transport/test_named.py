"""A secret that is given where a file's name belongs is not shown in an error: it would be in a log, or on a screen."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from shoal.errors import InvalidConfig, MasterKeyWrong
from shoal.raising import named
from shoal.storage.encrypted.keyring import service_of
from shoal.transport.keyring import Credentials, read

SECRET = "7efa8474e9e1357b3415b6ed7efa8474e9e1357b3415b6ed"


def test_a_secret_in_a_files_place_is_not_shown() -> None:
    with pytest.raises(InvalidConfig) as cluster:
        read(Path(SECRET))
    with pytest.raises(InvalidConfig) as token:
        asyncio.run(Credentials(Path(f"eyJ.{SECRET}.a")).token())
    for caught in (cluster, token):
        assert SECRET not in str(caught.value)
    for source in (f"file:{SECRET}", f"env:{SECRET}"):
        with pytest.raises(MasterKeyWrong) as master:
            service_of(source, os.urandom)
        assert SECRET not in str(master.value)


@pytest.mark.parametrize("name", ["/etc/shoal/cluster-key-of-2026.txt", "./tokens/planner_of_the_crew_7.token", "n1.token"])
def test_a_files_name_is_shown(name: str) -> None:
    assert named(name) == name
