#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint of any kind into JAX arrays that are sharded over devices: each process reads the slices that its
devices hold, and no others.

usage: jax_arrays.py CHECKPOINT"""
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import fsdpck


def sharding_of(tensor, mesh):
    """By the first dimension that the devices divide."""
    for d, n in enumerate(tensor.shape):
        if n % mesh.size == 0:
            return NamedSharding(mesh, PartitionSpec(*[None] * d, mesh.axis_names[0]))
    return NamedSharding(mesh, PartitionSpec())


def load(source, mesh):
    """{name: array} of all tensors; one read for all slices, sorted by their place on disk."""
    shardings = {name: sharding_of(tensor, mesh) for name, tensor in source.items()}
    requests = {(name, str(index)): (name, index) for name, sharding in shardings.items()
                for index in sharding.addressable_devices_indices_map(source[name].shape).values()}
    slices = dict(zip(requests, source.read(requests.values())))
    return {name: jax.make_array_from_callback(source[name].shape, sharding,
                                               lambda index, name=name: slices[name, str(index)])
            for name, sharding in shardings.items()}


def whole(path, name):
    """One tensor on one device, by DLPack, which does not copy; with bfloat16, which NumPy's arrays cannot pass."""
    with fsdpck.open(path, "torch") as source:
        return jax.dlpack.from_dlpack(source[name][...])


def main(path):
    mesh = Mesh(np.array(jax.devices()), ("shard", ))
    with fsdpck.open(path) as source:
        arrays = load(source, mesh)
    for name, array in arrays.items():
        print(name, array.dtype, array.shape, array.sharding.spec)


if __name__ == "__main__":
    main(sys.argv[1])
