"""Rollout engines: vLLM behind Ray actors, watched from their start on and replaced when they are gone."""
