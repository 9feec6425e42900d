"""What a trainer's set-up takes, whoever's trainer it is: bytes by phase, seconds by phase."""
