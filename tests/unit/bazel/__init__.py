"""What Bazel leaves beside a build."""
