"""Files beside the documents: prompts, the folder of a model, the folder of a run."""
