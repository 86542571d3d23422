"""Trains a small model on the CPU until its loss has fallen; saves it in both formats and gets its answers back.

Usage: check_training.py FOLDER, where the SavedModel is left.
"""

import pathlib
import sys
import tempfile

import numpy as np
import tensorflow as tf

STEPS = 60


def points(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points of the plane and whether each is in the circle around the origin with radius 1."""
    places = np.random.default_rng(7).uniform(-1.5, 1.5, size=(count, 2)).astype("float32")
    return places, (np.hypot(*places.T) < 1.0).astype("float32")[:, None]


def small_model() -> tf.keras.Model:
    """Return a network of two layers."""
    layers = [tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(1, activation="sigmoid")]
    return tf.keras.Sequential([tf.keras.Input((2,)), *layers])


def train(model: tf.keras.Model, places: np.ndarray, inside: np.ndarray) -> list[float]:
    """Take gradient steps in a compiled graph; return the loss before each."""
    optimizer = tf.keras.optimizers.Adam(0.05)
    measure = tf.keras.losses.BinaryCrossentropy()

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = measure(inside, model(places, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return [float(step()) for _ in range(STEPS)]


def check_keras_file(model: tf.keras.Model, places: np.ndarray) -> None:
    """The file that Keras writes gives the model's answers."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.keras")
        model.save(path)
        again = tf.keras.models.load_model(path)
    np.testing.assert_allclose(again(places).numpy(), model(places).numpy(), rtol=1e-5)


def check_saved_model(model: tf.keras.Model, places: np.ndarray, folder: str) -> None:
    """The folder that TensorFlow Serving reads gives the model's answers."""
    model.export(folder, verbose=False)
    again = tf.saved_model.load(folder)
    np.testing.assert_allclose(again.serve(places).numpy(), model(places).numpy(), rtol=1e-5)


with tf.device("/CPU:0"):
    tf.keras.utils.set_random_seed(7)
    places, inside = points(256)
    model = small_model()
    losses = train(model, places, inside)
    assert losses[-1] < losses[0] / 2, losses
    check_keras_file(model, places)
    check_saved_model(model, places, sys.argv[1])
sys.stdout.write(f"{STEPS} steps took the loss from {losses[0]:.3f} to {losses[-1]:.3f}; saved and loaded\n")
