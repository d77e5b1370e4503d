"""A GPT writes a text, a token at a time: what it reads grows, and with it all shapes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from _measure import ALONE, Answer, Side, closing, spread, table, take_turns
from _rows import CONTEXT, HEADS, LAYERS, VOCABULARY, WIDTH

WAYS = ("whole", "kept", "window", "places")
"""All tokens so far are read again; or the last one, beside keys and values of the others; or all,
padded to one length; or the last one, beside keys and values in tensors of that length."""


def writer(lib: Any, way: str, compiled: bool) -> Callable[[], list[float]]:
    """Writes a text of as many tokens as there are positions; gives the seconds of each.

    ``compiled``: with ``mt.compile``.
    """
    nn = lib.nn
    attend = nn.functional.scaled_dot_product_attention

    class Block(nn.Module):
        """Attention and two layers, each beside a shortcut."""

        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.mix, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.layers = nn.Sequential(
                nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
            )

        def forward(self, x: Any, kept: list[Any] | None, place: Any) -> Any:
            """[n, t, width] -> [n, t, width]; keys and values of what was read are ``kept``."""
            n, t, _ = x.shape
            parts = self.mix(self.norm1(x)).chunk(3, -1)
            q, k, v = (y.reshape(n, t, HEADS, WIDTH // HEADS).transpose(1, 2) for y in parts)
            seen = None
            if place is not None:
                assert kept is not None
                seen = (lib.arange(CONTEXT) <= place)[None]
                k, v = (x.index_copy_(2, place, y) for x, y in zip(kept, (k, v), strict=True))
            elif kept is not None:
                if kept:
                    k, v = lib.cat((kept[0], k), 2), lib.cat((kept[1], v), 2)
                kept[:] = [k, v]
            y = attend(q, k, v, attn_mask=seen, is_causal=t > 1)
            x = x + self.join(y.transpose(1, 2).reshape(n, t, WIDTH))
            return x + self.layers(self.norm2(x))

    class Model(nn.Module):
        """Scores of the tokens behind each of a sequence: [n, t] -> [n, t, vocabulary]."""

        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(VOCABULARY, WIDTH)
            self.position = nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens: Any, first: int, kept: Any = None, place: Any = None) -> Any:
            """``first``: the position of the first of them; or ``place``, that of the only one."""
            places = lib.arange(first, first + tokens.shape[1]) if place is None else place
            x = self.token(tokens) + self.position(places)
            for i, block in enumerate(self.blocks):
                x = block(x, None if kept is None else kept[i], place)
            return self.head(self.norm(x))

    lib.manual_seed(0)
    model = Model().eval()
    shape = (1, HEADS, CONTEXT, WIDTH // HEADS)
    memory = [[lib.zeros(shape), lib.zeros(shape)] for _ in model.blocks]

    def following(token: Any, place: Any) -> Any:
        with lib.no_grad():
            return model(token, 0, memory, place)[:, 0].argmax(-1, keepdim=True)

    if compiled:
        following = lib.compile(following)

    def write() -> list[float]:
        found: list[float] = []
        text = [1]
        tokens = lib.tensor([text])
        kept: list[list[Any]] | None = [[] for _ in model.blocks] if way == "kept" else None
        with lib.no_grad():
            while len(text) < CONTEXT:
                begin = time.perf_counter()
                last = len(text) - 1
                if way == "places":
                    chosen = following(lib.tensor([text[-1:]]), lib.tensor([last]))
                elif way == "window":
                    padded = lib.tensor([text + [0] * (CONTEXT - len(text))])
                    chosen = model(padded, 0)[:, last].argmax(-1, keepdim=True)
                else:
                    new = tokens[:, -1:] if way == "kept" else tokens
                    first = last if way == "kept" else 0
                    chosen = model(new, first, kept)[:, -1].argmax(-1, keepdim=True)
                    tokens = lib.cat((tokens, chosen), 1)
                text.append(int(chosen.item()))
                found.append(time.perf_counter() - begin)
        return found

    return write


def writing(rows: list[str], turns: int, results: Answer) -> None:
    """Milliseconds per token of a process's first text, and of later ones."""
    del rows
    for way in WAYS:
        # A text that is found on disk would not be the first.
        sides = {side: Side("writing", side, way, MTVM_CACHE_DIR="0") for side in ("torch", "ours")}
        if way == "places":
            sides["mt.compile"] = Side("writing", "mt.compile", way, MTVM_CACHE_DIR="0")
        elif way != "window":
            none = {"MTVM_CACHE_DIR": "0", "MTVM_GROWING": "0", **ALONE}
            sides["ours, all compiled"] = Side("writing", "ours", way, **none)
        with closing(sides):
            for name, side in sides.items():
                if side.unavailable:
                    raise SystemExit(f"{name}: {side.unavailable}")
            first = take_turns(sides, 1, lambda _: {})
            later = take_turns(sides, turns, lambda _: {})
        for name in sides:
            text = first[name][0]["seconds"]
            results[f"{way}, {name}"] = {
                "first": [1e3 * statistics.mean(text)],
                "end": [1e3 * statistics.median(text[CONTEXT // 2 :])],
                "later": [1e3 * statistics.mean(a["seconds"]) for a in later[name]],
            }
    print(f"\n## {CONTEXT} tokens, ms per token")
    table(HEAD, (cells(*item) for item in results.items()))


HEAD = ["what is read, by what", "first text", "its second half, median", "later texts"]


def cells(name: str, found: Answer) -> list[str]:
    """A line of the table."""
    return [name, *(f"{found[part][0]:.3g}" for part in ("first", "end")), spread(found["later"])]
