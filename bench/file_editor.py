"""The yardstick of Keras itself: list a weights file with `KerasFileEditor`."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

keras.saving.KerasFileEditor(sys.argv[1]).summary()
