"""Training loops as people write them, with what surrounds a model: noise, clipping, averages of
weights, several losses, gradients of gradients, simulated games, rays.

All random numbers come from numpy, so that losses can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _measure import Answer, figure, ratio, spread, table
from _program import mlp
from _varying import AGREEMENT, STEPS, compared, started, trained

Step = Callable[[], Any]


class Draws:
    """Arrays of random numbers: the first 16 of each kind and size, again and again."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._kept: dict[tuple[object, ...], list[Any]] = {}
        self._calls: dict[tuple[object, ...], int] = {}

    def _next(self, draw: Callable[[], Any], *key: object) -> Any:
        kept, number = self._kept.setdefault(key, []), self._calls.get(key, 0)
        self._calls[key] = number + 1
        if len(kept) < 16:
            kept.append(draw())
        return kept[number % 16]

    def normal(self, *shape: int) -> Any:
        """float32[*shape]."""
        rng = self._rng
        return self._next(lambda: rng.normal(size=shape).astype(np.float32), "normal", shape)

    def uniform(self, *shape: int) -> Any:
        """float32[*shape] in [0, 1)."""
        return self._next(lambda: self._rng.random(shape, np.float32), "uniform", shape)

    def below(self, end: int, *shape: int) -> Any:
        """int64[*shape] in [0, end)."""
        return self._next(lambda: self._rng.integers(0, end, shape), end, shape)

    def order(self, count: int) -> Any:
        """int64[count], each number once."""
        return self._next(lambda: self._rng.permutation(count), "order", count)


def looped(lib: Any, way: str) -> Step:
    """A step of a loop; the same data for every library."""
    lib.manual_seed(0)
    return MAKERS[way](lib, Draws())


def _autoencoder(lib: Any, draws: Draws) -> Step:
    """A variational one of images of 784 bytes."""
    functional = lib.nn.functional
    encode, decode = mlp(lib, 784, 400, 40), mlp(lib, 20, 400, 784)

    def loss() -> Any:
        x = lib.from_numpy(draws.uniform(128, 784))
        mean, log_variance = encode(x).relu().chunk(2, 1)
        z = mean + lib.from_numpy(draws.normal(128, 20)) * (0.5 * log_variance).exp()
        likelihood = functional.binary_cross_entropy_with_logits(decode(z), x, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        return (likelihood + divergence) / 128

    return trained(lib, started(lib, encode, decode), loss)


def _adversarial(lib: Any, draws: Draws) -> Step:
    """A generator of 32 x 32 images, and who tells them from others."""
    nn = lib.nn
    generator = nn.Sequential(
        *(nn.ConvTranspose2d(64, 128, 4, bias=False), nn.BatchNorm2d(128), nn.ReLU(True)),
        *(nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)),
        *(nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(True)),
        *(nn.ConvTranspose2d(32, 3, 4, 2, 1, bias=False), nn.Tanh()),
    )
    judge = nn.Sequential(
        *(nn.Conv2d(3, 32, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(32, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(64, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.LeakyReLU(0.2)),
        nn.Conv2d(128, 1, 4, bias=False),
    )
    makes, judges = (
        lib.optim.Adam(started(lib, m), lr=2e-5, betas=(0.5, 0.999)) for m in (generator, judge)
    )
    criterion, real, made = nn.BCEWithLogitsLoss(), lib.ones(32), lib.zeros(32)

    def step() -> Any:
        judges.zero_grad()
        of_real = criterion(judge(lib.from_numpy(draws.normal(32, 3, 32, 32))).view(-1), real)
        of_real.backward()
        images = generator(lib.from_numpy(draws.normal(32, 64, 1, 1)))
        of_made = criterion(judge(images.detach()).view(-1), made)
        of_made.backward()
        judges.step()
        makes.zero_grad()
        loss = criterion(judge(images).view(-1), real)
        loss.backward()
        makes.step()
        return loss + of_real + of_made

    return step


def _diffusion(lib: Any, draws: Draws) -> Step:
    """Noise that is to be found in images, with clipped gradients and averages of the weights."""
    nn, functional = lib.nn, lib.nn.functional

    class Block(nn.Module):
        """Two convolutions that are told the time."""

        def __init__(self, n: int, m: int) -> None:
            super().__init__()
            self.norm1, self.conv1 = nn.GroupNorm(8, n), nn.Conv2d(n, m, 3, padding=1)
            self.norm2, self.conv2 = nn.GroupNorm(8, m), nn.Conv2d(m, m, 3, padding=1)
            self.time = nn.Linear(128, m)
            self.skip = nn.Conv2d(n, m, 1) if n != m else nn.Identity()

        def forward(self, x: Any, time: Any) -> Any:
            """images[b, n, h, w], times[b, 128] -> images[b, m, h, w]."""
            y = self.conv1(functional.silu(self.norm1(x)))
            y = y + self.time(time)[:, :, None, None]
            return self.conv2(functional.silu(self.norm2(y))) + self.skip(x)

    class Net(nn.Module):
        """Two resolutions."""

        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(64, 128), nn.SiLU())
            self.first, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, 2, 1)
            self.blocks = nn.ModuleList([Block(32, 32), Block(64, 64), Block(64, 64)])
            self.up, self.join = nn.Upsample(scale_factor=2), Block(96, 32)
            self.last = nn.Conv2d(32, 3, 3, padding=1)

        def forward(self, x: Any, time: Any) -> Any:
            """images[b, 3, 32, 32], times[b] -> noise[b, 3, 32, 32]."""
            rates = lib.exp(-math.log(10000) * lib.arange(32).float() / 32)
            angles = time[:, None].float() * rates[None]
            t = self.time(lib.cat([angles.sin(), angles.cos()], 1))
            before = self.blocks[0](self.first(x), t)
            y = self.down(before)
            for block in self.blocks[1:]:
                y = block(y, t)
            return self.last(functional.silu(self.join(lib.cat([self.up(y), before], 1), t)))

    net = Net()
    parameters = started(lib, net)
    optimizer = lib.optim.AdamW(parameters, lr=1e-4)
    averages = [p.detach().clone() for p in parameters]
    shares = lib.from_numpy(np.cumprod(1 - np.linspace(1e-4, 0.02, 1000)).astype(np.float32))

    def step() -> Any:
        x, noise = (lib.from_numpy(draws.normal(16, 3, 32, 32)) for _ in range(2))
        time = lib.from_numpy(draws.below(1000, 16))
        share = shares[time][:, None, None, None]
        found = net(share.sqrt() * x + (1 - share).sqrt() * noise, time)
        loss = functional.mse_loss(found, noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        with lib.no_grad():
            for average, p in zip(averages, parameters, strict=True):
                average.mul_(0.999).add_(p, alpha=0.001)
        return loss

    return step


def _graph(lib: Any, draws: Draws) -> Step:
    """Two layers of graph convolution over 2708 papers and 10,556 citations."""
    nn, nodes, edges = lib.nn, 2708, 10556
    source, target = lib.from_numpy(draws.below(nodes, 2, edges))
    x, y = lib.from_numpy(draws.normal(nodes, 1433)), lib.from_numpy(draws.below(7, nodes))
    known = lib.from_numpy(draws.uniform(nodes) < 0.1)
    degree = lib.zeros(nodes).index_add(0, target, lib.ones(edges)).clamp(min=1)
    weight = (degree[source] * degree[target]).rsqrt()[:, None]
    first, second = nn.Linear(1433, 64), nn.Linear(64, 7)

    def loss() -> Any:
        z = x
        for number, layer in enumerate((first, second)):
            z = layer(z.relu() if number else z)
            z = z + lib.zeros_like(z).index_add(0, target, z[source] * weight)
        return nn.functional.cross_entropy(z[known], y[known])

    return trained(lib, started(lib, first, second), loss)


def _values(lib: Any, draws: Draws) -> Step:
    """Deep Q-learning: a move, a batch of 128 from memory, a target network that follows."""
    nn = lib.nn
    net, target = (mlp(lib, 8, 128, 128, 4) for _ in range(2))
    parameters = started(lib, net)
    target.load_state_dict(net.state_dict())
    optimizer = lib.optim.AdamW(parameters, lr=1e-4, amsgrad=True)
    before, after = draws.normal(2, 10000, 8)
    moves, rewards = draws.below(4, 10000, 1), draws.normal(10000)
    last = (draws.uniform(10000) < 0.05).astype(np.float32)

    def step() -> Any:
        with lib.no_grad():
            move = net(lib.from_numpy(draws.normal(1, 8))).argmax(1).item()
        rows = draws.below(10000, 128)
        arrays = (before, moves, rewards, after, last)
        x, chosen, reward, then, over = (lib.from_numpy(a[rows]) for a in arrays)
        with lib.no_grad():
            worth = reward + 0.99 * (1 - over) * target(then).max(1).values
        loss = nn.functional.smooth_l1_loss(net(x).gather(1, chosen).squeeze(1), worth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 100)
        optimizer.step()
        ours, theirs = net.state_dict(), target.state_dict()
        for name in ours:
            theirs[name] = ours[name] * 0.005 + theirs[name] * 0.995
        target.load_state_dict(theirs)
        return loss + 0 * move

    return step


def _policies(lib: Any, draws: Draws) -> Step:
    """Proximal policy optimisation: eight batches of 256 of what has been played."""
    nn, functional = lib.nn, lib.nn.functional
    body, policy, value = mlp(lib, 8, 64, 64, 64, act="Tanh"), nn.Linear(64, 4), nn.Linear(64, 1)
    parameters = started(lib, body, policy, value)
    optimizer = lib.optim.Adam(parameters, lr=3e-5, eps=1e-5)
    seen, gains, returns = (lib.from_numpy(draws.normal(2048, *n)) for n in ((8,), (), ()))
    moves = lib.from_numpy(draws.below(4, 2048))
    with lib.no_grad():
        old = functional.log_softmax(policy(body(seen)), -1).gather(1, moves[:, None]).squeeze(1)

    def step() -> Any:
        order = lib.from_numpy(draws.order(2048))
        for start in range(0, 2048, 256):
            rows = order[start : start + 256]
            hidden = body(seen[rows])
            logs = functional.log_softmax(policy(hidden), -1)
            ratio = (logs.gather(1, moves[rows][:, None]).squeeze(1) - old[rows]).exp()
            gain = gains[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            won = lib.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            error = (value(hidden).squeeze(-1) - returns[rows]).pow(2).mean()
            entropy = -(logs.exp() * logs).sum(-1).mean()
            loss = -won + 0.5 * error - 0.01 * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
        return loss

    return step


def _translation(lib: Any, draws: Draws) -> Step:
    """An encoder and a decoder of two layers each, padded batches, clipping and a warm-up."""
    nn = lib.nn
    embed, head = nn.Embedding(1000, 128), nn.Linear(128, 1000)
    body = nn.Transformer(128, 4, 2, 2, 256, 0.0, batch_first=True)
    parameters = started(lib, embed, body, head)
    optimizer = lib.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    warm = lib.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 100))
    causal = nn.Transformer.generate_square_subsequent_mask(32)

    def step() -> Any:
        given, wanted = draws.below(1000, 16, 32), draws.below(1000, 16, 33)
        given[:8, 24:], wanted[:8, 26:] = 0, 0
        x, y = lib.from_numpy(given), lib.from_numpy(wanted)
        now, following = y[:, :-1], y[:, 1:]
        no_x, no_y = (lib.zeros(16, 32).masked_fill(t == 0, -math.inf) for t in (x, now))
        found = body(
            *(embed(x), embed(now)),
            tgt_mask=causal,
            src_key_padding_mask=no_x,
            tgt_key_padding_mask=no_y,
            memory_key_padding_mask=no_x,
        )
        scores = head(found).reshape(-1, 1000)
        loss = nn.functional.cross_entropy(scores, following.reshape(-1), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        warm.step()
        return loss

    return step


def _contrastive(lib: Any, draws: Draws) -> Step:
    """256 samples in two versions each, told from all others."""
    nn, functional = lib.nn, lib.nn.functional
    net = nn.Sequential(
        *(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128)),
    )
    partners = lib.cat([lib.arange(256, 512), lib.arange(256)])
    itself = lib.eye(512, dtype=lib.bool)

    def loss() -> Any:
        x, noise = lib.from_numpy(draws.normal(256, 512)), lib.from_numpy(draws.normal(256, 512))
        kept = (lib.from_numpy(draws.uniform(256, 512)) < 0.9).float()
        z = functional.normalize(net(lib.cat([x + 0.1 * noise, x * kept])), dim=1)
        likeness = (z @ z.t() / 0.5).masked_fill(itself, -math.inf)
        return functional.cross_entropy(likeness, partners)

    return trained(lib, started(lib, net), loss)


def _equation(lib: Any, draws: Draws) -> Step:
    """Burgers' equation at 2000 points: derivatives of derivatives (M. Raissi et al., 2019)."""
    net = mlp(lib, 2, 50, 50, 50, 1, act="Tanh")

    def slope(y: Any, x: Any) -> Any:
        return lib.autograd.grad(y, x, lib.ones_like(y), create_graph=True)[0]

    def loss() -> Any:
        x, time = (lib.from_numpy(draws.uniform(2000, 1)).requires_grad_() for _ in range(2))
        u = net(lib.cat([x, time], 1))
        u_x = slope(u, x)
        rest = slope(u, time) + u * u_x - 0.01 / math.pi * slope(u_x, x)
        start = net(lib.cat([x, lib.zeros_like(x)], 1)) + lib.sin(math.pi * x)
        return rest.pow(2).mean() + start.pow(2).mean()

    return trained(lib, started(lib, net), loss)


def _tasks(lib: Any, draws: Draws) -> Step:
    """Two inner steps on each of eight tasks, and gradients through them (C. Finn et al., 2017)."""
    functional = lib.nn.functional
    weights = started(lib, mlp(lib, 1, 40, 40, 1))

    def predicted(x: Any, w: list[Any]) -> Any:
        y = functional.relu(functional.linear(x, w[0], w[1]))
        y = functional.relu(functional.linear(y, w[2], w[3]))
        return functional.linear(y, w[4], w[5])

    def loss() -> Any:
        total = 0.0
        for phase in range(8):
            x, other = lib.from_numpy(draws.uniform(2, 10, 1)) * 10 - 5
            fast = weights
            for _ in range(2):
                error = functional.mse_loss(predicted(x, fast), lib.sin(x + phase))
                slopes = lib.autograd.grad(error, fast, create_graph=True)
                fast = [w - 0.01 * g for w, g in zip(fast, slopes, strict=True)]
            total = total + functional.mse_loss(predicted(other, fast), lib.sin(other + phase))
        return total / 8

    return trained(lib, weights, loss)


def _characters(lib: Any, draws: Draws) -> Step:
    """An LSTM cell along 32 characters."""
    nn = lib.nn
    embed, cell, head = nn.Embedding(65, 64), nn.LSTMCell(64, 128), nn.Linear(128, 65)

    def loss() -> Any:
        text = lib.from_numpy(draws.below(65, 32, 33))
        h, c, scores = lib.zeros(32, 128), lib.zeros(32, 128), []
        for place in range(32):
            h, c = cell(embed(text[:, place]), (h, c))
            scores.append(head(h))
        found = lib.stack(scores, 1).reshape(-1, 65)
        return nn.functional.cross_entropy(found, text[:, 1:].reshape(-1))

    return trained(lib, started(lib, embed, cell, head), loss)


def _rays(lib: Any, draws: Draws) -> Step:
    """Colours of 256 rays from 32 points each (B. Mildenhall et al., 2020)."""
    functional = lib.nn.functional
    net = mlp(lib, 39, 128, 128, 4)

    def loss() -> Any:
        jitter = lib.from_numpy(draws.uniform(256, 32))
        depth = lib.linspace(2, 6, 32)[None] + jitter * 0.1
        direction = functional.normalize(lib.from_numpy(draws.normal(256, 3)), dim=-1)
        points = direction[:, None] * depth[..., None]
        waves = [f(2.0**k * points) for k in range(6) for f in (lib.sin, lib.cos)]
        found = net(lib.cat([points, *waves], -1))
        density, colour = found[..., 3].relu(), found[..., :3].sigmoid()
        length = lib.cat([depth[:, 1:] - depth[:, :-1], lib.full((256, 1), 0.2)], 1)
        stopped = 1 - lib.exp(-density * length)
        free = lib.cat([lib.ones(256, 1), 1 - stopped + 1e-10], 1).cumprod(1)[:, :-1]
        seen = ((stopped * free)[..., None] * colour).sum(1)
        return functional.mse_loss(seen, lib.from_numpy(draws.normal(256, 3)))

    return trained(lib, started(lib, net), loss)


def _ratings(lib: Any, draws: Draws) -> Step:
    """Of films by their viewers: factors, biases and a small network."""
    nn = lib.nn
    users, films = nn.Embedding(6040, 64), nn.Embedding(3706, 64)
    of_user, of_film = nn.Embedding(6040, 1), nn.Embedding(3706, 1)
    net = mlp(lib, 128, 64, 1)

    def loss() -> Any:
        user, film = (lib.from_numpy(draws.below(n, 1024)) for n in (6040, 3706))
        a, b = users(user), films(film)
        found = (a * b).sum(1) + of_user(user).squeeze(1) + of_film(film).squeeze(1)
        found = found + net(lib.cat([a, b], 1)).squeeze(1)
        return nn.functional.mse_loss(found, lib.from_numpy(draws.normal(1024)))

    return trained(lib, started(lib, users, films, of_user, of_film, net), loss)


def _clusters(lib: Any, draws: Draws) -> Step:
    """k-means of 5000 points."""
    x = lib.from_numpy(draws.normal(5000, 16))
    centres = [lib.from_numpy(draws.normal(20, 16))]

    def step() -> Any:
        (centre,) = centres
        nearest = lib.cdist(x, centre).argmin(1)
        total = lib.zeros(20, 16).index_add(0, nearest, x)
        count = lib.bincount(nearest, minlength=20).clamp(min=1)
        centre = centres[0] = total / count[:, None]
        return (x - centre[nearest]).pow(2).mean()

    return step


def _accuracy(lib: Any, draws: Draws) -> Step:
    """Of ten batches of 1000 images; each is counted when it has been seen."""
    nn = lib.nn
    net = nn.Sequential(nn.Flatten(), *mlp(lib, 784, 256, 10))
    started(lib, net)
    images = draws.normal(10, 1000, 1, 28, 28)
    labels = draws.below(10, 10, 1000)

    def step() -> Any:
        right = 0
        with lib.no_grad():
            for x, y in zip(images, labels, strict=True):
                found = net(lib.from_numpy(x)).argmax(1)
                right += (found == lib.from_numpy(y)).sum().item()
        return lib.tensor(right / labels.size)

    return step


MAKERS: dict[str, Callable[[Any, np.random.Generator], Step]] = {
    "autoencoder": _autoencoder,
    "adversarial": _adversarial,
    "diffusion": _diffusion,
    "graph": _graph,
    "values": _values,
    "policies": _policies,
    "translation": _translation,
    "contrastive": _contrastive,
    "equation": _equation,
    "tasks": _tasks,
    "characters": _characters,
    "rays": _rays,
    "ratings": _ratings,
    "clusters": _clusters,
    "accuracy": _accuracy,
}


def loops(rows: list[str], turns: int, results: Answer) -> None:
    """Milliseconds per step of a process's first steps, and of later ones."""
    ways = rows or list(MAKERS)
    compared("loops", ways, {"torch": {}, "ours": {}}, turns, results)
    print(f"\n## Loops, ms per step, {STEPS} steps per turn")
    table(HEAD, lines(results))


HEAD = [
    "loop",
    "torch: first steps",
    "later ones",
    "ours: first steps",
    "later ones",
    "torch / ours",
]


def lines(results: Answer) -> Iterator[list[str]]:
    """Those of the table; no times of a loop that computes something else here."""
    for way in MAKERS:
        if f"{way}, torch" not in results:
            continue
        torch, ours = (results[f"{way}, {side}"] for side in ("torch", "ours"))
        cells = [figure(torch["first"][0]), spread(torch["later"])]
        if ours["error"] > AGREEMENT:
            yield [way, *cells, "void", "void", f"losses differ by {ours['error']:.1e}"]
            continue
        cells += [figure(ours["first"][0]), spread(ours["later"])]
        yield [way, *cells, f"{ratio(torch['later'], ours['later']):.2f}"]
