"""Other trainers: readers of their configurations and logs, plans as their files, plug-ins that run rounds inside them.

`trl/`, `verl/`, `slime/` (and vime, which takes slime's flags) hold a plug-in each. A plug-in drives the machines of
`rounds/` by a plan; it decides nothing itself.
"""
