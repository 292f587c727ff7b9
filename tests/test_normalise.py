"""Mean and variance normalisation: equal to its definition, blind to padding and neighbours, and the same in chunks."""

from __future__ import annotations

import math

import clips as clip_maker
import pytest
import torch
import torchaudio

from cosyvoice_app.audio import normalise as normalise_module
from cosyvoice_app.audio.features import FbankConfig, fbank
from cosyvoice_app.audio.normalise import (
    NORMS,
    ExponentialNorm,
    NoNorm,
    NormConfig,
    OnlineNorm,
    UtteranceNorm,
    WindowNorm,
    norm_for,
    normalise,
)
from cosyvoice_app.errors import BadInput, ConfigError

ONLINE: tuple[NormConfig, ...] = (
    NoNorm(),
    ExponentialNorm(40.0),
    ExponentialNorm(40.0, variance=False),
    ExponentialNorm(math.inf),
    ExponentialNorm(0.2),
    WindowNorm(50),
    WindowNorm(50, variance=False),
    WindowNorm(1),
    WindowNorm(700),
)
ALL = (
    *ONLINE,
    UtteranceNorm(),
    UtteranceNorm(variance=False),
    WindowNorm(51, centred=True),
    WindowNorm(50, centred=True),
)


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Filterbanks of two speakers and two rooms' worth of length, padded with what must never be read."""
    clips = []
    for name, seconds in (("p0_en.flac", 6.0), ("p1_zh.flac", 2.3), ("p0_en.flac", 0.4)):
        x, rate_hz = clip_maker.read(name)
        clips.append(fbank(torch.from_numpy(x[: int(seconds * rate_hz)])[None], rate_hz, FbankConfig(bins=23))[0])
    lengths = torch.tensor([*(len(c) for c in clips), 1, 0])
    values = torch.full((5, len(clips[0]), 23), math.nan)
    for row, clip in zip(values, [*clips, clips[0][:1]], strict=False):
        row[: len(clip)] = clip
    return values, lengths


def by_definition(x: torch.Tensor, config: NormConfig) -> torch.Tensor:
    """One clip [frames, bins], each frame from its own weighted frames, in float64."""
    x = x.double()
    out = []
    for t, frame in enumerate(x):
        weights = torch.zeros(len(x), dtype=torch.float64)
        if isinstance(config, ExponentialNorm):
            weights[: t + 1] = torch.exp(-torch.arange(t, -1, -1, dtype=torch.float64) / config.time_constant_frames)
        elif isinstance(config, WindowNorm) and config.centred:
            start = max(0, min(t - config.frames // 2, len(x) - config.frames))
            weights[start : start + config.frames] = 1.0
        elif isinstance(config, WindowNorm):
            weights[max(0, t + 1 - config.frames) : t + 1] = 1.0
        elif isinstance(config, UtteranceNorm):
            weights[:] = 1.0
        else:
            return x
        weights = (weights / weights.sum())[:, None]
        mean = (weights * x).sum(0)
        deviation = (weights * (x - mean).square()).sum(0).sqrt().clamp_min(config.floor)
        out.append((frame - mean) / (deviation if config.variance else 1.0))
    return torch.stack(out)


@pytest.mark.parametrize("config", ALL, ids=str)
def test_every_frame_is_judged_by_the_frames_the_config_names(
    batch: tuple[torch.Tensor, torch.Tensor], config: NormConfig
) -> None:
    values, lengths = batch
    out = normalise(values, lengths, config)
    assert out.dtype == torch.float32
    for row, given, n in zip(out, values, lengths.tolist(), strict=True):
        if n:
            assert (row[:n] - by_definition(given[:n], config)).abs().max() < 2e-6
        assert torch.equal(row[n:], torch.zeros_like(row[n:]))


@pytest.mark.parametrize("config", ALL, ids=str)
def test_a_batch_equals_its_clips_to_the_bit(batch: tuple[torch.Tensor, torch.Tensor], config: NormConfig) -> None:
    values, lengths = batch
    out = normalise(values, lengths, config)
    for i, n in enumerate(lengths.tolist()):
        assert torch.equal(out[i, :n], normalise(values[i : i + 1, :n], None, config)[0])
    turned = normalise(values.flip(0), lengths.flip(0), config)
    assert torch.equal(turned, out.flip(0))


@pytest.mark.parametrize("config", ONLINE, ids=str)
@pytest.mark.parametrize("size", [1, 7, 32, 50, 97, 10_000])
def test_chunks_equal_the_whole_to_the_bit(
    batch: tuple[torch.Tensor, torch.Tensor], config: NormConfig, size: int
) -> None:
    values, lengths = batch
    online, state, parts = OnlineNorm(config), None, []
    for start in range(0, values.shape[1], size):
        part, state = online(
            values[:, start : start + size], (lengths - start).clamp(0, len(values[0, start : start + size])), state
        )
        parts.append(part)
    assert torch.equal(torch.cat(parts, 1), normalise(values, lengths, config))
    assert state is not None
    assert state.seen.tolist() == lengths.tolist()


@pytest.mark.parametrize("config", ONLINE, ids=str)
def test_streams_of_a_batch_may_stall_on_their_own(config: NormConfig) -> None:
    """Each clip gives another number of frames in every chunk, often none: its own frames are all that counts."""
    draw = torch.Generator().manual_seed(3)
    values = torch.randn(3, 400, 5, generator=draw) * 4 - 8
    online, state, at = OnlineNorm(config), None, [0, 0, 0]
    got: list[list[torch.Tensor]] = [[], [], []]
    while min(at) < 400:
        take = [min(int(n), 400 - a) for n, a in zip(torch.randint(0, 60, (3,), generator=draw), at, strict=True)]
        chunk = torch.full((3, max([*take, 1]), 5), math.nan)
        for i, n in enumerate(take):
            chunk[i, :n] = values[i, at[i] : at[i] + n]
        out, state = online(chunk, torch.tensor(take), state)
        for i, n in enumerate(take):
            got[i].append(out[i, :n])
        at = [a + n for a, n in zip(at, take, strict=True)]
    assert torch.equal(torch.stack([torch.cat(parts) for parts in got]), normalise(values, None, config))


@pytest.mark.parametrize("config", ONLINE, ids=str)
def test_what_comes_later_changes_nothing(config: NormConfig) -> None:
    values = torch.randn(1, 300, 4, generator=torch.Generator().manual_seed(5))
    other = values.clone()
    other[:, 170:] = 1e6
    assert torch.equal(normalise(values, None, config)[:, :170], normalise(other, None, config)[:, :170])


@pytest.mark.parametrize("variance", [True, False])
def test_the_centred_window_is_kaldis(variance: bool) -> None:
    """torchaudio's port of it divides by n - 1 and has no floor; where deviations are far from 0 that is one factor."""
    values = torch.randn(2, 120, 6, generator=torch.Generator().manual_seed(7), dtype=torch.float64) * 3
    ours = normalise(values, None, WindowNorm(40, variance=variance, centred=True))
    theirs = torchaudio.functional.sliding_window_cmn(
        values, cmn_window=40, min_cmn_window=1, center=True, norm_vars=variance
    )
    factors = [1.0, math.sqrt(39 / 40)] if variance else [1.0]
    assert min((ours * f - theirs).abs().max() for f in factors) < 1e-9


def test_a_bin_that_does_not_move_becomes_zero() -> None:
    still = torch.full((1, 200, 3), -15.942385)
    for config in ALL:
        if not isinstance(config, NoNorm):
            assert normalise(still, None, config).abs().max() < 1e-6, config


def test_frames_long_gone_leave_no_rounding_behind() -> None:
    """Far along a stream the statistics are still those of the window: nothing that grows is subtracted or raised."""
    values = torch.randn(1, 20_000, 1, generator=torch.Generator().manual_seed(11)) - 20
    values[:, :10_000] += 1e6
    for config in (WindowNorm(200), ExponentialNorm(20.0)):
        late = normalise(values, None, config)[:, 12_000:]
        fresh = normalise(values[:, 11_000:], None, config)[:, 1000:]
        assert (late - fresh).abs().max() < 1e-6, config


@pytest.mark.parametrize("config", [c for c in ALL if not isinstance(c, NoNorm)], ids=str)
def test_gradients_are_those_of_the_definition(config: NormConfig) -> None:
    if config == WindowNorm(1):
        pytest.skip("a window of one frame is 0 whatever the frame is")
    values = torch.randn(2, 9, 2, generator=torch.Generator().manual_seed(13), dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([9, 5])
    # The first frames stand on the floor, where a step of the check jumps over it.
    skip = 0 if isinstance(config, UtteranceNorm) or (isinstance(config, WindowNorm) and config.centred) else 2
    assert torch.autograd.gradcheck(lambda v: normalise(v, lengths, config)[:, skip:], (values,))


def test_gradients_reach_the_chunks_before_unless_detached() -> None:
    values = torch.randn(1, 60, 2, requires_grad=True)
    for config in (ExponentialNorm(20.0), WindowNorm(30)):
        online = OnlineNorm(config)
        _, state = online(values[:, :40])
        out, _ = online(values[:, 40:], None, state)
        (whole,) = torch.autograd.grad(out.square().sum(), values, retain_graph=True)
        assert whole[:, 20:40].abs().min() > 0
        out, _ = online(values[:, 40:], None, state.detach())
        (cut,) = torch.autograd.grad(out.square().sum(), values)
        assert torch.equal(cut[:, :40], torch.zeros(1, 40, 2))


def test_half_precision_is_computed_in_full() -> None:
    values = torch.randn(1, 50, 3).bfloat16()
    assert torch.equal(normalise(values, None, UtteranceNorm()), normalise(values.float(), None, UtteranceNorm()))
    for config in ONLINE:
        assert OnlineNorm(config)(values)[0].dtype == torch.float32


@pytest.mark.parametrize("config", ALL, ids=str)
def test_a_batch_larger_than_the_cache_equals_its_clips(config: NormConfig) -> None:
    values = torch.randn(3, 400, 80, generator=torch.Generator().manual_seed(17))
    lengths = torch.tensor([400, 0, 123])
    out = normalise(values, lengths, config)
    for i, n in enumerate(lengths.tolist()):
        assert torch.equal(out[i, :n], normalise(values[i : i + 1, :n], None, config)[0])
        assert not out[i, n:].any()


def test_nothing_in_is_nothing_out() -> None:
    for config in ALL:
        assert normalise(torch.zeros(2, 0, 4), None, config).shape == (2, 0, 4)
        assert normalise(torch.zeros(0, 9, 4), None, config).shape == (0, 9, 4)
    for config in ONLINE:
        _, state = OnlineNorm(config)(torch.zeros(2, 0, 4))
        values = torch.randn(2, 70, 4)
        assert torch.equal(OnlineNorm(config)(values, None, state)[0], normalise(values, None, config))


def test_configs_come_by_name_and_unknown_names_say_what_there_is() -> None:
    assert norm_for("window", window_s=3.0) == WindowNorm(300)
    assert norm_for("exponential", time_constant_s=1.0, shift_s=0.0125) == ExponentialNorm(80.0)
    assert norm_for("exponential", time_constant_s=math.inf) == ExponentialNorm(math.inf)
    assert norm_for("utterance", variance=False) == UtteranceNorm(variance=False)
    assert {type(norm_for(kind)) for kind in NORMS} == set(NORMS.values())
    for kind, options, said in (
        ("cmvn", {}, "allowed: none, utterance, exponential, window"),
        ("utterance", {"frames": 3}, "it has variance, floor"),
        ("none", {"variance": True}, "no options"),
        ("window", {"frames": 2.5}, "a whole number"),
        ("window", {"variance": 1}, "true or false"),
        ("window", {"floor": True}, "a number"),
        ("window", {"floor": "low"}, "a number"),
        ("window", {"frames": 0}, "greater than 0"),
        ("window", {"window_s": -1.0}, "greater than 0"),
        ("exponential", {"time_constant_frames": math.nan}, "greater than 0"),
        ("window", {"window_s": 1.0, "frames": 100}, "one thing"),
        ("window", {"window_s": math.inf}, "window_s is inf"),
        ("window", {"window_s": math.nan}, "window_s is nan"),
        ("window", {"frames": 10**9}, "at most 1000000"),
        ("exponential", {"time_constant_s": "2"}, "a number"),
        ("utterance", {"floor": 1e-170}, "at least 1e-20"),
        ("utterance", {"floor": math.nan}, "at least 1e-20"),
    ):
        with pytest.raises(ConfigError, match=said):
            norm_for(kind, **options)


def test_configs_made_without_a_name_are_checked_too() -> None:
    for make in (
        lambda: WindowNorm(frames=2.5),  # type: ignore[arg-type]
        lambda: WindowNorm(centred="no"),  # type: ignore[arg-type]
        lambda: UtteranceNorm(variance=1),  # type: ignore[arg-type]
        lambda: UtteranceNorm(floor=1e-170),
        lambda: ExponentialNorm(floor=math.inf),
        lambda: ExponentialNorm(time_constant_frames=0.0),
    ):
        with pytest.raises(ConfigError, match="; it must be "):
            make()


def test_the_least_floor_still_gives_numbers() -> None:
    still = torch.full((1, 200, 3), -15.942385)
    for config in (UtteranceNorm(floor=1e-20), ExponentialNorm(floor=1e-20), WindowNorm(50, floor=1e-20),
                   WindowNorm(50, floor=1e-20, centred=True)):  # fmt: skip
        assert normalise(still, None, config).isfinite().all(), config


@pytest.mark.parametrize("centred", [True, False])
def test_a_window_costs_no_more_than_the_rows_there_are(centred: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    sums = normalise_module._window_sums

    def counted(values: torch.Tensor, start: torch.Tensor, window: int) -> torch.Tensor:
        sizes.append(values.shape[1])
        return sums(values, start, window)

    monkeypatch.setattr(normalise_module, "_window_sums", counted)
    values = torch.randn(3, 100, 5, generator=torch.Generator().manual_seed(19), dtype=torch.float64)
    lengths = torch.tensor([100, 0, 41])
    found = normalise(values, lengths, WindowNorm(60_000, centred=centred))
    assert sizes and max(sizes) <= 202
    for frames in (101, 102, 1024):
        assert torch.equal(normalise(values, lengths, WindowNorm(frames, centred=centred)), found)
    if not centred:
        assert torch.equal(OnlineNorm(WindowNorm(1024))(values, lengths)[0], found)


def test_wrong_calls_are_refused_by_name() -> None:
    for config in (UtteranceNorm(), WindowNorm(9, centred=True)):
        with pytest.raises(ConfigError, match="a stream can have"):
            OnlineNorm(config)
    with pytest.raises(BadInput, match=r"\[clips, frames, bins\]"):
        normalise(torch.zeros(3, 4))
    with pytest.raises(BadInput, match="each must be 0 to 4"):
        normalise(torch.zeros(1, 4, 2), torch.tensor([5]))
    with pytest.raises(BadInput, match="1 whole numbers"):
        normalise(torch.zeros(1, 4, 2), torch.tensor([1.0]))
    for lengths in ([3], torch.tensor([True]), torch.tensor([1j])):
        with pytest.raises(BadInput, match="1 whole numbers"):
            normalise(torch.zeros(1, 4, 2), lengths)  # type: ignore[arg-type]
    _, state = OnlineNorm(WindowNorm(5))(torch.zeros(2, 4, 3))
    with pytest.raises(BadInput, match="2 clips with 3 bins"):
        OnlineNorm(WindowNorm(5))(torch.zeros(1, 4, 3), None, state)
    with pytest.raises(BadInput, match="was begun with WindowNorm.frames=5"):
        OnlineNorm(WindowNorm(6))(torch.zeros(2, 4, 3), None, state)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("config", ALL, ids=str)
def test_the_gpu_agrees(batch: tuple[torch.Tensor, torch.Tensor], config: NormConfig) -> None:
    values, lengths = batch
    there = normalise(values.cuda(), lengths.cuda(), config)
    assert there.is_cuda
    assert (there.cpu() - normalise(values, lengths, config)).abs().max() < 1e-5
