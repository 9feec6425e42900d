"""Formulas whose factors are fitted: decode steps, updates, weight transfer, rewards, and the memory of a rank."""
