"""The call /bind: placed anew where needed, in turn with the node lock."""
