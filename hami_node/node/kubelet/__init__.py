"""The device plugin API: registration, device list, pod resources."""
