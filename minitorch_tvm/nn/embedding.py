"""Embeddings, of single rows and of bags of them."""

from __future__ import annotations

from typing import Any, Self

from ..tensor import Tensor
from ..tensor.host import host_array, set_value
from . import functional as F
from . import init
from .functions import no_padding_row, padding_row, reject_embedding_options
from .module import Module
from .parameter import Parameter, new_parameter


def _draw(weight: Parameter, padding_idx: int | None) -> None:
    """Draw new vectors; row ``padding_idx`` is zeros."""
    init.normal_(weight)
    if padding_idx is not None:
        values = host_array(weight).copy()
        values[padding_idx] = 0.0
        set_value(weight, values)


class Embedding(Module):
    """A table of ``num_embeddings`` vectors of ``embedding_dim`` numbers, looked up by number.

    ``weight`` starts as N(0, 1); row ``padding_idx`` as zeros, and it gets no gradient.  Raises
    AssertionError if there is no such row, ValueError for ``max_norm``, ``scale_grad_by_freq`` and
    ``sparse``, which are not supported.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Embedding(10, 3)(mt.tensor([[1, 2], [4, 3]])).shape
    torch.Size([2, 2, 3])
    """

    weight: Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        reject_embedding_options("Embedding", max_norm, scale_grad_by_freq, sparse)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_row(padding_idx, num_embeddings, no_padding_row("Padding_idx"))
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        if _weight is None:
            self.weight = new_parameter((num_embeddings, embedding_dim), device, dtype)
            self.weight.requires_grad_(not _freeze)
            self.reset_parameters()
            return
        if list(_weight.shape) != [num_embeddings, embedding_dim]:
            raise AssertionError("Shape of weight does not match num_embeddings and embedding_dim")
        self.weight = Parameter(_weight, requires_grad=not _freeze)

    def reset_parameters(self) -> None:
        """Draw new vectors."""
        _draw(self.weight, self.padding_idx)

    def forward(self, input: Tensor) -> Tensor:
        """Row numbers [...] to vectors [..., embedding_dim]."""
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Self:
        """An embedding with the rows of ``embeddings`` [n, d]; ``freeze`` keeps them as they are.

        Raises AssertionError unless ``embeddings`` has two dimensions.

        >>> import minitorch_tvm as mt
        >>> mt.nn.Embedding.from_pretrained(mt.eye(3))(mt.tensor([2]))
        tensor([[0., 0., 1.]])
        """
        if embeddings.ndim != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        rows, columns = embeddings.shape
        return cls(
            rows,
            columns,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            _weight=embeddings,
            _freeze=freeze,
        )


class EmbeddingBag(Module):
    """Sums, means or largest elements of embedded bags; see :func:`functional.embedding_bag`.

    ``weight`` starts as N(0, 1); row ``padding_idx`` as zeros.  Raises AssertionError if there is
    no such row, ValueError for ``max_norm``, ``scale_grad_by_freq`` and ``sparse``, which are not
    supported.

    >>> import minitorch_tvm as mt
    >>> mt.nn.EmbeddingBag(10, 3)(mt.tensor([1, 2, 4, 3]), mt.tensor([0, 2])).shape
    torch.Size([2, 3])
    """

    weight: Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        reject_embedding_options("EmbeddingBag", max_norm, scale_grad_by_freq, sparse)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.padding_idx = padding_row(padding_idx, num_embeddings, no_padding_row("padding_idx"))
        self.mode = mode
        self.sparse = sparse
        self.include_last_offset = include_last_offset
        if _weight is None:
            self.weight = new_parameter((num_embeddings, embedding_dim), device, dtype)
            self.reset_parameters()
            return
        if list(_weight.shape) != [num_embeddings, embedding_dim]:
            raise AssertionError("Shape of weight does not match num_embeddings and embedding_dim")
        self.weight = Parameter(_weight)

    def reset_parameters(self) -> None:
        """Draw new vectors."""
        _draw(self.weight, self.padding_idx)

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Row numbers [bags, size], or [n] with the offsets of bags, to [bags, embedding_dim]."""
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Self:
        """Bags of the rows of ``embeddings`` [n, d]; ``freeze`` keeps them as they are.

        Raises AssertionError unless ``embeddings`` has two dimensions.

        >>> import minitorch_tvm as mt
        >>> mt.nn.EmbeddingBag.from_pretrained(mt.eye(3))(mt.tensor([[2, 1]]))
        tensor([[0.0000, 0.5000, 0.5000]])
        """
        if embeddings.ndim != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        rows, columns = embeddings.shape
        bag = cls(
            rows,
            columns,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            mode,
            sparse,
            embeddings,
            include_last_offset,
            padding_idx,
        )
        bag.weight.requires_grad_(not freeze)
        return bag
