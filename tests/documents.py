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


def spread(seconds):
    """A duration that is always the same."""
    return {"p50": seconds, "p95": seconds, "mean": seconds}


def expected_round(share=0.5, rollout_s=1.0, train_s=0.1, sync_s=0.1):
    """A round's part of `predicted`, as plain data."""
    return {
        "share": share,
        "noise": {"rollout": 0.0, "reward_exposed": 0.0, "train": 0.0, "sync": 0.0},
        "step_s": spread(rollout_s + train_s + sync_s),
        "rollout_s": spread(rollout_s),
        "reward_exposed_s": spread(0.0),
        "train_s": spread(train_s),
        "sync_s": sync_s,
        "running": [1 - i / 20 for i in range(21)],
        "tail_s": rollout_s / 4,
        "reward_slack_s": rollout_s / 2,
        "memory": {"kv": {"needed_bytes": 1e6, "capacity_bytes": 1e9}, "train": None},
    }


EXPECTED_BESIDE = {
    "error": {"costs": 0.05, "lengths": 0.0, "sampling": 0.002},
    "drift": None,
    "usd_per_hour": 0.1,
    "host_memory": {"needed_bytes": 1e9, "capacity_bytes": 24e9},
    "lengths_tokens": [4 * i + 1 for i in range(21)],
}
"""What else `predicted` holds that most tests do not care about."""
