"""Catch, keep, compare and reproduce the tensors of a running model: `import tensortap as tt`."""

from typing import TYPE_CHECKING, Any

# Public names and where they live. Nothing is imported before it is used.
_HOMES = {
    "init": "tensortap.compat.tensor_dumper",
    "dump": "tensortap.compat.tensor_dumper",
    "enable": "tensortap.compat.tensor_dumper",
    "disable": "tensortap.compat.tensor_dumper",
    "update_metadata": "tensortap.compat.tensor_dumper",
    "flush": "tensortap.compat.tensor_dumper",
    "close": "tensortap.compat.tensor_dumper",
    "enable_tensor_capture": "tensortap.compat.tensor_capture",
    "disable_tensor_capture": "tensortap.compat.tensor_capture",
    "get_available_modules": "tensortap.compat.tensor_capture",
    "register_tensor": "tensortap.compat.tensor_capture",
    "get_captured_tensors_dict": "tensortap.compat.tensor_capture",
    "ModelTracer": "tensortap.compat.tensortrace",
    "H5PYSaverCallback": "tensortap.compat.tensortrace",
    "trace_model": "tensortap.compat.tensortrace",
    "catch": "tensortap.compat.thing",
    "serve": "tensortap.compat.thing",
    "stop_serving": "tensortap.compat.thing",
    "get": "tensortap.compat.thing",
    "get_all": "tensortap.compat.thing",
    "summary": "tensortap.compat.thing",
    "status": "tensortap.compat.thing",
    "describe": "tensortap.compat.thing",
    "ingest_all": "tensortap.compat.thing",
    "pin": "tensortap.compat.thing",
    "unpin": "tensortap.compat.thing",
    "help": "tensortap.compat.thing",
    "stack_padded_tensors": "tensortap.stages.reduce",
    "stack_tensors": "tensortap.stages.reduce",
    "auto_diff": "tensortap.compat.ttracker",
    "var_tracker": "tensortap.compat.ttracker",
    "logger": "tensortap.compat.ttracker",
    "h4logger": "tensortap.compat.ttracker",
    "log2file": "tensortap.compat.ttracker",
    "_log_change": "tensortap.compat.ttracker",
    "compare": "tensortap.comparison.values.compare",
    "difference": "tensortap.comparison.values.compare",
    "register_comparator": "tensortap.comparison.values.compare",
    "compare_runs": "tensortap.comparison.runs.compare",
    "align": "tensortap.replay.align",
    "assert_runs_match": "tensortap.comparison.runs.compare",
    "floor": "tensortap.replay.perturbations",
    "Floor": "tensortap.comparison.noise.floor",
    "Comparison": "tensortap.comparison.runs.compare",
    "register_serializer": "tensortap.formats.serializers",
    "register_framework": "tensortap.frameworks.base",
    "register_sink": "tensortap.sinks.open",
    "load": "tensortap.formats.serializers",
    "capture": "tensortap.recording.capture",
    "Capture": "tensortap.recording.capture",
    "export": "tensortap.recording.export",
    "sites": "tensortap.recording.sites",
    "tap": "tensortap.recording.manual_taps",
    "edit": "tensortap.recording.edit",
    "watch": "tensortap.recording.snoop",
    "listen": "tensortap.live.job.endpoint",
    "expose": "tensortap.live.job.exposed",
    "attach": "tensortap.live.client.session",
    "jobs": "tensortap.live.discovery",
    "view": "tensortap.viewer.server",
    "step": "tensortap.core.steps",
    "every": "tensortap.stages.select",
    "first": "tensortap.stages.select",
    "nonfinite": "tensortap.stages.select",
    "changed": "tensortap.stages.select",
    "whole": "tensortap.readers.full_tensor",
    "Run": "tensortap.readers.run",
    "Tap": "tensortap.core.tap",
    "Source": "tensortap.core.protocols",
    "Stage": "tensortap.core.protocols",
    "Sink": "tensortap.core.protocols",
    "Record": "tensortap.core.record",
    "Series": "tensortap.core.record",
    "Memory": "tensortap.sinks.memory",
    "RunDirectory": "tensortap.sinks.run_directory",
    "Stream": "tensortap.sinks.stream",
    "Listener": "tensortap.sources.listener",
    "TraceFile": "tensortap.readers.trace_file",
    "HDF5": "tensortap.sinks.hdf5",
    "Difference": "tensortap.comparison.values.compare",
    "load_ipython_extension": "tensortap.integrations.ipython",
    "unload_ipython_extension": "tensortap.integrations.ipython",
    "TensortapError": "tensortap.core.errors",
    "NotInitialisedError": "tensortap.core.errors",
    "UnknownModuleError": "tensortap.core.errors",
    "UnknownNameError": "tensortap.core.errors",
    "UnknownFormatError": "tensortap.core.errors",
    "UnsupportedValueError": "tensortap.core.errors",
    "UntrustedFileError": "tensortap.core.errors",
    "CorruptRunError": "tensortap.core.errors",
    "NoRunError": "tensortap.core.errors",
    "NotWholeError": "tensortap.core.errors",
    "GatherError": "tensortap.core.errors",
    "NotServingError": "tensortap.core.errors",
    "RefusedError": "tensortap.core.errors",
    "WriteFailedError": "tensortap.core.errors",
    "MissingExtraError": "tensortap.core.errors",
}
# Importable, but not by `import *`: `help` would hide the builtin.
_HIDDEN = {"help", "_log_change"}
__all__ = sorted(_HOMES.keys() - _HIDDEN)
__version__ = "0.1.0"

if TYPE_CHECKING:
    from tensortap.comparison.noise.floor import Floor as Floor
    from tensortap.comparison.runs.compare import Comparison as Comparison
    from tensortap.comparison.runs.compare import assert_runs_match as assert_runs_match
    from tensortap.comparison.runs.compare import compare_runs as compare_runs
    from tensortap.comparison.values.compare import Difference as Difference
    from tensortap.comparison.values.compare import compare as compare
    from tensortap.comparison.values.compare import difference as difference
    from tensortap.comparison.values.compare import register_comparator as register_comparator
    from tensortap.compat.tensor_capture import disable_tensor_capture as disable_tensor_capture
    from tensortap.compat.tensor_capture import enable_tensor_capture as enable_tensor_capture
    from tensortap.compat.tensor_capture import get_available_modules as get_available_modules
    from tensortap.compat.tensor_capture import get_captured_tensors_dict as get_captured_tensors_dict
    from tensortap.compat.tensor_capture import register_tensor as register_tensor
    from tensortap.compat.tensor_dumper import close as close
    from tensortap.compat.tensor_dumper import disable as disable
    from tensortap.compat.tensor_dumper import dump as dump
    from tensortap.compat.tensor_dumper import enable as enable
    from tensortap.compat.tensor_dumper import flush as flush
    from tensortap.compat.tensor_dumper import init as init
    from tensortap.compat.tensor_dumper import update_metadata as update_metadata
    from tensortap.compat.tensortrace import H5PYSaverCallback as H5PYSaverCallback
    from tensortap.compat.tensortrace import ModelTracer as ModelTracer
    from tensortap.compat.tensortrace import trace_model as trace_model
    from tensortap.compat.thing import catch as catch
    from tensortap.compat.thing import describe as describe
    from tensortap.compat.thing import get as get
    from tensortap.compat.thing import get_all as get_all
    from tensortap.compat.thing import help as help
    from tensortap.compat.thing import ingest_all as ingest_all
    from tensortap.compat.thing import pin as pin
    from tensortap.compat.thing import serve as serve
    from tensortap.compat.thing import status as status
    from tensortap.compat.thing import stop_serving as stop_serving
    from tensortap.compat.thing import summary as summary
    from tensortap.compat.thing import unpin as unpin
    from tensortap.compat.ttracker import _log_change as _log_change
    from tensortap.compat.ttracker import auto_diff as auto_diff
    from tensortap.compat.ttracker import h4logger as h4logger
    from tensortap.compat.ttracker import log2file as log2file
    from tensortap.compat.ttracker import logger as logger
    from tensortap.compat.ttracker import var_tracker as var_tracker
    from tensortap.core.errors import CorruptRunError as CorruptRunError
    from tensortap.core.errors import GatherError as GatherError
    from tensortap.core.errors import MissingExtraError as MissingExtraError
    from tensortap.core.errors import NoRunError as NoRunError
    from tensortap.core.errors import NotInitialisedError as NotInitialisedError
    from tensortap.core.errors import NotServingError as NotServingError
    from tensortap.core.errors import NotWholeError as NotWholeError
    from tensortap.core.errors import RefusedError as RefusedError
    from tensortap.core.errors import TensortapError as TensortapError
    from tensortap.core.errors import UnknownFormatError as UnknownFormatError
    from tensortap.core.errors import UnknownModuleError as UnknownModuleError
    from tensortap.core.errors import UnknownNameError as UnknownNameError
    from tensortap.core.errors import UnsupportedValueError as UnsupportedValueError
    from tensortap.core.errors import UntrustedFileError as UntrustedFileError
    from tensortap.core.errors import WriteFailedError as WriteFailedError
    from tensortap.core.protocols import Sink as Sink
    from tensortap.core.protocols import Source as Source
    from tensortap.core.protocols import Stage as Stage
    from tensortap.core.record import Record as Record
    from tensortap.core.record import Series as Series
    from tensortap.core.steps import step as step
    from tensortap.core.tap import Tap as Tap
    from tensortap.formats.serializers import load as load
    from tensortap.formats.serializers import register_serializer as register_serializer
    from tensortap.frameworks.base import register_framework as register_framework
    from tensortap.integrations.ipython import load_ipython_extension as load_ipython_extension
    from tensortap.integrations.ipython import unload_ipython_extension as unload_ipython_extension
    from tensortap.live.client.session import attach as attach
    from tensortap.live.discovery import jobs as jobs
    from tensortap.live.job.endpoint import listen as listen
    from tensortap.live.job.exposed import expose as expose
    from tensortap.readers.full_tensor import whole as whole
    from tensortap.readers.run import Run as Run
    from tensortap.readers.trace_file import TraceFile as TraceFile
    from tensortap.recording.capture import Capture as Capture
    from tensortap.recording.capture import capture as capture
    from tensortap.recording.edit import edit as edit
    from tensortap.recording.export import export as export
    from tensortap.recording.manual_taps import tap as tap
    from tensortap.recording.sites import sites as sites
    from tensortap.recording.snoop import watch as watch
    from tensortap.replay.align import align as align
    from tensortap.replay.perturbations import floor as floor
    from tensortap.sinks.hdf5 import HDF5 as HDF5
    from tensortap.sinks.memory import Memory as Memory
    from tensortap.sinks.open import register_sink as register_sink
    from tensortap.sinks.run_directory import RunDirectory as RunDirectory
    from tensortap.sinks.stream import Stream as Stream
    from tensortap.sources.listener import Listener as Listener
    from tensortap.stages.reduce import stack_padded_tensors as stack_padded_tensors
    from tensortap.stages.reduce import stack_tensors as stack_tensors
    from tensortap.stages.select import changed as changed
    from tensortap.stages.select import every as every
    from tensortap.stages.select import first as first
    from tensortap.stages.select import nonfinite as nonfinite
    from tensortap.viewer.server import view as view


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tensortap' has no attribute {name!r}")
    from importlib import import_module

    public = globals()[name] = getattr(import_module(home), name)
    return public


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
