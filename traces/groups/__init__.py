"""What the phases of a co-execution group took: its journal, its report, and its jobs compared with their bounds."""
