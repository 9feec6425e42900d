"""Random documents that are consistent in themselves, for property tests of several rooms."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.plan import Plan

from ..documents import EXPECTED_BESIDE, expected_round

# Shared machines stall for longer than any deadline of an example, and building a whole plan is many draws.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,20}\Z")
positive = st.floats(1e-9, 1e9)
counts = st.integers(1, 10**6)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    pools, memory = {}, st.integers(10**6, 10**15)
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        cores = draw(counts)
        pools[name] = {
            "nodes": draw(counts), "cores": cores, "host_memory_bytes": draw(memory),
            "usd_per_node_hour": draw(st.floats(0, 1e6)),
            "accelerators": {
                "kind": draw(st.sampled_from(["cpu", "cuda"])), "name": draw(texts.filter(bool)),
                "per_node": draw(st.integers(1, min(cores, 4096))), "memory_bytes": draw(memory),
            },
        }  # fmt: skip
    return Cluster.model_validate({"rlplan_cluster": 1, "name": draw(names), "pools": pools})


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    mode = draw(st.sampled_from(["sync", "race", "defer", "exact", "predict"]))
    p, n = draw(st.integers(1, 500)), draw(st.integers(2, 64))
    over = draw(st.integers(0 if mode == "race" else 1, 90)) if mode not in ("sync", "predict") else 0
    has_long = mode in ("defer", "exact", "predict") or (mode == "race" and over > 0)

    def seconds() -> dict[str, float]:
        return {key: draw(positive) for key in ("p50", "p95", "mean")}

    def layout() -> dict[str, Any]:
        engine: dict[str, Any] = {key: draw(counts) for key in ("engines", "tp", "max_num_seqs")}
        drafts = st.none() | st.fixed_dictionaries({"tokens": counts, "up_to_sequences": counts})
        engine |= {"pool": draw(names), "drafts": draw(drafts)}
        freed = {"engines": st.integers(1, max(1, engine["engines"] - 1)), "at_finished": st.floats(0.01, 0.99)}
        hand_over = draw(st.none() | st.fixed_dictionaries(freed)) if engine["engines"] > 1 else None
        train: dict[str, Any] = {key: draw(counts) for key in ("dp", "tp", "pp", "cp", "ep", "micro_batch_tokens")}
        recompute = draw(st.sampled_from(["none", "selective", "full"]))
        train |= {"recompute": recompute, "offload": draw(st.booleans())}
        return {"rollout": engine, "train": train, "hand_over": hand_over}

    def predicted_round() -> dict[str, Any]:
        shares = st.lists(st.floats(0, 1), min_size=21, max_size=21)
        own = {"rollout_s": seconds(), "step_s": seconds(), "running": draw(shares)}
        return {**expected_round(draw(st.floats(0, 1))), **own}

    def front_point() -> dict[str, Any]:
        numbers = {key: draw(positive) for key in ("seconds_per_sample", "usd_per_1k_samples", "length_ratio")}
        return {"mode": mode, **numbers, "rounds": draw(counts), "chosen": draw(st.booleans())}

    def file(name: str) -> dict[str, str]:
        return {"path": name, "sha256": draw(st.from_regex(r"\A[0-9a-f]{64}\Z"))}

    samples = n + draw(st.integers(0, 5)) if mode == "race" else n
    short = {
        "issue": {"prompts": p + over, "samples": samples},
        "cutoff_tokens": draw(counts) if mode == "exact" else None,
        "long_share": draw(st.floats(0.001, 0.999)) if mode == "predict" else None,
        **layout(),
    }
    copies = draw(st.integers(1, 8)) if mode == "exact" else 1
    long = {"issue": {"prompts": p, "samples": n, "copies": copies}, **layout()} if has_long else None
    if mode == "exact" and long and draw(st.booleans()):
        long["issue"]["prompts"] += draw(st.integers(1, 500))
        long["queue"] = {"more_copies_every": draw(counts), "until_long_after": draw(counts)}
    return Plan.model_validate(
        {
            "rlplan": 1,
            "inputs": {
                "cluster": file("cluster.yaml"),
                "job": file("../job.yaml"),
                "profile": {**file(draw(names)), "provenance": draw(st.sampled_from(["measured", "estimated"]))},
                "lengths": file("a b/lengths.jsonl"),
            },
            "solver": {
                "name": draw(texts.filter(bool)),
                "status": draw(st.sampled_from(["optimal", "feasible"])),
                "gap": draw(st.floats(0, 1)),
                "bound": draw(positive),
                "reached": draw(positive),
                "objective": "seconds_per_sample",
                "candidates": draw(counts),
            },
            "decisions_sha256": "0" * 64,
            "job": {
                "name": draw(names),
                "bias": {"mode": mode, "budget": draw(st.floats(0, 0.99))},
                "issue": {"prompts_per_step": p, "samples_per_prompt": n},
                "rounds": {"short": short, "long": long},
                "reward": {"workers": draw(counts), "deadline_s": draw(st.floats(0.001, 3600))},
                "loss": {
                    "samples": draw(positive),
                    "tokens": draw(counts),
                    "grad_norms": draw(st.none() | st.just({"short": 0.8, "long": 1.3})),
                },
                "sync": {"checksum_every": draw(counts)},
                "why": draw(st.dictionaries(names, texts, max_size=3)),
            },
            "predicted": {
                "step_s": seconds(),
                "seconds_per_sample": draw(positive),
                "baseline": {"step_s": seconds(), "seconds_per_sample": draw(positive)},
                "phases_s": {k: draw(positive) for k in ("rollout", "reward_exposed", "train", "sync")},
                "rounds": {"short": predicted_round(), "long": predicted_round() if has_long else None},
                "length_ratio": draw(positive),
                "nodes": draw(counts),
                "usd_per_1k_samples": draw(positive),
                **EXPECTED_BESIDE,
                "front": [front_point() for _ in range(draw(st.integers(1, 3)))],
            },
            "volatile": {"solved_at": draw(texts), "solve_s": draw(positive), "rlplan": "0.1.0"},
        }
    )
