"""What the plug-in calls of slime (or vime), as their sources have it, over an engine that draws lengths.

Where slime itself is on the path, its own modules run, and the engine stands in for its HTTP calls only:
`PYTHONPATH=SLIME pytest tests/frameworks/slime`.
"""

import asyncio
import copy
import dataclasses
import enum
import importlib
import json
import random
import sys
import types
from pathlib import Path

ENGINES = {"slime": "sglang", "vime": "vllm"}


class Engine:
    """Answers requests: the first token of a response names its draw, whose length was drawn with it."""

    def __init__(self, seed, cap, aborts=0.0):
        self.random, self.cap, self.aborts = random.Random(seed), cap, aborts
        self.lengths, self.open, self.swept, self.prompts = [], 0, 0, []

    def mean(self, row):
        return 4 + 3 * (row % 5)

    async def post(self, url, payload, headers=None):
        if "abort" in url:
            self.swept += 1
            return {}
        self.open += 1
        try:
            for _ in range(self.random.randrange(3)):
                await asyncio.sleep(0)
            row, *response = payload["input_ids"]
            if self.random.random() < self.aborts:
                return self.answer([], "abort")
            if not response:
                self.lengths.append(min(self.cap, 1 + int(self.random.expovariate(1 / self.mean(row)))))
                self.prompts.append(row)
            draw = response[0] if response else len(self.lengths) - 1
            whole = self.lengths[draw]
            count = min(whole - len(response), payload["sampling_params"]["max_new_tokens"])
            ended = len(response) + count == whole and whole < self.cap
            return self.answer([draw] * count, "stop" if ended else "length")
        finally:
            self.open -= 1

    def answer(self, tokens, reason):
        pairs = [(-0.5, token, None) for token in tokens]
        return {
            "text": "x" * len(tokens),
            "meta_info": {"output_token_logprobs": pairs, "finish_reason": {"type": reason}},
        }

    async def get(self, url):
        return {"workers": [{"url": "http://worker"}]} if url.endswith("/workers") else {"num_reqs": self.open}


class Tokenizer:
    def encode(self, prompt, add_special_tokens=False):
        return [int(prompt)]


async def reward(args, sample):
    return float(sample.response_length % 2)


def arguments(folder, rows, **others):
    """slime's arguments of a run on `rows` rows, of which the tokens are the row's number."""
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"text": str(row)}) + "\n" for row in range(rows)))
    keys = ("dump_details", "rollout_max_prompt_len", "multimodal_keys", "label_key", "tool_key", "reward_key")
    keys += ("apply_chat_template_kwargs", "custom_rm_path", "rollout_stop", "rollout_stop_token_ids")
    keys += ("custom_generate_function_path", "dynamic_sampling_filter_path", "rollout_sample_filter_path")
    keys += ("rollout_all_samples_process_path",)
    off = ("partial_rollout", "group_rm", "calculate_per_token_loss", "rollout_shuffle", "apply_chat_template")
    off += ("use_rollout_routing_replay", "mask_offpolicy_in_partial_rollout", "ci_test", "rollout_skip_special_tokens")
    engine = {f"{name}_{key}": value for name in ENGINES.values() for key, value in (
        ("router_ip", "127.0.0.1"), ("router_port", 1), ("server_concurrency", 64), ("dp_size", 1))}  # fmt: skip
    known = dict(
        rollout_global_dataset=True, prompt_data=str(data), hf_checkpoint="tiny", input_key="text", rollout_seed=5,
        metadata_key="metadata", rollout_num_engines=1, n_samples_per_prompt=2, rollout_batch_size=4,
        rollout_max_response_len=64, rollout_temperature=1.0, rollout_top_p=1.0, rollout_top_k=-1,
        save=str(folder / "saved"), load=None, rlplan_plan=str(folder / "plan.yaml"),
    )  # fmt: skip
    return types.SimpleNamespace(**{**dict.fromkeys(keys), **dict.fromkeys(off, False), **engine, **known, **others})


def load(name, engine, patch):
    """Put the framework on the path over this engine; the plug-in's module, imported anew."""
    own = name == "slime" and importlib.util.find_spec("slime") is not None
    for module in [m for m in sys.modules if m.split(".")[0] in ENGINES or m.endswith("slime_rollout")]:
        patch.delitem(sys.modules, module)
    rollout = f"{name}.rollout.{ENGINES[name]}_rollout"
    if own:
        for module in ("data_source", "sglang_rollout"):
            patch.setattr(f"slime.rollout.{module}.load_tokenizer", lambda *args, **kwargs: Tokenizer())
            patch.setattr(f"slime.rollout.{module}.load_processor", lambda *args, **kwargs: None)
        patch.setattr("slime.utils.misc.SingletonMeta._instances", {})
        for module in (rollout, "slime.backends.sglang_utils.server_control"):
            patch.setattr(f"{module}.get", engine.get)
            patch.setattr(f"{module}.post", engine.post)
        patch.setattr(f"{rollout}.async_rm", reward)
    else:
        for path, contents in stand_ins(name, engine).items():
            module = types.ModuleType(f"{name}.{path}" if path else name)
            vars(module).update(contents)
            patch.setitem(sys.modules, module.__name__, module)
    return importlib.import_module("rlplan.frameworks.slime.slime_rollout")


def stand_ins(name, engine):
    """Module -> its contents."""
    Status = enum.Enum("Status", {s: s.lower() for s in ("PENDING", "COMPLETED", "TRUNCATED", "ABORTED", "FAILED")})

    @dataclasses.dataclass
    class Sample:
        prompt: str = ""
        index: int | None = None
        group_index: int | None = None
        tokens: list = dataclasses.field(default_factory=list)
        response: str = ""
        response_length: int = 0
        reward: float | None = None
        loss_mask: list | None = None
        status: Status = Status.PENDING
        metadata: dict = dataclasses.field(default_factory=dict)
        remove_sample: bool = False
        session_id: str | None = None

        def get_reward_value(self, args):
            return self.reward

    Sample.Status = Status

    class RolloutDataSource:
        def __init__(self, args):
            self.args, self.metadata, self.dataset = args, {}, None
            self.sample_group_index = self.sample_index = self.sample_offset = 0
            if args.rollout_global_dataset and args.prompt_data is not None:
                lines = Path(args.prompt_data).read_text().splitlines()
                self.dataset = types.SimpleNamespace(origin_samples=[Sample(json.loads(x)["text"]) for x in lines])

        def get_samples(self, count):
            return [[Sample() for _ in range(self.args.n_samples_per_prompt)] for _ in range(count)]

        def path(self, folder, rollout_id):
            return Path(folder) / f"rollout/global_dataset_state_dict_{rollout_id}.pt"

        def save(self, rollout_id):
            path = self.path(self.args.save, rollout_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            keys = ("sample_group_index", "sample_index", "metadata")
            path.write_text(json.dumps({key: getattr(self, key) for key in keys}))

        def load(self, rollout_id=None):
            if self.args.load is not None and (path := self.path(self.args.load, rollout_id)).exists():
                vars(self).update(json.loads(path.read_text()))

    class GenerateState:
        def __init__(self, args):
            self.sampling_params = {"max_new_tokens": args.rollout_max_response_len}

    async def generate_and_rm(args, sample, params, evaluation=False):
        assert args.group_rm and sample.status in (Status.PENDING, Status.ABORTED)
        sample.tokens = sample.tokens or [int(sample.prompt)]
        asked = {"max_new_tokens": params["max_new_tokens"] - sample.response_length}
        meta = (await engine.post("/generate", {"input_ids": sample.tokens, "sampling_params": asked}))["meta_info"]
        tokens = [token for _, token, _ in meta["output_token_logprobs"]]
        sample.tokens, sample.response_length = sample.tokens + tokens, sample.response_length + len(tokens)
        reasons = {"length": Status.TRUNCATED, "abort": Status.ABORTED, "stop": Status.COMPLETED}
        sample.status = reasons[meta["finish_reason"]["type"]]
        return sample

    async def abort_all(urls):
        await asyncio.gather(*(engine.post(f"{url}/abort_request", {}) for url in urls))

    async def batched(args, samples):
        return [float(len(samples)) for _ in samples]

    @dataclasses.dataclass
    class RolloutFnTrainOutput:
        samples: list
        metrics: dict | None = None

    @dataclasses.dataclass
    class RolloutFnEvalOutput:
        data: dict
        metrics: dict | None = None

    def own_rollout(args, rollout_id, source, evaluation=False):
        return RolloutFnEvalOutput({"own": evaluation})

    def mean(total_lengths, response_lengths, loss_masks, divisors, per_token):
        parts = zip(loss_masks, divisors, strict=True)
        return lambda x: sum((a * m).sum() / d for a, (m, d) in zip(x.split(response_lengths), parts, strict=True))

    kind = ENGINES[name]
    abort_name = "abort_servers_until_idle" if name == "slime" else "abort_inflight_requests"
    own = dict(GenerateState=GenerateState, generate_and_rm=generate_and_rm, generate_rollout=own_rollout)
    own |= dict(async_rm=reward, batched_async_rm=batched, get=engine.get)
    outputs = dict(RolloutFnTrainOutput=RolloutFnTrainOutput, RolloutFnEvalOutput=RolloutFnEvalOutput)
    packages = ("", "rollout", "utils", "backends", f"backends.{kind}_utils", "backends.megatron_utils")
    return {path: {"__path__": []} for path in packages} | {
        "rollout.base_types": outputs,
        "rollout.data_source": {"RolloutDataSource": RolloutDataSource},
        f"rollout.{kind}_rollout": own,
        "utils.types": {"Sample": Sample},
        "utils.async_utils": {"run": asyncio.run},
        "utils.misc": {"load_function": lambda path: copy.copy(FILTERS[path])},
        f"backends.{kind}_utils.server_control": {abort_name: abort_all},
        "backends.megatron_utils.cp_utils": {"get_sum_of_sample_mean": mean},
    }


FILTERS = {}
"""Functions by the path under which slime would load them."""
