"""Do step times that others published come out of the planner's own costs?

    python -m benchmarks.ledger               # a table, `--json` one JSON line
    python -m benchmarks.ledger --write       # docs/ledger.md

Rows are the *.yaml here: a trainer's set-up, what was measured, and the source. Each is priced twice by
`rlplan.planner.doctor.setup_seconds`: by the laws alone, before any fit, and with `FITTED`, few factors that follow
from the phases of the rows that say `fitted: true` (`ledger_rows.fit`). A row is never tuned alone: the others judge.
"""
