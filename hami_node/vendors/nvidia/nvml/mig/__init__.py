"""MIG through NVML: modes, profiles, instances."""
