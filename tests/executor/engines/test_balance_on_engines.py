"""Rounds that are balanced by history on two real engines."""

import pytest

from rlplan.executor.rollout.round_lever import BalancedRound
from rlplan.executor.rollout.round_runner import RoundOptions
from rlplan.plans.schema.levers import EngineLayout
from rlplan.rounds.balancing.length_estimates import Expected, Recorded
from rlplan.rounds.balancing.longest_first import Balance
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.seeds import RoundSeeds
from tests.rounds.driver import round_balance

from .test_engines import PROMPTS, load, runner

pytestmark = pytest.mark.engine

LAYOUT = EngineLayout(1, 2)
LONGEST, GROUP = 200, 4
SPEC = round_balance(1e-3, 1e-2, 0.0, 100_000)


def test_a_balanced_round_has_the_samples_of_one_by_count(fleet, loop, tiny_model):
    async def body():
        path = tiny_model / "model.safetensors"

        async def give(engine, to):
            await engine.load(str(path), to, False)

        async def run(version, balance):
            await load(fleet, LAYOUT, path, version)
            machine = RaceRound(list(PROMPTS), len(PROMPTS), GROUP, GROUP, LONGEST)
            seeds = RoundSeeds(7, lambda prompt: 0, None)
            levers = [] if balance is None else [BalancedRound(balance, 6)]
            how = RoundOptions(seeds, max_num_seqs=6)
            result = await runner(fleet).run(machine, LAYOUT, version, give, version, how, levers)
            assert len(machine.outcome().trained) == len(PROMPTS)
            assert all(s.version_start == s.version_end == version for s in result.samples.values())
            assert all(len(s.tokens) == len(s.logprobs) for s in result.samples.values())
            return result

        by_count = await run("count", None)
        # A history that is wrong, so that one engine gets what turns out long.
        wrong = {prompt: Expected(1.0 + 150.0 * (n % 2), 1.0 + 150.0 * (n % 2)) for n, prompt in enumerate(PROMPTS)}
        for number, recorded in enumerate((Recorded({}), Recorded(wrong))):
            balanced = await run(f"balance{number}", Balance(SPEC, recorded))
            tokens = {key: sample.tokens for key, sample in balanced.samples.items()}
            assert tokens == {key: sample.tokens for key, sample in by_count.samples.items()}

    loop.run_until_complete(body())
