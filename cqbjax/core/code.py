"""A digest of the code that a result depends on.

The digest is part of the cache key of a result. Of this package, a module counts with all modules
of its folder (`cqbjax/policies/`): an edit of a policy changes the key, an edit of a module that
only draws figures does not. Of the code of a user, a module counts with all modules that it
imports, also inside functions. The standard library and installed packages are left out, except for
packages that define the classes of the computation.
"""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import os
import sys
import sysconfig
import textwrap
import types
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cqbjax.core.files import arrays_digest, file_digest, hash_parts, is_path, sha256

OWN = "cqbjax"


def digest(entries: Iterable[str], *parts: Any) -> str:
    """Hash the code that a computation runs.

    Args:
        entries: names of modules to start from; of this package, names of folders will do.
        parts: classes, functions, and trees of objects. Each adds its module and all modules that
            this one imports, directly or not. A definition in a notebook adds its source text; if
            the text is not available, the digest is unique. A third-party object also adds the
            arrays in its fields, and the content of every file that a field names.
    """
    roots, read = list[Any](), list[str]()
    _collect(parts, roots, read, set(), own=True)
    modules, texts = set(entries), set[str]()
    for root in roots:
        if _file_of(root.__module__) is None:
            texts |= set(_source_texts(root, modules, set()))
        else:
            modules.add(root.__module__)
    reached = _reached(modules)
    return hash_parts(*(f"{x} {reached[x]}" for x in sorted(reached)), *sorted(texts), *read)


def _collect(part: Any, roots: list[Any], read: list[str], seen: set[int], own: bool) -> None:
    """Collect the classes and functions in a tree, and the data of its third-party objects.

    Args:
        part: a part of the tree.
        roots: the list to which classes and functions are appended.
        read: the list to which hashes of arrays and of named files are appended.
        seen: ids of the objects visited so far.
        own: whether an object of this package holds the part; its data are hashed elsewhere.
    """
    if isinstance(part, type | types.FunctionType):
        roots.append(part)
    elif isinstance(part, str | os.PathLike):
        read += [] if own or not is_path(part) else [f"{part} {file_digest(Path(part))}"]
    elif isinstance(getattr(part, "dtype", None), np.dtype):
        read += [] if own else [arrays_digest([np.asarray(part)])]
    elif id(part) not in seen:
        seen.add(id(part))
        inside: Iterable[Any] = ()
        if isinstance(part, dict):
            inside = part.values()
        elif isinstance(part, list | tuple):
            inside = part
        elif dataclasses.is_dataclass(part) or _is_users(type(part)):
            roots += [kind for kind in inspect.getmro(type(part)) if kind is not object]
            own = type(part).__module__.startswith(f"{OWN}.")
            fields: Any = getattr(part, "__dataclass_fields__", None)
            inside = (getattr(part, name) for name in fields or getattr(part, "__dict__", ()))
        for inner in inside:
            _collect(inner, roots, read, seen, own)


def _is_users(kind: type) -> bool:
    """Return whether a class is a user's: not from this package, Python or an installed one."""
    top = kind.__module__.partition(".")[0]
    file = _file_of(top)
    return top not in {OWN, *sys.stdlib_module_names} and not (file and _is_installed(file))


def _reached(modules: Iterable[str]) -> dict[str, str]:
    """Return the digests of folders of this package, and of other modules and their imports."""
    left, reached = list(modules), dict[str, str]()
    named = {name.partition(".")[0] for name in left} - sys.stdlib_module_names
    while left:
        top, *inner = left.pop().split(".")
        name = ".".join([top, *inner[: 1 if top == OWN else None]])
        base = None if name in (OWN, *reached) else _file_of(top)
        if base is None or (top not in (OWN, *named) and _is_installed(base)):
            continue
        if top == OWN:
            reached[name] = _digest_folder(base.parent.joinpath(inner[0]))
            continue
        folder = base.parent if base.name == "__init__.py" else base
        place = folder.joinpath(*inner)
        files = (place.with_name(f"{place.name}.py"), place / "__init__.py") if inner else (base,)
        for file in filter(Path.is_file, files):
            state = file.stat()
            package = name if file.name == "__init__.py" else name.rpartition(".")[0]
            reached[name], imports = _parse(file, package, state.st_mtime_ns, state.st_size)
            left += [*imports, *filter(None, [name.rpartition(".")[0]])]
            break
    return reached


@functools.cache
def _digest_folder(folder: Path) -> str:
    """Hash the modules of a folder once, as they were imported: later edits did not run."""
    files = sorted([*folder.parent.glob(f"{folder.name}.py"), *folder.rglob("*.py")])
    return hash_parts(*(f"{file.name} {sha256(file)}" for file in files))


@functools.lru_cache(maxsize=4096)
def _parse(file: Path, package: str, *_: int) -> tuple[str, list[str]]:
    """Return a file's SHA-256, and the names of the modules that it may import."""
    names = list[str]()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            level = "." * node.level
            module = importlib.util.resolve_name(f"{level}{node.module or ''}", package)
            names += [module, *(f"{module}.{one.name}" for one in node.names)]
    return sha256(file), names


def _file_of(name: str) -> Path | None:
    """Return a module's file, or the folder of a package without `__init__.py`."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        found = getattr(loaded, "__file__", None)
        places = list(getattr(loaded, "__path__", []))
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        found = None if spec is None or not spec.has_location else spec.origin
        places = list(spec.submodule_search_locations or []) if spec else []
    return Path(found) if found else Path(places[0]) if places else None


@functools.cache
def _is_installed(file: Path) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    places = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    return any(file.is_relative_to(place) for place in places) or "site-packages" in file.parts


def _source_texts(thing: Any, modules: set[str], seen: set[int]) -> Iterator[str]:
    """Yield the source texts of a class or function in a notebook, and of its globals there.

    The modules that it uses are added to `modules`.
    """
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, types.ModuleType):
        modules.add(thing.__name__)
    elif isinstance(thing, type | types.FunctionType):
        if _file_of(thing.__module__) is not None:
            modules.add(thing.__module__)
        elif isinstance(thing, type):
            for kind in thing.__mro__[1:-1]:
                yield from _source_texts(kind, modules, seen)
            for name, member in vars(thing).items():
                inner = inspect.unwrap(getattr(member, "fget", None) or member)
                if isinstance(getattr(inner, "__func__", inner), types.FunctionType):
                    yield from _source_texts(getattr(inner, "__func__", inner), modules, seen)
                elif not name.startswith("__"):
                    yield f"{name}={member!r}"
        elif thing.__code__.co_filename != "<string>":  # not generated by dataclasses
            yield _text(thing)
            for name in _global_names(thing.__code__):
                if name in thing.__globals__:
                    yield from _source_texts(thing.__globals__[name], modules, seen)
    else:
        yield repr(thing) if isinstance(thing, str | int | float | tuple) else uuid.uuid4().hex


def _text(function: types.FunctionType) -> str:
    """Return a function's source text, or a unique string if it is not available."""
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return uuid.uuid4().hex


def _global_names(code: types.CodeType) -> set[str]:
    """Return the names that code reads, including its inner functions."""
    inner = [_global_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return {*code.co_names, *(name for names in inner for name in names)}
