"""A token of a long round moves weights as far as one of a short round: AdamW and clipping on known gradients."""

import pytest
import torch

from rlplan.executor.trainer.optimizer import ShardedAdamW, clip, total_norm
from rlplan.plans.check.prediction_rules import long_move
from rlplan.plans.schema.algorithm import Algorithm

WEIGHTS, STEPS, EVERY, LONGER = 4_000, 200, 5, 9.0
"""Each `EVERY`-th round is long and has `LONGER` times the tokens of a short one, so three times the noise."""
PUSH = 0.1
"""What the tokens of a short round add to each weight's gradient; its noise is 1."""
AWAY = 50
"""Steps at both ends without it: momentum takes some steps to move weights, and more than its own in the first ones."""
MEAN = (1.0 + (LONGER - 1.0) / EVERY) ** 0.5
SHARES = {"short": 1.0 / MEAN, "long": LONGER**0.5 / MEAN}
"""Norms of the kinds over that of a step of all kinds, as plans state them."""


def trained(kind, sign, limit, shares, **algorithm):
    """Where the weights end if the tokens of one kind push them (`sign`) and those of the other do not; and by what the
    gradients of each kind were scaled. What is noise is the same for all."""
    noise, model = torch.Generator().manual_seed(3), torch.nn.Linear(WEIGHTS, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    made = Algorithm(name="dr_grpo", learning_rate=1e-3, max_grad_norm=limit, **algorithm)
    optimizer, scales = ShardedAdamW(model, made, torch.device("cpu"), offload=False), {"short": [], "long": []}
    for step in range(STEPS):
        now, tokens = ("long", LONGER) if step % EVERY == EVERY - 1 else ("short", 1.0)
        gradient = torch.randn(1, WEIGHTS, generator=noise) * tokens**0.5
        # Rewards differ more in some steps than in others, which is what a limit is for.
        gradient *= 0.5 + step // EVERY % 8 / 7.0
        model.weight.grad = gradient + (sign * PUSH * tokens if now == kind and AWAY <= step < STEPS - AWAY else 0.0)
        scales[now].append(clip([model.weight.grad], total_norm([model.weight.grad], 1), limit * shares[now]))
        optimizer.step(shares[now])
    return model.weight.detach().mean().item(), scales


def moves(limit=1e9, shares=SHARES, **algorithm):
    """How far a token of a long round moves weights over one of a short round, and the share clipped of each kind."""
    far = {}
    for kind, tokens in (("short", EVERY - 1.0), ("long", LONGER)):
        (up, scales), (down, _) = (trained(kind, sign, limit, shares, **algorithm) for sign in (1, -1))
        far[kind] = (up - down) / tokens
    return far["long"] / far["short"], {kind: sum(s < 1.0 for s in each) / len(each) for kind, each in scales.items()}


def test_tokens_of_both_kinds_move_weights_alike():
    for betas in ((0.9, 0.999), (0.9, 0.95)):
        far, _ = moves(betas=betas)
        assert 0.99 <= far <= 1.01
        unlike, _ = moves(shares={"short": 1.0, "long": 1.0}, betas=betas)
        assert unlike < 0.97, "a long round's gradient divides itself"
    # The last are betas that forget within the steps seen here; `check` tells of them.
    assert unlike == pytest.approx(long_move(betas, 1 / EVERY, LONGER**0.5), abs=0.05)


def test_clipping_acts_on_both_kinds_alike():
    limit = WEIGHTS**0.5 * MEAN  # of steps of all kinds: the root is the norm of a short round's noise
    far, clipped = moves(limit)
    assert 0.3 < clipped["short"] < 0.7 and clipped["long"] == pytest.approx(clipped["short"], abs=0.02)
    assert 0.97 <= far <= 1.03
    far, clipped = moves(limit, {"short": 1.0, "long": 1.0})
    assert clipped["long"] > 2.0 * clipped["short"] and far < 0.8, "one limit for both clips long rounds more"
