"""Converts a temperature on the command line."""

import sys

from scales import from_kelvin, to_kelvin


def main() -> int:
    value, source, target = float(sys.argv[1]), sys.argv[2], sys.argv[3]
    if to_kelvin(value, source) < 0:
        return 1
    print(from_kelvin(to_kelvin(value, source), target))
    return 0
