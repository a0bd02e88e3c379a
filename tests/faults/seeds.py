"""A seed for each run, printed, and taken from the environment to see a failure again."""

import os
import random


def seeded(name="FAULT_SEED"):
    seed = int(os.environ.get(name) or int.from_bytes(os.urandom(4), "big"))
    print(f"{name}={seed}")  # pytest shows it when the test fails
    return random.Random(seed)
