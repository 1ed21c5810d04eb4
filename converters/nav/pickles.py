"""Reading ``traj_data.pkl`` without running anything of it.

A pickle is a program. This reader is an interpreter of its own for the few instructions that plain values and numpy's
arrays need; Python's ``pickle`` is not used. Of the globals a pickle may name, only those of numpy's own array pickles
are admitted, and even these are never called: stand-ins take their arguments down, and the numbers are decoded from
the bytes, each length checked. Any other global is refused where it is named, before anything is made of it.

A small pickle can ask for much: what it takes is bounded by its size, by the number of its instructions, and by what
these copy; arrays are decoded when they turn out to be poses, and not before.
"""

from __future__ import annotations

import math
import pickletools
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError

__all__ = ["ALLOWED_GLOBALS", "load_plain", "read_poses"]

Float64Array = npt.NDArray[np.float64]

_MAX_BYTES = 64 << 20
_MAX_STEPS = 4_000_000
"""Instructions; the longest form of a pose takes 20, so that 200,000 frames fit."""

_MAX_NUMBERS = 4_000_000
"""Of an array."""

_MAX_KEYS = 10_000
"""Of all dicts together: keys that collide cost the square of their number."""

_MAX_SIDE = 1 << 31
_IN_A_ROW = 64
"""Numbers of an array that is one row of positions or headings."""

_CODES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})
_DEPTH = 4

_Role = Literal["array", "type", "encode", "reconstruct", "scalar"]
_GLOBALS: dict[tuple[str, str], _Role] = {
    ("numpy", "ndarray"): "array",
    ("numpy", "dtype"): "type",
    ("_codecs", "encode"): "encode",
}
for _core in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _GLOBALS[(_core, "_reconstruct")] = "reconstruct"
    _GLOBALS[(_core, "scalar")] = "scalar"

ALLOWED_GLOBALS = tuple(sorted(".".join(name) for name in _GLOBALS))
"""What a pickle may name."""

_NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
_TEXTS = ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")
_VALUES = frozenset((*_NUMBERS, *_TEXTS, *_BYTES))
_CONSTANTS: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})


class _Global:
    """An admitted global."""

    __slots__ = ("role",)

    def __init__(self, role: _Role) -> None:
        self.role = role


class _Type:
    """An element type."""

    __slots__ = ("code", "order")

    def __init__(self, code: object) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else code
        bare = text.lstrip("<>|=") if isinstance(text, str) else ""
        if bare not in ("O", "O8", "O4") and bare not in _CODES:
            raise DataError("an element type that is no number", found=ascii(bare)[:40])
        self.code = bare[:1] if bare.startswith("O") else bare
        self.order = ">" if isinstance(text, str) and text.startswith(">") else "<"

    def build(self, state: object) -> None:
        """Takes down what numpy restores a type from; the second item is the byte order."""
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        order = order.decode("latin1") if isinstance(order, bytes) else order
        if not isinstance(order, str) or order not in ("<", ">", "|", "="):
            raise DataError("an element type of odd byte order")
        self.order = ">" if order == ">" else "<"

    def check(self, size: int, count: int) -> np.dtype[Any]:
        """The type, if ``size`` bytes hold ``count`` of it."""
        dtype = np.dtype(self.order + self.code)
        if size != count * dtype.itemsize:
            raise DataError("bytes do not fit the shape", expected=count * dtype.itemsize, found=size)
        return dtype

    def numbers(self, raw: bytes | bytearray, count: int) -> Float64Array:
        """float64 [count] of raw bytes."""
        return np.frombuffer(raw, self.check(len(raw), count)).astype(np.float64)


class _Array:
    """An array: its numbers, or its elements where these are objects; decoded when first asked for."""

    __slots__ = ("_fortran", "_items", "_kind", "_raw", "count", "shape")

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = (0,)
        self.count = 0
        self._kind: _Type | None = None
        self._raw: Any = []
        self._fortran = False
        self._items: list[Any] | None = None

    def build(self, state: object) -> None:
        """Takes down what numpy restores an array from: version, shape, type, column order, content."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise DataError("an array whose state is not that of one")
        _, shape, kind, fortran, raw = state
        sides = shape if isinstance(shape, tuple) and all(_is_side(side) for side in shape) else None
        if sides is None or len(sides) > _DEPTH or not isinstance(kind, _Type):
            raise DataError("an array of odd shape or type")
        count = math.prod(sides)
        if kind.code == "O":
            if not isinstance(raw, list) or len(raw) != count:
                raise DataError("an array of objects that do not fit its shape")
        elif isinstance(raw, (bytes, bytearray, str)):
            kind.check(len(raw), count)
        else:
            raise DataError("an array without bytes")
        self.shape, self.count = (sides, count) if count else ((0,), 0)
        self._kind, self._raw, self._items, self._fortran = kind, raw, None, bool(fortran) and len(sides) > 1

    @property
    def items(self) -> list[Any]:
        """All elements, row by row."""
        if self._items is None:
            if self.count > _MAX_NUMBERS:
                raise DataError("an array too large for a trajectory", found=f"{self.count} numbers")
            items: list[Any] = self._raw
            if self._kind is not None and self._kind.code != "O":
                raw = self._raw.encode("latin1") if isinstance(self._raw, str) else self._raw
                items = self._kind.numbers(raw, self.count).tolist()
            if self._fortran:
                place = np.arange(self.count).reshape(self.shape[::-1]).T.reshape(-1)
                items = [items[k] for k in place.tolist()]
            self._items = items
        return self._items

    def rows(self) -> list[Any]:
        """As nested lists."""
        return _nested(self.items, self.shape)


def _is_side(side: object) -> bool:
    return type(side) is int and 0 <= side < _MAX_SIDE


def _nested(items: list[Any], shape: tuple[int, ...]) -> list[Any]:
    if len(shape) < 2:
        return items
    step = math.prod(shape[1:])
    return [_nested(items[k * step : (k + 1) * step], shape[1:]) for k in range(shape[0])]


class _Machine:
    """Runs the admitted instructions."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.keys = 0
        self.copied = 0

    def run(self, data: bytes) -> object:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            name = opcode.name
            if number >= _MAX_STEPS:
                raise DataError("the pickle has more instructions than a trajectory needs", expected=_MAX_STEPS)
            if name == "STOP":
                return self.stack.pop()
            if name in _VALUES:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in _PUTS:
                self.memo[int(str(argument))] = self.stack[-1]
            elif name in _GETS:
                self.stack.append(self.memo[int(str(argument))])
            elif name == "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            elif name == "GLOBAL":
                module, _, of = str(argument).partition(" ")
                self.stack.append(_named(module, of))
            elif name not in ("PROTO", "FRAME"):
                step = getattr(self, f"_do_{name.lower()}", None)
                if step is None:
                    raise DataError("refused: the pickle asks for an object to be built", found=name)
                step()
        raise DataError("the pickle is cut off")

    def _marked(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise DataError("the pickle is damaged: it takes what is not there")
        return self.stack.pop()

    def _do_mark(self) -> None:
        self.marks.append(len(self.stack))

    def _do_pop(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def _do_pop_mark(self) -> None:
        self._marked()

    def _do_dup(self) -> None:
        self.stack.append(self.stack[-1])

    def _do_empty_list(self) -> None:
        self.stack.append([])

    def _do_empty_dict(self) -> None:
        self.stack.append({})

    def _do_list(self) -> None:
        self.stack.append(self._marked())

    def _do_tuple(self) -> None:
        self.stack.append(tuple(self._marked()))

    def _do_tuple1(self) -> None:
        self.stack.append((self._pop(),))

    def _do_tuple2(self) -> None:
        second, first = self._pop(), self._pop()
        self.stack.append((first, second))

    def _do_tuple3(self) -> None:
        third, second, first = self._pop(), self._pop(), self._pop()
        self.stack.append((first, second, third))

    def _do_dict(self) -> None:
        items = self._marked()
        self.stack.append({})
        self._set(items)

    def _do_append(self) -> None:
        item = self._pop()
        self._extend([item])

    def _do_appends(self) -> None:
        self._extend(self._marked())

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise DataError("the pickle is damaged: it appends to what is no list")
        self.stack[-1].extend(items)

    def _do_setitem(self) -> None:
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def _do_setitems(self) -> None:
        self._set(self._marked())

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise DataError("the pickle is damaged: it sets items of what is no dict")
        for key in items[::2]:
            if not isinstance(key, (str, int, bytes)) or (isinstance(key, int) and abs(key) >= 1 << 63):
                raise DataError("a key that is no text", found=type(key).__name__)
        self.keys += len(items) // 2
        if self.keys > _MAX_KEYS:
            raise DataError("the pickle has more keys than a trajectory needs", expected=_MAX_KEYS)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[key.decode("latin1") if isinstance(key, bytes) else key] = value

    def _do_stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        self.stack.append(_named(module, name))

    def _do_reduce(self) -> None:
        arguments, called = self._pop(), self._pop()
        if not isinstance(called, _Global) or not isinstance(arguments, tuple):
            raise DataError("refused: the pickle calls what is no global", found=type(called).__name__)
        made = _made(called.role, arguments)
        if isinstance(made, bytes):
            self.copied += len(made)
            if self.copied > 2 * _MAX_BYTES:
                raise DataError("the pickle copies more than a trajectory needs", expected=f"{2 * _MAX_BYTES} bytes")
        self.stack.append(made)

    def _do_build(self) -> None:
        state = self._pop()
        target = self.stack[-1]
        if not isinstance(target, (_Array, _Type)):
            raise DataError("refused: the pickle sets the state of what has none", found=type(target).__name__)
        target.build(state)


def _named(module: object, name: object) -> _Global:
    role = _GLOBALS.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
    if role is None:
        raise DataError(
            "refused: the pickle asks for something that is no number or list; nothing of it was run",
            expected=", ".join(ALLOWED_GLOBALS),
            found=f"{ascii(module)[1:-1]}.{ascii(name)[1:-1]}"[:120] if isinstance(module, str) else "no name",
            hint="save it again with protocol=4" if name == "_frombuffer" else None,
        )
    return _Global(role)


def _made(role: _Role, arguments: tuple[Any, ...]) -> object:
    first = arguments[0] if arguments else None
    if role == "type":
        return _Type(first)
    if role == "reconstruct":
        if not isinstance(first, _Global) or first.role != "array":
            raise DataError("an array of another class")
        return _Array()
    second = arguments[1] if len(arguments) > 1 else ""
    if role == "encode":
        if not isinstance(first, str) or not isinstance(second, str) or second not in ("latin1", "latin-1"):
            raise DataError("an encoding other than latin1")
        return first.encode("latin1")
    if role == "scalar":
        raw = second.encode("latin1") if isinstance(second, str) else second
        if isinstance(first, _Type) and first.code != "O" and isinstance(raw, bytes):
            return float(first.numbers(raw, 1)[0])
    raise DataError(f"a call that gives no number ({role})")


def load_plain(data: bytes) -> object:
    """Reads a pickle of plain values and numpy arrays; runs nothing of it.

    Returns:
        What it holds; arrays come as stand-ins that only `read_poses` looks into.

    Raises:
        DataError: it names a global that is not admitted, asks for an object to be built, or is damaged.
    """
    try:
        return _Machine().run(data)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # a damaged pickle fails in any way
        raise DataError(f"the pickle is damaged: {type(error).__name__}: {str(error)[:120]}") from error


def read_poses(path: Path) -> tuple[Float64Array, Float64Array, list[str]]:
    """Reads positions and headings of a trajectory, in any of the forms that its writers gave them.

    Returns:
        float64 [P, 2] positions in m; float64 [Y] headings in rad; the other keys.

    Raises:
        DataError: it is refused, damaged, or holds no poses.
    """
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise DataError("too large for a trajectory", expected=f"at most {_MAX_BYTES} bytes", found=size)
    data = path.read_bytes()
    if not data:
        raise DataError("the file is empty")
    if data.startswith(b"version http"):
        raise DataError("a Git LFS pointer, not the file", hint="fetch it with `git lfs pull`")
    content = load_plain(data)
    if not isinstance(content, dict):
        raise DataError("not a trajectory", expected="a dict with position and yaw", found=type(content).__name__)
    keys = [str(key)[:80] for key in content]
    name = "position" if "position" in content else "pos"
    for key in (name, "yaw"):
        if key not in content:
            raise DataError(f"no {key}", expected="a dict with position and yaw", found=ascii(keys[:8])[:200])
    rows = _listed(content[name], name)
    positions = np.array([_pair(row, k) for k, row in enumerate(rows)], np.float64).reshape(-1, 2)
    yaws = np.array([_first(value, k) for k, value in enumerate(_listed(content["yaw"], "yaw"))], np.float64)
    return positions, yaws, [key for key in keys if key not in (name, "yaw")]


def _listed(value: object, key: str) -> list[Any]:
    if isinstance(value, _Array) and value.shape:
        return value.rows()
    if isinstance(value, (list, tuple)):
        return list(value)
    raise DataError("not a list or an array of one value a frame", where=key, found=type(value).__name__.strip("_"))


def _pair(row: object, k: int) -> tuple[float, float]:
    items = _small(row, f"position row {k}")
    if not isinstance(items, (list, tuple)) or len(items) < 2:
        raise DataError("not a pair of numbers", where=f"position row {k}")
    return _number(items[0], f"position row {k}"), _number(items[1], f"position row {k}")


def _small(value: object, where: str) -> object:
    """An array that is one row, as lists; anything else as it is."""
    if not isinstance(value, _Array):
        return value
    if value.count > _IN_A_ROW:
        raise DataError("an array too large for one row", where=where, found=f"{value.count} numbers")
    return value.rows()


def _first(value: object, k: int) -> float:
    for _ in range(_DEPTH):
        items = _small(value, f"yaw row {k}")
        if not isinstance(items, (list, tuple)):
            break
        if not items:
            raise DataError("no number", where=f"yaw row {k}")
        value = items[0]
    return _number(value, f"yaw row {k}")


def _number(value: object, where: str) -> float:
    if isinstance(value, _Array):
        value = value.items[0] if value.count == 1 else None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError as error:
            raise DataError("too large a number", where=where) from error
    raise DataError("not a number", where=where, found=type(value).__name__.strip("_"))
