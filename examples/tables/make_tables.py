"""Writes the two tables of this folder's specs: `python examples/tables/make_tables.py FOLDER`."""

import csv
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_diabetes

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "data/tables")
FOLDER.mkdir(parents=True, exist_ok=True)

diabetes = load_diabetes(scaled=False)
with (FOLDER / "diabetes.csv").open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow([*diabetes.feature_names, "progression"])
    writer.writerows([*row, target] for row, target in zip(diabetes.data, diabetes.target, strict=True))

# Flats with a rent that depends on the district, on whether there is a lift, and on the floor if there is none.
draw, count = np.random.default_rng(0), 4000
district, size = draw.integers(0, 40, count), draw.gamma(9, 8, count)
floor, lift = draw.integers(0, 8, count), draw.random(count) < 0.4
per_metre = draw.normal(12, 3, 40)[district] + np.where(lift, 0.3, -0.4) * floor
rent = size * per_metre + draw.normal(0, 40, count)
names = np.array([f"district {i}" for i in range(40)])
flats = {"district": names[district], "size": size, "floor": floor, "lift": lift, "rent": rent}
pq.write_table(pa.table(flats), FOLDER / "flats.parquet")
