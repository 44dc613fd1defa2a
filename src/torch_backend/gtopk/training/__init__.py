"""DDP, FSDP2, optimizers and checkpoints."""
