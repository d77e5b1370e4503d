"""state_dict: collecting a module's tensors by name, and putting them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..tensor import Tensor
from ..tensor.host import host_array, set_value
from .parameter import Parameter, Uninitialized

if TYPE_CHECKING:
    from .module import Module


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict`` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return (
            f"_IncompatibleKeys(missing_keys={self.missing_keys}, "
            f"unexpected_keys={self.unexpected_keys})"
        )


def _entries(module: Module, prefix: str) -> list[tuple[str, Module, str, Tensor]]:
    """(full name, owner, its own name, tensor) of everything that belongs in a state_dict."""
    found: list[tuple[str, Module, str, Tensor]] = []
    for name, p in module._parameters.items():
        if p is not None:
            found.append((prefix + name, module, name, p))
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent:
            found.append((prefix + name, module, name, buffer))
    for name, child in module._modules.items():
        if child is not None:
            found += _entries(child, f"{prefix}{name}.")
    return found


def collect(
    module: Module, destination: dict[str, Any], prefix: str, keep_vars: bool
) -> dict[str, Any]:
    """Fill ``destination`` with the tensors of ``module``."""
    for name, _, _, t in _entries(module, prefix):
        destination[name] = t if keep_vars else t.detach()
    return destination


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{n}"' for n in names)


def restore(
    module: Module, state_dict: Mapping[str, Any], strict: bool, assign: bool
) -> IncompatibleKeys:
    """Check everything, then copy everything."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
    state_dict = dict(state_dict)
    missing, unexpected, errors = list[str](), list[str](), list[str]()
    for path, part in module.named_modules():
        for hook in list((part._load_hooks or {}).values()):
            prefix = f"{path}." if path else ""
            hook.function(part, state_dict, prefix, {}, strict, missing, unexpected, errors)
    entries = _entries(module, "")
    known = {name for name, _, _, _ in entries}
    missing += [name for name, _, _, _ in entries if name not in state_dict]
    unexpected += [name for name in state_dict if name not in known]
    if strict and missing:
        errors.append(f"Missing key(s) in state_dict: {_quoted(missing)}. ")
    if strict and unexpected:
        errors.append(f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
    fitting: list[tuple[Module, str, Tensor, Tensor]] = []
    for name, owner, own, t in entries:
        if name not in state_dict:
            continue
        given = state_dict[name]
        if not isinstance(given, Tensor):
            errors.append(
                f'While copying the parameter named "{name}", expected torch.Tensor or '
                f"Tensor-like object from checkpoint but received {type(given)}"
            )
        elif isinstance(t, Uninitialized):
            if not isinstance(given, Uninitialized):
                t.materialize(given.shape)
                fitting.append((owner, own, t, given))
        elif given.shape != t.shape:
            errors.append(
                f"size mismatch for {name}: copying a param with shape {given.shape} from "
                f"checkpoint, the shape in current model is {t.shape}."
            )
        else:
            fitting.append((owner, own, t, given))
    if errors:
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(module).__name__}:\n\t" + "\n\t".join(errors)
        )
    for owner, own, t, given in fitting:
        if not assign:
            set_value(t, host_array(given))
        elif isinstance(t, Parameter):
            setattr(owner, own, Parameter(given.detach(), t.requires_grad))
        else:
            setattr(owner, own, given)
    return IncompatibleKeys(missing, unexpected)
