"""Two-dimensional convolution and its two transposes; each one's derivatives are the others."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..core.arguments import floating
from ..core.record import record
from ..core.shape import Shape
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, Spec, intern
from ..ir.te import TE, Expr, Tensor

Pair = tuple[int, int]


@record(eq=False)
class ConvBase(Op):
    """Attributes shared by the three ops (NCHW activations, OIHW weights)."""

    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    def _out(self, size: Pair, kernel: Pair) -> Pair:
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, kernel, strict=True)]
        padded = [n + 2 * p for n, p in zip(size, self.padding, strict=True)]
        if any(span > n for span, n in zip(spans, padded, strict=True)):
            raise RuntimeError(
                f"Calculated padded input size per channel: ({padded[0]} x {padded[1]}). Kernel "
                f"size: ({spans[0]} x {spans[1]}). Kernel size can't be greater than actual input "
                "size"
            )
        return (
            (padded[0] - spans[0]) // self.stride[0] + 1,
            (padded[1] - spans[1]) // self.stride[1] + 1,
        )

    @property
    def _common(self) -> tuple[Pair, Pair, Pair, int]:
        return self.stride, self.padding, self.dilation, self.groups

    def _windows(self, np: ModuleType, x: Any, kernel: Shape, out: Shape) -> Any:
        """View of zero-padded x as [n, c, oh, ow, kh, kw]."""
        (sh, sw), (ph, pw), (dh, dw) = self.stride, self.padding, self.dilation
        x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
        n, c, h, w = x.strides
        return np.lib.stride_tricks.as_strided(
            x,
            (*x.shape[:2], *out, *kernel),
            (n, c, h * sh, w * sw, h * dh, w * dw),
            writeable=False,
        )

    def _split(self, x: Any) -> Any:
        """[n, c, ...] as [n, groups, c / groups, ...]."""
        return x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:])


@record(eq=False)
class Conv2d(ConvBase, kind=Kind.COMPLEX):
    """conv2d(x: f[n, c, h, w], w: f[o, c / groups, kh, kw]) -> f[n, o, oh, ow].

    Cross-correlation: y[n, o, i, j] = sum over c, a, b of
    x[n, c, i * stride + a * dilation - padding, ...] * w[o, c, a, b], zeros outside.
    """

    def infer(self, *inputs: Spec) -> Spec:
        x, w = inputs
        if x.dtype is not w.dtype:
            raise RuntimeError(
                f"expected scalar type {x.dtype.torch_name} but found {w.dtype.torch_name}"
            )
        floating(x.dtype, "slow_conv2d_cpu")
        if len(w.shape) != 4 or len(x.shape) != 4:
            raise RuntimeError(
                f"Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: "
                f"{list(x.shape)}"
            )
        if w.shape[0] < self.groups or w.shape[0] % self.groups:
            short = w.shape[0] < self.groups
            wanted = f"at least {self.groups}" if short else f"divisible by {self.groups}"
            raise RuntimeError(
                f"Given groups={self.groups}, expected weight to be {wanted} at dimension 0, but "
                f"got weight of size {list(w.shape)} instead"
            )
        if x.shape[1] != w.shape[1] * self.groups:
            raise RuntimeError(
                f"Given groups={self.groups}, weight of size {list(w.shape)}, expected "
                f"input{list(x.shape)} to have {w.shape[1] * self.groups} channels, but got "
                f"{x.shape[1]} channels instead"
            )
        if 0 in w.shape[2:]:
            raise RuntimeError(
                "kernel size should be greater than zero, but got kernel_height: "
                f"{w.shape[2]} kernel_width: {w.shape[3]}"
            )
        oh, ow = self._out((x.shape[2], x.shape[3]), (w.shape[2], w.shape[3]))
        return Spec((x.shape[0], w.shape[0], oh, ow), x.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        x, w = xs
        shape = self.infer(Spec(x.shape, x.dtype), Spec(w.shape, w.dtype)).shape
        (sh, sw), (ph, pw), (dh, dw) = self.stride, self.padding, self.dilation
        per_group = w.shape[0] // self.groups
        zero = te.const(0, x.dtype)

        def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            n, o, oy, ox = i
            c, a, b = r
            y, z = oy * sh + a * dh - ph, ox * sw + b * dw - pw
            channel = c if self.groups == 1 else te.floordiv(o, per_group) * w.shape[1] + c
            inside = te.all(y >= 0, y < x.shape[2], z >= 0, z < x.shape[3])
            return te.guard(inside, lambda: x[n, channel, y, z], zero) * w[o, c, a, b]

        return te.reduce("sum", shape, x.dtype, w.shape[1:], term)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        x, w = xs
        out = self._out(x.shape[2:], w.shape[2:])
        windows = self._split(self._windows(np, x, w.shape[2:], out))
        weights = w.reshape(self.groups, w.shape[0] // self.groups, *w.shape[1:])
        y = np.einsum("ngcyxab,gocab->ngoyx", windows, weights, optimize=True)
        return y.reshape(x.shape[0], w.shape[0], *out).astype(x.dtype)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        x, w = xs
        return (
            apply(intern(ConvGradInput(*self._common, x.shape[2:])), ct, w),
            apply(intern(ConvGradWeight(*self._common, w.shape[2:])), x, ct),
        )


@record(eq=False)
class ConvGradInput(ConvBase, kind=Kind.COMPLEX):
    """conv_grad_input(ct: f[n, o, oh, ow], w: f[o, c / groups, kh, kw]) -> f[n, c, *size]."""

    size: Shape

    def infer(self, *inputs: Spec) -> Spec:
        ct, w = inputs
        return Spec((ct.shape[0], w.shape[1] * self.groups, *self.size), ct.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        ct, w = xs
        shape = self.infer(Spec(ct.shape, ct.dtype), Spec(w.shape, w.dtype)).shape
        (sh, sw), (ph, pw), (dh, dw) = self.stride, self.padding, self.dilation
        per_group, channels = w.shape[0] // self.groups, w.shape[1]
        zero = te.const(0, ct.dtype)

        def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            n, c, y, x = i
            o, a, b = r
            ty, tx = y + ph - a * dh, x + pw - b * dw
            qy, qx = te.floordiv(ty, sh), te.floordiv(tx, sw)
            inside = [ty >= 0, tx >= 0, qy < ct.shape[2], qx < ct.shape[3]]
            if sh > 1:
                inside.append(te.equal(te.floormod(ty, sh), 0))
            if sw > 1:
                inside.append(te.equal(te.floormod(tx, sw), 0))
            row, channel = o, c
            if self.groups > 1:
                row = te.floordiv(c, channels) * per_group + o
                channel = te.floormod(c, channels)
            g = te.guard(te.all(*inside), lambda: ct[n, row, qy, qx], zero)
            return g * w[row, channel, a, b]

        return te.reduce("sum", shape, ct.dtype, [per_group, *w.shape[2:]], term)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        ct, w = xs
        (sh, sw), (ph, pw), (dh, dw) = self.stride, self.padding, self.dilation
        n, _, oh, ow = ct.shape
        weights = w.reshape(self.groups, w.shape[0] // self.groups, *w.shape[1:])
        # Contribution of every window element, then added back where it was read.
        parts = np.einsum("ngoyx,gocab->ngcyxab", self._split(ct), weights, optimize=True)
        parts = parts.reshape(n, w.shape[1] * self.groups, oh, ow, *w.shape[2:])
        h, wd = self.size
        out = np.zeros((n, parts.shape[1], h + 2 * ph, wd + 2 * pw), ct.dtype)
        for a in range(w.shape[2]):
            for b in range(w.shape[3]):
                rows = slice(a * dh, a * dh + sh * (oh - 1) + 1, sh)
                columns = slice(b * dw, b * dw + sw * (ow - 1) + 1, sw)
                out[:, :, rows, columns] += parts[..., a, b]
        return out[:, :, ph : ph + h, pw : pw + wd]

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        inner, w = xs
        return (
            apply(intern(Conv2d(*self._common)), ct, w),
            apply(intern(ConvGradWeight(*self._common, w.shape[2:])), ct, inner),
        )


@record(eq=False)
class ConvGradWeight(ConvBase, kind=Kind.COMPLEX):
    """conv_grad_weight(x: f[n, c, h, w], ct: f[n, o, oh, ow]) -> f[o, c / groups, *kernel]."""

    kernel: Shape

    def infer(self, *inputs: Spec) -> Spec:
        x, ct = inputs
        return Spec((ct.shape[1], x.shape[1] // self.groups, *self.kernel), x.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        x, ct = xs
        shape = self.infer(Spec(x.shape, x.dtype), Spec(ct.shape, ct.dtype)).shape
        (sh, sw), (ph, pw), (dh, dw) = self.stride, self.padding, self.dilation
        per_group = shape[0] // self.groups
        zero = te.const(0, x.dtype)

        def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            o, c, a, b = i
            n, oy, ox = r
            y, z = oy * sh + a * dh - ph, ox * sw + b * dw - pw
            channel = c if self.groups == 1 else te.floordiv(o, per_group) * shape[1] + c
            inside = te.all(y >= 0, y < x.shape[2], z >= 0, z < x.shape[3])
            return te.guard(inside, lambda: x[n, channel, y, z], zero) * ct[n, o, oy, ox]

        extents = [ct.shape[0], *ct.shape[2:]]
        return te.reduce("sum", shape, x.dtype, extents, term)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        x, ct = xs
        windows = self._split(self._windows(np, x, self.kernel, ct.shape[2:]))
        w = np.einsum("ngcyxab,ngoyx->gocab", windows, self._split(ct), optimize=True)
        return w.reshape(ct.shape[1], x.shape[1] // self.groups, *self.kernel).astype(x.dtype)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        x, inner = xs
        return (
            apply(intern(ConvGradInput(*self._common, x.shape[2:])), inner, ct),
            apply(intern(Conv2d(*self._common)), x, ct),
        )
