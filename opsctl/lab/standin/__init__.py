"""The stand-in: a small model server that looks, from outside, like vLLM, and fails on demand as vLLM does.

Two engines behind one HTTP surface. ``torch`` is a real transformer, tensor-parallel over gloo, with real
safetensors shards and real profiler traces. ``paced`` computes nothing: it starts in under a second and keeps
the time it is told. GPUs are stood in for by locks that two servers cannot hold at once (``gpus.py``).
"""
