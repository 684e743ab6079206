"""Preemption by cards: which victims make room, and the room that is kept for a nominated pod."""
