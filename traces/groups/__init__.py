"""What the turns of a co-execution group took: its journal, and the figures of its report."""
