"""Logs for the tests of chains."""

import pytest
from logs import embedder

from cqbjax.chains import generate, prepare


@pytest.fixture(scope="session")
def generated(shared_data, tmp_path_factory):
    """A small generated log, prepared: its data folder, its shards below `log`."""
    folder = tmp_path_factory.mktemp("generated")
    settings = generate.Settings(2500, longer=4.0, early=0.03, follow_ups=0.08)
    generate.generate(folder / "log", shared_data, settings, shard_rows=700)
    prepare.prepare(folder, folder / "log", embedder=embedder, progress=False)
    return folder
