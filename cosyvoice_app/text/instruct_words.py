"""The wordings that `instruct.py` understands, as regular expressions: Mandarin first, then English."""

from __future__ import annotations

from dataclasses import dataclass

from cosyvoice_app.text.chars import words

DIALECTS: tuple[str, ...] = words(
    "广东话 东北话 甘肃话 贵州话 河南话 湖北话 湖南话 江西话 闽南话 宁夏话 山西话 陕西话 山东话 上海话 四川话 "
    "天津话 云南话"
)

OFFICIAL: tuple[str, ...] = (
    *(f"请用{d}表达。" for d in DIALECTS),
    "Please say a sentence as loudly as possible.", "Please say a sentence in a very soft voice.",
    "请用尽可能慢地语速说一句话。", "请用尽可能快地语速说一句话。",
    "请非常开心地说一句话。", "请非常伤心地说一句话。", "请非常生气地说一句话。",
    "我想体验一下小猪佩奇风格，可以吗？", "你可以尝试用机器人的方式解答吗？",
)
"""The instructions that CosyVoice3 was tuned on."""

DIALECTS_EN: tuple[str, ...] = words(
    "Cantonese Dongbei Gansu Guizhou Henan Hubei Hunan Jiangxi Minnan Ningxia Shanxi Shaanxi Shandong Shanghainese "
    "Sichuan Tianjin Yunnan"
)
OFFICIAL_LABELS: tuple[tuple[str, str], ...] = (
    *zip(DIALECTS, DIALECTS_EN, strict=True),
    ("最大声", "loudest"), ("最轻声", "softest"), ("最慢", "slowest"), ("最快", "fastest"),
    ("很开心", "very happy"), ("很伤心", "very sad"), ("很生气", "very angry"),
    ("小猪佩奇", "Peppa Pig"), ("机器人", "robot"),
)
"""(Chinese, English) short names of the official sentences, in their order."""

INSTRUCT_CHIPS: tuple[tuple[str, str], ...] = (
    ("温柔一点", "gently"), ("开心地说", "cheerfully"), ("伤心地说", "sadly"), ("生气地说", "angrily"),
    ("平静地说", "calmly"), ("兴奋地说", "excitedly"), ("快一点", "faster"), ("慢一点", "slower"),
    ("大声一点", "louder"), ("小声一点", "softer"), ("音调高一点", "higher pitch"), ("音调低一点", "lower pitch"),
    ("更有起伏", "more expressive"), ("平淡一点", "monotone"),
)
"""(Chinese, English) wordings to offer on the page; a prosody engine does every one of them."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a cue does at ordinary strength. Speed and range are factors, pitch semitones, loudness dB."""

    speed: float = 1.0
    pitch: float = 0.0
    range: float = 1.0
    loudness: float = 0.0
    emotion: str | None = None


@dataclass(frozen=True, slots=True)
class Cue:
    zh: str
    en: str
    change: Change


_MORE = "(?:再|更|要|很|稍微|稍|略|非常|提|升|降|压|放|调|变|开)*"
_TONE = "(?:音调|声调|音高|调子|语调|嗓音|声音)"
_PITCH_NAMES = "(?:音调|声调|音高|语调)"
_SAID = "(?:语速|速度)?(?:再|更|要|很|稍微|稍|略|尽量|说得|说|讲)*"
_VOICE = "[ -]?(?:the |your )?(?:pitch(?:ed)?|voice|tone)"

CUES: tuple[Cue, ...] = (
    # Emotions and manners move several factors; they come first so that their words aren't read as plain ones.
    Cue("开心|高兴|快乐|愉快|欢快|欢乐|喜悦|活泼",
        r"happ(?:y|ily)|cheer(?:ful|fully|y)|joy(?:ful|fully)?|merr(?:y|ily)|upbeat|bright(?:ly)?",
        Change(1.06, 1.0, 1.25, 1.0, "happy")),
    Cue("兴奋|激动|热情|激昂",
        r"excit(?:ed|edly|ement)|enthusias(?:tic|tically|m)|energetic(?:ally)?|passionate(?:ly)?|thrilled",
        Change(1.12, 1.5, 1.35, 3.0, "excited")),
    Cue("伤心|悲伤|难过|悲痛|忧伤|沮丧|哀伤|失落",
        r"sad(?:ly|ness)?|sorrow(?:ful|fully)?|mournful(?:ly)?|depressed|unhapp(?:y|ily)|melanchol(?:y|ic)|gloom(?:y|ily)",
        Change(0.86, -1.0, 0.75, -2.0, "sad")),
    Cue("生气|愤怒|恼火|发火|气愤|暴躁",
        r"ang(?:ry|rily|er)|furious(?:ly)?|mad(?:ly)?|outraged|irritated|annoyed",
        Change(1.08, 0.5, 1.3, 4.0, "angry")),
    Cue("害怕|恐惧|紧张|惊慌",
        r"afraid|fear(?:ful|fully)?|scared|nervous(?:ly)?|anxious(?:ly)?|terrified",
        Change(1.1, 1.2, 1.15, -1.5, "fearful")),
    Cue("惊讶|惊奇|吃惊", r"surpris(?:ed|edly|e)|amazed|astonished", Change(1.04, 1.5, 1.4, 1.5, "surprised")),
    Cue("疲惫|疲倦|困倦|无精打采|有气无力", r"tired(?:ly)?|weary|wearily|sleep(?:y|ily)|exhausted",
        Change(0.85, -0.8, 0.75, -3.0, "tired")),
    Cue("温柔|轻柔|柔和|温和|温暖|亲切|体贴", r"gent(?:le|ly)|tender(?:ly)?|warm(?:ly)?|kind(?:ly)?|soothing(?:ly)?",
        Change(0.92, -0.3, 0.9, -3.0, "gentle")),
    Cue("平静|冷静|沉稳|镇定|从容|淡定|放松",
        r"calm(?:ly)?|relaxed|peaceful(?:ly)?|compos(?:ed|edly)|serene(?:ly)?",
        Change(0.94, -0.3, 0.82, -1.0, "calm")),
    Cue("严肃|庄重|正式|认真", r"serious(?:ly)?|solemn(?:ly)?|formal(?:ly)?|stern(?:ly)?",
        Change(0.95, -0.7, 0.82, 0.5, "serious")),
    Cue("耳语|悄悄|低声细语|轻声细语", r"whisper(?:ing|ed|s)?", Change(0.92, -0.5, 0.7, -8.0, "whisper")),
    Cue("平淡|单调|没有感情|毫无感情|平铺直叙|没有起伏",
        r"monoton(?:e|ous|ously|ic)|flat(?:ly)?|deadpan|emotionless(?:ly)?", Change(range=0.55)),
    Cue("抑扬顿挫|有起伏|起伏(?:大|明显)?|有感情|生动|富有感情",
        r"expressive(?:ly)?|livel(?:y|ily)|animated(?:ly)?|dramatic(?:ally)?|with feeling", Change(range=1.35)),
    # Plain prosody: loudness before pitch, or 高音 would be seen in 提高音量; 声音高 is pitch, 声音大 is loudness.
    Cue(f"(?:声音|音量){_MORE}大|大声|响亮|洪亮|喊|提高(?:音量|声音|嗓门)",
        r"loud(?:ly|er|est)?|shout(?:ing)?|yell(?:ing)?|turn up the volume|(?:more|higher) volume",
        Change(loudness=4.0)),
    Cue(f"(?:声音|音量){_MORE}[小轻]|小声|轻声|低声|(?:降低|压低)(?:音量|声音|嗓门)",
        r"quiet(?:ly|er)?|soft(?:ly|er)?|hushed|(?:less|lower) volume|turn down the volume", Change(loudness=-4.0)),
    Cue(f"{_TONE}{_MORE}高|(?:提高|升高){_PITCH_NAMES}|高音|尖(?:细)?(?:的|一点|些)?",
        rf"(?:high(?:er)?|raise[ds]?){_VOICE}|pitch (?:\w+ )?(?:higher|up)|shrill", Change(pitch=2.0)),
    Cue(f"低沉|浑厚|{_TONE}{_MORE}低沉?|(?:降低|压低){_PITCH_NAMES}|低音",
        rf"(?:low(?:er)?|deep(?:er)?){_VOICE}|pitch (?:\w+ )?(?:lower|down)|deep(?:er|ly)?", Change(pitch=-2.0)),
    Cue(f"(?:语速|速度)?(?:加快|放快|变快)(?:语速|速度)?|{_SAID}快|急促|迅速",
        r"(?:speed|hurry) (?:it |things )?up|rapid(?:ly)?|quick(?:ly|er)?|fast(?:er|est)?|hast(?:y|ily)|brisk(?:ly)?",
        Change(speed=1.2)),
    Cue(f"(?:语速|速度)?(?:放慢|减慢|变慢|放缓|减缓|降低语速)(?:语速|速度)?|{_SAID}慢|缓慢|缓缓",
        r"slow (?:it |things )?down|slow(?:ly|er|est)?|leisurely|unhurried(?:ly)?", Change(speed=0.83)),
)

MOST = r"尽可能|尽量|最|极其|极度|as \w+ as possible|as possible|extremely|maximally"
MUCH = "非常|特别|十分|很|超级|超|更加|得多|很多|much|very|really|a lot|far|super|so"
LITTLE = "稍微|稍稍|稍|略微|略|有点|a little|a bit|slightly|somewhat|a touch|kind of"
STRENGTHS: tuple[tuple[str, float], ...] = ((MOST, 2.2), (MUCH, 1.5), (LITTLE, 0.6))
"""Intensifiers, and the power they raise a change to. The most of 快 and 慢 are 1.49 and 0.66."""

NOT = ("不要(?:太|那么|这么)?|别(?:太|那么|这么)?|不(?:太|那么)|"
       "(?:do not|don't|not|never|less)(?: be| speak| sound| so| too)?")
NEGATED = -0.5
"""不要太快 asks for somewhat slower, not for the opposite extreme."""

DIALECT_NAMES: dict[str, str] = {
    **{d: d for d in DIALECTS}, **{d[:-1] + "方言": d for d in DIALECTS}, **{d[:-1] + "口音": d for d in DIALECTS},
    "粤语": "广东话", "白话": "广东话", "闽南语": "闽南话", "台语": "闽南话", "沪语": "上海话", "川话": "四川话",
    "cantonese": "广东话", "hokkien": "闽南话", "shanghainese": "上海话", "sichuanese": "四川话", "minnan": "闽南话",
}
OTHER_ACCENT = r"[\u4e00-\u9fff]{1,3}(?:口音|方言|腔)|\b[a-z]+ (?:accent|dialect)\b"
ROLES: dict[str, str] = {
    "小猪佩奇": "小猪佩奇", "peppa pig": "小猪佩奇", "机器人": "机器人", "robotically": "机器人", "robotic": "机器人",
    "robot": "机器人",
}

FILLER = (
    "请你?|像|麻烦|帮我|我想|想要|希望|体验一下|可以吗|你可以|尝试|方式|解答|一句话|这句话|这段话|说话|说出来|表达|朗读|"
    "讲述|叙述|讲话|读|讲|念|说|用|以|带着?|语气|语调|语速|音量|音调|速度|声音|口吻|情绪|情感|感情|心情|风格|感觉|"
    "的|地|得|一点儿?|一些|些|点|要|再|更|吧|吗|来|把|和|与|而且|并且?|又|听起来|状态|样子|那样|一样|那种|一种|方言|"
    "口音|可以|能|你|我|让|它|他|她|"
    r"\b(?:please|say|speak|talk|read|a|an|the|this|that|sentence|text|it|in|with|and|voice|tone|of|manner|way|style|"
    "more|be|sound|like|as|possible|can|could|would|you|your|i|want|to|make|use|using|mood|feeling|pace|volume|pitch|"
    r"rate|speech|speed|emotion|but|tad|very)\b"
)
"""What an instruct text may hold without meaning anything by itself."""
