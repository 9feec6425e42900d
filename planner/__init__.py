"""From a profile and a length trace to a plan: candidates, simulated costs, an integer program; and back from a run.

lengths     length_model (its parts: length_tail, length_windows), length_check how far off it is, length_drift how
            they move with training, earlier_epoch what mode predict knows of a simulated prompt, copula_lengths a trace
            from published figures, draws common random numbers
costs       costs what phases cost, from the profile; kinds what a plan's rounds cost; drafts, streaming what
            speculation and hand-over change
memory      memory who holds how many bytes where, in which phase (memory_bars, device_memory, host_memory); fitting
            which candidates that leaves
simulation  simulator one round by the machines of rounds/ (engine, reward_queue); twin the same, compiled; play
            either of them; run_simulator a whole run; run_summary, timeline what it looks like
choice      candidates what is worth simulating; placement whether a prompt's samples are kept together; columns,
            round_log many rounds of one kind; cycle a cycle's cost in closed form; search which columns get more
            rounds; program the integer program, highs how it is solved; solve all of it
            refresh an edited plan, predicted anew
words       predict a plan's predictions, front speed against bias, why the next best alternative of each decision
after       what_if a plan's documents, changed by dotted path; measured an executed run, and its rounds replayed;
            calibrate, refit costs from rounds; run_lengths lengths from a run; attribution why a run took what it
            took; tune whether the plan should change

Nothing here imports torch, vllm, ray or transformers: plans are solved on laptops and in CI.
"""
