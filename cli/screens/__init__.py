"""What commands print in a terminal: plans (solve, refresh, show), runs (execute, report), tables of compare."""
