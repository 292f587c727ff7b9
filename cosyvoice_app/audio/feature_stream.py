"""Features of audio that is still arriving: what the frames of a stream are doesn't depend on how it was cut.

    stream = FeatureStream(extractor_for("fbank"))
    for chunk in chunks:                 # [1, any number of samples]
        frames = stream.push(chunk)      # [1, frames that are complete now, bins]
    frames = stream.finish()             # the last ones, which need the padding after the end

On the CPU the frames together equal `extractor(whole clip)` to the bit. Not for features whose floor is set by a whole
clip's maximum (Whisper's log-mel, MFCC with `top_db`): there the first frame isn't known before the last. Without
gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cosyvoice_app.audio.features import Extractor, widened
from cosyvoice_app.audio.framing import reflected, refuse_not_finite
from cosyvoice_app.errors import BadInput, ConfigError


class FeatureStream:
    """`streams` streams that advance together: every chunk brings each of them equally many samples.

    Holds the samples that frames to come still need: less than a frame, its shift and the padding. For one thread at a
    time.
    """

    def __init__(self, extractor: Extractor, streams: int = 1) -> None:
        if extractor.needs_whole_clip:
            raise ConfigError(
                f"{extractor.kind} can't be streamed with these settings: its floor is set by the loudest frame of the "
                "whole clip. mfcc without top_db, fbank, logmel and mel24k can.",
                param="kind",
            )
        self._extractor = extractor
        self._streams = streams
        self._held = torch.empty(streams, 0)
        self._held_from = 0
        self._samples = 0
        self._frames = 0
        self._finished = False

    @property
    def frames(self) -> int:
        """How many have been given out."""
        return self._frames

    @torch.no_grad()
    def push(self, chunk: Tensor) -> Tensor:
        """Samples [streams, k] -> the frames [streams, frames, bins] that they complete. BadInput as an Extractor."""
        if self._finished:
            raise BadInput("This stream has been finished; start another for more samples.")
        if chunk.ndim != 2 or len(chunk) != self._streams:
            raise ValueError(f"a chunk must be [{self._streams}, k], got {tuple(chunk.shape)}")
        chunk = widened(chunk)
        refuse_not_finite(chunk, None)
        self._held = torch.cat([self._held.to(chunk), chunk], dim=1)
        self._samples += chunk.shape[1]
        framing = self._extractor.framing
        complete = 0
        # Before a reflected start is known, as many samples must have come as lie before it.
        if framing.pad == "zeros" or self._samples > framing.left:
            complete = (self._samples + framing.left + min(framing.right, 0) - framing.frame) // framing.shift + 1
        return self._give(complete)

    @torch.no_grad()
    def finish(self) -> Tensor:
        """The frames [streams, frames, bins] that reach past the end. Afterwards the stream takes no more."""
        if self._finished:
            raise BadInput("This stream has been finished already.")
        self._finished = True
        return self._give(self._extractor.frames(self._samples))

    def _give(self, complete: int) -> Tensor:
        """Frames from the first that wasn't given out up to `complete` of them."""
        framing, first = self._extractor.framing, self._frames
        if complete <= first:
            return self._held.new_zeros(self._streams, 0, self._extractor.bins)
        start = first * framing.shift - framing.left
        end = (complete - 1) * framing.shift - framing.left + framing.frame
        frames = self._between(start, end).unfold(-1, framing.frame, framing.shift)
        self._frames = complete
        # A reflected end needs the samples before it again.
        keep = min(complete * framing.shift - framing.left, self._samples - max(framing.right, 0) - 1)
        if keep > self._held_from:
            self._held, self._held_from = self._held[:, keep - self._held_from :].clone(), keep
        return self._extractor.rows(frames.flatten(0, 1)).view(self._streams, complete - first, -1)

    def _between(self, start: int, end: int) -> Tensor:
        """Samples `start` to `end` of the padded stream."""
        if start >= 0 and end <= self._samples:
            return self._held[:, start - self._held_from : end - self._held_from]
        at = torch.arange(start, end, device=self._held.device)
        if self._extractor.framing.pad == "reflect":
            at = reflected(at, self._samples)
            return self._held[:, at - self._held_from]
        inside = (at >= 0) & (at < self._samples)
        return torch.where(inside, self._held[:, (at - self._held_from).clamp(0, self._held.shape[1] - 1)], 0.0)
