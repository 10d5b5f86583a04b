"""The compiled kernels; without a C compiler the package is installed without them."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tensortap.kernels._native",
            ["src/tensortap/kernels/_native.c"],
            # Fused or reordered arithmetic would not count as the numpy twin does.
            extra_compile_args=[
                "-std=c99", "-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
                "-Wno-psabi",
            ],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)  # fmt: skip
