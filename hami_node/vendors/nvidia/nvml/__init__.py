"""NVIDIA's driver, accessed through NVML."""
