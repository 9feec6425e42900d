"""Which groups, at the least price: candidate columns, their pricing, the master program, the proof."""
