"""The functions of `inband.h` that `inband.log` uses, as ctypes sees them. `_native` exports them."""

import ctypes

from . import _native

VALUE_LEN_MAX_BYTES = 1376
WINDOW_VALUES = 1024

ERR_ARGUMENT, ERR_CONFIG, ERR_TOO_LONG, ERR_WINDOW_FULL, ERR_STOPPED = -1, -2, -6, -7, -14
NEW, REPLAY, NOOP = 0, 1, 2
NOT_APPLIED, OUTCOME_UNKNOWN, IN_RESTORED_STATE = 0, 1, 2
DATAPLANE_CONFIGURED = 0


class Delivery(ctypes.Structure):
    _fields_ = [
        ("instance", ctypes.c_uint64),
        ("ticket", ctypes.c_uint64),
        ("value", ctypes.c_void_p),
        ("value_len_bytes", ctypes.c_size_t),
        ("kind", ctypes.c_int),
    ]


class Failure(ctypes.Structure):
    _fields_ = [
        ("ticket", ctypes.c_uint64),
        ("instance", ctypes.c_uint64),
        ("outcome", ctypes.c_int),
        ("message", ctypes.c_char_p),
    ]


_ctx = ctypes.c_void_p
DELIVER_FN = ctypes.CFUNCTYPE(None, _ctx, ctypes.POINTER(Delivery), ctypes.c_void_p)
FAILED_FN = ctypes.CFUNCTYPE(None, _ctx, ctypes.POINTER(Failure), ctypes.c_void_p)
STATE_NEEDED_FN = ctypes.CFUNCTYPE(None, _ctx, ctypes.c_void_p)

_library = ctypes.CDLL(_native.__file__)


def _function(name, result, *arguments):
    function = getattr(_library, name)
    function.restype, function.argtypes = result, arguments
    return function


create = _function(
    "inband_create",
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_size_t,
    ctypes.POINTER(_ctx),
)
free = _function("inband_free", None, _ctx)
on_deliver = _function("inband_on_deliver", ctypes.c_int, _ctx, DELIVER_FN, ctypes.c_void_p)
on_failed = _function("inband_on_failed", ctypes.c_int, _ctx, FAILED_FN, ctypes.c_void_p)
on_state_needed = _function("inband_on_state_needed", ctypes.c_int, _ctx, STATE_NEEDED_FN, ctypes.c_void_p)
submit = _function(
    "inband_submit", ctypes.c_int, _ctx, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint64)
)
recover = _function("inband_recover", ctypes.c_int, _ctx, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t)
run_once = _function("inband_run_once", ctypes.c_int, _ctx, ctypes.c_int)
stop = _function("inband_stop", None, _ctx)
save = _function("inband_save", ctypes.c_int64, _ctx, ctypes.c_void_p, ctypes.c_size_t)
restore = _function("inband_restore", ctypes.c_int, _ctx, ctypes.c_char_p, ctypes.c_size_t)
_last_error = _function("inband_last_error", ctypes.c_char_p)


def last_error() -> str:
    """The message of the last call on this thread that failed."""
    return _last_error().decode(errors="replace")
