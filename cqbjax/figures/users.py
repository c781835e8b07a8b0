"""What users feel, drawn: of a study, the figures that its recorders allow."""

from collections.abc import Iterator, Sequence

import xarray as xr
from matplotlib.figure import Figure

from cqbjax.figures import quality, times
from cqbjax.figures.curves import Spread, draw_curves
from cqbjax.figures.sweeps import draw_over_keys

WAITING, ELSEWHERE = "queue_length", ("away", "in_service")
# Of many points one number each is drawn: the time that one query in a hundred exceeds.
LONG_TIME = "time_99"


def of_users(
    points: Sequence[xr.Dataset], few: bool, spread: Spread
) -> Iterator[tuple[str, Figure]]:
    """Draw cost against quality, times in system, and who waits over time in each world.

    Args:
        points: of a study, as `results.load_points` returns them.
        few: whether each point can have a panel of its own; of more the numbers at the runs' end
            are drawn over the keys that were swept.
        spread: as in `draw_curves`.

    Yields:
        The end of a file's name, and the figure.
    """
    recorded = {name for name in points[0] if all(name in point for point in points)}
    if {quality.DOLLARS, quality.SCORE} <= recorded:
        yield "cost_quality", quality.draw_cost_quality(points)
    if times.NAME in recorded:
        made = times.draw_times(points) if few else draw_over_keys(points, LONG_TIME)
        yield "time_in_system", made
    elsewhere = [name for name in ELSEWHERE if name in recorded]
    if elsewhere and few:
        yield "waiting", draw_curves(points, [WAITING, *elsewhere], spread)
    elif elsewhere:
        for name in (WAITING, *elsewhere):
            yield name, draw_over_keys(points, name)
