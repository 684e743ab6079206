"""AWS Neuron: Trainium and Inferentia devices."""
