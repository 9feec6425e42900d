"""Where a judge may be: on accelerators of its own, or beside the engines at one of the measured shares."""

from __future__ import annotations

from ....plans.facts.executable import judge_fault
from ....plans.schema.cluster import Pool
from ....plans.schema.job import Job
from ....plans.schema.levers import EngineLayout, RewardJudge
from ....profiles.profile_schema import Profile
from ..candidates.job_limits import Unplannable

MOST_COPIES = 4


def judge_places(job: Job, profile: Profile, pool: Pool, apart: bool, for_any: bool) -> list[RewardJudge | None]:
    """The candidates of a job's judge, the simplest first: one copy before several, of its own before beside engines,
    the system's division before a share. [None] for a job without a judge.

    `apart`: trainers have a pool of their own. `for_any`: also what only other frameworks can run. Raises Unplannable
    if the profile does not hold the judge's costs, or the pool has no place for it.
    """
    if job.reward.judge is None:
        return [None]
    judge = profile.judge
    if judge is None:
        raise Unplannable(
            "job",
            ("reward",),
            "has a judge, and the profile does not hold what it costs; run rlplan profile, or write its seconds under "
            "judge in the profile",
        )
    most = min(MOST_COPIES, pool.accelerators_total // judge.tp)
    copies = [count for count in (1, 2, 4) if count <= most]
    places: list[RewardJudge | None] = []
    for count in copies:
        one = RewardJudge(place="own", instances=count, tp=judge.tp, at_once=judge.at_once)
        beside = one.model_copy(update={"place": "beside"})
        of_shares = [beside.model_copy(update={"share": each.share}) for each in judge.shares]
        found = [each for each in (one, beside, *of_shares)
                 if for_any or judge_fault(each, pool.accelerators.kind, apart) is None]  # fmt: skip
        places += found
    if not places:
        fault = judge_fault(RewardJudge(place="own", instances=1, tp=judge.tp), pool.accelerators.kind, apart)
        raise Unplannable("job", ("reward",), f"has a judge, and {fault or 'the pool has no accelerator for it'}")
    return places


def judge_text(judge: RewardJudge) -> str:
    """A judge's place for a reader."""
    copies = "one copy" if judge.instances == 1 else f"{judge.instances} copies"
    if judge.place == "own":
        return f"{copies} on accelerators of its own"
    share = "" if judge.share is None else f", with {100 * judge.share:.0f}% of their compute"
    return f"{copies} beside the engines{share}"


def no_room_for_judge(layout: EngineLayout, judge: RewardJudge | None, pool: Pool) -> str | None:
    """Why a judge has no place beside engines of a layout; None if it has, or if there is none."""
    if judge is None:
        return None
    decoding, judging = layout.engines * layout.tp, judge.instances * judge.tp
    room = decoding if judge.place == "beside" else pool.accelerators_total - decoding
    return None if judging <= room else f"leaves {max(room, 0)} accelerators to a judge that takes {judging}"
