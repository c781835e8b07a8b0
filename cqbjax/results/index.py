"""The index of a result store: the stored policies, arrival rates and seeds of every point.

A cache key determines the numbers of a point. A point may be stored in several files, each with
some of its policies, arrival rates and seeds. A study computes and stores only missing runs, and
joins the parts when it reads a point. If two parts hold the same run, the newer one is read.
"""

import contextlib
import itertools
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from cqbjax.core.files import hash_parts
from cqbjax.core.inputs import round_fraction
from cqbjax.core.labels import OPTIMAL
from cqbjax.results import files
from cqbjax.results.files import (
    ENDING,
    FormatError,
    Manifest,
    ResultError,
    StoredPoint,
    select_runs,
    shape_of,
)

# Manifest key: larger than that of all computations that were in the folder before.
ORDER = "order"
# Manifest key: arrival rates and seeds of an extensible point.
CELLS = "cells"
# Lengths of the parts of a file's name: the key of its points, and a random key of its writer.
KEY_LETTERS, WRITER_LETTERS = 16, 8

# An arrival rate and a seed; (None, None): all runs of a point that cannot be extended. Rates are
# rounded to 12 digits, so that .1 + .2 and .3 are the same rate.
Cell = tuple[float | None, int | None]


class CacheKey(NamedTuple):
    """Hashes of everything that determines the numbers of a point.

    Attributes:
        point: hash of configuration, data and code, without the policies, and without arrival rates
            and seeds if these can be added to the point later.
        policies: label -> hash of the policy's configuration and code.
    """

    point: str
    policies: Mapping[str, str]


class RunRequest(NamedTuple):
    """The runs of a point that a study needs.

    Attributes:
        name: name of the point.
        key: its cache key.
        rates: arrival rates; [None] if the point is not extensible.
        seeds: like `rates`.
    """

    name: str
    key: CacheKey
    rates: Sequence[float | None] = (None,)
    seeds: Sequence[int | None] = (None,)

    @property
    def cells(self) -> list[Cell]:
        """Each arrival rate with each seed."""
        return list(itertools.product(map(round_fraction, self.rates), self.seeds))


class IndexEntry(NamedTuple):
    """A stored part of a point.

    Attributes:
        file: its file.
        number: its index in the file.
        manifest: its manifest.
        unused: labels of its policies of which newer versions are read.
    """

    file: Path
    number: int
    manifest: Manifest
    unused: Sequence[str] = ()

    @property
    def age(self) -> tuple[int, str]:
        """Sort key of computations: the newest is largest, even if a clock was set back."""
        return int(self.manifest.get(ORDER, 0)), str(self.manifest.get("finished", ""))

    @property
    def cells(self) -> list[Cell]:
        """Its arrival rates and seeds."""
        stored = self.manifest.get(CELLS, {"arrival_rate": [None], "seed": [None]})
        return list(itertools.product(map(round_fraction, stored["arrival_rate"]), stored["seed"]))


class ResultIndex:
    """Index of the points in files, read from their descriptions only.

    Attributes:
        folder: the first path, to which new files are written.
        manifests: file -> the manifests of its points.
        unreadable: file -> the error of reading it.
        next_order: a number larger than that of any computation.
    """

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self.folder = next(iter(paths), Path())
        self._states: dict[Path, tuple[int, int, int]] = {}
        self.manifests: dict[Path, list[Manifest]] = {}
        self.unreadable: dict[Path, ResultError] = {}
        # (folder, point) -> key -> entries, the newest first in both.
        self._points: dict[tuple[Path, str], dict[str, list[IndexEntry]]] = {}
        self.refresh()

    @classmethod
    def of_study(cls, folder: Path, experiment: str) -> "ResultIndex":
        """Return the index of a study's folder.

        Raises:
            ValueError: the folder holds results of another experiment.
        """
        index = cls(folder)
        for file, manifests in index.manifests.items():
            others = {str(one.get("experiment", experiment)) for one in manifests} - {experiment}
            if others:
                raise ValueError(
                    f"{file} is of experiment {', '.join(others)}, and {folder} is where those of "
                    f"{experiment} go: move it away, or choose another name="
                )
        return index

    def refresh(self) -> None:
        """Read the descriptions of new and changed files."""
        states, known = dict[Path, tuple[int, int, int]](), self.manifests
        self.manifests, self.unreadable, self._points = {}, {}, {}
        for path in self._paths:
            for file in [path] if path.is_file() else sorted(path.rglob(f"*{ENDING}")):
                # Hidden files and folders below a folder hold no results.
                if any(part.startswith(".") for part in file.relative_to(path).parts):
                    continue
                try:
                    state = file.stat()
                    states[file] = state.st_mtime_ns, state.st_size, state.st_ino
                    if file not in known or states[file] != self._states.get(file):
                        known[file] = files.read_description(file)["points"]
                    self.manifests[file] = known[file]
                except FileNotFoundError:  # another process removed it
                    continue
                except ResultError as error:
                    self.unreadable[file] = error
        self._states = states
        every = [
            IndexEntry(file, number, manifest)
            for file in sorted(self.manifests)
            for number, manifest in enumerate(self.manifests[file])
        ]
        self.next_order = 1 + max((one.age[0] for one in every), default=0)
        for one in sorted(every, key=lambda each: each.age, reverse=True):
            keys = self._points.setdefault((one.file.parent, one.manifest["point"]), {})
            keys.setdefault(one.manifest["key"], []).append(one)

    def _stored(self, asked: RunRequest) -> list[IndexEntry]:
        return self._points.get((self.folder, asked.name), {}).get(asked.key.point, [])

    def missing(self, asked: RunRequest) -> dict[str, list[Cell]]:
        """Return label -> missing cells, for policies that lack any."""
        entries, lacking = self._stored(asked), dict[str, list[Cell]]()
        for label, key in asked.key.policies.items():
            own = [one for one in entries if one.manifest["policies"].get(label) == key]
            stored = {cell for one in own for cell in one.cells}
            if left := [cell for cell in asked.cells if cell not in stored]:
                lacking[label] = left
        return lacking

    def read(
        self, asked: Sequence[RunRequest], rounds: Sequence[int] | None = None
    ) -> list[xr.Dataset]:
        """Return stored points, and mark each as the newest stored point of its name.

        Each file is read once.

        Args:
            asked: points without missing runs.
            rounds: as in `results.load_points`.

        Raises:
            ResultError: a file is damaged; it is hidden, so that its points run again.
        """
        chosen = [covering(self._stored(one), one.key.policies, one.cells) for one in asked]
        self._renew(asked, chosen)
        rates = ([round_fraction(rate) for rate in one.rates] for one in asked)
        stored = read_entries(chosen, rounds, set_aside_damaged=True)
        return [
            select_runs(parts, [*one.key.policies], own, one.seeds).point
            for one, parts, own in zip(asked, stored, rates, strict=True)
        ]

    def _renew(self, asked: Sequence[RunRequest], chosen: Sequence[Sequence[IndexEntry]]) -> None:
        """Mark entries as the newest of their points if another key was computed after them."""
        order, renewed = {ORDER: self.next_order}, dict[Path, list[Manifest]]()
        for one, entries in zip(asked, chosen, strict=True):
            if next(iter(self._points[self.folder, one.name])) != one.key.point:
                for file, number, manifest, _ in entries:
                    renewed.setdefault(file, [*self.manifests[file]])[number] = manifest | order
        for file, manifests in renewed.items():
            files.replace_manifests(file, manifests)
        if renewed:
            self.refresh()

    def newest(self, key: str | None = None) -> dict[Any, list[IndexEntry]]:
        """Return the current entries by point.

        Args:
            key: cache key of an older computation, or its first characters; None: the newest of
                each point.

        Returns:
            (name, key) of a point -> its entries in all folders, the newest first.
        """
        points = dict[Any, list[IndexEntry]]()
        for (_, name), keys in self._points.items():
            for one in keys if key is not None else [next(iter(keys))]:
                if one.startswith(key or ""):
                    points.setdefault((name, one), []).extend(keys[one])
        for entries in points.values():
            entries.sort(key=lambda one: one.age, reverse=True)
        return points

    def computations(self) -> list[tuple[bool, Manifest]]:
        """Return each stored point's manifest, and whether its cache key is the newest."""
        every = [
            (entries is next(iter(keys.values())), one)
            for keys in self._points.values() for entries in keys.values() for one in entries
        ]  # fmt: skip
        every.sort(key=lambda each: (each[1].manifest["point"], each[1].age))
        return [(newest, one.manifest) for newest, one in every]

    def outdated(self) -> list[Path]:
        """Return the files of which every run has a newer version in another file."""
        newest = (covering(next(iter(keys.values()))) for keys in self._points.values())
        return sorted(self.manifests.keys() - {one.file for some in newest for one in some})

    def set_aside_unreadable(self) -> list[Path]:
        """Hide damaged files (`.torn`) and those of another format (`.older`); return new names."""
        hidden = [
            set_aside(file, "older" if isinstance(error, FormatError) else "torn")
            for file, error in self.unreadable.items()
        ]
        self.refresh()
        return hidden

    def store(
        self, points: Sequence[StoredPoint], replace: Sequence[Path] | None = None
    ) -> list[Path]:
        """Store points atomically, in one file for each shape.

        Processes may store the same points concurrently: each writes to a separate file, and skips
        points that another process has stored since.

        Args:
            points: points that ran together, with cache keys in their manifests.
            replace: files that are replaced if they hold the same points.

        Returns:
            The files, named by the hash of their points and a random key of the writer.

        Raises:
            ValueError: a file cannot be written, for example on a full disk.
        """
        self.refresh()
        order, by_shape = {ORDER: self.next_order}, dict[Any, list[StoredPoint]]()
        for one in points:
            stored = one._replace(manifest=one.manifest | order)
            by_shape.setdefault(shape_of(one.point), []).append(stored)
        written = []
        for some in by_shape.values():
            words = [
                str(word) for m in (one.manifest for one in some)
                for word in (m["point"], m["key"], *m["policies"].values(), m.get(CELLS))
            ]  # fmt: skip
            name = hash_parts(*words)[:KEY_LETTERS]
            same = [file for file in self.manifests if file.stem.startswith(name)]
            if new := [file for file in same if file not in (replace or ())]:
                written.append(new[0])
                continue
            file = self.folder / f"{name}{uuid.uuid4().hex[:WRITER_LETTERS]}{ENDING}"
            try:
                files.write_file(some, file)
            except OSError as error:
                raise ValueError(
                    f"{file} cannot be written ({error.strerror or error}): free some space, and "
                    "give the same command again; results stored before are not lost"
                ) from error
            for older in same:
                older.unlink(missing_ok=True)
            written.append(file)
        self.refresh()
        return written


def set_aside(file: Path, why: str) -> Path:
    """Hide a file, unless another process has done so, and return its new name."""
    hidden = file.with_name(f".{file.name}.{why}")
    with contextlib.suppress(FileNotFoundError):
        file.rename(hidden)
    return hidden


def covering(
    entries: Sequence[IndexEntry], policies: Mapping[str, str] | None = None,
    cells: Sequence[Cell] | None = None,
) -> list[IndexEntry]:  # fmt: skip
    """Return the entries with the newest versions of cells of policies, the newest first.

    Args:
        entries: entries of one point and key, the newest first.
        policies: label -> hash; None: the newest version of all that are stored.
        cells: arrival rates and seeds; None: all that are stored.
    """
    if policies is None:
        stored = (one.manifest["policies"] for one in reversed(entries))
        policies = {label: key for each in stored for label, key in each.items()}
    if cells is None:
        cells = [cell for one in entries for cell in one.cells]
    left, needed = {label: set(cells) for label in policies}, list[IndexEntry]()
    for one in entries:
        own, held = one.manifest["policies"], set(one.cells)
        used = {x for x, key in policies.items() if own.get(x) == key and left[x] & held}
        for label in used:
            left[label] -= held
        if used:
            needed.append(one._replace(unused=[x for x in own if x not in (*used, OPTIMAL)]))
    return needed if policies else list(entries[:1])


def read_entries(
    points: Sequence[Sequence[IndexEntry]], rounds: Sequence[int] | None,
    set_aside_damaged: bool = False,
) -> list[list[StoredPoint]]:  # fmt: skip
    """Return the labelled parts of each point; each file is read once.

    Raises:
        ResultError: a file is damaged.
    """
    numbers: dict[Path, set[int]] = {}
    for one in (entry for entries in points for entry in entries):
        numbers.setdefault(one.file, set()).add(one.number)
    read: dict[tuple[Path, int], StoredPoint] = {}
    for file, some in numbers.items():
        try:
            parts = files.read_file(file, rounds, some)
        except ResultError as error:
            if not set_aside_damaged:
                raise
            set_aside(file, "torn")
            again = "give the same command again, and its points run again"
            raise ResultError(f"{file} was damaged and is set aside: {again}") from error
        read |= {(file, i): one for i, one in zip(sorted(some), parts, strict=True)}
    return [[label_part(read[one.file, one.number], one) for one in own] for own in points]


def label_part(part: StoredPoint, entry: IndexEntry) -> StoredPoint:
    """Return a part without unused policies, and label it.

    The keys that its study varied, and its file, become attributes.
    """
    point, labels = part.point, part.point["policy"].values.tolist()
    if {*labels} & {*entry.unused}:
        point = point.sel(policy=[label for label in labels if label not in entry.unused])
    attrs = part.manifest.get("varied", {}) | point.attrs | {"path": str(entry.file)}
    point = point.drop_attrs(deep=False)
    point = point.assign_attrs({key: round_fraction(value) for key, value in attrs.items()})
    if "arrival_rate" in point.coords:
        rates = point["arrival_rate"]
        rounded = [round_fraction(rate) for rate in rates.values.tolist()]
        point = point.assign_coords(arrival_rate=("arrival_rate", rounded, rates.attrs))
    return part._replace(point=point)
