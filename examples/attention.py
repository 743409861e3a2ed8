"""Attention on a few numbers: two queries attend to three keys in one head. The same as attention.c."""
import numpy as np

import multihead

q = np.array([[2, 1], [0, 3]], np.float32)  # 2 queries of size 2
k = np.array([[1, 0], [0, 1], [1, 1]], np.float32)  # 3 keys
v = np.array([[1, 10], [2, 20], [3, 30]], np.float32)  # 3 values

# Axes: batch, heads, positions, size.
o = multihead.attention(q[None, None], k[None, None], v[None, None])
for row in o[0, 0]:
    print("%.4f %.4f" % tuple(row))
