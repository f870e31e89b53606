"""Refused tokens are counted by address, within bounds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.access.failures import Failures
from shoal.config import Config
from shoal.errors import Overloaded
from simulation.bounds import altered

CONFIG = Config(token_failures_max=2)


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(token_failures_s=60.0, token_addresses_max=3):
        yield


def failed(*addresses: str, times: int = 2) -> Failures:
    failures = Failures(CONFIG)
    for address in addresses:
        for _ in range(times):
            failures.add(address, now_s=0.0)
    return failures


def test_an_address_whose_tokens_failed_waits() -> None:
    failures = failed("10.0.0.1")
    with pytest.raises(Overloaded) as refused:
        failures.check("10.0.0.1", now_s=50.0)
    assert refused.value.detail["retry_after_s"] == 10.0
    failures.check("10.0.0.1", now_s=60.0)
    failures.check("10.0.0.2", now_s=50.0)
    failed("10.0.0.1", times=1).check("10.0.0.1", now_s=50.0)


def test_the_first_failures_are_forgotten_first() -> None:
    failures = failed("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
    assert len(failures) == 3
    failures.check("10.0.0.1", now_s=1.0)
    with pytest.raises(Overloaded):
        failures.check("10.0.0.4", now_s=1.0)


def test_an_ipv6_network_counts_as_one_address() -> None:
    failures = failed("2001:db8:1:2::1")
    with pytest.raises(Overloaded):
        failures.check("2001:db8:1:2:ffff::9", now_s=1.0)
    failures.check("2001:db8:1:3::1", now_s=1.0)
    with pytest.raises(Overloaded):
        failed("10.0.0.1").check("::ffff:10.0.0.1", now_s=1.0)
