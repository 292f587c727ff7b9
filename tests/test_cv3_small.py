"""cosyvoice3's small parts that need no network: tempo, hops, silence, instructions."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from cosyvoice_app.engines.cosyvoice3.config import MAX_SILENT_RUN, SILENT_TOKENS
from cosyvoice_app.engines.cosyvoice3.hops import FIRST_LEAST_TOKENS, GRID_TOKENS, HOP_MOST_TOKENS, Hops
from cosyvoice_app.engines.cosyvoice3.instructions import instruction
from cosyvoice_app.engines.cosyvoice3.silence import SilenceFilter
from cosyvoice_app.engines.cosyvoice3.speak import CosyVoice3StyleEncoder
from cosyvoice_app.engines.cosyvoice3.tempo import Tempo, apply
from cosyvoice_app.text.instruct import OFFICIAL, parse_instruct

SPEEDS = (0.5, 0.77, 1.0, 1.25, 1.9, 2.0)


def some_mel(frames: int) -> torch.Tensor:
    return torch.randn(frames, 4, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("sizes", [(100,), (1,) * 100, (30, 0, 1, 69), (7, 93), (1,), (2, 1), (0, 3)])
def test_tempo_in_pieces_is_tempo_of_the_whole(speed: float, sizes: tuple[int, ...]) -> None:
    mel, tempo, at = some_mel(sum(sizes)), Tempo(speed), 0
    parts = []
    for size in sizes:
        parts.append(tempo.push(mel[at : at + size], final=False))
        at += size
    parts.append(tempo.push(mel[:0], final=True))
    whole = apply(mel, speed)
    assert len(whole) == int(len(mel) / speed)
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("speed", [0.5, 1.25, 2.0])
def test_tempo_is_linear_interpolation(speed: float) -> None:
    mel = some_mel(100)
    expected = F.interpolate(mel.T[None], size=int(100 / speed), mode="linear")[0].T
    torch.testing.assert_close(apply(mel, speed), expected, atol=1e-6, rtol=1e-6)


def test_tempo_gives_frames_as_soon_as_they_are_known() -> None:
    tempo = Tempo(2.0)
    assert [len(tempo.push(some_mel(10), final=False)) for _ in range(3)] == [4, 5, 5]
    with pytest.raises(ValueError, match="above 0"):
        Tempo(0.0)


def cuts(prompt: int, tokens: int) -> list[int]:
    hops = Hops(prompt, 3)
    return [count - 3 for count in range(1, tokens + 1) if hops.due(count)]


def test_hops_start_at_the_first_cut_worth_hearing_and_double() -> None:
    assert cuts(75, 500) == [25, 50, 100, 200, 300, 400]
    assert cuts(87, 100) == [13, 38, 88]
    assert cuts(0, 30) == [25]


@pytest.mark.parametrize("prompt", range(51))
def test_every_cut_lies_on_the_grid_of_the_streaming_mask(prompt: int) -> None:
    found = cuts(prompt, 1000)
    assert all((prompt + cut) % GRID_TOKENS == 0 for cut in found)
    assert FIRST_LEAST_TOKENS <= found[0] < GRID_TOKENS + FIRST_LEAST_TOKENS
    assert max(b - a for a, b in pairwise(found)) == HOP_MOST_TOKENS


def test_hops_belong_to_a_request() -> None:
    cuts(75, 500)
    assert cuts(75, 500)[0] == 25


def test_only_the_start_of_a_long_silence_is_kept() -> None:
    silent, spoken = sorted(SILENT_TOKENS), 1000
    flow = SilenceFilter()
    run = [silent[n % len(silent)] for n in range(12)]
    kept = [token for token in (*run, spoken, *run[:3], spoken, spoken) if flow.keeps(token)]
    assert kept == [*run[:MAX_SILENT_RUN], spoken, *run[:3], spoken, spoken]


@pytest.mark.parametrize("sentence", OFFICIAL)
def test_official_sentences_go_to_the_model_as_they_are(sentence: str) -> None:
    made = instruction(parse_instruct(sentence))
    assert (made.sentence, made.speed, made.warnings) == (sentence, 1.0, ())


@pytest.mark.parametrize(("asked", "sentence"), [
    ("用四川话说", "请用四川话表达。"), ("Cantonese", "请用广东话表达。"), ("用粤语讲", "请用广东话表达。"),
    ("开心地说", "请非常开心地说一句话。"), ("say it angrily", "请非常生气地说一句话。"),
    ("sadly", "请非常伤心地说一句话。"),
    ("大声一点", "Please say a sentence as loudly as possible."),
    ("softly", "Please say a sentence in a very soft voice."),
    ("非常开心", "请非常开心地说一句话。"), ("as happy as possible", "请非常开心地说一句话。"),
    ("有点伤心", "请非常伤心地说一句话。"), ("非常生气，很愤怒", "请非常生气地说一句话。"),
    ("特别用四川话说", "请用四川话表达。"), ("像机器人一样说", "你可以尝试用机器人的方式解答吗？"),
    ("用机器人的声音说", "你可以尝试用机器人的方式解答吗？"), ("小猪佩奇的风格", "我想体验一下小猪佩奇风格，可以吗？"),
])
def test_a_wish_is_put_in_the_words_the_model_knows(asked: str, sentence: str) -> None:
    made = instruction(parse_instruct(asked))
    assert (made.sentence, made.speed, made.warnings) == (sentence, 1.0, ())


@pytest.mark.parametrize(("asked", "faster"), [("快一点", True), ("speak slowly", False), ("much faster", True)])
def test_a_change_of_speed_alone_is_a_factor(asked: str, faster: bool) -> None:
    made = instruction(parse_instruct(asked))
    assert not made.sentence and not made.warnings and (made.speed > 1.0) == faster and made.speed != 1.0


@pytest.mark.parametrize(("asked", "sentence"), [
    ("speak gently", "speak gently."), ("用四川话开心地说", "用四川话开心地说。"),
    ("用四川话快一点说", "用四川话快一点说。"),
    ("像播音员那样说!", "像播音员那样说!"), ("happily, like a pirate", "happily, like a pirate."),
    ("happily and very slowly", "happily and very slowly."), ("开心，但是小声一点", "开心，但是小声一点。"),
    ("happy, fast and very loud", "happy, fast and very loud."), ("sad, high pitched", "sad, high pitched."),
    ("Speak slowly and sadly.", "Speak slowly and sadly."), ("开心地大声说", "开心地大声说。"),
    ("生气，平淡一点", "生气，平淡一点。"),
    ("as happy as possible, more expressive", "as happy as possible, more expressive."),
    ("又伤心又生气", "又伤心又生气。"), ("开心但不要太开心", "开心但不要太开心。"),
    ("开心地说，音调低一点，音调高一点", "开心地说，音调低一点，音调高一点。"),
    ("不要像机器人一样说", "不要像机器人一样说。"), ("don't sound like a robot", "don't sound like a robot."),
    ("a little louder", "a little louder."), ("用火星口音说", "用火星口音说。"),
])
def test_other_wording_goes_as_typed_with_a_warning_that_quotes_it(asked: str, sentence: str) -> None:
    made = instruction(parse_instruct(asked))
    assert (made.sentence, made.speed) == (sentence, 1.0)
    assert len(made.warnings) == 1 and f'"{asked}"' in made.warnings[0] and "tuned on" in made.warnings[0]


@pytest.mark.parametrize(("asked", "speed", "given", "warned"), [
    ("非常慢", 0.5, 0.5, "Speed 0.38 was held to 0.50"),
    ("as fast as possible", 2.0, 2.0, "Speed 2.99 was held to 2.00"),
    ("慢一点", 1.0, 0.83, ""), ("用四川话说", 0.5, 0.5, ""), ("", 2.0, 2.0, ""),
])
def test_the_speed_stays_within_what_is_clear(asked: str, speed: float, given: float, warned: str) -> None:
    style = CosyVoice3StyleEncoder().encode(parse_instruct(asked), speed=speed)
    assert style.payload.speed == pytest.approx(given)
    assert len(style.warnings) == bool(warned) and all(warned in warning for warning in style.warnings)


@pytest.mark.parametrize(("asked", "displaced"), [
    ("", False), ("慢一点", False), ("用四川话说", True), ("happily and very slowly", True),
])
def test_only_a_sentence_displaces_the_clip_s_words(asked: str, displaced: bool) -> None:
    assert CosyVoice3StyleEncoder().encode(parse_instruct(asked), speed=1.0).displaces_words == displaced


def test_no_wish_is_no_instruction() -> None:
    assert instruction(parse_instruct("  ")).sentence == ""
