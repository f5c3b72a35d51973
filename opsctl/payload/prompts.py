"""Prompts of a wanted length that no cache has seen: unique per request and per run."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

# Short common words: with most tokenizers each is one token after a space.
WORDS = tuple(
    """
    time year people way day man thing woman life child world school state family student group country problem
    hand part place case week company system program question work government number night point home water room
    mother area money story fact month lot right study book eye job word business issue side kind head house
    service friend father power hour game line end member law car city community name president team minute idea
    kid body information back parent face others level office door health person art war history party result
    change morning reason research girl guy moment air teacher force education foot boy age policy music market
    sense nation plan college interest death course support step test light north south paper table green white
    black small large early young old high long great little own other good new first last next few public same
    """.split()  # noqa: SIM905 - a list of two hundred strings is no easier to read
)
_APPROXIMATE = 1.3  # tokens a word, where the server does not tokenise
_PROBE = 32  # repetitions by which a word's cost is measured
_TRIES = 8
_TRUSTED = 8  # prompts in a row that were right at once


@dataclass
class PromptSource:
    """Makes prompts of ``tokens`` tokens. ``count`` is the server's tokenizer, or None.

    How the length came about stands in ``method``, for the report.
    """

    tokens: int
    count: Callable[[str], int | None] | None = None
    run_nonce: int = field(default_factory=lambda: secrets.randbits(64))
    method: str = ""
    _cost: dict[str, float] = field(default_factory=dict)
    _fixed: float = 0.0
    _made: int = 0
    _right: int = 0

    def prepare(self) -> None:
        """Measure what a word costs. Needs some 20 calls of the tokenizer, once a cell."""
        words = random.Random(self.run_nonce).sample(WORDS, 16)
        fixed = self.count("") if self.count is not None else None
        for word in words:
            total = self.count(" ".join([word] * _PROBE)) if self.count is not None and fixed is not None else None
            if total is None:
                break
            self._cost[word] = (total - (fixed or 0)) / _PROBE
        if len(self._cost) == len(words):
            self._fixed = float(fixed or 0)
            # Words of one token each make the length exact; where there are too few, the cheapest come closest.
            cheap = {word: cost for word, cost in self._cost.items() if round(cost) <= 1}
            self._cost = cheap if len(cheap) >= 8 else self._cost
            self.method = "built from words whose cost the server's /tokenize gave, then checked by it"
        else:
            self._cost = dict.fromkeys(WORDS, _APPROXIMATE)
            self.method = f"approximation: {_APPROXIMATE} tokens a word (the server does not serve /tokenize)"

    def next(self) -> str:
        """Return the next prompt. Its first words alone tell it from every other one of every run."""
        if not self._cost:
            self.prepare()
        self._made += 1
        chance = random.Random(f"{self.run_nonce}/{self._made}")
        words = list(self._cost)
        chosen: list[str] = []
        length = self._fixed
        while not chosen or length < self.tokens:
            word = chance.choice(words)
            length += self._cost[word]
            chosen.append(word)
        return " ".join(chosen)

    def next_exact(self) -> str:
        """Return the next prompt, corrected by the server's tokenizer where there is one."""
        text = self.next()
        if self.count is None or not self.method.startswith("built") or self._right >= _TRUSTED:
            return text
        words = text.split(" ")
        spare = min(self._cost, key=lambda word: self._cost[word])
        best = text
        for attempt in range(_TRIES):
            seen = self.count(" ".join(words))
            if seen is None:
                return best
            best = " ".join(words)
            if seen == self.tokens:
                # A tokenizer whose words add up need not be asked for each prompt of thousands.
                self._right = self._right + 1 if attempt == 0 else 0
                break
            step = max(1, round(abs(seen - self.tokens) / max(self._cost[spare], 1.0)))
            if seen < self.tokens and seen + self._cost[spare] <= self.tokens + 0.5:
                words += [spare] * step
            elif seen > self.tokens and len(words) > step:
                del words[-step:]
            else:
                break
        return best
