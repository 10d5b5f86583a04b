"""The same truths for the compiled kernels, in each variant the processor can run, and for their twin."""

import pytest

from tensortap.kernels import native

WAYS = ["numpy", *(native.library.variants() if native.available else ["compiled"])]


@pytest.fixture(scope="module", params=WAYS)
def way(request):
    """Everything below works this way while the tests of a module run."""
    library = native.library
    if request.param == "numpy":
        native.library = None
    elif library is None:
        pytest.skip(native.unavailable_reason)
    else:
        library.choose(request.param)
    yield request.param
    native.library = library
    if library is not None:
        library.choose(library.variants()[0])
