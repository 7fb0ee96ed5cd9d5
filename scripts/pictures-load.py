"""pictures-load.py DIR: writes and reads pages of a file here and there, with a sync after eight writes, until it is killed."""

import os
import random
import sys
import time

BYTES = 200 << 20
PAGE = 4096

path = os.path.join(sys.argv[1], "table")
table = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
for offset in range(0, BYTES, 1 << 20):
    os.pwrite(table, os.urandom(1 << 20), offset)
os.fsync(table)
os.posix_fadvise(table, 0, 0, os.POSIX_FADV_DONTNEED)
page_bytes = os.urandom(4 * PAGE)
for round_number in range(1 << 30):
    for _ in range(8):
        size = random.choice([512, PAGE, 4 * PAGE])
        os.pwrite(table, page_bytes[:size], random.randrange(BYTES // PAGE - 8) * PAGE)
    os.fdatasync(table)
    offset = random.randrange(BYTES // PAGE - 8) * PAGE
    os.pread(table, 4 * PAGE, offset)
    # So that the next read of these pages asks weir.
    os.posix_fadvise(table, offset, 16 * PAGE, os.POSIX_FADV_DONTNEED)
    if round_number % 20 == 0:
        os.close(os.open(path + ".new", os.O_CREAT | os.O_WRONLY))
        os.unlink(path + ".new")
    # The load comes and goes, so that the curves have a shape.
    time.sleep(0.02 if time.time() % 20 < 12 else 0.08)
