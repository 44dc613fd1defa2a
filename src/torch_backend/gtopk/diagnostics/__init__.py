"""What is measured and reported."""
