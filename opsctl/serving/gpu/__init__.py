"""GPUs of a serving host: nvidia-smi's answers, who holds a GPU, and the gate that waits until they are free."""
