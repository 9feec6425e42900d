"""Bytes that a node's host holds of a set-up, by phase, from public reports:

- Megatron's optimizer on the host keeps float32 weights and gradients in page-locked blocks, whose sizes torch rounds
  up to powers of two, and moments beside them; slime keeps a page-locked copy of the actor's and of the reference's
  weights. For Qwen3-30B-A3B that is 96 GB of a rank of 8 and 193 GB of a rank of 4, and processes had 102 GB
  (THUDM/slime issue 1851) and 196 GB (vime issue 56): `TRAINER_PROCESS_BYTES` is the difference.
- Beside trainers these nodes held 184 and 200 GB: `ENGINE_PROCESS_BYTES` for each GPU of an engine and
  `NODE_SHARE` of its memory for all else, with the 61 GB of weights that vLLM keeps at sleep level 1.
- Ray kills a process once a node's memory is 95 % full (RAY_memory_usage_threshold).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.phrases.numbers import bytes_text
from .rank_states import Held, RankShare, SetupPhase, SetupUse, state_bytes, trained_share

TRAINER_PROCESS_BYTES = {"megatron": 16e9, "fsdp": 6e9, "deepspeed": 6e9, "ddp": 6e9}
ENGINE_PROCESS_BYTES = 15e9
NODE_SHARE = 0.07
NODE_OWN = "the node's own"
RAY_SHARE = 0.95
_BLOCKS = "page-locked blocks are powers of two"

DEEPSPEED_HOST_BYTES = 24.0
"""Of a parameter whose states DeepSpeed keeps on the host: 16, times the 1.5 of its own estimator
(deepspeed/runtime/zero/stage_1_and_2.py, estimate_zero2_model_states_mem_needs)."""


def rounded_up(setup: TrainerSetup, a: Architecture, value_bytes: float) -> float:
    """Bytes of page-locked copies of a rank's matrices over what they have: each is rounded up to a power of two."""
    tp = max(1, setup.tp if setup.backend == "megatron" else 1)
    heads = (a.heads + 2 * a.kv_heads) * a.head_dim
    matrices: list[tuple[float, float]] = [
        (a.layers, heads * a.hidden / tp),
        (a.layers, a.heads * a.head_dim * a.hidden / tp),
    ]
    if a.intermediate:
        dense = a.layers if not a.experts else a.dense_layers
        matrices += [(dense, 2 * a.intermediate * a.hidden / tp), (dense, a.intermediate * a.hidden / tp)]
    if a.experts:
        width = a.expert_intermediate * a.hidden / setup.etp
        count = (a.layers - a.dense_layers) * a.experts / setup.ep
        matrices += [(count, 2 * width), (count, width)]
    matrices.append((1 if a.tied else 2, a.vocab * a.hidden / tp))
    held = sum(count * size for count, size in matrices)
    taken = sum(count * 2 ** math.ceil(math.log2(size * value_bytes)) / value_bytes for count, size in matrices if size)
    return float(taken / held)


def host_uses(
    setup: TrainerSetup, a: Architecture, share: RankShare, phase: SetupPhase, step: int
) -> Iterator[SetupUse]:
    """What a node's host holds in a phase; where pools are apart, a node of trainers and, once, one of engines."""
    assert setup.host_bytes is not None
    train_ranks = min(setup.train_gpus, setup.gpus_per_node)
    engine_ranks = min(setup.rollout_gpus, setup.gpus_per_node) if setup.engine != "transformers" else 0
    ray = setup.framework not in ("trl",)
    capacity = setup.host_bytes * (RAY_SHARE if ray else 1.0)
    # Pools that are apart share a node if both fit on one.
    together = setup.colocated or setup.nodes == 1
    trainers = _trainers_on_host(setup, a, share, phase, step, train_ranks)
    # OpenRLHF starts its engines before it loads the trainers' models, the others after.
    engines = {} if phase == "init" and setup.framework != "openrlhf" else _engines_on_host(setup, a, engine_ranks)
    node = {NODE_OWN: Held(NODE_SHARE * setup.host_bytes, f"{NODE_SHARE:.0%}: system, Ray's objects, driver, rollouts")}
    if together:
        yield SetupUse(phase, "host", step, "both", {**trainers, **engines, **node}, capacity)
    else:
        yield SetupUse(phase, "host", step, "trainers", {**trainers, **node}, capacity)
        if step == 1:
            yield SetupUse(phase, "host", step, "engines", {**engines, **node}, capacity)


def _engines_on_host(setup: TrainerSetup, a: Architecture, ranks: int) -> dict[str, Held]:
    if not ranks:
        return {}
    held = {"engine processes": Held(ranks * ENGINE_PROCESS_BYTES, f"{ranks} x {bytes_text(ENGINE_PROCESS_BYTES)}")}
    if setup.engine_keeps_weights_on_host and setup.engine_sleeps:
        copies, factor = ranks / setup.rollout_tp, rounded_up(setup, a, 2.0)
        size = 2.0 * a.parameters * factor
        text = f"{copies:g} engines x {a.parameters / 1e9:.2f}e9 x 2 B x {factor:.2f} ({_BLOCKS})"
        held["weights of sleeping engines"] = Held(copies * size, text)
    return held


def _trainers_on_host(
    setup: TrainerSetup, a: Architecture, share: RankShare, phase: SetupPhase, step: int, ranks: int
) -> dict[str, Held]:
    process = TRAINER_PROCESS_BYTES[setup.backend]
    held = {"trainer processes": Held(ranks * process, f"{ranks} x {bytes_text(process)}")}
    weight, _, optimizer = state_bytes(setup)
    trained = trained_share(setup, a, share)
    if phase == "init":
        if setup.backend in ("ddp", "deepspeed") and setup.zero < 3:
            text = f"{ranks} x {a.parameters / 1e9:.2f}e9 x {weight:g} B (each rank loads the model)"
            held["models being loaded"] = Held(ranks * a.parameters * weight, text)
        return held

    def of_ranks(parameters: float, each: float, factor: float = 1.0) -> Held:
        """Bytes `each` of so many parameters on all ranks; `factor`: of page-locked blocks."""
        rounded = f" x {factor:.2f}" if factor != 1.0 else ""
        return Held(ranks * parameters * each * factor, f"{ranks} x {parameters / 1e9:.2f}e9 x {each:g} B{rounded}")

    if setup.backend == "megatron":
        factor = rounded_up(setup, a, 2.0)
        copies = 1 + setup.reference
        if setup.colocated or setup.optimizer_at == "host":
            held["copies of weights"] = Held(
                ranks * copies * 2.0 * factor * share.parameters,
                f"{ranks} x {copies} x {share.text} x 2 B x {factor:.2f} ({_BLOCKS})",
            )
        if setup.optimizer_at == "host":
            wide = rounded_up(setup, a, 4.0)
            held["optimizer's weights"] = of_ranks(trained.sharded, 4.0, wide)
            if step > 1:
                held["moments"] = of_ranks(trained.sharded, 8.0)
                if phase == "train":
                    held["gradients"] = of_ranks(trained.sharded, 4.0, wide)
        elif setup.optimizer_at == "between" and phase == "rollout":
            held["optimizer"] = of_ranks(trained.sharded, optimizer if step > 1 else optimizer - 8.0)
        return held
    away = setup.optimizer_at == "host" or (setup.optimizer_at == "between" and phase == "rollout")
    if setup.backend == "deepspeed":
        if away:
            per = DEEPSPEED_HOST_BYTES if setup.optimizer_at == "host" else optimizer
            held["optimizer"] = of_ranks(trained.sharded, per)
        return held
    sharded = setup.backend == "fsdp"
    weights = share.sharded if sharded else share.parameters
    if away and step > 1:
        held["optimizer"] = of_ranks(trained.sharded if sharded else trained.parameters, optimizer)
    if setup.weights_at == "host" or (setup.weights_at == "between" and phase == "rollout"):
        held["weights"] = of_ranks(weights, weight)
    if setup.reference and setup.reference_at != "device":
        held["reference"] = of_ranks(weights, weight)
    return held
