"""A log whose tail was cut below its start: the offsets between were given out already."""

from support.raw_client import batch_of

from tidelog.log.opening import open_log
from tidelog.settings import LogConfig, Settings
from tidelog.wire.batch import check_produced


def test_offsets_are_never_given_out_twice(tmp_path):
    config = LogConfig.of(Settings.of())
    log = open_log(str(tmp_path / "t-0"), config, 0)
    for i in range(10):
        batch = bytearray(batch_of(b"%d" % i))
        log.append(batch, check_produced(batch), 0, 0)
        log.high_watermark = log.end_offset
    log.advance_start(8)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(size // 2)
    again = open_log(str(tmp_path / "t-0"), config, 0, clean=False, log_start_offset=8)
    assert (again.log_start_offset, again.end_offset) == (8, 8)
    again.check_invariants()
    batch = bytearray(batch_of(b"next"))
    assert again.append(batch, check_produced(batch), 0, 0).base_offset == 8
