"""kill -9 and the page cache lost as well: what was acknowledged as flushed is still there."""

import pytest
from faults.episodes import FLUSHED, power_cuts
from faults.seeds import seeded

CUTS = 5


@pytest.mark.parametrize("how", FLUSHED)
def test_what_was_flushed_survives(tmp_path, how):
    assert power_cuts(tmp_path / "data", seeded(), CUTS, how, told=print) > 0
