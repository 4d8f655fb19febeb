"""Legacy Keras models into Keras 3: rules on plain data, one plan, one builder."""
