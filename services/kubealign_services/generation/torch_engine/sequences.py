"""The running sequences: row i of everything here is slot i of the cache."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kubealign_services.generation.contract import Finish, GeneratedSample
from kubealign_services.generation.torch_engine.admission import Group
from kubealign_services.generation.torch_engine.sampling import Choice
from kubealign_services.generation.torch_engine.stops import StopStrings
from kubealign_services.generation.torch_engine.uniforms import uniforms

Decode = Callable[[Sequence[int]], str]


class RunningSequence:
    """One sample in the making."""

    def __init__(self, group: Group, sample: int, decode: Decode) -> None:
        self.group = group
        self.sample = sample
        self.tokens: list[int] = []
        self.behaviour_logprobs: list[float] = []
        self.engine_logprobs: list[float] = []
        self._decode = decode
        self._sampling = group.request.sampling
        self._stops = StopStrings(decode, self._sampling.stop) if self._sampling.stop else None
        self._started = time.monotonic()
        self._text: str | None = None

    def append(self, token: int, behaviour_logprob: float, engine_logprob: float) -> Finish | None:
        """Why the sequence ends with this token; None: it goes on."""
        tokens = self.tokens
        tokens.append(token)
        self.behaviour_logprobs.append(behaviour_logprob)
        self.engine_logprobs.append(engine_logprob)
        if token in self.group.ends:
            self._text = self._decode(tokens[:-1])
            return Finish.STOP
        if self._stops is not None:
            self._text = self._stops.push(tokens, may_stop=len(tokens) >= self._sampling.min_tokens)
            if self._text is not None:
                return Finish.STOP
        return Finish.LENGTH if len(tokens) >= self._sampling.max_tokens else None

    def finished(self, finish: Finish, version: int) -> GeneratedSample:
        """version: of all its tokens, for weights change only while nothing runs."""
        return GeneratedSample(
            request_id=self.group.request.request_id,
            sample=self.sample,
            tokens=self.tokens,
            behaviour_logprobs=self.behaviour_logprobs,
            engine_logprobs=self.engine_logprobs,
            versions=[version] * len(self.tokens),
            finish=finish,
            text=self._decode(self.tokens) if self._text is None else self._text,
            seconds=time.monotonic() - self._started,
        )


class RunningRows:
    """The running sequences and, as arrays [max_sequences], the numbers that each step needs of them."""

    def __init__(self, max_sequences: int, device: torch.device) -> None:
        self.sequences: list[RunningSequence] = []
        self._device = device
        self._seed = np.zeros(max_sequences, np.uint64)
        self._made = np.zeros(max_sequences, np.int64)
        self._prompt = np.zeros(max_sequences, np.int64)
        self._last = np.zeros(max_sequences, np.int64)
        self._min_tokens = np.zeros(max_sequences, np.int64)
        self._temperature = np.zeros(max_sequences, np.float32)
        self._top_k = np.zeros(max_sequences, np.int64)
        self._top_p = np.zeros(max_sequences, np.float64)

    def __len__(self) -> int:
        return len(self.sequences)

    def enter(self, group: Group, first: int, count: int, decode: Decode) -> None:
        """Samples `first` to `first + count - 1` of a group take the next rows."""
        rows = slice(len(self), len(self) + count)
        request, sampling = group.request, group.request.sampling
        self._seed[rows] = [seed & 0xFFFFFFFFFFFFFFFF for seed in request.seeds[first : first + count]]
        self._made[rows] = 0
        self._prompt[rows] = len(request.prompt_tokens)
        self._min_tokens[rows] = sampling.min_tokens if group.ends else 0
        self._temperature[rows] = sampling.temperature
        self._top_k[rows] = sampling.top_k
        self._top_p[rows] = sampling.top_p
        self.sequences.extend(RunningSequence(group, first + i, decode) for i in range(count))

    def last_tokens(self) -> tuple[list[int], list[int]]:
        """The newest token of every sequence, and its position."""
        n = len(self)
        return self._last[:n].tolist(), (self._prompt[:n] + self._made[:n] - 1).tolist()

    def choice(self) -> Choice:
        """How the next token of every sequence is sampled."""
        n = len(self)
        temperature, top_k, top_p = self._temperature[:n], self._top_k[:n], self._top_p[:n]
        return Choice(
            temperature=self._tensor(temperature),
            top_k=self._tensor(top_k),
            top_p=self._tensor(top_p),
            uniform=self._tensor(uniforms(self._seed[:n], self._made[:n].astype(np.uint64))),
            truncated=bool(((top_k > 0) | (top_p < 1)).any()),
            greedy=bool((temperature == 0).any()),
            forbidden=self._forbidden(n),
        )

    def append(
        self, tokens: list[int], behaviour_logprobs: list[float], engine_logprobs: list[float]
    ) -> list[tuple[int, Finish]]:
        """Give every sequence its next token. Returns the rows that end with it, ascending, and why."""
        n = len(self)
        self._last[:n] = tokens
        self._made[:n] += 1
        ended = []
        news = zip(self.sequences, tokens, behaviour_logprobs, engine_logprobs, strict=True)
        for row, (sequence, token, behaviour, engine) in enumerate(news):
            finish = sequence.append(token, behaviour, engine)
            if finish is not None:
                ended.append((row, finish))
        return ended

    def longest(self, rows: list[int]) -> int:
        """Most cache positions in use by one of these rows."""
        return int((self._prompt[rows] + self._made[rows]).max())

    def clear(self) -> None:
        """Every sequence is gone."""
        self.sequences.clear()

    def leave(self, rows: list[int]) -> tuple[list[int], list[int]]:
        """Remove these rows (ascending). The last ones that stay take their places: returns (sources,
        targets) of the moves."""
        remaining = len(self) - len(rows)
        gone = set(rows)
        targets = [row for row in rows if row < remaining]
        sources = [row for row in range(remaining, len(self)) if row not in gone]
        for source, target in zip(sources, targets, strict=True):
            self.sequences[target] = self.sequences[source]
        del self.sequences[remaining:]
        if sources:
            for column in (
                *(self._seed, self._made, self._prompt, self._last),
                *(self._min_tokens, self._temperature, self._top_k, self._top_p),
            ):
                column[targets] = column[sources]
        return sources, targets

    def _forbidden(self, n: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Ends are forbidden to sequences that have not made their min_tokens."""
        young = np.flatnonzero(self._made[:n] < self._min_tokens[:n])
        if not len(young):
            return None
        pairs = np.array(
            [(row, token) for row in young.tolist() for token in self.sequences[row].group.ends], np.int64
        )
        return self._tensor(pairs[:, 0]), self._tensor(pairs[:, 1])

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
