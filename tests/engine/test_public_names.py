"""The public names of the package: listed, importable, and without JAX until they are used."""

import subprocess
import sys

import cqbjax


def test_every_public_name_is_listed_and_importable():
    assert set(cqbjax.__all__) == set(cqbjax._MODULES) <= set(dir(cqbjax))
    for name in cqbjax.__all__:
        assert getattr(cqbjax, name) is not None


def test_importing_the_package_does_not_import_jax():
    listed = "import sys, cqbjax; dir(cqbjax); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", listed], check=False).returncode == 0
