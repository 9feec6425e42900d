"""From a profile and a length trace to a plan: candidates, simulated costs, an integer program.

    length_model  lengths with their dependence inside a prompt     costs      what phases cost, from the profile
                  (length_tail, length_windows: its parts; length_check: how far off it is; length_drift: how
                  lengths move with training; copula_lengths: a trace from published figures)
    draws         common random numbers                             simulator  one round on a virtual clock
    candidates    what is worth simulating                          columns    many rounds of one kind
    earlier_epoch who is expected to be long, mode predict
    cycle         a cycle's cost in closed form                     search     which columns get more rounds
    program       the integer program (PuLP, HiGHS)                 predict    the plan's predictions
    why           the next best alternative of each decision        solve      all of it
    run_simulator a whole run, as the executor would have it  run_summary, timeline  what it looks like
    what_if       a plan's documents, changed by dotted path  measured   an executed run, and its rounds replayed
    refit         costs from a run                            run_lengths  lengths from a run
    attribution   why a run took what it took                 tune       whether the plan should change

Nothing here imports torch, vllm, ray or transformers: plans are solved on laptops and in CI.
"""
