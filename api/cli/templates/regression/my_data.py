"""What it is learned from."""

import numpy as np
import numpy.typing as npt

Half = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


def my_data(root: str) -> tuple[Half, Half]:
    """Training and test set: inputs, and the numbers to be learned, with a row an example.

    root: `data.root` of the spec, for files of your own. It is called once a node, where the arrays then lie in shared
    memory; so it must give the same ones each time.
    """
    draw = np.random.default_rng(0)
    inputs = draw.standard_normal((2500, 4)).astype(np.float32)
    targets = np.sin(inputs[:, :1]) + inputs[:, 1:2] * inputs[:, 2:3] + 0.1 * draw.standard_normal((2500, 1))
    numbers = targets.astype(np.float32)
    return (inputs[:2000], numbers[:2000]), (inputs[2000:], numbers[2000:])
