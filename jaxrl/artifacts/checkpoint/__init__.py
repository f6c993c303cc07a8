"""Checkpoints: folders `<Behavior>-<step>/` of arrays and a manifest, written whole or not at all."""
