"""ggml's attention of one query on a CPU through ctypes: llama.cpp's library from the package llama-cpp-python, or from
any folder with libggml-base.so and libggml-cpu.so."""
import ctypes as C
import importlib.util
import pathlib

import numpy as np

TYPES = {"f32": 0, "f16": 1, "bf16": 30, "int8": 8}  # ggml_type; int8 is Q8_0, one scale per 32 numbers
MARGIN = 1 << 20  # of a context: headers of tensors and graphs


class InitParams(C.Structure):
    _fields_ = [("mem_size", C.c_size_t), ("mem_buffer", C.c_void_p), ("no_alloc", C.c_bool)]


def folder(given):
    """Folder of the libraries, or the reason why there is none."""
    if given is None:
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None:
            return None, "no llama_cpp package; --ggml names a folder with ggml's libraries"
        given = pathlib.Path(spec.origin).parent / "lib"
    if not list(given.glob("libggml-cpu*.so")) or not (given / "libggml-base.so").exists():
        return None, f"{given} has no libggml-base.so and libggml-cpu.so"
    return given, None


class Library:
    """ggml's functions, and a back end with the given number of threads."""

    def __init__(self, place, threads):
        self.base = C.CDLL(str(place / "libggml-base.so"), C.RTLD_GLOBAL)
        self.cpu = C.CDLL(str(sorted(place.glob("libggml-cpu*.so"))[0]))
        pointer, size, real = C.c_void_p, C.c_int64, C.c_float
        for name, result, *arguments in (
                ("init", pointer, InitParams), ("free", None, pointer),
                ("new_tensor_4d", pointer, pointer, C.c_int, size, size, size, size),
                ("get_data", pointer, pointer), ("nbytes", C.c_size_t, pointer),
                ("row_size", C.c_size_t, C.c_int, size),
                ("quantize_chunk", C.c_size_t, C.c_int, pointer, pointer, size, size, size, pointer),
                ("permute", pointer, pointer, pointer, C.c_int, C.c_int, C.c_int, C.c_int),
                ("flash_attn_ext", pointer, pointer, pointer, pointer, pointer, pointer, real, real,
                 real),
                ("mul_mat", pointer, pointer, pointer, pointer),
                ("soft_max_ext", pointer, pointer, pointer, pointer, real, real),
                ("new_graph", pointer, pointer), ("build_forward_expand", None, pointer, pointer),
                ("backend_graph_compute", C.c_int, pointer, pointer)):
            function = getattr(self.base, "ggml_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.version = "of an unknown version"
        if hasattr(self.base, "ggml_version"):
            self.base.ggml_version.restype = C.c_char_p
            self.version = self.base.ggml_version().decode()
        self.cpu.ggml_backend_cpu_init.restype = pointer
        self.backend = self.cpu.ggml_backend_cpu_init()
        self.cpu.ggml_backend_cpu_set_n_threads.argtypes = [pointer, C.c_int]
        self.cpu.ggml_backend_cpu_set_n_threads(self.backend, threads)


class Attention:
    """Copies of a row's keys and values in a type, and a graph for each. Methods:

    flash          flash_attn_ext with llama.cpp's layout of keys and values, [S][Hk][D]
    flash heads    the same of [Hk][S][D]
    products       mul_mat, soft_max_ext, mul_mat with transposed values, [Hk][D][S]
    grouped        the same with the query heads of a key/value head as rows of one product
    """

    def __init__(self, library, way, row):
        self.lib, self.row, self.way = library, row, way
        self.type = TYPES[row.kind]
        numbers = row.k.size + row.v.size
        each = library.row_size(self.type, numbers) + 8 * row.h * (row.keys + row.d) + MARGIN
        self.context = library.init(InitParams(each * row.copies, None, False))
        if not self.context:
            raise MemoryError(f"ggml_init: {each * row.copies} bytes")
        self.graphs, self.results = zip(*(self.graph(row) for _ in range(row.copies)))

    def __del__(self):
        if getattr(self, "context", None):
            self.lib.free(self.context)

    def stored(self, x, kind, turned=()):
        """An array [heads, rows, columns] with permuted axes, as a tensor."""
        x = np.ascontiguousarray(x.transpose(turned) if turned else x, np.float32)
        tensor = self.lib.new_tensor_4d(self.context, kind, *x.shape[::-1], 1)
        data, columns = self.lib.get_data(tensor), x.shape[2]
        if kind == TYPES["f32"]:
            C.memmove(data, x.ctypes.data, x.nbytes)
        else:
            self.lib.quantize_chunk(kind, x.ctypes.data, data, 0, x.size // columns, columns, None)
        return tensor

    def graph(self, row):
        lib, context, q, k, v = self.lib, self.context, row.q, row.k, row.v
        scale = row.d ** -0.5
        grouped = self.way == "grouped"
        rows = row.h // row.hk if grouped else 1
        q = self.stored(q.reshape(row.h // rows, rows, row.d), TYPES["f32"])
        if self.way.startswith("flash"):
            turned = self.way == "flash"
            k, v = (self.stored(x[0], self.type, (1, 0, 2) if turned else ()) for x in (k, v))
            if turned:
                k, v = (lib.permute(context, x, 0, 2, 1, 3) for x in (k, v))
            result = lib.flash_attn_ext(context, q, k, v, None, scale, 0, 0)
        else:
            scores = lib.mul_mat(context, self.stored(k[0], self.type), q)
            weights = lib.soft_max_ext(context, scores, None, scale, 0)
            result = lib.mul_mat(context, self.stored(v[0], self.type, (0, 2, 1)), weights)
        graph = lib.new_graph(context)
        lib.build_forward_expand(graph, result)
        return graph, result

    def __call__(self, i):
        i %= len(self.graphs)
        status = self.lib.backend_graph_compute(self.lib.backend, self.graphs[i])
        if status:
            raise RuntimeError(f"ggml_backend_graph_compute: {status}")
        o = (C.c_float * (self.row.h * self.row.d)).from_address(self.lib.get_data(self.results[i]))
        return np.ctypeslib.as_array(o).reshape(self.row.q.shape)


def ways(row):
    found = ["flash", "flash heads"]
    if row.kind != "int8":  # blocks of 32 positions of transposed values cannot grow by one
        found += ["products"] + ["grouped"] * (row.h > row.hk)
    return found
