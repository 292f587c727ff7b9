"""The flow: speech tokens (25 Hz), a prompt's mel and a speaker vector -> mel (50 Hz, 80 bands).

Conditional flow matching (Lipman et al. 2022, arXiv:2210.02747) with a DiT as estimator: from one fixed noise, the
same for every request, ten Euler steps with classifier-free guidance (arXiv:2207.12598) lead to the mel. The
prompt's tokens stand before the speech's and its mel is given, so that the model goes on in its voice.

The reference is upstream's cosyvoice/flow/flow.py (`CausalMaskedDiffWithDiT`) and flow_matching.py. Time-major
throughout; rows are right-padded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.engines.cosyvoice3.config import FRAMES_PER_TOKEN, FlowConfig
from cosyvoice_app.engines.cosyvoice3.dit import DiT, Schedule, rotary_table
from cosyvoice_app.engines.cosyvoice3.dit_int8 import WideInt8Linear
from cosyvoice_app.engines.cosyvoice3.flow_attend import Sight, chunk_sight, padded_sight
from cosyvoice_app.engines.cosyvoice3.flow_graph import Graphs
from cosyvoice_app.engines.cosyvoice3.flow_load import REMEDY, from_official
from cosyvoice_app.engines.cosyvoice3.turns import Between, go_on
from cosyvoice_app.errors import BadInput, ConfigError, EngineFailure
from cosyvoice_app.nn.loading import materialise
from cosyvoice_app.nn.packed import pack

NOISE_SEED = 0
MAX_STEPS = 50
DTYPES = {"fp32": (torch.float32,), "bf16": (torch.bfloat16,), "fp16": (torch.float16,),
          "int8": (torch.float32, torch.bfloat16, torch.float16)}
"""Precisions, and what products may be computed in on CUDA. With int8 the big matrices are kept as 8-bit integers; on
CUDA that saves memory only, since each product first turns its matrix back into floats."""


class Flow(nn.Module):
    """Tokens to mel, made by `load`. It holds no state of a request; what it keeps (noise, schedules, graphs) is of the
    model.
    """

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        # Not initialised: on the meta device that alone would import a compiler for seconds.
        self.embedding = nn.Embedding(config.vocab, config.mels, _weight=torch.empty(config.vocab, config.mels))
        self.speaker = nn.Linear(config.speaker, config.mels)
        self.ahead = nn.Conv1d(config.mels, config.lookahead_width, config.lookahead_tokens + 1)
        self.behind = nn.Conv1d(config.lookahead_width, config.mels, 3)
        self.dit = DiT(config)
        self.rows_together: bool | None = None
        """Whether rows of differing lengths run as one padded batch. None: on CUDA, where a wide batch is what fills
        the device; on a CPU one row does, and padding would be work for nothing. Set only by tests, which so hold what
        CUDA runs to its law (a row of a batch is the row alone) on a CPU."""
        self._noise: Tensor | None = None
        self._rotary: Tensor | None = None
        self._graphs = Graphs()
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def load(cls, state: dict[str, Tensor], config: FlowConfig, *, device: torch.device, dtype: torch.dtype,
             precision: str, source: str) -> Flow:
        """The flow with the weights of `flow.pt`, whose state dict under the official names is `state` (left as it is).

        `dtype` is what the DiT's products are computed in on CUDA; on a CPU it is float32, and `precision` says how the
        weights are kept (see `nn.packed`). `source` is named in errors. Raises AssetError where names or shapes
        differ, ConfigError for a precision it can't take.
        """
        if precision not in DTYPES or (device.type != "cpu" and dtype not in DTYPES[precision]):
            allowed = ", ".join(f"{p} with {'/'.join(str(d)[6:] for d in ds)}" for p, ds in DTYPES.items())
            raise ConfigError(f"The flow can't run at precision {precision} with {dtype}. Allowed: {allowed}.")
        dtype = torch.float32 if device.type == "cpu" else dtype
        flow = cls._plain(state, config, device=device, dtype=dtype, source=source,
                          table=torch.float32 if precision == "fp32" else torch.float16,
                          matrices=torch.float32 if precision == "int8" else None)  # integers of unrounded weights
        for block in flow.dit.blocks:
            for name in ("qkv", "out", "up", "down"):
                linear = getattr(block, name)
                integers = precision == "int8" and device.type == "cpu"
                setattr(block, name, WideInt8Linear(linear) if integers else pack(linear, precision))
        return flow

    @classmethod
    def _plain(cls, state: dict[str, Tensor], config: FlowConfig, *, device: torch.device, dtype: torch.dtype,
               table: torch.dtype, source: str, matrices: torch.dtype | None = None) -> Flow:
        """The flow with plain matrices. For the types see `from_official`."""
        with torch.device("meta"):
            flow = cls(config)
        tensors = from_official(state, config, source, dtype=dtype, table=table, matrices=matrices)
        materialise(flow, tensors, source, device=device, remedy=REMEDY)
        flow.dit.compute_dtype = dtype
        return flow

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def noise(self) -> Tensor:
        """[frames, 80] fp32, where every solution starts: upstream's, drawn on the CPU after seed 0."""
        if self._noise is None or self._noise.device != self.device:
            generator = torch.Generator().manual_seed(NOISE_SEED)
            drawn = torch.randn(1, self.config.mels, self.config.noise_frames, generator=generator)
            self._noise = drawn[0].T.contiguous().to(self.device)
        return self._noise

    @property
    def rotary(self) -> Tensor:
        """`rotary_table` of every frame there can be."""
        if self._rotary is None or self._rotary.device != self.device:
            self._rotary = rotary_table(self.config.noise_frames, self.config.head, self.device)
        return self._rotary

    def schedule(self, steps: int | None) -> Schedule:
        """The solver's schedule; None is the default number of steps. Raises ConfigError outside 1-50."""
        steps = self.config.steps if steps is None else steps
        if not 1 <= steps <= MAX_STEPS:
            raise ConfigError(f"The flow's solver takes 1 to {MAX_STEPS} steps, not {steps}.", param="steps")
        return self.dit.schedule(steps)

    def forward(self, tokens: Tensor, lengths: Tensor, prompt_mel: Tensor, prompt_frames: Tensor, speaker: Tensor, *,
                chunked: bool = False, steps: int | None = None, between: Between = go_on) -> Tensor:
        """Mel [B, 2N, 80] fp32 of the whole rows, prompt included; zeros past a row's end.

        `tokens` [B, N] int64 (prompt, then speech) of which `lengths` [B] are valid; `prompt_mel` [B, Tp, 80] of which
        `prompt_frames` [B] are valid; `speaker` [B, 192] of any length but zero. `chunked`: attention by chunks of 50
        frames, which is what streaming computes. `between` is called before each step of the solver, but not inside a
        CUDA graph. Raises BadInput for more than 300 s, EngineFailure for ids that are
        no speech tokens and for a result that isn't finite.
        """
        counts = [int(n) for n in lengths.tolist()]
        frames = [int(n) for n in prompt_frames.tolist()]
        self._check_rows(tokens, counts, frames)
        schedule, tokens = self.schedule(steps), tokens.to(self.device)
        together = self.device.type != "cpu" if self.rows_together is None else self.rows_together
        mel = tokens.new_zeros(len(counts), FRAMES_PER_TOKEN * tokens.shape[1], self.config.mels, dtype=torch.float32)
        if together or len(set(counts)) == 1:
            longest = max(counts)
            batches = [(slice(None), longest, max(frames))]
        else:
            batches = [(slice(i, i + 1), n, p) for i, (n, p) in enumerate(zip(counts, frames, strict=True))]
        for rows, longest, prompt in batches:
            ids = tokens[rows, :longest]
            padded = None if len(set(counts[rows])) == 1 else lengths.to(self.device)
            done = self._solve_rows(ids, padded, prompt_mel[rows, :prompt], prompt_frames[rows], speaker[rows],
                                    chunked=chunked, schedule=schedule, between=between)
            mel[rows, :FRAMES_PER_TOKEN * longest] = done
        self.check_finite(mel)
        return mel

    def _solve_rows(self, tokens: Tensor, lengths: Tensor | None, prompt_mel: Tensor, prompt_frames: Tensor,
                    speaker: Tensor, *, chunked: bool, schedule: Schedule, between: Between) -> Tensor:
        """One batch as `forward` takes it; `lengths` is None when no row is padded."""
        rows, frames = len(tokens), FRAMES_PER_TOKEN * tokens.shape[1]
        valid = None
        if lengths is not None:
            valid = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        mu = self.features(tokens, valid)
        cond = mu.new_zeros(rows, frames, self.config.mels)
        shown = torch.arange(prompt_mel.shape[1], device=self.device) < prompt_frames.to(self.device)[:, None]
        cond[:, :prompt_mel.shape[1]] = prompt_mel.to(cond).masked_fill(~shown[..., None], 0.0)
        given = self.dit.given(cond, mu, self.project_speaker(speaker), guided=self.guided)
        chunk = self.config.chunk_frames if chunked else None
        if self._graphs.serve(given):
            ends = torch.full((rows,), frames, device=self.device) if lengths is None else FRAMES_PER_TOKEN * lengths
            mel = self._graphs.run(self.solve, given, ends, rows=rows, chunk=chunk, schedule=schedule)
        elif lengths is not None:
            sight = padded_sight(FRAMES_PER_TOKEN * lengths, frames, chunk=chunk, rows=len(given))
            mel = self.solve(given, rows, sight, schedule, between)
        else:
            sight = Sight() if chunk is None else chunk_sight(0, frames, chunk, self.device)
            mel = self.solve(given, rows, sight, schedule, between)
        if valid is not None:
            mel = mel * valid.repeat_interleave(FRAMES_PER_TOKEN, 1)[..., None]
        return mel

    @property
    def guided(self) -> bool:
        return self.config.guidance != 0.0

    def features(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        """tokens [B, N] -> mu [B, 2N, 80]: each token sees two before and three ahead. `valid` [B, N] bool."""
        embedded = self.embedding(tokens if valid is None else tokens * valid)
        if valid is not None:
            embedded = embedded * valid[..., None]
        return self.look_ahead(F.pad(embedded, (0, 0, 0, self.config.lookahead_tokens)))

    def look_ahead(self, embedded: Tensor, *, begun: int = 0) -> Tensor:
        """Embedded tokens [B, n + 3, 80] -> mu [B, 2 * (n - begun), 80] but for the last three and the first `begun`.

        `begun` is 0 at the very start, where zeros stand before, or at least 2.
        """
        hidden = F.leaky_relu(self.ahead(embedded.transpose(1, 2)), 0.01)
        hidden = F.pad(hidden, (2, 0)) if begun == 0 else hidden[:, :, begun - 2:]
        kept = embedded[:, begun: embedded.shape[1] - self.config.lookahead_tokens]
        return (self.behind(hidden).transpose(1, 2) + kept).repeat_interleave(FRAMES_PER_TOKEN, 1)

    def project_speaker(self, speaker: Tensor) -> Tensor:
        """[B, 192] -> [B, 80]; only the direction counts."""
        projected: Tensor = self.speaker(F.normalize(speaker.to(self.speaker.weight), dim=1))
        return projected

    def solve(self, given: Tensor, rows: int, sight: Sight, schedule: Schedule, between: Between = go_on) -> Tensor:
        """From noise to mel: `given` [R, T, C] of `DiT.given` -> [rows, T, 80]."""
        frames = given.shape[1]
        x = self.noise[:frames].expand(rows, -1, -1).clone()
        rotary = self.rotary[:frames]

        def attend(_: int, qkv: Tensor) -> Tensor:
            return sight.look(*qkv.unbind(2))

        for step in range(schedule.steps):
            between()
            velocity, _, _ = self.dit(x, given, schedule, step, rotary, attend)
            self.advance_(x, velocity, schedule.spans[step])
        return x

    def advance_(self, x: Tensor, velocity: Tensor, span: float) -> None:
        """One Euler step of x [B, T, 80] in place, guided away from the velocity of the unconditional rows."""
        if self.guided:
            told, untold = velocity.chunk(2)
            velocity = told.mul(1.0 + self.config.guidance).sub_(untold, alpha=self.config.guidance)
        x.add_(velocity, alpha=span)

    def check_ids(self, tokens: Tensor) -> None:
        """Raises EngineFailure for ids that are no speech tokens."""
        if tokens.numel() == 0:
            return
        low, high = (int(n) for n in torch.stack(torch.aminmax(tokens)).tolist())
        if low < 0 or high >= self.config.vocab:
            raise EngineFailure(f"The flow was given the id {low if low < 0 else high}, which is no speech token. "
                                f"Allowed: 0 to {self.config.vocab - 1}. Take marks out before.", param="tokens")

    def check_frames(self, frames: int) -> None:
        """Raises BadInput for more frames than there is noise."""
        if frames > self.config.noise_frames:
            raise BadInput(f"Prompt and speech are {frames / 50:.0f} s together; the flow makes at most "
                           f"{self.config.noise_frames / 50:.0f} s at once. Split the text.", param="text")

    def check_finite(self, mel: Tensor) -> None:
        """Raises EngineFailure if there is a number in `mel` that is none."""
        if not bool(torch.isfinite(mel).all()):
            raise EngineFailure(f"The flow's mel is not finite ({self.dit.compute_dtype} on {self.device}). Use "
                                "precision bf16 or fp32; if it is fp32, check the prompt's mel and the weights.")

    def _check_rows(self, tokens: Tensor, counts: list[int], frames: list[int]) -> None:
        if min(counts, default=0) < 1 or max(counts) > tokens.shape[1]:
            raise EngineFailure(f"The flow was given rows of {counts} tokens in a table of {tokens.shape[1]}; a row "
                                "needs at least 1 and no more than the table has.", param="lengths")
        for count, prompt in zip(counts, frames, strict=True):
            if not 0 <= prompt <= FRAMES_PER_TOKEN * count:
                raise EngineFailure(f"A prompt of {prompt} mel frames doesn't fit {count} tokens, which are "
                                    f"{FRAMES_PER_TOKEN * count} frames. Trim it to two frames a token.",
                                    param="prompt_frames")
        self.check_frames(FRAMES_PER_TOKEN * max(counts))
        self.check_ids(torch.cat([row[:n] for row, n in zip(tokens, counts, strict=True)]))

