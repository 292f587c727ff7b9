"""Laws of streaming through the flow: whatever the pushes, the mel is that of one chunked run. Toy size, random
weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cv3_flow_weights import random_flow_state
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3 import flow_stream
from cosyvoice_app.engines.cosyvoice3.config import TINY
from cosyvoice_app.engines.cosyvoice3.flow import Flow
from cosyvoice_app.engines.cosyvoice3.flow_stream import FlowPrefix, FlowStream, bytes_per_frame, flow_prefix
from cosyvoice_app.errors import BadInput, EngineFailure

CONFIG = TINY.flow
CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent / "data" / "cv3_flow_golden.npz"
TOLERANCE = 1e-4
STEPS = 3


@pytest.fixture(scope="module", autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make(seed: int = 0) -> Flow:
    return Flow.load(random_flow_state(CONFIG, seed), CONFIG, device=CPU, dtype=torch.float32, precision="fp32",
                     source="random weights")


@pytest.fixture(scope="module")
def flow() -> Flow:
    return make()


Voice = tuple[Tensor, Tensor, Tensor]


def voice(prompt: int, seed: int = 1) -> Voice:
    g = torch.Generator().manual_seed(seed)
    return (torch.randint(0, CONFIG.vocab, (prompt,), generator=g), torch.randn(2 * prompt, 80, generator=g),
            torch.randn(192, generator=g))


def speech(count: int) -> Tensor:
    return torch.randint(0, CONFIG.vocab, (count,), generator=torch.Generator().manual_seed(2))


def one_run(flow: Flow, given: Voice, tokens: Tensor, steps: int = STEPS) -> Tensor:
    prompt, mel, speaker = given
    ids = torch.cat((prompt, tokens))
    out = flow(ids[None], torch.tensor([len(ids)]), mel[None], torch.tensor([len(mel)]), speaker[None], chunked=True,
               steps=steps)
    return out[0, len(mel):]


def pushed(stream: FlowStream, tokens: Tensor, hops: list[int], *, empty_end: bool = False) -> list[Tensor]:
    """Push `tokens` in pieces of `hops`, the last of them again and again; the final push holds the rest or nothing."""
    parts, at, n = [], 0, 0
    while at < len(tokens):
        hop = hops[min(n, len(hops) - 1)]
        last = at + hop >= len(tokens)
        parts.append(stream.push(tokens[at:at + hop], final=last and not empty_end))
        at, n = at + hop, n + 1
    if empty_end or not len(tokens):
        parts.append(stream.push(tokens[:0], final=True))
    return parts


def close(a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> None:
    assert a.shape == b.shape
    assert float((a - b).abs().max()) <= tolerance * float(b.abs().max())


@pytest.mark.parametrize("prompt", [0, 1, 2, 3, 25, 28, 37, 75])
@pytest.mark.parametrize("hops", [[25], [28, 50, 100], [1000]], ids=str)
def test_the_mel_is_that_of_one_chunked_run(flow: Flow, prompt: int, hops: list[int]) -> None:
    given, tokens = voice(prompt), speech(120)
    parts = pushed(FlowStream(flow, *given, steps=STEPS), tokens, hops)
    close(torch.cat(parts), one_run(flow, given, tokens))


def test_token_by_token(flow: Flow) -> None:
    given, tokens = voice(13), speech(70)
    parts = pushed(FlowStream(flow, *given, steps=STEPS), tokens, [1])
    close(torch.cat(parts), one_run(flow, given, tokens))
    # 12 tokens fill the prompt's chunk and 3 more are its look-ahead: 24 frames of speech; then whole chunks.
    assert {n: len(part) for n, part in enumerate(parts, 1) if len(part)} == {15: 24, 40: 50, 65: 50, 70: 16}


@pytest.mark.parametrize("count", [0, 1, 12, 15, 25, 28, 53])
def test_a_final_push_may_be_empty(flow: Flow, count: int) -> None:
    given, tokens = voice(10), speech(count)
    parts = pushed(FlowStream(flow, *given, steps=STEPS), tokens, [7], empty_end=True)
    mel = torch.cat(parts)
    assert mel.shape == (2 * count, 80)
    if count:
        close(mel, one_run(flow, given, tokens))


def test_nothing_at_all_is_no_frames(flow: Flow) -> None:
    stream = FlowStream(flow, *voice(0), steps=STEPS)
    assert stream.push(speech(0), final=False).shape == (0, 80)
    assert stream.push(speech(0), final=True).shape == (0, 80)


def test_all_ten_steps_as_the_official_code_takes_them() -> None:
    with np.load(GOLDEN) as saved:
        prompt, tokens, mel, speaker, whole, unfinished = (
            torch.from_numpy(saved[n]) for n in ("prompt", "speech", "mel", "speaker", "chunked", "unfinished"))
    flow = make(seed=7)
    stream = FlowStream(flow, prompt, mel, speaker)
    first = stream.push(tokens, final=False)
    close(first, unfinished[:len(first)], 1e-5)
    assert len(first) == 60  # of 60 tokens in all, 57 can be known: two chunks, less the prompt's 40 frames
    close(torch.cat((first, stream.push(tokens[:0], final=True))), whole, 1e-5)


@pytest.mark.parametrize("frames", [0, 49, 50, 120, 200])
@pytest.mark.parametrize("shared", [False, True])
def test_a_full_cache_changes_the_work_not_the_mel(flow: Flow, frames: int, shared: bool) -> None:
    given, tokens = voice(60), speech(150)
    room = frames * bytes_per_frame(flow, flow.schedule(STEPS))
    prefix = flow_prefix(flow, *given, STEPS) if shared else None
    stream = FlowStream(flow, *given, steps=STEPS, cache_bytes=room, prefix=prefix)
    parts = []
    for at in range(0, 150, 30):
        parts.append(stream.push(tokens[at:at + 30], final=False))
        assert sum(t.nbytes for t in stream._kept.seen.values()) <= room
    parts.append(stream.push(tokens[:0], final=True))
    close(torch.cat(parts), one_run(flow, given, tokens))


def counted(monkeypatch: pytest.MonkeyPatch, flow: Flow) -> list[int]:
    """The frames of every solver step from now on."""
    frames: list[int] = []
    forward = flow.dit.forward

    def counting(x: Tensor, *args: object, **kwargs: object) -> object:
        frames.append(x.shape[1])
        return forward(x, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(flow.dit, "forward", counting)
    return frames


def test_a_push_costs_its_own_chunks(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = counted(monkeypatch, flow)
    pushed(FlowStream(flow, *voice(75), steps=1), speech(210), [28, 25, 100])
    assert frames == [200, 50, 200, 50 + 20 + 50]


def test_a_push_that_finishes_no_chunk_costs_nothing(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = counted(monkeypatch, flow)
    stream = FlowStream(flow, *voice(0), steps=1)
    for _ in range(27):
        assert len(stream.push(speech(1), final=False)) == 0
    assert frames == []
    assert len(stream.push(speech(1), final=False)) == 50


@pytest.mark.parametrize("prompt", [0, 10, 27, 28, 60, 78])
def test_a_shared_prefix_gives_the_same_mel(flow: Flow, prompt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given, tokens = voice(prompt), speech(80)
    prefix = flow_prefix(flow, *given, STEPS)
    assert prefix.frames == max(0, prompt - 3) // 25 * 50
    before = [t.clone() for t in prefix._kept.seen.values()]
    wanted = one_run(flow, given, tokens)
    frames = counted(monkeypatch, flow)
    for hops in ([25], [100]):  # two streams, one after the other, of one prefix
        close(torch.cat(pushed(FlowStream(flow, *given, steps=STEPS, prefix=prefix), tokens, hops)), wanted)
    assert sum(frames) == 2 * STEPS * (2 * (prompt + 80) - prefix.frames)
    assert all(torch.equal(a, b) for a, b in zip(before, prefix._kept.seen.values(), strict=True))


def test_two_streams_do_not_meet(flow: Flow) -> None:
    """Streams of one prefix whose pushes take turns."""
    given = voice(40)
    prefix = flow_prefix(flow, *given, STEPS)
    texts = [speech(90), speech(90).flip(0)]
    streams = [FlowStream(flow, *given, steps=STEPS, prefix=prefix) for _ in texts]
    parts: list[list[Tensor]] = [[], []]
    for at in range(0, 90, 30):
        for n, stream in enumerate(streams):
            parts[n].append(stream.push(texts[n][at:at + 30], final=at == 60))
    for n, text in enumerate(texts):
        close(torch.cat(parts[n]), one_run(flow, given, text))


@pytest.mark.parametrize("change", ["tokens", "mel", "speaker", "steps"])
def test_a_prefix_of_something_else_is_refused(flow: Flow, change: str) -> None:
    prompt, mel, speaker = voice(30)
    prefix: FlowPrefix = flow_prefix(flow, prompt, mel, speaker, STEPS)
    given = {"tokens": (prompt.flip(0), mel, speaker), "mel": (prompt, mel + 1.0, speaker),
             "speaker": (prompt, mel, speaker.flip(0)), "steps": (prompt, mel, speaker)}[change]
    with pytest.raises(EngineFailure, match="another prompt, speaker or number of steps"):
        FlowStream(flow, *given, steps=STEPS + (change == "steps"), prefix=prefix)


def test_the_same_pushes_give_the_same_bits(flow: Flow) -> None:
    a, b = (torch.cat(pushed(FlowStream(flow, *voice(30), steps=STEPS), speech(60), [20])) for _ in range(2))
    assert torch.equal(a, b)


def test_half_precision_keeps_half_as_much() -> None:
    half = Flow._plain(random_flow_state(CONFIG, 0), CONFIG, device=CPU, dtype=torch.bfloat16, table=torch.float16,
                       source="random weights")
    assert 2 * bytes_per_frame(half, half.schedule(10)) == bytes_per_frame(make(), make().schedule(10))
    given, tokens = voice(30), speech(60)
    stream = FlowStream(half, *given, steps=STEPS)
    first = stream.push(tokens, final=False)
    assert {t.dtype for t in stream._kept.seen.values()} == {torch.bfloat16}
    close(torch.cat((first, stream.push(tokens[:0], final=True))), one_run(half, given, tokens), 0.02)


def test_room_grows_ahead_of_need_and_is_given_back(flow: Flow) -> None:
    stream = FlowStream(flow, *voice(0), steps=1)
    stream.push(speech(28), final=False)
    kept = stream._kept.seen[0, 0]
    stream.push(speech(100), final=False)
    assert stream._kept.seen[0, 0].shape[1] >= 250
    assert torch.equal(stream._kept.seen[0, 0][:, :50], kept[:, :50])
    stream.push(speech(1), final=True)
    assert not stream._kept.seen


def test_faults_are_said(flow: Flow) -> None:
    prompt, mel, speaker = voice(10)
    with pytest.raises(EngineFailure, match="A prompt of 10 tokens goes with 2 mel frames a token, not with 19"):
        FlowStream(flow, prompt, mel[:19], speaker)
    with pytest.raises(EngineFailure, match="no speech token"):
        FlowStream(flow, prompt + CONFIG.vocab, mel, speaker)
    stream = FlowStream(flow, prompt, mel, speaker, steps=1)
    with pytest.raises(EngineFailure, match="the id 6561"):
        stream.push(torch.tensor([6561]), final=False)
    with pytest.raises(BadInput, match="at most 300 s"):
        stream.push(torch.zeros(7491, dtype=torch.int64), final=False)
    assert stream.push(speech(2), final=True).shape == (4, 80)
    with pytest.raises(EngineFailure, match="after its final push"):
        stream.push(speech(1), final=True)


def test_a_mel_that_is_not_finite_is_an_error(flow: Flow) -> None:
    prompt, mel, speaker = voice(10)
    mel[3, 4] = float("inf")
    with pytest.raises(EngineFailure, match="not finite"):
        FlowStream(flow, prompt, mel, speaker, steps=1).push(speech(5), final=True)


def test_the_default_bounds_hold_half_a_minute_or_so() -> None:
    """Full size: 3.6 MB a frame at fp32 (section 7 of the checkpoint notes says none is kept upstream)."""
    per_frame = 10 * 22 * 2 * 2 * 1024 * 4
    assert flow_stream.CACHE_BYTES["cpu"] // per_frame // 50 >= 15
    assert flow_stream.CACHE_BYTES["cuda"] // (per_frame // 2) // 50 >= 40
