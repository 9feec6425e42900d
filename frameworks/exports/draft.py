"""What an export is made of: a plan with its job and cluster, settings under the framework's keys, and what became of
each decision of the plan.

Every key is looked up in the framework's table when it is set: one that does not exist, or does nothing there, is an
error of ours and stops the export.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...plans.facts.device_shares import engine_share
from ...plans.facts.trainer_setup import Framework
from ...plans.phrases.numbers import digits, percent
from ...plans.phrases.sentences import listed
from ...plans.schema.algorithm import ImportanceSampling
from ...plans.schema.cluster import Cluster, Pool, load_cluster
from ...plans.schema.job import Job, load_job, model_folder
from ...plans.schema.levers import UpdateLayout
from ...plans.schema.plan import Plan, load_plan
from ...plans.schema.reward_spec import WORKER_KINDS
from ...plans.yaml.errors import InputError
from ...plans.yaml.input_files import read_text
from ..keys.key_table import key_table

ExportStatus = Literal["mapped", "approximated", "not expressible"]
Price = Callable[[Mapping[str, Any]], float | None]
"""Share by which a step takes longer with other values of the plan, by dotted path; None: it cannot be simulated."""


class Here(str):
    """A path relative to the export's folder. run.sh makes it absolute: Ray's workers may run in other folders."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ExportDecision:
    """What became of a decision: `key` and `value` in the framework, `cost`: what is lost where it is not `mapped`."""

    decision: str
    status: ExportStatus
    key: str = ""
    value: str = ""
    cost: str = ""

    def as_dict(self) -> dict[str, str | None]:
        """As data; empty texts are None."""
        names = ("decision", "status", "key", "value", "cost")
        return {name: getattr(self, name) or None for name in names}


@dataclass(frozen=True, slots=True)
class FrameworkExport:
    """Files by name, the line that starts training from their folder, settings by key, and decisions."""

    framework: Framework
    version: str
    files: Mapping[str, str]
    launch: str
    settings: Mapping[str, Any]
    decisions: tuple[ExportDecision, ...]


@dataclass(frozen=True)
class ExportSource:
    """A plan with the job and the cluster that it was solved from. `out`: the folder that the export is written to."""

    path: Path
    plan: Plan
    job: Job
    cluster: Cluster
    out: Path

    @classmethod
    def read(cls, path: Path, out: Path) -> ExportSource:
        """Raises InputError."""
        plan = load_plan(path)
        folder = path.parent
        job, cluster = load_job(folder / plan.inputs.job.path), load_cluster(folder / plan.inputs.cluster.path)
        planned, asked = plan.job.issue, job.rollout
        if (planned.prompts_per_step, planned.samples_per_prompt) != (asked.prompts_per_step, asked.samples_per_prompt):
            raise InputError(
                f"is for {planned.prompts_per_step} prompts of {planned.samples_per_prompt} samples a step, and its "
                f"job now asks for {asked.prompts_per_step} of {asked.samples_per_prompt}; solve again",
                str(path),
            )
        return cls(path, plan, job, cluster, out)

    @property
    def text(self) -> str:
        """The plan's file, which a plug-in reads."""
        return read_text(self.path)

    @property
    def job_path(self) -> Path:
        """job.yaml."""
        return self.path.parent / self.plan.inputs.job.path

    @property
    def job_folder(self) -> Path:
        """The folder of job.yaml, to which its paths are relative."""
        return self.job_path.parent

    @property
    def model(self) -> str:
        """The model that training begins with: its hub id, or its folder as seen from the export's."""
        if (start := self.job.model.warm_start) is None:
            return self.named_model.partition("@")[0]
        return Here("warm-start") if self.starts_from_run else self._seen(Path(start).expanduser())

    @property
    def named_model(self) -> str:
        """The model whose tokenizer and config are the job's: its hub id with its revision, or its folder."""
        folder = model_folder(self.job, self.job_path)
        return self.job.model.hub_name if folder is None else self._seen(folder)

    @property
    def starts_from_run(self) -> bool:
        """Whether the job's warm start is no folder of a model that is here: a run's, or one that is missing."""
        start = self.job.model.warm_start
        return start is not None and not (self.job_folder / Path(start).expanduser() / "config.json").is_file()

    @property
    def data(self) -> str:
        """The file of rows as seen from the export's folder."""
        return self._seen(Path(self.job.data.path or "data.jsonl").expanduser())

    @property
    def job_file(self) -> str:
        """job.yaml as seen from the export's folder."""
        return self._seen(self.job_path.name)

    @property
    def reward_folder(self) -> str:
        """The folder in which the job's reward function is looked for, as seen from the export's."""
        return self._seen(".")

    def _seen(self, path: str | Path) -> Here:
        return Here(Path(os.path.relpath((self.job_folder / path).resolve(), self.out.resolve())).as_posix())

    @property
    def pool(self) -> Pool:
        """The pool of the engines."""
        return self.cluster.pools[self.plan.job.rounds.short.rollout.pool]

    @property
    def train_pool(self) -> Pool:
        """The pool of the trainers; that of the engines where they share one."""
        placement = self.plan.job.placement
        return self.pool if placement is None else self.cluster.pools[placement.train_pool]

    @property
    def train(self) -> UpdateLayout:
        """The trainers of most rounds."""
        return self.plan.job.rounds.short.train

    @property
    def correction(self) -> ImportanceSampling | None:
        """The importance weights of the job's tokens on its accelerators."""
        return self.job.algorithm.correction(self.job.model.dtype, self.pool.accelerators.kind)

    @property
    def on_cpu(self) -> bool:
        """Whether the accelerators are cores."""
        return self.pool.accelerators.kind == "cpu"

    @property
    def nodes(self) -> int:
        """Nodes that the engines of a round take."""
        rollout = self.plan.job.rounds.short.rollout
        return self.pool.nodes_of(rollout.engines, rollout.tp)

    @property
    def train_nodes(self) -> int:
        """Nodes that the trainers take."""
        return -(-self.train.accelerators // self.train_pool.accelerators.per_node)

    @property
    def gpus(self) -> int:
        """Accelerators of the job where engines and trainers share them."""
        return max(self.nodes, self.train_nodes) * self.pool.accelerators.per_node

    @property
    def gpus_per_node(self) -> int:
        """Accelerators of a node that the job uses; those of its trainers where they have a pool of their own."""
        train, rollout = self.train, self.plan.job.rounds.short.rollout
        if self.plan.job.placement is not None:
            return min(self.train_pool.accelerators.per_node, train.accelerators)
        used = max(train.accelerators, rollout.engines * rollout.tp)
        return min(self.pool.accelerators.per_node, used)

    @property
    def shared_gpus(self) -> tuple[int, int]:
        """(nodes, accelerators of each) for a framework that decodes where it trains: the larger of both pools."""
        rollout = self.plan.job.rounds.short.rollout
        engines = self.nodes, min(self.pool.accelerators.per_node, rollout.engines * rollout.tp)
        trainers = self.train_nodes, min(self.train_pool.accelerators.per_node, self.train.accelerators)
        return max(engines, trainers, key=lambda each: each[0] * each[1])

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest sequence."""
        return self.job.rollout.longest_tokens

    @property
    def awake(self) -> bool:
        """Whether engines keep their weights and KV on the GPUs while a trainer trains."""
        return all(held.get("engine_weights") for held in self._held())

    def engine_share(self, with_activations: bool = True) -> float:
        """The share of a GPU that an engine takes: of the plan's weights and KV, or the usual one where it sleeps."""
        if not self.awake:
            return engine_share(self.job)
        parts = ["engine_weights", "kv_cache", *(["engine_activations_and_graphs"] if with_activations else [])]
        held = max(sum(each.get(part, 0.0) for part in parts) for each in self._held())
        return round(min(engine_share(self.job), held / self.pool.accelerators.memory_bytes) + 0.005, 2)

    def _held(self) -> list[Mapping[str, float]]:
        rounds = self.plan.predicted.rounds
        kinds = [rounds.short, *([] if rounds.long is None else [rounds.long])]
        return [{} if kind.memory.train is None else kind.memory.train.holds_bytes for kind in kinds]

    @property
    def plain_costs(self) -> str:
        """What plain synchronous rounds cost in place of the plan's, by its own prediction."""
        predicted = self.plan.predicted
        if self.plan.job.bias.mode == "sync":
            return "none by the plan's prediction"
        plain, own = predicted.baseline.seconds_per_sample, predicted.seconds_per_sample
        return (
            f"plain rounds: {digits(1000 * plain)} ms a trained sample in place of {digits(1000 * own)} ms "
            f"({plain / own - 1:+.0%}), by the plan's prediction"
        )


@dataclass
class SettingsDraft:
    """Settings and decisions in the making."""

    framework: Framework
    settings: dict[str, Any] = field(default_factory=dict)
    decisions: list[ExportDecision] = field(default_factory=list)

    def set(self, key: str, value: Any) -> None:
        """A setting that follows from no decision of the plan: a path, a switch."""
        table = key_table(self.framework)
        assert key in table, f"{self.framework} {table.version} has no key {key}"
        assert table.dead(key) is None, f"{key} does nothing in {self.framework} {table.version}: {table.dead(key)}"
        self.settings[key] = value

    def map(self, decision: str, key: str, value: Any, shown: str = "") -> None:
        """A decision that the framework takes as it is."""
        self.set(key, value)
        self.decisions.append(ExportDecision(decision, "mapped", key, shown or plain_text(value)))

    def approximate(self, decision: str, key: str, value: Any, cost: str) -> None:
        """A decision to which the framework has something near."""
        self.set(key, value)
        self.decisions.append(ExportDecision(decision, "approximated", key, plain_text(value), cost))

    def note(self, decision: str, status: ExportStatus, cost: str = "", key: str = "", value: str = "") -> None:
        """What became of a decision without a key of the framework's table."""
        self.decisions.append(ExportDecision(decision, status, key, value, cost))

    def done(self, files: Mapping[str, str], launch: str) -> FrameworkExport:
        """The export."""
        version = key_table(self.framework).version
        return FrameworkExport(
            self.framework, version, dict(files), launch, dict(self.settings), tuple(self.decisions)
        )  # fmt: skip


@dataclass
class ExportDraft(SettingsDraft):
    """The export of a job's plan. `plugin`: rounds run by our plug-in; `price`: simulates other values of the plan."""

    source: ExportSource = field(kw_only=True)
    plugin: bool = True
    price: Price | None = None

    def costs(self, changes: Mapping[str, Any], otherwise: str) -> str:
        """The cost of other values by the simulator, or what is said of it where it is not asked."""
        share = None if self.price is None else self.price(changes)
        return otherwise if share is None else f"{share:+.1%} time a step, simulated"

    # --- Decisions that most frameworks take alike ---

    def token_mean(self, key: str, value: Any) -> None:
        """The loss as a sum over tokens, divided by the plan's tokens: the job's own, or that but for a constant."""
        job, tokens = self.source.job, self.source.plan.job.loss.tokens
        if job.algorithm.loss_aggregation == "token-mean":
            self.map("loss", key, value, f"{value}, over the plan's {tokens:,} tokens a step")
        else:
            over = job.rollout.samples_per_step * job.rollout.max_response_tokens
            self.approximate("loss", key, value, f"divides by the plan's {tokens:,} tokens a step, not by {over:,}: "
                             f"gradients are {over / tokens:.3g} times as large, which AdamW undoes, and "
                             "max_grad_norm does not")  # fmt: skip

    def rows(self) -> None:
        """Whether the file of rows is here."""
        if not (self.source.job_folder / Path(self.source.job.data.path or "data.jsonl").expanduser()).exists():
            self.note("data.path", "not expressible", f"the rows are not here yet; put them at {self.source.data}, as "
                      "seen from the export")  # fmt: skip

    def replicas(self, replicas: int) -> None:
        """Whether replicas have equal shares of a step's samples."""
        samples = self.source.job.rollout.samples_per_step
        if samples % replicas:
            self.note("train.dp, issue.samples", "not expressible",
                      f"{samples} samples a step are no multiple of {replicas} replicas: some are left out, or it "
                      "stops at the start")  # fmt: skip

    def prompts(self) -> None:
        """Rows as chat messages, where the framework takes no others."""
        self.note("data", "approximated", "a prompt of text becomes a user's message in the model's chat template; the "
                  "plan's engines read it as it is", "prompt", "prepare.py")  # fmt: skip

    def dtype(self, taken: str = "bfloat16") -> None:
        """The type that the framework computes in, where it has no key for it."""
        dtype = self.source.job.model.dtype
        if dtype != taken:
            self.note("model.dtype", "not expressible", f"it computes in {taken}, not in {dtype}")
        if self.source.on_cpu:
            self.note("accelerators", "not expressible", "the plan is for cores, and it needs GPUs")

    def engines(self, tp_key: str, engines_key: str | None = None) -> None:
        """TP of engines, and their number, in short and in long rounds."""
        rounds = self.source.plan.job.rounds
        short = rounds.short.rollout
        self.map("rounds.short.rollout.tp", tp_key, short.tp)
        implied = "implied: GPUs over GPUs of an engine"
        if engines_key is not None:
            self.map("rounds.short.rollout.engines", engines_key, short.engines)
        else:
            self.note("rounds.short.rollout.engines", "mapped", key=tp_key, value=f"{short.engines}, {implied}")
        long = rounds.long
        if long is not None and long.rollout.layout != short.layout:
            path = "plan.job.rounds.long.rollout"
            cost = self.costs({f"{path}.tp": short.tp, f"{path}.engines": short.engines},
                              f"long rounds decode on {short.layout}, not {long.rollout.layout}")  # fmt: skip
            self.note("rounds.long.rollout", "not expressible", cost)

    def sequences(self, key: str | None, why: str = "", per_engine: int = 1) -> None:
        """Sequences that an engine decodes at once: the most of both kinds of round."""
        rounds = self.source.plan.job.rounds
        most = max(kind.rollout.max_num_seqs for _, kind in rounds.kinds)
        fewest = min(kind.rollout.max_num_seqs for _, kind in rounds.kinds)
        if key is None:
            self.note("rounds.rollout.max_num_seqs", "not expressible", why)
        elif fewest == most:
            self.map("rounds.rollout.max_num_seqs", key, most * per_engine)
        else:
            self.approximate("rounds.rollout.max_num_seqs", key, most * per_engine,
                             f"{most} in both kinds; one of the plan's kinds queues beyond {fewest}")  # fmt: skip

    def kv(self, key: str | None, value: float | None, why: str = "") -> None:
        """KV tokens of an engine, as the share of a GPU that holds them."""
        tokens = [kind.rollout.kv_tokens for _, kind in self.source.plan.job.rounds.kinds]
        if key is None or value is None:
            self.note("rounds.rollout.kv_tokens", "not expressible", why or "an engine on cores takes what it needs")
        else:
            shown = "all that fit" if None in tokens else f"{max(each for each in tokens if each):,} tokens"
            self.approximate(
                "rounds.rollout.kv_tokens", key, value, f"a share of the GPU that holds {shown}, within 1 %"
            )

    def step_tokens(self, key: str, value: Any) -> None:
        """The mean over tokens, in a framework that divides by a step's own tokens."""
        if self.source.job.algorithm.loss_aggregation == "step-token-mean":
            self.map("loss", key, value)
        else:
            self.approximate("loss", key, value, "divides by a step's own tokens, not by a constant")

    def beside_the_clip(self, dual_clip: str, entropy: str, entropy_cost: str = "") -> None:
        """The dual clip and the entropy bonus, where the job has them, by their keys."""
        algorithm = self.source.job.algorithm
        if algorithm.dual_clip is not None:
            self.map("algorithm.dual_clip", dual_clip, algorithm.dual_clip)
        if algorithm.entropy_bonus and entropy_cost:
            self.approximate("algorithm.entropy_bonus", entropy, algorithm.entropy_bonus, entropy_cost)
        elif algorithm.entropy_bonus:
            self.map("algorithm.entropy_bonus", entropy, algorithm.entropy_bonus)

    def reference_kl(
        self,
        off: Mapping[str, Any],
        loss: Mapping[str, Any] | str,
        reward: Mapping[str, Any] | str,
        place: str,
        cost: str = "",
    ) -> None:
        """Set the job's KL to a reference, or that there is none.

        `off`: the framework's settings of a job without a KL; `loss`, `reward`: of a KL in the loss or in the reward,
        the coefficient first, or a text on why it has none there; `place`: the key that keeps the reference in host
        memory, or a text on where it is; `cost`: how its KL in the reward differs from the job's, "" if it does not.
        """
        kl = self.source.job.algorithm.kl
        wanted = off if kl is None else loss if kl.applied_to == "loss" else reward
        for key, value in (off if isinstance(wanted, str) else wanted).items():
            self.set(key, value)
        if kl is None:
            return
        if isinstance(wanted, str):
            self.note("algorithm.kl", "not expressible", wanted)
            return
        key = next(iter(wanted))
        if cost and kl.applied_to == "reward":
            self.approximate("algorithm.kl", key, kl.coefficient, cost)
        else:
            self.map("algorithm.kl", key, kl.coefficient)
        if " " in place:
            self.note("train.reference", "approximated", place)
        else:
            self.map("train.reference", place, self.source.train.reference == "host")

    def levers(self) -> None:
        """Levers of a round that no framework has: they are named where the plan uses them."""
        job = self.source.plan.job
        for name, kind in job.rounds.kinds:
            where = f"rounds.{name}"
            if kind.hand_over is not None:
                cost = self.costs({f"plan.job.{where}.hand_over": None}, "engines do not train while the tail decodes")
                self.note(f"{where}.hand_over", "not expressible", cost)
            if kind.tail is not None:
                cost = self.costs({f"plan.job.{where}.tail": None}, "the round's engines decode its tail")
                self.note(f"{where}.tail", "not expressible", cost)
            if kind.rollout.balance is not None:
                cost = self.costs(
                    {f"plan.job.{where}.rollout.balance": None}, "samples start in order, not longest first"
                )
                self.note(f"{where}.rollout.balance", "not expressible", cost)
        long = job.rounds.long
        if long is not None and long.train.model_dump() != self.source.train.model_dump():
            self.note("rounds.long.train", "not expressible", "long rounds train with the layout of short ones")
        if job.loss.grad_norms is not None:
            norms = job.loss.grad_norms
            self.note("loss.grad_norms", "not expressible",
                      f"a long round's gradient has {percent(norms.long)} of a synchronous step's norm, and a short "
                      f"round's {percent(norms.short)}; the optimizer's second moment mixes them")  # fmt: skip
        if job.placement is not None and job.placement.streams:
            self.note("placement.streams", "not expressible", "trainers wait for the whole round")
        every = f"engine weights are not compared with the trainer's every {job.sync.checksum_every} steps"
        self.note("sync.checksum_every", "not expressible", every)

    def prefix(self, key: str | None) -> None:
        """Placement of a prompt's samples on one engine."""
        for name, kind in self.source.plan.job.rounds.kinds:
            if kind.rollout.prefix is None:
                continue
            where = f"rounds.{name}.rollout.prefix"
            if key is None:
                self.note(where, "not expressible", "the engine that has a prompt is not sought")
            else:
                self.approximate(where, key, True, "prefixes are kept; samples are not sent to them")

    def rounds(self, key: str = "", value: Any = None) -> None:
        """The mode with its rounds: by the plug-in's key, or not at all."""
        job = self.source.plan.job
        parts = ["bias.mode"]
        if job.bias.mode != "sync":
            parts += ["rounds.short.issue", *(["rounds.long.issue"] if job.rounds.long else [])]
            parts += ["rounds.short.cutoff_tokens"] if job.rounds.short.cutoff_tokens else []
        said = job.bias.mode + (f", cutoff {cutoff}" if (cutoff := job.rounds.short.cutoff_tokens) else "")
        if job.bias.mode == "sync":
            self.note(", ".join(parts), "mapped", value="sync, the framework's own rounds")
        elif self.plugin and key:
            self.map(", ".join(parts), key, value, f"{said}: rlplan's plug-in")
        else:
            self.note(", ".join(parts), "not expressible", self.source.plain_costs)

    def reward(self, key: str, value: Any) -> None:
        """The reward as a function of a file, and what the framework lacks around it."""
        job, planned = self.source.job, self.source.plan.job.reward
        kinds = [part.kind for part in job.reward.parts]
        self.set(key, value)
        others = [kind for kind in kinds if kind not in WORKER_KINDS]
        cost = f"parts of kind {listed(others)} are not in reward.py; add them" if others else ""
        self.note("reward.kind", "approximated" if others else "mapped", cost, key, f"{', '.join(kinds)}: reward.py")
        self.note(
            "reward.deadline_s",
            "not expressible",
            f"a response that hangs is not given up after {planned.deadline_s:g} s",
        )
        if planned.adaptive_timeout is not None:
            self.note(
                "reward.adaptive_timeout", "not expressible", "deadlines do not follow how fast a prompt's answers are"
            )
        if planned.judge is not None:
            self.note("reward.judge", "not expressible", "start the judge's server beside the trainer")


def plain_text(value: Any) -> str:
    """A value as a shell line or YAML shows it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
