"""All transfers in which one trainer rank takes part. What breaks a transfer is returned as text, and not raised: the
rank is as it was, and the driver decides what to do."""

from __future__ import annotations

from typing import Any

import torch

from ...host import node_address, node_key
from ...trainer.policy.local_tensors import whole
from ..checksum import tensor_checksum
from ..network.network_group import HOST
from ..slots.device_slots import device_key
from .bucket_plan import Holdings
from .device_sender import DeviceSender
from .held_parameters import by_parameter, holdings
from .message_board import TransferBroken
from .sender import Sender
from .session import Session


class RankTransfers:
    """The transfers of rank `rank`, which holds its part of `model` on `device`; `dtype` is that of the job."""

    def __init__(self, model: Any, rank: int, dtype: str, device: torch.device = HOST) -> None:
        self._model, self._rank, self._dtype, self._device = model, rank, dtype, device
        self._senders: dict[str, Sender | DeviceSender] = {}

    def holdings(self) -> Holdings:
        """What this rank holds of the model, and where it runs."""
        return holdings(self._model, self._rank, node_key(), self._dtype, device_key(self._device))

    def checksums(self) -> dict[str, str]:
        """The checksum of each tensor of the checkpoint in the job's dtype, on rank 0; {} on the others (collective).

        At a time a rank holds one parameter whole.
        """
        sums: dict[str, str] = {}
        sources = by_parameter(self._model) if self._rank == 0 else {}
        for name, parameter in self._model.named_parameters():
            values = whole(parameter.detach())
            for source in sources.get(name, ()):
                part = values[source.box.slices].to("cpu", getattr(torch, self._dtype))
                sums[source.name] = tensor_checksum(part.reshape(source.shape))
        return sums

    def open(self, session: Session) -> str | None:
        """Join a session; returns why it could not."""

        def parameters() -> dict[str, Any]:
            return dict(self._model.named_parameters())

        address = node_address()
        try:
            self._senders[session.name] = (
                Sender(session, self._rank, address, parameters)
                if session.slots == "host"
                else DeviceSender(session, self._rank, address, parameters, self._device)
            )
        except RuntimeError as error:
            return session.why_not_joined(error)
        return None

    def publish(self, name: str, turn: int, version: str) -> str | None:
        """Send this rank's pieces in transfer number `turn` of a session; returns why that broke off."""
        try:
            if name not in self._senders:
                raise TransferBroken(f"trainer rank {self._rank} is in no session {name}")
            self._senders[name].publish(turn, version)
        except TransferBroken as broken:
            return str(broken)
        return None

    def leave(self, name: str) -> None:
        """Leave a session, if this rank is in it."""
        sender = self._senders.pop(name, None)
        if sender is not None:
            sender.leave()
