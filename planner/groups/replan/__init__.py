"""Re-planning: which running jobs move, what that saves, what was not worth it, and what would make room."""
