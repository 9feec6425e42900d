"""Drafts of rounds: what engines are given before they decode, what is remembered after, and samples decoded ahead."""
