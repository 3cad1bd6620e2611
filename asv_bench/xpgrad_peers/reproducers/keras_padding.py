import os

os.environ["KERAS_BACKEND"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "tensorflow", "3"

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x = rng.normal(size=(2, 5, 3)).astype(np.float32)
mask = np.asarray([[True] * 5, [True] * 2 + [False] * 3])
x[1, 2:] = np.nan  # padding, which the mask excludes
h, c = (tf.constant(rng.normal(size=(2, 4)).astype(np.float32)) for _ in range(2))
layers = keras.layers
for kind, states in ((layers.LSTM, [h, c]), (layers.GRU, [h]), (layers.SimpleRNN, [h])):
    layer = kind(4, return_sequences=True, zero_output_for_mask=True)
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch([given, *states])
        y = layer(given, initial_state=states, mask=tf.constant(mask))
        loss = tf.reduce_sum(y)
    dx, dh = tape.gradient(loss, [given, states[0]])
    print(kind.__name__, "outputs finite:", bool(np.isfinite(y).all()), end="; ")
    print("NaN in dx of steps that the mask includes:", bool(np.isnan(dx.numpy()[mask]).any()), end="; ")
    print("NaN in dx:", bool(np.isnan(dx).any()), "in dh:", bool(np.isnan(dh).any()))
