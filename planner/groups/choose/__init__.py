"""Which groups, at the least price: placements, columns, pricing, master program, proof; remedies if none fit."""
