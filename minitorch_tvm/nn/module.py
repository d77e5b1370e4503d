"""Module: the base of layers and models, which finds parameters and submodules by assignment."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from ..core import dtype as dt
from ..core.device import no_cuda
from ..core.handle import RemovableHandle
from ..core.shape import Size
from ..ir.node import MODE, WATCHED, Capture
from ..tensor import Tensor
from ..tensor.conversion import target
from ..tensor.host import host_array, set_value
from . import state
from .hooks import BackwardHooks, Hook, WatchedCall, attach
from .parameter import Parameter, Uninitialized

_TABLES = ("_parameters", "_buffers", "_modules")


def type_name(value: object) -> str:
    """The type of ``value`` as PyTorch's messages name it."""
    if isinstance(value, Tensor):
        return f"torch.{value.dtype.torch_name}Tensor"
    return type(value).__name__


def _indent(text: str) -> str:
    """All lines but the first moved right by two spaces."""
    return text.replace("\n", "\n  ")


class Module:
    """Base class of everything that holds parameters.

    Assign :class:`Parameter` and :class:`Module` objects to attributes in ``__init__`` (after
    ``super().__init__()``) and write ``forward``; calling the module runs it with its hooks.

    >>> import minitorch_tvm as mt
    >>> class Net(mt.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc = mt.nn.Linear(3, 2)
    ...     def forward(self, x):
    ...         return self.fc(x).relu()
    >>> Net()
    Net(
      (fc): Linear(in_features=3, out_features=2, bias=True)
    )
    >>> Net()(mt.ones(4, 3)).shape
    torch.Size([4, 2])
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent: set[str]
    _forward_hooks: OrderedDict[int, Hook]
    _forward_pre_hooks: OrderedDict[int, Hook]

    def __init__(self) -> None:
        self.__dict__.update(
            training=True,
            _changes=0,  # of attributes and hooks, and what is new: mt.compile looks at it
            _parameters={},
            _buffers={},
            _modules={},
            _non_persistent=set(),
            _forward_hooks=OrderedDict(),
            _forward_pre_hooks=OrderedDict(),
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every subclass that is called defines it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    # --- calling ----------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if WATCHED:
            capture = MODE.trace.capture
            if capture is not None:
                self._seen_by(capture)
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks:
            return self._call_with_hooks(args, kwargs)
        return self.forward(*args, **kwargs)

    def _seen_by(self, capture: Capture) -> None:
        """Say what of this module decides what a call does."""
        capture.at_end(self.__dict__, "_changes")
        capture.entry(self.__dict__, "training")
        tables: tuple[dict[str, Any], ...] = (self._parameters, self._buffers, self._modules)
        for table in tables:
            for name in table:
                capture.entry(table, name)
        for child in self._modules.values():
            # A list of modules, say, which nothing calls.
            if child is not None and type(child).forward is Module.forward:
                child._seen_by(capture)

    _plain: ClassVar[tuple[Sequence[str], Sequence[str]] | None] = None
    """Names of the attributes and of the parameters that decide what ``forward`` records, if these
    and its input do, and if it does nothing but record."""
    _calls_children: ClassVar[bool] = False
    """That is: nothing but call them in turn."""

    _backward_hooks: BackwardHooks | None = None  # a module has its own once it has one
    _load_hooks: OrderedDict[int, Hook] | None = None  # this as well

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "_plain" not in vars(cls):  # what is inherited is of another forward()
            cls._plain = None

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pending = dict(self._forward_hooks)
        try:
            for hook in list(self._forward_pre_hooks.values()):
                if hook.with_kwargs:
                    changed = hook.function(self, args, kwargs)
                    if changed is not None:
                        args, kwargs = changed
                else:
                    changed = hook.function(self, args)
                    if changed is not None:
                        args = changed if isinstance(changed, tuple) else (changed,)
            watched = WatchedCall(self, self._backward_hooks) if self._backward_hooks else None
            if watched is not None:
                args = watched.entered(args)
            result = self.forward(*args, **kwargs)
            for key in list(pending):
                result = self._after(pending.pop(key), args, kwargs, result)
            if watched is not None:
                result = watched.left(result)
        except BaseException:
            for hook in pending.values():
                if hook.always_call:
                    self._after(hook, args, kwargs, None)
            raise
        return result

    def _after(self, hook: Hook, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any) -> Any:
        if hook.with_kwargs:
            changed = hook.function(self, args, kwargs, y)
        else:
            changed = hook.function(self, args, y)
        return y if changed is None else changed

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before ``forward``; what it returns replaces the arguments.

        With ``with_kwargs`` it is ``hook(module, args, kwargs)`` and returns both or None.
        """
        return attach(self._forward_pre_hooks, Hook(hook, with_kwargs), prepend, self._changed)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after ``forward``; what it returns replaces output.

        With ``with_kwargs`` it is ``hook(module, args, kwargs, output)``; with ``always_call`` it
        also runs (output None) when ``forward`` raises.
        """
        return attach(
            self._forward_hooks, Hook(hook, with_kwargs, always_call), prepend, self._changed
        )

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when both are known.

        They are tuples, as long as the positional arguments and the results, with None for what is
        no tensor; a returned tuple replaces ``grad_input``.  Where no argument requires grad, the
        hook is called with Nones for them, and a warning.
        """
        hooks = self._hooks_on_gradients().full
        return attach(hooks, Hook(hook), prepend, self._changed)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` when that is known; a returned tuple replaces it."""
        hooks = self._hooks_on_gradients().before
        return attach(hooks, Hook(hook), prepend, self._changed)

    def _hooks_on_gradients(self) -> BackwardHooks:
        if self._backward_hooks is None:
            self.__dict__["_backward_hooks"] = BackwardHooks()
        return self.__dict__["_backward_hooks"]

    # --- attributes -------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        # Reached only when ordinary lookup fails: for every parameter that forward() reads.
        own = self.__dict__
        try:
            return own["_parameters"][name]
        except KeyError:
            pass
        for table in _TABLES:
            if table in own and name in own[table]:
                return own[table][name]
        # ``name`` and ``obj`` let Python suggest a similar attribute.
        raise AttributeError(
            f"'{type(self).__name__}' object has no attribute '{name}'", name=name, obj=self
        )

    def _table(self, name: str, what: str) -> dict[str, Any]:
        table = self.__dict__.get(name)
        if table is None:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        return table

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._table("_parameters", "parameters")
            self._forget(name)
            self.register_parameter(name, value)
            return
        if isinstance(value, Module):
            modules = self._table("_modules", "module")
            if name not in modules:
                self._forget(name)
                self._changed()
            modules[name] = value
            return
        for table, kind, expected in (
            ("_parameters", "parameter", "torch.nn.Parameter"),
            ("_modules", "child module", "torch.nn.Module"),
            ("_buffers", "buffer", "torch.nn.Buffer, torch.Tensor"),
        ):
            entries = self.__dict__.get(table)
            if entries is None or name not in entries:
                continue
            if value is not None and not (table == "_buffers" and isinstance(value, Tensor)):
                raise TypeError(
                    f"cannot assign '{type_name(value)}' as {kind} '{name}' ({expected} or None "
                    "expected)"
                )
            entries[name] = value
            return
        # Captured calls look at ``training`` itself: it often comes back to what it was.
        if name != "training" and self.__dict__.get(name, self) is not value:
            self._changed()
        object.__setattr__(self, name, value)

    def _changed(self) -> None:
        own = self.__dict__
        own["_changes"] = own.get("_changes", 0) + 1

    def _forget(self, name: str) -> None:
        """Drop whatever is called ``name`` (a parameter keeps its place in the order)."""
        self.__dict__.pop(name, None)
        self._buffers.pop(name, None)
        self._modules.pop(name, None)
        self._non_persistent.discard(name)

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._non_persistent.discard(name)
                return
        self._changed()
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = [*super().__dir__()]
        for table in ("_parameters", "_buffers", "_modules"):
            names += self.__dict__.get(table, ())
        return sorted(n for n in names if not n[:1].isdigit())

    def _check_name(self, name: str, kind: str, table: dict[str, Any]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {type(name).__name__}")
        if hasattr(self, name) and name not in table:
            raise KeyError(f"attribute '{name}' already exists")
        if "." in name:
            got = f", got: {name}" if kind == "module" else ""
            raise KeyError(f'{kind} name can\'t contain "."{got}')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter (None reserves the name).

        Raises TypeError for anything else and KeyError for names that are taken or contain a dot.
        """
        table = self._table("_parameters", "parameter")
        self._check_name(name, "parameter", table)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type_name(param)}' object to parameter '{name}' "
                "(torch.nn.Parameter or None required)"
            )
        if name not in table:
            self._changed()
        table[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but not a parameter.

        ``persistent=False`` keeps it out of ``state_dict``.
        """
        table = self._table("_buffers", "buffer")
        self._check_name(name, "buffer", table)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{type_name(tensor)}' object to buffer '{name}' (torch Tensor or "
                "None required)"
            )
        if name not in table:
            self._changed()
        table[name] = tensor
        if persistent:
            self._non_persistent.discard(name)
        else:
            self._non_persistent.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a child under ``name``."""
        table = self._table("_modules", "module")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._check_name(name, "module", table)
        if name not in table:
            self._changed()
        table[name] = module

    register_module = add_module

    # --- traversal --------------------------------------------------------------------------

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(dotted name, module) of this module and all below it, each module once."""
        seen: set[Module] = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                inner = f"{prefix}.{name}" if prefix else name
                yield from child.named_modules(seen, inner, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the direct children, each module once."""
        seen = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """The direct children, each once."""
        return (m for _, m in self.named_children())

    def _named_members(
        self,
        entries: Callable[[Module], Mapping[str, Tensor | None]],
        prefix: str,
        recurse: bool,
        remove_duplicate: bool,
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        own = [(prefix, self)]
        found = self.named_modules(None, prefix, remove_duplicate) if recurse else own
        for path, module in found:
            for name, value in entries(module).items():
                if value is None or id(value) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(value))
                yield f"{path}.{name}" if path else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter) pairs; shared parameters once."""
        return self._named_members(lambda m: m._parameters, prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of this module (and of all below it); shared ones once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(dotted name, buffer) pairs."""
        return self._named_members(lambda m: m._buffers, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module (and of all below it)."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path ("" is this one); AttributeError if there is none."""
        module: Module = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            found = getattr(module, name)
            if not isinstance(found, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
            module = found
        return module

    def _member(self, target: str, table: str, kind: str) -> Any:
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if not hasattr(owner, name):
            raise AttributeError(f"{type(owner).__name__} has no attribute `{name}`")
        if name not in getattr(owner, table):
            raise AttributeError(f"`{name}` is not {kind}")
        return getattr(owner, name)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path; AttributeError if there is none."""
        return self._member(target, "_parameters", "an nn.Parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path; AttributeError if there is none."""
        return self._member(target, "_buffers", "a buffer")

    # --- modes and conversions --------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Set training mode (Dropout drops) here and below; returns self."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """``train(False)``."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Start or stop recording gradients for all parameters; returns self."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or set them to zero."""
        for p in self.parameters():
            p._clear_grad(set_to_none)

    def apply(self, fn: Callable[[Module], None]) -> Self:
        """Call ``fn`` on every module below, children first, then on this one; returns self."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def to(self, *args: Any, **options: Any) -> Self:
        """Convert floating point parameters, buffers and gradients; returns self.

        Takes a dtype, a device, a tensor to be like, or several by name; ``non_blocking`` changes
        nothing.  Identities are kept, so optimizers stay valid.  Raises TypeError for dtypes that
        are not floating point, AssertionError for CUDA and RuntimeError for other devices.
        """
        dtype, _ = target(args, options)
        if dtype is None:
            return self
        if not dtype.is_floating_point:
            raise TypeError(
                "nn.Module.to only accepts floating point or complex dtypes, but got desired "
                f"dtype={dtype}"
            )
        tensors: list[Tensor] = [*self.parameters(), *self.buffers()]
        tensors += [p.grad for p in self.parameters() if p.grad is not None]
        for t in tensors:
            if not t.dtype.is_floating_point or t.dtype is dtype:
                continue
            if isinstance(t, Uninitialized):
                t._convert(dtype)
            else:
                set_value(t, host_array(t), dtype)
        return self

    def float(self) -> Self:
        """Convert floating point parameters and buffers to float32; returns self."""
        return self.to(dtype=dt.float32)

    def double(self) -> Self:
        """Convert floating point parameters and buffers to float64; returns self."""
        return self.to(dtype=dt.float64)

    def cpu(self) -> Self:
        """This module."""
        return self

    def cuda(self, device: Any = None) -> Self:
        """Raises AssertionError: there is only the CPU."""
        raise no_cuda()

    # --- state ------------------------------------------------------------------------------

    def state_dict(
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by dotted name.

        The tensors are detached (unless ``keep_vars``) and follow later changes of the module:
        ``clone`` or ``copy.deepcopy`` what should stay as it is.
        """
        return state.collect(
            self, OrderedDict() if destination is None else destination, prefix, keep_vars
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> state.IncompatibleKeys:
        """Copy values from ``state_dict``; returns (missing_keys, unexpected_keys).

        With ``strict``, keys must match exactly.  ``assign`` takes the given tensors themselves
        (and their dtype) instead of copying.  Raises RuntimeError listing everything that does not
        fit, in which case nothing has been changed.
        """
        return state.restore(self, state_dict, strict, assign)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook`` before ``load_state_dict`` of this module, or of one that contains it.

        It is given the module, a copy of the dict, which it may change, the prefix of the module's
        names in it, a dict that is empty, ``strict``, and lists of missing keys, of unexpected
        keys and of messages, to which it may add.
        """
        if self._load_hooks is None:
            self.__dict__["_load_hooks"] = OrderedDict()
        return attach(self.__dict__["_load_hooks"], Hook(hook), False, self._changed)

    # --- printing ---------------------------------------------------------------------------

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """What stands between the parentheses of the representation."""
        return ""

    def _child_lines(self) -> list[str]:
        return [f"({name}): {_indent(repr(child))}" for name, child in self._modules.items()]

    def __repr__(self) -> str:
        extra = self.extra_repr()
        children = self._child_lines()
        if not children and "\n" not in extra:
            return f"{self._get_name()}({extra})"
        lines = [*(extra.split("\n") if extra else ()), *children]
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


def reads_of(modules: Iterable[Module | None], choices: list[object], tensors: list[Any]) -> bool:
    """Add what decides what calls of these record, beside their input; False if that is unknown."""
    for module in modules:
        if module is None:
            return False
        own, kind = module.__dict__, type(module)
        plain = kind._plain
        if (
            plain is None
            or own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or module._backward_hooks
            or "forward" in own
            or kind.__call__ is not _CALL
        ):
            return False
        choices.append(kind.forward)
        names, parameters = plain
        try:
            for name in names:
                value = own[name]
                if type(value) not in _NUMBERS and not _is_constant(value):
                    return False
                choices.append(value)
            if parameters:
                table = own["_parameters"]
                for name in parameters:
                    value = table[name]
                    if value is None:
                        choices.append(name)
                    else:
                        tensors.append(value)
        except KeyError:  # it has been replaced by something else
            return False
        if kind._calls_children and not reads_of(own["_modules"].values(), choices, tensors):
            return False
    return True


_CALL = Module.__call__
_NUMBERS = frozenset({bool, int, float, str, type(None)})


def _is_constant(value: object) -> bool:
    """Whether it stays what it is, as a number does."""
    if type(value) in (tuple, Size):
        return all(map(_is_constant, value))  # type: ignore[call-overload]
    return type(value) in _NUMBERS
