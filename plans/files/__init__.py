"""Read files that are not documents: prompts, the folder of a model, the folder of a run."""
