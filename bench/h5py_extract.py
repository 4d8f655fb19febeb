"""The yardstick of an extraction: a bare h5py script that writes one dataset as .npy."""

import sys

import h5py
import numpy as np

with h5py.File(sys.argv[1], "r") as file:
    np.save(sys.argv[3], file[sys.argv[2]][()])
