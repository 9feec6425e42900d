"""What scoring costs: samples through the reward workers, and through a judge alone and beside a running rollout."""
