"""The errors softgen raises: one family, each also the built-in that callers already catch."""


class SoftgenError(Exception):
    """Base of every error that softgen raises on purpose."""


class InvalidValueError(SoftgenError, ValueError):
    """An argument has the right type and a value that softgen cannot accept."""


class InvalidTypeError(SoftgenError, TypeError):
    """An argument has a type (or an array a dtype or library) that softgen cannot accept."""


class NoRoomError(InvalidValueError):
    """The device has too little free memory for buffers to time a kernel on."""


class IllegalVariantError(SoftgenError, ValueError):
    """A strategy's parameters break one of its rules for this problem or architecture."""


class NotSupportedError(SoftgenError, NotImplementedError):
    """A request that makes sense and that this version of softgen does not implement."""


class MissingDependencyError(SoftgenError, ImportError):
    """An optional package or tool is needed and absent; the message says how to get it."""


class NoDeviceError(SoftgenError, RuntimeError):
    """A GPU was asked for and none can be used."""


class PluginError(SoftgenError, RuntimeError):
    """What was added to softgen fails; the message says where, `__cause__` why."""


class PluginWarning(RuntimeWarning):
    """A package's plugin for softgen cannot be used, and is left out; the others work."""


class StrategyError(PluginError):
    """A strategy that was added to softgen fails; the message says where, `__cause__` why."""


class FunctionError(PluginError):
    """A function that was added to softgen fails; the message says where, `__cause__` why."""


class CompileError(SoftgenError, RuntimeError):
    """The CUDA or host compiler refused an emitted source; the message carries its log."""


class CaptureError(SoftgenError, RuntimeError):
    """A call inside CUDA graph capture would have to compile, tune or allocate."""


class ExchangeError(SoftgenError, RuntimeError):
    """A process of the group did not send its part of rows in time."""


class LaunchError(SoftgenError, RuntimeError):
    """A kernel needs more SMs at once than its stream has, as one of a green context may."""


class EmulationError(SoftgenError, RuntimeError):
    """The CPU emulator stopped a kernel that breaks a rule of the CUDA execution model."""


class VerificationError(SoftgenError, RuntimeError):
    """A kernel's result is farther from float64 than its documented bound."""
