"""A digest of the code that a result depends on: all modules that a computation imports.

The digest is part of the cache key of a result. An edit of the simulator, of a policy or of a
module that a user's policy imports changes the key; an edit of a module that only draws figures
does not. Import statements are read from the source files, also inside functions, without importing
a module. The standard library and installed packages are left out, except for this package and the
packages that define the classes of the computation.
"""

import ast
import contextlib
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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cqbjax.core.files import arrays_digest, file_digest, hash_parts, is_path, sha256

OWN = "cqbjax"
# Modules that log or store results, and so cannot change them.
EXCLUDED_MODULES = (
    "cqbjax.engine.progress", "cqbjax.engine.checkpoints", "cqbjax.core.code",
    "cqbjax.experiments.study_types",
)  # fmt: skip


def digest(entries: Iterable[str], *parts: Any) -> str:
    """Hash the code that a computation runs.

    Args:
        entries: names of modules to start from.
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
    return hash_parts(_digest_modules(frozenset(modules)), *sorted(texts), *read)


def modules(entries: Iterable[str], *parts: Any) -> list[str]:
    """Return the names of the modules that `digest` includes, sorted."""
    roots = list[Any]()
    _collect(parts, roots, [], set(), own=True)
    return sorted(_reached({*entries, *(root.__module__ for root in roots)}))


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


def _digest_modules(roots: frozenset[str]) -> str:
    """Hash modules and all their imports; reuse the last digest if no file has changed."""
    if roots in _digest_caches[-1]:
        return _digest_caches[-1][roots]
    places = frozenset((name, _file_of(name)) for name in roots)
    key, states = _digests.get(places, ("", {}))
    if not states or any(_state(file) != state for file, state in states.items()):
        reached = _reached(set(roots))
        states = {os.fspath(file): _state(os.fspath(file)) for file in reached.values()}
        key = hash_parts(*(f"{name} {_parsed(reached[name]).digest}" for name in sorted(reached)))
        _digests[places] = key, states
    if len(_digest_caches) > 1:
        _digest_caches[-1][roots] = key
    return key


@contextlib.contextmanager
def cache_file_states() -> Iterator[None]:
    """Within this context, check each file for changes only once, for the digests of a grid."""
    _digest_caches.append({})
    try:
        yield
    finally:
        _digest_caches.pop()


# Modules -> their digest, for each `cache_file_states` context; the first entry stays empty.
_digest_caches: list[dict[frozenset[str], str]] = [{}]


# Modules with their files -> their digest, and the state of every file that it includes.
_digests: dict[frozenset[Any], tuple[str, dict[str, tuple[int, int] | None]]] = {}


def _state(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class _Parsed(NamedTuple):
    """The parsed file of a module.

    Attributes:
        digest: the file's SHA-256.
        imports: (module, name) of each import; the name is "" for `import module`.
        names: for an `__init__.py` that only lists names, all imports including those for type
            checking; None if the file has other code.
    """

    digest: str
    imports: tuple[tuple[str, str], ...]
    names: tuple[tuple[str, str], ...] | None


def _parsed(file: Path) -> _Parsed:
    """Parse a file, or return the cached result if it has not changed."""
    state = file.stat()
    return _parsed_once(file, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=4096)
def _parsed_once(file: Path, *_: int) -> _Parsed:
    tree = ast.parse(file.read_bytes())
    lists = file.name == "__init__.py" and all(map(_is_listing, tree.body))
    typed = [node for one in tree.body if isinstance(one, ast.If) for node in one.body]
    names = tuple(_imports([*tree.body, *typed])) if lists else None
    return _Parsed(sha256(file), tuple(_imports(tree.body)), names)


def _is_listing(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring, an import, or sets `__all__` and the like."""
    if isinstance(statement, ast.Assign):
        return "__" in ast.unparse(statement.targets[0])
    if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
        return all(map(_is_listing, statement.body))
    docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return docstring or isinstance(statement, ast.Import | ast.ImportFrom)


# Nodes that may contain statements; expressions, which are most nodes, cannot.
_HOLDING = (ast.stmt, ast.excepthandler, ast.match_case)


def _imports(body: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the imports of statements, except those only for type checking."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((module, name.name) for name in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(node.orelse)
        else:
            inner = ast.iter_child_nodes(node)
            yield from _imports(one for one in inner if isinstance(one, _HOLDING))


def _reached(roots: set[str]) -> dict[str, Path]:
    """Return the files of modules and of all their imports, by module name."""
    tops = {name.partition(".")[0] for name in roots}
    own = frozenset({OWN, *tops} - sys.stdlib_module_names)
    # Cached during this call, since most modules have many importers.
    find = functools.cache(functools.partial(_file, own=own))
    parsed = functools.cache(_parsed)
    reached: dict[str, Path] = {}
    left = list(roots)
    while left:
        name = left.pop()
        file = find(name)
        if file is None or name in reached or name in EXCLUDED_MODULES:
            continue
        reached[name] = file
        for module, taken in parsed(file).imports:
            left += _imported_modules(_full_name(module, name, file), taken, find, parsed)
        if not name.startswith(f"{OWN}."):
            parents = name.split(".")[:-1]
            left += [".".join(parents[: i + 1]) for i in range(len(parents))]
    return reached


def _full_name(module: str, importer: str, file: Path) -> str:
    """Return the full name of a module that `importer` imports, perhaps relatively."""
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    package = importer.split(".") if file.name == "__init__.py" else importer.split(".")[:-1]
    base = package[: len(package) - level + 1]
    return ".".join([*base, *filter(None, [module.lstrip(".")])])


def _imported_modules(
    module: str, taken: str, find: Callable[[str], Path | None], parsed: Callable[[Path], _Parsed]
) -> list[str]:
    """Return the modules that `from module import taken` imports.

    `find` and `parsed` are the cached functions of `_reached`.
    """
    if taken and find(f"{module}.{taken}") is not None:
        return [f"{module}.{taken}"]
    file = find(module)
    if file is not None and taken:
        for inner, name in parsed(file).names or ():
            if name == taken:
                return _imported_modules(_full_name(inner, module, file), taken, find, parsed)
    return [module]


def _file(name: str, own: frozenset[str]) -> Path | None:
    """Return the file of a module, without importing it; None if the digest leaves it out."""
    top, *rest = name.split(".")
    base = _file_of(top)
    if base is None or (top not in own and _is_installed(base)):
        return None
    if not rest:
        return base if base.suffix == ".py" else None
    folder = base.parent if base.name == "__init__.py" else base
    inner = folder.joinpath(*rest)
    for file in (inner.with_name(f"{inner.name}.py"), inner / "__init__.py"):
        if file.is_file():
            return file
    return None


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
