"""What a trainer's rank keeps of a model: its share of the parameters, and weights, gradients and optimizer of them.

What each backend keeps of a parameter (bytes; `shards`: data-parallel ranks that share it out)

    megatron   weights 2, float32 gradients 4, on all replicas; float32 master 4 and moments 8 over `shards`
               (Megatron-LM, docs of the distributed optimizer: 6 + 12 / d)
    fsdp       float32 weights 4, gradients 4, moments 8 over `shards`; layers and the root are gathered in bf16
    deepspeed  bf16 weights 2 (ZeRO 3: over shards), gradients 2 (ZeRO 2 and 3: over shards), master and moments 12 over
               shards from ZeRO 1 on (Rajbhandari et al., arXiv 1910.02054, figure 1)
    ddp        weights, gradients and the buckets in which they are summed, in the dtype that the model is loaded in;
               moments in it twice; nothing is shared out
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.phrases.numbers import bytes_text
from ...plans.schema.levers import UpdateLayout

SetupPhase = Literal["init", "rollout", "train"]
Place = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that one thing holds, and the sum that they come from."""

    bytes: float
    sum: str


@dataclass(frozen=True, slots=True)
class SetupUse:
    """What a GPU, or a node's host, holds at the fullest moment of a phase; `side`: of whom, where pools are apart."""

    phase: SetupPhase
    where: Place
    step: int
    side: Literal["both", "engines", "trainers"]
    holds: dict[str, Held]
    capacity_bytes: float

    @property
    def needed_bytes(self) -> float:
        """Bytes in all."""
        return sum(held.bytes for held in self.holds.values())

    @property
    def fits(self) -> bool:
        """Whether there are so many."""
        return self.needed_bytes <= self.capacity_bytes

    @property
    def arithmetic(self) -> list[str]:
        """A line for each holder, largest first: `optimizer 72.1 GB = …`."""
        rows = sorted(self.holds.items(), key=lambda row: -row[1].bytes)
        return [f"{name} {bytes_text(held.bytes)} = {held.sum}" for name, held in rows if held.bytes > 0]


@dataclass(frozen=True, slots=True)
class RankShare:
    """Parameters on a trainer rank before data-parallel sharding, and the ranks that share each part out."""

    dense: float
    experts: float
    dense_shards: int
    expert_shards: int
    text: str

    @property
    def parameters(self) -> float:
        """All of them."""
        return self.dense + self.experts

    @property
    def sharded(self) -> float:
        """Those that are a rank's own once states are shared out."""
        return self.dense / self.dense_shards + self.experts / self.expert_shards


def update_layout(setup: TrainerSetup, micro_batch_tokens: int, **more: Any) -> UpdateLayout:
    """The trainer of a set-up as the laws of updates take it; `more`: further fields of the layout."""
    sizes = {name: getattr(setup, name) for name in ("dp", "tp", "pp", "cp", "sp")}
    return UpdateLayout(**sizes, micro_batch_tokens=micro_batch_tokens, **more)


def rank_share(setup: TrainerSetup, a: Architecture) -> RankShare:
    """How a trainer's ranks share the model out.

    Megatron divides layers by tp and pp, experts by ep (and etp), the vocabulary by tp; the fullest stage has one of
    embedding and output matrix. The others have all of it on each replica, or shard it.
    """
    vocabulary = float(a.vocab * a.hidden)
    if setup.backend != "megatron":
        shards = setup.shard_ranks or max(1, setup.train_gpus // (setup.tp * setup.pp))
        return RankShare(a.parameters / setup.tp, 0.0, shards, shards, f"{a.parameters / 1e9:.2f}e9")
    layers = a.common_parameters - vocabulary
    ends = vocabulary * (1 if a.tied or setup.pp > 1 else 2)
    dense = (layers / setup.pp + ends) / setup.tp
    spread = setup.pp * setup.ep * setup.etp
    experts = a.expert_parameters / spread
    text = f"{dense / 1e9:.2f}e9"
    if experts:
        text = f"({text} + {experts / 1e9:.2f}e9 of experts)"
    return RankShare(
        dense,
        experts,
        max(1, setup.train_gpus // (setup.tp * setup.pp)),
        max(1, setup.train_gpus // spread),
        text,
    )


def state_bytes(setup: TrainerSetup) -> tuple[float, float, float]:
    """Bytes of a trained parameter: (weight, gradient, optimizer), as the backend keeps them."""
    weight = setup.weight_bytes or {"megatron": 2.0, "fsdp": 4.0, "deepspeed": 2.0, "ddp": 4.0}[setup.backend]
    gradient = setup.gradient_bytes or {"megatron": 4.0, "deepspeed": 2.0}.get(setup.backend, weight)
    default = {"megatron": 12.0, "deepspeed": 12.0}.get(setup.backend, 2 * weight)
    return weight, gradient, setup.optimizer_bytes or default


def trained_share(setup: TrainerSetup, a: Architecture, share: RankShare) -> RankShare:
    """The parameters that have gradients and moments: all, or those of low-rank adapters."""
    if not setup.lora_rank:
        return share
    inner = (a.heads + 2 * a.kv_heads) * a.head_dim + a.hidden + a.heads * a.head_dim + a.hidden
    width = a.intermediate or a.active_experts * a.expert_intermediate
    per_layer = setup.lora_rank * (inner + 3 * (a.hidden + width))
    adapters = float(per_layer * a.layers) / (setup.tp * setup.pp)
    return replace(share, dense=adapters, experts=0.0, text=f"{adapters / 1e9:.3f}e9 of adapters")


def rank_states(setup: TrainerSetup, a: Architecture, share: RankShare, step: int) -> dict[str, Held]:
    """Weights, gradients and optimizer of a rank, all on the device."""
    weight, gradient, optimizer = state_bytes(setup)
    trained = trained_share(setup, a, share)
    master = optimizer - 8.0 if setup.backend in ("megatron", "deepspeed") else 0.0
    all_shared, grads_shared = setup.zero >= 3, setup.zero >= 2
    if setup.backend == "megatron":
        all_shared = grads_shared = False
    shards = f" / {share.dense_shards} ranks"
    weights = share.sharded if all_shared else share.parameters
    grads = trained.sharded if grads_shared else trained.parameters
    steps = trained.sharded if setup.backend != "ddp" and setup.zero >= 1 else trained.parameters
    # DeepSpeed makes its moments at the start, torch and Megatron in the first optimizer step.
    per = optimizer if step > 1 or setup.backend == "deepspeed" else master
    what = "master and moments" if master else "moments"
    own = {
        "weights": Held(weight * weights, f"{share.text} parameters{shards if all_shared else ''} x {weight:g} B"),
        "gradients": Held(gradient * grads, f"{trained.text}{shards if grads_shared else ''} x {gradient:g} B"),
        "optimizer": Held(
            per * steps,
            f"{trained.text}{shards if steps != trained.parameters else ''} x {per:g} B "
            f"({what if per > master else 'master'})",
        ),
    }
    if setup.backend == "ddp" and setup.train_gpus > 1:
        own["gradient buckets"] = Held(
            gradient * grads, f"{trained.text} x {gradient:g} B (DDP sums gradients in copies)"
        )
    if setup.backend == "deepspeed" and setup.zero == 2:
        own["gradient buckets"] = Held(2e9, "5e8 elements x 2 B, reduced and received")
    if setup.critic:
        for name in ("weights", "gradients", "optimizer"):
            own[f"critic {name}"] = Held(own[name].bytes, f"a value model of the same size: {own[name].sum}")
    if setup.reference and setup.reference_at == "device":
        frozen = 2.0 if setup.backend != "fsdp" else weight
        held = frozen * (share.sharded if all_shared else share.parameters)
        own["reference"] = Held(held, f"{share.text} parameters{shards if all_shared else ''} x {frozen:g} B")
    return own
