"""Whether the model of a job's judge can read its questions and write its verdicts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..schema.job import Job, judge_folder
from ..yaml.errors import InputError
from .judge_prompt import JudgePrompt
from .model_config import model_config


def fitting_prompt(job: Job, tokenizer: Any, most_tokens: int, model: str) -> JudgePrompt:
    """The prompt of the job's judge, whose model reads `most_tokens` tokens at most.

    Raises InputError if a question may have more, or the tokenizer cannot write a verdict.
    """
    part = job.reward.judge
    assert part is not None and part.prompt is not None, "the job has a judge"
    try:
        prompt = JudgePrompt(part.prompt, part.worth(), tokenizer, most_tokens)
    except InputError as error:
        raise InputError(error.message, model) from error
    own, longest = prompt.frame_tokens + prompt.verdict_tokens, job.rollout.longest_tokens
    if own + longest > most_tokens:
        raise InputError(
            f"the judge's model reads at most {most_tokens} tokens, and a question may have {own + longest}: {own} of "
            f"its prompt and verdict and {longest} of the longest sample; take another judge, or a shorter prompt",
            model,
        )
    return prompt


def judge_model_fault(job: Job, job_path: str | Path) -> InputError | None:
    """Why the model of the job's judge is of no use; None if it is, or if there is none on this machine.

    What its tokenizer does is seen only where transformers is installed.
    """
    folder = judge_folder(job, job_path)
    if folder is None:
        return None
    try:
        config = model_config(folder)
        language = config.get("text_config", config)
        most = language.get("max_position_embeddings") if isinstance(language, dict) else None
        longest = job.rollout.longest_tokens
        most = most if type(most) is int else 2**40
        if longest > most:
            return InputError(
                f"the judge's model reads at most {most} tokens, and a sample may have {longest}; take another judge"
            )
        if find_spec("transformers") is not None:
            fitting_prompt(job, _tokenizer(folder), most, str(folder))
    except InputError as error:
        return error
    return None


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"the judge's model has no tokenizer to load ({reason}); take another judge") from error
