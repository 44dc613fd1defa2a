"""What a training state holds from one step to the next."""
