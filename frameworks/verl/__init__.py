"""verl: agent loop, replay buffer and trainer that run a plan's rounds, loaded by verl's own loaders."""
