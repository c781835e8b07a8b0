"""Points' results: where they are stored, and which are there already."""

import contextlib
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr
import yaml

from cqbjax.core.files import content_key
from cqbjax.core.labels import OPTIMAL
from cqbjax.experiments import configs
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import Ready
from cqbjax.experiments.manifests import FOR_SHOW, Content, Finished, manifest_of
from cqbjax.results import pieces
from cqbjax.results import stored as results
from cqbjax.results.layout import OlderError, Stored, shape

# Of the keys in which a stored point differs so many are told.
MOST_TOLD = 4
# Of a piece's name: those of the key of what is in it. The others are of its writer.
KEY_LETTERS = 16


class Stock:
    """What is stored of an experiment, known without opening any array."""

    def __init__(self, folder: Path, experiment: str) -> None:
        self._pieces = _described(folder)
        for file, manifests in self._pieces.items():
            theirs = {one["experiment"] for one in manifests} - {experiment}
            if theirs:
                raise ValueError(
                    f"{file} is of experiment {', '.join(theirs)}, and {folder} is where those of "
                    f"{experiment} go: move it away, or choose another name="
                )
        # Point -> content -> policy -> its own content -> where it is, the newest last.
        self._places: dict[str, dict[str, dict[tuple[str, str], _Place]]] = {}
        self._newest: dict[str, _Place] = {}
        every = [
            (piece, _Place(file, number))
            for file, of_file in self._pieces.items() for number, piece in enumerate(of_file)
        ]  # fmt: skip
        for piece, place in sorted(every, key=lambda one: pieces.stamp(one[0])):
            contents = self._places.setdefault(piece["point"], {})
            there = contents.pop(piece["content"], {})
            contents[piece["content"]] = there | dict.fromkeys(piece["policies"].items(), place)
            self._newest[piece["point"]] = place

    def left(self, ready: Ready) -> Ready:
        """Return a point with those of its policies alone that are not stored."""
        if ready.point.config.rerun:
            return ready
        missing = self.missing(ready.point.name, ready.kind.content(ready))
        kept = {label: policy for label, policy in ready.policies.items() if label in missing}
        return ready._replace(policies=kept)

    def missing(self, name: str, content: Content) -> set[str]:
        """Return the labels of a point's policies that are not stored with this content."""
        known = self._places.get(name, {}).get(content.point, {})
        return {label for label, key in content.policies.items() if (label, key) not in known}

    def others(self, left: Sequence[Ready]) -> dict[str, str]:
        """Return point -> in what its newest stored computation differs, for those that have one.

        Args:
            left: points that are about to run.
        """
        told, first = dict[str, str](), ""
        for ready in left:
            contents, content = self._places.get(ready.point.name, {}), ready.kind.content(ready)
            here = {label for label, _ in contents.get(content.point, {})}
            again = ", ".join(label for label in ready.policies if label in here)
            if again:
                told[ready.point.name] = f"another {again}"
            elif contents and not here:
                (place, *_) = list(contents.values())[-1].values()
                first = first or _difference(place, ready.point.config)
                told[ready.point.name] = first
        return told

    def read(
        self, names: Sequence[str], contents: Sequence[Content], rounds: Sequence[int] | None = None
    ) -> list[xr.Dataset]:
        """Return stored points, from now on the newest of theirs; each piece is read once.

        Args:
            names: of points all of whose policies are stored.
            contents: of each.
            rounds: as in `results.load_points`.

        Raises:
            ResultError: a piece is torn; it is set aside, so that its points run again.
        """
        wanted = [self._of(name, content) for name, content in zip(names, contents, strict=True)]
        self._ask_again(dict(zip(names, wanted, strict=True)))
        numbers: dict[Path, set[int]] = {}
        for file, number in (place for places in wanted for place in places):
            numbers.setdefault(file, set()).add(number)
        parts: dict[tuple[Path, int], Stored] = {}
        for file, some in numbers.items():
            try:
                read = pieces.read(file, rounds, some)
            except results.ResultError as error:
                set_aside(file)
                raise results.ResultError(
                    f"{file} was torn and is set aside: give the same command again, and what it "
                    "held is run anew"
                ) from error
            parts |= {(file, i): one for i, one in zip(sorted(some), read, strict=True)}
        return [
            pieces.labelled(
                pieces.joined([_of_policies(parts[p], labels) for p, labels in places.items()]),
                min(places).file,
            ).point
            for places in wanted
        ]

    def _of(self, name: str, content: Content) -> dict["_Place", set[str]]:
        """Return where a point's policies are, all of which are stored."""
        known = self._places[name][content.point]
        places: dict[_Place, set[str]] = {}
        for policy in content.policies.items():
            places.setdefault(known[policy], set()).add(policy[0])
        return places

    def _ask_again(self, wanted: Mapping[str, Mapping["_Place", set[str]]]) -> None:
        """Make points the newest of theirs, where another content of one was computed later."""
        order = {pieces.ORDER: pieces.next_order(self._pieces)}
        asked: dict[Path, set[int]] = {}
        for name, places in wanted.items():
            for place in places if self._newest[name] not in places else ():
                asked.setdefault(place.file, set()).add(place.number)
        for file, numbers in asked.items():
            manifests = enumerate(self._pieces[file])
            pieces.describe(file, [m | order if i in numbers else m for i, m in manifests])


def told_of_others(left: Sequence[Ready], folder: Path) -> list[str]:
    """Say that points about to run are stored as computed otherwise, and what becomes of that."""
    others = Stock(folder, left[0].point.config.name).others(left) if left else {}
    if not others:
        return []
    name, what = next(iter(others.items()))
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return [
        f"{name}{more} stored with {what}: kept, though results.load gives the newest; "
        f"`cqbjax stored {folder}` lists both, and drops what is outdated"
    ]


class _Place(NamedTuple):
    """Where a point is stored: the piece, and the point's number in it."""

    file: Path
    number: int


def _of_policies(one: Stored, labels: set[str]) -> Stored:
    """Keep some policies of a stored point, and the yardstick."""
    kept = [label for label in one.point["policy"].values if label in {*labels, OPTIMAL}]
    return one._replace(point=one.point.sel(policy=kept))


def _difference(place: _Place, config: Config) -> str:
    """Say in what a stored point differs from a configuration."""
    try:
        ((_, _, text),) = pieces.read(place.file, [1], [place.number])
    except results.ResultError:
        return "torn"
    old, new = (_flat(yaml.safe_load(one)) for one in (text, _yaml(config)))
    keys = [key for key in dict.fromkeys([*old, *new]) if key.partition(".")[0] not in FOR_SHOW]
    apart = [
        f"{key}={old.get(key)}" for key in keys
        if old.get(key) != new.get(key) and key.partition(".")[0] != "policy"
    ]  # fmt: skip
    if len(apart) > MOST_TOLD:
        apart = [*apart[:MOST_TOLD], f"and {len(apart) - MOST_TOLD} more"]
    return ", ".join(apart) or "other code or data"


def _flat(tree: Any, above: str = "") -> dict[str, Any]:
    """Return the values of a nested configuration by their dotted keys."""
    if not isinstance(tree, dict):
        return {above: tree}
    inner = (_flat(value, f"{above}.{key}" if above else str(key)) for key, value in tree.items())
    return {key: value for some in inner for key, value in some.items()}


def set_aside_torn(folder: Path) -> list[Path]:
    """Hide pieces that are torn, or of an older version; return their new names.

    Neither is then taken for a result. The name's ending says which it was: `.torn` or `.older`.
    """
    hidden = []
    for file in pieces.found(folder):
        try:
            pieces.manifests_of(file)
        except results.ResultError as error:
            hidden.append(set_aside(file, "older" if isinstance(error, OlderError) else "torn"))
    return hidden


def set_aside(file: Path, why: str = "torn") -> Path:
    """Hide a piece, which another process may have done, and return its new name."""
    for one in (file.with_suffix(pieces.SAID), file):
        with contextlib.suppress(FileNotFoundError):
            one.rename(one.with_name(f".{one.name}.{why}"))
    return file.with_name(f".{file.name}.{why}")


def _described(folder: Path) -> dict[Path, list[dict[str, Any]]]:
    """Return the manifests of a folder's pieces, but for what is torn or of an older kind."""
    by_file = {}
    for file in pieces.found(folder) if folder.is_dir() else ():
        if file.parent != folder:
            continue
        try:
            manifests = pieces.manifests_of(file)
        except results.ResultError:
            continue  # its points are computed again; who loads it is told
        if all(manifest.get("content") and "policies" in manifest for manifest in manifests):
            by_file[file] = manifests
    return by_file


def store(points: Sequence[Finished], folder: Path, known: Collection[Path] = ()) -> list[Path]:
    """Store points atomically, in a piece for each shape, with manifest and configuration.

    Processes may store the same points at once: no two write the same file, and what another has
    stored meanwhile is not stored again.

    Args:
        points: that ran together.
        folder: of the experiment.
        known: the pieces that were there when the points began to run.

    Returns:
        The files. Each is named by the key of what is in it, and a word of its own.

    Raises:
        ValueError: one cannot be written, as on a full disk.
    """
    by_shape: dict[Any, list[Stored]] = {}
    order = {pieces.ORDER: pieces.next_order(_described(folder))}
    for one in points:
        config = _yaml(one.ready.point.config)
        stored = Stored(one.data, manifest_of(one) | order, config)
        by_shape.setdefault(shape(one.data), []).append(stored)
    written = []
    for alike in by_shape.values():
        words = [
            word for m in (one.manifest for one in alike)
            for word in (m["point"], m["content"], *m["policies"].values())
        ]  # fmt: skip
        key = content_key(*words)[:KEY_LETTERS]
        same = [one for one in _described(folder) if one.stem.startswith(key)]
        again = points[0].ready.point.config.rerun
        if new := [one for one in same if not again or one not in known]:
            written.append(new[0])
            continue
        own = uuid.uuid4().hex[: pieces.KEY_LETTERS - KEY_LETTERS]
        file = folder / f"{key}{own}{results.ENDING}"
        try:
            pieces.write(alike, file)
        except OSError as error:
            raise ValueError(
                f"{file} cannot be written ({error.strerror or error}): make room, and give the "
                "same command again; what was stored before is kept"
            ) from error
        for older in same:  # which were to be run again
            pieces.drop(older)
        written.append(file)
    return written


def _yaml(config: Config) -> str:
    """Return a configuration as YAML; LibYAML writes it in a third of Python's time."""
    plain = configs.plain(config)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True))
