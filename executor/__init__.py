"""Runs a plan: Ray actors around vLLM engines, PyTorch trainers and reward workers, and the loop that drives them."""
