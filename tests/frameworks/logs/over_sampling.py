"""Simulated over-sampling of which all is known: what was given out, what was dropped, all lengths."""

import random
import statistics
from pathlib import Path

from rlplan.frameworks.logs.dropped_groups import audit_dumps
from rlplan.frameworks.logs.imported_run import ImportedRun
from rlplan.frameworks.logs.metric_log import LoggedStep, MetricLog
from rlplan.frameworks.logs.sample_dump import DumpedSample, SampleDump

CAP = 4000


class Oversampled:
    """Steps that give out `issued` groups of `size` and train the `trained` whose longest response is shortest."""

    def __init__(self, trained, issued, steps, rows=300, size=4, spread=0.8, seed=1, framework="slime", filtered=0):
        rng = random.Random(seed)
        means, order, number = [rng.gauss(0, spread) for _ in range(rows)], [], 0
        self.all, self.samples, self.dropped, self.logged = [], [], [], []
        self.framework, self.given, self.missed = framework, [0] * rows, [0] * rows
        for step in range(steps):
            groups = []
            for _ in range(issued):
                if not order:
                    order = list(range(rows))
                    rng.shuffle(order)
                row = order.pop()
                self.given[row] += 1
                lengths = [min(CAP, 1 + int(400 * 2.718 ** (means[row] + rng.gauss(0, 0.5)))) for _ in range(size)]
                groups.append((max(lengths), number, row, lengths))
                number += 1
            off, groups = groups[:filtered], groups[filtered:]
            self.logged.append(LoggedStep(step, rollout_s=1.0, filtered=float(len(off))))
            groups.sort()
            for place, (_, group, row, lengths) in enumerate(groups):
                self.all += lengths
                if place >= trained:
                    self.dropped.append(group)
                    self.missed[row] += 1
                    continue
                numbered = group if framework == "slime" else None
                for k, tokens in enumerate(lengths):
                    reward = float(k % 2 if filtered else row % 2)
                    facts = (tokens, 10, tokens >= CAP, reward, f"p{row}", numbered)
                    self.samples.append(DumpedSample(step, f"p{row}", str(group), *facts))
            self.dropped += [group for _, group, _, _ in off]

    def audit(self, log=False, keep=lambda sample: True, **options):
        kept = tuple(sample for sample in self.samples if keep(sample))
        dump = SampleDump(Path("dump"), self.framework, 1, kept)
        logs = (MetricLog(Path("log"), "slime", "console log", tuple(self.logged)),) if log else ()
        return audit_dumps(ImportedRun(logs, (dump,), ()), **options)

    @property
    def ratio(self):
        return statistics.mean(sample.tokens for sample in self.samples) / statistics.mean(self.all)
