"""Plans in the words of other systems that are to carry them out: today the labels of llm-d's RL time-slicing.

node_locks    the nodes of a planned group that another system must lock together
node_names    a file with the names of a pool's nodes
llm_d_labels  llm-d's labels, and the faults of names that cannot be labels
llm_d_export  the whole export: commands for nodes, resource claims, fields of pods
llm_d_notes   what of a plan llm-d does not carry out
"""
