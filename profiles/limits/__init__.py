"""How far a figure is from what the hardware can do.

hardware_peaks   peaks of an accelerator, and the work of the policy: MFU, share of bandwidth
step_limit       the least seconds of a plan's step
suspicions       what a profile says that cannot be, or that is far from the limit
"""
