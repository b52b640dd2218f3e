"""A Python program with tide inside: numpy arrays in and out, nothing copied.

    python3 host.py [libtide.so]

Python sees tensors as handles. `array` shows the bytes of a tensor as a numpy array, `tensor` makes
a tensor over the bytes of one. A failure is an exception with the text of the error.
"""
import ctypes
import sys

import numpy

LIB = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libtide.so.0")
CPU = 0
DTYPES = {0: numpy.float32, 1: numpy.float64, 4: numpy.int64, 5: numpy.int32, 6: numpy.uint8}
CODES = {numpy.dtype(d): code for code, d in DTYPES.items()}
GIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
POINTER = ctypes.c_void_p


class Record(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("name", ctypes.c_char_p), ("op", ctypes.c_char_p),
                ("message", ctypes.c_char_p)]


LIB.tide_error.restype = ctypes.POINTER(Record)
LIB.tide_tensor_data.restype = LIB.tide_tensor_ctx.restype = POINTER
LIB.tide_tensor_dim.restype = LIB.tide_tensor_stride.restype = ctypes.c_int64


class Error(Exception):
    pass


class Context:
    """Owns all state; one thread at a time."""

    def __init__(self, params=None):
        self.handle, text = POINTER(), ctypes.create_string_buffer(256)
        if LIB.tide_ctx_new(ctypes.byref(self.handle), None, text, ctypes.c_size_t(256)) < 0:
            raise Error(text.value.decode())
        self.lent = {}               # arrays that tensors lie over, by address
        lent = self.lent
        self.give = GIVE(lambda user, data: lent.__delitem__(data))  # holds no context

    def __del__(self):               # its tensors are gone: they hold it
        LIB.tide_ctx_release(self.handle)

    def check(self, status):
        if status < 0:
            e = LIB.tide_error(self.handle).contents
            raise Error(f"{e.op.decode()}: {e.message.decode()} ({e.name.decode()})")

    def call(self, name, *args):
        """Calls an op that makes one tensor; tensors and numbers are its arguments."""
        out = POINTER()
        plain = [a.handle if isinstance(a, Tensor) else a for a in args]
        self.check(getattr(LIB, "tide_" + name)(ctypes.byref(out), *plain))
        return Tensor(self, out)

    def tensor(self, array):
        """A tensor over the bytes of a row-major array, which lives as long as they are used."""
        if not array.flags.c_contiguous or array.dtype not in CODES:
            raise Error(f"tensor: expected a row-major array of numbers, got {array.dtype}")
        if not array.flags.writeable:
            raise Error("tensor: expected an array that may be written, as ops in place do")
        if array.size and array.ctypes.data in self.lent:
            raise Error("tensor: there is a tensor over this array")
        shape, out = (ctypes.c_int64 * 8)(*array.shape), POINTER()
        self.check(LIB.tide_from_memory(
            ctypes.byref(out), self.handle, CPU, CODES[array.dtype], array.ndim, shape,
            POINTER(array.ctypes.data), ctypes.c_size_t(array.nbytes),
            self.give if array.size else None, None))
        if array.size:
            self.lent[array.ctypes.data] = array
        return Tensor(self, out)


class Tensor:
    def __init__(self, ctx, handle):
        self.ctx, self.handle = ctx, handle

    def __del__(self):
        LIB.tide_tensor_release(self.handle)

    def __matmul__(self, other):
        return self.ctx.call("matmul", self, other)

    def __sub__(self, other):
        return self.ctx.call("sub", self, other)

    def square_mean(self):
        return self.ctx.call("mean", self.ctx.call("square", self), 0, None, False)

    def needs_grad(self):
        self.ctx.check(LIB.tide_set_needs_grad(self.handle, True))
        return self

    def backward(self):
        self.ctx.check(LIB.tide_backward_run(self.handle, None))

    def grad(self):
        return self.ctx.call("grad", self)

    def array(self):
        """The elements as an array over the tensor's own bytes; it keeps the tensor."""
        if LIB.tide_tensor_is_gone(self.handle) != 0:
            raise Error("array: the bytes of the tensor were dropped")
        ndim = LIB.tide_tensor_ndim(self.handle)
        shape = tuple(LIB.tide_tensor_dim(self.handle, d) for d in range(ndim))
        dtype = numpy.dtype(DTYPES[LIB.tide_tensor_dtype(self.handle)])
        strides = tuple(LIB.tide_tensor_stride(self.handle, d) * dtype.itemsize
                        for d in range(ndim))
        return numpy.asarray(Bytes(self, shape, dtype, strides))


class Bytes:
    """What numpy asks of memory that is not its own; holds the tensor."""

    def __init__(self, tensor, shape, dtype, strides):
        self.tensor = tensor
        address = LIB.tide_tensor_data(tensor.handle) or 0
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str,
                                    "data": (address, False), "strides": strides}


def main():
    ctx = Context()
    random = numpy.random.default_rng(0)
    xs = random.standard_normal((64, 8), dtype=numpy.float32)
    ws = numpy.zeros((8, 1), dtype=numpy.float32)
    true = numpy.arange(8, dtype=numpy.float32).reshape(8, 1)
    x, y, w = ctx.tensor(xs), ctx.tensor(xs @ true), ctx.tensor(ws).needs_grad()

    for _ in range(300):                       # tide finds the gradient, numpy takes the step
        (x @ w - y).square_mean().backward()
        grad = w.grad()
        ws -= 0.2 * grad.array()               # the bytes of w are those of ws
        ctx.check(LIB.tide_set_grad(w.handle, None))
    print("largest difference from the true weights: %.0e" % abs(ws - true).max())

    assert w.array().ctypes.data == ws.ctypes.data
    assert (x @ w).array().shape == (64, 1)
    try:
        x @ y
    except Error as e:
        print("refused:", e)


if __name__ == "__main__":
    main()
