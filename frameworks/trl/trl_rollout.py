"""A plan's rounds inside an unmodified `GRPOTrainer`.

    trainer = GRPOTrainer(model, reward_funcs, args=args, train_dataset=dataset)
    plan_trainer(trainer, "plan.yaml")
    trainer.train()

TRL asks a sampler for the rows of a generation batch, decodes them, and scores what came. Which prompts a round trains
is known when it is over, so here rows come late: `train_dataset` hands out rows that are empty until TRL reads their
prompts, which runs the round. The rows are then those of the groups that are trained, so rewards, logs and completions
see the prompts that were decoded; `rollout_func` returns their tokens. A checkpoint's `trainer_state.json` holds the
deferred prompts (transformers' `ExportableState`). Nothing of TRL is replaced: `train_dataset`, `rollout_func`,
callbacks and `max_completion_length` are the trainer's own attributes.

The loss is TRL's, and divides by constants. `dr_grpo` divides by P n times `max_completion_length`; that attribute,
which nothing else reads once the trainer is built (but tools, which are refused), becomes the plan's response tokens a
sample. So the loss is the sum over tokens, over the plan's `loss.tokens`: a token weighs the same in every round. What
follows the gradients, clipping and AdamW's second moment, takes them over their kind's norm (`loss.grad_norms`).

Invariants:
- a round is run once its weights are there: between the optimizer step before and the first forward pass of its own;
- a generation batch trains all groups of its round; where they are fewer than P, its other rows have no token in the
  loss (`env_mask`), and TRL's divisors still count them;
- a round ends in the schedule before its samples are trained, and checkpoints are written after: one that is resumed
  begins with the round that would have come.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_trainer import GRPOTrainer

from ...plans.schema.planned_job import KindNorms
from ...plans.yaml.errors import InputError
from ...rounds.machines.events import SampleKey
from ...rounds.machines.outcome import Fate
from ...rounds.round_spec import RoundName
from ...rounds.schedule import Schedule
from ...rounds.seeds import RoundSeeds, SeedLedger
from ..plan_rounds import PlannedRounds, drain_in_time, planned_rounds
from .trl_decode import (
    PlannedSample,
    SamplingRule,
    SharedEngine,
    SteppedEngine,
    TransformersEngine,
    VllmEngine,
    decode_all,
    run_round,
)

log = logging.getLogger(__name__)

# Loss types whose divisors are counts of samples or constants, by the part of a loss that they weigh alike.
TOKEN_LOSSES = ("dr_grpo", "luspo")
SAMPLE_LOSSES = ("grpo", "sapo")

# Rows that the trainer's own model decodes at once; vLLM has a limit of its own.
MOST_ROWS = 256


def plan_trainer(trainer: GRPOTrainer, plan: str | Path) -> PlannedTraining:
    """Have the trainer run the rounds of the plan at `plan`. Call it once, after the trainer is made, before `train`.

    Raises InputError if the plan cannot be read or is of another size than the trainer's steps, or if the trainer is
    set up in a way in which rounds cannot run, or would not be unbiased.
    """
    if not isinstance(trainer, GRPOTrainer):
        raise InputError(f"{plan}: a {type(trainer).__name__} is no GRPOTrainer")
    args: Any = trainer.args
    planned = planned_rounds(
        plan,
        prompts_per_step=args.generation_batch_size // args.num_generations,
        samples_per_prompt=args.num_generations,
        max_tokens=args.max_completion_length,
    )
    for wrong, what in _misfits(trainer, planned):
        if wrong:
            raise InputError(f"{plan}: {what}")
    return PlannedTraining(trainer, planned)


def _misfits(trainer: Any, planned: PlannedRounds) -> Iterator[tuple[bool, str]]:
    """Each way in which a trainer may not fit, whether it holds, and what to do."""
    args, spec = trainer.args, planned.spec
    yield trainer.rollout_func is not None, "the trainer has a rollout_func already; build it without one"
    yield (
        bool(trainer.tools or trainer.environment_factories) or trainer._is_vlm,
        "rounds with tools, environments or images are not supported; train without a plan",
    )
    yield (
        args.num_iterations != 1 or args.steps_per_generation != args.gradient_accumulation_steps,
        "a round is one optimizer step: leave num_iterations, steps_per_generation and generation_batch_size unset",
    )
    prompts = trainer.train_dataset
    indexed = hasattr(prompts, "__getitem__") and hasattr(prompts, "__len__")
    yield not indexed, "the data set must be one that can be indexed; load it without streaming=True"
    wanted = planned.prompts_wanted
    if indexed:
        yield len(prompts) < wanted, f"its rounds need {wanted} prompts, and the data set has {len(prompts)}"
    late = args.dataloader_num_workers > 0 or args.accelerator_config.dispatch_batches
    yield late, "rows come late: leave dataloader_num_workers at 0 and dispatch_batches unset"
    yield (
        args.restore_callback_states_from_checkpoint,
        "leave restore_callback_states_from_checkpoint off; deferred prompts are restored without it",
    )
    yield trainer.use_vllm and trainer.vllm_mode != "colocate", 'rounds need vLLM in the process: vllm_mode="colocate"'
    yield (
        trainer.use_vllm and trainer.vllm_tensor_parallel_size > 1,
        "each process decodes with an engine of its own: set vllm_tensor_parallel_size=1",
    )
    sharded = trainer.is_fsdp_enabled or (trainer.is_deepspeed_enabled and trainer._dist.is_zero3)
    yield (
        not trainer.use_vllm and sharded,
        "weights that are sharded over processes cannot decode apart; set use_vllm=True",
    )
    if spec.mode == "sync":
        return
    # Short and long rounds differ in their tokens: what divides by them, or takes a mean over a batch, weighs a token
    # of a long round less.
    yield (
        trainer.loss_type not in TOKEN_LOSSES + SAMPLE_LOSSES,
        f'loss_type "{trainer.loss_type}" divides by the tokens of its own batch: a token of a long round would weigh '
        f'less. Set loss_type="dr_grpo" (a constant for all tokens), or one of {", ".join((*SAMPLE_LOSSES, "luspo"))}',
    )
    yield trainer.scale_rewards == "batch", 'scale_rewards "batch" differs by kind of round; set "group" or "none"'
    yield (
        trainer.multi_objective_aggregation != "sum_then_normalize",
        "rewards must be normalised by group: set multi_objective_aggregation='sum_then_normalize'",
    )
    yield (
        trainer._entropy_bonus_enabled,
        "an entropy bonus is a mean over each batch, which weighs a token of a long round less; set entropy_coef=0",
    )


# -- rows that come late -----------------------------------------------------------------------------------------------


class LateRow:
    """A row of a generation batch. Reading it runs the batch's round, if that has not run.

    No Mapping: accelerate copies mappings when a batch is fetched, which is before its weights are there.
    """

    __slots__ = ("_added", "_batch", "_place")

    def __init__(self, batch: _LateBatch, place: int) -> None:
        self._batch, self._place = batch, place
        self._added: dict[str, Any] = {}

    def _row(self) -> dict[str, Any]:
        return self._batch.rows()[self._place] | self._added

    def __getitem__(self, key: str) -> Any:
        return self._row()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._added[key] = value

    def __contains__(self, key: object) -> bool:
        return key in self._row()

    def __iter__(self) -> Iterator[str]:
        return iter(self._row())

    def get(self, key: str, default: Any = None) -> Any:
        return self._row().get(key, default)


class _LateBatch:
    def __init__(self, size: int, decode: Callable[[int], list[dict[str, Any]]]) -> None:
        self._size, self._decode = size, decode
        self._rows: list[dict[str, Any]] | None = None

    def rows(self) -> list[dict[str, Any]]:
        if self._rows is None:
            self._rows = self._decode(self._size)
        return self._rows


class LateRows:
    """The trainer's data set: as long as the user's, with rows that its rounds choose, whatever indices ask for.

    `decode`: runs a round, and returns so many rows of it.
    """

    def __init__(self, length: int, decode: Callable[[int], list[dict[str, Any]]]) -> None:
        self._length, self._decode = length, decode

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> LateRow:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[LateRow]:
        batch = _LateBatch(len(indices), self._decode)
        return [LateRow(batch, place) for place in range(len(indices))]


# -- updates -----------------------------------------------------------------------------------------------------------


class KindScale:
    """Clipping and AdamW's second moment, for gradients of kinds of round that differ in size by what a plan expects.

    Both take a step's gradients over its kind's norm, the first moment takes them as they are: else a larger gradient
    would divide itself, and a token of one kind of round move weights less than one of the other.
    """

    def __init__(self, args: Any, norms: KindNorms | None) -> None:
        self._args, self._norms, self._clip = args, norms, args.max_grad_norm
        self._share = 1.0
        self._kept: list[tuple[Any, Any]] = []
        self._attached: Any = None

    def begin(self, kind: RoundName) -> None:
        """The gradients to come are of this kind."""
        if self._norms is not None:
            self._share = self._norms.long if kind == "long" else self._norms.short
            self._args.max_grad_norm = self._clip * self._share if self._clip else self._clip

    def end(self) -> None:
        """The step is over: checkpoints keep the trainer's own arguments."""
        self._args.max_grad_norm = self._clip

    def attach(self, optimizer: Any) -> None:
        """Follow the steps of the trainer's optimizer."""
        inner = getattr(optimizer, "optimizer", optimizer)
        if self._norms is None or inner is self._attached:
            return
        if not isinstance(inner, torch.optim.Adam):  # and so AdamW
            log.warning(
                "rounds: steps of %s are not scaled by kind of round; torch's AdamW would be", type(inner).__name__
            )
            return
        self._attached = inner
        inner.register_step_pre_hook(self._before)
        inner.register_step_post_hook(self._after)

    def _scaled(self, optimizer: torch.optim.Optimizer) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        kept = [optimizer.state[weight] for weight in weights]
        return [weight.grad for weight in weights], [state["exp_avg"] for state in kept if "exp_avg" in state]

    @torch.no_grad()
    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # With gradients and first moment over the share, and the rate times it, only the second moment differs.
        gradients, moments = self._scaled(optimizer)
        torch._foreach_mul_([*gradients, *moments], 1.0 / self._share)
        self._kept = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"], group["weight_decay"] = group["lr"] * self._share, group["weight_decay"] / self._share

    @torch.no_grad()
    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        torch._foreach_mul_(self._scaled(optimizer)[1], self._share)
        for group, (rate, decay) in zip(optimizer.param_groups, self._kept, strict=True):
            group["lr"], group["weight_decay"] = rate, decay


# -- rounds ------------------------------------------------------------------------------------------------------------


class PlannedTraining:
    """A trainer that runs a plan's rounds.

    Attributes:
        schedule: the kinds of round that come, and the deferred prompts (ids: `row_of` has their rows).
        planned: what the plan says.
        scale: what updates make of it.
    """

    def __init__(self, trainer: GRPOTrainer, planned: PlannedRounds) -> None:
        self.planned = planned
        self._trainer: Any = trainer
        args: Any = trainer.args
        data: Any = trainer.train_dataset
        self._data = data
        digits = len(str(len(data) - 1))
        self._rows = {f"{index:0{digits}d}": index for index in range(len(data))}
        self.schedule = Schedule(planned.spec, list(self._rows), args.seed)
        self._trained_samples = self._trained_tokens = 0
        self._ready: dict[str, Any] | None = None
        self._trainer.train_dataset = LateRows(len(data), self._decode_rows)
        self._trainer.rollout_func = self._rollout
        if trainer.loss_type == "dr_grpo":
            self._trainer.max_completion_length = planned.loss.tokens / args.generation_batch_size
        self.scale = KindScale(args, planned.loss.grad_norms)
        trainer.add_callback(PlannedRoundsState(self))

    def row_of(self, prompt: str) -> dict[str, Any]:
        """The data set's row of a prompt, by its id."""
        return dict(self._data[self._rows[prompt]])

    def _decode_rows(self, size: int) -> list[dict[str, Any]]:
        """Run the next round. This process's `size` rows of its batch; `_rollout` returns their tokens."""
        trainer, schedule = self._trainer, self.schedule
        drain_in_time(schedule, trainer.state.max_steps - trainer.state.global_step)
        kind, number, machine = schedule.next_kind(), schedule.round_number, schedule.begin()
        self.scale.begin(kind)
        seeds = RoundSeeds(trainer.args.seed, schedule.epoch_of, number if machine.cuts else None)
        texts: dict[str, list[int]] = {}

        def tokens(prompt: str) -> list[int]:
            if prompt not in texts:
                texts[prompt] = self._tokens([self.row_of(prompt)["prompt"]])[0]
            return texts[prompt]

        with self._engine() as engine:
            decoded = run_round(machine, engine, tokens, SeedLedger(seeds))
        outcome = schedule.end(machine)
        trained = [(group.prompt, decoded[key]) for group in outcome.trained for key in group.keys]
        self._trained_samples += len(trained)
        self._trained_tokens += sum(len(sample.response) for _, sample in trained)
        if outcome.failures:
            log.warning("rounds: infrastructure failed on prompts: %s", outcome.failures)
        self._tell(
            long=float(kind == "long"),
            issued_prompts=len(outcome.taken),
            trained_prompts=len(outcome.trained),
            deferred_prompts=len(outcome.prompts[Fate.DEFERRED]),
            returned_prompts=len(outcome.prompts[Fate.RETURNED]),
            waiting_prompts=len(schedule.deferred),
        )
        return self._fill(trained, size)

    def _tell(self, **values: float) -> None:
        """Figures of the round into the trainer's log, among those that rewards may add."""
        for name, value in values.items():
            self._trainer._log_metric(f"rounds/{name}", value)
        if self._trained_samples:
            planned = self.planned.loss.tokens / self.planned.loss.samples
            ratio = self._trained_tokens / self._trained_samples / planned
            self._trainer._log_metric("rounds/length_ratio", ratio)

    def _fill(self, trained: list[tuple[str, PlannedSample]], size: int) -> list[dict[str, Any]]:
        """The rows of this process, and their tokens for `_rollout`. Places without a sample repeat those of the round,
        or hold an empty response if it trains none, and have no token in the loss."""
        trainer = self._trainer
        batch, rank = trainer.args.generation_batch_size, trainer.accelerator.process_index
        spare = trained
        if not trained:
            first = next(iter(self._rows))
            prompt = self._tokens([self.row_of(first)["prompt"]])[0]
            spare = [(first, PlannedSample(SampleKey(0, 0), prompt, 0, [trainer.eos_token_ids[0]], [0.0]))]
        places = trained + [spare[place % len(spare)] for place in range(batch - len(trained))]
        mine = slice(rank * size, (rank + 1) * size)
        samples = [sample for _, sample in places[mine]]
        self._ready = self._output(samples)
        if len(trained) < batch:
            weights = [1] * len(trained) + [0] * (batch - len(trained))
            masks = zip(weights[mine], samples, strict=True)
            self._ready["env_mask"] = [[weight] * len(sample.response) for weight, sample in masks]
        rows = {prompt: self.row_of(prompt) for prompt, _ in places[mine]}
        return [dict(rows[prompt]) for prompt, _ in places[mine]]

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`: the tokens of the round that has just run; in evaluation, those of these prompts."""
        if trainer.model.training:
            assert self._ready is not None and len(self._ready["prompt_ids"]) == len(prompts)
            ready, self._ready = self._ready, None
            return ready
        step, rank = trainer.state.global_step, trainer.accelerator.process_index
        samples = [
            PlannedSample(
                SampleKey(place, 0), text, RoundSeeds(trainer.args.seed, lambda _: step, step).of("", rank, place)
            )
            for place, text in enumerate(self._tokens(prompts))
        ]
        with self._engine(shared=False) as engine:
            decode_all(engine, samples, self.planned.spec.max_tokens)
        return self._output(samples)

    def _output(self, samples: list[PlannedSample]) -> dict[str, Any]:
        return {
            "prompt_ids": [sample.prompt for sample in samples],
            "completion_ids": [sample.response for sample in samples],
            "logprobs": [sample.logprobs for sample in samples] if self._trainer.use_vllm else None,
        }

    def _tokens(self, prompts: list[Any]) -> list[list[int]]:
        """Token ids of prompts, as TRL reads them."""
        ids: list[list[int]] = self._trainer._tokenize_prompts(prompts)[0]
        return ids

    @contextmanager
    def _engine(self, shared: bool = True) -> Iterator[SteppedEngine]:
        """The trainer's engine under its present weights; `shared`: those of all processes as one."""
        trainer = self._trainer
        rule = SamplingRule(
            trainer.temperature, trainer.top_k, trainer.top_p, trainer.min_p or 0.0, trainer.repetition_penalty
        )
        accelerator = trainer.accelerator

        def joined(engine: SteppedEngine) -> SteppedEngine:
            if not shared or accelerator.num_processes == 1:
                return engine
            from accelerate.utils import gather_object

            return SharedEngine(engine, accelerator.process_index, accelerator.num_processes, gather_object)

        if trainer.use_vllm:
            vllm = trainer.vllm_generation
            # As TRL does before it generates. Asleep, the engine has lost its weights.
            asleep = vllm.enable_sleep_mode and vllm._llm_weights_sleeping
            if asleep or trainer.state.global_step != trainer._last_loaded_step:
                vllm.sync_weights()
                trainer._last_loaded_step = trainer.state.global_step
            if vllm.enable_sleep_mode:
                vllm.llm.wake_up(tags=["kv_cache"])
            yield joined(VllmEngine(vllm.llm, rule, vllm.generation_kwargs))
            if vllm.enable_sleep_mode:
                vllm.llm.sleep(level=2)
                vllm._llm_weights_sleeping = True
            return
        with unwrap_model_for_generation(
            trainer.model_wrapped,
            accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model:
            training = model.training
            model.eval()
            try:
                yield joined(TransformersEngine(model, rule, trainer.eos_token_ids, MOST_ROWS))
            finally:
                model.train(training)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs, as JSON-ready data."""
        # One line: a checkpoint's state is written with a line for each element of a list.
        rounds = json.dumps(self.schedule.state())
        return {"rounds": rounds, "trained_samples": self._trained_samples, "trained_tokens": self._trained_tokens}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()`. Raises InputError if it is of another data set."""
        try:
            self.schedule.restore(json.loads(state["rounds"]))
        except ValueError as error:
            raise InputError(
                f"the checkpoint's rounds: {error}; resume with the data set that it was trained on"
            ) from None
        self._trained_samples, self._trained_tokens = int(state["trained_samples"]), int(state["trained_tokens"])


class PlannedRoundsState(TrainerCallback, ExportableState):
    """Keeps the deferred prompts in a checkpoint's `trainer_state.json`, and takes them from there."""

    def __init__(self, planned: PlannedTraining) -> None:
        self._planned = planned

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": self._planned.state()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kept = state.stateful_callbacks.get(type(self).__name__)
        if kept is None:
            raise InputError(
                f"the checkpoint of step {state.global_step} was written without a plan, and has no rounds "
                "to go on with; begin a new run from its weights"
            )
        self._planned.restore(kept["attributes"])
        self._planned.scale.attach(kwargs.get("optimizer"))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._planned.scale.end()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if waiting := len(self._planned.schedule.deferred):
            log.warning(
                "rounds: %d deferred prompts wait for a long round that did not come; the checkpoint keeps them",
                waiting,
            )
