"""Costs of each phase: the profile's schema, fitting, and measuring on hardware (`measure/`, which alone needs
vLLM)."""
