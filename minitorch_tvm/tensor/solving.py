"""What functions on matrices are asked for, checked in PyTorch's words, and matrices that have no
such factors: see docs/decisions/42-decompositions.md."""

from __future__ import annotations

from collections.abc import Callable

from .. import lazy
from ..core import dtype as dt
from ..core.arguments import floating
from ..core.bounds import Bounds
from ..core.errors import LinAlgError
from ..core.shape import broadcast, numel
from ..ir.node import MODE, Node, apply
from ..ops import build as b
from ..ops import derived as d
from ..ops import factors as fa
from .gathering import values_of


def matrices(function: str, x: Node, name: str = "A", *, square: bool = True) -> Node:
    """``x``; RuntimeError unless it is matrices, and square ones if they are to be."""
    if len(x.shape) < 2:
        raise RuntimeError(f"{function}: The input tensor {name} must have at least 2 dimensions.")
    if square:
        _squares(x, f"{function}: ", name)
    return x


def _squares(x: Node, where: str, name: str = "A") -> None:
    if x.shape[-1] != x.shape[-2]:
        raise RuntimeError(
            f"{where}{name} must be batches of square matrices, but they are {x.shape[-2]} by "
            f"{x.shape[-1]} matrices"
        )


def real(function: str, x: Node, *, square: bool = True) -> Node:
    """The same, and RuntimeError unless they are of floating point numbers."""
    matrices(function, x, square=square)
    if not x.dtype.is_floating_point:
        raise RuntimeError(
            f"{function}: Expected a floating point or complex tensor as input. Got "
            f"{x.dtype.torch_name}"
        )
    return x


Told = Callable[[str, int], Exception]
"""The error for a matrix, of which of a batch and where."""


def sound(result: Node, info: Node, most: int, error: Told) -> Node:
    """``result``, if ``info`` (int64[*b], from 0 to ``most``) is 0 throughout.

    Else the error of the first matrix of which it is not.  That is found out now, and the result
    kept; in a captured call, or where nothing may be evaluated, before it is used.
    """
    one = not info.shape
    line = b.reshape(info, (numel(info.shape),))
    if not line.shape[0]:
        return result
    # A number tells both which matrix of the batch it is, and what is wrong there.
    size = b.full((), most + 1, dt.int64)
    wrong = b.add(b.mul(b.iota(line.shape, 0, dt.int64), size), line)
    zero = b.full((), 0, dt.int64)
    wrong = b.where(b.eq(line, zero), zero, wrong)

    def told(number: int) -> Exception:
        batch, where = divmod(number, most + 1)
        return error("" if one else f"(Batch element {batch}): ", where)

    bounds = Bounds(0, 1, told)
    if MODE.trace.capture is None and not MODE.trace.forbidden:
        bounds.test(values_of(wrong, "factor", result))
        return result
    guarded = apply(b.CLONE, result)
    fine = d.any_all(b.eq(wrong, zero), None, False, every=True)
    lazy.check(fine, wrong, bounds, guarded)
    return guarded


def not_positive(function: str) -> Told:
    """What PyTorch says of a matrix without a Cholesky factor."""

    def error(which: str, order: int) -> Exception:
        return LinAlgError(
            f"{function}: {which}The factorization could not be completed because the input is not "
            f"positive-definite (the leading minor of order {order} is not positive-definite)."
        )

    return error


def no_inverse(function: str) -> Told:
    """What it says of one without an inverse."""

    def error(which: str, place: int) -> Exception:
        return LinAlgError(
            f"{function}: {which}The diagonal element {place} is zero, the inversion could not be "
            "completed because the input matrix is singular."
        )

    return error


def singular(function: str) -> Told:
    """What it says of a system without a solution."""

    def error(which: str, place: int) -> Exception:
        return LinAlgError(
            f"{function}: {which}The solver failed because the input matrix is singular."
        )

    return error


def _no_division(which: str, place: int) -> Exception:
    return RuntimeError(
        f"torch.linalg.lu_factor: {which}U[{place},{place}] is zero and using it on lu_solve would "
        "result in a division by zero. If you still want to perform the factorization, consider "
        "calling linalg.lu(A, pivot) or linalg.lu_factor_ex(A, pivot)"
    )


# --- triangular factors -------------------------------------------------------------------------


def cholesky(function: str, x: Node, upper: bool) -> Node:
    """The factor of positive definite matrices."""
    return cholesky_info(function, x, upper, True)[0]


def cholesky_info(function: str, x: Node, upper: bool, check: bool) -> tuple[Node, Node]:
    """It and what is wrong with it."""
    factor = fa.cholesky(x, upper)
    info = fa.first_wrong(factor, False)
    if check:
        factor = sound(factor, info, x.shape[-1], not_positive(function))
    return factor, b.cast(info, dt.int32)


def cholesky_solve(x: Node, factor: Node, upper: bool) -> Node:
    """Solutions of systems of which a Cholesky factor is given."""
    for name, node in (("b", x), ("u", factor)):
        if len(node.shape) < 2:
            raise RuntimeError(
                f"{name} should have at least 2 dimensions, but has {len(node.shape)} dimensions "
                "instead"
            )
    if x.dtype is not factor.dtype:
        raise RuntimeError(
            "Expected b and A to have the same dtype, but found b of type "
            f"{x.dtype.torch_name} and A of type {factor.dtype.torch_name} instead."
        )
    _squares(factor, "")
    n, (rows, columns) = factor.shape[-1], x.shape[-2:]
    if rows != n:
        raise RuntimeError(
            f"Incompatible matrix sizes for cholesky_solve: each A matrix is {n} by {n} but each b "
            f"matrix is {rows} by {columns}"
        )
    floating(x.dtype, "cholesky_solve_cpu")
    half = fa.solve_triangular(factor, x, upper=upper, transposed=upper)
    return fa.solve_triangular(factor, half, upper=upper, transposed=not upper)


def cholesky_inverse(factor: Node, upper: bool) -> Node:
    """Inverses of matrices of which a Cholesky factor is given."""
    matrices("cholesky_inverse", factor)
    floating(factor.dtype, "cholesky_inverse_out_cpu")
    info = fa.first_wrong(factor, True)
    n = factor.shape[-1]
    factor = sound(factor, info, n, no_inverse("cholesky_inverse"))
    return cholesky_solve(fa.identity(n, factor), factor, upper)


def solve_triangular(a: Node, x: Node, upper: bool, left: bool, unit: bool) -> Node:
    """x of a x = b, or of x a = b, of triangles a."""
    function = "linalg.solve_triangular"
    matrices(function, a)
    matrices(function, x, "B", square=False)
    _fit(function, a, x, left)
    _alike(function, a, x)
    floating(a.dtype, "triangular_solve_cpu")
    broadcast(x.shape[:-2], a.shape[:-2])  # the error names the right side first
    if left:
        return fa.solve_triangular(a, x, upper=upper, unit=unit)
    turned = fa.turned(x)
    return fa.turned(fa.solve_triangular(a, turned, upper=upper, transposed=True, unit=unit))


def triangular_solve(
    x: Node, a: Node, upper: bool, transposed: bool, unit: bool
) -> tuple[Node, Node]:
    """(x of a x = b, a), or of a.T x = b, as the function outside of ``linalg`` has it."""
    for name, node in (("b", x), ("A", a)):
        if len(node.shape) < 2:
            raise RuntimeError(
                f"torch.triangular_solve: Expected {name} to have at least 2 dimensions, but it "
                f"has {len(node.shape)} dimensions instead"
            )
    _squares(a, "")
    n, (rows, columns) = a.shape[-1], x.shape[-2:]
    if rows != n:
        raise RuntimeError(
            f"Incompatible matrix sizes for triangular_solve: each A matrix is {n} by {n} but each "
            f"b matrix is {rows} by {columns}"
        )
    floating(a.dtype, "triangular_solve_cpu")
    y = fa.solve_triangular(a, x, upper=upper, transposed=transposed, unit=unit)
    return y, d.clone(b.expand(a, (*y.shape[:-2], n, n)))


def _alike(function: str, a: Node, x: Node) -> None:
    if a.dtype is not x.dtype:
        raise RuntimeError(
            f"{function}: Expected A and B to have the same dtype, but found A of type "
            f"{a.dtype.torch_name} and B of type {x.dtype.torch_name} instead"
        )


def _fit(function: str, a: Node, x: Node, left: bool) -> None:
    if a.shape[-1] != x.shape[-2 if left else -1]:
        sizes = " and ".join(f"{n.shape[-2]}x{n.shape[-1]}" for n in (a, x))
        raise RuntimeError(
            f"{function}: Incompatible shapes of A and B for the equation "
            f"{'AX' if left else 'XA'} = B ({sizes})"
        )


# --- by elimination -----------------------------------------------------------------------------


def _factors(x: Node) -> tuple[Node, Node]:
    """What elimination finds, and where it has found a zero, of square matrices."""
    found = fa.lu(apply(b.DETACH, x))
    both, *_ = fa.parts(found, x.shape[-1], x.shape[-1])
    return found, fa.first_wrong(both, True)


def solve(a: Node, x: Node, left: bool) -> tuple[Node, Node]:
    """(x of a x = b, or of x a = b; where a zero was found)."""
    function = "linalg.solve"
    real(function, a)
    _alike(function, a, x)
    line = len(x.shape) == 1 or (len(a.shape) - 1 == len(x.shape) and x.shape == a.shape[:-1])
    if line:
        x = b.reshape(x, (*x.shape, 1))
    matrices(function, x, "B", square=False)
    _fit(function, a, x, left)
    if not left:
        a, x = fa.turned(a), fa.turned(x)
    found, info = _factors(a)
    y = fa.solve(a, found, x)
    if not left:
        y = fa.turned(y)
    return (b.reshape(y, y.shape[:-1]) if line else y), info


def inverse(x: Node) -> tuple[Node, Node]:
    """(the inverse; where a zero was found)."""
    real("linalg.inv", x)
    found, info = _factors(x)
    return fa.solve(x, found, fa.identity(x.shape[-1], x)), info


def inverse_of(x: Node) -> Node:
    """The inverse of matrices that have one."""
    y, info = inverse(x)
    return sound(y, info, x.shape[-1], no_inverse("linalg.inv"))


def determinant(x: Node) -> Node:
    """Of square matrices."""
    real("linalg.det", x)
    if not x.shape[-1]:
        return b.full(x.shape[:-2], 1.0, x.dtype)
    return fa.determinant(x, _factors(x)[0])


def sign_and_log(function: str, x: Node) -> tuple[Node, Node]:
    """Of determinants: their signs, and logarithms of their sizes."""
    real(function, x)
    if not x.shape[-1]:
        return tuple(b.full(x.shape[:-2], n, x.dtype) for n in (1.0, 0.0))  # type: ignore[return-value]
    return fa.sign_and_log(x, _factors(x)[0])


def log_determinant(x: Node) -> Node:
    """Of square matrices."""
    sign, size = sign_and_log("logdet", x)
    return b.add(b.log(sign), size)


def lu(function: str, x: Node) -> tuple[Node, Node, Node, Node]:
    """(both triangles, exchanged rows int32, the order of rows, where a zero was found)."""
    if len(x.shape) < 2:
        raise RuntimeError(
            f"{function}: Expected tensor with 2 or more dimensions. Got size: {list(x.shape)} "
            "instead"
        )
    floating(x.dtype, "lu_cpu")
    m, n = x.shape[-2:]
    k = min(m, n)
    both, swapped, order = fa.parts(fa.lu(x), m, n)
    pivots = b.add(b.cast(apply(b.DETACH, swapped), dt.int32), b.full((), 1, dt.int32))
    rank = len(both.shape)
    square = b.narrow(b.narrow(both, rank - 2, 0, k), rank - 1, 0, k)
    return both, pivots, apply(b.DETACH, order), fa.first_wrong(square, True)


def lu_sound(both: Node, info: Node) -> Node:
    """Both triangles, if no zero was found."""
    return sound(both, info, min(both.shape[-2:]), _no_division)


def matrix_power(x: Node, power: int) -> Node:
    """Products of square matrices with themselves."""
    matrices("linalg.matrix_power", x)
    if power < 0:
        x, power = inverse_of(x), -power
    n = x.shape[-1]
    if power == 0:
        return b.expand(fa.identity(n, x), x.shape)
    found: Node | None = None
    while True:
        if power % 2:
            found = x if found is None else d.matmul(found, x)
        power //= 2
        if not power:
            assert found is not None
            return d.clone(found) if found is x else found
        x = d.matmul(x, x)


def multi_dot(xs: list[Node]) -> Node:
    """The product of several matrices, in the order that takes the fewest multiplications.

    (T. Cormen et al., Introduction to Algorithms, 15.2.)
    """
    count = len(xs)
    sizes = [x.shape[0] for x in xs] + [xs[-1].shape[1]]
    cost = [[0] * count for _ in xs]
    cut = [[0] * count for _ in xs]
    for length in range(1, count):
        for i in range(count - length):
            j = i + length

            def steps(k: int, i: int = i, j: int = j) -> int:
                return cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1]

            cut[i][j] = min(range(i, j), key=steps)
            cost[i][j] = steps(cut[i][j])

    def product(i: int, j: int) -> Node:
        if i == j:
            return xs[i]
        return d.matmul(product(i, cut[i][j]), product(cut[i][j] + 1, j))

    return product(0, count - 1)
