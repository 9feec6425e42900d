"""rlplan: plan, tune and execute synchronous RL post-training of language models."""

__version__ = "0.1.0"
