"""What a profile is of: the parts of a job that change what is measured, as one digest."""

from __future__ import annotations

import hashlib
import json

from ..plans.schema.job import Job, JobPaths
from ..plans.yaml.yaml_io import sha256_file

SECTIONS = ("model", "data", "reward", "rollout")


def subject_digest(job: Job, paths: JobPaths) -> str:
    """SHA-256 over the job's sections model, data, reward and rollout, the data file, and the model's config.json.

    Weights are not read: they may be large, and a profile of one checkpoint of a model serves the next one too. Nor is
    the adaptive timeout and the memory of a reward: they are measured under the longest deadline, and where the memory
    is enough.
    """
    sections = {name: getattr(job, name).model_dump(mode="json") for name in SECTIONS}
    for key in ("adaptive_timeout", "memory_bytes"):
        sections["reward"].pop(key, None)
    sections["data"].pop("prompts", None)  # nothing can be measured without the file, whose bytes are in the digest
    files = [paths.data] if paths.data is not None else []
    if paths.model_folder is not None and (paths.model_folder / "config.json").is_file():
        files.append(paths.model_folder / "config.json")
    text = json.dumps([sections, [sha256_file(file) for file in files]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
