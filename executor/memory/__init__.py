"""Memory of devices and hosts that engines and trainers share: what each takes (device_holds), their turns on devices
(device_turns), and what others leave of both (free_memory)."""
