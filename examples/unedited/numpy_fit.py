"""Fit a line by gradient descent, with numpy alone."""

import argparse
import sys

import numpy as np


def gradient(slope, offset, x, y):
    residual = slope * x + offset - y
    return 2 * (residual * x).mean(), 2 * residual.mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, 50)
    y = 3 * x + 1 + draw.normal(0, 0.1, 50)
    slope = offset = 0.0
    for _ in range(given.rounds):
        by_slope, by_offset = gradient(slope, offset, x, y)
        slope, offset = slope - given.rate * by_slope, offset - given.rate * by_offset
    print(f"slope {slope:.4f}, offset {offset:.4f}")
    return 0 if abs(slope - 3) < 1 else 5


if __name__ == "__main__":
    sys.exit(main())
