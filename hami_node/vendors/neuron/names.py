"""The names of the protocol that are about AWS Neuron devices, with writer and reader.

The form of the comments: `hami_node.wire.names`. "aws" is AWS's own Neuron device plugin.
"""

from __future__ import annotations

from typing import Final

# -- Node annotations ------------------------------------------------------------------------------
# daemon -> extender: the Neuron devices as JSON, see "Register"; ours, in HAMi's style
NODE_NEURON_REGISTER: Final = "hami.io/node-register-AWSNeuron"
# daemon -> extender: `Reported_<RFC 3339>`, stale after 90 s; ours, in HAMi's style
NODE_NEURON_HANDSHAKE: Final = "hami.io/node-handshake-AWSNeuron"
# daemon -> people: instance type, links and driver of the Neuron devices as JSON; ours
NODE_NEURON_TOPOLOGY: Final = "hami-node.io/neuron-topology"

# -- Pod annotations of a reservation --------------------------------------------------------------
# scheduler, extender -> everybody: Neuron grants, cores as a bit mask; awsneuron/device.go
POD_NEURON_ALLOCATED: Final = "hami.io/aws-neuron-devices-allocated"

# -- Pod annotations of a user ---------------------------------------------------------------------
# user -> scheduler, extender: only these Neuron devices; awsneuron/device.go
USE_NEURON_UUID: Final = "aws.amazon.com/use-neuron-uuid"
# user -> scheduler, extender: none of these Neuron devices; awsneuron/device.go
NOUSE_NEURON_UUID: Final = "aws.amazon.com/nouse-neuron-uuid"

# -- Pod annotations for AWS's Neuron plugin -------------------------------------------------------
# scheduler, extender -> aws: numbers of devices, or of cores, `0,1,2`; awsneuron/device.go
NEURON_IDS: Final = "AWS_NEURON_IDS"
# scheduler, extender -> aws: the core resource's name when the ids are cores; awsneuron/device.go
NEURON_RESOURCE_TYPE: Final = "NEURON_RESOURCE_TYPE"
# scheduler, extender -> aws: Unix nanoseconds; awsneuron/device.go
NEURON_ALLOC_TIME: Final = "NEURON_ALLOC_TIME"
# scheduler, extender, then aws -> daemon: "false", "true" once served; awsneuron/device.go
NEURON_IS_ALLOCATED: Final = "NEURON_ALLOCATED"
# scheduler, extender -> aws: the chosen node; awsneuron/device.go
NEURON_PREDICATE_NODE: Final = "aws.amazon.com/predicate-node"

# -- Extended resources (the settings may rename them) ---------------------------------------------
# user -> everybody: number of whole Neuron devices; awsneuron/device.go
RESOURCE_NEURON: Final = "aws.amazon.com/neuron"
# user -> everybody: number of Neuron cores; awsneuron/device.go
RESOURCE_NEURON_CORE: Final = "aws.amazon.com/neuroncore"
# aws -> daemon: whole devices under the name that plugins before 2.22 offered beside; AWS's plugin
RESOURCE_NEURON_OLD: Final = "aws.amazon.com/neurondevice"

# -- Conditions of a node --------------------------------------------------------------------------
# aws -> daemon: of the node problem detector; AWS's chart
CONDITION_HEALTH: Final = "NeuronHealth"
# aws -> daemon: begins the reason of that condition when there is an error; AWS's chart
CONDITION_ERROR: Final = "NeuronHasError"

# -- Labels ----------------------------------------------------------------------------------------
# cloud -> daemon, scheduler, extender: on nodes, the EC2 instance type; Kubernetes
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
