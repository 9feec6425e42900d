"""What follows the gradients: their norm, the learning rate, AdamW over a rank's shards."""
