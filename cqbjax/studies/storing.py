"""Points' results: where they are stored, and which are there already."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
import yaml
from omegaconf import DictConfig, OmegaConf

from cqbjax.core.files import content_key
from cqbjax.core.labels import OPTIMAL
from cqbjax.results import stored as results
from cqbjax.store import shards
from cqbjax.studies.grid import Ready
from cqbjax.studies.manifests import Content, Finished, content_of, manifest_of


class Stock:
    """What loading a folder gives: which policies of which points, by their contents."""

    def __init__(self, folder: Path, experiment: str) -> None:
        held = _manifests(folder)
        for file, manifests in held.items():
            theirs = {one["experiment"] for one in manifests} - {experiment}
            if theirs:
                raise ValueError(
                    f"{file} is of experiment {', '.join(theirs)}, and {folder} is where those of "
                    f"{experiment} go: move it away, or choose another name="
                )
        pieces = [manifest for of_file in held.values() for manifest in of_file]
        self._stored: dict[str, Content] = {}
        # As in `results.stored_points` the newest counts, and what else is of its content.
        for piece in sorted(pieces, key=lambda manifest: manifest["finished"], reverse=True):
            own = Content(piece["content"], piece["policies"])
            newest = self._stored.setdefault(piece["point"], own)
            if own.point == newest.point:
                both = Content(own.point, {**own.policies, **newest.policies})
                self._stored[piece["point"]] = both

    def left(self, ready: Ready) -> Ready:
        """Return a point with those of its policies alone that are not stored."""
        if ready.point.name not in self._stored or ready.point.config.rerun:
            return ready
        missing = self.missing(ready.point.name, content_of(ready))
        kept = {label: policy for label, policy in ready.policies.items() if label in missing}
        return ready._replace(policies=kept)

    def missing(self, name: str, content: Content) -> set[str]:
        """Return the labels of a point's policies that are not stored with this content."""
        there = self._stored.get(name)
        if there is None or there.point != content.point:
            return set(content.policies)
        known = there.policies
        return {label for label, key in content.policies.items() if known.get(label) != key}


def check_writable(folder: Path) -> None:
    """Make a folder, and refuse one in which no file can be written.

    Raises:
        ValueError: naming it, and why.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"results_dir: {folder} cannot be written ({error.strerror}); name a folder that can"
        ) from error


def set_aside_torn(folder: Path) -> list[Path]:
    """Hide the files that are torn, so that none is taken for a result; return their new names."""
    torn = []
    for file in sorted(folder.glob(f"*{results.ENDING}")):
        try:
            shards.read_manifests(file)
        except results.ResultError:
            torn.append(file.rename(file.with_name(f".{file.name}.torn")))
    return torn


def _manifests(folder: Path) -> dict[Path, list[dict[str, Any]]]:
    """Return the manifests of a folder's files, but for what is torn or of an older kind."""
    by_file = {}
    for file in sorted(folder.glob(f"*{results.ENDING}")):
        try:
            manifests = shards.read_manifests(file)
        except results.ResultError:
            continue  # its points are computed again; who loads it is told
        if all(manifest.get("content") and "policies" in manifest for manifest in manifests):
            by_file[file] = manifests
    return by_file


def store(points: Sequence[Finished], folder: Path) -> list[Path]:
    """Store points atomically, in a file for each shape, with manifest and configuration.

    Args:
        points: that ran together.
        folder: of the experiment.

    Returns:
        The files.

    Raises:
        ValueError: one cannot be written, as on a full disk.
    """
    by_shape: dict[Any, list[shards.Stored]] = {}
    for one in points:
        config = _yaml(one.point.config)
        stored = shards.Stored(one.data, manifest_of(one), config)
        by_shape.setdefault(shards.shape(one.data), []).append(stored)
    written = []
    for alike in by_shape.values():
        file = _place([one.manifest for one in alike], folder)
        try:
            shards.write(alike, file)
        except OSError as error:
            raise ValueError(
                f"{file} cannot be written ({error.strerror or error}): make room, and give the "
                "same command again; what was stored before is kept"
            ) from error
        written.append(file)
    return written


def _place(manifests: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Return the file of points: a point's name; of several, how many and what tells them apart.

    A file of the name stays if it holds other policies of the same point.
    """
    words = [
        word for m in manifests for word in (m["point"], m["content"], *m["policies"].values())
    ]
    key = content_key(*words)[:12]
    if len(manifests) > 1:
        return folder / f"{len(manifests)}_points_{key}{results.ENDING}"
    (manifest,) = manifests
    plain = folder / f"{manifest['point']}{results.ENDING}"
    return (
        plain.with_name(f"{manifest['point']}+{key}{results.ENDING}")
        if _adds_to(plain, manifest)
        else plain
    )


def _adds_to(file: Path, manifest: Mapping[str, Any]) -> bool:
    """Tell whether a file holds policies of the same point that are not to be lost."""
    try:
        (there,) = shards.read_manifests(file)
    except (results.ResultError, ValueError):
        return False
    new = set(manifest["policies"]) | {OPTIMAL}
    return there.get("content") == manifest["content"] and not set(there.get("policies", ())) <= new


def read(
    names: Sequence[str], folder: Path, rounds: Sequence[int] | None = None
) -> list[xr.Dataset]:
    """Return points of a folder by name; it may hold more.

    Args:
        names: of points that are stored.
        folder: of the experiment.
        rounds: as in `results.load_points`.
    """
    stored = {
        one.manifest["point"]: one.point
        for one in results.stored_points(folder, rounds)
        if Path(one.point.attrs["path"]).parent == folder
    }
    return [stored[name] for name in names]


def drop_outdated(folder: Path) -> None:
    """Delete the files of which every point has been computed anew since."""
    held = _manifests(folder)
    newest: dict[str, tuple[str, str]] = {}
    for manifest in (one for of_file in held.values() for one in of_file):
        stamp = manifest["finished"], manifest["content"]
        newest[manifest["point"]] = max(newest.get(manifest["point"], stamp), stamp)
    for file, manifests in held.items():
        if not any(m["content"] == newest[m["point"]][1] for m in manifests):
            file.unlink(missing_ok=True)


def _yaml(config: DictConfig) -> str:
    """Return a configuration as YAML; LibYAML writes it in a third of OmegaConf's time."""
    plain = OmegaConf.to_container(config, resolve=True)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True))
