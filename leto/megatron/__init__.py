"""Models, data and retained tensors of Megatron-Core; the only room that imports megatron."""
