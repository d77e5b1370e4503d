"""Optimizer: parameter groups, state, and the step that turns updates into one evaluation."""

from __future__ import annotations

import functools
from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from .. import lazy
from ..autograd import enable_grad
from ..core import errors
from ..core.dtype import DType
from ..core.shape import Shape, numel
from ..ir.node import MODE, Node, effect, grad_enabled, leaf, numbers
from ..runtime.memory import Buffer, buffer_of
from ..tensor import Tensor
from . import repeated

_KNOWN_STEPS = 16
"""Kinds of steps that an optimizer remembers."""

Group = dict[str, Any]


def check_hyperparameter(name: str, value: Any, what: str) -> None:
    """ValueError if the number ``value`` is negative, TypeError if it is no number."""
    if isinstance(value, Tensor):
        raise TypeError(f"{name} must be a Python number, but got a Tensor; use {name}.item()")
    if not value >= 0.0:  # true of NaN, too
        raise ValueError(f"Invalid {what}: {value}")


def not_differentiable(group: Group) -> None:
    """ValueError if the steps of a group are to be differentiated."""
    if group["differentiable"]:
        raise ValueError("differentiable=True is not supported")


def full_for(node: Node, value: float = 0.0, shape: Shape | None = None) -> Tensor:
    """Realised memory in the dtype and shape of ``node``, or another shape: no program is compiled
    or run to fill it."""
    shape = node.shape if shape is None else shape
    buffer = Buffer(numel(shape) * node.dtype.itemsize)
    if buffer.nbytes:
        buffer.numpy(shape, node.dtype)[...] = value
    return Tensor._wrap(leaf(buffer, shape, node.dtype))


def _evaluating(step: Callable[..., Any]) -> Callable[..., Any]:
    """The ``step`` of a subclass that has its own: what it leaves pending is evaluated.

    Else updates of several steps would be one program, which would be compiled anew for every
    number of steps between two losses that are looked at.
    """

    @functools.wraps(step)
    def evaluated(self: Optimizer, *args: Any, **options: Any) -> Any:
        result = step(self, *args, **options)
        self._steps_done += 1
        lazy.evaluate(reason="step")
        return result

    return evaluated


class Optimizer:
    """Base class.  Subclasses give defaults and record the update of one group, or have a
    :meth:`step` of their own, as in PyTorch.

    ``params`` is an iterable of tensors, of (name, tensor) pairs, or of dicts with a "params" entry
    and options that override the defaults.

    :meth:`step` records the updates and then evaluates everything pending: forward, backward and
    update run as one program.  Options that are numbers are arguments of that program, so changing
    the learning rate compiles nothing.
    """

    _steps_done: int = 0
    _repeats: bool = False  # a group lists a parameter more than once

    def __init__(self, params: Any, defaults: Group) -> None:
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[Group] = []
        self._actions: list[repeated.Action] = []  # of the step that was recorded last
        self._known_steps: dict[repeated.Key, repeated.Repeated] = {}
        self._last_step: repeated.Repeated | None = None
        self._last_key: repeated.Key | None = None
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or "
                f"dicts, but got torch.{params.dtype.torch_name}Tensor"
            )
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    # --- groups -----------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Optimise further parameters; options left out take the defaults.

        Raises TypeError or ValueError for values that are not leaf tensors, or in another group
        already.  A tensor listed twice is warned of, and stepped twice.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = dict(param_group)
        given = group["params"]
        if isinstance(given, Tensor):
            group["params"] = [given]
        elif isinstance(given, (set, frozenset)):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the "
                "ordering of tensors in sets will change between runs. Please use a list instead."
            )
        else:
            group["params"] = list(given)
        if group["params"] and all(isinstance(p, tuple) for p in group["params"]):
            group["param_names"] = [name for name, _ in group["params"]]
            group["params"] = [p for _, p in group["params"]]
        for p in group["params"]:
            if not isinstance(p, Tensor):
                raise TypeError(
                    f"optimizer can only optimize Tensors, but one of the params is "
                    f"{type(p).__name__}"
                )
            if not p.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
        for name, value in self.defaults.items():
            group.setdefault(name, value)
        self._check_group(group)
        known = {id(p) for g in self.param_groups for p in g["params"]}
        ids = [id(p) for p in group["params"]]
        if not known.isdisjoint(ids):
            raise ValueError("some parameters appear in more than one parameter group")
        if len(set(ids)) != len(ids):
            errors.warn(
                "optimizer contains a parameter group with duplicate parameters; in future, this "
                "will cause an error; see github.com/pytorch/pytorch/issues/40967 for more "
                "information"
            )
            self._repeats = True
        self.param_groups.append(group)

    def _check_group(self, group: Group) -> None:
        """Raise ValueError for options that make no sense."""

    _describes_update: ClassVar[bool] = False
    """Whether ``_add_reads`` says what ``_update`` looks at."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if "step" in own:
            cls.step = _evaluating(own["step"])  # type: ignore[method-assign]
        # What is inherited is of another update.
        cls._describes_update = "_add_reads" in own or (
            cls._describes_update and "_update" not in own
        )

    def __getstate__(self) -> dict[str, Any]:
        # What is remembered of steps is of no use to a copy.
        return {
            **self.__dict__,
            "_actions": [],
            "_known_steps": {},
            "_last_step": None,
            "_last_key": None,
        }

    # --- stepping ---------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or set them to zero."""
        plainly = set_to_none and MODE.trace.capture is None
        for group in self.param_groups:
            for p in group["params"]:
                if plainly:
                    p._gradient = None
                else:
                    p._clear_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, and evaluate everything pending.

        ``closure`` computes the loss (and its gradients) first; its result is returned.  Raises
        the errors of conditions on data (a label out of range); no parameter has changed then.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        trace = MODE.trace
        if trace.capture is not None:
            trace.capture.condition(self._structure)
            for state in self.state.values():
                for name, value in state.items():
                    if isinstance(value, Tensor):
                        trace.capture.entry(state, name)
        if lazy.doubtful():
            # Those that are still owed have been found sound by backward().
            gradients = [p._gradient for group in self.param_groups for p in group["params"]]
            lazy.require_sound([g.node for g in gradients if isinstance(g, Tensor)])
        key: repeated.Key | None = None
        if self._describes_update and not self._repeats:
            reads = self._reads()
            if reads is not None:
                with lazy.exclusive():
                    key = repeated.key_of(reads)
                    if key is None and reads.debt is not None:
                        trace.settle()
                        reads = self._reads() or reads
                        key = repeated.key_of(reads)
                    known = self._last_step  # found without hashing the key
                    if known is None or key != self._last_key:
                        known = None if key is None else self._known_steps.get(key)
                    if known is not None and not known.is_of(reads):
                        known = None
                    if known is not self._last_step and self._last_step is not None:
                        self._last_step.forget()
                    self._last_step, self._last_key = known, key
                    if known is not None:
                        if known.run(reads):
                            return loss
                        key = None  # nothing more to find out
        with errors.at(errors.user_place()), grad_enabled(False):
            self._record(key)
        return loss

    def _record(self, key: repeated.Key | None) -> None:
        """Record the updates, and evaluate; ``key`` is for those who do the same."""
        if MODE.trace.debt() is not None:
            with lazy.exclusive():
                MODE.trace.settle()
        reads = None if key is None else self._reads()
        watch = None if reads is None else repeated.Watch(reads)
        self._actions.clear()
        for group in _distinct(self.param_groups) if self._repeats else self.param_groups:
            self._update(group)
        self._effect(self._count)
        if watch is not None:
            watch.recorded(self._actions)
        evaluated = lazy.evaluate(reason="step")
        step = None if watch is None else watch.result(evaluated, self._actions)
        if key is not None and step is not None:
            if len(self._known_steps) >= _KNOWN_STEPS:
                self._known_steps.clear()
            self._known_steps[key] = step

    def _reads(self) -> repeated.Reads | None:
        """What the step reads and what decides what it records; None if that cannot be told yet."""
        reads = repeated.Reads(MODE.trace.debt())
        for group in self.param_groups:
            reads.owners.append(group)
            if not self._add_reads(group, reads):
                return None
            reads.choices.append(len(reads.params))
        return reads

    def _add_reads(self, group: Group, reads: repeated.Reads) -> bool:
        """Add what :meth:`_update` looks at to ``reads``; False if it is to be recorded always.

        A class that defines ``_update`` defines this, too, if its steps are to be repeated.
        """
        return False

    def _effect(self, action: Callable[[], Any]) -> None:
        """Change Python's state, now and whenever this step is repeated."""
        self._actions.append((action, ()))
        effect(action)

    def _numbers(self, produce: Callable[[], Sequence[float]], dtype: DType) -> list[Node]:
        """Runtime scalars with the values that ``produce`` returns now and in repeated steps."""
        nodes = numbers(produce, dtype)
        self._actions.append((produce, nodes))
        return nodes

    def _structure(self) -> object:
        """What decides which operations an update records, and of what.

        By numbers: who compares them keeps what they are of, so that none is given away again.
        """
        found = [id(self.state), *map(id, self.state.values())]
        for group in self.param_groups:  # one list: every repeated call makes it
            found.append(id(group))
            found += map(id, group["params"])
            found += map(bool, group.values())
        return found

    def _count(self) -> None:
        self._steps_done += 1

    def _update(self, group: Group) -> None:
        """Record the update of the group's parameters (gradients are off)."""
        raise NotImplementedError(f"{type(self).__name__} does not define its update")

    # --- state ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """{"state": {index: tensors}, "param_groups": options with parameter indices}.

        Parameters are numbered over all groups, in order.
        """
        number: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                number.setdefault(id(p), len(number))
            packed = {k: v for k, v in group.items() if k != "params"}
            packed["params"] = [number[id(p)] for p in group["params"]]
            groups.append(packed)
        state = {number[id(p)]: self._packed(s) for p, s in self.state.items() if id(p) in number}
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def _shape(self, p: Tensor, name: str) -> Shape:
        """That of a tensor in a parameter's state."""
        return tuple(p.shape)

    def _packed(self, state: dict[str, Any]) -> dict[str, Any]:
        """One parameter's state in PyTorch's format."""
        return dict(state)

    def _unpacked(self, p: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        """The inverse of :meth:`_packed`: copies of the tensors, in the parameter's dtype."""
        return {k: copied(v, p.dtype) if isinstance(v, Tensor) else v for k, v in state.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned (tensors are copied).

        Raises ValueError if the groups do not match.
        """
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        for ours, theirs in zip(self.param_groups, saved, strict=True):
            if len(ours["params"]) != len(theirs["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of "
                    "optimizer's group"
                )
        owner = {
            index: p
            for ours, theirs in zip(self.param_groups, saved, strict=True)
            for p, index in zip(ours["params"], theirs["params"], strict=True)
        }
        loaded: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        for index, state in state_dict["state"].items():
            p = owner.get(index)
            if p is None:
                continue
            for name, value in state.items():
                wanted = self._shape(p, name)
                if isinstance(value, Tensor) and value.ndim and value.shape != wanted:
                    raise ValueError(
                        f"loaded state {name!r} of parameter {index} has shape {value.shape}, but "
                        f"the parameter has shape {p.shape}"
                    )
            loaded[p] = self._unpacked(p, state)
        self.state = loaded
        for ours, theirs in zip(self.param_groups, saved, strict=True):
            params = ours["params"]
            ours.clear()
            ours.update({k: v for k, v in theirs.items() if k != "params"}, params=params)
            for name, value in self.defaults.items():
                ours.setdefault(name, value)

    def __repr__(self) -> str:
        text = f"{type(self).__name__} ("
        for i, group in enumerate(self.param_groups):
            text += f"\nParameter Group {i}\n"
            for name in sorted(group):
                if name != "params":
                    text += f"    {name}: {group[name]}\n"
        return text + ")"


def _distinct(groups: Sequence[Group]) -> list[Group]:
    """The groups in rounds: a parameter's n-th mention in its group is in the n-th round."""
    rounds = []
    for group in groups:
        mentions: Counter[int] = Counter()
        parts: list[list[Tensor]] = []
        for p in group["params"]:
            if mentions[id(p)] == len(parts):
                parts.append([])
            parts[mentions[id(p)]].append(p)
            mentions[id(p)] += 1
        # Options are read from the group itself, whose learning rate a schedule may change.
        rounds += [cast(Group, ChainMap({"params": part}, group)) for part in parts]
    return rounds


def copied(t: Tensor, dtype: DType) -> Tensor:
    """A tensor of its own with these values."""
    array = t.detach().numpy()
    return Tensor._wrap(leaf(buffer_of(array, dtype), array.shape, dtype))
