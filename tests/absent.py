"""What a test needs and a user's machine need not have."""

import os

import pytest


def skip_or_fail(reason):
    """Skip the test with the reason; where CI is set it must run, so it fails."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
