"""How large the package is: what grows must raise a limit of `tests/size.toml` openly."""

import ast
import io
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
STRINGS = (ast.Constant, ast.JoinedStr)


def docstrings(tree: ast.Module) -> set[int]:
    """Return the lines of docstrings."""
    scopes = [node for node in ast.walk(tree) if isinstance(node, SCOPES) and node.body]
    first = [node.body[0] for node in scopes if ast.get_docstring(node, clean=False) is not None]
    return {line for node in first for line in range(node.lineno, node.end_lineno + 1)}


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the lines of code: without blank lines, comments and docstrings."""
    texts = text.split("\n")
    lines = {n for n, line in enumerate(texts, 1) if line.strip() and line.lstrip()[0] != "#"}
    outside = docstrings(tree)
    strings = (node for node in ast.walk(tree) if isinstance(node, STRINGS))
    inside = {n for node in strings for n in range(node.lineno, node.end_lineno + 1)} - outside
    if not inside <= lines:  # a blank line or a `#` in a string is code: tokens take longer
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        spans = [(t.start[0], t.end[0]) for t in tokens if t.type not in SKIPPED and t.string]
        lines = {n for begin, end in spans for n in range(begin, end + 1)}
    return lines - outside


def measure(root: Path, beside: tuple[str, ...]) -> dict[str, int]:
    """Return the sizes that have a limit."""
    sizes = dict.fromkeys(("code_lines", "with_beside", "short_functions"), 0)
    arrows, folders = set(), {path.parent.name for path in (root / "cqbjax").glob("*/__init__.py")}
    for path in [file for name in ("cqbjax", *beside) for file in (root / name).rglob("*.py")]:
        tree = ast.parse(text := path.read_text())
        lines, parts = code_lines(text, tree), path.relative_to(root).parts
        sizes["with_beside"] += len(lines)
        if parts[0] != "cqbjax":
            continue
        sizes["code_lines"] += len(lines)
        for node in ast.walk(tree):
            if isinstance(node, SCOPES[2:]):
                body = lines & {*range(node.lineno, node.end_lineno + 1)}
                sizes["short_functions"] += len(body) <= 3
            names = [one.name for one in getattr(node, "names", ()) if isinstance(one, ast.alias)]
            module = getattr(node, "module", None)
            for name in [f"{module}.{one}" for one in names] if module else names:
                other = f"{name}.".split(".")[1] if name.startswith("cqbjax.") else ""
                if other in folders and parts[1] in folders - {other}:
                    arrows.add((parts[1], other))
    return sizes | {"folders": len(folders), "import_arrows": len(arrows)}


def test_sizes_stay_below_their_limits():
    limits = tomllib.loads((ROOT / "tests" / "size.toml").read_text())
    sizes = measure(ROOT, ("benchmarks", "reproduction"))
    assert sizes.keys() == limits.keys()
    assert not {name: size for name, size in sizes.items() if size > limits[name]}, sizes


def test_size_counts_match_their_definition(tmp_path):
    texts = {
        "cqbjax/a/__init__.py": '"""A docstring."""\n\n# A comment.\nx = """two\nlines"""\n',
        "cqbjax/b/__init__.py": "",
        "cqbjax/b/c.py": "def f():\n    import cqbjax.a.x\n    import cqbjax.b.d\n    return 1\n",
        "beside/e.py": "from cqbjax.a import x\n\n\ndef g():\n    return x\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert measure(tmp_path, ("beside",)) == {
        "code_lines": 6, "with_beside": 9, "short_functions": 0, "folders": 2, "import_arrows": 1,
    }  # fmt: skip
