#!/usr/bin/env python3
"""The library from Python, by ctypes: softmax of a row and its gradient.

usage: softmax.py [LIBRARY]    libdeepspeed.so.0 where the system looks for libraries
SPDX-License-Identifier: MIT
"""
import ctypes
import sys


class Dims(ctypes.Structure):
    _fields_ = [('n', ctypes.c_int), ('d', ctypes.c_int64 * 8)]


ds = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else 'libdeepspeed.so.0')
for name in ('ds_from_data', 'ds_softmax', 'ds_require_grad', 'ds_grad', 'ds_data'):
    getattr(ds, name).restype = ctypes.c_void_p
ds.ds_error.restype = ctypes.c_char_p
F32 = 0

x = ctypes.c_void_p(ds.ds_from_data(F32, Dims(2, (1, 3)), (ctypes.c_float * 3)(1, 2, 3)))
ds.ds_require_grad(x, ctypes.c_bool(True))
y = ctypes.c_void_p(ds.ds_softmax(x, 1))
dy = ctypes.c_void_p(ds.ds_from_data(F32, Dims(2, (1, 3)), (ctypes.c_float * 3)(0, 0, 1)))
ds.ds_backward_from(y, dy)
if ds.ds_error():
    sys.exit(ds.ds_error().decode())


def row(t):
    return [round(v, 4) for v in (ctypes.c_float * 3).from_address(ds.ds_data(t))]


print('softmax ', row(y))
print('gradient', row(ctypes.c_void_p(ds.ds_grad(x))))
