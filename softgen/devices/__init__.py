"""What runs a kernel: a GPU, or the emulator on the CPU."""
