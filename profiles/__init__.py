"""What things cost: the profile's schema, fitting, and measuring on hardware (`measure*`, which alone needs vLLM)."""
