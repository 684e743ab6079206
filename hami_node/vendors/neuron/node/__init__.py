"""What the node's daemon does with Neuron devices: reads, reports and checks them."""
