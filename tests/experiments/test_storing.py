"""What is stored of an experiment: which points are there, and which of several is read."""

import numpy as np
import pytest
from fabricated import fabricate

from cqbjax.experiments.manifests import Content
from cqbjax.experiments.storing import Stock
from cqbjax.results import pieces
from cqbjax.results import stored as results

POINT, LABELS = "K=1", ("acqb", "random")


def keep(folder, name, day, content="c", regret=0.0, **policies):
    """Store a piece of a point whose regret is one number."""
    point = fabricate(LABELS, num_seeds=2, horizon=6).sel(policy=list(policies))
    point["regret"] = point["regret"] * 0 + regret
    said = {"experiment": "mine", "point": POINT, "content": content, "policies": policies}
    results.save(point, said | {"finished": day}, "K: 1\n", folder / f"{name}.nc")


def regrets(point):
    """Return each policy's regret, in the order in which they stand."""
    last = point["regret"].isel(arrival_rate=0, seed=0, round=-1)
    return dict(zip(point["policy"].values.tolist(), last.values.tolist(), strict=True))


def read(folder, content="c", **policies):
    (point,) = Stock(folder, "mine").read([POINT], [Content(content, policies)])
    return regrets(point)


def test_a_policy_is_missing_unless_it_is_stored_with_its_key_and_its_points(tmp_path):
    keep(tmp_path, "a", "1", acqb="k1", random="k2")
    stock = Stock(tmp_path, "mine")
    for content, name, missing in (
        (Content("c", {"acqb": "k1", "random": "k2"}), POINT, set()),
        (Content("c", {"acqb": "k3", "random": "k2"}), POINT, {"acqb"}),
        (Content("c", {"acqb": "k1", "zero": "k1"}), POINT, {"zero"}),
        (Content("d", {"acqb": "k1"}), POINT, {"acqb"}),
        (Content("c", {"acqb": "k1"}), "K=2", {"acqb"}),
    ):
        assert stock.missing(name, content) == missing
    with pytest.raises(ValueError, match="is of experiment mine, and .* is where those of other"):
        Stock(tmp_path, "other")


@pytest.mark.parametrize("newer", ["a", "z"])
def test_of_two_results_of_one_key_the_newer_is_read_whatever_their_names(tmp_path, newer):
    keep(tmp_path, "m", "1", regret=1.0, acqb="k1", random="k2")
    keep(tmp_path, newer, "2", regret=2.0, acqb="k1")
    assert read(tmp_path, acqb="k1", random="k2") == {"acqb": 2.0, "random": 1.0}


def test_each_policy_is_read_by_its_own_key(tmp_path):
    keep(tmp_path, "a", "1", regret=1.0, acqb="k1", random="k2")
    keep(tmp_path, "b", "2", regret=2.0, acqb="k3", random="k2")
    assert read(tmp_path, acqb="k1", random="k2") == {"acqb": 1.0, "random": 2.0}
    assert read(tmp_path, acqb="k3") == {"acqb": 2.0}


def test_what_is_asked_for_again_is_the_newest_and_nothing_else_is_touched(tmp_path):
    keep(tmp_path, "a", "1", content="c", regret=1.0, acqb="k1")
    keep(tmp_path, "b", "2", content="d", regret=2.0, acqb="k1")
    said = {name: (tmp_path / f"{name}.json").read_bytes() for name in "ab"}
    assert read(tmp_path, "d", acqb="k1") == {"acqb": 2.0}
    assert said == {name: (tmp_path / f"{name}.json").read_bytes() for name in "ab"}
    assert read(tmp_path, "c", acqb="k1") == {"acqb": 1.0}
    assert said["b"] == (tmp_path / "b.json").read_bytes()
    (manifest,) = pieces.manifests_of(tmp_path / "a.nc")
    assert manifest["order"] == 1 and manifest["finished"] == "1"
    assert regrets(results.load(tmp_path)) == {"acqb": 1.0}


def test_a_torn_piece_is_set_aside_and_its_points_are_missing(tmp_path):
    keep(tmp_path, "a", "1", acqb="k1")
    file = tmp_path / "a.nc"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(results.ResultError, match="was torn and is set aside"):
        read(tmp_path, acqb="k1")
    assert Stock(tmp_path, "mine").missing(POINT, Content("c", {"acqb": "k1"})) == {"acqb"}
    assert {path.name for path in tmp_path.iterdir()} == {".a.nc.torn", ".a.json.torn"}


def test_rounds_are_those_that_are_asked_for(tmp_path):
    keep(tmp_path, "a", "1", acqb="k1")
    content = [Content("c", {"acqb": "k1"})]
    (point,) = Stock(tmp_path, "mine").read([POINT], content, rounds=[4, 6])
    np.testing.assert_array_equal(point["round"], [4, 6])
