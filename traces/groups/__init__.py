"""What the turns of a co-execution group took: its journal, the figures of its report, its jobs beside their bounds."""
