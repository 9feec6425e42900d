"""Cautions on the lengths that a plan is made for, a line each."""

from __future__ import annotations

from ...plans.schema.length_evidence import MUCH_AT_CAP
from ...profiles.length_trace import LengthTrace
from .length_model import LengthModel
from .table_lengths import TableTrace


def at_cap(model: LengthModel) -> str | None:
    """A warning if more than `MUCH_AT_CAP` of the responses reach the job's cap, else None."""
    share = float((model.tables >= model.cap_tokens).mean())
    if share <= MUCH_AT_CAP:
        return None
    return (
        f"{share:.0%} of the responses reach the cap of {model.cap_tokens} tokens (rollout.max_response_tokens), so "
        "that the cap decides how long rounds last; raise it, or give lengths that are the job's own"
    )


def extrapolated(model: LengthModel, trace: LengthTrace) -> str | None:
    """A warning that lengths between the trace's cap and the job's are extrapolated; None if the trace shows all."""
    if model.caution is None or not isinstance(trace, TableTrace):
        return model.caution
    table, cap = trace.table, model.cap_tokens
    if table.name == "assumed":
        subject, remedy = "stated lengths end", f"state quantiles with max={cap}"
    else:
        subject = f"lengths of {table.name} were cut"
        remedy = f"take lengths under a cap of {cap} (rlplan lengths list)"
    return model.tail.extrapolated(cap, subject, f"{remedy}, or a trace of your own (--trace)")
