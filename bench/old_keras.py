"""The old way, run by the Python of an old environment (Keras 2.3.1): make a parallel ResNet50, and unwrap one.

python old_keras.py make FILE       save multi_gpu_model(ResNet50, 2), about 98 MB
python old_keras.py unwrap FILE OUT load it, take the inner model, save that
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
from keras import backend
from keras.utils import multi_gpu_utils


def available_devices():
    return ["/cpu:0"] + ["/gpu:{}".format(number) for number in range(8)]  # noqa: UP032  runs on Python 3.7


multi_gpu_utils._get_available_devices = available_devices
if hasattr(backend, "tensorflow_backend"):
    backend.tensorflow_backend._get_available_gpus = lambda: available_devices()[1:]

if sys.argv[1] == "make":
    base = keras.applications.ResNet50(weights=None)
    multi_gpu_utils.multi_gpu_model(base, 2).save(sys.argv[2])
else:
    parallel = keras.models.load_model(sys.argv[2], compile=False)
    inner = [layer for layer in parallel.layers if isinstance(layer, keras.Model)]
    assert len(inner) == 1
    inner[0].save(sys.argv[3])
