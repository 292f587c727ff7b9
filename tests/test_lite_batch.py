"""Laws of rows side by side: each the same bits as alone, and nothing left behind."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_lite_model import SMALL, seeded
from torch.func import functional_call

from cosyvoice_app.bench import batching
from cosyvoice_app.cli.main import main
from cosyvoice_app.engines.lite.engine import LiteEngine
from cosyvoice_app.engines.lite.lanes import Lanes, Work, split
from cosyvoice_app.engines.lite.model import LiteModel, Resonance, moving_names
from cosyvoice_app.engines.lite.speak import LiteStyleEncoder
from cosyvoice_app.engines.lite.vocoder import Decoder, _angle
from cosyvoice_app.engines.lite.voice import LiteVoice, Measures, VoiceStore
from cosyvoice_app.errors import Cancelled
from cosyvoice_app.nn.adain import AdaIN
from cosyvoice_app.nn.conv import Conv1d, StridedConv1d
from cosyvoice_app.nn.overlay import with_tensors
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.types import Intent, NeverCancelled, Row, Utterance, Voice

NEVER = NeverCancelled()


@pytest.fixture
def two_threads() -> Iterator[None]:
    """PyTorch's number of threads as on a machine with two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def lanes(two_threads) -> Iterator[Lanes]:
    made = Lanes(2)
    made.trusted = True
    yield made
    made.close()


def whatever_the_threads(compute, counts=(1, 2, 3)) -> bool:
    before = torch.get_num_threads()
    try:
        results = []
        for count in counts:
            torch.set_num_threads(count)
            with torch.inference_mode():
                results.append(compute())
    finally:
        torch.set_num_threads(before)
    return all(torch.equal(results[0], other) for other in results[1:])


# Lanes.


def test_results_come_in_order_whatever_their_sizes(lanes):
    works = [Work(size, partial(int, size)) for size in (3, 9, 1, 7, 5, 5, 2)]
    assert lanes.run(works, NEVER) == [3, 9, 1, 7, 5, 5, 2]
    assert lanes.run([], NEVER) == []


def test_work_in_a_lane_has_one_thread_and_no_other_thread_is_held_to_it(lanes):
    seen = lanes.beside([Work(1.0, torch.get_num_threads) for _ in range(6)], NEVER)
    assert seen == [1] * 6
    assert torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as fresh:
        assert fresh.submit(torch.get_num_threads).result() == 2


def test_narrow_work_has_one_thread_even_alone_and_before_anything_is_checked(lanes):
    lanes.trusted = False
    works = [Work(1.0, torch.get_num_threads, narrow) for narrow in (True, False, False)]
    assert lanes.run(works, NEVER) == [1, 2, 2]


def test_nothing_goes_side_by_side_unchecked_or_on_one_core(lanes):
    own = threading.current_thread().name
    works = [Work(1.0, lambda: threading.current_thread().name) for _ in range(4)]
    assert own not in lanes.run(works, NEVER)
    lanes.trusted = False
    assert set(lanes.run(works, NEVER)) == {own}
    assert set(Lanes(1).run([Work(1.0, works[0].call, narrow=True)], NEVER)) == {own}


class CancelledAfter:
    def __init__(self, checks: int) -> None:
        self.left = checks

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Cancelled("enough")


def test_a_cancelled_batch_ends_between_works_and_computes_no_further(lanes):
    started, free = [], threading.Event()

    def work(i: int) -> None:
        started.append(i)
        assert free.wait(30)

    class Token:
        def check(self) -> None:
            if len(started) == 2:
                free.set()
                raise Cancelled("enough")

    with pytest.raises(Cancelled):
        lanes.beside([Work(1.0, partial(work, i)) for i in range(8)], Token())
    # The two under way end before the call returns; at most two more were taken before they could be held.
    done = len(started)
    assert done <= 4
    assert lanes.beside([Work(1.0, partial(int, 3))], NEVER) == [3]
    assert len(started) == done
    with pytest.raises(Cancelled):
        Lanes(1).run([Work(1.0, partial(int, 1)) for _ in range(3)], CancelledAfter(2))


def test_an_error_in_a_lane_reaches_the_caller_and_the_lanes_go_on(lanes):
    def fail() -> int:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        lanes.beside([Work(1.0, partial(int, 1)), Work(1.0, fail), Work(1.0, partial(int, 2))], NEVER)
    assert lanes.beside([Work(1.0, partial(int, 4))], NEVER) == [4]


def test_threads_end_with_the_lanes(two_threads):
    lanes = Lanes(2)
    lanes.beside([Work(1.0, partial(int, 1))] * 3, NEVER)
    assert any(t.name.startswith("lite-lane") for t in threading.enumerate())
    lanes.close()
    assert not any(t.name.startswith("lite-lane") for t in threading.enumerate())


@pytest.mark.parametrize(
    ("sizes", "beside"),
    [
        ([2.0], []),
        ([2.0, 2.0], [0, 1]),
        ([4.0, 1.0], []),  # one lane would idle: both are sooner done on all cores
        ([2.0, 2.1, 2.0], [0, 2]),  # the odd one out goes alone
        ([3.0, 3.0, 1.0], [0, 1]),
        ([2.2, 1.9, 2.2, 1.7, 2.9, 2.0, 2.2, 3.0], list(range(8))),
    ],
)
def test_rows_go_side_by_side_where_that_is_faster(sizes, beside):
    works = [Work(size, partial(int, 0)) for size in sizes]
    assert sorted(split(works, range(len(works)), 2)) == beside


# Operations.


@pytest.mark.parametrize(("frames", "channels"), [(5, 3), (87, 1024), (88, 1090), (37, 514), (1740, 256), (10441, 128)])
def test_adain_is_the_same_with_any_threads(frames, channels):
    torch.manual_seed(frames)
    norm, x, style = AdaIN(4, channels), torch.randn(1, frames, channels) + 1.0, torch.randn(1, 4)
    assert whatever_the_threads(lambda: norm(x, style))


@pytest.mark.parametrize("frames", [1, 30, 3000])
def test_adain_without_gradients_is_that_with_them(frames):
    torch.manual_seed(1)
    norm, x, style = AdaIN(4, 40), torch.randn(1, frames, 40) * 3.0 + 2.0, torch.randn(1, 4)
    fused = F.batch_norm(x[0].double(), None, None, training=True, eps=1e-5) if frames > 1 else torch.zeros(1, 40)
    gamma, beta = norm.fc(style).double().chunk(2, -1)
    wanted = fused * (1.0 + gamma) + beta
    with torch.inference_mode():
        assert torch.allclose(norm(x, style)[0].double(), wanted, atol=2e-5 if frames > 1 else 1e-3)
    if frames > 1:
        assert torch.allclose(norm(x, style)[0].double(), wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("channels", "out", "kernel", "dilation", "frames"),
    [(128, 128, 11, 5, 1501), (128, 128, 7, 3, 2400), (128, 128, 3, 1, 4801), (256, 256, 7, 3, 2050),
     (256, 256, 11, 5, 601), (128, 22, 7, 1, 4801), (514, 64, 3, 1, 37)],
)  # fmt: skip
def test_convolutions_are_right_and_the_same_with_any_threads(channels, out, kernel, dilation, frames):
    torch.manual_seed(2)
    conv = Conv1d(channels, out, kernel, dilation=dilation).requires_grad_(False)
    x = torch.randn(1, frames, channels)
    wanted = F.conv1d(x.transpose(1, 2).double(), conv.weight.double(), conv.bias.double(),
                      padding=kernel // 2 * dilation, dilation=dilation).transpose(1, 2)  # fmt: skip
    assert torch.allclose(conv(x).double(), wanted, atol=1e-4)
    assert whatever_the_threads(lambda: conv(x), (1, 2))
    buffer, inner = conv.open(x)
    inner.copy_(x)
    assert torch.equal(conv.close(buffer), conv(x))


@pytest.mark.parametrize("frames", [12, 31, 2001, 10441])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(12, 6, 3), (1, 1, 0), (6, 6, 0)])
def test_strided_convolutions_are_right_and_the_same_with_any_threads(frames, kernel, stride, padding):
    torch.manual_seed(3)
    conv = StridedConv1d(22, 64, kernel, stride=stride, padding=padding).requires_grad_(False)
    x = torch.randn(1, frames, 22)
    wanted = F.conv1d(x.transpose(1, 2), conv.weight, conv.bias, stride=stride, padding=padding).transpose(1, 2)
    assert conv(x).shape == wanted.shape and torch.allclose(conv(x), wanted, atol=1e-5)
    if wanted.shape[1] >= 12:
        assert whatever_the_threads(lambda: conv(x), (1, 2))


def test_phases_are_right_and_the_same_with_any_threads():
    parts = torch.randn(2, 1, 11, 10561, generator=torch.Generator().manual_seed(4))
    spectrum = torch.complex(parts[0], parts[1])
    assert torch.allclose(_angle(spectrum), spectrum.angle(), atol=1e-6)
    assert whatever_the_threads(lambda: _angle(spectrum))


# A fitted voice.


def small_decoder_inputs(frames: int = 9):
    g = torch.Generator().manual_seed(frames)
    size = SMALL.frame_hop_samples * frames
    return (torch.randn(1, frames, SMALL.hidden, generator=g), torch.full((1, 2 * frames), 150.0),
            torch.randn(1, 2 * frames, generator=g), torch.randn(1, SMALL.style, generator=g),
            torch.randn(1, size, generator=g))  # fmt: skip


def test_exchanged_tensors_count_in_the_twin_alone():
    decoder, inputs = seeded(Decoder), small_decoder_inputs()
    before = {name: tensor.clone() for name, tensor in decoder.named_parameters()}
    released = dict(decoder.generator.named_parameters())
    changed = {f"generator.{n}": released[n] + 0.01 for n in moving_names(released)}
    plain = decoder(*inputs)
    twin = with_tensors(decoder, changed)
    assert torch.equal(twin(*inputs), functional_call(decoder, changed, inputs))
    assert not torch.equal(twin(*inputs), plain)
    assert torch.equal(decoder(*inputs), plain)
    assert all(torch.equal(tensor, before[name]) for name, tensor in decoder.named_parameters())
    assert all(a is b for a, b in zip(twin.encode.parameters(), decoder.encode.parameters(), strict=True))


@pytest.mark.parametrize("name", ["generator.conv_post.wieght", "generators.conv_post.weight", "weight"])
def test_a_tensor_without_a_place_is_refused(name):
    with pytest.raises(KeyError):
        with_tensors(seeded(Decoder), {name: torch.zeros(1)})


def test_a_voice_knows_its_size():
    style, moved = torch.zeros(256), {"a": torch.zeros(10, 10), "b": torch.zeros(5).half()}
    fitted = Resonance(torch.zeros(128), moved)
    measures = Measures("x", 0.0, 1.0, 1.0, "off")
    assert LiteVoice(style, measures).size_bytes == 1024
    assert LiteVoice(style, measures, fitted).size_bytes == 1024 + 512 + 400 + 10


# The real weights.


@pytest.fixture(scope="module")
def model() -> LiteModel:
    return LiteModel.load(None, torch.device("cpu"), torch.float32)


@pytest.fixture
def engine(model: LiteModel, tmp_path: Path, two_threads) -> Iterator[LiteEngine]:
    store = VoiceStore(tmp_path, model.decoder.generator)
    made = LiteEngine(model, store, device_reason="test", precision="fp32")
    yield made
    made.close()


def rows_of(model: LiteModel) -> list[Row]:
    """Voices stock and fitted, other styles and lengths, one so short that its products are narrow, one of two passes.
    """
    released = dict(model.decoder.generator.named_parameters())
    measures = Measures("x", 0.0, 1.0, 1.0, "off")
    fitted = Resonance(model.styles.styles[3][:128] * 1.1, {n: released[n] * 1.02 for n in moving_names(released)})
    voices = [LiteVoice(model.styles.styles[0], measures), LiteVoice(model.styles.styles[3], measures, fitted)]
    asked = [("Good morning.", 0, 1.0), ("好。", 1, 2.0), ("今天天气很好。", 1, 1.4), ("Shall we go?", 0, 1.0)]
    rows = []
    for i, (text, which, speed) in enumerate(asked):
        utterance = Utterance(prepare(text, max_chars=None).segments, Intent(), 7 + i, speed)
        style = LiteStyleEncoder().encode(Intent(), speed=speed)
        rows.append(Row(utterance, 0, Voice(str(which), voices[which]), style, 7 + i))
    return rows


def speak(engine: LiteEngine, rows: list[Row]) -> list[np.ndarray]:
    features = engine.acoustic_model.predict(rows, cancel=NEVER)
    return [audio.samples for audio in engine.vocoder.decode(features, rows, cancel=NEVER)]


@pytest.mark.weights
@pytest.mark.slow
def test_a_row_has_the_same_samples_alone_and_at_any_place_of_any_batch(engine, model, monkeypatch):
    monkeypatch.setattr("cosyvoice_app.engines.lite.speak.split_symbols", _in_two_above_12)
    rows = rows_of(model)
    alone = [speak(engine, [row])[0] for row in rows]
    assert all(np.isfinite(wave).all() and len(wave) > 2400 for wave in alone)
    engine._lanes.trusted = True
    for order in ([0, 1, 2, 3], [2, 0], [3, 1, 0, 2, 0]):
        for i, wave in zip(order, speak(engine, [rows[i] for i in order]), strict=True):
            assert np.array_equal(wave, alone[i]), f"row {i} in {order}"


def _in_two_above_12(symbols: str) -> list[str]:
    middle = math.ceil(len(symbols) / 2)
    return [symbols] if len(symbols) <= 12 else [symbols[:middle], symbols[middle:]]


@pytest.mark.weights
def test_where_bits_would_differ_rows_are_not_joined(engine, monkeypatch, caplog):
    monkeypatch.setattr(LiteEngine, "_agree", lambda self, *_: False)
    assert engine.capabilities.max_rows > 1
    engine.warm_up()
    assert engine.capabilities.max_rows == 1 and not engine._lanes.trusted
    assert "one after another" in caplog.text


@pytest.mark.weights
def test_the_check_notices_a_single_bit(engine, model):
    rows = rows_of(model)[:1]
    features = engine.acoustic_model.predict(rows, cancel=NEVER)
    waves = [audio.samples for audio in engine.vocoder.decode(features, rows, cancel=NEVER)]
    assert engine._agree(rows, features, waves)
    waves[0][len(waves[0]) // 2] = np.nextafter(waves[0][len(waves[0]) // 2], np.float32(2.0))
    assert not engine._agree(rows, features, waves)


# The bench.


def test_the_bench_compares_every_sample(capsys, monkeypatch):
    command = ["bench", "batching", "--engine", "tone", "--rows", "2", "--pairs", "1"]
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["short"]["same_bits"] and result["middle"]["ratio"] > 0

    speak = batching._speak
    monkeypatch.setattr(batching, "_speak", lambda engine, rows: [w * len(rows) for w in speak(engine, rows)])
    assert main(command) == 1  # rows whose samples depend on how many there are
    assert "DIFFER" in capsys.readouterr().out
    assert main([*command[:-1], "0"]) == 2
