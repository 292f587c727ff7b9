"""The vocoder pushed piece by piece: the joined pieces are the whole run, and a push costs its own frames."""

from __future__ import annotations

import pytest
import torch
from cv3_vocoder_weights import official_state, random_mel

from cosyvoice_app.engines.cosyvoice3.config import HOP_SAMPLES, TINY
from cosyvoice_app.engines.cosyvoice3.vocoder import Vocoder
from cosyvoice_app.engines.cosyvoice3.vocoder_source import uniform_noise
from cosyvoice_app.engines.cosyvoice3.vocoder_stream import HELD_FRAMES, VocoderStream

CONFIG = TINY.vocoder
TOLERANCE = 1e-6
"""Of samples up to about 0.1."""


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def vocoder():
    return Vocoder.load(official_state(CONFIG), CONFIG, device=torch.device("cpu"), source="hift.pt")


def whole(vocoder, mel):
    return vocoder(mel[None], torch.tensor([len(mel)]))[0]


def pushes(vocoder, mel, sizes, *, last_is_empty=False):
    """Pieces of `sizes` in turn until mel is used up, each checked for its length."""
    stream, parts, start, turn = VocoderStream(vocoder), [], 0, 0
    while start < len(mel):
        stop = min(start + sizes[turn % len(sizes)], len(mel))
        final = stop == len(mel) and not last_is_empty
        parts.append(stream.push(mel[start:stop], final=final))
        given = sum(map(len, parts))
        assert given == HOP_SAMPLES * (stop if final else max(0, stop - HELD_FRAMES))
        start, turn = stop, turn + 1
    if last_is_empty:
        parts.append(stream.push(mel[:0], final=True))
    return torch.cat(parts)


@pytest.mark.parametrize(
    ("frames", "sizes"),
    [
        *((frames, [size]) for frames in (1, 7, 8, 9, 10) for size in (1, 8, 1000)),
        *((40, sizes) for sizes in ([1], [7], [30], [1000], [0, 9, 1])),
        (150, [56, 50, 100]),
        (150, [1000]),
    ],
)
def test_joined_pieces_are_the_whole_run(vocoder, frames, sizes):
    mel = random_mel(1, frames)[0]
    wave = pushes(vocoder, mel, sizes)
    expected = whole(vocoder, mel)
    assert wave.shape == expected.shape
    assert (wave - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("frames", [1, 7, 8, 9, 40])
def test_a_final_push_of_no_frames_gives_the_rest(vocoder, frames):
    mel = random_mel(1, frames)[0]
    wave = pushes(vocoder, mel, [5], last_is_empty=True)
    assert (wave - whole(vocoder, mel)).abs().max() < TOLERANCE


def test_a_run_without_frames_is_silent(vocoder):
    stream = VocoderStream(vocoder)
    assert stream.push(torch.zeros(0, CONFIG.mels), final=False).shape == (0,)
    assert stream.push(torch.zeros(0, CONFIG.mels), final=True).shape == (0,)


def test_what_is_given_out_does_not_change_with_what_follows(vocoder):
    """The prefix rule: the samples of all but the last 8 frames are final."""
    mel = random_mel(1, 60)[0]
    for frames in (9, 20, 45):
        early = VocoderStream(vocoder).push(mel[:frames], final=False)
        assert len(early) == HOP_SAMPLES * (frames - HELD_FRAMES)
        assert (early - whole(vocoder, mel)[: len(early)]).abs().max() < TOLERANCE


def test_the_same_pushes_give_the_same_bits(vocoder):
    mel = random_mel(1, 40)[0]
    assert torch.equal(pushes(vocoder, mel, [7]), pushes(vocoder, mel, [7]))


def test_two_runs_at_once_do_not_meet(vocoder):
    mels = random_mel(2, 40)
    streams = [VocoderStream(vocoder) for _ in mels]
    parts = [[], []]
    for start in range(0, 40, 10):
        for row, stream in enumerate(streams):
            parts[row].append(stream.push(mels[row, start : start + 10], final=start == 30))
    for row, mel in enumerate(mels):
        assert (torch.cat(parts[row]) - whole(vocoder, mel)).abs().max() < TOLERANCE


def test_a_table_of_noise_is_read_on_from_piece_to_piece(vocoder):
    mel = random_mel(1, 30)[0]
    table = 1.0 - uniform_noise(0, 30 * HOP_SAMPLES, CONFIG.harmonics, torch.device("cpu"))[None]
    stream = VocoderStream(vocoder, noise=table)
    wave = torch.cat([stream.push(mel[a : a + 11], final=a == 22) for a in (0, 11, 22)])
    expected = vocoder(mel[None], torch.tensor([30]), noise=table)[0]
    assert (wave - expected).abs().max() < TOLERANCE


def _kept(stream):
    """Values a stream holds on to between pushes."""
    own = [value for value in vars(stream).values() if isinstance(value, torch.Tensor)]
    tensors = [*own, *stream._history.values(), *stream._f0_history.values(), stream._phase.cycles]
    assert all(tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() for tensor in tensors)
    return sum(tensor.numel() for tensor in tensors)


def test_a_push_costs_its_own_frames(vocoder, monkeypatch):
    """Frames through the network: each once. What is kept does not grow."""
    seen = []
    decode = Vocoder.decode

    def counted(self, mel, spectra, history):
        seen.append(mel.shape[1] - CONFIG.pre_lookahead)
        return decode(self, mel, spectra, history)

    monkeypatch.setattr(Vocoder, "decode", counted)
    stream, mel, kept = VocoderStream(vocoder), random_mel(1, 100)[0], []
    for start in range(0, 100, 10):
        stream.push(mel[start : start + 10], final=False)
        kept.append(_kept(stream))
    stream.push(mel[:0], final=True)
    assert seen == [3] + [10] * 9 + [7]
    assert len(set(kept)) == 1


def test_misuse_is_told(vocoder):
    stream = VocoderStream(vocoder)
    with pytest.raises(ValueError, match="expected \\[frames, 80\\]"):
        stream.push(torch.zeros(1, 5, 80), final=False)
    stream.push(torch.zeros(3, 80), final=True)
    with pytest.raises(ValueError, match="final push"):
        stream.push(torch.zeros(3, 80), final=False)
