"""The yardstick of a listing: a bare h5py script that prints every tensor of a file."""

import sys

import h5py


def show(name, item):
    if isinstance(item, h5py.Dataset):
        print(name, item.shape, item.dtype)


with h5py.File(sys.argv[1], "r") as file:
    file.visititems(show)
