"""What RAY_ADDRESS may say."""

from __future__ import annotations

import pytest

from rlplan.executor.placement.cluster_address import cluster_address
from rlplan.plans.yaml.errors import InputError


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "head.example:6379", "[::1]:6379", "auto"])
def test_a_cluster_is_named_by_host_and_port_or_is_that_of_this_machine(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert cluster_address() == address


@pytest.mark.parametrize("address", [None, "", "local"])
def test_without_an_address_ray_is_started_on_this_machine(address, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    assert cluster_address() is None


@pytest.mark.parametrize(
    "address",
    ["foo", "10.0.0.1", ":6379", "10.0.0.1:", "10.0.0.1:abc", " ", "10.0.0.1:0", "10.0.0.1:99999", "::1:6379",
     "ray://10.0.0.1:10001", "10.0.0.1:6379\n"],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_what_to_write(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError) as caught:
        cluster_address()
    assert str(caught.value).startswith(f"RAY_ADDRESS: is {address!r}; write HOST:PORT ")
