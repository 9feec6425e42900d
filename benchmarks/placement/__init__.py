"""Placement on several nodes, with Ray nodes that are real and share this machine.

    python -m benchmarks.placement [--json]

1. The 32B example, with engines of TP 4 in short rounds and of TP 8 in long ones, on eight nodes of eight devices: an
   actor that does nothing sits in the seat of every engine and every trainer rank. `double_booked` counts devices with
   two holders in one phase, `split` engines whose devices are not of one node, `misplaced` actors that are not on their
   seat's node, as the actors say themselves. A plan that does not fit is `refused` with a text that names the nodes.
2. The demo with two real engines of one core each and a trainer of two ranks, on one node, and on three nodes (an
   engine on each of two, the trainer on the third): the same samples are trained, and weights differ by rounding.
3. The demo on three nodes again: the processes of an engine's node are killed in a round; the trainer's node is
   drained, and the trainer moves to another node with no step lost (`steps_lost_by_drain`); that node is killed later.
   `lost` and `double` count samples that the undisturbed run trained and this one did not, or twice.
"""
