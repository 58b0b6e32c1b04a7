"""The CPU emulator: compiles the text of an emitted kernel with the host C++ compiler and runs it.

Each CUDA thread is a fiber, blocks run one after another (those of a cluster or of a cooperative
grid together), and every load and store of the kernel is seen. What breaks a rule of CUDA's
execution model (a race, a barrier that not all threads reach, an access outside of an array) raises
EmulationError with a report in words. Memory order between blocks, timing and the GPU's own
approximations are not modelled: the GPU stays the oracle for them.
"""

from softgen.devices.emulator.job import SECONDS, Job, Results, Work
from softgen.devices.emulator.program import Program, build, run, run_each

__all__ = ["SECONDS", "Job", "Program", "Results", "Work", "build", "run", "run_each"]
