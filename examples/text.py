"""Train a small GPT on the characters of a text, then let it write.

    python examples/text.py
    python examples/text.py --file shakespeare.txt --steps 3000 --prompt "ROMEO:"

Without ``--file`` it reads the manual that comes with Python (``pydoc_data.topics``, some 450,000
characters).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.nn import functional as F

HELD_OUT = 0.1  # share of the text that is not trained on
REPORT = 100  # steps between two lines


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each behind a LayerNorm: ``[B, T, C]``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.reshape(*split).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(read.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Scores of the next character behind every one: ``[B, T] -> [B, T, vocabulary]``."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.context = context
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: mt.Tensor) -> mt.Tensor:
        x = self.token(tokens) + self.place(mt.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def batch(text: mt.Tensor, size: int, context: int) -> tuple[mt.Tensor, mt.Tensor]:
    """``size`` random pieces of the text and what follows each character: two of ``[B, T]``."""
    starts = mt.randint(0, len(text) - context, (size,)).tolist()
    pieces = mt.stack([text[i : i + context + 1] for i in starts])
    return pieces[:, :-1], pieces[:, 1:]


def loss_of(model: GPT, tokens: mt.Tensor, targets: mt.Tensor) -> mt.Tensor:
    """Mean cross-entropy of the next character, in nats."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def evaluate(model: GPT, text: mt.Tensor, size: int, batches: int = 10) -> float:
    """The loss on random pieces of a text."""
    model.eval()
    with mt.no_grad():
        losses = [loss_of(model, *batch(text, size, model.context)) for _ in range(batches)]
        return mt.stack(losses).mean().item()


def write(model: GPT, prompt: list[int], length: int, temperature: float) -> list[int]:
    """The prompt and ``length`` characters drawn one after the other.

    The window is as long as the model's context from the first character on: attention never looks
    ahead, so what lies behind the last character does not matter, and every step is the same
    program.  A window that grew would be compiled at every length.
    """
    model.eval()
    text, context = list(prompt), model.context
    with mt.no_grad():
        for _ in range(length):
            last = text[-context:]
            window = mt.tensor([last + [0] * (context - len(last))])
            scores = model(window)[0, len(last) - 1] / temperature
            # The largest of scores + Gumbel noise is a draw from their softmax.
            noise = -(-mt.rand_like(scores).clamp(min=1e-20).log()).log()
            text.append(int((scores + noise).argmax().item()))
    return text


def read(file: str | None) -> str:
    """The text to train on."""
    if file is not None:
        return Path(file).read_text(encoding="utf-8")
    from pydoc_data import topics

    return "\n".join(topics.topics.values())


def run(args: argparse.Namespace) -> None:
    """Train, report and write as the options say."""
    mt.manual_seed(args.seed)
    text = read(args.file)
    if len(text) * HELD_OUT < args.context + 2:
        raise ValueError(
            f"the text has {len(text)} characters, too few for --context {args.context}"
        )
    characters = sorted(set(text) | set(args.prompt))
    code = {c: n for n, c in enumerate(characters)}
    tokens = mt.tensor([code[c] for c in text])
    cut = int(len(text) * (1 - HELD_OUT))
    train, held_out = tokens[:cut], tokens[cut:]

    model = GPT(len(characters), args.context, args.width, args.layers, args.heads)
    optimizer = mt.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = mt.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps, eta_min=args.lr / 10)
    size = sum(p.numel() for p in model.parameters())
    print(f"{len(text):,} characters, {len(characters)} different; {size:,} parameters")

    @mt.compile
    def step(tokens: mt.Tensor, targets: mt.Tensor) -> mt.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    begun = time.perf_counter()
    for number in range(1, args.steps + 1):
        model.train()
        loss = step(*batch(train, args.batch_size, args.context))
        schedule.step()
        if number % REPORT == 0 or number == args.steps:
            seconds = time.perf_counter() - begun
            print(
                f"step {number}: loss {loss.item():.3f}, "
                f"held out {evaluate(model, held_out, args.batch_size):.3f}, {seconds:.0f} s",
                flush=True,
            )
    if args.save:
        mt.save(model.state_dict(), args.save)
    begun = time.perf_counter()
    written = write(model, [code[c] for c in args.prompt], args.length, args.temperature)
    print("".join(characters[n] for n in written))
    print(f"({args.length} characters in {time.perf_counter() - begun:.1f} s)")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, checked as far as that is possible before any work; exits with 2 otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--file", help="the text, UTF-8 (Python's manual)")
    add("--steps", type=int, default=1000, help="batches to train on (1000)")
    add("--batch-size", type=int, default=16, help="pieces of text per step (16)")
    add("--context", type=int, default=64, help="characters that the model sees (64)")
    add("--width", type=int, default=128, help="numbers per character (128)")
    add("--layers", type=int, default=4, help="(4)")
    add("--heads", type=int, default=4, help="of attention (4); --width is a multiple of it")
    add("--lr", type=float, default=1e-3, help="AdamW's learning rate at the beginning (1e-3)")
    add("--seed", type=int, default=0, help="of parameters, batches and what is written")
    add("--prompt", default="The ", help="what the text to write begins with")
    add("--length", type=int, default=400, help="characters to write (400)")
    add("--temperature", type=float, default=0.8, help="less is more likely text (0.8)")
    add("--save", metavar="FILE", help="write the trained parameters (safetensors)")
    args = parser.parse_args(arguments)
    for name in ("steps", "batch_size", "context", "width", "layers", "heads", "length"):
        value = getattr(args, name)
        if value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, but got {value}")
    for name in ("lr", "temperature"):
        if not 0 < getattr(args, name) < float("inf"):
            parser.error(f"--{name} must be a positive number, but got {getattr(args, name)}")
    if args.width % args.heads:
        parser.error(f"--width {args.width} is not a multiple of --heads {args.heads}")
    if not args.prompt:
        parser.error("--prompt must have a character")
    if args.save and not Path(args.save).absolute().parent.is_dir():
        parser.error(f"{args.save}: there is no such folder to write to")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        run(parse(arguments))
    except (OSError, ValueError) as error:
        print(f"text.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
