"""Read files that are not documents: prompts, the folder of a model."""
