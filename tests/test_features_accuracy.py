"""Features against the references they come from, in float32 and float64, on speech and on what speech never is; and
the same bits for a clip in any company.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import clips as clip_maker
import numpy as np
import pytest
import torch
import torchaudio

from cosyvoice_app.audio.features import (
    KINDS,
    Extractor,
    FbankConfig,
    Features,
    LogMelConfig,
    Mel24kConfig,
    MfccConfig,
    deltas,
    extractor_for,
    fbank,
    frame_audio,
    frame_mask,
    log_mel,
    magnitude_spectrum,
    mel24k,
    mel_filters,
    mfcc,
    power_spectrum,
    samples_of,
    whisper_mel,
    window,
)
from cosyvoice_app.audio.framing import Framing
from cosyvoice_app.audio.mel import MelBank
from cosyvoice_app.audio.spectral import BLOCK_ROWS, _cut
from cosyvoice_app.errors import BadInput, ConfigError

RATES_HZ = (8000, 11025, 16000, 22050, 24000, 44100, 48000)
EDGES = {
    "silence": np.zeros(4000),
    "DC": np.full(4000, 0.5),
    "full scale": np.sign(np.sin(0.1 * np.arange(4000))),
    "impulse": np.eye(1, 4000, 2000)[0],
    "one sample": np.array([0.5]),
    "shorter than a frame": np.linspace(-0.5, 0.5, 150),
}


def speech(rate_hz: int, name: str = "p0_en.flac", seconds: float = 6.0) -> torch.Tensor:
    x, source_hz = clip_maker.read(name)
    return torch.from_numpy(clip_maker.change_rate(x, source_hz, rate_hz)[: int(seconds * rate_hz)].copy())


def librosa_mfcc(x: torch.Tensor, rate_hz: int, top_db: float | None = None, lifter: int = 0) -> torch.Tensor:
    librosa = pytest.importorskip("librosa", reason="librosa is in requirements-dev.txt")
    frame, shift = samples_of(25, rate_hz), samples_of(10, rate_hz)
    n_fft = 1 << (frame - 1).bit_length()
    mel = librosa.feature.melspectrogram(
        y=x.numpy(), sr=rate_hz, n_fft=n_fft, win_length=frame, hop_length=shift, n_mels=128
    )
    decibels = librosa.power_to_db(mel, top_db=top_db)
    return torch.from_numpy(librosa.feature.mfcc(S=decibels, n_mfcc=80, lifter=lifter).T.copy())


def assert_close_in_float32(ours: torch.Tensor, reference: torch.Tensor) -> None:
    """Within 1e-4 of each frame's largest coefficient: the noise of one nearly empty bin spreads over all of them."""
    assert ours.shape == reference.shape and ours.dtype == torch.float32
    scale = reference.abs().amax(dim=-1, keepdim=True).clamp_min(1.0)
    assert ((ours - reference).abs() / scale).max() < 1e-4


@pytest.fixture(params=[1, 2, 3, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


# References


@pytest.mark.parametrize("name", ["p0_en.flac", "p1_zh.flac"])
@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_mfcc_is_librosas(rate_hz: int, name: str) -> None:
    x = speech(rate_hz, name)
    exact = librosa_mfcc(x.double(), rate_hz)
    assert (mfcc(x.double()[None], rate_hz)[0] - exact).abs().max() < 2e-6
    single = mfcc(x[None], rate_hz)[0]
    assert_close_in_float32(single, librosa_mfcc(x, rate_hz))
    assert (single - exact).abs().max() < 4e-3


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("rate_hz", [8000, 16000, 48000])
def test_mfcc_of_edge_signals_is_librosas(rate_hz: int, edge: str) -> None:
    x = torch.from_numpy(EDGES[edge])
    assert (mfcc(x[None], rate_hz)[0] - librosa_mfcc(x, rate_hz)).abs().max() < 2e-6
    assert_close_in_float32(mfcc(x.float()[None], rate_hz)[0], librosa_mfcc(x.float(), rate_hz))


def test_mfccs_top_db_and_lifter_are_librosas() -> None:
    x = speech(16000)
    for top_db, lifter in ((80.0, 0), (None, 22), (60.0, 22)):
        extract = extractor_for("mfcc", top_db=top_db, lifter=lifter)
        exact = librosa_mfcc(x.double(), 16000, top_db, lifter)
        assert (extract(x.double()[None]).values[0] - exact).abs().max() < 2e-5
        assert_close_in_float32(extract(x[None]).values[0], librosa_mfcc(x, 16000, top_db, lifter))


@pytest.mark.parametrize(("scale", "norm"), [("htk", None), ("slaney", "slaney")])
def test_mfcc_is_torchaudios(scale: str, norm: str | None) -> None:
    x = speech(16000).double()
    sizes = {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 128}
    transform = torchaudio.transforms.MFCC(16000, 80, melkwargs={**sizes, "mel_scale": scale, "norm": norm}).double()
    transform.amplitude_to_DB.top_db = None
    ours = mfcc(x[None], 16000, MfccConfig(scale=scale, slaney_norm=norm is not None, pad="reflect"))[0]  # type: ignore[arg-type]
    assert (ours - transform(x).T).abs().max() < 2e-3  # torchaudio's filterbank and cosines are float32
    assert_close_in_float32(ours.float(), transform(x).T.float())


def stft(x: torch.Tensor, size: int, hop: int, centre: bool) -> torch.Tensor:
    shape = torch.hann_window(size, dtype=x.dtype)
    return torch.stft(x, size, hop, window=shape, center=centre, return_complex=True)


@pytest.mark.parametrize("bins", [80, 128])
def test_whisper_mel_is_whispers(bins: int) -> None:
    x = speech(16000)
    filters = mel_filters(bins, 400, 16000, 0.0, 8000.0, "slaney", True, "cpu", torch.float64)
    mel = (stft(x.double(), 400, 160, True)[:, :-1].abs().square().T @ filters).clamp_min(1e-10).log10()
    exact = (torch.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0
    assert exact.shape == (len(x) // 160, bins)
    assert (whisper_mel(x.double()[None], bins)[0] - exact).abs().max() < 1e-10  # type: ignore[arg-type]
    assert (whisper_mel(x[None], bins)[0] - exact).abs().max() < 1e-4  # type: ignore[arg-type]


@pytest.mark.parametrize("high_hz", [0.0, 8000.0])
def test_mel24k_is_matchas(high_hz: float) -> None:
    x = speech(24000)
    filters = mel_filters(80, 1920, 24000, 0.0, high_hz or 12000.0, "slaney", True, "cpu", torch.float64)
    padded = torch.nn.functional.pad(x.double()[None, None], (720, 720), mode="reflect")[0, 0]
    spectrum = stft(padded, 1920, 480, False)
    magnitude = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
    exact = (magnitude.T @ filters).clamp_min(1e-5).log()
    assert exact.shape == (len(x) // 480, 80)
    assert (mel24k(x.double()[None], high_hz)[0] - exact).abs().max() < 1e-10
    assert (mel24k(x[None], high_hz)[0] - exact).abs().max() < 2e-4


@pytest.mark.parametrize(("bins", "n_fft", "rate_hz", "high_hz"), [(80, 1920, 24000, 8000.0), (128, 400, 16000, 8000.0),
                                                                   (128, 512, 16000, 8000.0)])  # fmt: skip
@pytest.mark.parametrize("htk", [False, True])
def test_filterbanks_are_librosas(bins: int, n_fft: int, rate_hz: int, high_hz: float, htk: bool) -> None:
    librosa = pytest.importorskip("librosa")
    theirs = librosa.filters.mel(sr=rate_hz, n_fft=n_fft, n_mels=bins, fmax=high_hz, htk=htk, dtype=np.float64)
    scale = "htk" if htk else "slaney"
    ours = mel_filters(bins, n_fft, rate_hz, 0.0, high_hz, scale, True, "cpu", torch.float64)  # type: ignore[arg-type]
    assert (ours - torch.from_numpy(theirs.T)).abs().max() < 1e-12


def test_deltas_are_torchaudios() -> None:
    features = extractor_for("mfcc")(speech(16000)[None])
    for reach in (1, 2, 4):
        theirs = torchaudio.functional.compute_deltas(features.values.transpose(1, 2), 2 * reach + 1).transpose(1, 2)
        assert torch.allclose(deltas(features, reach).values, theirs, atol=1e-4)


def test_spectra_are_the_stfts() -> None:
    frames, _ = frame_audio(speech(16000)[None].double(), 16000)
    shaped = frames[0] * window("hann", 400, True, torch.device("cpu"), torch.float64)
    spectrum = torch.fft.rfft(shaped, n=512)
    assert torch.allclose(power_spectrum(shaped, 512), spectrum.abs().square())
    assert torch.allclose(magnitude_spectrum(shaped, 512), spectrum.abs())


@pytest.mark.parametrize(("name", "theirs"), [("hann", torch.hann_window), ("hamming", torch.hamming_window),
                                              ("blackman", torch.blackman_window)])  # fmt: skip
@pytest.mark.parametrize("periodic", [True, False])
def test_windows_are_torchs(name: str, theirs: object, periodic: bool) -> None:
    for length in (1, 2, 275, 400):
        ours = window(name, length, periodic, torch.device("cpu"), torch.float64)  # type: ignore[arg-type]
        assert torch.allclose(ours, theirs(length, periodic=periodic, dtype=torch.float64), atol=1e-12)  # type: ignore[operator]


def test_povey_is_a_hann_window_to_the_085th() -> None:
    hann, povey = (window(name, 400, False, torch.device("cpu"), torch.float64) for name in ("hann", "povey"))
    assert torch.allclose(povey, hann.pow(0.85))


def test_windows_are_built_once() -> None:
    key = ("hann", 400, True, torch.device("cpu"), torch.float32)
    assert window(*key) is window(*key)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_input_costs_what_its_steps_cost(kind: str) -> None:
    """The samples lose digits before anything is computed: 11 bits remain of float16, 8 of bfloat16."""
    extract = extractor_for(kind)  # type: ignore[arg-type]
    x = speech(extract.rate_hz)[None]
    exact = extract(x).values
    assert exact.dtype == torch.float32
    errors = [(extract(x.to(dtype)).values - exact).abs().median() for dtype in (torch.float16, torch.bfloat16)]
    assert errors[0] < errors[1] < 0.1
    assert torch.equal(extract(x.half()).values, extract(x.half().float()).values)


# Frames


@pytest.mark.parametrize(("rate_hz", "frame", "shift"), [(8000, 200, 80), (11025, 275, 110), (16000, 400, 160),
                         (22050, 551, 220), (24000, 600, 240), (44100, 1102, 441), (48000, 1200, 480)])  # fmt: skip
def test_frames_of_every_rate(rate_hz: int, frame: int, shift: int) -> None:
    x = torch.arange(3.0 * frame)[None].expand(2, -1).contiguous()
    frames, counts = frame_audio(x, rate_hz, lengths=torch.tensor([3 * frame, frame + shift]))
    assert counts.tolist() == [1 + 2 * frame // shift, 2]
    assert frames.shape == (2, counts[0], frame)
    assert frames.data_ptr() == x.data_ptr()
    assert torch.equal(frames[0, :, 0], torch.arange(float(counts[0])) * shift)
    assert torch.equal(frames[0, 1], torch.arange(float(shift), float(shift + frame)))
    assert frame_mask(counts, frames.shape[1]).sum(dim=1).tolist() == counts.tolist()


@pytest.mark.parametrize("pad", ["zeros", "reflect"])
def test_centred_frames_end_at_each_clips_own_end(pad: str) -> None:
    x = torch.randn(3, 3000)
    lengths = torch.tensor([3000, 2999, 1234])
    frames, counts = frame_audio(x, 16000, lengths=lengths, centre=True, pad=pad)  # type: ignore[arg-type]
    for row, n in enumerate(lengths.tolist()):
        mode = "constant" if pad == "zeros" else "reflect"
        whole = torch.from_numpy(np.pad(x[row, :n].numpy(), 200, mode=mode))  # type: ignore[call-overload]
        assert counts[row] == 1 + n // 160
        assert torch.equal(frames[row, : counts[row]], whole.unfold(0, 400, 160))


@pytest.mark.parametrize("n", [1, 2, 3, 57, 199, 200, 201, 1000])
def test_reflection_goes_on_as_numpys(n: int) -> None:
    x = torch.randn(1, n)
    frames, counts = frame_audio(x, 16000, centre=True, pad="reflect")
    whole = torch.from_numpy(np.pad(x[0].numpy(), 200, mode="reflect"))
    assert torch.equal(frames[0], whole.unfold(0, 400, 160)[: counts[0]])


def test_frame_counts_agree() -> None:
    for framing in (Framing(400, 160), Framing.centred(400, 160, n_fft=512), Framing(1920, 480, 720, 720, "reflect")):
        lengths = torch.arange(0, 4000, 37)
        assert framing.frame_counts(lengths).tolist() == [framing.frames(n) for n in lengths.tolist()]


def test_too_short_a_frame_says_so() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        frame_audio(torch.zeros(1, 100), 16000, frame_ms=0.01)


# The same bits in any company


def clips_of(extract: Extractor) -> tuple[torch.Tensor, torch.Tensor]:
    """Speech of many lengths, each past its end followed by what must not be looked at."""
    lengths = torch.tensor([6.0, 0.0, 0.7, 3.14159, 0.0301, 5.0, 0.0001, 1.0]) * extract.rate_hz
    lengths = lengths.long()
    batch = torch.full((len(lengths), int(lengths.max())), torch.nan)
    for row, n in enumerate(lengths.tolist()):
        batch[row, :n] = (0.9 - 0.1 * row) * speech(extract.rate_hz, "p1_zh.flac" if row % 2 else "p0_en.flac")[:n]
    return batch, lengths


@pytest.mark.parametrize("kind", [*KINDS, "mfcc top_db"])
def test_a_clips_bits_do_not_depend_on_its_batch(kind: str, threads: int) -> None:
    changes = {"top_db": 80.0} if kind == "mfcc top_db" else {}
    extract = extractor_for(kind.split()[0], **changes)  # type: ignore[arg-type]
    batch, lengths = clips_of(extract)
    together = extract(batch, lengths)
    assert together.lengths.tolist() == [extract.frames(n) for n in lengths.tolist()]
    assert together.values.shape[1:] == (together.lengths.max(), extract.bins)
    for row, n in enumerate(lengths.tolist()):
        alone = extract(batch[row : row + 1, :n])
        frames = int(alone.lengths)
        assert torch.equal(together.values[row, :frames], alone.values[0])
        assert not together.values[row, frames:].any()
    turned = extract(batch.flip(0), lengths.flip(0))
    assert torch.equal(turned.values.flip(0), together.values)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_threads(kind: str) -> None:
    extract = extractor_for(kind)  # type: ignore[arg-type]
    batch, lengths = clips_of(extract)
    before = torch.get_num_threads()
    found = []
    for number in (1, 2, 3, 4, 16):
        torch.set_num_threads(number)
        found.append(extract(batch, lengths).values)
    torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("kind", ["mfcc", "fbank", "logmel", "mel24k"])
def test_a_rows_place_in_its_block_leaves_no_trace(kind: str, threads: int) -> None:
    extract = extractor_for(kind)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    frames = torch.randn(BLOCK_ROWS + 7, extract.framing.frame, generator=generator)
    frames *= torch.logspace(-4, 0, len(frames))[:, None]
    order = torch.randperm(len(frames), generator=generator)
    assert torch.equal(extract.rows(frames)[order], extract.rows(frames[order]))


@pytest.mark.parametrize("kind", KINDS)
def test_computing_gradients_changes_no_bit(kind: str) -> None:
    extract = extractor_for(kind)  # type: ignore[arg-type]
    batch, lengths = clips_of(extract)
    batch = batch.nan_to_num(0.0)
    plain = extract(batch, lengths)
    assert torch.equal(extract(batch.clone().requires_grad_(), lengths).values, plain.values)
    with torch.inference_mode():
        assert torch.equal(extract(batch, lengths).values, plain.values)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(extract(batch, lengths).values, plain.values)


def test_threads_may_share_an_extractor() -> None:
    extract = extractor_for("mfcc")
    x = [speech(16000)[None] * (1.0 / k) for k in range(1, 5)]
    expected = [extract(clip).values for clip in x]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(5):
            if not torch.equal(extract(x[k]).values, expected[k]):
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_whispers_floor_is_set_by_the_clip_alone() -> None:
    quiet, loud = 1e-3 * speech(16000)[None], speech(16000)[None]
    together = whisper_mel(torch.cat([quiet, loud]))
    assert torch.equal(together[:1], whisper_mel(quiet))


# Gradients


@pytest.mark.parametrize("kind", ["mfcc", "mfcc top_db", "whisper-mel", "mel24k", "logmel", "fbank"])
def test_gradients_are_right(kind: str) -> None:
    extract = {
        "mfcc": extractor_for("mfcc", 4000, mels=12, coefficients=6, lifter=4),
        "mfcc top_db": extractor_for("mfcc", 4000, mels=12, coefficients=6, top_db=15.0),
        "whisper-mel": extractor_for("whisper-mel", bins=80),
        "mel24k": extractor_for("mel24k", bins=6),
        "logmel": extractor_for("logmel", 4000, bins=6),
        "fbank": extractor_for("fbank", 4000, bins=6),
    }[kind]
    generator = torch.Generator().manual_seed(1)
    n = {"whisper-mel": 170, "mel24k": 740}.get(kind, 220)
    x = torch.randn(1, n, dtype=torch.float64, generator=generator, requires_grad=True)
    mix = torch.randn(extract.bins, 3, dtype=torch.float64, generator=generator)
    assert torch.autograd.gradcheck(lambda y: extract(y).values @ mix, (x,), atol=1e-4, fast_mode=kind == "mel24k")


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_at_silence_are_finite(kind: str) -> None:
    x = torch.zeros(2, 6000, requires_grad=True)
    found = extractor_for(kind)(x, torch.tensor([6000, 3000]))  # type: ignore[arg-type]
    deltas(found).values.sum().backward()
    found.values.sum().backward() if x.grad is None else None
    assert x.grad is not None and torch.isfinite(x.grad).all()


# What is refused


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_is_refused_by_clip(bad: float) -> None:
    batch, lengths = torch.zeros(4, 1000), torch.tensor([1000, 1000, 700, 1000])
    batch[2, 800] = bad
    assert torch.isfinite(extractor_for("fbank")(batch, lengths).values).all()
    batch[2, 500] = bad
    with pytest.raises(BadInput, match=r"Clip 2 .*sample 500") as caught:
        extractor_for("fbank")(batch, lengths)
    assert caught.value.param == "samples"


def test_huge_samples_are_numbers_too() -> None:
    assert extractor_for("fbank")(torch.full((1, 400), 3e38)).lengths.tolist() == [1]


@pytest.mark.parametrize(
    ("kind", "rate_hz", "changes", "says"),
    [
        ("mfc", None, {}, "mfcc, fbank, logmel, whisper-mel, mel24k"),
        ("mfcc", None, {"mel": 3}, "coefficients, mels, frame_ms"),
        ("mfcc", None, {"mels": 40}, "more than mels"),
        ("mfcc", None, {"window": "tukey"}, "'hann', 'hamming'"),
        ("mfcc", None, {"n_fft": 256}, "hold a frame of 400"),
        ("mfcc", None, {"high_hz": 9000.0}, "within 0 and 8000"),
        ("mfcc", None, {"top_db": -1.0}, "greater than 0"),
        ("fbank", None, {"bins": 0}, "greater than 0"),
        ("fbank", 50, {}, "at least 1"),
        ("whisper-mel", None, {"bins": 100}, "one of 80, 128"),
        ("whisper-mel", 8000, {}, "16000 Hz"),
        ("mel24k", 16000, {}, "24000 Hz"),
        ("logmel", None, {"frame_ms": 20.0}, "n_fft, window_samples, hop_samples"),
        *(
            ("mfcc", None, {name: value}, says)
            for name, value, says in (
                ("power", 3, "one of 1, 2"),
                ("power", "2", "one of 1, 2"),
                ("power", True, "one of 1, 2"),
                ("scale", "mel", "'kaldi', 'htk', 'slaney'"),
                ("pad", "edge", "'zeros', 'reflect'"),
                ("centre", 1, "true or false"),
                ("coefficients", True, "a whole number"),
                ("mels", 80.0, "a whole number"),
                ("mels", 10**9, "at most 1024"),
                ("n_fft", 10**11, "at most 65536"),
                ("n_fft", -512, "at least 0"),
                ("floor", torch.nan, "at least 1e-37"),
                ("floor", torch.inf, "at most 1e.30"),
                ("floor", "low", "a number"),
                ("floor", 0, "at least 1e-37"),
                ("top_db", torch.nan, "or none"),
                ("top_db", torch.inf, "at most 1000"),
                ("frame_ms", torch.inf, "at most 60000"),
                ("frame_ms", torch.nan, "greater than 0"),
                ("frame_ms", 10**400, "at most 60000"),
                ("frame_ms", 50_000.0, "at most 65536"),
                ("high_hz", torch.nan, "at most 500000"),
                ("lifter", -1, "at least 0"),
            )
        ),
        *(
            ("fbank", None, {name: value}, says)
            for name, value, says in (
                ("preemphasis", torch.nan, "at most 1"),
                ("preemphasis", 5.0, "at most 1"),
                ("remove_dc", "no", "true or false"),
                ("window", "rectangular", "'povey', 'hann', 'hamming'"),
                ("high_hz", -torch.inf, "at least -500000"),
                ("shift_ms", None, "a number"),
            )
        ),
        *(
            ("logmel", None, {name: value}, says)
            for name, value, says in (
                ("log", "log2", "'ln', 'log10'"),
                ("floor_mode", "max", "'add', 'clamp'"),
                ("slaney_norm", "no", "true or false"),
                ("hop_samples", 2.5, "a whole number"),
                ("window_samples", 10**11, "at most 65536"),
                ("filter_rate_hz", -1, "at least 0"),
            )
        ),
        ("mel24k", None, {"bins": "80"}, "a whole number"),
        ("whisper-mel", None, {"bins": 80.0}, "one of 80, 128"),
        ("fbank", 10**12, {}, "at most 1000000"),
        ("logmel", 16000.5, {}, "a whole number"),
    ],
)
def test_impossible_settings_say_what_is_allowed(kind: str, rate_hz: int | None, changes: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        extractor_for(kind, rate_hz, **changes)  # type: ignore[arg-type]


def test_configs_hold_what_their_annotations_say() -> None:
    """Whoever makes them, and whatever equal number they were given."""
    for make in (lambda: FbankConfig(power=3), lambda: MfccConfig(floor=torch.nan), lambda: Mel24kConfig(bins=0),  # type: ignore[arg-type]
                 lambda: LogMelConfig(16000, 512, 400, 160, 80, log="log2")):  # type: ignore[arg-type]  # fmt: skip
        with pytest.raises(ConfigError, match="; it must be "):
            make()
    config = FbankConfig(bins=np.int64(40), low_hz=60, preemphasis=np.float32(0.5))  # type: ignore[arg-type]
    assert config == FbankConfig(40, low_hz=60.0, preemphasis=0.5)
    assert (type(config.bins), type(config.low_hz), type(config.preemphasis)) == (int, float, float)


def test_what_is_computed_from_settings_is_refused_too() -> None:
    x = torch.zeros(1, 1000)
    for call in (
        lambda: frame_audio(x, 16000, frame_ms=torch.nan),
        lambda: frame_audio(x, 16000, shift_ms=torch.inf),
        lambda: frame_audio(x, 16000, centre=True, pad="edge"),  # type: ignore[arg-type]
        lambda: fbank(x, 16000.5),  # type: ignore[arg-type]
        lambda: mel_filters(8, 512, 16000, 0.0, 8000.0, "mel", False, "cpu", torch.float32),  # type: ignore[arg-type]
        lambda: deltas(extractor_for("fbank")(x), 1.5),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            call()


def test_the_largest_transform_works() -> None:
    """Its block is as small as one product of rows."""
    x = torch.randn(1, 70_000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    extract = extractor_for("mfcc", mels=20, coefficients=13, n_fft=65_536, shift_ms=400.0)
    by_rows = extract(x.clone().requires_grad_()).values.detach()
    assert torch.allclose(extract(x).values, by_rows, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.bool, torch.complex64])
def test_samples_that_are_no_floats_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(BadInput, match=f"{dtype}; they must be floats") as caught:
        extractor_for("fbank")(torch.ones(1, 1000).to(dtype))
    assert caught.value.param == "samples"
    with pytest.raises(BadInput, match="floats"):
        fbank(torch.ones(1, 1000).to(dtype), 16000)


def test_constants_come_from_the_cpu_whatever_the_device() -> None:
    """Nothing is asked of a device while they are made, which the "meta" device, having no values, would refuse."""
    bank = MelBank(80, 512, 16000, 20.0, 8000.0, "kaldi", False)
    here, there = (_cut(bank, 1.0, True, device, torch.float32) for device in ("cpu", "meta"))
    assert [(low, high, f.shape) for low, high, f in there] == [(low, high, f.shape) for low, high, f in here]
    assert {f.device.type for *_, f in there} == {"meta"}


def test_lengths_are_looked_at_before_samples() -> None:
    batch = torch.full((2, 1000), torch.inf)
    for lengths in (torch.tensor([5]), torch.tensor([[5, 6]]), torch.tensor([5, 1001]), [5, 6],
                    torch.tensor([True, False]), torch.tensor([5j, 6j])):  # fmt: skip
        with pytest.raises(ValueError, match="lengths must"):
            extractor_for("fbank")(batch, lengths)  # type: ignore[arg-type]


def test_lengths_must_fit() -> None:
    extract = extractor_for("fbank")
    for lengths in (torch.tensor([5, 1001]), torch.tensor([-1, 5]), torch.tensor([5]), torch.tensor([5.0, 6.0])):
        with pytest.raises(ValueError, match="lengths"):
            extract(torch.zeros(2, 1000), lengths)
    with pytest.raises(ValueError, match=r"\[B, n\]"):
        extract(torch.zeros(1000))


def test_an_extractor_cannot_be_changed() -> None:
    extract = extractor_for("mfcc", 22050, coefficients=13)
    assert (extract.kind, extract.rate_hz, extract.bins, extract.shift_samples) == ("mfcc", 22050, 13, 220)
    with pytest.raises(AttributeError):
        extract.bins = 14  # type: ignore[misc]
    assert extract == extractor_for("mfcc", 22050, coefficients=13) != extractor_for("mfcc", 22050)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_nothing(kind: str) -> None:
    extract = extractor_for(kind)  # type: ignore[arg-type]
    for batch, lengths in ((torch.zeros(0, 100), None), (torch.zeros(2, 0), None),
                           (torch.zeros(2, 9000), torch.tensor([0, 0]))):  # fmt: skip
        found = extract(batch, lengths)
        assert isinstance(found, Features) and found.values.shape == (len(batch), 0, extract.bins)
        assert found.lengths.tolist() == [0] * len(batch)
        assert deltas(found).values.shape == found.values.shape


def test_functions_are_their_extractors() -> None:
    x = speech(16000)[None]
    assert torch.equal(fbank(x, 16000), extractor_for("fbank")(x).values)
    assert torch.equal(mfcc(x, 16000), extractor_for("mfcc")(x).values)
    assert torch.equal(log_mel(x, extractor_for("logmel").config), extractor_for("logmel")(x).values)  # type: ignore[arg-type]
