"""TRL: `rollout_func`, sampler and loss of a `GRPOTrainer` that runs a plan's rounds."""
