"""Which candidates, which program, which choice.

job_limits, prompt_supply, no_candidates, memory_fit   what is refused, or left out, before anything is simulated
no_candidates    what to say where nothing is left
candidates       which kinds of round are worth simulating; prefix_placement whether prompts keep their samples together
candidate_search which of them get more rounds; cycle_cost what a schedule of short and long rounds costs
round_program    the integer program; ties which of the schedules that are as good is the simplest
plain_baseline   what the plan is compared with
schedule_choice  all of it: from simulated columns to the plan's schedule
"""
