"""Run by the tests in one process of a Keras: load each file, predict, and write the outputs beside it.

Also for the old environments, so it runs on Python 3.6 and imports nothing of ckpttool. Arguments: a JSON list of jobs
{"path", "reference", "output", "library": "keras" | "tf_keras" | "tf.keras", "how", "json", "floatx"}. `how` is "model"
(load_model), "weights" (load_weights into the model of `json`) or "fresh" (the same, into layers of Keras 3 made anew).
Outputs y0, y1 ... go to `output`.npz, or what went wrong to `output`.txt.
"""

import json
import os
import sys
import traceback
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402


def library(name):
    """The module that has `models` and `backend`."""
    if name == "tf.keras":
        import tensorflow

        return tensorflow.keras
    return __import__(name)


DROPPED = ("batch_input_shape", "implementation", "time_major", "dtype", "input_length", "weights")
ENDINGS = ("_initializer", "_regularizer", "_constraint")


def fresh_layer(keras, entry):
    """A new layer of Keras 3 with the arguments of a stored one, but those that only say how it began or was run."""
    if "layers" in entry["config"] or isinstance(entry["config"], list):
        return fresh_model(keras, entry)
    arguments = {key: value for key, value in entry["config"].items() if key not in DROPPED}
    arguments = {key: value for key, value in arguments.items() if not key.endswith(ENDINGS)}
    if isinstance(arguments.get("layer"), dict):
        arguments["layer"] = fresh_layer(keras, arguments["layer"])
    if isinstance(arguments.get("axis"), list):
        arguments["axis"] = arguments["axis"][0]
    return getattr(keras.layers, entry["class_name"])(**arguments)


def fresh_input(keras, arguments, name):
    return keras.Input(batch_shape=arguments["batch_input_shape"], dtype=arguments.get("dtype"), name=name)


def fresh_model(keras, stored):
    """The model of a configuration of Keras 2, built anew from layers of Keras 3 with the same arguments."""
    config = stored["config"]
    entries = config if isinstance(config, list) else config["layers"]
    name = stored.get("name") or (config["name"] if isinstance(config, dict) else None)
    if stored["class_name"] == "Sequential":
        layers = [fresh_layer(keras, entry) for entry in entries if entry["class_name"] != "InputLayer"]
        return keras.Sequential([fresh_input(keras, entries[0]["config"], None), *layers], name=name)
    tensors = {}
    for entry in entries:
        if entry["class_name"] == "InputLayer":
            tensors[entry["name"]] = [[fresh_input(keras, entry["config"], entry["name"])]]
            continue
        layer = fresh_layer(keras, entry)
        first = 1 if "layers" in entry["config"] else 0  # a nested model's own construction is its call 0
        calls = tensors.setdefault(entry["name"], [None] * first)
        for node in entry["inbound_nodes"]:
            inputs = [tensors[ref[0]][ref[1]][ref[2]] for ref in node]
            found = layer(inputs[0] if len(inputs) == 1 else inputs)
            calls.append(list(found) if isinstance(found, (list, tuple)) else [found])
    inputs = [tensors[ref[0]][0][0] for ref in config["input_layers"]]
    outputs = [tensors[ref[0]][ref[1]][ref[2]] for ref in config["output_layers"]]
    return keras.Model(inputs, outputs, name=name)


def load(job):
    keras = library(job["library"])
    keras.backend.set_floatx(job.get("floatx", "float32"))
    if job["how"] == "model":
        try:
            return keras.models.load_model(job["path"], compile=False)
        except TypeError as error:
            if "unexpected keyword argument 'compile'" not in str(error):
                raise
            return keras.models.load_model(job["path"])
    if job["how"] == "fresh":
        model = fresh_model(keras, job["json"])
    else:
        model = keras.models.model_from_json(json.dumps(job["json"]))
    model.load_weights(job["path"])
    return model


def predict(model, reference):
    inputs = [reference[f"x{number}"] for number in range(len([k for k in reference.files if k.startswith("x")]))]
    found = model.predict_on_batch(inputs if len(inputs) > 1 else inputs[0])
    return found if isinstance(found, (list, tuple)) else [found]


def main(jobs):
    for job in jobs:
        try:
            model = load(job)
        except Exception:
            with open(job["output"] + ".txt", "w") as file:
                file.write(traceback.format_exc())
            continue
        outputs = predict(model, np.load(job["reference"]))
        np.savez(job["output"], **{f"y{number}": np.asarray(each) for number, each in enumerate(outputs)})
        keras = library(job["library"])
        keras.backend.clear_session()


if __name__ == "__main__":
    with open(sys.argv[1]) as source:
        main(json.load(source))
