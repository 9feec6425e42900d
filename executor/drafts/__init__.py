"""Speculative decoding from history: what a run remembers of responses, and how engines draft from it."""
