"""The production replay of RollMux (arXiv 2512.11306, Fig. 13): what policies that place jobs pay and keep."""
