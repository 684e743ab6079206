"""The call /bind: placed again where needed, in turn with the node lock."""
