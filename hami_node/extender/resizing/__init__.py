"""Requests to resize running pods: is there room, and what is written on the pod."""
