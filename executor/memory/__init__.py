"""Memory of devices that engines and trainers share: what each takes (device_holds), and their turns (device_turns)."""
