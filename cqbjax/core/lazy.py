"""Lazy packages, whose names are imported on first use, and modules that extras install."""

import ast
import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    The package has the names that its `__init__.py` imports under `if TYPE_CHECKING:`.

    Args:
        package: full name of the package.
    """

    @functools.cache
    def read_homes() -> dict[str, str]:
        tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text())
        blocks = [node for node in tree.body if isinstance(node, ast.If)]
        imports = [one for block in blocks for one in block.body if isinstance(one, ast.ImportFrom)]
        return {alias.name: str(one.module) for one in imports for alias in one.names}

    def load(name: str) -> Any:
        home = None if name.startswith("__") else read_homes().get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value: Any = importlib.import_module(f"{home}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{home}.{name}":
                raise
            value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *read_homes()})


def import_extra(name: str, extra: str, part: str) -> Any:
    """Import a module that an extra of this package installs.

    Args:
        name: full name of the module.
        extra: name of the extra.
        part: what needs the module, for the error.

    Raises:
        ValueError: the module is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"{part} needs {name}, which is not installed: pip install 'cqbjax[{extra}]'"
        ) from error


@dataclasses.dataclass(frozen=True)
class ExtraModule:
    """A module that `import_extra`, which has these arguments, imports at its first use."""

    name: str
    extra: str
    part: str

    def __getattr__(self, attribute: str) -> Any:
        """Import the module and return its attribute."""
        return getattr(import_extra(self.name, self.extra, self.part), attribute)
