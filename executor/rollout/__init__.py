"""One round for real: its samples decoded by engines and scored by reward workers, as the round's machine decides."""
