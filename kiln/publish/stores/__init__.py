"""The stores of channels whose files kiln writes: a folder or a bucket."""
