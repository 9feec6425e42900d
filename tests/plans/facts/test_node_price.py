"""A pool's price, per node or per GPU: which is stated, what it comes to, and what is refused."""

from __future__ import annotations

import pytest

from rlplan.plans.facts.node_price import usd_per_node_hour
from rlplan.plans.schema.cluster import Cluster, Pool
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads

from ...documents import CLUSTER

GPUS = """\
rlplan_cluster: 1
name: gpus
pools:
  main:
    nodes: 2
    accelerators: {kind: cuda, name: H100, per_node: 8, memory_bytes: 80000000000}
    cores: 112
    host_memory_bytes: 2000000000000
    usd_per_gpu_hour: 2.5
"""


def pool(text: str) -> Pool:
    return loads(text, Cluster).pools["main"]


def test_a_node_costs_its_gpus_or_what_is_stated_of_it() -> None:
    assert usd_per_node_hour(pool(GPUS)) == 20.0
    assert usd_per_node_hour(pool(GPUS.replace("gpu_hour: 2.5", "node_hour: 19.5"))) == 19.5
    assert usd_per_node_hour(pool(GPUS.replace("2.5", "0.0"))) == 0.0


def test_a_document_keeps_the_price_that_it_states() -> None:
    written = dump(loads(GPUS, Cluster))
    assert "usd_per_gpu_hour: 2.5" in written and "usd_per_node_hour" not in written
    assert "usd_per_gpu_hour" not in dump(loads(CLUSTER, Cluster))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GPUS.replace("    usd_per_gpu_hour: 2.5\n", ""), 4, ["pools.main", "usd_per_gpu_hour", "usd_per_node_hour"]),
        (GPUS + "    usd_per_node_hour: 20.0\n", 9, ["pools.main.usd_per_gpu_hour", "second time"]),
        (CLUSTER.replace("usd_per_node_hour", "usd_per_gpu_hour"), 9, ["kind cpu", "write usd_per_node_hour"]),
        (GPUS.replace("2.5", "500000.0"), 9, ["4e+06 USD", "1e+06", "one GPU"]),
        (GPUS.replace("2.5", "-1.0"), 9, ["usd_per_gpu_hour", "at least 0 USD per GPU and hour"]),
        (GPUS.replace("usd_per_gpu_hour", "usd_per_hour"), 9, ["'usd_per_node_hour' or 'usd_per_gpu_hour'"]),
    ],
)
def test_two_prices_no_price_and_a_price_of_nothing_are_refused_with_the_line(
    text: str, line: int, words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        loads(text, Cluster, "cluster.yaml")
    assert caught.value.line == line, caught.value
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_pool_of_cores_without_a_price_is_told_only_the_key_that_fits_it() -> None:
    with pytest.raises(InputError) as caught:
        loads("".join(line for line in CLUSTER.splitlines(True) if "usd_per_node_hour" not in line), Cluster)
    assert "add usd_per_node_hour, " in str(caught.value) and "gpu" not in str(caught.value).lower()
