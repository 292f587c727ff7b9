"""Speed without pitch: the mel is read faster or slower before the vocoder, whole or piece by piece.

Frame j of the result is read at (j + 0.5) * speed - 0.5 of the source, between the two frames beside it, as upstream's
linear interpolation does; upstream rounds the length first and reads with length / rounded length instead of `speed`,
which needs the whole and moves frames by less than one in all.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Tempo:
    """Of one request. `push` gives the frames that no later frame can change; the pieces make up `apply` of the whole.

    Long stretches blur, since no frame is made that the flow did not make: 0.5 to 2 is what the app allows.
    """

    def __init__(self, speed: float) -> None:
        if not speed > 0:
            raise ValueError(f"speed is {speed}; it must be above 0")
        self._speed = speed
        self._kept: Tensor | None = None
        self._start = 0
        """Source position of the first kept frame."""
        self._made = 0

    def push(self, mel: Tensor, *, final: bool) -> Tensor:
        """mel [T, C] -> [t, C], t about T / speed and maybe 0."""
        if self._speed == 1.0:
            return mel
        kept = mel if self._kept is None else torch.cat((self._kept, mel))
        frames = self._start + len(kept)
        total = int(frames / self._speed) if final else self._readable(frames)
        at = (torch.arange(self._made, max(total, self._made), dtype=torch.float64) + 0.5) * self._speed - 0.5
        at = at.clamp(0, max(frames - 1, 0))
        low = at.floor()
        share = (at - low).to(mel).unsqueeze(-1)
        left = (low.long() - self._start).to(mel.device)
        out = torch.lerp(kept[left], kept[(left + 1).clamp(max=len(kept) - 1)], share) if len(at) else kept[:0]
        self._made += len(at)
        drop = max(0, int(max(0.0, (self._made + 0.5) * self._speed - 0.5)) - self._start)
        drop = min(drop, max(0, len(kept) - 1))
        self._kept, self._start = kept[drop:], self._start + drop
        return out

    def _readable(self, frames: int) -> int:
        """Frames of the result that can be read from `frames` source frames without the one that follows."""
        last = int((frames - 1 + 0.5) / self._speed - 0.5)
        return max(self._made, last)


def apply(mel: Tensor, speed: float) -> Tensor:
    """mel [T, C] -> [int(T / speed), C]."""
    return Tempo(speed).push(mel, final=True)
