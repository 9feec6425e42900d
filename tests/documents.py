"""Documents that tests of several rooms start from."""

CLUSTER = """\
rlplan_cluster: 1
name: laptop
pools:
  main:
    nodes: 1
    accelerators: {kind: cpu, name: core, per_node: 2, memory_bytes: 1000000000}
    cores: 2
    host_memory_bytes: 24000000000
    usd_per_node_hour: 0.1
"""
