"""A ledger in a store: each run appends a row, makes it durable, and prints all rows.

    python3 ledger.py STORE TEXT
"""

import csv
import sys

import weir

try:
    with weir.open_store(sys.argv[1]) as store:
        with store.open("/ledger.csv", "a", newline="") as file:
            csv.writer(file).writerow([sys.argv[2], len(sys.argv[2])])
            weir.fsync(file)  # from here on, the row survives a crash of the machine
        with store.open("/ledger.csv", newline="") as file:
            for text, length in csv.reader(file):
                print(length, text)
except OSError as error:
    sys.exit(f"error: {error.strerror}")
