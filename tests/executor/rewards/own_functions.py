"""Reward functions as users write them, for rlplan, TRL, verl and others; tests import this module by its folder."""

import asyncio
import functools


def own(prompt, response, answer):
    return response == answer


def shuffled(answer, response, prompt):
    return float(response == answer) + (prompt == "asked")


def only_two(response, answer):
    return float(response == answer)


def keyword_only(*, prompt, response, answer):
    return float(response == answer)


async def awaited(prompt, response, answer):
    await asyncio.sleep(0)
    return float(response == answer)


async def awaited_for_ever(prompt, response, answer):
    if response == "wait":
        await asyncio.sleep(60)
    return float(response == answer)


def trl(completions, answer, **kwargs):
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


def trl_of_messages(prompts, completions, ground_truth, log_metric=None):
    log_metric("seen", 1.0)
    return [float(c[0]["content"] == a) for c, a in zip(completions, ground_truth, strict=True)]


def _texts(completions):
    return [completion[0]["content"] for completion in completions]


def trl_of_messages_by_a_helper(completions, **kwargs):
    return [float(text == a) for text, a in zip(_texts(completions), kwargs["solution"], strict=True)]


async def trl_awaited(prompts, completions, answer, **kwargs):
    await asyncio.sleep(0)
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


def trl_of_a_column(completions, answer, difficulty=None, **kwargs):
    return [float(c == a) * d for c, a, d in zip(completions, answer, difficulty, strict=True)]


def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "acc": True, "source": data_source}


def verl_by_source(data_source, solution_str, ground_truth, extra_info=None):
    if data_source != "gsm8k":
        raise NotImplementedError(data_source)
    return solution_str == ground_truth, extra_info


def verl_batch(data_sources, solution_strs, ground_truths, extra_infos):
    return [{"score": float(s == g)} for s, g in zip(solution_strs, ground_truths, strict=True)]


class _Judge:
    def __call__(self, prompt, response, answer):
        return float(response == answer)

    def by_name(self, completions, answer):
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]


class _AsyncJudge:
    async def __call__(self, prompt, response, answer):
        return float(response == answer)


short = lambda prompt, response, answer: float(response == answer)  # noqa: E731
async_instance = _AsyncJudge()
instance = _Judge()
method = instance.by_name
partly = functools.partial(lambda strict, prompt, response, answer: float(response == answer) * strict, 1.0)


# ---- what cannot be called ----


def verls_math(model_output, ground_truth, timeout_score=0):
    return 1.0


def an_option(question, answer, strict=True):
    return 1.0


def too_few(args, sample):
    return 1.0


def openrlhf(queries, prompts, labels):
    return [1.0]


def wants_tokens(completions, completion_ids):
    return [1.0]


def wants_a_router(data_source, solution_str, ground_truth, extra_info, reward_router_address):
    return 1.0


def wants_more(prompt, response, answer, *, tokenizer):
    return 1.0


def out_of_order(response, prompt, gold):
    return 1.0


def batch_in_order(prompts, responses, answers):
    return [1.0]


def yields(prompt, response, answer):
    yield 1.0


def returns_nothing(prompt, response, answer):
    response.strip()


def returns_other_keys(prompt, response, answer):
    return {"accuracy": 1.0}


class Reward:
    def __call__(self, prompt, response, answer):
        return 1.0


built_in = isinstance
only_keywords = functools.partial(lambda **kwargs: 1.0)
