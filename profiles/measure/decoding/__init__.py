"""What decoding costs: batches of forced length, decode steps and prefill of a layout, rounds with drafts."""
