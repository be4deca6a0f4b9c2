"""Pickles of functions and values: plain pickles where they say the same as those of cloudpickle, which take longer to make.

A function of a script is pickled by value, with what it refers to. That takes longer than anything else that is done for a
short task, so it is done once, and unpickled once in each interpreter, if the function is *constant*: all that it refers to
are constants and modules, and it changes none of it.
"""

from __future__ import annotations

import pickle
import sys
import types
import weakref
from collections import OrderedDict
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional

import cloudpickle

from . import shared

_Function = Callable[..., Any]

#: Types of values without references to others.
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})

# Of unpickled functions, how many are kept, and how long their pickles may be.
_LOADED_MAX = 256
_LOADED_LEN_MAX = 64 << 10

_MISSING = object()
#: A function with one of these names may change or read more than its own names.
_REACH_FURTHER = frozenset({"globals", "vars", "exec", "eval", "f_globals", "__globals__", "__builtins__"})


class _Constant(NamedTuple):
    """The pickle of a constant function, and what it was made of."""

    code: types.CodeType
    defaults: Any
    names: "tuple[tuple[str, Any], ...]"
    sent: "_Sent"

    def is_as_it_was(self, function: types.FunctionType) -> bool:
        known = function.__globals__
        return (
            function.__code__ is self.code
            and function.__defaults__ is self.defaults
            and function.__kwdefaults__ is None
            and not function.__dict__
            and all(known.get(name, _MISSING) is value for name, value in self.names)
        )


#: `None`: it is not constant.
_constants: "weakref.WeakKeyDictionary[types.FunctionType, Optional[_Constant]]" = weakref.WeakKeyDictionary()
_loaded: "OrderedDict[bytes, _Function]" = OrderedDict()


def _load(pickled: bytes) -> _Function:
    """The function of this pickle, the same each time."""
    function = _loaded.get(pickled)
    if function is None:
        function = pickle.loads(pickled)
        while len(_loaded) >= _LOADED_MAX:
            _loaded.popitem(last=False)
        _loaded[pickled] = function
    return function


class _Sent:
    """A function that is unpickled by `_load`."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> "tuple[Callable[[bytes], _Function], tuple[bytes]]":
        return _load, (self._pickled,)


def are_atoms(values: Iterable[Any]) -> bool:
    """Whether plain pickle and cloudpickle say the same of these values."""
    return _ATOMS.issuperset(map(type, values))


def dump_result(value: Any, arrays: Optional[str]) -> bytes:
    """A pickle of this value, which can be loaded once. `arrays`: see `shared`."""
    if type(value) in _ATOMS and not shared.is_long(value):
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return shared.dump_result(value, arrays)


def dump_call(
    function: _Function, args: "tuple[Any, ...]", kwargs: Mapping[str, Any], arrays: Optional[str] = None
) -> "tuple[bytes, Optional[str]]":
    """A pickle of the function and its arguments, and the file of their long parts. `arrays`: see `shared`."""
    if any(map(shared.is_long, args)):
        args = tuple(shared.LongBytes(value) if shared.is_long(value) else value for value in args)
    elif are_atoms(args) and are_atoms(kwargs.values()):
        sent = _sent(function)
        if sent is not None:
            return pickle.dumps((sent, args, kwargs), protocol=pickle.HIGHEST_PROTOCOL), None
    return shared.dump_call((function, args, dict(kwargs)), arrays)


def _sent(function: _Function) -> Any:
    """What stands for the function in a plain pickle; `None`: it is not constant, or can be imported."""
    if type(function) is not types.FunctionType or cloudpickle.list_registry_pickle_by_value():
        return None
    constant = _constants.get(function, _MISSING)
    if constant is None:
        return None
    if constant is _MISSING or not constant.is_as_it_was(function):
        constant = _constants[function] = _constant(function)
    return None if constant is None else constant.sent


def _constant(function: types.FunctionType) -> Optional[_Constant]:
    if function.__closure__ or function.__dict__ or function.__kwdefaults__ or not are_atoms(function.__defaults__ or ()):
        return None
    names: "set[str]" = set()
    for code in _codes(function.__code__):
        if _changes_globals(code) or not _REACH_FURTHER.isdisjoint(code.co_names):
            return None
        names.update(code.co_names)
    values = tuple((name, function.__globals__.get(name, _MISSING)) for name in names)
    if not all(_is_constant(value) for _, value in values):
        return None
    pickled = cloudpickle.dumps(function)
    if len(pickled) > _LOADED_LEN_MAX or pickle.loads(pickled) is function:
        return None
    return _Constant(function.__code__, function.__defaults__, values, _Sent(pickled))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            yield from _codes(constant)


def _changes_globals(code: types.CodeType) -> bool:
    import dis

    return any(step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for step in dis.get_instructions(code))


def _is_constant(value: Any) -> bool:
    if value is _MISSING or type(value) in _ATOMS:
        return True
    # With a package, cloudpickle sends those of its modules that have been imported so far.
    is_module = type(value) is types.ModuleType and not hasattr(value, "__path__")
    return is_module and value.__name__ != "__main__" and sys.modules.get(value.__name__) is value
